//! Calls that were in flight when their worker was lost.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::model::Reply;
use millrace_agent::tool::{Effect, Tool, Toolbox, tool_with_effect};
use millrace_agent::turn::{AttemptName, Host, MemoryHost, PlainText, WorkOutcome};
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::Work;
use millrace_protocol::result::TaskError;
use serde_json::{Value, json};

use super::support::{self, Look, Scripted, attempt, calls, conversation, named, names, order, says};

/// A journal whose steps can be read while it is written.
#[derive(Clone, Default)]
struct SharedJournal(Arc<Mutex<MemoryHost>>);

impl SharedJournal {
    fn names(&self) -> Vec<String> {
        names(&self.0.lock().unwrap()).into_iter().map(str::to_owned).collect()
    }
}

impl Host for SharedJournal {
    fn replay<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, TaskError>> {
        let effect = self.0.lock().unwrap().replay(names).now_or_never().expect("it is in memory");
        futures::future::ready(effect).boxed()
    }

    fn peek(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, TaskError>> {
        let next = self.0.lock().unwrap().peek().now_or_never().expect("it is in memory");
        futures::future::ready(next).boxed()
    }

    fn record<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), TaskError>> {
        let done = self.0.lock().unwrap().record(name, value).now_or_never().expect("it is in memory");
        futures::future::ready(done).boxed()
    }
}

type Runs = Arc<Mutex<Vec<String>>>;

/// One tool for each kind of effect. Each reports how it was run and with which key.
fn tools(journal: &SharedJournal) -> (Toolbox, Runs) {
    let runs = Runs::default();
    let tool = |name: &'static str, effect: Effect| -> Arc<dyn Tool> {
        let (runs, journal) = (runs.clone(), journal.clone());
        tool_with_effect(effect, name, "Acts.", move |Look { at, .. }: Look, call| {
            if effect == Effect::Effect {
                let begun = format!("begin.{}", call.turn);
                assert!(
                    journal.names().contains(&begun),
                    "an effect runs only after its beginning is recorded"
                );
            }
            runs.lock().unwrap().push(format!("{name} {at} {}", call.key));
            async move { Ok(format!("{name} {at}")) }
        })
    };
    let all = [tool("look", Effect::Pure), tool("put", Effect::Idempotent), tool("send", Effect::Effect)];
    (Toolbox::new(all).unwrap(), runs)
}

fn replies() -> Vec<Reply> {
    let call = |id: &str, tool: &str| named(id, tool, &json!({"at": id}).to_string());
    vec![calls(vec![call("a", "look"), call("b", "put"), call("c", "send"), call("d", "send")]), says("done")]
}

async fn drive(journal: &SharedJournal) -> (WorkOutcome<PlainText>, Vec<String>, Vec<String>) {
    let (tools, runs) = tools(journal);
    let model = Scripted::new(replies());
    let mut writer = journal.clone();
    let mut conversation = conversation(&model, &tools);
    conversation.attempt = attempt();
    let ended = support::drive(conversation, &mut writer).await.unwrap();
    let mut runs = runs.lock().unwrap().clone();
    runs.sort();
    (ended.outcome, runs, journal.names())
}

#[tokio::test]
async fn interrupted_effect_is_reported_and_never_repeated() {
    let whole = SharedJournal::default();
    let (outcome, runs, steps) = drive(&whole).await;
    assert_eq!(runs, ["look a r1/t1/2/0.0", "put b r1/t1/2/0.1", "send c r1/t1/2/0.2", "send d r1/t1/2/0.3"]);
    assert_eq!(steps[..2], ["model.0", "begin.0"]);
    let recorded = whole.0.lock().unwrap().steps().to_vec();
    assert_eq!(recorded[1].value, json!({"calls": ["tool.0.2.send", "tool.0.3.send"]}));

    // The worker is lost after each of the steps in turn.
    for prefix in 0..=recorded.len() {
        let held: Vec<_> = recorded[..prefix].to_vec();
        let is_held = |name: &str| held.iter().any(|step| step.name == name);
        let resumed = SharedJournal(Arc::new(Mutex::new(MemoryHost::with_steps(held.clone()))));
        let (ended, ran, steps) = drive(&resumed).await;
        assert_eq!(ended, outcome);
        let mut expected = Vec::new();
        for (at, run) in runs.iter().enumerate() {
            let tool = run.split(' ').next().unwrap();
            let done = is_held(&format!("tool.0.{at}.{tool}"));
            let lost = tool == "send" && is_held("begin.0");
            if !done && !lost {
                expected.push(run.clone());
            }
        }
        assert_eq!(ran, expected, "after {prefix} steps: the same keys, and no effect twice");
        assert_eq!(steps.len(), 7);
        for step in resumed.0.lock().unwrap().steps() {
            let lost = step.name.contains("send") && is_held("begin.0") && !is_held(&step.name);
            let text = step.value["text"].as_str().unwrap_or_default();
            assert_eq!(text.starts_with("It is unknown whether this call took effect"), lost, "{text}");
        }
        // A worker that resumes from here reads it in the journal.
        let steps = resumed.0.lock().unwrap().steps().to_vec();
        let (_, ran, _) = drive(&SharedJournal(Arc::new(Mutex::new(MemoryHost::with_steps(steps))))).await;
        assert_eq!(ran, Vec::<String>::new());
    }
}

#[test]
fn every_kind_of_work_has_distinct_step_names() {
    let task = || TaskId::new("t1").unwrap();
    let table = [
        (Work::Task { task: task(), attempt: 2 }, "r1/t1/2/3.1"),
        (Work::Review { task: task(), attempt: 2, review: 1 }, "r1/t1/2/review.1/3.1"),
        (Work::Planning { turn: 1, attempt: 2 }, "r1/@planning.1/2/3.1"),
    ];
    for (work, key) in table {
        assert_eq!(AttemptName::from_order(&order(work)).call_key(3, 1), key);
    }
}
