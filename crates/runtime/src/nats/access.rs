//! Access control: for each role, the subjects that it may publish to and subscribe to, built from the same names that
//! the code uses. The server denies everything else. `millrace nats-config` writes these permissions to the
//! configuration of the server.
//!
//! | role | publishes, creates | reads |
//! |---|---|---|
//! | supervisor | plans, orders, stops, leases, summaries, the archive; creates and purges streams and queues, deletes orders, forged messages, and all of deleted runs | the lanes, the queues, files, blobs |
//! | worker | the journals of tasks (a planner: of its turns), files, blobs | its own queue, the lanes, files, blobs |
//! | critic | the journals of reviews, blobs | its own queue, the lanes, files, blobs |
//! | gateway | submissions, commands, answers, limits, idempotency keys, tokens, recorded actions, blobs, requests to delete runs | everything; of queues the state and the waiting orders |
//! | client | the same, and memories | the same |
//! | viewer | nothing | the same |
//! | answerer | answers to questions | the same |
//! | metrics | nothing | the state of streams and queues, the oldest order of each, heartbeats, summaries |
//! | backup | everything, when it restores | everything, when it copies |
//!
//! Read access is per lane and not per run: the subject of a read request does not name the run. Each process receives
//! replies in an inbox below the public key of its nkey, to which no other process may subscribe. Only supervisors
//! create consumers, because a consumer can deliver to any subject.
//!
//! # Threat model
//!
//! The attacker holds the credentials of one role and can use every permission of that role. The server enforces
//! publish and subscribe permissions, with one exception: **reply subjects**. A request names the subject of its reply,
//! and the server publishes the reply there without checking whether the client may publish to it. If a stream captures
//! that subject, the reply is stored. An attacker who may read a stream can thus copy any message of it to any subject.
//! The defences, by target:
//!
//! - *Lanes, queues, files and stops*: readers check the provenance of every message and ignore redirected replies
//!   ([`crate::nats::record`]). The attacker can't forge an event, verdict, order, stop
//!   or file of another role.
//! - *The JetStream API*: an account imports it under a prefix that can't be a reply subject, and only what clients
//!   publish is mapped to that prefix ([`api_mapping`]). The attacker can't create, change or delete
//!   streams without the permission of a role that may.
//! - *The cluster's settings*: their bucket rejects every write after the first.
//! - *Capabilities*: a copy of an entry under another key is ignored and removed, and a worker whose entry was replaced
//!   writes it again with its next heartbeat.
//! - *Tokens of the HTTP API*: readers ignore redirected replies, so that nobody gains access. A token that was overwritten by
//!   one is refused from then on.
//! - *The store*: one request can copy a whole stream into itself. Supervisors delete what was copied to lanes, files, blobs
//!   and the archive after ten lane leases; until then, the limit of the account bounds it (`--max-store`).
//! - *Other buckets* (heartbeats, leases, summaries, limits): not protected. A redirected reply replaces
//!   the value of a key, with which the attacker can disturb the cluster until the credentials are revoked. No event of
//!   a run is derived from these buckets.
//!
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
//! - I44: Each identity may do what its role needs, and the server refuses all other requests; a whole run meets no refusal.
//!   (`tests/tests/access.rs::permissions_of_each_role_match_the_table`,
//!   `tests/tests/access.rs::cluster_works_without_any_permission_violation`)
//! - I45: A worker's stolen credential reads no other queue, writes no verdict, forges no plan, and receives no replies of
//!   others. (`tests/tests/access.rs::stolen_worker_credential_cannot_read_other_queues`,
//!   `tests/tests/access.rs::stolen_worker_credential_cannot_forge_verdicts_or_plans`,
//!   `tests/tests/access.rs::identities_cannot_subscribe_to_each_other_s_replies`)
//! - I47: A run of one tenant is invisible to another. (`tests/tests/access.rs::runs_are_invisible_to_other_tenants`)
//! - I111: Only clients and answerers can answer; an answerer can do nothing else but read.
//!   (`tests/tests/access.rs::answerer_answers_questions_and_does_nothing_else`,
//!   `tests/tests/access.rs::permissions_of_each_role_match_the_table`)
//! - I167: A gateway needs no permission that the identity `client` lacks.
//!   (`tests/tests/access.rs::gateway_needs_no_more_than_the_identity_of_a_client`)
//! - I60: A server reply redirected to a subject that its requester may not write creates, deletes, changes and stops nothing.
//!   (`tests/tests/access.rs::server_replies_are_not_accepted_as_api_requests`,
//!   `tests/tests/access.rs::stolen_credential_cannot_change_the_cluster_settings`,
//!   `tests/tests/access.rs::stolen_credential_cannot_stop_work`)

use millrace_protocol::ids::{Capability, Lane};
use millrace_protocol::plan::WorkKind;
use millrace_protocol::registry;
use millrace_protocol::subject::{self, CRITIC, PLANNER, TopicKind};
use millrace_protocol::webhook::PUSH_PREFIX;

use crate::nats::topology::streams::{
    ADMISSION_BOARD, ARCHIVE, ATTENDANCE, AUDIT, BLOBS, CAPABILITIES, CLUSTER, DELIVERIES, FILES, HEARTBEATS,
    KEYS, LEASES, LIMITS, MEMBERS, RETENTION, RUNS, SESSIONS, TOKENS, WEBHOOKS, WORK, blob_referring_streams,
    bucket_stream, cluster_stream_names, lane_stream, object_stream,
};

/// The role of a process, which decides its permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessRole {
    /// Owns lanes.
    Supervisor,
    /// Runs tasks of these capabilities; `planner` is one of them.
    Worker(Vec<Capability>),
    /// Reviews results.
    Critic,
    /// Submits, controls and reads runs.
    Client,
    /// Serves the HTTP API.
    Gateway,
    /// Reads runs.
    Viewer,
    /// Reads runs and answers their questions.
    Answerer,
    /// Measures the cluster.
    Metrics,
    /// Copies the cluster, and restores it.
    Backup,
}

/// The subjects that an identity may use, with the wildcards `*` and `>`. The server denies all others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Permissions {
    /// The subjects it may publish to, after mapping (see [`api_mapping`]).
    pub publish: Vec<String>,
    /// The subjects it may subscribe to.
    pub subscribe: Vec<String>,
}

/// Returns the inbox prefix of the process whose nkey has this public key. Only that process may subscribe below it.
#[must_use]
pub fn inbox_prefix_of_key(public_key: &str) -> String {
    format!("_INBOX.{public_key}")
}

/// Returns the permissions of a role in a cluster with this number of lanes; replies go below `inbox`.
#[must_use]
pub fn permissions_of_role(role: &AccessRole, lanes: u16, inbox: &str) -> Permissions {
    let mut builder = PermissionsBuilder { lanes, permissions: Permissions::default() };
    builder.allow_subscribe(format!("{inbox}.>"));
    match role {
        AccessRole::Supervisor => builder.add_supervisor_permissions(),
        AccessRole::Worker(capabilities) => builder.add_worker_permissions(capabilities),
        AccessRole::Critic => builder.add_critic_permissions(),
        AccessRole::Client => builder.add_client_permissions(),
        AccessRole::Gateway => builder.add_gateway_permissions(),
        AccessRole::Viewer => builder.add_viewer_permissions(),
        AccessRole::Answerer => builder.add_answerer_permissions(),
        AccessRole::Metrics => builder.add_metrics_permissions(),
        AccessRole::Backup => builder.add_backup_permissions(),
    }
    builder.permissions
}

/// Builds the permissions of one role.
struct PermissionsBuilder {
    lanes: u16,
    permissions: Permissions,
}

impl PermissionsBuilder {
    fn add_supervisor_permissions(&mut self) {
        self.allow_joining_cluster();
        for stream in cluster_stream_names(self.lanes) {
            self.allow_stream_requests(&["STREAM.INFO", "STREAM.CREATE", "STREAM.UPDATE"], &stream);
        }
        for lane in self.lane_streams() {
            // The consumer that reads a lane has a random name, so that its name can't be in the permission.
            self.allow_stream_requests(&["CONSUMER.CREATE", "STREAM.PURGE", "STREAM.MSG.DELETE"], &lane);
            self.allow_publish(format!("$JS.API.CONSUMER.MSG.NEXT.{lane}.*"));
            // The client library checks its consumer after a reconnect.
            self.allow_publish(format!("$JS.API.CONSUMER.INFO.{lane}.*"));
        }
        for stream in [FILES.into(), object_stream(BLOBS), object_stream(ARCHIVE)] {
            self.allow_stream_requests(&["DIRECT.GET", "STREAM.MSG.DELETE"], &stream);
        }
        // Of invalid entries; the server allows no other deletion.
        self.allow_stream_requests(&["STREAM.PURGE"], &bucket_stream(CAPABILITIES));
        self.allow_reading_lanes();
        self.allow_publish(subject::subjects_of_topic_kind(TopicKind::Plan));
        self.allow_publish(subject::ALL_ORDERS);
        self.allow_publish(subject::ALL_STOPS);
        self.allow_publish(format!("$JS.API.CONSUMER.CREATE.{WORK}.*.work.*.>"));
        self.allow_stream_requests(&["STREAM.PURGE", "STREAM.MSG.GET", "STREAM.MSG.DELETE"], WORK);
        self.allow_publish(format!("$JS.API.CONSUMER.INFO.{WORK}.*"));
        // Results of the earlier runs of a session.
        self.allow_reading_stream(FILES);
        for bucket in [LEASES, MEMBERS, RUNS, CLUSTER, SESSIONS] {
            self.allow_reading_bucket(bucket);
            self.allow_publish(format!("$KV.{bucket}.*"));
        }
        // The board of admission; the caps are read from the same bucket.
        self.allow_reading_bucket(LIMITS);
        self.allow_publish(format!("$KV.{LIMITS}.{ADMISSION_BOARD}"));
        self.allow_publish(format!("$KV.{LIMITS}.{ATTENDANCE}"));
        self.allow_sending_heartbeats(registry::ProcessRole::Supervisor);
        self.allow_reading_bucket(HEARTBEATS);
        self.allow_reading_bucket(CAPABILITIES);
        self.allow_reading_objects(BLOBS);
        self.allow_reading_objects(ARCHIVE);
        self.allow_writing_objects(BLOBS);
        self.allow_writing_objects(ARCHIVE);
        self.allow_stream_requests(&["STREAM.PURGE"], &object_stream(ARCHIVE));
        self.add_retention_permissions();
    }

    /// Permissions to delete runs, and to sweep the blobs that nothing refers to.
    fn add_retention_permissions(&mut self) {
        for stream in [FILES.into(), object_stream(BLOBS)] {
            self.allow_stream_requests(&["STREAM.PURGE"], &stream);
        }
        for bucket in [RUNS, KEYS, RETENTION] {
            self.allow_stream_requests(&["STREAM.PURGE"], &bucket_stream(bucket));
        }
        for bucket in [KEYS, RETENTION] {
            self.allow_reading_bucket(bucket);
        }
        for stream in blob_referring_streams(self.lanes) {
            self.allow_stream_requests(&["DIRECT.GET"], &stream);
        }
        self.allow_publish(format!("$KV.{RETENTION}.>"));
        // New requests wake the supervisor; the bucket can be read anyway.
        self.allow_subscribe(format!("$KV.{RETENTION}.deletion.*"));
    }

    fn add_worker_permissions(&mut self, capabilities: &[Capability]) {
        self.add_host_permissions(registry::ProcessRole::Worker, capabilities);
        let is_planner = |capability: &&Capability| capability.as_str() == PLANNER;
        if capabilities.iter().any(|capability| is_planner(&capability)) {
            self.allow_writing_journals(WorkKind::Planning);
            self.allow_reading_bucket(HEARTBEATS);
        }
        if !capabilities.iter().all(|capability| is_planner(&capability)) {
            self.allow_writing_journals(WorkKind::Task);
        }
        self.allow_publish(subject::ALL_FILES);
    }

    fn add_critic_permissions(&mut self) {
        let critic = Capability::new(CRITIC).expect("the name of the critics' queue is a valid capability");
        self.add_host_permissions(registry::ProcessRole::Critic, &[critic]);
        self.allow_writing_journals(WorkKind::Review);
    }

    fn add_client_permissions(&mut self) {
        self.add_gateway_permissions();
        self.allow_publish(subject::memory_subjects());
    }

    fn add_gateway_permissions(&mut self) {
        self.add_viewer_permissions();
        self.allow_publish(subject::subjects_of_topic_kind(TopicKind::Submitted));
        self.allow_publish(subject::subjects_of_topic_kind(TopicKind::Control));
        self.allow_publish(subject::subjects_of_topic_kind(TopicKind::Answer));
        self.allow_writing_objects(BLOBS);
        self.allow_publish(format!("$KV.{LIMITS}.*.*"));
        for bucket in [KEYS, TOKENS, AUDIT, WEBHOOKS] {
            self.allow_reading_bucket(bucket);
            self.allow_publish(format!("$KV.{bucket}.*"));
        }
        self.allow_publish(format!("$KV.{WEBHOOKS}.{PUSH_PREFIX}.*.*"));
        self.allow_reading_bucket(DELIVERIES);
        self.allow_publish(format!("$KV.{DELIVERIES}.*.*"));
        // Others see it in the list of processes.
        self.allow_sending_heartbeats(registry::ProcessRole::Gateway);
        for kind in ["deletion", "rule", "settings", "request"] {
            self.allow_publish(format!("$KV.{RETENTION}.{kind}.*"));
        }
        // New messages wake the streams of a gateway; the lanes can be read anyway.
        for lane in 0..self.lanes {
            self.allow_subscribe(subject::all_subjects_of_lane(Lane(lane)));
        }
    }

    fn add_viewer_permissions(&mut self) {
        self.allow_joining_cluster();
        self.allow_reading_lanes();
        self.allow_reading_stream(FILES);
        self.allow_reading_objects(BLOBS);
        self.allow_reading_objects(ARCHIVE);
        for bucket in [RUNS, CAPABILITIES, HEARTBEATS, LIMITS, RETENTION] {
            self.allow_reading_bucket(bucket);
        }
        self.allow_reading_queue_states();
        self.allow_subscribe(subject::ALL_LIVE);
    }

    fn add_answerer_permissions(&mut self) {
        self.add_viewer_permissions();
        self.allow_publish(subject::subjects_of_topic_kind(TopicKind::Answer));
    }

    fn add_metrics_permissions(&mut self) {
        self.allow_joining_cluster();
        for stream in cluster_stream_names(self.lanes) {
            self.allow_stream_requests(&["STREAM.INFO"], &stream);
        }
        self.allow_reading_queue_states();
        for bucket in [HEARTBEATS, CAPABILITIES, RUNS] {
            self.allow_reading_bucket(bucket);
        }
    }

    /// Permissions to read the state of queues and the owners of lanes.
    fn allow_reading_queue_states(&mut self) {
        self.allow_publish(format!("$JS.API.CONSUMER.INFO.{WORK}.*"));
        // The age of the oldest order is the time at which the order was stored.
        self.allow_stream_requests(&["DIRECT.GET"], WORK);
        self.allow_reading_bucket(LEASES);
    }

    fn add_backup_permissions(&mut self) {
        self.allow_joining_cluster();
        self.allow_publish("$JS.API.STREAM.NAMES");
        for stream in cluster_stream_names(self.lanes) {
            self.allow_reading_stream(&stream);
            self.allow_stream_requests(
                &[
                    "STREAM.CREATE",
                    "STREAM.UPDATE",
                    "STREAM.DELETE",
                    "STREAM.PURGE",
                    "STREAM.MSG.DELETE",
                    "STREAM.SNAPSHOT",
                    "STREAM.RESTORE",
                ],
                &stream,
            );
            self.allow_publish(format!("$JS.SNAPSHOT.ACK.{stream}.>"));
            self.allow_publish(format!("$JS.SNAPSHOT.RESTORE.{stream}.>"));
        }
        for bucket in [
            CLUSTER,
            CAPABILITIES,
            RUNS,
            LIMITS,
            KEYS,
            TOKENS,
            AUDIT,
            WEBHOOKS,
            DELIVERIES,
            RETENTION,
            SESSIONS,
        ] {
            self.allow_publish(format!("$KV.{bucket}.>"));
        }
    }

    /// Permissions of every role that takes orders.
    fn add_host_permissions(&mut self, role: registry::ProcessRole, capabilities: &[Capability]) {
        self.allow_joining_cluster();
        self.allow_reading_lanes();
        self.allow_reading_stream(FILES);
        self.allow_reading_objects(BLOBS);
        self.allow_writing_objects(BLOBS);
        // The results of a run that was reopened.
        self.allow_reading_objects(ARCHIVE);
        self.allow_reading_bucket(CAPABILITIES);
        self.allow_reading_bucket(LIMITS);
        self.allow_publish(format!("$KV.{LIMITS}.state.*"));
        self.allow_sending_heartbeats(role);
        self.allow_subscribe(subject::ALL_STOPS);
        for capability in capabilities {
            self.allow_publish(format!("$KV.{CAPABILITIES}.{capability}"));
            self.allow_pulling_orders(capability);
        }
    }

    /// Permissions to pull orders from a queue. Acknowledgement subjects have two forms; the server chooses one.
    fn allow_pulling_orders(&mut self, capability: &Capability) {
        // Whether an order is still queued is in the state of the stream.
        self.allow_stream_requests(&["STREAM.INFO"], WORK);
        self.allow_publish(format!("$JS.API.CONSUMER.INFO.{WORK}.{capability}"));
        self.allow_publish(format!("$JS.API.CONSUMER.MSG.NEXT.{WORK}.{capability}"));
        self.allow_publish(format!("$JS.ACK.{WORK}.{capability}.>"));
        self.allow_publish(format!("$JS.ACK.*.*.{WORK}.{capability}.>"));
    }

    fn allow_writing_journals(&mut self, kind: WorkKind) {
        self.allow_publish(subject::subjects_of_topic_kind(TopicKind::Journal(kind)));
        self.allow_publish(subject::live_output_subjects_of_work_kind(kind));
    }

    /// Permissions that every role needs to join the cluster.
    fn allow_joining_cluster(&mut self) {
        self.allow_publish("$JS.API.INFO");
        self.allow_reading_bucket(CLUSTER);
    }

    /// Permissions to send heartbeats.
    fn allow_sending_heartbeats(&mut self, role: registry::ProcessRole) {
        self.allow_stream_requests(&["STREAM.INFO"], &bucket_stream(HEARTBEATS));
        self.allow_publish(format!("$KV.{HEARTBEATS}.{}.*", role.name()));
    }

    fn allow_reading_lanes(&mut self) {
        for lane in self.lane_streams() {
            self.allow_reading_stream(&lane);
        }
    }

    fn allow_reading_bucket(&mut self, bucket: &str) {
        let stream = bucket_stream(bucket);
        self.allow_stream_requests(&["STREAM.INFO", "DIRECT.GET"], &stream);
        self.allow_publish(format!("$JS.API.DIRECT.GET.{stream}.$KV.{bucket}.>"));
    }

    fn allow_reading_objects(&mut self, bucket: &str) {
        self.allow_stream_requests(&["STREAM.INFO", "DIRECT.GET"], &object_stream(bucket));
    }

    fn allow_writing_objects(&mut self, bucket: &str) {
        self.allow_publish(format!("$O.{bucket}.C.*"));
        self.allow_publish(format!("$O.{bucket}.M.*"));
    }

    fn allow_reading_stream(&mut self, stream: &str) {
        self.allow_stream_requests(&["STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET"], stream);
    }

    fn lane_streams(&self) -> Vec<String> {
        (0..self.lanes).map(|lane| lane_stream(Lane(lane))).collect()
    }

    /// Allows requests of the JetStream API about one stream.
    fn allow_stream_requests(&mut self, requests: &[&str], stream: &str) {
        for request in requests {
            self.allow_publish(format!("$JS.API.{request}.{stream}"));
        }
    }

    /// Allows publishing to a subject, or to the one that it is mapped to.
    fn allow_publish(&mut self, subject: impl Into<String>) {
        add_subject_once(&mut self.permissions.publish, mapped_subject(subject.into()));
    }

    fn allow_subscribe(&mut self, subject: impl Into<String>) {
        add_subject_once(&mut self.permissions.subscribe, subject.into());
    }
}

fn add_subject_once(to: &mut Vec<String>, subject: String) {
    if !to.contains(&subject) {
        to.push(subject);
    }
}

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
