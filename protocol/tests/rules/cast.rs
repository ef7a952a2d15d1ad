//! Who and what appears in the tests: names, tasks, results and verdicts.

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::ids::{Capability, TaskId, WorkerId};
use millrace_protocol::plan::{
    Cluster, Command, Control, Edit, Fact, Finished, Mode, Planned, Review, Submission, TaskSpec, Work,
};
use millrace_protocol::result::{
    CriterionOutcome, ErrorKind, ModelUsage, Proposal, TaskError, Usage, Verdict,
};

/// When every test begins.
pub fn start() -> Timestamp {
    "2026-11-21T23:00:00Z".parse().unwrap()
}

pub fn after(now: Timestamp, seconds: u64) -> Timestamp {
    now + SignedDuration::from_secs(i64::try_from(seconds).unwrap())
}

pub fn task_id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

pub fn worker(text: &str) -> WorkerId {
    WorkerId::new(text).unwrap()
}

pub fn capability(text: &str) -> Capability {
    Capability::new(text).unwrap()
}

/// A cluster in which these capabilities are known, and take any parameters.
pub fn cluster(names: &[&str]) -> Cluster {
    Cluster::named(names.iter().map(|name| capability(name)))
}

/// A task of the capability `echo` with the defaults of everything.
pub fn task(id: &str, depends_on: &[&str]) -> TaskSpec {
    TaskSpec {
        depends_on: depends_on.iter().map(|id| task_id(id)).collect(),
        ..TaskSpec::new(task_id(id), format!("do {id}"), capability("echo"))
    }
}

/// The same, judged by a critic.
pub fn reviewed(id: &str, depends_on: &[&str]) -> TaskSpec {
    TaskSpec { review: Review::critic(Vec::new()), ..task(id, depends_on) }
}

pub fn submission(tasks: Vec<TaskSpec>) -> Submission {
    Submission { tasks, ..Submission::new("find out", Mode::Fixed) }
}

/// A run whose plan is made by a planner.
pub fn unplanned() -> Submission {
    Submission::new("find out", Mode::Llm)
}

/// A command of a user, known again by its name.
pub fn command(id: &str, control: Control) -> Fact {
    Fact::Control(Command { id: id.into(), by: "ann".into(), control })
}

/// A planner's turn that comes to these edits.
pub fn planned(turn: u32, attempt: u32, edits: Vec<Edit>) -> Fact {
    let proposal = Proposal { reasoning: "so it goes".into(), tasks: Vec::new(), edits };
    let usage = Usage { model_calls: 1, input_tokens: 100, output_tokens: 20, ..Usage::default() };
    Fact::Planned { turn, attempt, outcome: Ok(Planned { proposal, usage, models: ModelUsage::new() }) }
}

pub fn attempt(task: &TaskId, attempt: u32) -> Work {
    Work::Task { task: task.clone(), attempt }
}

pub fn finished(at_sequence: u64) -> Finished {
    let usage =
        Usage { model_calls: 1, tool_calls: 2, input_tokens: 300, output_tokens: 40, ..Usage::default() };
    Finished {
        at_sequence,
        summary: "found".into(),
        is_empty: false,
        is_detailed: true,
        review: Review::None,
        usage,
        models: ModelUsage::new(),
    }
}

pub fn error(kind: ErrorKind, message: &str) -> TaskError {
    TaskError::new(kind, message)
}

pub fn verdict(passed: bool, feedback: Option<&str>) -> Verdict {
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

/// A verdict that passes a result and names a criterion that it does not meet.
pub fn contradiction() -> Verdict {
    Verdict { passed: true, ..verdict(false, None) }
}

pub fn ended(task: &TaskId, attempt: u32, by: &str, outcome: Result<Finished, TaskError>) -> Fact {
    Fact::Ended { task: task.clone(), attempt, worker: worker(by), outcome }
}

pub fn judged(
    task: &TaskId,
    attempt: u32,
    review: u32,
    by: &str,
    outcome: Result<Verdict, TaskError>,
) -> Fact {
    Fact::Reviewed { task: task.clone(), attempt, review, critic: worker(by), outcome }
}
