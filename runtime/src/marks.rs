//! Which orders need no mark. Programs before 0.4 put orders in their queues without any headers, and so does the server
//! with an answer that somebody has it send there (see [`crate::record::is_stray`]). The cluster's settings say up to which
//! order that is borne, as soon as there are no supervisors left that give out such orders. It reads and marks no orders
//! itself.

use std::time::Duration;

use async_nats::jetstream;
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::registry::{Beat, ClusterSettings, Role};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::bus::Bus;
use crate::topology::{CLUSTER, SETTINGS, WORK, fault, fix_settings, open_bucket, settings_from};
use crate::{Fault, registry};

/// How often the settings are read, at most.
const AGAIN: Duration = Duration::from_secs(1);

/// What is known of the orders without a mark.
pub(crate) struct Marks(Mutex<Known>);

struct Known {
    /// The last that counts; `None` if all do.
    through: Option<u64>,
    read: Option<Instant>,
}

impl Marks {
    pub fn of(settings: &ClusterSettings) -> Self {
        Self(Mutex::new(Known { through: settings.unmarked_orders_through, read: None }))
    }

    /// Whether the order with this sequence counts although it has no mark.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn may_lack(&self, control: &jetstream::Context, sequence: u64) -> Result<bool, Fault> {
        let mut known = self.0.lock().await;
        if known.through.is_none() && known.read.is_none_or(|read| read.elapsed() >= AGAIN) {
            known.through = read(control).await?.0.unmarked_orders_through;
            known.read = Some(Instant::now());
        }
        Ok(known.through.is_none_or(|through| sequence <= through))
    }
}

/// Has the cluster refuse every order from here on that has no mark, unless a supervisor lives that gives none. For
/// supervisors; `true` if it is so, now or from before.
///
/// # Errors
/// The server does not answer, or somebody else has changed the settings meanwhile.
pub fn require(bus: &Bus) -> BoxFuture<'_, Result<bool, Fault>> {
    async move {
        if bus.settings().unmarked_orders_through.is_some() {
            return Ok(true);
        }
        if registry::beats(bus).await?.iter().any(gives_none) {
            return Ok(false);
        }
        let control = bus.control();
        let (found, revision) = read(control).await?;
        if found.unmarked_orders_through.is_none() {
            let through = last_order(control).await?;
            let settings = ClusterSettings { unmarked_orders_through: Some(through), ..found };
            let bytes = serde_json::to_vec(&settings).expect("settings have a form in JSON");
            let store = open_bucket(control, CLUSTER).await?;
            let updated = store.update(SETTINGS, bytes.into(), revision).await;
            updated.map_err(|error| fault("the cluster's settings", &error))?;
            tracing::info!(through, "orders without a mark are refused from here on");
        }
        // Nothing in them changes after this.
        fix_settings(control).await?;
        Ok(true)
    }
    .boxed()
}

/// Whether a process gives out orders without a mark.
fn gives_none(beat: &Beat) -> bool {
    let mut numbers = beat.version.split('.').map_while(|number| number.parse::<u64>().ok());
    let is_older = matches!((numbers.next(), numbers.next()), (Some(0), Some(minor)) if minor < 4);
    beat.role == Role::Supervisor && is_older
}

/// The settings as they are now, with their revision.
async fn read(control: &jetstream::Context) -> Result<(ClusterSettings, u64), Fault> {
    let what = "the cluster's settings";
    let store = open_bucket(control, CLUSTER).await?;
    let found = store.entry(SETTINGS).await.map_err(|error| fault(what, &error))?;
    let found = found.ok_or_else(|| Fault::unavailable(what, "they are not there"))?;
    Ok((settings_from(&found.value)?, found.revision))
}

/// The sequence of the last order that was put in any queue.
async fn last_order(control: &jetstream::Context) -> Result<u64, Fault> {
    let stream = control.get_stream(WORK).await.map_err(|error| fault(WORK, &error))?;
    Ok(stream.cached_info().state.last_sequence)
}
