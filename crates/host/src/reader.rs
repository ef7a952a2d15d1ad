//! Reading the inputs of a piece of work: results of other tasks and the plan from the log, documents from the blob
//! store, and the registered capabilities. It caches nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::sources::{CapabilityOffer, OrderInputError, OrderInputs, plan_without_log};
use millrace_protocol::ids::{Capability, Lane, RunId, TaskId};
use millrace_protocol::plan::{Decision, JournalKey, Plan, apply_decision};
use millrace_protocol::result::{CapabilityDescription, TaskResult};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{DecodeError, InlineOrStoredBytes, decode_task_result};
use millrace_protocol::work::{InputResult, JournalEntry, Order, WorkOutcome};

use millrace_runtime::Bus;
use millrace_runtime::Fault;
use millrace_runtime::fault::max_replica_lag;
use millrace_runtime::log::follow::find_message;
use millrace_runtime::log::read_topic;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::lane_stream;
use millrace_runtime::store::archive::{self, join_with_archive};
use millrace_runtime::work::registry;

/// The interval at which a lagging replica is read again.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Reads the inputs of work in one lane. Cheap to clone.
#[derive(Clone)]
pub struct ClusterReader {
    bus: Bus,
    lane: Lane,
    run: RunId,
}

impl ClusterReader {
    /// A reader for the orders of a run.
    #[must_use]
    pub fn new(bus: Bus, lane: Lane, run: RunId) -> Self {
        Self { bus, lane, run }
    }

    /// Returns the result that an input names. The message must be the one that the input means: a server that has lost
    /// its newest messages uses their sequences again.
    ///
    /// # Errors
    /// The result was removed or is invalid, the message is another one, or the server does not respond.
    pub async fn read_result(&self, input: &InputResult) -> Result<TaskResult, Fault> {
        let record = find_message(&self.bus, self.lane, &self.run, input.at_sequence).await?;
        let record = record.ok_or_else(|| Fault::InvalidMessage {
            subject: lane_stream(self.lane),
            sequence: input.at_sequence,
            error: DecodeError::Unreadable {
                what: format!("the result of task {}", input.task),
                why: "it was removed; the run has probably ended".into(),
            },
        })?;
        if !self.is_journal_of_task(&record, &input.task) {
            return Err(replaced_input_fault(&record, input));
        }
        let entry = self.bus.decode_record::<JournalEntry>(&record).await?;
        let JournalEntry::Outcome { outcome: WorkOutcome::Finished { result, summary, .. }, worker, .. } =
            entry
        else {
            return Err(not_a_result_fault(&record));
        };
        if worker != input.worker || !summary.starts_with(&input.summary) {
            return Err(replaced_input_fault(&record, input));
        }
        let bytes = self.bus.blobs().read_inline_or_stored(&result).await?;
        decode_task_result(&bytes).map_err(|error| invalid_result_fault(&record, error))
    }

    /// Returns the value of a step of an attempt at a task of the run; `None` if its journal has no such step, or a replica that lags
    /// has not got it yet. Forged entries are ignored.
    ///
    /// # Errors
    /// The journal or the value can't be read, or the server does not respond.
    pub async fn read_step(&self, task: &TaskId, attempt: u32, step: &str) -> Result<Option<Vec<u8>>, Fault> {
        let steps = self.read_matching_steps(task, attempt, |name| name == step).await?;
        match steps.last() {
            Some(value) => self.bus.blobs().read_inline_or_stored(value).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the values of the steps of an attempt at a task of the run whose names begin with `prefix`, in the order of its
    /// journal. Forged entries are ignored.
    pub async fn read_steps(&self, task: &TaskId, attempt: u32, prefix: &str) -> Result<Vec<Vec<u8>>, Fault> {
        let steps = self.read_matching_steps(task, attempt, |name| name.starts_with(prefix)).await?;
        let mut values = Vec::with_capacity(steps.len());
        for value in &steps {
            values.push(self.bus.blobs().read_inline_or_stored(value).await?);
        }
        Ok(values)
    }

    async fn read_matching_steps(
        &self,
        task: &TaskId,
        attempt: u32,
        matches: impl Fn(&str) -> bool,
    ) -> Result<Vec<InlineOrStoredBytes>, Fault> {
        let journal = Topic::Journal(JournalKey::Task(task.clone(), attempt));
        let mut records = read_topic(&self.bus, self.lane, &self.run, &journal).await?;
        if records.is_empty() {
            let subject = subject::topic_subject(self.lane, &self.run, &journal);
            // Of a run that was reopened, the archive holds the journals from before.
            records = archive::read_archived_run(&self.bus, &self.run).await?.unwrap_or_default();
            records.retain(|record| *record.subject == *subject);
        }
        let mut steps = Vec::new();
        for record in records.iter().filter(|record| !record.is_forged()) {
            if let JournalEntry::Step { name, value, .. } = self.bus.decode_record(record).await?
                && matches(&name)
            {
                steps.push(value);
            }
        }
        Ok(steps)
    }

    /// `true` if a message is in the journal of an attempt at this task of the run.
    fn is_journal_of_task(&self, record: &StreamRecord, task: &TaskId) -> bool {
        match subject::parse_lane_subject(&record.subject) {
            Some((_, run, Topic::Journal(JournalKey::Task(of, _)))) => run == self.run && of == *task,
            Some((
                _,
                _,
                Topic::Journal(_) | Topic::Submitted | Topic::Plan | Topic::Control | Topic::Answer,
            ))
            | None => false,
        }
    }

    /// Returns the registered capabilities, by name.
    pub async fn read_capabilities(&self) -> Result<Vec<CapabilityDescription>, Fault> {
        Ok(registry::read_capabilities(&self.bus).await?.into_values().collect())
    }

    /// Returns the slots of all live workers, by capability.
    pub async fn read_live_slots(&self) -> Result<BTreeMap<Capability, u32>, Fault> {
        let mut slots = BTreeMap::new();
        for (capability, count) in
            registry::read_heartbeats(&self.bus).await?.into_iter().flat_map(|heartbeat| heartbeat.slots)
        {
            let total: &mut u32 = slots.entry(capability).or_default();
            *total = total.saturating_add(count);
        }
        Ok(slots)
    }

    /// Returns the plan of a run after its decision with the sequence `through`.
    ///
    /// # Errors
    /// That decision was removed, a decision is invalid, or the server does not respond.
    pub async fn read_plan(&self, run: &RunId, through: u64) -> Result<Plan, Fault> {
        let decisions = self.read_decisions(run, through).await?;
        let mut plan = Plan::default();
        for record in &decisions {
            apply_decision(&mut plan, &self.bus.decode_record::<Decision>(record).await?);
        }
        if decisions.last().is_some_and(|last| last.sequence == through) {
            return Ok(plan);
        }
        Err(Fault::InvalidMessage {
            subject: lane_stream(self.lane),
            sequence: through,
            error: DecodeError::Unreadable {
                what: format!("the plan of run {run}"),
                why: "its decisions were removed; the run has probably ended".into(),
            },
        })
    }

    /// Returns the plan of a run as of the last decision that can be read now, which is at least `through`.
    pub async fn read_current_plan(&self, run: &RunId, through: u64) -> Result<Plan, Fault> {
        self.read_decisions(run, through).await?;
        let decisions = read_decisions_of_live_run(&self.bus, self.lane, run).await?;
        let mut plan = Plan::default();
        for record in decisions.iter().filter(|record| !record.is_forged()) {
            apply_decision(&mut plan, &self.bus.decode_record::<Decision>(record).await?);
        }
        Ok(plan)
    }

    /// Returns the decisions of a run up to `through`, which may be missing as long as the responding replica lags.
    async fn read_decisions(&self, run: &RunId, through: u64) -> Result<Vec<StreamRecord>, Fault> {
        let (started, lag) = (tokio::time::Instant::now(), max_replica_lag(self.bus.settings().replicas));
        loop {
            let mut decisions = read_decisions_of_live_run(&self.bus, self.lane, run).await?;
            decisions.retain(|record| record.sequence <= through && !record.is_forged());
            let is_complete = decisions.last().is_some_and(|last| last.sequence == through);
            if is_complete || started.elapsed() >= lag {
                return Ok(decisions);
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Returns the blob with this name: the SHA-256 of its content in hexadecimal.
    ///
    /// # Errors
    /// The blob is missing or damaged, or the server does not respond.
    pub async fn read_blob(&self, sha256: &str) -> Result<Vec<u8>, Fault> {
        self.bus.blobs().get(sha256).await
    }
}

impl OrderInputs for ClusterReader {
    fn read_result<'a>(
        &'a self,
        input: &'a InputResult,
    ) -> BoxFuture<'a, Result<TaskResult, OrderInputError>> {
        Self::read_result(self, input).map(|read| read.map_err(convert_fault)).boxed()
    }

    fn read_blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>> {
        Self::read_blob(self, sha256).map(|read| read.map_err(convert_fault)).boxed()
    }

    fn read_step<'a>(
        &'a self,
        task: &'a TaskId,
        attempt: u32,
        step: &'a str,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, OrderInputError>> {
        Self::read_step(self, task, attempt, step).map(|read| read.map_err(convert_fault)).boxed()
    }

    fn read_steps<'a>(
        &'a self,
        task: &'a TaskId,
        attempt: u32,
        prefix: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Vec<u8>>, OrderInputError>> {
        Self::read_steps(self, task, attempt, prefix).map(|read| read.map_err(convert_fault)).boxed()
    }

    fn read_capabilities(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, OrderInputError>> {
        Self::read_capabilities(self).map(|read| read.map_err(convert_fault)).boxed()
    }

    fn read_offers(&self) -> BoxFuture<'_, Result<Vec<CapabilityOffer>, OrderInputError>> {
        async move {
            let capabilities = Self::read_capabilities(self).await.map_err(convert_fault)?;
            let slots = Self::read_live_slots(self).await.map_err(convert_fault)?;
            let live = |about: &CapabilityDescription| slots.get(&about.name).copied().unwrap_or(0);
            Ok(capabilities
                .into_iter()
                .map(|about| CapabilityOffer { slots: Some(live(&about)), about })
                .collect())
        }
        .boxed()
    }

    fn read_current_plan<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<Plan, OrderInputError>> {
        let read = Self::read_current_plan(self, &order.run, decided_at(order));
        read.map(|read| read.map_err(convert_fault)).boxed()
    }

    fn read_plan<'a>(
        &'a self,
        order: &'a Order,
        through: u64,
    ) -> BoxFuture<'a, Result<Plan, OrderInputError>> {
        async move {
            match through {
                0 => Ok(plan_without_log(order)),
                _ => Self::read_plan(self, &order.run, through).await.map_err(convert_fault),
            }
        }
        .boxed()
    }
}

fn decided_at(order: &Order) -> u64 {
    order.decided.map_or(0, |decided| decided.sequence)
}

fn convert_fault(fault: Fault) -> OrderInputError {
    let why = fault.to_string();
    if fault.is_transient() { OrderInputError::Unavailable(why) } else { OrderInputError::Broken(why) }
}

/// Returns the decisions of a live run: those in its lane and, if it was reopened, those in its archive before them.
async fn read_decisions_of_live_run(bus: &Bus, lane: Lane, run: &RunId) -> Result<Vec<StreamRecord>, Fault> {
    let in_lane = read_topic(bus, lane, run, &Topic::Plan).await?;
    if archive::begins_with_first_decision(bus, &in_lane).await? {
        return Ok(in_lane);
    }
    let mut records = join_with_archive(bus, run, in_lane, None).await?.records;
    records.retain(StreamRecord::is_decision);
    Ok(records)
}

fn replaced_input_fault(record: &StreamRecord, input: &InputResult) -> Fault {
    let what = format!("the result of task {} by {}", input.task, input.worker);
    let why = "another message is in its place; the server has lost its newest messages".into();
    invalid_result_fault(record, DecodeError::Unreadable { what, why })
}

fn not_a_result_fault(record: &StreamRecord) -> Fault {
    invalid_result_fault(
        record,
        DecodeError::WrongKind { found: "journal entry".into(), expected: "task's result" },
    )
}

fn invalid_result_fault(record: &StreamRecord, error: DecodeError) -> Fault {
    Fault::InvalidMessage { subject: record.subject.to_string(), sequence: record.sequence, error }
}
