//! From a choice to a model that can be asked. It owns how an opened model is put together; the parts own themselves.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cassette::{CassetteError, Recorded, Replay};
use crate::chain::chain;
use crate::choice::{Choice, Chosen, Structured};
use crate::gate::Gate;
use crate::guard::breaker::{Breaker, Breakers};
use crate::guard::{Guarded, Policy};
use crate::model::Model;
use crate::observer::Observer;
use crate::price::{Prices, PricesError, Tariff};
use crate::provider::{self, Named, Provider, Resolved};
use crate::script::{Script, ScriptError};
use crate::shape::{Abilities, Shaped};
use crate::wire::{self, Endpoint, Native};

/// The models that need no provider, by their names.
pub type BuiltIn<'a> = &'a dyn Fn(&str) -> Option<Arc<dyn Model>>;
/// A variable of the environment by its name.
pub type Variables = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// What all models of a process share. A process has one and clones it.
#[derive(Clone)]
pub struct Opener {
    /// The limits that the cluster keeps.
    pub gate: Arc<dyn Gate>,
    /// Who counts what is asked.
    pub observer: Arc<dyn Observer>,
    /// The file in which requests and replies are kept; `None` keeps none.
    pub record: Option<PathBuf>,
    /// Where keys and addresses come from.
    pub environment: Variables,
    /// What models that are opened twice have in common.
    pub shared: Arc<Shared>,
}

impl Default for Opener {
    fn default() -> Self {
        Self {
            gate: Arc::new(()),
            observer: Arc::new(()),
            record: None,
            environment: Arc::new(|name| std::env::var(name).ok()),
            shared: Arc::default(),
        }
    }
}

/// What models that are opened twice have in common: their breakers, scripts, cassettes and prices.
#[derive(Default)]
pub struct Shared {
    breakers: Breakers,
    scripts: Mutex<HashMap<PathBuf, Arc<Script>>>,
    cassettes: Mutex<HashMap<PathBuf, Arc<Replay>>>,
    prices: Mutex<Option<Arc<Prices>>>,
}

/// Why a choice can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No provider has that name.
    #[error("no model is called {name:?}{}; known are: {known}", did_you_mean(.hint))]
    Unknown {
        /// The name that was asked for, cut to 80 characters.
        name: String,
        /// What can be asked for.
        known: String,
        /// The provider that was perhaps meant.
        hint: Option<String>,
    },
    /// There is a provider and no model.
    #[error("{name:?} names no model; write {example}")]
    NoModel {
        /// The name that was asked for, cut to 80 characters.
        name: String,
        /// A name that would do.
        example: String,
    },
    /// Its key is not in the environment.
    #[error("{name} needs a key: set {variable} (or name another variable in the setting key_variable)")]
    MissingKey {
        /// The model.
        name: String,
        /// The variable.
        variable: String,
    },
    /// Nobody says where it is.
    #[error(
        "nothing says where {name} is: write {name}@http://127.0.0.1:8081/v1, or set base_url or \
         OPENAI_COMPATIBLE_BASE_URL"
    )]
    MissingAddress {
        /// The model.
        name: String,
    },
    /// Its address is none.
    #[error("the address of {name} is wrong: {why}")]
    BadAddress {
        /// The model.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// Its provider was left out of this program.
    #[error(
        "{name} is served by a part that this program was built without; build it in with `cargo build --package \
         millrace --features genai`"
    )]
    LeftOut {
        /// The model.
        name: String,
    },
    /// Its script can't be used.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// Its cassette, or the one that should be recorded, can't be used.
    #[error(transparent)]
    Cassette(#[from] CassetteError),
    /// The prices can't be used.
    #[error(transparent)]
    Prices(#[from] PricesError),
}

fn did_you_mean(hint: &Option<String>) -> String {
    hint.as_ref().map_or_else(String::new, |hint| format!("; did you mean {hint}?"))
}

/// Looks whether a choice names models that can be, without their keys, addresses and files: those are the worker's.
///
/// # Errors
/// A name means nothing here.
pub fn check(choice: &Choice, built_in: BuiltIn<'_>) -> Result<(), OpenError> {
    for chosen in models(choice)? {
        if built_in(&chosen.name).is_none() {
            is_served(chosen, &provider::parse(&chosen.name)?)?;
        }
    }
    Ok(())
}

fn models(choice: &Choice) -> Result<&[Chosen], OpenError> {
    match choice.models.as_slice() {
        [] => Err(OpenError::NoModel { name: String::new(), example: provider::known() }),
        models => Ok(models),
    }
}

fn is_served(chosen: &Chosen, named: &Named) -> Result<(), OpenError> {
    match named {
        Named::Model { provider: Provider::LongTail(_), .. } if !cfg!(feature = "genai") => {
            Err(OpenError::LeftOut { name: chosen.name.clone() })
        }
        Named::Model { .. } | Named::Script(_) | Named::Replay(_) => Ok(()),
    }
}

impl Opener {
    /// Opens a choice. `built_in` knows the models that need no provider.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, choice: &Choice, built_in: BuiltIn<'_>) -> Result<Arc<dyn Model>, OpenError> {
        let chosen = models(choice)?;
        let last = chosen.len() - 1;
        let opened = chosen.iter().enumerate().map(|(at, chosen)| {
            let policy = if at == last { Policy::default() } else { Policy::with_stand_in() };
            self.open_one(chosen, policy, built_in)
        });
        let mut opened = opened.collect::<Result<Vec<_>, _>>()?.into_iter();
        let first = opened.next().expect("a choice without models was refused");
        let model = chain(first, opened.collect());
        match &self.record {
            Some(file) => Ok(Arc::new(Recorded::new(model, file.clone())?)),
            None => Ok(model),
        }
    }

    fn open_one(
        &self,
        chosen: &Chosen,
        policy: Policy,
        built_in: BuiltIn<'_>,
    ) -> Result<Arc<dyn Model>, OpenError> {
        if let Some(model) = built_in(&chosen.name) {
            return Ok(model);
        }
        let named = provider::parse(&chosen.name)?;
        is_served(chosen, &named)?;
        match named {
            Named::Replay(file) => Ok(cached(&self.shared.cassettes, &file, Replay::load)?),
            Named::Script(file) => {
                let script = cached(&self.shared.scripts, &file, Script::load)?;
                let policy = Policy { tries: script.tries(), ..policy };
                // Its errors are wanted: they must not close the way to those behind them.
                let breaker = Arc::default();
                Ok(self.guarded(script, breaker, chosen, policy, Tariff::default()))
            }
            Named::Model { provider, model, address } => {
                let resolved =
                    provider::resolve(chosen, provider, &model, address, self.environment.as_ref())?;
                let tariff = self.prices()?.tariff(provider, &model);
                let model = shaped(chosen, resolved)?;
                let breaker = self.shared.breakers.of(model.name());
                Ok(self.guarded(model, breaker, chosen, policy, tariff))
            }
        }
    }

    fn guarded(
        &self,
        inner: Arc<dyn Model>,
        breaker: Arc<Breaker>,
        chosen: &Chosen,
        policy: Policy,
        tariff: Tariff,
    ) -> Arc<dyn Model> {
        let (gate, observer) = (self.gate.clone(), self.observer.clone());
        let timeout = chosen.settings.timeout();
        Arc::new(Guarded { inner, breaker, gate, observer, tariff, policy, timeout })
    }

    fn prices(&self) -> Result<Arc<Prices>, PricesError> {
        let mut prices = self.shared.prices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prices) = &*prices {
            return Ok(prices.clone());
        }
        let file = (self.environment)("MILLRACE_PRICES").filter(|file| !file.is_empty());
        let read = match file {
            Some(file) => Prices::with_file(Path::new(&file))?,
            None => Prices::built_in(),
        };
        Ok(prices.insert(Arc::new(read)).clone())
    }
}

/// A provider's model, in shape.
fn shaped(chosen: &Chosen, Resolved { provider, endpoint }: Resolved) -> Result<Arc<dyn Model>, OpenError> {
    let (native, inner) = match provider {
        Provider::LongTail(name) => {
            long_tail(name, endpoint).ok_or_else(|| OpenError::LeftOut { name: chosen.name.clone() })?
        }
        Provider::OpenAi
        | Provider::OpenAiResponses
        | Provider::OpenAiChat
        | Provider::Anthropic
        | Provider::Ollama
        | Provider::LmStudio
        | Provider::OpenRouter
        | Provider::OpenAiCompatible => (endpoint.native(), wire::connect(endpoint)),
    };
    let abilities = Abilities { native, grammar: provider.is_local() };
    let structured = match chosen.settings.structured {
        Structured::Auto => provider.structured(),
        wanted @ (Structured::Native | Structured::Tool | Structured::Envelope | Structured::Prompt) => {
            wanted
        }
    };
    Ok(Arc::new(Shaped::new(inner, abilities, structured)))
}

#[cfg(feature = "genai")]
fn long_tail(name: &str, endpoint: Endpoint) -> Option<(Native, Arc<dyn Model>)> {
    Some((wire::long_tail::NATIVE, wire::long_tail::connect(name, endpoint)?))
}

#[cfg(not(feature = "genai"))]
fn long_tail(_: &str, _: Endpoint) -> Option<(Native, Arc<dyn Model>)> {
    None
}

/// A file that is read once in a process.
fn cached<T, E>(
    cache: &Mutex<HashMap<PathBuf, Arc<T>>>,
    file: &Path,
    load: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<Arc<T>, E> {
    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = cache.get(file) {
        return Ok(there.clone());
    }
    let loaded = Arc::new(load(file)?);
    cache.insert(file.to_owned(), loaded.clone());
    Ok(loaded)
}
