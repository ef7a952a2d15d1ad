//! JSON that others wrote: replies of providers and services, messages of MCP servers, output of programs, arguments of models, bodies
//! of API requests. There is one reader for all of it.
//!
//! Others write halves of characters: `"\ud83d"` alone is valid by the grammar of JSON and no text in UTF-8. Half a character becomes
//! U+FFFD, and halves that belong together are joined, also if they are in two events of a stream. Everything else
//! that is not JSON is an error with its line and column.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The replacement of half a character, as an escape.
const REPLACEMENT: &[u8] = b"\\ufffd";
/// The number of bytes of an escape such as `\ud83d`.
const ESCAPE: usize = 6;

/// Parses JSON.
/// Errors: it is not JSON, or has another form; the error names line and column.
pub fn parse_foreign_json<T: DeserializeOwned>(bytes: impl AsRef<[u8]>) -> Result<T, serde_json::Error> {
    let bytes = without_byte_order_mark(bytes.as_ref());
    // Halves of characters are rare: they are only looked for if the text as written is refused.
    serde_json::from_slice(bytes).or_else(|error| match mend_halves(bytes) {
        Cow::Borrowed(_) => Err(error),
        Cow::Owned(mended) => serde_json::from_slice(&mended),
    })
}

/// Returns a text without the byte order mark that some programs write at its beginning.
#[must_use]
pub fn without_byte_order_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes)
}

/// Returns JSON as text with U+FFFD in place of halves of characters, and without a byte order mark.
#[must_use]
pub fn mend_json_text(json: String) -> String {
    match mend_halves(json.as_bytes()) {
        Cow::Borrowed(same) if same.len() == json.len() => json,
        // Escapes are replaced by escapes, so that it stays UTF-8.
        mended @ (Cow::Borrowed(_) | Cow::Owned(_)) => String::from_utf8(mended.into_owned()).unwrap_or(json),
    }
}

/// Returns JSON with U+FFFD in place of halves of characters, and without a byte order mark.
#[must_use]
pub fn mend_halves(bytes: &[u8]) -> Cow<'_, [u8]> {
    let escaped = escape_raw_halves(without_byte_order_mark(bytes));
    let halves = find_halves(&escaped);
    if halves.is_empty() {
        return escaped;
    }
    let mut mended = escaped.into_owned();
    for half in halves {
        mended[half.at..half.at + ESCAPE].copy_from_slice(REPLACEMENT);
    }
    Cow::Owned(mended)
}

/// Writes halves of characters that are encoded as three bytes each, which is not UTF-8, as escapes.
#[must_use]
pub fn escape_raw_halves(bytes: &[u8]) -> Cow<'_, [u8]> {
    let is_raw_half = |at: usize| matches!(bytes.get(at..at + 3), Some([0xED, 0xA0..=0xBF, 0x80..=0xBF]));
    if std::str::from_utf8(bytes).is_ok() || !(0..bytes.len()).any(is_raw_half) {
        return Cow::Borrowed(bytes);
    }
    let mut escaped = Vec::with_capacity(bytes.len() + ESCAPE);
    let mut at = 0;
    while at < bytes.len() {
        if is_raw_half(at) {
            let code = 0xD000 | u32::from(bytes[at + 1] & 0x3F) << 6 | u32::from(bytes[at + 2] & 0x3F);
            escaped.extend_from_slice(format!("\\u{code:04x}").as_bytes());
            at += 3;
        } else {
            escaped.push(bytes[at]);
            at += 1;
        }
    }
    Cow::Owned(escaped)
}

/// Writes halves of characters as escapes in a stream of bytes, wherever its pieces end.
#[derive(Debug, Default)]
pub struct HalfEscaper {
    /// The last bytes, if they may begin half a character.
    kept: Vec<u8>,
}

impl HalfEscaper {
    /// Returns the next piece. Its last two bytes may be kept until the next one.
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.kept.extend_from_slice(piece);
        let end = match self.kept.as_slice() {
            [.., 0xED] => self.kept.len() - 1,
            [.., 0xED, _] => self.kept.len() - 2,
            _ => self.kept.len(),
        };
        let rest = self.kept.split_off(end);
        let whole = std::mem::replace(&mut self.kept, rest);
        match escape_raw_halves(&whole) {
            Cow::Borrowed(_) => whole,
            Cow::Owned(escaped) => escaped,
        }
    }
}

/// An escape of half a character without its other half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Half {
    at: usize,
    is_first: bool,
}

fn find_halves(json: &[u8]) -> Vec<Half> {
    let mut halves = Vec::new();
    let mut at = 0;
    // Backslashes are in strings only.
    while let Some(next) = json[at..].iter().position(|byte| *byte == b'\\') {
        at += next;
        at += match (escaped_unit(json, at), escaped_unit(json, at + ESCAPE)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 2 * ESCAPE,
            (Some(unit @ 0xD800..=0xDFFF), _) => {
                halves.push(Half { at, is_first: unit < 0xDC00 });
                ESCAPE
            }
            (Some(_), _) => ESCAPE,
            (None, _) => 2,
        };
        at = at.min(json.len());
    }
    halves
}

/// Returns the UTF-16 unit of the escape at a position.
fn escaped_unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + ESCAPE)?.strip_prefix(b"\\u")?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    u16::from_str_radix(digits, 16).ok()
}

/// Returns `true` if a string in an event of a stream ends with the first half of a character.
#[must_use]
pub fn ends_within_character(event: &str) -> bool {
    find_open_half(event).is_some()
}

/// Joins a character whose first half ends a string in one event and whose second half begins a string in a later one: all of it is in the first event
/// then. Returns `true` if there is one.
pub fn join_character(event: &mut String, later: &mut String) -> bool {
    let Some(first) = find_open_half(event) else { return false };
    let begins = |half: &Half| !half.is_first && later.as_bytes()[..half.at].ends_with(b"\"");
    let Some(second) = find_halves(later.as_bytes()).into_iter().find(begins) else { return false };
    let half: String = later.drain(second.at..second.at + ESCAPE).collect();
    event.insert_str(first.at + ESCAPE, &half);
    true
}

fn find_open_half(event: &str) -> Option<Half> {
    let ends = |half: &Half| half.is_first && event.as_bytes().get(half.at + ESCAPE) == Some(&b'"');
    find_halves(event.as_bytes()).into_iter().rfind(ends)
}

/// Returns an error of the parser without the names that types have in this program.
#[must_use]
pub fn plain_json_error(error: &str) -> String {
    const KINDS: [(&str, &str); 10] = [
        ("internally tagged enum ", "an object"),
        ("adjacently tagged enum ", "an object"),
        ("untagged enum ", "forms that are possible here"),
        ("struct variant ", "an object"),
        ("tuple variant ", "a list"),
        ("newtype variant ", "a value"),
        ("unit variant ", "a name"),
        ("tuple struct ", "a list"),
        ("struct ", "an object"),
        ("enum ", "one of the names that are possible here"),
    ];
    let numbers = name_number(error);
    let mut plain = String::new();
    let mut rest = numbers.as_deref().unwrap_or(error);
    // Quoted texts are the input, and stay.
    while let Some((kind, at)) =
        KINDS.iter().filter_map(|kind| Some((kind, find_unquoted(rest, kind.0)?))).min_by_key(|(_, at)| *at)
    {
        let after = &rest[at + kind.0.len()..];
        let name = after.find(|c: char| !(c.is_alphanumeric() || "_:<>".contains(c))).unwrap_or(after.len());
        plain.push_str(&rest[..at]);
        plain.push_str(if after[..name].starts_with(|c: char| c.is_ascii_uppercase()) {
            kind.1
        } else {
            kind.0
        });
        rest = if plain.ends_with(kind.1) { &after[name..] } else { after };
    }
    plain + rest
}

/// Replaces the name of a type of numbers.
fn name_number(error: &str) -> Option<String> {
    // The input is before it, in backquotes or quotes.
    let (before, expected) = error.rsplit_once(", expected ")?;
    let name = expected.split(" at line ").next()?;
    Some(format!("{before}, expected {}{}", describe_number_type(name)?, &expected[name.len()..]))
}

/// Describes a type of numbers, such as `u8` or `a nonzero u8`.
#[must_use]
pub fn describe_number_type(name: &str) -> Option<String> {
    let (least, name) = name.strip_prefix("a nonzero ").map_or((0, name), |name| (1, name));
    match name.split_at_checked(1)? {
        ("u", "8") => Some(format!("a whole number from {least} to {}", u8::MAX)),
        ("u", "16") => Some(format!("a whole number from {least} to {}", u16::MAX)),
        ("u", "32" | "64" | "128" | "size") => Some(format!("a whole number of {least} or more")),
        ("i", "8" | "16" | "32" | "64" | "128" | "size") => Some("a whole number".to_owned()),
        ("f", "32" | "64") => Some("a number".to_owned()),
        _ => None,
    }
}

fn find_unquoted(text: &str, word: &str) -> Option<usize> {
    let is_unquoted = |at: usize| text[..at].matches(['"', '`']).count().is_multiple_of(2);
    let begins_word = |at: usize| at == 0 || text[..at].ends_with(' ');
    text.match_indices(word).map(|(at, _)| at).find(|at| is_unquoted(*at) && begins_word(*at))
}

/// Output that may be JSON or text.
#[derive(Debug, Clone, PartialEq)]
pub enum JsonOrText {
    /// JSON.
    Json(Value),
    /// Text that can't be meant as JSON.
    Text(String),
}

/// Parses output that may be JSON or text. It is text only if it can't be meant as an object or a list.
/// Errors: it begins as an object or a list and is none; the error names line and column.
pub fn parse_json_or_text(bytes: &[u8]) -> Result<JsonOrText, String> {
    match parse_foreign_json(bytes) {
        Ok(value) => Ok(JsonOrText::Json(value)),
        Err(error) if is_meant_as_json(bytes, &error) => {
            let hint = if error.is_syntax() { hint_for(bytes, &error) } else { "" };
            Err(format!("begins as JSON and is none: {error}{hint}"))
        }
        Err(_) => {
            let text = String::from_utf8_lossy(bytes);
            Ok(JsonOrText::Text(text.trim_start_matches('\u{feff}').trim().to_owned()))
        }
    }
}

/// Returns what to do about a value that JSON does not have.
fn hint_for(bytes: &[u8], error: &serde_json::Error) -> &'static str {
    let line = bytes.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let rest = &line[error.column().saturating_sub(2).min(line.len())..];
    let rest = rest.trim_ascii_start();
    let names = |word: &str| {
        rest.starts_with(word.as_bytes())
            || rest.get(1..).is_some_and(|rest| rest.starts_with(word.as_bytes()))
    };
    if ["NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"].into_iter().any(names) {
        "; JSON has no NaN and no Infinity: write null, or a text"
    } else if ["None", "True", "False"].into_iter().any(names)
        || rest.starts_with(b"'")
        || rest.get(1..).is_some_and(|rest| rest.starts_with(b"'"))
    {
        "; it looks like a value printed by Python: use json.dumps"
    } else {
        ""
    }
}

fn is_meant_as_json(bytes: &[u8], error: &serde_json::Error) -> bool {
    let text = without_byte_order_mark(bytes).trim_ascii();
    match text {
        [b'{', inside @ ..] => begins_member(inside.trim_ascii_start()),
        [b'[', inside @ ..] => {
            let inside = inside.trim_ascii_start();
            // Brackets are common in prose, such as [1] or [x]; so a list of other elements than objects must end as one, too.
            let ends = || text.ends_with(b"]") && !error.to_string().starts_with("trailing characters");
            begins_element(inside) && (inside.starts_with(b"{") || ends())
        }
        _ => false,
    }
}

/// Returns `true` if the inside of braces begins like a member of an object, or is empty or a comment: `{name} is` is prose.
fn begins_member(inside: &[u8]) -> bool {
    match inside {
        [] | [b'"' | b'\'' | b'}' | b',' | b'/' | b'#', ..] => true,
        _ => {
            let is_name =
                |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(**byte, b'_' | b'$' | b'.' | b'-');
            let name = inside.iter().take_while(is_name).count();
            name > 0 && inside[name..].trim_ascii_start().starts_with(b":")
        }
    }
}

fn begins_element(inside: &[u8]) -> bool {
    match inside {
        [b'{', inside @ ..] => begins_member(inside.trim_ascii_start()),
        [b'[', inside @ ..] => begins_element(inside.trim_ascii_start()),
        [b'"' | b'\'', ..] => true,
        _ => {
            let is_word = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(**byte, b'-' | b'+' | b'.');
            let (word, rest) = inside.split_at(inside.iter().take_while(is_word).count());
            let word = std::str::from_utf8(word).unwrap_or_default();
            let is_value = word.parse::<f64>().is_ok()
                || matches!(word, "null" | "true" | "false" | "None" | "True" | "False");
            is_value && matches!(rest.trim_ascii_start(), [] | [b',' | b']', ..])
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn halves_of_characters_are_replaced_and_joined() {
        for (text, expected) in [
            (&br#""hello \ud83d world""#[..], json!("hello \u{fffd} world")),
            (br#""\ude00\ud83d""#, json!("\u{fffd}\u{fffd}")),
            (br#""\uD83D\uDE00 \ud83d\ude00""#, json!("\u{1f600} \u{1f600}")),
            (br#""\ud83d\ud83d\ude00""#, json!("\u{fffd}\u{1f600}")),
            (br#""\ud83dx\ude00""#, json!("\u{fffd}x\u{fffd}")),
            (
                br#"{"\ud800": ["\udfff", {"a": "\udbff"}]}"#,
                json!({"\u{fffd}": ["\u{fffd}", {"a": "\u{fffd}"}]}),
            ),
            (br#""\\ud83d \\\ud83d""#, json!("\\ud83d \\\u{fffd}")),
            (b"\"a\xED\xA0\xBDb\xED\xA0\xBD\xED\xB8\x80c\"", json!("a\u{fffd}b\u{1f600}c")),
            (b"\xEF\xBB\xBF{\"a\": \"\\ud83d\"}", json!({"a": "\u{fffd}"})),
        ] {
            assert_eq!(
                parse_foreign_json::<Value>(text).unwrap(),
                expected,
                "{}",
                String::from_utf8_lossy(text)
            );
        }
        for text in [
            &b"\"\xff\""[..],
            br#""\ud83d"#,
            br#""\ud8""#,
            br#"{"a": "\ud83d", "b": NaN}"#,
            br#""\ud83d" x"#,
            b"",
        ] {
            let error = parse_foreign_json::<Value>(text).unwrap_err().to_string();
            assert!(error.contains(" at line 1 column "), "{error}");
        }
    }

    #[test]
    fn errors_name_no_types_of_this_program() {
        for (error, plain) in [
            (
                "invalid type: integer `5`, expected struct PlanInput at line 1 column 9",
                "invalid type: integer `5`, expected an object at line 1 column 9",
            ),
            (
                "data did not match any variant of untagged enum RequestedWait",
                "data did not match any variant of forms that are possible here",
            ),
            (
                "invalid type: string \"struct Foo\", expected struct variant Step::Model",
                "invalid type: string \"struct Foo\", expected an object",
            ),
            (
                "invalid length 1, expected struct Limits with 3 elements",
                "invalid length 1, expected an object with 3 elements",
            ),
            ("expected internally tagged enum Condition", "expected an object"),
            (
                "invalid value: integer `-1`, expected u32 at line 2 column 3",
                "invalid value: integer `-1`, expected a whole number of 0 or more at line 2 column 3",
            ),
            (
                "invalid value: integer `0`, expected a nonzero u16",
                "invalid value: integer `0`, expected a whole number from 1 to 65535",
            ),
            (
                "invalid type: string \", expected u8\", expected a map",
                "invalid type: string \", expected u8\", expected a map",
            ),
            ("invalid type: map, expected f64", "invalid type: map, expected a number"),
            ("a struct with fields", "a struct with fields"),
            ("expected value at line 1 column 2", "expected value at line 1 column 2"),
        ] {
            assert_eq!(plain_json_error(error), plain);
        }
    }

    #[test]
    fn a_character_in_two_events_is_joined() {
        let join = |first: &str, later: &str| {
            let (mut first, mut later) = (first.to_owned(), later.to_owned());
            join_character(&mut first, &mut later).then(|| {
                (parse_foreign_json::<Value>(&first).unwrap(), parse_foreign_json::<Value>(&later).unwrap())
            })
        };
        assert_eq!(
            join(r#"{"d": "a \ud83d", "n": 1}"#, r#"{"d": "\ude00 b", "n": 2}"#),
            Some((json!({"d": "a \u{1f600}", "n": 1}), json!({"d": " b", "n": 2})))
        );
        assert_eq!(join(r#"{"d": "\ud83d x"}"#, r#"{"d": "\ude00"}"#), None);
        assert_eq!(join(r#"{"d": "\ud83d"}"#, r#"{"d": "x \ude00"}"#), None);
        assert_eq!(join(r#"{"d": "\\ud83d"}"#, r#"{"d": "\ude00"}"#), None, "a backslash and text");
        assert!(
            ends_within_character(r#"{"d": "x\ud83d"}"#)
                && !ends_within_character(r#"{"d": "\ud83d\ude00"}"#)
        );
    }

    #[test]
    fn output_is_text_only_if_it_cannot_be_meant_as_json() {
        for text in [
            r#"{"wait_for": {"go": {"approve": {"action": "deploy", "arguments": {"x": NaN}}}}}"#,
            r#"{"output": "x", "data": {"mean": -Infinity}}"#,
            "{'output': 'x'}",
            "{output: \"x\"}",
            "{\"output\": \"x\",}",
            "{\"output\": \"x\"} done",
            "{\"a\": 1}\n{\"a\": 2}",
            "{\"output\": \"x",
            "{\n  // a comment\n  \"output\": 1\n}",
            "{1: 'a'}",
            "{",
            "\u{feff}{\"a\": nan}",
            "[1, NaN]",
            "[{'a': 1}]",
            "[\"a\",]",
            "[{\"a\": 1}, {\"b",
            "[ { \"a\": 1 }\n] done",
        ] {
            let error = parse_json_or_text(text.as_bytes()).unwrap_err();
            assert!(error.contains(" line ") && error.contains(" column "), "{text}: {error}");
        }
        for text in [
            "plain",
            "{name} is missing",
            "{{ template }}",
            "{curly braces} in prose",
            "{ return 1; }",
            "[x] done",
            "[1] Smith, 2020",
            "[INFO] started",
            "[link](https://example.org)",
            "[2026-11-28 10:00]",
            "[a]",
            "Result: {\"a\": NaN}",
            "NaN",
            "",
        ] {
            assert_eq!(parse_json_or_text(text.as_bytes()).unwrap(), JsonOrText::Text(text.into()), "{text}");
        }
        assert_eq!(parse_json_or_text(b" [1, 2]\n").unwrap(), JsonOrText::Json(json!([1, 2])));
        assert_eq!(
            parse_json_or_text(b"\xEF\xBB\xBF{\"a\": \"\\ud83d\"}").unwrap(),
            JsonOrText::Json(json!({"a": "\u{fffd}"}))
        );
    }

    #[test]
    fn values_that_json_does_not_have_are_explained() {
        let error = |text: &str| parse_json_or_text(text.as_bytes()).unwrap_err();
        assert!(
            error("{\"a\":\n  [1, NaN]}").contains("at line 2 column 7; JSON has no NaN"),
            "{}",
            error("{\"a\":\n  [1, NaN]}")
        );
        assert!(error("{\"a\": -Infinity}").contains("JSON has no NaN"), "{}", error("{\"a\": -Infinity}"));
        assert!(error("{'a': 1}").contains("json.dumps"), "{}", error("{'a': 1}"));
        assert!(error("{\"a\": None}").contains("json.dumps"), "{}", error("{\"a\": None}"));
    }

    proptest! {
        /// JSON in which characters are written as escapes, with some halves cut away, is read; what is whole stays.
        #[test]
        fn any_text_is_read_whatever_halves_are_missing(text: String, cut: Vec<bool>) {
            let units: Vec<u16> = text.encode_utf16().collect();
            let mut cuts = cut.into_iter().chain(std::iter::repeat(false));
            let kept: Vec<u16> = units.into_iter().filter(|unit| !((0xD800..0xE000).contains(unit) && cuts.next() == Some(true))).collect();
            let escaped: String = kept.iter().map(|unit| format!("\\u{unit:04x}")).collect();
            let read: String = parse_foreign_json(format!("\"{escaped}\"")).unwrap();
            prop_assert_eq!(read, String::from_utf16_lossy(&kept));
        }

        #[test]
        fn json_is_read_as_it_is(text: String) {
            let json = json!({ "a": [text] });
            prop_assert_eq!(parse_foreign_json::<Value>(json.to_string()).unwrap(), json.clone());
            prop_assert_eq!(mend_json_text(json.to_string()), json.to_string());
        }
    }
}
