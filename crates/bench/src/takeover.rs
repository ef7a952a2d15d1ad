//! Takeover of a lane: its owner is killed, and the time runs from the moment the next owner has the lease to its decisions.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use async_nats::jetstream::{self, kv};
use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Decision;
use millrace_protocol::subject::Topic;
use millrace_runtime::log::read_topic;
use millrace_runtime::nats::topology::LEASES;
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::{BenchCluster, POLL_INTERVAL};
use crate::run::{decode_decisions, run_timeout};

/// Name of the supervisor process.
pub const SUPERVISOR: &str = "supervisor-1";
/// Lane lease of the killed supervisor; not part of the measured time.
pub const LEASE: Duration = Duration::from_secs(1);

/// A takeover of lane 0.
pub struct LaneTakeover {
    leases: kv::Store,
    killed: String,
}

impl LaneTakeover {
    /// Kills the owner of lane 0. The cluster starts the process again.
    pub async fn kill_owner(cluster: &BenchCluster) -> anyhow::Result<Self> {
        let leases = jetstream::new(cluster.bus().client().clone()).get_key_value(LEASES).await?;
        let holder = read_lease_holder(&leases).await?;
        let killed = holder.ok_or_else(|| anyhow!("lane 0 has no owner"))?.1;
        let pid = i32::try_from(cluster.pid(SUPERVISOR)?).ok().and_then(Pid::from_raw);
        kill_process(pid.ok_or_else(|| anyhow!("{SUPERVISOR} has no process id"))?, Signal::KILL)?;
        Ok(Self { leases, killed })
    }

    /// Waits for the next owner; returns the time at which it got the lease.
    pub async fn await_owner(&self, cluster: &mut BenchCluster) -> anyhow::Result<Timestamp> {
        cluster.await_restart(SUPERVISOR).await?;
        let began = Instant::now();
        while began.elapsed() < run_timeout(0) {
            if let Some((since, who)) = read_lease_holder(&self.leases).await?
                && who != self.killed
            {
                return Ok(since);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        bail!("no process took over the lane of {}", self.killed)
    }

    /// Returns the time of the first decision on a run by another owner, at `after` or later.
    pub async fn await_decision(
        &self,
        cluster: &BenchCluster,
        run: &RunId,
        after: Timestamp,
    ) -> anyhow::Result<Timestamp> {
        let (bus, began) = (cluster.bus(), Instant::now());
        while began.elapsed() < run_timeout(0) {
            let records = read_topic(bus, bus.lane_of_run(run), run, &Topic::Plan).await?;
            let late: Vec<_> = records.into_iter().filter(|record| record.time >= after).collect();
            let by_another = |(_, decision): &(Timestamp, Decision)| decision.by.as_str() != self.killed;
            if let Some((at, _)) = decode_decisions(cluster, &late).await?.into_iter().find(by_another) {
                return Ok(at);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        bail!("the new owner of the lane has made no decision within {} s", run_timeout(0).as_secs())
    }
}

/// Returns the owner of lane 0 and the time of its last lease renewal.
async fn read_lease_holder(leases: &kv::Store) -> anyhow::Result<Option<(Timestamp, String)>> {
    let entry = leases.entry("lane-0").await.context("reading the lease of lane 0")?;
    let Some(entry) = entry.filter(|entry| entry.operation == kv::Operation::Put) else { return Ok(None) };
    let since = Timestamp::from_nanosecond(entry.created.unix_timestamp_nanos())?;
    Ok(Some((since, String::from_utf8_lossy(&entry.value).into_owned())))
}
