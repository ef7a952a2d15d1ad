//! Validation of task sets as plans: the text of each mistake, and random graphs compared with petgraph.

use std::collections::BTreeSet;
use std::time::Duration;

use millrace_protocol::plan::{
    CommandAction, Edit, GraphError, MAX_OBJECTIVE, Plan, Refusal, TaskLimits, TaskPatch, TaskSpec,
    check_new_tasks,
};
use petgraph::graph::DiGraph;
use proptest::prelude::*;
use serde_json::json;

use crate::cast;
use crate::scene::RunScene;

fn tasks_with_limits(limits: TaskLimits) -> Vec<TaskSpec> {
    vec![TaskSpec { limits, ..cast::echo_task("a", &[]) }]
}

fn check_message(tasks: &[TaskSpec]) -> String {
    match check_new_tasks(&Plan::default(), tasks) {
        Ok(()) => "ok".into(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_mistake_has_its_message() {
    let task = cast::echo_task;
    let second = Duration::from_secs(1);
    let final_task = |id| TaskSpec { is_final: true, ..task(id, &[]) };
    let cases: Vec<(Vec<TaskSpec>, &str)> = vec![
        (vec![], "the plan has no tasks"),
        (
            vec![task("a", &[]), task("b", &[]), task("a", &[])],
            "duplicate task id a; every task needs a unique id",
        ),
        (vec![task("a", &["b"])], "task a depends on b, which is not in the plan"),
        (vec![task("a", &["a"])], "task a depends on itself"),
        (vec![task("a", &[]), task("b", &["a", "a"])], "task b lists its dependency a twice"),
        (vec![task("a", &["b"]), task("b", &["a"])], "dependency cycle: a → b"),
        (
            vec![task("before", &["x"]), task("x", &["y"]), task("y", &["z"]), task("z", &["x"])],
            "dependency cycle: x → y → z",
        ),
        (vec![final_task("a"), final_task("b")], "tasks a and b are both final; at most one may be"),
        (vec![TaskSpec { objective: " \n".into(), ..task("a", &[]) }], "task a has an empty objective"),
        (
            vec![TaskSpec { objective: "x".repeat(MAX_OBJECTIVE + 1), ..task("a", &[]) }],
            "the objective of task a has 65537 bytes; at most 65536 are allowed",
        ),
        (
            vec![TaskSpec { capability: cast::capability_name("critic"), ..task("a", &[]) }],
            "task a: the capability critic is reserved and can't be used for a task",
        ),
        (
            vec![TaskSpec { capability: cast::capability_name("planner"), ..task("a", &[]) }],
            "task a: the capability planner is reserved and can't be used for a task",
        ),
        (
            tasks_with_limits(TaskLimits { max_attempts: 0, ..TaskLimits::default() }),
            "task a: max_attempts must be a whole number from 1 to 100",
        ),
        (
            tasks_with_limits(TaskLimits { max_attempts: 101, ..TaskLimits::default() }),
            "task a: max_attempts must be a whole number from 1 to 100",
        ),
        (
            tasks_with_limits(TaskLimits { queue_wait: Duration::ZERO, ..TaskLimits::default() }),
            "task a: queue_wait must be more than 0 seconds",
        ),
        (
            tasks_with_limits(TaskLimits { run_time: Duration::ZERO, ..TaskLimits::default() }),
            "task a: run_time must be more than 0 seconds",
        ),
        (
            tasks_with_limits(TaskLimits { silence: Duration::ZERO, ..TaskLimits::default() }),
            "task a: silence must be more than 0 seconds",
        ),
        (
            tasks_with_limits(TaskLimits { backoff: second * 367 * 86_400, ..TaskLimits::default() }),
            "task a: each duration must be at most a year",
        ),
        (tasks_with_limits(TaskLimits { backoff: Duration::ZERO, ..TaskLimits::default() }), "ok"),
        (vec![task("c", &["a", "b"]), task("b", &["a"]), task("a", &[])], "ok"),
    ];
    for (tasks, expected) in cases {
        assert_eq!(check_message(&tasks), expected);
    }
}

#[test]
fn deeply_nested_parameters_are_rejected() {
    let nested = |depth| {
        let value = (0..depth)
            .fold(json!(1), |value, at| if at % 2 == 0 { json!([value]) } else { json!({ "v": value }) });
        vec![TaskSpec { parameters: [("p".to_owned(), value)].into(), ..cast::echo_task("a", &[]) }]
    };
    assert_eq!(check_message(&nested(64)), "ok");
    assert_eq!(check_message(&nested(65)), "task a: parameters must be nested at most 64 deep");
    assert_eq!(check_message(&nested(900)), "task a: parameters must be nested at most 64 deep");
}

#[test]
fn new_tasks_may_depend_on_existing_ones_only_without_conflicts() {
    let old = vec![TaskSpec { is_final: true, ..cast::echo_task("old", &[]) }];
    let plan = RunScene::from_submission(cast::fixed_plan_submission(old)).plan;
    assert_eq!(check_new_tasks(&plan, &[] as &[TaskSpec]), Ok(()));
    assert_eq!(check_new_tasks(&plan, &[cast::echo_task("new", &["old"])]), Ok(()));
    assert_eq!(
        check_new_tasks(&plan, &[cast::echo_task("old", &[])]),
        Err(GraphError::DuplicateTask(cast::task_id("old")))
    );
    let final_too = TaskSpec { is_final: true, ..cast::echo_task("new", &[]) };
    assert_eq!(
        check_new_tasks(&plan, &[final_too]),
        Err(GraphError::TwoFinal(cast::task_id("old"), cast::task_id("new")))
    );
}

#[test]
fn long_chain_is_checked_without_recursion() {
    let mut tasks: Vec<TaskSpec> = (1..100_000_u32)
        .rev()
        .map(|at| cast::echo_task(&format!("t{at}"), &[&format!("t{}", at - 1)]))
        .chain([cast::echo_task("t0", &[])])
        .collect();
    assert_eq!(check_new_tasks(&Plan::default(), &tasks), Ok(()));
    tasks.last_mut().unwrap().depends_on = vec![cast::task_id("t99999")];
    match check_new_tasks(&Plan::default(), &tasks) {
        Err(GraphError::Cycle(ids)) => assert_eq!(ids.len(), 100_000),
        other => panic!("{other:?}"),
    }
}

/// Tasks `t0`… with any edges: to themselves, duplicate, to unknown tasks.
fn arbitrary_tasks() -> impl Strategy<Value = Vec<TaskSpec>> {
    (1_usize..9)
        .prop_flat_map(|count| {
            // Few edges lead to an unknown task.
            let edges = prop::collection::vec((0..count, 0..count + usize::from(count == 8)), 0..12);
            (Just(count), edges)
        })
        .prop_map(|(count, edges)| {
            let mut tasks: Vec<_> = (0..count).map(|at| cast::echo_task(&format!("t{at}"), &[])).collect();
            for (from, to) in edges {
                tasks[from].depends_on.push(cast::task_id(&format!("t{to}")));
            }
            tasks
        })
}

fn is_cyclic_plan(tasks: &[TaskSpec]) -> bool {
    let at = |id: &millrace_protocol::ids::TaskId| tasks.iter().position(|task| task.id == *id).unwrap();
    let mut graph = DiGraph::<(), ()>::new();
    let nodes: Vec<_> = tasks.iter().map(|_| graph.add_node(())).collect();
    for (from, task) in tasks.iter().enumerate() {
        for to in &task.depends_on {
            graph.add_edge(nodes[from], nodes[at(to)], ());
        }
    }
    petgraph::algo::is_cyclic_directed(&graph)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_dependency_is_valid_if_petgraph_finds_no_cycle(
        edges in prop::collection::vec((0_usize..8, 0_usize..8), 0..14),
        which in 0_usize..8,
        wanted in prop::collection::btree_set(0_usize..8, 0..4),
    ) {
        // Dependencies on tasks of lower numbers make no cycle.
        let mut tasks: Vec<_> = (0..8).map(|at| cast::echo_task(&format!("t{at}"), &[])).collect();
        for (from, to) in edges.into_iter().filter(|(from, to)| from > to) {
            let to = cast::task_id(&format!("t{to}"));
            if !tasks[from].depends_on.contains(&to) {
                tasks[from].depends_on.push(to);
            }
        }
        let mut scene = RunScene::from_submission(cast::fixed_plan_submission(tasks.clone()));
        let depends_on: Vec<_> = wanted.iter().map(|at| cast::task_id(&format!("t{at}"))).collect();
        let id = tasks[which].id.clone();
        let patch = TaskPatch { depends_on: Some(depends_on.clone()), ..TaskPatch::without_changes(id.clone()) };
        let is_another = tasks[which].depends_on != depends_on;
        tasks[which].depends_on = depends_on.clone();
        let decided = scene.decide_fact(&cast::command_fact("c1", CommandAction::Edit(Edit::Patch(patch))));
        match decided {
            Ok(_) => prop_assert!(is_another && !depends_on.contains(&id) && !is_cyclic_plan(&tasks)),
            Err(Refusal::Graph(GraphError::Cycle(ids))) => {
                prop_assert!(is_cyclic_plan(&tasks));
                for (from, to) in ids.iter().zip(ids.iter().cycle().skip(1)) {
                    let from = tasks.iter().find(|task| task.id == *from).unwrap();
                    prop_assert!(from.depends_on.contains(to), "{} -> {}", from.id, to);
                }
            }
            Err(Refusal::Graph(GraphError::SelfDependency(_))) => prop_assert!(depends_on.contains(&id)),
            Err(other) => prop_assert!(!is_another, "{}", other),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn graph_is_valid_if_petgraph_finds_no_mistake(tasks in arbitrary_tasks()) {
        let at = |id: &millrace_protocol::ids::TaskId| tasks.iter().position(|task| task.id == *id);
        let mut graph = DiGraph::<(), ()>::new();
        let nodes: Vec<_> = tasks.iter().map(|_| graph.add_node(())).collect();
        let (mut is_missing, mut is_twice, mut is_self) = (false, false, false);
        for (from, task) in tasks.iter().enumerate() {
            let unique: BTreeSet<_> = task.depends_on.iter().collect();
            is_twice |= unique.len() < task.depends_on.len();
            for to in unique {
                match at(to) {
                    Some(to) => {
                        is_self |= to == from;
                        graph.add_edge(nodes[from], nodes[to], ());
                    }
                    None => is_missing = true,
                }
            }
        }
        let is_cyclic = petgraph::algo::is_cyclic_directed(&graph);
        match check_new_tasks(&Plan::default(), &tasks) {
            Ok(()) => prop_assert!(!is_missing && !is_twice && !is_self && !is_cyclic),
            Err(GraphError::Cycle(ids)) => {
                prop_assert!(is_cyclic && !is_missing && !is_twice && !is_self);
                prop_assert!(ids.len() > 1);
                for (from, to) in ids.iter().zip(ids.iter().cycle().skip(1)) {
                    prop_assert!(tasks[at(from).unwrap()].depends_on.contains(to), "{} -> {}", from, to);
                }
                prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
            }
            Err(GraphError::SelfDependency(_)) => prop_assert!(is_self),
            Err(GraphError::MissingDependency { .. }) => prop_assert!(is_missing),
            Err(GraphError::DuplicateDependency { .. }) => prop_assert!(is_twice),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
