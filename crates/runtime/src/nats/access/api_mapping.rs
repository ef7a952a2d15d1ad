//! The subject mapping of the JetStream API, which keeps redirected server replies away from it.
//!
//! The server publishes its reply wherever the request said, without a permission check. A reply that is redirected to
//! `$JS.API.STREAM.DELETE.LANE_0` would be executed as a request, even with an empty payload. So no account has the API
//! under its usual names:
//!
//! - The system account exports [`JETSTREAM_API`]; every other account imports it under the prefix [`MAPPED_API`]
//!   instead.
//! - A subject mapping of the account translates what its *clients* publish to [`JETSTREAM_API`] into [`MAPPED_API`].
//!   The server does not map its own replies, so a reply to a name of the API has no recipient.
//! - No reply can be redirected to [`MAPPED_API`] itself: it starts with `$JS.ACK.`, and the server rejects such reply
//!   subjects, because acknowledgements go there.
//!
//! This module only defines the names; `millrace nats-config` writes them to the configuration of the server.
//!
//! # Invariants
//!
//! - I60: A server reply redirected to a subject that its requester may not write creates, deletes, changes and stops nothing.
//!   (`tests/tests/access.rs::server_replies_are_not_accepted_as_api_requests`,
//!   `tests/tests/access.rs::stolen_credential_cannot_change_the_cluster_settings`,
//!   `tests/tests/access.rs::stolen_credential_cannot_stop_work`)

/// The JetStream API, as the system account exports it to every account.
pub const JETSTREAM_API: &str = "$JS.API.>";
/// The subjects under which an account's clients reach the JetStream API. They are below `$JS.ACK.`, because the server
/// rejects reply subjects there: no reply can be redirected into the API.
pub const MAPPED_API: &str = "$JS.ACK.millrace.api.>";
/// A subject without subscribers. An account that imports it in place of the API gets no API from the server by
/// default.
pub const UNUSED: &str = "millrace.nowhere.>";

/// The requests of the JetStream API that any role may send. `DIRECT.GET` and `CONSUMER.MSG.NEXT` are not among them,
/// because streams and consumers answer those themselves, and only requests with a reply subject; a redirected reply
/// has none.
const REQUESTS: [&str; 4] = ["INFO", "STREAM.>", "CONSUMER.CREATE.>", "CONSUMER.INFO.>"];

/// Returns the subject mappings of an account: the subject that clients publish to, and the one it is mapped to.
pub fn subject_mappings() -> impl Iterator<Item = (String, String)> {
    REQUESTS.iter().map(|request| (with_prefix(JETSTREAM_API, request), with_prefix(MAPPED_API, request)))
}

/// Returns the subject that the server checks permissions for when a client publishes to `subject`: the mapped one, if
/// there is a mapping.
pub(super) fn mapped_subject(subject: String) -> String {
    let Some(request) = subject.strip_prefix(JETSTREAM_API.trim_end_matches('>')) else { return subject };
    let matches = |pattern: &str| match pattern.strip_suffix('>') {
        Some(prefix) => request.starts_with(prefix),
        None => request == pattern,
    };
    if REQUESTS.into_iter().any(matches) { with_prefix(MAPPED_API, request) } else { subject }
}

fn with_prefix(pattern: &str, request: &str) -> String {
    format!("{}{request}", pattern.trim_end_matches('>'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_requests_are_mapped_and_stream_requests_are_not() {
        for (subject, expected) in [
            ("$JS.API.INFO", "$JS.ACK.millrace.api.INFO"),
            ("$JS.API.STREAM.PURGE.LANE_0", "$JS.ACK.millrace.api.STREAM.PURGE.LANE_0"),
            (
                "$JS.API.CONSUMER.CREATE.WORK.*.work.*.>",
                "$JS.ACK.millrace.api.CONSUMER.CREATE.WORK.*.work.*.>",
            ),
            ("$JS.API.CONSUMER.MSG.NEXT.WORK.echo", "$JS.API.CONSUMER.MSG.NEXT.WORK.echo"),
            ("$JS.API.DIRECT.GET.LANE_0", "$JS.API.DIRECT.GET.LANE_0"),
            ("lane.*.run.*.plan", "lane.*.run.*.plan"),
        ] {
            assert_eq!(mapped_subject(subject.into()), expected);
        }
    }
}
