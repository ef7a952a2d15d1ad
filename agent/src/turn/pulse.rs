//! Whether a model that is asked gives signs of life: it writes, or the request has to wait. It looks on and hands on; what
//! becomes of a sign is for others.

use std::sync::{Mutex, PoisonError};

use crate::model::{Delta, Watch};

/// Hands on what a model writes, and remembers when it last did.
pub(super) struct Pulse<'a> {
    watch: &'a dyn Watch,
    seen: Mutex<Seen>,
}

enum Seen {
    /// The provider has the request, and nothing came since the last sign.
    Nothing,
    /// The model writes.
    Words,
    /// The request has to wait, with the reason.
    Waiting(String),
}

impl<'a> Pulse<'a> {
    pub fn of(watch: &'a dyn Watch) -> Self {
        Self { watch, seen: Mutex::new(Seen::Nothing) }
    }

    /// A line that says what goes on; `None` if nothing was seen since the last one.
    pub fn sign(&self) -> Option<String> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match &*seen {
            Seen::Nothing => None,
            Seen::Words => {
                *seen = Seen::Nothing;
                Some("the model is writing".into())
            }
            Seen::Waiting(why) => Some(format!("the model is waited for: {why}")),
        }
    }
}

impl Watch for Pulse<'_> {
    fn delta(&self, delta: Delta<'_>) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = match delta {
            Delta::Text(_) | Delta::Reasoning(_) | Delta::Call(_) | Delta::Restart => Seen::Words,
            Delta::Waiting(why) => Seen::Waiting(why.to_owned()),
            Delta::Asking => Seen::Nothing,
        };
        self.watch.delta(delta);
    }
}
