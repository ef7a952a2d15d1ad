//! Spans as a tree for a terminal, one trace after the other.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use crate::names::{self, own};
use crate::span::{AttributeValue, Span, SpanContext, SpanId, SpanStatus};

/// The column in which the figures of a span begin.
const FIGURES: usize = 56;

/// Renders spans as trees, a line for each. Without `has_times`, durations and ids are left out.
#[must_use]
pub fn render_traces(spans: &[Span], has_times: bool) -> Vec<String> {
    let mut numbers: Vec<i64> = spans.iter().map(trace_number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let labels: HashMap<SpanContext, String> =
        spans.iter().map(|span| (span.context, label_of(span))).collect();
    let mut lines = Vec::new();
    for number in &numbers {
        let trace: Vec<&Span> = spans.iter().filter(|span| trace_number(span) == *number).collect();
        let Some(first) = trace.first() else { continue };
        let of = if numbers.len() > 1 { format!(" {number} of {}", numbers.len()) } else { String::new() };
        lines.push(match has_times {
            true => format!("trace{of} {}", first.context.trace),
            false => format!("trace{of}"),
        });
        let tree = SpanTree { labels: &labels, children: children_of(&trace), has_times };
        tree.render_children(None, "", &mut lines);
    }
    lines
}

fn trace_number(span: &Span) -> i64 {
    span.integer(own::TRACE_NUMBER).unwrap_or_default()
}

/// Returns the spans below each span, in the order in which they began.
fn children_of<'a>(trace: &[&'a Span]) -> BTreeMap<Option<SpanId>, Vec<&'a Span>> {
    let mut children: BTreeMap<Option<SpanId>, Vec<&Span>> = BTreeMap::new();
    for span in trace {
        children.entry(span.parent).or_default().push(span);
    }
    for list in children.values_mut() {
        list.sort_by_key(|span| (span.start, span.sequence));
    }
    children
}

struct SpanTree<'a> {
    labels: &'a HashMap<SpanContext, String>,
    children: BTreeMap<Option<SpanId>, Vec<&'a Span>>,
    has_times: bool,
}

impl SpanTree<'_> {
    fn render_children(&self, parent: Option<SpanId>, indent: &str, lines: &mut Vec<String>) {
        let Some(children) = self.children.get(&parent) else { return };
        for (at, span) in children.iter().enumerate() {
            let is_last = at + 1 == children.len();
            let (branch, deeper) = match (parent.is_some(), is_last) {
                (false, _) => ("", ""),
                (true, true) => ("└─ ", "   "),
                (true, false) => ("├─ ", "│  "),
            };
            lines.push(self.line_of(span, &format!("{indent}{branch}")));
            self.render_children(Some(span.context.span), &format!("{indent}{deeper}"), lines);
        }
    }

    fn line_of(&self, span: &Span, prefix: &str) -> String {
        let mut line = format!("{prefix}{}", label_of(span));
        let figures = self.figures_of(span);
        if !figures.is_empty() {
            let width = line.chars().count();
            let gap = FIGURES.saturating_sub(width).max(2);
            let _ = write!(line, "{:gap$}{}", "", figures.join("  "));
        }
        line
    }

    /// Returns the duration, tokens, cost, outcome and links of a span.
    fn figures_of(&self, span: &Span) -> Vec<String> {
        let mut figures = Vec::new();
        let duration = span.end.duration_since(span.start);
        if self.has_times && !duration.is_zero() {
            figures.push(format_duration(duration));
        }
        let count = |name: &str| span.integer(name);
        let input = count(names::INPUT_TOKENS).or_else(|| count(own::INPUT_TOKENS));
        let output = count(names::OUTPUT_TOKENS).or_else(|| count(own::OUTPUT_TOKENS));
        if input.is_some() || output.is_some() {
            let (input, output) = (input.unwrap_or_default(), output.unwrap_or_default());
            figures.push(format!("{input} in, {output} out"));
        }
        if let Some(AttributeValue::Decimal(cost)) = span.attribute(own::COST) {
            figures.push(format!("${cost:.4}"));
        }
        figures.extend(span.text(own::OUTCOME).map(str::to_owned));
        if let SpanStatus::Error(message) = &span.status {
            let kind = span.text(names::ERROR_TYPE).unwrap_or_default();
            let message = if message.is_empty() { String::new() } else { format!(": {message}") };
            figures.push(format!("error {kind}{message}"));
        }
        figures.extend(span.links.iter().map(|link| {
            let target = self.labels.get(&link.context);
            let target = target.cloned().unwrap_or_else(|| format!("span {}", link.context.span));
            format!("({} {target})", link.relation.name().replace('_', " "))
        }));
        figures
    }
}

/// Returns the name of a span, with what tells it from others of that name.
fn label_of(span: &Span) -> String {
    let text = |name: &str| {
        let number = span.integer(name).map(|number| number.to_string());
        span.text(name).map(str::to_owned).or(number)
    };
    let is_step = text(own::TURN).is_some() || text(own::STEP).is_some();
    let mut parts = Vec::new();
    if !is_step {
        parts.extend(text(own::TASK));
        parts.extend(text(own::PLANNER_TURN).map(|turn| format!("turn {turn}")));
        let attempt = text(own::ATTEMPT).filter(|attempt| attempt != "1");
        parts.extend(attempt.map(|attempt| format!("attempt {attempt}")));
    }
    parts.extend(text(own::STEP));
    parts.extend(text(own::QUESTION));
    parts.extend(text(own::JUDGE).map(|judge| format!("judge {judge}")));
    if parts.is_empty() { span.name.clone() } else { format!("{} [{}]", span.name, parts.join(", ")) }
}

fn format_duration(duration: jiff::SignedDuration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        _ if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        _ if seconds < 60.0 => format!("{seconds:.1} s"),
        _ if seconds < 3_600.0 => format!("{}m {:02}s", duration.as_secs() / 60, duration.as_secs() % 60),
        _ => format!("{}h {:02}m", duration.as_secs() / 3_600, duration.as_secs() % 3_600 / 60),
    }
}
