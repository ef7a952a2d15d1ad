//! The open connections from each address, so that one address can't take all of them.
//!
//! # Invariants
//!
//! - I243: An address has no more connections than allowed, and those that end make room.
//!   (`tests/tests/gateway_identity.rs::connections_beyond_the_limit_of_an_address_are_closed`)

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

/// The open connections from each address.
#[derive(Clone)]
pub struct AddressSlots {
    limit: Option<NonZeroU32>,
    open: Arc<Mutex<HashMap<IpAddr, u32>>>,
}

/// A connection from an address; it ends when it is dropped.
pub struct AddressSlot {
    address: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, u32>>>,
}

impl AddressSlots {
    /// Creates one with a maximum number of connections from an address. This machine has no limit.
    pub fn new(limit: Option<NonZeroU32>) -> Self {
        Self { limit, open: Arc::default() }
    }

    /// Counts a connection. `None` if the address has too many.
    pub fn take(&self, address: IpAddr) -> Option<AddressSlot> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if self.limit.is_some_and(|limit| !address.is_loopback() && *count >= limit.get()) {
            return None;
        }
        *count += 1;
        Some(AddressSlot { address, open: self.open.clone() })
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_end_make_room() {
        let slots = AddressSlots::new(NonZeroU32::new(2));
        let address = "10.0.0.1".parse().unwrap();
        let (first, _second) = (slots.take(address).unwrap(), slots.take(address).unwrap());
        assert!(slots.take(address).is_none());
        assert!(slots.take("10.0.0.2".parse().unwrap()).is_some());
        drop(first);
        assert!(slots.take(address).is_some());
        let local: Vec<_> = (0..9).map(|_| slots.take("127.0.0.1".parse().unwrap())).collect();
        assert!(local.iter().all(Option::is_some));
    }
}
