//! What each tool does to the draft, and what it says when the rules refuse it.

use std::collections::BTreeSet;

use millrace_agent::planner::{PlanAnswer, TOOLS};
use millrace_protocol::plan::{Edit, Mode, Occasion, OnFailedDependency, Plan, Review};
use serde_json::{Value, json};

use crate::support::{Made, call, id, tools_of, turn};

/// A plan with a task in each state that matters: law completed, facts failed, sky running, report waits.
fn plan(mode: Mode) -> Plan {
    let mut made = Made::started(mode);
    made.add("law", "research", &[]).add("facts", "research", &[]).add("sky", "research", &[]);
    made.add("report", "producer", &["law", "facts", "sky"]).last("report");
    made.completed("law").rejected("facts").failed("facts").claimed("sky");
    made.asked(vec![Occasion::TaskLost { task: id("facts") }])
}

#[tokio::test]
async fn each_tool_says_what_it_changed() {
    let table = [
        (
            "add_task",
            json!({"objective": "Look once more.", "capability": "research", "id": "again"}),
            "added and ready at once: again; the plan has 5 tasks: 1 pending, 1 ready, 1 running, 1 completed, 1 failed.",
        ),
        (
            "add_tasks",
            json!({"tasks": [
                {"id": "b", "objective": "Compare.", "capability": "research", "depends_on": ["a", "law"]},
                {"id": "a", "objective": "Look again.", "capability": "research"}
            ]}),
            "added, waiting for what they depend on: b; added and ready at once: a; the plan has 6 tasks: ",
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
            "to run once more, at once: facts; the plan has 4 tasks: ",
        ),
        ("set_status", json!({"task_id": "facts", "status": "ready"}), "to run once more, at once: facts; "),
        ("set_status", json!({"task_id": "sky", "status": "cancelled"}), "cancelled: sky; "),
        ("mark_final", json!({"task_id": "law"}), "final: law; "),
        ("mark_final", json!({"task_id": "report"}), "It is so already; the plan has 4 tasks: "),
        (
            "retry_task",
            json!({"task_id": "law"}),
            "to run once more, at once: law; the plan has 4 tasks: 1 pending, 1 ready, 1 running, 1 failed.",
        ),
    ];
    for (tool, arguments, expected) in table {
        let told = call(&turn(plan(Mode::Llm)), tool, arguments.clone()).await;
        let told = told.unwrap_or_else(|why| panic!("{tool} {arguments}: {why}"));
        assert!(told.starts_with(expected), "{tool} {arguments}\n{told}\n{expected}");
    }
}

#[tokio::test]
async fn what_the_rules_refuse_is_told_with_what_to_do_instead() {
    let task = |id: &str, depends_on: &[&str]| json!({"id": id, "objective": format!("Do {id}."), "capability": "research", "depends_on": depends_on});
    let with = |mut task: Value, name: &str, value: Value| {
        task[name] = value;
        task
    };
    let table = [
        (
            "add_task",
            with(task("x", &[]), "capability", json!("cooking")),
            "task x needs the capability cooking, which nobody offers; there are echo, producer, research, weather",
        ),
        (
            "add_task",
            with(task("x", &[]), "capability", json!("weather")),
            "the parameters of task x are not what weather takes: 'city' is missing; it must be a string",
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
            "task x depends on facts, which is failed: retry that one first, depend on another, or go on without it \
             (on_failed_dependency: skip)",
        ),
        (
            "add_task",
            task("law", &[]),
            "there is a task law already, which is completed: change that one, or give the new one another id",
        ),
        (
            "add_task",
            task("facts", &[]),
            "there is a task facts already, which is failed: retry it with feedback, or give the new one another id",
        ),
        (
            "add_task",
            with(task("x", &[]), "objective", json!("find  out about LAW.")),
            "1 of the new tasks ask what another asks already, such as x, which is the same as law: leave them out",
        ),
        (
            "add_tasks",
            json!({"tasks": [task("x", &["y"]), task("y", &["x"])]}),
            "these tasks wait for each other in a circle: x → y; take one of these dependencies away",
        ),
        (
            "add_tasks",
            json!({"tasks": [with(task("x", &[]), "final", json!(true)), with(task("y", &[]), "final", json!(true))]}),
            "tasks report and x are both final; at most one may be; mark one of them only",
        ),
        (
            "add_tasks",
            json!({"tasks": (0..2_000).map(|n| task(&format!("t{n}"), &[])).collect::<Vec<_>>()}),
            "the plan would have 2004 tasks; at most 1000 are allowed in this run",
        ),
        (
            "patch_task",
            json!({"task_id": "law", "objective": "x"}),
            "task law is completed, so that a change (retry it, or add another) changes nothing",
        ),
        (
            "patch_task",
            json!({"task_id": "sky", "objective": "x"}),
            "task sky is running, so that a change (wait for its end, or cancel it and add another) changes nothing",
        ),
        ("patch_task", json!({"task_id": "report"}), "the patch changes nothing of task report"),
        (
            "patch_task",
            json!({"task_id": "reprot", "objective": "x"}),
            "there is no task 'reprot'; did you mean 'report'?; the tasks are law, facts, sky, report",
        ),
        (
            "cancel_task",
            json!({"task_id": "law"}),
            "task law is completed, so that cancelling it changes nothing",
        ),
        (
            "retry_task",
            json!({"task_id": "sky"}),
            "task sky is running, so that a retry (wait for its end, or cancel it first) changes nothing",
        ),
        (
            "set_status",
            json!({"task_id": "sky", "status": "completed"}),
            "the status of 'sky' is not set: a task is completed when its own result is accepted, and by nothing else; if \
             you can do without it, use cancel_task",
        ),
        (
            "set_status",
            json!({"task_id": "sky", "status": "failed"}),
            "the status of 'sky' is not set: a task fails by",
        ),
        (
            "set_status",
            json!({"task_id": "sky", "status": "done"}),
            "'status' must be one of \"pending\", \"ready\", \"running\"",
        ),
        (
            "mark_final",
            json!({"task_id": "facts"}),
            "task facts is failed, so that making it final (retry it first) changes nothing",
        ),
        (
            "finish",
            json!({"reason": "All is done."}),
            "the objective is not achieved: the final task report is pending, not completed; go on, you are asked again",
        ),
        (
            "finish",
            json!({"reason": "Nothing helps.", "achieved": false}),
            "tasks are under way: wait for their ends, or cancel them first",
        ),
        ("view_qa_report", json!({"task_id": "none"}), "there is no task 'none'; the tasks are law"),
        (
            "view_qa_report",
            json!({"task_id": "report"}),
            "there is no attempt at task report yet: it is pending",
        ),
        (
            "get_task_result",
            json!({"task_id": "sky"}),
            "task sky has no result: it is running; view_qa_report tells of its attempts",
        ),
        (
            "get_task_result",
            json!({"task_id": "law", "attempt": 2}),
            "task law has no result of attempt 2: it is completed",
        ),
        (
            "get_task_result",
            json!({"task_id": "law", "offset": 900_000}),
            "the output has 3012 characters, and none from 900000 on",
        ),
    ];
    for (tool, arguments, expected) in table {
        let turn = turn(plan(Mode::Llm));
        let shown: String = arguments.to_string().chars().take(200).collect();
        let told = call(&turn, tool, arguments).await;
        let told = told.err().unwrap_or_else(|| panic!("{tool} {shown} is accepted"));
        assert!(told.starts_with(expected), "{tool} {shown}\n{told}\n{expected}");
        let none = turn.proposal(PlanAnswer { reasoning: "x".into(), ..PlanAnswer::default() });
        assert!(none.all().next().is_none(), "what was refused leaves nothing behind: {none:?}");
    }
}

#[tokio::test]
async fn changes_build_on_each_other_and_come_out_in_their_order() {
    let turn = turn(plan(Mode::Llm));
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
    let proposal = turn.proposal(PlanAnswer { reasoning: "Another route.".into(), ..PlanAnswer::default() });
    let [task] = proposal.tasks.as_slice() else { panic!("{proposal:?}") };
    assert_eq!((task.id.as_str(), task.capability.as_str()), ("Other-Way", "research"));
    assert_eq!(task.on_failed_dependency, OnFailedDependency::Ask);
    assert_eq!(task.review, Review::critic(Vec::new()));
    let names: Vec<&str> = proposal.edits.iter().map(Edit::name).collect();
    assert_eq!(names, ["patch_task", "cancel_task", "patch_task"]);
    let Edit::Patch(patch) = &proposal.edits[2] else { panic!("{proposal:?}") };
    assert_eq!(patch.task, id("report"));
    assert_eq!(patch.depends_on, Some(vec![id("law"), id("Other-Way")]));
    assert_eq!(patch.review, Some(Review::critic(vec!["It cites.".into()])));
}

#[tokio::test]
async fn reports_tell_of_every_attempt_and_results_come_page_by_page() {
    let turn = turn(plan(Mode::Llm));
    let report = call(&turn, "view_qa_report", json!({"task_id": "facts"})).await.unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["state"], &report["attempts_allowed"]), (&json!("failed"), &json!(3)));
    let first = &report["attempts"][0];
    assert_eq!(first["verdict"]["feedback"], "Look into the second part.");
    assert_eq!(
        first["verdict"]["criteria"][1],
        json!({"criterion": "It says so.", "met": false, "gap": "no word of it"})
    );
    let second = json!({"attempt": 2, "came_to": "an error", "text": "the search is down", "verdict": null});
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
fn in_a_fixed_plan_there_are_no_tools_that_change_the_graph() {
    let names = |mode: Mode| -> BTreeSet<String> {
        tools_of(&turn(plan(mode))).iter().map(|tool| tool.spec().name).collect()
    };
    let all: BTreeSet<String> = TOOLS.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!((names(Mode::Llm), names(Mode::Hybrid)), (all.clone(), all));
    let fixed = ["cancel_task", "finish", "get_task_result", "retry_task", "set_status", "view_qa_report"];
    assert_eq!(names(Mode::Fixed), fixed.iter().map(|name| (*name).to_owned()).collect());
}

#[test]
fn while_there_are_no_tasks_there_are_only_the_tools_that_make_them() {
    let turn = turn(Made::started(Mode::Llm).asked(vec![Occasion::NoPlan]));
    let mut names: Vec<String> = tools_of(&turn).iter().map(|tool| tool.spec().name).collect();
    names.sort_unstable();
    assert_eq!(names, ["add_task", "add_tasks", "cancel_task", "mark_final", "patch_task"]);
}
