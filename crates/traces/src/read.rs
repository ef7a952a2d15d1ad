//! Reads the log of a run into a tracer.

use millrace_client::ReceivedEntry;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, Submission};
use millrace_protocol::subject::{self, Topic};
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::store::archive::read_run_from_log_or_archive;
use millrace_runtime::{Bus, Fault};
use millrace_views::journal::read_entry;

use crate::{RunTracer, Span, TraceOptions};

/// Derives the spans of a run, whether it is live or archived. Empty if there is no such run.
pub async fn trace_run(bus: &Bus, run: &RunId, options: TraceOptions) -> Result<Vec<Span>, Fault> {
    let mut tracer = RunTracer::new(run.clone(), options);
    for record in read_run_from_log_or_archive(bus, bus.lane_of_run(run), run).await? {
        add_record(bus, &mut tracer, &record).await?;
    }
    Ok(tracer.take_spans())
}

/// Adds a message of a run to its tracer.
pub async fn add_record(bus: &Bus, tracer: &mut RunTracer, record: &StreamRecord) -> Result<(), Fault> {
    if record.is_forged() {
        return Ok(());
    }
    match subject::parse_lane_subject(&record.subject) {
        Some((_, _, Topic::Submitted)) => {
            let submission: Submission = bus.decode_record(record).await?;
            tracer.add_submission(&submission);
        }
        Some((_, _, Topic::Plan)) => {
            let decision: Decision = bus.decode_record(record).await?;
            tracer.add_decision(record.sequence, record.time, &decision);
        }
        Some((_, _, Topic::Journal(journal))) => {
            let received = ReceivedEntry::read(bus, journal, record).await?;
            tracer.add_entry(&read_entry(bus, received).await?);
        }
        Some((_, _, Topic::Control | Topic::Answer)) | None => {}
    }
    Ok(())
}
