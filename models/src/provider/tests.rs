//! Names, addresses and keys, case by case.

use secrecy::ExposeSecret;

use super::*;

/// Variables that are set.
type Set = &'static [(&'static str, &'static str)];

fn environment(set: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + Send + Sync + use<> {
    let set: Vec<(String, String)> =
        set.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    move |name| set.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

fn resolved(name: &str, set: &[(&str, &str)]) -> Result<Endpoint, String> {
    let chosen = Chosen { name: name.into(), settings: Settings::default() };
    let Named::Model { provider, model, address } = parse(name).map_err(|error| error.to_string())? else {
        panic!("{name} is no provider's");
    };
    let resolved = resolve(&chosen, provider, &model, address, &environment(set));
    resolved.map(|resolved| resolved.endpoint).map_err(|error| error.to_string())
}

#[test]
fn a_name_says_who_is_asked_and_where() {
    const KEYS: [(&str, &str); 3] =
        [("OPENAI_API_KEY", "k1"), ("ANTHROPIC_API_KEY", "k2"), ("OPENROUTER_API_KEY", "k3")];
    let cases: [(&str, Set, Wire, &str, &str); 17] = [
        ("openai:gpt-6-sol", &[], Wire::OpenAiResponses, OPENAI_ADDRESS, "openai:gpt-6-sol"),
        ("gpt-6-sol", &[], Wire::OpenAiResponses, OPENAI_ADDRESS, "openai:gpt-6-sol"),
        ("openai::gpt-6-sol", &[], Wire::OpenAiResponses, OPENAI_ADDRESS, "openai:gpt-6-sol"),
        ("openai-chat:o3", &[], Wire::OpenAiChat, OPENAI_ADDRESS, "openai-chat:o3"),
        ("openai:m", &[("OPENAI_BASE_URL", "http://gw/v1/")], Wire::OpenAiChat, "http://gw/v1", "openai:m"),
        (
            "openai-responses:m",
            &[("OPENAI_BASE_URL", "http://gw")],
            Wire::OpenAiResponses,
            "http://gw",
            "openai-responses:m",
        ),
        (
            "anthropic:claude-sonnet-5-5",
            &[],
            Wire::Anthropic,
            "https://api.anthropic.com",
            "anthropic:claude-sonnet-5-5",
        ),
        ("Anthropic:x", &[("ANTHROPIC_BASE_URL", "https://p")], Wire::Anthropic, "https://p", "anthropic:x"),
        ("ollama:qwen3:8b", &[], Wire::Ollama, "http://127.0.0.1:11434", "ollama:qwen3:8b"),
        (
            "ollama:x",
            &[("OLLAMA_HOST", "gpu:1"), ("OLLAMA_BASE_URL", "http://b:2")],
            Wire::Ollama,
            "http://b:2",
            "ollama:x",
        ),
        ("lm_studio:x", &[], Wire::OpenAiChat, "http://localhost:1234/v1", "lm-studio:x"),
        (
            "lmstudio:x",
            &[("LM_STUDIO_BASE_URL", "http://l/v1")],
            Wire::OpenAiChat,
            "http://l/v1",
            "lm-studio:x",
        ),
        ("openrouter:a/b", &[], Wire::OpenAiChat, "https://openrouter.ai/api/v1", "openrouter:a/b"),
        (
            "openai_compat:x",
            &[("OPENAI_COMPATIBLE_BASE_URL", "http://c/v1")],
            Wire::OpenAiChat,
            "http://c/v1",
            "openai-compatible:x",
        ),
        (
            "openai-compatible:q@http://127.0.0.1:1/v1",
            &[],
            Wire::OpenAiChat,
            "http://127.0.0.1:1/v1",
            "openai-compatible:q@http://127.0.0.1:1/v1",
        ),
        (
            "openai-compatible:@cf/m@https://h/",
            &[],
            Wire::OpenAiChat,
            "https://h",
            "openai-compatible:@cf/m@https://h",
        ),
        (" ollama:x@http://gpu:1 ", &[], Wire::Ollama, "http://gpu:1", "ollama:x@http://gpu:1"),
    ];
    for (name, set, wire, base_url, full_name) in cases {
        let endpoint = resolved(name, &[&KEYS[..], set].concat()).unwrap();
        assert_eq!((endpoint.wire, endpoint.base_url.as_str()), (wire, base_url), "{name}");
        assert_eq!(endpoint.full_name, full_name, "{name}");
    }
}

#[test]
fn a_name_that_means_nothing_is_told_with_the_way_out() {
    let cases: [(&str, Set, &str); 12] = [
        ("opnai:gpt-6-sol", &[], "did you mean openai?"),
        ("gpt:x", &[], "known are: builtin:extractive, openai:gpt-6-sol"),
        ("openai:", &[], "write openai:gpt-6-sol"),
        ("", &[], "names no model"),
        ("script:", &[], "write script:FILE"),
        ("openai:x", &[], "set OPENAI_API_KEY"),
        ("anthropic:x", &[("ANTHROPIC_API_KEY", " ")], "set ANTHROPIC_API_KEY"),
        ("openrouter:x", &[("OPENAI_API_KEY", "k")], "set OPENROUTER_API_KEY"),
        ("openai-compatible:x", &[("OPENAI_API_KEY", "k")], "openai-compatible:x@http://127.0.0.1:8081/v1"),
        ("openai-compatible:x@http://u:geheim@h/v1", &[], "a key belongs into a variable"),
        ("openai-compatible:x@http://h/v1?key=geheim", &[], "a key belongs into a variable"),
        ("lm-studio:x", &[("LM_STUDIO_BASE_URL", "localhost")], "can't be read"),
    ];
    for (name, set, told) in cases {
        let error = resolved(name, set).unwrap_err();
        assert!(error.contains(told), "{name:?} told: {error}");
        assert!(!error.contains("geheim"), "{error}");
    }
}

#[test]
fn keys_come_from_the_provider_s_variable_or_from_the_one_that_is_named() {
    let key = |name: &str, own: Option<&str>, set: &[(&str, &str)]| {
        let settings = Settings { key_variable: own.map(str::to_owned), ..Settings::default() };
        let Named::Model { provider, model, address } = parse(name).unwrap() else { panic!() };
        let chosen = Chosen { name: name.into(), settings };
        let resolved = resolve(&chosen, provider, &model, address, &environment(set));
        resolved.map(|resolved| resolved.endpoint.key.map(|key| key.expose_secret().to_owned()))
    };
    let set = [("OPENAI_API_KEY", "usual"), ("MY_KEY", "own"), ("OPENAI_COMPATIBLE_API_KEY", "gate")];
    assert_eq!(key("openai:x", None, &set).unwrap().as_deref(), Some("usual"));
    assert_eq!(key("openai:x", Some("MY_KEY"), &set).unwrap().as_deref(), Some("own"));
    assert_eq!(key("openai-compatible:x@http://h", None, &set).unwrap().as_deref(), Some("gate"));
    assert_eq!(key("openai-compatible:x@http://h", None, &set[..1]).unwrap(), None);
    assert!(key("ollama:x", Some("NONE"), &set).unwrap_err().to_string().contains("NONE"));
}

#[test]
fn organisation_and_project_go_to_openai_and_to_nobody_else() {
    let set = [
        ("OPENAI_API_KEY", "k"),
        ("OPENAI_ORG_ID", "org"),
        ("OPENAI_PROJECT_ID", "proj"),
        ("OPENROUTER_API_KEY", "k"),
    ];
    let headers = resolved("openai:x", &set).unwrap().settings.extra_headers;
    assert_eq!(headers["OpenAI-Organization"], "org");
    assert_eq!(headers["OpenAI-Project"], "proj");
    assert!(resolved("openrouter:x", &set).unwrap().settings.extra_headers.is_empty());
}

#[test]
fn ollama_s_host_is_read_as_ollama_reads_it() {
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
        assert_eq!(ollama_address(host), address, "{host}");
    }
}

#[test]
fn the_environment_names_a_model_or_none() {
    let choice = |set: &[(&str, &str)]| default_choice(&environment(set)).map(|choice| choice.to_string());
    assert_eq!(choice(&[]), None);
    assert_eq!(choice(&[("OLLAMA_MODEL_NAME", "x")]), None);
    assert_eq!(
        choice(&[("DEEPAGENTS_MODEL_PROVIDER", "ollama")]).as_deref(),
        Some("ollama:qwen3:4b-thinking-2507-q4_K_M")
    );
    let own = [("DEEPAGENTS_MODEL_PROVIDER", "Ollama"), ("OLLAMA_MODEL_NAME", "llama3")];
    assert_eq!(choice(&own).as_deref(), Some("ollama:llama3"));
    let studio = default_choice(&environment(&[("DEEPAGENTS_MODEL_PROVIDER", "lmstudio")])).unwrap();
    assert_eq!(studio.to_string(), "lm-studio:local-model");
    assert_eq!(studio.models[0].settings.max_output_tokens, Some(64_000));
    let odd = choice(&[("DEEPAGENTS_MODEL_PROVIDER", "olama")]).unwrap();
    assert!(parse(&odd).unwrap_err().to_string().contains("did you mean ollama?"));
    let unnamed = choice(&[("DEEPAGENTS_MODEL_PROVIDER", "openai")]).unwrap();
    assert!(parse(&unnamed).unwrap_err().to_string().contains("openai:gpt-6-sol"));
}
