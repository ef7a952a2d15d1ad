//! Prepares the turn of a run in its session: adds it to the record of the session, and stores the results of the runs before it
//! as documents. Every step is idempotent; after a takeover the new owner repeats all of them.

use std::time::Duration;

use millrace_client::{EarlierResults, read_document_list, read_results_of_run, store_document_list};
use millrace_protocol::ids::{RunId, SessionId};
use millrace_protocol::plan::{Document, EarlierRun, MAX_EARLIER_RUNS, RunParameters, SessionTurn};
use millrace_runtime::fault::max_replica_lag;
use millrace_runtime::store::admission::join_session;
use millrace_runtime::{Bus, Fault};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::closing::retry_until_done;

/// The maximum number of earlier runs whose results a run of a session sees: the newest ones.
const MAX_RUNS: usize = 8;
/// The maximum size of their results in bytes; those of older runs are left out.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// The pause before the results of a run are read again.
const READ_RETRY: Duration = Duration::from_millis(200);
/// The time for which reading the results of one run is repeated. A damaged archive must not hold up its session.
const PATIENCE: Duration = Duration::from_secs(30);

/// Prepares the turn of a run with these parameters. Repeats each step until it succeeds.
pub async fn prepare_session_turn(
    bus: &Bus,
    run: &RunId,
    session: &SessionId,
    start: &RunParameters,
) -> SessionTurn {
    let join = || join_session(bus, session, run);
    let (position, before) = retry_until_done("joining the session", run, join).await;
    let is_named = |run: &&RunId| start.after.iter().any(|named| named.run == **run);
    let room = MAX_RUNS.min(MAX_EARLIER_RUNS.saturating_sub(start.after.len()));
    let mut results = Vec::new();
    let mut bytes = 0;
    for earlier in before.iter().rev().filter(|run| !is_named(run)) {
        if results.len() == room {
            break;
        }
        let Some(found) = read_results(bus, earlier).await else { continue };
        bytes += found.documents.iter().map(|(_, content)| content.len()).sum::<usize>();
        if bytes > MAX_BYTES && !results.is_empty() {
            break;
        }
        results.push(found);
    }
    results.reverse();
    if results.is_empty() {
        return SessionTurn { position, earlier: Vec::new(), documents: start.documents.clone() };
    }
    let store = || store_results(bus, start, &results);
    let documents = retry_until_done("storing the results of earlier runs", run, store).await;
    let earlier = results.into_iter().map(|results| results.about).collect();
    SessionTurn { position, earlier, documents }
}

/// Returns the results of a run; `None` if it was deleted, or was resumed and has not ended. For results that can't be
/// read, the summary says so.
async fn read_results(bus: &Bus, run: &RunId) -> Option<EarlierResults> {
    let started = Instant::now();
    loop {
        match read_results_of_run(bus, run).await {
            // A replica may lag behind the end of the run.
            Ok(None) if started.elapsed() < max_replica_lag(bus.settings().replicas) => {}
            Ok(results) => return results,
            Err(fault) if fault.is_transient() && started.elapsed() < PATIENCE => {
                debug!(%run, %fault, "failed to read the results of an earlier run; retrying");
            }
            Err(fault) => {
                warn!(%run, %fault, "the results of an earlier run of the session can't be read");
                let about = EarlierRun {
                    run: run.clone(),
                    objective: String::new(),
                    summary: "the results of this run can't be read".into(),
                    folder: format!("earlier/{run}"),
                };
                return Some(EarlierResults { about, documents: Vec::new() });
            }
        }
        tokio::time::sleep(READ_RETRY).await;
    }
}

/// Stores results as documents, after the run's own documents. Returns the list of all.
async fn store_results(
    bus: &Bus,
    start: &RunParameters,
    results: &[EarlierResults],
) -> Result<Option<millrace_protocol::plan::DocumentSet>, Fault> {
    let mut documents: Vec<Document> = match &start.documents {
        None => Vec::new(),
        Some(own) => read_document_list(bus, own).await?,
    };
    for (path, content) in results.iter().flat_map(|results| &results.documents) {
        let blob = bus.blobs().put_blob(content).await?;
        documents.push(Document { path: path.clone(), sha256: blob.sha256, size: blob.size });
    }
    match documents.is_empty() {
        true => Ok(None),
        false => store_document_list(bus, &documents).await.map(Some),
    }
}
