//! The state of a run: what folding its decisions gives. Reading it is free; only [`super::apply`] writes it. Its JSON, as
//! `replay` and reports print it, is flat, whatever the structure in code.

mod attempt;
mod questions;
mod run;
mod run_wait;
mod task;
mod turn;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Serialize, Serializer};

use crate::ids::{Capability, TaskId, WorkerId};
use crate::plan::reserved::Reservations;
use crate::plan::spec::{ReviewPolicy, TaskSpec};
use crate::plan::{RunHold, Work};
use crate::result::{Build, Usage, Verdict};
use crate::wait::ProviderWait;

pub use attempt::{Attempt, AttemptClock, AttemptEnd, AttemptReview, AttemptWait};
pub use questions::{QuestionState, RunQuestion};
pub(in crate::plan) use run::PlanIndex;
pub use run::{
    BudgetState, DeliverableRule, EndReason, MAX_BLOCKED, PauseReason, Plan, PlanningState, RunEnd,
    RunParameters, RunState, UsageBreakdown,
};
pub use run_wait::{RunWait, RunWaitKind};
pub use task::{ErroredTaskWait, Task, TaskPhase, TaskState};
pub use turn::{MAX_NOTES, PlannerTrigger, PlanningTurn};

#[derive(Serialize)]
struct FlatPlan<'a> {
    start: &'a Option<RunParameters>,
    planning: &'a Option<PlanningTurn>,
    reasoning: &'a [String],
    spend: &'a UsageBreakdown,
    reserved: &'a Reservations,
    occasions: &'a [PlannerTrigger],
    turns: u32,
    idle_turns: u32,
    planner_lost: &'a Option<String>,
    planning_superseded: &'a Option<Work>,
    messages: &'a [(String, String)],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    plan_questions: &'a [AttemptWait],
    commands: &'a BTreeSet<String>,
    notes: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<RunHold>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_position: Option<u32>,
    paused: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_for_provider: Option<&'a ProviderWait>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_interrupted: bool,
    paused_for: SignedDuration,
    budget_is_low: bool,
    winding_down: &'a Option<(EndReason, String)>,
    end: &'a Option<RunEnd>,
    through: u64,
    tasks: &'a [Task],
}

impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { run, planning, budget, tasks, index: _, builds: _ } = self;
        FlatPlan {
            start: &run.start,
            planning: &planning.turn,
            reasoning: &planning.reasoning,
            spend: &budget.spend,
            reserved: &budget.reserved,
            occasions: &planning.triggers,
            turns: planning.turns,
            idle_turns: planning.idle_turns,
            planner_lost: &planning.lost,
            planning_superseded: &planning.superseded,
            messages: &run.messages,
            plan_questions: &run.plan_questions,
            commands: &run.commands,
            notes: &planning.notes,
            held: run.holds.first(),
            session_position: run.holds.position,
            paused: run.paused,
            paused_for_provider: run.paused_for_provider.as_ref(),
            is_interrupted: run.is_interrupted,
            paused_for: run.paused_for,
            budget_is_low: budget.is_low,
            winding_down: &run.winding_down,
            end: &run.end,
            through: run.through,
            tasks,
        }
        .serialize(serializer)
    }
}

#[derive(Serialize)]
struct FlatTask<'a> {
    spec: &'a TaskSpec,
    state: TaskState,
    since: Timestamp,
    attempt: u32,
    granted: u32,
    review: u32,
    #[serde(rename = "asked")]
    review_policy: &'a ReviewPolicy,
    review_at: Option<Timestamp>,
    unmet: u32,
    errored: Option<FlatErroredTaskWait>,
    is_out: bool,
    problem: Option<&'a str>,
    #[serde(rename = "told")]
    instructions: &'a [(u32, String)],
    superseded: &'a [(Work, Capability)],
    #[serde(rename = "lost_with")]
    cancelled_with_dependency: Option<&'a TaskId>,
    is_wound_down: bool,
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for_provider: Option<&'a ProviderWait>,
    attempts: &'a [Attempt],
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum FlatErroredTaskWait {
    Retry(Timestamp),
    Capability,
    Parameters,
}

impl From<&ErroredTaskWait> for FlatErroredTaskWait {
    fn from(errored: &ErroredTaskWait) -> Self {
        match errored {
            ErroredTaskWait::Retry(at) => Self::Retry(*at),
            ErroredTaskWait::Capability { .. } => Self::Capability,
            ErroredTaskWait::Parameters { .. } => Self::Parameters,
        }
    }
}

impl Serialize for Task {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        FlatTask {
            spec: &self.spec,
            state: self.state(),
            since: self.since,
            attempt: self.attempt,
            granted: self.granted,
            review: self.review_number(),
            review_policy: self.review_policy(),
            review_at: self.review_retry_at(),
            unmet: self.unmet,
            errored: self.errored_wait().map(FlatErroredTaskWait::from),
            is_out: matches!(self.errored_wait(), Some(ErroredTaskWait::Capability { is_dispatched: true })),
            problem: self.parameter_problem(),
            instructions: &self.instructions,
            superseded: &self.superseded,
            cancelled_with_dependency: self.cancelled_with_dependency(),
            is_wound_down: self.is_wound_down(),
            reason: self.end_reason(),
            waiting_for_provider: self.uncounted.current_wait(),
            attempts: &self.attempts,
        }
        .serialize(serializer)
    }
}

#[derive(Serialize)]
struct FlatAttempt<'a> {
    number: u32,
    worker: &'a Option<WorkerId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    build: Option<&'a Build>,
    claimed_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    end: &'a Option<AttemptEnd>,
    usage: Usage,
    verdict: Option<(&'a WorkerId, &'a Verdict)>,
    review_usage: Usage,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    waits: &'a [AttemptWait],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    refused_children: &'a [(TaskId, String)],
}

impl Serialize for Attempt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        FlatAttempt {
            number: self.number,
            worker: &self.worker,
            build: self.build.as_deref(),
            claimed_at: self.claimed_at,
            ended_at: self.ended_at,
            end: &self.end,
            usage: self.usage,
            verdict: self.verdict(),
            review_usage: self.review_usage(),
            waits: &self.waits,
            refused_children: &self.refused_children,
        }
        .serialize(serializer)
    }
}
