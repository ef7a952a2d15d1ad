//! What a model's full name means: its provider, its address and its key. The environment is an argument. It owns the
//! names, the defaults and the variables that each provider is known by, and opens nothing.
//!
//! `PROVIDER:MODEL`, or `PROVIDER:MODEL@ADDRESS` where the address is not the usual one; `::` is read as `:`, and a
//! name without a provider is OpenAI's.
//!
//! | provider | key | address |
//! |---|---|---|
//! | `openai` (responses; chat completions at any other address than its own), `openai-responses`, `openai-chat` | `OPENAI_API_KEY` | `OPENAI_BASE_URL`; `OPENAI_ORG_ID` and `OPENAI_PROJECT_ID` become headers |
//! | `anthropic` | `ANTHROPIC_API_KEY` | `ANTHROPIC_BASE_URL` |
//! | `ollama` | `OLLAMA_API_KEY`, if any | `OLLAMA_BASE_URL`, `OLLAMA_HOST` (with or without scheme and port) |
//! | `lm-studio`, `lmstudio` | `LM_STUDIO_API_KEY`, if any | `LM_STUDIO_BASE_URL` |
//! | `openrouter` | `OPENROUTER_API_KEY` | `OPENROUTER_BASE_URL` |
//! | `openai-compatible` (llama.cpp, vLLM, any gateway) | `OPENAI_COMPATIBLE_API_KEY`, if any | in the name: `openai-compatible:qwen@http://127.0.0.1:8081/v1`, in the setting `base_url`, or `OPENAI_COMPATIBLE_BASE_URL` |
//! | `gemini` and the rest of the long tail | as each is known for | the feature `genai` |
//!
//! Beside these stand `script:FILE` and `replay:FILE`.

use std::path::PathBuf;

use reqwest::Url;
use secrecy::SecretString;

use crate::choice::{Choice, Chosen, Settings, Structured};
use crate::open::OpenError;
use crate::wire::{Endpoint, Wire};

/// The environment: a variable's value by its name.
pub type Environment<'a> = &'a (dyn Fn(&str) -> Option<String> + Send + Sync);

/// Who serves a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// OpenAI, by the interface that fits its address.
    OpenAi,
    /// OpenAI by its responses.
    OpenAiResponses,
    /// OpenAI by its chat completions.
    OpenAiChat,
    /// Anthropic.
    Anthropic,
    /// Ollama by its own interface.
    Ollama,
    /// LM Studio.
    LmStudio,
    /// OpenRouter.
    OpenRouter,
    /// Whatever speaks OpenAI's chat completions.
    OpenAiCompatible,
    /// One of those that the crate `genai` knows.
    LongTail(&'static str),
}

/// What a full name means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// A model of a provider.
    Model {
        /// The provider.
        provider: Provider,
        /// The model as the provider knows it.
        model: String,
        /// Its address, where the name holds one.
        address: Option<String>,
    },
    /// Answers by hand from a file.
    Script(PathBuf),
    /// Recorded answers from a file.
    Replay(PathBuf),
}

const PROVIDERS: [Provider; 8] = [
    Provider::OpenAi,
    Provider::OpenAiResponses,
    Provider::OpenAiChat,
    Provider::Anthropic,
    Provider::Ollama,
    Provider::LmStudio,
    Provider::OpenRouter,
    Provider::OpenAiCompatible,
];
/// Names that are understood beside the providers' own.
const ALIASES: [(&str, Provider); 4] = [
    ("lmstudio", Provider::LmStudio),
    ("openai-compat", Provider::OpenAiCompatible),
    ("google", Provider::LongTail("gemini")),
    ("vertex-ai", Provider::LongTail("vertex")),
];
/// The providers of the feature `genai`, and the variables that hold their keys.
const LONG_TAIL: [(&str, &str); 14] = [
    ("gemini", "GEMINI_API_KEY"),
    ("vertex", "VERTEX_API_KEY"),
    ("bedrock", "BEDROCK_API_KEY"),
    ("groq", "GROQ_API_KEY"),
    ("xai", "XAI_API_KEY"),
    ("deepseek", "DEEPSEEK_API_KEY"),
    ("cohere", "COHERE_API_KEY"),
    ("mistral", "MISTRAL_API_KEY"),
    ("together", "TOGETHER_API_KEY"),
    ("fireworks", "FIREWORKS_API_KEY"),
    ("nebius", "NEBIUS_API_KEY"),
    ("zai", "ZAI_API_KEY"),
    ("moonshot", "MOONSHOT_API_KEY"),
    ("github", "GITHUB_TOKEN"),
];
const SCRIPT: &str = "script";
const REPLAY: &str = "replay";

const OPENAI_ADDRESS: &str = "https://api.openai.com/v1";

impl Provider {
    /// Its name, as it stands before the colon.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::OpenAiResponses => "openai-responses",
            Self::OpenAiChat => "openai-chat",
            Self::Anthropic => "anthropic",
            Self::Ollama => "ollama",
            Self::LmStudio => "lm-studio",
            Self::OpenRouter => "openrouter",
            Self::OpenAiCompatible => "openai-compatible",
            Self::LongTail(name) => name,
        }
    }

    fn of(name: &str) -> Option<Self> {
        let name = name.trim().to_lowercase().replace('_', "-");
        let alias = || ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, provider)| *provider);
        let tail = || LONG_TAIL.iter().find(|(tail, _)| *tail == name).map(|(tail, _)| Self::LongTail(tail));
        PROVIDERS.into_iter().find(|provider| provider.name() == name).or_else(alias).or_else(tail)
    }

    /// Whether its servers run small models and hold them to any schema by a grammar.
    #[must_use]
    pub fn is_local(self) -> bool {
        match self {
            Self::Ollama | Self::LmStudio | Self::OpenAiCompatible => true,
            Self::OpenAi
            | Self::OpenAiResponses
            | Self::OpenAiChat
            | Self::Anthropic
            | Self::OpenRouter
            | Self::LongTail(_) => false,
        }
    }

    /// How its models are asked for structured answers where nobody says. OpenRouter refuses a schema for the many of
    /// its models that do not know one, and nearly all of them know tools.
    #[must_use]
    pub fn structured(self) -> Structured {
        match self {
            Self::OpenRouter => Structured::Tool,
            Self::OpenAi
            | Self::OpenAiResponses
            | Self::OpenAiChat
            | Self::Anthropic
            | Self::Ollama
            | Self::LmStudio
            | Self::OpenAiCompatible
            | Self::LongTail(_) => Structured::Auto,
        }
    }

    /// The name that the price table knows it by.
    #[must_use]
    pub fn priced_as(self) -> &'static str {
        match self {
            Self::OpenAi | Self::OpenAiResponses | Self::OpenAiChat => Self::OpenAi.name(),
            Self::Anthropic
            | Self::Ollama
            | Self::LmStudio
            | Self::OpenRouter
            | Self::OpenAiCompatible
            | Self::LongTail(_) => self.name(),
        }
    }

    /// The variable that holds its key, and whether it can't do without.
    fn key(self) -> (&'static str, bool) {
        match self {
            Self::OpenAi | Self::OpenAiResponses | Self::OpenAiChat => ("OPENAI_API_KEY", true),
            Self::Anthropic => ("ANTHROPIC_API_KEY", true),
            Self::Ollama => ("OLLAMA_API_KEY", false),
            Self::LmStudio => ("LM_STUDIO_API_KEY", false),
            Self::OpenRouter => ("OPENROUTER_API_KEY", true),
            Self::OpenAiCompatible => ("OPENAI_COMPATIBLE_API_KEY", false),
            Self::LongTail(tail) => {
                let listed = LONG_TAIL.iter().find(|(name, _)| *name == tail);
                (listed.map_or("API_KEY", |(_, variable)| variable), true)
            }
        }
    }

    /// The address that is taken where neither the name nor the settings hold one.
    fn address(self, variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
        let or = |name: &str, default: &str| Some(variable(name).unwrap_or_else(|| default.to_owned()));
        match self {
            Self::OpenAi | Self::OpenAiResponses | Self::OpenAiChat => or("OPENAI_BASE_URL", OPENAI_ADDRESS),
            Self::Anthropic => or("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
            Self::Ollama => {
                let host = variable("OLLAMA_BASE_URL").or_else(|| variable("OLLAMA_HOST"));
                Some(ollama_address(host.as_deref().unwrap_or("127.0.0.1")))
            }
            Self::LmStudio => or("LM_STUDIO_BASE_URL", "http://localhost:1234/v1"),
            Self::OpenRouter => or("OPENROUTER_BASE_URL", "https://openrouter.ai/api/v1"),
            Self::OpenAiCompatible => variable("OPENAI_COMPATIBLE_BASE_URL"),
            Self::LongTail(_) => Some(String::new()),
        }
    }

    fn wire(self, address: &str) -> Wire {
        match self {
            Self::OpenAi if address == OPENAI_ADDRESS => Wire::OpenAiResponses,
            Self::OpenAiResponses => Wire::OpenAiResponses,
            Self::Anthropic => Wire::Anthropic,
            Self::Ollama => Wire::Ollama,
            Self::OpenAi
            | Self::OpenAiChat
            | Self::LmStudio
            | Self::OpenRouter
            | Self::OpenAiCompatible
            | Self::LongTail(_) => Wire::OpenAiChat,
        }
    }
}

/// What a full name means.
///
/// # Errors
/// No provider has its name, it names no model, or its address is none.
pub fn parse(name: &str) -> Result<Named, OpenError> {
    let name = name.trim();
    let (before, model) = match name.split_once(':') {
        Some((before, model)) => (before, model.strip_prefix(':').unwrap_or(model).trim()),
        None => (Provider::OpenAi.name(), name),
    };
    match before {
        SCRIPT | REPLAY if model.is_empty() => {
            Err(OpenError::NoModel { name: cut(name), example: format!("{before}:FILE") })
        }
        SCRIPT => Ok(Named::Script(model.into())),
        REPLAY => Ok(Named::Replay(model.into())),
        _ => {
            let provider = Provider::of(before).ok_or_else(|| unknown(name, before))?;
            of_provider(name, provider, model)
        }
    }
}

fn of_provider(name: &str, provider: Provider, text: &str) -> Result<Named, OpenError> {
    let at = text.find("@http://").or_else(|| text.find("@https://"));
    let (model, address) = at.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..])));
    if model.is_empty() {
        let example = format!("{}:{}", provider.name(), example(provider));
        return Err(OpenError::NoModel { name: cut(name), example });
    }
    let address = address.map(|address| checked(name, address)).transpose()?;
    Ok(Named::Model { provider, model: model.to_owned(), address })
}

fn example(provider: Provider) -> &'static str {
    match provider {
        Provider::OpenAi | Provider::OpenAiResponses | Provider::OpenAiChat => "gpt-6-sol",
        Provider::Anthropic => "claude-sonnet-5-5",
        Provider::Ollama => "qwen3:8b",
        Provider::OpenRouter => "qwen/qwen3.7-plus",
        Provider::OpenAiCompatible => "qwen@http://127.0.0.1:8081/v1",
        Provider::LmStudio | Provider::LongTail(_) => "MODEL",
    }
}

fn unknown(name: &str, provider: &str) -> OpenError {
    let provider = provider.to_lowercase().replace('_', "-");
    let names = PROVIDERS
        .iter()
        .map(|provider| provider.name())
        .chain(LONG_TAIL.map(|(tail, _)| tail))
        .chain([SCRIPT, REPLAY, "builtin"]);
    let near = names.map(|known| (strsim::damerau_levenshtein(known, &provider), known)).min();
    let near = near.filter(|(distance, known)| *distance <= 2.max(known.len() / 4));
    OpenError::Unknown { name: cut(name), known: known(), hint: near.map(|(_, near)| near.to_owned()) }
}

/// What can be asked for, for a person.
#[must_use]
pub fn known() -> String {
    let providers = PROVIDERS.map(|provider| format!("{}:{}", provider.name(), example(provider)));
    let tail = if cfg!(feature = "genai") { &LONG_TAIL[..] } else { &[] };
    let tail: String = tail.iter().map(|(name, _)| format!(", {name}:MODEL")).collect();
    format!("builtin:extractive, {}{tail}, {SCRIPT}:FILE, {REPLAY}:FILE", providers.join(", "))
}

fn cut(name: &str) -> String {
    name.chars().take(80).collect()
}

/// An address without its last slash. It must hold no key: addresses are shown.
fn checked(name: &str, address: &str) -> Result<String, OpenError> {
    let bad = |why: &str| OpenError::BadAddress { name: bare(name), why: why.to_owned() };
    let url = Url::parse(address.trim()).map_err(|error| bad(&format!("it can't be read ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(bad("it must begin with http:// or https:// and a host"));
    }
    if !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some()
    {
        return Err(bad("it must have no user, password, query or fragment; a key belongs into a variable"));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// A name without its address, which may hold what must not be shown.
fn bare(name: &str) -> String {
    cut(name.split_once("@http").map_or(name, |(name, _)| name))
}

/// A model's endpoint, and what is known of it besides.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// Who serves it.
    pub provider: Provider,
    /// Where and how it is asked.
    pub endpoint: Endpoint,
}

/// The endpoint of a chosen model, with its key from the environment.
///
/// # Errors
/// Its address or its key is missing or wrong.
pub fn resolve(
    chosen: &Chosen,
    provider: Provider,
    model: &str,
    address: Option<String>,
    environment: Environment<'_>,
) -> Result<Resolved, OpenError> {
    let variable =
        |name: &str| environment(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let mut full_name = format!("{}:{model}", provider.name());
    if let Some(address) = &address {
        full_name = format!("{full_name}@{address}");
    }
    let given = address.or_else(|| chosen.settings.base_url.clone()).or_else(|| provider.address(&variable));
    let base_url = match given.ok_or_else(|| OpenError::MissingAddress { name: full_name.clone() })? {
        none if none.is_empty() => none,
        address => checked(&full_name, &address)?,
    };
    let key = key(provider, &chosen.settings, &full_name, &variable)?;
    let wire = provider.wire(&base_url);
    let settings = with_headers(provider, &chosen.settings, &variable);
    let endpoint = Endpoint { wire, base_url, key, model: model.to_owned(), full_name, settings };
    Ok(Resolved { provider, endpoint })
}

fn key(
    provider: Provider,
    settings: &Settings,
    name: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<SecretString>, OpenError> {
    let (usual, needed) = provider.key();
    let (holder, needed) = settings.key_variable.as_deref().map_or((usual, needed), |own| (own, true));
    match variable(holder) {
        Some(key) => Ok(Some(SecretString::from(key))),
        None if needed => Err(OpenError::MissingKey { name: name.to_owned(), variable: holder.to_owned() }),
        None => Ok(None),
    }
}

/// The organisation and the project that OpenAI's own clients send along.
fn with_headers(
    provider: Provider,
    settings: &Settings,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Settings {
    let mut settings = settings.clone();
    if provider.priced_as() == Provider::OpenAi.name() {
        let headers = [
            ("OpenAI-Organization", ["OPENAI_ORG_ID", "OPENAI_ORGANIZATION"]),
            ("OpenAI-Project", ["OPENAI_PROJECT_ID", "OPENAI_PROJECT"]),
        ];
        for (header, names) in headers {
            let there = settings.extra_headers.keys().any(|key| key.eq_ignore_ascii_case(header));
            if let Some(value) = names.into_iter().find_map(variable).filter(|_| !there) {
                settings.extra_headers.insert(header.to_owned(), value);
            }
        }
    }
    settings
}

/// What Ollama's own clients make of `OLLAMA_HOST`: scheme and port may be missing, and the address to listen at on
/// all interfaces is asked at the loopback one.
fn ollama_address(host: &str) -> String {
    let host = host.trim().trim_end_matches('/');
    let (scheme, rest, usual) = match host.split_once("://") {
        Some((scheme @ "https", rest)) => (scheme, rest, 443),
        Some((scheme, rest)) => (scheme, rest, 80),
        None => ("http", host, 11434),
    };
    let (authority, path) =
        rest.split_once('/').map_or((rest, String::new()), |(a, path)| (a, format!("/{path}")));
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
        && !(authority.starts_with('[') && authority.ends_with(']'));
    let (name, port) = match authority.rsplit_once(':').filter(|_| has_port) {
        Some((name, port)) => (name, port.to_owned()),
        None => (authority.trim_end_matches(':'), usual.to_string()),
    };
    let name = match name {
        "" | "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        name => name,
    };
    format!("{scheme}://{name}:{port}{path}")
}

/// The model that the environment asks for where nobody names one: `DEEPAGENTS_MODEL_PROVIDER` and the variables that
/// go with it; `None` where it is not set.
#[must_use]
pub fn default_choice(environment: Environment<'_>) -> Option<Choice> {
    let variable =
        |name: &str| environment(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let named = |provider: &str, name: &str, default: &str| {
        format!("{provider}:{}", variable(name).unwrap_or_else(|| default.to_owned()))
    };
    let provider = variable("DEEPAGENTS_MODEL_PROVIDER")?;
    let mut settings = Settings::default();
    let name = match Provider::of(&provider) {
        Some(Provider::Ollama) => named("ollama", "OLLAMA_MODEL_NAME", "qwen3:4b-thinking-2507-q4_K_M"),
        Some(Provider::LmStudio) => {
            settings.max_output_tokens = Some(64_000);
            named("lm-studio", "LM_STUDIO_MODEL_NAME", "local-model")
        }
        // Nothing tells which of its models is meant; whoever opens the choice says so.
        Some(_) | None => format!("{provider}:"),
    };
    Some(Choice { models: vec![Chosen { name, settings }] })
}

#[cfg(test)]
mod tests;
