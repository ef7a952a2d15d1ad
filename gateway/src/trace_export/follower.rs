//! Reads lanes and summaries, and derives spans from them.
//!
//! A live run is read in its lane. When it ends, a supervisor archives it, marks its summary, and removes it from the lane, possibly
//! before this reader has come that far. So summaries are read before lanes, and after the lanes each run that is marked as archived
//! and whose end was not seen is read in the archive, from the last message that was seen. A tracer that a restarted exporter does
//! not have starts from the first message: its spans are sent again, with the same ids.
//!
//! A run that was reopened continues in its lane after what the archive holds, and its tracer reads the archive first. Spans of the
//! part that was exported already are not sent again.

use std::collections::{BTreeMap, HashMap, VecDeque};

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::subject::{self, Topic};
use millrace_runtime::nats::direct_get::{ALL_SUBJECTS, PagedReader};
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::nats::topology::{RUNS, bucket_stream, lane_stream};
use millrace_runtime::ops::cluster_status::read_stream_states;
use millrace_runtime::store::archive::read_archived_run;
use millrace_runtime::store::bucket::{BucketChange, BucketChanges};
use millrace_runtime::store::keys::ExportPosition;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault};
use millrace_traces::read::add_record;
use millrace_traces::{RunTracer, Span, TraceOptions};
use tracing::warn;

/// The number of messages per request: journals may have large ones.
const PAGE: usize = 256;
/// The number of archived runs for which it is remembered how much of them is exported.
const MAX_FINISHED: usize = 10_000;

/// A reader of all lanes.
pub struct LogFollower {
    bus: Bus,
    options: TraceOptions,
    lanes: Vec<LaneReader>,
    summaries: BucketChanges<RunSummary>,
    /// The revision of the last summary whose run is exported.
    exported_summaries: u64,
    /// Runs that are archived, until they are exported, with the sequences of their last archived messages; 0 if unknown.
    archived: VecDeque<(RunId, u64)>,
    parts: ArchivedParts,
    spans: Vec<Span>,
}

/// The parts of runs that the archive holds.
#[derive(Default)]
struct ArchivedParts {
    /// The last archived messages of runs that were reopened.
    reopened: HashMap<RunId, u64>,
    /// The messages up to which archived runs are exported, and the order in which they were added.
    finished: HashMap<RunId, u64>,
    order: VecDeque<RunId>,
}

impl ArchivedParts {
    fn finish(&mut self, run: &RunId, through: u64) {
        self.reopened.remove(run);
        if self.finished.insert(run.clone(), through).is_none() {
            self.order.push_back(run.clone());
        }
        if self.order.len() > MAX_FINISHED
            && let Some(oldest) = self.order.pop_front()
        {
            self.finished.remove(&oldest);
        }
    }

    fn exported_through(&self, run: &RunId) -> u64 {
        self.finished.get(run).copied().unwrap_or(0)
    }
}

struct LaneReader {
    lane: Lane,
    /// The sequence of the last message that was read.
    seen: u64,
    /// The sequence up to which the lane was exported before this process read it.
    exported: u64,
    runs: HashMap<RunId, TracedRun>,
}

struct TracedRun {
    tracer: RunTracer,
    /// The sequence of the last message that was added.
    seen: u64,
}

impl LogFollower {
    /// Returns the position before the first export: all that is in the lanes is exported, and no run that was archived before.
    pub async fn first_position(bus: &Bus) -> Result<ExportPosition, Fault> {
        let states = read_stream_states(bus, vec![bucket_stream(RUNS)]).await?;
        let summaries = states.get(&bucket_stream(RUNS)).map_or(0, |state| state.last_sequence);
        let lanes = (0..bus.settings().lanes).map(|lane| (lane, 0)).collect();
        Ok(ExportPosition { exporter: String::new(), lanes, summaries })
    }

    /// Reads what is exported already, so that the rest can be derived.
    pub async fn open(bus: &Bus, options: TraceOptions, position: &ExportPosition) -> Result<Self, Fault> {
        let names = (0..bus.settings().lanes).map(|lane| lane_stream(Lane(lane)));
        let states = read_stream_states(bus, names.chain([bucket_stream(RUNS)]).collect()).await?;
        let last = |stream: &str| states.get(stream).map_or(0, |state| state.last_sequence);
        let last_summary = last(&bucket_stream(RUNS));
        // A server that was set up anew counts from 1 again.
        let summaries = if position.summaries > last_summary { 0 } else { position.summaries };
        let mut follower = Self {
            bus: bus.clone(),
            options,
            lanes: Vec::new(),
            summaries: registry::follow_summaries(summaries),
            exported_summaries: summaries,
            archived: VecDeque::new(),
            parts: ArchivedParts::default(),
            spans: Vec::new(),
        };
        for lane in (0..bus.settings().lanes).map(Lane) {
            let mut exported = position.lanes.get(&lane.0).copied().unwrap_or_default();
            if exported > last(&lane_stream(lane)) {
                warn!(%lane, exported, "the lane is shorter than what was exported of it; exporting it again");
                exported = 0;
            }
            let reader = LaneReader { lane, seen: 0, exported, runs: HashMap::new() };
            follower.lanes.push(reader);
            let at = follower.lanes.len() - 1;
            while follower.lanes[at].seen < exported {
                if !follower.read_page(at, Some(exported)).await? {
                    break;
                }
                follower.spans.clear();
            }
            follower.lanes[at].seen = follower.lanes[at].seen.max(exported);
        }
        Ok(follower)
    }

    /// Returns the position when all spans so far are exported.
    pub fn position(&self) -> ExportPosition {
        let lanes: BTreeMap<u16, u64> =
            self.lanes.iter().map(|reader| (reader.lane.0, reader.seen)).collect();
        ExportPosition { exporter: String::new(), lanes, summaries: self.exported_summaries }
    }

    /// Returns the spans that were derived since the last call.
    pub fn take_spans(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.spans)
    }

    pub async fn read_summaries(&mut self) -> Result<(), Fault> {
        while let Some(changes) = self.summaries.next_page(&self.bus).await? {
            for change in changes {
                let summary = match change {
                    BucketChange::Set(entry) => entry.value,
                    BucketChange::Removed(run) => {
                        RunId::new(run).ok().and_then(|run| self.forget(&run));
                        continue;
                    }
                };
                let through = summary.archived_span.map(|(_, last)| last);
                if summary.archived {
                    self.archived.push_back((summary.run, through.unwrap_or(0)));
                } else if let Some(through) = through {
                    self.parts.reopened.insert(summary.run, through);
                }
            }
        }
        Ok(())
    }

    /// Reads the lanes until there are at least `enough` spans, or to their ends. Returns `true` if there may be more.
    pub async fn read_lanes(&mut self, enough: usize) -> Result<bool, Fault> {
        for at in 0..self.lanes.len() {
            while self.read_page(at, None).await? {
                if self.spans.len() >= enough {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Reads the archived runs whose ends were not seen, until there are at least `enough` spans. Returns `true` if there may be
    /// more.
    pub async fn read_archive(&mut self, enough: usize) -> Result<bool, Fault> {
        while let Some((run, through)) = self.archived.front().cloned() {
            self.finish_run(&run, through).await?;
            self.archived.pop_front();
            if self.spans.len() >= enough {
                return Ok(true);
            }
        }
        self.exported_summaries = self.summaries.seen();
        Ok(false)
    }

    /// Reads a page of a lane, up to sequence `through`. Returns `false` at its end.
    async fn read_page(&mut self, at: usize, through: Option<u64>) -> Result<bool, Fault> {
        let Self { bus, lanes, options, spans, parts, .. } = self;
        let reader = &mut lanes[at];
        let (stream, next) = (lane_stream(reader.lane), reader.seen + 1);
        let mut pages =
            PagedReader::new(bus.client(), stream, ALL_SUBJECTS.into(), next).with_page_size(PAGE);
        let records = pages.next_page().await?;
        // The message at `through` may have been removed since.
        let is_end =
            records.last().is_none_or(|last| through.is_some_and(|through| last.sequence >= through));
        for record in records.into_iter().filter(|record| through.is_none_or(|last| record.sequence <= last))
        {
            reader.add((bus, options), &record, parts, spans).await?;
            reader.seen = record.sequence;
        }
        Ok(!is_end)
    }

    /// Exports the rest of a run that is archived up to sequence `through`.
    async fn finish_run(&mut self, run: &RunId, through: u64) -> Result<(), Fault> {
        let lane = self.bus.lane_of_run(run);
        let live = self.lanes.iter().find(|reader| reader.lane == lane).and_then(|it| it.runs.get(run));
        if live.is_some_and(|live| !live.tracer.has_ended() && through > 0 && live.seen > through) {
            // It was reopened meanwhile.
            return Ok(());
        }
        let traced = self.forget(run);
        if let Some(ended) = traced.as_ref().filter(|traced| traced.tracer.has_ended()) {
            self.parts.finish(run, ended.seen.max(through));
            return Ok(());
        }
        let exported = self.parts.exported_through(run);
        let mut traced = traced.unwrap_or_else(|| TracedRun::new(run, &self.options));
        let Some(records) = read_archived_run(&self.bus, run).await? else {
            warn!(%run, "the archive of the run is missing; its trace is incomplete");
            return Ok(());
        };
        for record in records {
            traced.add(&self.bus, &record, exported, &mut self.spans).await?;
        }
        self.parts.finish(run, traced.seen);
        Ok(())
    }

    fn forget(&mut self, run: &RunId) -> Option<TracedRun> {
        let lane = self.bus.lane_of_run(run);
        self.lanes.iter_mut().find(|reader| reader.lane == lane)?.runs.remove(run)
    }
}

impl LaneReader {
    async fn add(
        &mut self,
        (bus, options): (&Bus, &TraceOptions),
        record: &StreamRecord,
        parts: &mut ArchivedParts,
        spans: &mut Vec<Span>,
    ) -> Result<(), Fault> {
        let Some((_, run, topic)) = subject::parse_lane_subject(&record.subject) else { return Ok(()) };
        let reopened = parts.reopened.get(&run).copied().unwrap_or(0);
        let (lacks_archive, exported) = match self.runs.get(&run) {
            Some(traced) => (traced.seen < reopened && reopened < record.sequence, 0),
            // A run begins with its submission, unless the archive holds its beginning.
            None => (topic != Topic::Submitted, parts.exported_through(&run).max(self.exported)),
        };
        let archived = match lacks_archive {
            true => read_archived_run(bus, &run).await?.unwrap_or_default(),
            false => Vec::new(),
        };
        let traced = self.runs.entry(run.clone()).or_insert_with(|| TracedRun::new(&run, options));
        for archived in archived.iter().filter(|archived| archived.sequence < record.sequence) {
            traced.add(bus, archived, exported, spans).await?;
        }
        parts.reopened.remove(&run);
        traced.add(bus, record, 0, spans).await
    }
}

impl TracedRun {
    fn new(run: &RunId, options: &TraceOptions) -> Self {
        Self { tracer: RunTracer::new(run.clone(), options.clone()), seen: 0 }
    }

    /// Adds a message. The spans of messages up to sequence `exported` are exported already.
    async fn add(
        &mut self,
        bus: &Bus,
        record: &StreamRecord,
        exported: u64,
        spans: &mut Vec<Span>,
    ) -> Result<(), Fault> {
        if record.sequence <= self.seen {
            return Ok(());
        }
        match add_record(bus, &mut self.tracer, record).await {
            Err(fault) if fault.is_transient() => return Err(fault),
            Err(fault) => warn!(%fault, "a message is left out of the run's trace"),
            Ok(()) => {}
        }
        self.seen = record.sequence;
        let mut new = self.tracer.take_spans();
        if record.sequence > exported {
            spans.append(&mut new);
        }
        Ok(())
    }
}
