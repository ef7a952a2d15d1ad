//! The fold: how events change the state of a run. There are no rules here; an event that names what does not exist
//! is passed over, and a number that nobody reaches stops at the largest, so that no log can make the fold fail.
//!
//! | file | what changes |
//! |---|---|
//! | `run` | pauses, the end, and going on after it |
//! | `turn` | the planner's turn, and what it is told |
//! | `graph` | the tasks, and what they depend on |
//! | `moves` | the states of tasks |
//! | `attempts` | attempts and reviews |
//! | `spend` | what is used and what is set aside |
//! | `kept` | what follows from all of this, and is kept beside it |

mod attempts;
mod graph;
mod kept;
mod moves;
mod run;
mod spend;
mod turn;

use jiff::Timestamp;

use super::event::whole_micros;
use super::state::{AttemptEnd, Plan, Start, TaskState};
use super::{Decision, Event};
use crate::result::ModelUsage;
use crate::subject::PLANNER;

/// Folds one decision into the state.
pub fn apply_decision(plan: &mut Plan, decision: &Decision) {
    for event in &decision.events {
        apply(plan, event, decision.at);
    }
    plan.through = plan.through.max(decision.through().unwrap_or(0));
}

/// Folds one event into the state; `at` is the time of its decision, of which whole microseconds count: the log keeps
/// no more, and a plan folded from it must equal the one that was decided on.
pub fn apply(plan: &mut Plan, event: &Event, at: Timestamp) {
    let at = whole_micros(at);
    match event {
        Event::RunStarted { objective, mode, documents, model, models, fail_fast, budget, consult } => {
            plan.start = Some(Start {
                objective: objective.clone(),
                mode: *mode,
                documents: documents.clone(),
                model: model.clone(),
                models: models.clone(),
                fail_fast: *fail_fast,
                budget: budget.as_ref().clone(),
                consult: *consult,
                at,
            });
        }
        Event::OccasionRaised { occasion } => plan.raise(occasion),
        Event::PlanningAsked { turn, attempt, feedback, occasions } => {
            plan.ask(*turn, *attempt, feedback.as_ref(), occasions, at);
        }
        Event::PlanningClaimed { worker, .. } => plan.claim_turn(worker, at),
        Event::ProposalAccepted { reasoning, is_idle, usage, models, .. } => {
            plan.end_turn();
            plan.reasoning.push(reasoning.clone());
            plan.idle_turns = if *is_idle { plan.idle_turns.saturating_add(1) } else { 0 };
            plan.spend_on(PLANNER, *usage, models);
        }
        Event::PlanningErrored { error, retry_at, outgrew, usage, models, .. } => {
            plan.spend_on(PLANNER, *usage, models);
            plan.fail_turn(error, *retry_at, *outgrew);
        }
        Event::TaskAdded { spec, ready } => plan.add(spec, *ready, at),
        Event::TaskPatched { spec, attempt } => plan.patch(spec, *attempt),
        Event::FinalMarked { task } => plan.mark_final(task),
        Event::TaskReady { task, attempt } => plan.offer(task, *attempt, TaskState::Ready, at),
        Event::TaskRerun { task, attempt } => plan.offer(task, *attempt, TaskState::Rerun, at),
        Event::TaskReopened { task, attempt, ready, feedback } => {
            plan.supersede(task);
            plan.reopen(task, *attempt, if *ready { TaskState::Ready } else { TaskState::Pending }, at);
            if let (Some(task), Some(feedback)) = (plan.task_mut(task), feedback) {
                task.told.push((*attempt, feedback.clone()));
            }
        }
        Event::TaskInvalidated { task, attempt, usage } => {
            plan.spend_in_hand(task, *usage);
            plan.supersede(task);
            plan.reopen(task, *attempt, TaskState::Pending, at);
        }
        Event::CapabilityMissing { task, capability } => plan.miss(task, capability, at),
        Event::ParametersWrong { task, problem } => plan.refuse_parameters(task, problem, at),
        Event::TaskPending { task } => plan.move_to(task, TaskState::Pending, at, |_| ()),
        Event::AttemptClaimed { task, attempt, worker } => {
            plan.idle_turns = 0;
            plan.claim(task, *attempt, worker, at);
        }
        Event::AttemptFinished {
            task,
            attempt,
            worker,
            at_sequence,
            summary,
            is_detailed,
            review,
            usage,
            models,
        } => {
            plan.spend_on_task(task, *usage, models);
            plan.move_to(task, TaskState::NeedsReview, at, |task| {
                task.review = 1;
                task.asked = review.as_ref().unwrap_or(&task.spec.review).clone();
                let end = AttemptEnd::Finished {
                    at_sequence: *at_sequence,
                    summary: summary.clone(),
                    is_detailed: *is_detailed,
                };
                let record = task.end_attempt(*attempt, end, at);
                record.worker = Some(worker.clone());
                record.usage = *usage;
            });
        }
        Event::AttemptErrored { task, attempt, error, retry_at } => {
            plan.spend_on_task(task, error.usage, &error.models);
            plan.error(task, *attempt, AttemptEnd::Errored(error.clone()), error.usage, *retry_at, at);
        }
        Event::AttemptTimedOut { task, attempt, clock, retry_at, usage } => {
            plan.note(|| format!("attempt {attempt} of task {task} timed out: {clock}"));
            plan.spend_on_task(task, *usage, &ModelUsage::new());
            plan.error(task, *attempt, AttemptEnd::TimedOut(*clock), *usage, *retry_at, at);
        }
        Event::ReviewErrored { task, retry_at, usage, models, .. } => {
            plan.spend_on_review(task, *usage, models);
            plan.review_again(task, *retry_at, at);
        }
        Event::ReviewReady { task } => plan.move_to(task, TaskState::NeedsReview, at, |_| ()),
        Event::VerdictGiven { task, critic, verdict, .. } => plan.judge(task, critic, verdict),
        Event::TaskAccepted { task, .. } => plan.move_to(task, TaskState::Completed, at, |_| ()),
        Event::TaskFailed { task, reason } => {
            plan.note(|| format!("task {task} failed: {reason}"));
            plan.give_up(task, TaskState::Failed, reason, at);
        }
        Event::TaskCancelled { task, reason, with, usage } => {
            plan.note(|| format!("task {task} was cancelled: {reason}"));
            plan.spend_in_hand(task, *usage);
            plan.give_up(task, TaskState::Cancelled, reason, at);
            let is_wound_down = plan.winding_down.is_some();
            if let Some(task) = plan.task_mut(task) {
                task.lost_with = with.clone();
                task.is_wound_down = is_wound_down;
            }
        }
        Event::Reserved { work, amounts } => plan.reserve(work, *amounts),
        Event::BudgetLow { .. } => plan.budget_is_low = true,
        Event::WindingDown { reason, detail } => {
            plan.forget_occasions();
            plan.winding_down = Some((*reason, detail.clone()));
        }
        Event::Commanded { id, by, what } => {
            plan.note(|| format!("the user {by} gave a command: {what}"));
            plan.idle_turns = 0;
            plan.commands.insert(id.clone());
        }
        Event::MessageReceived { by, text } => plan.messages.push((by.clone(), text.clone())),
        Event::Paused => plan.paused = Some(at),
        Event::Resumed { budget } => plan.resume(budget, at),
        Event::RunReopened => plan.go_on(at),
        Event::RunRetired => {
            if let Some(end) = &mut plan.end {
                end.is_resumable = false;
            }
        }
        Event::RunEnded { reason, detail, deliverable } => {
            plan.finish(*reason, detail, deliverable.as_ref(), at);
        }
    }
}
