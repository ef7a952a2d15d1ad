//! Every state of a task × every input: the resulting state, or the refusal. The golden file is `tests/table.txt`. Its
//! transitions are exactly those that the documentation of the plan lists.

use std::collections::BTreeSet;
use std::fmt::Write;

use millrace_protocol::child::Delegation;
use millrace_protocol::ids::{Lane, RunId, TaskId};
use millrace_protocol::plan::{
    AttemptClock, Budget, CapabilityRegistry, CommandAction, Edit, Event, Fact, JournalKey,
    OnFailedDependency, OverdueInput, Plan, PlanTime, Refusal, ReviewPolicy, RunEvent, StartEvent,
    StartEventExpiry, StartExpiryAction, Submission, TaskEvent, TaskLimits, TaskPatch, TaskSpec, TaskState,
    Work, apply,
};
use millrace_protocol::question::{Answer, AnswerScope, ExpiryAction};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::result::{CapabilityDescription, ErrorKind, ModelUsage, Usage};
use millrace_protocol::retention::{DeletionStep, deletion_step};
use millrace_protocol::wait::{ProviderStatus, Wait, WaitEnd};

use crate::scene::{RunScene, is_plan_unchanged};
use crate::{cast, golden, show};

/// Task `t` depends on `d`, and `z` on `t`; `t` has `max_attempts` attempts and possibly a review. Task `o` is independent,
/// so that the run continues whatever happens to `t`.
fn scene_with_task_t(max_attempts: u32, is_reviewed: bool) -> RunScene {
    scene_with_changed_task_t(max_attempts, is_reviewed, |_| ())
}

fn scene_with_changed_task_t(
    max_attempts: u32,
    is_reviewed: bool,
    change: impl FnOnce(&mut TaskSpec),
) -> RunScene {
    let mut task =
        if is_reviewed { cast::reviewed_echo_task("t", &["d"]) } else { cast::echo_task("t", &["d"]) };
    task.capability = cast::capability_name("search");
    task.limits = TaskLimits { max_attempts, ..TaskLimits::default() };
    task.on_failed_dependency = OnFailedDependency::Cancel;
    change(&mut task);
    let (before, behind, beside) =
        (cast::echo_task("d", &[]), cast::echo_task("z", &["t"]), cast::echo_task("o", &[]));
    // No situation takes that long, except those whose time limit has passed.
    let budget = Budget { wall_time: Some(std::time::Duration::from_secs(86_400)), ..Budget::default() };
    RunScene::from_submission(Submission {
        budget,
        ..cast::fixed_plan_submission(vec![before, task, behind, beside])
    })
}

fn task_t() -> TaskId {
    cast::task_id("t")
}

fn registry_with_all_capabilities() -> CapabilityRegistry {
    cast::registry_of_capabilities(&["echo", "search"])
}

fn registry_without_search() -> CapabilityRegistry {
    cast::registry_of_capabilities(&["echo"])
}

fn scene_with_t_ready(max_attempts: u32, is_reviewed: bool) -> RunScene {
    let mut scene = scene_with_task_t(max_attempts, is_reviewed);
    scene.claim_and_finish_task(&cast::task_id("d"), "w0");
    scene
}

fn scene_with_t_running(max_attempts: u32, is_reviewed: bool) -> RunScene {
    let mut scene = scene_with_t_ready(max_attempts, is_reviewed);
    scene.claim_task(&task_t(), "w1");
    scene
}

fn scene_with_t_parked(waits: Vec<Wait>) -> RunScene {
    let mut scene = scene_with_t_running(2, true);
    scene.decide_fact(&cast::parked_fact(&task_t(), 1, "w1", waits)).unwrap();
    scene
}

/// The attempt at `t` has a result that a person must judge.
fn scene_with_t_judged(max_attempts: u32) -> RunScene {
    let mut scene = scene_with_t_running(max_attempts, false);
    let mut result = cast::finished_result(5);
    result.review = cast::review_by_persons(&[""], None, ReviewPolicy::None);
    scene.decide_fact(&cast::attempt_ended_fact(&task_t(), 1, "w1", Ok(result))).unwrap();
    scene
}

/// The same, and a critic must judge it before; both must accept it.
fn scene_with_t_judged_after_critic() -> RunScene {
    let mut scene = scene_with_t_running(2, false);
    let mut result = cast::finished_result(5);
    result.review = cast::review_by_persons(&[""], None, ReviewPolicy::critic(Vec::new()));
    scene.decide_fact(&cast::attempt_ended_fact(&task_t(), 1, "w1", Ok(result))).unwrap();
    scene
}

/// `t` starts with the event `go`, which is awaited until 600 s after the start of the run.
fn scene_with_start_event() -> RunScene {
    let until = PlanTime::AfterStart(std::time::Duration::from_secs(600));
    let expiry = Some(StartEventExpiry { until, action: StartExpiryAction::FailTask });
    scene_with_changed_task_t(2, true, |task| {
        task.wait_for_event = Some(Box::new(StartEvent { name: "go".into(), expiry }));
    })
}

fn scene_with_t_before_start() -> RunScene {
    let mut scene = scene_with_start_event();
    scene.claim_and_finish_task(&cast::task_id("d"), "w0");
    scene
}

fn scene_with_t_in_review(max_attempts: u32) -> RunScene {
    let mut scene = scene_with_t_ready(max_attempts, true);
    scene.claim_and_finish_task(&task_t(), "w1");
    scene
}

fn scene_with_t_errored(max_attempts: u32, kind: ErrorKind) -> RunScene {
    let mut scene = scene_with_t_running(max_attempts, true);
    scene
        .decide_fact(&cast::attempt_ended_fact(&task_t(), 1, "w1", Err(cast::task_error(kind, "broken"))))
        .unwrap();
    scene
}

fn change_scene(mut scene: RunScene, change: impl FnOnce(&mut RunScene)) -> RunScene {
    change(&mut scene);
    scene
}

/// The situations: a name, and a run in which `t` is in that situation. Inputs lead to each of them.
fn named_situations() -> Vec<(&'static str, RunScene)> {
    let rejected = |scene: &mut RunScene| scene.finish_review(&task_t(), false);
    let lose = |scene: &mut RunScene| {
        scene.decide_registry_change(&registry_without_search()).unwrap();
    };
    vec![
        ("pending", scene_with_task_t(2, true)),
        ("ready", scene_with_t_ready(2, true)),
        ("ready, the last attempt", scene_with_t_ready(1, true)),
        ("running", scene_with_t_running(2, true)),
        ("running, the last attempt", scene_with_t_running(1, true)),
        ("running, without a review", scene_with_t_running(2, false)),
        (
            "running, waits for its provider",
            change_scene(scene_with_t_running(1, true), |scene| {
                let wait = ProviderStatus::Waiting(cast::provider_wait("busy"));
                scene.decide_fact(&Fact::Provider(JournalKey::Task(task_t(), 1), wait)).unwrap();
            }),
        ),
        ("waiting, for a time", scene_with_t_parked(vec![cast::time_wait("s", 600)])),
        (
            "waiting, for an approval",
            scene_with_t_parked(vec![cast::approval_wait("q", Some((600, ExpiryAction::FailTask)))]),
        ),
        ("waiting, for an event", scene_with_t_parked(vec![cast::event_wait("e", "go", Some(600))])),
        (
            "waiting, for a time and an event",
            scene_with_t_parked(vec![cast::time_wait("s", 600), cast::event_wait("e", "go", None)]),
        ),
        ("waiting, for the judgement of a person", scene_with_t_judged(2)),
        ("waiting, for the judgement of a person, the last attempt", scene_with_t_judged(1)),
        ("waiting, for the event of its start", scene_with_t_before_start()),
        ("needs_review", scene_with_t_in_review(2)),
        ("needs_review, by a critic and then a person", scene_with_t_judged_after_critic()),
        ("needs_review, the last attempt", scene_with_t_in_review(1)),
        (
            "needs_review, the last try",
            change_scene(scene_with_t_in_review(2), |scene| {
                for review in [1, 2] {
                    let lost = cast::task_error(ErrorKind::Model, "no critic");
                    scene.decide_fact(&cast::reviewed_fact(&task_t(), 1, review, "c1", Err(lost))).unwrap();
                    scene.now = cast::time_after(scene.now, 2);
                    scene.decide_overdue_input(&OverdueInput::RetryReview(task_t())).unwrap();
                }
            }),
        ),
        ("completed", change_scene(scene_with_t_in_review(2), |scene| scene.finish_review(&task_t(), true))),
        ("rerun", change_scene(scene_with_t_in_review(3), rejected)),
        ("rerun, the last attempt", change_scene(scene_with_t_in_review(2), rejected)),
        ("errored, awaits its next attempt", scene_with_t_errored(2, ErrorKind::Model)),
        ("errored, was pending, awaits its capability", change_scene(scene_with_task_t(2, true), lose)),
        ("errored, was ready, awaits its capability", change_scene(scene_with_t_ready(2, true), lose)),
        ("failed", scene_with_t_errored(2, ErrorKind::InvalidTask)),
        (
            "cancelled",
            change_scene(scene_with_t_running(2, true), |scene| {
                scene
                    .decide_fact(&cancel_command_fact(CommandAction::CancelTask {
                        task: task_t(),
                        reason: "enough".into(),
                    }))
                    .unwrap();
            }),
        ),
    ]
    .into_iter()
    .chain(later_named_situations())
    .collect()
}

/// Situations that result from edits, budgets and users.
fn later_named_situations() -> Vec<(&'static str, RunScene)> {
    let rejected = |scene: &mut RunScene| scene.finish_review(&task_t(), false);
    let mistaken = |scene: &mut RunScene| {
        scene.decide_registry_change(&registry_with_required_parameter()).unwrap();
    };
    let edited = |scene: &mut RunScene, edit: Edit| {
        scene.decide_fact(&cast::command_fact("c3", CommandAction::Edit(edit))).unwrap();
    };
    let done = || change_scene(scene_with_t_in_review(2), |scene| scene.finish_review(&task_t(), true));
    vec![
        ("pending, it starts with an event", scene_with_start_event()),
        (
            "failed, before its start",
            change_scene(scene_with_t_before_start(), |scene| {
                scene.now = cast::time_after(scene.now, 601);
                scene.decide_overdue_input(&OverdueInput::WaitTime(task_t())).unwrap();
            }),
        ),
        (
            "cancelled, before its start",
            change_scene(scene_with_t_before_start(), |scene| {
                let cancel = CommandAction::CancelTask { task: task_t(), reason: "enough".into() };
                scene.decide_fact(&cancel_command_fact(cancel)).unwrap();
            }),
        ),
        (
            "needs_review, between two tries",
            change_scene(scene_with_t_in_review(2), |scene| {
                let lost = cast::task_error(ErrorKind::Model, "no critic");
                scene.decide_fact(&cast::reviewed_fact(&task_t(), 1, 1, "c1", Err(lost))).unwrap();
            }),
        ),
        ("errored, was pending, awaits parameters", change_scene(scene_with_task_t(2, true), mistaken)),
        ("errored, was ready, awaits parameters", change_scene(scene_with_t_ready(2, true), mistaken)),
        (
            "errored, was rerun, awaits parameters",
            change_scene(change_scene(scene_with_t_in_review(3), rejected), mistaken),
        ),
        (
            "ready, the run is paused",
            change_scene(scene_with_t_ready(2, true), |scene| {
                scene.decide_fact(&cast::command_fact("c3", CommandAction::Pause)).unwrap();
            }),
        ),
        (
            "ready, patched",
            change_scene(scene_with_t_ready(2, true), |scene| edited(scene, patch_objective_edit())),
        ),
        (
            "ready, reopened",
            change_scene(scene_with_t_errored(2, ErrorKind::InvalidTask), |scene| {
                edited(scene, retry_edit(task_t()))
            }),
        ),
        (
            "pending, its dependency runs again",
            change_scene(done(), |scene| edited(scene, retry_edit(cast::task_id("d")))),
        ),
        (
            "cancelled, with its dependency",
            change_scene(scene_with_task_t(2, true), |scene| {
                let d = cast::task_id("d");
                scene.claim_task(&d, "w0");
                let broken = cast::task_error(ErrorKind::InvalidTask, "broken");
                scene.decide_fact(&cast::attempt_ended_fact(&d, 1, "w0", Err(broken))).unwrap();
            }),
        ),
        (
            "failed, its dependency runs again",
            change_scene(scene_with_t_errored(2, ErrorKind::InvalidTask), |scene| {
                // The fold also accepts a reopening without those of the dependents.
                let (task, feedback) = (cast::task_id("d"), Some("harder".into()));
                let retry = Event::Task(TaskEvent::Reopened { task, attempt: 2, ready: true, feedback });
                apply(&mut scene.plan, &retry, scene.now);
            }),
        ),
        ("running, the run is winding down", change_scene(scene_with_t_running(2, true), pass_time_limit)),
        ("needs_review, the run is winding down", change_scene(scene_with_t_in_review(2), pass_time_limit)),
        (
            "cancelled, the run has ended and can be resumed",
            change_scene(scene_with_t_ready(2, true), pass_time_limit),
        ),
        (
            "ready, the run is paused for its provider",
            change_scene(scene_with_t_running(2, true), |scene| {
                let wait = ProviderStatus::GivenUp(cast::provider_wait("busy"));
                scene.decide_fact(&Fact::Provider(JournalKey::Task(task_t(), 1), wait)).unwrap();
            }),
        ),
    ]
}

/// Lets the run's time limit pass.
fn pass_time_limit(scene: &mut RunScene) {
    scene.now = cast::time_after(scene.now, 90_000);
    scene.decide_overdue_input(&OverdueInput::WallTime).unwrap();
}

fn registry_with_required_parameter() -> CapabilityRegistry {
    let strict = CapabilityDescription {
        parameters: Some(serde_json::json!({ "type": "object", "required": ["q"] })),
        ..CapabilityDescription::new(cast::capability_name("search"), "it searches")
    };
    CapabilityRegistry::from_descriptions(&[
        strict,
        CapabilityDescription::new(cast::capability_name("echo"), "it says it again"),
    ])
}

fn patch_objective_edit() -> Edit {
    Edit::Patch(TaskPatch {
        objective: Some("do it otherwise".into()),
        ..TaskPatch::without_changes(task_t())
    })
}

fn retry_edit(task: TaskId) -> Edit {
    Edit::Retry { task, feedback: Some("harder".into()), changes: None }
}

fn patch_dependencies_edit(tasks: &[&str]) -> Edit {
    let depends_on = tasks.iter().map(|id| cast::task_id(id)).collect();
    Edit::Patch(TaskPatch { depends_on: Some(depends_on), ..TaskPatch::without_changes(task_t()) })
}

fn decide_user_edit(
    scene: &mut RunScene,
    edit: Edit,
) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    scene.decide_fact(&cast::command_fact("c2", CommandAction::Edit(edit)))
}

fn cancel_command_fact(control: CommandAction) -> Fact {
    cast::command_fact("c1", control)
}

fn decide_user_command(
    scene: &mut RunScene,
    control: CommandAction,
) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    scene.decide_fact(&cast::command_fact("c2", control))
}

/// An input to a situation; it takes the current attempt and try from the scene.
type ApplyInputFn = fn(&mut RunScene) -> Result<Vec<millrace_protocol::plan::Event>, Refusal>;

fn current_attempt_and_review(plan: &Plan) -> (u32, u32) {
    plan.task(&task_t()).map(|task| (task.attempt, task.review_number())).unwrap()
}

fn decide_attempt_error(
    scene: &mut RunScene,
    kind: ErrorKind,
) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    let (attempt, _) = current_attempt_and_review(&scene.plan);
    scene.decide_fact(&cast::attempt_ended_fact(
        &task_t(),
        attempt,
        "w1",
        Err(cast::task_error(kind, "broken")),
    ))
}

fn decide_clock(
    scene: &mut RunScene,
    clock: AttemptClock,
) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    let (attempt, _) = current_attempt_and_review(&scene.plan);
    scene.decide_overdue_input(&OverdueInput::Clock(Work::Task { task: task_t(), attempt }, clock))
}

fn decide_claim(
    scene: &mut RunScene,
    by: &str,
    attempt: u32,
) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    scene.decide_fact(&Fact::Claimed(cast::attempt_work(&task_t(), attempt), cast::worker_id(by), None))
}

fn decide_review_end(
    scene: &mut RunScene,
    by: &str,
    outcome: Result<millrace_protocol::result::Verdict, millrace_protocol::result::TaskError>,
) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    let (attempt, review) = current_attempt_and_review(&scene.plan);
    scene.decide_fact(&cast::reviewed_fact(&task_t(), attempt, review, by, outcome))
}

fn decide_parked(scene: &mut RunScene, waits: Vec<Wait>) -> Result<Vec<Event>, Refusal> {
    let (attempt, _) = current_attempt_and_review(&scene.plan);
    scene.decide_fact(&cast::parked_fact(&task_t(), attempt, "w1", waits))
}

fn decide_provider_status(
    scene: &mut RunScene,
    status: ProviderStatus,
) -> Result<Vec<millrace_protocol::plan::Event>, Refusal> {
    let (attempt, _) = current_attempt_and_review(&scene.plan);
    scene.decide_fact(&Fact::Provider(JournalKey::Task(task_t(), attempt), status))
}

fn named_inputs() -> Vec<(&'static str, ApplyInputFn)> {
    vec![
        ("a claim by its worker", |s| {
            let attempt = current_attempt_and_review(&s.plan).0;
            decide_claim(s, "w1", attempt)
        }),
        ("a claim by another worker", |s| {
            let attempt = current_attempt_and_review(&s.plan).0;
            decide_claim(s, "w2", attempt)
        }),
        ("a claim of the next attempt", |s| {
            let attempt = current_attempt_and_review(&s.plan).0 + 1;
            decide_claim(s, "w1", attempt)
        }),
        ("a result", |s| {
            let attempt = current_attempt_and_review(&s.plan).0;
            s.decide_fact(&cast::attempt_ended_fact(&task_t(), attempt, "w1", Ok(cast::finished_result(9))))
        }),
        ("a result of the next attempt", |s| {
            let attempt = current_attempt_and_review(&s.plan).0 + 1;
            s.decide_fact(&cast::attempt_ended_fact(&task_t(), attempt, "w1", Ok(cast::finished_result(9))))
        }),
        ("an empty result", |s| {
            let (attempt, empty) = (
                current_attempt_and_review(&s.plan).0,
                millrace_protocol::plan::AttemptResult { is_empty: true, ..cast::finished_result(9) },
            );
            s.decide_fact(&cast::attempt_ended_fact(&task_t(), attempt, "w1", Ok(empty)))
        }),
        ("an error", |s| decide_attempt_error(s, ErrorKind::Tool)),
        ("an error that a retry can't fix", |s| decide_attempt_error(s, ErrorKind::InvalidTask)),
        ("a critic's claim", |s| {
            let (attempt, review) = current_attempt_and_review(&s.plan);
            let work = Work::Review { task: task_t(), attempt, review };
            s.decide_fact(&Fact::Claimed(work, cast::worker_id("c1"), None))
        }),
        ("a verdict: passed", |s| decide_review_end(s, "c1", Ok(cast::review_verdict(true, None)))),
        ("a verdict: rejected", |s| {
            decide_review_end(s, "c1", Ok(cast::review_verdict(false, Some("more"))))
        }),
        ("a verdict that contradicts itself", |s| {
            decide_review_end(s, "c1", Ok(cast::contradictory_verdict()))
        }),
        ("a verdict by the author", |s| decide_review_end(s, "w1", Ok(cast::review_verdict(true, None)))),
        ("a review's error", |s| {
            decide_review_end(s, "c1", Err(cast::task_error(ErrorKind::Model, "no answer")))
        }),
        ("the clock: queue wait", |s| decide_clock(s, AttemptClock::QueueWait)),
        ("the clock: run time", |s| decide_clock(s, AttemptClock::RunTime)),
        ("the clock: silence", |s| decide_clock(s, AttemptClock::Silence)),
        ("the clock of its review", |s| {
            let (attempt, review) = current_attempt_and_review(&s.plan);
            s.decide_overdue_input(&OverdueInput::Clock(
                Work::Review { task: task_t(), attempt, review },
                AttemptClock::QueueWait,
            ))
        }),
        ("its provider does not answer", |s| {
            decide_provider_status(s, ProviderStatus::Waiting(cast::provider_wait("overloaded")))
        }),
        ("its provider answers again", |s| decide_provider_status(s, ProviderStatus::Recovered)),
        ("its worker gives its provider up", |s| {
            decide_provider_status(s, ProviderStatus::GivenUp(cast::provider_wait("overloaded")))
        }),
        ("its critic gives its provider up", |s| {
            let journal = JournalKey::Review(task_t(), current_attempt_and_review(&s.plan).0);
            s.decide_fact(&Fact::Provider(
                journal,
                ProviderStatus::GivenUp(cast::provider_wait("overloaded")),
            ))
        }),
        ("its worker parks it for a time", |s| decide_parked(s, vec![cast::time_wait("n", 600)])),
        ("its worker parks it for an event", |s| decide_parked(s, vec![cast::event_wait("n", "go", None)])),
        ("its worker parks it for a child", |s| {
            let (attempt, _) = current_attempt_and_review(&s.plan);
            let children = vec![cast::echo_task("t-child", &[])];
            s.decide_fact(&cast::delegated_fact(&task_t(), attempt, "w1", children))
        }),
        ("its worker delegates without parking it", |s| {
            let (attempt, _) = current_attempt_and_review(&s.plan);
            let children = vec![cast::echo_task("t-child", &[])];
            let delegation = Delegation { children, ..Delegation::default() };
            let worker = cast::worker_id("w1");
            s.decide_fact(&Fact::Delegated { task: task_t(), attempt, worker, delegation })
        }),
        ("its worker parks it without a wait", |s| decide_parked(s, Vec::new())),
        ("its wait is too early to end", |s| s.decide_overdue_input(&OverdueInput::WaitTime(task_t()))),
        ("the time of its wait has come", |s| {
            s.now = cast::time_after(s.now, 601);
            s.decide_overdue_input(&OverdueInput::WaitTime(task_t()))
        }),
        ("a person passes its result", |s| {
            s.decide_fact(&cast::answer_of(&s.plan, "c4", "ann", "t/1/1", Answer::Pass))
        }),
        ("a person fails its result", |s| {
            let failed = Answer::Fail { feedback: "more".into() };
            s.decide_fact(&cast::answer_of(&s.plan, "c5", "ann", "t/1/1", failed))
        }),
        ("its question is answered", |s| {
            s.decide_fact(&cast::answer_fact("c3", "t/1/1", "q", Answer::Approve, AnswerScope::Once))
        }),
        ("its event is signalled", |s| s.decide_fact(&cast::signal_fact("go"))),
        ("another event is signalled", |s| s.decide_fact(&cast::signal_fact("other"))),
        ("a retry too early", |s| s.decide_overdue_input(&OverdueInput::Retry(task_t()))),
        ("a retry in time", |s| {
            s.now = cast::time_after(s.now, 1);
            s.decide_overdue_input(&OverdueInput::Retry(task_t()))
        }),
        ("its dependency is accepted", |s| {
            s.decide_fact(&Fact::Claimed(
                cast::attempt_work(&cast::task_id("d"), 1),
                cast::worker_id("w0"),
                None,
            ))?;
            s.decide_fact(&cast::attempt_ended_fact(
                &cast::task_id("d"),
                1,
                "w0",
                Ok(cast::finished_result(9)),
            ))
        }),
        ("its dependency fails", |s| {
            let broken = cast::task_error(ErrorKind::InvalidTask, "broken");
            s.decide_fact(&Fact::Claimed(
                cast::attempt_work(&cast::task_id("d"), 1),
                cast::worker_id("w0"),
                None,
            ))?;
            s.decide_fact(&cast::attempt_ended_fact(&cast::task_id("d"), 1, "w0", Err(broken)))
        }),
        ("its capability is unregistered", |s| s.decide_registry_change(&registry_without_search())),
        ("its capability is registered", |s| s.decide_registry_change(&registry_with_all_capabilities())),
        ("its parameters become invalid", |s| s.decide_registry_change(&registry_with_required_parameter())),
        ("a review's retry in time", |s| {
            s.now = cast::time_after(s.now, 1);
            s.decide_overdue_input(&OverdueInput::RetryReview(task_t()))
        }),
        ("the task is cancelled", |s| {
            decide_user_command(s, CommandAction::CancelTask { task: task_t(), reason: "enough".into() })
        }),
        ("the run is cancelled", |s| {
            decide_user_command(s, CommandAction::CancelRun { reason: "enough".into() })
        }),
        ("a user patches it", |s| decide_user_edit(s, patch_objective_edit())),
        ("a user lets it start with an event", |s| {
            let event = Some(Box::new(StartEvent { name: "later".into(), expiry: None }));
            decide_user_edit(
                s,
                Edit::Patch(TaskPatch { wait_for_event: event, ..TaskPatch::without_changes(task_t()) }),
            )
        }),
        ("a user changes its capability", |s| {
            let echo = Some(cast::capability_name("echo"));
            decide_user_edit(
                s,
                Edit::Patch(TaskPatch { capability: echo, ..TaskPatch::without_changes(task_t()) }),
            )
        }),
        ("a user adds the dependency o", |s| decide_user_edit(s, patch_dependencies_edit(&["d", "o"]))),
        ("a user removes its dependencies", |s| decide_user_edit(s, patch_dependencies_edit(&[]))),
        ("a user retries it", |s| decide_user_edit(s, retry_edit(task_t()))),
        ("a user retries d", |s| decide_user_edit(s, retry_edit(cast::task_id("d")))),
        ("a user marks it final", |s| decide_user_edit(s, Edit::MarkFinal { task: task_t() })),
        ("a user pauses the run", |s| decide_user_command(s, CommandAction::Pause)),
        ("a user interrupts the run", |s| decide_user_command(s, CommandAction::Interrupt)),
        ("a user resumes the run", |s| decide_user_command(s, CommandAction::Resume { budget: None })),
        ("a user gives the run more time", |s| {
            let more =
                Budget { wall_time: Some(std::time::Duration::from_secs(200_000)), ..Budget::default() };
            decide_user_command(s, CommandAction::Resume { budget: Some(more) })
        }),
        ("the time limit of the run passes", |s| {
            s.now = cast::time_after(s.now, 90_000);
            s.decide_overdue_input(&OverdueInput::WallTime)
        }),
        ("the run is retired", |s| s.decide_overdue_input(&OverdueInput::Retire)),
    ]
}

fn state_of_t(scene: &RunScene) -> TaskState {
    scene.plan.task(&task_t()).unwrap().state()
}

/// Returns the table, and the transitions of `t` that occur in it.
fn render_transition_table() -> (String, BTreeSet<(TaskState, TaskState)>) {
    let (mut text, mut moves) = (String::new(), BTreeSet::new());
    text.push_str("Task t depends on d, and z on t; o is independent. Each row: the input, then the state of t and all events.\n");
    for (at, (name, _)) in named_situations().iter().enumerate() {
        write!(text, "\n== {name}\n").unwrap();
        for (input, attempt) in named_inputs() {
            let (_, mut scene) = named_situations().swap_remove(at);
            let (before, decided) = (state_of_t(&scene), attempt(&mut scene));
            moves.insert((before, state_of_t(&scene)));
            let cell = match decided {
                Err(refusal) => format!("refused: {refusal}"),
                Ok(events) if events.is_empty() => "no events".into(),
                Ok(events) => {
                    let events: Vec<_> = events.iter().map(show::format_event).collect();
                    format!("{} | {}", state_of_t(&scene), events.join("; "))
                }
            };
            writeln!(text, "{input:38} -> {cell}").unwrap();
        }
    }
    moves.retain(|(from, to)| from != to);
    (text, moves)
}

#[test]
fn table_of_states_and_inputs_is_unchanged() {
    let (text, _) = render_transition_table();
    golden::compare_with_golden_file("table.txt", &text);
}

#[test]
fn situations_match_their_names_and_cover_all_states() {
    let mut seen = BTreeSet::new();
    for (name, scene) in named_situations() {
        let word = name.split(',').next().unwrap();
        assert_eq!(state_of_t(&scene).as_str(), word, "{name}");
        seen.insert(state_of_t(&scene));
    }
    assert_eq!(seen.len(), TaskState::ALL.len());
}

#[test]
fn table_has_the_documented_transitions() {
    let (_, moves) = render_transition_table();
    assert_eq!(moves, documented_transitions());
}

#[test]
fn refused_input_changes_nothing() {
    for (at, (name, before)) in named_situations().into_iter().enumerate() {
        for (input, attempt) in named_inputs() {
            let (_, mut scene) = named_situations().swap_remove(at);
            if attempt(&mut scene).is_err() {
                // Other tasks may have changed (two inputs claim `d`); `t` and its effects may not.
                assert_eq!(scene.plan.task(&task_t()), before.plan.task(&task_t()), "{name}: {input}");
            }
        }
    }
}

#[test]
fn inputs_before_the_start_and_after_the_end_are_refused() {
    for (input, attempt) in named_inputs() {
        let mut over = scene_with_t_running(2, true);
        over.decide_fact(&cancel_command_fact(CommandAction::CancelRun { reason: "enough".into() })).unwrap();
        let before = over.plan.clone();
        match attempt(&mut over) {
            // A retry and more tasks reopen any run that had a plan.
            Ok(events) => assert!(
                ["retries", "adds"].iter().any(|verb| input.contains(verb))
                    && events.contains(&Event::Run(RunEvent::Reopened)),
                "{input}: {events:?}"
            ),
            Err(refused) => {
                assert!(matches!(refused, Refusal::RunAlreadyEnded(_)), "{input}: {refused}");
                assert!(is_plan_unchanged(&before, &over.plan), "{input}");
            }
        }
    }
    let mut never = RunScene::new();
    let refused = never
        .decide_fact(&cancel_command_fact(CommandAction::CancelRun { reason: "enough".into() }))
        .unwrap_err();
    assert_eq!(refused, Refusal::NotSubmitted);
    assert_eq!(
        never.decide_registry_change(&registry_with_all_capabilities()).unwrap_err(),
        Refusal::NotSubmitted
    );
}

#[test]
fn fold_accepts_transitions_that_no_rule_makes() {
    // Terminal, open and terminal again; a review of an unfinished task; an unknown task.
    use millrace_protocol::plan::{Event, PlanningEvent, ReviewEvent, TaskEvent};
    let mut scene = scene_with_t_running(2, true);
    let moves = [
        Event::Task(TaskEvent::Failed { task: task_t(), reason: "a".into() }),
        Event::Task(TaskEvent::Failed { task: task_t(), reason: "b".into() }),
        Event::Task(TaskEvent::Ready { task: task_t(), attempt: 7 }),
        Event::Task(TaskEvent::Cancelled {
            task: task_t(),
            reason: "c".into(),
            with: None,
            usage: Usage::default(),
        }),
        Event::Task(TaskEvent::Accepted { task: task_t(), attempt: 9 }),
        Event::Task(TaskEvent::Pending { task: task_t() }),
        Event::Review(ReviewEvent::Errored {
            task: task_t(),
            attempt: 1,
            review: 1,
            error: "e".into(),
            again: true,
            retry_at: None,
            usage: Usage::default(),
            models: ModelUsage::new(),
        }),
        Event::Task(TaskEvent::Accepted { task: cast::task_id("nobody"), attempt: 1 }),
        Event::Planning(PlanningEvent::Errored {
            turn: 4,
            attempt: 4,
            error: "e".into(),
            retry_at: None,
            exceeded_reservation: false,
            is_refused_by_provider: false,
            usage: Usage::default(),
            models: ModelUsage::new(),
        }),
    ];
    for event in &moves {
        apply(&mut scene.plan, event, scene.now);
        crate::oracle::check_invariants(&scene.plan);
    }
}

/// Returns the transitions in the documentation of `plan`, without those that add a task.
fn documented_transitions() -> BTreeSet<(TaskState, TaskState)> {
    let mut moves = BTreeSet::new();
    let rows = include_str!("../../src/plan/mod.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
    for row in rows.filter(|row| !row.starts_with("from |") && !row.starts_with("(new)")) {
        let mut cells = row.split(" | ");
        for from in parse_states(cells.next().unwrap()) {
            for to in parse_states(cells.clone().next().unwrap()) {
                moves.insert((from, to));
            }
        }
    }
    moves.retain(|(from, to)| from != to);
    moves
}

fn parse_states(cell: &str) -> Vec<TaskState> {
    if cell == "any open state" {
        return TaskState::ALL.into_iter().filter(|state| !state.is_terminal()).collect();
    }
    let named = |name: &str| TaskState::ALL.into_iter().find(|state| state.as_str() == name);
    cell.split(", ").map(|name| named(name).unwrap_or_else(|| panic!("{name:?} is not a state"))).collect()
}

/// A run of the tasks `a` and `b` after it, with a time limit of 100 s, whose task `a` runs.
fn running_run() -> RunScene {
    let budget = Budget { wall_time: Some(std::time::Duration::from_secs(100)), ..Budget::default() };
    let tasks = vec![cast::echo_task("a", &[]), cast::echo_task("b", &["a"])];
    let mut scene = RunScene::from_submission(Submission { budget, ..cast::fixed_plan_submission(tasks) });
    scene.claim_task(&cast::task_id("a"), "w1");
    scene
}

fn give_command(scene: &mut RunScene, id: &str, control: CommandAction) -> Result<Vec<Event>, Refusal> {
    scene.decide_fact(&cast::command_fact(id, control))
}

/// The states of runs for which users give commands, with the heads of their columns in `docs/steering.md`.
fn named_runs() -> Vec<(&'static str, RunScene)> {
    let commanded = |control| {
        let mut scene = running_run();
        give_command(&mut scene, "first", control).unwrap();
        scene
    };
    let queued = {
        let tasks = vec![cast::echo_task("a", &[]), cast::echo_task("b", &["a"])];
        let session = Some(cast::session());
        RunScene::from_submission(Submission { session, ..cast::fixed_plan_submission(tasks) })
    };
    let winding_down = || {
        let mut scene = running_run();
        scene.now = cast::time_after(scene.now, 100);
        scene.decide_overdue_input(&OverdueInput::WallTime).unwrap();
        scene
    };
    let finish = |scene: &mut RunScene, task: &str, result| {
        scene.decide_fact(&cast::attempt_ended_fact(&cast::task_id(task), 1, "w1", result)).unwrap();
    };
    let mut out_of_budget = winding_down();
    finish(&mut out_of_budget, "a", Ok(cast::finished_result(9)));
    let mut failed = running_run();
    finish(&mut failed, "a", Err(cast::task_error(ErrorKind::InvalidTask, "it can't be done")));
    let mut completed = running_run();
    finish(&mut completed, "a", Ok(cast::finished_result(9)));
    completed.claim_and_finish_task(&cast::task_id("b"), "w1");
    vec![
        ("queued", queued),
        ("running", running_run()),
        ("paused", commanded(CommandAction::Pause)),
        ("interrupted", commanded(CommandAction::Interrupt)),
        ("winding down", winding_down()),
        ("out of budget", out_of_budget),
        ("failed", failed),
        ("completed", completed),
    ]
}

/// The commands of users, as `docs/steering.md` names them.
fn named_commands() -> Vec<(&'static str, CommandAction)> {
    let more = Budget { wall_time: Some(std::time::Duration::from_secs(200_000)), ..Budget::default() };
    let b = || cast::task_id("b");
    let objective = Some("other words".to_owned());
    vec![
        ("`cancel`", CommandAction::CancelRun { reason: "enough".into() }),
        ("`pause`", CommandAction::Pause),
        ("`interrupt`", CommandAction::Interrupt),
        ("`resume`", CommandAction::Resume { budget: None }),
        ("`resume --budget`", CommandAction::Resume { budget: Some(more) }),
        ("`signal`", CommandAction::Signal { name: "go".into(), data: String::new() }),
        ("`add`", CommandAction::Edit(Edit::Add(vec![cast::echo_task("c", &[])]))),
        (
            "`edit` a task that waits",
            CommandAction::Edit(Edit::Patch(TaskPatch { objective, ..TaskPatch::without_changes(b()) })),
        ),
        ("`cancel` a task that waits", CommandAction::CancelTask { task: b(), reason: "enough".into() }),
        ("`retry` the first task", CommandAction::Edit(retry_edit(cast::task_id("a")))),
    ]
}

/// The rows of the table of commands and states.
fn rows_of_commands() -> Vec<String> {
    let is_done = |is_done: bool| if is_done { "yes" } else { "refused" };
    let row = |name: &str, cells: Vec<&str>| format!("| {name} | {} |", cells.join(" | "));
    let states = named_runs().into_iter().map(|(name, _)| name).collect();
    let mut rows = vec![row("command", states)];
    for (name, control) in named_commands() {
        let cells = named_runs()
            .into_iter()
            .map(|(_, mut scene)| is_done(give_command(&mut scene, "second", control.clone()).is_ok()));
        rows.push(row(name, cells.collect()));
    }
    let deletions = named_runs().into_iter().map(|(name, mut scene)| {
        let summary = RunSummary::from_plan(&RunId::new("r").unwrap(), Lane(0), &scene.plan, scene.now);
        let step = deletion_step(summary.as_ref(), true);
        let is_resumable = scene.plan.is_resumable();
        if is_resumable {
            // Otherwise the deletion would wait until the run can no longer be resumed.
            assert_eq!(step, DeletionStep::Wait { is_resumable }, "{name}");
            give_command(&mut scene, "retire", CommandAction::Retire).unwrap();
            assert!(!scene.plan.is_resumable(), "{name}");
            for (command, control) in named_commands() {
                // Clients refuse commands that reopen runs while the run is deleted.
                if !control.can_reopen_run() {
                    let decided = give_command(&mut scene, command, control);
                    assert!(decided.is_err(), "{command} after the deletion of a run that is {name}");
                }
            }
        } else {
            assert!(give_command(&mut scene, "retire", CommandAction::Retire).is_err(), "{name}");
        }
        is_done(step != DeletionStep::Refuse)
    });
    rows.push(row("`delete`", deletions.collect()));
    rows
}

#[test]
fn page_says_which_commands_each_state_of_a_run_accepts() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/steering.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = rows_of_commands();
    let missing: Vec<&String> = rows.iter().filter(|row| !page.lines().any(|line| line == *row)).collect();
    assert!(missing.is_empty(), "docs/steering.md lacks rows; they are\n{}", rows.join("\n"));
}

/// Every end of every kind of wait, in a group with two others and beside one that is needed.
#[test]
fn first_end_of_a_group_withdraws_the_others() {
    let grouped = |wait: Wait| Wait { group: Some("first".into()), ..wait };
    let group = || {
        vec![
            grouped(cast::approval_wait("approval", None)),
            grouped(cast::event_wait("event", "go", None)),
            grouped(cast::time_wait("hour", 3_600)),
        ]
    };
    let approve = |scene: &mut RunScene| {
        scene
            .decide_fact(&cast::answer_fact("c", "t/1/1", "approval", Answer::Approve, AnswerScope::Once))
            .unwrap();
    };
    let signal = |scene: &mut RunScene| {
        scene.decide_fact(&cast::signal_fact("go")).unwrap();
    };
    let wait_an_hour = |scene: &mut RunScene| {
        scene.now = cast::time_after(cast::test_start_time(), 3_601);
        scene.decide_overdue_input(&OverdueInput::WaitTime(task_t())).unwrap();
    };
    type WaitingEnds<'a> = (&'a str, &'a dyn Fn(&mut RunScene));
    let ends: [WaitingEnds<'_>; 3] = [("approval", &approve), ("event", &signal), ("hour", &wait_an_hour)];
    for (first, end) in ends {
        let mut scene = scene_with_t_parked(group());
        end(&mut scene);
        let task = scene.plan.task(&task_t()).unwrap();
        assert_eq!(task.state(), TaskState::Ready, "{first}");
        for wait in &task.current_attempt().unwrap().waits {
            let is_withdrawn = wait.end == Some(WaitEnd::Withdrawn);
            assert_eq!(is_withdrawn, wait.wait.key != first, "after {first}: {wait:?}");
        }
        assert_eq!(scene.plan.open_questions().count(), 0, "{first}");

        // A wait outside of the group keeps the attempt parked, and a withdrawn question accepts no answer.
        let mut scene =
            scene_with_t_parked([group(), vec![cast::event_wait("needed", "last", None)]].concat());
        end(&mut scene);
        assert_eq!(scene.plan.task(&task_t()).unwrap().state(), TaskState::Waiting, "{first}");
        let late = cast::answer_fact("d", "t/1/1", "approval", Answer::Approve, AnswerScope::Once);
        let refusal = scene.decide_fact(&late).unwrap_err().to_string();
        let expected = if first == "approval" { "ann" } else { "withdrawn: another wait ended first" };
        assert!(refusal.contains(expected), "{first}: {refusal}");
        let last = CommandAction::Signal { name: "last".into(), data: String::new() };
        scene.decide_fact(&cast::command_fact("last", last)).unwrap();
        assert_eq!(scene.plan.task(&task_t()).unwrap().state(), TaskState::Ready, "{first}");
    }
}
