//! The JSON of the API for recorded runs and for a sample of every message, compared with golden files: every event with its fields,
//! decisions with their messages, the result, the timeline, the usage and the transcripts of each run.

use std::fmt::Write as _;

use millrace_protocol::plan::{Decision, JournalKey, RunCommand};
use millrace_protocol::question::RunAnswer;
use millrace_protocol::registry::RunSummary;
use millrace_protocol::wire::{WireMessage, decode_message_pack};
use millrace_views::changes::describe_changes;
use millrace_views::history::RunHistory;
use millrace_views::journal::{TranscriptEntry, TranscriptEvent};
use millrace_views::{
    DecisionLine, EntryLine, EventLine, LoggedDecision, MessageContent, MessageLine, PlannerTranscript,
    ReplayJson, RunListLine, RunResult, RunSpend, SpendGroup, SpendSeries, SpendTable, TaskList,
    TaskTranscript, TimelineBuilder, to_value,
};
use serde::Serialize;

use super::*;

fn compare_with_golden_file(name: &str, text: &str) {
    let file = folder("golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
    }
    let golden = std::fs::read_to_string(&file).unwrap_or_default();
    let lines = golden.lines().chain(["(end)"]).zip(text.lines().chain(["(end)"]));
    for (number, (should, is)) in (1..).zip(lines) {
        assert_eq!(should, is, "UPDATE_GOLDEN=1 rewrites {}:{number}", file.display());
    }
}

fn add_json(text: &mut String, what: &str, value: &impl Serialize) {
    writeln!(text, "{what} {}", to_value(value)).unwrap();
}

fn add_decision(text: &mut String, run: &RunId, sequence: u64, decision: &Decision) {
    add_json(text, "decision", &DecisionLine::new(run, sequence, decision));
    for event in &decision.events {
        let at = decision.at.into();
        add_json(text, "event", &EventLine { run, sequence, at, event: event.into() });
        writeln!(text, "text {event}").unwrap();
    }
}

/// The entry with its stored value missing, and with that value not read.
fn described(sequence: u64, at: Timestamp, journal: JournalKey, entry: JournalEntry) -> [TranscriptEntry; 2] {
    let received = ReceivedEntry { sequence, at, journal, entry: Ok(entry) };
    let missing = Some(Err("it is not in the store".into()));
    [describe_entry(received.clone(), missing), describe_entry(received, None)]
}

/// Every message whose bytes are in the golden file of the protocol: each event with all fields and without optional ones.
#[test]
fn samples_of_messages_have_their_golden_json() {
    let samples = include_str!("../../../../protocol/tests/golden/format-3.txt");
    let (mut text, run, at) = (String::new(), RunId::new("r1").unwrap(), Timestamp::UNIX_EPOCH);
    let journal: JournalKey = JournalKey::Planning(2, 1);
    let mut table = SpendTable::new(SpendGroup::State);
    for line in samples.lines().filter(|line| !line.starts_with('#')) {
        let (name, hex) = line.rsplit_once(" = ").unwrap();
        let bytes = data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap();
        fn decode<M: WireMessage>(bytes: &[u8]) -> Option<M> {
            decode_message(bytes, Encoding::MessagePack).ok()
        }
        let mut add_message = |content| {
            add_json(&mut text, name, &MessageLine::new(5, at, &content));
        };
        if let Some(decision) = decode::<Decision>(&bytes) {
            writeln!(text, "# {name}").unwrap();
            add_decision(&mut text, &run, 7, &decision);
        } else if let Some(entry) = decode::<JournalEntry>(&bytes) {
            let [shown, mut named] = described(5, at, journal.clone(), entry);
            add_message(MessageContent::Entry(Box::new(named.clone())));
            add_json(&mut text, name, &EntryLine { run: &run, task: None, entry: &shown });
            if !matches!(named.event, TranscriptEvent::StoredStep { .. }) {
                named.event = TranscriptEvent::Unreadable { error: "the entry has no stored value".into() };
            }
            add_json(&mut text, name, &named);
        } else if let Some(submission) = decode::<Submission>(&bytes) {
            add_message(MessageContent::Submission(Box::new(submission)));
        } else if let Some(command) = decode::<RunCommand>(&bytes) {
            add_message(MessageContent::Command(Box::new(command)));
        } else if let Some(answer) = decode::<RunAnswer>(&bytes) {
            add_message(MessageContent::Answer(Box::new(answer)));
        } else if let Ok(summary) = decode_message_pack::<RunSummary>(&bytes, "a summary") {
            table.add_run(&summary);
            add_json(&mut text, name, &RunListLine::new(&run, Some(&summary)));
        }
    }
    add_json(&mut text, "usage", &table.finish());
    add_json(&mut text, "run", &RunListLine::new(&run, None));
    compare_with_golden_file("json/samples.txt", &text);
}

#[test]
fn recorded_runs_have_their_golden_json() {
    for (name, lines) in recorded_runs() {
        compare_with_golden_file(&format!("json/{name}.txt"), &json_of_run(&lines));
    }
}

fn json_of_run(lines: &[LogLine]) -> String {
    let (_, run, _) = parse_lane_subject(&lines[0].subject).unwrap();
    let (mut history, mut timeline, mut spend) =
        (RunHistory::default(), TimelineBuilder::default(), SpendSeries::default());
    let (mut entries, mut messages, mut last) = (Vec::new(), Vec::new(), None);
    let mut text = String::new();
    for line in lines {
        let payload = data_encoding::BASE64.decode(line.payload.as_bytes()).unwrap();
        let encoding = if line.json { Encoding::Json } else { Encoding::MessagePack };
        let (sequence, at) = (line.sequence, line.time);
        let mut add_message = |content| messages.push(MessageLine::new(sequence, at, &content));
        match parse_lane_subject(&line.subject).unwrap().2 {
            Topic::Plan => {
                let decision = decode_message::<Decision>(&payload, encoding).unwrap();
                timeline.add_decision(sequence, &decision);
                history.add_decision(&decision);
                spend.add_total(sequence, at, history.plan.budget.spend.total);
                let find = |sequence| messages.iter().find(|line| line.sequence == sequence);
                add_json(&mut text, "logged", &LoggedDecision::new(&run, (sequence, &decision), find));
                writeln!(text, "changes {}", describe_changes(&run, &decision.events)).unwrap();
                add_decision(&mut text, &run, sequence, &decision);
                last = Some((sequence, decision.at));
            }
            Topic::Journal(journal) => {
                let entry = decode_message::<JournalEntry>(&payload, encoding).unwrap();
                let [shown, named] = described(sequence, at, journal.clone(), entry);
                timeline.add_entry(&named);
                add_message(MessageContent::Entry(Box::new(named)));
                entries.push((journal, shown));
            }
            Topic::Submitted => {
                let submission = decode_message::<Submission>(&payload, encoding).unwrap();
                add_message(MessageContent::Submission(Box::new(submission)));
            }
            Topic::Control => {
                let command = decode_message::<RunCommand>(&payload, encoding).unwrap();
                add_message(MessageContent::Command(Box::new(command)));
            }
            Topic::Answer => {
                let answer = decode_message::<RunAnswer>(&payload, encoding).unwrap();
                add_message(MessageContent::Answer(Box::new(answer)));
            }
        }
    }
    let now = lines.last().unwrap().time;
    let plan = &history.plan;
    add_json(&mut text, "result", &RunResult::new(&run, &history, None, now, Some("resume".into())));
    let offline = RunResult::new(&run, &history, None, now, None).without_cluster(&history);
    add_json(&mut text, "offline", &offline);
    add_json(&mut text, "replay", &ReplayJson::new(&run, &history, last, None));
    add_json(&mut text, "tasks", &TaskList::new(&run, (plan, 9), |_| true));
    add_json(&mut text, "timeline", &timeline.finish(&run, None));
    add_json(&mut text, "spend", &RunSpend::new(&run, plan, &spend.finish()));
    let of_journal = |is_wanted: &dyn Fn(&JournalKey) -> bool| -> Vec<TranscriptEntry> {
        entries.iter().filter(|(journal, _)| is_wanted(journal)).map(|(_, entry)| entry.clone()).collect()
    };
    for task in plan.tasks() {
        let own = of_journal(&|journal| journal.task() == Some(&task.spec.id));
        add_json(&mut text, "transcript", &TaskTranscript::new(&run, (plan, task), None, &own, now));
    }
    let planner = of_journal(&|journal| journal.task().is_none());
    add_json(&mut text, "planner", &PlannerTranscript::new(&run, &history, None, &planner));
    text
}
