//! The tasks of a plan on the board: the interesting ones in full, of the others their ids by state. It owns what is
//! interesting, and the bounds.

use std::collections::BTreeSet;
use std::fmt::Write;

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Attempt, AttemptEnd, ErroredFor, Plan, Task, TaskState};

use super::board::TO_STRING;
use crate::material::barred;

/// The most tasks that are shown in full.
const MAX_FULL: usize = 30;
/// The most characters of all that are shown in full.
const MAX_CHARS: usize = 24_000;
/// How many of the newest tasks are interesting for being new.
const NEWEST: usize = 8;
/// The most characters of the ids of one state.
const MAX_IDS: usize = 4_000;
/// The most dependencies that one task is shown with.
const MAX_DEPENDENCIES: usize = 20;
/// How many attempts of a task that came to nothing are told, the last.
const MAX_MISHAPS: usize = 2;
/// The most characters of an objective, of an error or a verdict, and of a short text.
const OBJECTIVE: usize = 400;
const OUTCOME: usize = 700;
const SHORT: usize = 300;

pub(super) fn render(plan: &Plan) -> String {
    let mut ranked: Vec<(u8, usize)> =
        plan.tasks().iter().enumerate().map(|(at, task)| (rank(task, plan.tasks().len() - at), at)).collect();
    // Of equals the newest first.
    ranked.sort_by_key(|&(rank, at)| (rank, std::cmp::Reverse(at)));
    let mut shown: Vec<(usize, String)> = Vec::new();
    let mut room = MAX_CHARS;
    for &(_, at) in ranked.iter().take(MAX_FULL) {
        let card = card(&plan.tasks()[at]);
        let Some(left) = room.checked_sub(card.chars().count()) else { break };
        room = left;
        shown.push((at, card));
    }
    shown.sort_by_key(|(at, _)| *at);
    let full: BTreeSet<usize> = shown.iter().map(|(at, _)| *at).collect();
    let mut text: String = shown.into_iter().map(|(_, card)| card).collect();
    if full.len() < plan.tasks().len() {
        text.push_str("\nOnly named, by state (view_qa_report and get_task_result tell more of each):\n");
        for state in TaskState::ALL {
            let ids = plan
                .tasks()
                .iter()
                .enumerate()
                .filter(|(at, task)| task.state == state && !full.contains(at));
            text.push_str(&listed(state, ids.map(|(_, task)| &task.spec.id).collect()));
        }
    }
    text
}

/// How soon a planner should see a task; `age` is 1 for the newest.
fn rank(task: &Task, age: usize) -> u8 {
    if task.spec.is_final {
        return 0;
    }
    let rank = match task.state {
        TaskState::Failed => 1,
        TaskState::Errored => 2,
        TaskState::Running | TaskState::NeedsReview | TaskState::Rerun => 3,
        TaskState::Ready => 5,
        TaskState::Cancelled => 6,
        TaskState::Completed => 7,
        TaskState::Pending => 8,
    };
    if age <= NEWEST { rank.min(4) } else { rank }
}

fn listed(state: TaskState, ids: Vec<&TaskId>) -> String {
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

fn card(task: &Task) -> String {
    let spec = &task.spec;
    let end = if spec.is_final { ", FINAL" } else { "" };
    let mut card = format!("\n## {}: {}{end}\ncapability {}", spec.id, task.state, spec.capability);
    writeln!(card, "; {}; {}", attempts(task), depends_on(task)).expect(TO_STRING);
    card.push_str(&barred(&format!("objective: {}", cut(&spec.objective, OBJECTIVE)), usize::MAX));
    let lines = [
        parameters(task),
        waiting(task),
        task.told.last().map(|(_, text)| format!("told: {}", cut(text, SHORT))),
        reason(task),
        task.accepted().map(|(_, _, summary)| format!("result: {summary}")),
    ];
    for line in lines.into_iter().flatten().chain(mishaps(task)) {
        card.push_str(&barred(&line, usize::MAX));
    }
    card
}

fn parameters(task: &Task) -> Option<String> {
    let parameters = Some(&task.spec.parameters).filter(|parameters| !parameters.is_empty())?;
    let json = serde_json::to_string(parameters).expect("JSON values have a form in JSON");
    Some(format!("parameters: {}", cut(&json, SHORT)))
}

/// Why it is lost, where its last attempt does not say that.
fn reason(task: &Task) -> Option<String> {
    let why = task.reason.as_ref()?;
    let is_said = match task.current().and_then(|attempt| attempt.end.as_ref()) {
        Some(AttemptEnd::Errored(error)) => why.contains(&error.message),
        Some(AttemptEnd::TimedOut(clock)) => why.contains(&clock.to_string()),
        Some(AttemptEnd::Finished { .. }) | None => false,
    };
    (!is_said).then(|| format!("why {}: {}", task.state, cut(why, OUTCOME)))
}

/// What was wrong with its last attempts, oldest first.
fn mishaps(task: &Task) -> Vec<String> {
    let mut last: Vec<String> = task.attempts.iter().rev().filter_map(came_to).take(MAX_MISHAPS).collect();
    last.reverse();
    last
}

fn attempts(task: &Task) -> String {
    match task.attempt {
        0 => format!("no attempt yet of {}", task.granted),
        number => format!("attempt {number} of {}", task.granted),
    }
}

fn depends_on(task: &Task) -> String {
    let all = &task.spec.depends_on;
    let ids: Vec<&str> = all.iter().take(MAX_DEPENDENCIES).map(TaskId::as_str).collect();
    match (all.len(), all.len().saturating_sub(MAX_DEPENDENCIES)) {
        (0, _) => "depends on nothing".into(),
        (_, 0) => format!("depends on {}", ids.join(", ")),
        (_, more) => format!("depends on {} and {more} more", ids.join(", ")),
    }
}

/// What a task in state errored waits for.
fn waiting(task: &Task) -> Option<String> {
    match task.errored? {
        ErroredFor::Retry(_) => Some("waits a moment for its next attempt".into()),
        ErroredFor::Capability => Some(format!("nobody offers {}", task.spec.capability)),
        ErroredFor::Parameters => {
            let problem = task.problem.as_deref().unwrap_or("they are not what its capability takes");
            Some(format!("its parameters are wrong: {}", cut(problem, OUTCOME)))
        }
    }
}

/// What is wrong with an attempt, if anything is.
fn came_to(attempt: &Attempt) -> Option<String> {
    let number = attempt.number;
    if let Some((_, verdict)) = attempt.verdict.as_ref().filter(|(_, verdict)| !verdict.passed) {
        let unmet = verdict.criteria.iter().filter(|criterion| !criterion.met).map(|criterion| {
            let gap = criterion.gap.as_ref().map(|gap| format!(" ({gap})")).unwrap_or_default();
            format!("{}{gap}", criterion.criterion)
        });
        let unmet: Vec<String> = unmet.collect();
        let feedback = verdict.feedback.as_deref().unwrap_or(&verdict.reasoning);
        let text = format!("not met: {}; feedback: {feedback}", unmet.join("; "));
        return Some(format!("attempt {number} was rejected: {}", cut(&text, OUTCOME)));
    }
    match attempt.end.as_ref()? {
        AttemptEnd::Finished { .. } => None,
        AttemptEnd::Errored(error) => {
            Some(format!("attempt {number} failed: {}", cut(&error.message, OUTCOME)))
        }
        AttemptEnd::TimedOut(clock) => Some(format!("attempt {number} timed out: {clock}")),
    }
}

/// A text on one line, without its middle where it is long.
fn cut(text: &str, limit: usize) -> String {
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
