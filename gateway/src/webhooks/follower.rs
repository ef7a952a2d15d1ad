//! Reads the log, and derives deliveries from it. The position is written after the deliveries are stored, so that whoever continues
//! derives those that are missing, and finds the others by their ids.
//!
//! Push configs whose run is gone, or ended long ago, are removed, so that secrets of clients are not kept longer than needed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use millrace_client::questions::full_id;
use millrace_protocol::ids::{Lane, RunId, WebhookId};
use millrace_protocol::plan::Decision;
use millrace_protocol::question::QuestionAsker;
use millrace_protocol::webhook::{
    DELIVERY_AGE, EventNotice, StoredDelivery, StoredPushConfig, StoredSubscription, WebhookMessage,
    notices_of_decision,
};
use millrace_runtime::fault::max_replica_lag;
use millrace_runtime::log::follow::{LaneLog, LogTopics};
use millrace_runtime::nats::topology::{WEBHOOKS, bucket_stream};
use millrace_runtime::ops::cluster_status::read_stream_states;
use millrace_runtime::store::bucket::{BucketChange, BucketChanges, Entry};
use millrace_runtime::store::keys::ExportPosition;
use millrace_runtime::store::webhooks::{
    create_deliveries, follow_subscriptions, read_lane_ends, remove_push_config, write_subscription,
};
use millrace_runtime::{Bus, Fault, clock};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::feed::{LaneMessage, read_labels};
use crate::history::HistoryCache;
use crate::problem::ProblemKind;
use crate::run_index::RunIndex;
use crate::state::Gateway;

/// The pause before the webhooks are read again from a replica that lags.
const LAG_PAUSE: Duration = Duration::from_millis(50);
/// The number of parts of a lane that are read before other work gets its turn.
const PARTS: usize = 8;

/// The webhooks and push configs, as they were read last.
pub struct SubscriptionTable {
    bus: Bus,
    changes: BucketChanges<StoredSubscription>,
    all: HashMap<WebhookId, Entry<StoredSubscription>>,
    of_all_runs: BTreeSet<WebhookId>,
    /// The push configs of each run.
    of_run: HashMap<RunId, BTreeSet<WebhookId>>,
}

impl SubscriptionTable {
    pub fn new(bus: &Bus) -> Self {
        Self {
            bus: bus.clone(),
            changes: follow_subscriptions(),
            all: HashMap::new(),
            of_all_runs: BTreeSet::new(),
            of_run: HashMap::new(),
        }
    }

    /// Reads the subscriptions that have changed. Every change before this call is read when it returns.
    pub async fn refresh(&mut self) -> Result<(), Fault> {
        let stream = bucket_stream(WEBHOOKS);
        let states = read_stream_states(&self.bus, vec![stream.clone()]).await?;
        let last = states.get(&stream).map_or(0, |state| state.last_sequence);
        let (started, lag) = (Instant::now(), max_replica_lag(self.bus.settings().replicas));
        loop {
            if self.changes.seen() < last {
                for change in self.changes.read_new(&self.bus).await? {
                    self.apply(change);
                }
            }
            if self.changes.seen() >= last {
                return Ok(());
            }
            if started.elapsed() > lag {
                return Err(Fault::unavailable("reading the webhooks", "the server lags"));
            }
            tokio::time::sleep(LAG_PAUSE).await;
        }
    }

    fn apply(&mut self, change: BucketChange<StoredSubscription>) {
        match change {
            BucketChange::Set(entry) => {
                let id = entry.value.id().clone();
                match entry.value.run() {
                    None => self.of_all_runs.insert(id.clone()),
                    Some(run) => self.of_run.entry(run.clone()).or_default().insert(id.clone()),
                };
                self.all.insert(id, entry);
            }
            BucketChange::Removed(key) => {
                let id = key.rsplit('.').next().unwrap_or_default();
                let Some(removed) = self.all.remove(id) else { return };
                self.of_all_runs.remove(id);
                if let Some(run) = removed.value.run()
                    && let Some(configs) = self.of_run.get_mut(run)
                {
                    configs.remove(id);
                    if configs.is_empty() {
                        self.of_run.remove(run);
                    }
                }
            }
        }
    }

    pub fn find(&self, id: &WebhookId) -> Option<&Entry<StoredSubscription>> {
        self.all.get(id)
    }

    /// `true` if there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn push_configs(&self) -> impl Iterator<Item = &StoredPushConfig> {
        self.of_run.values().flatten().filter_map(|id| match &self.all.get(id)?.value {
            StoredSubscription::Push(config) => Some(config),
            StoredSubscription::Webhook(_) => None,
        })
    }

    fn enabled(&self) -> impl Iterator<Item = &StoredSubscription> {
        self.all.values().map(|entry| &entry.value).filter(|subscription| subscription.is_enabled())
    }

    /// Returns the enabled subscriptions that may select events of a run.
    fn enabled_for<'a>(&'a self, run: &RunId) -> impl Iterator<Item = &'a StoredSubscription> {
        let ids = self.of_all_runs.iter().chain(self.of_run.get(run).into_iter().flatten());
        let found = ids.filter_map(|id| self.all.get(id)).map(|entry| &entry.value);
        found.filter(|subscription| subscription.is_enabled())
    }

    /// Returns the sequence in a lane after which some subscription tells of events; `None` if all are disabled.
    fn first_wanted(&self, lane: u16) -> Option<u64> {
        self.enabled().map(|subscription| subscription.since().get(&lane).copied().unwrap_or_default()).min()
    }

    /// Corrects subscriptions that begin after the end of a lane, which happens if the cluster was restored from a backup.
    async fn limit_to_ends(&self, ends: &BTreeMap<u16, u64>) -> Result<(), Fault> {
        for entry in self.all.values() {
            let mut subscription = entry.value.clone();
            for (lane, since) in subscription.since_mut() {
                *since = (*since).min(ends.get(lane).copied().unwrap_or_default());
            }
            if subscription.since() != entry.value.since() {
                let id = subscription.id();
                warn!(webhook = %id, "the log is shorter than when the webhook was created");
                write_subscription(&self.bus, &subscription, entry.sequence).await?;
            }
        }
        Ok(())
    }
}

/// A reader of all lanes.
pub struct DeliveryFollower {
    bus: Bus,
    index: Arc<RunIndex>,
    histories: Arc<HistoryCache>,
    position: ExportPosition,
    lanes: Vec<LaneLog>,
}

impl DeliveryFollower {
    /// Returns the position before the first one that is written: the beginning of each lane.
    pub async fn first_position(bus: &Bus, index: &RunIndex) -> Result<ExportPosition, Fault> {
        index.refresh(bus).await?;
        let lanes = (0..bus.settings().lanes).map(|lane| (lane, 0)).collect();
        Ok(ExportPosition { exporter: String::new(), lanes, summaries: index.revision() })
    }

    /// Starts from a position.
    pub async fn open(
        bus: &Bus,
        (index, histories): (Arc<RunIndex>, Arc<HistoryCache>),
        mut position: ExportPosition,
        webhooks: &mut SubscriptionTable,
    ) -> Result<Self, Fault> {
        // The ends must be those after the webhooks, whose beginnings are compared with them.
        webhooks.refresh().await?;
        let ends = read_lane_ends(bus).await?;
        webhooks.limit_to_ends(&ends).await?;
        webhooks.refresh().await?;
        for (lane, end) in ends {
            let read = position.lanes.entry(lane).or_default();
            *read = (*read).min(end);
        }
        Ok(Self { bus: bus.clone(), index, histories, position, lanes: Vec::new() })
    }

    /// The position up to which all deliveries are stored.
    pub fn position(&self) -> ExportPosition {
        self.position.clone()
    }

    /// Reads a part of each lane and stores the deliveries of its events. Returns `true` if there may be more. `has_room` tells
    /// whether a webhook may have more deliveries; one that has none is added to the second result.
    pub async fn read_lanes(
        &mut self,
        webhooks: &mut SubscriptionTable,
        has_room: impl Fn(&WebhookId) -> bool,
    ) -> Result<(bool, Vec<WebhookId>), Fault> {
        webhooks.refresh().await?;
        if webhooks.enabled().next().is_none() {
            // The next one that is enabled begins at the end of the log at that time.
            self.lanes.clear();
            return Ok((false, Vec::new()));
        }
        self.open_lanes(webhooks);
        let (mut has_more, mut full) = (false, Vec::new());
        for at in 0..self.lanes.len() {
            let mut parts = 0;
            loop {
                let part = self.lanes[at].next_part(|_| true).await?;
                if !part.records.is_empty() {
                    // A webhook whose creation was confirmed gets every later event.
                    webhooks.refresh().await?;
                }
                for message in part.records.into_iter().filter_map(LaneMessage::from_record) {
                    self.store_deliveries(at, &message, webhooks, &has_room, &mut full).await?;
                }
                let lane = u16::try_from(at).unwrap_or(u16::MAX);
                self.position.lanes.insert(lane, self.lanes[at].seen());
                parts += 1;
                if part.is_end_of_log {
                    break;
                }
                if parts >= PARTS {
                    has_more = true;
                    break;
                }
            }
        }
        self.position.summaries = self.index.revision();
        Ok((has_more, full))
    }

    fn open_lanes(&mut self, webhooks: &SubscriptionTable) {
        if !self.lanes.is_empty() {
            return;
        }
        for lane in 0..self.bus.settings().lanes {
            let read = self.position.lanes.entry(lane).or_default();
            *read = (*read).max(webhooks.first_wanted(lane).unwrap_or_default());
            let find_archived = self.index.find_archived(&self.bus);
            let kind = (Lane(lane), LogTopics::Decisions);
            self.lanes.push(LaneLog::new(&self.bus, find_archived, kind, *read));
        }
    }

    async fn store_deliveries(
        &self,
        lane: usize,
        message: &LaneMessage,
        webhooks: &SubscriptionTable,
        has_room: impl Fn(&WebhookId) -> bool,
        full: &mut Vec<WebhookId>,
    ) -> Result<(), Fault> {
        let decision: Decision = match self.bus.decode_record(&message.record).await {
            Ok(decision) => decision,
            Err(fault) if fault.is_transient() => return Err(fault),
            Err(fault) => {
                warn!(run = %message.run, %fault, "no webhook tells of an unreadable decision");
                return Ok(());
            }
        };
        let notices = notices_of_decision(&decision);
        let is_wanted = |one: &StoredSubscription| notices.iter().any(|notice| one.tells_of(notice.kind));
        if !webhooks.enabled_for(&message.run).any(is_wanted) {
            return Ok(());
        }
        let labels = match read_labels(&self.bus, &self.index, &self.histories, message).await {
            Err(fault) if fault.is_transient() => return Err(fault),
            labels => labels.unwrap_or_default(),
        };
        let (lane, now) = (u16::try_from(lane).unwrap_or(u16::MAX), clock::now());
        let mut deliveries = Vec::new();
        for notice in &notices {
            let (run, sequence) = ((&message.run, &labels), message.sequence());
            let wanted: Vec<&WebhookId> = webhooks
                .enabled_for(&message.run)
                .filter(|one| one.selects(notice.kind, run, lane, sequence))
                .map(StoredSubscription::id)
                .collect();
            if wanted.is_empty() {
                continue;
            }
            let question = self.find_question(&message.run, notice).await?;
            let content =
                WebhookMessage::new(&message.run, message.sequence(), decision.at, notice, question);
            let id = notice.message_id(&message.run, message.sequence());
            for webhook in wanted {
                if has_room(webhook) {
                    deliveries.push(StoredDelivery::new(id.clone(), webhook.clone(), content.clone(), now));
                } else if !full.contains(webhook) {
                    full.push(webhook.clone());
                }
            }
        }
        create_deliveries(&self.bus, &deliveries).await
    }

    /// Returns the id of the question of a notice, as the API names it.
    async fn find_question(&self, run: &RunId, notice: &EventNotice) -> Result<Option<String>, Fault> {
        let Some((key, attempt)) = &notice.question else { return Ok(None) };
        let state = match self.histories.read(&self.bus, run).await {
            Ok(state) => state,
            Err(fault) if fault.is_transient() => return Err(fault),
            Err(fault) => {
                warn!(%run, %fault, "a webhook tells of a question without its id");
                return Ok(None);
            }
        };
        let is_asker = |asker: &QuestionAsker| match (asker, attempt) {
            (QuestionAsker::Plan, None) => true,
            (QuestionAsker::Attempt(task, number), Some(attempt)) => {
                Some(task) == notice.task.as_ref() && number == attempt
            }
            (QuestionAsker::Plan, Some(_)) | (QuestionAsker::Attempt(..), None) => false,
        };
        // Of several questions about the plan, the last one is meant: they share a key.
        let found = state
            .plan()
            .questions()
            .filter(|question| is_asker(&question.id.asker) && question.wait.wait.key == *key)
            .last();
        Ok(found.map(|question| full_id(run, &question.id)))
    }
}

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
