//! Whether a set of tasks is a plan: each mistake with its words, and random graphs against petgraph.

use std::collections::BTreeSet;
use std::time::Duration;

use millrace_protocol::plan::{
    Control, Edit, GraphError, Limits, MAX_OBJECTIVE, Patch, Plan, Refusal, TaskSpec, check,
};
use petgraph::graph::DiGraph;
use proptest::prelude::*;
use serde_json::json;

use crate::cast;
use crate::scene::Scene;

fn with_limits(limits: Limits) -> Vec<TaskSpec> {
    vec![TaskSpec { limits, ..cast::task("a", &[]) }]
}

fn says(tasks: &[TaskSpec]) -> String {
    match check(&Plan::default(), tasks) {
        Ok(()) => "ok".into(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_mistake_is_named() {
    let task = cast::task;
    let second = Duration::from_secs(1);
    let final_task = |id| TaskSpec { is_final: true, ..task(id, &[]) };
    let cases: Vec<(Vec<TaskSpec>, &str)> = vec![
        (vec![], "the plan has no tasks"),
        (
            vec![task("a", &[]), task("b", &[]), task("a", &[])],
            "task a is there twice; every task needs an id of its own",
        ),
        (vec![task("a", &["b"])], "task a depends on b, which is not in the plan"),
        (vec![task("a", &["a"])], "task a depends on itself"),
        (vec![task("a", &[]), task("b", &["a", "a"])], "task b names its dependency a twice"),
        (vec![task("a", &["b"]), task("b", &["a"])], "these tasks wait for each other in a circle: a → b"),
        (
            vec![task("before", &["x"]), task("x", &["y"]), task("y", &["z"]), task("z", &["x"])],
            "these tasks wait for each other in a circle: x → y → z",
        ),
        (vec![final_task("a"), final_task("b")], "tasks a and b are both final; at most one may be"),
        (vec![TaskSpec { objective: " \n".into(), ..task("a", &[]) }], "task a has an empty objective"),
        (
            vec![TaskSpec { objective: "x".repeat(MAX_OBJECTIVE + 1), ..task("a", &[]) }],
            "the objective of task a has 65537 bytes; at most 65536 are allowed",
        ),
        (
            vec![TaskSpec { capability: cast::capability("critic"), ..task("a", &[]) }],
            "task a: the capability critic is the cluster's own and can't be given a task",
        ),
        (
            vec![TaskSpec { capability: cast::capability("planner"), ..task("a", &[]) }],
            "task a: the capability planner is the cluster's own and can't be given a task",
        ),
        (
            with_limits(Limits { max_attempts: 0, ..Limits::default() }),
            "task a: max_attempts must be a whole number from 1 to 100",
        ),
        (
            with_limits(Limits { max_attempts: 101, ..Limits::default() }),
            "task a: max_attempts must be a whole number from 1 to 100",
        ),
        (
            with_limits(Limits { queue_wait: Duration::ZERO, ..Limits::default() }),
            "task a: queue_wait must be more than 0 seconds",
        ),
        (
            with_limits(Limits { run_time: Duration::ZERO, ..Limits::default() }),
            "task a: run_time must be more than 0 seconds",
        ),
        (
            with_limits(Limits { silence: Duration::ZERO, ..Limits::default() }),
            "task a: silence must be more than 0 seconds",
        ),
        (
            with_limits(Limits { backoff: second * 367 * 86_400, ..Limits::default() }),
            "task a: each duration must be a year at most",
        ),
        (with_limits(Limits { backoff: Duration::ZERO, ..Limits::default() }), "ok"),
        (vec![task("c", &["a", "b"]), task("b", &["a"]), task("a", &[])], "ok"),
    ];
    for (tasks, expected) in cases {
        assert_eq!(says(&tasks), expected);
    }
}

#[test]
fn parameters_nested_deeper_than_the_log_can_carry_are_refused() {
    let nested = |depth| {
        let value = (0..depth)
            .fold(json!(1), |value, at| if at % 2 == 0 { json!([value]) } else { json!({ "v": value }) });
        vec![TaskSpec { parameters: [("p".to_owned(), value)].into(), ..cast::task("a", &[]) }]
    };
    assert_eq!(says(&nested(64)), "ok");
    assert_eq!(says(&nested(65)), "task a: parameters must be nested at most 64 deep");
    assert_eq!(says(&nested(900)), "task a: parameters must be nested at most 64 deep");
}

#[test]
fn new_tasks_may_build_on_those_of_the_plan_but_not_take_their_names_or_their_finality() {
    let old = vec![TaskSpec { is_final: true, ..cast::task("old", &[]) }];
    let plan = Scene::submitted(cast::submission(old)).plan;
    assert_eq!(check(&plan, &[]), Ok(()));
    assert_eq!(check(&plan, &[cast::task("new", &["old"])]), Ok(()));
    assert_eq!(check(&plan, &[cast::task("old", &[])]), Err(GraphError::DuplicateTask(cast::task_id("old"))));
    let final_too = TaskSpec { is_final: true, ..cast::task("new", &[]) };
    assert_eq!(
        check(&plan, &[final_too]),
        Err(GraphError::TwoFinal(cast::task_id("old"), cast::task_id("new")))
    );
}

#[test]
fn a_chain_of_a_hundred_thousand_tasks_named_backwards_is_checked_without_recursion() {
    let mut tasks: Vec<TaskSpec> = (1..100_000_u32)
        .rev()
        .map(|at| cast::task(&format!("t{at}"), &[&format!("t{}", at - 1)]))
        .chain([cast::task("t0", &[])])
        .collect();
    assert_eq!(check(&Plan::default(), &tasks), Ok(()));
    tasks.last_mut().unwrap().depends_on = vec![cast::task_id("t99999")];
    match check(&Plan::default(), &tasks) {
        Err(GraphError::Cycle(ids)) => assert_eq!(ids.len(), 100_000),
        other => panic!("{other:?}"),
    }
}

/// Tasks `t0`…, and their edges, which may be anything: to themselves, twice, to tasks that are not there.
fn any_tasks() -> impl Strategy<Value = Vec<TaskSpec>> {
    (1_usize..9)
        .prop_flat_map(|count| {
            // One edge in a few names a task that is not there.
            let edges = prop::collection::vec((0..count, 0..count + usize::from(count == 8)), 0..12);
            (Just(count), edges)
        })
        .prop_map(|(count, edges)| {
            let mut tasks: Vec<_> = (0..count).map(|at| cast::task(&format!("t{at}"), &[])).collect();
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
    fn a_changed_dependency_is_accepted_exactly_where_petgraph_finds_no_circle(
        edges in prop::collection::vec((0_usize..8, 0_usize..8), 0..14),
        which in 0_usize..8,
        wanted in prop::collection::btree_set(0_usize..8, 0..4),
    ) {
        // What depends on a task of a lower number is no circle.
        let mut tasks: Vec<_> = (0..8).map(|at| cast::task(&format!("t{at}"), &[])).collect();
        for (from, to) in edges.into_iter().filter(|(from, to)| from > to) {
            let to = cast::task_id(&format!("t{to}"));
            if !tasks[from].depends_on.contains(&to) {
                tasks[from].depends_on.push(to);
            }
        }
        let mut scene = Scene::submitted(cast::submission(tasks.clone()));
        let depends_on: Vec<_> = wanted.iter().map(|at| cast::task_id(&format!("t{at}"))).collect();
        let id = tasks[which].id.clone();
        let patch = Patch { depends_on: Some(depends_on.clone()), ..Patch::of(id.clone()) };
        let is_another = tasks[which].depends_on != depends_on;
        tasks[which].depends_on = depends_on.clone();
        let decided = scene.fact(&cast::command("c1", Control::Edit(Edit::Patch(patch))));
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
    fn a_graph_is_accepted_exactly_where_petgraph_finds_nothing_wrong(tasks in any_tasks()) {
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
        match check(&Plan::default(), &tasks) {
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
