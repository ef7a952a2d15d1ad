//! Answers of planners: mistakes that are corrected automatically, mistakes that are reported to the model, and the
//! result if that does not help.

use millrace_agent::planner::{PlanAnswer, PlanningTurn};
use millrace_protocol::plan::{
    Edit, Event, OnFailedDependency, Plan, PlannerTrigger, PlanningMode, ReviewPolicy, TaskEvent, TaskSpec,
};
use millrace_protocol::result::PlanProposal;
use serde_json::{Value, json};

use super::support::{PlanBuilder, id, seen, turn};

fn empty(mode: PlanningMode) -> Plan {
    PlanBuilder::started(mode).with_turn(vec![PlannerTrigger::NoPlan])
}

/// A plan in which the report waits for a failed task and no task is running.
fn stuck() -> PlanBuilder {
    let mut made = PlanBuilder::started(PlanningMode::Llm);
    made.add("law", "research", &[]).add("facts", "research", &[]);
    made.add("report", "producer", &["law", "facts"]).last("report").completed("law").failed("facts");
    made
}

fn answer(value: Value) -> PlanAnswer {
    let mut value = value;
    value["reasoning"] = "Because.".into();
    serde_json::from_value(value).unwrap()
}

/// The proposal that results from an answer.
fn accepted(plan: Plan, value: Value) -> PlanProposal {
    let turn = turn(plan);
    let answer = turn.validate_answer(answer(value)).unwrap_or_else(|message| panic!("{message}"));
    turn.build_proposal(answer)
}

/// The mistakes that are reported for an answer.
fn mistakes(plan: Plan, value: Value) -> String {
    turn(plan).validate_answer(answer(value)).expect_err("the answer is rejected")
}

fn ids(task: &TaskSpec) -> Vec<&str> {
    task.depends_on.iter().map(millrace_protocol::ids::TaskId::as_str).collect()
}

#[test]
fn unambiguous_mistakes_in_a_first_plan_are_corrected() {
    let proposal = accepted(
        empty(PlanningMode::Llm),
        json!({"tasks": [
            {"id": "Patent grants!", "objective": " Find the patent clauses. ", "capability": "Research", "criteria": ["It cites."]},
            {"objective": "Find the trademark clauses.", "capability": "research"},
            {"id": "compare", "objective": "Compare.", "capability": "research",
             "depends_on": ["patent GRANTS", "research-1", "research-1"]},
            {"id": "report", "objective": "Report.", "capability": "producer"}
        ]}),
    );
    let tasks = &proposal.tasks;
    let shown: Vec<(&str, &str, Vec<&str>)> =
        tasks.iter().map(|task| (task.id.as_str(), task.capability.as_str(), ids(task))).collect();
    assert_eq!(
        shown,
        [
            ("Patent-grants", "research", vec![]),
            ("research-1", "research", vec![]),
            ("compare", "research", vec!["Patent-grants", "research-1"]),
            ("report", "producer", vec!["compare"]),
        ]
    );
    assert_eq!(tasks[0].review, ReviewPolicy::critic(vec!["It cites.".into()]));
    assert_eq!(
        tasks[1].review,
        ReviewPolicy::critic(Vec::new()),
        "a task without criteria is reviewed by the critic's own"
    );
    assert!(tasks.iter().all(|task| task.on_failed_dependency == OnFailedDependency::Ask));
    assert_eq!(tasks[0].objective, "Find the patent clauses.");
    assert_eq!(
        proposal.edits,
        [Edit::MarkFinal { task: id("report") }],
        "the only task without dependents is final"
    );
    assert_eq!(proposal.reasoning, "Because.");
}

#[test]
fn final_task_defaults_to_the_last_one_or_the_report() {
    let task = |id: &str, capability: &str, depends_on: Value| json!({"id": id, "objective": id, "capability": capability, "depends_on": depends_on, "final": true});
    let ends = |tasks: Value| -> Vec<String> {
        let proposal = accepted(empty(PlanningMode::Llm), json!({ "tasks": tasks }));
        let ends = proposal.tasks.iter().filter(|task| task.is_final);
        ends.map(|task| task.id.to_string()).collect()
    };
    let row = json!([
        task("a", "research", json!([])),
        task("b", "research", json!([])),
        task("c", "research", json!(["a", "b"]))
    ]);
    assert_eq!(ends(row), ["c"]);
    let wide = json!([
        task("a", "research", json!([])),
        task("b", "research", json!([])),
        task("c", "producer", json!(["a"]))
    ]);
    assert_eq!(ends(wide), ["c"]);
}

#[test]
fn capability_with_its_own_review_keeps_it() {
    let mut seen = seen(&empty(PlanningMode::Llm));
    let citations = ReviewPolicy::Checks { checks: vec![millrace_protocol::plan::ReviewCheck::Citations] };
    seen.offers[4].about.review = citations;
    let turn = PlanningTurn::new(empty(PlanningMode::Llm), seen);
    let task = |criteria: Value| json!({"tasks": [{"id": "a", "objective": "x", "capability": "research", "criteria": criteria}]});
    let review = |value: Value| turn.build_proposal(answer(value)).tasks[0].review.clone();
    assert_eq!(review(task(json!([]))), ReviewPolicy::None);
    assert_eq!(review(task(json!(["It cites."]))), ReviewPolicy::critic(vec!["It cites.".into()]));
}

#[test]
fn order_of_changes_in_an_answer_does_not_matter() {
    // The retry of the dependency is last, and the patch needs it.
    let mut made = stuck();
    made.event(Event::Task(TaskEvent::Failed { task: id("report"), reason: "lost".into() }));
    let proposal = accepted(
        made.with_turn(vec![]),
        json!({
            "retry": [{"task": "report"}, {"task": "facts", "feedback": "Look again."}],
            "patch": [{"task": "report", "objective": "Report briefly."}],
        }),
    );
    let names: Vec<String> =
        proposal.all_edits().map(|edit| format!("{edit:?}").chars().take(40).collect()).collect();
    // The retry of the dependency brings the report back.
    assert!(names.len() == 2 && names[0].contains("facts") && names[1].starts_with("Patch"), "{names:?}");
}

#[test]
fn replacement_takes_over_finality_and_dependents() {
    let proposal = accepted(
        stuck().with_turn(vec![PlannerTrigger::TaskLost { task: id("facts") }]),
        json!({
            "tasks": [{"id": "facts-2", "objective": "Ask otherwise.", "capability": "research"}],
            "patch": [{"task": "report", "depends_on": ["law", "facts-2"]}],
        }),
    );
    assert_eq!(proposal.tasks.len(), 1);
    assert_eq!(proposal.edits.len(), 1);

    let mut lost = stuck();
    lost.event(Event::Task(TaskEvent::Failed { task: id("report"), reason: "lost".into() }));
    let proposal = accepted(
        lost.with_turn(vec![]),
        json!({"tasks": [{"id": "report-2", "objective": "Report on what is there.", "capability": "producer", "final": true}]}),
    );
    assert_eq!(ids(&proposal.tasks[0]), ["law"], "it depends on all tasks without dependents");
    assert_eq!(proposal.edits, [Edit::MarkFinal { task: id("report-2") }]);
}

#[test]
fn repeated_plan_is_not_added_twice() {
    let mut made = PlanBuilder::started(PlanningMode::Llm);
    made.add("law", "research", &[]).add("report", "producer", &["law"]).last("report").claimed("law");
    let again = json!({"tasks": [
        {"id": "LAW", "objective": "find out about law.", "capability": "research"},
        {"id": "report", "objective": "Find out about report.", "capability": "producer", "depends_on": ["law"]}
    ]});
    let proposal = accepted(made.with_turn(vec![]), again);
    assert!(proposal.all_edits().next().is_none(), "{proposal:?}");
}

#[test]
fn empty_answer_is_valid_while_tasks_run_or_are_done() {
    let mut made = PlanBuilder::started(PlanningMode::Llm);
    made.add("law", "research", &[]).last("law").claimed("law");
    assert!(accepted(made.clone().with_turn(vec![]), json!({})).all_edits().next().is_none());
    made.completed("law");
    assert!(accepted(made.clone().with_turn(vec![]), json!({})).all_edits().next().is_none());
    let proposal = accepted(made.with_turn(vec![]), json!({"finished": true}));
    assert_eq!(proposal.edits, [Edit::Finish { reason: "Because.".into() }]);
    assert_eq!(
        mistakes(stuck().with_turn(vec![]), json!({})),
        "These parts of it can't be applied:\n- the answer changes nothing and nothing is in progress, so the run would \
         stall: add tasks, retry one, change what one depends on, or give up\nThe rest of it is valid."
    );
    let given_up = accepted(stuck().with_turn(vec![]), json!({"give_up": "The facts are nowhere."}));
    assert_eq!(given_up.edits, [Edit::GiveUp { reason: "The facts are nowhere.".into() }]);
}

#[test]
fn all_mistakes_of_an_answer_are_reported_at_once() {
    let task = |id: &str, depends_on: Value| json!({"id": id, "objective": id, "capability": "research", "depends_on": depends_on});
    let table = [
        (
            empty(PlanningMode::Llm),
            json!({}),
            "there is no plan yet, and the answer has no tasks: list what to find out",
        ),
        (
            empty(PlanningMode::Llm),
            json!({"tasks": [task("a", json!(["b"])), task("b", json!(["a"]))]}),
            "the new tasks: dependency cycle: a → b; remove one of these dependencies",
        ),
        (
            empty(PlanningMode::Llm),
            json!({"tasks": [task("a", json!([])), task("a", json!([]))]}),
            "the new tasks: 1 of the new tasks duplicate another task, such as a, which is the same as a",
        ),
        (
            empty(PlanningMode::Llm),
            json!({"tasks": [{"id": "a", "objective": "x", "capability": "!"}]}),
            "the new tasks: task a: \"!\" is not a capability; available: echo, producer, research, weather",
        ),
        (
            stuck().with_turn(vec![]),
            json!({"tasks": [
                {"id": "all", "objective": "Report.", "capability": "producer"},
                {"id": "more", "objective": "Report more.", "capability": "producer"},
            ]}),
            "the new tasks: task all is for producer, which combines results of other tasks, but it depends on none: name its \
             tasks (research, weather), and let it depend on them",
        ),
        (
            empty(PlanningMode::Llm),
            json!({"tasks": [task("a", json!([])), task("b", json!(["elsewhere"]))]}),
            "the new tasks: task b depends on elsewhere, which is not in the plan; your tasks are a (research), b (research); \
             write their ids in depends_on",
        ),
        (
            empty(PlanningMode::Fixed),
            json!({"tasks": [task("a", json!([]))]}),
            "the new tasks: add_tasks is not allowed in a fixed plan; the planner may only retry and cancel tasks, or end the run",
        ),
        (
            stuck().with_turn(vec![]),
            json!({"retry": [{"task": "nobody"}], "cancel": [{"task": "law"}], "finished": true}),
            "the retry of 'nobody': there is no task 'nobody'; the tasks are law, facts, report\n- the cancellation of 'law': \
             task law is completed: it can't be cancelled\n- finishing: the objective is not achieved: the \
             final task report is pending, not completed; continue, you get another turn when something has ended",
        ),
    ];
    for (plan, value, expected) in table {
        let correction = mistakes(plan, value.clone());
        assert!(
            correction.starts_with(&format!("These parts of it can't be applied:\n- {expected}")),
            "{value}\n{correction}"
        );
    }
}

#[test]
fn after_two_corrections_the_valid_changes_are_accepted() {
    let turn = turn(stuck().with_turn(vec![]));
    let stubborn = json!({
        "retry": [{"task": "facts", "feedback": "Again."}, {"task": "law"}, {"task": "nobody"}],
        "cancel": [{"task": "facts-9"}], "finished": true,
        "tasks": [{"id": "x", "objective": "Cook.", "capability": "cooking"}],
    });
    for _ in 0..2 {
        assert!(turn.validate_answer(answer(stubborn.clone())).is_err());
    }
    let valid_part = turn.validate_answer(answer(stubborn)).unwrap();
    let proposal = turn.build_proposal(valid_part);
    let names: Vec<&str> = proposal.all_edits().map(|edit| edit.name()).collect();
    // The task with an unavailable capability is added too: it waits, and the planner is consulted.
    assert_eq!(names, ["retry_task", "retry_task", "add_tasks", "finish"]);
    assert!(proposal.reasoning.contains("Not applied: ") && proposal.reasoning.contains("'nobody'"));
}

#[test]
fn answer_schema_has_only_the_fields_that_apply() {
    let fields = |plan: Plan| -> (Vec<String>, Value) {
        let schema = turn(plan).answer_schema("plan").schema;
        let names = schema["properties"].as_object().unwrap().keys().cloned().collect();
        (names, schema)
    };
    let (names, schema) = fields(empty(PlanningMode::Llm));
    assert_eq!(names, ["reasoning", "tasks", "final_task"]);
    let task = &schema["properties"]["tasks"]["items"]["properties"];
    assert_eq!(task["capability"]["enum"], json!(["producer", "research", "weather"]));
    assert!(task["parameters"].is_object());
    let all = ["reasoning", "tasks", "retry", "patch", "cancel", "final_task", "finished", "give_up"];
    let (names, schema) = fields(stuck().with_turn(vec![]));
    assert_eq!(names, all);
    let capability = &schema["properties"]["patch"]["items"]["properties"]["capability"];
    assert_eq!(capability["enum"], json!(["producer", "research", "weather"]));
    let mut moving = stuck();
    moving.add("more", "research", &[]);
    assert_eq!(fields(moving.with_turn(vec![])).0, all[..7], "running tasks are not given up");
    let mut fixed = PlanBuilder::started(PlanningMode::Fixed);
    fixed.add("a", "research", &[]).failed("a");
    assert_eq!(fields(fixed.with_turn(vec![])).0, ["reasoning", "retry", "cancel", "finished", "give_up"]);

    let mut seen = seen(&empty(PlanningMode::Llm));
    seen.offers.retain(|offer| offer.about.parameters.is_none() && offer.about.name.as_str() != "research");
    let schema = PlanningTurn::new(empty(PlanningMode::Llm), seen).answer_schema("plan").schema;
    assert!(schema["properties"]["tasks"]["items"]["properties"].get("parameters").is_none());
    let capability = &schema["properties"]["tasks"]["items"]["properties"]["capability"];
    assert!(capability.get("enum").is_none(), "the workers for research may not have registered yet");
}
