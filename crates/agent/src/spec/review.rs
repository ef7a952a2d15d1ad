//! Reviews as written in files. Capability files and plans share this grammar: it owns the format and its error messages;
//! the protocol and the critics define the meaning.
//!
//! ```yaml
//! review: none                       # results are accepted as they are
//! review: critic                     # a critic, with its own criteria
//! review: {checks: [citations]}      # these checks, without a model
//! review:                            # checks first, then models
//!   criteria: [It names the law.]
//!   checks: [quotations, {matches: "^# "}, {command: [lint, -], timeout: 30s}]
//!   models: [openai:a, ollama:b, anthropic:c]
//!   quorum: 2
//!   sample: 20                       # models judge 20 percent of the results
//!   person: true                     # and then a person, see `person_review`
//! ```

use std::time::Duration;

use millrace_models::ModelSelection;
use millrace_protocol::plan::{ReviewCheck, ReviewPolicy};
use millrace_strict_yaml::{
    FileDuration, ValueMistake, Whole, YamlNode, YamlValue, command_words, one_of, tidy_schema,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::person_review::{PersonForm, Sentence, review_by_persons};
use super::read_json_schema;

/// The maximum timeout of a check's program.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

// The notations of a `ReviewPolicy`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "none, critic, {criteria: […]}, {checks: […]} or {person: true}", rename_all = "lowercase")]
#[schemars(untagged, transform = one_of)]
pub enum ReviewForm {
    Text(ReviewName),
    Map(Box<ReviewFields>),
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReviewName {
    None,
    Critic,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename = "review", deny_unknown_fields)]
#[schemars(transform = tidy_schema, extend("minProperties" = 1))]
pub struct ReviewFields {
    criteria: Option<Vec<Sentence>>,
    checks: Option<Vec<CheckForm>>,
    /// The models that judge, each independently.
    #[serde(default, deserialize_with = "read_models")]
    #[schemars(with = "Option<Vec<Sentence>>", length(min = 1))]
    models: Option<Vec<String>>,
    /// The number of models that must accept it; a majority by default.
    #[schemars(with = "Option<u32>", range(min = 1))]
    quorum: Option<YamlNode>,
    /// The percentage of results that models and persons judge.
    sample: Option<Whole<0, 100>>,
    /// The persons that judge the result after the checks and the critic: true for anyone, a name or role, several, or settings.
    person: Option<PersonForm>,
}

impl TryFrom<ReviewForm> for ReviewPolicy {
    type Error = ValueMistake;

    fn try_from(form: ReviewForm) -> Result<Self, ValueMistake> {
        let ReviewFields { criteria, checks, models, quorum, sample, person } = match form {
            ReviewForm::Text(ReviewName::None) => return Ok(Self::None),
            ReviewForm::Text(ReviewName::Critic) => return Ok(Self::critic(Vec::new())),
            ReviewForm::Map(fields) => *fields,
        };
        let quorum = quorum.map(|quorum| read_quorum(&quorum, models.as_ref())).transpose()?;
        let checks =
            checks.map(|checks| checks.into_iter().map(|CheckForm(check)| check).collect::<Vec<_>>());
        let is_critic = [criteria.is_some(), models.is_some(), quorum.is_some(), sample.is_some()];
        let review = match (checks, is_critic.contains(&true)) {
            (None, false) if person.is_some() => Self::None,
            (None, false) => {
                let text =
                    "a review needs criteria, checks, models or a person; otherwise write none or critic";
                return Err(ValueMistake::sentence(text));
            }
            (Some(checks), false) if checks.is_empty() => {
                let text = "a review without criteria and models needs at least one check";
                return Err(ValueMistake::sentence(text));
            }
            (Some(checks), false) => Self::Checks { checks },
            (checks, true) => Self::Critic {
                criteria: criteria.into_iter().flatten().map(|Sentence(text)| text).collect(),
                checks: checks.unwrap_or_default(),
                models: models.unwrap_or_default(),
                quorum,
                sample_percent: sample.and_then(|percent| u8::try_from(percent.0).ok()),
            },
        };
        match person {
            Some(person) => review_by_persons(person, review).map_err(|why| ValueMistake::at("person", why)),
            None => Ok(review),
        }
    }
}

fn read_quorum(node: &YamlNode, models: Option<&Vec<String>>) -> Result<u32, ValueMistake> {
    let judges = models.map_or(1, Vec::len);
    let expected = match judges {
        1 => "a whole number 1: there is one model".to_owned(),
        _ => format!("a whole number from 1 to {judges}, the number of its models"),
    };
    let number = if let YamlValue::Number(number) = &node.value { number.as_u64() } else { None };
    let number = number.and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (1..=judges).contains(&(*number as usize)));
    number.ok_or_else(|| {
        ValueMistake::at("quorum", format!("\"quorum\" {}", node.mismatch(&expected).predicate()))
    })
}

fn read_models<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename = "model")]
    struct Name(String);
    let names = Vec::<Name>::deserialize(deserializer)?;
    let names: Vec<String> = names.into_iter().map(|Name(name)| name).collect();
    if names.is_empty() {
        let text = "\"models\" must name a model; leave it out to use the critics' own";
        return Err(D::Error::custom(ValueMistake::sentence(text)));
    }
    for (at, name) in names.iter().enumerate() {
        let valid = ModelSelection::parse(name).map_err(|error| error.to_string()).and_then(|selection| {
            crate::model::validate_selection(&selection).map_err(|error| error.to_string())
        });
        valid.map_err(|why| D::Error::custom(ValueMistake::at(at.to_string(), why)))?;
    }
    Ok(Some(names))
}

/// A check as written in files: its name, or a map with its settings.
#[derive(Deserialize)]
#[serde(try_from = "CheckNotation")]
struct CheckForm(ReviewCheck);

#[derive(Deserialize)]
#[serde(
    rename = "citations, quotations, {schema: {…}}, {matches: \"…\"}, {matches_not: \"…\"} or {command: […]}",
    rename_all = "lowercase"
)]
enum CheckNotation {
    Text(CheckName),
    Map(Box<CheckFields>),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum CheckName {
    Citations,
    Quotations,
}

#[derive(Deserialize)]
#[serde(rename = "check", default)]
#[derive(Default)]
struct CheckFields {
    citations: Option<YamlNode>,
    quotations: Option<YamlNode>,
    #[serde(deserialize_with = "read_schema")]
    schema: Option<Value>,
    #[serde(deserialize_with = "read_pattern")]
    matches: Option<String>,
    #[serde(deserialize_with = "read_pattern")]
    matches_not: Option<String>,
    #[serde(deserialize_with = "read_command")]
    command: Option<Vec<String>>,
    #[serde(deserialize_with = "read_timeout")]
    timeout: Option<u32>,
}

impl TryFrom<CheckNotation> for CheckForm {
    type Error = ValueMistake;

    fn try_from(notation: CheckNotation) -> Result<Self, ValueMistake> {
        let fields = match notation {
            CheckNotation::Text(CheckName::Citations) => return Ok(Self(ReviewCheck::Citations)),
            CheckNotation::Text(CheckName::Quotations) => return Ok(Self(ReviewCheck::Quotations)),
            CheckNotation::Map(fields) => *fields,
        };
        let CheckFields { citations, quotations, schema, matches, matches_not, command, timeout } = fields;
        if citations.is_some() || quotations.is_some() {
            let place = if citations.is_some() { "citations" } else { "quotations" };
            let text = "citations and quotations take no settings; write only the name";
            return Err(ValueMistake::at(place, text));
        }
        if timeout.is_some()
            && command.is_none()
            && (schema.is_some() || matches.is_some() || matches_not.is_some())
        {
            let text = "only a check of the kind command has a \"timeout\"";
            return Err(ValueMistake::at("timeout", text));
        }
        match (schema, matches, matches_not, command) {
            (Some(schema), None, None, None) => Ok(Self(ReviewCheck::Schema(schema))),
            (None, Some(pattern), None, None) => Ok(Self(ReviewCheck::Matches(pattern))),
            (None, None, Some(pattern), None) => Ok(Self(ReviewCheck::MatchesNot(pattern))),
            (None, None, None, Some(command)) => {
                Ok(Self(ReviewCheck::Command { command, timeout_s: timeout }))
            }
            _ => {
                let text = "a check is one of schema, matches, matches_not or command";
                Err(ValueMistake::sentence(text))
            }
        }
    }
}

fn read_schema<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    read_json_schema(deserializer).map(Some)
}

fn read_pattern<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Err(D::Error::custom("it must be a regular expression, not the text \"\""));
    }
    crate::critic::checks::compile_regex(&text).map_err(D::Error::custom)?;
    Ok(Some(text))
}

fn read_command<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    let words = command_words(deserializer)?;
    match words.first().is_none_or(String::is_empty) {
        true => Err(D::Error::custom("it must be a list that starts with a program, not a list")),
        false => Ok(Some(words)),
    }
}

/// Reads a timeout in whole seconds, rounded up.
fn read_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let node = YamlNode::deserialize(deserializer)?;
    let FileDuration(timeout) = FileDuration::try_from(node.clone()).map_err(D::Error::custom)?;
    if timeout.is_zero() || timeout > MAX_TIMEOUT {
        return Err(D::Error::custom(node.mismatch("from 1s to 1h")));
    }
    Ok(u32::try_from(timeout.as_millis().div_ceil(1000)).ok())
}

impl JsonSchema for CheckForm {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Check".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let one = |name: &str, value: Value| {
            json_schema!({
                "type": "object",
                "properties": { name: value },
                "required": [name],
                "additionalProperties": false,
            })
        };
        let pattern = serde_json::json!({ "type": "string", "minLength": 1 });
        json_schema!({
            "oneOf": [
                { "enum": ["citations", "quotations"] },
                one("schema", serde_json::json!({ "type": "object" })),
                one("matches", pattern.clone()),
                one("matches_not", pattern),
                {
                    "type": "object",
                    "properties": {
                        "command": {
                            "description": "A program and its arguments. It gets the result as JSON on standard input.",
                            "type": "array",
                            "items": { "type": "string" },
                            "minItems": 1,
                        },
                        "timeout": { "description": "Seconds, or text such as 30s.", "type": ["number", "string"] },
                    },
                    "required": ["command"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use millrace_strict_yaml::{FileDescription, deserialize_field, from_form, parse_yaml};
    use serde_json::json;

    use super::*;

    fn read_review_text(text: &str) -> Result<ReviewPolicy, String> {
        let kind = FileDescription { name: "test", holds: "a review" };
        let root = parse_yaml(text.as_bytes(), kind).map_err(|mistake| mistake.to_string())?;
        let form = deserialize_field(root.child("review").unwrap(), "review");
        form.map(|File(policy)| policy).map_err(|mistakes| mistakes.to_string())
    }

    #[derive(Deserialize)]
    #[serde(transparent)]
    struct File(#[serde(deserialize_with = "from_form::<_, ReviewForm, _>")] ReviewPolicy);

    #[test]
    fn a_review_is_read_as_written() {
        let critic =
            |criteria: &[&str]| ReviewPolicy::critic(criteria.iter().map(|text| (*text).into()).collect());
        for (text, expected) in [
            ("review: none", ReviewPolicy::None),
            ("review: critic", critic(&[])),
            ("review: {criteria: []}", critic(&[])),
            ("review: {criteria: [It is short.]}", critic(&["It is short."])),
            (
                "review: {checks: [citations, quotations]}",
                ReviewPolicy::Checks { checks: vec![ReviewCheck::Citations, ReviewCheck::Quotations] },
            ),
            (
                "review: {sample: 20, checks: [citations]}",
                ReviewPolicy::Critic {
                    criteria: Vec::new(),
                    checks: vec![ReviewCheck::Citations],
                    models: Vec::new(),
                    quorum: None,
                    sample_percent: Some(20),
                },
            ),
            (
                "review: {models: [ollama:a, 'openai:b, ollama:c'], quorum: 2}",
                ReviewPolicy::Critic {
                    criteria: Vec::new(),
                    checks: Vec::new(),
                    models: vec!["ollama:a".into(), "openai:b, ollama:c".into()],
                    quorum: Some(2),
                    sample_percent: None,
                },
            ),
        ] {
            assert_eq!(read_review_text(text).unwrap(), expected, "{text}");
        }
        let text = "review: {checks: [{schema: {type: object}}, {matches: '^#'}, {matches_not: x}, \
                    {command: [a, b], timeout: 1500ms}, {command: [c]}]}";
        let ReviewPolicy::Checks { checks } = read_review_text(text).unwrap() else { panic!("no checks") };
        let command = |words: &[&str], timeout_s| ReviewCheck::Command {
            command: words.iter().map(|word| (*word).into()).collect(),
            timeout_s,
        };
        assert_eq!(
            checks,
            [
                ReviewCheck::Schema(json!({"type": "object"})),
                ReviewCheck::Matches("^#".into()),
                ReviewCheck::MatchesNot("x".into()),
                command(&["a", "b"], Some(2)),
                command(&["c"], None),
            ]
        );
    }

    #[test]
    fn mistakes_of_a_review_name_their_position() {
        for (text, expected) in [
            (
                "review: citic",
                "1:9: \"review\" must be none or critic, not the text \"citic\"; did you mean \"critic\"?",
            ),
            (
                "review: true",
                "1:9: \"review\" must be none, critic, {criteria: […]}, {checks: […]} or {person: true}, not true",
            ),
            (
                "review: {critera: []}",
                "1:10: there is no field \"critera\" in a review; did you mean \"criteria\"?",
            ),
            (
                "review: {}",
                "1:9: a review needs criteria, checks, models or a person; otherwise write none or critic",
            ),
            ("review: {checks: []}", "1:9: a review without criteria and models needs at least one check"),
            ("review: {criteria: [a, '']}", "1:24: \"criteria\" must be a sentence, not the text \"\""),
            (
                "review: {checks: [citation]}",
                "1:19: \"checks\" must be citations or quotations, not the text \"citation\"; did you mean \"citations\"?",
            ),
            (
                "review: {checks: [{citations: {}}]}",
                "1:31: citations and quotations take no settings; write only the name",
            ),
            (
                "review: {checks: [{timeout: 3}]}",
                "1:19: a check is one of schema, matches, matches_not or command",
            ),
            (
                "review: {checks: [{matches: a, matches_not: b}]}",
                "1:19: a check is one of schema, matches, matches_not or command",
            ),
            (
                "review: {checks: [{matches: a, timeout: 3}]}",
                "1:41: only a check of the kind command has a \"timeout\"",
            ),
            ("review: {checks: [{matches: '('}]}", "1:29: \"matches\" is not a valid regular expression: "),
            (
                "review: {checks: [{matches: ''}]}",
                "1:29: \"matches\" must be a regular expression, not the text \"\"",
            ),
            ("review: {checks: [{schema: {type: objct}}]}", "1:28: \"schema\" is not a valid JSON Schema: "),
            (
                "review: {checks: [{command: []}]}",
                "1:29: \"command\" must be a list that starts with a program, not a list",
            ),
            (
                "review: {checks: [{command: [a], timeout: 0}]}",
                "1:43: \"timeout\" must be from 1s to 1h, not the number 0",
            ),
            (
                "review: {checks: [{comand: [a]}]}",
                "1:20: there is no field \"comand\" in a check; did you mean \"command\"?",
            ),
            (
                "review: {models: []}",
                "1:18: \"models\" must name a model; leave it out to use the critics' own",
            ),
            ("review: {models: ['']}", "1:19: "),
            ("review: {models: [nobody:x]}", "1:19: "),
            (
                "review: {models: [ollama:a], quorum: 2}",
                "1:38: \"quorum\" must be a whole number 1: there is one model, not the number 2",
            ),
            (
                "review: {models: [ollama:a, ollama:b], quorum: 0}",
                "1:48: \"quorum\" must be a whole number from 1 to 2, the number of its models, not the number 0",
            ),
            (
                "review: {person: false}",
                "1:18: \"person\" must be true, a name, names or {ask: […]}, not false",
            ),
            ("review: {person: {ask: [ann], quorum: 2}}", "1:18: \"quorum\" must be from 1 to 1: "),
            (
                "review: {person: {on_expiry: fail_task}}",
                "1:18: \"on_expiry\" needs \"expires_s\": the question never expires without it",
            ),
            ("review: {person: {to: ann}}", "1:"),
            ("review: {sample: 101}", "1:18: \"sample\" must be a whole number from 0 to 100"),
        ] {
            let mistake = read_review_text(text).expect_err(text);
            assert!(mistake.starts_with(expected), "{mistake}\n{expected}");
        }
    }

    #[test]
    fn persons_judge_after_the_rest_of_the_review() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        for (text, ask, votes, required) in [
            ("review: {person: true}", names(&[""]), 1, 1),
            ("review: {person: ann}", names(&["ann"]), 1, 1),
            ("review: {person: [ann, legal]}", names(&["ann", "legal"]), 2, 2),
            ("review: {checks: [citations], person: true}", names(&[""]), 1, 1),
            (
                "review: {criteria: [a], person: {ask: [ann, legal], quorum: 1}}",
                names(&["ann", "legal"]),
                3,
                1,
            ),
        ] {
            let ReviewPolicy::Persons(review) = read_review_text(text).unwrap() else { panic!("{text}") };
            assert_eq!((&review.ask, review.vote_count(), review.required_votes()), (&ask, votes, required));
        }
    }

    #[test]
    fn the_schema_rejects_what_the_parser_rejects() {
        let validator = jsonschema::validator_for(&crate::spec::review_schema()).unwrap();
        for (text, is_good) in [
            ("review: none", true),
            ("review: {criteria: [a], checks: [citations, {matches: a}], quorum: 1, sample: 0}", true),
            ("review: {checks: [{command: [a], timeout: 3s}, {schema: {}}]}", true),
            ("review: {models: [ollama:a]}", true),
            ("review: {person: true}", true),
            (
                "review: {criteria: [a], person: {ask: [ann, legal], quorum: 3, expires_s: 60, on_expiry: fail_task}}",
                true,
            ),
            ("review: {person: false}", false),
            ("review: {person: {to: ann}}", false),
            ("review: citic", false),
            ("review: {}", false),
            ("review: {checks: [citation]}", false),
            ("review: {checks: [{citations: {}}]}", false),
            ("review: {checks: [{matches: a, timeout: 3}]}", false),
            ("review: {checks: [{command: []}]}", false),
            ("review: {criteria: ['']}", false),
            ("review: {sample: 101}", false),
        ] {
            let kind = FileDescription { name: "test", holds: "a review" };
            let value = millrace_strict_yaml::parse_yaml(text.as_bytes(), kind).unwrap().to_json();
            assert_eq!(
                (validator.is_valid(&value["review"]), read_review_text(text).is_ok()),
                (is_good, is_good),
                "{text}"
            );
        }
    }
}
