//! The tasks of a plan on the board: the relevant ones in full, the ids of the others by state. It owns the ranking and the
//! size limits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Attempt, AttemptEnd, ErroredTaskWait, Plan, Task, TaskState};

use crate::material::prefix_lines_with_bar;

pub(super) const TO_STRING: &str = "writing to a String can't fail";

/// The maximum number of tasks shown in full.
const MAX_FULL: usize = 30;
/// The maximum number of characters of all tasks shown in full.
const MAX_CHARS: usize = 24_000;
/// The number of newest tasks that rank higher because they are new.
const NEWEST: usize = 8;
/// The maximum number of characters of the ids of one state.
const MAX_IDS: usize = 4_000;
/// The maximum number of dependencies shown for a task.
const MAX_DEPENDENCIES: usize = 20;
/// The number of failed attempts shown for a task, newest ones.
const MAX_FAILURES: usize = 2;
/// The maximum number of characters of an objective, of an error or a verdict, and of a short text.
const OBJECTIVE: usize = 400;
const OUTCOME: usize = 700;
const SHORT: usize = 300;

pub(super) fn render_task_cards(plan: &Plan) -> String {
    let mut ranked: Vec<(u8, usize)> = plan
        .tasks()
        .iter()
        .enumerate()
        .map(|(at, task)| (rank_task_for_display(task, plan.tasks().len() - at), at))
        .collect();
    // Of equally ranked tasks the newest first.
    ranked.sort_by_key(|&(rank, at)| (rank, std::cmp::Reverse(at)));
    let mut shown: Vec<(usize, String)> = Vec::new();
    let mut room = MAX_CHARS;
    for &(_, at) in ranked.iter().take(MAX_FULL) {
        let card = render_task_card(&plan.tasks()[at]);
        let Some(left) = room.checked_sub(card.chars().count()) else { break };
        room = left;
        shown.push((at, card));
    }
    // Delegated tasks are below their parents.
    let tree = plan.tasks_as_tree();
    let place: BTreeMap<&TaskId, usize> =
        tree.iter().enumerate().map(|(place, (_, task))| (&task.spec.id, place)).collect();
    shown.sort_by_key(|(at, _)| place.get(&plan.tasks()[*at].spec.id));
    let full: BTreeSet<usize> = shown.iter().map(|(at, _)| *at).collect();
    let mut text: String = shown.into_iter().map(|(_, card)| card).collect();
    if full.len() < plan.tasks().len() {
        text.push_str("\nOnly listed, by state (view_qa_report and get_task_result show more):\n");
        for state in TaskState::ALL {
            let ids = plan
                .tasks()
                .iter()
                .enumerate()
                .filter(|(at, task)| task.state() == state && !full.contains(at));
            text.push_str(&list_ids(state, ids.map(|(_, task)| &task.spec.id).collect()));
        }
    }
    text
}

/// The rank of a task, lowest first; `age` is 1 for the newest.
fn rank_task_for_display(task: &Task, age: usize) -> u8 {
    if task.spec.is_final {
        return 0;
    }
    let rank = match task.state() {
        TaskState::Failed if !task.spec.is_child() => 1,
        TaskState::Failed => 6,
        TaskState::Errored => 2,
        TaskState::Running | TaskState::NeedsReview | TaskState::Rerun | TaskState::Waiting => 3,
        TaskState::Ready => 5,
        TaskState::Cancelled => 6,
        TaskState::Completed => 7,
        TaskState::Pending => 8,
    };
    if age <= NEWEST { rank.min(4) } else { rank }
}

fn list_ids(state: TaskState, ids: Vec<&TaskId>) -> String {
    if ids.is_empty() {
        return String::new();
    }
    let mut line = format!("- {state} ({}): ", ids.len());
    let mut named = 0;
    for id in &ids {
        if line.len() + id.as_str().len() > MAX_IDS {
            break;
        }
        if named > 0 {
            line.push_str(", ");
        }
        line.push_str(id.as_str());
        named += 1;
    }
    if named < ids.len() {
        write!(line, " and {} more", ids.len() - named).expect(TO_STRING);
    }
    line.push('\n');
    line
}

fn render_task_card(task: &Task) -> String {
    let spec = &task.spec;
    let end = if spec.is_final { ", FINAL" } else { "" };
    let delegated =
        spec.parent.as_ref().map(|parent| format!(", delegated by {}", parent.task)).unwrap_or_default();
    let mut card =
        format!("\n## {}: {}{end}{delegated}\ncapability {}", spec.id, task.state(), spec.capability);
    writeln!(card, "; {}; {}", render_attempts(task), render_dependencies(task)).expect(TO_STRING);
    card.push_str(&prefix_lines_with_bar(
        &format!("objective: {}", shorten_to_one_line(&spec.objective, OBJECTIVE)),
        usize::MAX,
    ));
    let lines = [
        render_parameters(task),
        describe_waiting_reason(task),
        task.instructions
            .last()
            .map(|(_, text)| format!("feedback for its next attempt: {}", shorten_to_one_line(text, SHORT))),
        describe_loss_reason(task),
        task.accepted_result().map(|(_, _, summary)| format!("result: {summary}")),
    ];
    for line in lines.into_iter().flatten().chain(describe_failures(task)) {
        card.push_str(&prefix_lines_with_bar(&line, usize::MAX));
    }
    card
}

fn render_parameters(task: &Task) -> Option<String> {
    let parameters = Some(&task.spec.parameters).filter(|parameters| !parameters.is_empty())?;
    let json = serde_json::to_string(parameters).expect("JSON values serialise to JSON");
    Some(format!("parameters: {}", shorten_to_one_line(&json, SHORT)))
}

/// The reason that a task is lost, unless its last attempt shows it.
fn describe_loss_reason(task: &Task) -> Option<String> {
    let why = task.end_reason()?;
    let is_shown = match task.current_attempt().and_then(|attempt| attempt.end.as_ref()) {
        Some(AttemptEnd::Errored(error)) => why.contains(&error.message),
        Some(AttemptEnd::TimedOut(clock)) => why.contains(&clock.to_string()),
        Some(AttemptEnd::Finished { .. }) | None => false,
    };
    (!is_shown).then(|| format!("{} because: {}", task.state(), shorten_to_one_line(why, OUTCOME)))
}

/// The failures of its last attempts, oldest first.
fn describe_failures(task: &Task) -> Vec<String> {
    let mut last: Vec<String> =
        task.attempts.iter().rev().filter_map(describe_failure).take(MAX_FAILURES).collect();
    last.reverse();
    last
}

fn render_attempts(task: &Task) -> String {
    match task.attempt {
        0 => format!("no attempt yet of {}", task.granted),
        number => format!("attempt {number} of {}", task.granted),
    }
}

fn render_dependencies(task: &Task) -> String {
    let all = &task.spec.depends_on;
    let ids: Vec<&str> = all.iter().take(MAX_DEPENDENCIES).map(TaskId::as_str).collect();
    match (all.len(), all.len().saturating_sub(MAX_DEPENDENCIES)) {
        (0, _) => "depends on nothing".into(),
        (_, 0) => format!("depends on {}", ids.join(", ")),
        (_, more) => format!("depends on {} and {more} more", ids.join(", ")),
    }
}

/// The reason that an errored or waiting task waits.
fn describe_waiting_reason(task: &Task) -> Option<String> {
    if task.state() == TaskState::Waiting {
        let since = task.since.strftime("%Y-%m-%d %H:%M:%S UTC");
        let wait = shorten_to_one_line(&task.describe_wait()?, OUTCOME);
        return Some(format!("waiting since {since} for {wait}"));
    }
    match task.errored_wait()? {
        ErroredTaskWait::Retry(_) => Some("waiting briefly before its next attempt".into()),
        ErroredTaskWait::Capability { .. } => Some(format!("no worker offers {}", task.spec.capability)),
        ErroredTaskWait::Parameters { .. } => {
            let problem = task.parameter_problem().unwrap_or("they do not fit its capability");
            Some(format!("its parameters are invalid: {}", shorten_to_one_line(problem, OUTCOME)))
        }
    }
}

/// The failure of an attempt, if it failed.
fn describe_failure(attempt: &Attempt) -> Option<String> {
    let number = attempt.number;
    if let Some((_, verdict)) = attempt.verdict().filter(|(_, verdict)| !verdict.passed) {
        let unmet = verdict.criteria.iter().filter(|criterion| !criterion.met).map(|criterion| {
            let gap = criterion.gap.as_ref().map(|gap| format!(" ({gap})")).unwrap_or_default();
            format!("{}{gap}", criterion.criterion)
        });
        let unmet: Vec<String> = unmet.collect();
        let feedback = verdict.feedback.as_deref().unwrap_or(&verdict.reasoning);
        let text = format!("not met: {}; feedback: {feedback}", unmet.join("; "));
        return Some(format!("attempt {number} was rejected: {}", shorten_to_one_line(&text, OUTCOME)));
    }
    match attempt.end.as_ref()? {
        AttemptEnd::Finished { .. } => None,
        AttemptEnd::Errored(error) => {
            Some(format!("attempt {number} failed: {}", shorten_to_one_line(&error.message, OUTCOME)))
        }
        AttemptEnd::TimedOut(clock) => Some(format!("attempt {number} timed out: {clock}")),
    }
}

/// Puts a text on one line and cuts the middle out if it is long.
fn shorten_to_one_line(text: &str, limit: usize) -> String {
    let folded = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let count = folded.chars().count();
    if count <= limit {
        return folded;
    }
    let (head, tail) = (limit - limit / 3, limit / 3);
    let start: String = folded.chars().take(head).collect();
    let end: String = folded.chars().skip(count - tail).collect();
    format!("{start} […] {end}")
}
