//! The frames of an open stream on their way to the client.

use std::time::Duration;

use millrace_runtime::Fault;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::frame::Frame;

/// The time that a client may take for a frame before it counts as slow.
pub const SLOW: Duration = Duration::from_secs(1);
/// The interval of comments that keep the connection open, and that reveal a client that is gone.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The reason for the end of a stream other than the end of what it shows.
pub enum StreamStop {
    ClientGone,
    Stopping,
    /// A message can't be read.
    Unreadable(Fault),
}

impl From<Fault> for StreamStop {
    fn from(fault: Fault) -> Self {
        Self::Unreadable(fault)
    }
}

/// The client's end of a stream.
#[derive(Clone)]
pub struct FrameSink {
    frames: mpsc::Sender<Frame>,
    shutdown: CancellationToken,
}

impl FrameSink {
    /// Creates a sink; the token ends the stream when the process stops.
    pub fn new(frames: mpsc::Sender<Frame>, shutdown: CancellationToken) -> Self {
        Self { frames, shutdown }
    }

    /// Sends a frame, and returns the time that the client took to make room for it.
    pub async fn send(&self, frame: Frame) -> Result<Duration, StreamStop> {
        let frame = match self.frames.try_send(frame) {
            Ok(()) => return Ok(Duration::ZERO),
            Err(mpsc::error::TrySendError::Full(frame)) => frame,
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(StreamStop::ClientGone),
        };
        let started = Instant::now();
        tokio::select! {
            sent = self.frames.send(frame) => sent.map_err(|_| StreamStop::ClientGone)?,
            () = self.shutdown.cancelled() => return Err(StreamStop::Stopping),
        }
        Ok(started.elapsed())
    }

    /// Sends a frame if there is room for it. Returns `false` if there is not.
    pub fn send_if_room(&self, frame: Frame) -> Result<bool, StreamStop> {
        match self.frames.try_send(frame) {
            Ok(()) => Ok(true),
            Err(mpsc::error::TrySendError::Full(_)) => Ok(false),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(StreamStop::ClientGone),
        }
    }

    /// Sends the last frame, also while the process stops. A client that is gone needs none.
    pub async fn send_last(&self, frame: Frame) {
        let _ = self.frames.send(frame).await;
    }

    /// Waits until the stream must end.
    pub async fn closed(&self) -> StreamStop {
        tokio::select! {
            () = self.frames.closed() => StreamStop::ClientGone,
            () = self.shutdown.cancelled() => StreamStop::Stopping,
        }
    }

    /// Waits for a time, unless the stream must end.
    pub async fn wait(&self, delay: Duration) -> Result<(), StreamStop> {
        tokio::select! {
            () = tokio::time::sleep(delay) => Ok(()),
            stop = self.closed() => Err(stop),
        }
    }
}
