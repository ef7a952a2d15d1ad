//! Stopping a process at a signal: long-running parts hold a clone of one cancellation token and end by themselves.
//! Also running a program so that it exits when it has finished.

use std::time::Duration;

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

#[cfg(test)]
mod tests {
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
}
