//! The waits of one piece of work for its model's provider. They do not count as run time: an attempt that waits neither
//! works nor hangs.

use jiff::{SignedDuration, Timestamp};

use crate::provider::ProviderWait;

/// The waits of a piece of work for its provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProviderWaits {
    /// The current wait, and the time of the decision that it began with. Boxed: most tasks have none.
    current: Option<Box<(ProviderWait, Timestamp)>>,
    /// The time spent in earlier waits.
    earlier: SignedDuration,
}

impl ProviderWaits {
    /// The current wait.
    #[must_use]
    pub fn current(&self) -> Option<&ProviderWait> {
        self.current.as_deref().map(|(wait, _)| wait)
    }

    /// `true` if there is no current wait.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.current.is_none()
    }

    /// The time spent waiting until `now`.
    #[must_use]
    pub fn total(&self, now: Timestamp) -> SignedDuration {
        let current = self.current.as_deref().map(|(_, from)| now.duration_since(*from));
        self.earlier.saturating_add(current.unwrap_or_default())
    }

    /// Begins a wait, or replaces the report on the current one.
    pub(in crate::plan) fn report(&mut self, wait: ProviderWait, at: Timestamp) {
        let from = self.current.as_deref().map_or(at, |(_, from)| *from);
        self.current = Some(Box::new((wait, from)));
    }

    /// Ends the current wait, if there is one.
    pub(in crate::plan) fn end(&mut self, at: Timestamp) {
        self.earlier = self.total(at);
        self.current = None;
    }
}
