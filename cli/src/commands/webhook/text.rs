//! Webhooks and deliveries as text. Pure.

use jiff::Timestamp;
use millrace_protocol::safe_text::single_line;
use millrace_protocol::webhook::{
    DeliveryAttempt, DeliveryState, DisableReason, GiveUpReason, StoredDelivery, StoredWebhook,
};

use crate::view::{align_columns, format_age};

fn format_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn state_of(webhook: &StoredWebhook) -> &'static str {
    match webhook.disabled {
        None => "enabled",
        Some(DisableReason::ByUser) => "paused",
        Some(DisableReason::ReceiverGone) => "disabled: the receiver is gone (410)",
        Some(DisableReason::ReceiverAway) => "disabled: no success for three days",
        Some(DisableReason::TooManyWaiting) => "disabled: too many messages wait",
    }
}

fn selection_of(webhook: &StoredWebhook) -> (String, String) {
    let events: Vec<&str> = webhook.events.iter().map(|event| event.name()).collect();
    let labels: Vec<String> = webhook.labels.iter().map(ToString::to_string).collect();
    (events.join(", "), labels.join(", "))
}

pub fn webhook_table(webhooks: &[StoredWebhook]) -> Vec<String> {
    let heads = ["WEBHOOK", "STATE", "EVENTS", "LABELS", "URL"].map(str::to_owned);
    let rows = webhooks.iter().map(|webhook| {
        let (events, labels) = selection_of(webhook);
        [
            webhook.id.to_string(),
            state_of(webhook).to_owned(),
            events,
            single_line(&labels),
            single_line(&webhook.url),
        ]
    });
    align_columns(&[heads].into_iter().chain(rows).collect::<Vec<_>>())
}

/// Returns the lines that describe a webhook.
pub fn describe_webhook(webhook: &StoredWebhook, now: Timestamp) -> Vec<String> {
    let (events, labels) = selection_of(webhook);
    let labels = if labels.is_empty() { "all runs".to_owned() } else { single_line(&labels) };
    let earlier = webhook.earlier_secret.as_ref().filter(|earlier| earlier.until > now);
    let mut lines = vec![
        format!("webhook      {}", webhook.id),
        format!("url          {}", single_line(&webhook.url)),
        format!("state        {}", state_of(webhook)),
        format!("events       {events}"),
        format!("labels       {labels}"),
        format!("created      {} by {}", format_time(webhook.created), single_line(&webhook.created_by)),
    ];
    if !webhook.description.is_empty() {
        lines.push(format!("description  {}", single_line(&webhook.description)));
    }
    if let Some(earlier) = earlier {
        lines.push(format!("secret       the earlier one signs too until {}", format_time(earlier.until)));
    }
    lines
}

fn outcome_of(delivery: &StoredDelivery) -> String {
    match &delivery.state {
        DeliveryState::Waiting { next } => format!("waiting until {}", format_time(*next)),
        DeliveryState::Sending { .. } => "sending".into(),
        DeliveryState::Delivered { at } => format!("delivered at {}", format_time(*at)),
        DeliveryState::Failed { at, reason } => {
            let reason = match reason {
                GiveUpReason::Expired => "no success for three days",
                GiveUpReason::ReceiverGone => "the receiver is gone (410)",
                GiveUpReason::WebhookDeleted => "the webhook was deleted",
            };
            format!("failed at {}: {reason}", format_time(*at))
        }
    }
}

fn describe_attempt(attempt: &DeliveryAttempt) -> String {
    let DeliveryAttempt { at, milliseconds, status, error, reply } = attempt;
    let outcome = match (status, error) {
        (Some(status), _) if reply.is_empty() => format!("status {status}"),
        (Some(status), _) => format!("status {status}: {}", single_line(reply)),
        (None, Some(error)) => single_line(error),
        (None, None) => "no response".into(),
    };
    format!("{}  {milliseconds} ms  {outcome}", format_time(*at))
}

pub fn delivery_table(deliveries: &[StoredDelivery], now: Timestamp) -> Vec<String> {
    let heads = ["DELIVERY", "EVENT", "RUN", "AGE", "ATTEMPTS", "OUTCOME"].map(str::to_owned);
    let rows = deliveries.iter().map(|delivery| {
        [
            delivery.id.to_string(),
            delivery.message.kind.to_string(),
            delivery.message.data.run.as_ref().map(ToString::to_string).unwrap_or_default(),
            format_age(now.duration_since(delivery.created)),
            delivery.attempts.to_string(),
            outcome_of(delivery),
        ]
    });
    align_columns(&[heads].into_iter().chain(rows).collect::<Vec<_>>())
}

/// Returns the lines that describe a delivery: its state, and its last attempts.
pub fn describe_delivery(delivery: &StoredDelivery) -> Vec<String> {
    let state = format!("{}  {}  {}", delivery.id, delivery.message.kind, outcome_of(delivery));
    let attempts = delivery.log.iter().map(|attempt| format!("  {}", describe_attempt(attempt)));
    std::iter::once(state).chain(attempts).collect()
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::{MessageId, WebhookId};
    use millrace_protocol::webhook::{AttemptOutcome, WebhookMessage};

    use super::*;

    #[test]
    fn deliveries_say_what_the_receiver_did() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (id, webhook) = (MessageId::new("msg_1").unwrap(), WebhookId::new("wh_1").unwrap());
        let delivery = StoredDelivery::new(id, webhook, WebhookMessage::test(at(0)), at(0)).started(at(1));
        let attempt = DeliveryAttempt {
            at: at(1),
            milliseconds: 7,
            status: Some(503),
            error: None,
            reply: "busy\nlater".into(),
        };
        let outcome = AttemptOutcome { attempt, retry_after: None };
        let lines = describe_delivery(&delivery.finished(outcome, at(2), 0.5));
        assert_eq!(lines[0], "msg_1  webhook_test  waiting until 1970-01-01 00:00:07 UTC");
        assert!(lines[1].contains("7 ms  status 503: busy"), "{lines:?}");
        assert!(!lines[1].contains('\n'), "{lines:?}");
    }
}
