//! The built-in capabilities: `echo`, `verify`, and agents whose files are in `worker/capabilities` and compiled into the program.

mod echo;
mod verify;

use std::sync::Arc;

use millrace_agent::spec::AgentSpec;
use millrace_protocol::result::CapabilityDescription;
use millrace_protocol::subject::VERIFY;

pub use echo::EchoCapability;
pub use millrace_agent::roles::WEB_RESEARCH;

use crate::Capability;
use crate::agent::Agent;
use crate::tools::AllToolNames;

/// The built-in agents: names and files.
pub(crate) const AGENTS: [(&str, &str); 5] = [
    ("research", include_str!("../../capabilities/research.yaml")),
    ("worker", include_str!("../../capabilities/worker.yaml")),
    ("producer", include_str!("../../capabilities/producer.yaml")),
    ("planner", include_str!("../../capabilities/planner.yaml")),
    (WEB_RESEARCH, include_str!("../../capabilities/web_research.yaml")),
];

/// The names of the built-in capabilities that every worker offers.
pub const NAMES: [&str; 6] = ["research", "worker", "producer", "planner", VERIFY, EchoCapability::NAME];

/// The variables of search engines, with which the web is allowed.
const SEARCH_VARIABLES: [&str; 2] = ["TAVILY_API_KEY", "SEARXNG_URL"];

/// Returns the capabilities that a worker offers in addition to [`NAMES`]: [`WEB_RESEARCH`] if `allows_web`, or if the
/// environment has a search engine.
#[must_use]
pub fn web_capability_names(allows_web: bool) -> Vec<&'static str> {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match allows_web || SEARCH_VARIABLES.iter().any(is_set) {
        true => vec![WEB_RESEARCH],
        false => Vec::new(),
    }
}

/// Returns the file of a built-in agent, to read or to use as a starting point.
#[must_use]
pub fn built_in_agent_file(name: &str) -> Option<&'static str> {
    AGENTS.iter().find(|(known, _)| *known == name).map(|(_, file)| *file)
}

/// Opens a built-in capability; not [`WEB_RESEARCH`], whose tools reach outside of the process.
#[must_use]
pub fn open_built_in(name: &str) -> Option<Arc<dyn Capability>> {
    if name == EchoCapability::NAME {
        return Some(Arc::new(EchoCapability::from_environment()));
    }
    if name == VERIFY {
        return Some(verify::verify_capability());
    }
    let spec = read_built_in_agent(name).filter(|spec| spec.about.name.as_str() != WEB_RESEARCH)?;
    Some(Arc::new(Agent::from_built_in_spec(spec)))
}

/// Describes a built-in capability.
#[must_use]
pub fn describe_built_in(name: &str) -> Option<CapabilityDescription> {
    read_built_in_agent(name)
        .map(|spec| spec.describe())
        .or_else(|| open_built_in(name).map(|capability| capability.describe()))
}

/// Reads the file of a built-in agent. All but [`WEB_RESEARCH`] use built-in tools only, so that they work on any machine.
pub(crate) fn read_built_in_agent(name: &str) -> Option<AgentSpec> {
    let file = built_in_agent_file(name)?;
    Some(AgentSpec::parse(file.as_bytes(), &AllToolNames).expect("the built-in files have no mistakes"))
}

#[cfg(test)]
mod tests {
    use millrace_agent::session::tools::BuiltInToolNames;

    use super::*;

    #[test]
    fn every_built_in_capability_opens_under_its_name() {
        for name in NAMES {
            assert_eq!(open_built_in(name).unwrap().describe().name.as_str(), name);
        }
        assert!(open_built_in("critic").is_none());
    }

    #[test]
    fn agents_of_every_worker_use_tools_of_the_process_only() {
        for (name, file) in AGENTS {
            let is_local = AgentSpec::parse(file.as_bytes(), &BuiltInToolNames).is_ok();
            assert_eq!(is_local, NAMES.contains(&name), "{name}");
            assert_eq!(describe_built_in(name).unwrap().name.as_str(), name);
        }
        assert!(web_capability_names(true).contains(&WEB_RESEARCH));
    }
}
