//! Test data: names, tasks, results and verdicts.

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::ids::{Capability, RunId, SessionId, TaskId, WorkerId};
use millrace_protocol::plan::{
    AttemptResult, CapabilityRegistry, CommandAction, DocumentSet, EarlierRun, Edit, Fact, HoldChange,
    PersonReview, Plan, PlanningMode, PlanningResult, ReviewPolicy, RunCommand, SessionTurn, Submission,
    TaskSpec, Work,
};
use millrace_protocol::question::{
    Answer, AnswerKind, AnswerScope, ExpiryAction, Question, QuestionExpiry, QuestionSubject, RunAnswer,
};
use millrace_protocol::result::{
    CriterionOutcome, ErrorKind, ModelUsage, PlanProposal, TaskError, Usage, Verdict,
};
use millrace_protocol::wait::{ProviderWait, Wait, WaitCondition};

/// A session.
pub fn session() -> SessionId {
    SessionId::new("chat-7").unwrap()
}

/// A run that another one follows up on.
pub fn earlier_run() -> EarlierRun {
    EarlierRun {
        run: RunId::new("20261121-230000-abcdef").unwrap(),
        objective: "list the licences".into(),
        summary: "fifteen licences".into(),
        folder: "earlier/20261121-230000-abcdef".into(),
    }
}

/// The documents of a run.
pub fn documents() -> DocumentSet {
    DocumentSet { manifest: "ab".repeat(32), count: 3, bytes: 150_000 }
}

/// The turn of the first run of a session.
pub fn first_turn() -> HoldChange {
    HoldChange::SessionTurn(Box::new(SessionTurn { position: 1, earlier: Vec::new(), documents: None }))
}

/// A wait for a provider since the start.
pub fn provider_wait(error: &str) -> ProviderWait {
    ProviderWait {
        model: "openai:m".into(),
        since: test_start_time(),
        next_try: time_after(test_start_time(), 60),
        tries: 3,
        error: error.into(),
    }
}

/// A wait for a time, in seconds after the start.
pub fn time_wait(key: &str, seconds: u64) -> Wait {
    Wait::new(key, WaitCondition::Until(time_after(test_start_time(), seconds)))
}

/// A wait for an event, with a limit in seconds after the start.
pub fn event_wait(key: &str, name: &str, limit: Option<u64>) -> Wait {
    let until = limit.map(|seconds| time_after(test_start_time(), seconds));
    Wait::new(key, WaitCondition::Event { name: name.into(), until })
}

/// A wait for the approval of a call. The digest is that of its key.
pub fn approval_wait(key: &str, expiry: Option<(u64, ExpiryAction)>) -> Wait {
    let subject = QuestionSubject::Approval {
        tool: "execute".into(),
        arguments: r#"{"command":"rm"}"#.into(),
        schema: r#"{"type":"object","required":["command"]}"#.into(),
    };
    let decisions = vec![AnswerKind::Approve, AnswerKind::Edit, AnswerKind::Reject, AnswerKind::Respond];
    question_wait(key, subject, decisions, expiry)
}

/// A wait for an input. The digest is that of its key.
pub fn input_wait(key: &str, expiry: Option<(u64, ExpiryAction)>) -> Wait {
    let subject = QuestionSubject::Input { options: vec!["eu".into()], schema: String::new() };
    question_wait(key, subject, vec![AnswerKind::Answer, AnswerKind::Decline], expiry)
}

pub fn question_wait(
    key: &str,
    subject: QuestionSubject,
    decisions: Vec<AnswerKind>,
    expiry: Option<(u64, ExpiryAction)>,
) -> Wait {
    let expiry = expiry.map(|(seconds, action)| QuestionExpiry {
        after: std::time::Duration::from_secs(seconds),
        action,
        escalate_to: if action == ExpiryAction::Escalate { "chief".into() } else { String::new() },
    });
    let digest = format!("digest of {key}");
    let question = Question { subject, text: "Which?".into(), digest, decisions, to: "ops".into(), expiry };
    Wait::new(key, WaitCondition::Answer(Box::new(question)))
}

/// The answer to a question with the digest of this key.
pub fn answer_fact(id: &str, question: &str, key: &str, answer: Answer, scope: AnswerScope) -> Fact {
    let question = question.parse().unwrap();
    Fact::Answered(RunAnswer {
        id: id.into(),
        by: "ann".into(),
        question,
        digest: format!("digest of {key}"),
        answer,
        scope,
    })
}

/// One answer of each kind.
pub fn answers_of_all_kinds() -> Vec<Answer> {
    vec![
        Answer::Approve,
        Answer::Edit { arguments: r#"{"command":"ls"}"#.into() },
        Answer::Reject { message: "too risky".into() },
        Answer::Respond { content: "nothing to remove".into() },
        Answer::Answer { value: r#""eu""#.into() },
        Answer::Decline,
        Answer::Pass,
        Answer::Fail { feedback: "it has no units".into() },
    ]
}

/// A review by these persons, after another review.
pub fn review_by_persons(ask: &[&str], quorum: Option<u32>, first: ReviewPolicy) -> ReviewPolicy {
    ReviewPolicy::Persons(Box::new(PersonReview {
        ask: ask.iter().map(|&name| name.to_owned()).collect(),
        criteria: vec!["it has units".into()],
        quorum,
        first,
        ..PersonReview::default()
    }))
}

/// The answer of a person to a question that the plan knows, with its digest.
pub fn answer_of(plan: &Plan, id: &str, by: &str, question: &str, answer: Answer) -> Fact {
    let asked = question.parse().unwrap();
    let digest = plan.question(&asked).map_or_else(String::new, |found| found.question.digest.clone());
    let scope = AnswerScope::Once;
    Fact::Answered(RunAnswer { id: id.into(), by: by.into(), question: asked, digest, answer, scope })
}

pub fn parked_fact(task: &TaskId, attempt: u32, by: &str, waits: Vec<Wait>) -> Fact {
    Fact::Parked { task: task.clone(), attempt, worker: worker_id(by), waits, children: Vec::new() }
}

/// A worker parks its attempt for the end of these children.
pub fn delegated_fact(task: &TaskId, attempt: u32, by: &str, children: Vec<TaskSpec>) -> Fact {
    let wait = |child: &TaskSpec| tasks_wait(child.id.as_str(), &[child.id.as_str()], false, None);
    let waits = children.iter().map(wait).collect();
    Fact::Parked { task: task.clone(), attempt, worker: worker_id(by), waits, children }
}

/// A wait for children, with a limit in seconds after the start.
pub fn tasks_wait(key: &str, tasks: &[&str], any: bool, limit: Option<u64>) -> Wait {
    let until = limit.map(|seconds| time_after(test_start_time(), seconds));
    let tasks = tasks.iter().map(|task| task_id(task)).collect();
    Wait::new(key, WaitCondition::Tasks { tasks, any, until })
}

/// A signal of the event with this name.
pub fn signal_fact(name: &str) -> Fact {
    let control = CommandAction::Signal { name: name.into(), data: "7".into() };
    Fact::Control(RunCommand { id: "c2".into(), by: "ann".into(), control })
}

/// The time at which every test starts.
pub fn test_start_time() -> Timestamp {
    "2026-11-21T23:00:00Z".parse().unwrap()
}

pub fn time_after(now: Timestamp, seconds: u64) -> Timestamp {
    now + SignedDuration::from_secs(i64::try_from(seconds).unwrap())
}

pub fn task_id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

pub fn worker_id(text: &str) -> WorkerId {
    WorkerId::new(text).unwrap()
}

pub fn capability_name(text: &str) -> Capability {
    Capability::new(text).unwrap()
}

/// A cluster with these capabilities, which accept any parameters.
pub fn registry_of_capabilities(names: &[&str]) -> CapabilityRegistry {
    CapabilityRegistry::with_capability_names(names.iter().map(|name| capability_name(name)))
}

/// A task of the capability `echo` with all defaults.
pub fn echo_task(id: &str, depends_on: &[&str]) -> TaskSpec {
    TaskSpec {
        depends_on: depends_on.iter().map(|id| task_id(id)).collect(),
        ..TaskSpec::new(task_id(id), format!("do {id}"), capability_name("echo"))
    }
}

/// The same, with a critic's review.
pub fn reviewed_echo_task(id: &str, depends_on: &[&str]) -> TaskSpec {
    TaskSpec { review: ReviewPolicy::critic(Vec::new()), ..echo_task(id, depends_on) }
}

pub fn fixed_plan_submission(tasks: Vec<TaskSpec>) -> Submission {
    Submission::new("find out", PlanningMode::Fixed).with_tasks(tasks)
}

/// A run with a planner and without tasks.
pub fn planner_submission() -> Submission {
    Submission::new("find out", PlanningMode::Llm)
}

/// A user's command with its idempotency key.
pub fn command_fact(id: &str, control: CommandAction) -> Fact {
    Fact::Control(RunCommand { id: id.into(), by: "ann".into(), control })
}

/// A planning turn that results in these edits.
pub fn planned_fact(turn: u32, attempt: u32, edits: Vec<Edit>) -> Fact {
    let proposal = PlanProposal { reasoning: "so it goes".into(), tasks: Vec::new(), edits, fallback: None };
    let usage = Usage { model_calls: 1, input_tokens: 100, output_tokens: 20, ..Usage::default() };
    Fact::Planned {
        turn,
        attempt,
        outcome: Ok(PlanningResult { proposal, usage, models: ModelUsage::new() }),
    }
}

pub fn attempt_work(task: &TaskId, attempt: u32) -> Work {
    Work::Task { task: task.clone(), attempt }
}

pub fn finished_result(at_sequence: u64) -> AttemptResult {
    let usage =
        Usage { model_calls: 1, tool_calls: 2, input_tokens: 300, output_tokens: 40, ..Usage::default() };
    AttemptResult {
        at_sequence,
        summary: "found".into(),
        is_empty: false,
        is_detailed: true,
        is_answered: true,
        review: ReviewPolicy::None,
        usage,
        models: ModelUsage::new(),
    }
}

pub fn task_error(kind: ErrorKind, message: &str) -> TaskError {
    TaskError::new(kind, message)
}

pub fn review_verdict(passed: bool, feedback: Option<&str>) -> Verdict {
    Verdict {
        passed,
        criteria: vec![CriterionOutcome {
            criterion: "it answers the question".into(),
            met: passed,
            gap: feedback.map(str::to_owned),
        }],
        reasoning: if passed { "it does".into() } else { "it does not".into() },
        feedback: feedback.map(str::to_owned),
        usage: Usage { model_calls: 1, ..Usage::default() },
        ..Verdict::default()
    }
}

/// A verdict that accepts a result and has an unmet criterion.
pub fn contradictory_verdict() -> Verdict {
    Verdict { passed: true, ..review_verdict(false, None) }
}

pub fn attempt_ended_fact(
    task: &TaskId,
    attempt: u32,
    by: &str,
    outcome: Result<AttemptResult, TaskError>,
) -> Fact {
    Fact::Ended { task: task.clone(), attempt, worker: worker_id(by), outcome }
}

pub fn reviewed_fact(
    task: &TaskId,
    attempt: u32,
    review: u32,
    by: &str,
    outcome: Result<Verdict, TaskError>,
) -> Fact {
    Fact::Reviewed { task: task.clone(), attempt, review, critic: worker_id(by), outcome }
}
