//! The state of a run, [`Plan`], and its parts: the run as a whole, planning, budget, and the index.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use foldhash::HashMap;
use jiff::{SignedDuration, Timestamp};
use millrace_api_form::Named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::attempt::AttemptWait;
use super::task::{Task, TaskState};
use super::turn::{PlannerTrigger, PlanningTurn};
use crate::ids::{Capability, SessionId, TaskId};
use crate::labels::Labels;
use crate::plan::Work;
use crate::plan::attendance::UncountedTime;
use crate::plan::budget::{
    Budget, DEFAULT_STEPS, DEFAULT_TOKENS_PER_TASK, ElapsedRunTime, ResourceAmounts, ResourceKind,
};
use crate::plan::hold::RunHolds;
use crate::plan::reserved::Reservations;
use crate::plan::spec::{DocumentSet, EarlierRun, PlannerConsultMode, PlanningMode};
use crate::question::StandingAnswer;
use crate::result::{Build, ModelUsage, Usage, VerificationPolicy};
use crate::wait::{ProviderWait, Signal};

/// The largest number of delegated tasks per task of the plan that count for the default limit of tokens.
const MAX_COUNTED_CHILDREN: usize = 8;
/// The largest number of waiting tasks that the report on a blocked plan names.
pub const MAX_BLOCKED: usize = 12;

/// The reason for the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Named)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The objective is achieved.
    Completed,
    /// There is a deliverable, but not all tasks were completed.
    CompletedPartial,
    /// There is no deliverable.
    Failed,
    /// A user cancelled it.
    Cancelled,
    /// Tasks are open and none of them can ever start.
    NoProgress,
    /// The planner failed.
    PlannerUnavailable,
    /// The budget is exhausted. The run can be resumed with a larger one.
    BudgetExhausted,
    /// The planner had all its turns. The run can be resumed with more.
    MaxSteps,
}

impl EndReason {
    /// `true` if a run that ended for this reason needs a larger budget to be resumed.
    #[must_use]
    pub fn needs_larger_budget(self) -> bool {
        match self {
            Self::BudgetExhausted | Self::MaxSteps => true,
            Self::Completed
            | Self::CompletedPartial
            | Self::Failed
            | Self::Cancelled
            | Self::NoProgress
            | Self::PlannerUnavailable => false,
        }
    }

    /// `true` if a run that ended for this reason can be resumed as it is: its failed work is dispatched anew.
    #[must_use]
    pub fn can_be_retried(self) -> bool {
        match self {
            Self::Failed | Self::NoProgress | Self::PlannerUnavailable => true,
            Self::Completed
            | Self::CompletedPartial
            | Self::Cancelled
            | Self::BudgetExhausted
            | Self::MaxSteps => false,
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The rule that chose the deliverable among the completed tasks: the first rule that matches a task, and the newest task
/// that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliverableRule {
    /// The task marked final.
    Final,
    /// A task whose result has text beyond its summary.
    Detailed,
    /// A task of the capability `producer`.
    Producer,
    /// Any completed task.
    Any,
}

/// Usage, broken down.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UsageBreakdown {
    /// The total.
    pub total: Usage,
    /// By planners.
    pub planner: Usage,
    /// By workers.
    pub workers: Usage,
    /// By critics.
    pub critics: Usage,
    /// By capability, `planner` and `critic` among them.
    pub by_capability: BTreeMap<Capability, Usage>,
    /// By model, as far as known.
    pub by_model: ModelUsage,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunEnd {
    pub reason: EndReason,
    /// Details for a person.
    pub detail: String,
    /// The deliverable's task, and the rule that chose it.
    pub deliverable: Option<(TaskId, DeliverableRule)>,
    /// The time.
    pub at: Timestamp,
    /// `true` if the run can be resumed.
    pub is_resumable: bool,
    /// `true` if a provider refused the run's requests for good: a wrong key, no credit, no such model.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_refused_by_provider: bool,
}

/// The state of a run: the fold of its decisions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// The run as a whole.
    pub run: RunState,
    /// The planner's turns.
    pub planning: PlanningState,
    /// Usage and reservations.
    pub budget: BudgetState,
    pub(in crate::plan) tasks: Vec<Task>,
    pub(in crate::plan) index: PlanIndex,
    /// The software of the claimants so far, each once.
    pub(in crate::plan) builds: Vec<Arc<Build>>,
}

/// The reason for which a run starts no tasks until it is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseReason<'a> {
    /// A provider did not answer within the run's provider timeout; its last wait.
    Provider(&'a ProviderWait),
    /// The run was interrupted.
    Interruption,
    /// A user paused it.
    User,
}

/// The state of the run as a whole.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunState {
    /// The parameters of the run; `None` before its first decision.
    pub start: Option<RunParameters>,
    /// The waits before the first task.
    pub holds: RunHolds,
    /// The messages of users to the planner, oldest first: the user, and the text.
    pub messages: Vec<(String, String)>,
    /// The events that were signalled to the run, oldest first.
    pub signals: Vec<Signal>,
    /// The number of questions so far, open and closed; each round counts.
    pub question_count: u32,
    /// The answers that also decide further calls, oldest first.
    pub standing_answers: Vec<StandingAnswer>,
    /// The questions about the approval of the plan, oldest first, each with its last round.
    pub plan_questions: Vec<AttemptWait>,
    /// The ids of the commands that were applied.
    pub commands: BTreeSet<String>,
    /// When the current pause began.
    pub paused: Option<Timestamp>,
    /// The provider for which the run was paused, if it was.
    pub paused_for_provider: Option<ProviderWait>,
    /// `true` if the run is paused because it was interrupted.
    pub is_interrupted: bool,
    /// The time spent in earlier pauses, and between an end and its reopening.
    pub paused_for: SignedDuration,
    /// Why the run is winding down, if it is.
    pub winding_down: Option<(EndReason, String)>,
    pub end: Option<RunEnd>,
    /// The sequence up to which every fact is answered.
    pub through: u64,
}

/// The state of the planner's turns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanningState {
    /// The current turn, if one is open.
    pub turn: Option<PlanningTurn>,
    /// The planner's reasons, turn by turn.
    pub reasoning: Vec<String>,
    /// The triggers of the next turn.
    pub triggers: Vec<PlannerTrigger>,
    /// The number of turns so far.
    pub turns: u32,
    /// The number of turns in a row that made no progress.
    pub idle_turns: u32,
    /// The number of turns in a row that only repeated what had failed.
    pub repeated_turns: u32,
    /// The reason for a plain plan that was made without the planner's model; `None` for the planner's own plan.
    pub fallback: Option<String>,
    /// The reason for which the planner is no longer consulted.
    pub lost: Option<String>,
    /// `true` if its provider refused the planner's requests for good.
    pub is_refused_by_provider: bool,
    /// The last attempt at a turn, if it was given up: its claimant must stop.
    pub superseded: Option<Work>,
    /// Notes for the next turn on the events since the last one; the newest are kept.
    pub notes: Vec<String>,
}

/// Usage and reservations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BudgetState {
    /// The usage of all work that has ended.
    pub spend: UsageBreakdown,
    /// The reservations of work in flight, in a run with a budget.
    pub reserved: Reservations,
    /// The amounts that the first request of work needs, by capability, where a reservation was too small.
    pub needs: BTreeMap<Capability, ResourceAmounts>,
    /// `true` if the low budget was reported.
    pub is_low: bool,
}

/// Data derived from the tasks, reservations and triggers, kept up to date by the fold.
/// [`Plan::with_recounted_index`] computes it from scratch. Tasks are named by their positions.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::plan) struct PlanIndex {
    /// The positions of the tasks.
    pub by_id: HashMap<TaskId, u32>,
    /// The number of tasks in each state.
    pub counts: [u32; TaskState::ALL.len()],
    /// The tasks that wait for their backoff, by its end.
    pub retries: BTreeSet<(Timestamp, u32)>,
    /// The tasks whose review waits for its backoff, by its end.
    pub reviews: BTreeSet<(Timestamp, u32)>,
    /// The tasks whose attempt is parked until a time, by the first such time.
    pub waits: BTreeSet<(Timestamp, u32)>,
    /// The triggers of the next turn, for lookup.
    pub raised: HashSet<PlannerTrigger>,
    /// The dependents of tasks that have not been added yet.
    pub unlinked: HashMap<TaskId, Vec<u32>>,
    /// The number of open tasks of each capability.
    pub open_by_capability: BTreeMap<Capability, u32>,
    /// The number of tasks with a budget of their own.
    pub budgeted: u32,
    /// The final task.
    pub final_at: Option<u32>,
    /// The tasks whose work waits for a reservation, by capability; reviews are under `None`. Children are in
    /// `waiting_children`.
    pub waiting: BTreeMap<Option<Capability>, BTreeSet<u32>>,
    /// The children whose work, or whose review, waits for a reservation: they never wait behind other tasks, because their
    /// parents hold what those wait for.
    pub waiting_children: BTreeSet<u32>,
    /// The number of children in each state.
    pub child_counts: [u32; TaskState::ALL.len()],
    /// The children of each task that has any, in the order of the plan.
    pub children: BTreeMap<u32, Vec<u32>>,
    /// The open children whose parent's attempt is not live: they are to be cancelled.
    pub orphans: BTreeSet<u32>,
    /// The tasks with an attempt that would be dispatched, although the conditions for its start have not been checked.
    pub unchecked_starts: BTreeSet<u32>,
    /// The parked tasks with a wait for children that is to end.
    pub children_ended: BTreeSet<u32>,
}

/// The parameters with which a run was started.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunParameters {
    /// The user's objective.
    pub objective: String,
    /// The author of the plan.
    pub mode: PlanningMode,
    /// The documents of the run.
    pub documents: Option<DocumentSet>,
    /// The default model of agents.
    pub model: Option<String>,
    /// The models of single capabilities.
    pub models: BTreeMap<Capability, String>,
    /// `true` if the first failed task ends the run.
    pub fail_fast: bool,
    pub budget: Budget,
    /// When the planner is consulted.
    pub consult: PlannerConsultMode,
    /// `true` if a person must approve the plan before its first task starts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub approve_plan: bool,
    /// The consequence of verdicts on statements; `None` is that of each capability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification: Option<VerificationPolicy>,
    /// The criteria for the deliverable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<String>,
    /// The runs that this run follows up on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<EarlierRun>,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The time of the start.
    pub at: Timestamp,
}

impl Plan {
    /// The tasks, in the order in which they were added.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    pub fn task(&self, id: &TaskId) -> Option<&Task> {
        self.task_position(id).map(|at| &self.tasks[at as usize])
    }

    /// The children of a task, in the order of the plan: those of all of its attempts.
    pub fn children<'a>(&'a self, task: &Task) -> impl Iterator<Item = &'a Task> + use<'a> {
        let children = self.task_position(&task.spec.id).and_then(|at| self.index.children.get(&at));
        children.into_iter().flatten().map(|&at| &self.tasks[at as usize])
    }

    /// The tasks with their depth, each followed by its children.
    pub fn tasks_as_tree(&self) -> Vec<(usize, &Task)> {
        // A child whose parent is not in the plan is shown like any other task.
        let is_root = |task: &&Task| self.parent(task).is_none();
        let mut open: Vec<(usize, &Task)> =
            self.tasks.iter().filter(is_root).rev().map(|task| (0, task)).collect();
        let mut all = Vec::with_capacity(self.tasks.len());
        while let Some((depth, task)) = open.pop() {
            all.push((depth, task));
            let children: Vec<&Task> = self.children(task).collect();
            open.extend(children.into_iter().rev().map(|child| (depth + 1, child)));
        }
        all
    }

    /// The parent of a task, if it is a child.
    pub fn parent(&self, task: &Task) -> Option<&Task> {
        self.task(&task.spec.parent.as_ref()?.task)
    }

    /// `true` if there is such a task and it is a child.
    pub fn is_child(&self, id: &TaskId) -> bool {
        self.task(id).is_some_and(|task| task.spec.is_child())
    }

    /// The usage of a task with that of its children and of theirs.
    pub fn usage_with_children(&self, task: &Task) -> Usage {
        let mut all = task.total_usage();
        self.children(task).for_each(|child| all.add(self.usage_with_children(child)));
        all
    }

    /// The number of tasks in a state that a planner or a user added.
    pub fn planned_task_count_in_state(&self, state: TaskState) -> u32 {
        self.index.counts[state as usize] - self.index.child_counts[state as usize]
    }

    /// The number of tasks that a planner or a user added.
    pub fn planned_task_count(&self) -> u32 {
        TaskState::ALL.iter().map(|&state| self.planned_task_count_in_state(state)).sum()
    }

    /// The ids of the tasks that depend on `task`.
    pub fn dependents<'a>(&'a self, task: &'a Task) -> impl Iterator<Item = &'a TaskId> + 'a {
        task.dependents.iter().map(|&at| &self.tasks[at as usize].spec.id)
    }

    /// The criteria for the deliverable that apply to the results of a task: all of them if it is the final task, or the only
    /// possible one in a plan without a planner, else none.
    pub fn criteria_of_task(&self, task: &Task) -> &[String] {
        let criteria = self.run.start.as_ref().map_or(&[][..], |start| start.criteria.as_slice());
        if criteria.is_empty() || task.spec.is_final || self.is_only_last_task(task) { criteria } else { &[] }
    }

    /// `true` if it is the only task on which no other depends, and neither a planner nor a user has marked one as final.
    fn is_only_last_task(&self, task: &Task) -> bool {
        let is_last = |task: &&Task| !task.spec.is_child() && task.dependents.is_empty();
        let mut last = self.tasks.iter().filter(is_last);
        !self.has_planner()
            && self.tasks.iter().all(|task| !task.spec.is_final)
            && last.next().is_some_and(|only| only.spec.id == task.spec.id)
            && last.next().is_none()
    }

    /// The number of tasks in a state.
    pub fn task_count_in_state(&self, state: TaskState) -> u32 {
        self.index.counts[state as usize]
    }

    /// The number of tasks that are not in a terminal state.
    pub fn open_task_count(&self) -> u32 {
        TaskState::ALL
            .iter()
            .filter(|state| !state.is_terminal())
            .map(|&state| self.task_count_in_state(state))
            .sum()
    }

    /// `true` if the run has ended and can be resumed.
    pub fn is_resumable(&self) -> bool {
        self.run.end.as_ref().is_some_and(|end| end.is_resumable)
    }

    /// `true` if the run has ended and a retry of a task, or more tasks, reopen it: it had a plan, and its budget was not the reason
    /// for its end.
    pub fn can_be_reopened(&self) -> bool {
        self.run.end.as_ref().is_some_and(|end| {
            let had_plan = !self.tasks.is_empty() || (end.is_resumable && end.reason.can_be_retried());
            had_plan && !end.reason.needs_larger_budget()
        })
    }

    /// `true` if this run consults the planner.
    pub fn has_planner(&self) -> bool {
        self.run.start.as_ref().is_some_and(|start| start.consult > PlannerConsultMode::Never)
    }

    /// The largest number of planner turns.
    pub fn max_planning_turns(&self) -> u32 {
        self.run.start.as_ref().and_then(|start| start.budget.steps).unwrap_or(DEFAULT_STEPS)
    }

    /// `true` if work needs a reservation before it is dispatched.
    pub fn needs_reservation(&self, work: &Work) -> bool {
        let Some(start) = &self.run.start else { return false };
        let of_task = || work.task().and_then(|task| self.task(task));
        start.budget.needs_reservations() || of_task().is_some_and(|task| !task.spec.budget.is_empty())
    }

    /// The final task: its result is the deliverable.
    pub fn final_task(&self) -> Option<&Task> {
        self.index.final_at.map(|at| &self.tasks[at as usize])
    }

    /// The number of tokens that a run may use whose planner makes the plan and whose user limits nothing that its calls
    /// use: [`DEFAULT_TOKENS_PER_TASK`] for each different task of its plan, at least two. `None` if that does not apply.
    pub fn default_token_limit(&self) -> Option<u64> {
        let start = self.run.start.as_ref()?;
        // A limit of a resource that no call has used so far stops nothing.
        let is_counted = |kind: ResourceKind| {
            kind.is_used_by_each_call() || kind.amount_used(&self.budget.spend.total) > 0
        };
        let is_limited = start.budget.amounts.iter().any(|(kind, _)| is_counted(kind));
        let applies = start.mode == PlanningMode::Llm && self.has_planner() && !is_limited;
        let limit = |tasks: usize| DEFAULT_TOKENS_PER_TASK.saturating_mul(tasks.max(2) as u64);
        if !applies {
            return None;
        }
        // Most runs stay far below the limit of their smallest number of tasks.
        let used = ResourceKind::Tokens.amount_used(&self.budget.spend.total);
        if used < limit(0) {
            return Some(limit(0));
        }
        let words = |text: &str| text.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>();
        let different = |is_child: bool| {
            let tasks = self.tasks.iter().filter(|task| task.spec.is_child() == is_child);
            let names = tasks.map(|task| (&task.spec.capability, words(&task.spec.objective)));
            names.collect::<HashSet<(&Capability, Vec<String>)>>().len()
        };
        // An agent that goes round in circles must not raise its own limit without end.
        let (planned, delegated) = (different(false), different(true));
        Some(limit(planned + delegated.min(planned.max(1) * MAX_COUNTED_CHILDREN)))
    }

    /// The run time until `now`, without pauses and without the time between an end and its reopening.
    pub fn worked_time(&self, now: Timestamp) -> SignedDuration {
        let Some(start) = self.run.start.as_ref().filter(|_| !self.is_held()) else {
            return SignedDuration::ZERO;
        };
        let until = self.run.paused.or(self.run.end.as_ref().map(|end| end.at)).unwrap_or(now);
        until.duration_since(start.at).saturating_sub(self.run.paused_for)
    }

    /// The part of the time limit that is used at `now`; `None` if there is no limit.
    pub(in crate::plan) fn elapsed_time(&self, now: Timestamp) -> Option<ElapsedRunTime> {
        self.run.start.as_ref()?.budget.elapsed_time(self.worked_time(now))
    }

    /// The wait for a provider for which the run is paused, or else the oldest current one; `None` after the end.
    pub fn oldest_provider_wait(&self) -> Option<&ProviderWait> {
        let current = || self.provider_waits().min_by_key(|wait| wait.since);
        self.run.paused_for_provider.as_ref().or_else(current).filter(|_| self.run.end.is_none())
    }

    /// The waits for providers, of the planner's turn and of each task or review.
    pub fn provider_waits(&self) -> impl Iterator<Item = &ProviderWait> {
        let turn = self.planning.turn.as_ref().map(|turn| &turn.uncounted);
        turn.into_iter()
            .chain(self.tasks.iter().map(|task| &task.uncounted))
            .filter_map(UncountedTime::current_wait)
    }

    /// Returns the reason for which the run starts no tasks until it is resumed; `None` if it is not paused, or has ended. A provider that does
    /// not answer stays the reason if the run's cluster has stopped since.
    pub fn pause_reason(&self) -> Option<PauseReason<'_>> {
        self.run.paused.filter(|_| self.run.end.is_none())?;
        Some(match &self.run.paused_for_provider {
            Some(wait) => PauseReason::Provider(wait),
            None if self.run.is_interrupted => PauseReason::Interruption,
            None => PauseReason::User,
        })
    }

    /// `true` if the run has started and not ended.
    pub fn is_live(&self) -> bool {
        self.run.start.is_some() && self.run.end.is_none()
    }

    /// `true` if the run is live and waits for its turn in its session, or for a place: nothing of it is dispatched.
    pub fn is_held(&self) -> bool {
        self.is_live() && self.run.holds.first().is_some()
    }

    /// When the run began to work: after its holds, if there were any; `None` before its first decision.
    pub fn began_at(&self) -> Option<Timestamp> {
        self.run.holds.ended.or(self.run.start.as_ref().map(|start| start.at))
    }

    /// `true` if the first failure ends the run and a task has failed.
    pub(in crate::plan) fn has_failed_fast(&self) -> bool {
        self.planned_task_count_in_state(TaskState::Failed) > 0
            && self.run.start.as_ref().is_some_and(|start| start.fail_fast)
    }

    /// `true` if any work needs a reservation.
    pub(in crate::plan) fn needs_any_reservation(&self) -> bool {
        self.index.budgeted > 0
            || self.run.start.as_ref().is_some_and(|start| start.budget.needs_reservations())
    }

    pub(in crate::plan) fn task_position(&self, id: &TaskId) -> Option<u32> {
        self.index.by_id.get(id).copied()
    }
}
