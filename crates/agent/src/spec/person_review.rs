//! Reviews by persons as written in files: the field `person` of a review.
//!
//! ```yaml
//! review: {person: true}             # a person judges the result
//! review: {person: [ann, legal]}     # two persons or roles; a majority decides
//! review:                            # a critic first, then persons; each has a vote
//!   criteria: [It names the law.]
//!   person:
//!     ask: [ann, legal]
//!     criteria: [A lawyer would sign it.]
//!     quorum: 2
//!     expires_s: 86400
//!     on_expiry: escalate
//!     escalate_to: head of legal
//! ```

use millrace_protocol::plan::{MAX_PERSONS, PersonReview, ReviewPolicy};
use millrace_protocol::question::ExpiryAction;
use millrace_strict_yaml::{YamlMistake, YamlNode, YamlValue, deserialize_node};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::approval::read_expiry;

/// The settings of a review by persons.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PersonSettings {
    /// The persons or roles that should judge, one vote each; anyone by default.
    #[serde(default)]
    ask: Vec<String>,
    /// The criteria for them, one sentence each.
    #[serde(default)]
    criteria: Vec<String>,
    /// The number of votes that accept the result, of the persons and the critic; a majority by default.
    #[schemars(range(min = 1))]
    quorum: Option<u32>,
    /// The number of seconds after which the question expires; never by default.
    #[schemars(range(min = 1, max = 31_536_000))]
    expires_s: Option<u32>,
    /// The consequence of an expired question; `reject` by default: a vote against the result. It is never an acceptance.
    on_expiry: Option<ExpiryAction>,
    /// The person or role that gets the question when it expires, for `on_expiry: escalate`.
    #[serde(default)]
    escalate_to: String,
}

/// Reads the field `person` of a review. `first` is the review before that of the persons.
///
/// # Errors
/// The first mistake.
pub(super) fn read_person_review(node: &YamlNode, first: ReviewPolicy) -> Result<ReviewPolicy, YamlMistake> {
    const EXPECTED: &str = "true, a name, names or {ask: […]}";
    let settings = match &node.value {
        YamlValue::Flag(true) => PersonSettings::default(),
        YamlValue::Text(name) => PersonSettings { ask: vec![name.clone()], ..PersonSettings::default() },
        YamlValue::List(_) => PersonSettings { ask: read_names(node)?, ..PersonSettings::default() },
        YamlValue::Map(_) => deserialize_node(node, "person")?,
        YamlValue::Nothing | YamlValue::Flag(false) | YamlValue::Number(_) => {
            return Err(node.mismatch_error("person", EXPECTED));
        }
    };
    let review = build_review(settings, first);
    review.map_err(|mistake| YamlMistake::at_position(node.position, mistake))
}

fn read_names(node: &YamlNode) -> Result<Vec<String>, YamlMistake> {
    let names = node.parse_list("person", "names")?.iter();
    names.map(|name| name.parse_text("person").map(str::to_owned)).collect()
}

fn build_review(settings: PersonSettings, first: ReviewPolicy) -> Result<ReviewPolicy, String> {
    let PersonSettings { mut ask, criteria, quorum, expires_s, on_expiry, escalate_to } = settings;
    if ask.is_empty() {
        ask.push(String::new());
    } else if ask.iter().any(|name| name.trim().is_empty()) {
        return Err("\"ask\" must name persons or roles; leave it out for anyone".into());
    }
    if ask.len() > MAX_PERSONS {
        return Err(format!("at most {MAX_PERSONS} persons can judge a result"));
    }
    let expiry = read_expiry(expires_s, on_expiry, &escalate_to)?;
    let review = PersonReview { ask, criteria, quorum, expiry, first };
    let votes = review.vote_count();
    match quorum {
        Some(quorum) if quorum == 0 || quorum > votes => Err(format!(
            "\"quorum\" must be from 1 to {votes}: the number of persons, and 1 for the critic if there is one"
        )),
        Some(_) | None => Ok(ReviewPolicy::Persons(Box::new(review))),
    }
}

/// The JSON Schema of the field.
pub(super) fn person_review_schema() -> Value {
    let mut settings = schemars::schema_for!(PersonSettings).to_value();
    let name = json!({ "type": "string", "pattern": "\\S" });
    if let Some(fields) = settings.as_object_mut() {
        fields.remove("$schema");
        fields.remove("title");
    }
    // The only referenced type is short; without a reference the schema can be embedded anywhere.
    let action = settings.as_object_mut().and_then(|fields| fields.remove("$defs"));
    let action = action.map_or(Value::Null, |mut definitions| definitions["ExpiryAction"].take());
    settings["properties"]["on_expiry"] = action;
    json!({
        "description": "The persons that judge the result after the checks and the critic: true for anyone, a name or role, \
                        several, or settings.",
        "oneOf": [
            { "const": true },
            name.clone(),
            { "type": "array", "items": name, "minItems": 1, "maxItems": MAX_PERSONS },
            settings,
        ],
    })
}
