//! The planner's tools: their effects on the draft, and their messages when the rules refuse a change.

use std::collections::BTreeSet;

use millrace_agent::planner::PlanAnswer;
use millrace_protocol::plan::{Edit, OnFailedDependency, Plan, PlannerTrigger, PlanningMode, ReviewPolicy};
use serde_json::{Value, json};

use super::support::{PlanBuilder, call, id, tools_of, turn};

/// A plan with a task in each relevant state: law completed, facts failed, sky running, report pending.
fn plan(mode: PlanningMode) -> Plan {
    let mut made = PlanBuilder::started(mode);
    made.add("law", "research", &[]).add("facts", "research", &[]).add("sky", "research", &[]);
    made.add("report", "producer", &["law", "facts", "sky"]).last("report");
    made.completed("law").rejected("facts").failed("facts").claimed("sky");
    made.with_turn(vec![PlannerTrigger::TaskLost { task: id("facts") }])
}

#[tokio::test]
async fn each_tool_reports_its_changes() {
    let table = [
        (
            "add_task",
            json!({"objective": "Look once more.", "capability": "research", "id": "again"}),
            "added and ready: again; the plan has 5 tasks: 1 pending, 1 ready, 1 running, 1 completed, 1 failed.",
        ),
        (
            "add_tasks",
            json!({"tasks": [
                {"id": "b", "objective": "Compare.", "capability": "research", "depends_on": ["a", "law"]},
                {"id": "a", "objective": "Look again.", "capability": "research"}
            ]}),
            "added, pending on their dependencies: b; added and ready: a; the plan has 6 tasks: ",
        ),
        (
            "patch_task",
            json!({"task_id": "report", "depends_on": ["law", "sky"]}),
            "changed: report; the plan has 4 tasks: ",
        ),
        (
            "cancel_task",
            json!({"task_id": "sky", "reason": "not needed"}),
            "cancelled: sky; the plan has 4 tasks: ",
        ),
        (
            "retry_task",
            json!({"task_id": "facts", "feedback": "Use other words."}),
            "retried, ready: facts; the plan has 4 tasks: ",
        ),
        ("set_status", json!({"task_id": "facts", "status": "ready"}), "retried, ready: facts; "),
        ("set_status", json!({"task_id": "sky", "status": "cancelled"}), "cancelled: sky; "),
        ("mark_final", json!({"task_id": "law"}), "final: law; "),
        ("mark_final", json!({"task_id": "report"}), "No change was needed; the plan has 4 tasks: "),
        (
            "retry_task",
            json!({"task_id": "law"}),
            "retried, ready: law; the plan has 4 tasks: 1 pending, 1 ready, 1 running, 1 failed.",
        ),
    ];
    for (tool, arguments, expected) in table {
        let message = call(&turn(plan(PlanningMode::Llm)), tool, arguments.clone()).await;
        let message = message.unwrap_or_else(|why| panic!("{tool} {arguments}: {why}"));
        assert!(message.starts_with(expected), "{tool} {arguments}\n{message}\n{expected}");
    }
}

#[tokio::test]
async fn refused_changes_are_reported_with_an_alternative() {
    let task = |id: &str, depends_on: &[&str]| json!({"id": id, "objective": format!("Do {id}."), "capability": "research", "depends_on": depends_on});
    let with = |mut task: Value, name: &str, value: Value| {
        task[name] = value;
        task
    };
    let table = [
        (
            "add_task",
            with(task("x", &[]), "capability", json!("cooking")),
            "task x needs the capability cooking, which no worker provides; available: echo, producer, research, weather",
        ),
        (
            "add_task",
            with(task("x", &[]), "capability", json!("weather")),
            "invalid parameters of task x for weather: 'city' is missing; it must be a string",
        ),
        (
            "add_task",
            task("x", &["y"]),
            "task x depends on y, which is not in the plan; the tasks are law, facts, sky, report",
        ),
        ("add_task", task("x", &["x"]), "task x depends on itself"),
        (
            "add_task",
            task("x", &["facts"]),
            "task x depends on facts, which is failed; retry that task first, depend on another, or run without it \
             (on_failed_dependency: skip)",
        ),
        (
            "add_task",
            task("law", &[]),
            "there already is a task law, which is completed: change that one, or give the new task another id",
        ),
        (
            "add_task",
            task("facts", &[]),
            "there already is a task facts, which is failed: retry it with feedback, or give the new task another id",
        ),
        (
            "add_task",
            with(task("x", &[]), "objective", json!("find  out about LAW.")),
            "1 of the new tasks duplicate another task, such as x, which is the same as law: leave them out",
        ),
        (
            "add_tasks",
            json!({"tasks": [task("x", &["y"]), task("y", &["x"])]}),
            "dependency cycle: x → y; remove one of these dependencies",
        ),
        (
            "add_tasks",
            json!({"tasks": [with(task("x", &[]), "final", json!(true)), with(task("y", &[]), "final", json!(true))]}),
            "tasks report and x are both final; at most one may be; mark only one of them",
        ),
        (
            "add_tasks",
            json!({"tasks": (0..2_000).map(|n| task(&format!("t{n}"), &[])).collect::<Vec<_>>()}),
            "the plan would have 2004 tasks; at most 1000 are allowed in this run",
        ),
        (
            "patch_task",
            json!({"task_id": "law", "objective": "x"}),
            "task law is completed: it can't be changed; retry it, or add another task",
        ),
        (
            "patch_task",
            json!({"task_id": "sky", "objective": "x"}),
            "task sky is running: it can't be changed; wait for its end, or cancel it and add another task",
        ),
        ("patch_task", json!({"task_id": "report"}), "the patch changes nothing in task report"),
        (
            "patch_task",
            json!({"task_id": "reprot", "objective": "x"}),
            "there is no task 'reprot'; did you mean 'report'?; the tasks are law, facts, sky, report",
        ),
        ("cancel_task", json!({"task_id": "law"}), "task law is completed: it can't be cancelled"),
        (
            "retry_task",
            json!({"task_id": "sky"}),
            "task sky is running: it can't be retried; wait for its end, or cancel it first",
        ),
        (
            "set_status",
            json!({"task_id": "sky", "status": "completed"}),
            "the status of 'sky' was not set: a task is completed only when its own result is accepted; if you do not \
             need it, use cancel_task",
        ),
        (
            "set_status",
            json!({"task_id": "sky", "status": "failed"}),
            "the status of 'sky' was not set: a task fails only through",
        ),
        (
            "set_status",
            json!({"task_id": "sky", "status": "done"}),
            "'status' must be one of \"pending\", \"ready\", \"running\"",
        ),
        (
            "mark_final",
            json!({"task_id": "facts"}),
            "task facts is failed: it can't be final; retry it first",
        ),
        (
            "finish",
            json!({"reason": "All is done."}),
            "the objective is not achieved: the final task report is pending, not completed; continue, you get another turn",
        ),
        (
            "finish",
            json!({"reason": "Nothing helps.", "achieved": false}),
            "tasks are in progress; wait for them to end, or cancel them first",
        ),
        ("view_qa_report", json!({"task_id": "none"}), "there is no task 'none'; the tasks are law"),
        ("view_qa_report", json!({"task_id": "report"}), "task report has no attempt yet: it is pending"),
        (
            "get_task_result",
            json!({"task_id": "sky"}),
            "task sky has no result: it is running; view_qa_report shows its attempts",
        ),
        (
            "get_task_result",
            json!({"task_id": "law", "attempt": 2}),
            "task law has no result of attempt 2: it is completed",
        ),
        (
            "get_task_result",
            json!({"task_id": "law", "offset": 900_000}),
            "the output has 3012 characters; offset 900000 is past its end",
        ),
    ];
    for (tool, arguments, expected) in table {
        let turn = turn(plan(PlanningMode::Llm));
        let shown: String = arguments.to_string().chars().take(200).collect();
        let message = call(&turn, tool, arguments).await;
        let message = message.err().unwrap_or_else(|| panic!("{tool} {shown} is accepted"));
        assert!(message.starts_with(expected), "{tool} {shown}\n{message}\n{expected}");
        let none = turn.build_proposal(PlanAnswer { reasoning: "x".into(), ..PlanAnswer::default() });
        assert!(none.all_edits().next().is_none(), "refused changes leave no trace: {none:?}");
    }
}

#[tokio::test]
async fn changes_build_on_each_other_and_keep_their_order() {
    let turn = turn(plan(PlanningMode::Llm));
    for (tool, arguments) in [
        ("add_task", json!({"id": "Other Way", "objective": "Ask differently.", "capability": "Research"})),
        ("patch_task", json!({"task_id": "report", "depends_on": ["law", "other-way", "sky"]})),
        ("cancel_task", json!({"task_id": "sky"})),
        (
            "patch_task",
            json!({"task_id": "REPORT", "depends_on": ["law", "Other Way"], "criteria": ["It cites.", " "]}),
        ),
    ] {
        call(&turn, tool, arguments).await.unwrap();
    }
    let proposal =
        turn.build_proposal(PlanAnswer { reasoning: "Another route.".into(), ..PlanAnswer::default() });
    let [task] = proposal.tasks.as_slice() else { panic!("{proposal:?}") };
    assert_eq!((task.id.as_str(), task.capability.as_str()), ("Other-Way", "research"));
    assert_eq!(task.on_failed_dependency, OnFailedDependency::Ask);
    assert_eq!(task.review, ReviewPolicy::critic(Vec::new()));
    let names: Vec<&str> = proposal.edits.iter().map(Edit::name).collect();
    assert_eq!(names, ["patch_task", "cancel_task", "patch_task"]);
    let Edit::Patch(patch) = &proposal.edits[2] else { panic!("{proposal:?}") };
    assert_eq!(patch.task, id("report"));
    assert_eq!(patch.depends_on, Some(vec![id("law"), id("Other-Way")]));
    assert_eq!(patch.review, Some(ReviewPolicy::critic(vec!["It cites.".into()])));
}

#[tokio::test]
async fn reports_list_every_attempt_and_results_are_paged() {
    let turn = turn(plan(PlanningMode::Llm));
    let report = call(&turn, "view_qa_report", json!({"task_id": "facts"})).await.unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["state"], &report["attempts_allowed"]), (&json!("failed"), &json!(3)));
    let first = &report["attempts"][0];
    assert_eq!(first["verdict"]["feedback"], "Look into the second part.");
    assert_eq!(
        first["verdict"]["criteria"][1],
        json!({"criterion": "It says so.", "met": false, "gap": "no word of it"})
    );
    let second = json!({"attempt": 2, "outcome": "error", "text": "the search is down", "verdict": null});
    assert_eq!(report["attempts"][1], second);

    let page = async |arguments: Value| -> Value {
        serde_json::from_str(&call(&turn, "get_task_result", arguments).await.unwrap()).unwrap()
    };
    let whole = page(json!({"task_id": "law"})).await;
    assert_eq!((&whole["characters"], &whole["next_offset"]), (&json!(3012), &Value::Null));
    let first = page(json!({"task_id": "law", "max_chars": 1000})).await;
    assert_eq!(
        (first["output"].as_str().unwrap().chars().count(), &first["next_offset"]),
        (1000, &json!(1000))
    );
    let last = page(json!({"task_id": "law", "offset": 3000})).await;
    assert_eq!(last["output"].as_str().unwrap().chars().count(), 12);
    let rejected = page(json!({"task_id": "facts", "attempt": 1})).await;
    assert!(
        rejected["output"].as_str().unwrap().starts_with("facts at 101. "),
        "a rejected result can be read"
    );
}

#[test]
fn fixed_plan_offers_no_tools_that_change_the_graph() {
    let names = |mode: PlanningMode| -> BTreeSet<String> {
        tools_of(&turn(plan(mode))).iter().map(|tool| tool.spec().name).collect()
    };
    let all: BTreeSet<String> = [
        "add_task",
        "add_tasks",
        "cancel_task",
        "finish",
        "get_task_result",
        "mark_final",
        "patch_task",
        "retry_task",
        "set_status",
        "view_qa_report",
    ]
    .map(str::to_owned)
    .into();
    let can_be_named: BTreeSet<&str> = millrace_agent::session::tools::list_built_in_tool_names().collect();
    assert!(all.iter().all(|name| can_be_named.contains(name.as_str())));
    assert_eq!((names(PlanningMode::Llm), names(PlanningMode::Hybrid)), (all.clone(), all));
    let fixed = ["cancel_task", "finish", "get_task_result", "retry_task", "set_status", "view_qa_report"];
    assert_eq!(names(PlanningMode::Fixed), fixed.iter().map(|name| (*name).to_owned()).collect());
}

#[test]
fn empty_plan_offers_only_tools_that_add_tasks() {
    let turn = turn(PlanBuilder::started(PlanningMode::Llm).with_turn(vec![PlannerTrigger::NoPlan]));
    let mut names: Vec<String> = tools_of(&turn).iter().map(|tool| tool.spec().name).collect();
    names.sort_unstable();
    assert_eq!(names, ["add_task", "add_tasks", "cancel_task", "mark_final", "patch_task"]);
}
