//! Who may do what on the server: for each role, the subjects that it may publish to and subscribe to, made of the same
//! names that the code uses. Whatever is not listed the server refuses. `millrace nats-config` writes them down.
//!
//! | role | writes | reads |
//! |---|---|---|
//! | supervisor | plans, queues, leases, summaries, the archive; makes and empties streams and queues | the lanes |
//! | worker | the journals of tasks (a planner: of its turns), files, blobs | its own queue, the lanes, files, blobs |
//! | critic | the journals of reviews, blobs | its own queue, the lanes, files, blobs |
//! | client | what is handed in, commands, limits, blobs | everything but queues |
//! | viewer | nothing | everything but queues |
//! | metrics | nothing | the state of streams and queues, the oldest order of each, who lives, summaries |
//! | backup | everything, from a backup | everything, into a backup |
//!
//! A lane is read as a whole: no subject of a read says which run it is about. Answers come to an inbox that only the
//! holder of the same key can listen to. Nobody but supervisors makes anything on the server, not even a consumer: one
//! can be made that delivers to anybody.
//!
//! What the server can't refuse: an answer is sent wherever it was asked to be sent, also to a subject that its asker
//! may not write to, and is kept there. In a lane, a queue or a file, or as a stop, such a message is told from one
//! that somebody wrote ([`crate::record::is_stray`]) and counts for nothing; in a bucket it takes the place of what was
//! there, except of the cluster's settings, which stay as they are; and the server's API it does not reach ([`gate`]).
//! So a stolen credential forges no event, verdict, order, stop or file and neither makes nor removes anything, but can
//! disturb a cluster until it is retired.

pub mod gate;

use millrace_protocol::ids::{Capability, Lane};
use millrace_protocol::registry;
use millrace_protocol::subject::{self, CRITIC, Kind, PLANNER};

use crate::topology::{
    ARCHIVE, BEATS, BLOBS, CAPABILITIES, CLUSTER, FILES, LEASES, LIMITS, MEMBERS, RUNS, WORK, bucket_stream,
    lane_stream, object_stream, streams,
};

/// What a process is to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Owns lanes.
    Supervisor,
    /// Does the tasks of these capabilities; `planner` is one of them.
    Worker(Vec<Capability>),
    /// Judges results.
    Critic,
    /// Hands runs in, steers and reads them.
    Client,
    /// Reads runs.
    Viewer,
    /// Counts.
    Metrics,
    /// Keeps a copy of everything elsewhere, and puts it back.
    Backup,
}

/// The subjects of an identity, with `*` and `>` as the server reads them. What is not here is refused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Permissions {
    /// What it may publish to, as the server maps it (see [`gate`]).
    pub publish: Vec<String>,
    /// What it may subscribe to.
    pub subscribe: Vec<String>,
}

/// Below which subject a process that has the nkey with this public half gets its answers. Nobody else may listen
/// there.
#[must_use]
pub fn inbox(public_key: &str) -> String {
    format!("_INBOX.{public_key}")
}

/// What a role may do in a cluster of so many lanes, with its answers below `inbox`.
#[must_use]
pub fn permissions(role: &Role, lanes: u16, inbox: &str) -> Permissions {
    let mut may = May { lanes, permissions: Permissions::default() };
    may.hear(format!("{inbox}.>"));
    match role {
        Role::Supervisor => may.supervise(),
        Role::Worker(capabilities) => may.work(capabilities),
        Role::Critic => may.judge(),
        Role::Client => may.steer(),
        Role::Viewer => may.view(),
        Role::Metrics => may.count(),
        Role::Backup => may.back_up(),
    }
    may.permissions
}

/// Permissions while they are put together.
struct May {
    lanes: u16,
    permissions: Permissions,
}

impl May {
    fn supervise(&mut self) {
        self.join();
        for stream in streams(self.lanes) {
            self.ask(&["STREAM.INFO", "STREAM.CREATE", "STREAM.UPDATE"], &stream);
        }
        for lane in self.all_lanes() {
            // The reader of a lane is a consumer without a name, since a name would have to be known here.
            self.ask(&["CONSUMER.CREATE", "STREAM.PURGE"], &lane);
            self.say(format!("$JS.API.CONSUMER.MSG.NEXT.{lane}.*"));
            // The client library looks for its consumer when it has lost a server.
            self.say(format!("$JS.API.CONSUMER.INFO.{lane}.*"));
        }
        self.read_lanes();
        self.say(subject::every(Kind::Plan));
        self.say(subject::ALL_ORDERS);
        self.say(subject::ALL_STOPS);
        self.say(format!("$JS.API.CONSUMER.CREATE.{WORK}.*.work.*.>"));
        self.ask(&["STREAM.PURGE"], WORK);
        for bucket in [LEASES, MEMBERS, RUNS, CLUSTER] {
            self.read_bucket(bucket);
            self.say(format!("$KV.{bucket}.*"));
        }
        self.live(registry::Role::Supervisor);
        self.read_bucket(BEATS);
        self.read_bucket(CAPABILITIES);
        self.read_objects(BLOBS);
        self.read_objects(ARCHIVE);
        self.write_objects(BLOBS);
        self.write_objects(ARCHIVE);
        self.ask(&["STREAM.PURGE"], &object_stream(ARCHIVE));
    }

    fn work(&mut self, capabilities: &[Capability]) {
        self.take_part(registry::Role::Worker, capabilities);
        let is_planner = |capability: &&Capability| capability.as_str() == PLANNER;
        if capabilities.iter().any(|capability| is_planner(&capability)) {
            self.write_journals(Kind::Planning);
            self.read_bucket(BEATS);
        }
        if !capabilities.iter().all(|capability| is_planner(&capability)) {
            self.write_journals(Kind::Task);
        }
        self.say(subject::ALL_FILES);
    }

    fn judge(&mut self) {
        let critic = Capability::new(CRITIC).expect("it is letters");
        self.take_part(registry::Role::Critic, &[critic]);
        self.write_journals(Kind::Review);
    }

    fn steer(&mut self) {
        self.view();
        self.say(subject::every(Kind::Submitted));
        self.say(subject::every(Kind::Control));
        self.write_objects(BLOBS);
        self.say(format!("$KV.{LIMITS}.*.*"));
    }

    fn view(&mut self) {
        self.join();
        self.read_lanes();
        self.read_stream(FILES);
        self.read_objects(BLOBS);
        self.read_objects(ARCHIVE);
        for bucket in [RUNS, CAPABILITIES, BEATS, LIMITS] {
            self.read_bucket(bucket);
        }
        self.hear(subject::ALL_LIVE);
    }

    fn count(&mut self) {
        self.join();
        for stream in streams(self.lanes) {
            self.ask(&["STREAM.INFO"], &stream);
        }
        self.say(format!("$JS.API.CONSUMER.INFO.{WORK}.*"));
        // Only by the order itself is it told how old it is.
        self.ask(&["DIRECT.GET"], WORK);
        for bucket in [BEATS, CAPABILITIES, LEASES, RUNS] {
            self.read_bucket(bucket);
        }
    }

    fn back_up(&mut self) {
        self.join();
        self.say("$JS.API.STREAM.NAMES");
        for stream in streams(self.lanes) {
            self.read_stream(&stream);
            self.ask(
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
            self.say(format!("$JS.SNAPSHOT.ACK.{stream}.>"));
            self.say(format!("$JS.SNAPSHOT.RESTORE.{stream}.>"));
        }
        for bucket in [CLUSTER, CAPABILITIES, RUNS, LIMITS] {
            self.say(format!("$KV.{bucket}.>"));
        }
    }

    /// What whoever takes orders does.
    fn take_part(&mut self, role: registry::Role, capabilities: &[Capability]) {
        self.join();
        self.read_lanes();
        self.read_stream(FILES);
        self.read_objects(BLOBS);
        self.write_objects(BLOBS);
        self.read_bucket(CAPABILITIES);
        self.read_bucket(LIMITS);
        self.say(format!("$KV.{LIMITS}.state.*"));
        self.live(role);
        self.hear(subject::ALL_STOPS);
        for capability in capabilities {
            self.say(format!("$KV.{CAPABILITIES}.{capability}"));
            self.pull(capability);
        }
    }

    /// The end of a queue from which orders are taken. Acknowledgements have two forms, of which the server chooses.
    fn pull(&mut self, capability: &Capability) {
        // Whether an order still waits is asked of the stream.
        self.ask(&["STREAM.INFO"], WORK);
        self.say(format!("$JS.API.CONSUMER.INFO.{WORK}.{capability}"));
        self.say(format!("$JS.API.CONSUMER.MSG.NEXT.{WORK}.{capability}"));
        self.say(format!("$JS.ACK.{WORK}.{capability}.>"));
        self.say(format!("$JS.ACK.*.*.{WORK}.{capability}.>"));
    }

    fn write_journals(&mut self, kind: Kind) {
        self.say(subject::every(kind));
        self.say(subject::every_live(kind));
    }

    /// What everybody does to find out what there is.
    fn join(&mut self) {
        self.say("$JS.API.INFO");
        self.read_bucket(CLUSTER);
    }

    /// Signs of life.
    fn live(&mut self, role: registry::Role) {
        self.ask(&["STREAM.INFO"], &bucket_stream(BEATS));
        self.say(format!("$KV.{BEATS}.{}.*", role.name()));
    }

    fn read_lanes(&mut self) {
        for lane in self.all_lanes() {
            self.read_stream(&lane);
        }
    }

    fn read_bucket(&mut self, bucket: &str) {
        let stream = bucket_stream(bucket);
        self.ask(&["STREAM.INFO", "DIRECT.GET"], &stream);
        self.say(format!("$JS.API.DIRECT.GET.{stream}.$KV.{bucket}.>"));
    }

    fn read_objects(&mut self, bucket: &str) {
        self.ask(&["STREAM.INFO", "DIRECT.GET"], &object_stream(bucket));
    }

    fn write_objects(&mut self, bucket: &str) {
        self.say(format!("$O.{bucket}.C.*"));
        self.say(format!("$O.{bucket}.M.*"));
    }

    fn read_stream(&mut self, stream: &str) {
        self.ask(&["STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET"], stream);
    }

    fn all_lanes(&self) -> Vec<String> {
        (0..self.lanes).map(|lane| lane_stream(Lane(lane))).collect()
    }

    fn ask(&mut self, questions: &[&str], stream: &str) {
        for question in questions {
            self.say(format!("$JS.API.{question}.{stream}"));
        }
    }

    fn say(&mut self, subject: impl Into<String>) {
        add(&mut self.permissions.publish, gate::mapped(subject.into()));
    }

    fn hear(&mut self, subject: impl Into<String>) {
        add(&mut self.permissions.subscribe, subject.into());
    }
}

fn add(to: &mut Vec<String>, subject: String) {
    if !to.contains(&subject) {
        to.push(subject);
    }
}
