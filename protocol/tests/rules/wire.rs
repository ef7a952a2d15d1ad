//! The wire format: every message as golden bytes that must stay readable as long as the format stays; and invalid messages,
//! which must be rejected with a reason and never cause a panic.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use millrace_protocol::child::{Delegation, EndedTask, ParentTask, TaskEnd};
use millrace_protocol::file::FilePath;
use millrace_protocol::ids::{Lane, RunId, WorkerId};
use millrace_protocol::labels::Labels;
use millrace_protocol::overrides::{
    AgentOverrides, FileOperation, PermissionMode, PermissionRule, PermissionRules,
};
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::{
    Absence, AnswerCause, AttemptClock, AttemptEvent, Budget, BudgetEvent, BudgetExhaustionPolicy,
    CommandAction, Decision, DeliverableRule, Document, Edit, EndReason, Event, Fact, GraphError, GraphEvent,
    InputAnswer, JournalKey, OnFailedDependency, PlanTime, PlannerConsultMode, PlannerTrigger, PlanningEvent,
    PlanningMode, ProviderEvent, Refusal, ResourceAmounts, ReviewCheck, ReviewEvent, ReviewPolicy,
    RunCommand, RunEvent, RunHold, RunWait, RunWaitKind, StartEvent, StartEventExpiry, StartExpiryAction,
    StoppedClocks, Submission, TaskEvent, TaskLimits, TaskPatch, TaskSpec, TaskState, UserEvent, Work,
};
use millrace_protocol::question::{
    Answer, AnswerKind, AnswerScope, ExpiryAction, QuestionSubject, RunAnswer, StandingAnswer,
};
use millrace_protocol::registry::{
    ClusterSettings, Heartbeat, ProcessRole, QueuePlace, RunSummary, SummarySpend,
};
use millrace_protocol::result::{
    Artifact, Build, CapabilityDescription, CapabilityVersion, CriterionOutcome, ErrorKind, ExceededLimit,
    JudgeOpinion, ModelUsage, PlanProposal, Quotation, Source, SourceKind, TaskError, TaskResult, Usage,
    Verdict, VerificationPolicy,
};
use millrace_protocol::wait::{EndedWait, ProviderStatus, Signal, Wait, WaitEnd};
use millrace_protocol::wire::{
    self, BlobRef, DecodeError, Encoding, FORMAT, InlineOrStoredBytes, WireMessage,
};
use millrace_protocol::work::{
    Assignment, DecisionId, InputResult, JournalEntry, JudgePanel, Order, Rejection, ReviewBrief,
    SharedConversation, WorkOutcome,
};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_bytes::ByteBuf;
use serde_json::{Value, json};

use crate::scene::RunScene;
use crate::{cast, golden};

// ---- one of each

fn full_usage() -> Usage {
    Usage {
        model_calls: 1,
        tool_calls: 2,
        input_tokens: 70_000,
        output_tokens: 5_000_000_000,
        ..Usage::default()
    }
}

fn full_task_spec() -> TaskSpec {
    TaskSpec {
        objective: "naïve – 調べる".into(),
        parameters: [
            ("terms".to_owned(), json!(["patent", null, true, -7, 2.5])),
            ("deep".to_owned(), json!({ "a": { "b": [] } })),
        ]
        .into(),
        review: ReviewPolicy::critic(vec!["it cites its sources".into()]),
        limits: TaskLimits {
            max_attempts: 5,
            backoff: std::time::Duration::from_millis(250),
            ..TaskLimits::default()
        },
        on_failed_dependency: OnFailedDependency::Skip,
        is_final: true,
        ..cast::echo_task("b", &["a"])
    }
}

fn sample_events() -> Vec<(&'static str, Event)> {
    let (task, worker, at) =
        (cast::task_id("a"), cast::worker_id("w1"), cast::time_after(cast::test_start_time(), 1));
    vec![
        (
            "run started",
            Event::Run(RunEvent::Started {
                objective: "find out".into(),
                mode: PlanningMode::Llm,
                documents: Some(cast::documents().into()),
                model: Some("builtin:extractive".into()),
                models: BTreeMap::new(),
                fail_fast: true,
                budget: Box::new(Budget::default()),
                consult: PlannerConsultMode::Judgement,
                approve_plan: false,
                verification: None,
                criteria: Vec::new(),
                after: Vec::new(),
                labels: Default::default(),
                session: None,
            }),
        ),
        (
            "planning asked",
            Event::Planning(PlanningEvent::Requested {
                turn: 1,
                attempt: 2,
                feedback: Some("a circle".into()),
                triggers: Vec::new(),
            }),
        ),
        (
            "planning claimed",
            Event::Planning(PlanningEvent::Claimed { turn: 1, attempt: 2, worker: worker.clone() }),
        ),
        (
            "proposal accepted",
            Event::Planning(PlanningEvent::ProposalAccepted {
                turn: 1,
                attempt: 2,
                reasoning: "so it goes".into(),
                refused: Vec::new(),
                fallback: None,
                is_idle: false,
                is_repetition: false,
                usage: full_usage(),
                models: ModelUsage::new(),
            }),
        ),
        (
            "planning errored",
            Event::Planning(PlanningEvent::Errored {
                turn: 1,
                attempt: 1,
                error: "overloaded".into(),
                retry_at: Some(at),
                exceeded_reservation: false,
                is_refused_by_provider: false,
                usage: Usage::default(),
                models: ModelUsage::new(),
            }),
        ),
        (
            "task added",
            Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(cast::echo_task("a", &[])), ready: true }),
        ),
        (
            "task added, with everything",
            Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(full_task_spec()), ready: false }),
        ),
        ("task ready", Event::Task(TaskEvent::Ready { task: task.clone(), attempt: 1 })),
        (
            "capability missing",
            Event::Task(TaskEvent::CapabilityMissing {
                task: task.clone(),
                capability: cast::capability_name("search"),
            }),
        ),
        ("task pending", Event::Task(TaskEvent::Pending { task: task.clone() })),
        (
            "attempt claimed",
            Event::Attempt(AttemptEvent::Claimed {
                task: task.clone(),
                attempt: 1,
                worker: worker.clone(),
                build: None,
            }),
        ),
        (
            "attempt finished",
            Event::Attempt(AttemptEvent::Finished {
                task: task.clone(),
                attempt: 1,
                worker: worker.clone(),
                at_sequence: 17,
                summary: "found".into(),
                is_detailed: true,
                is_answered: true,
                review: None,
                usage: full_usage(),
                models: ModelUsage::new(),
            }),
        ),
        (
            "attempt errored",
            Event::Attempt(AttemptEvent::Errored {
                task: task.clone(),
                attempt: 1,
                error: cast::task_error(ErrorKind::Abandoned, "claimed too often").into(),
                retry_at: None,
            }),
        ),
        (
            "attempt timed out",
            Event::Attempt(AttemptEvent::TimedOut {
                task: task.clone(),
                attempt: 1,
                clock: AttemptClock::Silence,
                retry_at: Some(at),
                usage: Usage::default(),
            }),
        ),
        (
            "review errored",
            Event::Review(ReviewEvent::Errored {
                task: task.clone(),
                attempt: 1,
                review: 2,
                error: "no answer".into(),
                again: true,
                retry_at: Some(at),
                usage: Usage::default(),
                models: ModelUsage::new(),
            }),
        ),
        (
            "verdict given",
            Event::Review(ReviewEvent::VerdictGiven {
                task: task.clone(),
                attempt: 1,
                critic: cast::worker_id("c1"),
                verdict: cast::review_verdict(false, Some("more")).into(),
            }),
        ),
        ("task accepted", Event::Task(TaskEvent::Accepted { task: task.clone(), attempt: 1 })),
        ("task rerun", Event::Task(TaskEvent::Rerun { task: task.clone(), attempt: 2 })),
        ("task failed", Event::Task(TaskEvent::Failed { task: task.clone(), reason: "broken".into() })),
        (
            "task cancelled",
            Event::Task(TaskEvent::Cancelled {
                task: task.clone(),
                reason: "enough".into(),
                with: None,
                usage: Usage::default(),
            }),
        ),
        (
            "run ended",
            Event::Run(RunEvent::Ended {
                reason: EndReason::CompletedPartial,
                detail: "task b failed".into(),
                deliverable: Some((task, DeliverableRule::Producer)),
                is_resumable: false,
            }),
        ),
    ]
}

fn stopped_clocks(worker: Option<WorkerId>) -> StoppedClocks {
    let (from, until) = (cast::test_start_time(), cast::time_after(cast::test_start_time(), 60));
    StoppedClocks { worker, task: None, absence: Absence { from, until } }
}

fn sample_model_usage() -> ModelUsage {
    [("openai:some-model".to_owned(), full_usage())].into()
}

fn full_amounts() -> ResourceAmounts {
    ResourceAmounts {
        tokens: Some(10_000),
        input_tokens: Some(8_000),
        output_tokens: Some(2_000),
        cached_tokens: Some(4_000),
        model_calls: Some(12),
        cost_micros: Some(250_000),
    }
}

fn full_budget() -> Budget {
    Budget {
        amounts: full_amounts(),
        attempt: ResourceAmounts { tokens: Some(500), ..ResourceAmounts::default() },
        capabilities: [(
            cast::capability_name("planner"),
            ResourceAmounts { model_calls: Some(5), ..ResourceAmounts::default() },
        )]
        .into(),
        wall_time: Some(std::time::Duration::from_millis(90_500)),
        provider_timeout: None,
        steps: Some(7),
        tasks: Some(40),
        depth: Some(9),
        soft_percent: 70,
        final_percent: 15,
        when_spent: BudgetExhaustionPolicy::Cancel,
    }
}

fn full_review_policy() -> ReviewPolicy {
    ReviewPolicy::Critic {
        criteria: vec!["it cites its sources".into()],
        checks: vec![
            ReviewCheck::Citations,
            ReviewCheck::Quotations,
            ReviewCheck::Schema(json!({ "type": "object" })),
            ReviewCheck::Matches("patent".into()),
            ReviewCheck::MatchesNot(["TO", "DO"].concat()),
            ReviewCheck::Command { command: vec!["wc".into(), "-l".into()], timeout_s: Some(5) },
        ],
        models: vec!["a:b".into(), "c:d".into()],
        quorum: Some(2),
        sample_percent: Some(25),
    }
}

fn full_verdict() -> Verdict {
    Verdict {
        confidence: Some(0.75),
        opinions: vec![JudgeOpinion {
            model: "a:b".into(),
            passed: false,
            reasoning: "it does not".into(),
            confidence: Some(0.5),
        }],
        models: sample_model_usage(),
        ..cast::review_verdict(false, Some("more"))
    }
}

fn sample_triggers() -> Vec<PlannerTrigger> {
    let task = || cast::task_id("a");
    vec![
        PlannerTrigger::NoPlan,
        PlannerTrigger::TaskLost { task: task() },
        PlannerTrigger::TaskStuck { task: task(), problem: "nobody offers it".into() },
        PlannerTrigger::Accepted { task: task() },
        PlannerTrigger::Standstill { report: "nothing is left to do".into() },
        PlannerTrigger::Message { by: "ann".into(), text: "hurry".into() },
        PlannerTrigger::BudgetLow { detail: "8 of 10".into() },
        PlannerTrigger::Refused { reasons: vec!["it is over".into()] },
        PlannerTrigger::FalseEnd { why: "it is not".into() },
    ]
}

/// Events that were added to version 1 later, and older ones with added fields.
fn later_sample_events() -> Vec<(&'static str, Event)> {
    let (task, worker, at) =
        (cast::task_id("a"), cast::worker_id("w1"), cast::time_after(cast::test_start_time(), 1));
    let work = |review| Work::Review { task: cast::task_id("a"), attempt: 1, review };
    let spec = TaskSpec {
        review: full_review_policy(),
        on_failed_dependency: OnFailedDependency::Ask,
        budget: full_amounts(),
        ..full_task_spec()
    };
    vec![
        ("run held: session", Event::Run(RunEvent::Held { hold: RunHold::Session, submitted: None })),
        (
            "run held: place",
            Event::Run(RunEvent::Held { hold: RunHold::Place, submitted: Some(cast::test_start_time()) }),
        ),
        (
            "session turn came",
            Event::Run(RunEvent::SessionTurnCame {
                position: 2,
                earlier: vec![cast::earlier_run()],
                documents: Some(cast::documents().into()),
            }),
        ),
        ("place granted", Event::Run(RunEvent::PlaceGranted)),
        ("clocks stopped, without a supervisor", Event::Run(RunEvent::ClocksStopped(stopped_clocks(None)))),
        (
            "clocks stopped, without a worker",
            Event::Run(RunEvent::ClocksStopped(stopped_clocks(Some(worker.clone())))),
        ),
        (
            "clocks stopped, of one task",
            Event::Run(RunEvent::ClocksStopped(StoppedClocks {
                task: Some(cast::task_id("a")),
                ..stopped_clocks(Some(worker.clone()))
            })),
        ),
        ("place refused", Event::Run(RunEvent::PlaceRefused { waiting: 5 })),
        (
            "attempt claimed, by a build",
            Event::Attempt(AttemptEvent::Claimed {
                task: task.clone(),
                attempt: 1,
                worker: worker.clone(),
                build: Some(sample_build()),
            }),
        ),
        (
            "run started, with a budget",
            Event::Run(RunEvent::Started {
                objective: "find out".into(),
                mode: PlanningMode::Hybrid,
                documents: None,
                model: None,
                models: [(cast::capability_name("critic"), "a:b".to_owned())].into(),
                fail_fast: false,
                budget: Box::new(full_budget()),
                consult: PlannerConsultMode::EveryResult,
                approve_plan: false,
                verification: None,
                criteria: Vec::new(),
                after: Vec::new(),
                labels: Default::default(),
                session: None,
            }),
        ),
        (
            "run started, with a policy of verification",
            Event::Run(RunEvent::Started {
                objective: "find out".into(),
                mode: PlanningMode::Llm,
                documents: None,
                model: None,
                models: BTreeMap::new(),
                fail_fast: false,
                budget: Box::default(),
                consult: PlannerConsultMode::Judgement,
                approve_plan: false,
                verification: Some(VerificationPolicy::Require),
                criteria: Vec::new(),
                after: Vec::new(),
                labels: Default::default(),
                session: None,
            }),
        ),
        (
            "planning asked, with its occasions",
            Event::Planning(PlanningEvent::Requested {
                turn: 2,
                attempt: 1,
                feedback: None,
                triggers: sample_triggers(),
            }),
        ),
        (
            "occasion raised",
            Event::Planning(PlanningEvent::TriggerRaised {
                trigger: PlannerTrigger::TaskLost { task: task.clone() },
            }),
        ),
        (
            "proposal accepted, in part",
            Event::Planning(PlanningEvent::ProposalAccepted {
                turn: 2,
                attempt: 1,
                reasoning: "so it goes".into(),
                refused: vec!["cancel_task: it is over".into()],
                fallback: None,
                is_idle: true,
                is_repetition: false,
                usage: full_usage(),
                models: sample_model_usage(),
            }),
        ),
        (
            "proposal accepted, plain",
            Event::Planning(PlanningEvent::ProposalAccepted {
                turn: 1,
                attempt: 1,
                reasoning: "so it goes".into(),
                refused: Vec::new(),
                fallback: Some("no valid answer".into()),
                is_idle: false,
                is_repetition: true,
                usage: full_usage(),
                models: ModelUsage::new(),
            }),
        ),
        (
            "planning errored, with its usage",
            Event::Planning(PlanningEvent::Errored {
                turn: 1,
                attempt: 1,
                error: "overloaded".into(),
                retry_at: None,
                exceeded_reservation: false,
                is_refused_by_provider: false,
                usage: full_usage(),
                models: sample_model_usage(),
            }),
        ),
        (
            "task added, with a review and a budget",
            Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(spec.clone()), ready: false }),
        ),
        (
            "parameters wrong",
            Event::Task(TaskEvent::ParametersRejected { task: task.clone(), problem: "no q".into() }),
        ),
        ("task patched", Event::Graph(GraphEvent::TaskPatched { spec: Arc::new(spec), attempt: 2 })),
        ("final marked", Event::Graph(GraphEvent::FinalMarked { task: task.clone() })),
        (
            "task reopened",
            Event::Task(TaskEvent::Reopened {
                task: task.clone(),
                attempt: 4,
                ready: true,
                feedback: Some("harder".into()),
            }),
        ),
        (
            "task invalidated",
            Event::Task(TaskEvent::Invalidated { task: task.clone(), attempt: 2, usage: full_usage() }),
        ),
        ("reserved", Event::Budget(BudgetEvent::Reserved { work: work(1), amounts: full_amounts() })),
        ("budget low", Event::Budget(BudgetEvent::Low { detail: "8 of 10".into() })),
        (
            "winding down",
            Event::Run(RunEvent::WindingDown {
                reason: EndReason::BudgetExhausted,
                detail: "10 of 10".into(),
            }),
        ),
        (
            "commanded",
            Event::User(UserEvent::Commanded { id: "c1".into(), by: "ann".into(), what: "pause".into() }),
        ),
        (
            "message received",
            Event::User(UserEvent::MessageReceived { by: "ann".into(), text: "hurry".into() }),
        ),
        ("paused", Event::Run(RunEvent::Paused)),
        ("interrupted", Event::Run(RunEvent::Interrupted)),
        ("resumed", Event::Run(RunEvent::Resumed { budget: Box::new(full_budget()) })),
        ("run reopened", Event::Run(RunEvent::Reopened)),
        ("run retired", Event::Run(RunEvent::Retired)),
        ("review ready", Event::Review(ReviewEvent::Ready { task: task.clone() })),
        (
            "attempt finished, to be judged otherwise",
            Event::Attempt(AttemptEvent::Finished {
                task: task.clone(),
                attempt: 1,
                worker,
                at_sequence: 17,
                summary: "found".into(),
                is_detailed: false,
                is_answered: true,
                review: Some(ReviewPolicy::None.into()),
                usage: full_usage(),
                models: sample_model_usage(),
            }),
        ),
        (
            "attempt timed out, with what counts as used",
            Event::Attempt(AttemptEvent::TimedOut {
                task: task.clone(),
                attempt: 1,
                clock: AttemptClock::RunTime,
                retry_at: None,
                usage: full_usage(),
            }),
        ),
        (
            "attempt errored, at its allowance",
            Event::Attempt(AttemptEvent::Errored {
                task: task.clone(),
                attempt: 1,
                error: Box::new(TaskError {
                    limit: Some(ExceededLimit::Allowance),
                    usage: full_usage(),
                    models: sample_model_usage(),
                    ..cast::task_error(ErrorKind::Limit, "what was reserved is used")
                }),
                retry_at: Some(at),
            }),
        ),
        (
            "review errored, with its usage",
            Event::Review(ReviewEvent::Errored {
                task: task.clone(),
                attempt: 1,
                review: 1,
                error: "no answer".into(),
                again: false,
                retry_at: None,
                usage: full_usage(),
                models: sample_model_usage(),
            }),
        ),
        (
            "verdict given, by several models",
            Event::Review(ReviewEvent::VerdictGiven {
                task: task.clone(),
                attempt: 1,
                critic: cast::worker_id("c1"),
                verdict: full_verdict().into(),
            }),
        ),
        (
            "task cancelled, with another",
            Event::Task(TaskEvent::Cancelled {
                task: cast::task_id("b"),
                reason: "task a failed".into(),
                with: Some(task),
                usage: full_usage(),
            }),
        ),
        (
            "run ended, to be gone on with",
            Event::Run(RunEvent::Ended {
                reason: EndReason::MaxSteps,
                detail: String::new(),
                deliverable: Some((cast::task_id("a"), DeliverableRule::Detailed)),
                is_resumable: false,
            }),
        ),
        (
            "run ended, to be resumed as it is",
            Event::Run(RunEvent::Ended {
                reason: EndReason::PlannerUnavailable,
                detail: "no such model".into(),
                deliverable: None,
                is_resumable: true,
            }),
        ),
        (
            "planning refused by the provider",
            Event::Planning(PlanningEvent::Errored {
                turn: 1,
                attempt: 1,
                error: "no such model".into(),
                retry_at: None,
                exceeded_reservation: false,
                is_refused_by_provider: true,
                usage: Usage::default(),
                models: ModelUsage::new(),
            }),
        ),
        (
            "provider awaited",
            Event::Provider(ProviderEvent::Awaited {
                journal: JournalKey::Task(cast::task_id("a"), 2),
                wait: cast::provider_wait("overloaded"),
            }),
        ),
        (
            "reservation too small",
            Event::Budget(BudgetEvent::TooSmall {
                journal: JournalKey::Task(cast::task_id("a"), 1),
                needs: ResourceAmounts { tokens: Some(2_600), ..ResourceAmounts::default() },
            }),
        ),
        (
            "provider recovered",
            Event::Provider(ProviderEvent::Recovered { journal: JournalKey::Planning(2, 1) }),
        ),
        (
            "provider given up",
            Event::Provider(ProviderEvent::GivenUp {
                journal: JournalKey::Review(cast::task_id("a"), 2),
                wait: cast::provider_wait("overloaded"),
            }),
        ),
        (
            "attempt parked",
            Event::Attempt(AttemptEvent::Parked {
                task: cast::task_id("a"),
                attempt: 2,
                waits: sample_waits(),
            }),
        ),
        (
            "attempt parked: questions",
            Event::Attempt(AttemptEvent::Parked {
                task: cast::task_id("a"),
                attempt: 2,
                waits: sample_questions(),
            }),
        ),
        ("attempt wait ended: in time", wait_ended_event(WaitEnd::TimeReached)),
        ("attempt wait ended: expired", wait_ended_event(WaitEnd::Expired)),
        ("attempt wait ended: signalled", wait_ended_event(sample_signalled_end())),
        ("attempt wait ended: approved", wait_ended_event(answered_end(Answer::Approve))),
        ("attempt wait ended: edited", wait_ended_event(answered_end(edited_answer()))),
        (
            "attempt wait ended: rejected",
            wait_ended_event(answered_end(Answer::Reject { message: "no".into() })),
        ),
        (
            "attempt wait ended: responded",
            wait_ended_event(answered_end(Answer::Respond { content: "42".into() })),
        ),
        (
            "attempt wait ended: answered",
            wait_ended_event(answered_end(Answer::Answer { value: r#""eu""#.into() })),
        ),
        ("attempt wait ended: declined", wait_ended_event(answered_end(Answer::Decline))),
        (
            "question renewed",
            Event::Attempt(AttemptEvent::QuestionRenewed {
                task: cast::task_id("a"),
                attempt: 2,
                key: "approve.0.1.execute".into(),
                to: "ops".into(),
            }),
        ),
        (
            "standing answer",
            Event::User(UserEvent::StandingAnswerGiven(StandingAnswer {
                capability: cast::capability_name("echo"),
                tool: "execute".into(),
                digest: Some("1f".into()),
                by: "ann".into(),
                answer: Answer::Approve,
            })),
        ),
        ("attempt wait ended: tasks", wait_ended_event(WaitEnd::TasksEnded(sample_ended_tasks()))),
        (
            "child refused",
            Event::Attempt(AttemptEvent::ChildRefused {
                task: cast::task_id("a"),
                attempt: 2,
                child: cast::task_id("a-2-0-1"),
                reason: "an attempt may delegate at most 32 tasks".into(),
            }),
        ),
        (
            "task instructed",
            Event::Task(TaskEvent::Instructed {
                task: cast::task_id("a-2-0-0"),
                attempt: 2,
                text: "use metric units".into(),
            }),
        ),
        (
            "task added: child",
            Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(sample_child()), ready: true }),
        ),
        (
            "task added: start condition",
            Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(task_with_start()), ready: true }),
        ),
        (
            "task patched: start condition",
            Event::Graph(GraphEvent::TaskPatched { spec: Arc::new(task_with_start()), attempt: 2 }),
        ),
        (
            "task added: child of a shared agent",
            Event::Graph(GraphEvent::TaskAdded {
                spec: Arc::new(TaskSpec { is_shared: true, ..sample_child() }),
                ready: false,
            }),
        ),
        (
            "task added: child that is a fork",
            Event::Graph(GraphEvent::TaskAdded {
                spec: Arc::new(TaskSpec { fork: Some(sample_fork()), ..sample_child() }),
                ready: true,
            }),
        ),
        (
            "task added: child with overrides",
            Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(sample_overridden_child()), ready: true }),
        ),
        (
            "attempt parked: tasks",
            Event::Attempt(AttemptEvent::Parked {
                task: cast::task_id("a"),
                attempt: 2,
                waits: vec![
                    cast::tasks_wait("tool.0.0.task", &["a-2-0-0"], false, None),
                    cast::tasks_wait("tool.0.1.wait_for", &["a-2-0-0", "a-2-0-1"], true, Some(60)),
                ],
            }),
        ),
        (
            "attempt parked: judgement",
            Event::Attempt(AttemptEvent::Parked {
                task: cast::task_id("a"),
                attempt: 2,
                waits: vec![sample_judgement()],
            }),
        ),
        (
            "attempt wait ended: failed",
            wait_ended_event(answered_end(Answer::Fail { feedback: "it has no units".into() })),
        ),
        ("attempt wait ended: passed", wait_ended_event(answered_end(Answer::Pass))),
        (
            "task added: judged by persons",
            Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(spec_judged_by_persons()), ready: true }),
        ),
        (
            "plan question asked",
            Event::Run(RunEvent::PlanQuestionAsked { wait: sample_plan_question(), again: true }),
        ),
        (
            "plan question ended",
            Event::Run(RunEvent::PlanQuestionEnded { end: answered_end(Answer::Approve) }),
        ),
        ("attempt woken", Event::Attempt(AttemptEvent::Woken { task: cast::task_id("a"), attempt: 2 })),
        (
            "signalled",
            Event::User(UserEvent::Signalled(Signal {
                name: "deployed".into(),
                by: "ann".into(),
                data: r#"{"version":3}"#.into(),
            })),
        ),
    ]
}

/// A task that starts at a time and after an event.
fn task_with_start() -> TaskSpec {
    let until = PlanTime::AfterStart(std::time::Duration::from_millis(90_500));
    let expiry = Some(StartEventExpiry { until, action: StartExpiryAction::FailTask });
    TaskSpec {
        not_before: Some(PlanTime::At(cast::test_start_time())),
        wait_for_event: Some(Box::new(StartEvent { name: "deployed".into(), expiry })),
        ..cast::echo_task("a", &[])
    }
}

fn sample_child() -> TaskSpec {
    let parent = ParentTask { task: cast::task_id("a"), attempt: 2, depth: 1 };
    TaskSpec { parent: Some(parent), ..cast::echo_task("a-2-0-0", &[]) }
}

fn sample_fork() -> Box<InlineOrStoredBytes> {
    Box::new(InlineOrStoredBytes::Stored(BlobRef { sha256: "0".repeat(64), size: 70_000 }))
}

fn sample_shared() -> SharedConversation {
    SharedConversation { last_call: Some((cast::task_id("a-1-0-0"), 1)) }
}

fn sample_overridden_child() -> TaskSpec {
    TaskSpec { overrides: Some(Box::new(sample_overrides())), ..sample_child() }
}

fn sample_overrides() -> AgentOverrides {
    let rule = PermissionRule {
        operations: vec![FileOperation::Read, FileOperation::Write],
        paths: vec!["/drafts/**".into()],
        mode: PermissionMode::Ask,
    };
    AgentOverrides {
        model: Some("openai:small".into()),
        tools: Some(["grep", "ls"].map(str::to_owned).into()),
        permissions: vec![PermissionRules(vec![rule])],
        turns: Some(5),
        tool_calls: Some(9),
    }
}

fn sample_ended_tasks() -> Vec<EndedTask> {
    let ends = [
        TaskEnd::Completed { summary: "found".into() },
        TaskEnd::Failed {
            kind: Some(ErrorKind::Limit),
            message: "its budget is used up".into(),
            limit: Some(ExceededLimit::Allowance),
            produced: Some("half of it".into()),
        },
        TaskEnd::TimedOut { message: "it ran longer than its limit".into() },
        TaskEnd::Cancelled { reason: "enough".into() },
        TaskEnd::Refused { reason: "an attempt may delegate at most 32 tasks".into() },
    ];
    let usage = Usage { model_calls: 1, input_tokens: 30, ..Usage::default() };
    let ended = |(at, end)| EndedTask { task: cast::task_id(&format!("a-2-0-{at}")), end, usage };
    ends.into_iter().enumerate().map(ended).collect()
}

/// A wait of each kind.
fn sample_waits() -> Vec<Wait> {
    vec![
        cast::time_wait("sleep.2", 60),
        cast::event_wait("event.3", "deployed", None),
        cast::event_wait("event.4", "checked", Some(90)),
    ]
}

/// A question of each kind.
fn sample_questions() -> Vec<Wait> {
    vec![
        cast::approval_wait("approve.0.1.execute", Some((60, ExpiryAction::Escalate))),
        cast::input_wait("tool.0.2.ask_user", None),
    ]
}

fn sample_judgement() -> Wait {
    let subject = QuestionSubject::Review {
        summary: "found".into(),
        criteria: vec!["it has units".into()],
        critic: "accepted: it does".into(),
    };
    cast::question_wait("review.1", subject, vec![AnswerKind::Pass, AnswerKind::Fail], None)
}

fn sample_plan_question() -> Wait {
    let subject = QuestionSubject::Plan { tasks: 2 };
    cast::question_wait("plan.1", subject, vec![AnswerKind::Approve, AnswerKind::Reject], None)
}

fn spec_judged_by_persons() -> TaskSpec {
    let review = cast::review_by_persons(&["ann", ""], Some(2), full_review_policy());
    TaskSpec { review, ..cast::echo_task("a", &[]) }
}

fn sample_signalled_end() -> WaitEnd {
    WaitEnd::Signalled { by: "ann".into(), data: r#"{"version":3}"#.into() }
}

fn answered_end(answer: Answer) -> WaitEnd {
    WaitEnd::Answered { by: "ann".into(), answer }
}

fn edited_answer() -> Answer {
    Answer::Edit { arguments: r#"{"command":"ls"}"#.into() }
}

fn wait_ended_event(end: WaitEnd) -> Event {
    let ended = EndedWait { key: "sleep.2".into(), end };
    Event::Attempt(AttemptEvent::WaitEnded { task: cast::task_id("a"), attempt: 2, ended })
}

/// The names of all events on the wire, as the error for an unknown one lists them.
fn event_names_on_the_wire() -> Vec<String> {
    let error = serde_json::from_value::<Event>(json!({ "Unknown": {} })).unwrap_err().to_string();
    let names = error.split('`').skip(1).step_by(2).filter(|name| *name != "Unknown");
    names.map(str::to_owned).collect()
}

#[test]
fn every_event_has_a_sample() {
    let samples: Vec<Event> =
        sample_events().into_iter().chain(later_sample_events()).map(|(_, event)| event).collect();
    let sampled = |name: &String| {
        samples.iter().any(|event| {
            let json = serde_json::to_value(event).unwrap();
            json.get(name).is_some() || json.as_str() == Some(name)
        })
    };
    let names = event_names_on_the_wire();
    assert!(names.len() >= 36, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !sampled(name)).collect();
    assert!(missing.is_empty(), "add a sample to `later_events` for {missing:?}");
}

fn sample_refusals() -> Vec<Refusal> {
    let (a, b) = (cast::task_id("a"), cast::task_id("b"));
    let graph = [
        GraphError::DuplicateTask(a.clone()),
        GraphError::MissingDependency { task: a.clone(), dependency: b.clone() },
        GraphError::SelfDependency(a.clone()),
        GraphError::DuplicateDependency { task: a.clone(), dependency: b.clone() },
        GraphError::Cycle(vec![a.clone(), b.clone()]),
        GraphError::TwoFinal(a.clone(), b),
        GraphError::Empty,
        GraphError::TooManyTasks(1_000_001),
        GraphError::EmptyObjective(a.clone()),
        GraphError::LongObjective { task: a.clone(), bytes: 70_000 },
        GraphError::Limit { task: a.clone(), limit: "run_time".into(), expected: "more than 0".into() },
        GraphError::ReservedCapability { task: a.clone(), capability: cast::capability_name("critic") },
    ];
    let own = [
        Refusal::AlreadySubmitted,
        Refusal::NotSubmitted,
        Refusal::RunAlreadyEnded(EndReason::NoProgress),
        Refusal::UnknownTask(a.clone()),
        Refusal::NotCurrentAttempt { task: a.clone(), attempt: 1, current: 2 },
        Refusal::WrongState { task: a.clone(), state: TaskState::NeedsReview, what: "a claim".into() },
        Refusal::AuthorIsCritic(a),
        Refusal::NotCurrentTurn { turn: 1, attempt: 2 },
        Refusal::NotDue(cast::test_start_time()),
    ];
    own.into_iter().chain(graph.map(Refusal::Graph)).collect()
}

fn later_sample_refusals() -> Vec<Refusal> {
    let (task, capability) = (cast::task_id("a"), cast::capability_name("search"));
    vec![
        Refusal::AlreadyApplied("c1".into()),
        Refusal::WrongMoment("the run is paused already".into()),
        Refusal::Unusable("the message is empty".into()),
        Refusal::UnknownCapability {
            task: task.clone(),
            capability: capability.clone(),
            known: "there are echo".into(),
        },
        Refusal::WrongParameters { task, capability, problem: "no q".into() },
        Refusal::FixedPlan { edit: "add_tasks".into() },
        Refusal::TooLarge { what: "tasks".into(), found: 1_001, allowed: 1_000 },
    ]
}

fn build_decision(events: Vec<Event>, answers: Vec<InputAnswer>) -> Decision {
    Decision { by: cast::worker_id("s1"), previous: 41, at: cast::test_start_time(), answers, events }
}

fn sample_decisions() -> Vec<(String, Decision)> {
    let answer = |cause| InputAnswer { cause, events: 1, refusal: None };
    let causes = [AnswerCause::Fact(42), AnswerCause::Clock, AnswerCause::Registry, AnswerCause::Rules]
        .map(answer)
        .to_vec();
    let refused = |refusal| InputAnswer { cause: AnswerCause::Fact(43), events: 0, refusal: Some(refusal) };
    let of_events = sample_events().into_iter().chain(later_sample_events()).map(|(name, event)| {
        (format!("event: {name}"), build_decision(vec![event], vec![answer(AnswerCause::Fact(42))]))
    });
    let more = build_decision(Vec::new(), later_sample_refusals().into_iter().map(refused).collect());
    of_events
        .chain([
            ("more refusals".to_owned(), more),
            ("all causes".to_owned(), build_decision(Vec::new(), causes)),
            (
                "all refusals".to_owned(),
                build_decision(Vec::new(), sample_refusals().into_iter().map(refused).collect()),
            ),
        ])
        .collect()
}

fn sample_labels() -> Labels {
    [("team".to_owned(), "search".to_owned())].into()
}

/// The software of a claimant.
fn sample_build() -> Arc<Build> {
    let capability = CapabilityVersion {
        version: Some("2.1".into()),
        sha256: Some("ab".repeat(32)),
        program_sha256: Some("cd".repeat(32)),
    };
    Arc::new(Build { program: "millrace 0.5.0".into(), capability: Some(capability) })
}

fn sample_submissions() -> Vec<(String, Submission)> {
    let full = Submission {
        documents: Some(cast::documents()),
        model: Some("builtin:echo".into()),
        fail_fast: true,
        ..cast::fixed_plan_submission(vec![cast::echo_task("a", &[]), full_task_spec()])
    };
    let spec = TaskSpec { review: full_review_policy(), budget: full_amounts(), ..full_task_spec() };
    let later = Submission {
        mode: PlanningMode::Hybrid,
        models: [(cast::capability_name("planner"), "a:b".to_owned())].into(),
        budget: full_budget(),
        consult: Some(PlannerConsultMode::EveryResult),
        ..cast::fixed_plan_submission(vec![cast::echo_task("a", &[]), spec])
    };
    vec![
        ("with a plan and everything".into(), full),
        ("without a plan".into(), cast::planner_submission()),
        ("with a budget and a planner".into(), later),
        (
            "judged by persons, and approved by one".into(),
            Submission { approve_plan: true, ..cast::fixed_plan_submission(vec![spec_judged_by_persons()]) },
        ),
        ("a start condition".into(), cast::fixed_plan_submission(vec![task_with_start()])),
        ("with labels".into(), Submission { labels: sample_labels(), ..cast::planner_submission() }),
        ("of a session".into(), Submission { session: Some(cast::session()), ..cast::planner_submission() }),
        (
            "after an earlier run".into(),
            Submission { after: vec![cast::earlier_run()], ..cast::planner_submission() },
        ),
        (
            "with criteria of the deliverable".into(),
            Submission { criteria: vec!["It has three parts.".into()], ..cast::planner_submission() },
        ),
        (
            "in a trace".into(),
            Submission {
                trace_parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().ok(),
                ..cast::planner_submission()
            },
        ),
    ]
}

fn sample_edits() -> Vec<Edit> {
    let task = || cast::task_id("a");
    let patch = TaskPatch {
        objective: Some("do it otherwise".into()),
        capability: Some(cast::capability_name("search")),
        depends_on: Some(vec![cast::task_id("b")]),
        parameters: [("q".to_owned(), Value::Null)].into(),
        review: Some(full_review_policy()),
        limits: Some(TaskLimits { max_attempts: 2, ..TaskLimits::default() }),
        on_failed_dependency: Some(OnFailedDependency::Ask),
        ..TaskPatch::without_changes(task())
    };
    vec![
        Edit::Add(vec![cast::echo_task("a", &[]), full_task_spec()]),
        Edit::Patch(patch),
        Edit::Cancel { task: task(), reason: "not needed".into() },
        Edit::Retry { task: task(), feedback: Some("harder".into()), changes: None },
        Edit::MarkFinal { task: task() },
        Edit::Finish { reason: "it is there".into() },
        Edit::GiveUp { reason: "there is no way on".into() },
    ]
}

/// A patch that starts a task later, and no longer with an event.
fn patch_of_start() -> TaskPatch {
    TaskPatch {
        not_before: Some(PlanTime::AfterStart(std::time::Duration::from_secs(60))),
        wait_for_event: Some(Box::new(StartEvent { name: String::new(), expiry: None })),
        ..TaskPatch::without_changes(cast::task_id("a"))
    }
}

fn sample_commands() -> Vec<(String, RunCommand)> {
    let command = |control| RunCommand { id: "c1".into(), by: "ann".into(), control };
    let edits = sample_edits().into_iter().map(|edit| (edit.name().to_owned(), CommandAction::Edit(edit)));
    let reason = || "by hand".to_owned();
    let others = [
        ("cancel run".to_owned(), CommandAction::CancelRun { reason: reason() }),
        ("cancel task".to_owned(), CommandAction::CancelTask { task: cast::task_id("a"), reason: reason() }),
        ("pause".to_owned(), CommandAction::Pause),
        ("interrupt".to_owned(), CommandAction::Interrupt),
        ("resume".to_owned(), CommandAction::Resume { budget: None }),
        ("resume with more".to_owned(), CommandAction::Resume { budget: Some(full_budget()) }),
        ("message".to_owned(), CommandAction::Message { text: "hurry".into() }),
        ("signal".to_owned(), CommandAction::Signal { name: "deployed".into(), data: "3".into() }),
        ("signal without data".to_owned(), CommandAction::Signal { name: "go".into(), data: String::new() }),
        ("retire".to_owned(), CommandAction::Retire),
        ("add: start condition".to_owned(), CommandAction::Edit(Edit::Add(vec![task_with_start()]))),
        ("patch: start condition".to_owned(), CommandAction::Edit(Edit::Patch(patch_of_start()))),
    ];
    edits.chain(others).map(|(name, control)| (name, command(control))).collect()
}

fn sample_journal_entries() -> Vec<(String, JournalEntry)> {
    let outcome = |outcome| JournalEntry::Outcome { worker: cast::worker_id("w1"), review: 0, outcome };
    let wait = || cast::provider_wait("overloaded");
    let note = |status| JournalEntry::Note { text: "waiting".into(), provider: Some(status) };
    let released = |why: &str, provider| JournalEntry::Released {
        worker: cast::worker_id("w1"),
        why: why.into(),
        provider,
        needs: ResourceAmounts::default(),
    };
    let stored = || InlineOrStoredBytes::Stored(BlobRef { sha256: "cd".repeat(32), size: 300_000 });
    let inline = || InlineOrStoredBytes::Inline(ByteBuf::from(wire::encode_body(&TaskResult::default())));
    let finished = |result| WorkOutcome::Finished {
        summary: "found".into(),
        is_empty: false,
        is_detailed: true,
        is_answered: true,
        review: ReviewPolicy::None,
        usage: full_usage(),
        models: ModelUsage::new(),
        result,
    };
    let judged_otherwise = WorkOutcome::Finished {
        summary: "found".into(),
        is_empty: false,
        is_detailed: false,
        is_answered: true,
        review: full_review_policy(),
        usage: full_usage(),
        models: sample_model_usage(),
        result: inline(),
    };
    let proposal = PlanProposal {
        reasoning: "so it goes".into(),
        tasks: vec![cast::echo_task("a", &[]), full_task_spec()],
        edits: Vec::new(),
        fallback: None,
    };
    let edited = PlanProposal {
        reasoning: "so it goes".into(),
        tasks: Vec::new(),
        edits: sample_edits(),
        fallback: None,
    };
    let judged = JournalEntry::Outcome {
        worker: cast::worker_id("c1"),
        review: 2,
        outcome: WorkOutcome::Judged(cast::review_verdict(true, None)),
    };
    vec![
        ("claimed".into(), JournalEntry::Claimed { worker: cast::worker_id("w1"), claim: 2, build: None }),
        (
            "claimed, by a build".into(),
            JournalEntry::Claimed { worker: cast::worker_id("w1"), claim: 2, build: Some(sample_build()) },
        ),
        ("step".into(), JournalEntry::Step { number: 3, name: "model".into(), value: inline() }),
        (
            "step, shortened conversation".into(),
            JournalEntry::Step { number: 5, name: "context.2".into(), value: inline() },
        ),
        (
            "step, written files".into(),
            JournalEntry::Step { number: 6, name: "files.2.0.execute".into(), value: inline() },
        ),
        (
            "step, stored".into(),
            JournalEntry::Step { number: 4, name: "tool:search".into(), value: stored() },
        ),
        ("note".into(), JournalEntry::Note { text: "reading GPL-3.0".into(), provider: None }),
        ("released".into(), released("no model answers", None)),
        (
            "released: too little is reserved".into(),
            JournalEntry::Released {
                worker: cast::worker_id("w1"),
                why: "too small".into(),
                provider: None,
                needs: ResourceAmounts { tokens: Some(2_600), ..ResourceAmounts::default() },
            },
        ),
        (
            "parked".into(),
            JournalEntry::Parked {
                worker: cast::worker_id("w1"),
                waits: sample_waits(),
                children: Vec::new(),
            },
        ),
        (
            "parked: questions".into(),
            JournalEntry::Parked {
                worker: cast::worker_id("w1"),
                waits: sample_questions(),
                children: Vec::new(),
            },
        ),
        (
            "parked: tasks".into(),
            JournalEntry::Parked {
                worker: cast::worker_id("w1"),
                waits: vec![cast::tasks_wait("tool.0.0.task", &["a-2-0-0"], false, None)],
                children: vec![TaskSpec { parent: None, ..sample_child() }],
            },
        ),
        (
            "delegated".into(),
            JournalEntry::Delegated {
                worker: cast::worker_id("w1"),
                delegation: Delegation {
                    children: vec![TaskSpec { parent: None, ..sample_child() }],
                    cancels: vec![(cast::task_id("a-2-0-1"), "not needed".into())],
                    messages: vec![(cast::task_id("a-2-0-0"), "use metric units".into())],
                },
            },
        ),
        ("note: waiting for a provider".into(), note(ProviderStatus::Waiting(wait()))),
        ("note: a provider answers again".into(), note(ProviderStatus::Recovered)),
        (
            "released: a provider stays away".into(),
            released("no model answers", Some(ProviderStatus::GivenUp(wait()))),
        ),
        ("outcome: finished".into(), outcome(finished(inline()))),
        ("outcome: finished, stored".into(), outcome(finished(stored()))),
        ("outcome: finished, to be judged otherwise".into(), outcome(judged_otherwise)),
        ("outcome: judged".into(), judged),
        (
            "outcome: proposed".into(),
            outcome(WorkOutcome::Proposed { proposal, usage: full_usage(), models: ModelUsage::new() }),
        ),
        (
            "outcome: proposed, start condition".into(),
            outcome(WorkOutcome::Proposed {
                proposal: PlanProposal {
                    reasoning: "it is too early".into(),
                    tasks: Vec::new(),
                    edits: vec![Edit::Patch(patch_of_start())],
                    fallback: None,
                },
                usage: Usage::default(),
                models: ModelUsage::new(),
            }),
        ),
        (
            "outcome: proposed, with changes".into(),
            outcome(WorkOutcome::Proposed {
                proposal: edited,
                usage: full_usage(),
                models: sample_model_usage(),
            }),
        ),
        ("outcome: judged by several models".into(), outcome(WorkOutcome::Judged(full_verdict()))),
        (
            "outcome: errored".into(),
            outcome(WorkOutcome::Errored(cast::task_error(ErrorKind::Limit, "too long"))),
        ),
    ]
}

fn sample_input_result() -> InputResult {
    InputResult {
        task: cast::task_id("a"),
        objective: "do a".into(),
        capability: cast::capability_name("echo"),
        worker: cast::worker_id("w1"),
        summary: "found".into(),
        at_sequence: 17,
    }
}

fn sample_orders() -> Vec<(String, Order)> {
    let task = full_task_spec();
    let order = |assignment| Order {
        run: RunId::new("20261121-230000-k3f9q2").unwrap(),
        lane: Lane(3),
        assignment,
        mission: "find out".into(),
        objective: task.objective.clone(),
        capability: task.capability.clone(),
        parameters: task.parameters.clone(),
        inputs: vec![sample_input_result()],
        is_final: true,
        feedback: vec!["Attempt 1 was rejected: more".into()],
        limits: task.limits.clone(),
        provider_timeout: None,
        documents: Some(cast::documents()),
        model: Some("builtin:extractive".into()),
        own_model: None,
        models: BTreeMap::new(),
        verification: None,
        allowance: None,
        ended_waits: Vec::new(),
        depth: 0,
        overrides: None,
        fork: None,
        shared: None,
        decided: None,
    };
    let planning = |plan_at| Order {
        parameters: TaskParameters::new(),
        inputs: Vec::new(),
        is_final: false,
        feedback: Vec::new(),
        limits: TaskLimits::default(),
        documents: None,
        model: None,
        ..order(Assignment::Planning { turn: 1, attempt: 1, plan_at })
    };
    let review = |brief| order(Assignment::Review { task: cast::task_id("b"), attempt: 1, review: 3, brief });
    let criteria = || vec!["it cites its sources".to_owned()];
    let brief = ReviewBrief {
        criteria: criteria(),
        checks: vec![ReviewCheck::Citations],
        panel: Some(JudgePanel { models: vec!["a:b".into(), "c:d".into()], quorum: 2 }),
        evidence: vec![sample_input_result()],
    };
    let allowed = |order| Order { allowance: Some(full_amounts()), own_model: Some("a:b".into()), ..order };
    let rejected = Some(sample_input_result());
    let full_planning =
        Order { feedback: vec!["a circle".into()], documents: Some(cast::documents()), ..planning(41) };
    let patient = Order { provider_timeout: Some(std::time::Duration::from_secs(90)), ..planning(41) };
    let decided = DecisionId::new(41, "2026-11-21T23:00:00.123456789Z".parse().unwrap());
    let dated = Order { decided: Some(decided), ..planning(41) };
    let ends = [WaitEnd::TimeReached, WaitEnd::Expired, sample_signalled_end()];
    let ended = ends.map(|end| EndedWait { key: "sleep.2".into(), end });
    let woken = order(Assignment::Task {
        task: cast::task_id("b"),
        attempt: 2,
        rejected: None,
        rejection: None,
        criteria: Vec::new(),
    });
    let models = [(cast::capability_name("fast"), "a:b".to_owned())].into();
    vec![
        ("task, with the models of the run".into(), Order { models, ..woken.clone() }),
        (
            "task, with a policy of verification".into(),
            Order { verification: Some(VerificationPolicy::Remove), ..woken.clone() },
        ),
        (
            "task, of a shared agent".into(),
            Order { shared: Some(sample_shared()), depth: 1, ..woken.clone() },
        ),
        ("task, forked".into(), Order { fork: Some(sample_fork()), depth: 1, ..woken.clone() }),
        (
            "task, overridden".into(),
            Order { overrides: Some(Box::new(sample_overrides())), depth: 1, ..woken.clone() },
        ),
        (
            "task, with the rejection of its result".into(),
            order(Assignment::Task {
                task: cast::task_id("b"),
                attempt: 2,
                rejected: None,
                rejection: Some(sample_rejection()),
                criteria: vec!["It has three parts.".into()],
            }),
        ),
        ("task, woken".into(), Order { ended_waits: ended.into(), ..woken }),
        ("planning, with its decision".into(), dated),
        ("planning, with its patience".into(), patient),
        (
            "review, at a place of the plan".into(),
            review(ReviewBrief { criteria: criteria(), ..ReviewBrief::default() }),
        ),
        ("planning, bare, at a place of the plan".into(), planning(0)),
        (
            "task, with everything that a task has".into(),
            allowed(order(Assignment::Task {
                task: cast::task_id("b"),
                attempt: 2,
                rejected,
                rejection: None,
                criteria: Vec::new(),
            })),
        ),
        ("review, with everything that a review has".into(), allowed(review(brief))),
        ("planning, with everything that planning has".into(), full_planning),
    ]
}

fn sample_rejection() -> Rejection {
    Rejection {
        attempt: 1,
        criteria: vec![CriterionOutcome {
            criterion: "It cites.".into(),
            met: false,
            gap: Some("no source".into()),
        }],
    }
}

/// An order with fields that do not belong to its kind of work, which no supervisor writes.
#[test]
fn fields_of_other_kinds_of_work_in_an_order_are_ignored() {
    let orders: BTreeMap<String, Order> = sample_orders().into_iter().collect();
    let task = serde_json::to_value(&orders["task, with everything that a task has"]).unwrap();
    let review = &orders["review, with everything that a review has"];
    let mut with_all = serde_json::to_value(review).unwrap();
    with_all["rejected"] = task["rejected"].clone();
    with_all["deliverable_criteria"] = json!(["It is short."]);
    with_all["plan_at"] = json!(17);
    let read: Order = serde_json::from_value(with_all).unwrap();
    assert_eq!(&read, review, "a rejected result and a place of the plan say nothing to a review");
}

/// Values in buckets and in the blob store, without an envelope.
fn sample_task_results() -> Vec<(String, TaskResult)> {
    let full = TaskResult {
        summary: "found".into(),
        output: "It ends [S1].".into(),
        notes: Some("one file could not be read".into()),
        sources: vec![Source {
            id: "S1".into(),
            kind: SourceKind::Document,
            title: "Apache License 2.0".into(),
            location: "Apache-2.0.txt".into(),
            sha256: Some("ef".repeat(32)),
            accessed_at: None,
        }],
        quotations: vec![Quotation {
            source: "S1".into(),
            text: "shall terminate".into(),
            first_line: 80,
            last_line: 81,
            place: None,
        }],
        data: Some(json!({ "rows": [1, 2] })),
        author: None,
        answered: None,
        artifacts: Vec::new(),
        usage: full_usage(),
        models: ModelUsage::new(),
        statements: Vec::new(),
    };
    let artifacts = vec![Artifact {
        path: FilePath::new("/plots/rows.csv").unwrap(),
        version: 3,
        bytes: 8,
        sha256: "cd".repeat(32),
    }];
    let unanswered = TaskResult { answered: Some(false), ..full.clone() };
    let later = TaskResult { models: sample_model_usage(), ..full.clone() };
    vec![
        ("with a file that it made".to_owned(), TaskResult { artifacts, ..full.clone() }),
        ("without an answer".to_owned(), unanswered),
        ("full".into(), full),
        ("bare".into(), TaskResult::default()),
        ("full, with its usage by model".into(), later),
        ("with its author".into(), TaskResult { author: Some("ollama:m".into()), ..TaskResult::default() }),
    ]
}

// ---- version 1, forever

/// Returns `true` if bytes decode to a certain message.
type DecodesToMessageFn = Box<dyn Fn(&[u8]) -> Result<bool, DecodeError>>;

/// A message with its decoders.
struct EncodingSample {
    name: String,
    bytes: Vec<u8>,
    json: Value,
    reads: DecodesToMessageFn,
    reads_json: DecodesToMessageFn,
}

fn samples_in_envelopes<M: WireMessage + PartialEq + Clone + 'static>(
    samples: Vec<(String, M)>,
) -> Vec<EncodingSample> {
    let of = |(name, message): (String, M)| {
        let (binary, text) = (message.clone(), message.clone());
        EncodingSample {
            name: format!("{} {name}", M::KIND),
            bytes: wire::encode_with_inline_body::<M>(&wire::encode_body(&message)),
            json: serde_json::from_slice(&wire::encode_as_json(&message).unwrap()).unwrap(),
            reads: Box::new(move |bytes| {
                Ok(wire::decode_message::<M>(bytes, Encoding::MessagePack)? == binary)
            }),
            reads_json: Box::new(move |bytes| Ok(wire::decode_message::<M>(bytes, Encoding::Json)? == text)),
        }
    };
    samples.into_iter().map(of).collect()
}

fn samples_without_envelope<T>(kind: &'static str, samples: Vec<(String, T)>) -> Vec<EncodingSample>
where
    T: Serialize + DeserializeOwned + PartialEq + Clone + 'static,
{
    let of = |(name, value): (String, T)| {
        let (binary, text) = (value.clone(), value.clone());
        EncodingSample {
            name: format!("{kind} {name}"),
            bytes: wire::encode_body(&value),
            json: serde_json::to_value(&value).unwrap(),
            reads: Box::new(move |bytes| Ok(wire::decode_message_pack::<T>(bytes, kind)? == binary)),
            reads_json: Box::new(move |bytes| {
                let read = serde_json::from_slice::<T>(bytes);
                Ok(read
                    .map_err(|error| DecodeError::Unreadable { what: kind.into(), why: error.to_string() })?
                    == text)
            }),
        }
    };
    samples.into_iter().map(of).collect()
}

/// An answer to a question, once and for further calls.
fn sample_answers() -> Vec<(String, RunAnswer)> {
    let answer = |scope| RunAnswer {
        id: "a1".into(),
        by: "ann".into(),
        question: "t/1/2.3".parse().unwrap(),
        digest: "1f".into(),
        answer: edited_answer(),
        scope,
    };
    vec![
        ("once".into(), answer(AnswerScope::Once)),
        ("for the tool".into(), answer(AnswerScope::ThisToolInRun)),
        (
            "to the plan".into(),
            RunAnswer {
                question: "plan/1.2".parse().unwrap(),
                answer: Answer::Approve,
                ..answer(AnswerScope::Once)
            },
        ),
    ]
}

fn all_encoding_samples() -> Vec<EncodingSample> {
    let named = |name: &str| name.to_owned();
    let run = RunId::new("r1").unwrap();
    let plan = RunScene::from_submission(cast::fixed_plan_submission(vec![cast::echo_task("a", &[])])).plan;
    let beat = Heartbeat {
        id: cast::worker_id("w1"),
        role: ProcessRole::Worker,
        host: "machine".into(),
        pid: 4711,
        started: cast::test_start_time(),
        slots: vec![(cast::capability_name("echo"), 4)],
        busy: 1,
        busy_with: Vec::new(),
        version: "0.1.0".into(),
        lanes: Vec::new(),
        suspended: None,
        last_problem: None,
    };
    let settings = ClusterSettings {
        version: FORMAT,
        lanes: 4,
        replicas: 3,
        lane_lease_ms: 5000,
        work_lease_ms: 20_000,
    };
    let waiting = RunSummary::from_plan(&run, Lane(0), &plan, cast::test_start_time()).unwrap();
    let summary = RunSummary { wait: None, ..waiting.clone() };
    let manifest = vec![Document { path: "GPL-3.0.txt".into(), sha256: "01".repeat(32), size: 35_149 }];
    let description = CapabilityDescription {
        parameters: Some(json!({ "type": "object" })),
        ..CapabilityDescription::new(cast::capability_name("echo"), "says it again")
    };
    let judged = CapabilityDescription { review: full_review_policy(), ..description.clone() };
    let version = sample_build().capability.clone();
    let versioned = CapabilityDescription { version, ..description.clone() };
    [
        samples_in_envelopes(sample_decisions()),
        samples_in_envelopes(sample_submissions()),
        samples_in_envelopes(sample_commands()),
        samples_in_envelopes(sample_answers()),
        samples_in_envelopes(sample_journal_entries()),
        samples_in_envelopes(sample_orders()),
        samples_without_envelope("result", sample_task_results()),
        samples_without_envelope("manifest", vec![(named("of one"), manifest)]),
        samples_without_envelope("beat", vec![(named("of a worker"), beat)]),
        samples_without_envelope("settings", vec![(named("of four lanes"), settings)]),
        samples_without_envelope(
            "summary",
            vec![
                (
                    named("of a run with a damaged log"),
                    RunSummary {
                        log_damage: Some("decision 57 follows 45, which is missing".into()),
                        ..summary.clone()
                    },
                ),
                (named("of a run"), RunSummary { waiting_for: None, ..summary.clone() }),
                (named("of a run that waits for a worker"), waiting),
                (
                    named("of a run that waits for a person"),
                    RunSummary {
                        wait: Some(RunWait { kind: RunWaitKind::Question, order: None }),
                        open_questions: 1,
                        questions: 1,
                        ..summary.clone()
                    },
                ),
                (named("of a run with labels"), RunSummary { labels: sample_labels(), ..summary.clone() }),
                (
                    named("of a run that waits for its turn"),
                    RunSummary {
                        session: Some(cast::session()),
                        hold: Some(RunHold::Session),
                        ..summary.clone()
                    }
                    .with_queue_place(Some(QueuePlace {
                        position: 2,
                        behind: Some(RunId::new("r1").unwrap()),
                    })),
                ),
                (
                    named("of a run whose turn has come"),
                    RunSummary {
                        session: Some(cast::session()),
                        session_position: Some(3),
                        ..summary.clone()
                    },
                ),
                (
                    named("of an archived run with its usage"),
                    RunSummary {
                        archived: true,
                        archived_span: Some((17, 4711)),
                        spend: Some(Box::new(SummarySpend {
                            by_capability: vec![(cast::capability_name("echo"), full_usage())],
                            by_model: vec![(named("openai:gpt-5.2"), full_usage())],
                        })),
                        ..summary.clone()
                    },
                ),
                (named("of a run that waits"), summary),
            ],
        ),
        samples_without_envelope(
            "capability",
            vec![
                (named("with parameters"), description),
                (named("with a review"), judged),
                (named("with a version"), versioned),
            ],
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

const GOLDEN: &str = "golden/format-3.txt";

/// The golden bytes by name. The file is never rewritten: `UPDATE_GOLDEN=1` only adds missing samples.
fn read_golden_bytes() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(golden::golden_file_path(GOLDEN)).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .filter_map(|line| line.rsplit_once(" = "))
        .map(|(name, hex)| (name.to_owned(), hex.to_owned()))
        .collect()
}

fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn decode_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn messages_are_encoded_as_the_golden_bytes() {
    let mut goldens = read_golden_bytes();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        for sample in all_encoding_samples() {
            goldens.entry(sample.name).or_insert_with(|| encode_hex(&sample.bytes));
        }
        let mut text = String::from(
            "# Format 3 of every message, as it stands in logs: `name = bytes`. What is here is never changed; a\n\
             # field that is added gets a sample of a new name.\n",
        );
        for (name, hex) in &goldens {
            writeln!(text, "{name} = {hex}").unwrap();
        }
        golden::compare_with_golden_file(GOLDEN, &text);
    }
    for sample in all_encoding_samples() {
        let golden = goldens.get(&sample.name);
        assert_eq!(golden, Some(&encode_hex(&sample.bytes)), "{} is encoded differently", sample.name);
    }
}

#[test]
fn golden_bytes_decode_to_their_messages() {
    let goldens = read_golden_bytes();
    for sample in all_encoding_samples() {
        let bytes = decode_hex(&goldens[&sample.name]);
        assert_eq!((sample.reads)(&bytes), Ok(true), "{}", sample.name);
    }
}

/// Includes bytes that no program writes any more.
#[test]
fn all_golden_bytes_are_readable() {
    for (name, bytes) in read_golden_bytes() {
        let bytes = decode_hex(&bytes);
        let open = |encoding| match name.split(' ').next().unwrap() {
            "decision" => wire::decode_message::<Decision>(&bytes, encoding).map(drop),
            "submission" => wire::decode_message::<Submission>(&bytes, encoding).map(drop),
            "command" => wire::decode_message::<RunCommand>(&bytes, encoding).map(drop),
            "answer" => wire::decode_message::<RunAnswer>(&bytes, encoding).map(drop),
            "entry" => wire::decode_message::<JournalEntry>(&bytes, encoding).map(drop),
            "order" => wire::decode_message::<Order>(&bytes, encoding).map(drop),
            "file" => {
                wire::decode_message::<millrace_protocol::file::FileVersion>(&bytes, encoding).map(drop)
            }
            "result" => wire::decode_message_pack::<TaskResult>(&bytes, &name).map(drop),
            "manifest" => wire::decode_message_pack::<Vec<Document>>(&bytes, &name).map(drop),
            "beat" => wire::decode_message_pack::<Heartbeat>(&bytes, &name).map(drop),
            "settings" => wire::decode_message_pack::<ClusterSettings>(&bytes, &name).map(drop),
            "summary" => wire::decode_message_pack::<RunSummary>(&bytes, &name).map(drop),
            "capability" => wire::decode_message_pack::<CapabilityDescription>(&bytes, &name).map(drop),
            other => panic!("{other:?} is not a kind of message"),
        };
        assert_eq!(open(Encoding::MessagePack), Ok(()), "{name}");
    }
}

#[test]
fn every_message_survives_json() {
    for sample in all_encoding_samples() {
        let text = serde_json::to_vec(&sample.json).unwrap();
        assert_eq!((sample.reads_json)(&text), Ok(true), "{}", sample.name);
    }
}

#[test]
fn unknown_fields_are_ignored_at_every_level() {
    for sample in all_encoding_samples() {
        let newer = add_unknown_fields(&sample.json);
        assert_ne!(newer, sample.json, "{}: no field was added", sample.name);
        let text = serde_json::to_vec(&newer).unwrap();
        assert_eq!((sample.reads_json)(&text), Ok(true), "{} in JSON: {newer}", sample.name);

        // The same in MessagePack: the body is a value of its own, in bytes.
        let bytes = match newer.get("b").filter(|_| newer.get("t").is_some()) {
            Some(body) => {
                let (t, body) = (newer["t"].as_str().unwrap(), wire::encode_body(body));
                wire::encode_body(&NewerEnvelope {
                    v: FORMAT,
                    t,
                    b: serde_bytes::Bytes::new(&body),
                    later: "more",
                })
            }
            None => wire::encode_body(&newer),
        };
        assert_eq!((sample.reads)(&bytes), Ok(true), "{} in MessagePack", sample.name);
    }
}

#[derive(Serialize)]
struct NewerEnvelope<'a> {
    v: u16,
    t: &'a str,
    b: &'a serde_bytes::Bytes,
    later: &'a str,
}

/// Variants with lowercase names.
const VARIANTS: [&str; 22] = [
    "persons",
    "critic",
    "checks",
    "schema",
    "matches",
    "matches_not",
    "command",
    "add",
    "patch",
    "cancel",
    "retry",
    "mark_final",
    "finish",
    "give_up",
    "task_lost",
    "task_stuck",
    "accepted",
    "standstill",
    "message",
    "refused",
    "budget_low",
    "false_end",
];

/// Adds a field to every record in a message. An object with one capitalised key is a variant, not a record; the fields
/// below hold values of users.
fn add_unknown_fields(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let is_variant = fields.len() == 1
                && fields
                    .keys()
                    .all(|key| key.starts_with(char::is_uppercase) || VARIANTS.contains(&key.as_str()));
            let mut fields: serde_json::Map<_, _> = fields
                .iter()
                .map(|(name, value)| match name.as_str() {
                    "parameters" | "data" | "models" | "capabilities" | "schema" | "labels" => {
                        (name.clone(), value.clone())
                    }
                    _ => (name.clone(), add_unknown_fields(value)),
                })
                .collect();
            if !is_variant {
                fields.insert("later".into(), json!({ "more": [1, "two", null] }));
            }
            Value::Object(fields)
        }
        Value::Array(values) => Value::Array(values.iter().map(add_unknown_fields).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

// ---- invalid messages

#[test]
fn truncated_message_is_rejected() {
    for sample in all_encoding_samples() {
        for length in 0..sample.bytes.len() {
            let read = (sample.reads)(&sample.bytes[..length]);
            assert!(
                matches!(read, Err(DecodeError::Unreadable { .. })),
                "{} at {length}: {read:?}",
                sample.name
            );
        }
        let text = serde_json::to_vec(&sample.json).unwrap();
        for length in 0..text.len() {
            let read = (sample.reads_json)(&text[..length]);
            assert!(
                matches!(read, Err(DecodeError::Unreadable { .. })),
                "{} at {length}: {read:?}",
                sample.name
            );
        }
    }
}

fn cancel_command() -> RunCommand {
    RunCommand { id: "c1".into(), by: "ann".into(), control: CommandAction::CancelRun { reason: "r".into() } }
}

#[test]
fn message_with_trailing_bytes_is_rejected() {
    for sample in all_encoding_samples() {
        let behind = [sample.bytes.as_slice(), &[0xc0]].concat();
        let read = (sample.reads)(&behind);
        assert!(matches!(read, Err(DecodeError::Trailing { bytes: 1, .. })), "{}: {read:?}", sample.name);
    }
    let body = [wire::encode_body(&cancel_command()), vec![0xc0, 0xc0]].concat();
    let sealed = wire::encode_with_inline_body::<RunCommand>(&body);
    assert_eq!(
        wire::decode_message::<RunCommand>(&sealed, Encoding::MessagePack),
        Err(DecodeError::Trailing { what: "command".into(), bytes: 2 })
    );
}

#[test]
fn wrong_kind_other_format_and_empty_envelope_have_their_own_errors() {
    let command = cancel_command();
    let sealed = wire::encode_with_inline_body::<RunCommand>(&wire::encode_body(&command));
    let wrong = wire::decode_message::<Order>(&sealed, Encoding::MessagePack).unwrap_err();
    assert_eq!(wrong.to_string(), r#"expected a message of type "order", found "command""#);

    let envelope = |v: i64| serde_json::to_vec(&json!({ "v": v, "t": "command", "b": command })).unwrap();
    let read = |format: u16| wire::decode_message::<RunCommand>(&envelope(format.into()), Encoding::Json);
    assert_eq!(read(FORMAT), Ok(command.clone()));
    for format in [0, 1, FORMAT - 1] {
        let refused = read(format).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "\"command\" was written by a release before 0.5 (format {format}; this release has format {FORMAT}), and \
                 release 0.4.x can finish its runs"
            )
        );
    }
    for format in [FORMAT + 1, u16::MAX] {
        let refused = read(format).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "\"command\" was written by a newer release (format {format}; this release has format {FORMAT}); use that \
                 release"
            )
        );
    }
    assert!(matches!(
        wire::decode_message::<RunCommand>(&envelope(65_536), Encoding::Json),
        Err(DecodeError::Unreadable { .. })
    ));
    assert_eq!(
        wire::decode_message::<RunCommand>(br#"{"v":3,"t":"command"}"#, Encoding::Json),
        Err(DecodeError::Empty)
    );
    assert_eq!(
        wire::decode_message::<RunCommand>(
            &wire::encode_body(&json!({ "v": FORMAT, "t": "command" })),
            Encoding::MessagePack
        ),
        Err(DecodeError::Empty)
    );
}

#[test]
fn body_in_the_blob_store_is_reported_with_its_address() {
    let stored = BlobRef { sha256: "ab".repeat(32), size: 300_000 };
    let elsewhere = wire::encode_with_stored_body::<Order>(stored.clone());
    assert_eq!(wire::decode_message::<Order>(&elsewhere, Encoding::MessagePack), Err(DecodeError::Elsewhere));
    assert_eq!(
        wire::decode_blob_ref_of_body::<Order>(&elsewhere, Encoding::MessagePack),
        Ok(Some(stored.clone()))
    );
    assert!(matches!(
        wire::decode_blob_ref_of_body::<RunCommand>(&elsewhere, Encoding::MessagePack),
        Err(DecodeError::WrongKind { .. })
    ));

    let command = cancel_command();
    let here = wire::encode_with_inline_body::<RunCommand>(&wire::encode_body(&command));
    assert_eq!(wire::decode_blob_ref_of_body::<RunCommand>(&here, Encoding::MessagePack), Ok(None));
    let both =
        serde_json::to_vec(&json!({ "v": FORMAT, "t": "command", "b": command, "s": stored })).unwrap();
    assert_eq!(
        wire::decode_blob_ref_of_body::<RunCommand>(&both, Encoding::Json),
        Ok(None),
        "an inline body needs no fetch"
    );
    assert_eq!(wire::decode_message::<RunCommand>(&both, Encoding::Json), Ok(command));
}

#[test]
fn message_with_an_invalid_name_is_rejected() {
    let bad = json!({ "v": FORMAT, "t": "command", "b": { "id": "c1", "control": {
        "CancelTask": { "task": "a.b", "reason": "r" }
    } } });
    let refused =
        wire::decode_message::<RunCommand>(&serde_json::to_vec(&bad).unwrap(), Encoding::Json).unwrap_err();
    assert!(refused.to_string().contains("is not a valid task id"), "{refused}");
    let sealed = wire::encode_with_inline_body::<RunCommand>(&wire::encode_body(&bad["b"]));
    let refused = wire::decode_message::<RunCommand>(&sealed, Encoding::MessagePack).unwrap_err();
    assert!(refused.to_string().contains("is not a valid task id"), "{refused}");
}

#[test]
fn false_lengths_and_excessive_depth_are_rejected() {
    // A string, a list, a map and bytes with a claimed length of 4 GiB; and lists nested a hundred thousand deep.
    let claims: [&[u8]; 4] = [&[0xdb], &[0xdd], &[0xdf], &[0xc6]];
    for claim in claims {
        let forged = [claim, &[0xff; 4], b"short"].concat();
        assert!(wire::decode_message::<JournalEntry>(&forged, Encoding::MessagePack).is_err());
        assert!(wire::decode_body::<Submission>(&forged).is_err());
    }
    let bomb = [vec![0x91; 100_000], vec![0xc0]].concat();
    assert!(wire::decode_body::<Decision>(&bomb).is_err());
    let task: &[u8] = b"\x81\xa5tasks\x91\x81\xaaparameters\x81\xa1p";
    assert!(wire::decode_body::<Submission>(&[task, &bomb].concat()).is_err());
    let text = [br#"{"v":1,"t":"submission","b":"#.to_vec(), vec![b'['; 100_000]].concat();
    assert!(wire::decode_message::<Submission>(&text, Encoding::Json).is_err());
}

#[test]
fn decision_on_the_deepest_submission_is_readable() {
    let on_half_a_stack = std::thread::Builder::new().stack_size(1024 * 1024);
    on_half_a_stack.spawn(check_submissions_of_every_depth).unwrap().join().unwrap();
}

fn check_submissions_of_every_depth() {
    let mut read = 0;
    for depth in [60, 64, 65, 100, 150, 175, 180, 185, 190, 250, 400] {
        let value = (0..depth).fold(json!(1), |value, _| json!([value]));
        let task = TaskSpec { parameters: [("p".to_owned(), value)].into(), ..cast::echo_task("a", &[]) };
        let Ok(body) = rmp_serde::to_vec_named(&cast::fixed_plan_submission(vec![task])) else { continue };
        let Ok(submission) = wire::decode_body::<Submission>(&body) else { continue };
        read += 1;
        let mut scene = RunScene::new();
        scene.decide_fact(&Fact::Submitted(Box::new(submission))).unwrap();
        assert_eq!(scene.plan.is_live(), depth <= 64, "{depth}");
        let decision = &scene.log[0];
        assert_eq!(wire::decode_body::<Decision>(&wire::encode_body(decision)).as_ref(), Ok(decision));
    }
    assert!(read >= 5, "only {read} of them were readable");
}

fn decode_as_every_message_type(bytes: &[u8]) {
    for encoding in [Encoding::MessagePack, Encoding::Json] {
        let _ = wire::decode_message::<Decision>(bytes, encoding);
        let _ = wire::decode_message::<Submission>(bytes, encoding);
        let _ = wire::decode_message::<RunCommand>(bytes, encoding);
        let _ = wire::decode_message::<JournalEntry>(bytes, encoding);
        let _ = wire::decode_message::<Order>(bytes, encoding);
        let _ = wire::decode_blob_ref_of_body::<Order>(bytes, encoding);
    }
    let _ = wire::decode_body::<Decision>(bytes);
    let _ = wire::decode_body::<JournalEntry>(bytes);
    let _ = wire::decode_message_pack::<TaskResult>(bytes, "result");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_decoded_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        decode_as_every_message_type(&bytes);
    }

    #[test]
    fn corrupted_messages_are_decoded_or_rejected(
        which: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        thread_local! { static SAMPLES: Vec<Vec<u8>> = all_encoding_samples().into_iter().map(|sample| sample.bytes).collect(); }
        SAMPLES.with(|samples| {
            let mut bytes = which.get(samples).clone();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            decode_as_every_message_type(&bytes);
            // The body alone, in an intact envelope: most changes above only break the envelope.
            let _ = wire::decode_message::<Decision>(&wire::encode_with_inline_body::<Decision>(&bytes), Encoding::MessagePack);
        });
    }
}
