//! The models that need no provider.

mod extractive;

pub use extractive::Extractive;
pub(crate) use extractive::plain_plan;
