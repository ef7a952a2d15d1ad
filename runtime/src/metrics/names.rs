//! The names of everything that is measured, in one table: what a page of metrics, a dashboard and an alert call a thing.
//! Nothing is measured under a name that is not here.

use std::fmt;

/// A program that has a page of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Process {
    /// It owns lanes.
    Supervisor,
    /// It does tasks.
    Worker,
    /// It judges results.
    Critic,
    /// It measures the cluster as a whole: one of them is enough.
    Metrics,
}

impl Process {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Supervisor, Self::Worker, Self::Critic, Self::Metrics];
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Supervisor => "supervisor",
            Self::Worker => "worker",
            Self::Critic => "critic",
            Self::Metrics => "metrics",
        })
    }
}

/// What a metric is called and means.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    /// Its name on the page, unit and all.
    pub name: &'static str,
    /// What kind of figure it is.
    pub kind: Kind,
    /// What it is counted in, in the notation of UCUM; `1` where that is only a number.
    pub unit: &'static str,
    /// What it says, in a sentence.
    pub help: &'static str,
    /// What its series differ in.
    pub labels: &'static [&'static str],
    /// On whose pages it is.
    pub on: &'static [Process],
}

/// The kinds of figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// It only grows while a process lives.
    Counter,
    /// It stands as it stands.
    Gauge,
    /// Many figures, by the upper bounds of their buckets.
    Histogram(&'static [f64]),
}

/// Something that is counted.
#[derive(Debug, Clone, Copy)]
pub struct Counter(pub Definition);

/// Something that stands at a value.
#[derive(Debug, Clone, Copy)]
pub struct Gauge(pub Definition);

/// Something of which many are measured.
#[derive(Debug, Clone, Copy)]
pub struct Histogram(pub Definition);

/// From the fastest append on one machine to one that waited for an election.
const APPEND_BOUNDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// From a tool's answer to the longest that a model works.
const WORK_BOUNDS: &[f64] =
    &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0];
/// From an empty lane to one of millions of messages.
const FOLD_BOUNDS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

const ALL_PROCESSES: &[Process] = &Process::ALL;
const HOSTS: &[Process] = &[Process::Worker, Process::Critic];
const SUPERVISOR: &[Process] = &[Process::Supervisor];
const WRITERS: &[Process] = &[Process::Supervisor, Process::Worker, Process::Critic];
const CLUSTER: &[Process] = &[Process::Metrics];

const fn define(
    name: &'static str,
    kind: Kind,
    unit: &'static str,
    labels: &'static [&'static str],
    on: &'static [Process],
    help: &'static str,
) -> Definition {
    Definition { name, kind, unit, help, labels, on }
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    on: &'static [Process],
    help: &'static str,
) -> Counter {
    Counter(define(name, Kind::Counter, unit, labels, on, help))
}

const fn gauge(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    on: &'static [Process],
    help: &'static str,
) -> Gauge {
    Gauge(define(name, Kind::Gauge, unit, labels, on, help))
}

const fn seconds(
    name: &'static str,
    bounds: &'static [f64],
    labels: &'static [&'static str],
    on: &'static [Process],
    help: &'static str,
) -> Histogram {
    Histogram(define(name, Kind::Histogram(bounds), "s", labels, on, help))
}

/// Which program this is.
pub const BUILD_INFO: Gauge = gauge(
    "millrace_build_info",
    "1",
    &["version", "role"],
    ALL_PROCESSES,
    "Always 1; the labels say which program this is.",
);
/// What `/readyz` says, one by one.
pub const READY: Gauge =
    gauge("millrace_ready", "1", &["check"], ALL_PROCESSES, "Whether a check of /readyz holds: 1 or 0.");
/// Whether there is a connection.
pub const NATS_CONNECTED: Gauge = gauge(
    "millrace_nats_connected",
    "1",
    &[],
    ALL_PROCESSES,
    "Whether this process is connected to a NATS server: 1 or 0.",
);
/// Connections after the first.
pub const NATS_RECONNECTS: Counter = counter(
    "millrace_nats_reconnects_total",
    "1",
    &[],
    ALL_PROCESSES,
    "Connections to a NATS server that were made anew after one was lost.",
);
/// What the server did not permit.
pub const NATS_REFUSED: Counter = counter(
    "millrace_nats_refused_total",
    "1",
    &[],
    ALL_PROCESSES,
    "Subjects that the NATS server did not let this process publish or subscribe to.",
);
/// Appends to the log.
pub const APPENDS: Counter = counter(
    "millrace_appends_total",
    "1",
    &["topic", "outcome"],
    WRITERS,
    "Appends to the log: written, fenced (another writer was first) or failed (the server took nothing for a minute).",
);
/// How long appends take.
pub const APPEND_SECONDS: Histogram = seconds(
    "millrace_append_seconds",
    APPEND_BOUNDS,
    &["topic"],
    WRITERS,
    "How long an append took, with its repetitions, whatever came of it.",
);

/// What a process can have in hand.
pub const SLOTS: Gauge = gauge(
    "millrace_slots",
    "1",
    &["capability"],
    HOSTS,
    "How much work of a capability this process takes at once.",
);
/// What a process has in hand.
pub const SLOTS_BUSY: Gauge = gauge(
    "millrace_slots_busy",
    "1",
    &["capability"],
    HOSTS,
    "How much work of a capability this process has in hand.",
);
/// What became of orders.
pub const ORDERS: Counter = counter(
    "millrace_orders_total",
    "1",
    &["capability", "outcome"],
    HOSTS,
    "Orders that were taken from a queue: done, lost (another took the work over), returned (for another to take) or \
     garbage (no order).",
);
/// Orders that came before.
pub const REDELIVERIES: Counter = counter(
    "millrace_redeliveries_total",
    "1",
    &["capability"],
    HOSTS,
    "Orders that the queue had given out before: to a process that was lost, or that gave them back.",
);
/// What attempts came to.
pub const ATTEMPTS: Counter = counter(
    "millrace_attempts_total",
    "1",
    &["capability", "outcome"],
    HOSTS,
    "Attempts whose outcome this process has written to the log: finished or errored.",
);
/// How long attempts take.
pub const ATTEMPT_SECONDS: Histogram = seconds(
    "millrace_attempt_seconds",
    WORK_BOUNDS,
    &["capability"],
    HOSTS,
    "How long the work of an attempt took in this process.",
);

/// Requests to models.
pub const MODEL_REQUESTS: Counter = counter(
    "millrace_model_requests_total",
    "1",
    &["model", "outcome"],
    HOSTS,
    "Requests to a model, each repetition counted: ok, or the kind of the error.",
);
/// How long models take.
pub const MODEL_REQUEST_SECONDS: Histogram = seconds(
    "millrace_model_request_seconds",
    WORK_BOUNDS,
    &["model"],
    HOSTS,
    "How long a request to a model took, whatever came of it.",
);
/// What models read and write.
pub const MODEL_TOKENS: Counter = counter(
    "millrace_model_tokens_total",
    "1",
    &["model", "direction"],
    HOSTS,
    "Tokens: input (all that were sent), cached (those of them that the provider had in its cache) and output.",
);
/// What models cost.
pub const MODEL_COST: Counter = counter(
    "millrace_model_cost_dollars_total",
    "1",
    &["model"],
    HOSTS,
    "What requests cost, in US dollars, as far as prices are known.",
);

/// The lanes of a supervisor.
pub const LANES_HELD: Gauge =
    gauge("millrace_lanes_held", "1", &[], SUPERVISOR, "Lanes that this process owns.");
/// How far behind a supervisor is.
pub const LANE_LAG: Gauge = gauge(
    "millrace_lane_lag_messages",
    "1",
    &["lane"],
    SUPERVISOR,
    "Messages of a lane that its owner has not read yet; looked at every few seconds.",
);
/// Lanes that were taken.
pub const LANE_TAKEOVERS: Counter = counter(
    "millrace_lane_takeovers_total",
    "1",
    &[],
    SUPERVISOR,
    "Lanes that this process took, the first time or again.",
);
/// Leases that were lost.
pub const LANE_LEASES_LOST: Counter = counter(
    "millrace_lane_leases_lost_total",
    "1",
    &[],
    SUPERVISOR,
    "Leases of lanes that this process held and lost, because they were not renewed in time.",
);
/// How long folding takes.
pub const LANE_FOLD_SECONDS: Histogram = seconds(
    "millrace_lane_fold_seconds",
    FOLD_BOUNDS,
    &[],
    SUPERVISOR,
    "How long it took to read a lane that was taken, up to the first decision.",
);
/// Runs under way.
pub const RUNS_LIVE: Gauge =
    gauge("millrace_runs_live", "1", &["lane"], SUPERVISOR, "Runs that the owner of a lane holds in memory.");
/// Decisions.
pub const DECISIONS: Counter = counter(
    "millrace_decisions_total",
    "1",
    &[],
    SUPERVISOR,
    "Decisions that this process has appended to plans.",
);
/// Orders that were put in queues.
pub const OFFERS: Counter = counter(
    "millrace_offers_total",
    "1",
    &["capability"],
    SUPERVISOR,
    "Orders that this process has put in the queue of a capability.",
);

/// What waits.
pub const QUEUE_PENDING: Gauge = gauge(
    "millrace_queue_pending",
    "1",
    &["capability"],
    CLUSTER,
    "Orders that wait in the queue of a capability.",
);
/// What is given out.
pub const QUEUE_IN_HAND: Gauge = gauge(
    "millrace_queue_in_hand",
    "1",
    &["capability"],
    CLUSTER,
    "Orders of a capability that somebody has in hand.",
);
/// How long it waits.
pub const QUEUE_OLDEST: Gauge = gauge(
    "millrace_queue_oldest_seconds",
    "s",
    &["capability"],
    CLUSTER,
    "The age of the oldest order of a capability that is not done, waiting or in hand; 0 where there is none.",
);
/// What comes again.
pub const QUEUE_REDELIVERED: Gauge = gauge(
    "millrace_queue_redelivered",
    "1",
    &["capability"],
    CLUSTER,
    "Orders of a capability that were given out more than once and are not done.",
);
/// Who serves it.
pub const WORKERS: Gauge = gauge(
    "millrace_workers",
    "1",
    &["capability"],
    CLUSTER,
    "Live processes that serve the queue of a capability.",
);
/// How much they take.
pub const CAPABILITY_SLOTS: Gauge = gauge(
    "millrace_capability_slots",
    "1",
    &["capability"],
    CLUSTER,
    "How much work of a capability all live processes take at once.",
);
/// How much they have.
pub const CAPABILITY_BUSY: Gauge = gauge(
    "millrace_capability_busy",
    "1",
    &["capability"],
    CLUSTER,
    "How much work of a capability all live processes have in hand, by their signs of life.",
);
/// Runs.
pub const RUNS: Gauge =
    gauge("millrace_runs", "1", &["status"], CLUSTER, "Runs by how they stand or how they ended.");
/// Whether lanes have owners.
pub const LANE_OWNED: Gauge =
    gauge("millrace_lane_owned", "1", &["lane"], CLUSTER, "Whether a supervisor holds a lane: 1 or 0.");
/// What lanes hold.
pub const LANE_MESSAGES: Gauge =
    gauge("millrace_lane_messages", "1", &["lane"], CLUSTER, "Messages that a lane holds.");
/// What streams take.
pub const STREAM_BYTES: Gauge =
    gauge("millrace_stream_bytes", "By", &["stream"], CLUSTER, "Bytes that a stream takes, one copy of it.");
/// What all takes.
pub const STORE_USED: Gauge = gauge(
    "millrace_store_used_bytes",
    "By",
    &[],
    CLUSTER,
    "Bytes that the account's streams take on disk, all copies together.",
);
/// What there is room for.
pub const STORE_LIMIT: Gauge = gauge(
    "millrace_store_limit_bytes",
    "By",
    &[],
    CLUSTER,
    "Bytes that the account's streams may take on disk, all copies together; missing where there is no limit.",
);
/// Who lives.
pub const PROCESSES: Gauge =
    gauge("millrace_processes", "1", &["role"], CLUSTER, "Live processes by their role.");

/// All there are, in the order of a page's parts: of all processes, workers and critics, models, supervisors, and the
/// cluster.
pub const ALL: &[Definition] = &[
    BUILD_INFO.0,
    READY.0,
    NATS_CONNECTED.0,
    NATS_RECONNECTS.0,
    NATS_REFUSED.0,
    APPENDS.0,
    APPEND_SECONDS.0,
    SLOTS.0,
    SLOTS_BUSY.0,
    ORDERS.0,
    REDELIVERIES.0,
    ATTEMPTS.0,
    ATTEMPT_SECONDS.0,
    MODEL_REQUESTS.0,
    MODEL_REQUEST_SECONDS.0,
    MODEL_TOKENS.0,
    MODEL_COST.0,
    LANES_HELD.0,
    LANE_LAG.0,
    LANE_TAKEOVERS.0,
    LANE_LEASES_LOST.0,
    LANE_FOLD_SECONDS.0,
    RUNS_LIVE.0,
    DECISIONS.0,
    OFFERS.0,
    QUEUE_PENDING.0,
    QUEUE_IN_HAND.0,
    QUEUE_OLDEST.0,
    QUEUE_REDELIVERED.0,
    WORKERS.0,
    CAPABILITY_SLOTS.0,
    CAPABILITY_BUSY.0,
    RUNS.0,
    LANE_OWNED.0,
    LANE_MESSAGES.0,
    STREAM_BYTES.0,
    STORE_USED.0,
    STORE_LIMIT.0,
    PROCESSES.0,
];
