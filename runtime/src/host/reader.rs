//! Reading what a piece of work builds on: results of other tasks and the plan, from the log, documents, from the blob
//! store, and what the cluster can do. It keeps nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_protocol::ids::{Capability, Lane, RunId};
use millrace_protocol::plan::{Decision, Plan, apply_decision};
use millrace_protocol::result::{CapabilityDescription, TaskResult};
use millrace_protocol::subject::Topic;
use millrace_protocol::wire::{Garbage, read_result};
use millrace_protocol::work::{Entry, Input, Outcome};

use crate::bus::Bus;
use crate::fault::lag;
use crate::log::{read_one, read_topic};
use crate::record::Record;
use crate::topology::lane_stream;
use crate::{Fault, registry};

/// The wait before a copy that lags is asked again.
const AGAIN: Duration = Duration::from_millis(50);

/// Reads for the work of one lane. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    bus: Bus,
    lane: Lane,
}

impl Reader {
    pub(super) fn new(bus: Bus, lane: Lane) -> Self {
        Self { bus, lane }
    }

    /// The result that an input names.
    ///
    /// # Errors
    /// It is not there any more, is no result, or the server does not answer.
    pub async fn result(&self, input: &Input) -> Result<TaskResult, Fault> {
        let found = read_one(&self.bus, self.lane, input.at_sequence).await?;
        let record = found.ok_or_else(|| Fault::Garbage {
            subject: lane_stream(self.lane),
            sequence: input.at_sequence,
            garbage: Garbage::Unreadable {
                what: format!("the result of task {}", input.task),
                why: "it is not there any more, as if the run were over".into(),
            },
        })?;
        let entry = self.bus.open::<Entry>(&record).await?;
        let Entry::Outcome { outcome: Outcome::Finished { result, .. }, .. } = entry else {
            return Err(no_result(&record));
        };
        let bytes = self.bus.blobs().resolve(&result).await?;
        read_result(&bytes).map_err(|garbage| of(&record, garbage))
    }

    /// The capabilities that the cluster knows, by name.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn capabilities(&self) -> Result<Vec<CapabilityDescription>, Fault> {
        Ok(registry::capabilities(&self.bus).await?.into_values().collect())
    }

    /// How many slots live workers have, by capability.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn slots(&self) -> Result<BTreeMap<Capability, u32>, Fault> {
        let mut slots = BTreeMap::new();
        for (capability, count) in registry::beats(&self.bus).await?.into_iter().flat_map(|beat| beat.slots) {
            let all: &mut u32 = slots.entry(capability).or_default();
            *all = all.saturating_add(count);
        }
        Ok(slots)
    }

    /// The plan of a run as its decision with the sequence `through` left it.
    ///
    /// # Errors
    /// That decision is not there any more, one of the decisions can't be read, or the server does not answer.
    pub async fn plan(&self, run: &RunId, through: u64) -> Result<Plan, Fault> {
        let decided = self.decided(run, through).await?;
        let mut plan = Plan::default();
        for record in &decided {
            apply_decision(&mut plan, &self.bus.open::<Decision>(record).await?);
        }
        if decided.last().is_some_and(|last| last.sequence == through) {
            return Ok(plan);
        }
        Err(Fault::Garbage {
            subject: lane_stream(self.lane),
            sequence: through,
            garbage: Garbage::Unreadable {
                what: format!("the plan of run {run}"),
                why: "its decisions are not there any more, as if the run were over".into(),
            },
        })
    }

    /// The decisions of a run up to `through`, which is looked for while the copy that answers may lag.
    async fn decided(&self, run: &RunId, through: u64) -> Result<Vec<Record>, Fault> {
        let (started, lag) = (tokio::time::Instant::now(), lag(self.bus.settings().replicas));
        loop {
            let mut decided = read_topic(&self.bus, self.lane, run, &Topic::Plan).await?;
            decided.retain(|record| record.sequence <= through && !record.is_stray);
            let is_whole = decided.last().is_some_and(|last| last.sequence == through);
            if is_whole || started.elapsed() >= lag {
                return Ok(decided);
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// A blob by its name: the SHA-256 of its content, in hexadecimal.
    ///
    /// # Errors
    /// It is not there, is damaged, or the server does not answer.
    pub async fn blob(&self, sha256: &str) -> Result<Vec<u8>, Fault> {
        self.bus.blobs().get(sha256).await
    }
}

fn no_result(record: &Record) -> Fault {
    of(record, Garbage::WrongKind { found: "journal entry".into(), expected: "task's result" })
}

fn of(record: &Record, garbage: Garbage) -> Fault {
    Fault::Garbage { subject: record.subject.to_string(), sequence: record.sequence, garbage }
}
