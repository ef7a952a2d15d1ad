//! The built-in capabilities, by name: `echo`, and agents whose files lie in `worker/capabilities` and are a part of the
//! program.

mod echo;

use std::sync::Arc;

use millrace_agent::desk::shelf::Inner;
use millrace_agent::spec::Spec;

pub use echo::Echo;

use crate::Capability;
use crate::agent::Agent;
use crate::servers::Servers;

/// The agents that are built in: their names and their files.
pub(crate) const AGENTS: [(&str, &str); 4] = [
    ("research", include_str!("../../capabilities/research.yaml")),
    ("worker", include_str!("../../capabilities/worker.yaml")),
    ("producer", include_str!("../../capabilities/producer.yaml")),
    ("planner", include_str!("../../capabilities/planner.yaml")),
];

/// The names of the built-in capabilities.
pub const NAMES: [&str; 5] = ["research", "worker", "producer", "planner", Echo::NAME];

/// The file of a built-in agent, to be read or to begin one's own with.
#[must_use]
pub fn file(name: &str) -> Option<&'static str> {
    AGENTS.iter().find(|(known, _)| *known == name).map(|(_, file)| *file)
}

/// The built-in capability of that name.
#[must_use]
pub fn open(name: &str) -> Option<Arc<dyn Capability>> {
    if name == Echo::NAME {
        return Some(Arc::new(Echo::from_environment()));
    }
    // Built-in agents use no tools but those of the desk, so that they can be had on any machine.
    let spec = Spec::parse(file(name)?.as_bytes(), &Inner).expect("the built-in files have no mistakes");
    Some(Arc::new(Agent::of(spec, Vec::new(), Servers::default())))
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
