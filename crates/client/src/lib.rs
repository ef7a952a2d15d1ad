//! Client of a cluster: submits, finds, follows, steers and reads runs.
//!
//! Everything is read from the log, and the caller folds it; no supervisor is queried. The connection is a
//! [`millrace_runtime::Bus`], so that credentials and permissions are those of any other process. A function that returns a [`Fault`]
//! fails if the server does not respond or refuses, or if a message can't be decoded.

pub mod administration;
mod decision;
mod earlier;
mod follow;
mod journals;
pub mod questions;
mod read;
mod run_feed;
pub mod webhooks;

use jiff::Timestamp;
use millrace_protocol::admission::AdmissionCaps;
use millrace_protocol::ids::{RunId, SessionId};
use millrace_protocol::plan::{Document, DocumentSet, Submission};
use millrace_protocol::subject::{Topic, topic_subject};
use millrace_protocol::wire;
use millrace_runtime::log::{AppendError, append_message};
use millrace_runtime::store::admission;
use millrace_runtime::{Bus, Fault};

pub use administration::{Administrator, expiry_after};
pub use decision::{
    AppliedMessage, MessageDecision, Patience, append_and_await_decision, append_run_message, find_obstacle,
    message_decision,
};
pub use earlier::{EarlierResults, EarlierRunError, read_earlier_run, read_results_of_run};
pub use follow::{RunEndState, follow_run};
pub use journals::{
    Journals, ReceivedEntry, TaskUpdate, follow_all_tasks, follow_task, read_all_tasks, read_task,
};
pub use millrace_runtime::fault::retry_transient;
pub use read::{
    FindError, author_name, find_run, format_clock, list_runs, list_runs_from_log, read_decisions,
    read_log_damage, read_plan, read_task_result,
};
pub use run_feed::{RunChange, RunFeed};

/// Submits a run under a new id and returns the id.
pub async fn submit_run(bus: &Bus, submission: &Submission) -> Result<RunId, Fault> {
    submit_new_run(bus, submission).await.map(|(run, _)| run)
}

/// Submits a run under a new id and returns the id with the sequence of the submission.
pub async fn submit_new_run(bus: &Bus, submission: &Submission) -> Result<(RunId, u64), Fault> {
    for _ in 0..10 {
        let run = generate_run_id(bus, submission.session.as_ref());
        // Otherwise another client took the same id in the same second: try another id.
        if let Some(sequence) = submit_run_with_id(bus, &run, submission).await? {
            return Ok((run, sequence));
        }
    }
    Err(Fault::unavailable("submitting a run", "no unused run id after ten attempts"))
}

/// Returns the reason why a run that is submitted now would be refused: as many runs as `caps` allow wait. The supervisors decide: of
/// runs that are submitted at the same time some may still be refused, and end then.
pub async fn find_admission_problem(bus: &Bus, caps: &AdmissionCaps) -> Result<Option<String>, Fault> {
    if caps.max_running_runs.is_none() || caps.max_waiting_runs.is_none() {
        return Ok(None);
    }
    let board = admission::read_board(bus).await?;
    let (running, waiting) = (board.running_count(), board.waiting_count());
    Ok(board.is_full(caps).then(|| {
        format!(
            "{running} runs are running and {waiting} wait for a place, as many as allowed; submit it again later, or raise the caps \
             (millrace limits runs)"
        )
    }))
}

/// Returns a new run id; that of a run of a session is in the lane of the session, whose order is that of its runs.
#[must_use]
pub fn generate_run_id(bus: &Bus, session: Option<&SessionId>) -> RunId {
    loop {
        let run = RunId::generate(Timestamp::now(), uuid::Uuid::new_v4().as_fields().0);
        if session.is_none_or(|session| bus.lane_of_run(&run) == bus.lane_of_session(session)) {
            return run;
        }
    }
}

/// Submits a run under an id and returns the sequence of the submission; `None` if there is such a run already.
pub async fn submit_run_with_id(
    bus: &Bus,
    run: &RunId,
    submission: &Submission,
) -> Result<Option<u64>, Fault> {
    let lane = bus.lane_of_run(run);
    let appending = append_message(bus, lane, run, &Topic::Submitted, submission, 0);
    match bus.fail_on_denial(&topic_subject(lane, run, &Topic::Submitted), appending).await {
        Ok(sequence) => Ok(Some(sequence)),
        Err(AppendError::Fenced { .. }) => Ok(None),
        Err(AppendError::Fault(fault)) => Err(fault),
    }
}

/// Reads the list of a run's documents.
pub async fn read_document_list(bus: &Bus, set: &DocumentSet) -> Result<Vec<Document>, Fault> {
    let manifest = bus.blobs().get(&set.manifest).await?;
    wire::decode_message_pack(&manifest, "the list of documents")
        .map_err(|error| Fault::unavailable("reading the list of documents", error))
}

/// Stores the list of a run's documents, whose contents are in the blob store.
pub async fn store_document_list(bus: &Bus, documents: &[Document]) -> Result<DocumentSet, Fault> {
    let manifest = bus.blobs().put_blob(&wire::encode_body(&documents)).await?;
    Ok(DocumentSet {
        manifest: manifest.sha256,
        count: u32::try_from(documents.len()).unwrap_or(u32::MAX),
        bytes: documents.iter().map(|document| document.size).sum(),
    })
}
