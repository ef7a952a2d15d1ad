//! The capabilities of the cluster and the parameters that they take, as the rules see them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::refusal::Refusal;
use super::spec::TaskSpec;
use crate::ids::Capability;
use crate::result::CapabilityDescription;
use crate::schema::CompiledSchema;
use crate::subject::{CRITIC, PLANNER};

/// The maximum number of capabilities that an error lists.
const MAX_NAMED: usize = 40;

/// The registered capabilities. A capability stays known when all of its workers are gone: it may be scaled to zero.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CapabilityRegistry {
    offered: BTreeMap<Capability, RegisteredCapability>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct RegisteredCapability {
    /// The JSON Schema of its parameters; `None` accepts any.
    pub parameters: Option<Value>,
    /// The number of slots that live workers have for it.
    pub slots: usize,
    compiled: CompiledSchema,
}

impl CapabilityRegistry {
    /// Creates a cluster with these capabilities.
    #[must_use]
    pub fn from_descriptions<'a>(descriptions: impl IntoIterator<Item = &'a CapabilityDescription>) -> Self {
        let offered = descriptions.into_iter().map(|description| {
            let parameters = description.parameters.clone();
            (description.name.clone(), RegisteredCapability { parameters, ..RegisteredCapability::default() })
        });
        Self { offered: offered.collect() }
    }

    /// Creates a cluster whose capabilities accept any parameters.
    #[must_use]
    pub fn with_capability_names(names: impl IntoIterator<Item = Capability>) -> Self {
        Self { offered: names.into_iter().map(|name| (name, RegisteredCapability::default())).collect() }
    }

    /// Sets the number of slots that live workers have for a known capability.
    pub fn set_slots(&mut self, capability: &Capability, slots: usize) {
        if let Some(offered) = self.offered.get_mut(capability) {
            offered.slots = slots;
        }
    }

    /// Returns a capability, if it is known.
    pub fn find_capability(&self, capability: &Capability) -> Option<&RegisteredCapability> {
        self.offered.get(capability)
    }

    /// Returns the capabilities that tasks can use.
    pub fn capability_names(&self) -> impl Iterator<Item = &Capability> {
        self.offered.keys().filter(|name| ![CRITIC, PLANNER].contains(&name.as_str()))
    }

    /// Lists the capabilities that tasks can use, for an error message.
    pub fn format_task_capabilities(&self) -> String {
        let all = self.capability_names().count();
        let names: Vec<&str> = self.capability_names().take(MAX_NAMED).map(Capability::as_str).collect();
        match (all, all.saturating_sub(MAX_NAMED)) {
            (0, _) => "no capability is available".into(),
            (_, 0) => format!("available: {}", names.join(", ")),
            (_, more) => format!("available: {} and {more} more", names.join(", ")),
        }
    }

    /// Returns what is wrong with the parameters of a task, if its capability is known.
    pub fn find_parameter_problem(&self, task: &TaskSpec) -> Option<String> {
        let offered = self.offered.get(&task.capability)?;
        let schema = offered.parameters.as_ref()?;
        offered.compiled.check_value(schema, &Value::Object(task.parameters.clone().into())).err()
    }

    /// Validates the capability and the parameters of a task.
    pub fn check_task(&self, task: &TaskSpec) -> Result<(), Refusal> {
        if self.find_capability(&task.capability).is_none() {
            let (id, capability) = (task.id.clone(), task.capability.clone());
            return Err(Refusal::UnknownCapability {
                task: id,
                capability,
                known: self.format_task_capabilities(),
            });
        }
        match self.find_parameter_problem(task) {
            None => Ok(()),
            Some(problem) => {
                let (task, capability) = (task.id.clone(), task.capability.clone());
                Err(Refusal::WrongParameters { task, capability, problem })
            }
        }
    }
}
