//! Client of a cluster: submits, finds, follows and reads list_runs.
//!
//! Everything is read from the log, and the caller folds it; no supervisor is queried. The connection is a
//! [`millrace_runtime::Bus`], so that credentials and permissions are those of any other process.

mod earlier;
mod find;
mod follow;
mod journals;
mod read;
mod run_feed;

use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::Submission;
use millrace_protocol::subject::{Topic, topic_subject};
use millrace_runtime::log::{AppendError, append_message};
use millrace_runtime::{Bus, Fault};

pub use earlier::{EarlierResults, EarlierRunError, read_earlier_run};
pub use find::{FindError, find_run, list_runs, list_runs_from_log};
pub use follow::{follow_run, read_archived_records, retry_transient};
pub use journals::{Journals, ReceivedEntry, TaskUpdate, follow_task, read_task};
pub use read::{read_decisions, read_log_damage, read_plan, read_task_result};
pub use run_feed::{RunChange, RunFeed};

/// Submits a run under a new id and returns the id.
///
/// # Errors
/// The server does not answer, or refuses.
pub async fn submit_run(bus: &Bus, submission: &Submission) -> Result<RunId, Fault> {
    for _ in 0..10 {
        let run = RunId::generate(Timestamp::now(), uuid::Uuid::new_v4().as_fields().0);
        let lane = bus.lane_of_run(&run);
        let appending = append_message(bus, lane, &run, &Topic::Submitted, submission, 0);
        match bus.fail_on_denial(&topic_subject(lane, &run, &Topic::Submitted), appending).await {
            Ok(_) => return Ok(run),
            // Another client took the same id in the same second: try another id.
            Err(AppendError::Fenced { .. }) => {}
            Err(AppendError::Fault(fault)) => return Err(fault),
        }
    }
    Err(Fault::unavailable("submitting a run", "no unused run id after ten attempts"))
}
