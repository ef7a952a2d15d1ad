//! Calls that wait for a time or an event: the attempt is parked, and continues in the middle of the turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millrace_agent::tool::{Toolbox, continue_at_first_tool, sleep_for_tool, wait_for_event_tool};
use millrace_agent::turn::{DriveError, MemoryHost, PlainText, WorkOutcome, WorkSummary};
use millrace_protocol::wait::{EndedWait, Wait, WaitCondition, WaitEnd};
use serde_json::json;

use super::support::{self, Scripted, calls, conversation, look, named, names, says};

fn tools_that_wait() -> (Toolbox, Arc<AtomicUsize>) {
    let (look, looks) = look();
    (Toolbox::new([look, sleep_for_tool(), wait_for_event_tool(), continue_at_first_tool()]).unwrap(), looks)
}

fn model() -> Arc<Scripted> {
    let turn = vec![
        named("a", "look", &json!({"at": "a"}).to_string()),
        named("b", "sleep_for", &json!({"seconds": 60}).to_string()),
        named("c", "wait_for_event", &json!({"name": "deployed", "seconds": 90}).to_string()),
    ];
    Scripted::new(vec![calls(turn), says("done")])
}

async fn drive(
    model: &Arc<Scripted>,
    tools: &Toolbox,
    journal: &mut MemoryHost,
) -> Result<WorkSummary<PlainText>, DriveError> {
    support::drive(conversation(model, tools), journal).await.map_err(|failure| *failure.error)
}

fn parked_waits(ended: Result<WorkSummary<PlainText>, DriveError>) -> Vec<Wait> {
    match ended {
        Err(DriveError::Parked(waits, _)) => waits,
        other => panic!("it is not parked: {other:?}"),
    }
}

fn ends(keys: &[(&str, WaitEnd)]) -> Vec<EndedWait> {
    keys.iter().map(|(key, end)| EndedWait { key: (*key).to_owned(), end: end.clone() }).collect()
}

const SLEEP: &str = "tool.0.1.sleep_for";
const EVENT: &str = "tool.0.2.wait_for_event";

#[tokio::test]
async fn turn_continues_when_its_waits_have_ended() {
    let (model, (tools, looks)) = (model(), tools_that_wait());
    let mut journal = MemoryHost::default();
    let waits = parked_waits(drive(&model, &tools, &mut journal).await);
    let keys: Vec<&str> = waits.iter().map(|wait| wait.key.as_str()).collect();
    assert_eq!(keys, [SLEEP, EVENT]);
    assert!(
        matches!(&waits[1].condition, WaitCondition::Event { name, until: Some(_) } if name == "deployed")
    );
    assert_eq!(names(&journal), ["model.0", "tool.0.0.look"], "the other call was made and recorded");

    // Without the ends it is parked again, and nothing is repeated.
    let mut journal = journal.with_ended_waits(Vec::new());
    assert_eq!(parked_waits(drive(&model, &tools, &mut journal).await).len(), 2);

    let signalled = WaitEnd::Signalled { by: "ann".into(), data: r#"{"version":3}"#.into() };
    let mut journal = journal.with_ended_waits(ends(&[(SLEEP, WaitEnd::TimeReached), (EVENT, signalled)]));
    let ended = drive(&model, &tools, &mut journal).await.unwrap();
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("done".into())));
    assert_eq!(names(&journal), ["model.0", "tool.0.0.look", SLEEP, EVENT, "model.1"]);
    let results: Vec<String> = journal.steps().iter().map(|step| step.value.to_string()).collect();
    assert!(results[2].contains("The time has come."), "{}", results[2]);
    assert!(
        results[3].contains("ann signalled the event") && results[3].contains("version"),
        "{}",
        results[3]
    );
    assert_eq!(looks.load(Ordering::SeqCst), 1, "the call that did not wait was made once");
    assert!(model.requests_by_turn().values().all(|requests| *requests == 1), "no reply is asked for twice");
}

/// The worker is lost after it has recorded the first of two ends.
#[tokio::test]
async fn recorded_end_of_a_wait_is_not_recorded_again() {
    let (model, (tools, _)) = (model(), tools_that_wait());
    let mut journal = MemoryHost::default();
    parked_waits(drive(&model, &tools, &mut journal).await);
    let all = ends(&[(SLEEP, WaitEnd::TimeReached), (EVENT, WaitEnd::Expired)]);
    let mut whole = journal.clone().with_ended_waits(all.clone());
    drive(&model, &tools, &mut whole).await.unwrap();
    for kept in 2..=whole.steps().len() {
        let steps = whole.steps()[..kept].to_vec();
        let mut resumed = MemoryHost::with_steps(steps).with_ended_waits(all.clone());
        drive(&model, &tools, &mut resumed).await.unwrap();
        assert_eq!(names(&resumed), names(&whole), "after {kept} steps");
    }
    assert!(whole.steps()[3].value.to_string().contains("not signalled in time"));
}

/// The first of two waits has ended; the other one is withdrawn and not waited for again.
#[tokio::test]
async fn turn_continues_at_the_first_of_its_waits_if_it_says_so() {
    let turn = vec![
        named("b", "sleep_for", &json!({"seconds": 60}).to_string()),
        named("c", "wait_for_event", &json!({"name": "deployed"}).to_string()),
        named("d", "continue_at_first", "{}"),
    ];
    let (model, (tools, _)) = (Scripted::new(vec![calls(turn), says("done")]), tools_that_wait());
    let mut journal = MemoryHost::default();
    let waits = parked_waits(drive(&model, &tools, &mut journal).await);
    assert_eq!(waits.len(), 2);
    assert!(waits[0].group.is_some() && waits[0].group == waits[1].group, "{waits:?}");
    let first =
        [("tool.0.0.sleep_for", WaitEnd::TimeReached), ("tool.0.1.wait_for_event", WaitEnd::Withdrawn)];
    let mut journal = journal.with_ended_waits(ends(&first));
    let ended = drive(&model, &tools, &mut journal).await.unwrap();
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("done".into())));
    let results: String = journal.steps().iter().map(|step| step.value.to_string()).collect();
    assert!(
        results.contains("The time has come.")
            && results.contains("another call of this message ended first")
    );
}

/// An agent that sleeps, looks and sleeps again is not going round in circles, also if it sees the same each time.
#[tokio::test]
async fn an_agent_may_wait_as_often_as_it_needs() {
    let (tools, looks) = tools_that_wait();
    let sleep = || named("s", "sleep_for", r#"{"seconds": 60}"#);
    let first = || vec![sleep(), named("c", "continue_at_first", "{}")];
    let turns = (0..12).map(|turn| match turn % 3 {
        0 => calls(vec![named("l", "look", r#"{"at": "the sky"}"#)]),
        1 => calls(vec![sleep()]),
        _ => calls(first()),
    });
    let model = Scripted::new(turns.chain([says("done")]).collect());
    let mut journal = MemoryHost::default();
    let ended = loop {
        match drive(&model, &tools, &mut journal).await {
            Err(DriveError::Parked(waits, _)) => {
                let ended =
                    waits.iter().map(|wait| EndedWait { key: wait.key.clone(), end: WaitEnd::TimeReached });
                let ended = ended.collect();
                journal = journal.with_ended_waits(ended);
            }
            other => break other.unwrap(),
        }
    };
    assert_eq!(ended.outcome, WorkOutcome::Answered(PlainText("done".into())));
    assert_eq!(looks.load(Ordering::SeqCst), 4);
    let results: String = journal.steps().iter().map(|step| step.value.to_string()).collect();
    assert!(!results.contains("You made this call"), "{results}");
}
