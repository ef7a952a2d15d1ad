//! What a run decides, without NATS and without an actor: given a run, when facts arrive or time passes, then it makes
//! this decision and has these effects. Each test is one row: `given` steps first, then `when`, then `then`.
//!
//! A decision is shown as its answers: the cause, then the events (`AttemptClaimed a`) or the refusal (`!WrongState`).

use jiff::SignedDuration;
use millrace_protocol::child::{Delegation, ParentTask};
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{
    AttemptResult, CommandAction, PlanningMode, ReviewPolicy, RunCommand, Submission, TaskLimits, TaskSpec,
    Work,
};
use millrace_protocol::question::{
    Answer, AnswerKind, AnswerScope, ExpiryAction, Question, QuestionExpiry, QuestionSubject, RunAnswer,
};
use millrace_protocol::result::{ErrorKind, ModelUsage, TaskError, Usage};
use millrace_protocol::wait::{Wait, WaitCondition};
use serde_json::Value;

use super::*;

// ---- the rows: submission and settling

#[test]
fn submission_starts_the_run_and_offers_ready_tasks() {
    LiveRunTestCase::new()
        .when_fact_arrives(submission_fact(&[("a", &[]), ("b", &["a"])]))
        .then_decides("fact 1: RunStarted, TaskAdded a, TaskAdded b")
        .then_has_effects("offer a/1");
}

#[test]
fn outcome_settles_its_dependents_in_the_same_decision() {
    LiveRunTestCase::with_submitted_run(&[("a", &[]), ("b", &["a"])])
        .given_decided_fact(claim_fact("a", "w1"))
        .when_fact_arrives(success_fact("a", "w1"))
        .then_decides("fact 5: AttemptFinished a, TaskAccepted a, TaskReady b")
        .then_has_effects("offer b/1");
}

#[test]
fn last_outcome_ends_the_run_in_the_same_decision() {
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .when_fact_arrives(success_fact("a", "w1"))
        .then_decides("fact 5: AttemptFinished a, TaskAccepted a | rules: RunEnded")
        .then_has_effects("close");
}

#[test]
fn cancellation_after_the_last_outcome_does_not_change_the_end() {
    let cancel = CommandAction::CancelRun { reason: "ann".into() };
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .when_fact_arrives(success_fact("a", "w1"))
        .when_fact_arrives(command_fact("c1", cancel))
        .then_decides(
            "fact 5: AttemptFinished a, TaskAccepted a | rules: RunEnded | fact 6: !RunAlreadyEnded",
        );
}

#[test]
fn cancellation_before_the_last_outcome_ends_the_run() {
    let cancel = CommandAction::CancelRun { reason: "ann".into() };
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .when_fact_arrives(command_fact("c1", cancel))
        .when_fact_arrives(success_fact("a", "w1"))
        .then_decides("fact 5: Commanded, TaskCancelled a, RunEnded | fact 6: !RunAlreadyEnded");
}

#[test]
fn ended_run_refuses_facts() {
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .given_decided_fact(success_fact("a", "w1"))
        .when_fact_arrives(claim_fact("a", "w2"))
        .then_decides("fact 7: !RunAlreadyEnded")
        .then_has_effects("close");
}

// ---- group commit

#[test]
fn one_decision_answers_all_queued_facts_in_order() {
    LiveRunTestCase::with_submitted_run(&[("a", &[]), ("b", &[]), ("c", &["a"])])
        .when_fact_arrives(claim_fact("b", "w2"))
        .when_fact_arrives(claim_fact("a", "w1"))
        .when_fact_arrives(success_fact("a", "w1"))
        .then_decides(
            "fact 3: AttemptClaimed b | fact 4: AttemptClaimed a \
             | fact 5: AttemptFinished a, TaskAccepted a, TaskReady c",
        )
        .then_has_effects("offer c/1");
}

#[test]
fn decision_answers_a_limited_number_of_facts() {
    let mut case = LiveRunTestCase::with_submitted_run(&[("a", &[])]);
    for _ in 0..MAX_FACTS + 5 {
        case = case.when_fact_arrives(claim_fact("missing", "w1"));
    }
    let first = case.decide_pending_input().unwrap();
    assert_eq!(first.answers.len(), MAX_FACTS);
    case.append_last_decision();
    assert_eq!(case.live.pending_input(), PendingInput::ClaimsOnly, "five facts are left");
    assert_eq!(case.decide_pending_input().unwrap().answers.len(), 5);
}

#[test]
fn fact_that_changes_nothing_needs_no_append() {
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .when_fact_arrives(claim_fact("a", "w1"))
        .then_decides_nothing();
}

#[test]
fn facts_that_arrive_during_an_append_wait_for_the_next_decision() {
    let mut case = LiveRunTestCase::with_submitted_run(&[("a", &[]), ("b", &[])])
        .when_fact_arrives(claim_fact("a", "w1"));
    case.decide_pending_input().unwrap();
    case = case.when_fact_arrives(success_fact("a", "w1"));
    assert_eq!(case.live.pending_input(), PendingInput::Nothing, "one append at a time");
    case.append_last_decision();
    assert_eq!(case.live.pending_input(), PendingInput::Urgent);
    case.then_decides("fact 4: AttemptFinished a, TaskAccepted a");
}

#[test]
fn each_decision_names_the_one_before_it() {
    let mut case =
        LiveRunTestCase::with_submitted_run(&[("a", &[])]).when_fact_arrives(claim_fact("a", "w1"));
    assert_eq!(case.decide_pending_input().unwrap().previous, 2, "the submission was decided at 2");
    case.append_last_decision();
    case = case.when_fact_arrives(success_fact("a", "w1"));
    assert_eq!(case.decide_pending_input().unwrap().previous, 4);
}

// ---- claims that wait

#[test]
fn claims_alone_may_wait() {
    LiveRunTestCase::with_submitted_run(&[("a", &[]), ("b", &[])])
        .when_fact_arrives(claim_fact("a", "w1"))
        .when_fact_arrives(claim_fact("b", "w2"))
        .then_has_pending_input(PendingInput::ClaimsOnly);
}

#[test]
fn claim_with_an_outcome_is_urgent() {
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .when_fact_arrives(claim_fact("a", "w1"))
        .when_fact_arrives(success_fact("a", "w1"))
        .then_has_pending_input(PendingInput::Urgent);
}

#[test]
fn claim_with_an_expired_clock_is_urgent() {
    LiveRunTestCase::with_submitted_run(&[("a", &[]), ("b", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .when_fact_arrives(claim_fact("b", "w2"))
        .when_time_passes(SILENCE)
        .then_has_pending_input(PendingInput::Urgent);
}

#[test]
fn no_input_is_pending_without_facts_and_clocks() {
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .when_time_passes(1)
        .then_has_pending_input(PendingInput::Nothing);
}

// ---- inbox

#[test]
fn redelivered_fact_is_queued_once() {
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .when_fact_arrives_at(3, claim_fact("missing", "w1"))
        .when_fact_arrives_at(3, claim_fact("missing", "w1"))
        .then_decides("fact 3: !UnknownTask");
}

#[test]
fn answered_fact_is_ignored() {
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(claim_fact("missing", "w1"))
        .when_fact_arrives_at(3, claim_fact("missing", "w1"))
        .then_has_pending_input(PendingInput::Nothing);
}

#[test]
fn run_without_a_submission_is_not_submitted() {
    let case = LiveRunTestCase::new().when_fact_arrives(claim_fact("a", "w1"));
    assert!(!case.live.is_submitted());
    assert!(case.when_fact_arrives(submission_fact(&[("a", &[])])).live.is_submitted(), "it is queued");
}

// ---- refusals

#[test]
fn refused_fact_is_answered_with_the_reason() {
    LiveRunTestCase::with_submitted_run(&[("a", &[]), ("b", &["a"])])
        .when_fact_arrives(claim_fact("b", "w1"))
        .when_fact_arrives(success_fact("a", "w1"))
        .then_decides("fact 3: !NotCurrentAttempt | fact 4: !WrongState")
        .then_has_effects("");
}

#[test]
fn repeated_command_is_refused() {
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(command_fact("c1", CommandAction::Pause))
        .when_fact_arrives(command_fact("c1", CommandAction::Pause))
        .then_decides("fact 5: !AlreadyApplied");
}

// ---- effects

#[test]
fn pause_withdraws_the_orders_of_all_tasks() {
    LiveRunTestCase::with_submitted_run(&[("a", &[]), ("b", &[])])
        .when_fact_arrives(command_fact("c1", CommandAction::Pause))
        .then_decides("fact 3: Commanded, Paused")
        .then_has_effects("withdraw a/1 from echo, withdraw b/1 from echo");
}

#[test]
fn decision_has_effects_for_the_tasks_it_changed_only() {
    LiveRunTestCase::with_submitted_run(&[("a", &[]), ("b", &[]), ("c", &["a"])])
        .given_decided_fact(claim_fact("a", "w1"))
        .when_fact_arrives(success_fact("a", "w1"))
        .then_decides("fact 5: AttemptFinished a, TaskAccepted a, TaskReady c")
        .then_has_effects("offer c/1");
}

// ---- clocks

#[test]
fn silent_attempt_times_out() {
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .when_time_passes(SILENCE)
        .then_decides("clock: AttemptTimedOut a");
}

#[test]
fn journal_activity_postpones_the_silence_timeout() {
    let mut case =
        LiveRunTestCase::with_submitted_run(&[("a", &[])]).given_decided_fact(claim_fact("a", "w1"));
    case.live.record_activity(&task_id("a"), case.now + SignedDuration::from_secs(60));
    case.when_time_passes(SILENCE)
        .then_has_pending_input(PendingInput::Nothing)
        .when_time_passes(60)
        .then_decides("clock: AttemptTimedOut a");
}

#[test]
fn instructions_for_a_running_attempt_do_not_make_it_silent() {
    let delegate =
        |delegation| Fact::Delegated { task: task_id("a"), attempt: 1, worker: worker_id("w1"), delegation };
    let child = TaskSpec {
        parent: Some(ParentTask::of_attempt(task_id("a"), 1)),
        limits: TaskLimits { silence: Duration::from_secs(SILENCE), ..TaskLimits::default() },
        ..TaskSpec::new(task_id("child"), "do it", Capability::new("echo").unwrap())
    };
    let instructed =
        Delegation { messages: vec![(task_id("child"), "hurry".into())], ..Delegation::default() };
    let mut case = LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .given_decided_fact(delegate(Delegation { children: vec![child], ..Delegation::default() }))
        .given_decided_fact(claim_fact("child", "w2"));
    let active = case.now + SignedDuration::from_secs(60);
    case.live.record_activity(&task_id("a"), active);
    case.live.record_activity(&task_id("child"), active);
    let mut case = case.given_decided_fact(delegate(instructed));
    drop(case.live.take_effects_of_last_decision());
    case.when_time_passes(SILENCE).then_has_pending_input(PendingInput::Nothing);
}

/// An answer that was given in time counts, although its question has expired before it is decided.
#[test]
fn answer_among_many_facts_comes_before_the_expiry_of_its_question() {
    let question = Question {
        subject: QuestionSubject::Input { options: Vec::new(), schema: String::new() },
        text: "Which?".into(),
        digest: "d".into(),
        decisions: vec![AnswerKind::Answer],
        to: String::new(),
        expiry: Some(QuestionExpiry {
            after: Duration::from_secs(60),
            action: ExpiryAction::FailTask,
            escalate_to: String::new(),
        }),
    };
    let condition = WaitCondition::Answer(Box::new(question));
    let parked = Fact::Parked {
        task: task_id("a"),
        attempt: 1,
        worker: worker_id("w1"),
        waits: vec![Wait::new("q", condition)],
        children: Vec::new(),
    };
    let mut case = LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .given_decided_fact(parked);
    for _ in 0..MAX_FACTS {
        case = case.when_fact_arrives(claim_fact("missing", "w1"));
    }
    let mut case = case
        .when_fact_arrives(Fact::Answered(RunAnswer {
            id: "a1".into(),
            by: "ann".into(),
            question: "a/1/1".parse().unwrap(),
            digest: "d".into(),
            answer: Answer::Answer { value: "1".into() },
            scope: AnswerScope::Once,
        }))
        .when_time_passes(61);
    let first = case.decide_pending_input().unwrap();
    assert_eq!((first.answers.len(), first.events.len()), (MAX_FACTS, 0), "nothing has expired");
    case.append_last_decision();
    let second = show_decision(&case.decide_pending_input().unwrap());
    assert!(second.contains("Commanded, AttemptWaitEnded a, AttemptWoken a"), "{second}");
}

#[test]
fn activity_of_an_earlier_attempt_does_not_count() {
    let mut case =
        LiveRunTestCase::with_submitted_run(&[("a", &[])]).given_decided_fact(claim_fact("a", "w1"));
    case.live.record_activity(&task_id("a"), case.now + SignedDuration::from_secs(10_000));
    case.given_decided_fact(failure_fact("a", "w1"))
        .when_backoffs_are_checked_after(1)
        .then_decides("clock: TaskReady a")
        .given_decided_fact(Fact::Claimed(attempt_work("a", 2), worker_id("w2"), None))
        .when_time_passes(SILENCE)
        .then_decides("clock: AttemptTimedOut a");
}

#[test]
fn ended_backoff_is_found_between_full_checks() {
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .given_decided_fact(failure_fact("a", "w1"))
        .when_backoffs_are_checked_after(0)
        .then_has_pending_input(PendingInput::Nothing)
        .when_backoffs_are_checked_after(1)
        .then_decides("clock: TaskReady a")
        .then_has_effects("offer a/2");
}

#[test]
fn other_clocks_wait_for_a_full_check() {
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .when_backoffs_are_checked_after(SILENCE)
        .then_has_pending_input(PendingInput::Nothing)
        .when_time_passes(0)
        .then_has_pending_input(PendingInput::Urgent);
}

#[test]
fn clock_that_a_fact_has_overtaken_is_dropped() {
    LiveRunTestCase::with_submitted_run(&[("a", &[]), ("b", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .when_time_passes(SILENCE)
        .when_fact_arrives(success_fact("a", "w1"))
        .then_decides("fact 5: AttemptFinished a, TaskAccepted a");
}

#[test]
fn clocks_of_a_run_that_is_being_folded_are_not_checked() {
    let mut case =
        LiveRunTestCase::with_submitted_run(&[("a", &[])]).given_decided_fact(claim_fact("a", "w1"));
    case.live.phase = RunPhase::Refolding;
    case = case.when_time_passes(SILENCE);
    case.live.phase = RunPhase::Idle;
    case.then_has_pending_input(PendingInput::Nothing);
}

// ---- the capability registry

#[test]
fn unknown_capability_is_awaited_for_a_grace_period() {
    LiveRunTestCase::with_capabilities(&[])
        .when_fact_arrives(submission_fact(&[("a", &[])]))
        .then_decides("fact 1: RunStarted, TaskAdded a")
        .when_time_passes(2)
        .then_decides_nothing()
        .when_time_passes(1)
        .then_decides("registry: CapabilityMissing a");
}

#[test]
fn registered_capability_makes_its_tasks_ready_again() {
    let mut case = LiveRunTestCase::with_capabilities(&[])
        .given_decided_fact(submission_fact(&[("a", &[])]))
        .when_time_passes(3);
    case = case.then_decides("registry: CapabilityMissing a");
    case.cluster = cluster_with_capabilities(&["echo"]);
    case.live.request_cluster_check();
    case.then_decides("registry: TaskReady a").then_has_effects("offer a/1");
}

#[test]
fn registry_is_not_checked_again_without_a_change() {
    let mut case = LiveRunTestCase::with_submitted_run(&[("a", &[])]);
    case.cluster = cluster_with_capabilities(&[]);
    assert!(!case.live.needs_cluster_check(UnknownCapabilityStatus::MayRegisterSoon));
    case.when_fact_arrives(claim_fact("a", "w1")).then_decides("fact 3: AttemptClaimed a");
}

// ---- stale journals

#[test]
fn outcome_from_before_its_dispatch_gives_the_task_another_attempt() {
    LiveRunTestCase::with_submitted_run(&[("a", &[]), ("b", &["a"])])
        .given_decided_fact(success_fact("b", "forger"))
        .given_decided_fact(claim_fact("a", "w1"))
        .when_fact_arrives(success_fact("a", "w1"))
        .then_decides("fact 7: AttemptFinished a, TaskAccepted a, TaskReady b")
        .then_has_effects("")
        .then_has_pending_input(PendingInput::Urgent)
        .then_decides("rules: TaskReopened b")
        .then_has_effects("withdraw b/1 from echo, offer b/2");
}

#[test]
fn late_outcome_of_an_earlier_attempt_does_not_disturb_the_next_one() {
    LiveRunTestCase::with_submitted_run(&[("a", &[])])
        .given_decided_fact(claim_fact("a", "w1"))
        .given_decided_fact(failure_fact("a", "w1"))
        .given_decided_fact(success_fact("a", "w1"))
        .when_backoffs_are_checked_after(60)
        .then_decides("clock: TaskReady a")
        .then_has_effects("offer a/2");
}

// ---- takeover

#[test]
fn folded_log_gives_the_same_run() {
    let case = LiveRunTestCase::with_submitted_run(&[("a", &[]), ("b", &["a"])])
        .given_decided_fact(claim_fact("a", "w1"))
        .given_decided_fact(success_fact("a", "w1"))
        .given_decided_fact(command_fact("c1", CommandAction::Message { text: "hurry".into() }));
    let mut successor = case.fold_as_successor();
    assert_eq!(successor.live.plan, case.live.plan);
    assert_eq!(successor.live.last_sequence, case.live.last_sequence);
    assert_eq!(show_effects(&successor.live.pending_effects_of_all_tasks()), "offer b/1");
}

#[test]
fn successor_decides_on_unanswered_facts_only() {
    let mut case =
        LiveRunTestCase::with_submitted_run(&[("a", &[])]).given_decided_fact(claim_fact("missing", "w1"));
    let (sequence, unanswered) = (case.sequence + 1, success_fact("a", "w1"));
    case = case.fold_as_successor();
    case.when_fact_arrives_at(1, submission_fact(&[("a", &[])]))
        .when_fact_arrives_at(3, claim_fact("missing", "w1"))
        .when_fact_arrives_at(sequence, unanswered)
        .then_decides("fact 5: !WrongState");
}

#[test]
fn facts_received_during_a_fold_are_kept() {
    let mut old = LiveRunTestCase::with_submitted_run(&[("a", &[])]);
    let mut folded = old.fold_as_successor();
    old = old.when_fact_arrives(claim_fact("a", "w1"));
    folded.live.queue_facts(old.live.take_inbox());
    folded.then_decides("fact 3: AttemptClaimed a");
}

#[test]
fn decision_of_another_supervisor_is_noticed_while_idle() {
    let mut case = LiveRunTestCase::with_submitted_run(&[("a", &[])]);
    assert!(!case.live.is_overtaken_by_decision(2), "our own decision");
    assert!(case.live.is_overtaken_by_decision(3));
}

#[test]
fn own_decision_may_be_read_before_its_append_ends() {
    let mut case =
        LiveRunTestCase::with_submitted_run(&[("a", &[])]).when_fact_arrives(claim_fact("a", "w1"));
    case.decide_pending_input().unwrap();
    assert!(!case.live.is_overtaken_by_decision(4), "it may be ours");
    assert!(case.live.finish_append(4), "it is ours");
    assert_eq!((case.live.last_sequence, case.live.phase), (4, RunPhase::Idle));
}

#[test]
fn decision_of_another_supervisor_is_noticed_when_the_append_ends() {
    let mut case =
        LiveRunTestCase::with_submitted_run(&[("a", &[])]).when_fact_arrives(claim_fact("a", "w1"));
    case.decide_pending_input().unwrap();
    assert!(!case.live.is_overtaken_by_decision(5), "it may be ours");
    assert!(!case.live.finish_append(4), "ours is 4, so 5 is not");
}

#[test]
fn decision_after_a_forged_message_expects_its_sequence() {
    let mut case = LiveRunTestCase::with_submitted_run(&[("a", &[])]);
    case.live.record_forged_sequence(3);
    case.live.record_forged_sequence(1);
    case = case.when_fact_arrives_at(4, claim_fact("a", "w1"));
    assert_eq!(case.decide_pending_input().unwrap().previous, 3);
}

#[test]
fn busy_run_has_no_pending_input() {
    let mut case =
        LiveRunTestCase::with_submitted_run(&[("a", &[])]).when_fact_arrives(success_fact("a", "w1"));
    for phase in [RunPhase::CheckingArchive, RunPhase::Refolding, RunPhase::Closing, RunPhase::Parked] {
        case.live.phase = phase;
        assert_eq!(case.live.pending_input(), PendingInput::Nothing, "{phase:?}");
    }
}

// ---- given, when, then

/// The silence limit of every task, in seconds.
const SILENCE: u64 = 300;

/// A run, the time, the registry and the log of its lane.
struct LiveRunTestCase {
    live: LiveRun,
    cluster: CapabilityRegistry,
    attendance: Attendance,
    now: Timestamp,
    /// The sequence of the last message in the lane.
    sequence: u64,
    log: Vec<(u64, Decision)>,
    effects: Vec<Effect>,
}

impl LiveRunTestCase {
    fn new() -> Self {
        Self::with_capabilities(&["echo"])
    }

    fn with_capabilities(names: &[&str]) -> Self {
        Self {
            live: LiveRun::default(),
            cluster: cluster_with_capabilities(names),
            attendance: Attendance::begin("2026-11-21T23:00:00Z".parse().unwrap()),
            now: "2026-11-21T23:00:00Z".parse().unwrap(),
            sequence: 0,
            log: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// Given: a run of these tasks, each with its dependencies. The submission is message 1 and its decision message 2.
    fn with_submitted_run(tasks: &[(&str, &[&str])]) -> Self {
        Self::new().given_decided_fact(submission_fact(tasks))
    }

    /// Given: a fact, decided on and appended.
    fn given_decided_fact(self, fact: Fact) -> Self {
        let mut case = self.when_fact_arrives(fact);
        case.decide_pending_input().expect("a given fact is answered");
        case.append_last_decision();
        case
    }

    /// When: a fact arrives as the next message.
    fn when_fact_arrives(self, fact: Fact) -> Self {
        let next = self.sequence + 1;
        self.when_fact_arrives_at(next, fact)
    }

    /// When: a message arrives with this sequence.
    fn when_fact_arrives_at(mut self, sequence: u64, fact: Fact) -> Self {
        self.sequence = self.sequence.max(sequence);
        self.live.queue_fact(QueuedFact { sequence, at: self.now, fact: Box::new(fact) });
        self
    }

    /// When: so many seconds pass, and all clocks are checked.
    fn when_time_passes(mut self, seconds: u64) -> Self {
        self.now += SignedDuration::from_secs(i64::try_from(seconds).unwrap());
        self.live.update_overdue_inputs(self.now, &self.attendance, true);
        self
    }

    /// When: so many seconds pass, and only the backoffs are checked.
    fn when_backoffs_are_checked_after(mut self, seconds: u64) -> Self {
        self.now += SignedDuration::from_secs(i64::try_from(seconds).unwrap());
        self.live.update_overdue_inputs(self.now, &self.attendance, false);
        self
    }

    /// Then: this is decided and appended.
    #[track_caller]
    fn then_decides(mut self, expected: &str) -> Self {
        let decision = self.decide_pending_input().expect("a decision");
        assert_eq!(show_decision(&decision), expected);
        self.append_last_decision();
        self
    }

    /// Then: nothing is to be appended.
    #[track_caller]
    fn then_decides_nothing(mut self) -> Self {
        assert_eq!(self.decide_pending_input().as_ref().map(show_decision), None);
        self
    }

    /// Then: the last decision has these effects.
    #[track_caller]
    fn then_has_effects(self, expected: &str) -> Self {
        assert_eq!(show_effects(&self.effects), expected);
        self
    }

    #[track_caller]
    fn then_has_pending_input(self, expected: PendingInput) -> Self {
        assert_eq!(self.live.pending_input(), expected);
        self
    }

    /// Decides, as the lane owner does before an append.
    fn decide_pending_input(&mut self) -> Option<Decision> {
        let unknown_status = self.live.unknown_capability_status(self.now);
        let cluster = (&self.cluster, unknown_status);
        let decision =
            self.live.decide_pending_input(&worker_id("s1"), cluster, &self.attendance, self.now)?;
        self.live.phase = RunPhase::Appending;
        self.log.push((0, decision.clone()));
        Some(decision)
    }

    /// Appends the last decision as the next message, and takes its effects.
    fn append_last_decision(&mut self) {
        self.sequence += 1;
        self.log.last_mut().unwrap().0 = self.sequence;
        assert!(self.live.finish_append(self.sequence));
        self.effects = self.live.take_effects_of_last_decision().0;
    }

    /// The run as another supervisor folds it from the log.
    fn fold_as_successor(&self) -> Self {
        let mut live = LiveRun::default();
        for (sequence, decision) in &self.log {
            live.fold_decision(*sequence, decision);
        }
        Self {
            live,
            cluster: self.cluster.clone(),
            attendance: self.attendance.clone(),
            now: self.now,
            sequence: self.sequence,
            log: self.log.clone(),
            effects: Vec::new(),
        }
    }
}

// ---- facts

fn submission_fact(tasks: &[(&str, &[&str])]) -> Fact {
    let specs = tasks.iter().map(|(id, depends_on)| TaskSpec {
        depends_on: depends_on.iter().map(|id| task_id(id)).collect(),
        limits: TaskLimits { silence: Duration::from_secs(SILENCE), ..TaskLimits::default() },
        ..TaskSpec::new(task_id(id), format!("do {id}"), Capability::new("echo").unwrap())
    });
    Fact::Submitted(Box::new(Submission::new("find out", PlanningMode::Fixed).with_tasks(specs)))
}

fn claim_fact(id: &str, by: &str) -> Fact {
    Fact::Claimed(attempt_work(id, 1), worker_id(by), None)
}

fn success_fact(id: &str, by: &str) -> Fact {
    let outcome = AttemptResult {
        at_sequence: 4,
        summary: "done".into(),
        is_empty: false,
        is_detailed: true,
        is_answered: true,
        review: ReviewPolicy::None,
        usage: Usage::default(),
        models: ModelUsage::new(),
    };
    Fact::Ended { task: task_id(id), attempt: 1, worker: worker_id(by), outcome: Ok(outcome) }
}

fn failure_fact(id: &str, by: &str) -> Fact {
    let outcome = Err(TaskError::new(ErrorKind::Other, "broken"));
    Fact::Ended { task: task_id(id), attempt: 1, worker: worker_id(by), outcome }
}

fn command_fact(id: &str, control: CommandAction) -> Fact {
    Fact::Control(RunCommand { id: id.into(), by: "ann".into(), control })
}

fn attempt_work(id: &str, attempt: u32) -> Work {
    Work::Task { task: task_id(id), attempt }
}

fn task_id(id: &str) -> TaskId {
    TaskId::new(id).unwrap()
}

fn worker_id(id: &str) -> WorkerId {
    WorkerId::new(id).unwrap()
}

fn cluster_with_capabilities(names: &[&str]) -> CapabilityRegistry {
    CapabilityRegistry::with_capability_names(names.iter().map(|name| Capability::new(*name).unwrap()))
}

// ---- decisions and effects as text

/// Shows a decision by the names that its events and refusals have in the log.
fn show_decision(decision: &Decision) -> String {
    let mut events = decision.events.iter();
    let answers = decision.answers.iter().map(|answer| {
        let cause = match answer.cause {
            AnswerCause::Fact(sequence) => format!("fact {sequence}"),
            AnswerCause::Clock => "clock".into(),
            AnswerCause::Registry => "registry".into(),
            AnswerCause::Rules => "rules".into(),
        };
        let events = events.by_ref().take(answer.events as usize).map(show_event);
        let refusal = answer.refusal.iter().map(|refusal| format!("!{}", variant_name_and_fields(refusal).0));
        format!("{cause}: {}", events.chain(refusal).collect::<Vec<_>>().join(", "))
    });
    answers.collect::<Vec<_>>().join(" | ")
}

fn show_event(event: &Event) -> String {
    let (name, fields) = variant_name_and_fields(event);
    let id = fields.get("task").or_else(|| fields.get("spec")?.get("id")).and_then(Value::as_str);
    id.map_or_else(|| name.clone(), |id| format!("{name} {id}"))
}

/// The name and the fields of an enum's variant, as serialised.
fn variant_name_and_fields(value: &impl serde::Serialize) -> (String, Value) {
    match serde_json::to_value(value).unwrap() {
        Value::String(name) => (name, Value::Null),
        Value::Object(object) => object.into_iter().next().unwrap(),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_)) => {
            panic!("not an enum: {other}")
        }
    }
}

fn show_effects(effects: &[Effect]) -> String {
    let show_work = |work: &Work| match work {
        Work::Task { task, attempt } => format!("{task}/{attempt}"),
        Work::Review { task, attempt, review } => format!("review {task}/{attempt}/{review}"),
        Work::Planning { turn, attempt } => format!("planning {turn}/{attempt}"),
    };
    let show = |effect: &Effect| match effect {
        Effect::Offer(work) => format!("offer {}", show_work(work)),
        Effect::Withdraw(work, queue) => format!("withdraw {} from {queue}", show_work(work)),
        Effect::Close => "close".into(),
    };
    effects.iter().map(show).collect::<Vec<_>>().join(", ")
}
