//! Events, effects and plans in a few words, for golden texts.

use std::fmt::Debug;

use jiff::Timestamp;
use millrace_protocol::plan::{
    AttemptEvent, Budget, BudgetEvent, Effect, ErroredTaskWait, Event, GraphEvent, Plan, PlannerTrigger,
    PlanningEvent, PlanningMode, ProviderEvent, ResourceAmounts, ReviewEvent, ReviewPolicy, RunEvent, Task,
    TaskEvent, TaskState, UserEvent, Work,
};
use millrace_protocol::result::Usage;
use serde::Serialize;
use serde_json::Value;

use crate::cast;

/// An event: its name on the wire, the work or task it concerns, and its details.
pub fn format_event(event: &Event) -> String {
    match event {
        Event::Run(event) => format_run_event(event),
        Event::User(event) => format_user_event(event),
        Event::Planning(event) => format_planning_event(event),
        Event::Graph(event) => format_graph_event(event),
        Event::Task(event) => format_task_event(event),
        Event::Attempt(event) => format_attempt_event(event),
        Event::Review(event) => format_review_event(event),
        Event::Budget(BudgetEvent::Reserved { work: of, amounts: reserved }) => {
            format!("Reserved {} for {}", format_amounts(reserved), format_work(of))
        }
        Event::Budget(BudgetEvent::TooSmall { journal, needs }) => {
            format!("ReservationTooSmall {journal}, needs {}", format_amounts(needs))
        }
        Event::Budget(event) => format_variant_name(event, ""),
        Event::Provider(event) => provider_event(event),
    }
}

fn provider_event(event: &ProviderEvent) -> String {
    let details = if let ProviderEvent::Awaited { wait, .. } | ProviderEvent::GivenUp { wait, .. } = event {
        format!(" {:?}", wait.error)
    } else {
        String::new()
    };
    format_variant_name(event, &format!(" {}{details}", event.journal()))
}

/// The name of an event on the wire, with details; without any, with the event's own detail text.
fn format_variant_name(event: &(impl Serialize + Debug), details: &str) -> String {
    let json = serde_json::to_value(event).unwrap();
    let (name, fields) = match json.as_object().and_then(|variant| variant.iter().next()) {
        Some((name, fields)) => (name.as_str(), fields),
        None => (json.as_str().unwrap(), &Value::Null),
    };
    match fields["detail"].as_str() {
        Some(detail) if details.is_empty() => format!("{name} {detail:?}"),
        Some(_) | None => format!("{name}{details}"),
    }
}

fn format_run_event(event: &RunEvent) -> String {
    let details = if let RunEvent::Started { mode, .. } = event {
        match mode {
            PlanningMode::Fixed => " with a plan".into(),
            PlanningMode::Hybrid => " with a plan that may grow".into(),
            PlanningMode::Llm => " without a plan".into(),
        }
    } else if let RunEvent::Resumed { budget } = event {
        if budget.is_default() { String::new() } else { format!(" within {}", format_budget_limits(budget)) }
    } else if let RunEvent::WindingDown { reason, detail } = event {
        format!(" {reason} {detail:?}")
    } else if let RunEvent::Ended { reason, detail, deliverable, is_resumable } = event {
        let detail = if detail.is_empty() { String::new() } else { format!(" {detail:?}") };
        let deliverable = deliverable
            .as_ref()
            .map(|(task, rung)| format!(", the deliverable is of {task} ({rung:?})"))
            .unwrap_or_default();
        let resumable = if *is_resumable { ", resumable" } else { "" };
        format!(" {reason}{detail}{deliverable}{resumable}")
    } else {
        String::new()
    };
    format_variant_name(event, &details)
}

fn format_user_event(event: &UserEvent) -> String {
    match event {
        UserEvent::Commanded { id, by, what } => {
            format_variant_name(event, &format!(" {id} by {by}: {what}"))
        }
        UserEvent::Signalled(signal) => {
            format_variant_name(event, &format!(" {:?} by {}", signal.name, signal.by))
        }
        UserEvent::StandingAnswerGiven(given) => {
            let of = given.digest.as_deref().unwrap_or("every call");
            format_variant_name(
                event,
                &format!(" {} {} ({of}) by {}: {}", given.capability, given.tool, given.by, given.answer),
            )
        }
        UserEvent::MessageReceived { by, text } => format_variant_name(event, &format!(" by {by}: {text}")),
    }
}

fn format_planning_event(event: &PlanningEvent) -> String {
    let details = if let PlanningEvent::Requested { turn, attempt, feedback, triggers } = event {
        let triggers: Vec<_> = triggers.iter().map(format_trigger).collect();
        format!(" turn {turn} #{attempt}{}: {}", format_quoted(feedback.as_deref()), triggers.join("; "))
    } else if let PlanningEvent::TriggerRaised { trigger: raised } = event {
        format!(" {}", format_trigger(raised))
    } else if let PlanningEvent::Claimed { turn, attempt, worker } = event {
        format!(" turn {turn} #{attempt} by {worker}")
    } else if let PlanningEvent::ProposalAccepted { turn, attempt, refused, is_idle, is_repetition, .. } =
        event
    {
        let idle = match (is_idle, is_repetition) {
            (true, _) => ", idle",
            (false, true) => ", repeated",
            (false, false) => "",
        };
        let refused = if refused.is_empty() { String::new() } else { format!(", refused {refused:?}") };
        format!(" turn {turn} #{attempt}{idle}{refused}")
    } else if let PlanningEvent::Errored { turn, attempt, error, retry_at, usage, .. } = event {
        format!(" turn {turn} #{attempt} {error:?}{}{}", format_retry_time(*retry_at), format_usage(usage))
    } else {
        String::new()
    };
    format_variant_name(event, &details)
}

fn format_graph_event(event: &GraphEvent) -> String {
    let details = if let GraphEvent::TaskAdded { ready: true, .. } = event {
        ", ready".into()
    } else if let GraphEvent::TaskPatched { attempt: attempt @ 1.., .. } = event {
        format!("#{attempt}")
    } else {
        String::new()
    };
    format_variant_name(event, &format!(" {}{details}", event.task()))
}

fn format_task_event(event: &TaskEvent) -> String {
    let details = if let TaskEvent::CapabilityMissing { capability, .. } = event {
        format!(", {capability}")
    } else if let TaskEvent::ParametersRejected { problem, .. } = event {
        format!(" {problem:?}")
    } else if let TaskEvent::Ready { attempt, .. }
    | TaskEvent::Accepted { attempt, .. }
    | TaskEvent::Rerun { attempt, .. } = event
    {
        format!("#{attempt}")
    } else if let TaskEvent::Reopened { attempt, ready, feedback, .. } = event {
        let ready = if *ready { ", ready" } else { "" };
        format!("#{attempt}{ready}{}", format_quoted(feedback.as_deref()))
    } else if let TaskEvent::Invalidated { attempt, usage, .. } = event {
        format!("#{attempt}{}", format_usage(usage))
    } else if let TaskEvent::Failed { reason, .. } = event {
        format!(" {reason:?}")
    } else if let TaskEvent::Cancelled { reason, usage, .. } = event {
        format!(" {reason:?}{}", format_usage(usage))
    } else {
        String::new()
    };
    format_variant_name(event, &format!(" {}{details}", event.task()))
}

fn format_attempt_event(event: &AttemptEvent) -> String {
    let details = if let AttemptEvent::Claimed { attempt, worker, .. } = event {
        format!("#{attempt} by {worker}")
    } else if let AttemptEvent::Finished { attempt, worker, review: required, .. } = event {
        let required = required
            .as_ref()
            .map(|required| format!(", {}", format_review_policy(required)))
            .unwrap_or_default();
        format!("#{attempt} by {worker}{required}")
    } else if let AttemptEvent::Errored { attempt, error, retry_at, .. } = event {
        format!("#{attempt} {:?}{}", error.message, format_retry_time(*retry_at))
    } else if let AttemptEvent::TimedOut { attempt, clock, retry_at, usage, .. } = event {
        format!("#{attempt} {clock:?}{}{}", format_retry_time(*retry_at), format_usage(usage))
    } else {
        String::new()
    };
    format_variant_name(event, &format!(" {}{details}", event.task()))
}

fn format_review_event(event: &ReviewEvent) -> String {
    let details = if let ReviewEvent::Errored { attempt, review, error, retry_at, usage, .. } = event {
        format!("#{attempt} try {review} {error:?}{}{}", format_retry_time(*retry_at), format_usage(usage))
    } else if let ReviewEvent::VerdictGiven { attempt, critic, verdict, .. } = event {
        let outcome = if verdict.passed { "passed" } else { "rejected" };
        format!("#{attempt} {outcome} by {critic}")
    } else {
        String::new()
    };
    format_variant_name(event, &format!(" {}{details}", event.task()))
}

/// A trigger of the planner's turn in a few words.
fn format_trigger(trigger: &PlannerTrigger) -> String {
    match trigger {
        PlannerTrigger::NoPlan => "no plan".into(),
        PlannerTrigger::TaskLost { task } => format!("{task} lost"),
        PlannerTrigger::TaskStuck { task, problem } => format!("{task} stuck, {problem}"),
        PlannerTrigger::Accepted { task } => format!("{task} accepted"),
        PlannerTrigger::Standstill { report } => format!("standstill, {report}"),
        PlannerTrigger::Message { by, text } => format!("{by} says {text:?}"),
        PlannerTrigger::BudgetLow { detail } => format!("budget low, {detail}"),
        PlannerTrigger::Refused { reasons } => format!("refused {reasons:?}"),
        PlannerTrigger::FalseEnd { why } => format!("false end, {why}"),
    }
}

fn format_review_policy(review: &ReviewPolicy) -> &'static str {
    match review {
        ReviewPolicy::None => "judged by nobody",
        ReviewPolicy::Checks { .. } => "judged by checks",
        ReviewPolicy::Critic { .. } => "judged by a critic",
        ReviewPolicy::Persons(_) => "judged by persons",
    }
}

fn format_amounts(amounts: &ResourceAmounts) -> String {
    let all: Vec<_> = amounts.iter().map(|(dimension, amount)| dimension.format_amount(amount)).collect();
    if all.is_empty() { "nothing in particular".into() } else { all.join(", ") }
}

fn format_budget_limits(budget: &Budget) -> String {
    let time = budget.wall_time.map(|time| format!("{}s", time.as_secs()));
    let steps = budget.steps.map(|steps| format!("{steps} steps"));
    let own = budget.capabilities.iter().map(|(name, own)| format!("{} for {name}", format_amounts(own)));
    let all = (!budget.amounts.is_empty()).then(|| format_amounts(&budget.amounts));
    all.into_iter().chain(time).chain(steps).chain(own).collect::<Vec<_>>().join(", ")
}

/// The usage counted for work in flight that was given up.
fn format_usage(usage: &Usage) -> String {
    let tokens = usage.input_tokens + usage.output_tokens;
    match usage.is_zero() {
        true => String::new(),
        false => format!(", {tokens} tokens and {} calls counted", usage.model_calls),
    }
}

fn format_quoted(text: Option<&str>) -> String {
    text.map(|text| format!(" {text:?}")).unwrap_or_default()
}

fn format_retry_time(retry_at: Option<Timestamp>) -> String {
    retry_at.map(|at| format!(", again at {}", format_clock_time(at))).unwrap_or_default()
}

/// A time as seconds since the start.
fn format_clock_time(at: Timestamp) -> String {
    format!("{}s", at.duration_since(cast::test_start_time()).as_secs_f64())
}

pub fn format_work(work: &Work) -> String {
    match work {
        Work::Task { task, attempt } => format!("{task}#{attempt}"),
        Work::Review { task, attempt, review } => format!("review {review} of {task}#{attempt}"),
        Work::Planning { turn, attempt } => format!("planning turn {turn} #{attempt}"),
    }
}

pub fn format_effect(effect: &Effect) -> String {
    match effect {
        Effect::Offer(offered) => format!("offer {}", format_work(offered)),
        Effect::Withdraw(withdrawn, from)
            if from.as_str() == "echo"
                || matches!(withdrawn, Work::Review { .. } | Work::Planning { .. }) =>
        {
            format!("withdraw {}", format_work(withdrawn))
        }
        Effect::Withdraw(withdrawn, from) => format!("withdraw {} from {from}", format_work(withdrawn)),
        Effect::Close => "close".into(),
    }
}

fn format_task(task: &Task) -> String {
    let (id, attempt) = (&task.spec.id, task.attempt);
    match task.state() {
        TaskState::Ready
        | TaskState::Rerun
        | TaskState::Running
        | TaskState::Waiting
        | TaskState::NeedsReview => {
            format!("{id}#{attempt} {}", task.state())
        }
        TaskState::Errored => match task.errored_wait() {
            Some(ErroredTaskWait::Retry(at)) => {
                format!("{id}#{attempt} errored until {}", format_clock_time(*at))
            }
            Some(ErroredTaskWait::Parameters { .. }) => format!("{id} errored, waits for parameters"),
            Some(ErroredTaskWait::Capability { .. }) => {
                format!("{id} errored, waits for {}", task.spec.capability)
            }
            None => format!("{id} errored"),
        },
        TaskState::Pending | TaskState::Completed | TaskState::Failed | TaskState::Cancelled => {
            format!("{id} {}", task.state())
        }
    }
}

pub fn format_plan(plan: &Plan) -> String {
    plan.tasks().iter().map(format_task).collect::<Vec<_>>().join(", ")
}
