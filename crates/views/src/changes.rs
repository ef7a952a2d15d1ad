//! The changes of a command, in one line for a person. Pure.

use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Event, GraphEvent, RunEvent, TaskEvent, UserEvent};

/// Maximum number of tasks that are listed in a line.
const MAX_NAMED: usize = 10;

/// Describes the changes of a command in one line: the run or one task first, then the consequences.
pub fn describe_changes(run: &RunId, events: &[Event]) -> String {
    let (first, named) = match events.iter().find_map(describe_run_change) {
        Some(what) => (format!("run {run} {what}"), 0),
        None => match events.iter().find_map(describe_task_change) {
            Some(what) => (what, 1),
            None => (format!("run {run}: the command was applied"), 0),
        },
    };
    let also = describe_consequences(events, named);
    if also.is_empty() { first } else { format!("{first}; {}", also.join("; ")) }
}

/// Describes a change of the run as a whole.
fn describe_run_change(event: &Event) -> Option<&'static str> {
    if let Event::Run(RunEvent::Ended { .. }) = event {
        Some("is cancelled")
    } else if let Event::Run(RunEvent::Paused) = event {
        Some("is paused: running tasks finish, no new ones start")
    } else if let Event::Run(RunEvent::Interrupted) = event {
        Some("is interrupted: nothing of it runs until it is resumed")
    } else if let Event::Run(RunEvent::Reopened) | Event::Run(RunEvent::Resumed { .. }) = event {
        Some("is resumed")
    } else if let Event::User(UserEvent::MessageReceived { .. }) = event {
        Some("has received the message for its planner")
    } else {
        None
    }
}

fn describe_task_change(event: &Event) -> Option<String> {
    if let Event::Task(TaskEvent::Cancelled { task, .. }) = event {
        Some(format!("task {task} is cancelled"))
    } else if let Event::Task(TaskEvent::Reopened { task, attempt, ready, .. }) = event {
        let when = if *ready { "" } else { " when its dependencies are completed" };
        Some(format!("task {task} will be retried as attempt {attempt}{when}"))
    } else if let Event::Graph(GraphEvent::TaskPatched { spec, .. }) = event {
        Some(format!("task {} is changed", spec.id))
    } else if let Event::Graph(GraphEvent::FinalMarked { task }) = event {
        Some(format!("task {task} is now the final task"))
    } else if let Event::Graph(GraphEvent::TaskAdded { spec, .. }) = event {
        Some(format!("task {} is added", spec.id))
    } else {
        None
    }
}

/// Lists the consequences by kind; `named` events of each kind are in the first part already.
fn describe_consequences(events: &[Event], named: usize) -> Vec<String> {
    let tasks = |what: &str, is_it: fn(&Event) -> bool, skip: usize| {
        let ids: Vec<&TaskId> =
            events.iter().filter(|event| is_it(event)).filter_map(Event::task).skip(skip).collect();
        (!ids.is_empty()).then(|| format!("{what} {}", join_task_ids(&ids)))
    };
    [
        tasks("also cancelled:", |event| matches!(event, Event::Task(TaskEvent::Cancelled { .. })), named),
        // A changed task that was waiting for a retry is retried at once: that is the same task.
        tasks("retried:", |event| matches!(event, Event::Task(TaskEvent::Reopened { .. })), named),
        tasks(
            "dependents to run again:",
            |event| matches!(event, Event::Task(TaskEvent::Invalidated { .. })),
            0,
        ),
        tasks("also added:", |event| matches!(event, Event::Graph(GraphEvent::TaskAdded { .. })), named),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Joins the first ids, and counts the others.
pub fn join_task_ids(ids: &[&TaskId]) -> String {
    let names: Vec<&str> = ids.iter().take(MAX_NAMED).map(|id| id.as_str()).collect();
    match ids.len().saturating_sub(MAX_NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::result::Usage;

    use super::*;

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
            describe_sample_changes(&[
                user_commanded_event(),
                Event::Run(RunEvent::Reopened),
                resumed,
                retried
            ]),
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
}
