//! The report of the benchmarks: a table for people, a JSON object for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::process::CpuSeconds;

/// A figure and the same figure of the baseline.
#[derive(Debug, Serialize)]
pub struct BaselineComparison {
    /// Description of the measurement.
    pub what: String,
    /// `tasks/s`, `ms/task`, `messages/s` or `s`.
    pub unit: &'static str,
    /// The median of the rounds.
    pub figure: f64,
    /// The same for the baseline.
    pub bare: f64,
    /// Fraction of the baseline's speed: 1 is as fast.
    pub ratio: f64,
    /// The figures of each round: Millrace and baseline.
    pub rounds: Vec<(f64, f64)>,
    /// Other figures by name; units are in the names.
    pub details: BTreeMap<&'static str, f64>,
    /// CPU seconds by process for 10,000 tasks, if the system reports them.
    #[serde(skip_serializing_if = "CpuSeconds::is_empty")]
    pub processor_seconds: CpuSeconds,
    /// The same for the baseline.
    #[serde(skip_serializing_if = "CpuSeconds::is_empty")]
    pub bare_processor_seconds: CpuSeconds,
}

/// A figure that must stay within a bound.
#[derive(Debug, Serialize)]
pub struct BoundedFigure {
    /// Description of the measurement.
    pub what: &'static str,
    /// The result; `None` if the system does not report it.
    pub figure: Option<f64>,
    pub unit: &'static str,
    pub bound: f64,
    /// `true` if the bound is a minimum, `false` if it is a maximum.
    pub at_least: bool,
    /// `true` if the figure is within its bound; `None` if it is unknown.
    pub is_kept: Option<bool>,
}

impl BoundedFigure {
    /// A figure with a maximum.
    pub fn with_maximum(
        what: &'static str,
        unit: &'static str,
        figure: impl Into<Option<f64>>,
        bound: f64,
    ) -> Self {
        let figure = figure.into();
        let is_kept = figure.map(|figure| figure <= bound);
        Self { what, figure, unit, bound, at_least: false, is_kept }
    }

    /// A figure with a minimum.
    pub fn with_minimum(
        what: &'static str,
        unit: &'static str,
        figure: impl Into<Option<f64>>,
        bound: f64,
    ) -> Self {
        let figure = figure.into();
        let is_kept = figure.map(|figure| figure >= bound);
        Self { what, figure, unit, bound, at_least: true, is_kept }
    }
}

/// The figures of all benchmarks.
#[derive(Debug, Default, Serialize)]
pub struct BenchReport {
    /// Comparisons by benchmark.
    #[serde(flatten)]
    pub comparisons: BTreeMap<&'static str, BaselineComparison>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub growth: BTreeMap<&'static str, BoundedFigure>,
    /// Number of processors and relevant settings.
    pub machine: BTreeMap<&'static str, serde_json::Value>,
}

impl BenchReport {
    pub fn table_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.comparisons.is_empty() {
            lines.push(format!(
                "{:<18} {:>12} {:>12} {:>6}  {:<11} {}",
                "", "millrace", "baseline", "ratio", "", ""
            ));
        }
        for (name, it) in &self.comparisons {
            let (figure, bare) = (format_number(it.figure), format_number(it.bare));
            lines.push(format!(
                "{name:<18} {figure:>12} {bare:>12} {:>6.2}  {:<11} {}",
                it.ratio, it.unit, it.what
            ));
        }
        for (name, it) in &self.growth {
            let figure = it.figure.map_or_else(|| "unknown".to_owned(), format_number);
            let bound = format!("{} {}", if it.at_least { "≥" } else { "≤" }, format_number(it.bound));
            let verdict = match it.is_kept {
                Some(true) => "kept",
                Some(false) => "BROKEN",
                None => "",
            };
            lines.push(format!(
                "{name:<18} {figure:>12} {bound:>12} {verdict:>6}  {:<11} {}",
                it.unit, it.what
            ));
        }
        lines.extend(self.time_breakdown_lines());
        if self.machine.get("is_optimized").is_some_and(|is_optimized| is_optimized == false) {
            lines.push("measured with an unoptimised build".to_owned());
        }
        lines
    }

    fn time_breakdown_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let spent = self.comparisons.iter().filter(|(_, it)| !it.processor_seconds.is_empty());
        for (name, it) in spent {
            let width = name.len() + 1;
            lines.push(format!("  {name}: {}", format_seconds(&it.processor_seconds)));
            lines.push(format!("  {:>width$} {}", "baseline", format_seconds(&it.bare_processor_seconds)));
        }
        if !lines.is_empty() {
            lines.insert(0, "CPU seconds for 10,000 tasks, by process:".to_owned());
        }
        lines.extend(
            self.comparisons
                .iter()
                .filter_map(|(name, it)| Some(format!("  {name}: {}", it.describe_stages()?))),
        );
        lines
    }
}

impl BaselineComparison {
    /// Describes the latency by stage, if it was measured.
    fn describe_stages(&self) -> Option<String> {
        let stage = |name: &str, baseline: &str| Some((self.details.get(name)?, self.details.get(baseline)?));
        let (claim, bare_claim) = stage("ms_from_decision_to_claim", "bare_ms_from_decision_to_claim")?;
        let (outcome, bare_outcome) = stage("ms_from_claim_to_outcome", "bare_ms_from_claim_to_outcome")?;
        let (decision, bare_decision) =
            stage("ms_from_outcome_to_decision", "bare_ms_from_outcome_to_decision")?;
        Some(format!(
            "ms from decision to claim {claim:.2} (bare {bare_claim:.2}), to outcome {outcome:.2} (bare \
             {bare_outcome:.2}), to the next decision {decision:.2} (bare {bare_decision:.2})"
        ))
    }
}

fn format_seconds(seconds: &CpuSeconds) -> String {
    let total: f64 = seconds.values().sum();
    let parts = seconds.iter().filter(|(_, seconds)| **seconds >= 0.005);
    let parts: Vec<String> = parts.map(|(name, seconds)| format!("{name} {seconds:.2}")).collect();
    format!("{} = {total:.2}", parts.join(" + "))
}

fn format_number(value: f64) -> String {
    if value.abs() < 100.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Returns the median; for an even number of values, the upper of the two middle ones.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// Returns the quantile `share` of the values; 0 without values.
pub fn quantile(values: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

pub fn rate_per_second(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_quantiles_are_values_of_the_sample() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(quantile((0..100).map(f64::from), 0.9), 90.0);
        assert_eq!((quantile([5.0], 1.0), median([])), (5.0, 0.0));
    }

    #[test]
    fn large_numbers_are_grouped_small_ones_have_decimals() {
        assert_eq!(format_number(0.2345), "0.23");
        assert_eq!(format_number(999.6), "1,000");
        assert_eq!(format_number(1_234_567.0), "1,234,567");
    }

    #[test]
    fn minimum_and_maximum_bounds_are_checked() {
        assert_eq!(BoundedFigure::with_maximum("", "", 9.0, 10.0).is_kept, Some(true));
        assert_eq!(BoundedFigure::with_minimum("", "", 9.0, 10.0).is_kept, Some(false));
        assert_eq!(BoundedFigure::with_minimum("", "", None, 10.0).is_kept, None);
    }
}
