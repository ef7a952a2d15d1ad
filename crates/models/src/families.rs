//! What the names of models tell: the size and the ability, the context window, and if they see images and take PDF files. It owns the
//! tables, in which the first match counts; settings and the table of prices take precedence. A name tells the size of most open models
//! (`qwen3:8b`, `mixtral-8x7b`); families decide the rest, and without either it depends on the provider: servers of local models run
//! small ones. Also finds the window in a provider's error message.

use crate::model::ModelAbility;
use crate::selection::MIN_WINDOW;

/// The number of parameters, in billions, from which a model counts as strong.
const STRONG_FROM_BILLIONS: f64 = 20.0;

/// Families whose names do not tell the size, by a part of the name. `gpt-oss` is strong, and `ministral` small.
const ABILITIES: [(ModelAbility, &str); 2] = [
    (ModelAbility::Small, "tinyllama smollm phi- phi3 phi4 gemma ministral"),
    (
        ModelAbility::Strong,
        "gpt-oss gpt- claude gemini grok kimi glm- deepseek-v mistral-large command-r qwen-max",
    ),
];

/// Windows by the beginning of a model's name, without the provider and the maker.
const WINDOWS: [(u64, &str); 12] = [
    (1_047_576, "gpt-4.1"),
    (128_000, "gpt-4o gpt-4-turbo gpt-5-chat o1-mini command-r"),
    (32_768, "gpt-4-32k"),
    (8_192, "gpt-4"),
    (16_385, "gpt-3.5"),
    (400_000, "gpt-5 gpt-6"),
    (131_072, "gpt-oss mistral-large mistral-medium mistral-small deepseek grok-3 kimi-k2 glm-4"),
    (131_072, "llama-3.1 llama-3.3 qwen3"),
    (200_000, "o1 o3 o4-mini claude"),
    (2_097_152, "gemini-1.5-pro"),
    (1_048_576, "gemini"),
    (256_000, "codestral grok-4"),
];

/// Models that see images, or do not, by a part of their names. All others do not.
const SEE_IMAGES: [(bool, &str); 12] = [
    (false, "gpt-3 gpt-oss gpt-4-32k"),
    (true, "gpt-4.1"),
    (false, "gpt-4o-audio"),
    (true, "gpt-4o gpt-4-turbo gpt-5 gpt-6"),
    (false, "o1-mini o3-mini"),
    (true, "o4-mini"),
    (false, "claude-2 claude-instant"),
    (true, "claude"),
    (false, "gemini-embedding"),
    (true, "gemini"),
    (false, "gemma3:1b gemma-3-1b"),
    (
        true,
        "gemma3 gemma-3 gemma-4 grok-4 grok-2-vision pixtral mistral-medium mistral-small llama-4 llama4 llava moondream \
         minicpm-v -vision qwen2.5vl qwen3vl -vl glm-4.5v",
    ),
];
/// Models that see images, by their whole names: the beginnings of others that do not.
const WHOLE_NAMES: [&str; 2] = ["o1", "o3"];

/// Models that see images and take no PDF files, by a part of their names.
const WITHOUT_PDF: [&str; 3] = ["claude-3-haiku", "claude-3-opus", "gpt-4-turbo"];

/// Returns the first value of a table one of whose words matches.
fn find_in<T: Copy>(table: &[(T, &str)], is_match: impl Fn(&str) -> bool) -> Option<T> {
    table.iter().find(|(_, words)| words.split(' ').any(&is_match)).map(|(value, _)| *value)
}

/// Returns the ability of a model by its name without the provider.
pub fn ability_of(model: &str, is_local: bool) -> ModelAbility {
    let name = model.to_lowercase();
    let by_default = if is_local { ModelAbility::Small } else { ModelAbility::Strong };
    match parse_parameter_count(&name) {
        Some(billions) if billions < STRONG_FROM_BILLIONS => ModelAbility::Small,
        Some(_) => ModelAbility::Strong,
        None => find_in(&ABILITIES, |part| name.contains(part)).unwrap_or(by_default),
    }
}

/// Returns the number of parameters in billions that a name contains, such as 8 for `qwen3:8b`, 56 for `mixtral-8x7b` and
/// 0.135 for `smollm2:135m`. `name` is in lowercase.
fn parse_parameter_count(name: &str) -> Option<f64> {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    words.filter_map(parse_size_word).next_back()
}

fn parse_size_word(word: &str) -> Option<f64> {
    // `1m` is the length of a context.
    let (number, unit, least) = match (word.strip_suffix('b'), word.strip_suffix('m')) {
        (Some(number), _) => (number, 1.0, 0.1),
        (None, Some(number)) => (number, 0.001, 0.05),
        (None, None) => return None,
    };
    let (experts, each) = number.split_once('x').unwrap_or(("1", number));
    let has_digits = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_number = [experts, each].iter().all(|text| has_digits(text) && all_digits(text));
    let count =
        is_number.then(|| Some(experts.parse::<f64>().ok()? * each.parse::<f64>().ok()? * unit))??;
    (count >= least).then_some(count)
}

/// Returns the context window of a hosted model by its name without the provider; `None` if it is not known.
pub fn window_of(model: &str) -> Option<u64> {
    let name = model.to_lowercase();
    let own = name.rsplit('/').next().unwrap_or(&name);
    find_in(&WINDOWS, |beginning| own.starts_with(beginning))
}

/// `true` if a model of this name, without the provider, is known to see images.
pub fn sees_images(model: &str) -> bool {
    let name = model.to_lowercase();
    let own = name.rsplit('/').next().unwrap_or(&name);
    if WHOLE_NAMES.iter().any(|whole| own == *whole || own.strip_prefix(whole).is_some_and(is_dated)) {
        return true;
    }
    find_in(&SEE_IMAGES, |part| own.contains(part)).unwrap_or(false)
}

/// `true` if a model of this name takes PDF files at its maker's own API.
pub fn takes_pdf(model: &str) -> bool {
    let name = model.to_lowercase();
    sees_images(&name) && !WITHOUT_PDF.iter().any(|part| name.contains(part))
}

/// `true` for the end of a dated name, such as `-2025-04-16`, or `-pro`.
fn is_dated(rest: &str) -> bool {
    rest == "-pro" || rest.strip_prefix('-').is_some_and(|date| date.starts_with("20"))
}

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
const WORDS_AFTER: [&str; 2] = ["maximum", "tokens maximum"];
const MAX_DISTANCE: usize = 40;

/// Returns the window that a provider's message about an overflow names; `None` if it names none.
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
            ("gpt-4o-mini", Some(128_000)),
            ("gpt-4", Some(8_192)),
            ("anthropic/claude-sonnet-5-5", Some(200_000)),
            ("claude-sonnet-5-5", Some(200_000)),
            ("gemini-1.5-pro", Some(2_097_152)),
            ("grok-4", Some(256_000)),
            ("unheard-of", None),
        ] {
            assert_eq!(window_of(name), window, "{name}");
        }
    }

    #[test]
    fn models_that_see_images_are_known() {
        for (name, sees) in [
            ("gpt-5", true),
            ("gpt-4o-mini", true),
            ("gpt-4", false),
            ("gpt-3.5-turbo", false),
            ("o3", true),
            ("o3-2025-04-16", true),
            ("o3-mini", false),
            ("o1", true),
            ("claude-sonnet-5-5", true),
            ("anthropic/claude-3-haiku", true),
            ("gemini-2.5-pro", true),
            ("qwen3:8b", false),
            ("qwen2.5vl:7b", true),
            ("Qwen/Qwen3-VL-8B-Instruct", true),
            ("llama3.2-vision", true),
            ("gemma3:4b", true),
            ("gemma3:1b", false),
            ("gpt-oss:20b", false),
            ("default", false),
        ] {
            assert_eq!(sees_images(name), sees, "{name}");
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
