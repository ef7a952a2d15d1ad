//! Renders the state of a run as lines of text: the run first, then its tasks. Pure.

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{
    Attempt, AttemptEnd, EndReason, ErroredTaskWait, PauseReason, Plan, PlanningTurn, Task, TaskSpec,
    TaskState,
};
use millrace_protocol::result::ErrorKind;
use millrace_protocol::safe_text::single_line;

use millrace_protocol::wait::ProviderWait;

use super::live::LiveModelOutput;
use super::{describe_requested_wait, format_clock, separate_thousands};
use crate::budget;
use crate::invocation::command_hint;
use crate::report::{describe_usage, describe_usage_by_role, resume_command_hint};
use millrace_views::wording::{describe_hold, describe_task_wait};

/// The number of columns by which a delegated task is indented below its parent.
const INDENTATION: usize = 2;
/// Maximum number of characters of streamed model output in a task line.
const LIVE_WIDTH: usize = 60;
/// Number of characters of a branch, a symbol and a state.
const STATE_WIDTH: usize = 20;
/// Minimum number of characters of a task's id.
const MIN_NAME: usize = 6;
/// Number of completed tasks from which on the final board shows their number only.
const MANY_COMPLETED: usize = 12;

/// Returns at most `height` lines of at most `width` characters. If not all tasks fit, running and failed ones are shown
/// first, then waiting ones, then completed ones.
pub fn render_board_lines(
    run: &RunId,
    plan: &Plan,
    live: &LiveModelOutput,
    now: Timestamp,
    width: usize,
    height: usize,
) -> Vec<String> {
    render_lines(run, plan, live, now, (width, height), false)
}

/// Returns the lines of a run, however many, while no cluster is running.
pub fn render_offline_board_lines(run: &RunId, plan: &Plan, now: Timestamp, width: usize) -> Vec<String> {
    render_lines(run, plan, &LiveModelOutput::default(), now, (width, usize::MAX), true)
}

fn render_lines(
    run: &RunId,
    plan: &Plan,
    live: &LiveModelOutput,
    now: Timestamp,
    (width, height): (usize, usize),
    is_offline: bool,
) -> Vec<String> {
    let mut lines = vec![render_headline(run, plan, now, is_offline)];
    let hold = describe_hold(plan, is_offline);
    // On a small terminal most lines are for tasks.
    lines.extend(
        render_run_lines(run, plan, now, hold).into_iter().take(height / 3).map(|line| format!("├─ {line}")),
    );
    if plan.tasks().is_empty()
        && let Some(last) = lines.last_mut().filter(|last| last.starts_with('├'))
    {
        last.replace_range(..'├'.len_utf8(), "└");
    }
    let available = height.saturating_sub(lines.len()).max(1);
    let tree = plan.tasks_as_tree();
    let shown = select_tasks_to_show(&tree, available);
    let hidden = plan.tasks().len() - shown.len();
    let longest = shown.iter().map(|(depth, task)| name_width(*depth, task)).max().unwrap_or(0);
    // The state is always shown, and half of the rest is for what the task does.
    let names = longest.min((width.saturating_sub(STATE_WIDTH) / 2).max(MIN_NAME));
    for (at, shown_task) in shown.iter().enumerate() {
        let is_last = at + 1 == shown.len() && hidden == 0;
        let branch = if is_last { "└─" } else { "├─" };
        lines.push(format!("{branch} {}", render_task_line(plan, *shown_task, live, names, now, hold)));
    }
    if hidden > 0 {
        lines.push(format!("└─ and {hidden} more"));
    }
    lines.into_iter().map(|line| truncate_line(line, width)).collect()
}

/// Returns the lines that stay on the screen when a run has ended or is no longer watched. Of many tasks, those that were
/// not completed and the deliverable are shown.
pub fn render_final_board_lines(
    run: &RunId,
    plan: &Plan,
    now: Timestamp,
    width: usize,
    height: usize,
) -> Vec<String> {
    let live = LiveModelOutput::default();
    let deliverable = plan.run.end.as_ref().and_then(|end| end.deliverable.as_ref()).map(|(task, _)| task);
    let is_shown = |task: &Task| {
        task.state() != TaskState::Completed || Some(&task.spec.id) == deliverable || task.spec.is_final
    };
    let tree = plan.tasks_as_tree();
    let hidden = tree.iter().filter(|(_, task)| !is_shown(task)).count();
    if hidden < MANY_COMPLETED {
        return render_board_lines(run, plan, &live, now, width, height);
    }
    let mut lines = vec![render_headline(run, plan, now, false)];
    let hold = describe_hold(plan, false);
    lines.extend(render_run_lines(run, plan, now, hold).into_iter().map(|line| format!("├─ {line}")));
    let shown: Vec<(usize, &Task)> = tree.into_iter().filter(|(_, task)| is_shown(task)).collect();
    let room = height.saturating_sub(lines.len() + 1).max(1);
    let names = shown.iter().take(room).map(|(depth, task)| name_width(*depth, task)).max().unwrap_or(0);
    for &task in shown.iter().take(room) {
        lines.push(format!("├─ {}", render_task_line(plan, task, &live, names, now, hold)));
    }
    let more = match shown.len().saturating_sub(room) {
        0 => String::new(),
        more => format!(" and {more} others"),
    };
    lines.push(format!("└─ and {hidden} completed tasks{more} (`{}`)", command_hint(&format!("show {run}"))));
    lines.into_iter().map(|line| truncate_line(line, width)).collect()
}

/// Returns the lines about the run as a whole, other than its headline.
fn render_run_lines(run: &RunId, plan: &Plan, now: Timestamp, hold: Option<&str>) -> Vec<String> {
    let is_live = plan.run.end.is_none();
    let planning = plan
        .planning
        .turn
        .as_ref()
        .filter(|_| is_live)
        .map(|planning| render_planner_line(planning, now, hold));
    let paused = plan.pause_reason().map(|reason| {
        let resume = command_hint(&format!("resume {run}"));
        match reason {
            PauseReason::Provider(wait) => format!(
                "paused: the provider of {} has not answered since {}; last error: {}",
                single_line(&wait.model),
                format_clock(wait.since),
                single_line(&wait.error)
            ),
            PauseReason::Interruption => format!("interrupted: nothing of it runs until `{resume}`"),
            PauseReason::User => format!("paused: no new tasks start until `{resume}`"),
        }
    });
    // In a line of its own, because long lines are cut.
    let advice = match plan.pause_reason() {
        Some(PauseReason::Provider(wait)) => {
            let resume = command_hint(&format!("resume {run}"));
            Some(format!("`{resume}` tries again at once{}", describe_requested_wait(wait, now)))
        }
        Some(PauseReason::Interruption | PauseReason::User) | None => None,
    };
    let winding = plan.run.winding_down.as_ref().filter(|_| is_live);
    let winding = winding.map(|(reason, detail)| format!("winding down ({reason}): {}", single_line(detail)));
    let budget =
        budget::describe_used_budget(plan, now).map(|used| format!("budget  {}", separate_thousands(&used)));
    let lost = plan.planning.lost.as_ref().filter(|_| is_live);
    let lost = lost.map(|why| format!("the planner is no longer called: {}", single_line(why)));
    let is_plain = plan.planning.fallback.is_some();
    let end = plan
        .run
        .end
        .as_ref()
        .filter(|end| !end.detail.is_empty() && (end.reason != EndReason::Completed || is_plain));
    let end = end.map(|end| format!("{}: {}", end.reason, single_line(&end.detail)));
    let more = resume_command_hint(run, plan).map(|how| format!("resume it: {how}"));
    [paused, advice, planning, winding, budget, describe_usage_by_role(plan), lost, end, more]
        .into_iter()
        .flatten()
        .collect()
}

fn render_planner_line(planning: &PlanningTurn, now: Timestamp, hold: Option<&str>) -> String {
    let age = format_age(now.duration_since(planning.since));
    let how = match (&planning.worker, planning.retry_at) {
        (_, Some(_)) => "waiting to retry".to_owned(),
        (Some(worker), None) => format!("on {worker}"),
        (None, None) => format!("waiting for {}", hold.unwrap_or("a planner")),
    };
    let attempt =
        if planning.attempt > 1 { format!(", attempt {}", planning.attempt) } else { String::new() };
    let why = planning.triggers.iter().map(|trigger| single_line(&trigger.to_string())).next();
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let more = match planning.triggers.len() {
        0 | 1 => String::new(),
        all => format!(" (and {} more)", all - 1),
    };
    let waits = planning.uncounted.current_wait().map(|wait| format!(", {}", describe_wait(wait, now)));
    let waits = waits.unwrap_or_default();
    format!("planner turn {}{attempt}, {how}, {age}{waits}{why}{more}", planning.turn)
}

/// Describes a wait for a provider: `waiting for openai:gpt-5.2 since 12:00:00, next try in 20 s, last error: …`.
fn describe_wait(wait: &ProviderWait, now: Timestamp) -> String {
    let next = wait.next_try.duration_since(now);
    let next = if next.is_positive() { format!("next try in {}", format_age(next)) } else { "trying".into() };
    let since = format_clock(wait.since);
    format!(
        "waiting for {} since {since}, {next}, last error: {}",
        single_line(&wait.model),
        single_line(&wait.error)
    )
}

fn render_headline(run: &RunId, plan: &Plan, now: Timestamp, is_offline: bool) -> String {
    let state = match (&plan.run.start, &plan.run.end) {
        (None, _) => "waiting for a supervisor".to_owned(),
        (Some(start), None) => {
            let state = match plan.pause_reason() {
                Some(PauseReason::Interruption) => "interrupted",
                Some(PauseReason::Provider(_) | PauseReason::User) => "paused",
                None if is_offline => "unfinished, no cluster is running",
                None if plan.is_held() => return render_held_headline(run, plan, now),
                None => "running",
            };
            let wait = plan.current_wait().filter(|_| !is_offline && plan.run.winding_down.is_none());
            let state = match wait {
                Some((wait, _)) => format!("waiting ({})", wait.kind),
                None => state.to_owned(),
            };
            format!("{state}, {}", format_age(now.duration_since(start.at)))
        }
        (Some(start), Some(end)) => {
            format!("{}, {}", end.reason, format_age(end.at.duration_since(start.at)))
        }
    };
    let waiting = count_tasks_waiting_for_workers(plan);
    let counts: Vec<String> = TaskState::ALL
        .iter()
        .map(|state| {
            let count = plan.task_count_in_state(*state);
            // A task that waits for a worker is shown as one that waits.
            let count = if *state == TaskState::Errored { count - waiting } else { count };
            let count = if *state == TaskState::Waiting { count + waiting } else { count };
            (count, state.as_str())
        })
        .filter(|(count, _)| *count > 0)
        .map(|(count, state)| format!("{count} {state}"))
        .collect();
    format!("run {run}  {state}  {}", counts.join(", ")).trim_end().to_owned()
}

/// The headline of a run that waits before its first task.
fn render_held_headline(run: &RunId, plan: &Plan, now: Timestamp) -> String {
    let since = plan.run.start.as_ref().map_or(now, |start| start.at);
    let hold = describe_hold(plan, false).unwrap_or_default();
    let session = plan.run.start.as_ref().and_then(|start| start.session.as_ref());
    let session = session.map(|session| format!(" {session}")).unwrap_or_default();
    format!("run {run}  waits for {hold}{session}, {}", format_age(now.duration_since(since)))
}

fn count_tasks_waiting_for_workers(plan: &Plan) -> u32 {
    if plan.task_count_in_state(TaskState::Errored) == 0 {
        return 0;
    }
    let waiting = plan.tasks().iter().filter(|task| is_waiting_for_workers(task)).count();
    u32::try_from(waiting).unwrap_or(u32::MAX)
}

/// Returns whether a task waits for a worker that provides its capability or accepts its parameters. In the log this is an
/// error of the task; it is shown as waiting, because nothing failed.
fn is_waiting_for_workers(task: &Task) -> bool {
    matches!(
        task.errored_wait(),
        Some(ErroredTaskWait::Capability { .. } | ErroredTaskWait::Parameters { .. })
    )
}

/// The number of columns that a task's name needs, with the indentation of a delegated task.
fn name_width(depth: usize, task: &Task) -> usize {
    INDENTATION * depth + task.spec.id.as_str().chars().count()
}

/// Selects the tasks to show, each with its depth, in the order of the tree.
fn select_tasks_to_show<'a>(tasks: &[(usize, &'a Task)], room: usize) -> Vec<(usize, &'a Task)> {
    if tasks.len() <= room {
        return tasks.to_vec();
    }
    let mut order: Vec<usize> = (0..tasks.len()).collect();
    order.sort_by_key(|&at| display_priority(tasks[at].1.state()));
    order.truncate(room.saturating_sub(1));
    order.sort_unstable();
    order.into_iter().map(|at| tasks[at]).collect()
}

fn display_priority(state: TaskState) -> u8 {
    match state {
        TaskState::Running | TaskState::NeedsReview | TaskState::Waiting => 0,
        TaskState::Errored | TaskState::Failed | TaskState::Rerun => 1,
        TaskState::Ready => 2,
        TaskState::Pending => 3,
        TaskState::Cancelled => 4,
        TaskState::Completed => 5,
    }
}

fn render_task_line(
    plan: &Plan,
    (depth, task): (usize, &Task),
    live: &LiveModelOutput,
    names: usize,
    now: Timestamp,
    hold: Option<&str>,
) -> String {
    let mut parts: Vec<String> = describe_delegation(&task.spec).into_iter().collect();
    // A task that never began was given back with its parameters refused.
    let is_refusal = |attempt: &Attempt| matches!(&attempt.end, Some(AttemptEnd::Errored(error)) if error.kind == ErrorKind::WrongParameters);
    if task.attempt > 1 && !task.attempts.iter().all(is_refusal) {
        parts.push(format!("attempt {} of {}", task.attempt, task.granted.max(task.attempt)));
    }
    if let Some(worker) = task.current_attempt().and_then(|attempt| attempt.worker.as_ref())
        && !task.state().is_terminal()
        && task.state() != TaskState::Waiting
    {
        parts.push(format!("on {}", shorten_worker(worker.as_str())));
    }
    if !task.state().is_terminal() && task.state() != TaskState::Pending {
        parts.push(format_age(now.duration_since(task.since)));
    }
    match task.uncounted.current_wait() {
        Some(wait) => parts.push(describe_wait(wait, now)),
        None => {
            parts.extend(
                live.last_output_of_task(task, LIVE_WIDTH).or_else(|| describe_task_remark(task, hold)),
            );
        }
    }
    if plan.children(task).next().is_some() {
        let usage = plan.usage_with_children(task);
        let used = describe_usage(&usage);
        parts.extend((!usage.is_zero()).then(|| format!("{used} with its delegated tasks")));
    }
    let indentation = " ".repeat(INDENTATION * depth);
    let room = names.saturating_sub(indentation.len()).max(1);
    let id = format!("{indentation}{}", shorten_middle(task.spec.id.as_str(), room));
    let state = if is_waiting_for_workers(task) { TaskState::Waiting } else { task.state() };
    let (symbol, state) = (state_symbol(state), state.as_str());
    format!("{symbol} {state:12}  {id:names$}  {}", parts.join(", ")).trim_end().to_owned()
}

/// Describes the conversation that a delegated task continues, and its overrides; `None` if it has neither.
fn describe_delegation(spec: &TaskSpec) -> Option<String> {
    let conversation = match (spec.fork.is_some(), spec.is_shared) {
        (true, _) => Some("a fork".to_owned()),
        (false, true) => Some("shared".to_owned()),
        (false, false) => None,
    };
    let overrides = spec.overrides.as_ref().map(|overrides| format!("with {overrides}"));
    let parts: Vec<String> = conversation.into_iter().chain(overrides).collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// Shortens the random part of a worker's id; `millrace show RUN TASK` has all of it.
fn shorten_worker(worker: &str) -> String {
    match worker.rsplit_once('-') {
        Some((role, id)) if id.len() == 12 && id.chars().all(|c| c.is_ascii_hexdigit()) => {
            format!("{role}-{}", &id[..4])
        }
        Some(_) | None => worker.to_owned(),
    }
}

/// Returns a remark on a task in addition to its state.
fn describe_task_remark(task: &Task, hold: Option<&str>) -> Option<String> {
    match task.state() {
        TaskState::Pending | TaskState::Waiting => {
            task.describe_wait().map(|wait| format!("waiting for {}", single_line(&wait)))
        }
        TaskState::Ready | TaskState::Rerun => {
            let wait = describe_task_wait(task, hold).map(|wait| format!("waiting for {wait}"));
            let feedback = task.collect_feedback().pop().filter(|_| !task.attempts.is_empty());
            let parts: Vec<String> =
                wait.into_iter().chain(feedback.map(|text| single_line(&text))).collect();
            Some(parts.join(": ")).filter(|text| !text.is_empty())
        }
        TaskState::Running | TaskState::NeedsReview => Some(single_line(&task.spec.objective)),
        TaskState::Completed => {
            let (attempt, _, summary) = task.accepted_result()?;
            let verdict = attempt.verdict().map_or("", |_| "passed: ");
            Some(format!("{verdict}{}", single_line(summary)))
        }
        TaskState::Errored => match task.errored_wait()? {
            ErroredTaskWait::Retry(_) => task.attempts.last().and_then(|last| match last.end.as_ref()? {
                millrace_protocol::plan::AttemptEnd::Errored(error) => {
                    Some(format!("will retry: {}", single_line(&error.message)))
                }
                millrace_protocol::plan::AttemptEnd::TimedOut(clock) => Some(format!("will retry: {clock}")),
                millrace_protocol::plan::AttemptEnd::Finished { .. } => None,
            }),
            ErroredTaskWait::Parameters { .. } | ErroredTaskWait::Capability { .. } => {
                describe_task_wait(task, hold).map(|wait| format!("waiting for {}", single_line(&wait)))
            }
        },
        TaskState::Failed | TaskState::Cancelled => task.end_reason().map(single_line),
    }
}

fn state_symbol(state: TaskState) -> char {
    match state {
        TaskState::Pending => '·',
        TaskState::Ready | TaskState::Rerun | TaskState::Waiting => '○',
        TaskState::Running => '●',
        TaskState::NeedsReview => '?',
        TaskState::Completed => '✓',
        TaskState::Errored => '!',
        TaskState::Failed => '✗',
        TaskState::Cancelled => '-',
    }
}

/// Returns a duration as a person writes it.
pub fn format_age(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Shortens a name to at most `room` characters, in its middle.
fn shorten_middle(name: &str, room: usize) -> String {
    let length = name.chars().count();
    if length <= room {
        return name.to_owned();
    }
    let (head, tail) = (room.saturating_sub(1).div_ceil(2), room.saturating_sub(1) / 2);
    name.chars().take(head).chain(['…']).chain(name.chars().skip(length - tail)).collect()
}

fn truncate_line(line: String, width: usize) -> String {
    if line.chars().count() <= width {
        return line;
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}
