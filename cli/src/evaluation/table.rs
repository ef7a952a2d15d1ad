//! The table of an evaluation, for people. Pure.

use millrace_protocol::plan::ResourceKind;

use super::score::{ConfigurationScore, method_name, percent};
use super::store::SampleMethod;
use crate::view::{align_columns, separate_thousands};

#[derive(Debug, Default)]
pub struct ConfigurationScores {
    pub name: String,
    pub runs: ConfigurationScore,
    /// The model alone, if that was measured.
    pub ceiling: Option<ConfigurationScore>,
}

const HEADINGS: [&str; 12] = [
    "configuration",
    "method",
    "samples",
    "accepted",
    "facts",
    "wrong",
    "unfounded",
    "not answered",
    "citations",
    "calls",
    "tokens",
    "cost",
];

/// Returns the table as lines: a row for each configuration and method, and a line on the share of the ceiling.
pub fn table_lines(configurations: &[ConfigurationScores]) -> Vec<String> {
    let mut rows: Vec<[String; 13]> = vec![heading_row()];
    for configuration in configurations {
        rows.push(score_row(&configuration.name, SampleMethod::Run, &configuration.runs));
        if let Some(ceiling) = &configuration.ceiling {
            rows.push(score_row(&configuration.name, SampleMethod::Ceiling, ceiling));
        }
    }
    let mut lines = align_columns(&rows);
    for configuration in configurations {
        let share =
            configuration.ceiling.as_ref().and_then(|ceiling| configuration.runs.share_of_ceiling(ceiling));
        if let Some((found, expected)) = share {
            lines.push(format!(
                "{}: {} of the facts that the model finds alone",
                configuration.name,
                share_text(found, expected)
            ));
        }
    }
    lines
}

fn heading_row() -> [String; 13] {
    std::array::from_fn(|at| HEADINGS.get(at).map_or_else(|| "time".to_owned(), |name| (*name).to_owned()))
}

fn score_row(name: &str, method: SampleMethod, score: &ConfigurationScore) -> [String; 13] {
    let is_run = method == SampleMethod::Run;
    let of_runs = |text: String| if is_run { text } else { "-".to_owned() };
    let mean = |total: u64| total.checked_div(u64::from(score.samples)).unwrap_or_default();
    let tokens = ResourceKind::Tokens.amount_used(&score.usage);
    let calls = score.usage.model_calls as f64 / f64::from(score.samples.max(1));
    let seconds = score.elapsed_ms as f64 / 1000.0 / f64::from(score.samples.max(1));
    let samples = match score.missing() {
        0 => score.samples.to_string(),
        _ => format!("{} of {}", score.samples, score.selected),
    };
    let not_answered = match score.unanswerable {
        0 => "-".to_owned(),
        all => format!("{} of {all}", score.not_answered),
    };
    [
        name.to_owned(),
        method_name(method).to_owned(),
        samples,
        of_runs(share_text(score.accepted, score.samples)),
        share_text(score.facts_found, score.facts_expected),
        score.wrong.to_string(),
        of_runs(score.unfounded.to_string()),
        of_runs(not_answered),
        of_runs(share_text(score.resolved_citations, score.citations)),
        format!("{calls:.1}"),
        separate_thousands(&mean(tokens).to_string()),
        ResourceKind::Cost.format_amount(mean(score.usage.cost_micros)),
        format!("{seconds:.1} s"),
    ]
}

/// Returns a share as counts and as a percentage.
pub fn share_text(part: u32, whole: u32) -> String {
    match percent(part, whole) {
        None => "-".to_owned(),
        Some(percent) => format!("{part} of {whole} ({percent}%)"),
    }
}
