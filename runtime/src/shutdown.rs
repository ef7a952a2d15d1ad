//! When and why a process stops: a signal, or whoever started it. Everything that runs long holds a clone of the
//! token and ends by itself.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// A token that is cancelled at the first SIGTERM or SIGINT. A second one ends the process at once.
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
        wait().await;
        std::process::exit(130);
    });
    Ok(token)
}
