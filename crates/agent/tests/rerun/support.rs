//! Attempts at one task with a scripted model and a log in memory that has the journals of earlier attempts.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use millrace_agent::model::{ModelFactory, Request};
use millrace_agent::session::tools::BuiltInToolNames;
use millrace_agent::session::{AgentHost, AgentSession, HostSettings, SessionEnvironment};
use millrace_agent::sources::{OrderInputError, OrderInputs, plan_without_log};
use millrace_agent::spec::AgentSpec;
use millrace_agent::turn::{JournalStep, MemoryHost};
use millrace_protocol::ids::{Capability, RunId, TaskId, WorkerId};
use millrace_protocol::plan::{AttemptEvent, Event, Plan, TaskEvent, Work, apply};
use millrace_protocol::result::{CriterionOutcome, TaskResult};
use millrace_protocol::work::{Assignment, InputResult, Order, Rejection};
use serde_json::{Value, json};

pub const CLERK: &str = "\
name: clerk
description: Writes letters.
instructions: You write letters.
tools: [append_note, read_notes]
";

pub fn task_id(id: &str) -> TaskId {
    TaskId::new(id).unwrap()
}

pub fn capability(name: &str) -> Capability {
    Capability::new(name).unwrap()
}

pub fn result_with_output(output: &str) -> TaskResult {
    TaskResult { output: output.into(), ..TaskResult::default() }
}

/// The rejection of an attempt.
pub fn rejection(attempt: u32) -> Rejection {
    let outcome = |criterion: &str, gap: Option<&str>| CriterionOutcome {
        criterion: criterion.into(),
        met: gap.is_none(),
        gap: gap.map(str::to_owned),
    };
    let criteria = vec![outcome("It is short.", None), outcome("It names the mill.", Some("no word of it"))];
    Rejection { attempt, criteria }
}

/// A task is claimed, finished and accepted.
pub fn complete_task(plan: &mut Plan, id: &str, at_sequence: u64) {
    let (task, worker) = (task_id(id), WorkerId::new("w").unwrap());
    let claimed =
        AttemptEvent::Claimed { task: task.clone(), attempt: 1, worker: worker.clone(), build: None };
    let finished = AttemptEvent::Finished {
        task: task.clone(),
        attempt: 1,
        worker,
        summary: String::new(),
        at_sequence,
        is_detailed: true,
        is_answered: true,
        review: None,
        usage: Default::default(),
        models: Default::default(),
    };
    for event in [
        Event::Attempt(claimed),
        Event::Attempt(finished),
        Event::Task(TaskEvent::Accepted { task, attempt: 1 }),
    ] {
        apply(plan, &event, Timestamp::UNIX_EPOCH);
    }
}

/// The log of a run, in memory.
#[derive(Clone, Default)]
pub struct Log {
    pub results: BTreeMap<TaskId, TaskResult>,
    pub journals: BTreeMap<(TaskId, u32), Vec<JournalStep>>,
    pub plan: Option<Plan>,
}

impl Log {
    fn steps(&self, task: &TaskId, attempt: u32, matches: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
        let steps = self.journals.get(&(task.clone(), attempt)).into_iter().flatten();
        steps.filter(|step| matches(&step.name)).map(|step| step.value.to_string().into_bytes()).collect()
    }
}

impl OrderInputs for Log {
    fn read_result<'a>(
        &'a self,
        input: &'a InputResult,
    ) -> BoxFuture<'a, Result<TaskResult, OrderInputError>> {
        let result = self.results.get(&input.task).cloned();
        ready(result.ok_or_else(|| OrderInputError::Broken("not there".into()))).boxed()
    }

    fn read_blob<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>> {
        ready(Err(OrderInputError::Broken("no blobs here".into()))).boxed()
    }

    fn read_step<'a>(
        &'a self,
        task: &'a TaskId,
        attempt: u32,
        step: &'a str,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, OrderInputError>> {
        ready(Ok(self.steps(task, attempt, |name| name == step).pop())).boxed()
    }

    fn read_steps<'a>(
        &'a self,
        task: &'a TaskId,
        attempt: u32,
        prefix: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Vec<u8>>, OrderInputError>> {
        ready(Ok(self.steps(task, attempt, |name| name.starts_with(prefix)))).boxed()
    }

    fn read_plan<'a>(&'a self, order: &'a Order, _: u64) -> BoxFuture<'a, Result<Plan, OrderInputError>> {
        ready(Ok(self.plan.clone().unwrap_or_else(|| plan_without_log(order)))).boxed()
    }

    fn read_current_plan<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<Plan, OrderInputError>> {
        self.read_plan(order, 0)
    }
}

/// An attempt with a scripted model.
#[derive(Clone)]
pub struct Rerun {
    pub file: &'static str,
    pub ability: &'static str,
    pub attempt: u32,
    pub rejected: Option<Rejection>,
    /// The replies, in order.
    pub replies: Vec<Value>,
}

/// The end of an attempt.
pub struct EndedAttempt {
    pub result: TaskResult,
    pub steps: Vec<JournalStep>,
    pub requests: Vec<Request>,
}

impl Rerun {
    pub async fn run(&self, log: &Log, steps: Vec<JournalStep>) -> EndedAttempt {
        self.run_with_inputs(log, steps, &[]).await
    }

    /// Runs the attempt from the end of these steps.
    pub async fn run_with_inputs(&self, log: &Log, steps: Vec<JournalStep>, inputs: &[&str]) -> EndedAttempt {
        let folder = tempfile::tempdir().unwrap();
        let (script, cassette) = (folder.path().join("model.yaml"), folder.path().join("requests.jsonl"));
        // A revision continues after the replies of the first attempt.
        let is_revision = self.rejected.is_some() && self.file.contains("same_conversation");
        let earlier = if is_revision { 2 } else { 0 };
        let turns: Vec<Value> =
            vec![json!({"text": "unused"}); earlier].into_iter().chain(self.replies.clone()).collect();
        std::fs::write(&script, json!({"ability": self.ability, "rules": [{"turns": turns}]}).to_string())
            .unwrap();
        let spec = AgentSpec::parse(self.file.as_bytes(), &BuiltInToolNames).unwrap();
        let input = |id: &&str| InputResult {
            task: task_id(id),
            objective: format!("do {id}"),
            capability: capability("clerk"),
            worker: WorkerId::new("w").unwrap(),
            summary: String::new(),
            at_sequence: 1,
        };
        let (run, task, attempt) = (RunId::new("r").unwrap(), task_id("t"), self.attempt);
        let order = Order {
            own_model: Some(format!("script:{}", script.display())),
            inputs: inputs.iter().map(input).collect(),
            feedback: self.rejected.iter().map(|_| "Attempt 1 was rejected: Name the mill.".into()).collect(),
            assignment: Assignment::Task {
                task: task.clone(),
                attempt,
                rejected: self.rejected.as_ref().map(|_| input(&"t")),
                rejection: self.rejected.clone(),
                criteria: Vec::new(),
            },
            ..Order::new(
                run.clone(),
                run.lane(1),
                Work::Task { task, attempt },
                "write",
                spec.about.name.clone(),
            )
        };
        let factory = ModelFactory { record_file: Some(cassette.clone()), ..ModelFactory::default() };
        let host = AgentHost::new(HostSettings { factory, ..HostSettings::default() }).unwrap();
        let mut journal = MemoryHost::with_steps(steps);
        let env = SessionEnvironment::new(Arc::new(log.clone()), &mut journal);
        let session = AgentSession::prepare(&host, &spec, &order, env).await.unwrap();
        let result = session.run_work().await.unwrap();
        let lines = std::fs::read_to_string(cassette).unwrap_or_default();
        let read = |line: &str| {
            let mut entry: Value = serde_json::from_str(line).unwrap();
            serde_json::from_value(entry["request"].take()).unwrap()
        };
        EndedAttempt { result, steps: journal.steps().to_vec(), requests: lines.lines().map(read).collect() }
    }
}
