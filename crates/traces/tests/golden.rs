//! The span trees of recorded runs, compared with golden files, and what holds for the spans of every run.
//!
//! `tests/logs` has the messages of runs as they were in their lanes, one JSON object per line: with retries, a takeover, questions,
//! waits, delegated tasks, a planner, reviews, failures, a cancelled run, and a hybrid run with documents.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use millrace_client::ReceivedEntry;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, PlanningMode, Submission};
use millrace_protocol::subject::{Topic, parse_lane_subject};
use millrace_protocol::wire::{Encoding, decode_message};
use millrace_protocol::work::JournalEntry;
use millrace_traces::otlp::{TraceResource, export_request, to_json};
use millrace_traces::{
    AttributeValue, Convention, LinkRelation, RunTracer, Span, SpanContext, SpanStatus, TraceOptions,
    render_traces,
};
use millrace_views::journal::describe_entry;
use serde::Deserialize;

/// The time after which recorded runs continue in their next traces: the run with waits sleeps longer.
const SPLIT: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
struct LogLine {
    sequence: u64,
    subject: String,
    time: Timestamp,
    json: bool,
    payload: String,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// Returns the recorded runs: their names and messages.
fn recorded_runs() -> BTreeMap<String, Vec<LogLine>> {
    let files = std::fs::read_dir(folder("logs")).unwrap().map(|file| file.unwrap().path());
    let runs = files.map(|file| {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (file.file_stem().unwrap().to_str().unwrap().to_owned(), lines)
    });
    runs.collect()
}

fn add_line(tracer: &mut RunTracer, line: &LogLine) {
    let payload = data_encoding::BASE64.decode(line.payload.as_bytes()).unwrap();
    let encoding = if line.json { Encoding::Json } else { Encoding::MessagePack };
    let (_, _, topic) = parse_lane_subject(&line.subject).unwrap();
    match topic {
        Topic::Submitted => {
            tracer.add_submission(&decode_message::<Submission>(&payload, encoding).unwrap());
        }
        Topic::Plan => {
            let decision = decode_message::<Decision>(&payload, encoding).unwrap();
            tracer.add_decision(line.sequence, line.time, &decision);
        }
        Topic::Journal(journal) => {
            let entry = decode_message::<JournalEntry>(&payload, encoding).unwrap();
            let received =
                ReceivedEntry { sequence: line.sequence, at: line.time, journal, entry: Ok(entry) };
            tracer.add_entry(&describe_entry(received, None));
        }
        Topic::Control | Topic::Answer => {}
    }
}

fn trace(lines: &[LogLine], options: &TraceOptions) -> Vec<Span> {
    let (_, run, _) = parse_lane_subject(&lines[0].subject).unwrap();
    let mut tracer = RunTracer::new(run, options.clone());
    lines.iter().for_each(|line| add_line(&mut tracer, line));
    tracer.take_spans()
}

fn options() -> TraceOptions {
    TraceOptions { split: SPLIT, ..TraceOptions::default() }
}

#[test]
fn recorded_runs_have_their_golden_span_trees() {
    let runs = recorded_runs();
    assert!(runs.len() >= 10, "only {} runs", runs.len());
    for (name, lines) in runs {
        let text = render_traces(&trace(&lines, &options()), false).join("\n") + "\n";
        let file = folder("golden").join(format!("{name}.txt"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(golden == text, "{name}: UPDATE_GOLDEN=1 rewrites {}:\n{text}", file.display());
    }
}

/// Every cut of the log gives the spans of the whole log that are complete by then, so that it does not matter when they are derived.
#[test]
fn any_prefix_of_a_log_has_the_same_spans() {
    for (name, lines) in recorded_runs() {
        let all = trace(&lines, &options());
        for count in 1..lines.len() {
            let prefix = trace(&lines[..count], &options());
            let last = lines[count - 1].sequence;
            let expected: Vec<&Span> = all.iter().filter(|span| span.sequence <= last).collect();
            assert_eq!(prefix.iter().collect::<Vec<_>>(), expected, "{name}, the first {count} messages");
        }
    }
}

#[test]
fn parents_and_links_lead_to_spans_and_ids_are_unique() {
    for (name, lines) in recorded_runs() {
        let spans = trace(&lines, &options());
        let ids: BTreeSet<SpanContext> = spans.iter().map(|span| span.context).collect();
        assert_eq!(ids.len(), spans.len(), "{name}: an id is used twice");
        let has_ended = spans.iter().any(|span| span.name == "run ended");
        for span in &spans {
            assert!(span.start <= span.end, "{name}: {} ends before it starts", span.name);
            let parent = span.parent.map(|parent| SpanContext { span: parent, ..span.context });
            // In a run that has not ended, legs in progress have no spans yet.
            assert!(
                parent.is_none_or(|parent| ids.contains(&parent)) || !has_ended,
                "{name}: {} has an unknown parent",
                span.name
            );
            for link in &span.links {
                let is_known = ids.contains(&link.context) || link.relation == LinkRelation::SubmittedBy;
                assert!(is_known || !has_ended, "{name}: {} links to an unknown span", span.name);
            }
        }
    }
}

/// The texts of prompts, results, questions and errors are only in spans if the user wants them.
#[test]
fn spans_have_no_content_unless_it_is_wanted() {
    let secrets =
        ["a draft", "Which region?", "the clock knows", "it names the year", "gather it", "simulated"];
    let mut found = BTreeSet::new();
    for (name, lines) in recorded_runs() {
        let resource = TraceResource::from_settings(None, None);
        let without = to_json(&trace(&lines, &options()), &resource);
        let with = to_json(&trace(&lines, &TraceOptions { has_content: true, ..options() }), &resource);
        for secret in secrets {
            assert!(!without.contains(secret), "{name}: {secret}");
            found.extend(with.contains(secret).then_some(secret));
        }
    }
    assert!(found.len() >= 5, "only {found:?}");
}

#[test]
fn names_follow_the_chosen_convention() {
    let runs = recorded_runs();
    let known = include_str!("genai_names.txt").lines().collect::<BTreeSet<_>>();
    for convention in [Convention::Established, Convention::Latest] {
        for lines in runs.values() {
            for span in trace(lines, &TraceOptions { convention, has_content: true, ..options() }) {
                for (name, _) in &span.attributes {
                    let is_own = name.starts_with("millrace.");
                    assert!(is_own || known.contains(name), "{name} is no name of the conventions");
                }
            }
        }
    }
}

#[test]
fn spans_in_otlp_json_have_hexadecimal_ids_and_times_as_texts() {
    let lines = &recorded_runs()["tools"];
    let spans = trace(lines, &options());
    let resource = TraceResource::from_settings(Some("agents"), None);
    let json: serde_json::Value = serde_json::from_str(&to_json(&spans, &resource)).unwrap();
    let source = &json["resourceSpans"][0];
    assert_eq!(source["resource"]["attributes"][0]["value"]["stringValue"], "agents", "{source:#}");
    let first = &source["scopeSpans"][0]["spans"][0];
    assert_eq!(first["traceId"], spans[0].context.trace.to_string());
    assert_eq!(first["spanId"], spans[0].context.span.to_string());
    assert!(first["startTimeUnixNano"].is_string(), "{first:#}");
    assert_eq!(export_request(&spans, &resource).resource_spans[0].scope_spans[0].spans.len(), spans.len());
}

#[test]
fn model_calls_have_tokens_and_failed_runs_an_error() {
    let runs = recorded_runs();
    let spans = trace(&runs["tools"], &options());
    let chat = spans.iter().find(|span| span.name.starts_with("chat ")).unwrap();
    assert_eq!(chat.attribute("gen_ai.usage.input_tokens"), Some(&AttributeValue::Integer(100)));
    assert!(spans.iter().any(|span| span.name == "execute_tool now"));
    let failed = trace(&runs["failed"], &options());
    let end = failed.iter().find(|span| span.name == "run ended").unwrap();
    assert_eq!(end.status, SpanStatus::Error(String::new()));
}

#[test]
fn run_links_to_the_span_in_which_it_was_submitted() {
    let lines = &recorded_runs()["tools"];
    let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let submission =
        Submission { trace_parent: text.parse().ok(), ..Submission::new("tools", PlanningMode::Fixed) };
    let mut tracer = RunTracer::new(RunId::new("linked").unwrap(), options());
    lines.iter().take(2).for_each(|line| add_line(&mut tracer, line));
    assert!(tracer.take_spans()[0].links.is_empty());
    let mut tracer = RunTracer::new(RunId::new("linked").unwrap(), options());
    tracer.add_submission(&submission);
    lines.iter().skip(1).take(1).for_each(|line| add_line(&mut tracer, line));
    let anchor = &tracer.take_spans()[0];
    assert_eq!(anchor.links[0].relation, LinkRelation::SubmittedBy);
    assert_eq!(anchor.links[0].context.trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_ne!(anchor.context.trace, anchor.links[0].context.trace, "the run has its own trace");
}

#[test]
fn runs_with_other_names_have_other_ids() {
    let lines = &recorded_runs()["tools"];
    let mut other = RunTracer::new(RunId::new("another").unwrap(), options());
    lines.iter().for_each(|line| add_line(&mut other, line));
    let (ours, theirs) = (trace(lines, &options()), other.take_spans());
    assert_eq!(ours.len(), theirs.len());
    assert!(ours.iter().zip(&theirs).all(|(ours, theirs)| ours.context != theirs.context));
}
