//! Attempts after a rejection: what they see of the earlier ones, the conversation that they continue, and the same on any
//! worker. Also the results of other tasks that an agent can list.

mod support;

use std::sync::Arc;

use millrace_agent::model::{Message, Request};
use millrace_agent::turn::JournalStep;
use millrace_protocol::plan::{Event, GraphEvent, Plan, TaskEvent, TaskSpec, apply};
use serde_json::{Value, json};

use support::{CLERK, Log, Rerun, capability, rejection, task_id};

const REVISING: &str = "\
name: clerk
description: Writes letters.
instructions: You write letters.
tools: [append_note, read_notes]
revise: same_conversation
";

fn note(text: &str) -> Value {
    json!({"calls": [{"append_note": {"note": text}}]})
}

fn read_notes() -> Value {
    json!({"calls": [{"read_notes": {}}]})
}

fn text(answer: &str) -> Value {
    json!({"text": answer})
}

fn user_texts(request: &Request) -> Vec<&str> {
    let texts = request.messages.iter().filter_map(|message| match message {
        Message::User { text } => Some(text.as_str()),
        Message::Assistant { .. } | Message::Tool(_) => None,
    });
    texts.collect()
}

fn last_result(request: &Request) -> &str {
    let result = request.messages.iter().rev().find_map(|message| match message {
        Message::Tool(result) => Some(result.text.as_str()),
        Message::User { .. } | Message::Assistant { .. } => None,
    });
    result.unwrap()
}

/// A log with a first attempt that took a note and was rejected.
async fn after_a_rejection(file: &'static str, ability: &'static str) -> Log {
    let mut log = Log::default();
    let first = Rerun {
        file,
        ability,
        attempt: 1,
        rejected: None,
        replies: vec![note("the mill is red"), text("Dear Sir")],
    };
    let ended = first.run(&log, Vec::new()).await;
    log.journals.insert((task_id("t"), 1), ended.steps);
    log.results.insert(task_id("t"), ended.result);
    log
}

fn second(file: &'static str, ability: &'static str) -> Rerun {
    let replies = vec![read_notes(), text("Dear Madam")];
    Rerun { file, ability, attempt: 2, rejected: Some(rejection(1)), replies }
}

#[tokio::test]
async fn next_attempt_sees_its_rejected_result_the_verdict_and_the_notes() {
    for ability in ["strong", "small"] {
        let log = after_a_rejection(CLERK, ability).await;
        let ended = second(CLERK, ability).run(&log, Vec::new()).await;
        let first = user_texts(&ended.requests[0])[0];
        for part in [
            "Your earlier result, which was rejected.",
            "\n| Dear Sir\n",
            "\n| met: It is short.\n",
            "\n| not met: It names the mill. (no word of it)\n",
            "\n| 1. the mill is red\n",
            "Name the mill.",
        ] {
            assert!(first.contains(part), "{ability}: {part} in {first}");
        }
        assert_eq!(last_result(&ended.requests[1]), "1. the mill is red", "{ability}");
        assert_eq!(ended.result.output, "Dear Madam");
    }
}

#[tokio::test]
async fn notes_of_all_earlier_attempts_are_kept() {
    let mut log = after_a_rejection(CLERK, "strong").await;
    let mut again = second(CLERK, "strong");
    again.replies.insert(0, note("the owner is a lady"));
    let ended = again.run(&log, Vec::new()).await;
    log.journals.insert((task_id("t"), 2), ended.steps);
    let third = Rerun { attempt: 3, ..second(CLERK, "strong") };
    let ended = third.run(&log, Vec::new()).await;
    assert_eq!(last_result(&ended.requests[1]), "1. the mill is red\n2. the owner is a lady");
}

#[tokio::test]
async fn revision_continues_the_conversation_of_the_rejected_attempt() {
    let mut log = after_a_rejection(REVISING, "strong").await;
    let first = log.journals[&(task_id("t"), 1)].clone();
    assert_eq!(first.last().unwrap().name, "conversation");
    let ended = second(REVISING, "strong").run(&log, Vec::new()).await;
    let request = &ended.requests[0];
    let conversation: Vec<Message> =
        serde_json::from_value(first.last().unwrap().value["messages"].clone()).unwrap();
    assert_eq!(request.messages[..conversation.len()], conversation, "the same beginning");
    assert_eq!(request.messages.len(), conversation.len() + 1);
    let next = *user_texts(request).last().unwrap();
    assert!(next.starts_with("Your answer was reviewed and rejected."), "{next}");
    assert!(
        next.contains("| not met: It names the mill. (no word of it)") && next.contains("Name the mill.")
    );
    assert_eq!(last_result(&ended.requests[1]), "1. the mill is red", "the notes are there too");

    // A failed attempt in between records no conversation: the rejected one continues again.
    log.journals.insert((task_id("t"), 2), ended.steps[..1].to_vec());
    let third = Rerun { attempt: 3, ..second(REVISING, "strong") };
    assert_eq!(third.run(&log, Vec::new()).await.requests[0].messages, request.messages);
}

#[tokio::test]
async fn rerun_resumed_after_any_step_repeats_nothing_and_ends_the_same() {
    for file in [CLERK, REVISING] {
        let mut log = after_a_rejection(file, "strong").await;
        let rerun = second(file, "strong");
        let whole = rerun.run(&log, Vec::new()).await;
        for kept in 1..=whole.steps.len() {
            // The journal of an attempt that was given up may still grow.
            let late = JournalStep { name: "model.9".into(), value: first_reply_with_note("too late") };
            log.journals.get_mut(&(task_id("t"), 1)).unwrap().push(late);
            let steps = whole.steps[..kept].to_vec();
            let answered = steps.iter().filter(|step| step.name.starts_with("model.")).count();
            let again = rerun.run(&log, steps).await;
            assert_eq!(again.result.output, whole.result.output, "after {kept} steps");
            assert_eq!(again.requests, whole.requests[answered..], "after {kept} steps");
            let names =
                |steps: &[JournalStep]| steps.iter().map(|step| step.name.clone()).collect::<Vec<_>>();
            assert_eq!(names(&again.steps), names(&whole.steps));
        }
    }
}

fn first_reply_with_note(text: &str) -> Value {
    let call = json!({"id": "x", "name": "append_note", "arguments": json!({"note": text}).to_string()});
    let reply = json!({"text": "", "calls": [call], "usage": {}, "finish": "tool_calls"});
    json!({"heard": {"reply": reply}, "took_ms": 0})
}

/// A plan in which `t` depends on `b`, and `b` on `a`; `c` stands alone.
fn chained_plan() -> Plan {
    let mut plan = Plan::default();
    for (id, depends_on) in [("a", vec![]), ("b", vec!["a"]), ("c", vec![]), ("t", vec!["b"])] {
        let depends_on = depends_on.into_iter().map(task_id).collect();
        let spec =
            TaskSpec { depends_on, ..TaskSpec::new(task_id(id), format!("do {id}"), capability("clerk")) };
        let added = Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(spec), ready: true });
        apply(&mut plan, &added, jiff::Timestamp::UNIX_EPOCH);
    }
    support::complete_task(&mut plan, "a", 7);
    support::complete_task(&mut plan, "b", 8);
    let failed = Event::Task(TaskEvent::Failed { task: task_id("c"), reason: "no ink".into() });
    apply(&mut plan, &failed, jiff::Timestamp::UNIX_EPOCH);
    plan
}

#[tokio::test]
async fn results_of_indirect_dependencies_and_of_the_whole_run_can_be_listed() {
    for (scope, expected) in [("dependencies", vec!["b", "a"]), ("run", vec!["b", "a", "c"])] {
        let mut log = Log { plan: Some(chained_plan()), ..Log::default() };
        log.results.insert(task_id("a"), support::result_with_output("of a"));
        log.results.insert(task_id("b"), support::result_with_output("of b"));
        let file: &'static str = Box::leak(
            format!(
                "name: clerk\ndescription: x\ninstructions: y\ntools: [list_completed_tasks, get_task_result]\nresults: {scope}\n"
            )
            .into_boxed_str(),
        );
        let get = json!({"calls": [{"get_task_result": {"task_id": "a"}}]});
        let replies = vec![json!({"calls": [{"list_completed_tasks": {}}]}), get, text("done")];
        let reader = Rerun { file, ability: "strong", attempt: 1, rejected: None, replies };
        let ended = reader.run_with_inputs(&log, Vec::new(), &["b"]).await;
        let list: Vec<Value> = serde_json::from_str(last_result(&ended.requests[1])).unwrap();
        let ids: Vec<&str> = list.iter().map(|entry| entry["task_id"].as_str().unwrap()).collect();
        assert_eq!(ids, expected, "{scope}");
        let missing: Vec<&Value> = list.iter().filter_map(|entry| entry.get("missing")).collect();
        assert_eq!(missing.len(), usize::from(scope == "run"), "{list:?}");
        assert!(
            last_result(&ended.requests[2]).contains("of a"),
            "a result that the task builds on indirectly"
        );
    }
}
