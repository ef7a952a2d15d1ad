//! Model names, addresses and API keys.

use secrecy::ExposeSecret;

use super::*;

type EnvironmentVariables = &'static [(&'static str, &'static str)];

fn environment_from(set: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + Send + Sync + use<> {
    let set: Vec<(String, String)> =
        set.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    move |name| set.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

fn resolve_endpoint(name: &str, set: &[(&str, &str)]) -> Result<ModelEndpoint, String> {
    let spec = ModelSpec { name: name.into(), settings: ModelSettings::default() };
    let ParsedModelName::Model { provider, model, address } =
        parse_model_name(name).map_err(|error| error.to_string())?
    else {
        panic!("{name} is not the name of a provider");
    };
    let resolved = resolve_model_endpoint(&spec, provider, &model, address, &environment_from(set));
    resolved.map_err(|error| error.to_string())
}

#[test]
fn names_determine_provider_and_address() {
    const KEYS: [(&str, &str); 3] =
        [("OPENAI_API_KEY", "k1"), ("ANTHROPIC_API_KEY", "k2"), ("OPENROUTER_API_KEY", "k3")];
    let cases: [(&str, EnvironmentVariables, WireProtocol, &str, &str); 17] = [
        ("openai:gpt-6-sol", &[], WireProtocol::OpenAiResponses, OPENAI_BASE_URL, "openai:gpt-6-sol"),
        ("gpt-6-sol", &[], WireProtocol::OpenAiResponses, OPENAI_BASE_URL, "openai:gpt-6-sol"),
        ("openai::gpt-6-sol", &[], WireProtocol::OpenAiResponses, OPENAI_BASE_URL, "openai:gpt-6-sol"),
        ("openai-chat:o3", &[], WireProtocol::OpenAiChat, OPENAI_BASE_URL, "openai-chat:o3"),
        (
            "openai:m",
            &[("OPENAI_BASE_URL", "http://gw/v1/")],
            WireProtocol::OpenAiChat,
            "http://gw/v1",
            "openai:m",
        ),
        (
            "openai-responses:m",
            &[("OPENAI_BASE_URL", "http://gw")],
            WireProtocol::OpenAiResponses,
            "http://gw",
            "openai-responses:m",
        ),
        (
            "anthropic:claude-sonnet-5-5",
            &[],
            WireProtocol::Anthropic,
            "https://api.anthropic.com",
            "anthropic:claude-sonnet-5-5",
        ),
        (
            "Anthropic:x",
            &[("ANTHROPIC_BASE_URL", "https://p")],
            WireProtocol::Anthropic,
            "https://p",
            "anthropic:x",
        ),
        ("ollama:qwen3:8b", &[], WireProtocol::Ollama, "http://127.0.0.1:11434", "ollama:qwen3:8b"),
        (
            "ollama:x",
            &[("OLLAMA_HOST", "gpu:1"), ("OLLAMA_BASE_URL", "http://b:2")],
            WireProtocol::Ollama,
            "http://b:2",
            "ollama:x",
        ),
        ("lm_studio:x", &[], WireProtocol::OpenAiChat, "http://localhost:1234/v1", "lm-studio:x"),
        (
            "lmstudio:x",
            &[("LM_STUDIO_BASE_URL", "http://l/v1")],
            WireProtocol::OpenAiChat,
            "http://l/v1",
            "lm-studio:x",
        ),
        ("openrouter:a/b", &[], WireProtocol::OpenAiChat, "https://openrouter.ai/api/v1", "openrouter:a/b"),
        (
            "openai_compat:x",
            &[("OPENAI_COMPATIBLE_BASE_URL", "http://c/v1")],
            WireProtocol::OpenAiChat,
            "http://c/v1",
            "openai-compatible:x",
        ),
        (
            "openai-compatible:q@http://127.0.0.1:1/v1",
            &[],
            WireProtocol::OpenAiChat,
            "http://127.0.0.1:1/v1",
            "openai-compatible:q@http://127.0.0.1:1/v1",
        ),
        (
            "openai-compatible:@cf/m@https://h/",
            &[],
            WireProtocol::OpenAiChat,
            "https://h",
            "openai-compatible:@cf/m@https://h",
        ),
        (" ollama:x@http://gpu:1 ", &[], WireProtocol::Ollama, "http://gpu:1", "ollama:x@http://gpu:1"),
    ];
    for (name, set, wire, base_url, full_name) in cases {
        let endpoint = resolve_endpoint(name, &[&KEYS[..], set].concat()).unwrap();
        assert_eq!((endpoint.wire, endpoint.base_url.as_str()), (wire, base_url), "{name}");
        assert_eq!(endpoint.full_name, full_name, "{name}");
    }
}

#[test]
fn hosted_providers_have_their_own_address() {
    const GOOGLE: &str = "https://generativelanguage.googleapis.com/v1beta";
    const PROJECT: (&str, &str) = ("VERTEX_PROJECT_ID", "p");
    let chat = WireProtocol::OpenAiChat;
    let cases: [(&str, EnvironmentVariables, WireProtocol, &str); 20] = [
        ("gemini:m", &[], WireProtocol::Gemini, GOOGLE),
        ("google:m", &[], WireProtocol::Gemini, GOOGLE),
        (
            "vertex:gemini-3-pro",
            &[PROJECT],
            WireProtocol::Gemini,
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global",
        ),
        (
            "vertex-ai:claude-sonnet-4-5",
            &[PROJECT, ("VERTEX_LOCATION", "europe-west1")],
            WireProtocol::Anthropic,
            "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1",
        ),
        ("bedrock:m", &[], WireProtocol::Bedrock, "https://bedrock-runtime.us-east-1.amazonaws.com"),
        (
            "bedrock:m",
            &[("AWS_DEFAULT_REGION", "eu-west-1")],
            WireProtocol::Bedrock,
            "https://bedrock-runtime.eu-west-1.amazonaws.com",
        ),
        (
            "bedrock:m",
            &[("AWS_REGION", "eu-north-1"), ("AWS_DEFAULT_REGION", "eu-west-1")],
            WireProtocol::Bedrock,
            "https://bedrock-runtime.eu-north-1.amazonaws.com",
        ),
        ("bedrock:m@https://b.example/", &[], WireProtocol::Bedrock, "https://b.example"),
        ("groq:m", &[], chat, "https://api.groq.com/openai/v1"),
        ("xai:m", &[], chat, "https://api.x.ai/v1"),
        ("deepseek:m", &[], chat, "https://api.deepseek.com/v1"),
        ("cohere:m", &[], chat, "https://api.cohere.ai/compatibility/v1"),
        ("mistral:m", &[], chat, "https://api.mistral.ai/v1"),
        ("together:m", &[], chat, "https://api.together.xyz/v1"),
        ("fireworks:m", &[], chat, "https://api.fireworks.ai/inference/v1"),
        ("nebius:m", &[], chat, "https://api.studio.nebius.ai/v1"),
        ("zai:m", &[], chat, "https://api.z.ai/api/paas/v4"),
        ("moonshot:m", &[], chat, "https://api.moonshot.cn/v1"),
        ("github:m", &[], chat, "https://models.github.ai/inference"),
        ("groq:m@http://gw/v1", &[], chat, "http://gw/v1"),
    ];
    for (name, set, wire, base_url) in cases {
        let spec = ModelSpec { name: name.into(), settings: ModelSettings::default() };
        let ParsedModelName::Model { provider, model, address } = parse_model_name(name).unwrap() else {
            panic!("{name} is not the name of a provider");
        };
        let key = (provider.key_variable, "k");
        let environment = environment_from(&[&[key], set].concat());
        let endpoint = resolve_model_endpoint(&spec, provider, &model, address, &environment).unwrap();
        assert_eq!((endpoint.wire, endpoint.base_url.as_str()), (wire, base_url), "{name}");
        assert!(!provider.dialect.is_local, "{name}");
    }
}

/// A name that two rows share would hide one of them.
#[test]
fn names_of_providers_are_unique() {
    let names: Vec<&str> =
        PROVIDERS.iter().flat_map(|row| row.aliases.iter().copied().chain([row.name])).collect();
    let different: std::collections::BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(different.len(), names.len(), "{names:?}");
}

#[test]
fn errors_explain_how_to_fix_a_name() {
    let cases: [(&str, EnvironmentVariables, &str); 13] = [
        ("opnai:gpt-6-sol", &[], "did you mean openai?"),
        ("gpt:x", &[], "supported: builtin:extractive, openai:gpt-6-sol"),
        ("openai:", &[], "write openai:gpt-6-sol"),
        ("", &[], "names no model"),
        ("script:", &[], "write script:FILE"),
        ("openai:x", &[], "set OPENAI_API_KEY"),
        ("anthropic:x", &[("ANTHROPIC_API_KEY", " ")], "set ANTHROPIC_API_KEY"),
        ("openrouter:x", &[("OPENAI_API_KEY", "k")], "set OPENROUTER_API_KEY"),
        ("openai-compatible:x", &[("OPENAI_API_KEY", "k")], "openai-compatible:x@http://127.0.0.1:8081/v1"),
        ("vertex:gemini-3-pro", &[("VERTEX_API_KEY", "k")], "set base_url or VERTEX_PROJECT_ID"),
        ("openai-compatible:x@http://u:geheim@h/v1", &[], "put the key into an environment variable"),
        ("openai-compatible:x@http://h/v1?key=geheim", &[], "put the key into an environment variable"),
        ("lm-studio:x", &[("LM_STUDIO_BASE_URL", "localhost")], "it is not a URL"),
    ];
    for (name, set, expected) in cases {
        let error = resolve_endpoint(name, set).unwrap_err();
        assert!(error.contains(expected), "{name:?}: {error}");
        assert!(!error.contains("geheim"), "{error}");
    }
}

#[test]
fn keys_come_from_the_usual_or_the_named_variable() {
    let key = |name: &str, own: Option<&str>, set: &[(&str, &str)]| {
        let settings = ModelSettings { key_variable: own.map(str::to_owned), ..ModelSettings::default() };
        let ParsedModelName::Model { provider, model, address } = parse_model_name(name).unwrap() else {
            panic!()
        };
        let spec = ModelSpec { name: name.into(), settings };
        let resolved = resolve_model_endpoint(&spec, provider, &model, address, &environment_from(set));
        resolved.map(|endpoint| endpoint.key.map(|key| key.expose_secret().to_owned()))
    };
    let set = [("OPENAI_API_KEY", "usual"), ("MY_KEY", "own"), ("OPENAI_COMPATIBLE_API_KEY", "gate")];
    assert_eq!(key("openai:x", None, &set).unwrap().as_deref(), Some("usual"));
    assert_eq!(key("openai:x", Some("MY_KEY"), &set).unwrap().as_deref(), Some("own"));
    assert_eq!(key("openai-compatible:x@http://h", None, &set).unwrap().as_deref(), Some("gate"));
    assert_eq!(key("openai-compatible:x@http://h", None, &set[..1]).unwrap(), None);
    assert!(key("ollama:x", Some("NONE"), &set).unwrap_err().to_string().contains("NONE"));
}

#[test]
fn organisation_and_project_are_sent_to_openai_only() {
    let set = [
        ("OPENAI_API_KEY", "k"),
        ("OPENAI_ORG_ID", "org"),
        ("OPENAI_PROJECT_ID", "proj"),
        ("OPENROUTER_API_KEY", "k"),
    ];
    let headers = resolve_endpoint("openai:x", &set).unwrap().settings.extra_headers;
    assert_eq!(headers["OpenAI-Organization"], "org");
    assert_eq!(headers["OpenAI-Project"], "proj");
    assert!(resolve_endpoint("openrouter:x", &set).unwrap().settings.extra_headers.is_empty());
}

#[test]
fn ollama_host_is_interpreted_like_ollama_does() {
    let cases = [
        ("127.0.0.1", "http://127.0.0.1:11434"),
        ("0.0.0.0:11435", "http://127.0.0.1:11435"),
        (":1234", "http://127.0.0.1:1234"),
        ("gpu", "http://gpu:11434"),
        ("http://gpu", "http://gpu:80"),
        ("https://gpu/", "https://gpu:443"),
        ("https://gpu:8443/ollama", "https://gpu:8443/ollama"),
        ("[::]", "http://[::1]:11434"),
        ("[::1]:7", "http://[::1]:7"),
    ];
    for (host, address) in cases {
        assert_eq!(ollama_address_from_host(host), address, "{host}");
    }
}

#[test]
fn the_environment_may_set_a_default_model() {
    let selection = |set: &[(&str, &str)]| {
        default_model_selection(&environment_from(set)).map(|selection| selection.to_string())
    };
    assert_eq!(selection(&[]), None);
    assert_eq!(selection(&[("OLLAMA_MODEL_NAME", "x")]), None);
    assert_eq!(
        selection(&[("DEEPAGENTS_MODEL_PROVIDER", "ollama")]).as_deref(),
        Some("ollama:qwen3:4b-thinking-2507-q4_K_M")
    );
    let own = [("DEEPAGENTS_MODEL_PROVIDER", "Ollama"), ("OLLAMA_MODEL_NAME", "llama3")];
    assert_eq!(selection(&own).as_deref(), Some("ollama:llama3"));
    let studio =
        default_model_selection(&environment_from(&[("DEEPAGENTS_MODEL_PROVIDER", "lmstudio")])).unwrap();
    assert_eq!(studio.to_string(), "lm-studio:local-model");
    assert_eq!(studio.models[0].settings.max_output_tokens, Some(64_000));
    let odd = selection(&[("DEEPAGENTS_MODEL_PROVIDER", "olama")]).unwrap();
    assert!(parse_model_name(&odd).unwrap_err().to_string().contains("did you mean ollama?"));
    let unnamed = selection(&[("DEEPAGENTS_MODEL_PROVIDER", "openai")]).unwrap();
    assert!(parse_model_name(&unnamed).unwrap_err().to_string().contains("openai:gpt-6-sol"));
}

#[test]
fn the_ability_follows_from_the_size_the_family_or_the_provider() {
    for (name, ability) in [
        ("ollama:qwen3:8b", ModelAbility::Small),
        ("ollama:qwen3:4b-thinking-2507-q4_K_M", ModelAbility::Small),
        ("ollama:qwen3:32b", ModelAbility::Strong),
        ("ollama:mixtral-8x7b", ModelAbility::Strong),
        ("lm-studio:Qwen2.5-Coder-1.5B-Instruct", ModelAbility::Small),
        ("openrouter:meta-llama/llama-3.1-8b-instruct", ModelAbility::Small),
        ("openrouter:qwen/qwen3.7-plus", ModelAbility::Strong),
        ("ollama:smollm2:135m", ModelAbility::Small),
        ("ollama:gemma3", ModelAbility::Small),
        ("openai:gpt-6-1m", ModelAbility::Strong),
        ("ollama:gpt-oss", ModelAbility::Strong),
        ("ollama:gpt-oss:20b", ModelAbility::Strong),
        ("openai-compatible:default@http://127.0.0.1:8081/v1", ModelAbility::Small),
        ("openai-compatible:claude-sonnet-5-5@https://gateway.example/v1", ModelAbility::Strong),
        ("openai:gpt-6-sol", ModelAbility::Strong),
        ("anthropic:claude-sonnet-5-5", ModelAbility::Strong),
        ("script:model.yaml", ModelAbility::Strong),
        ("no provider: x", ModelAbility::Strong),
    ] {
        assert_eq!(ability_of_full_name(name), ability, "{name}");
    }
}
