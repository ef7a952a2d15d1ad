//! The gate before the server's API for streams and consumers. An answer of the server is sent wherever it was asked to
//! be sent, and nobody looks whether the asker may write there: sent to `$JS.API.STREAM.DELETE.LANE_0`, an empty one would
//! be carried out. So an account has no API where the names of the API are. What a client publishes there is mapped to
//! the gate, which the server never does with its own answers, and no answer can be asked for at the gate itself: the
//! server takes no such reply subject from anybody, since acknowledgements are there.
//!
//! It says names only: `millrace nats-config` writes them down.

/// What the servers' own account lends to every account: their API.
pub const API: &str = "$JS.API.>";
/// Where an account has the API: below `$JS.ACK.`, where nobody can have an answer sent.
pub const GATE: &str = "$JS.ACK.millrace.api.>";
/// Where nobody listens. An account in which this stands in the place of the API gets none there from the server.
pub const NOWHERE: &str = "millrace.nowhere.>";

/// What there is of the API that anybody is let in to. The rest of it nobody asks for, and reading messages and pulling
/// orders (`DIRECT.GET`, `CONSUMER.MSG.NEXT`) are done by streams and consumers themselves: these answer those alone who
/// say where, which an answer never does.
const REQUESTS: [&str; 4] = ["INFO", "STREAM.>", "CONSUMER.CREATE.>", "CONSUMER.INFO.>"];

/// The subjects that clients publish to, and the subjects at the gate to which these are mapped.
pub fn ways() -> impl Iterator<Item = (String, String)> {
    REQUESTS.iter().map(|request| (below(API, request), below(GATE, request)))
}

/// The subject that the server asks for permission for when a client publishes to this one: the mapped one.
pub(super) fn mapped(subject: String) -> String {
    let Some(request) = subject.strip_prefix(API.trim_end_matches('>')) else { return subject };
    let is_one = |known: &str| match known.strip_suffix('>') {
        Some(head) => request.starts_with(head),
        None => request == known,
    };
    if REQUESTS.into_iter().any(is_one) { below(GATE, request) } else { subject }
}

fn below(place: &str, request: &str) -> String {
    format!("{}{request}", place.trim_end_matches('>'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_does_goes_through_the_gate_and_what_streams_and_consumers_do_goes_past_it() {
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
            assert_eq!(mapped(subject.into()), expected);
        }
    }
}
