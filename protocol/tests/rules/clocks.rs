//! Each clock, one microsecond before its limit and at it.

use jiff::{SignedDuration, Timestamp};
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Absence, AttemptClock, Attendance, Budget, BudgetEvent, DecisionInput, Event, Fact, JournalKey,
    OverdueInput, StoppedClocks, Submission, TaskLimits, Work, WorkerSign, decide, overdue_inputs,
};
use millrace_protocol::result::ErrorKind;
use millrace_protocol::wait::ProviderStatus;

use crate::cast;
use crate::scene::RunScene;

fn task_a() -> TaskId {
    cast::task_id("a")
}

/// Returns what is overdue `seconds` from now, less `short_by` microseconds.
fn overdue_after(scene: &RunScene, seconds: i64, short_by: i64) -> Vec<OverdueInput> {
    let now = scene.now + SignedDuration::from_micros(seconds * 1_000_000 - short_by);
    overdue_inputs(&scene.plan, now, &scene.attendance, |task| scene.last_entries.get(task).copied())
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

// ---- absences

/// Lets time pass in which supervisors are there, and these workers with them; the claimant writes to its journal.
fn pass_with_workers(scene: &mut RunScene, seconds: u64, workers: &[&str]) {
    for _ in 0..seconds {
        scene.now = cast::time_after(scene.now, 1);
        give_signs(scene, workers, None);
    }
    let claimant = scene.plan.task(&task_a()).and_then(|task| task.claimant());
    if claimant.is_some_and(|claimant| workers.contains(&claimant.as_str())) {
        scene.last_entries.insert(task_a(), scene.now);
    }
}

fn give_signs(scene: &mut RunScene, workers: &[&str], suspended: Option<Absence>) {
    let sign = |worker: &&str| WorkerSign { worker: cast::worker_id(worker), received: scene.now, suspended };
    scene.attendance.update(scene.now, workers.iter().map(sign).collect());
}

/// Records the absences that are due, as a supervisor does before it looks at the clocks.
fn record_absences(scene: &mut RunScene) -> usize {
    let due = scene.overdue_inputs_now();
    let absences: Vec<_> = due.iter().filter(|input| matches!(input, OverdueInput::Absence(_))).collect();
    absences.iter().for_each(|input| drop(scene.decide_overdue_input(input).unwrap()));
    absences.len()
}

fn claim_with_attendance(scene: &mut RunScene, by: &str) {
    let work = cast::attempt_work(&task_a(), 1);
    let by = cast::worker_id(by);
    if let Some(stopped) = scene.plan.absence_before_claim(&work, &by, &scene.attendance, None, scene.now) {
        scene.decide_overdue_input(&OverdueInput::Absence(stopped)).unwrap();
    }
    scene.decide_fact(&Fact::Claimed(work, by, None)).unwrap();
}

fn worked_seconds(scene: &RunScene) -> i64 {
    scene.plan.task(&task_a()).unwrap().attempts[0].worked.as_secs()
}

#[test]
fn run_time_is_the_sum_over_park_kill_power_off_and_suspension() {
    let mut scene = scene_with_limited_task();
    pass_with_workers(&mut scene, 3, &["w1"]);
    claim_with_attendance(&mut scene, "w1");
    pass_with_workers(&mut scene, 12, &["w1"]);
    // Parked: 900 s.
    let until = cast::time_after(scene.now, 900);
    let wait = millrace_protocol::wait::Wait::new("go", millrace_protocol::wait::WaitCondition::Until(until));
    scene.decide_fact(&cast::parked_fact(&task_a(), 1, "w1", vec![wait])).unwrap();
    assert_eq!(worked_seconds(&scene), 12);
    pass_with_workers(&mut scene, 900, &["w1"]);
    scene.decide_overdue_input(&OverdueInput::WaitTime(task_a())).unwrap();
    claim_with_attendance(&mut scene, "w1");
    pass_with_workers(&mut scene, 10, &["w1"]);
    // Killed: another worker takes over 80 s later.
    pass_with_workers(&mut scene, 80, &[]);
    assert_eq!(scene.overdue_inputs_now(), [], "its worker is lost");
    pass_with_workers(&mut scene, 1, &["w2"]);
    claim_with_attendance(&mut scene, "w2");
    pass_with_workers(&mut scene, 8, &["w2"]);
    // The power is off for an hour; then the first supervisor finds what was stored.
    scene.now = cast::time_after(scene.now, 3600);
    scene.attendance = Attendance::restore(scene.attendance.to_store(), scene.now);
    pass_with_workers(&mut scene, 2, &["w3"]);
    record_absences(&mut scene);
    assert_eq!(scene.overdue_inputs_now(), [], "its worker is lost");
    claim_with_attendance(&mut scene, "w3");
    pass_with_workers(&mut scene, 10, &["w3"]);
    // Its worker is suspended for 60 s, and continues.
    let from = scene.now;
    pass_with_workers(&mut scene, 60, &[]);
    assert_eq!(scene.overdue_inputs_now(), [], "its worker is lost");
    scene.last_entries.insert(task_a(), scene.now);
    assert_eq!(scene.overdue_inputs_now(), [], "it writes to the journal before its next heartbeat");
    let suspended = Some(Absence { from, until: scene.now });
    give_signs(&mut scene, &["w3"], suspended);
    assert_eq!(record_absences(&mut scene), 1);
    assert_eq!(record_absences(&mut scene), 0, "it is recorded once");
    // 12 + 10 + 8 + 10 of 50 s have passed; a last sign is up to a second older than the end.
    let Some(at) = (0..30).find(|seconds| {
        scene.last_entries.insert(task_a(), scene.now);
        !overdue_after(&scene, *seconds, 0).is_empty()
    }) else {
        panic!("no limit of its run time")
    };
    assert_eq!(at, 10, "the rest of its run time");
    scene.now = cast::time_after(scene.now, 10);
    scene.decide_overdue_input(&attempt_clock_input(1, AttemptClock::RunTime)).unwrap();
    assert_eq!(worked_seconds(&scene), 50);
}

#[test]
fn report_of_a_worker_before_its_next_heartbeat_does_not_count_its_suspension() {
    let mut scene = scene_with_limited_task();
    pass_with_workers(&mut scene, 3, &["w1"]);
    claim_with_attendance(&mut scene, "w1");
    pass_with_workers(&mut scene, 10, &["w1"]);
    let report = parked_report(&scene);
    let reported = scene.now;
    assert_eq!(
        scene.plan.absence_before_report(
            report.reported_attempt().unwrap(),
            reported,
            &scene.attendance,
            scene.now
        ),
        None
    );
    pass_with_workers(&mut scene, 60, &[]);
    let reported = scene.now;
    decide_report(&mut scene, &report, reported);
    assert_eq!(worked_seconds(&scene), 10);
}

#[test]
fn time_from_a_report_to_the_next_supervisor_is_no_run_time() {
    let scene = || {
        let mut scene = scene_with_limited_task();
        pass_with_workers(&mut scene, 3, &["w1"]);
        claim_with_attendance(&mut scene, "w1");
        pass_with_workers(&mut scene, 10, &["w1"]);
        scene
    };
    // All supervisors are away for an hour, and the worker reports 4 s after they left.
    let away = SignedDuration::from_secs(3_600);
    for is_restored in [false, true] {
        for is_updated in [false, true] {
            let mut scene = scene();
            let report = parked_report(&scene);
            let reported = cast::time_after(scene.now, 4);
            scene.now += away;
            if is_restored {
                scene.attendance = Attendance::restore(scene.attendance.to_store(), scene.now);
            }
            if is_updated {
                give_signs(&mut scene, &["w1"], None);
            }
            decide_report(&mut scene, &report, reported);
            assert_eq!(worked_seconds(&scene), 14, "restored: {is_restored}, updated: {is_updated}");
        }
    }
    // The clock of the server is wrong: no more than the absence is excluded.
    for (wrong_by, worked) in [(-7_200, 10), (7_200, 10 + 3_600)] {
        let mut scene = scene();
        let report = parked_report(&scene);
        let reported = scene.now + SignedDuration::from_secs(wrong_by);
        scene.now += away;
        decide_report(&mut scene, &report, reported);
        assert_eq!(worked_seconds(&scene), worked);
    }
}

fn parked_report(scene: &RunScene) -> Fact {
    let until = cast::time_after(scene.now, 7_200);
    let wait = millrace_protocol::wait::Wait::new("go", millrace_protocol::wait::WaitCondition::Until(until));
    cast::parked_fact(&task_a(), 1, "w1", vec![wait])
}

fn decide_report(scene: &mut RunScene, report: &Fact, reported: Timestamp) {
    let stopped = scene.plan.absence_before_report(
        report.reported_attempt().unwrap(),
        reported,
        &scene.attendance,
        scene.now,
    );
    if let Some(stopped) = stopped {
        scene.decide_overdue_input(&OverdueInput::Absence(stopped)).unwrap();
    }
    scene.decide_fact(report).unwrap();
}

#[test]
fn work_without_its_claimant_waits_for_another_as_long_as_in_a_queue() {
    let mut scene = scene_with_limited_task();
    pass_with_workers(&mut scene, 1, &["w1"]);
    scene.claim_task(&task_a(), "w1");
    pass_with_workers(&mut scene, 5, &["w1"]);
    // Its sign is missed after 5 s.
    pass_with_workers(&mut scene, 105, &[]);
    assert_eq!(scene.overdue_inputs_now(), []);
    pass_with_workers(&mut scene, 1, &[]);
    assert_eq!(scene.overdue_inputs_now(), [attempt_clock_input(1, AttemptClock::QueueWait)]);
    scene.decide_overdue_input(&attempt_clock_input(1, AttemptClock::QueueWait)).unwrap();
    assert!(scene.plan.task(&task_a()).unwrap().errored_wait().is_some(), "another attempt follows");
}

#[test]
fn worker_that_never_sent_a_sign_is_timed_as_if_it_was_there() {
    let mut scene = scene_with_limited_task();
    pass_with_workers(&mut scene, 1, &[]);
    scene.claim_task(&task_a(), "silent");
    scene.last_entries.insert(task_a(), cast::time_after(scene.now, 49));
    check_overdue_exactly_after(&scene, 50, attempt_clock_input(1, AttemptClock::RunTime));
}

#[test]
fn queue_wait_does_not_count_the_time_without_a_supervisor() {
    let mut scene = scene_with_limited_task();
    pass_with_workers(&mut scene, 40, &[]);
    // All supervisors are suspended for an hour.
    scene.now = cast::time_after(scene.now, 3600);
    give_signs(&mut scene, &[], None);
    assert_eq!(record_absences(&mut scene), 1);
    check_overdue_exactly_after(&scene, 60, attempt_clock_input(1, AttemptClock::QueueWait));
    // The power is off: a new supervisor finds the attendance of the old one.
    pass_with_workers(&mut scene, 20, &[]);
    scene.attendance = Attendance::restore(scene.attendance.to_store(), cast::time_after(scene.now, 3600));
    scene.now = cast::time_after(scene.now, 3600);
    give_signs(&mut scene, &[], None);
    assert_eq!(record_absences(&mut scene), 1, "the first one is recorded already");
    check_overdue_exactly_after(&scene, 40, attempt_clock_input(1, AttemptClock::QueueWait));
    // A supervisor that was away finds that another was there.
    let mut other = scene.attendance.clone();
    for _ in 0..30 {
        scene.now = cast::time_after(scene.now, 1);
        other.update(scene.now, Vec::new());
    }
    assert!(scene.attendance.is_interrupted(scene.now));
    scene.attendance.resume(other.to_store());
    give_signs(&mut scene, &[], None);
    assert_eq!(record_absences(&mut scene), 0);
    check_overdue_exactly_after(&scene, 10, attempt_clock_input(1, AttemptClock::QueueWait));
}

#[test]
fn absence_within_a_wait_for_a_provider_is_not_excluded_twice() {
    let mut scene = scene_with_limited_task();
    pass_with_workers(&mut scene, 1, &["w1"]);
    scene.claim_task(&task_a(), "w1");
    let status = |scene: &mut RunScene, status| {
        scene.decide_fact(&Fact::Provider(JournalKey::Task(task_a(), 1), status)).unwrap();
    };
    status(&mut scene, ProviderStatus::Waiting(cast::provider_wait("away")));
    let from = cast::time_after(scene.now, 10);
    scene.now = cast::time_after(scene.now, 100);
    let stopped = |from: Timestamp, until: Timestamp| {
        let absence = Absence { from, until };
        OverdueInput::Absence(StoppedClocks { worker: Some(cast::worker_id("w1")), task: None, absence })
    };
    assert_eq!(scene.decide_overdue_input(&stopped(from, scene.now)).unwrap(), []);
    status(&mut scene, ProviderStatus::Recovered);
    assert_eq!(scene.decide_overdue_input(&stopped(from, scene.now)).unwrap(), []);
    check_overdue_exactly_after(&scene, 20, attempt_clock_input(1, AttemptClock::Silence));
    // Only its end comes after the wait.
    let (from, until) = (from, cast::time_after(scene.now, 30));
    scene.now = until;
    scene.decide_overdue_input(&stopped(from, until)).unwrap();
    check_overdue_exactly_after(&scene, 20, attempt_clock_input(1, AttemptClock::Silence));
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
