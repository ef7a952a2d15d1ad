//! Seeing to it that every capability that the cluster knows has its queue, also while nobody offers it: workers find
//! their queues made, and whoever scales them looks at queues that nobody works on yet. And seeing to it that orders
//! without a mark are refused, as soon as nobody gives out such any more. Every supervisor does, and it is safe to repeat.
//! It knows nothing of what is in the queues, and keeps no lane waiting.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::Capability;
use millrace_runtime::{Bus, Fault, marks, queue, registry};
use tokio::sync::watch;
use tracing::debug;

use crate::lane::Known;

/// How often all of them are looked after, whatever is known: somebody may have removed one.
const ALL: Duration = Duration::from_secs(30);
/// The wait after the server did not answer.
const AGAIN: Duration = Duration::from_millis(500);

/// Makes the queue of each capability as soon as it is `known`, until nobody says any more what is.
pub async fn keep(bus: Bus, mut known: watch::Receiver<Arc<Known>>) {
    let (mut made, mut are_marked) = (None, false);
    loop {
        known.mark_unchanged();
        if let Err(fault) = see_to(&bus, &mut made, &mut are_marked).await {
            debug!(%fault, "could not see to the queues; trying again");
            tokio::time::sleep(AGAIN).await;
            continue;
        }
        match tokio::time::timeout(ALL, known.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => made = None,
        }
    }
}

/// Makes the queues that are not among those that were `made`; all of them, and the place for them, where that is
/// `None`. Then sees to the marks, where they are not required yet.
async fn see_to(
    bus: &Bus,
    made: &mut Option<BTreeSet<Capability>>,
    are_marked: &mut bool,
) -> Result<(), Fault> {
    let names = registry::capability_names(bus).await?;
    let before = made.clone().unwrap_or_default();
    let missing: BTreeSet<Capability> = names.difference(&before).cloned().collect();
    if made.is_none() || !missing.is_empty() {
        queue::ensure(bus, &missing).await?;
    }
    *made = Some(names);
    if !*are_marked {
        *are_marked = marks::require(bus).await?;
    }
    Ok(())
}
