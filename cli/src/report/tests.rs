//! Reports on a run with all kinds of events. The JSON is compared with `result.json`; `UPDATE_GOLDEN=1` rewrites it.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::ids::{Capability, RunId, TaskId, WorkerId};
use millrace_protocol::plan::{
    AttemptClock, AttemptEvent, Budget, BudgetEvent, Decision, DeliverableRule, EndReason, Event, GraphEvent,
    PlannerConsultMode, PlannerTrigger, PlanningEvent, PlanningMode, ResourceAmounts, ReviewEvent,
    ReviewPolicy, RunEnd, RunEvent, TaskEvent, TaskSpec, UserEvent,
};
use millrace_protocol::result::{
    CriterionOutcome, ErrorKind, ModelUsage, TaskError, TaskResult, Usage, Verdict,
};
use serde_json::json;

use super::{
    RunReport, describe_missing_review, describe_usage_by_role, other_planner_hint, resume_command_hint,
};
use crate::history::RunHistory;
use crate::json::tests::{assert_golden, assert_matches_schema};
use crate::json::{EventLine, RunResult, to_value};
use crate::view::{LiveModelOutput, format_clock, format_history_lines, render_board_lines};

const MODEL: &str = "openai:gpt-5.2";

fn task_id(name: &str) -> TaskId {
    TaskId::new(name).unwrap()
}

fn worker_id(name: &str) -> WorkerId {
    WorkerId::new(name).unwrap()
}

fn usage_of(tokens: u64) -> Usage {
    let cost_micros = tokens * 10;
    Usage { model_calls: 1, input_tokens: tokens - 10, output_tokens: 10, cost_micros, ..Usage::default() }
}

fn usage_by_model(tokens: u64) -> ModelUsage {
    [(MODEL.to_owned(), usage_of(tokens))].into()
}

fn timestamp_at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap() + SignedDuration::from_secs(second)
}

fn sample_verdict(passed: bool) -> Verdict {
    Verdict {
        passed,
        criteria: vec![CriterionOutcome { met: passed, ..sample_criterion_outcome() }],
        reasoning: if passed { "It cites what it says." } else { "It cites nothing." }.into(),
        feedback: (!passed).then(|| "Cite the licences.".into()),
        confidence: Some(0.75),
        usage: usage_of(20),
        models: usage_by_model(20),
        ..Verdict::default()
    }
}

fn sample_criterion_outcome() -> CriterionOutcome {
    serde_json::from_value(json!({ "criterion": "It cites.", "met": true })).unwrap()
}

fn attempt_claimed_event(name: &str, attempt: u32) -> Event {
    Event::Attempt(AttemptEvent::Claimed {
        task: task_id(name),
        attempt,
        worker: worker_id("worker-1"),
        build: None,
    })
}

fn attempt_finished_event(name: &str, attempt: u32, tokens: u64) -> Event {
    Event::Attempt(AttemptEvent::Finished {
        task: task_id(name),
        attempt,
        worker: worker_id("worker-1"),
        at_sequence: 40 + u64::from(attempt),
        summary: format!("findings of attempt {attempt}"),
        is_detailed: true,
        is_answered: true,
        review: None,
        usage: usage_of(tokens),
        models: usage_by_model(tokens),
    })
}

fn verdict_given_event(attempt: u32, passed: bool) -> Event {
    Event::Review(ReviewEvent::VerdictGiven {
        task: task_id("gather"),
        attempt,
        critic: worker_id("critic-1"),
        verdict: sample_verdict(passed).into(),
    })
}

fn run_started_event() -> Event {
    let tokens = |tokens| ResourceAmounts { tokens: Some(tokens), ..ResourceAmounts::default() };
    let budget = Budget {
        amounts: ResourceAmounts { cost_micros: Some(50_000), ..tokens(1_000) },
        capabilities: [(Capability::new("research").unwrap(), tokens(800))].into(),
        wall_time: Some(Duration::from_secs(600)),
        steps: Some(3),
        ..Budget::default()
    };
    Event::Run(RunEvent::Started {
        objective: "What do the licences say?".into(),
        mode: PlanningMode::Hybrid,
        documents: None,
        model: Some(MODEL.into()),
        models: Default::default(),
        fail_fast: false,
        budget: Box::new(budget),
        consult: PlannerConsultMode::Judgement,
        approve_plan: false,
        verification: None,
        criteria: Vec::new(),
        after: Vec::new(),
        labels: Default::default(),
        session: None,
    })
}

fn tasks_added_events() -> [Event; 2] {
    let capability = |name: &str| Capability::new(name).unwrap();
    let gather = TaskSpec {
        review: ReviewPolicy::critic(vec!["It cites.".into()]),
        ..TaskSpec::new(task_id("gather"), "Read all", capability("research"))
    };
    let report = TaskSpec {
        depends_on: vec![task_id("gather")],
        is_final: true,
        ..TaskSpec::new(task_id("report"), "Write it down", capability("producer"))
    };
    [
        Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(gather), ready: true }),
        Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(report), ready: false }),
    ]
}

/// A planner turn that was triggered by a user message.
fn planner_turn_events() -> Vec<Event> {
    let trigger = PlannerTrigger::Message { by: "ann".into(), text: "be quick".into() };
    vec![
        Event::User(UserEvent::Commanded {
            id: "c1".into(),
            by: "ann".into(),
            what: "tell the planner something".into(),
        }),
        Event::User(UserEvent::MessageReceived { by: "ann".into(), text: "be quick".into() }),
        Event::Planning(PlanningEvent::TriggerRaised { trigger: trigger.clone() }),
        Event::Planning(PlanningEvent::Requested {
            turn: 1,
            attempt: 1,
            feedback: None,
            triggers: vec![trigger],
        }),
        Event::Planning(PlanningEvent::Claimed { turn: 1, attempt: 1, worker: worker_id("worker-2") }),
        Event::Planning(PlanningEvent::Errored {
            turn: 1,
            attempt: 1,
            error: "the model is overloaded".into(),
            retry_at: Some(timestamp_at(10)),
            exceeded_reservation: false,
            is_refused_by_provider: false,
            usage: usage_of(15),
            models: usage_by_model(15),
        }),
        Event::Planning(PlanningEvent::Requested {
            turn: 1,
            attempt: 2,
            feedback: None,
            triggers: Vec::new(),
        }),
        Event::Planning(PlanningEvent::ProposalAccepted {
            turn: 1,
            attempt: 2,
            reasoning: "There is nothing to hurry.".into(),
            refused: vec!["cancel_task: there is no task check".into()],
            fallback: None,
            is_idle: true,
            is_repetition: false,
            usage: usage_of(35),
            models: usage_by_model(35),
        }),
    ]
}

fn budget_exhausted_events() -> Vec<Event> {
    let detail = || "the budget is used up: 990 tokens of 1000 tokens are used".to_owned();
    vec![
        Event::Attempt(AttemptEvent::TimedOut {
            task: task_id("report"),
            attempt: 1,
            clock: AttemptClock::RunTime,
            retry_at: None,
            usage: usage_of(500),
        }),
        Event::Task(TaskEvent::Failed {
            task: task_id("report"),
            reason: "it ran longer than its limit".into(),
        }),
        Event::Run(RunEvent::WindingDown { reason: EndReason::BudgetExhausted, detail: detail() }),
        Event::Run(RunEvent::Ended {
            is_resumable: false,
            reason: EndReason::BudgetExhausted,
            detail: detail(),
            deliverable: Some((task_id("gather"), DeliverableRule::Detailed)),
        }),
    ]
}

/// The events of the complete run, decision by decision.
fn sample_steps() -> Vec<Vec<Event>> {
    let error = TaskError {
        usage: usage_of(100),
        models: usage_by_model(100),
        ..TaskError::new(ErrorKind::Model, "the model's service answered 503")
    };
    let retry_at = Some(timestamp_at(3));
    vec![
        std::iter::once(run_started_event()).chain(tasks_added_events()).collect(),
        vec![attempt_claimed_event("gather", 1)],
        vec![Event::Attempt(AttemptEvent::Errored {
            task: task_id("gather"),
            attempt: 1,
            error: error.into(),
            retry_at,
        })],
        vec![
            Event::Task(TaskEvent::Ready { task: task_id("gather"), attempt: 2 }),
            attempt_claimed_event("gather", 2),
        ],
        vec![
            attempt_finished_event("gather", 2, 150),
            verdict_given_event(2, false),
            Event::Task(TaskEvent::Rerun { task: task_id("gather"), attempt: 3 }),
        ],
        vec![
            attempt_claimed_event("gather", 3),
            attempt_finished_event("gather", 3, 150),
            verdict_given_event(3, true),
        ],
        vec![
            Event::Task(TaskEvent::Accepted { task: task_id("gather"), attempt: 3 }),
            Event::Task(TaskEvent::Ready { task: task_id("report"), attempt: 1 }),
        ],
        planner_turn_events(),
        vec![attempt_claimed_event("report", 1)],
        budget_exhausted_events(),
    ]
}

/// The complete run.
fn sample_history() -> RunHistory {
    let mut story = RunHistory::default();
    for (second, events) in (0..).zip(sample_steps()) {
        let (by, answers) = (worker_id("supervisor-1"), Vec::new());
        story.add_decision(&Decision { by, previous: 0, at: timestamp_at(second), answers, events });
    }
    story
}

fn run_id() -> RunId {
    RunId::new("20270115-080000-aaaaaa").unwrap()
}

#[test]
fn the_complete_result_matches_the_golden_file() {
    let result = TaskResult {
        summary: "findings of attempt 3".into(),
        output: "They say much.".into(),
        data: Some(json!({ "licences": 15 })),
        ..TaskResult::default()
    };
    let (run, history) = (run_id(), sample_history());
    let is = to_value(&RunResult::new(
        &run,
        &history,
        Some(&result),
        timestamp_at(100),
        resume_command_hint(&run, &history.plan),
    ));
    assert_matches_schema("result", &is);
    assert_golden("src/report/result.json", &format!("{is:#}\n"));
}

#[test]
fn run_whose_planner_failed_says_how_to_use_another_model() {
    let end = |reason, names_planner: bool| {
        let mut plan = sample_history().plan;
        let planner = names_planner.then(|| (Capability::new("planner").unwrap(), "ollama:qwen3:8b".into()));
        plan.run.start.as_mut().unwrap().models = planner.into_iter().collect();
        let at = timestamp_at(100);
        plan.run.end = Some(RunEnd {
            reason,
            detail: "no valid answer".into(),
            deliverable: None,
            at,
            is_resumable: true,
            is_refused_by_provider: false,
        });
        other_planner_hint(&run_id(), &plan)
    };
    let hint = end(EndReason::PlannerUnavailable, false).unwrap();
    assert!(hint.contains("resume 20270115-080000-aaaaaa --model planner=PROVIDER:MODEL"), "{hint}");
    assert!(!end(EndReason::PlannerUnavailable, true).unwrap().contains("resume"));
    assert_eq!(end(EndReason::Failed, false), None);
}

#[test]
fn report_of_a_plain_plan_says_so() {
    let report = |fallback: Option<&str>| {
        let mut history = sample_history();
        history.plan.planning.fallback = fallback.map(str::to_owned);
        let end = RunEnd {
            reason: EndReason::Completed,
            detail: "the planner gave no valid plan, so a plain one was carried out: no".into(),
            deliverable: None,
            at: timestamp_at(100),
            is_resumable: false,
            is_refused_by_provider: false,
        };
        let result = TaskResult { output: "It weighs 2 kg.".into(), ..TaskResult::default() };
        RunReport { run: run_id(), end, history, deliverable: Some(result) }.deliverable_markdown().unwrap()
    };
    assert!(report(Some("no")).contains("the planner gave no valid plan, so a plain one was carried out"));
    assert_eq!(report(None), "It weighs 2 kg.\n");
}

#[test]
fn a_deliverable_that_nobody_judged_is_not_reviewed() {
    let history = sample_history();
    let plan = &history.plan;
    let end = |deliverable: Option<&str>| RunEnd {
        deliverable: deliverable.map(|task| (task_id(task), DeliverableRule::Final)),
        ..plan.run.end.clone().expect("the sample has ended")
    };
    assert_eq!(describe_missing_review(plan, &end(Some("gather"))), None, "its last attempt passed a review");
    let notice = "not reviewed: no critic and no check judged the result of report";
    assert_eq!(describe_missing_review(plan, &end(Some("report"))).as_deref(), Some(notice));
    assert_eq!(describe_missing_review(plan, &end(None)), None);
}

#[test]
fn every_event_of_a_run_matches_the_schema() {
    let run = run_id();
    let mut types = std::collections::BTreeSet::new();
    let interrupted = vec![Event::Run(RunEvent::Interrupted)];
    for events in sample_steps().into_iter().chain([interrupted]) {
        for event in &events {
            let line = EventLine { run: &run, sequence: 7, at: timestamp_at(0).into(), event: event.into() };
            let line = to_value(&line);
            assert_matches_schema("event", &line);
            types.insert(line["type"].as_str().unwrap().to_owned());
        }
    }
    assert!(types.contains("run_interrupted"), "{types:?}");
    assert!(types.contains("attempt_timed_out") && types.contains("planner_finished"), "{types:?}");
    assert!(types.len() > 15, "{types:?}");
}

#[test]
fn a_run_that_was_only_submitted_can_be_serialized() {
    let (run, history) = (run_id(), RunHistory::default());
    let is = to_value(&RunResult::new(
        &run,
        &history,
        None,
        timestamp_at(0),
        resume_command_hint(&run, &history.plan),
    ));
    assert_matches_schema("result", &is);
    assert_eq!((&is["state"], &is["end"]), (&json!("submitted"), &json!(null)));
}

#[test]
fn reservations_of_work_in_flight_are_in_the_json() {
    let mut story = RunHistory::default();
    let work = millrace_protocol::plan::Work::Task { task: task_id("gather"), attempt: 1 };
    let amounts = ResourceAmounts { tokens: Some(250), ..ResourceAmounts::default() };
    let events = std::iter::once(run_started_event())
        .chain(tasks_added_events())
        .chain([Event::Budget(BudgetEvent::Reserved { work, amounts })])
        .collect::<Vec<_>>();
    let (by, answers) = (worker_id("supervisor-1"), Vec::new());
    story.add_decision(&Decision { by, previous: 0, at: timestamp_at(0), answers, events });
    let run = run_id();
    let is = to_value(&RunResult::new(
        &run,
        &story,
        None,
        timestamp_at(1),
        resume_command_hint(&run, &story.plan),
    ));
    assert_matches_schema("result", &is);
    assert_eq!(is["budget"]["left"]["tokens"], 750);
    let shown =
        render_board_lines(&run_id(), &story.plan, &LiveModelOutput::default(), timestamp_at(61), 200, 40);
    assert_eq!(
        shown[1],
        "├─ budget  0 of 1000 tokens (and 250 reserved), $0.0000 of $0.0500, 1m 1s of 10m, 0 of 3 steps"
    );
}

#[test]
fn attempts_whose_parameters_were_refused_are_not_counted() {
    let mut story = RunHistory::default();
    let task = || task_id("gather");
    let error = TaskError::new(ErrorKind::WrongParameters, "'depth' must be an integer");
    let refused = [
        attempt_claimed_event("gather", 1),
        Event::Attempt(AttemptEvent::Errored {
            task: task(),
            attempt: 1,
            error: error.into(),
            retry_at: None,
        }),
        Event::Task(TaskEvent::Reopened { task: task(), attempt: 2, ready: true, feedback: None }),
        Event::Task(TaskEvent::ParametersRejected { task: task(), problem: "'depth' is wrong".into() }),
    ];
    let events =
        std::iter::once(run_started_event()).chain(tasks_added_events()).chain(refused).collect::<Vec<_>>();
    let (by, answers) = (worker_id("supervisor-1"), Vec::new());
    story.add_decision(&Decision { by, previous: 0, at: timestamp_at(0), answers, events });
    let shown =
        render_board_lines(&run_id(), &story.plan, &LiveModelOutput::default(), timestamp_at(1), 200, 40);
    let line = shown.iter().find(|line| line.contains("gather")).unwrap();
    assert!(line.contains("waiting for other parameters ('depth' is wrong)"), "{line}");
    assert!(!line.contains("attempt"), "{line}");
}

#[test]
fn board_and_history_show_end_reason_and_resume_hint() {
    let story = sample_history();
    let shown =
        render_board_lines(&run_id(), &story.plan, &LiveModelOutput::default(), timestamp_at(100), 200, 40);
    assert_eq!(
        shown,
        [
            "run 20270115-080000-aaaaaa  budget_exhausted, 9 s  1 completed, 1 failed",
            "├─ budget  990 of 1000 tokens, $0.0099 of $0.0500, 9s of 10m, 1 of 3 steps",
            "├─ used 990 tokens in 8 calls, $0.0099 (planner 50 tokens in 2 calls, $0.0005; workers 900 tokens in 4 calls, \
             $0.0090; critics 40 tokens in 2 calls, $0.0004)",
            "├─ budget_exhausted: the budget is used up: 990 tokens of 1000 tokens are used",
            "├─ resume it: millrace resume 20270115-080000-aaaaaa --budget tokens=2000",
            "├─ ✓ completed     gather  attempt 3 of 3, passed: findings of attempt 3",
            "└─ ✗ failed        report  it ran longer than its limit",
        ]
    );
    let at = format_clock(timestamp_at(7));
    assert_eq!(
        format_history_lines(&story),
        [
            format!(
                "{at}  planner turn 1: ann says: be quick → There is nothing to hurry. (no progress); refused: \
                 cancel_task: there is no task check"
            ),
            format!("{at}  ann: tell the planner something"),
            format!("{at}  ann to the planner: be quick"),
        ]
    );
    assert!(
        describe_usage_by_role(&story.plan).is_some()
            && describe_usage_by_role(&RunHistory::default().plan).is_none()
    );
}

#[test]
fn small_terminals_show_the_run_and_failures_first() {
    let story = sample_history();
    for (width, height) in [(20, 3), (1, 1), (40, 7), (0, 0)] {
        let shown = render_board_lines(
            &run_id(),
            &story.plan,
            &LiveModelOutput::default(),
            timestamp_at(100),
            width,
            height,
        );
        assert!(shown.iter().all(|line| line.chars().count() <= width.max(1)), "{width}: {shown:#?}");
        assert!(shown.len() <= height.max(3), "{height}: {shown:#?}");
    }
}
