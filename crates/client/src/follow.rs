//! Follows a run: its decisions as the supervisor makes them, through server outages and into the archive.

use std::time::Duration;

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, Event, RunEvent};
use millrace_runtime::log::follow::{LogStep, LogTopics, RunFollower, RunLog, RunPosition};
use millrace_runtime::{Bus, Fault};
use tokio::sync::mpsc;

/// The time without a message after which it is checked whether the run has been archived.
pub(crate) const QUIET: Duration = Duration::from_secs(2);

/// Sends the decisions of a run with their sequences, from the first one on, as they are made. Ends with the decision
/// that ends the run, unless another follows it: a run that ended because its budget was used up can be resumed.
pub fn follow_run(bus: &Bus, run: &RunId) -> mpsc::Receiver<Result<(u64, Decision), Fault>> {
    let (sender, receiver) = mpsc::channel(64);
    let (bus, run) = (bus.clone(), run.clone());
    tokio::spawn(async move {
        if let Err(fault) = follow_run_into_channel(&bus, &run, &sender).await {
            // If the receiver is gone, the fault concerns no one.
            let _ = sender.send(Err(fault)).await;
        }
    });
    receiver
}

async fn follow_run_into_channel(
    bus: &Bus,
    run: &RunId,
    sender: &mpsc::Sender<Result<(u64, Decision), Fault>>,
) -> Result<(), Fault> {
    let log = RunLog::new(bus, run, LogTopics::Decisions, RunPosition::default());
    let mut follower = RunFollower::new(log, QUIET);
    let mut end = RunEndState::No;
    loop {
        let step = match end {
            RunEndState::No => tokio::select! {
                step = follower.next_step() => step?,
                // Otherwise a run without decisions would be polled for ever.
                () = sender.closed() => return Ok(()),
            },
            // It can be resumed or reopened.
            RunEndState::Resumable | RunEndState::Final => follower.read_rest().await?,
        };
        let records = match step {
            LogStep::Messages(records) => records,
            LogStep::EndOfLog if end == RunEndState::No => continue,
            LogStep::EndOfLog | LogStep::Complete | LogStep::Deleted => return Ok(()),
        };
        for record in records {
            let decision: Decision = bus.decode_record(&record).await?;
            end = decision.events.iter().fold(end, RunEndState::after_event);
            if sender.send(Ok((record.sequence, decision))).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// The end of a run as of a decision: `No` while it is open; otherwise whether it can be resumed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum RunEndState {
    #[default]
    No,
    Resumable,
    Final,
}

impl RunEndState {
    #[must_use]
    pub fn after_event(self, event: &Event) -> Self {
        if let Event::Run(RunEvent::Ended { reason, is_resumable, .. }) = event {
            let is_resumable = *is_resumable || reason.needs_larger_budget();
            if is_resumable { Self::Resumable } else { Self::Final }
        } else if matches!(event, Event::Run(RunEvent::Retired)) {
            Self::Final
        } else if matches!(event, Event::Run(RunEvent::Reopened)) {
            Self::No
        } else {
            self
        }
    }
}
