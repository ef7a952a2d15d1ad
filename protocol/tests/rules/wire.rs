//! The words on the wire: version 1 of every message, as bytes that are kept and must be readable for ever; and what
//! is not a message, which must be refused with a reason and never bring anything down.

use std::collections::BTreeMap;
use std::fmt::Write;

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{
    Amounts, Answer, Budget, Cause, Clock, Command, Consult, Control, Decision, Document, DocumentSet, Edit,
    EndReason, Event, Fact, FinalRung, GraphError, Limits, Mode, Occasion, OnFailedDependency, Patch,
    Refusal, Review, ReviewCheck, Submission, TaskSpec, TaskState, WhenSpent, Work,
};
use millrace_protocol::registry::{Beat, ClusterSettings, Role, RunSummary};
use millrace_protocol::result::{
    CapabilityDescription, ErrorKind, Limit, ModelUsage, Opinion, Proposal, Quotation, Source, SourceKind,
    TaskError, TaskResult, Usage, Verdict,
};
use millrace_protocol::wire::{self, Blob, Encoding, Garbage, Message, Stored};
use millrace_protocol::work::{Entry, Input, Order, Outcome, Panel};
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
        review: Review::critic(vec!["it cites its sources".into()]),
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
            budget: Box::new(Budget::default()),
            consult: Consult::Judgement,
        },
        Event::PlanningAsked {
            turn: 1,
            attempt: 2,
            feedback: Some("a circle".into()),
            occasions: Vec::new(),
        },
        Event::PlanningClaimed { turn: 1, attempt: 2, worker: worker.clone() },
        Event::ProposalAccepted {
            turn: 1,
            attempt: 2,
            reasoning: "so it goes".into(),
            refused: Vec::new(),
            is_idle: false,
            usage: usage(),
            models: ModelUsage::new(),
        },
        Event::PlanningErrored {
            turn: 1,
            attempt: 1,
            error: "overloaded".into(),
            retry_at: Some(at),
            outgrew: false,
            usage: Usage::default(),
            models: ModelUsage::new(),
        },
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
            is_detailed: true,
            review: None,
            usage: usage(),
            models: ModelUsage::new(),
        },
        Event::AttemptErrored {
            task: task.clone(),
            attempt: 1,
            error: cast::error(ErrorKind::Abandoned, "claimed too often"),
            retry_at: None,
        },
        Event::AttemptTimedOut {
            task: task.clone(),
            attempt: 1,
            clock: Clock::Silence,
            retry_at: Some(at),
            usage: Usage::default(),
        },
        Event::ReviewErrored {
            task: task.clone(),
            attempt: 1,
            review: 2,
            error: "no answer".into(),
            again: true,
            retry_at: Some(at),
            usage: Usage::default(),
            models: ModelUsage::new(),
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
        Event::TaskCancelled {
            task: task.clone(),
            reason: "enough".into(),
            with: None,
            usage: Usage::default(),
        },
        Event::RunEnded {
            reason: EndReason::CompletedPartial,
            detail: "task b failed".into(),
            deliverable: Some((task, FinalRung::Producer)),
        },
    ]
}

fn models() -> ModelUsage {
    [("openai:some-model".to_owned(), usage())].into()
}

fn amounts() -> Amounts {
    Amounts {
        tokens: Some(10_000),
        input_tokens: Some(8_000),
        output_tokens: Some(2_000),
        cached_tokens: Some(4_000),
        model_calls: Some(12),
        cost_micros: Some(250_000),
    }
}

fn budget() -> Budget {
    Budget {
        amounts: amounts(),
        attempt: Amounts { tokens: Some(500), ..Amounts::default() },
        capabilities: [(cast::capability("planner"), Amounts { model_calls: Some(5), ..Amounts::default() })]
            .into(),
        wall_time: Some(std::time::Duration::from_millis(90_500)),
        steps: Some(7),
        tasks: Some(40),
        depth: Some(9),
        soft_percent: 70,
        final_percent: 15,
        when_spent: WhenSpent::Cancel,
    }
}

fn full_review() -> Review {
    Review::Critic {
        criteria: vec!["it cites its sources".into()],
        checks: vec![
            ReviewCheck::Citations,
            ReviewCheck::Quotations,
            ReviewCheck::Schema(json!({ "type": "object" })),
            ReviewCheck::Matches("patent".into()),
            ReviewCheck::MatchesNot(["TO", "DO"].concat()),
            ReviewCheck::Command { command: vec!["wc".into(), "-l".into()], timeout_s: Some(5) },
        ],
        models: vec!["a:b".into(), "c:d".into()],
        quorum: Some(2),
        sample_percent: Some(25),
    }
}

fn full_verdict() -> Verdict {
    Verdict {
        confidence: Some(0.75),
        opinions: vec![Opinion {
            model: "a:b".into(),
            passed: false,
            reasoning: "it does not".into(),
            confidence: Some(0.5),
        }],
        models: models(),
        ..cast::verdict(false, Some("more"))
    }
}

fn occasions() -> Vec<Occasion> {
    let task = || cast::task_id("a");
    vec![
        Occasion::NoPlan,
        Occasion::TaskLost { task: task() },
        Occasion::TaskStuck { task: task(), problem: "nobody offers it".into() },
        Occasion::Accepted { task: task() },
        Occasion::Standstill { report: "nothing is left to do".into() },
        Occasion::Message { by: "ann".into(), text: "hurry".into() },
        Occasion::BudgetLow { detail: "8 of 10".into() },
        Occasion::Refused { reasons: vec!["it is over".into()] },
        Occasion::FalseEnd { why: "it is not".into() },
    ]
}

/// What the second edition of the rules added, in version 1 of the words: events of its own, and fields of older ones.
fn later_events() -> Vec<(&'static str, Event)> {
    let (task, worker, at) = (cast::task_id("a"), cast::worker("w1"), cast::after(cast::start(), 1));
    let work = |review| Work::Review { task: cast::task_id("a"), attempt: 1, review };
    let spec = TaskSpec {
        review: full_review(),
        on_failed_dependency: OnFailedDependency::Ask,
        budget: amounts(),
        ..full_task()
    };
    vec![
        (
            "run started, with a budget",
            Event::RunStarted {
                objective: "find out".into(),
                mode: Mode::Hybrid,
                documents: None,
                model: None,
                models: [(cast::capability("critic"), "a:b".to_owned())].into(),
                fail_fast: false,
                budget: Box::new(budget()),
                consult: Consult::EveryResult,
            },
        ),
        (
            "planning asked, with its occasions",
            Event::PlanningAsked { turn: 2, attempt: 1, feedback: None, occasions: occasions() },
        ),
        ("occasion raised", Event::OccasionRaised { occasion: Occasion::TaskLost { task: task.clone() } }),
        (
            "proposal accepted, in part",
            Event::ProposalAccepted {
                turn: 2,
                attempt: 1,
                reasoning: "so it goes".into(),
                refused: vec!["cancel_task: it is over".into()],
                is_idle: true,
                usage: usage(),
                models: models(),
            },
        ),
        (
            "planning errored, with its usage",
            Event::PlanningErrored {
                turn: 1,
                attempt: 1,
                error: "overloaded".into(),
                retry_at: None,
                outgrew: false,
                usage: usage(),
                models: models(),
            },
        ),
        ("task added, with a review and a budget", Event::TaskAdded { spec: spec.clone(), ready: false }),
        ("parameters wrong", Event::ParametersWrong { task: task.clone(), problem: "no q".into() }),
        ("task patched", Event::TaskPatched { spec: Box::new(spec), attempt: 2 }),
        ("final marked", Event::FinalMarked { task: task.clone() }),
        (
            "task reopened",
            Event::TaskReopened {
                task: task.clone(),
                attempt: 4,
                ready: true,
                feedback: Some("harder".into()),
            },
        ),
        ("task invalidated", Event::TaskInvalidated { task: task.clone(), attempt: 2, usage: usage() }),
        ("reserved", Event::Reserved { work: work(1), amounts: amounts() }),
        ("budget low", Event::BudgetLow { detail: "8 of 10".into() }),
        (
            "winding down",
            Event::WindingDown { reason: EndReason::BudgetExhausted, detail: "10 of 10".into() },
        ),
        ("commanded", Event::Commanded { id: "c1".into(), by: "ann".into(), what: "pause".into() }),
        ("message received", Event::MessageReceived { by: "ann".into(), text: "hurry".into() }),
        ("paused", Event::Paused),
        ("resumed", Event::Resumed { budget: Box::new(budget()) }),
        ("run reopened", Event::RunReopened),
        ("run retired", Event::RunRetired),
        ("review ready", Event::ReviewReady { task: task.clone() }),
        (
            "attempt finished, to be judged otherwise",
            Event::AttemptFinished {
                task: task.clone(),
                attempt: 1,
                worker,
                at_sequence: 17,
                summary: "found".into(),
                is_detailed: false,
                review: Some(Review::None),
                usage: usage(),
                models: models(),
            },
        ),
        (
            "attempt timed out, with what counts as used",
            Event::AttemptTimedOut {
                task: task.clone(),
                attempt: 1,
                clock: Clock::RunTime,
                retry_at: None,
                usage: usage(),
            },
        ),
        (
            "attempt errored, at its allowance",
            Event::AttemptErrored {
                task: task.clone(),
                attempt: 1,
                error: TaskError {
                    limit: Some(Limit::Allowance),
                    usage: usage(),
                    models: models(),
                    ..cast::error(ErrorKind::Limit, "what was reserved is used")
                },
                retry_at: Some(at),
            },
        ),
        (
            "review errored, with its usage",
            Event::ReviewErrored {
                task: task.clone(),
                attempt: 1,
                review: 1,
                error: "no answer".into(),
                again: false,
                retry_at: None,
                usage: usage(),
                models: models(),
            },
        ),
        (
            "verdict given, by several models",
            Event::VerdictGiven {
                task: task.clone(),
                attempt: 1,
                critic: cast::worker("c1"),
                verdict: full_verdict(),
            },
        ),
        (
            "task cancelled, with another",
            Event::TaskCancelled {
                task: cast::task_id("b"),
                reason: "task a failed".into(),
                with: Some(task),
                usage: usage(),
            },
        ),
        (
            "run ended, to be gone on with",
            Event::RunEnded {
                reason: EndReason::MaxSteps,
                detail: String::new(),
                deliverable: Some((cast::task_id("a"), FinalRung::Detailed)),
            },
        ),
    ]
}

/// The name of an event; whoever adds one is led here, and to its sample above.
fn event_name(event: &Event) -> &'static str {
    match event {
        Event::RunStarted { .. } => "run started, told when to ask",
        Event::PlanningAsked { .. } => "planning asked",
        Event::PlanningClaimed { .. } => "planning claimed",
        Event::ProposalAccepted { .. } => "proposal accepted, told whether idle",
        Event::PlanningErrored { .. } => "planning errored",
        Event::TaskAdded { spec, .. } if spec.is_final => "task added, with everything",
        Event::TaskAdded { .. } => "task added",
        Event::TaskReady { .. } => "task ready",
        Event::CapabilityMissing { .. } => "capability missing",
        Event::TaskPending { .. } => "task pending",
        Event::AttemptClaimed { .. } => "attempt claimed",
        Event::AttemptFinished { .. } => "attempt finished, told whether detailed",
        Event::AttemptErrored { .. } => "attempt errored",
        Event::AttemptTimedOut { .. } => "attempt timed out",
        Event::ReviewErrored { .. } => "review errored, told when again",
        Event::VerdictGiven { .. } => "verdict given",
        Event::TaskAccepted { .. } => "task accepted",
        Event::TaskRerun { .. } => "task rerun",
        Event::TaskFailed { .. } => "task failed",
        Event::TaskCancelled { .. } => "task cancelled",
        Event::RunEnded { .. } => "run ended",
        Event::OccasionRaised { .. }
        | Event::ParametersWrong { .. }
        | Event::TaskPatched { .. }
        | Event::FinalMarked { .. }
        | Event::TaskReopened { .. }
        | Event::TaskInvalidated { .. }
        | Event::Reserved { .. }
        | Event::BudgetLow { .. }
        | Event::WindingDown { .. }
        | Event::Commanded { .. }
        | Event::MessageReceived { .. }
        | Event::Paused
        | Event::Resumed { .. }
        | Event::RunReopened
        | Event::RunRetired
        | Event::ReviewReady { .. } => unreachable!("its sample has its name beside it, in `later_events`"),
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

fn later_refusals() -> Vec<Refusal> {
    let (task, capability) = (cast::task_id("a"), cast::capability("search"));
    vec![
        Refusal::AlreadyApplied("c1".into()),
        Refusal::WrongMoment("the run is paused already".into()),
        Refusal::Unusable("the message is empty".into()),
        Refusal::UnknownCapability {
            task: task.clone(),
            capability: capability.clone(),
            known: "there are echo".into(),
        },
        Refusal::WrongParameters { task, capability, problem: "no q".into() },
        Refusal::FixedPlan { edit: "add_tasks".into() },
        Refusal::TooLarge { what: "tasks".into(), found: 1_001, allowed: 1_000 },
    ]
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
    let later = later_events().into_iter().map(|(name, event)| {
        (format!("event: {name}"), decision(vec![event], vec![answer(Cause::Fact(42))]))
    });
    let more = decision(Vec::new(), later_refusals().into_iter().map(refused).collect());
    of_events
        .chain(later)
        .chain([
            ("more refusals".to_owned(), more),
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
    let spec = TaskSpec { review: full_review(), budget: amounts(), ..full_task() };
    let later = Submission {
        mode: Mode::Hybrid,
        models: [(cast::capability("planner"), "a:b".to_owned())].into(),
        budget: budget(),
        consult: Some(Consult::EveryResult),
        ..cast::submission(vec![cast::task("a", &[]), spec])
    };
    vec![
        ("with a plan and everything".into(), full),
        ("without a plan".into(), cast::unplanned()),
        ("with a budget and a planner".into(), later),
    ]
}

fn controls() -> Vec<(String, Control)> {
    let reason = || "by hand".to_owned();
    vec![
        ("cancel run".into(), Control::CancelRun { reason: reason() }),
        ("cancel task".into(), Control::CancelTask { task: cast::task_id("a"), reason: reason() }),
    ]
}

fn edits() -> Vec<Edit> {
    let task = || cast::task_id("a");
    let patch = Patch {
        objective: Some("do it otherwise".into()),
        capability: Some(cast::capability("search")),
        depends_on: Some(vec![cast::task_id("b")]),
        parameters: [("q".to_owned(), Value::Null)].into(),
        review: Some(full_review()),
        limits: Some(Limits { max_attempts: 2, ..Limits::default() }),
        on_failed_dependency: Some(OnFailedDependency::Ask),
        ..Patch::of(task())
    };
    vec![
        Edit::Add(vec![cast::task("a", &[]), full_task()]),
        Edit::Patch(patch),
        Edit::Cancel { task: task(), reason: "not needed".into() },
        Edit::Retry { task: task(), feedback: Some("harder".into()) },
        Edit::MarkFinal { task: task() },
        Edit::Finish { reason: "it is there".into() },
        Edit::GiveUp { reason: "there is no way on".into() },
    ]
}

fn commands() -> Vec<(String, Command)> {
    let command = |control| Command { id: "c1".into(), by: "ann".into(), control };
    let edits = edits().into_iter().map(|edit| (edit.name().to_owned(), Control::Edit(edit)));
    let others = [
        ("pause".to_owned(), Control::Pause),
        ("resume".to_owned(), Control::Resume { budget: None }),
        ("resume with more".to_owned(), Control::Resume { budget: Some(budget()) }),
        ("message".to_owned(), Control::Message { text: "hurry".into() }),
    ];
    let all = controls().into_iter().chain(edits).chain(others);
    all.map(|(name, control)| (name, command(control))).collect()
}

fn entries() -> Vec<(String, Entry)> {
    let outcome = |outcome| Entry::Outcome { worker: cast::worker("w1"), review: 0, outcome };
    let stored = || Blob::Stored(Stored { sha256: "cd".repeat(32), size: 300_000 });
    let inline = || Blob::Inline(ByteBuf::from(wire::body(&TaskResult::default())));
    let finished = |result| Outcome::Finished {
        summary: "found".into(),
        is_empty: false,
        is_detailed: true,
        review: Review::None,
        usage: usage(),
        models: ModelUsage::new(),
        result,
    };
    let judged_otherwise = Outcome::Finished {
        summary: "found".into(),
        is_empty: false,
        is_detailed: false,
        review: full_review(),
        usage: usage(),
        models: models(),
        result: inline(),
    };
    let proposal = Proposal {
        reasoning: "so it goes".into(),
        tasks: vec![cast::task("a", &[]), full_task()],
        edits: Vec::new(),
    };
    let edited = Proposal { reasoning: "so it goes".into(), tasks: Vec::new(), edits: edits() };
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
        ("released".into(), Entry::Released { worker: cast::worker("w1"), why: "no model answers".into() }),
        ("outcome: finished, told whether detailed".into(), outcome(finished(inline()))),
        ("outcome: finished, told whether detailed, stored".into(), outcome(finished(stored()))),
        ("outcome: finished, to be judged otherwise".into(), outcome(judged_otherwise)),
        ("outcome: judged".into(), judged),
        (
            "outcome: proposed".into(),
            outcome(Outcome::Proposed { proposal, usage: usage(), models: ModelUsage::new() }),
        ),
        (
            "outcome: proposed, with changes".into(),
            outcome(Outcome::Proposed { proposal: edited, usage: usage(), models: models() }),
        ),
        ("outcome: judged by several models".into(), outcome(Outcome::Judged(full_verdict()))),
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
        checks: Vec::new(),
        panel: None,
        evidence: Vec::new(),
        rejected: None,
        allowance: None,
        plan_at: 0,
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
    let review = Work::Review { task: cast::task_id("b"), attempt: 1, review: 3 };
    let full = order(review.clone());
    let full = Order {
        checks: vec![ReviewCheck::Citations],
        panel: Some(Panel { models: vec!["a:b".into(), "c:d".into()], quorum: 2 }),
        evidence: full.inputs.clone(),
        rejected: full.inputs.first().cloned(),
        allowance: Some(amounts()),
        plan_at: 41,
        own_model: Some("a:b".into()),
        ..full
    };
    vec![
        ("task, at a place of the plan".into(), order(Work::Task { task: cast::task_id("b"), attempt: 2 })),
        ("review, at a place of the plan".into(), order(review)),
        ("planning, bare, at a place of the plan".into(), bare),
        ("review, with everything".into(), full),
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
        models: ModelUsage::new(),
    };
    let later = TaskResult { models: models(), ..full.clone() };
    vec![
        ("full".into(), full),
        ("bare".into(), TaskResult::default()),
        ("full, with its usage by model".into(), later),
    ]
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
        busy_with: Vec::new(),
        version: "0.1.0".into(),
    };
    let settings = ClusterSettings {
        version: 1,
        lanes: 4,
        replicas: 3,
        lane_lease_ms: 5000,
        work_lease_ms: 20_000,
        unmarked_orders_through: None,
    };
    let summary = RunSummary::of(&run, Lane(0), &plan, cast::start()).unwrap();
    let manifest = vec![Document { path: "GPL-3.0.txt".into(), sha256: "01".repeat(32), size: 35_149 }];
    let description = CapabilityDescription {
        parameters: Some(json!({ "type": "object" })),
        ..CapabilityDescription::new(cast::capability("echo"), "says it again")
    };
    let judged = CapabilityDescription { review: full_review(), ..description.clone() };
    [
        sealed(decisions()),
        sealed(submissions()),
        sealed(controls()),
        sealed(commands()),
        sealed(entries()),
        sealed(orders()),
        plain("result", results()),
        plain("manifest", vec![(named("of one"), manifest)]),
        plain("beat", vec![(named("of a worker"), beat)]),
        plain("settings", vec![(named("of four lanes"), settings)]),
        plain("summary", vec![(named("of a run, told how it stands"), summary)]),
        plain("capability", vec![(named("with parameters"), description), (named("with a review"), judged)]),
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

/// Bytes of earlier writers, which nobody writes so any more, are read all the same.
#[test]
fn whatever_was_kept_is_read_for_ever() {
    for (name, bytes) in kept() {
        let bytes = unhex(&bytes);
        let open = |encoding| match name.split(' ').next().unwrap() {
            "decision" => wire::open::<Decision>(&bytes, encoding).map(drop),
            "submission" => wire::open::<Submission>(&bytes, encoding).map(drop),
            "control" => wire::open::<Control>(&bytes, encoding).map(drop),
            "command" => wire::open::<Command>(&bytes, encoding).map(drop),
            "entry" => wire::open::<Entry>(&bytes, encoding).map(drop),
            "order" => wire::open::<Order>(&bytes, encoding).map(drop),
            "file" => wire::open::<millrace_protocol::file::FileVersion>(&bytes, encoding).map(drop),
            "result" => wire::read::<TaskResult>(&bytes, &name).map(drop),
            "manifest" => wire::read::<Vec<Document>>(&bytes, &name).map(drop),
            "beat" => wire::read::<Beat>(&bytes, &name).map(drop),
            "settings" => wire::read::<ClusterSettings>(&bytes, &name).map(drop),
            "summary" => wire::read::<RunSummary>(&bytes, &name).map(drop),
            "capability" => wire::read::<CapabilityDescription>(&bytes, &name).map(drop),
            other => panic!("{other:?} is no kind of message"),
        };
        assert_eq!(open(Encoding::MessagePack), Ok(()), "{name}");
    }
}

#[test]
fn what_earlier_writers_did_not_say_is_what_was_so_then() {
    let kept = kept();
    let event = |name: &str| {
        let bytes = unhex(&kept[&format!("decision event: {name}")]);
        wire::open::<Decision>(&bytes, Encoding::MessagePack).unwrap().events.remove(0)
    };
    let Event::RunStarted { budget, consult, .. } = event("run started") else { panic!() };
    assert!(budget.is_default() && consult == Consult::Never, "a planner was asked for a plan and no more");
    let Event::ProposalAccepted { is_idle, refused, .. } = event("proposal accepted") else { panic!() };
    assert!(!is_idle && refused.is_empty());
    let Event::AttemptFinished { is_detailed, review, .. } = event("attempt finished") else { panic!() };
    assert!(is_detailed && review.is_none(), "it is judged as its task says");
    let Event::ReviewErrored { again, retry_at, .. } = event("review errored") else { panic!() };
    assert!(again && retry_at.is_none(), "the next review began at once");
    let Event::TaskCancelled { with, usage, .. } = event("task cancelled") else { panic!() };
    assert!(with.is_none() && usage.is_zero());
    let finished = unhex(&kept["entry outcome: finished"]);
    let read = wire::open::<Entry>(&finished, Encoding::MessagePack).unwrap();
    let Entry::Outcome { outcome: Outcome::Finished { is_detailed, review, models, .. }, .. } = read else {
        panic!()
    };
    assert!(is_detailed && review.is_none() && models.is_empty());
    let block: OnFailedDependency = serde_json::from_value(json!("block")).unwrap();
    assert_eq!(block, OnFailedDependency::Ask);
    assert_eq!(serde_json::to_value(block).unwrap(), json!("ask"));
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

/// Variants with small names.
const VARIANTS: [&str; 21] = [
    "critic",
    "checks",
    "schema",
    "matches",
    "matches_not",
    "command",
    "add",
    "patch",
    "cancel",
    "retry",
    "mark_final",
    "finish",
    "give_up",
    "task_lost",
    "task_stuck",
    "accepted",
    "standstill",
    "message",
    "refused",
    "budget_low",
    "false_end",
];

/// Adds a field to every record in a message. An object with one capitalised key is a variant, not a record; below
/// these names anything is the user's own.
fn with_more_fields(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let is_variant = fields.len() == 1
                && fields
                    .keys()
                    .all(|key| key.starts_with(char::is_uppercase) || VARIANTS.contains(&key.as_str()));
            let mut fields: serde_json::Map<_, _> = fields
                .iter()
                .map(|(name, value)| match name.as_str() {
                    "parameters" | "data" | "models" | "capabilities" | "schema" => {
                        (name.clone(), value.clone())
                    }
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
