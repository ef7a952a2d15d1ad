//! Events, effects and plans in a few words, for golden texts.

use jiff::Timestamp;
use millrace_protocol::plan::{
    Amounts, Budget, Effect, ErroredFor, Event, Mode, Occasion, Plan, Review, Task, TaskState, Work,
};
use millrace_protocol::result::Usage;

use crate::cast;

pub fn event(event: &Event) -> String {
    match event {
        Event::RunStarted { mode: Mode::Fixed, .. } => "RunStarted with a plan".into(),
        Event::RunStarted { mode: Mode::Hybrid, .. } => "RunStarted with a plan that may grow".into(),
        Event::RunStarted { mode: Mode::Llm, .. } => "RunStarted without a plan".into(),
        Event::PlanningAsked { turn, attempt, feedback, occasions } => {
            let occasions: Vec<_> = occasions.iter().map(occasion).collect();
            let feedback = quoted(feedback.as_deref());
            format!("PlanningAsked turn {turn} #{attempt}{feedback}: {}", occasions.join("; "))
        }
        Event::OccasionRaised { occasion: raised } => format!("OccasionRaised {}", occasion(raised)),
        Event::PlanningClaimed { turn, attempt, worker } => {
            format!("PlanningClaimed turn {turn} #{attempt} by {worker}")
        }
        Event::ProposalAccepted { turn, attempt, refused, is_idle, .. } => {
            let idle = if *is_idle { ", idle" } else { "" };
            let refused = if refused.is_empty() { String::new() } else { format!(", refused {refused:?}") };
            format!("ProposalAccepted turn {turn} #{attempt}{idle}{refused}")
        }
        Event::PlanningErrored { turn, attempt, error, retry_at, usage, .. } => {
            let (again, used) = (again(*retry_at), used(usage));
            format!("PlanningErrored turn {turn} #{attempt} {error:?}{again}{used}")
        }
        Event::TaskAdded { spec, ready } => {
            format!("TaskAdded {}{}", spec.id, if *ready { ", ready" } else { "" })
        }
        Event::TaskReady { task, attempt } => format!("TaskReady {task}#{attempt}"),
        Event::CapabilityMissing { task, capability } => {
            format!("CapabilityMissing {task}, {capability}")
        }
        Event::TaskPending { task } => format!("TaskPending {task}"),
        Event::ParametersWrong { task, problem } => format!("ParametersWrong {task} {problem:?}"),
        Event::TaskPatched { spec, attempt: 0 } => format!("TaskPatched {}", spec.id),
        Event::TaskPatched { spec, attempt } => format!("TaskPatched {}#{attempt}", spec.id),
        Event::FinalMarked { task } => format!("FinalMarked {task}"),
        Event::TaskReopened { task, attempt, ready, feedback } => {
            let ready = if *ready { ", ready" } else { "" };
            format!("TaskReopened {task}#{attempt}{ready}{}", quoted(feedback.as_deref()))
        }
        Event::TaskInvalidated { task, attempt, usage } => {
            format!("TaskInvalidated {task}#{attempt}{}", used(usage))
        }
        Event::Reserved { work: of, amounts: reserved } => {
            format!("Reserved {} for {}", amounts(reserved), work(of))
        }
        Event::BudgetLow { detail } => format!("BudgetLow {detail:?}"),
        Event::WindingDown { reason, detail } => format!("WindingDown {reason} {detail:?}"),
        Event::Commanded { id, by, what } => format!("Commanded {id} by {by}: {what}"),
        Event::MessageReceived { by, text } => format!("MessageReceived by {by}: {text}"),
        Event::Paused => "Paused".into(),
        Event::Resumed { budget } if budget.is_default() => "Resumed".into(),
        Event::Resumed { budget } => format!("Resumed within {}", limits(budget)),
        Event::RunReopened => "RunReopened".into(),
        Event::RunRetired => "RunRetired".into(),
        Event::AttemptClaimed { task, attempt, worker } => {
            format!("AttemptClaimed {task}#{attempt} by {worker}")
        }
        Event::AttemptFinished { task, attempt, worker, review: asked, .. } => {
            let asked = asked.as_ref().map(|asked| format!(", {}", review(asked))).unwrap_or_default();
            format!("AttemptFinished {task}#{attempt} by {worker}{asked}")
        }
        Event::AttemptErrored { task, attempt, error, retry_at } => {
            format!("AttemptErrored {task}#{attempt} {:?}{}", error.message, again(*retry_at))
        }
        Event::AttemptTimedOut { task, attempt, clock, retry_at, usage } => {
            format!("AttemptTimedOut {task}#{attempt} {clock:?}{}{}", again(*retry_at), used(usage))
        }
        Event::ReviewErrored { task, attempt, review, error, retry_at, usage, .. } => {
            let (again, used) = (again(*retry_at), used(usage));
            format!("ReviewErrored {task}#{attempt} try {review} {error:?}{again}{used}")
        }
        Event::ReviewReady { task } => format!("ReviewReady {task}"),
        Event::VerdictGiven { task, attempt, critic, verdict } => {
            let verdict = if verdict.passed { "passed" } else { "rejected" };
            format!("VerdictGiven {task}#{attempt} {verdict} by {critic}")
        }
        Event::TaskAccepted { task, attempt } => format!("TaskAccepted {task}#{attempt}"),
        Event::TaskRerun { task, attempt } => format!("TaskRerun {task}#{attempt}"),
        Event::TaskFailed { task, reason } => format!("TaskFailed {task} {reason:?}"),
        Event::TaskCancelled { task, reason, usage, .. } => {
            format!("TaskCancelled {task} {reason:?}{}", used(usage))
        }
        Event::RunEnded { reason, detail, deliverable } => {
            let detail = if detail.is_empty() { String::new() } else { format!(" {detail:?}") };
            let deliverable = deliverable
                .as_ref()
                .map(|(task, rung)| format!(", the deliverable is of {task} ({rung:?})"))
                .unwrap_or_default();
            format!("RunEnded {reason}{detail}{deliverable}")
        }
    }
}

/// Why the planner is asked, in a word and what it is about.
fn occasion(occasion: &Occasion) -> String {
    match occasion {
        Occasion::NoPlan => "no plan".into(),
        Occasion::TaskLost { task } => format!("{task} lost"),
        Occasion::TaskStuck { task, problem } => format!("{task} stuck, {problem}"),
        Occasion::Accepted { task } => format!("{task} accepted"),
        Occasion::Standstill { report } => format!("standstill, {report}"),
        Occasion::Message { by, text } => format!("{by} says {text:?}"),
        Occasion::BudgetLow { detail } => format!("budget low, {detail}"),
        Occasion::Refused { reasons } => format!("refused {reasons:?}"),
        Occasion::FalseEnd { why } => format!("false end, {why}"),
    }
}

fn review(review: &Review) -> &'static str {
    match review {
        Review::None => "judged by nobody",
        Review::Checks { .. } => "judged by checks",
        Review::Critic { .. } => "judged by a critic",
    }
}

fn amounts(amounts: &Amounts) -> String {
    let all: Vec<_> = amounts.iter().map(|(dimension, amount)| dimension.say(amount)).collect();
    if all.is_empty() { "nothing in particular".into() } else { all.join(", ") }
}

fn limits(budget: &Budget) -> String {
    let time = budget.wall_time.map(|time| format!("{}s", time.as_secs()));
    let steps = budget.steps.map(|steps| format!("{steps} steps"));
    let own = budget.capabilities.iter().map(|(name, own)| format!("{} for {name}", amounts(own)));
    let all = (!budget.amounts.is_empty()).then(|| amounts(&budget.amounts));
    all.into_iter().chain(time).chain(steps).chain(own).collect::<Vec<_>>().join(", ")
}

/// What counts as used of work that was given up in somebody's hand.
fn used(usage: &Usage) -> String {
    let tokens = usage.input_tokens + usage.output_tokens;
    match usage.is_zero() {
        true => String::new(),
        false => format!(", {tokens} tokens and {} calls counted", usage.model_calls),
    }
}

fn quoted(text: Option<&str>) -> String {
    text.map(|text| format!(" {text:?}")).unwrap_or_default()
}

fn again(retry_at: Option<Timestamp>) -> String {
    retry_at.map(|at| format!(", again at {}", clock_time(at))).unwrap_or_default()
}

/// A time as seconds since the start.
fn clock_time(at: Timestamp) -> String {
    format!("{}s", at.duration_since(cast::start()).as_secs_f64())
}

pub fn work(work: &Work) -> String {
    match work {
        Work::Task { task, attempt } => format!("{task}#{attempt}"),
        Work::Review { task, attempt, review } => format!("review {review} of {task}#{attempt}"),
        Work::Planning { turn, attempt } => format!("planning turn {turn} #{attempt}"),
    }
}

pub fn effect(effect: &Effect) -> String {
    match effect {
        Effect::Offer(offered) => format!("offer {}", work(offered)),
        Effect::Withdraw(withdrawn, from)
            if from.as_str() == "echo"
                || matches!(withdrawn, Work::Review { .. } | Work::Planning { .. }) =>
        {
            format!("withdraw {}", work(withdrawn))
        }
        Effect::Withdraw(withdrawn, from) => format!("withdraw {} from {from}", work(withdrawn)),
        Effect::Close => "close".into(),
    }
}

fn task(task: &Task) -> String {
    let (id, attempt) = (&task.spec.id, task.attempt);
    match task.state {
        TaskState::Ready | TaskState::Rerun | TaskState::Running | TaskState::NeedsReview => {
            format!("{id}#{attempt} {}", task.state)
        }
        TaskState::Errored => match task.errored {
            Some(ErroredFor::Retry(at)) => format!("{id}#{attempt} errored until {}", clock_time(at)),
            Some(ErroredFor::Parameters) => format!("{id} errored, waits for parameters"),
            Some(ErroredFor::Capability) => format!("{id} errored, waits for {}", task.spec.capability),
            None => format!("{id} errored"),
        },
        TaskState::Pending | TaskState::Completed | TaskState::Failed | TaskState::Cancelled => {
            format!("{id} {}", task.state)
        }
    }
}

pub fn plan(plan: &Plan) -> String {
    plan.tasks().iter().map(task).collect::<Vec<_>>().join(", ")
}
