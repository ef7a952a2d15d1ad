//! What is said of a run that went through everything; the JSON stands in `result.json`, which `UPDATE_GOLDEN=1`
//! rewrites.

use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::ids::{Capability, RunId, TaskId, WorkerId};
use millrace_protocol::plan::{
    Amounts, Budget, Clock, Consult, Decision, EndReason, Event, FinalRung, Mode, Occasion, Review, TaskSpec,
};
use millrace_protocol::result::{
    CriterionOutcome, ErrorKind, ModelUsage, TaskError, TaskResult, Usage, Verdict,
};
use serde_json::json;

use super::{json, spend};
use crate::story::Story;
use crate::view::{Live, board, history};

const MODEL: &str = "openai:gpt-5.2";

fn task(name: &str) -> TaskId {
    TaskId::new(name).unwrap()
}

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).unwrap()
}

fn used(tokens: u64) -> Usage {
    let cost_micros = tokens * 10;
    Usage { model_calls: 1, input_tokens: tokens - 10, output_tokens: 10, cost_micros, ..Usage::default() }
}

fn by_model(tokens: u64) -> ModelUsage {
    [(MODEL.to_owned(), used(tokens))].into()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap() + SignedDuration::from_secs(second)
}

fn verdict(passed: bool) -> Verdict {
    Verdict {
        passed,
        criteria: vec![CriterionOutcome { met: passed, ..criterion() }],
        reasoning: if passed { "It cites what it says." } else { "It cites nothing." }.into(),
        feedback: (!passed).then(|| "Cite the licences.".into()),
        confidence: Some(0.75),
        usage: used(20),
        models: by_model(20),
        ..Verdict::default()
    }
}

fn criterion() -> CriterionOutcome {
    serde_json::from_value(json!({ "criterion": "It cites.", "met": true })).unwrap()
}

fn claimed(name: &str, attempt: u32) -> Event {
    Event::AttemptClaimed { task: task(name), attempt, worker: worker("worker-1") }
}

fn finished(name: &str, attempt: u32, tokens: u64) -> Event {
    Event::AttemptFinished {
        task: task(name),
        attempt,
        worker: worker("worker-1"),
        at_sequence: 40 + u64::from(attempt),
        summary: format!("what attempt {attempt} found"),
        is_detailed: true,
        review: None,
        usage: used(tokens),
        models: by_model(tokens),
    }
}

fn judged(attempt: u32, passed: bool) -> Event {
    Event::VerdictGiven {
        task: task("gather"),
        attempt,
        critic: worker("critic-1"),
        verdict: verdict(passed),
    }
}

fn started() -> Event {
    let tokens = |tokens| Amounts { tokens: Some(tokens), ..Amounts::default() };
    let budget = Budget {
        amounts: Amounts { cost_micros: Some(50_000), ..tokens(1_000) },
        capabilities: [(Capability::new("research").unwrap(), tokens(800))].into(),
        wall_time: Some(Duration::from_secs(600)),
        steps: Some(3),
        ..Budget::default()
    };
    Event::RunStarted {
        objective: "What do the licences say?".into(),
        mode: Mode::Hybrid,
        documents: None,
        model: Some(MODEL.into()),
        models: Default::default(),
        fail_fast: false,
        budget: Box::new(budget),
        consult: Consult::Judgement,
    }
}

fn added() -> [Event; 2] {
    let capability = |name: &str| Capability::new(name).unwrap();
    let gather = TaskSpec {
        review: Review::critic(vec!["It cites.".into()]),
        ..TaskSpec::new(task("gather"), "Read all", capability("research"))
    };
    let report = TaskSpec {
        depends_on: vec![task("gather")],
        is_final: true,
        ..TaskSpec::new(task("report"), "Write it down", capability("producer"))
    };
    [Event::TaskAdded { spec: gather, ready: true }, Event::TaskAdded { spec: report, ready: false }]
}

/// A planner's turn that a user's message was the occasion of.
fn turn() -> Vec<Event> {
    let occasion = Occasion::Message { by: "ann".into(), text: "be quick".into() };
    vec![
        Event::Commanded { id: "c1".into(), by: "ann".into(), what: "tell the planner something".into() },
        Event::MessageReceived { by: "ann".into(), text: "be quick".into() },
        Event::OccasionRaised { occasion: occasion.clone() },
        Event::PlanningAsked { turn: 1, attempt: 1, feedback: None, occasions: vec![occasion] },
        Event::PlanningClaimed { turn: 1, attempt: 1, worker: worker("worker-2") },
        Event::PlanningErrored {
            turn: 1,
            attempt: 1,
            error: "the model is overloaded".into(),
            retry_at: Some(at(10)),
            outgrew: false,
            usage: used(15),
            models: by_model(15),
        },
        Event::PlanningAsked { turn: 1, attempt: 2, feedback: None, occasions: Vec::new() },
        Event::ProposalAccepted {
            turn: 1,
            attempt: 2,
            reasoning: "There is nothing to hurry.".into(),
            refused: vec!["cancel_task: there is no task check".into()],
            is_idle: true,
            usage: used(35),
            models: by_model(35),
        },
    ]
}

fn exhausted() -> Vec<Event> {
    let detail = || "the budget is used up: 990 tokens of 1000 tokens are used".to_owned();
    vec![
        Event::AttemptTimedOut {
            task: task("report"),
            attempt: 1,
            clock: Clock::RunTime,
            retry_at: None,
            usage: used(500),
        },
        Event::TaskFailed { task: task("report"), reason: "it ran longer than its limit".into() },
        Event::WindingDown { reason: EndReason::BudgetExhausted, detail: detail() },
        Event::RunEnded {
            reason: EndReason::BudgetExhausted,
            detail: detail(),
            deliverable: Some((task("gather"), FinalRung::Detailed)),
        },
    ]
}

/// The run, up to its end.
fn story() -> Story {
    let error = TaskError {
        usage: used(100),
        models: by_model(100),
        ..TaskError::new(ErrorKind::Model, "the model's service answered 503")
    };
    let retry_at = Some(at(3));
    let steps = [
        std::iter::once(started()).chain(added()).collect(),
        vec![claimed("gather", 1)],
        vec![Event::AttemptErrored { task: task("gather"), attempt: 1, error, retry_at }],
        vec![Event::TaskReady { task: task("gather"), attempt: 2 }, claimed("gather", 2)],
        vec![
            finished("gather", 2, 150),
            judged(2, false),
            Event::TaskRerun { task: task("gather"), attempt: 3 },
        ],
        vec![claimed("gather", 3), finished("gather", 3, 150), judged(3, true)],
        vec![
            Event::TaskAccepted { task: task("gather"), attempt: 3 },
            Event::TaskReady { task: task("report"), attempt: 1 },
        ],
        turn(),
        vec![claimed("report", 1)],
        exhausted(),
    ];
    let mut story = Story::default();
    for (second, events) in (0..).zip(steps) {
        let (by, answers) = (worker("supervisor-1"), Vec::new());
        story.take(&Decision { by, previous: 0, at: at(second), answers, events });
    }
    story
}

fn run() -> RunId {
    RunId::new("20270115-080000-aaaaaa").unwrap()
}

#[test]
fn the_whole_result_is_as_the_golden_file_says() {
    let result = TaskResult {
        summary: "what attempt 3 found".into(),
        output: "They say much.".into(),
        data: Some(json!({ "licences": 15 })),
        ..TaskResult::default()
    };
    let mut is = json(&run(), &story(), Some(&result), at(100));
    // The state as the log folds to it belongs to the protocol, which has golden files of its own.
    let plan = is.as_object_mut().unwrap().remove("plan").unwrap();
    assert_eq!(plan["tasks"].as_array().unwrap().len(), 2);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/result.json");
    let text = format!("{is:#}\n");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    for (should, is) in golden.lines().zip(text.lines()) {
        assert_eq!(is, should);
    }
    assert_eq!(text, golden);
}

#[test]
fn a_run_that_has_only_been_handed_in_has_a_form_too() {
    let is = json(&run(), &Story::default(), None, at(0));
    assert_eq!((&is["reason"], &is["end"], &is["plan"]["start"]), (&json!(null), &json!(null), &json!(null)));
}

#[test]
fn what_work_in_flight_has_reserved_has_a_form_in_json() {
    let mut story = Story::default();
    let work = millrace_protocol::plan::Work::Task { task: task("gather"), attempt: 1 };
    let amounts = Amounts { tokens: Some(250), ..Amounts::default() };
    let events = std::iter::once(started())
        .chain(added())
        .chain([Event::Reserved { work, amounts }])
        .collect::<Vec<_>>();
    let (by, answers) = (worker("supervisor-1"), Vec::new());
    story.take(&Decision { by, previous: 0, at: at(0), answers, events });
    let is = json(&run(), &story, None, at(1));
    assert_eq!(is["budget"]["left"]["tokens"], 750);
    let shown = board(&run(), &story.plan, &Live::default(), at(61), 200, 40);
    assert_eq!(
        shown[1],
        "├─ budget  0 of 1000 tokens (and 250 reserved), $0.0000 of $0.0500, 1m 1s of 10m, 0 of 3 steps"
    );
}

#[test]
fn the_board_and_the_history_say_why_it_ended_and_how_to_go_on() {
    let story = story();
    let shown = board(&run(), &story.plan, &Live::default(), at(100), 200, 40);
    assert_eq!(
        shown,
        [
            "run 20270115-080000-aaaaaa  budget_exhausted, 9 s  1 completed, 1 failed",
            "├─ budget  990 of 1000 tokens, $0.0099 of $0.0500, 9s of 10m, 1 of 3 steps",
            "├─ spent 990 tokens in 8 calls, $0.0099 (planner 50 tokens in 2 calls, $0.0005; workers 900 tokens in 4 calls, \
             $0.0090; critics 40 tokens in 2 calls, $0.0004)",
            "├─ budget_exhausted: the budget is used up: 990 tokens of 1000 tokens are used",
            "├─ go on with more: millrace resume 20270115-080000-aaaaaa --budget tokens=2000",
            "├─ gather  ✓ completed     attempt 3 of 3, passed: what attempt 3 found",
            "└─ report  ✗ failed        it ran longer than its limit",
        ]
    );
    assert_eq!(
        history(&story),
        [
            "08:00:07  planner turn 1: ann says: be quick → There is nothing to hurry. (it brought the run nowhere); not \
             carried out: cancel_task: there is no task check",
            "08:00:07  ann: tell the planner something",
            "08:00:07  ann to the planner: be quick",
        ]
    );
    assert!(spend(&story.plan).is_some() && spend(&Story::default().plan).is_none());
}

#[test]
fn narrow_and_low_terminals_show_the_run_and_what_goes_wrong_first() {
    let story = story();
    for (width, height) in [(20, 3), (1, 1), (40, 7), (0, 0)] {
        let shown = board(&run(), &story.plan, &Live::default(), at(100), width, height);
        assert!(shown.iter().all(|line| line.chars().count() <= width.max(1)), "{width}: {shown:#?}");
        assert!(shown.len() <= height.max(3), "{height}: {shown:#?}");
    }
}
