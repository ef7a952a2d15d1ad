//! Parses full model names and resolves their address and API key. The environment is an argument. It owns the names,
//! defaults and environment variables of all providers, and does no I/O.
//!
//! A name is `PROVIDER:MODEL`, or `PROVIDER:MODEL@ADDRESS` for an address other than the default; `::` is read as `:`, and
//! a name without a provider is OpenAI's.
//!
//! | provider | key | address |
//! |---|---|---|
//! | `openai` (Responses API; Chat Completions at any address other than OpenAI's own), `openai-responses`, `openai-chat` | `OPENAI_API_KEY` | `OPENAI_BASE_URL`; `OPENAI_ORG_ID` and `OPENAI_PROJECT_ID` become headers |
//! | `anthropic` | `ANTHROPIC_API_KEY` | `ANTHROPIC_BASE_URL` |
//! | `ollama` | `OLLAMA_API_KEY`, if any | `OLLAMA_BASE_URL`, `OLLAMA_HOST` (with or without scheme and port) |
//! | `lm-studio`, `lmstudio` | `LM_STUDIO_API_KEY`, if any | `LM_STUDIO_BASE_URL` |
//! | `openrouter` | `OPENROUTER_API_KEY` | `OPENROUTER_BASE_URL` |
//! | `openai-compatible` (llama.cpp, vLLM, any gateway) | `OPENAI_COMPATIBLE_API_KEY`, if any | in the name: `openai-compatible:qwen@http://127.0.0.1:8081/v1`, in the setting `base_url`, or `OPENAI_COMPATIBLE_BASE_URL` |
//! | `gemini` and the rest of the long tail, by the crate `genai` | `GEMINI_API_KEY`, and each provider's usual variable | each provider's own |
//!
//! In addition there are `script:FILE` and `replay:FILE`.

use std::path::PathBuf;

use reqwest::Url;
use secrecy::SecretString;

use crate::selection::{ModelSelection, ModelSettings, ModelSpec, StructuredMode};
use crate::wire::{ModelEndpoint, WireProtocol};

mod error;

pub use error::ModelNameError;

/// Returns an environment variable by its name.
pub type EnvironmentLookupRef<'a> = &'a (dyn Fn(&str) -> Option<String> + Send + Sync);

/// The provider of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// OpenAI; the address determines the API.
    OpenAi,
    /// OpenAI's Responses API.
    OpenAiResponses,
    /// OpenAI's Chat Completions API.
    OpenAiChat,
    /// Anthropic.
    Anthropic,
    /// Ollama's own API.
    Ollama,
    /// LM Studio.
    LmStudio,
    /// OpenRouter.
    OpenRouter,
    /// Any server with OpenAI's Chat Completions API.
    OpenAiCompatible,
    /// A provider that the crate `genai` supports.
    LongTail(&'static str),
}

/// A parsed model name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParsedModelName {
    /// A model of a provider.
    Model {
        /// The provider.
        provider: Provider,
        /// The provider's name of the model.
        model: String,
        /// The address, if the name contains one.
        address: Option<String>,
    },
    /// A scripted model, by its file.
    Script(PathBuf),
    /// A cassette to replay, by its file.
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
/// Alternative names of providers.
const ALIASES: [(&str, Provider); 4] = [
    ("lmstudio", Provider::LmStudio),
    ("openai-compat", Provider::OpenAiCompatible),
    ("google", Provider::LongTail("gemini")),
    ("vertex-ai", Provider::LongTail("vertex")),
];
/// The providers of the crate `genai` and the variables with their API keys.
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
const SCRIPT_PREFIX: &str = "script";
const REPLAY_PREFIX: &str = "replay";
const TIER_PREFIX: &str = "tier";

const OPENAI_BASE_URL: &str = "https://api.openai.com/v1";

impl Provider {
    /// Returns its name, which precedes the colon.
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

    fn from_name(name: &str) -> Option<Self> {
        let name = name.trim().to_lowercase().replace('_', "-");
        let alias = || ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, provider)| *provider);
        let tail = || LONG_TAIL.iter().find(|(tail, _)| *tail == name).map(|(tail, _)| Self::LongTail(tail));
        PROVIDERS.into_iter().find(|provider| provider.name() == name).or_else(alias).or_else(tail)
    }

    /// Returns `true` if its servers run small models and enforce any schema by a grammar.
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

    /// Returns the default mode for structured output. OpenRouter rejects a schema for the many of its models that do not
    /// support one, and nearly all of them support tools.
    #[must_use]
    pub fn default_structured_mode(self) -> StructuredMode {
        match self {
            Self::OpenRouter => StructuredMode::Tool,
            Self::OpenAi
            | Self::OpenAiResponses
            | Self::OpenAiChat
            | Self::Anthropic
            | Self::Ollama
            | Self::LmStudio
            | Self::OpenAiCompatible
            | Self::LongTail(_) => StructuredMode::Auto,
        }
    }

    /// Returns its name in the price table.
    #[must_use]
    pub fn price_table_section(self) -> &'static str {
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

    /// Returns the variable with its API key, and `true` if the key is required.
    fn api_key_variable(self) -> (&'static str, bool) {
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

    /// Returns the address to use if neither the name nor the settings have one.
    fn default_address(self, variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
        let or = |name: &str, default: &str| Some(variable(name).unwrap_or_else(|| default.to_owned()));
        match self {
            Self::OpenAi | Self::OpenAiResponses | Self::OpenAiChat => or("OPENAI_BASE_URL", OPENAI_BASE_URL),
            Self::Anthropic => or("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
            Self::Ollama => {
                let host = variable("OLLAMA_BASE_URL").or_else(|| variable("OLLAMA_HOST"));
                Some(ollama_address_from_host(host.as_deref().unwrap_or("127.0.0.1")))
            }
            Self::LmStudio => or("LM_STUDIO_BASE_URL", "http://localhost:1234/v1"),
            Self::OpenRouter => or("OPENROUTER_BASE_URL", "https://openrouter.ai/api/v1"),
            Self::OpenAiCompatible => variable("OPENAI_COMPATIBLE_BASE_URL"),
            Self::LongTail(_) => Some(String::new()),
        }
    }

    fn choose_wire_protocol(self, address: &str) -> WireProtocol {
        match self {
            Self::OpenAi if address == OPENAI_BASE_URL => WireProtocol::OpenAiResponses,
            Self::OpenAiResponses => WireProtocol::OpenAiResponses,
            Self::Anthropic => WireProtocol::Anthropic,
            Self::Ollama => WireProtocol::Ollama,
            Self::OpenAi
            | Self::OpenAiChat
            | Self::LmStudio
            | Self::OpenRouter
            | Self::OpenAiCompatible
            | Self::LongTail(_) => WireProtocol::OpenAiChat,
        }
    }
}

/// Parses a full model name.
///
/// # Errors
/// The provider is unknown, the name has no model, or its address is invalid.
pub fn parse_model_name(name: &str) -> Result<ParsedModelName, ModelNameError> {
    let name = name.trim();
    let (before, model) = match name.split_once(':') {
        Some((before, model)) => (before, model.strip_prefix(':').unwrap_or(model).trim()),
        None => (Provider::OpenAi.name(), name),
    };
    match before {
        SCRIPT_PREFIX | REPLAY_PREFIX if model.is_empty() => Err(ModelNameError::MissingModelName {
            name: truncate_for_message(name),
            example: format!("{before}:FILE"),
        }),
        TIER_PREFIX => Err(ModelNameError::TierWithoutModels { name: truncate_for_message(name) }),
        SCRIPT_PREFIX => Ok(ParsedModelName::Script(model.into())),
        REPLAY_PREFIX => Ok(ParsedModelName::Replay(model.into())),
        _ => {
            let provider = Provider::from_name(before).ok_or_else(|| unknown_provider_error(name, before))?;
            parse_provider_model(name, provider, model)
        }
    }
}

fn parse_provider_model(
    name: &str,
    provider: Provider,
    text: &str,
) -> Result<ParsedModelName, ModelNameError> {
    let at = text.find("@http://").or_else(|| text.find("@https://"));
    let (model, address) = at.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..])));
    if model.is_empty() {
        let example = format!("{}:{}", provider.name(), example_model_name(provider));
        return Err(ModelNameError::MissingModelName { name: truncate_for_message(name), example });
    }
    let address = address.map(|address| validate_base_url(name, address)).transpose()?;
    Ok(ParsedModelName::Model { provider, model: model.to_owned(), address })
}

fn example_model_name(provider: Provider) -> &'static str {
    match provider {
        Provider::OpenAi | Provider::OpenAiResponses | Provider::OpenAiChat => "gpt-6-sol",
        Provider::Anthropic => "claude-sonnet-5-5",
        Provider::Ollama => "qwen3:8b",
        Provider::OpenRouter => "qwen/qwen3.7-plus",
        Provider::OpenAiCompatible => "qwen@http://127.0.0.1:8081/v1",
        Provider::LmStudio | Provider::LongTail(_) => "MODEL",
    }
}

/// Returns the error for a name whose provider is unknown, with the most similar known one.
pub(crate) fn unknown_provider_error(name: &str, provider: &str) -> ModelNameError {
    let provider = provider.to_lowercase().replace('_', "-");
    let names = PROVIDERS
        .iter()
        .map(|provider| provider.name())
        .chain(LONG_TAIL.map(|(tail, _)| tail))
        .chain([SCRIPT_PREFIX, REPLAY_PREFIX, TIER_PREFIX, "builtin"]);
    let near = names.map(|known| (strsim::damerau_levenshtein(known, &provider), known)).min();
    let near = near.filter(|(distance, known)| *distance <= 2.max(known.len() / 4));
    ModelNameError::UnknownProvider {
        name: truncate_for_message(name),
        supported: list_supported_names(),
        hint: near.map(|(_, near)| near.to_owned()),
    }
}

/// Lists the supported names, for people.
#[must_use]
pub fn list_supported_names() -> String {
    let providers = PROVIDERS.map(|provider| format!("{}:{}", provider.name(), example_model_name(provider)));
    let tail: String = LONG_TAIL.iter().map(|(name, _)| format!(", {name}:MODEL")).collect();
    format!("builtin:extractive, {}{tail}, {SCRIPT_PREFIX}:FILE, {REPLAY_PREFIX}:FILE", providers.join(", "))
}

fn truncate_for_message(name: &str) -> String {
    name.chars().take(80).collect()
}

/// Validates an address and removes its trailing slash. It must contain no API key, because addresses are displayed.
fn validate_base_url(name: &str, address: &str) -> Result<String, ModelNameError> {
    let bad = |why: &str| ModelNameError::BadAddress { name: strip_address(name), why: why.to_owned() };
    let url = Url::parse(address.trim()).map_err(|error| bad(&format!("it is not a URL ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(bad("it must begin with http:// or https:// and a host"));
    }
    if !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some()
    {
        return Err(bad(
            "it must have no user, password, query or fragment; put the key into an environment variable",
        ));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// Returns a name without its address, which may contain secrets.
fn strip_address(name: &str) -> String {
    truncate_for_message(name.split_once("@http").map_or(name, |(name, _)| name))
}

/// A provider's model with its address and API key.
#[derive(Debug, Clone)]
pub struct ResolvedModel {
    /// The provider.
    pub provider: Provider,
    /// The address and API of the model.
    pub endpoint: ModelEndpoint,
}

/// Resolves the address of a model and its API key from the environment.
///
/// # Errors
/// The address or the API key is missing or invalid.
pub fn resolve_model_endpoint(
    spec: &ModelSpec,
    provider: Provider,
    model: &str,
    address: Option<String>,
    environment: EnvironmentLookupRef<'_>,
) -> Result<ResolvedModel, ModelNameError> {
    let variable =
        |name: &str| environment(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let mut full_name = format!("{}:{model}", provider.name());
    if let Some(address) = &address {
        full_name = format!("{full_name}@{address}");
    }
    let base =
        address.or_else(|| spec.settings.base_url.clone()).or_else(|| provider.default_address(&variable));
    let base_url = match base.ok_or_else(|| ModelNameError::MissingAddress { name: full_name.clone() })? {
        none if none.is_empty() => none,
        address => validate_base_url(&full_name, &address)?,
    };
    let key = read_api_key(provider, &spec.settings, &full_name, &variable)?;
    let wire = provider.choose_wire_protocol(&base_url);
    let settings = add_openai_headers(provider, &spec.settings, &variable);
    let (model, is_local) = (model.to_owned(), provider.is_local());
    let endpoint = ModelEndpoint { wire, base_url, key, model, full_name, is_local, settings };
    Ok(ResolvedModel { provider, endpoint })
}

fn read_api_key(
    provider: Provider,
    settings: &ModelSettings,
    name: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<SecretString>, ModelNameError> {
    let (usual, needed) = provider.api_key_variable();
    let (holder, needed) = settings.key_variable.as_deref().map_or((usual, needed), |own| (own, true));
    match variable(holder) {
        Some(key) => Ok(Some(SecretString::from(key))),
        None if needed => {
            Err(ModelNameError::MissingKey { name: name.to_owned(), variable: holder.to_owned() })
        }
        None => Ok(None),
    }
}

/// Adds the headers for the organisation and the project, which OpenAI's own clients send as well.
fn add_openai_headers(
    provider: Provider,
    settings: &ModelSettings,
    variable: &dyn Fn(&str) -> Option<String>,
) -> ModelSettings {
    let mut settings = settings.clone();
    if provider.price_table_section() == Provider::OpenAi.name() {
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

/// Interprets `OLLAMA_HOST` like Ollama's own clients: scheme and port are optional, and the listen address for all
/// interfaces means the loopback address.
fn ollama_address_from_host(host: &str) -> String {
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

/// Returns the default model of the environment: `DEEPAGENTS_MODEL_PROVIDER` and related variables; `None` if it is not
/// set.
#[must_use]
pub fn default_model_selection(environment: EnvironmentLookupRef<'_>) -> Option<ModelSelection> {
    let variable =
        |name: &str| environment(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let named = |provider: &str, name: &str, default: &str| {
        format!("{provider}:{}", variable(name).unwrap_or_else(|| default.to_owned()))
    };
    let provider = variable("DEEPAGENTS_MODEL_PROVIDER")?;
    let mut settings = ModelSettings::default();
    let name = match Provider::from_name(&provider) {
        Some(Provider::Ollama) => named("ollama", "OLLAMA_MODEL_NAME", "qwen3:4b-thinking-2507-q4_K_M"),
        Some(Provider::LmStudio) => {
            settings.max_output_tokens = Some(64_000);
            named("lm-studio", "LM_STUDIO_MODEL_NAME", "local-model")
        }
        // No variable names the model of this provider; creating it reports the missing name.
        Some(_) | None => format!("{provider}:"),
    };
    Some(ModelSelection { models: vec![ModelSpec { name, settings }] })
}

#[cfg(test)]
mod tests;
