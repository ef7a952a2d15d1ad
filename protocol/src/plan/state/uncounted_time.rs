//! The time that the clock of one piece of work does not count: waits for its model's provider, in which it neither works nor
//! hangs, and absences of the worker or of all supervisors.

use jiff::{SignedDuration, Timestamp};

use crate::plan::attendance::Absence;
use crate::provider::ProviderWait;

/// The time that a clock does not count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UncountedTime {
    /// The current wait for the provider, and the time of the decision that it began with. Boxed: most tasks have none.
    current: Option<Box<(ProviderWait, Timestamp)>>,
    /// The sum of the earlier times.
    earlier: SignedDuration,
    /// The end of the last of them: no time is excluded twice.
    through: Timestamp,
}

impl UncountedTime {
    pub fn current_wait(&self) -> Option<&ProviderWait> {
        self.current.as_deref().map(|(wait, _)| wait)
    }

    /// `true` if there is no current wait for the provider.
    pub fn is_wait_over(&self) -> bool {
        self.current.is_none()
    }

    /// The time that is not counted until `now`.
    pub fn total(&self, now: Timestamp) -> SignedDuration {
        let current = self.current.as_deref().map(|(_, from)| now.duration_since(*from));
        self.earlier.saturating_add(current.unwrap_or_default())
    }

    /// The time from `since` to `at` that a clock counts.
    pub(in crate::plan) fn counted(&self, since: Timestamp, at: Timestamp) -> SignedDuration {
        at.duration_since(since).saturating_sub(self.total(at))
    }

    /// The part of an absence that a clock has counted, if it started at `since`.
    pub(in crate::plan) fn part_of(&self, absence: Absence, since: Timestamp) -> Option<Absence> {
        let from = absence.from.max(since).max(self.through);
        let until = self.current.as_deref().map_or(absence.until, |(_, wait)| absence.until.min(*wait));
        (from < until).then_some(Absence { from, until })
    }

    /// Excludes an absence from a clock that started at `since`.
    pub(in crate::plan) fn exclude(&mut self, absence: Absence, since: Timestamp) {
        if let Some(part) = self.part_of(absence, since) {
            self.earlier = self.earlier.saturating_add(part.until.duration_since(part.from));
            self.through = part.until;
        }
    }

    /// Begins a wait for the provider, or replaces the report on the current one.
    pub(in crate::plan) fn report_wait(&mut self, wait: ProviderWait, at: Timestamp) {
        let from = self.current.as_deref().map_or(at, |(_, from)| *from);
        self.current = Some(Box::new((wait, from)));
    }

    /// Ends the current wait, if there is one.
    pub(in crate::plan) fn end_wait(&mut self, at: Timestamp) {
        if self.current.is_some() {
            self.earlier = self.total(at);
            self.current = None;
            self.through = at;
        }
    }
}
