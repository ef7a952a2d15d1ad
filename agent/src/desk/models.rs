//! Which model an agent gets, and the models that are open. It owns the order of precedence; opening is the models'
//! own business. One value serves all agents of a process, so that what a model counts or remembers is counted once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use millrace_models::choice::EmptyName;
use millrace_models::provider::default_choice;
use millrace_protocol::ids::Capability;
use millrace_protocol::work::Order;

use crate::builtin::Extractive;
use crate::model::{self, Choice, Model, OpenError, Opener};

/// How many models stay open. Runs can name any, so that there must be an end to them.
const MAX_OPEN: usize = 64;

/// The models that a user names on a command line: one for all capabilities, and others for single ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Preferences {
    /// For all that have none of their own.
    pub general: Option<Choice>,
    /// By capability; critics are `critic`, planners `planner`.
    pub own: BTreeMap<Capability, Choice>,
}

impl Preferences {
    /// Reads texts of the form `[CAPABILITY=]provider:model[,fallback…]`.
    ///
    /// # Errors
    /// One of them names no model.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, EmptyName> {
        let mut preferences = Self::default();
        for text in texts {
            let named = text
                .split_once('=')
                .and_then(|(name, models)| Some((Capability::new(name.trim()).ok()?, models)));
            match named {
                Some((capability, models)) => {
                    preferences.own.insert(capability, Choice::parse(models)?);
                }
                None => preferences.general = Some(Choice::parse(text)?),
            }
        }
        Ok(preferences)
    }

    /// All choices in them.
    pub fn choices(&self) -> impl Iterator<Item = &Choice> {
        self.general.iter().chain(self.own.values())
    }

    /// Whether nothing is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.choices().next().is_none()
    }
}

pub(super) struct Models {
    preferences: Preferences,
    fallback: Choice,
    opener: Opener,
    /// By what was chosen, the one asked for last at the end.
    open: Mutex<Vec<(Choice, Arc<dyn Model>)>>,
}

impl Models {
    /// Opens what is preferred, so that a mistake in it is known before there is any work.
    pub fn new(preferences: Preferences, opener: Opener) -> Result<Self, OpenError> {
        let environment = |name: &str| std::env::var(name).ok();
        let fallback = default_choice(&environment).unwrap_or_else(built_in);
        let models = Self { preferences, fallback, opener, open: Mutex::new(Vec::new()) };
        for choice in models.preferences.choices().cloned().collect::<Vec<_>>() {
            models.open(&choice)?;
        }
        Ok(models)
    }

    /// The model for an order: what the run names for the very capability, what this process was told for it, what the
    /// capability's file says, what the run names for all, what this process was told for all, what the environment
    /// asks for, and else the built-in one.
    pub fn of(
        &self,
        order: &Order,
        capability: &Capability,
        spec: Option<&Choice>,
    ) -> Result<Arc<dyn Model>, OpenError> {
        let named = |name: &Option<String>| name.as_deref().and_then(|name| Choice::parse(name).ok());
        let choice = named(&order.own_model)
            .or_else(|| self.preferences.own.get(capability).cloned())
            .or_else(|| spec.cloned())
            .or_else(|| named(&order.model))
            .or_else(|| self.preferences.general.clone());
        self.open(choice.as_ref().unwrap_or(&self.fallback))
    }

    /// A model, opened once as long as it is in use.
    pub fn open(&self, choice: &Choice) -> Result<Arc<dyn Model>, OpenError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match open.iter().position(|(known, _)| known == choice) {
            Some(at) => open.remove(at),
            None => (choice.clone(), model::open(choice, &self.opener)?),
        };
        let model = entry.1.clone();
        open.push(entry);
        if open.len() > MAX_OPEN {
            open.remove(0);
        }
        Ok(model)
    }
}

fn built_in() -> Choice {
    Choice::parse(Extractive::NAME).expect("the built-in model has a name")
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::{RunId, TaskId};
    use millrace_protocol::plan::Work;

    use super::*;

    fn order(own_model: Option<&str>, model: Option<&str>) -> Order {
        let run = RunId::new("r").unwrap();
        let lane = run.lane(1);
        let work = Work::Task { task: TaskId::new("t").unwrap(), attempt: 1 };
        Order {
            model: model.map(str::to_owned),
            own_model: own_model.map(str::to_owned),
            ..Order::new(run, lane, work, "", Capability::new("analyst").unwrap())
        }
    }

    #[test]
    fn what_is_named_for_the_very_capability_goes_before_what_is_named_for_all() {
        // Each row names one model less than the one above it, and the first that is named is meant.
        let all = ["ollama:run-own", "ollama:process-own", "ollama:file", "ollama:run", "ollama:process"];
        for skipped in 0..=all.len() {
            let named = |at: usize| (at >= skipped).then(|| all[at]);
            let own = named(1).map(|model| format!("analyst={model}"));
            let preferences = Preferences::parse(own.iter().map(String::as_str).chain(named(4))).unwrap();
            let fallback = built_in();
            let models = Models { preferences, fallback, opener: Opener::default(), open: Mutex::default() };
            let spec = named(2).map(|model| Choice::parse(model).unwrap());
            let order = order(named(0), named(3));
            let model = models.of(&order, &order.capability, spec.as_ref()).unwrap();
            let wanted = all.get(skipped).copied().unwrap_or(Extractive::NAME);
            assert_eq!(model.name(), wanted, "without the first {skipped}");
        }
        let preferences = Preferences::parse(["another=ollama:x"]).unwrap();
        let models =
            Models { preferences, fallback: built_in(), opener: Opener::default(), open: Mutex::default() };
        let order = order(None, None);
        assert_eq!(models.of(&order, &order.capability, None).unwrap().name(), Extractive::NAME);
    }

    #[test]
    fn a_text_names_a_model_for_all_or_for_one_capability() {
        let read = Preferences::parse(["openai:a, ollama:b", "critic=builtin:extractive", "x=y:z"]).unwrap();
        let names = |choice: &Choice| choice.models.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(read.general.as_ref().unwrap()), ["openai:a", "ollama:b"]);
        assert_eq!(names(&read.own[&Capability::new("critic").unwrap()]), ["builtin:extractive"]);
        assert_eq!(names(&read.own[&Capability::new("x").unwrap()]), ["y:z"]);
        assert!(Preferences::parse(["critic="]).is_err() && Preferences::parse([""]).is_err());
        let address = Preferences::parse(["openai-compatible:q@http://h/v1"]).unwrap();
        assert!(address.own.is_empty() && !address.is_empty());
    }
}
