//! Removes push configs whose run is gone, or ended long ago, so that secrets of clients are not kept longer than needed.

use std::collections::HashSet;
use std::time::Duration;

use jiff::SignedDuration;
use millrace_protocol::ids::RunId;
use millrace_protocol::webhook::{DELIVERY_AGE, StoredPushConfig};
use millrace_runtime::store::webhooks::remove_push_config;
use millrace_runtime::{Fault, clock};
use tokio::time::Instant;
use tracing::debug;

use super::follower::SubscriptionTable;
use crate::problem::ProblemKind;
use crate::state::Gateway;

/// The interval at which the runs of push configs are checked.
const INTERVAL: Duration = Duration::from_secs(5);
/// The time after the end of a run for which its push configs stay: longer than its last delivery is attempted, and a run that
/// ended may be resumed.
const AGE: SignedDuration = SignedDuration::from_hours(7 * 24);

const _: () = assert!(AGE.as_secs() > DELIVERY_AGE.as_secs(), "a delivery needs its config");

/// The checks of push configs.
#[derive(Default)]
pub struct PushExpiry {
    last: Option<Instant>,
}

impl PushExpiry {
    /// Periodically removes the push configs of deleted and of old runs.
    pub async fn remove_expired(
        &mut self,
        gateway: &Gateway,
        subscriptions: &SubscriptionTable,
    ) -> Result<(), Fault> {
        if self.last.is_some_and(|last| last.elapsed() < INTERVAL)
            || subscriptions.push_configs().next().is_none()
        {
            return Ok(());
        }
        self.last = Some(Instant::now());
        gateway.runs.refresh(&gateway.bus).await?;
        let without_summary = subscriptions.push_configs().map(|config| &config.run);
        let without_summary = gateway.runs.without_summary(without_summary.cloned().collect());
        let mut gone = HashSet::new();
        for run in without_summary {
            if is_gone(gateway, &run).await {
                gone.insert(run);
            }
        }
        let (now, runs) = (clock::now(), &gateway.runs);
        let is_old = |config: &StoredPushConfig| {
            let ended = runs.find(&config.run).filter(|run| run.summary.end.is_some());
            // One that was set after the end has its own time.
            ended.is_some_and(|run| now.duration_since(run.summary.updated.max(config.created)) >= AGE)
        };
        for config in subscriptions.push_configs() {
            if gone.contains(&config.run) || is_old(config) {
                debug!(run = %config.run, config = config.config, "removing a push config");
                remove_push_config(&gateway.bus, config).await?;
            }
        }
        Ok(())
    }
}

/// `true` if there is no such run any more.
async fn is_gone(gateway: &Gateway, run: &RunId) -> bool {
    match gateway.find_run(run.as_str()).await {
        Ok(_) => false,
        Err(problem) => problem.is(ProblemKind::RunNotFound) || problem.is(ProblemKind::RunDeleted),
    }
}
