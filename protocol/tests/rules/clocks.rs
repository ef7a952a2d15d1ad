//! Each clock, a microsecond before its limit and at it.

use jiff::SignedDuration;
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{
    Budget, Clock, Event, Input, Limits, Overdue, Submission, Work, decide, overdue,
};
use millrace_protocol::result::ErrorKind;

use crate::cast;
use crate::scene::Scene;

fn a() -> TaskId {
    cast::task_id("a")
}

/// What is overdue so many seconds from now, less `short_by` microseconds.
fn after(scene: &Scene, seconds: i64, short_by: i64) -> Vec<Overdue> {
    let now = scene.now + SignedDuration::from_micros(seconds * 1_000_000 - short_by);
    overdue(&scene.plan, now, |task| scene.heard.get(task).copied())
}

#[track_caller]
fn runs_out(scene: &Scene, seconds: i64, expected: Overdue) {
    assert_eq!(after(scene, seconds, 1), [], "a microsecond before");
    assert_eq!(after(scene, seconds, 0), [expected], "at the limit");
}

fn of_attempt(attempt: u32, clock: Clock) -> Overdue {
    Overdue::Clock(Work::Task { task: a(), attempt }, clock)
}

fn scene() -> Scene {
    let limits = Limits {
        max_attempts: 3,
        backoff: std::time::Duration::from_secs(5),
        queue_wait: std::time::Duration::from_secs(100),
        run_time: std::time::Duration::from_secs(50),
        silence: std::time::Duration::from_secs(20),
    };
    Scene::submitted(cast::submission(vec![millrace_protocol::plan::TaskSpec {
        limits,
        ..cast::reviewed("a", &[])
    }]))
}

#[test]
fn an_offer_waits_for_as_long_as_the_queue_wait() {
    runs_out(&scene(), 100, of_attempt(1, Clock::QueueWait));
}

#[test]
fn a_rejected_result_waits_in_the_queue_from_its_rejection_on() {
    let mut scene = scene();
    scene.finish(&a(), "w1");
    scene.now = cast::after(scene.now, 90);
    scene.judge(&a(), false);
    runs_out(&scene, 100, of_attempt(2, Clock::QueueWait));
}

#[test]
fn a_missing_capability_is_waited_for_as_long_as_a_worker() {
    let mut scene = scene();
    scene.cluster(&cast::cluster(&[])).unwrap();
    runs_out(&scene, 100, of_attempt(1, Clock::QueueWait));
}

#[test]
fn a_worker_may_be_silent_for_as_long_as_the_silence_from_its_claim_or_its_last_entry() {
    let mut scene = scene();
    scene.claim(&a(), "w1");
    runs_out(&scene, 20, of_attempt(1, Clock::Silence));
    scene.heard.insert(a(), cast::after(scene.now, 15));
    runs_out(&scene, 35, of_attempt(1, Clock::Silence));
}

#[test]
fn what_was_heard_before_the_claim_is_no_sign_of_life_and_takes_nothing_away() {
    let mut scene = scene();
    scene.heard.insert(a(), scene.now);
    scene.now = cast::after(scene.now, 60);
    scene.claim(&a(), "w1");
    runs_out(&scene, 20, of_attempt(1, Clock::Silence));
}

#[test]
fn a_run_may_take_its_run_time_however_busy_it_is() {
    let mut scene = scene();
    scene.claim(&a(), "w1");
    scene.heard.insert(a(), cast::after(scene.now, 49));
    runs_out(&scene, 50, of_attempt(1, Clock::RunTime));
}

#[test]
fn a_takeover_does_not_begin_the_run_time_anew() {
    let mut scene = scene();
    scene.claim(&a(), "w1");
    scene.now = cast::after(scene.now, 19);
    scene.claim(&a(), "w2");
    scene.heard.insert(a(), cast::after(scene.now, 30));
    runs_out(&scene, 31, of_attempt(1, Clock::RunTime));
}

#[test]
fn a_review_may_take_queue_wait_and_run_time_together_and_each_try_begins_anew() {
    let mut scene = scene();
    scene.finish(&a(), "w1");
    let review = |review| {
        let work = Work::Review { task: a(), attempt: 1, review };
        Overdue::Clock(work, Clock::QueueWait)
    };
    runs_out(&scene, 150, review(1));
    scene.now = cast::after(scene.now, 150);
    scene.clock(&review(1)).unwrap();
    runs_out(&scene, 5, Overdue::RetryReview(a()));
    scene.now = cast::after(scene.now, 5);
    scene.clock(&Overdue::RetryReview(a())).unwrap();
    runs_out(&scene, 150, review(2));
}

#[test]
fn a_backoff_ends_when_it_says_and_doubles_up_to_five_minutes() {
    let mut scene = scene();
    scene.claim(&a(), "w1");
    let broken = || cast::error(ErrorKind::Tool, "broken");
    scene.fact(&cast::ended(&a(), 1, "w1", Err(broken()))).unwrap();
    runs_out(&scene, 5, Overdue::Retry(a()));
    scene.now = cast::after(scene.now, 5);
    scene.clock(&Overdue::Retry(a())).unwrap();
    scene.claim(&a(), "w1");
    scene.fact(&cast::ended(&a(), 2, "w1", Err(broken()))).unwrap();
    runs_out(&scene, 10, Overdue::Retry(a()));

    let limits = Limits::default();
    let waits: Vec<u64> = (2..13).map(|next| limits.backoff_before(next).as_secs()).collect();
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    let long = Limits { backoff: std::time::Duration::from_secs(3600), ..limits };
    assert_eq!(long.backoff_before(100).as_secs(), 3600, "a backoff above the cap is kept, not cut");
}

#[test]
fn a_planner_is_waited_for_like_a_worker_and_its_backoff_ends() {
    let mut scene = Scene::submitted(cast::unplanned());
    let (limits, work) = (Limits::default(), Work::Planning { turn: 1, attempt: 1 });
    let seconds = |limit: std::time::Duration| i64::try_from(limit.as_secs()).unwrap();
    runs_out(&scene, seconds(limits.queue_wait), Overdue::Clock(work.clone(), Clock::QueueWait));
    scene.now = cast::after(scene.now, 10);
    scene.fact(&millrace_protocol::plan::Fact::Claimed(work.clone(), cast::worker("p1"))).unwrap();
    runs_out(&scene, seconds(limits.run_time), Overdue::Clock(work.clone(), Clock::RunTime));
    scene.clock(&Overdue::Clock(work, Clock::RunTime)).unwrap();
    runs_out(&scene, 1, Overdue::RetryPlanning);
}

#[test]
fn a_clock_that_goes_backwards_brings_nothing_about() {
    let mut scene = scene();
    scene.claim(&a(), "w1");
    assert_eq!(after(&scene, -1_000_000, 0), []);
    scene.fact(&cast::ended(&a(), 1, "w1", Err(cast::error(ErrorKind::Tool, "broken")))).unwrap();
    assert_eq!(after(&scene, -1_000_000, 0), []);
}

#[test]
fn nothing_is_overdue_before_a_run_began_or_after_it_ended() {
    let mut ended = scene();
    ended.finish(&a(), "w1");
    ended.judge(&a(), true);
    assert!(ended.plan.end.is_some());
    assert_eq!(after(&ended, 1_000_000, 0), []);
    assert_eq!(after(&Scene::new(), 1_000_000, 0), []);
}

#[test]
fn the_soft_part_of_the_time_is_over_for_the_clock_and_for_the_rules_at_the_same_moment() {
    // Times of which no percentage is a whole number of milliseconds, and one of which none is even one.
    for (limit, percent, micros) in [(1_050_000, 80, 840_000), (999_999, 33, 330_000), (50_000, 50, 25_000)] {
        let budget = Budget {
            wall_time: Some(std::time::Duration::from_micros(limit)),
            soft_percent: percent,
            ..Budget::default()
        };
        let mut scene =
            Scene::submitted(Submission { budget, ..cast::submission(vec![cast::task("a", &[])]) });
        let began = scene.now;
        let is_told = |scene: &Scene| {
            let settled = decide(&scene.plan, &Input::Settle, scene.now).unwrap();
            let told = settled.iter().any(|event| matches!(event, Event::BudgetLow { .. }));
            assert_eq!(told, scene.overdue() == [Overdue::WallTime], "of {limit} µs");
            told
        };
        scene.now = began + SignedDuration::from_micros(micros - 1);
        assert!(!scene.plan.budget_is_low && !is_told(&scene), "a microsecond before, of {limit} µs");
        scene.now = began + SignedDuration::from_micros(micros);
        assert!(is_told(&scene), "at the moment, of {limit} µs");
        scene.clock(&Overdue::WallTime).unwrap();
        assert!(scene.plan.budget_is_low && scene.overdue().is_empty());
    }
}
