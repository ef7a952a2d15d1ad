//! What the cluster can do, as the rules ask it: which capabilities there are, and which parameters they take.

use std::collections::BTreeMap;

use serde_json::Value;

use super::refusal::Refusal;
use super::spec::TaskSpec;
use crate::ids::Capability;
use crate::result::CapabilityDescription;
use crate::schema::Compiled;
use crate::subject::{CRITIC, PLANNER};

/// The most capabilities that are named to somebody who asked for another.
const MAX_NAMED: usize = 40;

/// What the cluster can do. A capability is known once a worker has registered it, and stays known when all its workers
/// are gone: it may be scaled to none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cluster {
    offered: BTreeMap<Capability, Offered>,
}

/// A capability that somebody offers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Offered {
    /// The JSON Schema of its parameters; `None` takes any.
    pub parameters: Option<Value>,
    /// How many slots live workers have for it.
    pub slots: usize,
    compiled: Compiled,
}

impl Cluster {
    /// A cluster with these capabilities.
    #[must_use]
    pub fn of<'a>(descriptions: impl IntoIterator<Item = &'a CapabilityDescription>) -> Self {
        let offered = descriptions.into_iter().map(|description| {
            let parameters = description.parameters.clone();
            (description.name.clone(), Offered { parameters, ..Offered::default() })
        });
        Self { offered: offered.collect() }
    }

    /// A cluster whose capabilities take any parameters.
    #[must_use]
    pub fn named(names: impl IntoIterator<Item = Capability>) -> Self {
        Self { offered: names.into_iter().map(|name| (name, Offered::default())).collect() }
    }

    /// Says how many slots live workers have for a capability that is known.
    pub fn set_slots(&mut self, capability: &Capability, slots: usize) {
        if let Some(offered) = self.offered.get_mut(capability) {
            offered.slots = slots;
        }
    }

    /// A capability, if it is known.
    #[must_use]
    pub fn get(&self, capability: &Capability) -> Option<&Offered> {
        self.offered.get(capability)
    }

    /// Those that tasks can name.
    pub fn names(&self) -> impl Iterator<Item = &Capability> {
        self.offered.keys().filter(|name| ![CRITIC, PLANNER].contains(&name.as_str()))
    }

    /// Those that tasks can name, as a sentence.
    #[must_use]
    pub fn say(&self) -> String {
        let all = self.names().count();
        let names: Vec<&str> = self.names().take(MAX_NAMED).map(Capability::as_str).collect();
        match (all, all.saturating_sub(MAX_NAMED)) {
            (0, _) => "nobody offers any".into(),
            (_, 0) => format!("there are {}", names.join(", ")),
            (_, more) => format!("there are {} and {more} more", names.join(", ")),
        }
    }

    /// What is wrong with the parameters of a task whose capability is known.
    #[must_use]
    pub fn problem(&self, task: &TaskSpec) -> Option<String> {
        let offered = self.offered.get(&task.capability)?;
        let schema = offered.parameters.as_ref()?;
        let parameters = task.parameters.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        offered.compiled.check(schema, &Value::Object(parameters)).err()
    }

    /// Whether a task can be done here.
    ///
    /// # Errors
    /// Nobody offers its capability, or its parameters are not what that takes.
    pub fn check(&self, task: &TaskSpec) -> Result<(), Refusal> {
        if self.get(&task.capability).is_none() {
            let (id, capability) = (task.id.clone(), task.capability.clone());
            return Err(Refusal::UnknownCapability { task: id, capability, known: self.say() });
        }
        match self.problem(task) {
            None => Ok(()),
            Some(problem) => {
                let (task, capability) = (task.id.clone(), task.capability.clone());
                Err(Refusal::WrongParameters { task, capability, problem })
            }
        }
    }
}
