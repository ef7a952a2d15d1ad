//! Builds models from selections. It puts the layers of a model together; each layer is configured by its own module.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::ability::ModelAbility;
use crate::cassette::{CassetteError, RecordingModel, ReplayModel};
use crate::fallback::with_fallbacks;
use crate::model::Model;
use crate::observer::RequestObserver;
use crate::provider::{self, ModelNameError, ParsedModelName, Provider, ResolvedModel};
use crate::rate_limit::RateLimiter;
use crate::resilience::breaker::{CircuitBreaker, CircuitBreakers};
use crate::resilience::{ResilientModel, RetryPolicy};
use crate::script::{ScriptError, ScriptedModel};
use crate::selection::{ModelSelection, ModelSpec, StructuredMode};
use crate::structured::{OutputSupport, StructuredModel};
use crate::table::{ModelTable, ModelTableError, ModelTariff};
use crate::window::{WINDOW_VARIABLE, known_window, parse_window_setting};
use crate::wire;

/// A temperature at which small models copy reliably and still vary a repeated answer.
const LOW_TEMPERATURE: f64 = 0.2;

/// Returns a built-in model, which needs no provider, by its name.
pub type BuiltInModelLookup<'a> = &'a dyn Fn(&str) -> Option<Arc<dyn Model>>;
/// Returns an environment variable by its name.
pub type EnvironmentLookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Creates models and holds the state they share. A process creates one factory and clones it.
#[derive(Clone)]
pub struct ModelFactory {
    /// The cluster's rate limits.
    pub rate_limiter: Arc<dyn RateLimiter>,
    /// Counts the requests.
    pub observer: Arc<dyn RequestObserver>,
    /// The cassette in which requests and replies are recorded; `None` records nothing.
    pub record_file: Option<PathBuf>,
    /// The time limit of a request to a model whose settings have none; `None` is 10 minutes.
    pub call_timeout: Option<Duration>,
    /// The environment variables with API keys and addresses.
    pub environment: EnvironmentLookup,
    /// State shared by models that are created more than once.
    pub shared: Arc<SharedModelServices>,
}

impl Default for ModelFactory {
    fn default() -> Self {
        Self {
            rate_limiter: Arc::new(()),
            observer: Arc::new(()),
            record_file: None,
            call_timeout: None,
            environment: Arc::new(|name| std::env::var(name).ok()),
            shared: Arc::default(),
        }
    }
}

/// State shared by models that are created more than once: circuit breakers, scripts, cassettes and the table of models.
#[derive(Default)]
pub struct SharedModelServices {
    breakers: CircuitBreakers,
    scripts: Mutex<HashMap<PathBuf, Arc<ScriptedModel>>>,
    cassettes: Mutex<HashMap<PathBuf, Arc<ReplayModel>>>,
    table: Mutex<Option<Arc<ModelTable>>>,
}

/// Why a model could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateModelError {
    /// The name, the address or the key is missing or invalid.
    #[error(transparent)]
    Name(#[from] ModelNameError),
    /// The script is unusable.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The cassette to replay or to record cannot be used.
    #[error(transparent)]
    Cassette(#[from] CassetteError),
    /// The setting of context windows is invalid.
    #[error("{0}")]
    Window(String),
    /// The file of models is unusable.
    #[error(transparent)]
    ModelTable(#[from] ModelTableError),
}

/// Checks that a selection names supported models. Keys, addresses and files are not checked: the worker has those.
///
/// # Errors
/// A name is not supported.
pub fn check_selection(
    selection: &ModelSelection,
    built_in: BuiltInModelLookup<'_>,
) -> Result<(), CreateModelError> {
    for spec in models_or_error(selection)?.iter().filter(|spec| spec.tier().is_none()) {
        if built_in(&spec.name).is_none() {
            provider::parse_model_name(&spec.name)?;
        }
    }
    Ok(())
}

fn models_or_error(selection: &ModelSelection) -> Result<&[ModelSpec], CreateModelError> {
    match selection.models.as_slice() {
        [] => Err(ModelNameError::MissingModelName {
            name: String::new(),
            example: provider::list_supported_names(),
        }
        .into()),
        models => Ok(models),
    }
}

/// A model without retries and limits.
struct ProvidedModel {
    model: Arc<dyn Model>,
    ability: ModelAbility,
    context_window: Option<u64>,
    /// `true` if its replies come from a provider.
    has_provider: bool,
    tariff: ModelTariff,
    /// As in [`ResilientModel::counts_cost`].
    counts_cost: bool,
}

impl ModelFactory {
    /// Creates the models of a selection. `built_in` returns the models that need no provider.
    pub fn create(
        &self,
        selection: &ModelSelection,
        built_in: BuiltInModelLookup<'_>,
    ) -> Result<Arc<dyn Model>, CreateModelError> {
        let spec = models_or_error(selection)?;
        let last = spec.len() - 1;
        let opened = spec.iter().enumerate().map(|(at, spec)| {
            let policy =
                if at == last { RetryPolicy::before_wait() } else { RetryPolicy::for_model_with_fallback() };
            self.create_single_model(spec, policy, built_in)
        });
        let mut opened = opened.collect::<Result<Vec<_>, _>>()?.into_iter();
        let first = opened.next().expect("an empty selection was rejected");
        let model = with_fallbacks(first, opened.collect());
        match &self.record_file {
            Some(file) => Ok(Arc::new(RecordingModel::new(model, file.clone())?)),
            None => Ok(model),
        }
    }

    fn create_single_model(
        &self,
        spec: &ModelSpec,
        policy: RetryPolicy,
        built_in: BuiltInModelLookup<'_>,
    ) -> Result<Arc<dyn Model>, CreateModelError> {
        if let Some(model) = built_in(&spec.name) {
            return Ok(model);
        }
        let named = provider::parse_model_name(&spec.name)?;
        let mut spec = spec.clone();
        let call_timeout = self.call_timeout.map(|timeout| timeout.as_secs_f64());
        spec.settings.timeout = spec.settings.timeout.or(call_timeout);
        let spec = &spec;
        match named {
            ParsedModelName::Replay(file) => {
                Ok(load_file_once(&self.shared.cassettes, &file, ReplayModel::load)?)
            }
            ParsedModelName::Script(file) => {
                let script = load_file_once(&self.shared.scripts, &file, ScriptedModel::load)?;
                let policy = RetryPolicy { max_attempts: script.max_attempts(), ..RetryPolicy::default() };
                // A script's errors are deliberate: they must not open the breaker for later requests.
                let breaker = Arc::default();
                let ability = script.ability();
                let context_window = self.choose_window(spec, None)?;
                let script = ProvidedModel {
                    model: script,
                    ability,
                    context_window,
                    has_provider: false,
                    tariff: ModelTariff::default(),
                    counts_cost: true,
                };
                Ok(self.add_retries_and_limits(script, breaker, spec, policy))
            }
            ParsedModelName::Model { provider, model, address } => {
                let table = self.load_table()?;
                let ability = table.ability_of_model(provider, &model);
                let ability = ability.unwrap_or_else(|| ModelAbility::of_model(provider, &model));
                let mut spec = spec.clone();
                let settings = &mut spec.settings;
                settings.images = settings.images.or(table.images_of_model(provider, &model));
                settings.pdf = settings.pdf.or(table.pdf_of_model(provider, &model));
                if settings.top_p.is_none() {
                    settings.temperature = settings.temperature.or(default_temperature(provider, ability));
                }
                let spec = &spec;
                let resolved = provider::resolve_model_endpoint(
                    spec,
                    provider,
                    &model,
                    address,
                    self.environment.as_ref(),
                )?;
                let tariff = table.tariff_for_model(provider, &model);
                let listed_window = table.window_of_model(provider, &model);
                let model = create_provider_model(spec, resolved);
                let breaker = self.shared.breakers.breaker_for_model(model.name());
                let context_window = self.choose_window(spec, listed_window)?;
                // Resellers report the cost of each reply, and models on one's own machine cost nothing.
                let counts_cost =
                    tariff != ModelTariff::default() || provider.is_local() || provider.is_reseller();
                let model =
                    ProvidedModel { model, ability, context_window, has_provider: true, tariff, counts_cost };
                Ok(self.add_retries_and_limits(model, breaker, spec, policy))
            }
        }
    }

    fn add_retries_and_limits(
        &self,
        provided: ProvidedModel,
        breaker: Arc<CircuitBreaker>,
        spec: &ModelSpec,
        policy: RetryPolicy,
    ) -> Arc<dyn Model> {
        let (rate_limiter, observer) = (self.rate_limiter.clone(), self.observer.clone());
        let timeout = spec.settings.timeout();
        let ProvidedModel { model, ability, context_window, has_provider, tariff, counts_cost } = provided;
        Arc::new(ResilientModel {
            inner: model,
            breaker,
            rate_limiter,
            observer,
            tariff,
            counts_cost,
            policy,
            timeout,
            has_provider,
            ability,
            context_window,
        })
    }

    /// The context window of a model: as set for it in the capability file, in the environment, or in the table, or as known.
    fn choose_window(&self, spec: &ModelSpec, listed: Option<u64>) -> Result<Option<u64>, CreateModelError> {
        if let Some(window) = spec.settings.context_window {
            return Ok(Some(window.into()));
        }
        let setting = (self.environment)(WINDOW_VARIABLE).unwrap_or_default();
        let set = parse_window_setting(&setting, &spec.name).map_err(CreateModelError::Window)?;
        Ok(set.or(listed).or_else(|| known_window(&spec.name)))
    }

    fn load_table(&self) -> Result<Arc<ModelTable>, ModelTableError> {
        let mut table = self.shared.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = &*table {
            return Ok(table.clone());
        }
        let file = (self.environment)("MILLRACE_PRICES").filter(|file| !file.is_empty());
        let read = match file {
            Some(file) => ModelTable::load_with_overrides(Path::new(&file))?,
            None => ModelTable::load_built_in(),
        };
        Ok(table.insert(Arc::new(read)).clone())
    }
}

/// The temperature of requests to a model whose settings have none. The servers of local models sample from their own default, about
/// 0.8, at which small models copy passages wrongly. Ollama knows what its models need.
fn default_temperature(provider: Provider, ability: ModelAbility) -> Option<f64> {
    (ability == ModelAbility::Small && provider.needs_low_temperature()).then_some(LOW_TEMPERATURE)
}

/// Creates a provider's model with the layer for structured output.
fn create_provider_model(
    spec: &ModelSpec,
    ResolvedModel { provider, endpoint }: ResolvedModel,
) -> Arc<dyn Model> {
    let support = OutputSupport { native: endpoint.native_output_support(), grammar: provider.is_local() };
    let structured = match spec.settings.structured {
        StructuredMode::Auto => provider.default_structured_mode(),
        wanted @ (StructuredMode::Native
        | StructuredMode::Tool
        | StructuredMode::Envelope
        | StructuredMode::Prompt) => wanted,
    };
    Arc::new(StructuredModel::new(wire::create_http_model(endpoint), support, structured))
}

/// Loads a file at most once per process.
fn load_file_once<T, E>(
    cache: &Mutex<HashMap<PathBuf, Arc<T>>>,
    file: &Path,
    load: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<Arc<T>, E> {
    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(existing) = cache.get(file) {
        return Ok(existing.clone());
    }
    let loaded = Arc::new(load(file)?);
    cache.insert(file.to_owned(), loaded.clone());
    Ok(loaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_models_of_local_servers_have_a_low_temperature() {
        use ModelAbility::{Small, Strong};
        for (provider, ability, expected) in [
            ("openai-compatible", Small, Some(LOW_TEMPERATURE)),
            ("lm-studio", Small, Some(LOW_TEMPERATURE)),
            ("openai-compatible", Strong, None),
            ("ollama", Small, None),
            ("openrouter", Small, None),
        ] {
            let provider = Provider::from_name(provider).unwrap();
            assert_eq!(default_temperature(provider, ability), expected, "{provider:?} {ability:?}");
        }
    }
}
