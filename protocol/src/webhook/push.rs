//! Push configs: the receivers that an A2A client names for one run, and the rules of what it may name. Pure.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{DisableReason, WebhookEventKind};
use crate::ids::{RunId, WebhookId};

/// The maximum number of push configs of a run.
pub const MAX_PUSH_CONFIGS: usize = 10;
/// The first part of the key of each push config in the bucket of webhooks.
pub const PUSH_PREFIX: &str = "push";
/// The maximum length of the id that a client chooses, in characters.
const MAX_ID: usize = 128;
/// The maximum length of a token or of credentials in bytes. Signed tokens have some thousand.
const MAX_SECRET: usize = 4_096;
/// The maximum length of the name of an authentication scheme.
const MAX_SCHEME: usize = 64;

/// A text that is stored and sent, and never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    /// Returns the text, which is sent to its receiver only.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for SecretText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}

/// The header `Authorization` of requests to a receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushAuthentication {
    /// The scheme, such as `Bearer`.
    pub scheme: String,
    /// The credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<SecretText>,
}

/// A push config as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPushConfig {
    /// The id of its deliveries, which follows from the run and from `config`.
    pub id: WebhookId,
    /// The run that it tells of.
    pub run: RunId,
    /// The id that its client knows.
    pub config: String,
    /// The URL of its receiver.
    pub url: String,
    /// The token that the receiver expects in the header `X-A2A-Notification-Token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretText>,
    /// The authentication that the receiver expects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authentication: Option<PushAuthentication>,
    /// The reason why it delivers nothing; `None` if it is enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<DisableReason>,
    /// For each lane, the sequence after which it tells of events: the end of the lane when it was set.
    pub since: BTreeMap<u16, u64>,
    /// When it was set.
    pub created: Timestamp,
    /// The user or token holder that set it.
    pub created_by: String,
}

/// A mistake in a push config.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPushConfig {
    /// The id is empty, too long, or can't be shown.
    #[error("id: it must have 1 to {MAX_ID} printable characters without spaces and slashes")]
    Id,
    /// The token can't be a header. It is not quoted.
    #[error("token: it must have 1 to {MAX_SECRET} printable ASCII characters")]
    Token,
    /// The scheme is no name of a scheme.
    #[error("authentication.scheme: it must be the name of an HTTP authentication scheme, such as Bearer")]
    Scheme,
    /// The credentials can't be a header. They are not quoted.
    #[error("authentication.credentials: they must have 1 to {MAX_SECRET} printable ASCII characters")]
    Credentials,
}

impl StoredPushConfig {
    /// The kinds of events that change the status of an A2A task.
    pub const EVENTS: [WebhookEventKind; 4] = [
        WebhookEventKind::RunStarted,
        WebhookEventKind::RunResumed,
        WebhookEventKind::QuestionAsked,
        WebhookEventKind::RunEnded,
    ];

    /// Returns the id of the deliveries of a config.
    ///
    /// # Panics
    /// Never: hexadecimal digits are a valid id.
    #[must_use]
    pub fn id_of(run: &RunId, config: &str) -> WebhookId {
        let hash = Sha256::digest(format!("{run}/{config}"));
        let digits: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        WebhookId::new(format!("push_{digits}")).expect("hexadecimal digits are a valid id")
    }

    /// Returns the beginning of the keys of the configs of a run.
    #[must_use]
    pub fn key_prefix(run: &RunId) -> String {
        format!("{PUSH_PREFIX}.{run}.")
    }

    /// Returns the key of the config.
    pub fn key(&self) -> String {
        format!("{}{}", Self::key_prefix(&self.run), self.id)
    }

    /// `true` if it tells of an event of its run at this place of the log.
    pub fn selects(&self, kind: WebhookEventKind, run: &RunId, lane: u16, sequence: u64) -> bool {
        self.disabled.is_none()
            && self.run == *run
            && Self::EVENTS.contains(&kind)
            && self.since.get(&lane).is_none_or(|since| *since < sequence)
    }
}

fn is_secret(text: &str) -> bool {
    (1..=MAX_SECRET).contains(&text.len())
        && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && text.trim() == text
}

/// Checks the id that a client chooses.
pub fn check_push_id(id: &str) -> Result<(), InvalidPushConfig> {
    let is_allowed = |c: char| {
        !c.is_whitespace() && !c.is_control() && !matches!(c, '/' | '\\') && !crate::safe_text::is_unsafe(c)
    };
    let is_id = (1..=MAX_ID).contains(&id.chars().count()) && id.chars().all(is_allowed);
    // Clients resolve these in a path.
    if is_id && id != "." && id != ".." { Ok(()) } else { Err(InvalidPushConfig::Id) }
}

/// Checks the headers that a receiver is to get.
/// Errors: the token, the scheme or the credentials can't be a header.
pub fn check_push_headers(
    token: Option<&SecretText>,
    authentication: Option<&PushAuthentication>,
) -> Result<(), InvalidPushConfig> {
    if token.is_some_and(|token| !is_secret(token.reveal())) {
        return Err(InvalidPushConfig::Token);
    }
    let Some(PushAuthentication { scheme, credentials }) = authentication else { return Ok(()) };
    let is_scheme = (1..=MAX_SCHEME).contains(&scheme.len())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
    if !is_scheme {
        return Err(InvalidPushConfig::Scheme);
    }
    if credentials.as_ref().is_some_and(|text| !is_secret(text.reveal())) {
        return Err(InvalidPushConfig::Credentials);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> StoredPushConfig {
        let run = RunId::new("r").unwrap();
        StoredPushConfig {
            id: StoredPushConfig::id_of(&run, "c 1"),
            run,
            config: "c 1".into(),
            url: "https://a.example/".into(),
            token: Some("t".to_owned().into()),
            authentication: Some(PushAuthentication {
                scheme: "Bearer".into(),
                credentials: Some("s".to_owned().into()),
            }),
            disabled: None,
            since: BTreeMap::from([(0, 10)]),
            created: Timestamp::UNIX_EPOCH,
            created_by: "ann".into(),
        }
    }

    #[test]
    fn push_configs_select_changes_of_the_status_of_their_run() {
        let (config, run, other) = (config(), RunId::new("r").unwrap(), RunId::new("r2").unwrap());
        for kind in WebhookEventKind::EVENTS {
            let is_status = StoredPushConfig::EVENTS.contains(&kind);
            assert_eq!(config.selects(kind, &run, 0, 11), is_status, "{kind}");
            assert!(!config.selects(kind, &run, 0, 10) && !config.selects(kind, &other, 0, 11), "{kind}");
        }
        let disabled = StoredPushConfig { disabled: Some(DisableReason::ReceiverGone), ..config };
        assert!(!disabled.selects(WebhookEventKind::RunEnded, &run, 0, 11));
    }

    #[test]
    fn stored_push_configs_stay_readable_and_never_show_secrets() {
        let text = serde_json::to_string(&config()).unwrap();
        assert_eq!(
            text,
            r#"{"id":"push_9793efbdd1a4f0a0ab6352ef04f9f9d8","run":"r","config":"c 1","url":"https://a.example/","token":"t","authentication":{"scheme":"Bearer","credentials":"s"},"since":{"0":10},"created":"1970-01-01T00:00:00Z","created_by":"ann"}"#
        );
        assert_eq!(serde_json::from_str::<StoredPushConfig>(&text).unwrap(), config());
        assert!(!format!("{:?}", config()).contains("\"s\""));
        assert_eq!(config().key(), "push.r.push_9793efbdd1a4f0a0ab6352ef04f9f9d8");
    }

    #[test]
    fn ids_and_headers_are_checked() {
        for id in ["c", "ünique-1", "a.b:c", &"x".repeat(MAX_ID)] {
            assert_eq!(check_push_id(id), Ok(()), "{id}");
        }
        for id in ["", "a b", "a/b", "a\u{7}", "..", &"x".repeat(MAX_ID + 1)] {
            assert_eq!(check_push_id(id), Err(InvalidPushConfig::Id), "{id}");
        }
        let check = |token: &str, scheme: &str, credentials: &str| {
            let credentials = Some(credentials.to_owned().into());
            let authentication = PushAuthentication { scheme: scheme.to_owned(), credentials };
            check_push_headers(Some(&token.to_owned().into()), Some(&authentication))
        };
        assert_eq!(check("t", "Bearer", "a.b=c d"), Ok(()));
        assert_eq!(check("t\r\nHost: x", "Bearer", "a"), Err(InvalidPushConfig::Token));
        assert_eq!(check("t", "Bearer x", "a"), Err(InvalidPushConfig::Scheme));
        assert_eq!(check("t", "Bearer", "a\n"), Err(InvalidPushConfig::Credentials));
        assert_eq!(check("t", "Bearer", &"a".repeat(MAX_SECRET + 1)), Err(InvalidPushConfig::Credentials));
    }
}
