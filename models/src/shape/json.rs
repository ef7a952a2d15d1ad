//! JSON in the middle of what a model says. It finds and cuts; it mends nothing.

use std::borrow::Cow;

use serde_json::Value;

/// How many places where an object could begin are tried; prose full of braces is no reason to read it for ever.
const MAX_TRIES: usize = 200;
/// The tags that models put around their thoughts.
const THOUGHTS: [(&str, &str); 3] =
    [("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<reasoning>", "</reasoning>")];

/// The text behind a model's thoughts, where it begins with them. Thoughts that do not end leave nothing.
#[must_use]
pub fn without_leading_thoughts(text: &str) -> Cow<'_, str> {
    let trimmed = text.trim_start();
    for (open, close) in THOUGHTS {
        if let Some(rest) = trimmed.strip_prefix(open) {
            let after = rest.split_once(close).map_or("", |(_, after)| after);
            return Cow::Owned(after.trim_start().to_owned());
        }
    }
    Cow::Borrowed(text)
}

/// The text behind a model's thoughts, also where its template has swallowed the tag they begin with: then they end
/// before the first brace.
#[must_use]
pub fn without_thoughts(text: &str) -> &str {
    let text = text.trim();
    for (open, close) in THOUGHTS {
        let opened = text.starts_with(open);
        match text.split_once(close) {
            Some((before, after)) if opened || !before.contains('{') => return after.trim(),
            None if opened => return "",
            Some(_) | None => {}
        }
    }
    text
}

/// The JSON object that a text holds: the text itself, the last fenced block that is one, or the longest one that
/// stands in prose.
#[must_use]
pub fn object_in(text: &str) -> Option<&str> {
    let text = without_thoughts(text);
    if is_object(text) {
        return Some(text);
    }
    let fenced = fenced(text).into_iter().rev().map(|block| block.inside).find(|inside| is_object(inside));
    fenced.or_else(|| longest_object(text))
}

/// A fenced block of a text.
#[derive(Debug, PartialEq, Eq)]
pub struct Fenced<'a> {
    /// What stands before it.
    pub before: &'a str,
    /// What it holds, trimmed.
    pub inside: &'a str,
    /// What stands behind it.
    pub after: &'a str,
}

/// The fenced blocks of a text, in their order. A last one that is not closed goes to the end.
#[must_use]
pub fn fenced(text: &str) -> Vec<Fenced<'_>> {
    let mut blocks = Vec::new();
    let mut from = 0;
    while let Some(open) = text[from..].find("```").map(|at| from + at) {
        let Some(line) = text[open + 3..].find('\n').map(|at| open + 3 + at) else {
            break;
        };
        let close = text[line..].find("```").map_or(text.len(), |at| line + at);
        from = (close + 3).min(text.len());
        let (before, after) = (&text[..open], &text[from..]);
        blocks.push(Fenced { before, inside: text[line..close].trim(), after });
    }
    blocks
}

/// The values that a text consists of, if it consists of JSON objects and arrays and nothing else.
#[must_use]
pub fn values(text: &str) -> Option<Vec<Value>> {
    if !text.starts_with(['{', '[']) {
        return None;
    }
    serde_json::Deserializer::from_str(text).into_iter().collect::<Result<_, _>>().ok()
}

fn is_object(text: &str) -> bool {
    text.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn longest_object(text: &str) -> Option<&str> {
    let mut found: Option<&str> = None;
    let mut from = 0;
    for _ in 0..MAX_TRIES {
        let Some(at) = text[from..].find('{').map(|at| from + at) else {
            break;
        };
        let mut stream = serde_json::Deserializer::from_str(&text[at..]).into_iter::<serde::de::IgnoredAny>();
        from = match stream.next() {
            Some(Ok(_)) => at + stream.byte_offset(),
            // What stands inside of an object that is broken is not the object.
            Some(Err(mistake)) if at == 0 || mistake.is_eof() => break,
            Some(Err(_)) | None => at + 1,
        };
        let object = &text[at..from];
        if object.len() > 1 && found.is_none_or(|longest| object.len() > longest.len()) {
            found = Some(object);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cut_out_of_what_stands_around_it() {
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
            assert_eq!(object_in(text), object, "{text:?}");
        }
    }

    #[test]
    fn thoughts_at_the_beginning_of_a_text_are_no_part_of_it() {
        let cases = [
            ("<think>hm</think>\n\nYes.", "Yes."),
            ("  <thinking>a\nb</thinking>Yes.", "Yes."),
            ("Yes. <think>really?</think>", "Yes. <think>really?</think>"),
            ("The tag </think> ends it.", "The tag </think> ends it."),
            ("<think>never done", ""),
        ];
        for (text, plain) in cases {
            assert_eq!(without_leading_thoughts(text), plain, "{text:?}");
        }
    }

    #[test]
    fn prose_full_of_braces_is_not_read_for_ever() {
        let text = format!("so {}", "{ ".repeat(2_000_000));
        assert_eq!(object_in(&text), None);
    }
}
