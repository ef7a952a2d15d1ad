//! Waits for the end of a run, or for the decision on a message, woken by the follower of the run's lane.

use std::sync::Arc;
use std::time::Duration;

use millrace_client::{MessageDecision, RunEndState, message_decision};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Decision;
use millrace_runtime::Fault;
use millrace_runtime::fault::backoff;

use crate::feed::{FeedStep, RunFeed};
use crate::history::RunState;
use crate::problem::Problem;
use crate::state::Gateway;

/// The time without a decision after which it is checked whether there is such a run, and whether its log is damaged.
const CHECK_AFTER: Duration = Duration::from_millis(250);

/// Waits until a run has ended and returns its state. Retries transient faults.
///
/// The history is folded while it is followed, so that the log of a short run is read once.
pub async fn await_end(gateway: &Gateway, run: &RunId) -> Result<Arc<RunState>, Problem> {
    let mut feed = RunFeed::new(&gateway.bus, &gateway.hub, run, false, 0);
    let (mut state, mut end) = (RunState::default(), RunEndState::No);
    let (mut failures, mut is_checked) = (0, false);
    loop {
        let is_new = state.last.is_none() && !is_checked;
        let limit = if is_new { CHECK_AFTER } else { Duration::MAX };
        match tokio::time::timeout(limit, feed.next_step()).await {
            Ok(Ok(FeedStep::Messages(messages))) => {
                for message in messages {
                    let decision: Decision = gateway.bus.decode_record(&message.record).await?;
                    end = decision.events.iter().fold(end, RunEndState::after_event);
                    if !state.add_decision(&message.record, &decision) {
                        return gateway.read_history(run, None).await;
                    }
                }
                match end {
                    RunEndState::No => continue,
                    // It may have been resumed or reopened since.
                    RunEndState::Resumable | RunEndState::Final => feed.read_again(),
                }
            }
            Ok(Ok(FeedStep::EndOfLog)) if end == RunEndState::No => failures = 0,
            Ok(Ok(FeedStep::EndOfLog)) => break,
            // Its end is in the archive.
            Ok(Ok(FeedStep::Complete)) => return gateway.read_history(run, None).await,
            Ok(Err(fault)) => retry(fault, &mut failures).await?,
            Err(_) => {
                gateway.find_run(run.as_str()).await?;
                gateway.refuse_damaged(run).await?;
                is_checked = true;
            }
        }
    }
    let state = Arc::new(state);
    gateway.histories.keep(run.clone(), state.clone());
    Ok(state)
}

/// Waits for the decision on the message at sequence `fact`, whose idempotency key is `id`. Retries transient faults.
pub async fn await_decision(
    gateway: &Gateway,
    run: &RunId,
    (fact, id): (u64, &str),
) -> Result<MessageDecision, Fault> {
    let mut feed = RunFeed::new(&gateway.bus, &gateway.hub, run, false, fact);
    let mut failures = 0;
    loop {
        match feed.next_step().await {
            Ok(FeedStep::Messages(messages)) => {
                for message in messages {
                    let decision: Decision = gateway.bus.decode_record(&message.record).await?;
                    if let Some(decision) = message_decision((message.sequence(), &decision), (fact, id)) {
                        return Ok(decision);
                    }
                }
            }
            Ok(FeedStep::EndOfLog) => failures = 0,
            Ok(FeedStep::Complete) => return Ok(MessageDecision::Archived),
            Err(fault) => retry(fault, &mut failures).await?,
        }
    }
}

/// Waits before the next try after a transient fault.
async fn retry(fault: Fault, failures: &mut u32) -> Result<(), Fault> {
    if !fault.is_transient() {
        return Err(fault);
    }
    *failures += 1;
    tokio::time::sleep(backoff(*failures)).await;
    Ok(())
}
