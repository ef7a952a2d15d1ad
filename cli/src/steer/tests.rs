//! What is told of commands, and which answer is theirs.

use jiff::Timestamp;
use millrace_protocol::ids::{RunId, TaskId, WorkerId};
use millrace_protocol::plan::{Answer, Cause, Decision, Event, Refusal};
use millrace_protocol::result::Usage;

use super::{answer_to, author, decided};

fn task(name: &str) -> TaskId {
    TaskId::new(name).unwrap()
}

fn told(events: &[Event]) -> String {
    decided(&RunId::new("r1").unwrap(), events)
}

fn cancelled(name: &str) -> Event {
    Event::TaskCancelled { task: task(name), reason: "x".into(), with: None, usage: Usage::default() }
}

fn commanded() -> Event {
    Event::Commanded { id: "1".into(), by: "ann".into(), what: "something".into() }
}

#[test]
fn what_a_command_changed_is_told_in_one_line() {
    assert_eq!(told(&[commanded(), cancelled("a")]), "task a is cancelled");
    assert_eq!(
        told(&[commanded(), cancelled("a"), cancelled("b"), cancelled("c")]),
        "task a is cancelled; cancelled with it: b, c"
    );
    let over = Event::RunEnded {
        reason: millrace_protocol::plan::EndReason::Cancelled,
        detail: String::new(),
        deliverable: None,
    };
    assert_eq!(told(&[commanded(), cancelled("a"), over]), "run r1 is cancelled; cancelled with it: a");
    let retried = Event::TaskReopened { task: task("a"), attempt: 4, ready: true, feedback: None };
    let built = Event::TaskInvalidated { task: task("b"), attempt: 2, usage: Usage::default() };
    assert_eq!(
        told(&[commanded(), retried.clone(), built]),
        "task a runs once more, as attempt 4; done again with it: b"
    );
    let resumed = Event::Resumed { budget: Box::default() };
    assert_eq!(told(&[commanded(), Event::RunReopened, resumed, retried]), "run r1 goes on; again: a");
    assert_eq!(
        told(&[commanded(), Event::Paused]),
        "run r1 is paused: what runs goes on to its end, and nothing more is given out"
    );
    let many: Vec<Event> = (0..13).map(|n| cancelled(&format!("t{n}"))).collect();
    assert!(told(&many).ends_with("t9, t10 and 2 more"), "{}", told(&many));
}

#[test]
fn a_command_gets_its_own_answer_and_no_other() {
    let answer = |fact, events, refusal| Answer { cause: Cause::Fact(fact), events, refusal };
    let refusal = Refusal::WrongMoment("the run is paused already".into());
    let decision = Decision {
        by: WorkerId::new("s").unwrap(),
        previous: 0,
        at: Timestamp::UNIX_EPOCH,
        answers: vec![
            answer(3, 2, None),
            answer(5, 0, Some(refusal.clone())),
            Answer { cause: Cause::Rules, events: 1, refusal: None },
            answer(7, 1, None),
        ],
        events: vec![commanded(), cancelled("a"), Event::RunRetired, Event::Paused],
    };
    assert_eq!(answer_to(&decision, 3), Some(Ok(vec![commanded(), cancelled("a")])));
    assert_eq!(answer_to(&decision, 5), Some(Err(refusal)));
    assert_eq!(answer_to(&decision, 7), Some(Ok(vec![Event::Paused])));
    assert_eq!(answer_to(&decision, 4), None);
}

#[test]
fn whoever_gives_a_command_has_a_name() {
    assert_eq!(author(Some("ann".into())), "ann");
    assert!(!author(None).is_empty());
}
