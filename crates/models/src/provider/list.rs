//! The list of providers: one row each. A further server with OpenAI's Chat Completions API is one more line, by [`hosted`].
//! It owns the names, variables and addresses, and the differences between servers of one API.

use crate::selection::StructuredMode;
use crate::wire::{Dialect, WireProtocol};

#[derive(Debug, PartialEq, Eq)]
pub struct ProviderRow {
    pub name: &'static str,
    pub(super) aliases: &'static [&'static str],
    pub(super) key_variable: &'static str,
    pub(super) needs_key: bool,
    pub(super) address: Address,
    pub(super) api: Api,
    pub dialect: Dialect,
    pub structured: StructuredMode,
    pub table_section: &'static str,
    /// `true` if it resells models under the names `maker/model`.
    pub is_reseller: bool,
    /// `true` if its servers sample from a default that makes small models copy passages wrongly.
    pub needs_low_temperature: bool,
    /// The beginning of a model's name that may be omitted if the rest contains no slash.
    pub(super) model_prefix: &'static str,
    pub(super) example: &'static str,
}

/// The address to use if neither the name nor the settings have one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Address {
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
pub(super) enum Api {
    Always(WireProtocol),
    /// The Responses API at OpenAI's own address, Chat Completions at any other.
    OpenAi,
    /// The API of the model's maker: Anthropic or Google.
    Vertex,
}

pub(super) const OPENAI_BASE_URL: &str = "https://api.openai.com/v1";

/// All providers, in the order in which messages name them.
pub(super) static PROVIDERS: [ProviderRow; 22] = [
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
