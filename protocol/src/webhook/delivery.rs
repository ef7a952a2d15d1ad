//! Deliveries: a message on its way to a receiver. Each change of its state is stored before it counts, and expects the state
//! before, so that of several senders one makes an attempt.
//!
//! ```text
//! waiting ──▶ sending ──▶ delivered            a 2xx response
//!    ▲           │ ├────▶ failed              no attempt left, or the receiver is gone
//!    └───────────┴─┘                          any other outcome, or the sender has died
//! ```

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::WebhookMessage;
use crate::ids::{MessageId, WebhookId};

/// The time for which a delivery is attempted.
pub const DELIVERY_AGE: SignedDuration = SignedDuration::from_hours(72);
/// The maximum length of a receiver's reply in the record of an attempt, in bytes.
pub const MAX_REPLY: usize = 512;
/// The number of attempts in the record of a delivery: the last ones.
const MAX_ATTEMPTS: usize = 10;
/// The delay after the first failed attempt; each later one is four times as long, up to [`MAX_DELAY`].
const FIRST_DELAY: Duration = Duration::from_secs(5);
/// The longest delay.
const MAX_DELAY: Duration = Duration::from_secs(8 * 60 * 60);
/// A sender that has not stored the outcome of its attempt for this long has died. It is longer than an attempt may take.
const ATTEMPT_AGE: SignedDuration = SignedDuration::from_secs(40);

/// A delivery as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredDelivery {
    /// The id of its message.
    pub id: MessageId,
    /// The webhook.
    pub webhook: WebhookId,
    /// The message.
    pub message: WebhookMessage,
    /// When it was created.
    pub created: Timestamp,
    /// The time after which there is no further attempt.
    pub expires: Timestamp,
    /// Its state.
    pub state: DeliveryState,
    /// The number of attempts so far.
    pub attempts: u32,
    /// The number of attempts since it was created, or redelivered by hand.
    pub round_attempts: u32,
    /// The last attempts, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<DeliveryAttempt>,
}

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DeliveryState {
    /// The next attempt is due at a time.
    Waiting {
        /// The time.
        next: Timestamp,
    },
    /// An attempt is in progress.
    Sending {
        /// When it began.
        since: Timestamp,
    },
    /// The receiver has accepted the message.
    Delivered {
        /// When.
        at: Timestamp,
    },
    /// There is no further attempt.
    Failed {
        /// Since when.
        at: Timestamp,
        /// The reason.
        reason: GiveUpReason,
    },
}

/// The reason why a delivery is not attempted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GiveUpReason {
    /// All attempts failed for three days.
    Expired,
    /// The receiver responded with 410 Gone.
    ReceiverGone,
    /// The webhook was deleted.
    WebhookDeleted,
}

/// An attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeliveryAttempt {
    /// When it began.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The time that it took, in milliseconds.
    pub milliseconds: u64,
    /// The status of the response; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The reason why there was no response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The beginning of the response's body, at most 512 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reply: String,
}

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptOutcome {
    /// The record of it.
    pub attempt: DeliveryAttempt,
    /// The delay before the next attempt that the receiver wants.
    pub retry_after: Option<Duration>,
}

/// The next step of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryStep {
    /// An attempt, now.
    Attempt,
    /// Nothing before this time.
    WaitUntil(Timestamp),
    /// Nothing: it has ended.
    Nothing,
}

impl StoredDelivery {
    /// Creates a delivery whose first attempt is due now.
    #[must_use]
    pub fn new(id: MessageId, webhook: WebhookId, message: WebhookMessage, now: Timestamp) -> Self {
        Self {
            id,
            webhook,
            message,
            created: now,
            expires: now.checked_add(DELIVERY_AGE).unwrap_or(Timestamp::MAX),
            state: DeliveryState::Waiting { next: now },
            attempts: 0,
            round_attempts: 0,
            log: Vec::new(),
        }
    }

    /// Returns the next step.
    pub fn step_at(&self, now: Timestamp) -> DeliveryStep {
        let due = match self.state {
            DeliveryState::Waiting { next } => next,
            DeliveryState::Sending { since } => since.checked_add(ATTEMPT_AGE).unwrap_or(Timestamp::MAX),
            DeliveryState::Delivered { .. } | DeliveryState::Failed { .. } => return DeliveryStep::Nothing,
        };
        if due <= now { DeliveryStep::Attempt } else { DeliveryStep::WaitUntil(due) }
    }

    /// `true` if it has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, DeliveryState::Delivered { .. } | DeliveryState::Failed { .. })
    }

    /// Returns the delivery with an attempt in progress.
    pub fn started(&self, now: Timestamp) -> Self {
        Self {
            state: DeliveryState::Sending { since: now },
            attempts: self.attempts.saturating_add(1),
            round_attempts: self.round_attempts.saturating_add(1),
            ..self.clone()
        }
    }

    /// Returns the delivery after an attempt. `jitter` is a random number from 0 to 1, so that deliveries that failed together do not
    /// return together.
    pub fn finished(&self, outcome: AttemptOutcome, now: Timestamp, jitter: f64) -> Self {
        let AttemptOutcome { attempt, retry_after } = outcome;
        let state = match attempt.status {
            Some(200..=299) => DeliveryState::Delivered { at: now },
            Some(410) => DeliveryState::Failed { at: now, reason: GiveUpReason::ReceiverGone },
            Some(_) | None => self.retry_state(retry_after, now, jitter),
        };
        let mut log = self.log.clone();
        log.push(attempt);
        log.drain(..log.len().saturating_sub(MAX_ATTEMPTS));
        Self { state, log, ..self.clone() }
    }

    fn retry_state(&self, retry_after: Option<Duration>, now: Timestamp, jitter: f64) -> DeliveryState {
        let factor = 4_u32.saturating_pow(self.round_attempts.saturating_sub(1));
        let delay = FIRST_DELAY.saturating_mul(factor).min(MAX_DELAY);
        let delay = delay.mul_f64(0.8 + 0.4 * jitter.clamp(0.0, 1.0));
        let delay = delay.max(retry_after.unwrap_or_default().min(MAX_DELAY));
        let next = SignedDuration::try_from(delay).ok().and_then(|delay| now.checked_add(delay).ok());
        match next.filter(|next| *next <= self.expires) {
            Some(next) => DeliveryState::Waiting { next },
            None => DeliveryState::Failed { at: now, reason: GiveUpReason::Expired },
        }
    }

    /// Returns the delivery as one that a user sends again: it has the same message, and three more days.
    pub fn redelivered(&self, now: Timestamp) -> Self {
        Self {
            state: DeliveryState::Waiting { next: now },
            expires: now.checked_add(DELIVERY_AGE).unwrap_or(Timestamp::MAX),
            round_attempts: 0,
            ..self.clone()
        }
    }

    /// Returns the delivery without further attempts.
    pub fn given_up(&self, reason: GiveUpReason, now: Timestamp) -> Self {
        Self { state: DeliveryState::Failed { at: now, reason }, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn delivery() -> StoredDelivery {
        let (id, webhook) = (MessageId::new("msg_1").unwrap(), WebhookId::new("wh-1").unwrap());
        StoredDelivery::new(id, webhook, WebhookMessage::test(at(0)), at(0))
    }

    fn outcome(status: Option<u16>) -> AttemptOutcome {
        let attempt =
            DeliveryAttempt { at: at(0), milliseconds: 1, status, error: None, reply: String::new() };
        AttemptOutcome { attempt, retry_after: None }
    }

    #[test]
    fn a_receiver_that_stays_away_is_tried_for_three_days() {
        let (mut delivery, mut now, mut times) = (delivery(), at(0), Vec::new());
        while let DeliveryState::Waiting { next } = delivery.state {
            assert_eq!(delivery.step_at(next), DeliveryStep::Attempt);
            now = next;
            times.push(now.as_second());
            delivery = delivery.started(now).finished(outcome(Some(503)), now, 0.5);
        }
        assert_eq!(times[..5], [0, 5, 25, 105, 425]);
        assert!(times.len() > 10 && times.len() < 20, "{times:?}");
        assert!(now > at(60 * 60 * 60), "the last attempt was at {now}");
        assert_eq!(delivery.state, DeliveryState::Failed { at: now, reason: GiveUpReason::Expired });
        assert_eq!((delivery.log.len(), delivery.attempts as usize), (MAX_ATTEMPTS, times.len()));
        let again = delivery.redelivered(now).started(now).finished(outcome(None), now, 0.5);
        assert_eq!(again.step_at(now), DeliveryStep::WaitUntil(now + SignedDuration::from_secs(5)));
    }

    #[test]
    fn success_and_gone_end_a_delivery() {
        let after = |status| delivery().started(at(1)).finished(outcome(Some(status)), at(2), 0.0).state;
        assert_eq!(after(204), DeliveryState::Delivered { at: at(2) });
        assert_eq!(after(410), DeliveryState::Failed { at: at(2), reason: GiveUpReason::ReceiverGone });
        for other in [199, 301, 400, 404, 429, 500] {
            assert!(matches!(after(other), DeliveryState::Waiting { .. }), "{other}");
        }
    }

    #[test]
    fn receivers_may_ask_for_a_later_attempt() {
        let outcome = |seconds| AttemptOutcome {
            retry_after: Some(Duration::from_secs(seconds)),
            ..outcome(Some(429))
        };
        let after = |seconds| delivery().started(at(0)).finished(outcome(seconds), at(0), 0.5).state;
        assert_eq!(after(60), DeliveryState::Waiting { next: at(60) });
        assert_eq!(after(1), DeliveryState::Waiting { next: at(5) });
        assert_eq!(after(u64::MAX), DeliveryState::Waiting { next: at(8 * 60 * 60) });
    }

    #[test]
    fn an_attempt_without_an_outcome_is_repeated() {
        let sending = delivery().started(at(100));
        assert_eq!(sending.step_at(at(100)), DeliveryStep::WaitUntil(at(140)));
        assert_eq!(sending.step_at(at(140)), DeliveryStep::Attempt);
    }

    #[test]
    fn stored_deliveries_stay_readable() {
        let stored = delivery().started(at(1)).finished(outcome(Some(200)), at(2), 0.0);
        let text = serde_json::to_string(&stored).unwrap();
        assert_eq!(
            text,
            r#"{"id":"msg_1","webhook":"wh-1","message":{"type":"webhook_test","timestamp":"1970-01-01T00:00:00Z","data":{}},"created":"1970-01-01T00:00:00Z","expires":"1970-01-04T00:00:00Z","state":{"type":"delivered","at":"1970-01-01T00:00:02Z"},"attempts":1,"round_attempts":1,"log":[{"at":"1970-01-01T00:00:00Z","milliseconds":1,"status":200}]}"#
        );
        assert_eq!(serde_json::from_str::<StoredDelivery>(&text).unwrap(), stored);
    }
}
