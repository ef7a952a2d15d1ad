//! What answers come to: the slips that are put right, what is told of the others, and what remains when telling does not
//! help.

use millrace_agent::planner::{PlanAnswer, Turn};
use millrace_protocol::plan::{Edit, Event, Mode, Occasion, OnFailedDependency, Plan, Review, TaskSpec};
use millrace_protocol::result::Proposal;
use serde_json::{Value, json};

use crate::support::{Made, id, seen, turn};

fn empty(mode: Mode) -> Plan {
    Made::started(mode).asked(vec![Occasion::NoPlan])
}

/// A plan in which the report waits for a task that is lost, and nothing is under way.
fn stuck() -> Made {
    let mut made = Made::started(Mode::Llm);
    made.add("law", "research", &[]).add("facts", "research", &[]);
    made.add("report", "producer", &["law", "facts"]).last("report").completed("law").failed("facts");
    made
}

fn answer(value: Value) -> PlanAnswer {
    let mut value = value;
    value["reasoning"] = "Because.".into();
    serde_json::from_value(value).unwrap()
}

/// What an answer comes to.
fn accepted(plan: Plan, value: Value) -> Proposal {
    let turn = turn(plan);
    let answer = turn.check(answer(value)).unwrap_or_else(|told| panic!("{told}"));
    turn.proposal(answer)
}

/// What is told of an answer.
fn told(plan: Plan, value: Value) -> String {
    turn(plan).check(answer(value)).expect_err("it is accepted")
}

fn ids(task: &TaskSpec) -> Vec<&str> {
    task.depends_on.iter().map(millrace_protocol::ids::TaskId::as_str).collect()
}

#[test]
fn a_first_plan_is_put_right_where_only_one_thing_can_be_meant() {
    let proposal = accepted(
        empty(Mode::Llm),
        json!({"tasks": [
            {"id": "Patent grants!", "objective": " What of patents? ", "capability": "Research", "criteria": ["It cites."]},
            {"objective": "What of trademarks?", "capability": "research"},
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
    assert_eq!(tasks[0].review, Review::critic(vec!["It cites.".into()]));
    assert_eq!(
        tasks[1].review,
        Review::critic(Vec::new()),
        "a task without criteria is judged by the critic's own"
    );
    assert!(tasks.iter().all(|task| task.on_failed_dependency == OnFailedDependency::Ask));
    assert_eq!(tasks[0].objective, "What of patents?");
    assert_eq!(proposal.edits, [Edit::MarkFinal { task: id("report") }], "the only end is final");
    assert_eq!(proposal.reasoning, "Because.");
}

#[test]
fn of_several_ends_the_last_is_meant_and_of_several_last_ones_the_report() {
    let task = |id: &str, capability: &str, depends_on: Value| json!({"id": id, "objective": id, "capability": capability, "depends_on": depends_on, "final": true});
    let ends = |tasks: Value| -> Vec<String> {
        let proposal = accepted(empty(Mode::Llm), json!({ "tasks": tasks }));
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
fn a_capability_that_judges_its_own_way_is_left_to_it() {
    let mut seen = seen();
    let citations = Review::Checks { checks: vec![millrace_protocol::plan::ReviewCheck::Citations] };
    seen.offers[4].about.review = citations;
    let turn = Turn::new(empty(Mode::Llm), seen);
    let task = |criteria: Value| json!({"tasks": [{"id": "a", "objective": "x", "capability": "research", "criteria": criteria}]});
    let review = |value: Value| turn.proposal(answer(value)).tasks[0].review.clone();
    assert_eq!(review(task(json!([]))), Review::None);
    assert_eq!(review(task(json!(["It cites."]))), Review::critic(vec!["It cites.".into()]));
}

#[test]
fn the_order_of_an_answer_matters_to_nobody() {
    // The retry of what the others depend on stands last, and the patch needs it.
    let mut made = stuck();
    made.event(Event::TaskFailed { task: id("report"), reason: "lost".into() });
    let proposal = accepted(
        made.asked(vec![]),
        json!({
            "retry": [{"task": "report"}, {"task": "facts", "feedback": "Look again."}],
            "patch": [{"task": "report", "objective": "Report briefly."}],
        }),
    );
    let names: Vec<String> =
        proposal.all().map(|edit| format!("{edit:?}").chars().take(40).collect()).collect();
    assert!(
        names[0].contains("facts") && names[1].contains("report") && names[2].starts_with("Patch"),
        "{names:?}"
    );
}

#[test]
fn a_replacement_takes_over_the_end_and_what_waited() {
    let proposal = accepted(
        stuck().asked(vec![Occasion::TaskLost { task: id("facts") }]),
        json!({
            "tasks": [{"id": "facts-2", "objective": "Ask otherwise.", "capability": "research"}],
            "patch": [{"task": "report", "depends_on": ["law", "facts-2"]}],
        }),
    );
    assert_eq!(proposal.tasks.len(), 1);
    assert_eq!(proposal.edits.len(), 1);

    let mut lost = stuck();
    lost.event(Event::TaskFailed { task: id("report"), reason: "lost".into() });
    let proposal = accepted(
        lost.asked(vec![]),
        json!({"tasks": [{"id": "report-2", "objective": "Report on what is there.", "capability": "producer", "final": true}]}),
    );
    assert_eq!(ids(&proposal.tasks[0]), ["law"], "it builds on all that nothing else builds on");
    assert_eq!(proposal.edits, [Edit::MarkFinal { task: id("report-2") }]);
}

#[test]
fn a_plan_that_is_told_again_is_not_added_again() {
    let mut made = Made::started(Mode::Llm);
    made.add("law", "research", &[]).add("report", "producer", &["law"]).last("report").claimed("law");
    let again = json!({"tasks": [
        {"id": "LAW", "objective": "find out about law.", "capability": "research"},
        {"id": "report", "objective": "Find out about report.", "capability": "producer", "depends_on": ["law"]}
    ]});
    let proposal = accepted(made.asked(vec![]), again);
    assert!(proposal.all().next().is_none(), "{proposal:?}");
}

#[test]
fn an_answer_may_change_nothing_while_something_is_under_way_or_done() {
    let mut made = Made::started(Mode::Llm);
    made.add("law", "research", &[]).last("law").claimed("law");
    assert!(accepted(made.clone().asked(vec![]), json!({})).all().next().is_none());
    made.completed("law");
    assert!(accepted(made.clone().asked(vec![]), json!({})).all().next().is_none());
    let proposal = accepted(made.asked(vec![]), json!({"finished": true}));
    assert_eq!(proposal.edits, [Edit::Finish { reason: "Because.".into() }]);
    assert_eq!(
        told(stuck().asked(vec![]), json!({})),
        "This of it can't be carried out:\n- the answer changes nothing and nothing is under way, so that the run would \
         stand still: add tasks, retry one, change what one waits for, or give up\nNothing else is wrong with it."
    );
    let given_up = accepted(stuck().asked(vec![]), json!({"give_up": "The facts are nowhere."}));
    assert_eq!(given_up.edits, [Edit::GiveUp { reason: "The facts are nowhere.".into() }]);
}

#[test]
fn what_is_wrong_with_an_answer_is_told_all_at_once() {
    let task = |id: &str, depends_on: Value| json!({"id": id, "objective": id, "capability": "research", "depends_on": depends_on});
    let table = [
        (
            empty(Mode::Llm),
            json!({}),
            "there is no plan yet, and the answer has no tasks. Give them in \"tasks\": ",
        ),
        (
            empty(Mode::Llm),
            json!({"tasks": [task("a", json!(["b"])), task("b", json!(["a"]))]}),
            "the new tasks: these tasks wait for each other in a circle: a → b; take one of these dependencies away",
        ),
        (
            empty(Mode::Llm),
            json!({"tasks": [task("a", json!([])), task("a", json!([]))]}),
            "the new tasks: 1 of the new tasks ask what another asks already, such as a, which is the same as a",
        ),
        (
            empty(Mode::Llm),
            json!({"tasks": [{"id": "a", "objective": "x", "capability": "!"}]}),
            "the new tasks: task a: \"!\" is no capability; there are echo, producer, research, weather",
        ),
        (
            empty(Mode::Llm),
            json!({"tasks": [{"id": "all", "objective": "Report.", "capability": "producer"}]}),
            "the new tasks: task all is for producer, which puts results of other tasks together, and it depends on none: \
             add tasks that find things out first (research, weather), and let it depend on them",
        ),
        (
            empty(Mode::Fixed),
            json!({"tasks": [task("a", json!([]))]}),
            "the new tasks: add_tasks is not for the planner of a fixed plan, which may run, cancel and judge",
        ),
        (
            stuck().asked(vec![]),
            json!({"retry": [{"task": "nobody"}], "cancel": [{"task": "law"}], "finished": true}),
            "the retry of 'nobody': there is no task 'nobody'; the tasks are law, facts, report\n- the cancelling of 'law': \
             task law is completed, so that cancelling it changes nothing\n- the end: the objective is not achieved: the \
             final task report is pending, not completed; go on, you are asked again when something has ended",
        ),
    ];
    for (plan, value, expected) in table {
        let told = told(plan, value.clone());
        assert!(
            told.starts_with(&format!("This of it can't be carried out:\n- {expected}")),
            "{value}\n{told}"
        );
    }
}

#[test]
fn after_two_corrections_what_holds_counts_and_the_rules_say_the_rest() {
    let turn = turn(stuck().asked(vec![]));
    let stubborn = json!({
        "retry": [{"task": "facts", "feedback": "Again."}, {"task": "law"}, {"task": "nobody"}],
        "cancel": [{"task": "facts-9"}], "finished": true,
        "tasks": [{"id": "x", "objective": "Cook.", "capability": "cooking"}],
    });
    for _ in 0..2 {
        assert!(turn.check(answer(stubborn.clone())).is_err());
    }
    let kept = turn.check(answer(stubborn)).unwrap();
    let proposal = turn.proposal(kept);
    let names: Vec<&str> = proposal.all().map(|edit| edit.name()).collect();
    // The task for a capability that nobody offers goes along: it waits for one, and the planner is asked.
    assert_eq!(names, ["retry_task", "retry_task", "add_tasks", "finish"]);
    assert!(proposal.reasoning.contains("Not to be had: ") && proposal.reasoning.contains("'nobody'"));
}

#[test]
fn the_form_is_as_large_as_the_plan_gives_reason_to() {
    let fields = |plan: Plan| -> (Vec<String>, Value) {
        let schema = turn(plan).form("plan").schema;
        let names = schema["properties"].as_object().unwrap().keys().cloned().collect();
        (names, schema)
    };
    let (names, schema) = fields(empty(Mode::Llm));
    assert_eq!(names, ["reasoning", "tasks", "final_task"]);
    let task = &schema["properties"]["tasks"]["items"]["properties"];
    assert_eq!(task["capability"]["enum"], json!(["echo", "producer", "research", "weather"]));
    assert!(task["parameters"].is_object());
    let all = ["reasoning", "tasks", "retry", "patch", "cancel", "final_task", "finished", "give_up"];
    let (names, schema) = fields(stuck().asked(vec![]));
    assert_eq!(names, all);
    let capability = &schema["properties"]["patch"]["items"]["properties"]["capability"];
    assert_eq!(capability["enum"], json!(["echo", "producer", "research", "weather"]));
    let mut moving = stuck();
    moving.add("more", "research", &[]);
    assert_eq!(fields(moving.asked(vec![])).0, all[..7], "what is under way is not given up");
    let mut fixed = Made::started(Mode::Fixed);
    fixed.add("a", "research", &[]).failed("a");
    assert_eq!(fields(fixed.asked(vec![])).0, ["reasoning", "retry", "cancel", "finished", "give_up"]);

    let mut seen = seen();
    seen.offers.retain(|offer| offer.about.parameters.is_none() && offer.about.name.as_str() != "research");
    let schema = Turn::new(empty(Mode::Llm), seen).form("plan").schema;
    assert!(schema["properties"]["tasks"]["items"]["properties"].get("parameters").is_none());
    let capability = &schema["properties"]["tasks"]["items"]["properties"]["capability"];
    assert!(capability.get("enum").is_none(), "research may only not have come yet");
}
