//! Waits for models' providers, up to the run's provider timeout.
//!
//! # Invariants
//!
//! - I65: A provider that is away costs no attempt and no run time; its waits are in the log, and a stopped worker returns
//!   waiting work at once. (`tests/tests/behaviours/providers.rs::runs_complete_after_an_outage_and_no_attempt_is_counted`,
//!   `tests/tests/behaviours/providers.rs::waiting_work_of_a_stopped_worker_continues_on_another_at_once`,
//!   `protocol/tests/rules/transcripts.rs::every_transcript_is_unchanged`)
//! - I66: A provider that stays away pauses the run, and the same attempts continue from their journals when it is resumed.
//!   (`tests/tests/behaviours/providers.rs::run_pauses_after_the_provider_timeout_and_resumes_in_the_same_attempt`,
//!   `crates/agent/tests/turn/outage.rs::an_open_breaker_does_not_prolong_the_wait_for_a_provider`,
//!   `tests/tests/first_command.rs::run_paused_for_its_provider_stays_so_when_its_cluster_has_stopped`)

use super::super::state::{Plan, TaskState};
use super::super::{BudgetEvent, Event, JournalKey, ProviderEvent, Refusal, ResourceAmounts};
use super::turn::find_open_turn;
use super::{find_task_with_attempt, reviews, wrong_state_refusal};
use crate::provider::{ProviderStatus, ProviderWait};

pub(super) fn handle_status(
    plan: &Plan,
    journal: &JournalKey,
    status: &ProviderStatus,
) -> Result<Vec<Event>, Refusal> {
    let current = find_current_wait(plan, journal)?;
    let journal = journal.clone();
    let event = match status {
        // Repeated as a heartbeat.
        ProviderStatus::Waiting(wait) if current == Some(wait) => return Ok(Vec::new()),
        ProviderStatus::Waiting(wait) => ProviderEvent::Awaited { journal, wait: truncate_error(wait) },
        ProviderStatus::Recovered if current.is_none() => return Ok(Vec::new()),
        ProviderStatus::Recovered => ProviderEvent::Recovered { journal },
        ProviderStatus::GivenUp(wait) => ProviderEvent::GivenUp { journal, wait: truncate_error(wait) },
    };
    Ok(vec![Event::Provider(event)])
}

/// Handles work that was returned because its reservation does not pay for its first request.
pub(super) fn handle_small_reservation(
    plan: &Plan,
    journal: &JournalKey,
    needs: ResourceAmounts,
) -> Result<Vec<Event>, Refusal> {
    find_current_wait(plan, journal)?;
    Ok(vec![Event::Budget(BudgetEvent::TooSmall { journal: journal.clone(), needs })])
}

fn truncate_error(wait: &ProviderWait) -> ProviderWait {
    ProviderWait { error: super::truncate_for_plan(&wait.error), ..wait.clone() }
}

/// Returns the wait that the plan knows of work in flight.
fn find_current_wait<'a>(plan: &'a Plan, journal: &JournalKey) -> Result<Option<&'a ProviderWait>, Refusal> {
    match journal {
        JournalKey::Task(task, attempt) => {
            let task = find_task_with_attempt(plan, task, *attempt)?;
            match task.state() {
                TaskState::Running => Ok(task.uncounted.current_wait()),
                TaskState::Pending
                | TaskState::Ready
                | TaskState::NeedsReview
                | TaskState::Completed
                | TaskState::Rerun
                | TaskState::Errored
                | TaskState::Failed
                | TaskState::Cancelled
                | TaskState::Waiting => Err(wrong_state_refusal(task, "provider status ignored")),
            }
        }
        JournalKey::Review(task, attempt) => {
            let task = reviews::find_task_under_review(plan, task, *attempt)?;
            match task.review_retry_at() {
                None => Ok(task.uncounted.current_wait()),
                Some(_) => Err(wrong_state_refusal(task, "this review has ended")),
            }
        }
        JournalKey::Planning(turn, attempt) => {
            let current = find_open_turn(plan, *turn, *attempt)?;
            Ok(current.uncounted.current_wait())
        }
    }
}
