//! The built-in capabilities, by name.

mod agents;
mod echo;

use std::sync::Arc;

use millrace_agent::roles::Role;

pub use agents::Agent;
pub use echo::Echo;

use crate::Capability;

/// The names of the built-in capabilities.
pub const NAMES: [&str; 4] = ["research", "producer", "planner", "echo"];

/// The built-in capability of that name.
#[must_use]
pub fn open(name: &str) -> Option<Arc<dyn Capability>> {
    match name {
        Echo::NAME => Some(Arc::new(Echo::from_environment())),
        "research" => Some(Arc::new(Agent::new(Role::Researcher))),
        "producer" => Some(Arc::new(Agent::new(Role::Producer))),
        "planner" => Some(Arc::new(Agent::new(Role::Planner))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_capability_opens_under_its_name() {
        for name in NAMES {
            assert_eq!(open(name).unwrap().describe().name.as_str(), name);
        }
        assert!(open("critic").is_none());
    }
}
