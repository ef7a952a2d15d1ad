//! The deliveries that have not ended, as of the last changes of their bucket, and the attempts that are due. Pure.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use millrace_protocol::ids::{MessageId, WebhookId};
use millrace_protocol::webhook::{DeliveryState, DeliveryStep, StoredDelivery};
use millrace_runtime::store::bucket::{BucketChange, Entry};

/// The maximum number of attempts at the same time.
pub const MAX_IN_FLIGHT: usize = 64;
/// The maximum number of attempts at the same time for one webhook, so that a slow receiver leaves room for others.
const MAX_IN_FLIGHT_PER_WEBHOOK: usize = 8;
/// The maximum number of deliveries of a webhook that wait.
pub const MAX_WAITING: usize = 10_000;

pub type DeliveryKey = (WebhookId, MessageId);

#[derive(Default)]
pub struct DeliveryQueue {
    open: HashMap<DeliveryKey, Entry<StoredDelivery>>,
    in_flight: HashSet<DeliveryKey>,
    /// The number of deliveries of each webhook that have not ended.
    waiting: HashMap<WebhookId, usize>,
    /// The last success of each webhook.
    delivered: HashMap<WebhookId, Timestamp>,
}

fn key_of(delivery: &StoredDelivery) -> DeliveryKey {
    (delivery.webhook.clone(), delivery.id.clone())
}

impl DeliveryQueue {
    pub fn apply(&mut self, change: BucketChange<StoredDelivery>) {
        // Deliveries are not removed, apart from those that are too old, which have ended.
        let BucketChange::Set(entry) = change else { return };
        let key = key_of(&entry.value);
        if let DeliveryState::Delivered { at } = entry.value.state {
            let last = self.delivered.entry(key.0.clone()).or_insert(at);
            *last = at.max(*last);
        }
        let was_open = match entry.value.has_ended() {
            true => self.open.remove(&key).is_some(),
            false => self.open.insert(key.clone(), entry.clone()).is_some(),
        };
        let waiting = self.waiting.entry(key.0).or_default();
        match (was_open, entry.value.has_ended()) {
            (false, false) => *waiting += 1,
            (true, true) => *waiting -= 1,
            (false, true) | (true, false) => {}
        }
    }

    /// Returns the number of deliveries of a webhook that have not ended.
    pub fn waiting(&self, webhook: &WebhookId) -> usize {
        self.waiting.get(webhook).copied().unwrap_or_default()
    }

    pub fn last_success(&self, webhook: &WebhookId) -> Option<Timestamp> {
        self.delivered.get(webhook).copied()
    }

    /// Takes the deliveries whose attempts are due now and may start, those that wait longest first. `is_enabled` tells whether a
    /// webhook delivers.
    pub fn take_due(
        &mut self,
        now: Timestamp,
        is_enabled: impl Fn(&WebhookId) -> bool,
    ) -> Vec<Entry<StoredDelivery>> {
        let mut per_webhook: HashMap<WebhookId, usize> = HashMap::new();
        for (webhook, _) in &self.in_flight {
            *per_webhook.entry(webhook.clone()).or_default() += 1;
        }
        let is_due = |entry: &&Entry<StoredDelivery>| {
            entry.value.step_at(now) == DeliveryStep::Attempt
                && is_enabled(&entry.value.webhook)
                && !self.in_flight.contains(&key_of(&entry.value))
        };
        let mut due: Vec<&Entry<StoredDelivery>> = self.open.values().filter(is_due).collect();
        due.sort_by_key(|entry| entry.sequence);
        let mut taken = Vec::new();
        for entry in due {
            let count = per_webhook.entry(entry.value.webhook.clone()).or_default();
            if *count < MAX_IN_FLIGHT_PER_WEBHOOK && self.in_flight.len() + taken.len() < MAX_IN_FLIGHT {
                *count += 1;
                taken.push(entry.clone());
            }
        }
        self.in_flight.extend(taken.iter().map(|entry| key_of(&entry.value)));
        taken
    }

    pub fn attempt_ended(&mut self, key: &DeliveryKey) {
        self.in_flight.remove(key);
    }

    /// Returns the open deliveries of webhooks that do not exist.
    pub fn without_webhook(&self, exists: impl Fn(&WebhookId) -> bool) -> Vec<Entry<StoredDelivery>> {
        let orphans = self.open.values().filter(|entry| !exists(&entry.value.webhook));
        orphans.filter(|entry| !self.in_flight.contains(&key_of(&entry.value))).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::webhook::WebhookMessage;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn set(sequence: u64, webhook: &str, id: &str, created: i64) -> BucketChange<StoredDelivery> {
        let (webhook, id) = (WebhookId::new(webhook).unwrap(), MessageId::new(id).unwrap());
        let value = StoredDelivery::new(id, webhook, WebhookMessage::test(at(created)), at(created));
        BucketChange::Set(Entry { key: String::new(), value, sequence, at: at(created) })
    }

    #[test]
    fn a_slow_receiver_leaves_room_for_others() {
        let mut queue = DeliveryQueue::default();
        for number in 0..100 {
            queue.apply(set(number, "slow", &format!("m{number}"), 0));
        }
        queue.apply(set(100, "quick", "m", 0));
        let due = queue.take_due(at(1), |_| true);
        assert_eq!(due.len(), MAX_IN_FLIGHT_PER_WEBHOOK + 1);
        assert_eq!(due.last().unwrap().value.webhook.as_str(), "quick");
        assert!(queue.take_due(at(1), |_| true).is_empty(), "an attempt in flight was started again");
        queue.attempt_ended(&key_of(&due[0].value));
        assert_eq!(queue.take_due(at(1), |_| true).len(), 1);
        assert_eq!(queue.waiting(&WebhookId::new("slow").unwrap()), 100);
    }

    #[test]
    fn ended_and_disabled_deliveries_are_not_due() {
        let mut queue = DeliveryQueue::default();
        queue.apply(set(1, "w", "m", 0));
        assert!(queue.take_due(at(1), |_| false).is_empty());
        let BucketChange::Set(entry) = set(2, "w", "m", 0) else { panic!() };
        let value = StoredDelivery { state: DeliveryState::Delivered { at: at(5) }, ..entry.value };
        queue.apply(BucketChange::Set(Entry { value, ..entry }));
        let webhook = WebhookId::new("w").unwrap();
        assert!(queue.take_due(at(9), |_| true).is_empty());
        assert_eq!((queue.waiting(&webhook), queue.last_success(&webhook)), (0, Some(at(5))));
    }
}
