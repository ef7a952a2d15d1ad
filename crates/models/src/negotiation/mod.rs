//! Negotiation of parameters: everything in a request that is not the conversation itself, and that a server may refuse. It is learned from refusals, for each model and address, and remembered for all work of a process and, on disk, for later ones. The files
//! can be deleted at any time.
//!
//! ```text
//! mod          the adaptations of requests to one model at one address, and their memory
//! ├─ refusal     reads the error of a refused request: the parameter, and the adaptation
//! └─ parameters  the parameters, under all the names that APIs and errors give them
//! ```
//! The wire changes single fields; [`crate::resilience`] chooses another form for tools and answers, and sends the least
//! request if a refusal names nothing. A setting that a person asked for is never left out: the request fails by its name.

mod parameters;
mod refusal;

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tracing::warn;

pub(crate) use parameters::{MAX_TOKENS, PROBABILITIES, RESPONSE_FORMAT, TOOLS, parameter_of_field};
pub(crate) use refusal::{Reading, Refusal, read_refusal};

use parameters::{NAMES_OF_LIMIT, STREAM, for_each_value, remove_parameter, retain_parameters};

/// The folder for the files, in the cache.
const FOLDER: &str = "parameters";
/// The lifetime of a file in days: the server may be updated.
const DAYS_REMEMBERED: i64 = 7;
/// The number of times in a row that only the least request must be accepted before other ones are no longer sent: some servers refuse
/// one request and accept the same one a moment later.
const LEAST_NEEDED: u32 = 2;

/// A change of requests to a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Adaptation {
    /// The parameter is not sent. Tools and answers are requested in another form.
    Omit { parameter: String },
    /// The parameter is sent under another name.
    Rename { parameter: String, to: String },
    /// The value is at most this.
    Limit { parameter: String, most: u64 },
    /// Only the conversation is sent.
    OmitAll,
}

impl Adaptation {
    /// Returns the parameter, unless it is all of them.
    pub fn parameter(&self) -> Option<&str> {
        match self {
            Self::Omit { parameter } | Self::Rename { parameter, .. } | Self::Limit { parameter, .. } => {
                Some(parameter)
            }
            Self::OmitAll => None,
        }
    }

    fn omits(&self, name: &str) -> bool {
        match self {
            Self::OmitAll => true,
            Self::Omit { parameter } => parameter == name,
            Self::Rename { .. } | Self::Limit { .. } => false,
        }
    }
}

impl fmt::Display for Adaptation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Omit { parameter } => match parameter.as_str() {
                TOOLS => f.write_str("no `tools`: calls are requested as JSON in the text"),
                RESPONSE_FORMAT => {
                    f.write_str("no `response_format`: answers are requested by a tool or in the prompt")
                }
                STREAM => f.write_str("no `stream`: replies come in one piece"),
                MAX_TOKENS => f.write_str("no `max_tokens`: the length of replies is not limited"),
                parameter => write!(f, "no `{parameter}`"),
            },
            Self::Rename { parameter, to } => write!(f, "`{to}` instead of `{parameter}`"),
            Self::Limit { parameter, most } => write!(f, "`{parameter}` of at most {most}"),
            Self::OmitAll => {
                f.write_str("nothing but the conversation: tools are requested as JSON in the text")
            }
        }
    }
}

/// Applies adaptations to the body of a request. A parameter that a person set is left as it is, for the server to refuse, and so are
/// tools and the form of the answer, which another form of the request replaces.
pub(crate) fn adapt_body(body: &mut Value, adaptations: &[Adaptation], is_set: impl Fn(&str) -> bool) {
    for adaptation in adaptations {
        match adaptation {
            Adaptation::OmitAll => retain_conversation(body, &is_set),
            Adaptation::Omit { parameter } if is_form(parameter) || is_set(parameter) => {}
            Adaptation::Omit { parameter } => remove_parameter(body, parameter),
            Adaptation::Rename { to, .. } => rename_limit(body, to),
            Adaptation::Limit { parameter, .. } if is_set(parameter) => {}
            Adaptation::Limit { parameter, most } => for_each_value(body, parameter, |value| {
                if value.as_u64().is_some_and(|sent| sent > *most) {
                    *value = (*most).into();
                }
            }),
        }
    }
}

fn is_form(parameter: &str) -> bool {
    matches!(parameter, TOOLS | RESPONSE_FORMAT)
}

/// Removes all parameters but those that a person set, and the tools and the form of the answer, which the request has only if it must.
pub(crate) fn retain_conversation(body: &mut Value, is_set: impl Fn(&str) -> bool) {
    retain_parameters(body, |field| {
        let parameter = parameter_of_field(field);
        parameter == STREAM || is_form(parameter) || is_set(parameter)
    });
}

fn rename_limit(body: &mut Value, to: &str) {
    let Some(fields) = body.as_object_mut() else { return };
    let value = NAMES_OF_LIMIT.iter().find_map(|name| fields.remove(*name));
    if let Some(value) = value {
        fields.insert(to.to_owned(), value);
    }
}

/// Removes the limit of the reply under all names: a person has set it in the additional fields of the body.
pub(crate) fn remove_limit(body: &mut Value) {
    remove_parameter(body, MAX_TOKENS);
}

/// The adaptations of requests to one model at one address.
#[derive(Debug, Default)]
pub struct Negotiation {
    model: String,
    address: String,
    file: Option<PathBuf>,
    learned: Mutex<Learned>,
}

#[derive(Debug, Default)]
struct Learned {
    adaptations: Vec<Adaptation>,
    /// The number of requests in a row that were accepted in their least form only.
    least_accepted: u32,
}

/// The file of a [`Negotiation`].
#[derive(Debug, Serialize, Deserialize)]
struct NegotiationFile {
    model: String,
    address: String,
    learned_at: Timestamp,
    adaptations: Vec<Adaptation>,
}

impl Negotiation {
    /// Reads the file of earlier processes, unless it is too old. A file that can't be read is written anew.
    fn open(model: &str, address: &str, cache: Option<&Path>) -> Self {
        let file = cache.map(|cache| cache.join(FOLDER).join(file_name(model, address)));
        let remembered = file.as_deref().and_then(read_file).unwrap_or_default();
        let opened = Self {
            model: model.to_owned(),
            address: address.to_owned(),
            file,
            learned: Mutex::new(Learned { adaptations: remembered.clone(), least_accepted: 0 }),
        };
        remembered.iter().for_each(|adaptation| opened.log(adaptation, "remembered from an earlier process"));
        opened
    }

    pub fn adaptations(&self) -> Vec<Adaptation> {
        self.lock().adaptations.clone()
    }

    pub(crate) fn omits(&self, parameter: &str) -> bool {
        self.lock().adaptations.iter().any(|adaptation| adaptation.omits(parameter))
    }

    /// Remembers an adaptation, which replaces an earlier one of its parameter, and logs it with the refusal that led to it.
    pub(crate) fn learn(&self, adaptation: Adaptation, refusal: &str) {
        let mut learned = self.lock();
        if learned.adaptations.contains(&adaptation) {
            return;
        }
        let is_limit = |adaptation: &Adaptation| matches!(adaptation, Adaptation::Limit { .. });
        // A name and a limit can hold for the same parameter.
        learned.adaptations.retain(|earlier| {
            earlier.parameter() != adaptation.parameter()
                || (is_limit(earlier) != is_limit(&adaptation) && !adaptation.omits(MAX_TOKENS))
        });
        learned.adaptations.push(adaptation.clone());
        self.log(&adaptation, refusal);
        self.write(&learned.adaptations);
    }

    /// Counts a request that was accepted: in its least form, after its full form was refused with an error that names nothing, or in
    /// full.
    pub(crate) fn count_accepted(&self, refused_in_full: Option<&str>) {
        let is_learned = {
            let mut learned = self.lock();
            learned.least_accepted = if refused_in_full.is_some() { learned.least_accepted + 1 } else { 0 };
            learned.least_accepted >= LEAST_NEEDED
        };
        if let Some(refusal) = refused_in_full.filter(|_| is_learned) {
            self.learn(Adaptation::OmitAll, refusal);
        }
    }

    fn log(&self, adaptation: &Adaptation, reason: &str) {
        let Self { model, address, .. } = self;
        warn!(model, address, %adaptation, reason, "the model's server does not take all parameters; adapting requests");
    }

    fn write(&self, adaptations: &[Adaptation]) {
        let Some(path) = &self.file else { return };
        let file = NegotiationFile {
            model: self.model.clone(),
            address: self.address.clone(),
            learned_at: Timestamp::now(),
            adaptations: adaptations.to_vec(),
        };
        let text = serde_json::to_string(&file).expect("it holds only texts and numbers");
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, text));
        if let Err(error) = written {
            warn!(path = %path.display(), %error, "cannot store the parameters of a model");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn file_name(model: &str, address: &str) -> String {
    let digest = Sha256::digest(format!("{model}\n{address}"));
    format!("{}.json", data_encoding::HEXLOWER.encode(&digest))
}

fn read_file(path: &Path) -> Option<Vec<Adaptation>> {
    let file: NegotiationFile = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
    let age = Timestamp::now().duration_since(file.learned_at);
    (age.as_hours() < DAYS_REMEMBERED * 24).then_some(file.adaptations)
}

/// The adaptations of all models of a process.
#[derive(Debug, Default)]
pub struct NegotiationMemory {
    known: Mutex<HashMap<(String, String), Arc<Negotiation>>>,
}

impl NegotiationMemory {
    /// Returns the adaptations for a model at an address. `cache` is the folder with the files, if there is one.
    pub fn recall(&self, model: &str, address: &str, cache: Option<&Path>) -> Arc<Negotiation> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (model.to_owned(), address.to_owned());
        known.entry(key).or_insert_with(|| Arc::new(Negotiation::open(model, address, cache))).clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn omit(parameter: &str) -> Adaptation {
        Adaptation::Omit { parameter: parameter.to_owned() }
    }

    #[test]
    fn later_processes_know_what_was_learned_for_a_week() {
        let cache = tempfile::tempdir().unwrap();
        let open = |address: &str| NegotiationMemory::default().recall("a:b", address, Some(cache.path()));
        open("http://one").learn(omit("temperature"), "no");
        assert_eq!(open("http://one").adaptations(), [omit("temperature")]);
        assert_eq!(open("http://other").adaptations(), [], "another server may take it");
        let file = open("http://one").file.clone().unwrap();
        let mut old: NegotiationFile = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        old.learned_at -= jiff::SignedDuration::from_hours(24 * DAYS_REMEMBERED);
        fs::write(&file, serde_json::to_string(&old).unwrap()).unwrap();
        assert_eq!(open("http://one").adaptations(), []);
        fs::write(&file, "{broken").unwrap();
        assert_eq!(open("http://one").adaptations(), []);
    }

    #[test]
    fn an_adaptation_replaces_an_earlier_one_of_its_parameter() {
        let rename = Adaptation::Rename { parameter: MAX_TOKENS.into(), to: "max_completion_tokens".into() };
        let limit = |most| Adaptation::Limit { parameter: MAX_TOKENS.into(), most };
        let learned = Negotiation::default();
        for adaptation in [rename.clone(), limit(9), limit(7)] {
            learned.learn(adaptation, "no");
        }
        assert_eq!(learned.adaptations(), [rename, limit(7)]);
        learned.learn(omit(MAX_TOKENS), "no");
        assert_eq!(learned.adaptations(), [omit(MAX_TOKENS)]);
    }

    #[test]
    fn parameters_are_changed_wherever_an_api_has_them() {
        let adapted = |mut body: Value, adaptation: Adaptation| {
            adapt_body(&mut body, &[adaptation], |_| false);
            body
        };
        let rename = Adaptation::Rename { parameter: MAX_TOKENS.into(), to: "max_completion_tokens".into() };
        let limit = Adaptation::Limit { parameter: MAX_TOKENS.into(), most: 5 };
        for (body, adaptation, expected) in [
            (json!({"max_tokens": 9}), rename, json!({"max_completion_tokens": 9})),
            (
                json!({"options": {"num_predict": 9, "num_ctx": 1}}),
                limit,
                json!({"options": {"num_predict": 5, "num_ctx": 1}}),
            ),
            (json!({"inferenceConfig": {"temperature": 1}}), omit("temperature"), json!({})),
            (json!({"stream": true, "stream_options": {}}), omit("stream"), json!({"stream": false})),
            (
                json!({"messages": [], "stream": true, "seed": 1}),
                Adaptation::OmitAll,
                json!({"messages": [], "stream": true}),
            ),
            (json!({"tools": []}), omit("tools"), json!({"tools": []})),
        ] {
            assert_eq!(adapted(body, adaptation.clone()), expected, "{adaptation}");
        }
        let mut body = json!({"temperature": 1});
        adapt_body(&mut body, &[omit("temperature")], |parameter| parameter == "temperature");
        assert_eq!(body, json!({"temperature": 1}), "a person set it");
    }

    #[test]
    fn one_request_that_only_passed_in_its_least_form_teaches_nothing() {
        let learned = Negotiation::default();
        learned.count_accepted(Some("bad"));
        learned.count_accepted(None);
        learned.count_accepted(Some("bad"));
        assert_eq!(learned.adaptations(), []);
        learned.count_accepted(Some("bad"));
        assert_eq!(learned.adaptations(), [Adaptation::OmitAll]);
    }
}
