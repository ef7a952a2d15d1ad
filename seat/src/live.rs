//! What a model is just writing, told to whoever watches the run. Told once, over core NATS and to nobody in particular:
//! nothing of it is kept, and a piece that is lost is lost.

use std::time::Duration;

use millrace_agent::model::{Delta, Watch};
use millrace_protocol::subject;
use millrace_protocol::work::Order;
use millrace_runtime::Bus;
use serde_json::json;
use tokio::sync::mpsc;

/// How often something is told.
const BEAT: Duration = Duration::from_millis(200);
/// The most characters of one telling; of more, the newest are told.
const MAX_CHARS: usize = 4_000;

/// Tells what a model writes for one order, for as long as it lives.
pub struct Live {
    pieces: mpsc::UnboundedSender<Piece>,
}

enum Piece {
    Text(String),
    Call(String),
    Restart,
}

impl Live {
    /// Tells on the subject of this order's work.
    #[must_use]
    pub fn of(bus: &Bus, order: &Order) -> Self {
        let (pieces, received) = mpsc::unbounded_channel();
        tokio::spawn(tell(bus.clone(), subject::live(&order.run, &order.work), received));
        Self { pieces }
    }
}

impl Watch for Live {
    fn delta(&self, delta: Delta<'_>) {
        let piece = match delta {
            Delta::Text(text) | Delta::Reasoning(text) => Piece::Text(text.to_owned()),
            Delta::Call(tool) => Piece::Call(tool.to_owned()),
            Delta::Restart => Piece::Restart,
            // The journal says it, where the wait is long.
            Delta::Waiting(_) | Delta::Asking => return,
        };
        // The teller ends only with us.
        drop(self.pieces.send(piece));
    }
}

async fn tell(bus: Bus, subject: String, mut pieces: mpsc::UnboundedReceiver<Piece>) {
    while let Some(first) = pieces.recv().await {
        // Pieces come by the token; what comes within a beat is told together.
        tokio::time::sleep(BEAT).await;
        let mut said = Said::default();
        said.take(first);
        while let Ok(piece) = pieces.try_recv() {
            said.take(piece);
        }
        if bus.client().publish(subject.clone(), said.message().into()).await.is_err() {
            return;
        }
    }
}

/// What was written within a beat.
#[derive(Default)]
struct Said {
    text: String,
    calls: Vec<String>,
    is_anew: bool,
}

impl Said {
    fn take(&mut self, piece: Piece) {
        match piece {
            Piece::Text(text) => self.text.push_str(&text),
            Piece::Call(tool) => self.calls.push(tool),
            Piece::Restart => *self = Self { is_anew: true, ..Self::default() },
        }
    }

    fn message(&self) -> String {
        let over = self.text.chars().count().saturating_sub(MAX_CHARS);
        let text: String = self.text.chars().skip(over).collect();
        json!({ "text": text, "calls": self.calls, "anew": self.is_anew }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_told_together_and_a_restart_takes_them_back() {
        let mut said = Said::default();
        for piece in
            [Piece::Text("no".into()), Piece::Restart, Piece::Text("a".into()), Piece::Text("b".into())]
        {
            said.take(piece);
        }
        said.take(Piece::Call("think".into()));
        assert_eq!(said.message(), r#"{"text":"ab","calls":["think"],"anew":true}"#);
        said.take(Piece::Text("x".repeat(MAX_CHARS)));
        assert!(!said.message().contains("ab"), "the newest words are told");
    }
}
