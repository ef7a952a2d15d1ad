//! The state of a run as lines of text: the run first, then its tasks. Pure.

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{EndReason, ErroredFor, Plan, Planning, Task, TaskState};

use super::live::Live;
use crate::budget;
use crate::report::{how_to_go_on, spend};

/// How many characters are shown of what a model is just writing.
const LIVE: usize = 60;

/// The lines, none wider than `width` characters, at most `height` of them. Where not all tasks fit, those that say
/// most are kept: what is under way and what went wrong before what waits, and what is done last.
pub fn board(
    run: &RunId,
    plan: &Plan,
    live: &Live,
    now: Timestamp,
    width: usize,
    height: usize,
) -> Vec<String> {
    let mut lines = vec![headline(run, plan, now)];
    // On a low terminal most of the room is for the tasks.
    lines.extend(of_run(run, plan, now).into_iter().take(height / 3).map(|line| format!("├─ {line}")));
    if plan.tasks().is_empty()
        && let Some(last) = lines.last_mut().filter(|last| last.starts_with('├'))
    {
        last.replace_range(..'├'.len_utf8(), "└");
    }
    let room = height.saturating_sub(lines.len()).max(1);
    let shown = choose(plan.tasks(), room);
    let hidden = plan.tasks().len() - shown.len();
    let names = shown.iter().map(|task| task.spec.id.as_str().chars().count()).max().unwrap_or(0);
    for (at, task) in shown.iter().enumerate() {
        let is_last = at + 1 == shown.len() && hidden == 0;
        let branch = if is_last { "└─" } else { "├─" };
        lines.push(format!("{branch} {}", task_line(task, live, names, now)));
    }
    if hidden > 0 {
        lines.push(format!("└─ and {hidden} more"));
    }
    lines.into_iter().map(|line| cut(line, width)).collect()
}

/// What there is to say about a run beside its state and its tasks.
fn of_run(run: &RunId, plan: &Plan, now: Timestamp) -> Vec<String> {
    let is_live = plan.end.is_none();
    let planning = plan.planning.as_ref().filter(|_| is_live).map(|planning| planner(planning, now));
    let paused = plan
        .paused
        .filter(|_| is_live)
        .map(|_| format!("paused: nothing more is given out until `millrace resume {run}`"));
    let winding = plan.winding_down.as_ref().filter(|_| is_live);
    let winding =
        winding.map(|(reason, detail)| format!("comes to its end ({reason}): {}", one_line(detail)));
    let budget = budget::used(plan, now).map(|used| format!("budget  {used}"));
    let lost = plan.planner_lost.as_ref().filter(|_| is_live);
    let lost = lost.map(|why| format!("the planner is asked no more: {}", one_line(why)));
    let end = plan.end.as_ref().filter(|end| !end.detail.is_empty() && end.reason != EndReason::Completed);
    let end = end.map(|end| format!("{}: {}", end.reason, one_line(&end.detail)));
    let more = how_to_go_on(run, plan).map(|how| format!("go on with more: {how}"));
    [paused, planning, winding, budget, spend(plan), lost, end, more].into_iter().flatten().collect()
}

fn planner(planning: &Planning, now: Timestamp) -> String {
    let age = age(now.duration_since(planning.since));
    let how = match (&planning.worker, planning.retry_at) {
        (_, Some(_)) => "tries again".to_owned(),
        (Some(worker), None) => format!("on {worker}"),
        (None, None) => "waits for a planner".to_owned(),
    };
    let attempt =
        if planning.attempt > 1 { format!(", attempt {}", planning.attempt) } else { String::new() };
    let why = planning.occasions.iter().map(|occasion| one_line(&occasion.to_string())).next();
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let more = match planning.occasions.len() {
        0 | 1 => String::new(),
        all => format!(" (and {} more)", all - 1),
    };
    format!("planner turn {}{attempt}, {how}, {age}{why}{more}", planning.turn)
}

fn headline(run: &RunId, plan: &Plan, now: Timestamp) -> String {
    let state = match (&plan.start, &plan.end) {
        (None, _) => "waits for a supervisor".to_owned(),
        (Some(start), None) => {
            let state = if plan.paused.is_some() { "paused" } else { "running" };
            format!("{state}, {}", age(now.duration_since(start.at)))
        }
        (Some(start), Some(end)) => format!("{}, {}", end.reason, age(end.at.duration_since(start.at))),
    };
    let counts: Vec<String> = TaskState::ALL
        .iter()
        .filter(|state| plan.count(**state) > 0)
        .map(|state| format!("{} {state}", plan.count(*state)))
        .collect();
    format!("run {run}  {state}  {}", counts.join(", ")).trim_end().to_owned()
}

/// The tasks that are shown, in the order of the plan.
fn choose(tasks: &[Task], room: usize) -> Vec<&Task> {
    if tasks.len() <= room {
        return tasks.iter().collect();
    }
    let mut order: Vec<usize> = (0..tasks.len()).collect();
    order.sort_by_key(|&at| weight(tasks[at].state));
    order.truncate(room.saturating_sub(1));
    order.sort_unstable();
    order.into_iter().map(|at| &tasks[at]).collect()
}

fn weight(state: TaskState) -> u8 {
    match state {
        TaskState::Running | TaskState::NeedsReview => 0,
        TaskState::Errored | TaskState::Failed | TaskState::Rerun => 1,
        TaskState::Ready => 2,
        TaskState::Pending => 3,
        TaskState::Cancelled => 4,
        TaskState::Completed => 5,
    }
}

fn task_line(task: &Task, live: &Live, names: usize, now: Timestamp) -> String {
    let mut parts = Vec::new();
    if task.attempt > 1 {
        parts.push(format!("attempt {} of {}", task.attempt, task.granted.max(task.attempt)));
    }
    if let Some(worker) = task.current().and_then(|attempt| attempt.worker.as_ref())
        && !task.state.is_terminal()
    {
        parts.push(format!("on {worker}"));
    }
    if !task.state.is_terminal() && task.state != TaskState::Pending {
        parts.push(age(now.duration_since(task.since)));
    }
    parts.extend(live.of(task, LIVE).or_else(|| remark(task)));
    format!("{:names$}  {} {:12}  {}", task.spec.id, sign(task.state), task.state, parts.join(", "))
        .trim_end()
        .to_owned()
}

/// What there is to say about a task beside its state.
fn remark(task: &Task) -> Option<String> {
    match task.state {
        TaskState::Pending => Some(format!("waits for {} of {}", task.unmet, task.spec.depends_on.len())),
        TaskState::Ready if task.attempts.is_empty() => None,
        TaskState::Ready | TaskState::Rerun => task.feedback().pop(),
        TaskState::Running | TaskState::NeedsReview => Some(one_line(&task.spec.objective)),
        TaskState::Completed => {
            let (attempt, _, summary) = task.accepted()?;
            let verdict = attempt.verdict.as_ref().map_or("", |_| "passed: ");
            Some(format!("{verdict}{}", one_line(summary)))
        }
        TaskState::Errored => match task.errored? {
            ErroredFor::Retry(_) => task.attempts.last().and_then(|last| match last.end.as_ref()? {
                millrace_protocol::plan::AttemptEnd::Errored(error) => {
                    Some(format!("tries again: {}", one_line(&error.message)))
                }
                millrace_protocol::plan::AttemptEnd::TimedOut(clock) => Some(format!("tries again: {clock}")),
                millrace_protocol::plan::AttemptEnd::Finished { .. } => None,
            }),
            ErroredFor::Parameters => task.problem.as_deref().map(one_line),
            ErroredFor::Capability => Some(format!("no worker offers {:?}", task.spec.capability.as_str())),
        },
        TaskState::Failed | TaskState::Cancelled => task.reason.as_deref().map(one_line),
    }
}

fn sign(state: TaskState) -> char {
    match state {
        TaskState::Pending => '·',
        TaskState::Ready | TaskState::Rerun => '○',
        TaskState::Running => '●',
        TaskState::NeedsReview => '?',
        TaskState::Completed => '✓',
        TaskState::Errored => '!',
        TaskState::Failed => '✗',
        TaskState::Cancelled => '-',
    }
}

/// A text on one line, with white space folded and without anything that would steer a terminal.
pub fn one_line(text: &str) -> String {
    let words: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

fn age(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

fn cut(line: String, width: usize) -> String {
    if line.chars().count() <= width {
        return line;
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}
