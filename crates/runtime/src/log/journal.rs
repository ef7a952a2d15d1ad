//! The journal of one piece of work: a chain of entries on one subject of the lane. Appends are fenced, so that of two
//! workers that both believe they hold the claim exactly one continues; the append of the other fails, and it stops.
//!
//! # Invariants
//!
//! - I14: A worker that was overtaken is refused at its next entry and drops the work; the new one repeats no step.
//!   (`worker/tests/worker.rs::a_stale_worker_is_fenced_and_drops_the_attempt`,
//!   `worker/tests/worker.rs::a_takeover_repeats_no_step_wherever_the_first_worker_crashed`)
//! - I17: Work that kills its workers is abandoned after five claims in a row without progress; a panic is an outcome.
//!   (`worker/tests/worker.rs::an_order_is_given_up_after_five_lost_workers`,
//!   `worker/tests/worker.rs::a_panic_is_an_outcome_and_the_worker_continues`)

use std::collections::HashSet;
use std::sync::Arc;

use millrace_protocol::child::Delegation;
use millrace_protocol::ids::{Lane, RunId, WorkerId};
use millrace_protocol::plan::{ResourceAmounts, TaskSpec};
use millrace_protocol::result::{Build, ErrorKind, MAX_MESSAGE, TaskError};
use millrace_protocol::subject::Topic;
use millrace_protocol::wait::{ProviderStatus, ProviderWait, Wait};
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_protocol::work::{Assignment, JournalEntry, Order, WorkOutcome};
use tracing::{info, warn};

use crate::log::{AppendError, append_message, read_topic};
use crate::nats::bus::Bus;

/// The maximum number of consecutive claims without progress. More count as work that crashes its workers.
pub const MAX_CLAIMS: u32 = 5;

/// The result of claiming work.
pub enum ClaimResult {
    /// This worker holds the claim. The journal contains the steps of earlier claims.
    Acquired(Box<Journal>),
    /// The work is done already: only the order is left to acknowledge.
    Done,
    /// The run has ended, or another worker claimed the work at the same time.
    Lost,
}

/// The journal of work that this worker has claimed.
pub struct Journal {
    bus: Bus,
    lane: Lane,
    run: RunId,
    topic: Topic,
    worker: WorkerId,
    review: u32,
    last: u64,
    steps: u32,
    /// The steps of earlier claims that have not been replayed yet, oldest first.
    recorded: std::collections::VecDeque<(String, InlineOrStoredBytes)>,
    claim: u32,
    /// The number of consecutive claims without progress, including this one. Released claims do not count.
    claims_without_progress: u32,
    /// The number of releases since the last step.
    releases: u32,
    /// The last report about the provider since the last step.
    provider: Option<ProviderStatus>,
    /// The keys of the waits that have ended, according to the order.
    ended_waits: HashSet<String>,
}

/// The error of a failed append to a journal.
pub type JournalError = AppendError;

impl Journal {
    /// Claims the work of an order for `worker`, whose software is `build`. Optimistic: the first claim takes a single append.
    pub async fn claim_work(
        bus: &Bus,
        order: &Order,
        worker: &WorkerId,
        build: Option<&Arc<Build>>,
    ) -> Result<ClaimResult, crate::Fault> {
        let mut journal = Self::new(bus, order, worker);
        // The journal of an attempt that was parked is not empty.
        if !order.ended_waits.is_empty() && journal.read_entries().await? {
            return Ok(ClaimResult::Done);
        }
        loop {
            let entry =
                JournalEntry::Claimed { worker: worker.clone(), claim: journal.claim, build: build.cloned() };
            match journal.append_entry(&entry).await {
                Ok(()) => break,
                Err(AppendError::Fault(fault)) => return Err(fault),
                // The journal was purged: the run has ended and is archived.
                Err(AppendError::Fenced { last: 0 }) => return Ok(ClaimResult::Lost),
                Err(AppendError::Fenced { .. }) => {}
            }
            if journal.read_entries().await? {
                return Ok(ClaimResult::Done);
            }
        }
        if journal.claims_without_progress > MAX_CLAIMS {
            return journal.abandon_claim().await;
        }
        if journal.claim > 1 {
            let (claim, steps) = (journal.claim, journal.recorded.len());
            info!(run = %journal.run, topic = %journal.topic, claim, steps, "continuing the work of an earlier claim");
        }
        Ok(ClaimResult::Acquired(Box::new(journal)))
    }

    fn new(bus: &Bus, order: &Order, worker: &WorkerId) -> Self {
        Self {
            bus: bus.clone(),
            lane: order.lane,
            run: order.run.clone(),
            topic: Topic::journal_of_work(&order.work()),
            worker: worker.clone(),
            review: match order.assignment {
                Assignment::Review { review, .. } => review,
                Assignment::Task { .. } | Assignment::Planning { .. } => 0,
            },
            last: 0,
            steps: 0,
            recorded: std::collections::VecDeque::new(),
            claim: 1,
            claims_without_progress: 1,
            releases: 0,
            provider: None,
            ended_waits: order.ended_waits.iter().map(|wait| wait.key.clone()).collect(),
        }
    }

    /// Reads the existing entries. Returns `true` if there is nothing to do for this order: the work is done, or it is parked
    /// and still waits according to the order.
    async fn read_entries(&mut self) -> Result<bool, crate::Fault> {
        self.recorded.clear();
        self.provider = None;
        let (mut claims, mut claims_without_progress, mut releases) = (0, 0, 0);
        let mut is_parked = false;
        for record in read_topic(&self.bus, self.lane, &self.run, &self.topic).await? {
            self.last = record.sequence;
            match self.bus.decode_record::<JournalEntry>(&record).await {
                Ok(JournalEntry::Claimed { .. }) => {
                    (claims, claims_without_progress) = (claims + 1, claims_without_progress + 1);
                    is_parked = false;
                }
                Ok(JournalEntry::Parked { waits, .. }) => {
                    is_parked = !waits.iter().all(|wait| self.ended_waits.contains(&wait.key));
                    (claims_without_progress, releases) = (0, 0);
                }
                Ok(JournalEntry::Delegated { .. }) => (claims_without_progress, releases) = (0, 0),
                Ok(JournalEntry::Step { name, value, .. }) => {
                    self.recorded.push_back((name, value));
                    self.provider = None;
                    (claims_without_progress, releases) = (0, 0);
                }
                Ok(JournalEntry::Note { provider: Some(status), .. }) => {
                    self.provider = Some(status);
                }
                Ok(JournalEntry::Note { provider: None, .. }) => {}
                Ok(JournalEntry::Released { provider, .. }) => {
                    self.provider = provider.or(self.provider.take());
                    claims_without_progress = u32::saturating_sub(claims_without_progress, 1);
                    releases += 1;
                }
                // A failed review can be requested again with a higher number.
                Ok(JournalEntry::Outcome { review, .. }) if review >= self.review => return Ok(true),
                Ok(JournalEntry::Outcome { .. }) => {
                    self.recorded.clear();
                    (claims, claims_without_progress, releases) = (0, 0, 0);
                }
                Err(fault) if fault.is_transient() => return Err(fault),
                Err(fault) => warn!(%fault, "ignoring an invalid journal entry"),
            }
        }
        (self.claim, self.claims_without_progress, self.releases) =
            (claims + 1, claims_without_progress + 1, releases);
        Ok(is_parked)
    }

    async fn abandon_claim(mut self) -> Result<ClaimResult, crate::Fault> {
        let message = format!(
            "{MAX_CLAIMS} workers in a row claimed this work and were lost before its next step; it may be crashing them"
        );
        warn!(run = %self.run, topic = %self.topic, "abandoning work: {message}");
        match self.append_outcome(WorkOutcome::Errored(TaskError::new(ErrorKind::Abandoned, message))).await {
            Ok(()) => Ok(ClaimResult::Done),
            Err(AppendError::Fenced { .. }) => Ok(ClaimResult::Lost),
            Err(AppendError::Fault(fault)) => Err(fault),
        }
    }

    /// Takes the next step that an earlier claim recorded: its name and value.
    pub fn take_recorded_step(&mut self) -> Option<(String, InlineOrStoredBytes)> {
        let step = self.recorded.pop_front();
        self.steps += u32::from(step.is_some());
        step
    }

    /// Returns the number of this claim, from 1.
    pub fn claim_number(&self) -> u32 {
        self.claim
    }

    /// Records a step: from here on it is never executed again.
    /// Errors: another worker has claimed the work, or the server does not respond.
    pub async fn append_step(
        &mut self,
        name: String,
        value: InlineOrStoredBytes,
    ) -> Result<(), JournalError> {
        self.append_entry(&JournalEntry::Step { number: self.steps + 1, name, value }).await?;
        self.steps += 1;
        Ok(())
    }

    /// Appends a note, which also shows that the work makes progress.
    pub async fn append_note(&mut self, text: String) -> Result<(), JournalError> {
        self.append_entry(&JournalEntry::Note { text, provider: None }).await
    }

    /// Appends a note on the wait of the work for its provider.
    pub async fn append_provider_status(
        &mut self,
        text: String,
        status: ProviderStatus,
    ) -> Result<(), JournalError> {
        self.append_entry(&JournalEntry::Note { text, provider: Some(status.clone()) }).await?;
        self.provider = Some(status);
        Ok(())
    }

    /// Returns the last report about the provider since the last step, of this claim or the claim before it.
    pub fn provider_status(&self) -> Option<&ProviderStatus> {
        self.provider.as_ref()
    }

    /// Releases the claim because the provider stayed away for too long. The run pauses, and the work continues from this
    /// journal when it is resumed. Nothing may be appended after it.
    pub async fn release_for_provider(&mut self, wait: ProviderWait) -> Result<(), JournalError> {
        let why = format!("the provider of {} does not answer: {}", wait.model, wait.error);
        self.release(&why, Some(ProviderStatus::GivenUp(wait)), ResourceAmounts::default()).await
    }

    /// Releases the claim with a reason, so that it does not count against the work. Nothing may be appended after it.
    pub async fn append_release(&mut self, why: &str) -> Result<(), JournalError> {
        self.release(why, None, ResourceAmounts::default()).await
    }

    /// Releases the claim because the first request needs more than was reserved. Nothing may be appended after it.
    pub async fn release_for_reservation(&mut self, needs: ResourceAmounts) -> Result<(), JournalError> {
        self.release(&format!("the first request needs {needs}, more than was reserved"), None, needs).await
    }

    async fn release(
        &mut self,
        why: &str,
        provider: Option<ProviderStatus>,
        needs: ResourceAmounts,
    ) -> Result<(), JournalError> {
        let (worker, why) = (self.worker.clone(), why.chars().take(MAX_MESSAGE).collect());
        self.append_entry(&JournalEntry::Released { worker, why, provider, needs }).await
    }

    /// Parks the attempt: it continues from this journal when all of these waits have ended. Nothing may be appended after it.
    pub async fn park(&mut self, waits: Vec<Wait>, children: Vec<TaskSpec>) -> Result<(), JournalError> {
        self.append_entry(&JournalEntry::Parked { worker: self.worker.clone(), waits, children }).await
    }

    /// Starts, cancels or instructs children of the attempt.
    pub async fn append_delegation(&mut self, delegation: Delegation) -> Result<(), JournalError> {
        self.append_entry(&JournalEntry::Delegated { worker: self.worker.clone(), delegation }).await
    }

    /// Returns how often earlier claims were released since the last step.
    pub fn release_count(&self) -> u32 {
        self.releases
    }

    /// Releases the claim of `worker` after its runner was killed together with its journal. Does nothing if another
    /// worker has claimed the work since.
    pub async fn append_release_for_worker(
        bus: &Bus,
        order: &Order,
        worker: &WorkerId,
        why: &str,
    ) -> Result<(), JournalError> {
        let mut journal = Self::new(bus, order, worker);
        let mut claimant = None;
        for record in read_topic(bus, order.lane, &order.run, &journal.topic).await? {
            journal.last = record.sequence;
            match bus.decode_record::<JournalEntry>(&record).await {
                Ok(JournalEntry::Claimed { worker, .. }) => claimant = Some(worker),
                Ok(
                    JournalEntry::Released { .. }
                    | JournalEntry::Parked { .. }
                    | JournalEntry::Outcome { .. },
                ) => claimant = None,
                Ok(
                    JournalEntry::Step { .. } | JournalEntry::Note { .. } | JournalEntry::Delegated { .. },
                ) => {}
                Err(fault) if fault.is_transient() => return Err(fault.into()),
                Err(fault) => warn!(%fault, "ignoring an invalid journal entry"),
            }
        }
        if claimant.as_ref() == Some(worker) { journal.append_release(why).await } else { Ok(()) }
    }

    /// Appends the outcome. The order may be acknowledged after it.
    pub async fn append_outcome(&mut self, outcome: WorkOutcome) -> Result<(), JournalError> {
        let (worker, review) = (self.worker.clone(), self.review);
        self.append_entry(&JournalEntry::Outcome { worker, review, outcome }).await
    }

    async fn append_entry(&mut self, entry: &JournalEntry) -> Result<(), AppendError> {
        self.last = append_message(&self.bus, self.lane, &self.run, &self.topic, entry, self.last).await?;
        Ok(())
    }
}
