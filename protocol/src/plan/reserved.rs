//! The reservations of work in flight, and their sums. Arithmetic only; the rules decide when to reserve.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Work;
use super::budget::{ResourceAmounts, ResourceKind};
use crate::ids::Capability;

/// Sums of amounts. They are wider than an amount, so that adding never saturates and releasing is exact.
pub(super) type AmountSums = BTreeMap<ResourceKind, u128>;

/// The reservations of work in flight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reservations {
    #[serde(serialize_with = "serialize_as_pairs")]
    by_work: BTreeMap<Work, (Capability, ResourceAmounts)>,
    pub(super) total: AmountSums,
    #[serde(skip)]
    pub(super) by_capability: BTreeMap<Capability, AmountSums>,
}

/// Serialises a map by work as a list of pairs: JSON keys must be text.
fn serialize_as_pairs<S: serde::Serializer>(
    by_work: &BTreeMap<Work, (Capability, ResourceAmounts)>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(by_work.iter().map(|(work, (_, amounts))| (work, amounts)))
}

impl Reservations {
    /// The amounts reserved for a piece of work.
    #[must_use]
    pub fn amounts_of_work(&self, work: &Work) -> Option<ResourceAmounts> {
        self.by_work.get(work).map(|(_, amounts)| *amounts)
    }

    /// Reserves amounts for work of a capability; replaces its earlier reservation.
    pub(super) fn reserve(&mut self, work: &Work, capability: Capability, amounts: ResourceAmounts) {
        self.release(work);
        let own = self.by_capability.entry(capability.clone()).or_default();
        for (dimension, amount) in amounts.iter().filter(|(_, amount)| *amount > 0) {
            *self.total.entry(dimension).or_default() += u128::from(amount);
            *own.entry(dimension).or_default() += u128::from(amount);
        }
        if own.is_empty() {
            self.by_capability.remove(&capability);
        }
        self.by_work.insert(work.clone(), (capability, amounts));
    }

    /// Releases the reservation of a piece of work.
    pub(super) fn release(&mut self, work: &Work) {
        let Some((capability, amounts)) = self.by_work.remove(work) else { return };
        let own = self.by_capability.get_mut(&capability);
        for sums in std::iter::once(&mut self.total).chain(own) {
            for (dimension, amount) in amounts.iter() {
                if let Some(sum) = sums.get_mut(&dimension) {
                    *sum -= u128::from(amount);
                }
            }
            sums.retain(|_, sum| *sum > 0);
        }
        if self.by_capability.get(&capability).is_some_and(BTreeMap::is_empty) {
            self.by_capability.remove(&capability);
        }
    }

    /// The sums without the single reservations, as a base for further reservations.
    pub(super) fn without_single_reservations(&self) -> Self {
        Self {
            by_work: BTreeMap::new(),
            total: self.total.clone(),
            by_capability: self.by_capability.clone(),
        }
    }

    /// The number of reservations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_work.len()
    }

    /// `true` if there are no reservations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_work.is_empty()
    }

    /// The total reserved in a dimension.
    #[must_use]
    pub fn total_reserved(&self, dimension: ResourceKind) -> u64 {
        self.total.get(&dimension).map_or(0, |sum| u64::try_from(*sum).unwrap_or(u64::MAX))
    }

    /// All reservations.
    pub fn iter(&self) -> impl Iterator<Item = (&Work, &ResourceAmounts)> {
        self.by_work.iter().map(|(work, (_, amounts))| (work, amounts))
    }
}
