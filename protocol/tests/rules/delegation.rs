//! Children: they are added, end and are cancelled with their parents, and stay within the parents' reservations.

use millrace_protocol::child::{Delegation, MAX_CHILD_DEPTH, MAX_CHILDREN, ParentTask, TaskEnd};
use millrace_protocol::ids::TaskId;
use millrace_protocol::overrides::{AgentOverrides, PermissionRules};
use millrace_protocol::plan::{
    Budget, CommandAction, Edit, EndReason, Event, Fact, OnFailedDependency, OverdueInput, Refusal,
    ResourceAmounts, ResourceKind, Submission, TaskEvent, TaskPatch, TaskSpec, TaskState, Work,
};
use millrace_protocol::result::{ErrorKind, TaskError, Usage};
use millrace_protocol::wait::WaitEnd;
use millrace_protocol::wire::InlineOrStoredBytes;

use crate::cast;
use crate::scene::RunScene;

fn id(text: &str) -> TaskId {
    cast::task_id(text)
}

fn child(name: &str) -> TaskSpec {
    let mut spec = cast::echo_task(name, &[]);
    spec.limits.max_attempts = 1;
    spec
}

/// A run whose task `p` is running.
fn running_parent(submission: Submission) -> RunScene {
    let mut scene = RunScene::from_submission(submission);
    scene.claim_task(&id("p"), "w1");
    scene
}

fn plain_parent() -> RunScene {
    running_parent(cast::fixed_plan_submission(vec![cast::echo_task("p", &[])]))
}

fn delegate(scene: &mut RunScene, parent: &str, children: &[&str]) {
    let attempt = scene.plan.task(&id(parent)).unwrap().attempt;
    let children = children.iter().map(|name| child(name)).collect();
    scene.decide_fact(&cast::delegated_fact(&id(parent), attempt, "w1", children)).unwrap();
}

fn state(scene: &RunScene, task: &str) -> TaskState {
    scene.plan.task(&id(task)).unwrap().state()
}

fn fail(scene: &mut RunScene, task: &str) {
    scene.claim_task(&id(task), "w2");
    let error = TaskError {
        produced: Some("half of it".into()),
        ..cast::task_error(ErrorKind::Tool, "the tool broke")
    };
    scene.decide_fact(&cast::attempt_ended_fact(&id(task), 1, "w2", Err(error))).unwrap();
}

fn finish(scene: &mut RunScene, task: &str) {
    scene.claim_task(&id(task), "w2");
    let attempt = scene.plan.task(&id(task)).unwrap().attempt;
    scene
        .decide_fact(&cast::attempt_ended_fact(&id(task), attempt, "w2", Ok(cast::finished_result(9))))
        .unwrap();
}

/// The ends that the parent has received, by child.
fn received_ends(scene: &RunScene, parent: &str) -> Vec<(String, TaskEnd)> {
    let waits = &scene.plan.task(&id(parent)).unwrap().current_attempt().unwrap().waits;
    let ended = waits.iter().filter_map(|wait| match &wait.end {
        Some(WaitEnd::TasksEnded(ended)) => Some(ended),
        Some(
            WaitEnd::TimeReached
            | WaitEnd::Signalled { .. }
            | WaitEnd::Answered { .. }
            | WaitEnd::Expired
            | WaitEnd::Withdrawn,
        )
        | None => None,
    });
    ended.flatten().map(|ended| (ended.task.to_string(), ended.end.clone())).collect()
}

#[test]
fn parent_wakes_with_all_ends_when_the_last_child_has_ended() {
    let mut scene = plain_parent();
    delegate(&mut scene, "p", &["a", "b", "c"]);
    assert_eq!(state(&scene, "p"), TaskState::Waiting);
    finish(&mut scene, "a");
    fail(&mut scene, "b");
    assert_eq!(state(&scene, "p"), TaskState::Waiting, "one child is open");
    scene.claim_task(&id("c"), "w3");
    scene.now = cast::time_after(scene.now, 1_801);
    for overdue in scene.overdue_inputs_now() {
        scene.decide_overdue_input(&overdue).unwrap();
    }
    assert_eq!(state(&scene, "p"), TaskState::Ready);
    let ends = received_ends(&scene, "p");
    assert!(matches!(&ends[0], (name, TaskEnd::Completed { .. }) if name == "a"), "{ends:?}");
    assert!(
        matches!(&ends[1].1, TaskEnd::Failed { kind: Some(ErrorKind::Tool), produced: Some(text), .. } if text == "half of it"),
        "{ends:?}"
    );
    assert!(matches!(&ends[2].1, TaskEnd::TimedOut { .. }), "{ends:?}");
    finish(&mut scene, "p");
    let end = scene.plan.run.end.clone().unwrap();
    assert_eq!(
        (end.reason, end.deliverable.unwrap().0),
        (EndReason::Completed, id("p")),
        "lost children are no loss"
    );
}

#[test]
fn bad_child_is_refused_alone() {
    let mut scene = plain_parent();
    let mut bad = child("bad");
    bad.capability = cast::capability_name("critic");
    let taken = child("p");
    scene.decide_fact(&cast::delegated_fact(&id("p"), 1, "w1", vec![bad, taken, child("good")])).unwrap();
    assert_eq!(state(&scene, "p"), TaskState::Waiting);
    let ends = received_ends(&scene, "p");
    assert!(
        ends.iter().all(|(_, end)| matches!(end, TaskEnd::Refused { .. })) && ends.len() == 2,
        "{ends:?}"
    );
    finish(&mut scene, "good");
    assert_eq!(state(&scene, "p"), TaskState::Ready);
}

#[test]
fn attempt_with_only_bad_children_continues_at_once() {
    let mut scene = plain_parent();
    let mut bad = child("bad");
    bad.objective.clear();
    scene.decide_fact(&cast::delegated_fact(&id("p"), 1, "w1", vec![bad])).unwrap();
    assert_eq!(state(&scene, "p"), TaskState::Ready);
}

#[test]
fn depth_and_number_are_bounded() {
    let mut scene = plain_parent();
    let mut parent = "p".to_owned();
    for depth in 1..=MAX_CHILD_DEPTH {
        let name = format!("d{depth}");
        delegate(&mut scene, &parent, &[&name]);
        scene.claim_task(&id(&name), "w1");
        assert_eq!(scene.plan.task(&id(&name)).unwrap().spec.parent.as_ref().unwrap().depth, depth);
        parent = name;
    }
    delegate(&mut scene, &parent, &["deeper"]);
    let ends = received_ends(&scene, &parent);
    assert!(
        matches!(&ends[0].1, TaskEnd::Refused { reason } if reason.contains("at most 3 deep")),
        "{ends:?}"
    );

    let mut scene = plain_parent();
    let names: Vec<String> = (0..MAX_CHILDREN + 2).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    delegate(&mut scene, "p", &names);
    assert_eq!(scene.plan.tasks().len(), MAX_CHILDREN as usize + 1);
    assert_eq!(received_ends(&scene, "p").len(), 2);
}

#[test]
fn repeated_delegation_adds_nothing() {
    let mut scene = plain_parent();
    let delegation = Delegation { children: vec![child("a")], ..Delegation::default() };
    let fact = Fact::Delegated { task: id("p"), attempt: 1, worker: cast::worker_id("w1"), delegation };
    scene.decide_fact(&fact).unwrap();
    let before = scene.plan.clone();
    assert!(matches!(scene.decide_fact(&fact), Err(Refusal::WrongMoment(_))));
    assert_eq!(scene.plan.tasks(), before.tasks());
    delegate(&mut scene, "p", &["a"]);
    assert_eq!(scene.plan.tasks().len(), 2, "the wait is for the task that runs in the background");
}

/// However the attempt of the parent ends, its open children are cancelled, and theirs with them.
#[test]
fn children_end_with_their_parents_attempt() {
    type End = fn(&mut RunScene);
    let ends: [(&str, End); 5] = [
        ("cancelled", |scene| {
            let cancel = CommandAction::CancelTask { task: id("p"), reason: "enough".into() };
            scene.decide_fact(&cast::command_fact("c", cancel)).unwrap();
        }),
        ("completed", |scene| {
            let ended = cast::attempt_ended_fact(&id("p"), 1, "w1", Ok(cast::finished_result(9)));
            scene.decide_fact(&ended).unwrap();
        }),
        ("failed attempt", |scene| {
            let error = cast::task_error(ErrorKind::Tool, "broken");
            scene.decide_fact(&cast::attempt_ended_fact(&id("p"), 1, "w1", Err(error))).unwrap();
        }),
        ("timed out", |scene| {
            scene.now = cast::time_after(scene.now, 1_801);
            for overdue in scene.overdue_inputs_now() {
                let is_parents =
                    matches!(&overdue, OverdueInput::Clock(Work::Task { task, .. }, _) if *task == id("p"));
                if is_parents {
                    scene.decide_overdue_input(&overdue).unwrap();
                }
            }
        }),
        ("cancelled run", |scene| {
            let cancel = CommandAction::CancelRun { reason: "enough".into() };
            scene.decide_fact(&cast::command_fact("c", cancel)).unwrap();
        }),
    ];
    for (how, end) in ends {
        let mut scene = plain_parent();
        let delegation = Delegation { children: vec![child("a"), child("b")], ..Delegation::default() };
        let worker = cast::worker_id("w1");
        scene.decide_fact(&Fact::Delegated { task: id("p"), attempt: 1, worker, delegation }).unwrap();
        scene.claim_task(&id("a"), "w2");
        delegate(&mut scene, "a", &["grandchild"]);
        end(&mut scene);
        for task in ["a", "b", "grandchild"] {
            assert_eq!(state(&scene, task), TaskState::Cancelled, "{how}: {task}");
        }
    }
}

#[test]
fn parent_cancels_and_instructs_its_own_children_only() {
    let mut scene = running_parent(cast::fixed_plan_submission(vec![
        cast::echo_task("p", &[]),
        cast::echo_task("other", &[]),
    ]));
    let change =
        |delegation| Fact::Delegated { task: id("p"), attempt: 1, worker: cast::worker_id("w1"), delegation };
    let mut first = child("a");
    first.limits.max_attempts = 2;
    scene
        .decide_fact(&change(Delegation { children: vec![first, child("b")], ..Delegation::default() }))
        .unwrap();
    let cancels = vec![(id("b"), "not needed".into()), (id("other"), "not mine".into())];
    let messages = vec![(id("a"), "use metric units".into()), (id("other"), "not mine".into())];
    scene.decide_fact(&change(Delegation { cancels, messages, ..Delegation::default() })).unwrap();
    assert_eq!((state(&scene, "b"), state(&scene, "other")), (TaskState::Cancelled, TaskState::Ready));
    let reason = scene.plan.task(&id("b")).unwrap().end_reason().unwrap().to_owned();
    assert_eq!(reason, "task p cancelled it: not needed");
    assert_eq!(scene.plan.task(&id("a")).unwrap().instructions, [(2, "use metric units".to_owned())]);
}

#[test]
fn first_of_any_ends_the_wait_and_a_limit_ends_it_without_one() {
    let mut scene = plain_parent();
    let wait = cast::tasks_wait("k", &["a", "b"], true, None);
    let children = vec![child("a"), child("b")];
    let worker = cast::worker_id("w1");
    scene
        .decide_fact(&Fact::Parked { task: id("p"), attempt: 1, worker, waits: vec![wait], children })
        .unwrap();
    finish(&mut scene, "b");
    assert_eq!(state(&scene, "p"), TaskState::Ready);
    assert_eq!(received_ends(&scene, "p").len(), 1);

    scene.claim_task(&id("p"), "w1");
    let wait = cast::tasks_wait("l", &["a"], false, Some(60));
    scene.decide_fact(&cast::parked_fact(&id("p"), 1, "w1", vec![wait])).unwrap();
    scene.now = cast::time_after(cast::test_start_time(), 61);
    scene.decide_overdue_input(&OverdueInput::WaitTime(id("p"))).unwrap();
    assert_eq!(state(&scene, "p"), TaskState::Ready, "the limit has passed");
    assert_eq!(state(&scene, "a"), TaskState::Ready, "the child goes on");
}

#[test]
fn users_and_planners_can_not_make_children_part_of_the_plan() {
    let mut scene = plain_parent();
    delegate(&mut scene, "p", &["a"]);
    let mut edit = |edit| scene.decide_fact(&cast::command_fact("c", CommandAction::Edit(edit)));
    let mut with_parent = cast::echo_task("x", &[]);
    with_parent.parent = Some(ParentTask::of_attempt(id("p"), 1));
    assert!(
        matches!(edit(Edit::Add(vec![with_parent])), Err(Refusal::Unusable(why)) if why.contains("fields of a delegated task"))
    );
    let mut with_overrides = cast::echo_task("x", &[]);
    with_overrides.overrides = Some(Box::default());
    assert!(edit(Edit::Add(vec![with_overrides])).is_err());
    let dependent = cast::echo_task("x", &["a"]);
    assert!(
        matches!(edit(Edit::Add(vec![dependent])), Err(Refusal::Unusable(why)) if why.contains("depend on that task instead"))
    );
    assert!(matches!(edit(Edit::MarkFinal { task: id("a") }), Err(Refusal::Unusable(_))));
    let patch = TaskPatch { objective: Some("else".into()), ..TaskPatch::without_changes(id("a")) };
    edit(Edit::Patch(patch.clone())).unwrap();
    finish(&mut scene, "a");
    let mut edit = |edit| scene.decide_fact(&cast::command_fact("d", CommandAction::Edit(edit)));
    let retry = edit(Edit::Retry { task: id("a"), feedback: None, changes: None });
    assert!(
        matches!(&retry, Err(Refusal::WrongState { what, .. }) if what.contains("has its end already")),
        "{retry:?}"
    );
    assert!(edit(Edit::Patch(patch)).is_err());

    let mut submitted = cast::echo_task("p", &[]);
    submitted.parent = Some(ParentTask::of_attempt(id("q"), 1));
    let scene = RunScene::from_submission(cast::fixed_plan_submission(vec![submitted]));
    assert!(scene.plan.run.end.unwrap().detail.contains("fields of a delegated task"));
}

fn restricted(name: &str, tools: &[&str]) -> TaskSpec {
    let tools = Some(tools.iter().map(|tool| (*tool).to_owned()).collect());
    let overrides = AgentOverrides {
        tools,
        model: Some("openai:small".into()),
        turns: Some(3),
        ..AgentOverrides::default()
    };
    TaskSpec { overrides: Some(Box::new(overrides)), ..child(name) }
}

/// A task below a restricted one has no more than it: with overrides of its own, and without any.
#[test]
fn restrictions_of_a_parent_hold_for_all_tasks_below_it() {
    let mut scene = plain_parent();
    let first = restricted("a", &["ls", "grep", "task"]);
    scene.decide_fact(&cast::delegated_fact(&id("p"), 1, "w1", vec![first, child("free")])).unwrap();
    scene.claim_task(&id("a"), "w1");
    let below = vec![child("b"), restricted("c", &["grep", "execute"])];
    scene.decide_fact(&cast::delegated_fact(&id("a"), 1, "w1", below)).unwrap();
    scene.claim_task(&id("b"), "w1");
    delegate(&mut scene, "b", &["d"]);
    let tools = |task: &str| {
        let overrides = scene.plan.task(&id(task)).unwrap().spec.overrides.clone()?;
        overrides.tools.map(|tools| tools.into_iter().collect::<Vec<_>>().join(" "))
    };
    assert_eq!(tools("free"), None);
    assert_eq!(["a", "b", "d"].map(&tools), ["grep ls task"; 3].map(|names| Some(names.to_owned())));
    assert_eq!(tools("c"), Some("grep".into()));
    let of_b = scene.plan.task(&id("b")).unwrap().spec.overrides.clone().unwrap();
    assert_eq!(
        (of_b.model, of_b.turns),
        (None, None),
        "neither the model nor the limits are those of its parent"
    );
}

fn fork(name: &str) -> TaskSpec {
    let conversation = InlineOrStoredBytes::Inline(b"{}".to_vec().into());
    TaskSpec { fork: Some(Box::new(conversation)), ..child(name) }
}

/// A fork has the capability, the model and the restrictions of the attempt that it continues, and delegates nothing.
#[test]
fn fork_is_like_its_parent_and_delegates_nothing() {
    let mut scene = plain_parent();
    scene.decide_fact(&cast::delegated_fact(&id("p"), 1, "w1", vec![restricted("a", &["task"])])).unwrap();
    scene.claim_task(&id("a"), "w1");
    let mut other = fork("other");
    other.capability = cast::capability_name("research");
    scene.decide_fact(&cast::delegated_fact(&id("a"), 1, "w1", vec![fork("f"), other])).unwrap();
    let ends = received_ends(&scene, "a");
    assert!(
        matches!(&ends[0].1, TaskEnd::Refused { reason } if reason.contains("the capability of its parent")),
        "{ends:?}"
    );
    let overrides = scene.plan.task(&id("f")).unwrap().spec.overrides.clone().unwrap();
    assert_eq!((overrides.model.as_deref(), overrides.turns), (Some("openai:small"), None));
    let tools: Vec<String> = overrides.tools.unwrap().into_iter().collect();
    assert_eq!(tools, ["task"]);
    let patch = TaskPatch {
        capability: Some(cast::capability_name("research")),
        ..TaskPatch::without_changes(id("f"))
    };
    let patched = scene.decide_fact(&cast::command_fact("c", CommandAction::Edit(Edit::Patch(patch))));
    assert!(
        matches!(&patched, Err(Refusal::Unusable(why)) if why.contains("a fork or shared agent keeps")),
        "{patched:?}"
    );
    scene.claim_task(&id("f"), "w2");
    delegate(&mut scene, "f", &["g"]);
    let ends = received_ends(&scene, "f");
    assert!(
        matches!(&ends[0].1, TaskEnd::Refused { reason } if reason == "a fork can't delegate"),
        "{ends:?}"
    );
    let submitted = cast::fixed_plan_submission(vec![fork("p")]);
    assert!(RunScene::from_submission(submitted).plan.run.end.is_some(), "no user submits a fork");
}

fn shared(name: &str, capability: &str) -> TaskSpec {
    TaskSpec { is_shared: true, capability: cast::capability_name(capability), ..child(name) }
}

fn delegate_tasks(scene: &mut RunScene, parent: &str, children: Vec<TaskSpec>) {
    scene.decide_fact(&cast::delegated_fact(&id(parent), 1, "w1", children)).unwrap();
}

/// Two parents ask the same shared agent, one of them twice at once: one call runs at a time, however the one before has ended.
#[test]
fn calls_of_a_shared_agent_run_one_after_the_other() {
    let tasks = vec![cast::echo_task("p", &[]), cast::echo_task("q", &[])];
    let mut scene = running_parent(cast::fixed_plan_submission(tasks));
    scene.claim_task(&id("q"), "w1");
    delegate_tasks(&mut scene, "p", vec![shared("a", "lib"), shared("b", "lib"), shared("other", "x")]);
    delegate_tasks(&mut scene, "q", vec![shared("c", "lib"), shared("d", "lib")]);
    let states = |scene: &RunScene| ["a", "b", "c", "d"].map(|task| state(scene, task));
    let (ready, pending) = (TaskState::Ready, TaskState::Pending);
    assert_eq!((states(&scene), state(&scene, "other")), ([ready, pending, pending, pending], ready));
    let patch = TaskPatch {
        on_failed_dependency: Some(OnFailedDependency::Cancel),
        ..TaskPatch::without_changes(id("b"))
    };
    let patched = scene.decide_fact(&cast::command_fact("e", CommandAction::Edit(Edit::Patch(patch))));
    assert!(matches!(&patched, Err(Refusal::Unusable(why)) if why.contains("however")), "{patched:?}");
    let cancel = CommandAction::CancelTask { task: id("c"), reason: "enough".into() };
    scene.decide_fact(&cast::command_fact("k", cancel)).unwrap();
    assert_eq!(states(&scene), [ready, pending, TaskState::Cancelled, pending], "one is open before each");
    fail(&mut scene, "a");
    assert_eq!(states(&scene), [TaskState::Failed, ready, TaskState::Cancelled, pending]);
    finish(&mut scene, "b");
    assert_eq!(state(&scene, "d"), ready, "the child of another parent");
    finish(&mut scene, "other");
    assert_eq!(state(&scene, "p"), ready, "it has all ends");
    finish(&mut scene, "p");
    finish(&mut scene, "d");
    finish(&mut scene, "q");
    assert_eq!(scene.plan.run.end.as_ref().unwrap().reason, EndReason::Completed);
}

/// A call with restrictions continues no conversation without them, whether they are its own or those of its parent.
#[test]
fn calls_with_different_restrictions_share_no_conversation() {
    let mut scene = plain_parent();
    let tools = |spec: TaskSpec, names: &[&str]| {
        let tools = Some(names.iter().map(|name| (*name).to_owned()).collect());
        TaskSpec { overrides: Some(Box::new(AgentOverrides { tools, ..AgentOverrides::default() })), ..spec }
    };
    let denied = AgentOverrides {
        permissions: vec![PermissionRules(Vec::new())],
        model: Some("openai:small".into()),
        ..AgentOverrides::default()
    };
    let denied = |name: &str| TaskSpec { overrides: Some(Box::new(denied.clone())), ..shared(name, "lib") };
    let other_model = AgentOverrides { model: Some("openai:small".into()), ..AgentOverrides::default() };
    let model = TaskSpec { overrides: Some(Box::new(other_model)), ..shared("model", "lib") };
    let children = vec![
        shared("free", "lib"),
        tools(shared("grep", "lib"), &["grep"]),
        denied("denied"),
        model,
        tools(shared("grep-again", "lib"), &["grep"]),
        denied("denied-again"),
        tools(child("lead"), &["grep", "task"]),
    ];
    delegate_tasks(&mut scene, "p", children);
    scene.claim_task(&id("lead"), "w1");
    delegate_tasks(
        &mut scene,
        "lead",
        vec![shared("inherited", "lib"), tools(shared("own", "lib"), &["grep"])],
    );
    let before = |task: &str| {
        let depends_on = &scene.plan.task(&id(task)).unwrap().spec.depends_on;
        depends_on.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    for first in ["free", "grep", "denied", "inherited"] {
        assert_eq!((before(first).as_str(), state(&scene, first)), ("", TaskState::Ready), "{first}");
    }
    let waiting = ["model", "grep-again", "denied-again", "own"].map(before);
    assert_eq!(waiting, ["free", "grep", "denied", "grep grep-again"]);
}

/// A worker cancels calls and asks again in one message: the new call waits for the calls that stay open alone, and a call that
/// is cancelled twice ends once.
#[test]
fn call_that_replaces_a_cancelled_one_does_not_wait_for_it() {
    let mut scene = plain_parent();
    let change = |children, cancels| Fact::Delegated {
        task: id("p"),
        attempt: 1,
        worker: cast::worker_id("w1"),
        delegation: Delegation { children, cancels, ..Delegation::default() },
    };
    let cancel = |name: &str| (id(name), "not needed".to_owned());
    let states = |scene: &RunScene| ["a", "b", "c", "d"].map(|task| state(scene, task));
    let (ready, pending, cancelled) = (TaskState::Ready, TaskState::Pending, TaskState::Cancelled);
    let calls = ["a", "b", "c", "d"].map(|name| shared(name, "lib")).to_vec();
    scene.decide_fact(&change(calls, Vec::new())).unwrap();
    scene.decide_fact(&change(vec![shared("e", "lib")], vec![cancel("b"), cancel("b")])).unwrap();
    assert_eq!(states(&scene), [ready, cancelled, pending, pending]);
    let all = ["a", "c", "d", "e"].map(cancel).to_vec();
    scene.decide_fact(&change(Vec::new(), all[1..3].to_vec())).unwrap();
    assert_eq!(state(&scene, "e"), pending, "a is open before it");
    scene.decide_fact(&change(vec![shared("f", "lib")], all)).unwrap();
    assert_eq!((state(&scene, "e"), state(&scene, "f")), (cancelled, ready));
}

/// The end of an attempt cancels its queued calls; the calls of other parents continue.
#[test]
fn queued_calls_end_with_their_parents() {
    let tasks = vec![cast::echo_task("p", &[]), cast::echo_task("q", &[])];
    let mut scene = running_parent(cast::fixed_plan_submission(tasks));
    scene.claim_task(&id("q"), "w1");
    delegate_tasks(&mut scene, "p", vec![shared("a", "lib"), shared("b", "lib")]);
    delegate_tasks(&mut scene, "q", vec![shared("c", "lib")]);
    let cancel = CommandAction::CancelTask { task: id("p"), reason: "enough".into() };
    scene.decide_fact(&cast::command_fact("k", cancel)).unwrap();
    assert_eq!(["a", "b"].map(|task| state(&scene, task)), [TaskState::Cancelled; 2]);
    assert_eq!(state(&scene, "c"), TaskState::Ready);
}

/// Shared agents that ask each other would wait for each other for ever.
#[test]
fn shared_agents_can_not_wait_for_themselves() {
    let tasks = vec![cast::echo_task("p", &[]), cast::echo_task("q", &[])];
    let mut scene = running_parent(cast::fixed_plan_submission(tasks));
    scene.claim_task(&id("q"), "w1");
    delegate_tasks(&mut scene, "p", vec![shared("a", "lib")]);
    delegate_tasks(&mut scene, "q", vec![shared("b", "log")]);
    scene.claim_task(&id("a"), "w1");
    scene.claim_task(&id("b"), "w1");
    delegate_tasks(&mut scene, "a", vec![shared("own", "lib")]);
    let ends = received_ends(&scene, "a");
    assert!(
        matches!(&ends[0].1, TaskEnd::Refused { reason } if reason.contains("wait for itself")),
        "{ends:?}"
    );
    scene.claim_task(&id("a"), "w1");
    delegate_tasks(&mut scene, "a", vec![shared("a-log", "log")]);
    assert_eq!(state(&scene, "a-log"), TaskState::Pending, "it waits for b");
    delegate_tasks(&mut scene, "b", vec![shared("b-lib", "lib")]);
    let ends = received_ends(&scene, "b");
    assert!(
        matches!(&ends[0].1, TaskEnd::Refused { reason } if reason.contains("wait for itself")),
        "{ends:?}"
    );
    assert_eq!(state(&scene, "b"), TaskState::Ready);
}

#[test]
fn too_many_overrides_are_refused() {
    let mut scene = plain_parent();
    let names: Vec<String> = (0..300).map(|number| format!("t{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    scene.decide_fact(&cast::delegated_fact(&id("p"), 1, "w1", vec![restricted("a", &names)])).unwrap();
    let ends = received_ends(&scene, "p");
    assert!(matches!(&ends[0].1, TaskEnd::Refused { reason } if reason.contains("overrides")), "{ends:?}");
}

/// The first failure that ends a run is not that of a child, and the planner is not asked because of one.
#[test]
fn lost_child_concerns_its_parent_alone() {
    let mut submission = cast::fixed_plan_submission(vec![cast::echo_task("p", &[])]);
    submission.fail_fast = true;
    let mut scene = running_parent(submission);
    delegate(&mut scene, "p", &["a"]);
    fail(&mut scene, "a");
    assert_eq!(state(&scene, "p"), TaskState::Ready);
    assert!(scene.plan.is_live() && scene.plan.planning.triggers.is_empty());
}

fn tokens(amount: u64) -> ResourceAmounts {
    ResourceAmounts { tokens: Some(amount), ..ResourceAmounts::default() }
}

/// The parent holds all that the run has. Its children run nevertheless, and all of them use no more than it holds.
#[test]
fn child_uses_the_reservation_of_its_parent() {
    let budget =
        Budget { amounts: tokens(1_000), attempt: tokens(1_000), final_percent: 0, ..Budget::default() };
    let mut submission = cast::fixed_plan_submission(vec![cast::echo_task("p", &[])]);
    submission.budget = budget;
    let mut scene = running_parent(submission);
    let reserved = |scene: &RunScene| scene.plan.budget.reserved.total_reserved(ResourceKind::Tokens);
    assert_eq!(reserved(&scene), 1_000);
    let [mut a, mut b] = [child("a"), child("b")];
    (a.budget, b.budget) = (tokens(400), tokens(900));
    scene.decide_fact(&cast::delegated_fact(&id("p"), 1, "w1", vec![a, b])).unwrap();
    let budget_of = |scene: &RunScene, task: &str| scene.plan.task(&id(task)).unwrap().spec.budget.tokens;
    assert_eq!((budget_of(&scene, "a"), budget_of(&scene, "b")), (Some(400), Some(600)), "what is left");
    assert_eq!(reserved(&scene), 1_000, "nothing is reserved twice");
    scene.claim_task(&id("a"), "w2");
    let [mut grandchild, _] = [child("g"), child("h")];
    grandchild.budget = tokens(150);
    scene.decide_fact(&cast::delegated_fact(&id("a"), 1, "w2", vec![grandchild])).unwrap();
    let spend = |scene: &mut RunScene, task: &str, amount: u64| {
        scene.claim_task(&id(task), "w3");
        let usage = Usage { input_tokens: amount, ..Usage::default() };
        let result = millrace_protocol::plan::AttemptResult { usage, ..cast::finished_result(9) };
        scene.decide_fact(&cast::attempt_ended_fact(&id(task), 1, "w3", Ok(result))).unwrap();
    };
    spend(&mut scene, "g", 100);
    assert_eq!(reserved(&scene), 900, "usage is taken out of the reservation");
    spend(&mut scene, "a", 50);
    spend(&mut scene, "b", 200);
    let parent = scene.plan.task(&id("p")).unwrap();
    assert_eq!(scene.plan.usage_with_children(parent).input_tokens, 350);
    assert_eq!((state(&scene, "p"), reserved(&scene)), (TaskState::Ready, 650));
    spend(&mut scene, "p", 600);
    assert_eq!((reserved(&scene), scene.plan.budget.spend.total.input_tokens), (0, 950));
    assert_eq!(scene.plan.run.end.as_ref().unwrap().reason, EndReason::Completed);
}

/// A parent that is given up counts as having used all that it held, and no more.
#[test]
fn parent_that_is_given_up_is_charged_once() {
    let budget =
        Budget { amounts: tokens(1_000), attempt: tokens(1_000), final_percent: 0, ..Budget::default() };
    let mut submission = cast::fixed_plan_submission(vec![cast::echo_task("p", &[])]);
    submission.budget = budget;
    let mut scene = running_parent(submission);
    let mut only = child("a");
    only.budget = tokens(400);
    scene.decide_fact(&cast::delegated_fact(&id("p"), 1, "w1", vec![only])).unwrap();
    scene.claim_task(&id("a"), "w2");
    let cancel = CommandAction::CancelTask { task: id("p"), reason: "enough".into() };
    scene.decide_fact(&cast::command_fact("c", cancel)).unwrap();
    let is_cancelled = |event: &&Event| matches!(event, Event::Task(TaskEvent::Cancelled { .. }));
    assert_eq!(scene.last_events().iter().filter(is_cancelled).count(), 2);
    assert_eq!(ResourceKind::Tokens.amount_used(&scene.plan.budget.spend.total), 1_000);
}
