//! Reading a lane: first what is there, folded run by run; then what comes, as items for the lane's actor. Messages
//! that can't be read are logged with their ids, counted and passed over: the lane goes on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use millrace_protocol::ids::{Lane, RunId, TaskId};
use millrace_protocol::plan::{Command, Control, Decision, Fact, Finished, Planned, Submission, Work};
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{Garbage, stored};
use millrace_protocol::work::{Entry, Outcome};
use millrace_runtime::fault::pause;
use millrace_runtime::record::Record;
use millrace_runtime::tail::Tail;
use millrace_runtime::{Bus, Fault};
use ractor::{ActorRef, ActorStatus};
use tokio::sync::Semaphore;
use tracing::{error, warn};

use crate::lane;
use crate::live::{LiveRun, Phase};

/// How many messages this process could not read.
static PASSED_OVER: AtomicU64 = AtomicU64::new(0);
/// How many chunks may lie in the actor's mailbox: mailboxes have no bound of their own.
const MAX_CHUNKS: usize = 8;

/// What a message of the lane means to its owner.
#[derive(Debug)]
pub enum Item {
    /// A decision: ours, or a sign that another owner was there.
    Decided {
        /// Its sequence.
        sequence: u64,
    },
    /// A message where decisions stand that nobody wrote there. It says nothing, but the next decision follows it.
    Stray {
        /// Its sequence.
        sequence: u64,
    },
    /// Something to decide on.
    Fact {
        /// Its sequence.
        sequence: u64,
        /// What it says.
        fact: Box<Fact>,
    },
    /// A worker, critic or planner took what this journal is of.
    Taken(Topic),
    /// A running attempt has written to its journal.
    Heard(TaskId, Timestamp),
}

/// Folds all that the lane holds. Gives the runs, and the sequence of the last message that was read.
///
/// # Errors
/// The server does not answer. That a decision can't be read parks its run, and the lane goes on.
pub async fn catch_up(bus: &Bus, lane: Lane) -> Result<(HashMap<RunId, LiveRun>, u64), Fault> {
    let mut folding: HashMap<RunId, Folding> = HashMap::new();
    let mut pages = millrace_runtime::log::read_lane(bus, lane);
    let mut through = 0;
    loop {
        let records = pages.next().await?;
        if records.is_empty() {
            break;
        }
        for record in records {
            through = record.sequence;
            let Some((_, run, topic)) = subject::parse(&record.subject) else {
                warn!(subject = %record.subject, through, "a message on an unknown subject is passed over");
                continue;
            };
            folding.entry(run).or_default().take(bus, topic, record).await?;
        }
    }
    let mut runs = HashMap::with_capacity(folding.len());
    for (run, folding) in folding {
        runs.insert(run, folding.finish(bus).await?);
    }
    Ok((runs, through))
}

/// Reads one run anew.
///
/// # Errors
/// The server does not answer.
pub async fn refold(bus: &Bus, lane: Lane, run: &RunId) -> Result<LiveRun, Fault> {
    let mut folding = Folding::default();
    for record in millrace_runtime::log::read_run(bus, lane, run, 1).await? {
        if let Some((_, _, topic)) = subject::parse(&record.subject) {
            folding.take(bus, topic, record).await?;
        }
    }
    folding.finish(bus).await
}

/// A run while it is read from the start: facts stay unread until it is known that no decision answered them.
#[derive(Default)]
struct Folding {
    live: LiveRun,
    facts: VecDeque<(Topic, Record)>,
}

impl Folding {
    async fn take(&mut self, bus: &Bus, topic: Topic, record: Record) -> Result<(), Fault> {
        if topic != Topic::Plan {
            self.facts.push_back((topic, record));
            return Ok(());
        }
        match bus.open::<Decision>(&record).await {
            Ok(decision) => self.live.fold(record.sequence, &decision),
            Err(fault) if fault.is_transient() => return Err(fault),
            Err(fault) => {
                self.live.last = record.sequence;
                if was_decided(&record) {
                    error!(%fault, "a decision can't be read; its run is left alone");
                    self.live.phase = Phase::Parked;
                } else {
                    warn!(%fault, "a message that is no decision is passed over");
                }
            }
        }
        let through = self.live.plan.through;
        while self.facts.front().is_some_and(|(_, fact)| fact.sequence <= through) {
            self.facts.pop_front();
        }
        Ok(())
    }

    async fn finish(mut self, bus: &Bus) -> Result<LiveRun, Fault> {
        for (topic, record) in self.facts {
            for item in read(bus, topic, &record).await? {
                match item {
                    Item::Fact { sequence, fact } => self.live.receive(sequence, *fact),
                    Item::Heard(task, at) => self.live.hear(&task, at),
                    Item::Decided { .. } | Item::Stray { .. } | Item::Taken(_) => {}
                }
            }
        }
        Ok(self.live)
    }
}

/// Whether a message on a `plan` subject that can't be read may hold something that was decided: it is an envelope of
/// a decision, or of a version that we do not know. Anything else was never written by a supervisor.
fn was_decided(record: &Record) -> bool {
    if record.is_stray {
        return false;
    }
    let envelope = stored::<Decision>(&record.payload, record.encoding);
    matches!(envelope, Ok(_) | Err(Garbage::UnknownVersion { .. }))
}

/// Reads the lane from behind `through` for ever and hands on what it says.
pub async fn follow(bus: Bus, lane: Lane, through: u64, to: ActorRef<lane::Message>) {
    let permits = Arc::new(Semaphore::new(MAX_CHUNKS));
    let mut tail = Tail::lane(&bus, lane, through + 1);
    loop {
        let records = tail.next().await;
        let through = records.last().map_or(0, |last| last.sequence);
        let mut items = Vec::with_capacity(records.len());
        for record in records {
            match subject::parse(&record.subject) {
                Some((_, run, topic)) => {
                    let Some(read) = read_at_last(&bus, &topic, &record, &to).await else { return };
                    items.extend(read.into_iter().map(|item| (run.clone(), item)));
                }
                None => {
                    let (subject, sequence) = (&record.subject, record.sequence);
                    warn!(%subject, sequence, "a message on an unknown subject is passed over");
                }
            }
        }
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        if to.cast(lane::Message::Items(items, through, permit)).is_err() {
            return;
        }
    }
}

/// What a message means, as soon as the server lets it be read: whatever is behind it waits. `None` when the lane was
/// given up meanwhile.
async fn read_at_last(
    bus: &Bus,
    topic: &Topic,
    record: &Record,
    to: &ActorRef<lane::Message>,
) -> Option<Vec<Item>> {
    let mut failures: u32 = 0;
    loop {
        let fault = match read(bus, topic.clone(), record).await {
            Ok(items) => return Some(items),
            Err(fault) => fault,
        };
        if matches!(to.get_status(), ActorStatus::Stopping | ActorStatus::Stopped) {
            return None;
        }
        if failures.is_multiple_of(20) {
            let (subject, sequence) = (&record.subject, record.sequence);
            warn!(%subject, sequence, %fault, failures, "a message can't be read yet; its lane waits for it");
        }
        failures += 1;
        tokio::time::sleep(pause(failures)).await;
    }
}

/// What a message means; nothing if it can't be read.
///
/// # Errors
/// The server does not answer: it may be readable later.
async fn read(bus: &Bus, topic: Topic, record: &Record) -> Result<Vec<Item>, Fault> {
    let sequence = record.sequence;
    let fact = |fact| vec![Item::Fact { sequence, fact: Box::new(fact) }];
    let read = match topic {
        Topic::Plan if record.is_stray => {
            warn!(subject = %record.subject, sequence, "a message that nobody wrote there is passed over");
            return Ok(vec![Item::Stray { sequence }]);
        }
        Topic::Plan => return Ok(vec![Item::Decided { sequence }]),
        Topic::Submitted => {
            bus.open::<Submission>(record).await.map(|it| fact(Fact::Submitted(Box::new(it))))
        }
        Topic::Control => command(bus, record).await.map(|it| fact(Fact::Control(it))),
        Topic::Task(..) | Topic::Review(..) | Topic::Planning(..) => {
            bus.open::<Entry>(record).await.map(|entry| of_entry(topic, entry, record))
        }
    };
    read.or_else(|fault| {
        if fault.is_transient() {
            return Err(fault);
        }
        let so_far = PASSED_OVER.fetch_add(1, Ordering::Relaxed) + 1;
        warn!(subject = %record.subject, sequence, %fault, so_far, "a message that can't be read is passed over");
        Ok(Vec::new())
    })
}

/// A user's command. One from before commands had names is known by where it stands.
async fn command(bus: &Bus, record: &Record) -> Result<Command, Fault> {
    match bus.open::<Command>(record).await {
        Err(Fault::Garbage { .. }) => {
            let control = bus.open::<Control>(record).await?;
            Ok(Command { id: format!("at-{}", record.sequence), by: String::new(), control })
        }
        read => read,
    }
}

fn of_entry(topic: Topic, entry: Entry, record: &Record) -> Vec<Item> {
    let sequence = record.sequence;
    match (topic, entry) {
        (topic, Entry::Claimed { worker, .. }) => {
            let work = match &topic {
                Topic::Task(task, attempt) => Work::Task { task: task.clone(), attempt: *attempt },
                Topic::Planning(turn, attempt) => Work::Planning { turn: *turn, attempt: *attempt },
                Topic::Review(..) | Topic::Submitted | Topic::Plan | Topic::Control => {
                    return vec![Item::Taken(topic)];
                }
            };
            vec![Item::Taken(topic), Item::Fact { sequence, fact: Box::new(Fact::Claimed(work, worker)) }]
        }
        (Topic::Task(task, _), Entry::Step { .. } | Entry::Note { .. }) => {
            vec![Item::Heard(task, record.time)]
        }
        (_, Entry::Step { .. } | Entry::Note { .. } | Entry::Released { .. }) => Vec::new(),
        (Topic::Task(task, attempt), Entry::Outcome { worker, outcome, .. }) => {
            let outcome = match outcome {
                Outcome::Finished { summary, is_empty, is_detailed, review, usage, models, result: _ } => {
                    Ok(Finished {
                        at_sequence: sequence,
                        summary,
                        is_empty,
                        is_detailed,
                        review,
                        usage,
                        models,
                    })
                }
                Outcome::Errored(error) => Err(error),
                Outcome::Judged(_) | Outcome::Proposed { .. } => Err(misplaced("a task")),
            };
            vec![Item::Fact { sequence, fact: Box::new(Fact::Ended { task, attempt, worker, outcome }) }]
        }
        (Topic::Review(task, attempt), Entry::Outcome { worker, review, outcome }) => {
            let outcome = match outcome {
                Outcome::Judged(verdict) => Ok(verdict),
                Outcome::Errored(error) => Err(error),
                Outcome::Finished { .. } | Outcome::Proposed { .. } => Err(misplaced("a review")),
            };
            let fact = Fact::Reviewed { task, attempt, review, critic: worker, outcome };
            vec![Item::Fact { sequence, fact: Box::new(fact) }]
        }
        (Topic::Planning(turn, attempt), Entry::Outcome { outcome, .. }) => {
            let outcome = match outcome {
                Outcome::Proposed { proposal, usage, models } => Ok(Planned { proposal, usage, models }),
                Outcome::Errored(error) => Err(error),
                Outcome::Finished { .. } | Outcome::Judged(_) => Err(misplaced("a planner's turn")),
            };
            vec![Item::Fact { sequence, fact: Box::new(Fact::Planned { turn, attempt, outcome }) }]
        }
        (Topic::Submitted | Topic::Plan | Topic::Control, Entry::Outcome { .. }) => Vec::new(),
    }
}

fn misplaced(of: &str) -> TaskError {
    TaskError::new(ErrorKind::Panic, format!("the journal of {of} ends with an outcome of another kind"))
}
