//! Models that need no provider.

mod extractive;

pub use extractive::Extractive;
pub(crate) use extractive::build_plain_plan;
