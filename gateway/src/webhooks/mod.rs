//! Webhooks: tells receivers of events of runs.
//!
//! ```text
//! lanes ──▶ deliveries in their bucket ──▶ position        follower: whoever continues derives what is missing
//! bucket ──▶ claim an attempt ──▶ request ──▶ outcome      each step is stored, and expects the one before
//! ```
//!
//! Of several gateways one delivers: the holder of the position. The id of a message follows from its place in the log, so that
//! a receiver recognises one that arrives twice. While there is no webhook, nothing is read.
//!
//! Push configs of A2A clients are delivered in the same way: each is a webhook for one run, with another message.
//!
//! | file | contents |
//! |---|---|
//! | `follower` | derives deliveries from the log, and removes push configs of runs that are gone |
//! | `queue` | the deliveries that have not ended, and which are due |
//! | `outgoing` | the requests of deliveries: Standard Webhooks, or A2A notifications |
//!
//! # Invariants
//!
//! - I195: Each event that a webhook selects reaches its receiver at least once, with one id, across kills of any process and an
//!   absence of the receiver of up to three days, and also if its run was archived meanwhile.
//!   (`tests/tests/gateway_webhooks.rs::every_event_arrives_while_gateways_are_killed_and_the_receiver_is_away`,
//!   `protocol/src/webhook/delivery.rs::a_receiver_that_stays_away_is_tried_for_three_days`)

mod follower;
mod outgoing;
mod queue;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Subscriber;
use futures::stream::SelectAll;
use futures::{FutureExt, StreamExt};
use millrace_protocol::ids::{Lane, WebhookId};
use millrace_protocol::subject;
use millrace_protocol::webhook::{
    DeliveryState, DisableReason, GiveUpReason, StoredDelivery, StoredSubscription,
};
use millrace_runtime::fault::backoff;
use millrace_runtime::store::bucket::{BucketChanges, Entry};
use millrace_runtime::store::webhooks::{
    follow_deliveries, read_subscription, write_delivery, write_subscription,
};
use millrace_runtime::{Bus, Fault, clock};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::held_position::{FollowerStop, HeldPosition, PositionClaim};
use crate::state::Gateway;
use follower::{DeliveryFollower, PushExpiry, SubscriptionTable};
use outgoing::ReceiverClient;
use outgoing::build_request;
use queue::{DeliveryKey, DeliveryQueue, MAX_WAITING};

const NAME: &str = "webhooks";
/// A position that does not change for this long has no holder any more.
const TAKEOVER: Duration = Duration::from_secs(10);
/// The interval at which the log and the deliveries are read, unless a decision is announced before.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The delay after an announcement: a message may be delivered before it is stored, and others follow it.
const AFTER_WAKE: Duration = Duration::from_millis(25);
/// The longest pause after faults of the cluster.
const MAX_PAUSE: u32 = 15;
/// The interval at which the webhooks are read while there is none.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// The number of attempts to change a webhook or a delivery that others change at the same time.
const MAX_CHANGES: u32 = 5;

/// Delivers the messages of webhooks until it is stopped.
pub struct WebhookSender {
    gateway: Arc<Gateway>,
    client: Arc<ReceiverClient>,
    claim: PositionClaim,
    shutdown: CancellationToken,
}

/// The reason for the end of deliveries.
enum FollowStop {
    NoWebhooks,
    /// Any other one.
    Follower(FollowerStop),
}

impl From<FollowerStop> for FollowStop {
    fn from(stop: FollowerStop) -> Self {
        Self::Follower(stop)
    }
}

impl From<Fault> for FollowStop {
    fn from(fault: Fault) -> Self {
        Self::Follower(fault.into())
    }
}

struct AttemptEnd {
    key: DeliveryKey,
    /// The delivery after it; `None` if another process has made the attempt.
    outcome: Result<Option<StoredDelivery>, Fault>,
}

impl WebhookSender {
    /// Creates one.
    ///
    /// # Errors
    /// The TLS library can't be used: an error text for the user.
    pub fn new(gateway: Arc<Gateway>, shutdown: CancellationToken) -> Result<Self, String> {
        let client = Arc::new(ReceiverClient::new(gateway.receivers.clone())?);
        let claim = PositionClaim::new(gateway.bus.clone(), NAME, TAKEOVER, shutdown.clone());
        Ok(Self { gateway, client, claim, shutdown })
    }

    /// Delivers until the process stops. Faults of the cluster are waited out.
    pub async fn run(self) {
        let mut failures = 0;
        loop {
            match Box::pin(self.deliver()).await {
                Ok(()) => failures = 0,
                Err(FollowerStop::Shutdown) => return,
                Err(FollowerStop::Replaced) => info!("another gateway delivers the messages of webhooks now"),
                Err(FollowerStop::Fault(Fault::Missing { .. })) => {
                    debug!("the cluster has no bucket of webhooks");
                }
                Err(FollowerStop::Fault(fault)) => {
                    failures += 1;
                    warn!(%fault, "delivering messages of webhooks failed; retrying");
                }
            }
            if self.claim.sleep(IDLE_INTERVAL * (failures + 1).min(MAX_PAUSE)).await.is_err() {
                return;
            }
        }
    }

    /// Waits for the first webhook, and delivers until there is none.
    async fn deliver(&self) -> Result<(), FollowerStop> {
        let (bus, index) = (&self.gateway.bus, &self.gateway.runs);
        let mut webhooks = SubscriptionTable::new(bus);
        loop {
            webhooks.refresh().await?;
            if !webhooks.is_empty() {
                break;
            }
            self.claim.sleep(IDLE_INTERVAL).await?;
        }
        let first = || DeliveryFollower::first_position(bus, index).boxed();
        let mut held = self.claim.take_over(first).await?;
        info!("delivering the messages of webhooks");
        let mut attempts = JoinSet::new();
        let outcome = Box::pin(self.follow(&mut held, &mut webhooks, &mut attempts)).await;
        let outcome = match outcome {
            Ok(never) => match never {},
            Err(stop) => stop,
        };
        match &outcome {
            // Attempts in progress end by themselves: each has claimed its delivery.
            FollowStop::NoWebhooks | FollowStop::Follower(FollowerStop::Shutdown) => held.release().await,
            FollowStop::Follower(FollowerStop::Replaced | FollowerStop::Fault(_)) => {}
        }
        while attempts.join_next().await.is_some() {}
        match outcome {
            FollowStop::NoWebhooks => Ok(()),
            FollowStop::Follower(stop) => Err(stop),
        }
    }

    /// Delivers until there is a reason to stop.
    async fn follow(
        &self,
        held: &mut HeldPosition<'_>,
        webhooks: &mut SubscriptionTable,
        attempts: &mut JoinSet<AttemptEnd>,
    ) -> Result<Infallible, FollowStop> {
        let Gateway { bus, runs, histories, .. } = &*self.gateway;
        let sources = (runs.clone(), histories.clone());
        let mut follower = DeliveryFollower::open(bus, sources, held.position().clone(), webhooks).await?;
        let (mut queue, mut changes) = (DeliveryQueue::default(), follow_deliveries());
        let mut wakes = subscribe_to_decisions(bus).await;
        let mut expiry = PushExpiry::default();
        loop {
            read_changes(bus, &mut changes, &mut queue).await?;
            let has_room = |webhook: &WebhookId| queue.waiting(webhook) < MAX_WAITING;
            let (has_more, full) = follower.read_lanes(webhooks, has_room).await?;
            held.write(follower.position()).await?;
            for webhook in full {
                disable(bus, webhooks, &webhook, DisableReason::TooManyWaiting).await?;
            }
            expiry.remove_expired(&self.gateway, webhooks).await?;
            if webhooks.is_empty() {
                return Err(FollowStop::NoWebhooks);
            }
            self.give_up_orphans(&queue, webhooks).await?;
            read_changes(bus, &mut changes, &mut queue).await?;
            self.start_attempts(&mut queue, webhooks, attempts);
            let pause = if has_more { Duration::ZERO } else { POLL_INTERVAL };
            tokio::select! {
                slept = self.claim.sleep(pause) => slept?,
                Some(_) = wakes.next() => {
                    self.claim.sleep(AFTER_WAKE).await?;
                    // One read is enough for all that were announced.
                    while let Some(Some(_)) = wakes.next().now_or_never() {}
                }
                Some(end) = attempts.join_next() => {
                    read_changes(bus, &mut changes, &mut queue).await?;
                    let mut ended = Some(end);
                    while let Some(end) = ended {
                        // A task that panicked leaves a claim, after whose time the attempt is made again.
                        if let Ok(end) = end {
                            handle_end(bus, webhooks, &mut queue, end).await?;
                        }
                        ended = attempts.try_join_next();
                    }
                }
            }
        }
    }

    fn start_attempts(
        &self,
        queue: &mut DeliveryQueue,
        webhooks: &SubscriptionTable,
        attempts: &mut JoinSet<AttemptEnd>,
    ) {
        let find = |id: &WebhookId| webhooks.find(id).filter(|entry| entry.value.is_enabled());
        for entry in queue.take_due(clock::now(), |id| find(id).is_some()) {
            let Some(webhook) = find(&entry.value.webhook) else { continue };
            let attempt = Attempt {
                gateway: self.gateway.clone(),
                client: self.client.clone(),
                subscription: webhook.value.clone(),
                shutdown: self.shutdown.clone(),
            };
            attempts.spawn(attempt.run(entry));
        }
    }

    async fn give_up_orphans(
        &self,
        queue: &DeliveryQueue,
        webhooks: &SubscriptionTable,
    ) -> Result<(), Fault> {
        for entry in queue.without_webhook(|id| webhooks.find(id).is_some()) {
            let given_up = entry.value.given_up(GiveUpReason::WebhookDeleted, clock::now());
            write_delivery(&self.gateway.bus, &given_up, entry.sequence).await?;
        }
        Ok(())
    }
}

/// Returns the announcements of decisions. If some can't be had, the interval counts.
async fn subscribe_to_decisions(bus: &Bus) -> SelectAll<Subscriber> {
    let mut all = SelectAll::new();
    for lane in 0..bus.settings().lanes {
        all.extend(bus.client().subscribe(subject::plan_subjects_of_lane(Lane(lane))).await.ok());
    }
    all
}

async fn read_changes(
    bus: &Bus,
    changes: &mut BucketChanges<StoredDelivery>,
    queue: &mut DeliveryQueue,
) -> Result<(), Fault> {
    while let Some(page) = changes.next_page(bus).await? {
        page.into_iter().for_each(|change| queue.apply(change));
    }
    Ok(())
}

/// Disables the webhook if the end of an attempt is a reason for it.
async fn handle_end(
    bus: &Bus,
    webhooks: &SubscriptionTable,
    queue: &mut DeliveryQueue,
    end: AttemptEnd,
) -> Result<(), Fault> {
    let AttemptEnd { key, outcome } = end;
    queue.attempt_ended(&key);
    let Some(delivery) = outcome? else { return Ok(()) };
    let reason = match delivery.state {
        DeliveryState::Failed { reason: GiveUpReason::ReceiverGone, .. } => DisableReason::ReceiverGone,
        DeliveryState::Failed { reason: GiveUpReason::Expired, .. }
            if queue.last_success(&key.0).is_none_or(|at| at < delivery.created) =>
        {
            DisableReason::ReceiverAway
        }
        DeliveryState::Failed { .. }
        | DeliveryState::Waiting { .. }
        | DeliveryState::Sending { .. }
        | DeliveryState::Delivered { .. } => return Ok(()),
    };
    disable(bus, webhooks, &key.0, reason).await
}

async fn disable(
    bus: &Bus,
    webhooks: &SubscriptionTable,
    id: &WebhookId,
    reason: DisableReason,
) -> Result<(), Fault> {
    let Some(key) = webhooks.find(id).map(|entry| entry.key.clone()) else { return Ok(()) };
    for _ in 0..MAX_CHANGES {
        let state = read_subscription(bus, &key).await?;
        let Some(entry) = state.entry.filter(|entry| entry.value.is_enabled()) else { return Ok(()) };
        if write_subscription(bus, &entry.value.disabled(reason), entry.sequence).await? {
            warn!(webhook = %id, ?reason, "webhook disabled");
            return Ok(());
        }
    }
    Err(Fault::unavailable("disabling a webhook", "other programs change it all the time"))
}

struct Attempt {
    gateway: Arc<Gateway>,
    client: Arc<ReceiverClient>,
    subscription: StoredSubscription,
    shutdown: CancellationToken,
}

impl Attempt {
    async fn run(self, entry: Entry<StoredDelivery>) -> AttemptEnd {
        let key = (entry.value.webhook.clone(), entry.value.id.clone());
        AttemptEnd { key, outcome: self.make(entry).await }
    }

    async fn make(self, entry: Entry<StoredDelivery>) -> Result<Option<StoredDelivery>, Fault> {
        let bus = &self.gateway.bus;
        let started = entry.value.started(clock::now());
        let Some(sequence) = write_delivery(bus, &started, entry.sequence).await? else {
            return Ok(None);
        };
        let request = build_request(&self.gateway, &self.subscription, &started, clock::now()).await;
        let outcome = self.client.send(request).await;
        let finished = started.finished(outcome, clock::now(), fastrand::f64());
        let mut failures = 0;
        loop {
            match write_delivery(bus, &finished, sequence).await {
                Ok(written) => return Ok(written.map(|_| finished)),
                Err(fault) if fault.is_transient() && !self.shutdown.is_cancelled() => {
                    failures += 1;
                    debug!(%fault, failures, "storing the outcome of a delivery failed; retrying");
                    tokio::time::sleep(backoff(failures)).await;
                }
                Err(fault) => return Err(fault),
            }
        }
    }
}
