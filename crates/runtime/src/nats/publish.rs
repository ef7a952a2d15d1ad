//! Publishing to a stream: a message, and the acknowledgement of the server.
//!
//! This is the hot path of every process, so it does not use the publishing of the client library, which reads each acknowledgement
//! as an error first, and boxes a future for it.

use async_nats::client::{RequestError, RequestErrorKind};
use async_nats::jetstream;
use async_nats::{HeaderMap, Request};
use bytes::Bytes;
use serde::Deserialize;

use super::bus::Bus;
use super::connect::ACK_TIMEOUT;

/// A message that the server has not acknowledged. It may be stored all the same, unless it was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    /// The server refused the message.
    #[error("{0}")]
    Refused(#[source] jetstream::Error),
    /// No acknowledgement came.
    #[error("{}", describe_missing_reply(.0))]
    NoReply(#[source] RequestError),
    /// The acknowledgement can't be read.
    #[error("the server's acknowledgement is invalid: {0}")]
    InvalidReply(#[source] serde_json::Error),
}

fn describe_missing_reply(error: &RequestError) -> String {
    match error.kind() {
        RequestErrorKind::TimedOut => {
            format!("the server did not acknowledge the message within {} s", ACK_TIMEOUT.as_secs())
        }
        RequestErrorKind::NoResponders => "no stream has this subject, or it has no leader".to_owned(),
        RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::Other => {
            error.to_string()
        }
    }
}

/// The reply of a stream to a message: <https://docs.nats.io/reference/reference-protocols/nats_api_reference>, `PubAck`.
#[derive(Deserialize)]
struct StreamReply {
    #[serde(default)]
    seq: u64,
    error: Option<jetstream::Error>,
}

/// Publishes a message to the stream with this subject, and returns its sequence when it is stored.
/// Errors: the server refuses the message, or does not acknowledge it in time.
pub(crate) async fn publish_to_stream(
    bus: &Bus,
    subject: String,
    headers: HeaderMap,
    payload: Bytes,
) -> Result<u64, PublishError> {
    let request = Request::new().headers(headers).payload(payload).timeout(Some(ACK_TIMEOUT));
    let reply = bus.client().send_request(subject, request).await.map_err(PublishError::NoReply)?;
    let reply: StreamReply = serde_json::from_slice(&reply.payload).map_err(PublishError::InvalidReply)?;
    match reply.error {
        Some(error) => Err(PublishError::Refused(error)),
        None => Ok(reply.seq),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_and_refusals_are_read() {
        let read = |text: &str| serde_json::from_str::<StreamReply>(text);
        let stored = read(r#"{"stream":"lane-0","domain":"hub","seq":12,"duplicate":true}"#).unwrap();
        assert_eq!((stored.seq, stored.error.is_none()), (12, true));
        let refused = r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 4"},"stream":"lane-0","seq":0}"#;
        let error = read(refused).unwrap().error.unwrap();
        assert_eq!(error.error_code(), jetstream::ErrorCode::STREAM_WRONG_LAST_SEQUENCE);
        assert!(read("").is_err());
    }
}
