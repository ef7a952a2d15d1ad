//! Waits for the end of a run, or for the decision on a message, woken by the follower of the run's lane.

use millrace_client::{MessageDecision, RunEndState, message_decision};
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Decision;
use millrace_runtime::Fault;
use millrace_runtime::fault::backoff;

use crate::feed::{FeedStep, RunFeed};
use crate::state::Gateway;

/// Waits for the end of a run after sequence `seen`, at which it was open. Retries transient faults.
///
/// # Errors
/// A decision is unreadable.
pub async fn await_end(gateway: &Gateway, run: &RunId, seen: u64) -> Result<RunEndState, Fault> {
    let mut feed = RunFeed::new(&gateway.bus, &gateway.hub, run, false, seen);
    let (mut end, mut failures) = (RunEndState::No, 0);
    loop {
        match feed.next_step().await {
            Ok(FeedStep::Messages(messages)) => {
                for message in messages {
                    end = message.content(&gateway.bus).await?.end.unwrap_or(end);
                }
                match end {
                    RunEndState::No => {}
                    // It may have been resumed since.
                    RunEndState::Resumable => feed.read_again(),
                    RunEndState::Final => return Ok(end),
                }
            }
            Ok(FeedStep::EndOfLog) if end == RunEndState::No => failures = 0,
            Ok(FeedStep::EndOfLog | FeedStep::Complete) => return Ok(end),
            Err(fault) => retry(fault, &mut failures).await?,
        }
    }
}

/// Waits for the decision on the message at sequence `fact`, whose idempotency key is `id`. Retries transient faults.
///
/// # Errors
/// A decision is unreadable.
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
