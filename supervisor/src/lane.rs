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

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::ids::{Capability, Lane, RunId, TaskId, WorkerId};
use millrace_protocol::plan::{
    Cluster, Decision, Effect, Fact, MayBeMissing, TaskState, Work, in_hand, is_owed,
};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::work::Order;
use millrace_runtime::lease::Lease;
use millrace_runtime::log::{AppendError, append};
use millrace_runtime::{Bus, Fault, archive, queue, registry};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use crate::closing;
use crate::live::{LiveRun, Phase};
use crate::order::{order, queue as queue_of};
use crate::reader::{self, Item};
use crate::standing::LaneStanding;
use crate::window::Windows;

/// How long a claim may wait for company: nothing is owed for a claim, so that it can share an append with the
/// outcome that soon follows.
const CLAIM_PATIENCE: Duration = Duration::from_millis(5);
/// How often backoffs are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How often, in ticks, all clocks are looked at and summaries are written.
const CLOCK_TICKS: u64 = 20;
/// How often, in ticks, orders that stand in a queue are offered again, in case it has lost them.
const OFFER_TICKS: u64 = 600;
/// How long a run must wait for a capability before it is said to be missing.
const CAPABILITY_PATIENCE: Duration = Duration::from_secs(3);
/// How long work that could not be offered waits before it is tried again.
const OFFER_AGAIN: Duration = Duration::from_millis(200);

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
    tasks: Vec<JoinHandle<()>>,
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
            critic: crate::order::named(millrace_protocol::subject::CRITIC),
            patient: BTreeSet::new(),
            flush_is_due: false,
            ticks: 0,
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
        state.tasks.drain(..).for_each(|task| task.abort());
        info!(lane = %state.lane, runs = state.runs.len(), "gave the lane up");
        Ok(())
    }
}

/// Whether a run is over and in the archive.
async fn is_archived(bus: &Bus, run: &RunId) -> Result<bool, Fault> {
    let summary = registry::summary(bus, run).await?;
    if !summary.is_some_and(|summary| summary.archived) {
        return Ok(false);
    }
    let holds = archive::holds(bus, run).await?;
    if !holds {
        warn!(%run, "a run is said to be in the archive, which does not hold it: the lane counts");
    }
    Ok(holds)
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

    // ---- the beginning

    fn begin(&mut self, myself: &ActorRef<Message>, runs: HashMap<RunId, LiveRun>, through: u64) {
        info!(lane = %self.lane, runs = runs.len(), through, "took the lane");
        self.windows.set_slots(self.known.borrow().slots.clone());
        self.standing.folded(through, runs.len());
        self.runs = runs;
        let ids: Vec<RunId> = self.runs.keys().cloned().collect();
        for run in ids {
            self.resume(myself, &run);
        }
        self.tasks.push(tokio::spawn(reader::follow(self.bus.clone(), self.lane, through, myself.clone())));
        let to = myself.clone();
        self.tasks.push(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TICK);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            loop {
                ticks.tick().await;
                if to.cast(Message::Tick).is_err() {
                    return;
                }
            }
        }));
    }

    /// Goes on with a run that was folded: what is owed, and what was never answered.
    fn resume(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        if live.phase != Phase::Parked {
            self.look_up(myself, run);
        }
    }

    fn go_on(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        live.phase = Phase::Idle;
        let effects = live.owed_in_all();
        self.carry_out(myself, run, effects);
        self.offer_in_hand(myself, run);
        self.advance(myself, run);
    }

    // ---- what comes in

    fn take(&mut self, myself: &ActorRef<Message>, items: Vec<(RunId, Item)>, through: u64) {
        self.standing.read(through);
        let (mut touched, mut freed) = (BTreeSet::new(), BTreeSet::new());
        for (run, item) in items {
            freed.extend(self.take_one(myself, &run, item));
            if !touched.contains(&run) {
                touched.insert(run);
            }
        }
        // What many claims make room for is offered together.
        for (capability, run) in freed {
            self.offer(myself, &capability, &run);
        }
        for run in touched {
            self.advance(myself, &run);
        }
    }

    /// Takes one item in; gives the queue in which it freed a place.
    fn take_one(
        &mut self,
        myself: &ActorRef<Message>,
        run: &RunId,
        item: Item,
    ) -> Option<(Capability, RunId)> {
        match item {
            Item::Taken(topic) => return self.taken(run, &topic),
            Item::Fact { sequence, fact } => match (self.runs.get_mut(run), fact.as_ref()) {
                (Some(live), _) => live.receive(sequence, *fact),
                (None, Fact::Submitted(_)) => {
                    self.runs.entry(run.clone()).or_default().receive(sequence, *fact);
                    self.look_up(myself, run);
                }
                (None, _) => warn!(%run, sequence, "a fact about an unknown run is passed over"),
            },
            Item::Heard(task, at) => {
                if let Some(live) = self.runs.get_mut(run) {
                    live.hear(&task, at);
                }
            }
            Item::Decided { sequence } => self.decided(myself, run, sequence),
            Item::Stray { sequence } => {
                if let Some(live) = self.runs.get_mut(run) {
                    live.pass_over(sequence);
                }
            }
        }
        None
    }

    /// A run that is in the archive is over, whatever of it the lane still holds: it was handed in again, or read while
    /// another owner was removing it. That is marked before anything is removed, so that asking after reading tells. The
    /// mark alone is not believed: what the archive does not hold is nowhere else.
    fn look_up(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        live.phase = Phase::Looking;
        let (bus, run, to) = (self.bus.clone(), run.clone(), myself.clone());
        tokio::spawn(async move {
            match is_archived(&bus, &run).await {
                Ok(archived) => tell(&to, Message::Looked(run, archived)),
                Err(fault) => tell(&to, Message::Broken(fault)),
            }
        });
    }

    fn looked(&mut self, myself: &ActorRef<Message>, run: &RunId, archived: bool) {
        let Some(live) = self.runs.get_mut(run).filter(|live| live.phase == Phase::Looking) else { return };
        if !archived && live.is_submitted() {
            self.go_on(myself, run);
            return;
        }
        self.runs.remove(run);
        if archived {
            warn!(%run, "late messages of a run that is in the archive are removed");
            let (bus, lane, run) = (self.bus.clone(), self.lane, run.clone());
            tokio::spawn(async move {
                if let Err(fault) = millrace_runtime::log::purge_run(&bus, lane, &run, u64::MAX - 1).await {
                    debug!(%run, %fault, "they could not be removed");
                }
            });
        } else {
            warn!(%run, "messages of a run that was never handed in are passed over");
        }
    }

    /// Work was claimed: its place in the queue is free. Gives the queue, if it was offered there by us.
    fn taken(&mut self, run: &RunId, topic: &Topic) -> Option<(Capability, RunId)> {
        let live = self.runs.get(run)?;
        let work = match topic {
            Topic::Task(task, attempt) => Work::Task { task: task.clone(), attempt: *attempt },
            Topic::Review(task, attempt) => Work::Review { task: task.clone(), attempt: *attempt, review: 1 },
            Topic::Planning(turn, attempt) => Work::Planning { turn: *turn, attempt: *attempt },
            Topic::Submitted | Topic::Plan | Topic::Control => return None,
        };
        let capability = queue_of(&live.plan, &work)?;
        self.windows.claimed(&capability, run, topic).then(|| (capability, run.clone()))
    }

    /// A decision was read. Ours are known by their sequences; one that is not says that somebody else owns the lane
    /// too, and knows more of this run than we do.
    fn decided(&mut self, myself: &ActorRef<Message>, run: &RunId, sequence: u64) {
        let Some(live) = self.runs.get_mut(run) else { return };
        match live.phase {
            // The message that says so may still be on its way to us.
            Phase::Appending => live.unexplained = live.unexplained.max(sequence),
            Phase::Looking | Phase::Idle | Phase::Closing if sequence > live.last => {
                warn!(%run, sequence, last = live.last, "another owner has decided on this run");
                self.refold(myself, run);
            }
            Phase::Looking | Phase::Idle | Phase::Closing | Phase::Refolding | Phase::Parked => {}
        }
    }

    // ---- deciding

    /// Decides on what has arrived for a run, if nothing of it is under way.
    fn advance(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        if live.phase != Phase::Idle || !live.has_work() {
            return;
        }
        if !live.is_urgent() {
            self.wait_for_company(myself, run);
            return;
        }
        self.decide(myself, run);
    }

    fn wait_for_company(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        self.patient.insert(run.clone());
        if !self.flush_is_due {
            self.flush_is_due = true;
            drop(myself.send_after(CLAIM_PATIENCE, || Message::Flush));
        }
    }

    fn flush(&mut self, myself: &ActorRef<Message>) {
        self.flush_is_due = false;
        for run in std::mem::take(&mut self.patient) {
            if self.runs.get(&run).is_some_and(|live| live.phase == Phase::Idle && live.has_work()) {
                self.decide(myself, &run);
            }
        }
    }

    fn decide(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        let now = Timestamp::now();
        let known = Arc::clone(&self.known.borrow());
        let Some(decision) = live.decide(&self.me, &known.cluster, may_be_missing(live, now), now) else {
            return;
        };
        live.phase = Phase::Appending;
        live.is_unreported = true;
        let last = live.last;
        self.append(myself, run, decision, last);
    }

    fn append(&self, myself: &ActorRef<Message>, run: &RunId, decision: Decision, last: u64) {
        let (bus, lane, run, to) = (self.bus.clone(), self.lane, run.clone(), myself.clone());
        tokio::spawn(async move {
            let result = append(&bus, lane, &run, &Topic::Plan, &decision, last).await;
            tell(&to, Message::Appended(run, result));
        });
    }

    fn appended(
        &mut self,
        myself: &ActorRef<Message>,
        run: &RunId,
        result: Result<u64, AppendError>,
    ) -> Result<(), ActorProcessingErr> {
        let Some(live) = self.runs.get_mut(run) else { return Ok(()) };
        let sequence = match result {
            Ok(sequence) if live.unexplained <= sequence => sequence,
            Ok(sequence) => {
                warn!(%run, sequence, unexplained = live.unexplained, "another owner has decided on this run");
                self.refold(myself, run);
                return Ok(());
            }
            Err(AppendError::Fenced { last }) => {
                warn!(%run, last, ours = live.last, "refused: another owner has extended this run");
                self.refold(myself, run);
                return Ok(());
            }
            Err(AppendError::Fault(fault)) => return Err(fault.into()),
        };
        self.standing.decisions.one();
        live.last = live.last.max(sequence);
        live.phase = Phase::Idle;
        let (effects, touched) = live.owed();
        // Whoever waits for its end may stop the cluster then; what was archived says so by itself.
        let is_resumable = live.plan.is_resumable();
        self.free_places(run, &touched);
        self.carry_out(myself, run, effects);
        self.advance(myself, run);
        if is_resumable {
            self.report();
        }
        Ok(())
    }

    /// Work that the plan does not wait for any more has no place in a queue, whether its claim was seen or not.
    fn free_places(&mut self, run: &RunId, touched: &BTreeSet<TaskId>) {
        let Some(live) = self.runs.get(run) else { return };
        for task in touched.iter().filter_map(|id| live.plan.task(id)) {
            let (id, attempt) = (&task.spec.id, task.attempt);
            if !matches!(task.state, TaskState::Ready | TaskState::Rerun) {
                self.windows.claimed(&task.spec.capability, run, &Topic::Task(id.clone(), attempt));
            }
            if task.state != TaskState::NeedsReview && !task.asked.is_none() {
                self.windows.claimed(&self.critic, run, &Topic::Review(id.clone(), attempt));
            }
        }
    }

    // ---- carrying out

    fn carry_out(&mut self, myself: &ActorRef<Message>, run: &RunId, effects: Vec<Effect>) {
        let mut queues = BTreeSet::new();
        for effect in effects {
            match effect {
                Effect::Offer(work) => {
                    let Some(live) = self.runs.get(run) else { return };
                    let Some(capability) = queue_of(&live.plan, &work) else { continue };
                    self.windows.add(&capability, run, work);
                    if !queues.contains(&capability) {
                        queues.insert(capability);
                    }
                }
                Effect::Withdraw(work, capability) => self.withdraw(run, work, capability),
                Effect::Close => self.close(myself, run),
            }
        }
        for capability in queues {
            self.offer(myself, &capability, run);
        }
    }

    /// Puts as much of a run's work in a queue as its share allows.
    fn offer(&mut self, myself: &ActorRef<Message>, capability: &Capability, run: &RunId) {
        let Some(live) = self.runs.get(run) else { return };
        let works = self.windows.open(capability, run, |work| is_owed(&live.plan, work));
        self.put(myself, run, works);
    }

    fn put(&self, myself: &ActorRef<Message>, run: &RunId, works: Vec<Work>) {
        let Some(live) = self.runs.get(run) else { return };
        let orders: Vec<Order> =
            works.iter().filter_map(|work| order(run, self.lane, &live.plan, live.last, work)).collect();
        if orders.is_empty() {
            return;
        }
        let (bus, to) = (self.bus.clone(), myself.clone());
        tokio::spawn(async move {
            if let Err((orders, fault)) = queue::offer(&bus, orders).await {
                warn!(%fault, orders = orders.len(), "work could not be offered; trying again");
                let works = orders.into_iter().map(|order| {
                    let queue = subject::queue(&order.capability, &order.work);
                    (crate::order::named(queue), order.run, order.work)
                });
                let works = works.collect();
                tokio::time::sleep(OFFER_AGAIN).await;
                tell(&to, Message::NotOffered(works));
            }
        });
    }

    /// Offers what workers have in hand, past the windows: it takes no place of work that waits. The queue refuses what
    /// it still has, and what it has lost comes to another worker when its own is lost.
    fn offer_in_hand(&self, myself: &ActorRef<Message>, run: &RunId) {
        if let Some(live) = self.runs.get(run) {
            self.put(myself, run, in_hand(&live.plan));
        }
    }

    fn not_offered(&mut self, works: Vec<(Capability, RunId, Work)>) {
        for (capability, run, work) in works.into_iter().rev() {
            self.windows.put_back(&capability, &run, work);
        }
    }

    fn withdraw(&mut self, run: &RunId, work: Work, capability: Capability) {
        self.windows.withdraw(&capability, run, &work);
        let (bus, run) = (self.bus.clone(), run.clone());
        tokio::spawn(async move {
            // What is missed here is told by the journal: the plan waits for another attempt, or for none.
            if let Err(fault) = queue::withdraw(&bus, &run, &capability, &work).await {
                debug!(%run, %fault, "an order could not be withdrawn");
            }
            if let Err(fault) = queue::stop(&bus, &run, Some(&work)).await {
                debug!(%run, %fault, "a worker could not be told to stop");
            }
        });
    }

    fn close(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        if live.phase == Phase::Closing {
            return;
        }
        live.phase = Phase::Closing;
        live.is_unreported = false;
        self.windows.forget(run);
        let Some(summary) = RunSummary::of(run, self.lane, &live.plan, Timestamp::now()) else { return };
        let (bus, end, linger, to) = (self.bus.clone(), live.last, self.linger, myself.clone());
        tokio::spawn(async move {
            let run = summary.run.clone();
            closing::close(&bus, summary, end, linger).await;
            tell(&to, Message::Closed(run));
        });
    }

    fn closed(&mut self, run: &RunId) {
        self.runs.remove(run);
        self.patient.remove(run);
    }

    // ---- another owner was there

    fn refold(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        live.phase = Phase::Refolding;
        self.windows.forget(run);
        let (bus, lane, run, to) = (self.bus.clone(), self.lane, run.clone(), myself.clone());
        tokio::spawn(async move {
            match reader::refold(&bus, lane, &run).await {
                Ok(live) => tell(&to, Message::Refolded(run, Box::new(live))),
                Err(fault) => tell(&to, Message::Broken(fault)),
            }
        });
    }

    fn refolded(&mut self, myself: &ActorRef<Message>, run: RunId, mut live: LiveRun) {
        if let Some(mut old) = self.runs.remove(&run) {
            live.receive_all(old.take_inbox());
        }
        self.runs.insert(run.clone(), live);
        self.resume(myself, &run);
    }

    // ---- the world outside

    fn learn(&mut self, myself: &ActorRef<Message>) {
        self.windows.set_slots(self.known.borrow_and_update().slots.clone());
        self.runs.values_mut().for_each(LiveRun::ask_cluster);
        self.offer_waiting(myself);
    }

    fn offer_waiting(&mut self, myself: &ActorRef<Message>) {
        for (capability, run) in self.windows.waiting() {
            self.offer(myself, &capability, &run);
        }
    }

    fn tick(&mut self, myself: &ActorRef<Message>) {
        self.ticks += 1;
        let all_clocks = self.ticks.is_multiple_of(CLOCK_TICKS);
        let now = Timestamp::now();
        let mut due = Vec::new();
        for (run, live) in &mut self.runs {
            live.look_at_clocks(now, all_clocks);
            let asks = live.asks_cluster(may_be_missing(live, now));
            if live.phase == Phase::Idle && (asks || live.is_urgent()) {
                due.push(run.clone());
            }
        }
        for run in due {
            self.decide(myself, &run);
        }
        if all_clocks {
            self.standing.holds(self.runs.len());
            self.report();
            self.offer_waiting(myself);
        }
        if self.ticks.is_multiple_of(OFFER_TICKS) {
            for (run, work) in self.windows.offered() {
                self.put(myself, &run, vec![work]);
            }
            self.runs.keys().for_each(|run| self.offer_in_hand(myself, run));
        }
    }

    /// Writes the summaries of runs that have changed.
    fn report(&mut self) {
        let now = Timestamp::now();
        // A run that ended and is archived has its last word there; one that can be gone on with stays in the lane.
        let stays = |live: &LiveRun| live.plan.is_live() || live.plan.is_resumable();
        let changed = self.runs.iter_mut().filter(|(_, live)| live.is_unreported && stays(live));
        let summaries: Vec<RunSummary> = changed
            .filter_map(|(run, live)| {
                live.is_unreported = false;
                RunSummary::of(run, self.lane, &live.plan, now)
            })
            .collect();
        if summaries.is_empty() {
            return;
        }
        let bus = self.bus.clone();
        tokio::spawn(async move {
            for summary in summaries {
                if let Err(fault) = registry::summarise(&bus, &summary).await {
                    debug!(run = %summary.run, %fault, "a summary could not be written");
                }
            }
        });
    }
}

/// Whether a capability that is not known is missing: workers that start together with the run need a moment to say
/// what they offer.
fn may_be_missing(live: &LiveRun, now: Timestamp) -> MayBeMissing {
    let start = live.plan.start.as_ref();
    let is_over = |at: Timestamp| now.duration_since(at).unsigned_abs() >= CAPABILITY_PATIENCE;
    if start.is_some_and(|start| is_over(start.at)) { MayBeMissing::Yes } else { MayBeMissing::NotYet }
}
