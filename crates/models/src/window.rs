//! The context windows of models: the most tokens of a request with its reply. It owns the table of known models, the text
//! form of `MILLRACE_CONTEXT_WINDOW`, and the search for a window in a provider's error message. Local servers decide on their
//! windows when they load a model, so that the table has none of theirs.

use crate::provider::{ParsedModelName, parse_model_name};

/// The variable that sets windows: `TOKENS` for all models, or `provider:model=TOKENS`; several are separated by commas.
pub const WINDOW_VARIABLE: &str = "MILLRACE_CONTEXT_WINDOW";
/// The smallest window that can be set: less does not hold a task with its answer.
pub const MIN_WINDOW: u64 = 2_048;

/// Windows by the beginning of a model's name, without the provider and the maker. The first match counts.
const WINDOWS: [(&str, u64); 30] = [
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-4-turbo", 128_000),
    ("gpt-4-32k", 32_768),
    ("gpt-4", 8_192),
    ("gpt-3.5", 16_385),
    ("gpt-5-chat", 128_000),
    ("gpt-5", 400_000),
    ("gpt-6", 400_000),
    ("gpt-oss", 131_072),
    ("o1-mini", 128_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4-mini", 200_000),
    ("claude", 200_000),
    ("gemini-1.5-pro", 2_097_152),
    ("gemini", 1_048_576),
    ("mistral-large", 131_072),
    ("mistral-medium", 131_072),
    ("mistral-small", 131_072),
    ("codestral", 256_000),
    ("deepseek", 131_072),
    ("grok-4", 256_000),
    ("grok-3", 131_072),
    ("kimi-k2", 131_072),
    ("glm-4", 131_072),
    ("command-r", 128_000),
    ("llama-3.1", 131_072),
    ("llama-3.3", 131_072),
    ("qwen3", 131_072),
];

/// The words before a window in the error messages of providers.
const WORDS_BEFORE: [&str; 9] = [
    "maximum context length",
    "context length",
    "context size",
    "context window",
    "context limit",
    "max_model_len",
    "n_ctx",
    "maximum number of tokens allowed",
    "token limit",
];
/// The words directly after a window.
const WORDS_AFTER: [&str; 2] = ["maximum", "tokens maximum"];
/// The most characters between the words and the number.
const MAX_DISTANCE: usize = 40;

/// Returns the window of a model by its full name, `provider:model`; `None` if it is not known.
#[must_use]
pub fn known_window(name: &str) -> Option<u64> {
    let Ok(ParsedModelName::Model { provider, model, address: _ }) = parse_model_name(name) else {
        return None;
    };
    if provider.is_local() {
        return None;
    }
    let model = model.to_lowercase();
    let model = model.rsplit('/').next().unwrap_or(&model);
    WINDOWS.iter().find(|(beginning, _)| model.starts_with(beginning)).map(|(_, window)| *window)
}

/// Returns the window that a value of [`WINDOW_VARIABLE`] sets for a model. An entry for the model takes precedence over one for
/// all models.
///
/// # Errors
/// The first invalid entry, with the valid form.
pub fn parse_window_setting(text: &str, name: &str) -> Result<Option<u64>, String> {
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

/// Returns the window that a provider's message about an overflow names; `None` if it names none.
#[must_use]
pub fn find_window_in_message(message: &str) -> Option<u64> {
    let text = message.to_lowercase();
    let numbers = find_numbers(&text);
    let is_window = |number: u64| number >= MIN_WINDOW / 8;
    let after = WORDS_BEFORE.iter().find_map(|words| {
        let end = text.find(words)? + words.len();
        let near = numbers.iter().find(|(at, _, _)| (end..end + MAX_DISTANCE).contains(at));
        near.map(|(_, _, number)| *number).filter(|number| is_window(*number))
    });
    after.or_else(|| {
        let is_before = |(_, end, number): &&(usize, usize, u64)| {
            is_window(*number) && WORDS_AFTER.iter().any(|words| text[*end..].trim_start().starts_with(words))
        };
        numbers.iter().find(is_before).map(|(_, _, number)| *number)
    })
}

/// The whole numbers in a text: where each begins and ends, and its value. Separators of thousands are not read.
fn find_numbers(text: &str) -> Vec<(usize, usize, u64)> {
    let mut numbers = Vec::new();
    let mut from = 0;
    while let Some(begin) = text[from..].find(|c: char| c.is_ascii_digit()).map(|at| from + at) {
        let length = text[begin..].bytes().take_while(u8::is_ascii_digit).count();
        from = begin + length;
        numbers.extend(text[begin..from].parse().ok().map(|number| (begin, from, number)));
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_known_models_are_in_the_table() {
        for (name, window) in [
            ("openai:gpt-4o-mini", Some(128_000)),
            ("openai:gpt-4", Some(8_192)),
            ("openrouter:anthropic/claude-sonnet-5-5", Some(200_000)),
            ("anthropic:claude-sonnet-5-5", Some(200_000)),
            ("ollama:qwen3:8b", None),
            ("openai-compatible:gpt-4@http://127.0.0.1:1/v1", None),
            ("script:model.yaml", None),
            ("openai:unheard-of", None),
        ] {
            assert_eq!(known_window(name), window, "{name}");
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
    fn window_is_found_in_the_messages_of_providers() {
        for (message, window) in [
            (
                "This model's maximum context length is 4097 tokens. However, you requested 5000 tokens (3000 in the messages, \
                 2000 in the completion).",
                Some(4_097),
            ),
            ("prompt is too long: 208310 tokens > 200000 maximum", Some(200_000)),
            (
                "The input token count (1048577) exceeds the maximum number of tokens allowed (1048575).",
                Some(1_048_575),
            ),
            ("the request exceeds the available context size (8192 tokens), try increasing it", Some(8_192)),
            ("Trying to keep the first 9000 tokens when context the overflows.", None),
            ("input is too long", None),
            ("12 are too many", None),
        ] {
            assert_eq!(find_window_in_message(message), window, "{message}");
        }
    }
}
