//! The model's output as it is generated, published over core NATS for `millrace watch`. Nothing is stored or
//! retransmitted: a message that is lost stays lost.

use std::time::Duration;

use millrace_agent::model::{Delta, DeltaListener};
use millrace_protocol::secrets::PieceRedactor;
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
    /// A request was sent, with this number of tokens.
    Sent(u64),
    /// Output that is not shown.
    Hidden,
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
            Delta::Sent(tokens) => OutputPiece::Sent(tokens),
            Delta::Hidden => OutputPiece::Hidden,
        };
        // The receiver ends only after this sender is dropped.
        drop(self.pieces.send(piece));
    }
}

async fn publish_pieces(bus: Bus, subject: String, mut pieces: mpsc::UnboundedReceiver<OutputPiece>) {
    let mut redactor = PieceRedactor::default();
    while let Some(first) = pieces.recv().await {
        // Pieces arrive token by token; those of one interval are published together.
        tokio::time::sleep(INTERVAL).await;
        let mut batch = OutputBatch::default();
        batch.append_piece(first, &mut redactor);
        while let Ok(piece) = pieces.try_recv() {
            batch.append_piece(piece, &mut redactor);
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
    /// The tokens of the request that was sent last in the interval.
    sent_tokens: Option<u64>,
    /// `true` if the model has written something since.
    is_writing: bool,
}

impl OutputBatch {
    /// Appends a piece. A secret may be in several of them; anything but text ends the text.
    fn append_piece(&mut self, piece: OutputPiece, redactor: &mut PieceRedactor) {
        self.is_writing = match &piece {
            OutputPiece::Text(_) | OutputPiece::Call(_) | OutputPiece::Hidden => true,
            OutputPiece::Restart | OutputPiece::Sent(_) => false,
        };
        let end = if let OutputPiece::Text(_) = piece { String::new() } else { redactor.finish() };
        self.text.push_str(&end);
        match piece {
            OutputPiece::Text(text) => self.text.push_str(&redactor.push(&text)),
            OutputPiece::Call(tool) => self.calls.push(tool),
            OutputPiece::Restart => *self = Self { is_restart: true, ..Self::default() },
            OutputPiece::Sent(tokens) => self.sent_tokens = Some(tokens),
            OutputPiece::Hidden => {}
        }
    }

    fn format_message(&self) -> String {
        let over = self.text.chars().count().saturating_sub(MAX_CHARS);
        let text: String = self.text.chars().skip(over).collect();
        let mut message = json!({ "text": text, "calls": self.calls, "anew": self.is_restart });
        if let Some(tokens) = self.sent_tokens {
            message["sent_tokens"] = tokens.into();
        }
        if self.is_writing && text.is_empty() && self.calls.is_empty() {
            message["writing"] = true.into();
        }
        message.to_string()
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::secrets::{SecretRedactor, remember_secrets};

    use super::*;

    #[test]
    fn pieces_are_published_together_and_a_restart_discards_them() {
        let (mut batch, redactor) = (OutputBatch::default(), &mut PieceRedactor::default());
        for piece in [
            OutputPiece::Text("no".into()),
            OutputPiece::Restart,
            OutputPiece::Text("a".into()),
            OutputPiece::Text("b".into()),
        ] {
            batch.append_piece(piece, redactor);
        }
        batch.append_piece(OutputPiece::Call("think".into()), redactor);
        assert_eq!(batch.format_message(), r#"{"text":"ab","calls":["think"],"anew":true}"#);
        batch.append_piece(OutputPiece::Text("x".repeat(MAX_CHARS)), redactor);
        assert!(!batch.format_message().contains("ab"), "the end of the output is published");
    }

    #[test]
    fn a_secret_in_two_messages_is_published_in_none() {
        let mut secrets = SecretRedactor::default();
        secrets.add("live-secret-4f9a");
        remember_secrets(&secrets);
        let mut redactor = PieceRedactor::default();
        let pieces = [
            OutputPiece::Text("a live-se".into()),
            OutputPiece::Text("cret-4f9a b live".into()),
            OutputPiece::Call("x".into()),
        ];
        let messages = pieces.map(|piece| {
            let mut batch = OutputBatch::default();
            batch.append_piece(piece, &mut redactor);
            batch.text
        });
        assert_eq!(messages, ["a ", "[hidden] b ", "live"]);
    }

    #[test]
    fn a_request_is_published_with_its_tokens_and_hidden_output_as_a_flag() {
        let (mut batch, redactor) = (OutputBatch::default(), &mut PieceRedactor::default());
        batch.append_piece(OutputPiece::Sent(2_625), redactor);
        let value: serde_json::Value = serde_json::from_str(&batch.format_message()).unwrap();
        assert_eq!((&value["sent_tokens"], value.get("writing")), (&2_625.into(), None));
        batch.append_piece(OutputPiece::Hidden, redactor);
        let value: serde_json::Value = serde_json::from_str(&batch.format_message()).unwrap();
        assert_eq!(value["writing"], true);
    }
}
