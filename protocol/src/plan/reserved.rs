//! The reservations of work in flight, and their sums. Arithmetic only; the rules decide when to reserve.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Work;
use super::budget::{ResourceAmounts, ResourceKind};
use crate::ids::Capability;
use crate::result::Usage;

/// Sums of amounts. They are wider than an amount, so that adding never saturates and releasing is exact.
pub(super) type AmountSums = BTreeMap<ResourceKind, u128>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Reservation {
    capability: Capability,
    amounts: ResourceAmounts,
    /// The part of it that is in the total: without the usage of children, and 0 if it comes out of the reservation of the
    /// task's parent.
    counted: ResourceAmounts,
    /// `true` if it comes out of the reservation of the task's parent.
    is_from_parent: bool,
}

/// The reservations of work in flight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reservations {
    #[serde(serialize_with = "serialize_as_pairs")]
    by_work: BTreeMap<Work, Reservation>,
    pub(super) total: AmountSums,
    #[serde(skip)]
    pub(super) by_capability: BTreeMap<Capability, AmountSums>,
}

/// Serialises a map by work as a list of pairs: JSON keys must be text.
fn serialize_as_pairs<S: serde::Serializer>(
    by_work: &BTreeMap<Work, Reservation>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(by_work.iter().map(|(work, reservation)| (work, reservation.amounts)))
}

impl Reservations {
    /// The amounts reserved for a piece of work.
    pub fn amounts_of_work(&self, work: &Work) -> Option<ResourceAmounts> {
        self.by_work.get(work).map(|reservation| reservation.amounts)
    }

    /// Reserves amounts for work of a capability; replaces its earlier reservation. Amounts that come out of the reservation
    /// of the task's parent are in the total already.
    pub(super) fn reserve(
        &mut self,
        work: &Work,
        capability: Capability,
        amounts: ResourceAmounts,
        is_from_parent: bool,
    ) {
        self.release(work);
        let own = self.by_capability.entry(capability.clone()).or_default();
        let counted = if is_from_parent { ResourceAmounts::default() } else { amounts };
        for (sums, amounts) in [(&mut self.total, counted), (&mut *own, amounts)] {
            for (dimension, amount) in amounts.iter().filter(|(_, amount)| *amount > 0) {
                *sums.entry(dimension).or_default() += u128::from(amount);
            }
        }
        if own.is_empty() {
            self.by_capability.remove(&capability);
        }
        self.by_work.insert(work.clone(), Reservation { capability, amounts, counted, is_from_parent });
    }

    /// `true` if the reservation of a piece of work comes out of that of the task's parent.
    pub(super) fn is_from_parent(&self, work: &Work) -> bool {
        self.by_work.get(work).is_some_and(|reservation| reservation.is_from_parent)
    }

    /// Takes the usage of children out of the total: it is part of the run's usage from now on.
    pub(super) fn draw(&mut self, work: &Work, used: &Usage) {
        let Some(reservation) = self.by_work.get_mut(work) else { return };
        let counted = reservation.counted;
        for (dimension, amount) in counted.iter() {
            let drawn = dimension.amount_used(used).min(amount);
            reservation.counted.set(dimension, Some(amount - drawn));
            if let Some(sum) = self.total.get_mut(&dimension) {
                *sum -= u128::from(drawn);
            }
        }
        self.total.retain(|_, sum| *sum > 0);
    }

    /// Leaves this part of a reservation in the total.
    fn release_from_total(&mut self, work: &Work, left: ResourceAmounts) {
        let Some(reservation) = self.by_work.get_mut(work) else { return };
        for (dimension, amount) in reservation.counted.iter() {
            if let Some(sum) = self.total.get_mut(&dimension) {
                *sum -= u128::from(amount - left.get(dimension).unwrap_or(0).min(amount));
            }
        }
        reservation.counted = left;
        self.total.retain(|_, sum| *sum > 0);
    }

    /// Releases the reservation of a piece of work.
    pub(super) fn release(&mut self, work: &Work) {
        let Some(Reservation { capability, amounts, counted, is_from_parent: _ }) = self.by_work.remove(work)
        else {
            return;
        };
        let own = self.by_capability.get_mut(&capability);
        let total = std::iter::once((&mut self.total, counted));
        for (sums, amounts) in total.chain(own.map(|own| (own, amounts))) {
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
    pub fn len(&self) -> usize {
        self.by_work.len()
    }

    /// `true` if there are no reservations.
    pub fn is_empty(&self) -> bool {
        self.by_work.is_empty()
    }

    pub fn total_reserved(&self, dimension: ResourceKind) -> u64 {
        self.total.get(&dimension).map_or(0, |sum| u64::try_from(*sum).unwrap_or(u64::MAX))
    }

    /// The reservations from scratch, with sums that are computed anew.
    pub(super) fn recounted(&self) -> Self {
        let mut recounted = Self::default();
        for (work, reservation) in &self.by_work {
            let Reservation { capability, amounts, counted, is_from_parent } = reservation.clone();
            // The total has only the rest that its children left.
            recounted.reserve(work, capability, amounts, is_from_parent);
            recounted.release_from_total(work, counted);
        }
        recounted
    }

    /// All reservations.
    pub fn iter(&self) -> impl Iterator<Item = (&Work, &ResourceAmounts)> {
        self.by_work.iter().map(|(work, reservation)| (work, &reservation.amounts))
    }
}
