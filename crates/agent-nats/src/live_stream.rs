//! The model's output as it is generated, published over core NATS for `millrace watch`. Nothing is stored or
//! retransmitted: a message that is lost stays lost.

use std::time::Duration;

use millrace_agent::model::{Delta, DeltaListener};
use millrace_protocol::subject;
use millrace_protocol::work::Order;
use millrace_runtime::Bus;
use serde_json::json;
use tokio::sync::mpsc;

/// The interval between two messages.
const INTERVAL: Duration = Duration::from_millis(200);
/// The most characters of one message; of longer output only the end is published.
const MAX_CHARS: usize = 4_000;

/// Publishes the model output of one order until it is dropped.
pub struct LiveOutputStream {
    pieces: mpsc::UnboundedSender<OutputPiece>,
}

enum OutputPiece {
    Text(String),
    Call(String),
    Restart,
}

impl LiveOutputStream {
    /// Starts to publish on the live subject of an order's work.
    #[must_use]
    pub fn start_publisher(bus: &Bus, order: &Order) -> Self {
        let (pieces, received) = mpsc::unbounded_channel();
        tokio::spawn(publish_pieces(
            bus.clone(),
            subject::live_output_subject(&order.run, &order.work()),
            received,
        ));
        Self { pieces }
    }
}

impl DeltaListener for LiveOutputStream {
    fn on_delta(&self, delta: Delta<'_>) {
        let piece = match delta {
            Delta::Text(text) | Delta::Reasoning(text) => OutputPiece::Text(text.to_owned()),
            Delta::Call(tool) => OutputPiece::Call(tool.to_owned()),
            Delta::Restart => OutputPiece::Restart,
            // The journal gets a note if the wait is long.
            Delta::Waiting(_) | Delta::Sending => return,
        };
        // The receiver ends only after this sender is dropped.
        drop(self.pieces.send(piece));
    }
}

async fn publish_pieces(bus: Bus, subject: String, mut pieces: mpsc::UnboundedReceiver<OutputPiece>) {
    while let Some(first) = pieces.recv().await {
        // Pieces arrive token by token; those of one interval are published together.
        tokio::time::sleep(INTERVAL).await;
        let mut batch = OutputBatch::default();
        batch.append_piece(first);
        while let Ok(piece) = pieces.try_recv() {
            batch.append_piece(piece);
        }
        if bus.client().publish(subject.clone(), batch.format_message().into()).await.is_err() {
            return;
        }
    }
}

/// The output of one interval.
#[derive(Default)]
struct OutputBatch {
    text: String,
    calls: Vec<String>,
    is_restart: bool,
}

impl OutputBatch {
    fn append_piece(&mut self, piece: OutputPiece) {
        match piece {
            OutputPiece::Text(text) => self.text.push_str(&text),
            OutputPiece::Call(tool) => self.calls.push(tool),
            OutputPiece::Restart => *self = Self { is_restart: true, ..Self::default() },
        }
    }

    fn format_message(&self) -> String {
        let over = self.text.chars().count().saturating_sub(MAX_CHARS);
        let text: String = self.text.chars().skip(over).collect();
        json!({ "text": text, "calls": self.calls, "anew": self.is_restart }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_published_together_and_a_restart_discards_them() {
        let mut batch = OutputBatch::default();
        for piece in [
            OutputPiece::Text("no".into()),
            OutputPiece::Restart,
            OutputPiece::Text("a".into()),
            OutputPiece::Text("b".into()),
        ] {
            batch.append_piece(piece);
        }
        batch.append_piece(OutputPiece::Call("think".into()));
        assert_eq!(batch.format_message(), r#"{"text":"ab","calls":["think"],"anew":true}"#);
        batch.append_piece(OutputPiece::Text("x".repeat(MAX_CHARS)));
        assert!(!batch.format_message().contains("ab"), "the end of the output is published");
    }
}
