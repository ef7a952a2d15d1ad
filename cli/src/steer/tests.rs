//! Descriptions of command outcomes, and finding the answer to a command.

use jiff::Timestamp;
use millrace_protocol::ids::{RunId, TaskId, WorkerId};
use millrace_protocol::plan::{
    AnswerCause, Decision, Event, InputAnswer, Refusal, RunEvent, TaskEvent, UserEvent,
};
use millrace_protocol::result::Usage;

use super::{author_name, describe_changes, find_answer_in_decision};

fn task_id(name: &str) -> TaskId {
    TaskId::new(name).unwrap()
}

fn describe_sample_changes(events: &[Event]) -> String {
    describe_changes(&RunId::new("r1").unwrap(), events)
}

fn task_cancelled_event(name: &str) -> Event {
    Event::Task(TaskEvent::Cancelled {
        task: task_id(name),
        reason: "x".into(),
        with: None,
        usage: Usage::default(),
    })
}

fn user_commanded_event() -> Event {
    Event::User(UserEvent::Commanded { id: "1".into(), by: "ann".into(), what: "something".into() })
}

#[test]
fn changes_of_a_command_are_described_in_one_line() {
    assert_eq!(
        describe_sample_changes(&[user_commanded_event(), task_cancelled_event("a")]),
        "task a is cancelled"
    );
    assert_eq!(
        describe_sample_changes(&[
            user_commanded_event(),
            task_cancelled_event("a"),
            task_cancelled_event("b"),
            task_cancelled_event("c")
        ]),
        "task a is cancelled; also cancelled: b, c"
    );
    let ended = Event::Run(RunEvent::Ended {
        is_resumable: false,
        reason: millrace_protocol::plan::EndReason::Cancelled,
        detail: String::new(),
        deliverable: None,
    });
    assert_eq!(
        describe_sample_changes(&[user_commanded_event(), task_cancelled_event("a"), ended]),
        "run r1 is cancelled; also cancelled: a"
    );
    let retried =
        Event::Task(TaskEvent::Reopened { task: task_id("a"), attempt: 4, ready: true, feedback: None });
    let dependent =
        Event::Task(TaskEvent::Invalidated { task: task_id("b"), attempt: 2, usage: Usage::default() });
    assert_eq!(
        describe_sample_changes(&[user_commanded_event(), retried.clone(), dependent]),
        "task a will be retried as attempt 4; dependents to run again: b"
    );
    let resumed = Event::Run(RunEvent::Resumed { budget: Box::default() });
    assert_eq!(
        describe_sample_changes(&[user_commanded_event(), Event::Run(RunEvent::Reopened), resumed, retried]),
        "run r1 is resumed; retried: a"
    );
    assert_eq!(
        describe_sample_changes(&[user_commanded_event(), Event::Run(RunEvent::Paused)]),
        "run r1 is paused: running tasks finish, no new ones start"
    );
    let many: Vec<Event> = (0..13).map(|n| task_cancelled_event(&format!("t{n}"))).collect();
    assert!(
        describe_sample_changes(&many).ends_with("t9, t10 and 2 more"),
        "{}",
        describe_sample_changes(&many)
    );
}

#[test]
fn a_command_gets_its_own_answer_only() {
    let answer = |fact, events, refusal| InputAnswer { cause: AnswerCause::Fact(fact), events, refusal };
    let refusal = Refusal::WrongMoment("the run is already paused".into());
    let decision = Decision {
        by: WorkerId::new("s").unwrap(),
        previous: 0,
        at: Timestamp::UNIX_EPOCH,
        answers: vec![
            answer(3, 2, None),
            answer(5, 0, Some(refusal.clone())),
            InputAnswer { cause: AnswerCause::Rules, events: 1, refusal: None },
            answer(7, 1, None),
        ],
        events: vec![
            user_commanded_event(),
            task_cancelled_event("a"),
            Event::Run(RunEvent::Retired),
            Event::Run(RunEvent::Paused),
        ],
    };
    assert_eq!(
        find_answer_in_decision(&decision, 3),
        Some(Ok(vec![user_commanded_event(), task_cancelled_event("a")]))
    );
    assert_eq!(find_answer_in_decision(&decision, 5), Some(Err(refusal)));
    assert_eq!(find_answer_in_decision(&decision, 7), Some(Ok(vec![Event::Run(RunEvent::Paused)])));
    assert_eq!(find_answer_in_decision(&decision, 4), None);
}

#[test]
fn a_command_always_has_an_author() {
    assert_eq!(author_name(Some("ann".into())), "ann");
    assert!(!author_name(None).is_empty());
}
