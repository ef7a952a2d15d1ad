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
use millrace_strict_yaml::{MappingFields, YamlMistake, YamlNode, YamlValue};
use serde_json::json;

use super::person_review::{person_review_schema, read_person_review};
use super::read_json_schema;

const FIELDS: [&str; 6] = ["criteria", "checks", "models", "quorum", "sample", "person"];
const CHECKS: [&str; 7] =
    ["citations", "quotations", "schema", "matches", "matches_not", "command", "timeout"];
/// The maximum timeout of a check's program.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// Reads a review.
///
/// # Errors
/// The first mistake.
pub fn read_review(node: &YamlNode) -> Result<ReviewPolicy, YamlMistake> {
    match &node.value {
        YamlValue::Text(_) => Ok(match node.index_of_choice("review", &["none", "critic"])? {
            0 => ReviewPolicy::None,
            _ => ReviewPolicy::critic(Vec::new()),
        }),
        YamlValue::Map(_) => read_review_map(node),
        YamlValue::Nothing | YamlValue::Flag(_) | YamlValue::Number(_) | YamlValue::List(_) => {
            Err(node
                .mismatch_error("review", "none, critic, {criteria: […]}, {checks: […]} or {person: true}"))
        }
    }
}

fn read_review_map(node: &YamlNode) -> Result<ReviewPolicy, YamlMistake> {
    let fields = MappingFields::from_node(node, "review", &FIELDS)?;
    let criteria = fields.find_field("criteria").map(read_criteria).transpose()?;
    let checks = fields.find_field("checks").map(read_checks).transpose()?;
    let models = fields.find_field("models").map(read_models).transpose()?;
    let quorum = fields.find_field("quorum").map(|node| read_quorum(node, models.as_ref())).transpose()?;
    let sample_percent = fields.find_field("sample").map(read_sample).transpose()?;
    let is_critic = [criteria.is_some(), models.is_some(), quorum.is_some(), sample_percent.is_some()];
    let person = fields.find_field("person");
    let review = match (checks, is_critic.contains(&true)) {
        (None, false) if person.is_some() => Ok(ReviewPolicy::None),
        (None, false) => Err(YamlMistake::at_position(
            node.position,
            "a review needs criteria, checks, models or a person; otherwise write none or critic",
        )),
        (Some(checks), false) if checks.is_empty() => Err(YamlMistake::at_position(
            node.position,
            "a review without criteria and models needs at least one check",
        )),
        (Some(checks), false) => Ok(ReviewPolicy::Checks { checks }),
        (checks, true) => Ok(ReviewPolicy::Critic {
            criteria: criteria.unwrap_or_default(),
            checks: checks.unwrap_or_default(),
            models: models.unwrap_or_default(),
            quorum,
            sample_percent,
        }),
    }?;
    match person {
        Some(person) => read_person_review(person, review),
        None => Ok(review),
    }
}

fn read_criteria(node: &YamlNode) -> Result<Vec<String>, YamlMistake> {
    let sentence = |item: &YamlNode| match item.parse_text("criteria")? {
        text if text.trim().is_empty() => Err(item.mismatch_error("criteria", "a sentence")),
        text => Ok(text.to_owned()),
    };
    node.parse_list("criteria", "sentences")?.iter().map(sentence).collect()
}

fn read_models(node: &YamlNode) -> Result<Vec<String>, YamlMistake> {
    let items = node.parse_list("models", "models, each as provider:model")?;
    if items.is_empty() {
        return Err(YamlMistake::at_position(
            node.position,
            "\"models\" must name a model; leave it out to use the critics' own",
        ));
    }
    items.iter().map(read_model).collect()
}

fn read_model(item: &YamlNode) -> Result<String, YamlMistake> {
    let name = item.parse_text("models")?;
    let selection = ModelSelection::parse(name)
        .map_err(|error| YamlMistake::at_position(item.position, error.to_string()))?;
    crate::model::validate_selection(&selection)
        .map_err(|error| YamlMistake::at_position(item.position, error.to_string()))?;
    Ok(name.to_owned())
}

fn read_quorum(node: &YamlNode, models: Option<&Vec<String>>) -> Result<u32, YamlMistake> {
    let judges = models.map_or(1, Vec::len);
    let expected = match judges {
        1 => "1: there is one model".to_owned(),
        _ => format!("from 1 to {judges}, the number of its models"),
    };
    match node.parse_integer("quorum", &expected)? {
        quorum if quorum >= 1 && quorum as usize <= judges => Ok(quorum),
        _ => Err(node.mismatch_error("quorum", &format!("a whole number {expected}"))),
    }
}

fn read_sample(node: &YamlNode) -> Result<u8, YamlMistake> {
    const EXPECTED: &str = "from 0 to 100: the percentage of results that models judge";
    let percent =
        u8::try_from(node.parse_integer("sample", EXPECTED)?).ok().filter(|percent| *percent <= 100);
    percent.ok_or_else(|| node.mismatch_error("sample", &format!("a whole number {EXPECTED}")))
}

fn read_checks(node: &YamlNode) -> Result<Vec<ReviewCheck>, YamlMistake> {
    node.parse_list("checks", "checks")?.iter().map(read_check).collect()
}

fn read_check(item: &YamlNode) -> Result<ReviewCheck, YamlMistake> {
    match &item.value {
        YamlValue::Text(_) => Ok(match item.index_of_choice("checks", &CHECKS[..2])? {
            0 => ReviewCheck::Citations,
            _ => ReviewCheck::Quotations,
        }),
        YamlValue::Map(_) => read_check_with_settings(item),
        YamlValue::Nothing | YamlValue::Flag(_) | YamlValue::Number(_) | YamlValue::List(_) => Err(item.mismatch_error(
            "checks",
            "citations, quotations, {schema: {…}}, {matches: \"…\"}, {matches_not: \"…\"} or {command: […]}",
        )),
    }
}

fn read_check_with_settings(item: &YamlNode) -> Result<ReviewCheck, YamlMistake> {
    let fields = MappingFields::from_node(item, "check", &CHECKS)?;
    if let Some(node) = fields.find_field("citations").or_else(|| fields.find_field("quotations")) {
        return Err(YamlMistake::at_position(
            node.position,
            "citations and quotations take no settings; write only the name",
        ));
    }
    let named: Vec<&str> =
        CHECKS[2..6].iter().copied().filter(|name| fields.find_field(name).is_some()).collect();
    let &[name] = named.as_slice() else {
        return Err(YamlMistake::at_position(
            item.position,
            "a check is one of schema, matches, matches_not or command",
        ));
    };
    if let Some(node) = fields.find_field("timeout").filter(|_| name != "command") {
        return Err(YamlMistake::at_position(
            node.position,
            "only a check of the kind command has a \"timeout\"",
        ));
    }
    let node = fields.require_field(name)?;
    Ok(match name {
        "schema" => ReviewCheck::Schema(read_json_schema(node, "schema")?),
        "matches" => ReviewCheck::Matches(read_pattern(node, name)?),
        "matches_not" => ReviewCheck::MatchesNot(read_pattern(node, name)?),
        _ => ReviewCheck::Command {
            command: read_command(node)?,
            timeout_s: fields.find_field("timeout").map(read_timeout).transpose()?,
        },
    })
}

fn read_pattern(node: &YamlNode, name: &str) -> Result<String, YamlMistake> {
    let text = node.parse_text(name)?;
    if text.is_empty() {
        return Err(node.mismatch_error(name, "a regular expression"));
    }
    let expression = crate::critic::checks::compile_regex(text);
    expression.map_err(|error| YamlMistake::at_position(node.position, format!("{name:?}: {error}")))?;
    Ok(text.to_owned())
}

fn read_command(node: &YamlNode) -> Result<Vec<String>, YamlMistake> {
    let words = node.parse_list("command", "words: the program and its arguments")?;
    let words: Vec<String> = words
        .iter()
        .map(|word| Ok(word.parse_text("command")?.to_owned()))
        .collect::<Result<_, YamlMistake>>()?;
    if words.first().is_none_or(String::is_empty) {
        return Err(node.mismatch_error("command", "a list that starts with a program"));
    }
    Ok(words)
}

fn read_timeout(node: &YamlNode) -> Result<u32, YamlMistake> {
    let timeout = node.parse_duration("timeout")?;
    if timeout.is_zero() || timeout > MAX_TIMEOUT {
        return Err(node.mismatch_error("timeout", "from 1s to 1h"));
    }
    // Whole seconds, rounded up.
    Ok(u32::try_from(timeout.as_secs())
        .unwrap_or(u32::MAX)
        .saturating_add(u32::from(timeout.subsec_nanos() > 0)))
}

/// The JSON Schema of a review as written in files.
#[must_use]
pub fn review_schema() -> serde_json::Value {
    let sentences = json!({ "type": "array", "items": { "type": "string", "pattern": "\\S" } });
    let one = |name: &str, value: serde_json::Value| {
        json!({
            "type": "object",
            "properties": { name: value },
            "required": [name],
            "additionalProperties": false,
        })
    };
    let pattern = json!({ "type": "string", "minLength": 1 });
    let command = json!({
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
    });
    let check = json!({
        "oneOf": [
            { "enum": &CHECKS[..2] },
            one("schema", json!({ "type": "object" })),
            one("matches", pattern.clone()),
            one("matches_not", pattern),
            command,
        ],
    });
    json!({
        "description": "The review of a result before it is accepted: none, a critic, checks only, or checks first, then \
                        critics, then persons.",
        "oneOf": [
            { "enum": ["none", "critic"] },
            {
                "type": "object",
                "properties": {
                    "criteria": sentences,
                    "checks": { "type": "array", "items": check },
                    "models": {
                        "description": "The models that judge, each independently.",
                        "type": "array",
                        "items": { "type": "string", "pattern": "\\S" },
                        "minItems": 1,
                    },
                    "quorum": {
                        "description": "The number of models that must accept it; a majority by default.",
                        "type": "integer",
                        "minimum": 1,
                    },
                    "sample": {
                        "description": "The percentage of results that models and persons judge.",
                        "type": "integer",
                        "minimum": 0,
                        "maximum": 100,
                    },
                    "person": person_review_schema(),
                },
                "minProperties": 1,
                "additionalProperties": false,
            },
        ],
    })
}

#[cfg(test)]
mod tests {
    use millrace_strict_yaml::FileDescription;

    use super::*;

    fn read_review_text(text: &str) -> Result<ReviewPolicy, String> {
        let kind = FileDescription { name: "test", holds: "a review" };
        let root =
            millrace_strict_yaml::parse_yaml(text.as_bytes(), kind).map_err(|mistake| mistake.to_string())?;
        let fields = MappingFields::from_node(&root, "test", &["review"]).unwrap();
        read_review(fields.require_field("review").unwrap()).map_err(|mistake| mistake.to_string())
    }

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
            (
                "review: {checks: [{matches: '('}]}",
                "1:29: \"matches\": it is not a valid regular expression: ",
            ),
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
        let validator = jsonschema::validator_for(&review_schema()).unwrap();
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
