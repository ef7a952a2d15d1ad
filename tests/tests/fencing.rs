//! One writer at a time, by the server's word and not by a clock: owners and workers that were stopped past their
//! leases, and owners that another has overtaken.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId, WorkerId};
use millrace_protocol::plan::{
    Cluster as Offered, Command, Control, Decision, EndReason, Fact, MayBeMissing, Submission,
};
use millrace_protocol::registry::Role as Kind;
use millrace_protocol::subject::Topic;
use millrace_runtime::log::{AppendError, append, read_topic};
use millrace_runtime::{Bus, registry};
use millrace_supervisor::{LiveRun, catch_up};
use millrace_tests::cluster::{Cluster, Role, Setup, alone};
use millrace_tests::eventually;
use millrace_tests::history::History;
use millrace_tests::plans::{echo, fan_out, finished, fixed, id, run, submit};
use rustix::process::Signal;
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(120);
const LANE: Lane = Lane(0);

/// A run of about five seconds on two workers with eight slots each.
fn long_run() -> Submission {
    fan_out(800, &json!({"delay_ms": 100}))
}

/// Two supervisors, of which the first said is the owner of the only lane.
async fn two_supervisors(setup: Setup) -> (Cluster, Bus, String, String) {
    let mut cluster = Cluster::start(setup, 2);
    cluster.add(Role::Supervisor, "supervisor-2", &[]);
    let bus = cluster.bus().await;
    cluster.known(&bus, Kind::Supervisor, 2).await;
    let owner = cluster.owner(&bus).await;
    let other = if owner == "supervisor-1" { "supervisor-2" } else { "supervisor-1" };
    (cluster, bus, owner, other.into())
}

async fn last_decision(bus: &Bus, run: &RunId) -> u64 {
    let decisions = read_topic(bus, LANE, run, &Topic::Plan).await.unwrap_or_default();
    decisions.last().map_or(0, |record| record.sequence)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_slept_past_its_lease_steps_down_when_it_wakes_and_changes_nothing() {
    let _alone = alone();
    let (cluster, bus, owner, other) = two_supervisors(Setup::default()).await;
    let run = run("slept");
    submit(&bus, &run, &long_run()).await;
    eventually(PATIENCE, "decisions", async || (last_decision(&bus, &run).await > 0).then_some(())).await;

    let taken = cluster.log(&other).matches("took the lane").count();
    cluster.signal(&owner, Signal::STOP);
    cluster.heard_again(&other, "took the lane", taken, PATIENCE).await;
    eventually(PATIENCE, "the successor's decisions", async || {
        let history = History::read(&bus, &run).await.ok()?;
        history.deciders().last().is_some_and(|last| last.starts_with(&other)).then_some(())
    })
    .await;
    cluster.signal(&owner, Signal::CONT);
    let took = cluster.heard(&owner, "stepping down", PATIENCE).await;
    println!("a supervisor that slept past its lease stepped down {} ms after it woke", took.as_millis());
    assert!(took < Duration::from_secs(1), "it stepped down after {took:?}");

    let history = finished(&bus, &run, PATIENCE).await;
    history.assert_holds();
    assert_eq!(history.plan().end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
    cluster.end();
}

/// The run as its owner holds it at this moment.
async fn held(bus: &Bus, run: &RunId) -> LiveRun {
    let (mut runs, _) = catch_up(bus, LANE).await.unwrap();
    runs.remove(run).expect("the run is in its lane")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_refuses_whatever_a_stale_owner_has_decided() {
    let _alone = alone();
    let cluster = Cluster::start(Setup::default(), 2);
    let (bus, run) = (cluster.bus().await, run("refused"));
    submit(&bus, &run, &long_run()).await;
    let me = WorkerId::new("stale-owner").unwrap();
    for _ in 0..10 {
        let mut stale = eventually(PATIENCE, "a decision", async || {
            Some(held(&bus, &run).await).filter(|live| live.last > 0)
        })
        .await;
        eventually(PATIENCE, "the owner's next decision", async || {
            (last_decision(&bus, &run).await > stale.last).then_some(())
        })
        .await;
        // The most harmful thing that it could do: end the run.
        let control = Control::CancelRun { reason: "a stale owner".into() };
        let command = Command { id: "stale".into(), by: "nobody".into(), control };
        stale.receive(u64::MAX / 2, Fact::Control(command));
        let known = Offered::default();
        let decision = stale.decide(&me, &known, MayBeMissing::NotYet, Timestamp::now()).expect("it decides");
        let refused = append(&bus, LANE, &run, &Topic::Plan, &decision, stale.last).await;
        assert!(
            matches!(refused, Err(AppendError::Fenced { last }) if last > stale.last),
            "behind {}: {refused:?}",
            stale.last
        );
    }
    let history = finished(&bus, &run, PATIENCE).await;
    history.assert_holds();
    assert!(!history.deciders().contains(&me.to_string()), "nothing of it is in the log");
    assert_eq!(history.plan().end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_overtaken_reads_the_run_anew_and_goes_on_behind_the_other() {
    let _alone = alone();
    let cluster = Cluster::start(Setup::default(), 2);
    let (bus, run) = (cluster.bus().await, run("overtaken"));
    submit(&bus, &run, &long_run()).await;
    let usurper = WorkerId::new("usurper").unwrap();
    for _ in 0..5 {
        // The owner is fast: some of these come too late and are refused themselves.
        eventually(PATIENCE, "a place in the chain", async || {
            let live = held(&bus, &run).await;
            let decision = Decision {
                by: usurper.clone(),
                previous: live.last,
                at: Timestamp::now(),
                answers: Vec::new(),
                events: Vec::new(),
            };
            (live.last > 0).then_some(())?;
            append(&bus, LANE, &run, &Topic::Plan, &decision, live.last).await.ok()
        })
        .await;
    }
    let history = finished(&bus, &run, PATIENCE).await;
    history.assert_holds();
    assert_eq!(history.plan().end.as_ref().map(|end| end.reason), Some(EndReason::Completed));
    let foreign = history.deciders().iter().filter(|by| **by == usurper.to_string()).count();
    let log = cluster.log("supervisor-1");
    let refused = log.matches("refused: another owner has extended this run").count();
    let noticed = log.matches("another owner has decided on this run").count();
    println!("overtaken {foreign} times: refused {refused} times, noticed {noticed} times");
    assert_eq!(foreign, 5);
    assert!(refused + noticed > 0, "the owner never noticed:\n{log}");
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_slept_past_its_lease_is_refused_and_drops_the_work_that_another_continued() {
    let _alone = alone();
    let cluster = Cluster::start(Setup { slots: 1, ..Setup::default() }, 2);
    let (bus, run) = (cluster.bus().await, run("dropped"));
    let parameters = json!({"steps": 30, "delay_ms": 3000});
    submit(&bus, &run, &fixed(vec![echo("long", &parameters)])).await;
    let steps = async || History::read(&bus, &run).await.map_or(0, |history| history.steps().len());
    eventually(PATIENCE, "three steps", async || (steps().await >= 3).then_some(())).await;

    let history = History::read(&bus, &run).await.unwrap();
    let holder = history.plan().task(&id("long")).and_then(|task| task.current()?.worker.clone());
    let holder = holder.expect("somebody works on it").to_string();
    let holder = holder.rsplit_once('-').expect("an id has its number behind the name").0;
    cluster.signal(holder, Signal::STOP);
    let before = steps().await;
    eventually(PATIENCE, "another worker's steps", async || {
        let history = History::read(&bus, &run).await.ok()?;
        (history.takeovers() == 1 && history.steps().len() > before).then_some(())
    })
    .await;
    cluster.signal(holder, Signal::CONT);
    let took = cluster.heard(holder, "somebody else has this work now; dropping it", PATIENCE).await;
    println!("a worker that slept past its lease dropped the work {} ms after it woke", took.as_millis());
    assert!(took < Duration::from_secs(1), "it dropped the work after {took:?}");

    let history = finished(&bus, &run, PATIENCE).await;
    history.assert_holds();
    assert_eq!(history.broken_by_ledger(&cluster.ledger_text()), Vec::<String>::new());
    assert_eq!((history.takeovers(), history.continued(), history.steps().len()), (1, 1, 30));
    cluster.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_is_taken_over_within_10_s_of_a_kill_and_within_1_s_of_an_orderly_stop() {
    let _alone = alone();
    // The lease that a cluster has where nobody says anything else.
    let (mut cluster, bus, owner, other) =
        two_supervisors(Setup { lane_lease: None, ..Setup::default() }).await;
    let taken = cluster.log(&other).matches("took the lane").count();
    let started = std::time::Instant::now();
    cluster.signal(&owner, Signal::TERM);
    cluster.heard_again(&other, "took the lane", taken, PATIENCE).await;
    let orderly = started.elapsed();
    cluster.stop(&owner);

    cluster.restart(&owner);
    cluster.known(&bus, Kind::Supervisor, 2).await;
    let owner = cluster.owner(&bus).await;
    let other = if owner == "supervisor-1" { "supervisor-2" } else { "supervisor-1" };
    let taken = cluster.log(other).matches("took the lane").count();
    cluster.kill(&owner);
    let killed = cluster.heard_again(other, "took the lane", taken, PATIENCE).await;
    println!(
        "taken over {} ms after an orderly stop, {} ms after a kill",
        orderly.as_millis(),
        killed.as_millis()
    );
    assert!(orderly < Duration::from_millis(1500), "after an orderly stop: {orderly:?}");
    assert!(killed < Duration::from_secs(10), "after a kill: {killed:?}");
    assert!(registry::beats(&bus).await.is_ok());
    cluster.end();
}
