//! What this process measures. There is one page of it, `/metrics`, for Prometheus; the figures are kept by
//! OpenTelemetry under the names of [`names`], and one that is not there is measured nowhere.
//!
//! Whoever measures something often holds a handle to it ([`Tally`], [`Timing`], [`Level`]), made once for its labels.
//! Figures belong to the process and not to who counts them: what was counted stays when the actor that did is gone, and
//! a [`Level`] goes with its handle. Labels are names of capabilities, models, lanes and streams, never of runs or tasks.

mod appends;
pub mod cluster;
mod link;
pub mod names;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{self, Meter, MeterProvider};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};

pub(crate) use appends::count_append;
pub(crate) use link::Link;
use names::{ALL, Counter, Definition, Gauge, Histogram, Kind, Process};

/// The media type of a page.
pub const MEDIA_TYPE: &str = prometheus::TEXT_FORMAT;

static PROCESS: LazyLock<Recorder> = LazyLock::new(Recorder::new);
/// All levels whose handles live, by name and by the values of their labels.
static LEVELS: Mutex<BTreeMap<&'static str, Series>> = Mutex::new(BTreeMap::new());

type Series = BTreeMap<Vec<String>, Vec<Weak<AtomicU64>>>;

/// The instruments of the process.
struct Recorder {
    registry: Registry,
    counters: HashMap<&'static str, metrics::Counter<f64>>,
    histograms: HashMap<&'static str, metrics::Histogram<f64>>,
    /// Figures are kept for as long as it lives.
    _provider: SdkMeterProvider,
}

impl Recorder {
    fn new() -> Self {
        let registry = Registry::new();
        // Names stand in the table as they are on the page: nothing is to be added to them.
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .without_units()
            .without_counter_suffixes()
            .without_target_info()
            .scope_info_enabled(false)
            .build()
            .expect("a new registry takes its only collector");
        let provider = SdkMeterProvider::builder().with_reader(exporter).build();
        let meter = provider.meter("millrace");
        let (mut counters, mut histograms) = (HashMap::new(), HashMap::new());
        for definition in ALL {
            match definition.kind {
                Kind::Counter => drop(counters.insert(definition.name, counter(&meter, definition))),
                Kind::Histogram(bounds) => {
                    histograms.insert(definition.name, histogram(&meter, definition, bounds));
                }
                Kind::Gauge => observe(&meter, definition),
            }
        }
        Self { registry, counters, histograms, _provider: provider }
    }
}

fn counter(meter: &Meter, definition: &Definition) -> metrics::Counter<f64> {
    let builder = meter.f64_counter(definition.name).with_unit(definition.unit);
    builder.with_description(definition.help).build()
}

fn histogram(meter: &Meter, definition: &Definition, bounds: &[f64]) -> metrics::Histogram<f64> {
    let builder = meter.f64_histogram(definition.name).with_unit(definition.unit);
    builder.with_description(definition.help).with_boundaries(bounds.to_vec()).build()
}

/// Levels are looked at when a page is asked for, so that one whose handle is gone is on no later page.
fn observe(meter: &Meter, definition: &'static Definition) {
    let builder = meter.f64_observable_gauge(definition.name).with_unit(definition.unit);
    let builder = builder.with_description(definition.help).with_callback(move |observer| {
        let mut levels = LEVELS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(series) = levels.get_mut(definition.name) else { return };
        series.retain(|values, levels| {
            levels.retain(|level| level.strong_count() > 0);
            let alive = levels.iter().filter_map(Weak::upgrade).map(|level| value_of(&level));
            if let Some(sum) = alive.reduce(|a, b| a + b) {
                observer.observe(sum, &labelled(definition, values));
            }
            !levels.is_empty()
        });
    });
    // The provider keeps what it asks; the handle is of no use.
    let _instrument = builder.build();
}

fn labelled<V: AsRef<str>>(definition: &Definition, values: &[V]) -> Vec<KeyValue> {
    assert_eq!(
        definition.labels.len(),
        values.len(),
        "{} has labels {:?}",
        definition.name,
        definition.labels
    );
    let labels = definition.labels.iter().zip(values);
    labels.map(|(name, value)| KeyValue::new(*name, value.as_ref().to_owned())).collect()
}

fn value_of(level: &AtomicU64) -> f64 {
    f64::from_bits(level.load(Ordering::Relaxed))
}

/// A count of one set of labels.
#[derive(Clone)]
pub struct Tally {
    counter: metrics::Counter<f64>,
    labels: Arc<[KeyValue]>,
}

impl Tally {
    /// One more.
    pub fn one(&self) {
        self.add(1.0);
    }

    /// So many more; less than nothing is not counted.
    pub fn add(&self, amount: f64) {
        self.counter.add(amount, &self.labels);
    }
}

/// Durations of one set of labels.
#[derive(Clone)]
pub struct Timing {
    histogram: metrics::Histogram<f64>,
    labels: Arc<[KeyValue]>,
}

impl Timing {
    /// One that took so long.
    pub fn record(&self, took: Duration) {
        self.histogram.record(took.as_secs_f64(), &self.labels);
    }
}

/// A value that stands on the page for as long as a handle to it lives. Those of the same labels are added up.
#[derive(Clone)]
pub struct Level(Arc<AtomicU64>);

impl Level {
    /// It stands at this now.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// It stands higher by this now.
    pub fn change(&self, by: f64) {
        let changed = |bits| Some((f64::from_bits(bits) + by).to_bits());
        // It always changes: the closure refuses nothing.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }

    /// Where it stands.
    #[must_use]
    pub fn get(&self) -> f64 {
        value_of(&self.0)
    }
}

impl Counter {
    /// The count of these values of its labels, in their order. It is on the page from now on.
    #[must_use]
    pub fn tally(&self, values: &[&str]) -> Tally {
        let counter = PROCESS.counters.get(self.0.name).expect("every counter is in the table").clone();
        let tally = Tally { counter, labels: labelled(&self.0, values).into() };
        tally.add(0.0);
        tally
    }
}

impl Histogram {
    /// The durations of these values of its labels, in their order.
    #[must_use]
    pub fn timing(&self, values: &[&str]) -> Timing {
        let histogram = PROCESS.histograms.get(self.0.name).expect("every histogram is in the table").clone();
        Timing { histogram, labels: labelled(&self.0, values).into() }
    }
}

impl Gauge {
    /// A value for these values of its labels, in their order; 0 at first.
    #[must_use]
    pub fn level(&self, values: &[&str]) -> Level {
        assert_eq!(self.0.labels.len(), values.len(), "{} has labels {:?}", self.0.name, self.0.labels);
        let level = Arc::new(AtomicU64::new(0.0_f64.to_bits()));
        let values = values.iter().map(|&value| value.to_owned()).collect();
        let mut levels = LEVELS.lock().unwrap_or_else(PoisonError::into_inner);
        let series = levels.entry(self.0.name).or_default();
        series.entry(values).or_default().push(Arc::downgrade(&level));
        Level(level)
    }
}

/// The page of a process: all that was measured, and the names of what could be and was not yet.
#[must_use]
pub fn page(of: Process) -> String {
    let families = PROCESS.registry.gather();
    let mut page = TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| {
        tracing::warn!(%error, "metrics could not be written down");
        String::new()
    });
    let is_there = |name: &str| families.iter().any(|family| family.name() == name);
    for definition in ALL.iter().filter(|one| one.on.contains(&of) && !is_there(one.name)) {
        let Definition { name, help, .. } = definition;
        let kind = match definition.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        page += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(start: &str) -> Vec<String> {
        let page = page(Process::Worker);
        page.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    }

    #[test]
    fn what_is_measured_is_on_the_page_under_its_name_and_labels() {
        let garbage = names::ORDERS.tally(&["page-test", "garbage"]);
        assert_eq!(
            lines("millrace_orders_total{capability=\"page-test\""),
            ["millrace_orders_total{capability=\"page-test\",outcome=\"garbage\"} 0"],
            "a count is there before anything was counted"
        );
        garbage.one();
        garbage.add(2.0);
        assert!(lines("millrace_orders_total{capability=\"page-test\"")[0].ends_with(" 3"));

        names::ATTEMPT_SECONDS.timing(&["page-test"]).record(Duration::from_millis(70));
        let buckets = lines("millrace_attempt_seconds_bucket{capability=\"page-test\"");
        assert_eq!(buckets[0], "millrace_attempt_seconds_bucket{capability=\"page-test\",le=\"0.05\"} 0");
        assert_eq!(buckets[1], "millrace_attempt_seconds_bucket{capability=\"page-test\",le=\"0.1\"} 1");
    }

    #[test]
    fn levels_of_the_same_labels_add_up_and_go_with_their_handles() {
        let mine = || lines("millrace_slots{capability=\"level-test\"");
        let (one, other) = (names::SLOTS.level(&["level-test"]), names::SLOTS.level(&["level-test"]));
        one.set(3.0);
        other.change(2.0);
        assert_eq!(mine(), ["millrace_slots{capability=\"level-test\"} 5"]);
        drop(one);
        assert_eq!(mine(), ["millrace_slots{capability=\"level-test\"} 2"]);
        drop(other);
        assert!(mine().is_empty());
    }

    #[test]
    fn a_page_names_all_that_its_process_could_measure_and_nothing_else() {
        for process in Process::ALL {
            let page = page(process);
            for one in ALL.iter().filter(|one| one.on.contains(&process)) {
                let declared = page.matches(&format!("# TYPE {} ", one.name)).count();
                assert_eq!(declared, 1, "{} on the page of a {process}", one.name);
            }
            for line in page.lines().filter(|line| !line.starts_with('#')) {
                let name = line.split(['{', ' ']).next().unwrap();
                assert!(ALL.iter().any(|one| name.starts_with(one.name)), "{name} is in no table");
            }
        }
    }

    #[test]
    fn the_table_keeps_to_the_rules_for_names() {
        for (at, one) in ALL.iter().enumerate() {
            assert!(one.name.starts_with("millrace_"), "{}", one.name);
            assert_eq!(one.name.ends_with("_total"), one.kind == Kind::Counter, "{}", one.name);
            assert_eq!(one.unit == "By", one.name.ends_with("_bytes"), "{}", one.name);
            assert_eq!(one.unit == "s", one.name.ends_with("_seconds"), "{}", one.name);
            assert!(one.help.ends_with('.') && !one.on.is_empty(), "{}", one.name);
            assert!(ALL[..at].iter().all(|other| other.name != one.name), "{} stands twice", one.name);
        }
    }
}
