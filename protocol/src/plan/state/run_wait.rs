//! The current wait of a live run. It is derived from the plan and in no event.

use std::fmt;

use millrace_api_form::Named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::run::Plan;
use super::task::{ErroredTaskWait, Task, TaskPhase};
use super::turn::PlanningTurn;
use crate::ids::Capability;
use crate::plan::Work;
use crate::wait::WaitCondition;

/// The kind of a wait. Of several waits, the first in this order counts: a person or an operator can end it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Named,
)]
#[serde(rename_all = "snake_case")]
pub enum RunWaitKind {
    /// The answer of a person.
    Question,
    /// Other parameters of a task: no worker accepts those that it has.
    Parameters,
    /// The provider of a model, which does not respond.
    Provider,
    /// A worker with a free slot.
    Worker,
    /// An event that a user or a program signals.
    Event,
    /// A time, also that of the next attempt.
    Time,
    /// A delegated task, which is in progress.
    SubAgent,
}

/// `sub-agent`, `question`.
impl fmt::Display for RunWaitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().replace('_', "-"))
    }
}

/// The wait of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunWait {
    pub kind: RunWaitKind,
    /// Of a wait for a worker: the work, and the capability in whose queue it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<(Capability, Work)>,
}

/// The activity of a task or of the planner's turn.
enum Activity {
    /// It has ended, or waits for tasks of the plan.
    None,
    InProgress,
    Waits(RunWaitKind),
}

impl Activity {
    fn of_turn(turn: &PlanningTurn) -> Self {
        match (turn.uncounted.current_wait(), turn.retry_at, &turn.worker) {
            (Some(_), _, _) => Self::Waits(RunWaitKind::Provider),
            (None, Some(_), _) => Self::Waits(RunWaitKind::Time),
            (None, None, None) => Self::Waits(RunWaitKind::Worker),
            (None, None, Some(_)) => Self::InProgress,
        }
    }

    fn of_task(task: &Task) -> Self {
        let is_waiting_for_provider = task.uncounted.current_wait().is_some();
        match &task.phase {
            TaskPhase::Running | TaskPhase::NeedsReview { .. } if is_waiting_for_provider => {
                Self::Waits(RunWaitKind::Provider)
            }
            TaskPhase::Running | TaskPhase::NeedsReview { retry_at: None } => Self::InProgress,
            TaskPhase::NeedsReview { retry_at: Some(_) } => Self::Waits(RunWaitKind::Time),
            TaskPhase::Ready | TaskPhase::Rerun => Self::Waits(RunWaitKind::Worker),
            TaskPhase::Errored(Some(ErroredTaskWait::Retry(_))) => Self::Waits(RunWaitKind::Time),
            TaskPhase::Errored(Some(ErroredTaskWait::Capability { .. })) => Self::Waits(RunWaitKind::Worker),
            TaskPhase::Errored(Some(ErroredTaskWait::Parameters { .. })) => {
                Self::Waits(RunWaitKind::Parameters)
            }
            TaskPhase::Waiting { .. } => {
                let open = task.current_attempt().into_iter().flat_map(|attempt| attempt.open_waits());
                let kind = open.map(|wait| match wait.condition {
                    WaitCondition::Until(_) => RunWaitKind::Time,
                    WaitCondition::Event { .. } => RunWaitKind::Event,
                    WaitCondition::Answer(_) => RunWaitKind::Question,
                    WaitCondition::Tasks { .. } => RunWaitKind::SubAgent,
                });
                kind.min().map_or(Self::None, Self::Waits)
            }
            TaskPhase::Pending
            | TaskPhase::Errored(None)
            | TaskPhase::Completed
            | TaskPhase::Failed { .. }
            | TaskPhase::Cancelled { .. } => Self::None,
        }
    }
}

impl Plan {
    /// Returns the current wait with its description; `None` if a task is in progress, and for a run that is paused, held or ended.
    ///
    /// A run whose only tasks in progress are delegated ones waits for a sub-agent.
    pub fn current_wait(&self) -> Option<(RunWait, Option<String>)> {
        if !self.is_live() || self.run.paused.is_some() || self.is_held() {
            return None;
        }
        let turn = self.planning.turn.as_ref();
        let of_turn = turn.map(Activity::of_turn);
        let mut first: Option<(RunWaitKind, Option<&Task>)> = match of_turn {
            Some(Activity::InProgress) => return None,
            Some(Activity::Waits(kind)) => Some((kind, None)),
            Some(Activity::None) | None => None,
        };
        if self.needs_approval() && self.open_task_count() > 0 && turn.is_none() {
            let wait = RunWait { kind: RunWaitKind::Question, order: None };
            return Some((wait, Some("the plan waits for the approval of a person".into())));
        }
        let (mut has_delegated_work, mut parent) = (false, None);
        for task in self.tasks() {
            match Activity::of_task(task) {
                Activity::None => {}
                Activity::InProgress if task.spec.parent.is_none() => return None,
                Activity::InProgress => has_delegated_work = true,
                Activity::Waits(RunWaitKind::SubAgent) => parent = parent.or(Some(task)),
                Activity::Waits(kind) if first.is_none_or(|(before, _)| kind < before) => {
                    first = Some((kind, Some(task)));
                }
                Activity::Waits(_) => {}
            }
        }
        let sub_agent = parent.map(|task| (RunWaitKind::SubAgent, Some(task)));
        let (kind, task) = if has_delegated_work { sub_agent? } else { first.or(sub_agent)? };
        let is_queued = kind == RunWaitKind::Worker;
        let (work, text) = match task {
            Some(task) => (task.dispatched_work(), describe_task_wait(task)),
            None => (turn.map(PlanningTurn::work), turn.and_then(describe_turn_wait)),
        };
        let order = work.filter(|_| is_queued).and_then(|work| Some((self.queue_of_work(&work)?, work)));
        Some((RunWait { kind, order }, text))
    }
}

fn describe_task_wait(task: &Task) -> Option<String> {
    let wait = match task.uncounted.current_wait() {
        Some(wait) => format!("the provider of {}", wait.model),
        None => task.describe_wait()?,
    };
    Some(format!("{} waits for {wait}", task.spec.id))
}

/// Describes the wait of a planner's turn. A place in the queue has a text of its own.
fn describe_turn_wait(turn: &PlanningTurn) -> Option<String> {
    let wait = match (turn.uncounted.current_wait(), turn.retry_at) {
        (Some(wait), _) => format!("the provider of {}", wait.model),
        (None, Some(at)) => format!("the next attempt, at {}", at.strftime("%H:%M:%S")),
        (None, None) => return None,
    };
    Some(format!("the planner's turn {} waits for {wait}", turn.turn))
}
