//! Models that need no provider.

mod extractive;

pub use extractive::Extractive;
