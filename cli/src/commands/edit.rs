//! `millrace edit`: other words, parameters, dependencies, a review or limits for a task that waits.

use std::time::Duration;

use clap::Args;
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::{Control, Edit, Limits, OnFailedDependency, Patch, Plan, Review};
use millrace_protocol::result::Parameters;
use millrace_runtime::{Bus, duration};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::commands::submit::warn_of_unknown;
use crate::exit::{Exit, Stop};
use crate::plan_file;
use crate::steer::{Steering, refuse_unknown};

/// The arguments of `millrace edit`.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    steering: Steering,
    /// The task: one that no worker has taken yet
    task: TaskId,
    #[command(flatten)]
    changes: Changes,
    /// Make its result the deliverable, and no other's; a change of its own
    #[arg(long = "final", conflicts_with = "Changes")]
    is_final: bool,
}

/// What changes; the rest stays.
#[derive(Args, Debug)]
#[group(multiple = true)]
struct Changes {
    /// What is to be done
    #[arg(long, value_name = "TEXT")]
    objective: Option<String>,
    /// Who does it
    #[arg(long, value_name = "NAME")]
    capability: Option<Capability>,
    /// What it builds on, all of it, with commas between; an empty text is nothing
    #[arg(long, value_name = "TASKS", value_parser = tasks)]
    depends_on: Option<Dependencies>,
    /// A parameter that is set, with its value as JSON (what is none is taken as text); null takes it away. May be given
    /// several times
    #[arg(long = "param", value_name = "NAME=JSON", value_parser = parameter)]
    parameters: Vec<(String, Value)>,
    /// How its result is judged, as in a plan file: none, critic, {criteria: […]} and so on
    #[arg(long, value_name = "REVIEW", value_parser = review)]
    review: Option<Review>,
    /// How many attempts it has
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// How long an attempt may run, such as 15m
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    run_time: Option<Duration>,
    /// What happens to it when a task it depends on is lost: cancel, skip or ask
    #[arg(long, value_name = "POLICY", value_parser = plan_file::on_failed_dependency)]
    on_failed_dependency: Option<OnFailedDependency>,
}

/// Tasks with commas between.
#[derive(Debug, Clone)]
struct Dependencies(Vec<TaskId>);

fn tasks(text: &str) -> Result<Dependencies, String> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let tasks = names.map(|name| TaskId::new(name).map_err(|error| error.to_string()));
    tasks.collect::<Result<_, _>>().map(Dependencies)
}

fn parameter(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.into()));
            Ok((name.into(), value))
        }
        Some(_) | None => Err("expected NAME=JSON".into()),
    }
}

fn review(text: &str) -> Result<Review, String> {
    plan_file::review(text).map_err(|mistake| mistake.to_string())
}

/// Changes a task, and waits until it is decided.
pub async fn command(arguments: Arguments, interrupt: CancellationToken) -> Result<Exit, Stop> {
    let Arguments { steering, task, changes, is_final } = arguments;
    let make = async |bus: &Bus, plan: &Plan| {
        refuse_unknown(plan, &task)?;
        warn_of_unknown(bus, changes.capability.iter()).await?;
        Ok(Control::Edit(if is_final {
            Edit::MarkFinal { task }
        } else {
            Edit::Patch(changes.patch(task, plan))
        }))
    };
    steering.command(&interrupt, make).await
}

impl Changes {
    fn patch(self, task: TaskId, plan: &Plan) -> Patch {
        let limits = self.limits(plan.task(&task).map(|task| task.spec.limits.clone()).unwrap_or_default());
        Patch {
            objective: self.objective,
            capability: self.capability,
            depends_on: self.depends_on.map(|Dependencies(tasks)| tasks),
            parameters: self.parameters.into_iter().collect::<Parameters>(),
            review: self.review,
            limits,
            on_failed_dependency: self.on_failed_dependency,
            ..Patch::of(task)
        }
    }

    /// The limits as they are to be, where they change.
    fn limits(&self, old: Limits) -> Option<Limits> {
        (self.max_attempts.is_some() || self.run_time.is_some()).then(|| Limits {
            max_attempts: self.max_attempts.unwrap_or(old.max_attempts),
            run_time: self.run_time.unwrap_or(old.run_time),
            ..old
        })
    }
}
