//! The selection of an agent's model, and the pool of open models. One pool serves all agents of a process, so that the
//! state of a model, such as its circuit breaker, is shared.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_models::cassette::CallLabels;
use millrace_models::provider::{default_model_selection, has_embeddings_api};
use millrace_models::selection::EmptyModelName;
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::Work;
use millrace_protocol::result::CapabilityDescription;
use millrace_protocol::subject::{CRITIC, EMBEDDINGS, VERIFIER};
use millrace_protocol::work::Order;

use crate::builtin::Extractive;
use crate::model::{self, CreateModelError, Model, ModelFactory, ModelSelection};
use crate::sources::{OrderInputError, OrderInputs};
use crate::tool::{ConsultableCapabilities, ToolError};

/// The most models that stay open. Runs can name any number of them.
const MAX_OPEN: usize = 64;

/// The word in place of a model, for the roles that need none.
const NO_MODEL: &str = "none";

/// The models that a command line names: a default, and models for single capabilities.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelPreferences {
    /// The model for all capabilities without one of their own.
    pub default: Option<ModelSelection>,
    /// The models of single capabilities and of tiers; that of critics is `critic`, that of planners `planner`, that which
    /// verifies statements `verifier`, and that which embeds documents and queries `embeddings`.
    pub by_capability: BTreeMap<Capability, ModelSelection>,
}

/// A mistake in the models that a command line names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelPreferencesError {
    #[error(transparent)]
    EmptyName(#[from] EmptyModelName),
    #[error(
        "{text:?}: only the verifier and embeddings can do without a model; write {VERIFIER}={NO_MODEL} or \
         {EMBEDDINGS}={NO_MODEL}, without fallbacks"
    )]
    NeedsModel { text: String },
    #[error(
        "{text:?}: embeddings have no fallbacks, because vectors of two models can't be compared; name one model"
    )]
    EmbeddingFallbacks { text: String },
    #[error(
        "{text:?}: this provider has no API for embeddings that Millrace knows; name a model of Ollama or of a server with \
         OpenAI's API, such as {EMBEDDINGS}=openai-compatible:MODEL@http://127.0.0.1:8081/v1"
    )]
    NoEmbeddings { text: String },
}

impl ModelPreferences {
    /// Parses texts of the form `[NAME=]provider:model[,fallback…][,NAME=…]`, in which a name is that of a capability or of a tier.
    /// `verifier=none` lets no model verify, and `embeddings=none` none embed.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, ModelPreferencesError> {
        let mut preferences = Self::default();
        for (name, models) in texts.into_iter().flat_map(split_at_names) {
            let selection = ModelSelection::parse(&models)?;
            refuse_missing_model(name.as_ref(), &selection)?;
            refuse_unusable_embeddings(name.as_ref(), &selection)?;
            match name {
                Some(name) => drop(preferences.by_capability.insert(name, selection)),
                None => preferences.default = Some(selection),
            }
        }
        Ok(preferences)
    }

    /// Replaces each tier by its models; a tier without models stays.
    pub fn replace_tiers(&self, selection: &ModelSelection) -> ModelSelection {
        selection.replace_tiers(&|tier| self.models_of_tier(tier))
    }

    fn models_of_tier(&self, tier: &str) -> Option<ModelSelection> {
        self.by_capability.get(&Capability::new(tier).ok()?).cloned()
    }

    /// Returns all choices of a model.
    pub fn selections(&self) -> impl Iterator<Item = &ModelSelection> {
        self.default.iter().chain(self.by_capability.values()).filter(|selection| !is_no_model(selection))
    }

    /// `true` if no model is named.
    pub fn is_empty(&self) -> bool {
        self.selections().next().is_none()
    }
}

/// `true` if a selection has [`NO_MODEL`] in place of a model.
fn is_no_model(selection: &ModelSelection) -> bool {
    selection.models.iter().any(|spec| spec.name == NO_MODEL)
}

fn refuse_missing_model(
    name: Option<&Capability>,
    selection: &ModelSelection,
) -> Result<(), ModelPreferencesError> {
    let can_do_without = name.is_some_and(|name| [VERIFIER, EMBEDDINGS].contains(&name.as_str()));
    if !is_no_model(selection) || (can_do_without && selection.models.len() == 1) {
        return Ok(());
    }
    let name = name.map(|name| format!("{name}=")).unwrap_or_default();
    Err(ModelPreferencesError::NeedsModel { text: format!("{name}{selection}") })
}

fn refuse_unusable_embeddings(
    name: Option<&Capability>,
    selection: &ModelSelection,
) -> Result<(), ModelPreferencesError> {
    if name.is_none_or(|name| name.as_str() != EMBEDDINGS) || is_no_model(selection) {
        return Ok(());
    }
    let text = format!("{EMBEDDINGS}={selection}");
    match selection.models.as_slice() {
        [only] if only.tier().is_some() => Ok(()),
        [only] if only.name == Extractive::NAME || !has_embeddings_api(&only.name) => {
            Err(ModelPreferencesError::NoEmbeddings { text })
        }
        [_] => Ok(()),
        _ => Err(ModelPreferencesError::EmbeddingFallbacks { text }),
    }
}

/// Splits `a:b, fast=c:d, e:f` into its models without a name, and those of each name.
fn split_at_names(text: &str) -> Vec<(Option<Capability>, String)> {
    let mut groups: Vec<(Option<Capability>, String)> = Vec::new();
    for part in text.split(',') {
        let named = part
            .split_once('=')
            .and_then(|(name, models)| Some((Capability::new(name.trim()).ok()?, models)));
        match (named, groups.last_mut()) {
            (Some((name, models)), _) => groups.push((Some(name), models.to_owned())),
            (None, Some((_, models))) => models.extend([",", part]),
            (None, None) => groups.push((None, part.to_owned())),
        }
    }
    groups
}

/// The models that a run names.
#[derive(Debug, Clone)]
pub(super) struct RunModels {
    /// Those of single capabilities and of tiers.
    named: BTreeMap<Capability, String>,
    /// The one for work without a model of its own.
    default: Option<String>,
}

impl RunModels {
    pub fn of_order(order: &Order) -> Self {
        Self { named: order.models.clone(), default: order.model.clone() }
    }
}

pub(super) struct ModelPool {
    preferences: ModelPreferences,
    fallback: ModelSelection,
    factory: ModelFactory,
    /// Open models by selection, the most recently used last.
    open: Mutex<Vec<(ModelSelection, Arc<dyn Model>)>>,
}

impl ModelPool {
    /// Creates a pool and opens the preferred models, so that a mistake is reported before there is any work.
    pub fn new(preferences: ModelPreferences, factory: ModelFactory) -> Result<Self, CreateModelError> {
        let environment = |name: &str| std::env::var(name).ok();
        let fallback = default_model_selection(&environment).unwrap_or_else(built_in_selection);
        let pool = Self { preferences, fallback, factory, open: Mutex::new(Vec::new()) };
        for selection in pool.preferences.selections().cloned().collect::<Vec<_>>() {
            pool.check(&selection)?;
        }
        Ok(pool)
    }

    /// Opens a model, so that a mistake is reported before there is any work. A tier for which only runs can name models is left out.
    pub fn check(&self, selection: &ModelSelection) -> Result<(), CreateModelError> {
        let selection = self.preferences.replace_tiers(selection);
        if selection.has_tier() { Ok(()) } else { self.open_model(&selection).map(drop) }
    }

    /// Opens a model for work of a run.
    pub fn open_for_run(
        &self,
        run: &RunModels,
        selection: &ModelSelection,
    ) -> Result<Arc<dyn Model>, CreateModelError> {
        Ok(self.factory.record(self.open_selected(run, selection)?, CallLabels::default()))
    }

    /// Opens a model of a selection. The models of a tier are those of the run, or else of the process, or else the default
    /// model.
    fn open_selected(
        &self,
        run: &RunModels,
        selection: &ModelSelection,
    ) -> Result<Arc<dyn Model>, CreateModelError> {
        let named = |tier: &str| {
            let of_run = run.named.get(&Capability::new(tier).ok()?);
            parse_models(of_run).or_else(|| self.preferences.models_of_tier(tier))
        };
        let of_tier = |tier: &str| Some(named(tier).unwrap_or_else(|| self.default_model(run)));
        self.open_model(&selection.replace_tiers(&of_tier))
    }

    /// Returns the default model: the run's, the process's or the environment's.
    fn default_model(&self, run: &RunModels) -> ModelSelection {
        let default = parse_models(run.default.as_ref()).or_else(|| self.preferences.default.clone());
        default.unwrap_or_else(|| self.fallback.clone())
    }

    /// Returns the model for an order. The first of these that is set: the run's model for this capability, the
    /// process's model for it, the model in the capability's file, the run's default, the process's default, the
    /// model that the environment variables suggest, the built-in model.
    pub fn open_for_order(
        &self,
        order: &Order,
        capability: &Capability,
        spec: Option<&ModelSelection>,
    ) -> Result<Arc<dyn Model>, CreateModelError> {
        let run = RunModels::of_order(order);
        let selection = parse_models(order.own_model.as_ref())
            .or_else(|| self.preferences.by_capability.get(capability).cloned())
            .or_else(|| spec.cloned())
            .unwrap_or_else(|| self.default_model(&run));
        Ok(self.factory.record(self.open_selected(&run, &selection)?, call_labels(order, capability)))
    }

    /// Opens the model that verifies statements for an order; `None` if no model shall. The first of these that is set: the
    /// run's verifier, the process's verifier, the run's critic, the process's critic, the default model. The built-in model and
    /// scripts verify only if the selection of the verifier has them.
    pub fn open_verifier(&self, order: &Order) -> Result<Option<Arc<dyn Model>>, CreateModelError> {
        let run = RunModels::of_order(order);
        let [verifier, critic] = [VERIFIER, CRITIC].map(|role| Capability::new(role).expect("a valid name"));
        let named = |role: &Capability| {
            let of_process = || self.preferences.by_capability.get(role).cloned();
            parse_models(run.named.get(role)).or_else(of_process)
        };
        let of_critic = || {
            let selection = named(&critic).unwrap_or_else(|| self.default_model(&run));
            let judges = |name: &str| !name.starts_with("script:") && name != Extractive::NAME;
            Some(selection).filter(|selection| selection.models.iter().all(|model| judges(&model.name)))
        };
        let Some(selection) = named(&verifier).or_else(of_critic).filter(|one| !is_no_model(one)) else {
            return Ok(None);
        };
        let model = self.open_selected(&run, &selection)?;
        Ok(Some(self.factory.record(model, call_labels(order, &verifier))))
    }

    /// Opens the model that embeds documents and queries for an order: the run's, or else the process's. `None` if neither names one.
    pub fn open_embeddings(&self, order: &Order) -> Result<Option<Arc<dyn Model>>, CreateModelError> {
        let run = RunModels::of_order(order);
        let role = Capability::new(EMBEDDINGS).expect("a valid name");
        let named = parse_models(run.named.get(&role));
        let named = named.or_else(|| self.preferences.by_capability.get(&role).cloned());
        let Some(selection) = named.filter(|one| !is_no_model(one)) else { return Ok(None) };
        let model = self.open_selected(&run, &selection)?;
        Ok(Some(self.factory.record(model, call_labels(order, &role))))
    }

    /// Opens a model, or returns the open one.
    fn open_model(&self, selection: &ModelSelection) -> Result<Arc<dyn Model>, CreateModelError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match open.iter().position(|(known, _)| known == selection) {
            Some(at) => open.remove(at),
            None => (selection.clone(), model::open_model(selection, &self.factory)?),
        };
        let model = entry.1.clone();
        open.push(entry);
        if open.len() > MAX_OPEN {
            open.remove(0);
        }
        Ok(model)
    }
}

fn parse_models(names: Option<&String>) -> Option<ModelSelection> {
    ModelSelection::parse(names?).ok()
}

/// Returns the labels of the requests of an order's agent.
fn call_labels(order: &Order, capability: &Capability) -> CallLabels {
    let (task, attempt) = match order.work() {
        Work::Planning { attempt, .. } => (None, attempt),
        Work::Task { task, attempt } | Work::Review { task, attempt, .. } => {
            (Some(task.to_string()), attempt)
        }
    };
    CallLabels {
        run: Some(order.run.to_string()),
        role: Some(capability.to_string()),
        task,
        attempt: Some(attempt),
    }
}

fn built_in_selection() -> ModelSelection {
    ModelSelection::parse(Extractive::NAME).expect("the built-in model has a name")
}

/// The capabilities that an agent can consult, and the models it can consult them with. It caches nothing.
pub(super) struct ModelConsultants {
    own: Capability,
    sources: Arc<dyn OrderInputs>,
    models: Arc<ModelPool>,
    run: RunModels,
    /// The model of the agent itself; consultations use it by default.
    model: Arc<dyn Model>,
}

impl ModelConsultants {
    pub fn new(
        own: Capability,
        sources: Arc<dyn OrderInputs>,
        models: Arc<ModelPool>,
        run: RunModels,
        model: Arc<dyn Model>,
    ) -> Self {
        Self { own, sources, models, run, model }
    }
}

impl ConsultableCapabilities for ModelConsultants {
    fn own_capability(&self) -> &Capability {
        &self.own
    }

    fn list_capabilities(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, ToolError>> {
        let listing = self.sources.read_capabilities();
        listing
            .map(|listing| {
                listing.map_err(|error| match error {
                    OrderInputError::Unavailable(why) => ToolError::Unavailable(why),
                    OrderInputError::Broken(why) => ToolError::Failed {
                        message: "the list of capabilities can't be read".into(),
                        detail: why,
                    },
                })
            })
            .boxed()
    }

    fn open_model(&self, name: Option<&str>) -> Result<Arc<dyn Model>, String> {
        let Some(name) = name else { return Ok(self.model.clone()) };
        let selection = ModelSelection::parse(name).map_err(|empty| empty.to_string())?;
        self.models.open_for_run(&self.run, &selection).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::ids::{RunId, TaskId};
    use millrace_protocol::plan::Work;

    use super::*;

    fn build_order(own_model: Option<&str>, model: Option<&str>) -> Order {
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
    fn a_model_for_one_capability_takes_precedence_over_a_default() {
        // Each round sets one model less than the round before; the first that is set is used.
        let all = ["ollama:run-own", "ollama:process-own", "ollama:file", "ollama:run", "ollama:process"];
        for skipped in 0..=all.len() {
            let model_at = |at: usize| (at >= skipped).then(|| all[at]);
            let own = model_at(1).map(|model| format!("analyst={model}"));
            let preferences =
                ModelPreferences::parse(own.iter().map(String::as_str).chain(model_at(4))).unwrap();
            let fallback = built_in_selection();
            let pool =
                ModelPool { preferences, fallback, factory: ModelFactory::default(), open: Mutex::default() };
            let spec = model_at(2).map(|model| ModelSelection::parse(model).unwrap());
            let order = build_order(model_at(0), model_at(3));
            let model = pool.open_for_order(&order, &order.capability, spec.as_ref()).unwrap();
            let expected = all.get(skipped).copied().unwrap_or(Extractive::NAME);
            assert_eq!(model.name(), expected, "without the first {skipped}");
        }
        let preferences = ModelPreferences::parse(["another=ollama:x"]).unwrap();
        let pool = ModelPool {
            preferences,
            fallback: built_in_selection(),
            factory: ModelFactory::default(),
            open: Mutex::default(),
        };
        let order = build_order(None, None);
        assert_eq!(pool.open_for_order(&order, &order.capability, None).unwrap().name(), Extractive::NAME);
    }

    #[test]
    fn a_tier_is_the_model_that_the_run_names_or_the_process_or_else_the_default() {
        let preferences = ModelPreferences::parse(["ollama:process, fast=ollama:process-fast"]).unwrap();
        let pool = ModelPool {
            preferences,
            fallback: built_in_selection(),
            factory: ModelFactory::default(),
            open: Mutex::default(),
        };
        let opened = |order: &Order, tier: &str| {
            let selection = ModelSelection::parse(tier).unwrap();
            pool.open_for_order(order, &order.capability, Some(&selection))
                .map(|model| model.name().to_owned())
        };
        let models = [(Capability::new("fast").unwrap(), "ollama:run-fast".to_owned())].into();
        let named = Order { models, ..build_order(None, Some("ollama:run")) };
        assert_eq!(opened(&named, "tier:fast").unwrap(), "ollama:run-fast");
        assert_eq!(opened(&named, "tier:strong").unwrap(), "ollama:run");
        let unnamed = build_order(None, None);
        assert_eq!(opened(&unnamed, "tier:fast").unwrap(), "ollama:process-fast");
        assert_eq!(opened(&unnamed, "tier:strong").unwrap(), "ollama:process");
        let nested = [(Capability::new("fast").unwrap(), "tier:other".to_owned())].into();
        let error = opened(&Order { models: nested, ..build_order(None, None) }, "tier:fast").unwrap_err();
        assert!(error.to_string().contains("add --model other=PROVIDER:MODEL"), "{error}");
        // A process can start although only runs name the models of a tier.
        assert!(pool.check(&ModelSelection::parse("tier:strong").unwrap()).is_ok());
    }

    #[test]
    fn the_verifier_is_its_own_model_or_the_critic_s_or_the_default() {
        let verifier_of = |process: &[&str], run: &[(&str, &str)]| {
            let preferences = ModelPreferences::parse(process.iter().copied()).unwrap();
            let pool = ModelPool {
                preferences,
                fallback: built_in_selection(),
                factory: ModelFactory::default(),
                open: Mutex::default(),
            };
            let models =
                run.iter().map(|(name, model)| (Capability::new(*name).unwrap(), (*model).to_owned()));
            // The order's own model is that of its capability, not of the verifier.
            let order =
                Order { models: models.collect(), ..build_order(Some("ollama:own"), Some("ollama:run")) };
            pool.open_verifier(&order).unwrap().map(|model| model.name().to_owned())
        };
        let named = |name: &str| Some(name.to_owned());
        let process = ["verifier=ollama:a", "critic=ollama:b", "ollama:c"];
        let run = [("verifier", "ollama:d"), ("critic", "ollama:e")];
        assert_eq!(verifier_of(&process, &run), named("ollama:d"));
        assert_eq!(verifier_of(&process, &run[1..]), named("ollama:a"));
        assert_eq!(verifier_of(&process[1..], &run[1..]), named("ollama:e"));
        assert_eq!(verifier_of(&process[1..], &[]), named("ollama:b"));
        assert_eq!(verifier_of(&process[2..], &[]), named("ollama:run"));
        let tier = [("verifier", "tier:strong"), ("strong", "ollama:f")];
        assert_eq!(verifier_of(&process, &tier), named("ollama:f"));
        assert_eq!(verifier_of(&process, &[("verifier", "none")]), None);
        assert_eq!(verifier_of(&["verifier=none", "ollama:c"], &[]), None);
        assert_eq!(verifier_of(&["verifier=none"], &run), named("ollama:d"), "the run takes precedence");
    }

    #[test]
    fn only_the_verifier_can_do_without_a_model() {
        let without = ModelPreferences::parse(["ollama:a", "verifier=none"]).unwrap();
        assert_eq!(without.selections().count(), 1, "there is no model to open");
        for text in ["none", "critic=none", "verifier=none,ollama:a", "ollama:a,none"] {
            let error = ModelPreferences::parse([text]).unwrap_err().to_string();
            assert!(
                error
                    .starts_with(&format!("{:?}: only the verifier and embeddings", text.replace(',', ", "))),
                "{error}"
            );
        }
    }

    #[test]
    fn embeddings_are_those_of_one_model_that_has_them() {
        for good in ["ollama:all-minilm", "openai:text-embedding-3-small", "mistral:mistral-embed", "none"] {
            ModelPreferences::parse([format!("embeddings={good}").as_str()]).unwrap();
        }
        for (bad, why) in [
            ("ollama:a, ollama:b", "no fallbacks"),
            ("anthropic:claude", "no API for embeddings"),
            ("builtin:extractive", "no API for embeddings"),
            ("script:model.yaml", "no API for embeddings"),
        ] {
            let error =
                ModelPreferences::parse([format!("embeddings={bad}").as_str()]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn embeddings_are_made_only_where_a_model_is_named_for_them() {
        let model_of = |process: &[&str], run: Option<&str>| {
            let preferences = ModelPreferences::parse(process.iter().copied()).unwrap();
            let (fallback, factory) = (built_in_selection(), ModelFactory::default());
            let pool = ModelPool { preferences, fallback, factory, open: Mutex::default() };
            let named = run.map(|model| (Capability::new(EMBEDDINGS).unwrap(), model.to_owned()));
            let order =
                Order { models: named.into_iter().collect(), ..build_order(None, Some("ollama:run")) };
            pool.open_embeddings(&order).unwrap().map(|model| model.name().to_owned())
        };
        let process = ["ollama:a", "embeddings=ollama:b"];
        assert_eq!(model_of(&process[..1], None), None, "never the default model");
        assert_eq!(model_of(&process, None).as_deref(), Some("ollama:b"));
        assert_eq!(model_of(&process, Some("ollama:c")).as_deref(), Some("ollama:c"));
        assert_eq!(model_of(&process, Some("none")), None);
    }

    #[test]
    fn a_text_names_a_default_or_a_model_for_one_capability() {
        let preferences =
            ModelPreferences::parse(["openai:a, ollama:b", "critic=builtin:extractive", "x=y:z"]).unwrap();
        let names = |selection: &ModelSelection| {
            selection.models.iter().map(|one| one.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(preferences.default.as_ref().unwrap()), ["openai:a", "ollama:b"]);
        assert_eq!(
            names(&preferences.by_capability[&Capability::new("critic").unwrap()]),
            ["builtin:extractive"]
        );
        assert_eq!(names(&preferences.by_capability[&Capability::new("x").unwrap()]), ["y:z"]);
        let tiers = ModelPreferences::parse(["openai:a, fast=openai:b, ollama:c,strong=openai:d"]).unwrap();
        assert_eq!(names(tiers.default.as_ref().unwrap()), ["openai:a"]);
        let of = |tier: &str| names(&tiers.by_capability[&Capability::new(tier).unwrap()]);
        assert_eq!(
            (of("fast"), of("strong")),
            (vec!["openai:b".into(), "ollama:c".into()], vec!["openai:d".into()])
        );
        assert!(ModelPreferences::parse(["critic="]).is_err() && ModelPreferences::parse([""]).is_err());
        let address = ModelPreferences::parse(["openai-compatible:q@http://h/v1"]).unwrap();
        assert!(address.by_capability.is_empty() && !address.is_empty());
    }
}
