//! What a user's commands ask of a cluster: hand a run in, follow it, read it. Whatever is shown is folded here from
//! the log; no other program is asked. What steers a run is in [`crate::steer`].

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId, TaskId};
use millrace_protocol::plan::{AttemptEnd, Decision, Event, Plan, Submission};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::result::TaskResult;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire;
use millrace_protocol::work::{Entry, Outcome};
use millrace_runtime::connection::Credentials;
use millrace_runtime::direct::last_of_each;
use millrace_runtime::log::{AppendError, append, handed_in, read_one};
use millrace_runtime::record::Record;
use millrace_runtime::tail::Tail;
use millrace_runtime::topology::lane_stream;
use millrace_runtime::{Bus, Connection, Fault, archive, registry};
use tokio::sync::mpsc;

use crate::exit::Stop;
use crate::folders;
use crate::local::{self, Cluster, ClusterInfo, Options};
use crate::story::Story;

/// How long a cluster that is being started is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a server may be gone before a command gives up.
const OUTAGE: Duration = Duration::from_secs(120);
/// How long a quiet run may be quiet before it is asked whether it has been archived meanwhile.
const QUIET: Duration = Duration::from_secs(2);

/// Which cluster a command talks to.
#[derive(Args, Debug, Clone)]
pub struct Target {
    /// NATS server of the cluster; credentials come from MILLRACE_NATS_NKEY or MILLRACE_NATS_CREDS (files), or
    /// MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD [default: the local cluster that runs on the data folder]
    #[arg(long, env = "MILLRACE_NATS_URL", hide_env_values = true, value_name = "URL", value_parser = NonEmptyStringValueParser::new())]
    pub nats: Option<String>,
    /// Data folder of a local cluster
    #[arg(long, env = "MILLRACE_DATA", value_name = "DIR", default_value_os_t = folders::data())]
    pub data: PathBuf,
}

impl Target {
    /// Connects to the cluster.
    pub async fn connect(&self) -> Result<Bus, Stop> {
        if let Some(url) = &self.nats {
            return Ok(Bus::join(&Connection::with_environment(url), "millrace", Duration::ZERO).await?);
        }
        let info = local::running(&self.data).ok_or_else(|| {
            let data = self.data.display();
            Stop::environment(anyhow!(
                "no cluster runs on {data}: start one with `millrace up`, or name one with --nats"
            ))
        })?;
        Ok(join(&info).await?)
    }
}

/// A cluster to read from. Where none runs on the data folder but one has run, its server is started for as long as
/// this is held; nobody works on anything meanwhile.
pub struct Reading {
    /// The connection.
    pub bus: Bus,
    server: Option<Cluster>,
}

impl Reading {
    /// Connects, starting the server of the data folder if need be.
    pub async fn open(target: &Target) -> Result<Self, Stop> {
        let is_asleep =
            target.nats.is_none() && local::running(&target.data).is_none() && local::has_store(&target.data);
        if !is_asleep {
            return Ok(Self { bus: target.connect().await?, server: None });
        }
        let options = Options::on(&target.data);
        let server = Cluster::start_with(options, Vec::new()).await.map_err(Stop::environment)?;
        match join(server.info()).await {
            Ok(bus) => Ok(Self { bus, server: Some(server) }),
            Err(fault) => {
                server.stop().await;
                Err(fault.into())
            }
        }
    }

    /// Whether nobody works on what is under way.
    pub fn is_asleep(&self) -> bool {
        self.server.is_some()
    }

    /// Reads, and stops what was started for it.
    pub async fn with<T>(self, work: impl AsyncFnOnce(&Bus) -> Result<T, Stop>) -> Result<T, Stop> {
        let read = work(&self.bus).await;
        if let Some(server) = self.server {
            server.stop().await;
        }
        read
    }
}

/// Connects to a local cluster, which may be just starting.
pub async fn join(info: &ClusterInfo) -> Result<Bus, Fault> {
    let credentials = Credentials::Password { user: info.user.clone(), password: info.password.clone() };
    let connection = Connection { credentials, ..Connection::open(info.url.clone()) };
    Bus::join(&connection, "millrace", PATIENCE).await
}

/// Hands a run in under a new id.
pub async fn submit(bus: &Bus, submission: &Submission) -> Result<RunId, Stop> {
    for _ in 0..10 {
        let run = RunId::made(Timestamp::now(), uuid::Uuid::new_v4().as_fields().0);
        match append(bus, bus.lane(&run), &run, &Topic::Submitted, submission, 0).await {
            Ok(_) => return Ok(run),
            // Somebody was given the same id in the same second: another one.
            Err(AppendError::Fenced { .. }) => {}
            Err(AppendError::Fault(fault)) => return Err(fault.into()),
        }
    }
    Err(Stop::environment(anyhow!("no free run id was found in ten tries")))
}

/// All runs, oldest first. One that no supervisor has summed up yet, as after a restore, is folded here; one that has
/// not begun has no summary.
pub async fn runs(bus: &Bus) -> Result<Vec<(RunId, Option<RunSummary>)>, Fault> {
    let summaries = registry::runs(bus).await?.into_iter();
    let mut runs: Vec<_> = summaries.map(|summary| (summary.run.clone(), Some(summary))).collect();
    let known: BTreeSet<RunId> = runs.iter().map(|(run, _)| run.clone()).collect();
    for run in handed_in(bus).await?.into_iter().filter(|run| !known.contains(run)) {
        let plan = story(bus, &run).await?.plan;
        let summary = RunSummary::of(&run, bus.lane(&run), &plan, Timestamp::now());
        runs.push((run, summary));
    }
    runs.sort_by_key(|(_, summary)| summary.as_ref().map_or(Timestamp::MAX, |summary| summary.started));
    Ok(runs)
}

/// The run that a text names: a whole id, or the beginning of just one; the newest for `latest`.
pub async fn find(bus: &Bus, text: &str) -> Result<RunId, Stop> {
    let runs = registry::runs(bus).await?;
    if text == "latest" {
        return newest(bus, runs.last().map(|summary| summary.run.clone())).await;
    }
    if let Ok(run) = RunId::new(text)
        && (runs.iter().any(|summary| summary.run == run)
            || !archive::find_run(bus, bus.lane(&run), &run).await?.is_empty())
    {
        return Ok(run);
    }
    let known: BTreeSet<RunId> =
        handed_in(bus).await?.into_iter().chain(runs.into_iter().map(|one| one.run)).collect();
    let mut found = known.iter().filter(|run| run.as_str().starts_with(text));
    match (found.next(), found.next()) {
        (Some(run), None) => Ok(run.clone()),
        (Some(one), Some(two)) => {
            Err(Stop::refused(anyhow!("{text:?} may be run {one} or {two}: give more of the id")))
        }
        (None, _) => Err(Stop::refused(anyhow!(
            "there is no run {text:?}; `millrace list` shows those that there are"
        ))),
    }
}

/// The newest run. One that was only just handed in has no summary yet; ids begin with their time.
async fn newest(bus: &Bus, known: Option<RunId>) -> Result<RunId, Stop> {
    let newest = handed_in(bus).await?.into_iter().chain(known).max();
    newest.ok_or_else(|| Stop::refused(anyhow!("there are no runs yet")))
}

/// The decisions of a run from its first on, with their sequences, as they are made. Ends with the one that ends the
/// run and that no other follows: a run that used up what it may use can have been gone on with.
pub fn follow(bus: &Bus, run: &RunId) -> mpsc::Receiver<Result<(u64, Decision), Fault>> {
    let (to, from) = mpsc::channel(64);
    let (bus, run) = (bus.clone(), run.clone());
    tokio::spawn(async move {
        if let Err(fault) = follow_into(&bus, &run, &to).await {
            // Nobody listens any more: nobody needs to know.
            let _ = to.send(Err(fault)).await;
        }
    });
    from
}

async fn follow_into(
    bus: &Bus,
    run: &RunId,
    to: &mpsc::Sender<Result<(u64, Decision), Fault>>,
) -> Result<(), Fault> {
    let lane = bus.lane(run);
    let (records, mut arrived) = mpsc::channel(16);
    let mut tail = Tail::subject(bus, lane, subject::topic(lane, run, &Topic::Plan), 1);
    // The reader may not be cancelled in mid-read, so that it has a task of its own, which ends when it is not heard.
    let reader = tokio::spawn(async move { while records.send(tail.next().await).await.is_ok() {} });
    let mut position = Position::default();
    let followed = loop {
        let records = match tokio::time::timeout(QUIET, arrived.recv()).await {
            Ok(Some(records)) => records,
            Ok(None) => break Ok(()),
            Err(_) => match patiently(|| archived(bus, run)).await? {
                Some(records) => records,
                None => continue,
            },
        };
        match pass_on(bus, records, &mut position, to).await {
            _ if to.is_closed() => break Ok(()),
            Ok(()) => {}
            Err(fault) => break Err(fault),
        }
        let is_over = match position.end {
            Ended::No => false,
            Ended::Resumable => {
                patiently(|| last_decision(bus, run)).await?.is_none_or(|last| last <= position.seen)
            }
            Ended::ForGood => true,
        };
        if is_over {
            break Ok(());
        }
    };
    reader.abort();
    followed
}

/// The records of a run that has been archived, if it has.
pub async fn archived(bus: &Bus, run: &RunId) -> Result<Option<Vec<Record>>, Fault> {
    match registry::summary(bus, run).await? {
        Some(summary) if summary.archived => archive::read(bus, run).await,
        Some(_) | None => Ok(None),
    }
}

/// Asks again for as long as a server that is gone for a while may need to come back.
pub async fn patiently<T, F>(ask: impl Fn() -> F) -> Result<T, Fault>
where
    F: Future<Output = Result<T, Fault>>,
{
    let started = tokio::time::Instant::now();
    loop {
        match ask().await {
            Err(fault) if fault.is_transient() && started.elapsed() < OUTAGE => {
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
            answered => return answered,
        }
    }
}

/// How far a run was followed.
#[derive(Default)]
struct Position {
    /// The last decision that was seen.
    seen: u64,
    /// How the run stood behind it.
    end: Ended,
}

#[derive(Default, Clone, Copy)]
enum Ended {
    #[default]
    No,
    Resumable,
    ForGood,
}

impl Position {
    fn take(&mut self, event: &Event) {
        if let Event::RunEnded { reason, .. } = event {
            self.end = if reason.is_resumable() { Ended::Resumable } else { Ended::ForGood };
        } else if matches!(event, Event::RunRetired) {
            self.end = Ended::ForGood;
        } else if matches!(event, Event::RunReopened) {
            self.end = Ended::No;
        }
    }
}

/// The sequence of the last decision of a run in its lane; `None` where the lane has none any more.
async fn last_decision(bus: &Bus, run: &RunId) -> Result<Option<u64>, Fault> {
    let lane = bus.lane(run);
    let plan = [subject::topic(lane, run, &Topic::Plan)];
    let last = last_of_each(bus.client(), &lane_stream(lane), &plan).await?;
    Ok(last.unwrap_or_default().last().map(|record| record.sequence))
}

/// Passes the decisions among `records` on that come after those that were seen.
async fn pass_on(
    bus: &Bus,
    records: Vec<Record>,
    position: &mut Position,
    to: &mpsc::Sender<Result<(u64, Decision), Fault>>,
) -> Result<(), Fault> {
    for record in records {
        let is_plan = matches!(subject::parse(&record.subject), Some((_, _, Topic::Plan)));
        if !is_plan || record.is_stray || record.sequence <= position.seen {
            continue;
        }
        position.seen = record.sequence;
        let decision: Decision = bus.open(&record).await?;
        decision.events.iter().for_each(|event| position.take(event));
        if to.send(Ok((record.sequence, decision))).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// A run as the log tells it, to its last decision.
pub async fn story(bus: &Bus, run: &RunId) -> Result<Story, Fault> {
    let mut story = Story::default();
    for record in archive::find_run(bus, bus.lane(run), run).await? {
        if !record.is_stray && matches!(subject::parse(&record.subject), Some((_, _, Topic::Plan))) {
            story.take(&bus.open::<Decision>(&record).await?);
        }
    }
    Ok(story)
}

/// The result of a task's current attempt; `None` if it has none.
pub async fn result_of(
    bus: &Bus,
    run: &RunId,
    plan: &Plan,
    task: &TaskId,
) -> Result<Option<TaskResult>, Fault> {
    let end = plan.task(task).and_then(|task| task.current()).and_then(|attempt| attempt.end.as_ref());
    let Some(AttemptEnd::Finished { at_sequence, .. }) = end else { return Ok(None) };
    patiently(|| read_result(bus, run, task, *at_sequence)).await
}

async fn read_result(
    bus: &Bus,
    run: &RunId,
    task: &TaskId,
    at_sequence: u64,
) -> Result<Option<TaskResult>, Fault> {
    let record = find_record(bus, bus.lane(run), run, at_sequence).await?;
    let garbage = |garbage| Fault::Garbage { subject: task.to_string(), sequence: at_sequence, garbage };
    match bus.open::<Entry>(&record).await? {
        Entry::Outcome { outcome: Outcome::Finished { result, .. }, .. } => {
            let bytes = bus.blobs().resolve(&result).await?;
            wire::read_result(&bytes).map(Some).map_err(garbage)
        }
        Entry::Outcome { .. }
        | Entry::Claimed { .. }
        | Entry::Step { .. }
        | Entry::Note { .. }
        | Entry::Released { .. } => Ok(None),
    }
}

async fn find_record(bus: &Bus, lane: Lane, run: &RunId, sequence: u64) -> Result<Record, Fault> {
    if let Some(record) = read_one(bus, lane, sequence).await? {
        return Ok(record);
    }
    let kept = archive::read(bus, run).await?.unwrap_or_default();
    kept.into_iter().find(|record| record.sequence == sequence).ok_or_else(|| {
        Fault::unavailable(format!("reading message {sequence} of run {run}"), "it is not there")
    })
}
