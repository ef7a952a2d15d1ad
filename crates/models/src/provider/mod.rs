//! Parses full model names and resolves their address and API key. The environment is an argument. It owns the names,
//! defaults and environment variables of all providers, and does no I/O; `list` has a row for each.
//!
//! A name is `PROVIDER:MODEL`, or `PROVIDER:MODEL@ADDRESS` for an address other than the default; `::` is read as `:`, and
//! a name without a provider is OpenAI's.
//!
//! The list has the variables with each provider's key and address. In addition there are `script:FILE` and `replay:FILE`.
//!
//! The list of providers: one row each. A further server with OpenAI's Chat Completions API is one more line, by [`hosted`].
//! It owns the names, variables and addresses, and the differences between servers of one API.

use std::path::PathBuf;

use reqwest::Url;
use secrecy::SecretString;

use crate::families::ability_of;
use crate::model::ModelAbility;
use crate::selection::{ModelSelection, ModelSettings, ModelSpec, StructuredMode};

use crate::wire::{Dialect, ModelEndpoint, WireProtocol};

pub type EnvironmentLookupRef<'a> = &'a (dyn Fn(&str) -> Option<String> + Send + Sync);
/// Returns an environment variable that is not blank.
type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;
type NameResult<T> = Result<T, ModelNameError>;

pub type Provider = &'static ProviderRow;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParsedModelName {
    Model { provider: Provider, model: String, address: Option<String> },
    Script(PathBuf),
    Replay(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum ModelNameError {
    #[error("unknown model {name:?}{}; supported: {supported}", format_hint(.hint))]
    UnknownProvider { name: String, supported: String, hint: Option<String> },
    /// A tier without models, or a tier as the model of another one.
    #[error("the tier {name:?} has no models; add --model {}=PROVIDER:MODEL to the run or the worker", .name.trim_start_matches("tier:"))]
    TierWithoutModels { name: String },
    #[error("{name:?} names no model; write {example}")]
    MissingModelName { name: String, example: String },
    #[error(
        "{name} needs a key: set {variable} (a capability file may name another variable: `key_variable` of its model)"
    )]
    MissingKey { name: String, variable: String },
    #[error(
        "no address configured for {name}: write {name}@http://127.0.0.1:8081/v1, or set base_url or {variable}"
    )]
    MissingAddress { name: String, variable: String },
    #[error("the address of {name} is invalid: {why}")]
    BadAddress { name: String, why: String },
}

fn format_hint(hint: &Option<String>) -> String {
    hint.as_ref().map_or_else(String::new, |hint| format!("; did you mean {hint}?"))
}

const SCRIPT_PREFIX: &str = "script";
const REPLAY_PREFIX: &str = "replay";
const TIER_PREFIX: &str = "tier";
/// The provider of names without one, and the name of OpenAI in the table of models.
const OPENAI: &str = "openai";

impl ProviderRow {
    /// Returns the provider with a name, which may be an alternative one.
    pub fn from_name(name: &str) -> Option<Provider> {
        let name = name.trim().to_lowercase().replace('_', "-");
        let has_name = |row: &&ProviderRow| row.name == name || row.aliases.contains(&name.as_str());
        PROVIDERS.iter().find(has_name)
    }

    /// Returns the address to use if neither the name nor the settings have one; the error is the variable that is missing.
    fn default_address(&self, variable: Variables<'_>) -> Result<String, &'static str> {
        match self.address {
            Address::Fixed(url) => Ok(url.to_owned()),
            Address::Default(name, url) => Ok(variable(name).unwrap_or_else(|| url.to_owned())),
            Address::Required(name) => variable(name).ok_or(name),
            Address::Ollama => {
                let host = variable("OLLAMA_BASE_URL").or_else(|| variable("OLLAMA_HOST"));
                Ok(ollama_address_from_host(host.as_deref().unwrap_or("127.0.0.1")))
            }
            Address::Bedrock => {
                let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
                let region = region.as_deref().unwrap_or("us-east-1");
                Ok(format!("https://bedrock-runtime.{region}.amazonaws.com"))
            }
            Address::Vertex => {
                let project = variable("VERTEX_PROJECT_ID").ok_or("VERTEX_PROJECT_ID")?;
                let location = variable("VERTEX_LOCATION").unwrap_or_else(|| "global".to_owned());
                let region = if location == "global" { String::new() } else { format!("{location}-") };
                let host = format!("https://{region}aiplatform.googleapis.com");
                Ok(format!("{host}/v1/projects/{project}/locations/{location}"))
            }
        }
    }

    fn choose_wire_protocol(&self, address: &str, model: &str) -> WireProtocol {
        match self.api {
            Api::Always(wire) => wire,
            Api::OpenAi if address == OPENAI_BASE_URL => WireProtocol::OpenAiResponses,
            Api::OpenAi => WireProtocol::OpenAiChat,
            Api::Vertex if model.starts_with("claude") => WireProtocol::Anthropic,
            Api::Vertex => WireProtocol::Gemini,
        }
    }

    fn model_name_on_wire(&self, model: &str) -> String {
        let prefix = if model.contains('/') { "" } else { self.model_prefix };
        format!("{prefix}{model}")
    }
}

pub fn ability_of_full_name(name: &str) -> ModelAbility {
    match parse_model_name(name) {
        Ok(ParsedModelName::Model { provider, model, .. }) => ability_of(&model, provider.dialect.is_local),
        Ok(ParsedModelName::Script(_) | ParsedModelName::Replay(_)) | Err(_) => ModelAbility::Strong,
    }
}

/// Returns `true` if a model's provider has an API for embeddings, or if the name can't be parsed, which is reported elsewhere.
pub fn has_embeddings_api(name: &str) -> bool {
    match parse_model_name(name) {
        Ok(ParsedModelName::Model { provider, .. }) => match provider.api {
            Api::Always(wire) => wire.has_embeddings(),
            Api::OpenAi => true,
            Api::Vertex => false,
        },
        Ok(ParsedModelName::Script(_)) => false,
        Ok(ParsedModelName::Replay(_)) | Err(_) => true,
    }
}

pub fn parse_model_name(name: &str) -> NameResult<ParsedModelName> {
    let name = name.trim();
    let (before, model) = match name.split_once(':') {
        Some((before, model)) => (before, model.strip_prefix(':').unwrap_or(model).trim()),
        None => (OPENAI, name),
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
            let provider =
                ProviderRow::from_name(before).ok_or_else(|| unknown_provider_error(name, before))?;
            parse_provider_model(name, provider, model)
        }
    }
}

fn parse_provider_model(name: &str, provider: Provider, text: &str) -> NameResult<ParsedModelName> {
    let at = text.find("@http://").or_else(|| text.find("@https://"));
    let (model, address) = at.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..])));
    if model.is_empty() {
        let example = format!("{}:{}", provider.name, provider.example);
        return Err(ModelNameError::MissingModelName { name: truncate_for_message(name), example });
    }
    let address = address.map(|address| validate_base_url(name, address)).transpose()?;
    Ok(ParsedModelName::Model { provider, model: model.to_owned(), address })
}

/// Returns the error for a name whose provider is unknown, with the most similar known one.
fn unknown_provider_error(name: &str, provider: &str) -> ModelNameError {
    let provider = provider.to_lowercase().replace('_', "-");
    let names =
        PROVIDERS.iter().map(|row| row.name).chain([SCRIPT_PREFIX, REPLAY_PREFIX, TIER_PREFIX, "builtin"]);
    let near = names.map(|known| (strsim::damerau_levenshtein(known, &provider), known)).min();
    let near = near.filter(|(distance, known)| *distance <= 2.max(known.len() / 4));
    ModelNameError::UnknownProvider {
        name: truncate_for_message(name),
        supported: list_supported_names(),
        hint: near.map(|(_, near)| near.to_owned()),
    }
}

pub fn list_supported_names() -> String {
    let providers: Vec<String> =
        PROVIDERS.iter().map(|row| format!("{}:{}", row.name, row.example)).collect();
    format!("builtin:extractive, {}, {SCRIPT_PREFIX}:FILE, {REPLAY_PREFIX}:FILE", providers.join(", "))
}

fn truncate_for_message(name: &str) -> String {
    name.chars().take(80).collect()
}

/// Validates an address and removes its trailing slash. It must contain no API key, because addresses are displayed.
fn validate_base_url(name: &str, address: &str) -> NameResult<String> {
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

fn strip_address(name: &str) -> String {
    truncate_for_message(name.split_once("@http").map_or(name, |(name, _)| name))
}

fn filled_variable(environment: EnvironmentLookupRef<'_>, name: &str) -> Option<String> {
    environment(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Resolves the address of a model and its API key from the environment.
pub fn resolve_model_endpoint(
    spec: &ModelSpec,
    provider: Provider,
    model: &str,
    address: Option<String>,
    environment: EnvironmentLookupRef<'_>,
) -> NameResult<ModelEndpoint> {
    let variable = |name: &str| filled_variable(environment, name);
    let mut full_name = format!("{}:{model}", provider.name);
    if let Some(address) = &address {
        full_name = format!("{full_name}@{address}");
    }
    let missing = |variable: &str| (full_name.clone(), variable.to_owned());
    let base = address
        .or_else(|| spec.settings.base_url.clone())
        .map_or_else(|| provider.default_address(&variable), Ok);
    let base = base
        .map_err(missing)
        .map_err(|(name, variable)| ModelNameError::MissingAddress { name, variable })?;
    let base_url = validate_base_url(&full_name, &base)?;
    // A model that names its own variable needs a key.
    let own = spec.settings.key_variable.as_deref();
    let holder = own.unwrap_or(provider.key_variable);
    let key = variable(holder).map(SecretString::from);
    if key.is_none() && (own.is_some() || provider.needs_key) {
        let (name, variable) = missing(holder);
        return Err(ModelNameError::MissingKey { name, variable });
    }
    let wire = provider.choose_wire_protocol(&base_url, model);
    let settings = add_openai_headers(provider, &spec.settings, &variable);
    let (model, dialect) = (provider.model_name_on_wire(model), provider.dialect);
    Ok(ModelEndpoint { wire, dialect, base_url, key, model, full_name, settings, default_temperature: None })
}

/// Adds the headers for the organisation and the project, which OpenAI's own clients send as well.
fn add_openai_headers(
    provider: Provider,
    settings: &ModelSettings,
    variable: Variables<'_>,
) -> ModelSettings {
    let mut settings = settings.clone();
    if provider.table_section == OPENAI {
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
pub fn default_model_selection(environment: EnvironmentLookupRef<'_>) -> Option<ModelSelection> {
    let variable = |name: &str| filled_variable(environment, name);
    let named = |provider: &str, name: &str, default: &str| {
        format!("{provider}:{}", variable(name).unwrap_or_else(|| default.to_owned()))
    };
    let provider = variable("DEEPAGENTS_MODEL_PROVIDER")?;
    let mut settings = ModelSettings::default();
    let name = match ProviderRow::from_name(&provider).map(|provider| provider.name) {
        Some("ollama") => named("ollama", "OLLAMA_MODEL_NAME", "qwen3:4b-thinking-2507-q4_K_M"),
        Some("lm-studio") => {
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

#[derive(Debug, PartialEq, Eq)]
pub struct ProviderRow {
    pub name: &'static str,
    aliases: &'static [&'static str],
    key_variable: &'static str,
    needs_key: bool,
    address: Address,
    api: Api,
    pub dialect: Dialect,
    pub structured: StructuredMode,
    pub table_section: &'static str,
    /// `true` if it resells models under the names `maker/model`.
    pub is_reseller: bool,
    /// `true` if its servers sample from a default that makes small models copy passages wrongly.
    pub needs_low_temperature: bool,
    /// The beginning of a model's name that may be omitted if the rest contains no slash.
    model_prefix: &'static str,
    example: &'static str,
}

/// The address to use if neither the name nor the settings have one.
#[derive(Debug, PartialEq, Eq)]
enum Address {
    Fixed(&'static str),
    Default(&'static str, &'static str),
    Required(&'static str),
    /// `OLLAMA_BASE_URL` or `OLLAMA_HOST`, or else this machine.
    Ollama,
    /// Amazon's for the region in `AWS_REGION` or `AWS_DEFAULT_REGION`, or else `us-east-1`.
    Bedrock,
    /// Google Cloud's for the project in `VERTEX_PROJECT_ID` and the location in `VERTEX_LOCATION`, or else `global`.
    Vertex,
}

#[derive(Debug, PartialEq, Eq)]
enum Api {
    Always(WireProtocol),
    /// The Responses API at OpenAI's own address, Chat Completions at any other.
    OpenAi,
    /// The API of the model's maker: Anthropic or Google.
    Vertex,
}

const OPENAI_BASE_URL: &str = "https://api.openai.com/v1";

/// All providers, in the order in which messages name them.
static PROVIDERS: [ProviderRow; 22] = [
    ProviderRow { api: Api::OpenAi, ..openai("openai", WireProtocol::OpenAiResponses) },
    openai("openai-responses", WireProtocol::OpenAiResponses),
    openai("openai-chat", WireProtocol::OpenAiChat),
    ProviderRow {
        address: Address::Default("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
        api: Api::Always(WireProtocol::Anthropic),
        structured: StructuredMode::Auto,
        example: "claude-sonnet-5-5",
        ..hosted("anthropic", "ANTHROPIC_API_KEY", "")
    },
    ProviderRow {
        api: Api::Always(WireProtocol::Ollama),
        needs_low_temperature: false,
        example: "qwen3:8b",
        ..local("ollama", "OLLAMA_API_KEY", Address::Ollama)
    },
    ProviderRow {
        aliases: &["lmstudio"],
        ..local(
            "lm-studio",
            "LM_STUDIO_API_KEY",
            Address::Default("LM_STUDIO_BASE_URL", "http://localhost:1234/v1"),
        )
    },
    // It rejects a schema for the many of its models that do not support one, and nearly all of them support tools.
    ProviderRow {
        address: Address::Default("OPENROUTER_BASE_URL", "https://openrouter.ai/api/v1"),
        is_reseller: true,
        example: "qwen/qwen3.7-plus",
        ..hosted("openrouter", "OPENROUTER_API_KEY", "")
    },
    ProviderRow {
        aliases: &["openai-compat"],
        example: "qwen@http://127.0.0.1:8081/v1",
        ..local(
            "openai-compatible",
            "OPENAI_COMPATIBLE_API_KEY",
            Address::Required("OPENAI_COMPATIBLE_BASE_URL"),
        )
    },
    ProviderRow {
        aliases: &["google"],
        api: Api::Always(WireProtocol::Gemini),
        structured: StructuredMode::Auto,
        ..hosted("gemini", "GEMINI_API_KEY", "https://generativelanguage.googleapis.com/v1beta")
    },
    ProviderRow {
        aliases: &["vertex-ai"],
        address: Address::Vertex,
        api: Api::Vertex,
        dialect: Dialect { is_vertex: true, ..Dialect::STANDARD },
        ..hosted("vertex", "VERTEX_API_KEY", "")
    },
    ProviderRow {
        address: Address::Bedrock,
        api: Api::Always(WireProtocol::Bedrock),
        ..hosted("bedrock", "BEDROCK_API_KEY", "")
    },
    hosted("groq", "GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    hosted("xai", "XAI_API_KEY", "https://api.x.ai/v1"),
    ProviderRow {
        dialect: Dialect { has_thinking_switch: true, ..Dialect::STANDARD },
        ..hosted("deepseek", "DEEPSEEK_API_KEY", "https://api.deepseek.com/v1")
    },
    ProviderRow {
        dialect: Dialect { rejects_stream_options: true, ..Dialect::STANDARD },
        ..hosted("cohere", "COHERE_API_KEY", "https://api.cohere.ai/compatibility/v1")
    },
    hosted("mistral", "MISTRAL_API_KEY", "https://api.mistral.ai/v1"),
    hosted("together", "TOGETHER_API_KEY", "https://api.together.xyz/v1"),
    ProviderRow {
        model_prefix: "accounts/fireworks/models/",
        ..hosted("fireworks", "FIREWORKS_API_KEY", "https://api.fireworks.ai/inference/v1")
    },
    hosted("nebius", "NEBIUS_API_KEY", "https://api.studio.nebius.ai/v1"),
    hosted("zai", "ZAI_API_KEY", "https://api.z.ai/api/paas/v4"),
    hosted("moonshot", "MOONSHOT_API_KEY", "https://api.moonshot.cn/v1"),
    ProviderRow {
        dialect: Dialect { accept: Some("application/vnd.github+json"), ..Dialect::STANDARD },
        ..hosted("github", "GITHUB_TOKEN", "https://models.github.ai/inference")
    },
];

/// A provider with OpenAI's Chat Completions API and a key. Which of its models support a schema is not known; nearly all
/// of them support tools.
const fn hosted(name: &'static str, key_variable: &'static str, url: &'static str) -> ProviderRow {
    ProviderRow {
        name,
        aliases: &[],
        key_variable,
        needs_key: true,
        address: Address::Fixed(url),
        api: Api::Always(WireProtocol::OpenAiChat),
        dialect: Dialect::STANDARD,
        structured: StructuredMode::Tool,
        table_section: name,
        is_reseller: false,
        needs_low_temperature: false,
        model_prefix: "",
        example: "MODEL",
    }
}

/// A server of local models with OpenAI's Chat Completions API.
const fn local(name: &'static str, key_variable: &'static str, address: Address) -> ProviderRow {
    ProviderRow {
        needs_key: false,
        address,
        dialect: Dialect { is_local: true, ..Dialect::STANDARD },
        structured: StructuredMode::Auto,
        needs_low_temperature: true,
        ..hosted(name, key_variable, "")
    }
}

const fn openai(name: &'static str, wire: WireProtocol) -> ProviderRow {
    ProviderRow {
        address: Address::Default("OPENAI_BASE_URL", OPENAI_BASE_URL),
        api: Api::Always(wire),
        structured: StructuredMode::Auto,
        table_section: "openai",
        example: "gpt-6-sol",
        ..hosted(name, "OPENAI_API_KEY", "")
    }
}
