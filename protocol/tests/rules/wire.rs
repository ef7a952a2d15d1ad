//! The words on the wire: version 1 of every message, as bytes that are kept and must be readable for ever; and what
//! is not a message, which must be refused with a reason and never bring anything down.

use std::collections::BTreeMap;
use std::fmt::Write;

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{
    Answer, Cause, Clock, Control, Decision, Document, DocumentSet, EndReason, Event, Fact, FinalRung,
    GraphError, Limits, Mode, OnFailedDependency, Refusal, Review, Submission, TaskSpec, TaskState, Work,
};
use millrace_protocol::registry::{Beat, ClusterSettings, Role, RunSummary};
use millrace_protocol::result::{
    CapabilityDescription, ErrorKind, Proposal, Quotation, Source, SourceKind, TaskResult, Usage,
};
use millrace_protocol::wire::{self, Blob, Encoding, Garbage, Message, Stored};
use millrace_protocol::work::{Entry, Input, Order, Outcome};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_bytes::ByteBuf;
use serde_json::{Value, json};

use crate::scene::Scene;
use crate::{cast, golden};

// ---- one of each

fn usage() -> Usage {
    Usage {
        model_calls: 1,
        tool_calls: 2,
        input_tokens: 70_000,
        output_tokens: 5_000_000_000,
        ..Usage::default()
    }
}

fn documents() -> DocumentSet {
    DocumentSet { manifest: "ab".repeat(32), count: 3, bytes: 150_000 }
}

fn full_task() -> TaskSpec {
    TaskSpec {
        objective: "naïve – 調べる".into(),
        parameters: [
            ("terms".to_owned(), json!(["patent", null, true, -7, 2.5])),
            ("deep".to_owned(), json!({ "a": { "b": [] } })),
        ]
        .into(),
        review: Review::Critic { criteria: vec!["it cites its sources".into()] },
        limits: Limits {
            max_attempts: 5,
            backoff: std::time::Duration::from_millis(250),
            ..Limits::default()
        },
        on_failed_dependency: OnFailedDependency::Skip,
        is_final: true,
        ..cast::task("b", &["a"])
    }
}

fn events() -> Vec<Event> {
    let (task, worker, at) = (cast::task_id("a"), cast::worker("w1"), cast::after(cast::start(), 1));
    vec![
        Event::RunStarted {
            objective: "find out".into(),
            mode: Mode::Llm,
            documents: Some(documents()),
            model: Some("builtin:extractive".into()),
            models: BTreeMap::new(),
            fail_fast: true,
        },
        Event::PlanningAsked { turn: 1, attempt: 2, feedback: Some("a circle".into()) },
        Event::PlanningClaimed { turn: 1, attempt: 2, worker: worker.clone() },
        Event::ProposalAccepted { turn: 1, attempt: 2, reasoning: "so it goes".into(), usage: usage() },
        Event::PlanningErrored { turn: 1, attempt: 1, error: "overloaded".into(), retry_at: Some(at) },
        Event::TaskAdded { spec: cast::task("a", &[]), ready: true },
        Event::TaskAdded { spec: full_task(), ready: false },
        Event::TaskReady { task: task.clone(), attempt: 1 },
        Event::CapabilityMissing { task: task.clone(), capability: cast::capability("search") },
        Event::TaskPending { task: task.clone() },
        Event::AttemptClaimed { task: task.clone(), attempt: 1, worker: worker.clone() },
        Event::AttemptFinished {
            task: task.clone(),
            attempt: 1,
            worker: worker.clone(),
            at_sequence: 17,
            summary: "found".into(),
            usage: usage(),
        },
        Event::AttemptErrored {
            task: task.clone(),
            attempt: 1,
            error: cast::error(ErrorKind::Abandoned, "claimed too often"),
            retry_at: None,
        },
        Event::AttemptTimedOut { task: task.clone(), attempt: 1, clock: Clock::Silence, retry_at: Some(at) },
        Event::ReviewErrored {
            task: task.clone(),
            attempt: 1,
            review: 2,
            error: "no answer".into(),
            again: true,
        },
        Event::VerdictGiven {
            task: task.clone(),
            attempt: 1,
            critic: cast::worker("c1"),
            verdict: cast::verdict(false, Some("more")),
        },
        Event::TaskAccepted { task: task.clone(), attempt: 1 },
        Event::TaskRerun { task: task.clone(), attempt: 2 },
        Event::TaskFailed { task: task.clone(), reason: "broken".into() },
        Event::TaskCancelled { task: task.clone(), reason: "enough".into() },
        Event::RunEnded {
            reason: EndReason::CompletedPartial,
            detail: "task b failed".into(),
            deliverable: Some((task, FinalRung::Producer)),
        },
    ]
}

/// The name of an event; whoever adds one is led here, and to its sample above.
fn event_name(event: &Event) -> &'static str {
    match event {
        Event::RunStarted { .. } => "run started",
        Event::PlanningAsked { .. } => "planning asked",
        Event::PlanningClaimed { .. } => "planning claimed",
        Event::ProposalAccepted { .. } => "proposal accepted",
        Event::PlanningErrored { .. } => "planning errored",
        Event::TaskAdded { spec, .. } if spec.is_final => "task added, with everything",
        Event::TaskAdded { .. } => "task added",
        Event::TaskReady { .. } => "task ready",
        Event::CapabilityMissing { .. } => "capability missing",
        Event::TaskPending { .. } => "task pending",
        Event::AttemptClaimed { .. } => "attempt claimed",
        Event::AttemptFinished { .. } => "attempt finished",
        Event::AttemptErrored { .. } => "attempt errored",
        Event::AttemptTimedOut { .. } => "attempt timed out",
        Event::ReviewErrored { .. } => "review errored",
        Event::VerdictGiven { .. } => "verdict given",
        Event::TaskAccepted { .. } => "task accepted",
        Event::TaskRerun { .. } => "task rerun",
        Event::TaskFailed { .. } => "task failed",
        Event::TaskCancelled { .. } => "task cancelled",
        Event::RunEnded { .. } => "run ended",
    }
}

fn refusals() -> Vec<Refusal> {
    let (a, b) = (cast::task_id("a"), cast::task_id("b"));
    let graph = [
        GraphError::DuplicateTask(a.clone()),
        GraphError::MissingDependency { task: a.clone(), dependency: b.clone() },
        GraphError::SelfDependency(a.clone()),
        GraphError::DuplicateDependency { task: a.clone(), dependency: b.clone() },
        GraphError::Cycle(vec![a.clone(), b.clone()]),
        GraphError::TwoFinal(a.clone(), b),
        GraphError::Empty,
        GraphError::TooManyTasks(1_000_001),
        GraphError::EmptyObjective(a.clone()),
        GraphError::LongObjective { task: a.clone(), bytes: 70_000 },
        GraphError::Limit { task: a.clone(), limit: "run_time".into(), expected: "more than 0".into() },
        GraphError::ReservedCapability { task: a.clone(), capability: cast::capability("critic") },
    ];
    let own = [
        Refusal::AlreadySubmitted,
        Refusal::NotSubmitted,
        Refusal::RunAlreadyEnded(EndReason::NoProgress),
        Refusal::UnknownTask(a.clone()),
        Refusal::NotCurrentAttempt { task: a.clone(), attempt: 1, current: 2 },
        Refusal::WrongState { task: a.clone(), state: TaskState::NeedsReview, what: "a claim".into() },
        Refusal::AuthorIsCritic(a),
        Refusal::NotCurrentTurn { turn: 1, attempt: 2 },
        Refusal::NotDue(cast::start()),
    ];
    own.into_iter().chain(graph.map(Refusal::Graph)).collect()
}

fn decision(events: Vec<Event>, answers: Vec<Answer>) -> Decision {
    Decision { by: cast::worker("s1"), previous: 41, at: cast::start(), answers, events }
}

fn decisions() -> Vec<(String, Decision)> {
    let answer = |cause| Answer { cause, events: 1, refusal: None };
    let causes = [Cause::Fact(42), Cause::Clock, Cause::Registry, Cause::Rules].map(answer).to_vec();
    let refused = |refusal| Answer { cause: Cause::Fact(43), events: 0, refusal: Some(refusal) };
    let of_events = events().into_iter().map(|event| {
        let name = format!("event: {}", event_name(&event));
        (name, decision(vec![event], vec![answer(Cause::Fact(42))]))
    });
    of_events
        .chain([
            ("all causes".to_owned(), decision(Vec::new(), causes)),
            ("all refusals".to_owned(), decision(Vec::new(), refusals().into_iter().map(refused).collect())),
        ])
        .collect()
}

fn submissions() -> Vec<(String, Submission)> {
    let full = Submission {
        documents: Some(documents()),
        model: Some("builtin:echo".into()),
        fail_fast: true,
        ..cast::submission(vec![cast::task("a", &[]), full_task()])
    };
    let bare = Submission { mode: Mode::Llm, ..cast::submission(Vec::new()) };
    vec![("with a plan and everything".into(), full), ("without a plan".into(), bare)]
}

fn controls() -> Vec<(String, Control)> {
    let reason = || "by hand".to_owned();
    vec![
        ("cancel run".into(), Control::CancelRun { reason: reason() }),
        ("cancel task".into(), Control::CancelTask { task: cast::task_id("a"), reason: reason() }),
    ]
}

fn entries() -> Vec<(String, Entry)> {
    let outcome = |outcome| Entry::Outcome { worker: cast::worker("w1"), review: 0, outcome };
    let stored = || Blob::Stored(Stored { sha256: "cd".repeat(32), size: 300_000 });
    let inline = || Blob::Inline(ByteBuf::from(wire::body(&TaskResult::default())));
    let finished =
        |result| Outcome::Finished { summary: "found".into(), is_empty: false, usage: usage(), result };
    let proposal =
        Proposal { reasoning: "so it goes".into(), tasks: vec![cast::task("a", &[]), full_task()] };
    let judged = Entry::Outcome {
        worker: cast::worker("c1"),
        review: 2,
        outcome: Outcome::Judged(cast::verdict(true, None)),
    };
    vec![
        ("claimed".into(), Entry::Claimed { worker: cast::worker("w1"), claim: 2 }),
        ("step".into(), Entry::Step { number: 3, name: "model".into(), value: inline() }),
        ("step, stored".into(), Entry::Step { number: 4, name: "tool:search".into(), value: stored() }),
        ("note".into(), Entry::Note { text: "reading GPL-3.0".into() }),
        ("outcome: finished".into(), outcome(finished(inline()))),
        ("outcome: finished, stored".into(), outcome(finished(stored()))),
        ("outcome: judged".into(), judged),
        ("outcome: proposed".into(), outcome(Outcome::Proposed { proposal, usage: usage() })),
        ("outcome: errored".into(), outcome(Outcome::Errored(cast::error(ErrorKind::Limit, "too long")))),
    ]
}

fn orders() -> Vec<(String, Order)> {
    let task = full_task();
    let order = |work| Order {
        run: RunId::new("20261121-230000-k3f9q2").unwrap(),
        lane: Lane(3),
        work,
        mission: "find out".into(),
        objective: task.objective.clone(),
        capability: task.capability.clone(),
        parameters: task.parameters.clone(),
        inputs: vec![Input {
            task: cast::task_id("a"),
            objective: "do a".into(),
            capability: cast::capability("echo"),
            worker: cast::worker("w1"),
            summary: "found".into(),
            at_sequence: 17,
        }],
        criteria: vec!["it cites its sources".into()],
        is_final: true,
        feedback: vec!["Attempt 1 was rejected: more".into()],
        limits: task.limits.clone(),
        documents: Some(documents()),
        model: Some("builtin:extractive".into()),
        own_model: None,
    };
    let bare = Order {
        parameters: BTreeMap::new(),
        inputs: Vec::new(),
        criteria: Vec::new(),
        is_final: false,
        feedback: Vec::new(),
        limits: Limits::default(),
        documents: None,
        model: None,
        ..order(Work::Planning { turn: 1, attempt: 1 })
    };
    vec![
        ("task".into(), order(Work::Task { task: cast::task_id("b"), attempt: 2 })),
        ("review".into(), order(Work::Review { task: cast::task_id("b"), attempt: 1, review: 3 })),
        ("planning, bare".into(), bare),
    ]
}

/// What stands in buckets and in the blob store, without an envelope.
fn results() -> Vec<(String, TaskResult)> {
    let full = TaskResult {
        summary: "found".into(),
        output: "It ends [S1].".into(),
        notes: Some("one file could not be read".into()),
        sources: vec![Source {
            id: "S1".into(),
            kind: SourceKind::Document,
            title: "Apache License 2.0".into(),
            location: "Apache-2.0.txt".into(),
            sha256: Some("ef".repeat(32)),
        }],
        quotations: vec![Quotation {
            source: "S1".into(),
            text: "shall terminate".into(),
            first_line: 80,
            last_line: 81,
        }],
        data: Some(json!({ "rows": [1, 2] })),
        usage: usage(),
    };
    vec![("full".into(), full), ("bare".into(), TaskResult::default())]
}

// ---- version 1, for ever

/// Whether bytes read as one certain message.
type Reader = Box<dyn Fn(&[u8]) -> Result<bool, Garbage>>;

/// A message with what reads it.
struct Sample {
    name: String,
    bytes: Vec<u8>,
    json: Value,
    reads: Reader,
    reads_json: Reader,
}

fn sealed<M: Message + PartialEq + Clone + 'static>(samples: Vec<(String, M)>) -> Vec<Sample> {
    let of = |(name, message): (String, M)| {
        let (binary, text) = (message.clone(), message.clone());
        Sample {
            name: format!("{} {name}", M::KIND),
            bytes: wire::seal::<M>(&wire::body(&message)),
            json: serde_json::from_slice(&wire::seal_json(&message).unwrap()).unwrap(),
            reads: Box::new(move |bytes| Ok(wire::open::<M>(bytes, Encoding::MessagePack)? == binary)),
            reads_json: Box::new(move |bytes| Ok(wire::open::<M>(bytes, Encoding::Json)? == text)),
        }
    };
    samples.into_iter().map(of).collect()
}

fn plain<T>(kind: &'static str, samples: Vec<(String, T)>) -> Vec<Sample>
where
    T: Serialize + DeserializeOwned + PartialEq + Clone + 'static,
{
    let of = |(name, value): (String, T)| {
        let (binary, text) = (value.clone(), value.clone());
        Sample {
            name: format!("{kind} {name}"),
            bytes: wire::body(&value),
            json: serde_json::to_value(&value).unwrap(),
            reads: Box::new(move |bytes| Ok(wire::read::<T>(bytes, kind)? == binary)),
            reads_json: Box::new(move |bytes| {
                let read = serde_json::from_slice::<T>(bytes);
                Ok(read.map_err(|error| Garbage::Unreadable { what: kind.into(), why: error.to_string() })?
                    == text)
            }),
        }
    };
    samples.into_iter().map(of).collect()
}

fn samples() -> Vec<Sample> {
    let named = |name: &str| name.to_owned();
    let run = RunId::new("r1").unwrap();
    let plan = Scene::submitted(cast::submission(vec![cast::task("a", &[])])).plan;
    let beat = Beat {
        id: cast::worker("w1"),
        role: Role::Worker,
        host: "machine".into(),
        pid: 4711,
        started: cast::start(),
        slots: vec![(cast::capability("echo"), 4)],
        busy: 1,
        version: "0.1.0".into(),
    };
    let settings =
        ClusterSettings { version: 1, lanes: 4, replicas: 3, lane_lease_ms: 5000, work_lease_ms: 20_000 };
    let summary = RunSummary::of(&run, Lane(0), &plan, cast::start()).unwrap();
    let manifest = vec![Document { path: "GPL-3.0.txt".into(), sha256: "01".repeat(32), size: 35_149 }];
    let description = CapabilityDescription {
        parameters: Some(json!({ "type": "object" })),
        ..CapabilityDescription::new(cast::capability("echo"), "says it again")
    };
    [
        sealed(decisions()),
        sealed(submissions()),
        sealed(controls()),
        sealed(entries()),
        sealed(orders()),
        plain("result", results()),
        plain("manifest", vec![(named("of one"), manifest)]),
        plain("beat", vec![(named("of a worker"), beat)]),
        plain("settings", vec![(named("of four lanes"), settings)]),
        plain("summary", vec![(named("of a run"), summary)]),
        plain("capability", vec![(named("with parameters"), description)]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

const V1: &str = "golden/v1.txt";

/// The kept bytes by name. The file is never rewritten: `UPDATE_GOLDEN=1` only adds what it does not have yet.
fn kept() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(golden::path(V1)).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .filter_map(|line| line.rsplit_once(" = "))
        .map(|(name, hex)| (name.to_owned(), hex.to_owned()))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn version_1_of_every_message_is_written_as_it_always_was() {
    let mut kept = kept();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        for sample in samples() {
            kept.entry(sample.name).or_insert_with(|| hex(&sample.bytes));
        }
        let mut text = String::from(
            "# Version 1 of every message, as it stands in logs: `name = bytes`. What is here is never changed; a\n\
             # field that is added gets a sample of a new name.\n",
        );
        for (name, hex) in &kept {
            writeln!(text, "{name} = {hex}").unwrap();
        }
        golden::compare(V1, &text);
    }
    for sample in samples() {
        let kept = kept.get(&sample.name);
        assert_eq!(kept, Some(&hex(&sample.bytes)), "{} is written in another way", sample.name);
    }
}

#[test]
fn version_1_of_every_message_is_read_as_it_was_meant() {
    let kept = kept();
    for sample in samples() {
        let bytes = unhex(&kept[&sample.name]);
        assert_eq!((sample.reads)(&bytes), Ok(true), "{}", sample.name);
    }
}

#[test]
fn every_message_goes_through_json_and_back() {
    for sample in samples() {
        let text = serde_json::to_vec(&sample.json).unwrap();
        assert_eq!((sample.reads_json)(&text), Ok(true), "{}", sample.name);
    }
}

#[test]
fn fields_of_newer_writers_are_passed_over_wherever_they_stand() {
    for sample in samples() {
        let newer = with_more_fields(&sample.json);
        assert_ne!(newer, sample.json, "{}: nothing was added", sample.name);
        let text = serde_json::to_vec(&newer).unwrap();
        assert_eq!((sample.reads_json)(&text), Ok(true), "{} in JSON: {newer}", sample.name);

        // The same in MessagePack: the body is a value of its own, in bytes.
        let bytes = match newer.get("b").filter(|_| newer.get("t").is_some()) {
            Some(body) => {
                let (t, body) = (newer["t"].as_str().unwrap(), wire::body(body));
                wire::body(&NewerEnvelope { v: 1, t, b: serde_bytes::Bytes::new(&body), later: "more" })
            }
            None => wire::body(&newer),
        };
        assert_eq!((sample.reads)(&bytes), Ok(true), "{} in MessagePack", sample.name);
    }
}

#[derive(Serialize)]
struct NewerEnvelope<'a> {
    v: u16,
    t: &'a str,
    b: &'a serde_bytes::Bytes,
    later: &'a str,
}

/// Adds a field to every record in a message. An object with one capitalised key is a variant, not a record; below
/// these names anything is the user's own.
fn with_more_fields(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let is_variant = fields.len() == 1
                && fields.keys().all(|key| key.starts_with(char::is_uppercase) || key == "critic");
            let mut fields: serde_json::Map<_, _> = fields
                .iter()
                .map(|(name, value)| match name.as_str() {
                    "parameters" | "data" => (name.clone(), value.clone()),
                    _ => (name.clone(), with_more_fields(value)),
                })
                .collect();
            if !is_variant {
                fields.insert("later".into(), json!({ "more": [1, "two", null] }));
            }
            Value::Object(fields)
        }
        Value::Array(values) => Value::Array(values.iter().map(with_more_fields).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

// ---- what is no message

#[test]
fn a_message_cut_short_anywhere_is_refused() {
    for sample in samples() {
        for length in 0..sample.bytes.len() {
            let read = (sample.reads)(&sample.bytes[..length]);
            assert!(matches!(read, Err(Garbage::Unreadable { .. })), "{} at {length}: {read:?}", sample.name);
        }
        let text = serde_json::to_vec(&sample.json).unwrap();
        for length in 0..text.len() {
            let read = (sample.reads_json)(&text[..length]);
            assert!(matches!(read, Err(Garbage::Unreadable { .. })), "{} at {length}: {read:?}", sample.name);
        }
    }
}

#[test]
fn a_message_with_something_behind_its_end_is_refused() {
    for sample in samples() {
        let behind = [sample.bytes.as_slice(), &[0xc0]].concat();
        let read = (sample.reads)(&behind);
        assert!(matches!(read, Err(Garbage::Trailing { bytes: 1, .. })), "{}: {read:?}", sample.name);
    }
    let body = [wire::body(&Control::CancelRun { reason: "r".into() }), vec![0xc0, 0xc0]].concat();
    let sealed = wire::seal::<Control>(&body);
    assert_eq!(
        wire::open::<Control>(&sealed, Encoding::MessagePack),
        Err(Garbage::Trailing { what: "control".into(), bytes: 2 })
    );
}

#[test]
fn another_kind_another_version_and_an_empty_envelope_are_each_told_apart() {
    let control = Control::CancelRun { reason: "r".into() };
    let sealed = wire::seal::<Control>(&wire::body(&control));
    let wrong = wire::open::<Order>(&sealed, Encoding::MessagePack).unwrap_err();
    assert_eq!(wrong.to_string(), r#"it is a "control", where a "order" belongs"#);

    let envelope = |v: i64| serde_json::to_vec(&json!({ "v": v, "t": "control", "b": control })).unwrap();
    assert_eq!(wire::open::<Control>(&envelope(1), Encoding::Json), Ok(control.clone()));
    for version in [0, 2, 65_535] {
        let refused = wire::open::<Control>(&envelope(version), Encoding::Json).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(r#"it is a "control" of version {version}; this program reads up to 1"#)
        );
    }
    assert!(matches!(
        wire::open::<Control>(&envelope(65_536), Encoding::Json),
        Err(Garbage::Unreadable { .. })
    ));
    assert_eq!(wire::open::<Control>(br#"{"v":1,"t":"control"}"#, Encoding::Json), Err(Garbage::Empty));
    assert_eq!(
        wire::open::<Control>(&wire::body(&json!({ "v": 1, "t": "control" })), Encoding::MessagePack),
        Err(Garbage::Empty)
    );
}

#[test]
fn a_body_in_the_blob_store_is_found_there_and_nowhere_else() {
    let stored = Stored { sha256: "ab".repeat(32), size: 300_000 };
    let elsewhere = wire::seal_stored::<Order>(stored.clone());
    assert_eq!(wire::open::<Order>(&elsewhere, Encoding::MessagePack), Err(Garbage::Elsewhere));
    assert_eq!(wire::stored::<Order>(&elsewhere, Encoding::MessagePack), Ok(Some(stored.clone())));
    assert!(matches!(
        wire::stored::<Control>(&elsewhere, Encoding::MessagePack),
        Err(Garbage::WrongKind { .. })
    ));

    let control = Control::CancelRun { reason: "r".into() };
    let here = wire::seal::<Control>(&wire::body(&control));
    assert_eq!(wire::stored::<Control>(&here, Encoding::MessagePack), Ok(None));
    let both = serde_json::to_vec(&json!({ "v": 1, "t": "control", "b": control, "s": stored })).unwrap();
    assert_eq!(wire::stored::<Control>(&both, Encoding::Json), Ok(None), "what is here needs no fetching");
    assert_eq!(wire::open::<Control>(&both, Encoding::Json), Ok(control));
}

#[test]
fn names_that_do_not_exist_make_no_message() {
    let bad = json!({ "v": 1, "t": "control", "b": { "CancelTask": { "task": "a.b", "reason": "r" } } });
    let refused = wire::open::<Control>(&serde_json::to_vec(&bad).unwrap(), Encoding::Json).unwrap_err();
    assert!(refused.to_string().contains("is no task id"), "{refused}");
    let sealed = wire::seal::<Control>(&wire::body(&bad["b"]));
    let refused = wire::open::<Control>(&sealed, Encoding::MessagePack).unwrap_err();
    assert!(refused.to_string().contains("is no task id"), "{refused}");
}

#[test]
fn lengths_that_lie_and_depths_without_end_are_refused() {
    // A text, a list, a map and bytes that claim 4 GiB; and lists in lists, a hundred thousand deep.
    let claims: [&[u8]; 4] = [&[0xdb], &[0xdd], &[0xdf], &[0xc6]];
    for claim in claims {
        let forged = [claim, &[0xff; 4], b"short"].concat();
        assert!(wire::open::<Entry>(&forged, Encoding::MessagePack).is_err());
        assert!(wire::open_body::<Submission>(&forged).is_err());
    }
    let bomb = [vec![0x91; 100_000], vec![0xc0]].concat();
    assert!(wire::open_body::<Decision>(&bomb).is_err());
    let task: &[u8] = b"\x81\xa5tasks\x91\x81\xaaparameters\x81\xa1p";
    assert!(wire::open_body::<Submission>(&[task, &bomb].concat()).is_err());
    let text = [br#"{"v":1,"t":"submission","b":"#.to_vec(), vec![b'['; 100_000]].concat();
    assert!(wire::open::<Submission>(&text, Encoding::Json).is_err());
}

#[test]
fn a_submission_as_deep_as_can_be_read_is_answered_by_a_decision_that_can_be_read() {
    let on_half_a_stack = std::thread::Builder::new().stack_size(1024 * 1024);
    on_half_a_stack.spawn(submit_at_every_depth).unwrap().join().unwrap();
}

fn submit_at_every_depth() {
    let mut read = 0;
    for depth in [60, 64, 65, 100, 150, 175, 180, 185, 190, 250, 400] {
        let value = (0..depth).fold(json!(1), |value, _| json!([value]));
        let task = TaskSpec { parameters: [("p".to_owned(), value)].into(), ..cast::task("a", &[]) };
        let Ok(body) = rmp_serde::to_vec_named(&cast::submission(vec![task])) else { continue };
        let Ok(submission) = wire::open_body::<Submission>(&body) else { continue };
        read += 1;
        let mut scene = Scene::new();
        scene.fact(&Fact::Submitted(Box::new(submission))).unwrap();
        assert_eq!(scene.plan.is_live(), depth <= 64, "{depth}");
        let decision = &scene.log[0];
        assert_eq!(wire::open_body::<Decision>(&wire::body(decision)).as_ref(), Ok(decision));
    }
    assert!(read >= 5, "only {read} of them could be read at all");
}

fn read_as_everything(bytes: &[u8]) {
    for encoding in [Encoding::MessagePack, Encoding::Json] {
        let _ = wire::open::<Decision>(bytes, encoding);
        let _ = wire::open::<Submission>(bytes, encoding);
        let _ = wire::open::<Control>(bytes, encoding);
        let _ = wire::open::<Entry>(bytes, encoding);
        let _ = wire::open::<Order>(bytes, encoding);
        let _ = wire::stored::<Order>(bytes, encoding);
    }
    let _ = wire::open_body::<Decision>(bytes);
    let _ = wire::open_body::<Entry>(bytes);
    let _ = wire::read::<TaskResult>(bytes, "result");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_at_all_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_as_everything(&bytes);
    }

    #[test]
    fn messages_with_some_bytes_changed_are_read_or_refused(
        which: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        thread_local! { static SAMPLES: Vec<Vec<u8>> = samples().into_iter().map(|sample| sample.bytes).collect(); }
        SAMPLES.with(|samples| {
            let mut bytes = which.get(samples).clone();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            read_as_everything(&bytes);
            // The body alone, behind an envelope that is whole: most changes above break only that.
            let _ = wire::open::<Decision>(&wire::seal::<Decision>(&bytes), Encoding::MessagePack);
        });
    }
}
