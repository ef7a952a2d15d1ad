//! The journal of one piece of work: a chain of entries on one subject of the lane. Each append names the entry
//! before it, so that of two workers that both believe they have the work exactly one goes on; the other is told at
//! its next append and drops it.

use millrace_protocol::ids::{Lane, RunId, WorkerId};
use millrace_protocol::plan::Work;
use millrace_protocol::result::{ErrorKind, MAX_MESSAGE, TaskError};
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::Blob;
use millrace_protocol::work::{Entry, Order, Outcome};
use tracing::{info, warn};

use crate::bus::Bus;
use crate::log::{AppendError, append, read_topic};

/// How often in a row a piece of work may be claimed and come no step further before it counts as a poison that kills
/// its workers.
pub const MAX_CLAIMS: u32 = 5;

/// What came of a claim.
pub enum Claim {
    /// The work is ours, with what earlier claims had done already.
    Ours(Journal),
    /// It is done: nothing is left but to acknowledge the order.
    Done,
    /// The run is over, or somebody else took the work in this very moment.
    Lost,
}

/// The journal of work that we hold.
pub struct Journal {
    bus: Bus,
    lane: Lane,
    run: RunId,
    topic: Topic,
    worker: WorkerId,
    review: u32,
    last: u64,
    steps: u32,
    /// The steps of earlier claims, oldest first, that have not been asked for again.
    recorded: std::collections::VecDeque<(String, Blob)>,
    claim: u32,
    /// The last claims, ours included, between which nothing was done; those that were given back do not count.
    barren: u32,
    /// How often it was given back since the last step.
    released: u32,
}

/// Why a step could not be written.
pub type JournalError = AppendError;

impl Journal {
    /// Claims the work of an order for `worker`. Optimistic: where nobody has claimed it before, one append does it.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn claim(bus: &Bus, order: &Order, worker: &WorkerId) -> Result<Claim, crate::Fault> {
        let mut journal = Self::unread(bus, order, worker);
        loop {
            let entry = Entry::Claimed { worker: worker.clone(), claim: journal.claim };
            match journal.append(&entry).await {
                Ok(()) => break,
                Err(AppendError::Fault(fault)) => return Err(fault),
                // It was emptied: the run is over and in the archive.
                Err(AppendError::Fenced { last: 0 }) => return Ok(Claim::Lost),
                Err(AppendError::Fenced { .. }) => {}
            }
            if journal.read().await? {
                return Ok(Claim::Done);
            }
        }
        if journal.barren > MAX_CLAIMS {
            return journal.abandon().await;
        }
        if journal.claim > 1 {
            let (claim, steps) = (journal.claim, journal.recorded.len());
            info!(run = %journal.run, topic = %journal.topic, claim, steps, "continuing another's work");
        }
        Ok(Claim::Ours(journal))
    }

    fn unread(bus: &Bus, order: &Order, worker: &WorkerId) -> Self {
        Self {
            bus: bus.clone(),
            lane: order.lane,
            run: order.run.clone(),
            topic: Topic::journal(&order.work),
            worker: worker.clone(),
            review: match order.work {
                Work::Review { review, .. } => review,
                Work::Task { .. } | Work::Planning { .. } => 0,
            },
            last: 0,
            steps: 0,
            recorded: std::collections::VecDeque::new(),
            claim: 1,
            barren: 1,
            released: 0,
        }
    }

    /// Reads what is there; says whether the work is done.
    async fn read(&mut self) -> Result<bool, crate::Fault> {
        self.recorded.clear();
        let (mut claims, mut barren, mut released) = (0, 0, 0);
        for record in read_topic(&self.bus, self.lane, &self.run, &self.topic).await? {
            self.last = record.sequence;
            match self.bus.open::<Entry>(&record).await {
                Ok(Entry::Claimed { .. }) => (claims, barren) = (claims + 1, barren + 1),
                Ok(Entry::Step { name, value, .. }) => {
                    self.recorded.push_back((name, value));
                    (barren, released) = (0, 0);
                }
                Ok(Entry::Note { .. }) => {}
                Ok(Entry::Released { .. }) => {
                    barren = u32::saturating_sub(barren, 1);
                    released += 1;
                }
                // A review can be asked for again after it came to nothing, with a higher number.
                Ok(Entry::Outcome { review, .. }) if review >= self.review => return Ok(true),
                Ok(Entry::Outcome { .. }) => {
                    self.recorded.clear();
                    (claims, barren, released) = (0, 0, 0);
                }
                Err(fault) if fault.is_transient() => return Err(fault),
                Err(fault) => warn!(%fault, "a journal entry is passed over"),
            }
        }
        (self.claim, self.barren, self.released) = (claims + 1, barren + 1, released);
        Ok(false)
    }

    async fn abandon(mut self) -> Result<Claim, crate::Fault> {
        let message = format!(
            "{MAX_CLAIMS} workers in a row claimed it and were lost before they came a step further; it may be killing them"
        );
        warn!(run = %self.run, topic = %self.topic, "giving work up: {message}");
        match self.finish(Outcome::Errored(TaskError::new(ErrorKind::Abandoned, message))).await {
            Ok(()) => Ok(Claim::Done),
            Err(AppendError::Fenced { .. }) => Ok(Claim::Lost),
            Err(AppendError::Fault(fault)) => Err(fault),
        }
    }

    /// The next step that an earlier claim did already, by name, taken out of the list.
    pub fn replay(&mut self) -> Option<(String, Blob)> {
        let step = self.recorded.pop_front();
        self.steps += u32::from(step.is_some());
        step
    }

    /// Which claim of this work this is, from 1.
    #[must_use]
    pub fn claim_number(&self) -> u32 {
        self.claim
    }

    /// Writes a step down: from here on it is never done again.
    ///
    /// # Errors
    /// Another worker has taken the work over, or the server does not answer.
    pub async fn step(&mut self, name: String, value: Blob) -> Result<(), JournalError> {
        self.append(&Entry::Step { number: self.steps + 1, name, value }).await?;
        self.steps += 1;
        Ok(())
    }

    /// Writes a sign of life.
    ///
    /// # Errors
    /// As for a step.
    pub async fn note(&mut self, text: String) -> Result<(), JournalError> {
        self.append(&Entry::Note { text }).await
    }

    /// Says that the work is given back for this reason, so that the claim counts for nothing. Nothing is written after
    /// it.
    ///
    /// # Errors
    /// As for a step.
    pub async fn release(&mut self, why: &str) -> Result<(), JournalError> {
        let why = why.chars().take(MAX_MESSAGE).collect();
        self.append(&Entry::Released { worker: self.worker.clone(), why }).await
    }

    /// How often earlier claims gave the work back since the last step.
    #[must_use]
    pub fn released(&self) -> u32 {
        self.released
    }

    /// The same for work that `worker` holds and whose journal is gone with whoever worked on it. Nothing is written if
    /// the last claim is not its own.
    ///
    /// # Errors
    /// As for a step.
    pub async fn release_of(
        bus: &Bus,
        order: &Order,
        worker: &WorkerId,
        why: &str,
    ) -> Result<(), JournalError> {
        let mut journal = Self::unread(bus, order, worker);
        let mut holder = None;
        for record in read_topic(bus, order.lane, &order.run, &journal.topic).await? {
            journal.last = record.sequence;
            match bus.open::<Entry>(&record).await {
                Ok(Entry::Claimed { worker, .. }) => holder = Some(worker),
                Ok(Entry::Released { .. } | Entry::Outcome { .. }) => holder = None,
                Ok(Entry::Step { .. } | Entry::Note { .. }) => {}
                Err(fault) if fault.is_transient() => return Err(fault.into()),
                Err(fault) => warn!(%fault, "a journal entry is passed over"),
            }
        }
        if holder.as_ref() == Some(worker) { journal.release(why).await } else { Ok(()) }
    }

    /// Writes the end. The order may be acknowledged after it.
    ///
    /// # Errors
    /// As for a step.
    pub async fn finish(&mut self, outcome: Outcome) -> Result<(), JournalError> {
        let (worker, review) = (self.worker.clone(), self.review);
        self.append(&Entry::Outcome { worker, review, outcome }).await
    }

    async fn append(&mut self, entry: &Entry) -> Result<(), AppendError> {
        self.last = append(&self.bus, self.lane, &self.run, &self.topic, entry, self.last).await?;
        Ok(())
    }
}
