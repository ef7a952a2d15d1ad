//! Scores of samples, their sums by configuration and method, and the printed table. Pure.
//!
//! | file | |
//! |---|---|
//! | `answers` | answers to objectives |
//! | `claims` | verdicts on claims |
//! | `share` | a part of a whole with its confidence interval |
//! | `table` | the table |

pub mod answers;
pub mod claims;
pub mod share;
pub mod table;

use millrace_protocol::plan::ResourceKind;
use millrace_protocol::result::Usage;

use super::store::{SampleMethod, SampleRecord};
use crate::view::separate_thousands;

/// The sum of the samples of a configuration that were measured in one way.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MethodScore<S> {
    pub selected: u32,
    /// Those that have ended.
    pub samples: u32,
    pub usage: Usage,
    /// The working time in milliseconds.
    pub elapsed_ms: u64,
    /// The sums of this kind of items.
    pub sums: S,
}

impl<S> MethodScore<S> {
    /// Adds a sample without its sums.
    pub fn add_usage(&mut self, record: &SampleRecord) {
        self.samples += 1;
        self.usage.add(record.usage);
        self.elapsed_ms += record.elapsed_ms;
    }

    /// The samples that have not ended.
    pub fn missing(&self) -> u32 {
        self.selected.saturating_sub(self.samples)
    }

    fn samples_cell(&self) -> String {
        match self.missing() {
            0 => self.samples.to_string(),
            _ => format!("{} of {}", self.samples, self.selected),
        }
    }

    /// The means of calls, tokens, cost and time for each of `count` units.
    fn usage_rows(&self, unit: &str, count: u32) -> Vec<(String, String)> {
        let mean = |total: u64| total.checked_div(u64::from(count)).unwrap_or_default();
        let tokens = ResourceKind::Tokens.amount_used(&self.usage);
        let each = |total: f64| total / f64::from(count.max(1));
        vec![
            (format!("calls{unit}"), format!("{:.1}", each(self.usage.model_calls as f64))),
            (format!("tokens{unit}"), separate_thousands(&mean(tokens).to_string())),
            (format!("cost{unit}"), ResourceKind::Cost.format_amount(mean(self.usage.cost_micros))),
            (format!("time{unit}"), format!("{:.1} s", each(self.elapsed_ms as f64 / 1000.0))),
        ]
    }
}

/// The scores of a configuration.
#[derive(Debug, Default)]
pub struct ConfigurationScores<S> {
    pub name: String,
    /// By method, the main one first.
    pub methods: Vec<(SampleMethod, MethodScore<S>)>,
}

impl<S> ConfigurationScores<S> {
    /// The score of a method; `None` if that was not measured.
    pub fn find(&self, method: SampleMethod) -> Option<&MethodScore<S>> {
        self.methods.iter().find(|(one, _)| *one == method).map(|(_, score)| score)
    }
}
