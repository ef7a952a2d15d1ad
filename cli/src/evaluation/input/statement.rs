//! The statements of an evaluation file: facts that an answer should state, and statements that are wrong.

use millrace_strict_yaml::{ValueMistake, one_of, one_or_many, tidy_schema};
use regex::{Regex, RegexBuilder};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::evaluation::wording::{AnswerText, Wording};

/// The maximum size of a compiled pattern in bytes.
const MAX_PATTERN: usize = 1 << 20;

/// A statement: its words, or several spellings of it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(try_from = "StatementForm")]
#[schemars(with = "StatementForm")]
pub struct Statement {
    /// Its name, for people.
    pub name: String,
    spellings: Vec<Spelling>,
}

/// The notations of a [`Statement`].
#[derive(Deserialize, JsonSchema)]
#[serde(
    rename = "text, or a map with any (texts) and pattern (a regular expression)",
    rename_all = "lowercase"
)]
#[schemars(untagged, transform = one_of)]
enum StatementForm {
    Text(String),
    Number(serde_json::Number),
    Map(StatementFields),
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename = "statement")]
#[schemars(inline, deny_unknown_fields, transform = tidy_schema)]
#[schemars(extend("anyOf" = [{ "required": ["any"] }, { "required": ["pattern"] }]))]
struct StatementFields {
    /// Its name in results.
    name: Option<String>,
    /// Spellings, of which one is enough.
    #[serde(default, deserialize_with = "read_texts")]
    #[schemars(with = "Texts")]
    any: Vec<String>,
    /// A regular expression, without case.
    #[serde(default, deserialize_with = "read_pattern")]
    #[schemars(with = "Option<String>")]
    pattern: Option<Regex>,
}

#[derive(Debug, Clone)]
enum Spelling {
    Text(String),
    Pattern(Regex),
    /// The text of an answer, character by character.
    Answer(AnswerText),
}

impl Statement {
    /// The statement of one of these answers to a question about a text; `None` if there is none.
    pub fn of_answers<'a>(answers: impl Iterator<Item = &'a str>, context: &str) -> Option<Self> {
        let context = Wording::read(context);
        let answers: Vec<&str> = answers.filter(|answer| answer.contains(char::is_alphanumeric)).collect();
        let name = (*answers.first()?).to_owned();
        let spelling = |answer: &&str| Spelling::Answer(AnswerText::new(answer, &context));
        Some(Self { name, spellings: answers.iter().map(spelling).collect() })
    }

    /// `true` if a text makes the statement in one of its spellings.
    pub fn is_stated_in(&self, text: &Wording) -> bool {
        self.spellings.iter().any(|spelling| match spelling {
            Spelling::Text(expected) => text.states(&Wording::read(expected)),
            Spelling::Pattern(pattern) => pattern.is_match(text.plain_text()),
            Spelling::Answer(answer) => text.has_answer(answer),
        })
    }

    fn of_text(text: String) -> Result<Self, ValueMistake> {
        match Wording::read(&text).is_empty() {
            true => Err(ValueMistake::sentence(wordless(&text))),
            false => Ok(Self { spellings: vec![Spelling::Text(text.clone())], name: text }),
        }
    }

    /// Its spellings that are texts.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.spellings.iter().filter_map(|spelling| match spelling {
            Spelling::Text(text) => Some(text.as_str()),
            Spelling::Pattern(_) | Spelling::Answer(_) => None,
        })
    }
}

impl TryFrom<StatementForm> for Statement {
    type Error = ValueMistake;

    fn try_from(form: StatementForm) -> Result<Self, ValueMistake> {
        let fields = match form {
            StatementForm::Text(text) => return Self::of_text(text),
            StatementForm::Number(number) => return Self::of_text(number.to_string()),
            StatementForm::Map(fields) => fields,
        };
        if let Some(at) = fields.any.iter().position(|text| Wording::read(text).is_empty()) {
            return Err(ValueMistake::at(format!("any/{at}"), wordless(&fields.any[at])));
        }
        let texts = fields.any.into_iter().map(Spelling::Text);
        let spellings: Vec<Spelling> = texts.chain(fields.pattern.map(Spelling::Pattern)).collect();
        let first = match spellings.first() {
            Some(Spelling::Text(text)) => text.clone(),
            Some(Spelling::Pattern(pattern)) => pattern.as_str().to_owned(),
            Some(Spelling::Answer(_)) | None => {
                let text = "this statement needs \"any\" (texts) or \"pattern\"";
                return Err(ValueMistake::sentence(text));
            }
        };
        Ok(Self { name: fields.name.unwrap_or(first), spellings })
    }
}

fn wordless(text: &str) -> String {
    format!("{text:?} has no word and no number")
}

fn read_pattern<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Regex>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let mistake = |text: String| D::Error::custom(ValueMistake::sentence(text));
    let pattern = RegexBuilder::new(&text).case_insensitive(true).size_limit(MAX_PATTERN).build();
    let pattern = pattern.map_err(|error| {
        let why = error.to_string();
        let why = why.lines().last().unwrap_or(&why).trim_start_matches("error: ").to_owned();
        mistake(format!("{text:?} is not a valid regular expression: {why}"))
    })?;
    if pattern.is_match("") {
        let text = format!("the pattern {text:?} matches an empty text, so every answer would match");
        return Err(mistake(text));
    }
    Ok(Some(pattern))
}

/// Reads the texts of a list, or a single text; none may be empty.
pub fn read_texts<'de, D: Deserializer<'de>, T: From<String>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let texts = one_or_many::<D, FilledText>(deserializer)?;
    Ok(texts.into_iter().map(|FilledText(text)| T::from(text)).collect())
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct FilledText(String);

impl TryFrom<String> for FilledText {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.trim().is_empty() {
            true => Err(format!("it must be text that is not empty, not the text {text:?}")),
            false => Ok(Self(text)),
        }
    }
}

/// The schema of a text or a list of texts.
pub struct Texts;

impl JsonSchema for Texts {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Texts".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "oneOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] })
    }
}
