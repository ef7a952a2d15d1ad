//! Keepalives while a model request is pending: notes whether the model is writing or the request has to wait. It only
//! forwards and records; the caller decides when to write a keepalive.

use std::sync::{Mutex, PoisonError};

use millrace_models::model::ProviderDeadline;

use crate::model::{Delta, DeltaListener};

/// Forwards the deltas of a reply and remembers the latest activity.
pub(super) struct KeepaliveListener<'a> {
    watch: &'a dyn DeltaListener,
    latest: Mutex<ModelActivity>,
    deadline: &'a ProviderDeadline,
}

enum ModelActivity {
    /// The provider has the request, and there was no activity since the last keepalive.
    Idle,
    /// The model is writing.
    Writing,
    /// The request is waiting, with the reason.
    Waiting(String),
}

impl<'a> KeepaliveListener<'a> {
    pub fn new(watch: &'a dyn DeltaListener, deadline: &'a ProviderDeadline) -> Self {
        Self { watch, latest: Mutex::new(ModelActivity::Idle), deadline }
    }

    /// Returns a line about the activity since the last call; `None` if there was none.
    pub fn take_status(&self) -> Option<String> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match &*latest {
            ModelActivity::Idle => None,
            ModelActivity::Writing => {
                *latest = ModelActivity::Idle;
                Some("the model is writing".into())
            }
            ModelActivity::Waiting(why) => Some(format!("waiting for the model: {why}")),
        }
    }
}

impl DeltaListener for KeepaliveListener<'_> {
    fn on_delta(&self, delta: Delta<'_>) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = match delta {
            Delta::Text(_) | Delta::Reasoning(_) | Delta::Call(_) | Delta::Hidden | Delta::Restart => {
                ModelActivity::Writing
            }
            Delta::Waiting(why) => ModelActivity::Waiting(why.to_owned()),
            Delta::Sending | Delta::Sent(_) => ModelActivity::Idle,
        };
        self.watch.on_delta(delta);
    }

    fn provider_deadline(&self) -> Option<&ProviderDeadline> {
        Some(self.deadline)
    }
}
