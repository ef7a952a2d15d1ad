//! How results are judged, as files say it. One grammar serves capability files and plans: it owns the words and their
//! mistakes; what they mean is the protocol's and the critics'.
//!
//! ```yaml
//! review: none                       # as it comes
//! review: critic                     # a critic, by its own criteria
//! review: {checks: [citations]}      # these checks, and no model
//! review:                            # checks first, then models
//!   criteria: [It names the law.]
//!   checks: [quotations, {matches: "^# "}, {command: [lint, -], timeout: 30s}]
//!   models: [openai:a, ollama:b, anthropic:c]
//!   quorum: 2
//!   sample: 20                       # of a hundred results, how many models judge
//! ```

use std::time::Duration;

use millrace_forms::{Fields, Mistake, Node, Value};
use millrace_models::Choice;
use millrace_protocol::plan::{Review, ReviewCheck};
use serde_json::json;

use super::json_schema;

const FIELDS: [&str; 5] = ["criteria", "checks", "models", "quorum", "sample"];
const CHECKS: [&str; 7] =
    ["citations", "quotations", "schema", "matches", "matches_not", "command", "timeout"];
/// How long the program of a check may take at most.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// Reads a review.
///
/// # Errors
/// The first mistake in it.
pub fn review(node: &Node) -> Result<Review, Mistake> {
    match &node.value {
        Value::Text(_) => Ok(match node.choice("review", &["none", "critic"])? {
            0 => Review::None,
            _ => Review::critic(Vec::new()),
        }),
        Value::Map(_) => of_map(node),
        Value::Nothing | Value::Flag(_) | Value::Number(_) | Value::List(_) => {
            Err(node.not("review", "none, critic, {criteria: […]} or {checks: […]}"))
        }
    }
}

fn of_map(node: &Node) -> Result<Review, Mistake> {
    let fields = Fields::of(node, "review", &FIELDS)?;
    let criteria = fields.get("criteria").map(criteria).transpose()?;
    let checks = fields.get("checks").map(checks).transpose()?;
    let models = fields.get("models").map(models).transpose()?;
    let quorum = fields.get("quorum").map(|node| quorum(node, models.as_ref())).transpose()?;
    let sample_percent = fields.get("sample").map(sample).transpose()?;
    let is_critic = [criteria.is_some(), models.is_some(), quorum.is_some(), sample_percent.is_some()];
    match (checks, is_critic.contains(&true)) {
        (None, false) => {
            Err(Mistake::at(node.place, "a review has criteria, checks or models; write none or critic else"))
        }
        (Some(checks), false) if checks.is_empty() => {
            Err(Mistake::at(node.place, "a review without criteria and models has one check or more"))
        }
        (Some(checks), false) => Ok(Review::Checks { checks }),
        (checks, true) => Ok(Review::Critic {
            criteria: criteria.unwrap_or_default(),
            checks: checks.unwrap_or_default(),
            models: models.unwrap_or_default(),
            quorum,
            sample_percent,
        }),
    }
}

fn criteria(node: &Node) -> Result<Vec<String>, Mistake> {
    let sentence = |item: &Node| match item.text("criteria")? {
        text if text.trim().is_empty() => Err(item.not("criteria", "a sentence")),
        text => Ok(text.to_owned()),
    };
    node.list("criteria", "sentences")?.iter().map(sentence).collect()
}

fn models(node: &Node) -> Result<Vec<String>, Mistake> {
    let items = node.list("models", "models, each as provider:model")?;
    if items.is_empty() {
        return Err(Mistake::at(
            node.place,
            "\"models\" must name a model; leave it out for the critics' own",
        ));
    }
    items.iter().map(model).collect()
}

fn model(item: &Node) -> Result<String, Mistake> {
    let name = item.text("models")?;
    let choice = Choice::parse(name).map_err(|error| Mistake::at(item.place, error.to_string()))?;
    crate::model::check(&choice).map_err(|error| Mistake::at(item.place, error.to_string()))?;
    Ok(name.to_owned())
}

fn quorum(node: &Node, models: Option<&Vec<String>>) -> Result<u32, Mistake> {
    let judges = models.map_or(1, Vec::len);
    let expected = match judges {
        1 => "1: one model judges".to_owned(),
        _ => format!("from 1 to {judges}, the number of its models"),
    };
    match node.whole("quorum", &expected)? {
        quorum if quorum >= 1 && quorum as usize <= judges => Ok(quorum),
        _ => Err(node.not("quorum", &format!("a whole number {expected}"))),
    }
}

fn sample(node: &Node) -> Result<u8, Mistake> {
    const EXPECTED: &str = "from 0 to 100: of a hundred results, how many models judge";
    let percent = u8::try_from(node.whole("sample", EXPECTED)?).ok().filter(|percent| *percent <= 100);
    percent.ok_or_else(|| node.not("sample", &format!("a whole number {EXPECTED}")))
}

fn checks(node: &Node) -> Result<Vec<ReviewCheck>, Mistake> {
    node.list("checks", "checks")?.iter().map(check).collect()
}

fn check(item: &Node) -> Result<ReviewCheck, Mistake> {
    match &item.value {
        Value::Text(_) => Ok(match item.choice("checks", &CHECKS[..2])? {
            0 => ReviewCheck::Citations,
            _ => ReviewCheck::Quotations,
        }),
        Value::Map(_) => with_settings(item),
        Value::Nothing | Value::Flag(_) | Value::Number(_) | Value::List(_) => Err(item.not(
            "checks",
            "citations, quotations, {schema: {…}}, {matches: \"…\"}, {matches_not: \"…\"} or {command: […]}",
        )),
    }
}

fn with_settings(item: &Node) -> Result<ReviewCheck, Mistake> {
    let fields = Fields::of(item, "check", &CHECKS)?;
    if let Some(node) = fields.get("citations").or_else(|| fields.get("quotations")) {
        return Err(Mistake::at(
            node.place,
            "citations and quotations have no settings; write the name alone",
        ));
    }
    let named: Vec<&str> = CHECKS[2..6].iter().copied().filter(|name| fields.get(name).is_some()).collect();
    let &[name] = named.as_slice() else {
        return Err(Mistake::at(item.place, "a check is one of schema, matches, matches_not or command"));
    };
    if let Some(node) = fields.get("timeout").filter(|_| name != "command") {
        return Err(Mistake::at(node.place, "only a check of the kind command has a \"timeout\""));
    }
    let node = fields.required(name)?;
    Ok(match name {
        "schema" => ReviewCheck::Schema(json_schema(node, "schema")?),
        "matches" => ReviewCheck::Matches(pattern(node, name)?),
        "matches_not" => ReviewCheck::MatchesNot(pattern(node, name)?),
        _ => ReviewCheck::Command {
            command: command(node)?,
            timeout_s: fields.get("timeout").map(timeout).transpose()?,
        },
    })
}

fn pattern(node: &Node, name: &str) -> Result<String, Mistake> {
    let text = node.text(name)?;
    if text.is_empty() {
        return Err(node.not(name, "a regular expression"));
    }
    let expression = crate::critic::checks::expression(text);
    expression.map_err(|error| Mistake::at(node.place, format!("{name:?}: {error}")))?;
    Ok(text.to_owned())
}

fn command(node: &Node) -> Result<Vec<String>, Mistake> {
    let words = node.list("command", "words: the program and its arguments")?;
    let words: Vec<String> =
        words.iter().map(|word| Ok(word.text("command")?.to_owned())).collect::<Result<_, Mistake>>()?;
    if words.first().is_none_or(String::is_empty) {
        return Err(node.not("command", "a list that begins with a program"));
    }
    Ok(words)
}

fn timeout(node: &Node) -> Result<u32, Mistake> {
    let timeout = node.duration("timeout")?;
    if timeout.is_zero() || timeout > MAX_TIMEOUT {
        return Err(node.not("timeout", "from 1s to 1h"));
    }
    // Whole seconds, rounded up.
    Ok(u32::try_from(timeout.as_secs())
        .unwrap_or(u32::MAX)
        .saturating_add(u32::from(timeout.subsec_nanos() > 0)))
}

/// The JSON Schema of a review, as files write it.
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
                "description": "A program and its arguments. It gets the result as JSON on its standard input.",
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
        "description": "How a result is judged before it is accepted: not at all, by a critic, by checks alone, or by \
                        checks first and then by critics.",
        "oneOf": [
            { "enum": ["none", "critic"] },
            {
                "type": "object",
                "properties": {
                    "criteria": sentences,
                    "checks": { "type": "array", "items": check },
                    "models": {
                        "description": "The models that judge, each by itself.",
                        "type": "array",
                        "items": { "type": "string", "pattern": "\\S" },
                        "minItems": 1,
                    },
                    "quorum": {
                        "description": "How many of the models must accept it; more than half, if left out.",
                        "type": "integer",
                        "minimum": 1,
                    },
                    "sample": {
                        "description": "Of a hundred results, how many models judge.",
                        "type": "integer",
                        "minimum": 0,
                        "maximum": 100,
                    },
                },
                "minProperties": 1,
                "additionalProperties": false,
            },
        ],
    })
}

#[cfg(test)]
mod tests {
    use millrace_forms::Kind;

    use super::*;

    fn read(text: &str) -> Result<Review, String> {
        let kind = Kind { name: "test", holds: "a review" };
        let root = millrace_forms::read(text.as_bytes(), kind).map_err(|mistake| mistake.to_string())?;
        let fields = Fields::of(&root, "test", &["review"]).unwrap();
        review(fields.required("review").unwrap()).map_err(|mistake| mistake.to_string())
    }

    #[test]
    fn a_review_is_read_as_it_is_written() {
        let critic = |criteria: &[&str]| Review::critic(criteria.iter().map(|text| (*text).into()).collect());
        for (text, expected) in [
            ("review: none", Review::None),
            ("review: critic", critic(&[])),
            ("review: {criteria: []}", critic(&[])),
            ("review: {criteria: [It is short.]}", critic(&["It is short."])),
            (
                "review: {checks: [citations, quotations]}",
                Review::Checks { checks: vec![ReviewCheck::Citations, ReviewCheck::Quotations] },
            ),
            (
                "review: {sample: 20, checks: [citations]}",
                Review::Critic {
                    criteria: Vec::new(),
                    checks: vec![ReviewCheck::Citations],
                    models: Vec::new(),
                    quorum: None,
                    sample_percent: Some(20),
                },
            ),
            (
                "review: {models: [ollama:a, 'openai:b, ollama:c'], quorum: 2}",
                Review::Critic {
                    criteria: Vec::new(),
                    checks: Vec::new(),
                    models: vec!["ollama:a".into(), "openai:b, ollama:c".into()],
                    quorum: Some(2),
                    sample_percent: None,
                },
            ),
        ] {
            assert_eq!(read(text).unwrap(), expected, "{text}");
        }
        let text = "review: {checks: [{schema: {type: object}}, {matches: '^#'}, {matches_not: x}, \
                    {command: [a, b], timeout: 1500ms}, {command: [c]}]}";
        let Review::Checks { checks } = read(text).unwrap() else { panic!("no checks") };
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
    fn every_mistake_of_a_review_is_told_with_its_place() {
        for (text, expected) in [
            (
                "review: citic",
                "1:9: \"review\" must be none or critic, not the text \"citic\"; did you mean \"critic\"?",
            ),
            (
                "review: true",
                "1:9: \"review\" must be none, critic, {criteria: […]} or {checks: […]}, not true",
            ),
            (
                "review: {critera: []}",
                "1:10: there is no field \"critera\" in a review; did you mean \"criteria\"?",
            ),
            ("review: {}", "1:9: a review has criteria, checks or models; write none or critic else"),
            ("review: {checks: []}", "1:9: a review without criteria and models has one check or more"),
            ("review: {criteria: [a, '']}", "1:24: \"criteria\" must be a sentence, not the text \"\""),
            (
                "review: {checks: [citation]}",
                "1:19: \"checks\" must be citations or quotations, not the text \"citation\"; did you mean \"citations\"?",
            ),
            (
                "review: {checks: [{citations: {}}]}",
                "1:31: citations and quotations have no settings; write the name alone",
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
            ("review: {checks: [{matches: '('}]}", "1:29: \"matches\": it is no regular expression: "),
            (
                "review: {checks: [{matches: ''}]}",
                "1:29: \"matches\" must be a regular expression, not the text \"\"",
            ),
            ("review: {checks: [{schema: {type: objct}}]}", "1:28: \"schema\" is no JSON Schema: "),
            (
                "review: {checks: [{command: []}]}",
                "1:29: \"command\" must be a list that begins with a program, not a list",
            ),
            (
                "review: {checks: [{command: [a], timeout: 0}]}",
                "1:43: \"timeout\" must be from 1s to 1h, not the number 0",
            ),
            (
                "review: {checks: [{comand: [a]}]}",
                "1:20: there is no field \"comand\" in a check; did you mean \"command\"?",
            ),
            ("review: {models: []}", "1:18: \"models\" must name a model; leave it out for the critics' own"),
            ("review: {models: ['']}", "1:19: "),
            ("review: {models: [nobody:x]}", "1:19: "),
            (
                "review: {models: [ollama:a], quorum: 2}",
                "1:38: \"quorum\" must be a whole number 1: one model judges, not the number 2",
            ),
            (
                "review: {models: [ollama:a, ollama:b], quorum: 0}",
                "1:48: \"quorum\" must be a whole number from 1 to 2, the number of its models, not the number 0",
            ),
            ("review: {sample: 101}", "1:18: \"sample\" must be a whole number from 0 to 100"),
        ] {
            let said = read(text).expect_err(text);
            assert!(said.starts_with(expected), "{said}\n{expected}");
        }
    }

    #[test]
    fn the_schema_refuses_what_the_reader_refuses() {
        let validator = jsonschema::validator_for(&review_schema()).unwrap();
        for (text, is_good) in [
            ("review: none", true),
            ("review: {criteria: [a], checks: [citations, {matches: a}], quorum: 1, sample: 0}", true),
            ("review: {checks: [{command: [a], timeout: 3s}, {schema: {}}]}", true),
            ("review: {models: [ollama:a]}", true),
            ("review: citic", false),
            ("review: {}", false),
            ("review: {checks: [citation]}", false),
            ("review: {checks: [{citations: {}}]}", false),
            ("review: {checks: [{matches: a, timeout: 3}]}", false),
            ("review: {checks: [{command: []}]}", false),
            ("review: {criteria: ['']}", false),
            ("review: {sample: 101}", false),
        ] {
            let kind = Kind { name: "test", holds: "a review" };
            let value = millrace_forms::read(text.as_bytes(), kind).unwrap().json();
            assert_eq!(
                (validator.is_valid(&value["review"]), read(text).is_ok()),
                (is_good, is_good),
                "{text}"
            );
        }
    }
}
