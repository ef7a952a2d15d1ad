//! The parts of a webhook that its creator chooses, and their rules. Pure.

use millrace_protocol::labels::{LabelSelector, MAX_LABELS};
use millrace_protocol::webhook::{SigningSecret, WebhookEventKind, find_description_problem};
use url::Url;

/// A mistake in the definition of a webhook.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWebhook {
    #[error("events: a webhook has one or more events")]
    NoEvents,
    /// The list of events has one that is requested only.
    #[error("events: webhook_test is sent when it is requested only")]
    TestEvent,
    #[error("labels: at most {MAX_LABELS} are allowed")]
    TooManyLabels,
    #[error("description: {0}")]
    Description(String),
    /// The secret before would be used for too long.
    #[error("keep_earlier_for: at most 30d is allowed")]
    Overlap,
}

#[derive(Debug)]
pub struct NewWebhook {
    /// The URL of its receiver, which the policy of the cluster allows.
    pub url: Url,
    pub description: String,
    pub events: Vec<WebhookEventKind>,
    /// Only events of runs with all these labels.
    pub labels: Vec<LabelSelector>,
    /// The secret; `None` to have one created.
    pub secret: Option<SigningSecret>,
}

impl NewWebhook {
    /// Returns the definition if it has no mistake, with each event once.
    pub(super) fn checked(self) -> Result<Self, InvalidWebhook> {
        Ok(Self {
            description: check_description(self.description)?,
            events: check_events(self.events)?,
            labels: check_labels(self.labels)?,
            ..self
        })
    }
}

/// A change of a webhook. Fields that are `None` stay the same.
#[derive(Debug, Default)]
pub struct WebhookChange {
    /// The URL of its receiver, which the policy of the cluster allows.
    pub url: Option<Url>,
    pub description: Option<String>,
    pub events: Option<Vec<WebhookEventKind>>,
    /// Only events of runs with all these labels.
    pub labels: Option<Vec<LabelSelector>>,
    /// `false` delivers nothing until it is enabled again. It never tells of events in between.
    pub enabled: Option<bool>,
}

impl WebhookChange {
    /// Returns the change if it has no mistake, with each event once.
    pub(super) fn checked(self) -> Result<Self, InvalidWebhook> {
        Ok(Self {
            description: self.description.map(check_description).transpose()?,
            events: self.events.map(check_events).transpose()?,
            labels: self.labels.map(check_labels).transpose()?,
            ..self
        })
    }
}

fn check_events(mut events: Vec<WebhookEventKind>) -> Result<Vec<WebhookEventKind>, InvalidWebhook> {
    if events.is_empty() {
        return Err(InvalidWebhook::NoEvents);
    }
    if events.contains(&WebhookEventKind::WebhookTest) {
        return Err(InvalidWebhook::TestEvent);
    }
    events.sort();
    events.dedup();
    Ok(events)
}

fn check_labels(labels: Vec<LabelSelector>) -> Result<Vec<LabelSelector>, InvalidWebhook> {
    if labels.len() > MAX_LABELS { Err(InvalidWebhook::TooManyLabels) } else { Ok(labels) }
}

fn check_description(description: String) -> Result<String, InvalidWebhook> {
    match find_description_problem(&description) {
        Some(problem) => Err(InvalidWebhook::Description(problem)),
        None => Ok(description),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_with_mistakes_are_refused_with_the_field() {
        let change = |events: &[WebhookEventKind]| WebhookChange {
            events: Some(events.to_vec()),
            ..WebhookChange::default()
        };
        let twice = [WebhookEventKind::RunStarted, WebhookEventKind::RunEnded, WebhookEventKind::RunStarted];
        let checked = change(&twice).checked().unwrap();
        assert_eq!(checked.events.unwrap(), [WebhookEventKind::RunStarted, WebhookEventKind::RunEnded]);
        assert_eq!(change(&[]).checked().unwrap_err(), InvalidWebhook::NoEvents);
        assert_eq!(
            change(&[WebhookEventKind::WebhookTest]).checked().unwrap_err(),
            InvalidWebhook::TestEvent
        );
        let labels = vec!["a".parse().unwrap(); MAX_LABELS + 1];
        let many = WebhookChange { labels: Some(labels), ..WebhookChange::default() };
        assert_eq!(many.checked().unwrap_err(), InvalidWebhook::TooManyLabels);
        let hidden = WebhookChange { description: Some("a\u{7}".into()), ..WebhookChange::default() };
        assert!(hidden.checked().unwrap_err().to_string().starts_with("description: "));
    }
}
