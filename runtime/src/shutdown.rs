//! When a process stops: at a signal. Everything that runs long holds a clone of the token and ends by itself. And that
//! a program whose work is done is gone.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// How soon after the first a further signal is taken for the same one: programs that pass signals on to a group and
/// to its members send two.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// How long a thread that nothing can interrupt is waited for when all else has ended.
const LINGER: Duration = Duration::from_secs(1);

/// Runs a program to its end, on a runtime of its own. What a thread is still held up by then (the lock of another
/// process, a name that is being looked up) is not waited for: the process ends within its grace.
///
/// # Errors
/// No runtime can be made.
pub fn block_on<T>(program: impl Future<Output = T>) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(program);
    runtime.shutdown_timeout(LINGER);
    Ok(outcome)
}

/// A token that is cancelled at the first SIGTERM or SIGINT. A second one, half a second later or more, ends the
/// process at once.
///
/// # Errors
/// The signals can't be listened to.
pub fn on_signals() -> std::io::Result<CancellationToken> {
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
    fn a_thread_that_is_held_up_holds_up_no_end() {
        let (held, hold) = std::sync::mpsc::channel::<()>();
        let program = async move {
            let (begun, begins) = tokio::sync::oneshot::channel();
            drop(tokio::task::spawn_blocking(move || {
                begun.send(()).and_then(|()| hold.recv().map_err(drop))
            }));
            begins.await.expect("the thread has begun");
            "done"
        };
        // Without a bound this waits for the thread, which waits for what comes behind it.
        assert_eq!(block_on(program).unwrap(), "done");
        drop(held);
    }
}
