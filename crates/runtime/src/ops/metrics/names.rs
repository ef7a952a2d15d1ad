//! The definitions of all metrics: the names that `/metrics`, dashboards and alerts share.

use std::fmt;

/// A program that serves metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessKind {
    /// A supervisor, which owns lanes.
    Supervisor,
    /// A worker, which runs tasks.
    Worker,
    /// A critic, which reviews results.
    Critic,
    /// `millrace metrics`, which measures the cluster as a whole. One per cluster is enough.
    Metrics,
    /// `millrace serve`, which serves the HTTP API.
    Gateway,
}

impl ProcessKind {
    /// All programs.
    pub const ALL: [Self; 5] = [Self::Supervisor, Self::Worker, Self::Critic, Self::Metrics, Self::Gateway];
}

impl fmt::Display for ProcessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Supervisor => "supervisor",
            Self::Worker => "worker",
            Self::Critic => "critic",
            Self::Metrics => "metrics",
            Self::Gateway => "gateway",
        })
    }
}

#[derive(Debug, Clone, Copy)]
pub struct MetricDefinition {
    /// Its full name, with its unit.
    pub name: &'static str,
    pub kind: MetricKind,
    /// Its unit in UCUM notation; `1` for a plain number.
    pub unit: &'static str,
    /// Its description, a sentence.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The programs that export it.
    pub on: &'static [ProcessKind],
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricKind {
    /// A value that only grows while a process lives.
    Counter,
    /// A value that can go up and down.
    Gauge,
    /// A distribution of values, with the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

#[derive(Debug, Clone, Copy)]
pub struct CounterDefinition(pub MetricDefinition);

#[derive(Debug, Clone, Copy)]
pub struct GaugeDefinition(pub MetricDefinition);

#[derive(Debug, Clone, Copy)]
pub struct HistogramDefinition(pub MetricDefinition);

/// From the fastest append on one machine to one that waited for a leader election.
const APPEND_BOUNDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// From a fast tool call to the longest model request.
const WORK_BOUNDS: &[f64] =
    &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0];
/// The bounds that the GenAI conventions advise for durations.
const GEN_AI_SECONDS: &[f64] =
    &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// The bounds that the GenAI conventions advise for tokens.
const GEN_AI_TOKENS: &[f64] = &[
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];
/// From an empty lane to one with millions of messages.
const FOLD_BOUNDS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

const ALL_PROCESSES: &[ProcessKind] = &ProcessKind::ALL;
const HOSTS: &[ProcessKind] = &[ProcessKind::Worker, ProcessKind::Critic];
const SUPERVISOR: &[ProcessKind] = &[ProcessKind::Supervisor];
const WRITERS: &[ProcessKind] =
    &[ProcessKind::Supervisor, ProcessKind::Worker, ProcessKind::Critic, ProcessKind::Gateway];
const CLUSTER: &[ProcessKind] = &[ProcessKind::Metrics];
const GATEWAY: &[ProcessKind] = &[ProcessKind::Gateway];

const fn define_metric(
    name: &'static str,
    kind: MetricKind,
    unit: &'static str,
    labels: &'static [&'static str],
    on: &'static [ProcessKind],
    help: &'static str,
) -> MetricDefinition {
    MetricDefinition { name, kind, unit, help, labels, on }
}

const fn define_counter(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    on: &'static [ProcessKind],
    help: &'static str,
) -> CounterDefinition {
    CounterDefinition(define_metric(name, MetricKind::Counter, unit, labels, on, help))
}

const fn define_gauge(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    on: &'static [ProcessKind],
    help: &'static str,
) -> GaugeDefinition {
    GaugeDefinition(define_metric(name, MetricKind::Gauge, unit, labels, on, help))
}

const fn define_seconds_histogram(
    name: &'static str,
    bounds: &'static [f64],
    labels: &'static [&'static str],
    on: &'static [ProcessKind],
    help: &'static str,
) -> HistogramDefinition {
    HistogramDefinition(define_metric(name, MetricKind::Histogram(bounds), "s", labels, on, help))
}

/// The version and role of the program.
pub const BUILD_INFO: GaugeDefinition = define_gauge(
    "millrace_build_info",
    "1",
    &["version", "role"],
    ALL_PROCESSES,
    "Always 1; the labels are the version and role of the program.",
);
/// The checks of `/readyz`.
pub const READY: GaugeDefinition =
    define_gauge("millrace_ready", "1", &["check"], ALL_PROCESSES, "1 if a check of /readyz passes, else 0.");
/// The connection state.
pub const NATS_CONNECTED: GaugeDefinition = define_gauge(
    "millrace_nats_connected",
    "1",
    &[],
    ALL_PROCESSES,
    "1 if this process is connected to a NATS server, else 0.",
);
pub const NATS_RECONNECTS: CounterDefinition = define_counter(
    "millrace_nats_reconnects_total",
    "1",
    &[],
    ALL_PROCESSES,
    "Reconnects to a NATS server after a connection was lost.",
);
/// Permission errors.
pub const NATS_REFUSED: CounterDefinition = define_counter(
    "millrace_nats_refused_total",
    "1",
    &[],
    ALL_PROCESSES,
    "Permission errors of the NATS server: subjects that this process may not publish or subscribe to.",
);
pub const CERTIFICATE_EXPIRY: GaugeDefinition = define_gauge(
    "millrace_certificate_expiry_timestamp_seconds",
    "s",
    &["file"],
    ALL_PROCESSES,
    "When the first certificate in a file of this process expires, in seconds since 1970: its own certificate, or the \
     authorities that it trusts. Missing without TLS.",
);
/// Appends to the log.
pub const APPENDS: CounterDefinition = define_counter(
    "millrace_appends_total",
    "1",
    &["topic", "outcome"],
    WRITERS,
    "Appends to the log: written, fenced (another writer was first) or failed (the server took nothing for a minute).",
);
/// The duration of appends.
pub const APPEND_SECONDS: HistogramDefinition = define_seconds_histogram(
    "millrace_append_seconds",
    APPEND_BOUNDS,
    &["topic"],
    WRITERS,
    "Duration of an append including retries, successful or not.",
);

/// The connection of a gateway to a tenant.
pub const TENANT_CONNECTED: GaugeDefinition = define_gauge(
    "millrace_tenant_connected",
    "1",
    &["tenant"],
    GATEWAY,
    "1 if this gateway serves the tenant, 0 while it cannot connect to its account. Gateways with --tenants only.",
);
pub const TENANT_REQUESTS: CounterDefinition = define_counter(
    "millrace_tenant_requests_total",
    "1",
    &["tenant", "outcome"],
    GATEWAY,
    "Authenticated requests of a tenant, by outcome: accepted, refused (the token is not valid) or limited (too many). \
     Gateways with --tenants only.",
);
/// The open event streams of a tenant.
pub const TENANT_STREAMS: GaugeDefinition = define_gauge(
    "millrace_tenant_streams",
    "1",
    &["tenant"],
    GATEWAY,
    "Open event streams of a tenant at this gateway. Gateways with --tenants only.",
);

/// The slots of a process.
pub const SLOTS: GaugeDefinition = define_gauge(
    "millrace_slots",
    "1",
    &["capability"],
    HOSTS,
    "Slots of a capability in this process: the orders it can work on at the same time.",
);
/// The busy slots of a process.
pub const SLOTS_BUSY: GaugeDefinition = define_gauge(
    "millrace_slots_busy",
    "1",
    &["capability"],
    HOSTS,
    "Busy slots of a capability in this process: orders in progress.",
);
/// Outcomes of orders.
pub const ORDERS: CounterDefinition = define_counter(
    "millrace_orders_total",
    "1",
    &["capability", "outcome"],
    HOSTS,
    "Orders taken from a queue, by outcome: done, lost (another process took over), returned (to the queue) or garbage \
     (not a valid order).",
);
/// Redelivered orders.
pub const REDELIVERIES: CounterDefinition = define_counter(
    "millrace_redeliveries_total",
    "1",
    &["capability"],
    HOSTS,
    "Redelivered orders: the queue had delivered them before to a process that was lost or returned them.",
);
/// Outcomes of attempts.
pub const ATTEMPTS: CounterDefinition = define_counter(
    "millrace_attempts_total",
    "1",
    &["capability", "outcome"],
    HOSTS,
    "Attempts whose outcome this process has appended to the log: finished or errored.",
);
/// The duration of attempts.
pub const ATTEMPT_SECONDS: HistogramDefinition = define_seconds_histogram(
    "millrace_attempt_seconds",
    WORK_BOUNDS,
    &["capability"],
    HOSTS,
    "Duration of an attempt in this process.",
);

pub const MODEL_REQUESTS: CounterDefinition = define_counter(
    "millrace_model_requests_total",
    "1",
    &["model", "outcome"],
    HOSTS,
    "Requests to a model including retries, by outcome: ok, or the kind of the error.",
);
/// The duration of model requests.
pub const MODEL_REQUEST_SECONDS: HistogramDefinition = define_seconds_histogram(
    "millrace_model_request_seconds",
    WORK_BOUNDS,
    &["model"],
    HOSTS,
    "Duration of a request to a model, successful or not.",
);
pub const MODEL_TOKENS: CounterDefinition = define_counter(
    "millrace_model_tokens_total",
    "1",
    &["model", "direction"],
    HOSTS,
    "Tokens by direction: input (all that were sent), cached (the part of the input that was in the cache of the provider) and output.",
);
/// The duration of model requests, by the GenAI conventions.
pub const GEN_AI_OPERATION_SECONDS: HistogramDefinition = define_seconds_histogram(
    "gen_ai_client_operation_duration_seconds",
    GEN_AI_SECONDS,
    &["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "error_type"],
    HOSTS,
    "Duration of a request to a model; error_type is empty if it succeeded.",
);
/// The tokens of model requests, by the GenAI conventions.
pub const GEN_AI_TOKEN_USAGE: HistogramDefinition = HistogramDefinition(define_metric(
    "gen_ai_client_token_usage",
    MetricKind::Histogram(GEN_AI_TOKENS),
    "1",
    &["gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_token_type"],
    HOSTS,
    "Tokens of a request to a model, by type: input or output.",
));
pub const MODEL_COST: CounterDefinition = define_counter(
    "millrace_model_cost_dollars_total",
    "1",
    &["model"],
    HOSTS,
    "Cost of requests in US dollars, as far as prices are known.",
);

/// Lanes of a supervisor.
pub const LANES_HELD: GaugeDefinition =
    define_gauge("millrace_lanes_held", "1", &[], SUPERVISOR, "Lanes that this process owns.");
pub const LANE_LAG: GaugeDefinition = define_gauge(
    "millrace_lane_lag_messages",
    "1",
    &["lane"],
    SUPERVISOR,
    "Lag of a lane: messages that its owner has not read yet, updated every few seconds.",
);
pub const LANE_TAKEOVERS: CounterDefinition = define_counter(
    "millrace_lane_takeovers_total",
    "1",
    &[],
    SUPERVISOR,
    "Lanes that this process acquired, for the first time or again.",
);
pub const LANE_LEASES_LOST: CounterDefinition = define_counter(
    "millrace_lane_leases_lost_total",
    "1",
    &[],
    SUPERVISOR,
    "Lane leases that this process lost because they were not renewed in time.",
);
/// The duration of reading a lane.
pub const LANE_FOLD_SECONDS: HistogramDefinition = define_seconds_histogram(
    "millrace_lane_fold_seconds",
    FOLD_BOUNDS,
    &[],
    SUPERVISOR,
    "Duration of reading an acquired lane, up to the first decision.",
);
pub const RUNS_LIVE: GaugeDefinition = define_gauge(
    "millrace_runs_live",
    "1",
    &["lane"],
    SUPERVISOR,
    "Live runs: those that the owner of a lane holds in memory.",
);
pub const DECISIONS: CounterDefinition = define_counter(
    "millrace_decisions_total",
    "1",
    &[],
    SUPERVISOR,
    "Decisions that this process has appended to plans.",
);
/// Published orders.
pub const OFFERS: CounterDefinition = define_counter(
    "millrace_offers_total",
    "1",
    &["capability"],
    SUPERVISOR,
    "Orders that this process has published to the queue of a capability.",
);
/// Repaired differences between queues and plans.
pub const QUEUE_REPAIRS: CounterDefinition = define_counter(
    "millrace_queue_repairs_total",
    "1",
    &["difference"],
    SUPERVISOR,
    "Orders that were missing from their queue, stranded in it, or unwanted, and that this process has published again or \
     removed.",
);
/// Ignored messages of lanes and files.
pub const MESSAGES_IGNORED: CounterDefinition = define_counter(
    "millrace_messages_ignored_total",
    "1",
    &["kind"],
    SUPERVISOR,
    "Messages that this process has ignored: forged (a redirected server reply), unsubmitted (of a run without a \
     submission) or unreadable.",
);
/// Removed stray messages.
pub const STRAYS_REMOVED: CounterDefinition = define_counter(
    "millrace_strays_removed_total",
    "1",
    &["stream"],
    SUPERVISOR,
    "Forged messages, and messages of unsubmitted runs, that this process has removed from a stream.",
);

/// Pending orders.
pub const QUEUE_PENDING: GaugeDefinition = define_gauge(
    "millrace_queue_pending",
    "1",
    &["capability"],
    CLUSTER,
    "Pending orders in the queue of a capability.",
);
/// Orders in progress.
pub const QUEUE_IN_HAND: GaugeDefinition = define_gauge(
    "millrace_queue_in_hand",
    "1",
    &["capability"],
    CLUSTER,
    "Orders of a capability that are delivered and not acknowledged.",
);
/// The age of the oldest order.
pub const QUEUE_OLDEST: GaugeDefinition = define_gauge(
    "millrace_queue_oldest_seconds",
    "s",
    &["capability"],
    CLUSTER,
    "Age of the oldest order of a capability that is pending or in progress; 0 if there is none.",
);
/// Redelivered orders in progress.
pub const QUEUE_REDELIVERED: GaugeDefinition = define_gauge(
    "millrace_queue_redelivered",
    "1",
    &["capability"],
    CLUSTER,
    "Orders of a capability that were delivered more than once and are not acknowledged.",
);
/// Live processes per capability.
pub const WORKERS: GaugeDefinition = define_gauge(
    "millrace_workers",
    "1",
    &["capability"],
    CLUSTER,
    "Live processes that serve the queue of a capability.",
);
/// Slots in the cluster.
pub const CAPABILITY_SLOTS: GaugeDefinition = define_gauge(
    "millrace_capability_slots",
    "1",
    &["capability"],
    CLUSTER,
    "Slots of a capability in all live processes.",
);
/// Busy slots in the cluster.
pub const CAPABILITY_BUSY: GaugeDefinition = define_gauge(
    "millrace_capability_busy",
    "1",
    &["capability"],
    CLUSTER,
    "Busy slots of a capability in all live processes, as their heartbeats report.",
);
pub const RUNS: GaugeDefinition =
    define_gauge("millrace_runs", "1", &["status"], CLUSTER, "Runs by status, or by the reason they ended.");
/// Lane ownership.
pub const LANE_OWNED: GaugeDefinition =
    define_gauge("millrace_lane_owned", "1", &["lane"], CLUSTER, "1 if a supervisor owns a lane, else 0.");
/// Messages per lane.
pub const LANE_MESSAGES: GaugeDefinition =
    define_gauge("millrace_lane_messages", "1", &["lane"], CLUSTER, "Messages in a lane.");
/// Size of streams.
pub const STREAM_BYTES: GaugeDefinition = define_gauge(
    "millrace_stream_bytes",
    "By",
    &["stream"],
    CLUSTER,
    "Size of a stream in bytes, one replica.",
);
/// Storage in use.
pub const STORE_USED: GaugeDefinition = define_gauge(
    "millrace_store_used_bytes",
    "By",
    &[],
    CLUSTER,
    "Storage that the streams of the account use, all replicas together.",
);
/// Storage limit.
pub const STORE_LIMIT: GaugeDefinition = define_gauge(
    "millrace_store_limit_bytes",
    "By",
    &[],
    CLUSTER,
    "Storage limit of the account, all replicas together; missing if there is no limit.",
);
/// Live processes.
pub const PROCESSES: GaugeDefinition =
    define_gauge("millrace_processes", "1", &["role"], CLUSTER, "Live processes by role.");

/// All metrics, in order: of every process, of workers and critics, of models, of supervisors, of the cluster.
pub const ALL: &[MetricDefinition] = &[
    BUILD_INFO.0,
    READY.0,
    NATS_CONNECTED.0,
    NATS_RECONNECTS.0,
    NATS_REFUSED.0,
    CERTIFICATE_EXPIRY.0,
    APPENDS.0,
    APPEND_SECONDS.0,
    TENANT_CONNECTED.0,
    TENANT_REQUESTS.0,
    TENANT_STREAMS.0,
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
    GEN_AI_OPERATION_SECONDS.0,
    GEN_AI_TOKEN_USAGE.0,
    LANES_HELD.0,
    LANE_LAG.0,
    LANE_TAKEOVERS.0,
    LANE_LEASES_LOST.0,
    LANE_FOLD_SECONDS.0,
    RUNS_LIVE.0,
    DECISIONS.0,
    OFFERS.0,
    QUEUE_REPAIRS.0,
    MESSAGES_IGNORED.0,
    STRAYS_REMOVED.0,
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
