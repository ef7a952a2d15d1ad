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
use millrace_strict_yaml::{checked_text, one_of};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use crate::approval::read_expiry;

// A text that is not blank.
#[derive(Deserialize)]
#[serde(rename = "sentence")]
pub(super) struct Sentence(#[serde(deserialize_with = "read_sentence")] pub String);

fn read_sentence<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    checked_text(deserializer, "a sentence", |text| !text.trim().is_empty())
}

impl JsonSchema for Sentence {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Sentence".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "\\S" })
    }
}

// The notations of the field `person`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "true, a name, names or {ask: […]}", rename_all = "lowercase")]
#[schemars(untagged, transform = one_of)]
pub(super) enum PersonForm {
    Flag(#[schemars(extend("const" = true))] bool),
    Text(#[schemars(with = "Sentence")] String),
    List(#[schemars(with = "Vec<Sentence>", length(min = 1, max = MAX_PERSONS))] Vec<String>),
    Map(Box<PersonSettings>),
}

/// The settings of a review by persons.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PersonSettings {
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

/// Returns the review by persons after another review.
pub(super) fn review_by_persons(form: PersonForm, first: ReviewPolicy) -> Result<ReviewPolicy, String> {
    let settings = match form {
        PersonForm::Flag(true) => PersonSettings::default(),
        PersonForm::Flag(false) => {
            return Err("\"person\" must be true, a name, names or {ask: […]}, not false".into());
        }
        PersonForm::Text(name) => PersonSettings { ask: vec![name], ..PersonSettings::default() },
        PersonForm::List(ask) => PersonSettings { ask, ..PersonSettings::default() },
        PersonForm::Map(settings) => *settings,
    };
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
