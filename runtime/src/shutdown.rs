//! When a process stops: at a signal. Everything that runs long holds a clone of the token and ends by itself.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// How soon after the first a further signal is taken for the same one: programs that pass signals on to a group and
/// to its members send two.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

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
