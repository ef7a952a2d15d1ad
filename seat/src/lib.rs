//! An agent's seat at the log: its journal, its sources, its workspace and its limits as the cluster keeps them, and what is counted of its models. It joins
//! the runtime's words to those of the agent, for workers and critics alike, and decides nothing.

mod counts;
mod files;
mod journal;
mod limits;
mod live;
mod sources;

pub use counts::Counts;
pub use files::Shared;
pub use journal::Recorded;
pub use limits::Limits;
pub use live::Live;
pub use sources::{Reading, unreadable};
