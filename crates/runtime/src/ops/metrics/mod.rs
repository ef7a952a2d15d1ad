//! The metrics of this process: counters, gauges and histograms, served at `/metrics` for Prometheus. [`names`] defines
//! every metric, and no other exists.
//!
//! Code that measures often holds a handle ([`Counter`], [`Gauge`], [`Histogram`]), created once per set of labels.
//! Counters and histograms belong to the process and keep their values when the actor that updates them restarts; a
//! [`Gauge`] disappears with its handle. Label values are names of capabilities, models, lanes and streams, never of
//! runs or tasks.
//!
//! # Invariants
//!
//! - I52: Counters agree with the log. (`tests/tests/health.rs::counters_match_the_log`)

pub mod names;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, HistogramOpts, HistogramVec, Opts, Registry, TextEncoder};

use names::{
    ALL, CounterDefinition, GaugeDefinition, HistogramDefinition, MetricDefinition, MetricKind, ProcessKind,
};

/// The media type of the rendered metrics.
pub const MEDIA_TYPE: &str = prometheus::TEXT_FORMAT;

static PROCESS: LazyLock<MetricInstruments> = LazyLock::new(MetricInstruments::new);
/// All live gauges, by name and label values.
static GAUGES: Mutex<BTreeMap<&'static str, GaugeSeries>> = Mutex::new(BTreeMap::new());

type GaugeSeries = BTreeMap<Vec<String>, Vec<Weak<AtomicU64>>>;

/// The instruments of the process.
struct MetricInstruments {
    registry: Registry,
    counters: HashMap<&'static str, CounterVec>,
    histograms: HashMap<&'static str, HistogramVec>,
}

impl MetricInstruments {
    fn new() -> Self {
        let registry = Registry::new();
        let (mut counters, mut histograms) = (HashMap::new(), HashMap::new());
        for definition in ALL {
            let MetricDefinition { name, labels, .. } = definition;
            let collector: Box<dyn Collector> = match definition.kind {
                MetricKind::Counter => {
                    let counter = CounterVec::new(options(definition), labels).expect(VALID);
                    counters.insert(*name, counter.clone());
                    Box::new(counter)
                }
                MetricKind::Histogram(bounds) => {
                    let options = HistogramOpts::from(options(definition)).buckets(bounds.to_vec());
                    let histogram = HistogramVec::new(options, labels).expect(VALID);
                    histograms.insert(*name, histogram.clone());
                    Box::new(histogram)
                }
                MetricKind::Gauge => Box::new(LiveGauges::new(definition)),
            };
            registry.register(collector).expect(VALID);
        }
        Self { registry, counters, histograms }
    }
}

/// An invariant of all definitions in the table; `metric_names_follow_the_conventions` checks it.
const VALID: &str = "the table has valid names, each once";

fn options(definition: &MetricDefinition) -> Opts {
    Opts::new(definition.name, definition.help)
}

/// The live gauges of a name. Their values are read when metrics are rendered, so that a dropped gauge is not rendered any
/// more.
struct LiveGauges {
    definition: &'static MetricDefinition,
    description: GaugeVec,
}

impl LiveGauges {
    fn new(definition: &'static MetricDefinition) -> Self {
        let description = GaugeVec::new(options(definition), definition.labels).expect(VALID);
        Self { definition, description }
    }
}

impl Collector for LiveGauges {
    fn desc(&self) -> Vec<&Desc> {
        self.description.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let rendered = GaugeVec::new(options(self.definition), self.definition.labels).expect(VALID);
        let mut gauges = GAUGES.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(series) = gauges.get_mut(self.definition.name) else { return Vec::new() };
        series.retain(|values, handles| {
            handles.retain(|gauge| gauge.strong_count() > 0);
            let alive = handles.iter().filter_map(Weak::upgrade).map(|gauge| gauge_value(&gauge));
            if let Some(sum) = alive.reduce(|a, b| a + b) {
                rendered.with_label_values(values).set(sum);
            }
            !handles.is_empty()
        });
        rendered.collect()
    }
}

fn gauge_value(gauge: &AtomicU64) -> f64 {
    f64::from_bits(gauge.load(Ordering::Relaxed))
}

/// A counter with one set of labels.
#[derive(Clone)]
pub struct Counter(prometheus::Counter);

impl Counter {
    /// Adds 1.
    pub fn increment(&self) {
        self.add(1.0);
    }

    /// Adds an amount; a negative one is ignored.
    pub fn add(&self, amount: f64) {
        self.0.inc_by(amount.max(0.0));
    }
}

/// A histogram of durations with one set of labels.
#[derive(Clone)]
pub struct Histogram(prometheus::Histogram);

impl Histogram {
    pub fn record(&self, duration: Duration) {
        self.record_value(duration.as_secs_f64());
    }

    pub fn record_value(&self, value: f64) {
        self.0.observe(value);
    }
}

/// A gauge with one set of labels. It is rendered as long as a handle to it exists; gauges with the same labels are
/// summed.
#[derive(Clone)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Adds to the value; a negative amount subtracts.
    pub fn add(&self, amount: f64) {
        let sum = |bits| Some((f64::from_bits(bits) + amount).to_bits());
        // The update never fails: the closure always returns a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// Returns the value.
    pub fn get(&self) -> f64 {
        gauge_value(&self.0)
    }
}

impl CounterDefinition {
    /// Returns the counter with these label values, in the order of the labels. It is rendered from now on.
    pub fn with_labels(&self, values: &[&str]) -> Counter {
        let counter = PROCESS.counters.get(self.0.name).expect("every counter is in the table");
        Counter(counter.with_label_values(values))
    }
}

impl HistogramDefinition {
    /// Returns the histogram with these label values, in the order of the labels.
    pub fn with_labels(&self, values: &[&str]) -> Histogram {
        let histogram = PROCESS.histograms.get(self.0.name).expect("every histogram is in the table");
        Histogram(histogram.with_label_values(values))
    }
}

impl GaugeDefinition {
    /// Returns a gauge with these label values, in the order of the labels. Its first value is 0.
    pub fn with_labels(&self, values: &[&str]) -> Gauge {
        assert_eq!(self.0.labels.len(), values.len(), "{} has labels {:?}", self.0.name, self.0.labels);
        let gauge = Arc::new(AtomicU64::new(0.0_f64.to_bits()));
        let values = values.iter().map(|&value| value.to_owned()).collect();
        let mut gauges = GAUGES.lock().unwrap_or_else(PoisonError::into_inner);
        let series = gauges.entry(self.0.name).or_default();
        series.entry(values).or_default().push(Arc::downgrade(&gauge));
        Gauge(gauge)
    }
}

/// Renders the metrics of a process in the text format of Prometheus, including the names of those without values yet.
#[must_use]
pub fn render_metrics(process: ProcessKind) -> String {
    let families = PROCESS.registry.gather();
    let mut page = TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| {
        tracing::warn!(%error, "rendering the metrics failed");
        String::new()
    });
    let has_values = |name: &str| families.iter().any(|family| family.name() == name);
    for definition in ALL.iter().filter(|one| one.on.contains(&process) && !has_values(one.name)) {
        let MetricDefinition { name, help, .. } = definition;
        let kind = match definition.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram(_) => "histogram",
        };
        page += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered_lines_starting_with(start: &str) -> Vec<String> {
        let page = render_metrics(ProcessKind::Worker);
        page.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    }

    #[test]
    fn metrics_are_rendered_with_name_and_labels() {
        let garbage = names::ORDERS.with_labels(&["page-test", "garbage"]);
        assert_eq!(
            rendered_lines_starting_with("millrace_orders_total{capability=\"page-test\""),
            ["millrace_orders_total{capability=\"page-test\",outcome=\"garbage\"} 0"],
            "a counter is rendered before it is incremented"
        );
        garbage.increment();
        garbage.add(2.0);
        assert!(
            rendered_lines_starting_with("millrace_orders_total{capability=\"page-test\"")[0].ends_with(" 3")
        );

        names::ATTEMPT_SECONDS.with_labels(&["page-test"]).record(Duration::from_millis(70));
        let buckets =
            rendered_lines_starting_with("millrace_attempt_seconds_bucket{capability=\"page-test\"");
        assert_eq!(buckets[0], "millrace_attempt_seconds_bucket{capability=\"page-test\",le=\"0.05\"} 0");
        assert_eq!(buckets[1], "millrace_attempt_seconds_bucket{capability=\"page-test\",le=\"0.1\"} 1");
    }

    #[test]
    fn gauges_with_the_same_labels_are_summed_and_disappear_with_their_handles() {
        let rendered = || rendered_lines_starting_with("millrace_slots{capability=\"gauge-test\"");
        let (one, other) =
            (names::SLOTS.with_labels(&["gauge-test"]), names::SLOTS.with_labels(&["gauge-test"]));
        one.set(3.0);
        other.add(2.0);
        assert_eq!(rendered(), ["millrace_slots{capability=\"gauge-test\"} 5"]);
        drop(one);
        assert_eq!(rendered(), ["millrace_slots{capability=\"gauge-test\"} 2"]);
        drop(other);
        assert!(rendered().is_empty());
    }

    #[test]
    fn every_metric_of_a_process_is_rendered_and_no_other() {
        for process in ProcessKind::ALL {
            let page = render_metrics(process);
            for one in ALL.iter().filter(|one| one.on.contains(&process)) {
                let declared = page.matches(&format!("# TYPE {} ", one.name)).count();
                assert_eq!(declared, 1, "{} on the page of a {process}", one.name);
            }
            for line in page.lines().filter(|line| !line.starts_with('#')) {
                let name = line.split(['{', ' ']).next().unwrap();
                assert!(ALL.iter().any(|one| name.starts_with(one.name)), "{name} is not defined");
            }
        }
    }

    #[test]
    fn metric_names_follow_the_conventions() {
        for (at, one) in ALL.iter().enumerate() {
            let prefixes = ["millrace_", "gen_ai_"];
            assert!(prefixes.iter().any(|prefix| one.name.starts_with(prefix)), "{}", one.name);
            assert_eq!(one.name.ends_with("_total"), one.kind == MetricKind::Counter, "{}", one.name);
            assert_eq!(one.unit == "By", one.name.ends_with("_bytes"), "{}", one.name);
            assert_eq!(one.unit == "s", one.name.ends_with("_seconds"), "{}", one.name);
            assert!(one.help.ends_with('.') && !one.on.is_empty(), "{}", one.name);
            assert!(ALL[..at].iter().all(|other| other.name != one.name), "{} is defined twice", one.name);
        }
    }
}
