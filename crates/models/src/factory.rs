//! Builds models from selections. It puts the layers of a model together; each layer is configured by its own module.
//!
//! A model with fallbacks: if one is unavailable, the next one is tried. It decides which errors mean "unavailable"; an
//! error caused by the request itself is returned without trying another model.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tracing::warn;

use crate::cassette::{CallLabels, CassetteError, RecordingModel, ReplayModel, check_record_file};

use crate::families::{ability_of, window_of};

use crate::limits::{RateLimiter, RequestObserver};

use crate::model::{
    Delta, DeltaListener, Model, ModelAbility, ModelError, ReplyFuture, ReplyResult, Request,
};

use crate::provider::{self, ModelNameError, ParsedModelName, Provider};

use crate::resilience::breaker::CircuitBreakers;
use crate::resilience::{ResilientModel, RetryPolicy};

use crate::script::{ScriptError, ScriptedModel};

use crate::selection::{MIN_WINDOW, ModelSelection, ModelSpec, StructuredMode};

use crate::table::{ModelTable, ModelTableError, ModelTariff};

use crate::negotiation::NegotiationMemory;
use crate::wire::{self, ModelEndpoint};

/// The variable that sets windows: `TOKENS` for all models, or `provider:model=TOKENS`; several are separated by commas.
const WINDOW_VARIABLE: &str = "MILLRACE_CONTEXT_WINDOW";
/// A temperature at which small models copy reliably and still vary a repeated answer.
const LOW_TEMPERATURE: f64 = 0.2;

/// Returns a built-in model, which needs no provider, by its name.
pub type BuiltInModels<'a> = &'a dyn Fn(&str) -> Option<Arc<dyn Model>>;
type Created = Result<Arc<dyn Model>, CreateModelError>;
pub type EnvironmentLookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Creates models and holds the state they share. A process creates one factory and clones it.
#[derive(Clone)]
pub struct ModelFactory {
    pub rate_limiter: Arc<dyn RateLimiter>,
    pub observer: Arc<dyn RequestObserver>,
    /// The cassette in which requests and replies are recorded; `None` records nothing.
    pub record_file: Option<PathBuf>,
    /// The time limit of a request to a model whose settings have none; `None` is 10 minutes.
    pub call_timeout: Option<Duration>,
    /// The folder in which it is remembered which parameters servers refuse; `None` keeps that in memory only.
    pub cache: Option<PathBuf>,
    pub environment: EnvironmentLookup,
    pub shared: Arc<SharedModelServices>,
}

impl Default for ModelFactory {
    fn default() -> Self {
        Self {
            rate_limiter: Arc::new(()),
            observer: Arc::new(()),
            record_file: None,
            call_timeout: None,
            cache: None,
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
    negotiations: NegotiationMemory,
}

#[derive(Debug, thiserror::Error)]
pub enum CreateModelError {
    #[error(transparent)]
    Name(#[from] ModelNameError),
    #[error(transparent)]
    Script(#[from] ScriptError),
    #[error(transparent)]
    Cassette(#[from] CassetteError),
    #[error("{0}")]
    Window(String),
    #[error(transparent)]
    ModelTable(#[from] ModelTableError),
}

/// Checks that a selection names supported models. Keys, addresses and files are not checked: the worker has those.
pub fn check_selection(
    selection: &ModelSelection,
    built_in: BuiltInModels<'_>,
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

impl ModelFactory {
    /// Creates the models of a selection. `built_in` returns the models that need no provider. They are not recorded yet.
    pub fn create(&self, selection: &ModelSelection, built_in: BuiltInModels<'_>) -> Created {
        let specs = models_or_error(selection)?;
        let create = |(at, spec): (usize, &ModelSpec)| match built_in(&spec.name) {
            Some(model) => Ok(model),
            None if at + 1 == specs.len() => self.create_single_model(spec, RetryPolicy::before_wait()),
            None => self.create_single_model(spec, RetryPolicy::for_model_with_fallback()),
        };
        let mut models = specs.iter().enumerate().map(create).collect::<Result<Vec<_>, _>>()?;
        let others = models.split_off(1);
        self.record_file.as_deref().map(check_record_file).transpose()?;
        Ok(with_fallbacks(models.remove(0), others))
    }

    /// Returns a model whose requests are recorded with labels, if this factory records requests.
    pub fn record(&self, model: Arc<dyn Model>, labels: CallLabels) -> Arc<dyn Model> {
        match &self.record_file {
            Some(file) => Arc::new(RecordingModel::new(model, file.clone(), labels)),
            None => model,
        }
    }

    fn create_single_model(&self, spec: &ModelSpec, policy: RetryPolicy) -> Created {
        let mut spec = spec.clone();
        let call_timeout = self.call_timeout.map(|timeout| timeout.as_secs_f64());
        spec.settings.timeout = spec.settings.timeout.or(call_timeout);
        match provider::parse_model_name(&spec.name)? {
            ParsedModelName::Replay(file) => {
                Ok(load_file_once(&self.shared.cassettes, &file, ReplayModel::load)?)
            }
            ParsedModelName::Script(file) => {
                let script = load_file_once(&self.shared.scripts, &file, ScriptedModel::load)?;
                let policy = RetryPolicy { max_attempts: script.max_attempts(), ..RetryPolicy::default() };
                let window = self.choose_window(&spec, None)?;
                Ok(Arc::new(self.with_stages(script, &spec, policy, window)))
            }
            ParsedModelName::Model { provider, model, address } => {
                self.create_provider_model(spec, policy, provider, &model, address)
            }
        }
    }

    /// Creates a model of a provider. Its settings precede the table, which precedes what its name tells.
    fn create_provider_model(
        &self,
        mut spec: ModelSpec,
        policy: RetryPolicy,
        provider: Provider,
        model: &str,
        address: Option<String>,
    ) -> Created {
        let table = self.load_table()?;
        let is_local = provider.dialect.is_local;
        let ability = table.field_of(provider, model, |entry| entry.prompts);
        let ability = ability.unwrap_or_else(|| ability_of(model, is_local));
        let settings = &mut spec.settings;
        settings.images = settings.images.or(table.field_of(provider, model, |entry| entry.images));
        settings.pdf = settings.pdf.or(table.field_of(provider, model, |entry| entry.pdf));
        let default_temperature = default_temperature(provider, ability).filter(|_| settings.top_p.is_none());
        let environment = self.environment.as_ref();
        let endpoint = provider::resolve_model_endpoint(&spec, provider, model, address, environment)?;
        let endpoint = ModelEndpoint { default_temperature, ..endpoint };
        let structured = match spec.settings.structured {
            StructuredMode::Auto => provider.structured,
            wanted @ (StructuredMode::Native
            | StructuredMode::Tool
            | StructuredMode::Envelope
            | StructuredMode::Prompt) => wanted,
        };
        let structured = Some((structured, endpoint.output_support()));
        let listed = table.field_of(provider, model, |entry| entry.context_window);
        let known = listed.or_else(|| window_of(model).filter(|_| !is_local));
        let window = self.choose_window(&spec, known)?;
        let tariff = table.tariff_for_model(provider, model);
        // Resellers report the cost of each reply, and models on one's own machine cost nothing.
        let counts_cost = tariff != ModelTariff::default() || is_local || provider.is_reseller;
        let breaker = self.shared.breakers.breaker_for_model(&endpoint.full_name);
        let (name, cache) = (&endpoint.full_name, self.cache.as_deref());
        let negotiation = self.shared.negotiations.recall(name, &endpoint.base_url, cache);
        let model = wire::create_http_model(endpoint, negotiation.clone());
        let model = self.with_stages(model, &spec, policy, window);
        let has_provider = true;
        Ok(Arc::new(ResilientModel {
            structured,
            negotiation,
            fixed_form: spec.settings.structured,
            breaker,
            tariff,
            counts_cost,
            has_provider,
            ability,
            ..model
        }))
    }

    /// Returns a model with the stages of its calls, for a script. Its errors are deliberate: they must not open a breaker for later
    /// requests, so that it has its own.
    fn with_stages(
        &self,
        inner: Arc<dyn Model>,
        spec: &ModelSpec,
        policy: RetryPolicy,
        context_window: Option<u64>,
    ) -> ResilientModel {
        ResilientModel {
            ability: inner.ability(),
            inner,
            structured: None,
            negotiation: Arc::default(),
            fixed_form: StructuredMode::Auto,
            breaker: Arc::default(),
            rate_limiter: self.rate_limiter.clone(),
            observer: self.observer.clone(),
            tariff: ModelTariff::default(),
            counts_cost: true,
            policy,
            timeout: spec.settings.timeout(),
            has_provider: false,
            context_window,
        }
    }

    /// The context window of a model: as set for it in the capability file, in the environment, or as known.
    fn choose_window(&self, spec: &ModelSpec, known: Option<u64>) -> Result<Option<u64>, CreateModelError> {
        if let Some(window) = spec.settings.context_window {
            return Ok(Some(window.into()));
        }
        let setting = (self.environment)(WINDOW_VARIABLE).unwrap_or_default();
        let set = parse_window_setting(&setting, &spec.name).map_err(CreateModelError::Window)?;
        Ok(set.or(known))
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
    (ability == ModelAbility::Small && provider.needs_low_temperature).then_some(LOW_TEMPERATURE)
}

/// Returns the window that a value of [`WINDOW_VARIABLE`] sets for a model. An entry for the model takes precedence over one for
/// all models.
fn parse_window_setting(text: &str, name: &str) -> Result<Option<u64>, String> {
    let (mut own, mut of_all) = (None, None);
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (model, tokens) = match entry.rsplit_once('=') {
            Some((model, tokens)) => (Some(model.trim()), tokens.trim()),
            None => (None, entry),
        };
        let tokens = tokens.parse().ok().filter(|tokens| *tokens >= MIN_WINDOW).ok_or_else(|| {
            format!(
                "{entry:?} in {WINDOW_VARIABLE} is no context window; write a number of at least {MIN_WINDOW} tokens, or \
                 provider:model=TOKENS"
            )
        })?;
        match model {
            Some(model) if model == name => own = Some(tokens),
            Some(_) => {}
            None => of_all = Some(tokens),
        }
    }
    Ok(own.or(of_all))
}

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

struct FallbackChain(Vec<Arc<dyn Model>>);

pub fn with_fallbacks(first: Arc<dyn Model>, others: Vec<Arc<dyn Model>>) -> Arc<dyn Model> {
    if others.is_empty() { first } else { Arc::new(FallbackChain([vec![first], others].concat())) }
}

impl Model for FallbackChain {
    fn name(&self) -> &str {
        self.0[0].name()
    }

    fn has_provider(&self) -> bool {
        self.0.iter().any(|model| model.has_provider())
    }

    fn ability(&self) -> ModelAbility {
        self.0[0].ability()
    }

    /// The smallest one: the conversation must fit whichever model replies.
    fn context_window(&self) -> Option<u64> {
        self.0.iter().filter_map(|model| model.context_window()).min()
    }

    fn adaptations(&self) -> Vec<String> {
        self.0.iter().flat_map(|model| model.adaptations()).collect()
    }

    fn uncounted_cost(&self) -> Option<&str> {
        self.0.iter().find_map(|model| model.uncounted_cost())
    }

    fn reply<'a>(&'a self, request: &'a Request, listener: &'a dyn DeltaListener) -> ReplyFuture<'a> {
        self.try_in_order(request, listener).boxed()
    }
}

impl FallbackChain {
    async fn try_in_order(&self, request: &Request, listener: &dyn DeltaListener) -> ReplyResult {
        let mut errors: Vec<(&str, ModelError)> = Vec::new();
        for model in &self.0 {
            if let Some((failed, error)) = errors.last() {
                warn!(model = failed, fallback = model.name(), %error, "model unavailable; trying the next fallback");
                listener.on_delta(Delta::Restart);
            }
            match model.reply(request, listener).await {
                Err(error) if is_unavailable(&error) => errors.push((model.name(), error)),
                Ok(mut reply) if !errors.is_empty() => {
                    reply.model.get_or_insert_with(|| model.name().to_owned());
                    return Ok(reply);
                }
                outcome => return outcome,
            }
        }
        Err(all_models_failed_error(&errors))
    }
}

/// Returns `true` if an error means that the model is unavailable rather than that it rejected the request.
fn is_unavailable(error: &ModelError) -> bool {
    error.is_transient() || error.is_refusal()
}

/// Combines the errors of all models. The result is transient if one of the errors is.
fn all_models_failed_error(errors: &[(&str, ModelError)]) -> ModelError {
    let messages: Vec<String> = errors.iter().map(|(model, error)| format!("{model}: {error}")).collect();
    let message = format!("all {} models are unavailable; {}", errors.len(), messages.join("; "));
    let transient = || errors.iter().map(|(_, error)| error).filter(|error| error.is_transient());
    let is_quota = |(_, error): &(&str, ModelError)| matches!(error, ModelError::Quota { .. });
    if transient().all(|error| error.retry_after().is_some())
        && let Some(retry_after) = transient().filter_map(ModelError::retry_after).min()
    {
        ModelError::Paused { retry_after: Some(retry_after), message }
    } else if transient().next().is_some() {
        ModelError::Overloaded { retry_after: None, message }
    } else if errors.iter().all(is_quota) {
        ModelError::Quota { message }
    } else {
        ModelError::Authentication { message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::ProviderRow;

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
            let provider = ProviderRow::from_name(provider).unwrap();
            assert_eq!(default_temperature(provider, ability), expected, "{provider:?} {ability:?}");
        }
    }

    #[test]
    fn setting_names_a_window_for_all_models_or_for_one() {
        let setting = "16384, ollama:qwen3:8b=32768";
        assert_eq!(parse_window_setting(setting, "ollama:qwen3:8b"), Ok(Some(32_768)));
        assert_eq!(parse_window_setting(setting, "openai:gpt-4o"), Ok(Some(16_384)));
        assert_eq!(parse_window_setting("a:b=4096", "c:d"), Ok(None));
        for wrong in ["many", "12", "a:b=", "a:b=x"] {
            let error = parse_window_setting(wrong, "c:d").unwrap_err();
            assert!(error.contains("MILLRACE_CONTEXT_WINDOW is no context window"), "{error}");
        }
    }

    #[test]
    fn only_errors_of_availability_lead_to_a_fallback() {
        let refused = |message: &str| ModelError::bad_request(message);
        let message = String::new;
        let cases = [
            (ModelError::RateLimited { retry_after: None, message: message() }, true),
            (ModelError::Overloaded { retry_after: None, message: message() }, true),
            (ModelError::Truncated { message: message() }, true),
            (ModelError::Timeout { after: std::time::Duration::ZERO }, true),
            (ModelError::Connection { message: message() }, true),
            (ModelError::Authentication { message: message() }, true),
            (ModelError::Quota { message: message() }, true),
            (ModelError::Paused { retry_after: None, message: message() }, true),
            (refused("The model `gpt-9` does not exist or you do not have access to it."), true),
            (refused("not_found_error: model: claude-nine"), true),
            (refused("model 'x' not found, try pulling it first"), true),
            (refused("foo/bar is not a valid model ID"), true),
            (refused("Invalid schema for response_format 'plan'"), false),
            (refused("messages: at least one message is required"), false),
            (ModelError::ContextOverflow { message: message() }, false),
            (ModelError::ContentFilter { message: message() }, false),
            (ModelError::Protocol { message: message() }, false),
        ];
        for (error, absence) in cases {
            assert_eq!(is_unavailable(&error), absence, "{error}");
        }
    }
}
