//! What the calls of a turn may use of models, all together. They run at once and each takes what it needs from here, so
//! that they pass an amount by no more than one question. It owns the count; what is in it, the turn says.

use std::sync::Arc;

use millrace_protocol::plan::Amounts;
use millrace_protocol::result::Usage;
use tokio::sync::{Mutex, MutexGuard};

/// What the calls of a turn may use of models together. The default has no end.
#[derive(Debug, Clone, Default)]
pub struct Purse(Option<Arc<Mutex<Amounts>>>);

impl Purse {
    /// A purse with so much in it; without any amount, it has no end.
    #[must_use]
    pub fn holding(left: Amounts) -> Self {
        Self((!left.is_empty()).then(|| Arc::new(Mutex::new(left))))
    }

    /// Opens it. While it is open, no other call of the turn asks a model; one that has no end is open to all.
    pub async fn open(&self) -> Opened<'_> {
        match &self.0 {
            None => Opened(None),
            Some(left) => Opened(Some(left.lock().await)),
        }
    }
}

/// A purse in one's hand.
pub struct Opened<'a>(Option<MutexGuard<'a, Amounts>>);

impl Opened<'_> {
    /// Whether there is nothing left to ask a model with.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_some_and(|left| left.iter().any(|(_, amount)| amount == 0))
    }

    /// The most tokens that a reply may have.
    #[must_use]
    pub fn of_next_reply(&self) -> u32 {
        let left =
            self.0.as_ref().and_then(|left| [left.tokens, left.output_tokens].into_iter().flatten().min());
        left.and_then(|left| u32::try_from(left).ok()).unwrap_or(u32::MAX)
    }

    /// Takes out what was used.
    pub fn pay(&mut self, used: &Usage) {
        let Some(left) = &mut self.0 else { return };
        let now = **left;
        for (dimension, amount) in now.iter() {
            left.set(dimension, Some(amount.saturating_sub(dimension.of(used))));
        }
    }
}
