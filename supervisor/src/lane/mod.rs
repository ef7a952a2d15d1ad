//! The owner of one lane: the actor that decides.
//!
//! It owns the runs of its lane, folded, live ones only. It is linked to the supervisor's root; it dies when it can't
//! write to the log or its lease is stale, and is then started anew from the log. At its start it reads the lane,
//! folds it, asks each plan what is owed, and decides on the facts that no decision has answered; a restart and a
//! takeover are the same thing.
//!
//! `handle` never waits for the outside: appends, offers, reads and archiving run as tasks that send their results
//! back as messages. Per run one decision is in flight at a time; what arrives meanwhile goes into the next one.
//! Effects are carried out only when their decision is in the log.
//!
//! | file | what the actor does there |
//! |---|---|
//! | `folding` | runs come into its hands: read, read anew, looked up in the archive |
//! | `intake` | what comes in from the lane finds its run |
//! | `deciding` | the rules are asked, what they say is appended and then carried out |
//! | `offering` | orders come into queues and out of them |
//! | `timers` | what time brings about |
//! | `telling` | summaries, and the end of a run |

mod deciding;
mod folding;
mod intake;
mod offering;
mod telling;
mod timers;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use millrace_protocol::ids::{Capability, Lane, RunId, WorkerId};
use millrace_protocol::plan::{Cluster, Work};
use millrace_protocol::subject::CRITIC;
use millrace_runtime::lease::Lease;
use millrace_runtime::log::AppendError;
use millrace_runtime::{Bus, Fault};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{Mutex, OwnedSemaphorePermit, watch};
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use crate::live::LiveRun;
use crate::order::named;
use crate::reader::{self, Item};
use crate::standing::LaneStanding;
use crate::window::Windows;

/// What a lane's owner needs to begin.
pub struct Arguments {
    /// The cluster.
    pub bus: Bus,
    /// The lane.
    pub lane: Lane,
    /// Who we are.
    pub me: WorkerId,
    /// The lease, as the keeper renews it.
    pub lease: watch::Receiver<Lease>,
    /// What the cluster can do, as the keeper learns it.
    pub known: watch::Receiver<Arc<Known>>,
    /// How long a run stays in the lane after its end, for those who watch it.
    pub linger: Duration,
    /// How the lane stands, for those who look.
    pub standing: Arc<LaneStanding>,
}

/// What the cluster can do.
#[derive(Debug, Default, PartialEq)]
pub struct Known {
    /// The capabilities that are registered, and what they take.
    pub cluster: Cluster,
    /// How many slots live workers have for each.
    pub slots: BTreeMap<Capability, usize>,
}

/// What the actor is told.
pub enum Message {
    /// The lane was read; the sequence is that of the last message.
    CaughtUp(HashMap<RunId, LiveRun>, u64),
    /// Something must not go on.
    Broken(Fault),
    /// Messages came, up to this sequence.
    Items(Vec<(RunId, Item)>, u64, OwnedSemaphorePermit),
    /// It is known whether a run that was handed in, or of which there are facts only, is in the archive already.
    Looked(RunId, bool),
    /// An append ended.
    Appended(RunId, Result<u64, AppendError>),
    /// A run was read anew.
    Refolded(RunId, Box<LiveRun>),
    /// Orders could not be put in their queues.
    NotOffered(Vec<(Capability, RunId, Work)>),
    /// Summaries were written, but not those of these runs.
    Reported(Vec<RunId>),
    /// A run is in the archive and out of the lane.
    Closed(RunId),
    /// What the cluster can do has changed.
    Known,
    /// Claims have waited long enough.
    Flush,
    /// Time has passed.
    Tick,
}

/// The owner of a lane.
pub struct LaneOwner;

/// What the actor holds.
pub struct State {
    bus: Bus,
    lane: Lane,
    me: WorkerId,
    lease: watch::Receiver<Lease>,
    known: watch::Receiver<Arc<Known>>,
    linger: Duration,
    standing: Arc<LaneStanding>,
    runs: HashMap<RunId, LiveRun>,
    windows: Windows,
    critic: Capability,
    /// Runs with claims that wait for company.
    patient: BTreeSet<RunId>,
    flush_is_due: bool,
    ticks: u64,
    /// Held by whoever writes summaries.
    pen: Arc<Mutex<()>>,
    /// Whether something was to be told while the pen was held.
    tells_again: bool,
    /// What reads for us for as long as we live.
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for State {
    /// However the actor ends, nobody reads for it any more.
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Actor for LaneOwner {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let Arguments { bus, lane, me, lease, known, linger, standing } = arguments;
        let (reading, to) = (bus.clone(), myself.clone());
        let catch_up = tokio::spawn(async move {
            let message = match reader::catch_up(&reading, lane).await {
                Ok((runs, through)) => Message::CaughtUp(runs, through),
                Err(fault) => Message::Broken(fault),
            };
            tell(&to, message);
        });
        let (mut changes, to) = (known.clone(), myself.clone());
        let registry = tokio::spawn(async move {
            while changes.changed().await.is_ok() && to.cast(Message::Known).is_ok() {}
        });
        Ok(State {
            bus,
            lane,
            me,
            lease,
            known,
            linger,
            standing,
            runs: HashMap::new(),
            windows: Windows::default(),
            critic: named(CRITIC),
            patient: BTreeSet::new(),
            flush_is_due: false,
            ticks: 0,
            pen: Arc::default(),
            tells_again: false,
            tasks: vec![catch_up, registry],
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        state.check_lease()?;
        match message {
            Message::CaughtUp(runs, through) => state.begin(&myself, runs, through),
            Message::Broken(fault) => return Err(fault.into()),
            Message::Items(items, through, _permit) => state.take(&myself, items, through),
            Message::Looked(run, archived) => state.looked(&myself, &run, archived),
            Message::Appended(run, result) => state.appended(&myself, &run, result)?,
            Message::Refolded(run, live) => state.refolded(&myself, run, *live),
            Message::NotOffered(works) => state.not_offered(works),
            Message::Reported(failed) => state.reported(&myself, &failed),
            Message::Closed(run) => state.closed(&run),
            Message::Known => state.learn(&myself),
            Message::Flush => state.flush(&myself),
            Message::Tick => state.tick(&myself),
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<Message>,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        info!(lane = %state.lane, runs = state.runs.len(), "gave the lane up");
        Ok(())
    }
}

/// An actor that has stopped needs no messages.
fn tell(to: &ActorRef<Message>, message: Message) {
    if to.cast(message).is_err() {
        debug!("a lane's owner was told something after it had stopped");
    }
}

impl State {
    /// A process that was stopped for a while wakes up here: it must not go on as if nothing had happened.
    fn check_lease(&self) -> Result<(), ActorProcessingErr> {
        if self.lease.borrow().is_stale(&self.bus) {
            warn!(lane = %self.lane, "the lease is stale; stepping down");
            self.standing.lost();
            return Err(format!("the lease of lane {} is stale", self.lane).into());
        }
        Ok(())
    }
}
