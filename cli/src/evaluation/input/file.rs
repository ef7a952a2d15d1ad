//! Parses evaluation files: objectives with the facts that their answers should state. Every mistake is reported with the
//! file, the line and the column.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_agent::corpus::{SUPPORTED, list_folder_files};
use millrace_agent::spec;
use millrace_plan_file::BudgetForm;
use millrace_protocol::plan::{Budget, MAX_OBJECTIVE};
use millrace_runtime::store::blobs::sha256_hex;
use millrace_strict_yaml::{
    FileDescription, FileDuration, LoadError, MistakeCollector, ValueMistake, Whole, YamlMistake,
    YamlMistakes, YamlNode, checked_text, collect_node, did_you_mean_hint, from_form, load_yaml_file,
    parse_yaml, tidy_schema,
};
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::reading::ItemOrigin;
use super::statement::{Statement, Texts, read_texts};
use crate::evaluation::wording::Wording;
use crate::submission::parse_model_preferences;

/// The maximum size of an evaluation file in bytes.
const MAX_BYTES: u64 = 8 * 1024 * 1024;
/// The maximum number of samples of an objective.
pub const MAX_SAMPLES: u32 = 1_000;
/// The maximum length of a name, in characters.
const MAX_NAME: usize = 64;

/// The tools that read the web.
const WEB_TOOLS: [&str; 2] = ["web_search", "fetch_url"];

const KIND: FileDescription = FileDescription { name: "evaluation", holds: "documents and objectives" };

/// Objectives over a folder of documents, with the facts that their answers should state.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename = "evaluation")]
#[schemars(rename = "Evaluation", deny_unknown_fields, transform = tidy_schema)]
pub struct EvaluationFile {
    /// The name of the results folder; by default that of the file.
    #[serde(default)]
    pub name: EntryName,
    /// The folder with the documents, relative to this file; may be left out if agents read the web.
    #[schemars(with = "Option<String>")]
    pub documents: Option<PathBuf>,
    /// true lets agents search and read the web, with the capability web_research.
    #[serde(default)]
    pub web: bool,
    /// The number of samples of each objective.
    #[schemars(extend("default" = 1))]
    pub samples: Option<Whole<1, MAX_SAMPLES>>,
    /// The time limit of a sample: seconds, or text such as "10m".
    #[serde(default, deserialize_with = "read_timeout")]
    #[schemars(with = "Option<FileDuration>", extend("default" = "10m"))]
    pub timeout: Option<Duration>,
    /// The total budget of the run: planner, workers and critics.
    #[serde(default, deserialize_with = "from_form::<_, BudgetForm, _>")]
    #[schemars(with = "BudgetForm")]
    pub budget: Budget,
    /// The configurations to compare; by default the default models.
    #[serde(default)]
    pub configurations: Vec<Configuration>,
    /// The objectives.
    #[serde(deserialize_with = "read_objectives")]
    #[schemars(length(min = 1))]
    pub objectives: Vec<Objective>,
}

/// A name: letters, digits, `-`, `_` and `.`, at most 64.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline, extend("pattern" = "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"))]
pub struct EntryName(String);

impl TryFrom<String> for EntryName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::new(&text).map_err(|why| format!("it {why}"))
    }
}

impl EntryName {
    /// Validates a name.
    pub fn new(text: &str) -> Result<Self, String> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if text.is_empty() || text.chars().count() > MAX_NAME || text.starts_with('.') {
            return Err(format!(
                "must have 1 to {MAX_NAME} characters and not begin with a dot, not {text:?}"
            ));
        }
        match text.chars().find(|c| !is_allowed(*c)) {
            None => Ok(Self(text.to_owned())),
            Some(c) => Err(format!("may have letters, digits, '-', '_' and '.', but {text:?} has {c:?}")),
        }
    }

    /// Returns a name that is made from any text: each other character becomes `-`.
    pub fn from_any_text(text: &str) -> Self {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let name: String = text.chars().map(|c| if is_allowed(c) { c } else { '-' }).take(MAX_NAME).collect();
        let name = name.trim_matches(['-', '.']);
        Self(if name.is_empty() { "evaluation".into() } else { name.to_owned() })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for EntryName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A set of models and capability files that is evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename = "configuration")]
#[schemars(inline, deny_unknown_fields, transform = tidy_schema)]
pub struct Configuration {
    /// Its name, unique in the file.
    pub name: EntryName,
    /// Models, as [CAPABILITY=]provider:model.
    #[serde(default, deserialize_with = "read_models")]
    #[schemars(with = "Texts")]
    pub models: Vec<String>,
    /// Capability files, relative to this file.
    #[serde(default, deserialize_with = "read_texts")]
    #[schemars(with = "Texts")]
    pub capabilities: Vec<PathBuf>,
    /// As for the whole file, for this configuration only.
    #[serde(default)]
    pub web: bool,
}

impl Configuration {
    /// `true` if its agents may read the web: the cluster offers it, or a capability file has a tool for it.
    pub fn reads_web(&self) -> Result<bool, LoadError> {
        if self.web {
            return Ok(true);
        }
        for file in &self.capabilities {
            if has_web_tools(file)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// An objective with the expected content of its answer.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(try_from = "ObjectiveFields")]
#[schemars(inline, with = "ObjectiveFields")]
pub struct Objective {
    pub id: EntryName,
    /// The question or the work.
    pub text: String,
    /// The documents that have the answer, as paths below the documents' folder; used for the ceiling.
    pub documents: Vec<String>,
    /// The expected facts; none if the documents do not answer the question.
    pub facts: Vec<Statement>,
    /// Statements that contradict the documents.
    pub wrong: Vec<Statement>,
    /// The passage that has the answer, if it is known: for the ceiling, in place of the documents.
    pub passage: Option<String>,
    /// The documents that its run does not get.
    pub left_out: Vec<String>,
    /// The number of characters of the deliverable that are searched for facts; `None` for all of them.
    pub answer_characters: Option<usize>,
    pub origin: ItemOrigin,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename = "objective")]
#[schemars(inline, deny_unknown_fields, transform = tidy_schema)]
struct ObjectiveFields {
    /// Its id, unique in the file.
    id: EntryName,
    /// The question or the work.
    #[serde(deserialize_with = "read_objective_text")]
    objective: String,
    /// The documents that have the answer, for --ceiling: paths below the documents' folder.
    #[serde(default, deserialize_with = "read_texts")]
    #[schemars(with = "Texts")]
    documents: Vec<String>,
    /// The facts that an answer should state.
    #[serde(default)]
    facts: Vec<Statement>,
    /// Statements that contradict the documents.
    #[serde(default)]
    wrong: Vec<Statement>,
    /// false if the documents do not answer the question.
    #[schemars(extend("default" = true))]
    answerable: Option<bool>,
}

impl TryFrom<ObjectiveFields> for Objective {
    type Error = ValueMistake;

    fn try_from(fields: ObjectiveFields) -> Result<Self, ValueMistake> {
        let ObjectiveFields { id, objective: text, documents, facts, wrong, answerable } = fields;
        check_answerable(answerable, !facts.is_empty()).map_err(ValueMistake::sentence)?;
        check_contradictions(&facts, &wrong).map_err(ValueMistake::sentence)?;
        let origin = ItemOrigin { file: String::new(), id: id.to_string() };
        Ok(Self { id, documents, facts, wrong, origin, ..Self::new(&text) })
    }
}

impl Objective {
    /// An objective that no document answers.
    pub fn new(text: &str) -> Self {
        Self {
            id: EntryName::default(),
            text: text.to_owned(),
            documents: Vec::new(),
            facts: Vec::new(),
            wrong: Vec::new(),
            passage: None,
            left_out: Vec::new(),
            answer_characters: None,
            origin: ItemOrigin::default(),
        }
    }

    /// `true` if the documents have the answer.
    pub fn is_answerable(&self) -> bool {
        !self.facts.is_empty()
    }
}

/// Reads an evaluation file. Paths in it are relative to its folder. `has_web` is `true` if the command line lets agents read
/// the web.
///
/// # Errors
/// It can't be read, is larger than 8 MiB, or is not a valid evaluation.
pub fn load_evaluation_file(path: &Path, has_web: bool) -> Result<EvaluationFile, LoadError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    load_yaml_file(path, KIND, MAX_BYTES, |bytes| parse_evaluation(bytes, folder, &stem, has_web))
}

fn parse_evaluation(
    bytes: &[u8],
    folder: &Path,
    stem: &str,
    has_web: bool,
) -> Result<EvaluationFile, YamlMistakes> {
    let root = parse_yaml(bytes, KIND)?;
    let mut mistakes = MistakeCollector::default();
    let file = collect_node(&root, "evaluation", &mut mistakes);
    let file = file.map(|file: EvaluationFile| file.complete(&root, folder, stem, has_web, &mut mistakes));
    mistakes.finish()?;
    Ok(file.expect("a file that can't be read has a mistake"))
}

impl EvaluationFile {
    /// An evaluation of these objectives, with nothing else set.
    pub fn of_objectives(name: EntryName, objectives: Vec<Objective>) -> Self {
        Self {
            name,
            documents: None,
            web: false,
            samples: None,
            timeout: None,
            budget: Budget::default(),
            configurations: Vec::new(),
            objectives,
        }
    }

    /// Sets what depends on other fields and on the place of the file, and checks both.
    fn complete(
        mut self,
        root: &YamlNode,
        folder: &Path,
        stem: &str,
        has_web: bool,
        mistakes: &mut MistakeCollector,
    ) -> Self {
        if root.child("name").is_none() {
            self.name = EntryName::from_any_text(stem);
        }
        for (configuration, node) in self.configurations.iter_mut().zip(root.items_of("configurations")) {
            configuration.web |= self.web && node.child("web").is_none();
            for (at, path) in configuration.capabilities.iter_mut().enumerate() {
                *path = folder.join(&path);
                if let Err(error) = millrace_worker::file::describe_capability_file(path) {
                    let position = node.position_of(&format!("capabilities/{at}"));
                    mistakes.add(YamlMistake::at_position(position, error.to_string()));
                }
            }
        }
        refuse_repeated(root, "configurations", "name", "a configuration", mistakes);
        refuse_repeated(root, "objectives", "id", "an objective", mistakes);
        // A capability file that can't be read is a mistake already.
        let mut reading = self.configurations.iter().map(|one| one.reads_web().unwrap_or_default());
        let may_lack_documents = has_web || self.web || reading.any(|reads_web| reads_web);
        match &mut self.documents {
            Some(documents) => {
                *documents = folder.join(&documents);
                match list_document_paths(documents) {
                    Ok(known) => check_document_paths(root, &known, mistakes),
                    Err(why) => mistakes.add(YamlMistake::at_position(root.position_of("documents"), why)),
                }
            }
            None if may_lack_documents && root.child("documents").is_none() => {
                check_document_paths(root, &BTreeSet::new(), mistakes);
            }
            None if root.child("documents").is_some() => {}
            None if mistakes.has_hint("documents") => {}
            None => {
                let text = "this evaluation lacks the field \"documents\"; to let agents read the web instead, add \"web: true\" or use --web";
                mistakes.add(YamlMistake::at_position(root.position, text));
            }
        }
        self
    }
}

fn list_document_paths(folder: &Path) -> Result<BTreeSet<String>, String> {
    let (files, _) = list_folder_files(folder).map_err(|error| error.to_string())?;
    if files.is_empty() {
        return Err(format!("no readable documents in {}: {SUPPORTED} are supported", folder.display()));
    }
    Ok(files.into_iter().map(|file| file.path).collect())
}

/// Checks the documents that the objectives name.
fn check_document_paths(root: &YamlNode, known: &BTreeSet<String>, mistakes: &mut MistakeCollector) {
    let named = root.items_of("objectives").iter().filter_map(|objective| objective.child("documents"));
    for node in named.flat_map(|node| std::iter::once(node).chain(node.items())) {
        if let Some(path) = node.as_text().filter(|path| !path.is_empty() && !known.contains(*path)) {
            let hint = did_you_mean_hint(path, known.iter().map(String::as_str));
            let text = format!("there is no document {path:?} in the documents' folder{hint}");
            mistakes.add(YamlMistake::at_position(node.position, text));
        }
    }
}

fn refuse_repeated(root: &YamlNode, list: &str, field: &str, what: &str, mistakes: &mut MistakeCollector) {
    let mut seen = BTreeSet::new();
    for node in root.items_of(list).iter().filter_map(|item| item.child(field)) {
        if let Some(name) = node.as_text().filter(|name| !seen.insert(*name)) {
            mistakes
                .add(YamlMistake::at_position(node.position, format!("there is already {what} {name:?}")));
        }
    }
}

fn read_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let node = YamlNode::deserialize(deserializer)?;
    match FileDuration::try_from(node.clone()).map_err(D::Error::custom)?.0 {
        Duration::ZERO => Err(D::Error::custom(node.mismatch("more than 0 seconds"))),
        time => Ok(Some(time)),
    }
}

fn read_objectives<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Objective>, D::Error> {
    let objectives = Vec::deserialize(deserializer)?;
    match objectives.is_empty() {
        true => Err(D::Error::custom("it must be a list with at least one objective, not a list")),
        false => Ok(objectives),
    }
}

fn read_objective_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let expected = format!("a question or work to do, of at most {MAX_OBJECTIVE} bytes");
    let is_valid = |text: &str| (1..=MAX_OBJECTIVE).contains(&text.trim().len());
    Ok(checked_text(deserializer, &expected, is_valid)?.trim().to_owned())
}

fn read_models<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let models: Vec<String> = read_texts(deserializer)?;
    for (at, model) in models.iter().enumerate() {
        parse_model_preferences(std::slice::from_ref(model)).map_err(|refused| {
            D::Error::custom(ValueMistake::at(at.to_string(), refused.error.to_string()))
        })?;
    }
    parse_model_preferences(&models)
        .map_err(|refused| D::Error::custom(ValueMistake::sentence(refused.error.to_string())))?;
    Ok(models)
}

fn check_answerable(answerable: Option<bool>, has_facts: bool) -> Result<(), &'static str> {
    let text = match (answerable, has_facts) {
        (None | Some(true), true) | (Some(false), false) => return Ok(()),
        (Some(false), true) => {
            "an objective that the documents do not answer has no \"facts\": remove them, or \"answerable: false\""
        }
        (None | Some(true), false) => {
            "this objective has no \"facts\"; give those that an answer should state, or write \"answerable: false\" if the \
             documents do not answer it"
        }
    };
    Err(text)
}

/// Refuses a wrong statement that is an expected fact.
fn check_contradictions(facts: &[Statement], wrong: &[Statement]) -> Result<(), String> {
    for statement in wrong {
        for fact in facts {
            if let Some(text) = fact.texts().find(|text| statement.is_stated_in(&Wording::read(text))) {
                return Err(format!(
                    "the wrong statement {:?} matches {text:?}, which is an expected fact",
                    statement.name
                ));
            }
        }
    }
    Ok(())
}

/// The JSON Schema of an evaluation file (draft 2020-12).
pub fn evaluation_file_schema() -> Value {
    schemars::schema_for!(EvaluationFile).to_value()
}

/// Returns the configurations that the command line names: each model without a capability is one, and the others apply to
/// all of them. `web` is `true` if their clusters offer the web.
pub fn configurations_of_arguments(
    models: &[String],
    capabilities: &[PathBuf],
    web: bool,
) -> Result<Vec<Configuration>, crate::exit::CommandError> {
    let (own, shared): (Vec<&String>, Vec<&String>) = models.iter().partition(|model| {
        parse_model_preferences(&[(*model).clone()]).is_ok_and(|one| one.default.is_some())
    });
    let shared: Vec<String> = shared.into_iter().cloned().collect();
    parse_model_preferences(&shared)?;
    if own.is_empty() {
        let name = if shared.is_empty() && capabilities.is_empty() { "default" } else { "command-line" };
        let name = EntryName::from_any_text(name);
        return Ok(vec![Configuration { name, models: shared, capabilities: capabilities.to_vec(), web }]);
    }
    let mut used: BTreeMap<EntryName, u32> = BTreeMap::new();
    let configurations = own.into_iter().map(|model| {
        let base = EntryName::from_any_text(model);
        let count = used.entry(base.clone()).or_insert(0);
        *count += 1;
        let name = if *count == 1 { base } else { EntryName::from_any_text(&format!("{base}-{count}")) };
        let models = shared.iter().chain([model]).cloned().collect();
        Configuration { name, models, capabilities: capabilities.to_vec(), web }
    });
    Ok(configurations.collect())
}

/// `true` if a capability file gives its agent a tool that reads the web.
pub fn has_web_tools(file: &Path) -> Result<bool, LoadError> {
    let (_, fields) = read_capability_fields(file)?;
    let is_web = |tool: &Value| match tool {
        Value::String(name) => WEB_TOOLS.contains(&name.as_str()),
        Value::Object(settings) => settings.keys().any(|name| WEB_TOOLS.contains(&name.as_str())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => false,
    };
    Ok(list_of(&fields["tools"]).any(is_web))
}

/// Reads a capability file and returns the SHA-256 of its text, and its fields.
pub fn read_capability_fields(file: &Path) -> Result<(String, Value), LoadError> {
    load_yaml_file(file, spec::KIND, spec::MAX_BYTES, |bytes| {
        Ok::<_, YamlMistakes>((sha256_hex(bytes), parse_yaml(bytes, spec::KIND)?.to_json()))
    })
}

/// The elements of a JSON list, or none.
pub fn list_of(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
