//! What grows with the plan and the lane, and what must not: the time a task takes, the memory of a supervisor, the
//! speed of the fold, and the time that a new owner of a full lane needs before it decides.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use async_nats::jetstream::{self, kv};
use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::Decision;
use millrace_protocol::subject::Topic;
use millrace_runtime::log::read_topic;
use millrace_runtime::topology::{LEASES, lane_stream};
use rustix::process::{Pid, Signal, kill_process};

use super::ground::{ASK_EVERY, Ground, Wishes};
use super::replay::InMemory;
use super::report::{Bounded, median};
use super::run::{LONG, decisions, measure, patience, until};
use super::speed::warm_ground;
use super::{plans, process};
use crate::client;

/// The supervisor's name in its cluster.
const SUPERVISOR: &str = "supervisor-1";
/// How long the lane of a killed supervisor stays its own here: it is no part of what is measured.
const LEASE: Duration = Duration::from_secs(1);
/// How long a run is sure to last whose owner is killed: long enough for the next one to be there.
const LASTING: Duration = Duration::from_secs(6);

/// Measures all of it, with plans of `tasks` tasks and of a tenth of that.
pub async fn growth(
    wishes: &Wishes,
    tasks: u32,
    rounds: u32,
) -> anyhow::Result<BTreeMap<&'static str, Bounded>> {
    let mut growth = plans_grow(wishes, tasks, rounds).await?;
    let takeover = takeover(wishes, tasks).await?;
    let what = "from a new owner's lease on a lane with a message for each task to its first decision";
    growth.insert("takeover", Bounded::at_most(what, "s", takeover, 3.0));
    Ok(growth)
}

async fn plans_grow(
    wishes: &Wishes,
    tasks: u32,
    rounds: u32,
) -> anyhow::Result<BTreeMap<&'static str, Bounded>> {
    let mut ground = warm_ground(wishes, tasks, false).await?;
    let (small, large) = (plans::fan_out(tasks / 10, false), plans::fan_out(tasks, false));
    let (mut times, mut folds) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let small = measure(&mut ground, &small).await?;
        let large = measure(&mut ground, &large).await?;
        times.push(large.took.as_secs_f64() / small.took.as_secs_f64());
        let decisions = decisions(&ground, &large.records).await?;
        let decisions: Vec<Decision> = decisions.into_iter().map(|(_, decision)| decision).collect();
        folds.push(InMemory::measure(&decisions, large.records.len()).messages);
    }
    let memory = process::peak_memory(ground.pid(SUPERVISOR)?).map(|bytes| bytes as f64 / 1e6);
    ground.stop().await;
    let what = "most memory of a supervisor that holds all these tasks live";
    Ok(BTreeMap::from([
        (
            "ten_times_the_tasks",
            Bounded::at_most("times as long for ten times the tasks", "times", median(times), 12.0),
        ),
        (
            "fold_in_memory",
            Bounded::at_least("messages of a run folded from memory", "messages/s", median(folds), 500_000.0),
        ),
        ("supervisor_memory", Bounded::at_most(what, "MB", memory, 400.0)),
    ]))
}

/// Kills the owner of a lane with as many messages as there are tasks in mid-run, and measures from the moment at which
/// another has the lease to its first decision. The run must go on to its end.
async fn takeover(wishes: &Wishes, tasks: u32) -> anyhow::Result<f64> {
    let wishes = Wishes { linger: LONG, lane_lease: Some(LEASE), ..wishes.clone() };
    let mut ground = Ground::start(&wishes).await?;
    let plan = plans::fan_out_that_lasts(tasks, LASTING);
    let run = client::submit(ground.bus(), &plan).await.map_err(|stop| stop.error)?;
    await_messages(&ground, tasks).await?;
    let leases = jetstream::new(ground.bus().client().clone()).get_key_value(LEASES).await?;
    let old = holder(&leases).await?.ok_or_else(|| anyhow!("lane 0 has no owner"))?.1;
    let pid = i32::try_from(ground.pid(SUPERVISOR)?).ok().and_then(Pid::from_raw);
    kill_process(pid.ok_or_else(|| anyhow!("{SUPERVISOR} has no process id"))?, Signal::KILL)?;
    ground.await_restart(SUPERVISOR).await?;
    let taken = await_new_holder(&leases, &old).await?;
    let decided = await_decision(&ground, &run, &old, taken).await?;
    until(&mut ground, &run, tasks, "end", |summary| summary.end.is_some()).await?;
    ground.stop().await;
    Ok(decided.duration_since(taken).as_secs_f64())
}

async fn await_messages(ground: &Ground, count: u32) -> anyhow::Result<()> {
    let context = jetstream::new(ground.bus().client().clone());
    let began = Instant::now();
    loop {
        let messages = context.get_stream(lane_stream(Lane(0))).await?.cached_info().state.messages;
        if messages >= u64::from(count) {
            return Ok(());
        }
        if began.elapsed() > patience(count) {
            bail!("the lane has {messages} messages, of {count} that were waited for");
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Since when lane 0 has the owner that it has, or when that one last said so; and who it is.
async fn holder(leases: &kv::Store) -> anyhow::Result<Option<(Timestamp, String)>> {
    let entry = leases.entry("lane-0").await.context("reading the lease of lane 0")?;
    let Some(entry) = entry.filter(|entry| entry.operation == kv::Operation::Put) else { return Ok(None) };
    let since = Timestamp::from_nanosecond(entry.created.unix_timestamp_nanos())?;
    Ok(Some((since, String::from_utf8_lossy(&entry.value).into_owned())))
}

async fn await_new_holder(leases: &kv::Store, old: &str) -> anyhow::Result<Timestamp> {
    let began = Instant::now();
    while began.elapsed() < patience(0) {
        if let Some((since, who)) = holder(leases).await?
            && who != old
        {
            return Ok(since);
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    bail!("nobody took the lane that {old} had")
}

/// When somebody other than `old` decided first, at `after` or later.
async fn await_decision(
    ground: &Ground,
    run: &RunId,
    old: &str,
    after: Timestamp,
) -> anyhow::Result<Timestamp> {
    let (bus, began) = (ground.bus(), Instant::now());
    while began.elapsed() < patience(0) {
        let records = read_topic(bus, bus.lane(run), run, &Topic::Plan).await?;
        let late: Vec<_> = records.into_iter().filter(|record| record.time >= after).collect();
        let by_another = |(_, decision): &(Timestamp, Decision)| decision.by.as_str() != old;
        if let Some((at, _)) = decisions(ground, &late).await?.into_iter().find(by_another) {
            return Ok(at);
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    bail!("the new owner of the lane has decided nothing for {} s", patience(0).as_secs())
}
