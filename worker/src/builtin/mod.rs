//! The built-in capabilities: `echo`, and agents whose files are in `worker/capabilities` and compiled into the program.

mod echo;

use std::sync::Arc;

use millrace_agent::session::tools::BuiltInToolNames;
use millrace_agent::spec::AgentSpec;

pub use echo::EchoCapability;

use crate::Capability;
use crate::agent::Agent;

/// The built-in agents: names and files.
pub(crate) const AGENTS: [(&str, &str); 4] = [
    ("research", include_str!("../../capabilities/research.yaml")),
    ("worker", include_str!("../../capabilities/worker.yaml")),
    ("producer", include_str!("../../capabilities/producer.yaml")),
    ("planner", include_str!("../../capabilities/planner.yaml")),
];

/// The names of the built-in capabilities.
pub const NAMES: [&str; 5] = ["research", "worker", "producer", "planner", EchoCapability::NAME];

/// Returns the file of a built-in agent, to read or to use as a starting point.
#[must_use]
pub fn built_in_agent_file(name: &str) -> Option<&'static str> {
    AGENTS.iter().find(|(known, _)| *known == name).map(|(_, file)| *file)
}

/// Opens a built-in capability.
#[must_use]
pub fn open_built_in(name: &str) -> Option<Arc<dyn Capability>> {
    if name == EchoCapability::NAME {
        return Some(Arc::new(EchoCapability::from_environment()));
    }
    // Built-in agents use built-in tools only, so that they work on any machine.
    let spec = AgentSpec::parse(built_in_agent_file(name)?.as_bytes(), &BuiltInToolNames)
        .expect("the built-in files have no mistakes");
    Some(Arc::new(Agent::from_built_in_spec(spec)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_capability_opens_under_its_name() {
        for name in NAMES {
            assert_eq!(open_built_in(name).unwrap().describe().name.as_str(), name);
        }
        assert!(open_built_in("critic").is_none());
    }
}
