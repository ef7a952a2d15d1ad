//! Each clock, one microsecond before its limit and at it.

use jiff::SignedDuration;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    AttemptClock, Budget, BudgetEvent, DecisionInput, Event, Fact, JournalKey, OverdueInput, Submission,
    TaskLimits, Work, decide, overdue_inputs,
};
use millrace_protocol::provider::ProviderStatus;
use millrace_protocol::result::ErrorKind;

use crate::cast;
use crate::scene::RunScene;

fn task_a() -> TaskId {
    cast::task_id("a")
}

/// Returns what is overdue `seconds` from now, less `short_by` microseconds.
fn overdue_after(scene: &RunScene, seconds: i64, short_by: i64) -> Vec<OverdueInput> {
    let now = scene.now + SignedDuration::from_micros(seconds * 1_000_000 - short_by);
    overdue_inputs(&scene.plan, now, |task| scene.last_entries.get(task).copied())
}

#[track_caller]
fn check_overdue_exactly_after(scene: &RunScene, seconds: i64, expected: OverdueInput) {
    assert_eq!(overdue_after(scene, seconds, 1), [], "a microsecond before");
    assert_eq!(overdue_after(scene, seconds, 0), [expected], "at the limit");
}

fn attempt_clock_input(attempt: u32, clock: AttemptClock) -> OverdueInput {
    OverdueInput::Clock(Work::Task { task: task_a(), attempt }, clock)
}

fn scene_with_limited_task() -> RunScene {
    let limits = TaskLimits {
        max_attempts: 3,
        backoff: std::time::Duration::from_secs(5),
        queue_wait: std::time::Duration::from_secs(100),
        run_time: std::time::Duration::from_secs(50),
        silence: std::time::Duration::from_secs(20),
    };
    RunScene::from_submission(cast::fixed_plan_submission(vec![millrace_protocol::plan::TaskSpec {
        limits,
        ..cast::reviewed_echo_task("a", &[])
    }]))
}

#[test]
fn unclaimed_attempt_times_out_after_queue_wait() {
    check_overdue_exactly_after(
        &scene_with_limited_task(),
        100,
        attempt_clock_input(1, AttemptClock::QueueWait),
    );
}

#[test]
fn rejected_result_waits_from_its_rejection() {
    let mut scene = scene_with_limited_task();
    scene.claim_and_finish_task(&task_a(), "w1");
    scene.now = cast::time_after(scene.now, 90);
    scene.finish_review(&task_a(), false);
    check_overdue_exactly_after(&scene, 100, attempt_clock_input(2, AttemptClock::QueueWait));
}

#[test]
fn missing_capability_times_out_after_queue_wait() {
    let mut scene = scene_with_limited_task();
    scene.decide_registry_change(&cast::registry_of_capabilities(&[])).unwrap();
    check_overdue_exactly_after(&scene, 100, attempt_clock_input(1, AttemptClock::QueueWait));
}

#[test]
fn silence_counts_from_the_claim_or_the_last_entry() {
    let mut scene = scene_with_limited_task();
    scene.claim_task(&task_a(), "w1");
    check_overdue_exactly_after(&scene, 20, attempt_clock_input(1, AttemptClock::Silence));
    scene.last_entries.insert(task_a(), cast::time_after(scene.now, 15));
    check_overdue_exactly_after(&scene, 35, attempt_clock_input(1, AttemptClock::Silence));
}

#[test]
fn a_wait_for_a_provider_is_no_silence() {
    let mut scene = scene_with_limited_task();
    scene.claim_task(&task_a(), "w1");
    let decide_status = |scene: &mut RunScene, status| {
        scene.decide_fact(&Fact::Provider(JournalKey::Task(task_a(), 1), status)).unwrap();
    };
    scene.now = cast::time_after(scene.now, 5);
    decide_status(&mut scene, ProviderStatus::Waiting(cast::provider_wait("away")));
    assert_eq!(overdue_after(&scene, 1_000, 0), []);
    scene.now = cast::time_after(scene.now, 1_000);
    decide_status(&mut scene, ProviderStatus::Recovered);
    // Of the limit of 20 s, 5 s passed before the wait.
    check_overdue_exactly_after(&scene, 15, attempt_clock_input(1, AttemptClock::Silence));
}

#[test]
fn activity_before_the_claim_does_not_count() {
    let mut scene = scene_with_limited_task();
    scene.last_entries.insert(task_a(), scene.now);
    scene.now = cast::time_after(scene.now, 60);
    scene.claim_task(&task_a(), "w1");
    check_overdue_exactly_after(&scene, 20, attempt_clock_input(1, AttemptClock::Silence));
}

#[test]
fn busy_attempt_times_out_after_run_time() {
    let mut scene = scene_with_limited_task();
    scene.claim_task(&task_a(), "w1");
    scene.last_entries.insert(task_a(), cast::time_after(scene.now, 49));
    check_overdue_exactly_after(&scene, 50, attempt_clock_input(1, AttemptClock::RunTime));
}

#[test]
fn takeover_by_a_worker_does_not_restart_run_time() {
    let mut scene = scene_with_limited_task();
    scene.claim_task(&task_a(), "w1");
    scene.now = cast::time_after(scene.now, 19);
    scene.claim_task(&task_a(), "w2");
    scene.last_entries.insert(task_a(), cast::time_after(scene.now, 30));
    check_overdue_exactly_after(&scene, 31, attempt_clock_input(1, AttemptClock::RunTime));
}

#[test]
fn each_review_times_out_after_queue_wait_plus_run_time() {
    let mut scene = scene_with_limited_task();
    scene.claim_and_finish_task(&task_a(), "w1");
    let review = |review| {
        let work = Work::Review { task: task_a(), attempt: 1, review };
        OverdueInput::Clock(work, AttemptClock::QueueWait)
    };
    check_overdue_exactly_after(&scene, 150, review(1));
    scene.now = cast::time_after(scene.now, 150);
    scene.decide_overdue_input(&review(1)).unwrap();
    check_overdue_exactly_after(&scene, 5, OverdueInput::RetryReview(task_a()));
    scene.now = cast::time_after(scene.now, 5);
    scene.decide_overdue_input(&OverdueInput::RetryReview(task_a())).unwrap();
    check_overdue_exactly_after(&scene, 150, review(2));
}

#[test]
fn backoff_doubles_up_to_five_minutes() {
    let mut scene = scene_with_limited_task();
    scene.claim_task(&task_a(), "w1");
    let broken = || cast::task_error(ErrorKind::Tool, "broken");
    scene.decide_fact(&cast::attempt_ended_fact(&task_a(), 1, "w1", Err(broken()))).unwrap();
    check_overdue_exactly_after(&scene, 5, OverdueInput::Retry(task_a()));
    scene.now = cast::time_after(scene.now, 5);
    scene.decide_overdue_input(&OverdueInput::Retry(task_a())).unwrap();
    scene.claim_task(&task_a(), "w1");
    scene.decide_fact(&cast::attempt_ended_fact(&task_a(), 2, "w1", Err(broken()))).unwrap();
    check_overdue_exactly_after(&scene, 10, OverdueInput::Retry(task_a()));

    let limits = TaskLimits::default();
    let waits: Vec<u64> = (2..13).map(|next| limits.backoff_before_attempt(next).as_secs()).collect();
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    let long = TaskLimits { backoff: std::time::Duration::from_secs(3600), ..limits };
    assert_eq!(long.backoff_before_attempt(100).as_secs(), 3600, "a backoff above the cap is not reduced");
}

#[test]
fn planning_turn_times_out_and_its_backoff_ends() {
    let mut scene = RunScene::from_submission(cast::planner_submission());
    let (limits, work) = (TaskLimits::default(), Work::Planning { turn: 1, attempt: 1 });
    let seconds = |limit: std::time::Duration| i64::try_from(limit.as_secs()).unwrap();
    check_overdue_exactly_after(
        &scene,
        seconds(limits.queue_wait),
        OverdueInput::Clock(work.clone(), AttemptClock::QueueWait),
    );
    scene.now = cast::time_after(scene.now, 10);
    scene
        .decide_fact(&millrace_protocol::plan::Fact::Claimed(work.clone(), cast::worker_id("p1"), None))
        .unwrap();
    check_overdue_exactly_after(
        &scene,
        seconds(limits.run_time),
        OverdueInput::Clock(work.clone(), AttemptClock::RunTime),
    );
    scene.decide_overdue_input(&OverdueInput::Clock(work, AttemptClock::RunTime)).unwrap();
    check_overdue_exactly_after(&scene, 1, OverdueInput::RetryPlanning);
}

#[test]
fn clock_that_runs_backwards_triggers_nothing() {
    let mut scene = scene_with_limited_task();
    scene.claim_task(&task_a(), "w1");
    assert_eq!(overdue_after(&scene, -1_000_000, 0), []);
    scene
        .decide_fact(&cast::attempt_ended_fact(
            &task_a(),
            1,
            "w1",
            Err(cast::task_error(ErrorKind::Tool, "broken")),
        ))
        .unwrap();
    assert_eq!(overdue_after(&scene, -1_000_000, 0), []);
}

#[test]
fn nothing_is_overdue_before_the_start_or_after_the_end() {
    let mut ended = scene_with_limited_task();
    ended.claim_and_finish_task(&task_a(), "w1");
    ended.finish_review(&task_a(), true);
    assert!(ended.plan.run.end.is_some());
    assert_eq!(overdue_after(&ended, 1_000_000, 0), []);
    assert_eq!(overdue_after(&RunScene::new(), 1_000_000, 0), []);
}

#[test]
fn soft_time_limit_is_the_same_for_clocks_and_rules() {
    // Limits whose percentages are not whole milliseconds, and one whose percentages are not even whole microseconds.
    for (limit, percent, micros) in [(1_050_000, 80, 840_000), (999_999, 33, 330_000), (50_000, 50, 25_000)] {
        let budget = Budget {
            wall_time: Some(std::time::Duration::from_micros(limit)),
            soft_percent: percent,
            ..Budget::default()
        };
        let mut scene = RunScene::from_submission(Submission {
            budget,
            ..cast::fixed_plan_submission(vec![cast::echo_task("a", &[])])
        });
        let began = scene.now;
        let is_reported = |scene: &RunScene| {
            let settled = decide(&scene.plan, &DecisionInput::Settle, scene.now).unwrap();
            let has_event =
                settled.iter().any(|event| matches!(event, Event::Budget(BudgetEvent::Low { .. })));
            assert_eq!(has_event, scene.overdue_inputs_now() == [OverdueInput::WallTime], "of {limit} µs");
            has_event
        };
        scene.now = began + SignedDuration::from_micros(micros - 1);
        assert!(!scene.plan.budget.is_low && !is_reported(&scene), "a microsecond before, of {limit} µs");
        scene.now = began + SignedDuration::from_micros(micros);
        assert!(is_reported(&scene), "at the limit, of {limit} µs");
        scene.decide_overdue_input(&OverdueInput::WallTime).unwrap();
        assert!(scene.plan.budget.is_low && scene.overdue_inputs_now().is_empty());
    }
}
