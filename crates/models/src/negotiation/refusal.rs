//! Reads the refusal of a request: the sent parameter that it names, and the adaptation. A pure function of the
//! error and the body; `docs/refusals.md` has the table of wordings that it was tried with.

use serde_json::Value;

use super::Adaptation;
use super::parameters::{
    MAX_TOKENS, NAMES_OF_LIMIT, PARAMETERS, RESPONSE_FORMAT, TOOLS, fold, is_conversation, parameter_fields,
    parameter_of_field,
};

/// The error with which a provider refused a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusal<'a> {
    pub(crate) status: Option<u16>,
    /// The parameter that the error names in a field of its own; empty if it has no such field.
    pub(crate) parameter: &'a str,
    /// The codes and types, in lower case.
    pub(crate) codes: &'a str,
    pub(crate) message: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reading {
    /// It refuses this parameter.
    Parameter { name: String, adaptation: Adaptation },
    /// It refuses a part of a message or of a tool.
    PartOfConversation,
    /// It says nothing about a parameter that was sent.
    Unknown,
    /// No other form of the request can help: there is no such model.
    Final,
}

/// Fields that are also plain words: they count where an error marks them as names.
const PLAIN_WORDS: [&str; 9] =
    ["format", "text", "think", "effort", "include", "stream", "store", "reasoning", "functions"];

/// Words before or after a name.
const MARKS: [&str; 8] =
    ["param", "parameter", "parameters", "argument", "field", "property", "option", "key"];

const MODEL_MISSING: &str = "does not exist|not found|not_found|no such model|not a valid model|unknown model|invalid model|\
    model_not_supported|requested model is not supported|no models loaded|failed to load model|model is not available";

/// Words of refusals, for statuses that mean other faults as well.
const REFUSES: &str = "unsupported|not support|n't support|requires|not enabled|not allowed|disabled|unknown|unrecognized|\
    unrecognised|unexpected|not implemented|invalid|not permitted|found that support";

const TOO_LARGE: &str = "too large|too high|too many|exceed|greater than|at most|maximum|range|less than|up to|must be <|larger than";

/// Reads a refusal. `sent` is the body; `refused` are the names of the limit that this call was refused before, if the API has two.
pub(crate) fn read_refusal(refusal: Refusal<'_>, sent: &Value, refused: Option<&[String]>) -> Reading {
    let message = refusal.message.to_lowercase();
    let says = |phrases: &str| phrases.split('|').any(|phrase| message.contains(phrase));
    let is_model_missing = says(MODEL_MISSING) || refusal.codes.contains("model_not");
    if refusal.parameter == "model" {
        return Reading::Final;
    }
    let named = match named_in_field(refusal.parameter, sent) {
        Some(named) => Some(named),
        None => named_in_text(refusal, sent),
    };
    let is_certain = matches!(refusal.status, None | Some(400 | 422)) || says(REFUSES);
    match named {
        Some(Named::Parameter(name)) if is_certain => {
            let text = format!("{message} {}", refusal.parameter.to_lowercase());
            let adaptation = choose_adaptation(&name, &text, sent, refused);
            Reading::Parameter { name, adaptation }
        }
        Some(Named::PartOfConversation) if is_certain && !is_model_missing => Reading::PartOfConversation,
        Some(_) | None if is_model_missing => Reading::Final,
        Some(_) | None => match refusal.status {
            Some(400 | 422) => Reading::Unknown,
            Some(_) | None => Reading::Final,
        },
    }
}

enum Named {
    Parameter(String),
    PartOfConversation,
}

/// Reads the error's own field for the parameter.
fn named_in_field(parameter: &str, sent: &Value) -> Option<Named> {
    (!parameter.is_empty() && !parameter.contains(' ')).then(|| named_by_path(parameter, sent, true))?
}

/// Resolves a path such as `response_format.type` or `tools[0].function`.
fn named_by_path(path: &str, sent: &Value, is_marked: bool) -> Option<Named> {
    let segments: Vec<&str> =
        path.split(['.', '/', '#', '[', ']']).filter(|segment| !segment.is_empty()).collect();
    for (at, segment) in segments.iter().enumerate() {
        let next_is_number =
            segments.get(at + 1).is_some_and(|next| next.bytes().all(|byte| byte.is_ascii_digit()));
        let parameter = sent_parameter(segment, sent);
        if next_is_number && (parameter.is_some() || is_conversation(segment)) {
            return Some(Named::PartOfConversation);
        }
        let is_plain = PLAIN_WORDS.contains(segment) && !is_marked && segments.len() == 1;
        if let Some(name) = parameter.filter(|_| !is_plain) {
            return Some(Named::Parameter(name));
        }
    }
    None
}

/// Returns the parameter that a word names, if it was sent.
fn sent_parameter(word: &str, sent: &Value) -> Option<String> {
    let name = parameter_of_field(word);
    let folded = fold(name);
    let is_same = |field: &&str| parameter_of_field(field) == name || fold(field) == folded;
    parameter_fields(sent).into_iter().find(is_same).map(|field| parameter_of_field(field).to_owned())
}

/// A word of a text that may be the name of a field.
struct Word<'a> {
    text: &'a str,
    is_quoted: bool,
}

fn words_of(text: &str) -> Vec<Word<'_>> {
    let is_part =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$' | '#' | '/' | '[' | ']' | '-');
    let mut words = Vec::new();
    let mut rest = 0;
    while let Some(from) = text[rest..].find(is_part).map(|at| rest + at) {
        let to = text[from..].find(|c| !is_part(c)).map_or(text.len(), |at| from + at);
        let is_quoted = text[..from].ends_with(['\'', '"', '`', '“', '‘']);
        words.push(Word { text: &text[from..to], is_quoted });
        rest = to;
    }
    words
}

/// Finds a name in the text: a quoted or marked name before any other name, and a name before a description.
fn named_in_text(refusal: Refusal<'_>, sent: &Value) -> Option<Named> {
    let text = format!("{} {}", refusal.message, refusal.parameter);
    let words = words_of(&text);
    let is_mark = |at: Option<usize>| {
        let word = at.and_then(|at| words.get(at)).map(|word| word.text.to_ascii_lowercase());
        word.is_some_and(|word| MARKS.contains(&word.trim_matches('.')))
    };
    let mut best: Option<(u8, Named)> = None;
    let mut names = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let is_marked = word.is_quoted || is_mark(at.checked_sub(1)) || is_mark(Some(at + 1));
        let joined = words
            .get(at + 1)
            .filter(|next| !next.is_quoted)
            .map(|next| format!("{}{}", word.text, next.text));
        let by_pair =
            || joined.as_deref().filter(|_| !is_marked).and_then(|pair| named_by_path(pair, sent, false));
        let Some(named) = named_by_path(word.text, sent, is_marked).or_else(by_pair) else { continue };
        let strength = if is_marked { 3 } else { 2 };
        if let Named::Parameter(name) = &named {
            names.push(name.clone());
        }
        if best.as_ref().is_none_or(|(strongest, _)| strength > *strongest) {
            best = Some((strength, named));
        }
    }
    let lower = text.to_lowercase();
    let described = PARAMETERS.iter().filter_map(|parameter| {
        let at = parameter.phrases.iter().filter_map(|phrase| lower.find(phrase)).min()?;
        sent_parameter(parameter.name, sent).map(|name| (at, name))
    });
    let mut described: Vec<(usize, String)> = described.collect();
    described.sort();
    names.extend(described.iter().map(|(_, name)| name.clone()));
    // Tools are worth more than the form of the answer, which a tool can have as well.
    let has = |name: &str| names.iter().any(|named| named == name);
    if has(TOOLS) && has(RESPONSE_FORMAT) {
        return Some(Named::Parameter(RESPONSE_FORMAT.to_owned()));
    }
    best.map(|(_, named)| named)
        .or_else(|| described.into_iter().next().map(|(_, name)| Named::Parameter(name)))
}

fn choose_adaptation(name: &str, text: &str, sent: &Value, refused: Option<&[String]>) -> Adaptation {
    let omit = Adaptation::Omit { parameter: name.to_owned() };
    if name != MAX_TOKENS {
        return omit;
    }
    if let Some(most) = limit_in_text(text, sent) {
        return Adaptation::Limit { parameter: name.to_owned(), most };
    }
    let is_other = |other: &&&str| {
        sent.get(**other).is_none() && refused.is_some_and(|names| names.iter().all(|name| name != **other))
    };
    match NAMES_OF_LIMIT.iter().find(is_other) {
        Some(other) => Adaptation::Rename { parameter: name.to_owned(), to: (*other).to_owned() },
        None => omit,
    }
}

/// Returns the limit of a reply's tokens that a text names: the largest number that is less than the one that was sent.
fn limit_in_text(text: &str, sent: &Value) -> Option<u64> {
    if !TOO_LARGE.split('|').any(|phrase| text.contains(phrase)) && !text.contains(" > ") {
        return None;
    }
    let mut limit = sent.clone();
    let most_sent = std::cell::Cell::new(0);
    super::parameters::for_each_value(&mut limit, MAX_TOKENS, |value| {
        most_sent.set(most_sent.get().max(value.as_u64().unwrap_or(0)));
    });
    let numbers =
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter_map(|word| word.parse().ok());
    numbers.filter(|number| (2..most_sent.get()).contains(number)).max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(status: u16, message: &str, sent: &Value) -> Reading {
        let refusal = Refusal { status: Some(status), parameter: "", codes: "", message };
        read_refusal(refusal, sent, Some(&[]))
    }

    fn body() -> Value {
        json!({"model": "m", "messages": [], "stream": true, "stream_options": {}, "max_tokens": 9_000, "temperature": 0.2,
            "tools": [], "store": false})
    }

    fn named(message: &str) -> Option<String> {
        match read(400, message, &body()) {
            Reading::Parameter { name, .. } => Some(name),
            Reading::PartOfConversation | Reading::Unknown | Reading::Final => None,
        }
    }

    #[test]
    fn a_wording_that_nobody_wrote_yet_is_read_by_the_name_in_it() {
        for name in ["temperature", "max_tokens", "stream_options", "tools", "store"] {
            assert_eq!(named(&format!("Zork! The key '{name}' makes no sense here.")).as_deref(), Some(name));
        }
        assert_eq!(named("The store is closed, stream on.").as_deref(), None, "plain words are no names");
        assert_eq!(named("'top_p' is not known").as_deref(), None, "it was not sent");
    }

    #[test]
    fn a_limit_is_read_where_the_value_is_too_large() {
        let limit = |message: &str| match read(400, message, &body()) {
            Reading::Parameter { adaptation: Adaptation::Limit { most, .. }, .. } => Some(most),
            Reading::Parameter { .. } | Reading::PartOfConversation | Reading::Unknown | Reading::Final => {
                None
            }
        };
        assert_eq!(
            limit("max_tokens: 9000 > 4096, which is the maximum for claude-3-haiku-20240307"),
            Some(4_096)
        );
        assert_eq!(limit("max_tokens must be in the range [1, 8192]"), Some(8_192));
        assert_eq!(limit("extra field max_tokens, input: 800"), None);
    }

    #[test]
    fn other_faults_are_not_about_parameters() {
        let sent = body();
        assert_eq!(read(400, "The model `x` does not exist", &sent), Reading::Final);
        assert_eq!(read(404, "Not here", &sent), Reading::Final);
        assert_eq!(read(500, "tools crashed", &sent), Reading::Final);
        assert_eq!(read(400, "Something is wrong", &sent), Reading::Unknown);
        assert_eq!(read(400, "tools[3].function.parameters: bad", &sent), Reading::PartOfConversation);
        assert_eq!(read(400, "messages.4.content: bad", &sent), Reading::PartOfConversation);
        assert!(matches!(read(500, "Unsupported param: tools", &sent), Reading::Parameter { .. }));
    }
}
