//! What is set aside for work in flight, with the sums that reservations are made by. Adding and taking away; when
//! something is reserved is a matter of the rules.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Work;
use super::budget::{Amounts, Dimension};
use crate::ids::Capability;

/// Amounts that were added up. They are wider than what is added, so that it can be taken away again.
pub(super) type Sums = BTreeMap<Dimension, u128>;

/// What work in flight may still use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reservations {
    #[serde(serialize_with = "as_list")]
    by_work: BTreeMap<Work, (Capability, Amounts)>,
    pub(super) total: Sums,
    #[serde(skip)]
    pub(super) by_capability: BTreeMap<Capability, Sums>,
}

/// Work has no form as the name of a field in JSON, so that a map by work is a list of pairs there.
fn as_list<S: serde::Serializer>(
    by_work: &BTreeMap<Work, (Capability, Amounts)>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(by_work.iter().map(|(work, (_, amounts))| (work, amounts)))
}

impl Reservations {
    /// What a piece of work has reserved.
    #[must_use]
    pub fn of(&self, work: &Work) -> Option<Amounts> {
        self.by_work.get(work).map(|(_, amounts)| *amounts)
    }

    /// Sets amounts aside for work of a capability, in the place of what it has.
    pub(super) fn set_aside(&mut self, work: &Work, capability: Capability, amounts: Amounts) {
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

    /// Gives back what work had reserved.
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

    /// The sums alone, to go on adding to.
    pub(super) fn sums(&self) -> Self {
        Self {
            by_work: BTreeMap::new(),
            total: self.total.clone(),
            by_capability: self.by_capability.clone(),
        }
    }

    /// How many pieces of work have reserved something.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_work.len()
    }

    /// Whether nothing is reserved.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_work.is_empty()
    }

    /// What all of it comes to.
    #[must_use]
    pub fn total(&self, dimension: Dimension) -> u64 {
        self.total.get(&dimension).map_or(0, |sum| u64::try_from(*sum).unwrap_or(u64::MAX))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&Work, &Amounts)> {
        self.by_work.iter().map(|(work, (_, amounts))| (work, amounts))
    }
}
