//! What was decided, as a line for a person, and the history of a run in such lines. Pure.

use millrace_protocol::plan::{Event, Work};

use super::board::one_line;
use crate::story::Story;

/// The line for an event.
pub fn line(event: &Event) -> String {
    match event {
        Event::RunStarted { .. } => "run started".to_owned(),
        Event::PlanningAsked { turn, attempt: 1, occasions, .. } => {
            let why: Vec<String> = occasions.iter().map(|occasion| one_line(&occasion.to_string())).collect();
            format!("planner asked, turn {turn}: {}", why.join(" "))
        }
        Event::PlanningAsked { turn, attempt, .. } => {
            format!("planner asked again, turn {turn}, attempt {attempt}")
        }
        Event::PlanningClaimed { turn, worker, .. } => format!("planner turn {turn} on {worker}"),
        Event::ProposalAccepted { turn, reasoning, refused, is_idle, .. } => {
            let idle = if *is_idle { "; it brought the run nowhere" } else { "" };
            let refused: String =
                refused.iter().map(|why| format!("; not carried out: {}", one_line(why))).collect();
            format!("planner turn {turn} over: {}{idle}{refused}", one_line(reasoning))
        }
        Event::PlanningErrored { turn, attempt, error, retry_at, .. } => {
            let then = if retry_at.is_some() { "; tries again" } else { "; it is asked no more" };
            format!("planner turn {turn}, attempt {attempt} failed: {}{then}", one_line(error))
        }
        Event::TaskAdded { spec, .. } => {
            format!("{} added ({}): {}", spec.id, spec.capability, one_line(&spec.objective))
        }
        Event::TaskReady { task, attempt } => format!("{task} ready, attempt {attempt}"),
        Event::CapabilityMissing { task, capability } => {
            format!("{task} waits: no worker offers {:?}", capability.as_str())
        }
        Event::AttemptClaimed { task, attempt, worker } => {
            format!("{task} running, attempt {attempt} on {worker}")
        }
        Event::AttemptFinished { task, summary, .. } => format!("{task} finished: {}", one_line(summary)),
        Event::AttemptErrored { task, attempt, error, retry_at } => {
            let then = if retry_at.is_some() { "; tries again" } else { "" };
            format!("{task} attempt {attempt} failed: {}{then}", one_line(&error.message))
        }
        Event::AttemptTimedOut { task, attempt, clock, retry_at, .. } => {
            let then = if retry_at.is_some() { "; tries again" } else { "" };
            format!("{task} attempt {attempt} timed out: {clock}{then}")
        }
        Event::ReviewErrored { task, error, .. } => {
            format!("{task} could not be judged: {}", one_line(error))
        }
        Event::VerdictGiven { task, critic, verdict, .. } => {
            let verdict_text = if verdict.passed { "passed" } else { "rejected" };
            format!("{task} {verdict_text} by {critic}: {}", one_line(&verdict.reasoning))
        }
        Event::TaskAccepted { task, .. } => format!("{task} completed"),
        Event::TaskRerun { task, attempt } => format!("{task} runs again, attempt {attempt}"),
        Event::TaskFailed { task, reason } => format!("{task} failed: {}", one_line(reason)),
        Event::TaskCancelled { task, reason, .. } => format!("{task} cancelled: {}", one_line(reason)),
        Event::RunEnded { reason, detail, .. } if detail.is_empty() => format!("run {reason}"),
        Event::RunEnded { reason, detail, .. } => format!("run {reason}: {}", one_line(detail)),
        Event::ParametersWrong { task, problem } => format!("{task} waits: {}", one_line(problem)),
        Event::OccasionRaised { occasion } => {
            format!("the planner is to be asked: {}", one_line(&occasion.to_string()))
        }
        Event::TaskPatched { spec, .. } => format!("{} changed: {}", spec.id, one_line(&spec.objective)),
        Event::FinalMarked { task } => format!("{task} is the final task"),
        Event::TaskReopened { task, attempt, .. } => format!("{task} opened again, attempt {attempt}"),
        Event::TaskInvalidated { task, .. } => format!("{task} is to be done again with what it builds on"),
        Event::Reserved { work, amounts } => {
            let amounts: Vec<String> =
                amounts.iter().map(|(dimension, amount)| dimension.say(amount)).collect();
            let what = match work {
                Work::Planning { .. } => "the planner".to_owned(),
                Work::Task { task, .. } => task.to_string(),
                Work::Review { task, .. } => format!("the review of {task}"),
            };
            let amounts = if amounts.is_empty() { "what it needs".into() } else { amounts.join(", ") };
            format!("{what} may use {amounts}")
        }
        Event::ReviewReady { task } => format!("{task} is judged again"),
        Event::BudgetLow { detail } => format!("the budget comes to its end: {detail}"),
        Event::WindingDown { reason, detail } => format!("winding down ({reason}): {}", one_line(detail)),
        Event::Commanded { by, what, .. } => format!("{by}: {}", one_line(what)),
        Event::MessageReceived { by, text } => format!("{by} tells the planner: {}", one_line(text)),
        Event::Paused => "paused".into(),
        Event::Resumed { budget } if budget.is_default() => "resumed".into(),
        Event::Resumed { budget } => {
            let amounts: Vec<String> =
                budget.amounts.iter().map(|(dimension, amount)| dimension.say(amount)).collect();
            format!(
                "resumed; it may use {}",
                if amounts.is_empty() { "more".into() } else { amounts.join(", ") }
            )
        }
        Event::RunReopened => "run goes on".into(),
        Event::RunRetired => "run can't be gone on with any more".into(),
        Event::TaskPending { task } => format!("{task} waits for what it depends on"),
    }
}

/// Whether whoever follows a run wants to read it: that something was set aside is said for each piece of work.
pub fn is_news(event: &Event) -> bool {
    !matches!(event, Event::Reserved { .. })
}

/// What the state of a run does not show of how it came to it: the planner's turns, what users commanded and said.
pub fn history(story: &Story) -> Vec<String> {
    let turns = story.turns.iter().map(|turn| {
        let outcome = match (&turn.reasoning, turn.ended_at) {
            (Some(reasoning), _) => one_line(reasoning),
            (None, Some(_)) => "it came to nothing".into(),
            (None, None) => "under way".into(),
        };
        let idle = if turn.is_idle { " (it brought the run nowhere)" } else { "" };
        let refused: String =
            turn.refused.iter().map(|why| format!("; not carried out: {}", one_line(why))).collect();
        let why: Vec<String> = turn.occasions.iter().map(|why| one_line(why)).collect();
        (turn.asked_at, format!("planner turn {}: {} → {outcome}{idle}{refused}", turn.turn, why.join(" ")))
    });
    let commands =
        story.commands.iter().map(|one| (one.at, format!("{}: {}", one_line(&one.by), one_line(&one.what))));
    let messages = story
        .messages
        .iter()
        .map(|one| (one.at, format!("{} to the planner: {}", one_line(&one.by), one_line(&one.text))));
    let mut all: Vec<_> = turns.chain(commands).chain(messages).collect();
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(at, line)| format!("{}  {line}", at.strftime("%H:%M:%S"))).collect()
}
