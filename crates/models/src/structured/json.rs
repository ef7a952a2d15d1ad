//! Finds JSON inside the text of a model. It extracts and does not repair.

use std::borrow::Cow;

use millrace_protocol::foreign_json::mend_json_text;
use serde_json::Value;

/// Maximum number of positions tried as the beginning of an object, so that text full of braces takes bounded time.
const MAX_POSITIONS: usize = 200;
const REASONING_TAGS: [(&str, &str); 3] =
    [("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<reasoning>", "</reasoning>")];

/// Removes the reasoning at the beginning of a text. Unterminated reasoning leaves an empty text.
pub fn strip_leading_reasoning(text: &str) -> Cow<'_, str> {
    let trimmed = text.trim_start();
    for (open, close) in REASONING_TAGS {
        if let Some(rest) = trimmed.strip_prefix(open) {
            let after = rest.split_once(close).map_or("", |(_, after)| after);
            return Cow::Owned(after.trim_start().to_owned());
        }
    }
    Cow::Borrowed(text)
}

/// Removes the reasoning at the beginning of a text, even if the chat template swallowed its opening tag; then it must
/// end before the first brace.
pub fn strip_reasoning(text: &str) -> &str {
    let text = text.trim();
    for (open, close) in REASONING_TAGS {
        let opened = text.starts_with(open);
        match text.split_once(close) {
            Some((before, after)) if opened || !before.contains('{') => return after.trim(),
            None if opened => return "",
            Some(_) | None => {}
        }
    }
    text
}

/// Returns the JSON object in a text: the text itself, the last fenced code block that is an object, or the longest
/// object in prose.
pub fn find_json_object(text: &str) -> Option<&str> {
    let text = strip_reasoning(text);
    if is_json_object(text) {
        return Some(text);
    }
    let fenced_blocks = find_fenced_blocks(text)
        .into_iter()
        .rev()
        .map(|block| block.inside)
        .find(|inside| is_json_object(inside));
    fenced_blocks.or_else(|| find_longest_json_object(text))
}

#[derive(Debug, PartialEq, Eq)]
pub struct FencedBlock<'a> {
    pub before: &'a str,
    pub inside: &'a str,
    pub after: &'a str,
}

/// Returns the fenced code blocks of a text in order. An unclosed last one extends to the end.
pub fn find_fenced_blocks(text: &str) -> Vec<FencedBlock<'_>> {
    let mut blocks = Vec::new();
    let mut from = 0;
    while let Some(open) = text[from..].find("```").map(|at| from + at) {
        let Some(line) = text[open + 3..].find('\n').map(|at| open + 3 + at) else {
            break;
        };
        let close = text[line..].find("```").map_or(text.len(), |at| line + at);
        from = (close + 3).min(text.len());
        let (before, after) = (&text[..open], &text[from..]);
        blocks.push(FencedBlock { before, inside: text[line..close].trim(), after });
    }
    blocks
}

/// Parses a text that consists of JSON objects and arrays only.
pub fn parse_json_values(text: &str) -> Option<Vec<Value>> {
    if !text.starts_with(['{', '[']) {
        return None;
    }
    let text = mend_json_text(text.to_owned());
    serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>().ok()
}

fn is_json_object(text: &str) -> bool {
    text.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn find_longest_json_object(text: &str) -> Option<&str> {
    let mut longest: Option<&str> = None;
    let mut from = 0;
    for _ in 0..MAX_POSITIONS {
        let Some(at) = text[from..].find('{').map(|at| from + at) else {
            break;
        };
        let mut stream = serde_json::Deserializer::from_str(&text[at..]).into_iter::<serde::de::IgnoredAny>();
        from = match stream.next() {
            Some(Ok(_)) => at + stream.byte_offset(),
            // An object inside a broken object is not the one we look for.
            Some(Err(mistake)) if at == 0 || mistake.is_eof() => break,
            Some(Err(_)) | None => at + 1,
        };
        let object = &text[at..from];
        if object.len() > 1 && longest.is_none_or(|longest| object.len() > longest.len()) {
            longest = Some(object);
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_extracted_from_the_text_around_it() {
        let cases = [
            (r#"{"a":1}"#, Some(r#"{"a":1}"#)),
            ("  {\"a\":1}\n", Some(r#"{"a":1}"#)),
            ("```json\n{\"a\":1}\n```", Some(r#"{"a":1}"#)),
            ("```\n{\"a\":1}\n```\nThat is it.", Some(r#"{"a":1}"#)),
            ("```json\n{\"a\":1}", Some(r#"{"a":1}"#)),
            ("First ```json\n{\"a\":1}\n``` then\n```json\n{\"a\":2}\n```", Some(r#"{"a":2}"#)),
            ("Here you are: {\"a\":{\"b\":\"}\"}} and {\"c\":1}.", Some(r#"{"a":{"b":"}"}}"#)),
            ("<think>maybe {\"a\":0}</think>\n{\"a\":1}", Some(r#"{"a":1}"#)),
            ("I should answer.\n</think>{\"a\":1}", Some(r#"{"a":1}"#)),
            ("{\"a\":\"</think>\"}", Some(r#"{"a":"</think>"}"#)),
            ("<think>endless {\"a\":0}", None),
            ("{\"a\": 1", None),
            ("{\"a\": {\"b\": 1}, 'c': 2}", None),
            ("Here: {\"a\": {\"b\": 1}, \"c\"", None),
            ("[1, 2]", None),
            ("no braces", None),
            ("", None),
        ];
        for (text, object) in cases {
            assert_eq!(find_json_object(text), object, "{text:?}");
        }
    }

    #[test]
    fn leading_reasoning_is_removed() {
        let cases = [
            ("<think>hm</think>\n\nYes.", "Yes."),
            ("  <thinking>a\nb</thinking>Yes.", "Yes."),
            ("Yes. <think>really?</think>", "Yes. <think>really?</think>"),
            ("The tag </think> ends it.", "The tag </think> ends it."),
            ("<think>never done", ""),
        ];
        for (text, plain) in cases {
            assert_eq!(strip_leading_reasoning(text), plain, "{text:?}");
        }
    }

    #[test]
    fn text_full_of_braces_takes_bounded_time() {
        let text = format!("so {}", "{ ".repeat(2_000_000));
        assert_eq!(find_json_object(&text), None);
    }
}
