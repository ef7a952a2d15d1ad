//! The asynchronous runtime of a process: running a program so that it exits when it has finished, stopping it at a signal (long-running
//! parts hold a clone of one cancellation token and end by themselves), and work that keeps a thread busy for long: decoding,
//! folding and deciding on very large plans.
//!
//! # Invariants
//!
//! - I264: An owner keeps its lease while it folds and decides on a very large plan: the other tasks of the process continue
//!   meanwhile. (`tests/tests/supervision.rs::owner_keeps_its_lease_while_it_decides_on_a_very_large_plan`,
//!   `crates/runtime/src/ops/runtime.rs::other_tasks_go_on_during_long_work`)

use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// A second signal within this time counts as the same one: programs that forward signals to a process group and to its
/// members send two.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// The timeout for blocked threads when everything else has ended.
const THREAD_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a program to completion on a runtime of its own. It does not wait for threads that are still blocked then (by a
/// file lock, by a DNS lookup), so that the process exits within its grace period.
pub fn block_on<T>(program: impl Future<Output = T>) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(program);
    runtime.shutdown_timeout(THREAD_TIMEOUT);
    Ok(outcome)
}

/// Returns a token that is cancelled at the first SIGTERM or SIGINT. A second signal, half a second later or more,
/// exits the process at once.
pub fn token_cancelled_by_signals() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let cancelled = token.clone();
    tokio::spawn(async move {
        let mut wait =
            async || tokio::select! { _ = terminate.recv() => "SIGTERM", _ = interrupt.recv() => "SIGINT" };
        let name = wait().await;
        info!(signal = name, "stopping");
        cancelled.cancel();
        let first = tokio::time::Instant::now();
        while first.elapsed() < SAME_SIGNAL {
            wait().await;
        }
        std::process::exit(130);
    });
    Ok(token)
}

/// The number of tasks of a plan from which on a pass over it is long work.
pub const LONG_PLAN: usize = 50_000;
/// The number of bytes of a message from which on its decoding is long work.
pub const LONG_MESSAGE: usize = 4_000_000;

/// Runs work on this thread. If it `is_long`, the runtime moves the other tasks of the thread to another thread first. It would not
/// do so otherwise for the task that was woken last, which may be the connection to the server or the renewal of a lease.
pub fn run_possibly_long<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    // A runtime with a single thread, as in tests, has no other thread.
    let has_threads =
        || Handle::try_current().is_ok_and(|current| current.runtime_flavor() == RuntimeFlavor::MultiThread);
    if is_long && has_threads() { tokio::task::block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn blocked_thread_does_not_delay_the_exit() {
        let (unblock, blocked) = std::sync::mpsc::channel::<()>();
        let program = async move {
            let (started, start) = tokio::sync::oneshot::channel();
            drop(tokio::task::spawn_blocking(move || {
                started.send(()).and_then(|()| blocked.recv().map_err(drop))
            }));
            start.await.expect("the thread has started");
            "done"
        };
        // Without a timeout this would wait for the thread, which waits for the statement below.
        assert_eq!(block_on(program).unwrap(), "done");
        drop(unblock);
    }

    /// A task that was woken just before the work runs during the work, on a runtime with one thread.
    #[test]
    fn other_tasks_go_on_during_long_work() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let is_run_meanwhile = runtime.block_on(async {
            let working = tokio::spawn(async {
                let (done, is_done) = mpsc::channel();
                tokio::spawn(async move { done.send(()) });
                run_possibly_long(true, || is_done.recv_timeout(Duration::from_secs(30)).is_ok())
            });
            working.await.unwrap()
        });
        assert!(is_run_meanwhile);
    }

    #[tokio::test]
    async fn runtime_with_one_thread_does_the_work_itself() {
        assert_eq!(run_possibly_long(true, || 1), 1);
        assert_eq!(std::thread::spawn(|| run_possibly_long(true, || 2)).join().unwrap(), 2);
    }
}
