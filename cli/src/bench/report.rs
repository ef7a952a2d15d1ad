//! What the benchmarks found, as a table for people and as one JSON object for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::process::Seconds;

/// What was measured, beside the bare cycle of the same messages.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// What is measured, in a line.
    pub what: String,
    /// `tasks/s`, `ms a hop` or `messages/s`.
    pub unit: &'static str,
    /// The median of the rounds.
    pub figure: f64,
    /// The same of the bare cycle.
    pub bare: f64,
    /// The share of the bare cycle's speed that is reached: 1 is as fast.
    pub ratio: f64,
    /// Each round: its figure and the bare one.
    pub rounds: Vec<(f64, f64)>,
    /// Other figures by name; units are in the names.
    pub details: BTreeMap<&'static str, f64>,
    /// Processor seconds by process for 10,000 tasks, where the system tells them.
    #[serde(skip_serializing_if = "Seconds::is_empty")]
    pub processor_seconds: Seconds,
    /// The same of the bare cycle.
    #[serde(skip_serializing_if = "Seconds::is_empty")]
    pub bare_processor_seconds: Seconds,
}

/// A figure that must stay within a bound.
#[derive(Debug, Serialize)]
pub struct Bounded {
    /// What is measured, in a line.
    pub what: &'static str,
    /// What came out; `None` where the system does not tell.
    pub figure: Option<f64>,
    /// What it is counted in.
    pub unit: &'static str,
    /// The bound.
    pub bound: f64,
    /// Whether the bound is the least that is wanted, rather than the most.
    pub at_least: bool,
    /// Whether the figure is within its bound; `None` where it is not known.
    pub is_kept: Option<bool>,
}

impl Bounded {
    /// A figure that may be at most `bound`.
    pub fn at_most(
        what: &'static str,
        unit: &'static str,
        figure: impl Into<Option<f64>>,
        bound: f64,
    ) -> Self {
        let figure = figure.into();
        let is_kept = figure.map(|figure| figure <= bound);
        Self { what, figure, unit, bound, at_least: false, is_kept }
    }

    /// A figure that must be at least `bound`.
    pub fn at_least(
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

/// Everything that was found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The comparisons by the names of the benchmarks.
    #[serde(flatten)]
    pub comparisons: BTreeMap<&'static str, Comparison>,
    /// How cost grows.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub growth: BTreeMap<&'static str, Bounded>,
    /// On what: processors, and settings that matter.
    pub machine: BTreeMap<&'static str, serde_json::Value>,
}

impl Report {
    /// The table, a line each.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.comparisons.is_empty() {
            lines.push(format!(
                "{:<18} {:>12} {:>12} {:>6}  {:<11} {}",
                "", "millrace", "bare", "ratio", "", ""
            ));
        }
        for (name, it) in &self.comparisons {
            let (figure, bare) = (number(it.figure), number(it.bare));
            lines.push(format!(
                "{name:<18} {figure:>12} {bare:>12} {:>6.2}  {:<11} {}",
                it.ratio, it.unit, it.what
            ));
        }
        for (name, it) in &self.growth {
            let figure = it.figure.map_or_else(|| "unknown".to_owned(), number);
            let bound = format!("{} {}", if it.at_least { "≥" } else { "≤" }, number(it.bound));
            let kept = match it.is_kept {
                Some(true) => "kept",
                Some(false) => "BROKEN",
                None => "",
            };
            lines.push(format!("{name:<18} {figure:>12} {bound:>12} {kept:>6}  {:<11} {}", it.unit, it.what));
        }
        lines.extend(self.where_time_goes());
        lines
    }

    fn where_time_goes(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let spent = self.comparisons.iter().filter(|(_, it)| !it.processor_seconds.is_empty());
        for (name, it) in spent {
            let width = name.len() + 1;
            lines.push(format!("  {name}: {}", seconds(&it.processor_seconds)));
            lines.push(format!("  {:>width$} {}", "bare", seconds(&it.bare_processor_seconds)));
        }
        if !lines.is_empty() {
            lines.insert(0, "where the time goes, in processor seconds for 10,000 tasks:".to_owned());
        }
        lines.extend(
            self.comparisons.iter().filter_map(|(name, it)| Some(format!("  {name}: {}", it.stages()?))),
        );
        lines
    }
}

impl Comparison {
    /// Where the time of a hop goes, where that was measured.
    fn stages(&self) -> Option<String> {
        let stage = |name: &str, bare: &str| Some((self.details.get(name)?, self.details.get(bare)?));
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

fn seconds(seconds: &Seconds) -> String {
    let total: f64 = seconds.values().sum();
    let parts = seconds.iter().filter(|(_, seconds)| **seconds >= 0.005);
    let parts: Vec<String> = parts.map(|(name, seconds)| format!("{name} {seconds:.2}")).collect();
    format!("{} = {total:.2}", parts.join(" + "))
}

fn number(value: f64) -> String {
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

/// The middle of some figures; of an even number, the upper one of the two.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// The figure below which this share of all lies; 0 of none.
pub fn quantile(values: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// So many in that time, by the second.
pub fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_quantiles_stay_within() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(quantile((0..100).map(f64::from), 0.9), 90.0);
        assert_eq!((quantile([5.0], 1.0), median([])), (5.0, 0.0));
    }

    #[test]
    fn large_numbers_are_grouped_and_small_ones_have_decimals() {
        assert_eq!(number(0.2345), "0.23");
        assert_eq!(number(999.6), "1,000");
        assert_eq!(number(1_234_567.0), "1,234,567");
    }

    #[test]
    fn a_bound_is_kept_from_its_own_side() {
        assert_eq!(Bounded::at_most("", "", 9.0, 10.0).is_kept, Some(true));
        assert_eq!(Bounded::at_least("", "", 9.0, 10.0).is_kept, Some(false));
        assert_eq!(Bounded::at_least("", "", None, 10.0).is_kept, None);
    }
}
