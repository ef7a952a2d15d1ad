//! Parses evaluation files: objectives with the facts that their answers should state. Every mistake is reported with the
//! file, the line and the column.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_agent::corpus::{SUPPORTED, list_folder_files};
use millrace_protocol::plan::{Budget, MAX_OBJECTIVE};
use millrace_strict_yaml::{
    FileDescription, LoadError, MappingFields, MistakeCollector, YamlMistake, YamlMistakes, YamlNode,
    YamlValue, did_you_mean_hint,
};
use regex::{Regex, RegexBuilder};

use super::setup::has_web_tools;
use super::wording::Wording;
use crate::plan_file;
use crate::submission::parse_model_preferences;

/// The maximum size of an evaluation file in bytes.
const MAX_BYTES: u64 = 8 * 1024 * 1024;
/// The maximum number of samples of an objective.
pub const MAX_SAMPLES: u32 = 1_000;
/// The maximum length of a name, in characters.
const MAX_NAME: usize = 64;
/// The maximum size of a compiled pattern in bytes.
const MAX_PATTERN: usize = 1 << 20;

const KIND: FileDescription = FileDescription { name: "evaluation", holds: "documents and objectives" };
const FIELDS: [&str; 8] =
    ["name", "documents", "web", "samples", "timeout", "budget", "configurations", "objectives"];
const CONFIGURATION_FIELDS: [&str; 4] = ["name", "models", "capabilities", "web"];
const OBJECTIVE_FIELDS: [&str; 6] = ["id", "objective", "documents", "facts", "wrong", "answerable"];
const STATEMENT_FIELDS: [&str; 3] = ["name", "any", "pattern"];

/// The contents of an evaluation file.
#[derive(Debug, Clone)]
pub struct EvaluationFile {
    /// Its name, for the results folder.
    pub name: EntryName,
    /// The folder with the documents; `None` if the web is the only source.
    pub documents: Option<PathBuf>,
    /// `true` if agents may search and read the web, unless a configuration sets it.
    pub web: bool,
    /// The number of samples of each objective.
    pub samples: Option<u32>,
    /// The time limit of a sample.
    pub timeout: Option<Duration>,
    /// The budget of a sample.
    pub budget: Budget,
    /// The configurations that are compared; may be empty.
    pub configurations: Vec<Configuration>,
    /// The objectives, at least one.
    pub objectives: Vec<Objective>,
}

/// A name: letters, digits, `-`, `_` and `.`, at most 64.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName(String);

impl EntryName {
    /// Validates a name.
    ///
    /// # Errors
    /// It is empty, too long, or has other characters.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    pub name: EntryName,
    /// Its models, as `[CAPABILITY=]MODEL`; none are the default models.
    pub models: Vec<String>,
    /// Its capability files.
    pub capabilities: Vec<PathBuf>,
    /// `true` if its cluster offers the capability `web_research`.
    pub web: bool,
}

impl Configuration {
    /// `true` if its agents may read the web: the cluster offers it, or a capability file has a tool for it.
    ///
    /// # Errors
    /// A capability file can't be read.
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
#[derive(Debug, Clone)]
pub struct Objective {
    /// Its id in the file.
    pub id: EntryName,
    /// The question or the work.
    pub text: String,
    /// The documents that have the answer, as paths below the documents' folder; used for the ceiling.
    pub documents: Vec<String>,
    /// The expected facts; none if the documents do not answer the question.
    pub facts: Vec<Statement>,
    /// Statements that contradict the documents.
    pub wrong: Vec<Statement>,
}

impl Objective {
    /// `true` if the documents have the answer.
    pub fn is_answerable(&self) -> bool {
        !self.facts.is_empty()
    }
}

/// A statement that an answer makes or does not make.
#[derive(Debug, Clone)]
pub struct Statement {
    /// Its name, for people.
    pub name: String,
    spellings: Vec<Spelling>,
}

#[derive(Debug, Clone)]
enum Spelling {
    Text(String),
    Pattern(Regex),
}

impl Statement {
    /// `true` if a text makes the statement in one of its spellings.
    pub fn is_stated_in(&self, text: &Wording) -> bool {
        self.spellings.iter().any(|spelling| match spelling {
            Spelling::Text(expected) => text.states(&Wording::read(expected)),
            Spelling::Pattern(pattern) => pattern.is_match(text.plain_text()),
        })
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        self.spellings.iter().filter_map(|spelling| match spelling {
            Spelling::Text(text) => Some(text.as_str()),
            Spelling::Pattern(_) => None,
        })
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
    millrace_strict_yaml::load_yaml_file(path, KIND, MAX_BYTES, |bytes| {
        parse_evaluation(bytes, folder, &stem, has_web)
    })
}

fn parse_evaluation(
    bytes: &[u8],
    folder: &Path,
    stem: &str,
    has_web: bool,
) -> Result<EvaluationFile, YamlMistakes> {
    let root = millrace_strict_yaml::parse_yaml(bytes, KIND)?;
    let mut mistakes = MistakeCollector::default();
    let Some(file) = MappingFields::collect_from_node(&root, "evaluation", &FIELDS, &mut mistakes) else {
        mistakes.finish()?;
        return Err(YamlMistake::at_position(root.position, "an evaluation must be a map").into());
    };
    let name = mistakes.check_optional(file.find_field("name").map(|node| parse_name(node, "name")));
    let samples = mistakes.check_optional(file.find_field("samples").map(parse_samples));
    let timeout = mistakes.check_optional(file.find_field("timeout").map(parse_timeout));
    let budget = mistakes.check_optional(file.find_field("budget").map(plan_file::parse_run_budget));
    let web = mistakes.check_optional(file.find_field("web").map(|node| node.parse_boolean("web")));
    let web = web.unwrap_or_default();
    let configurations = match file.find_field("configurations") {
        None => Vec::new(),
        Some(node) => parse_configurations(node, folder, web, &mut mistakes),
    };
    // A capability file that can't be read is a mistake already.
    let mut reading = configurations.iter().map(|one| one.reads_web().unwrap_or_default());
    let may_lack_documents = has_web || web || reading.any(|reads_web| reads_web);
    let documents = match file.find_field("documents") {
        None if may_lack_documents => Some((None, BTreeSet::new())),
        _ => mistakes.check(require_documents(&file).and_then(|node| {
            let documents = folder.join(node.parse_text("documents")?);
            let paths = list_document_paths(node, &documents)?;
            Ok((Some(documents), paths))
        })),
    };
    let known = documents.as_ref().map(|(_, paths)| paths);
    let objectives = match mistakes.check(file.require_field("objectives")) {
        Some(node) => parse_objectives(node, known, &mut mistakes),
        None => Vec::new(),
    };
    mistakes.finish()?;
    Ok(EvaluationFile {
        name: name.unwrap_or_else(|| EntryName::from_any_text(stem)),
        documents: documents.and_then(|(folder, _)| folder),
        web,
        samples,
        timeout,
        budget: budget.unwrap_or_default(),
        configurations,
        objectives,
    })
}

fn list_document_paths(node: &YamlNode, folder: &Path) -> Result<BTreeSet<String>, YamlMistake> {
    let mistake = |text: String| YamlMistake::at_position(node.position, text);
    let (files, _) = list_folder_files(folder).map_err(|error| mistake(error.to_string()))?;
    if files.is_empty() {
        return Err(mistake(format!(
            "no readable documents in {}: {SUPPORTED} are supported",
            folder.display()
        )));
    }
    Ok(files.into_iter().map(|file| file.path).collect())
}

fn parse_name(node: &YamlNode, field: &str) -> Result<EntryName, YamlMistake> {
    let text = node.parse_text(field)?;
    EntryName::new(text).map_err(|why| YamlMistake::at_position(node.position, format!("{field:?} {why}")))
}

fn parse_samples(node: &YamlNode) -> Result<u32, YamlMistake> {
    let range = format!("from 1 to {MAX_SAMPLES}");
    match node.parse_integer("samples", &range)? {
        count if (1..=MAX_SAMPLES).contains(&count) => Ok(count),
        _ => Err(node.mismatch_error("samples", &format!("a whole number {range}"))),
    }
}

fn parse_timeout(node: &YamlNode) -> Result<Duration, YamlMistake> {
    match node.parse_duration("timeout")? {
        time if time.is_zero() => Err(node.mismatch_error("timeout", "more than 0 seconds")),
        time => Ok(time),
    }
}

/// Returns the field with the documents. Without it the agents must read the web.
fn require_documents<'a>(file: &MappingFields<'a>) -> Result<&'a YamlNode, YamlMistake> {
    file.require_field("documents").map_err(|mut mistake| {
        if mistake.text.ends_with("the field \"documents\"") {
            mistake.text.push_str("; to let agents read the web instead, add \"web: true\" or use --web");
        }
        mistake
    })
}

fn parse_configurations(
    node: &YamlNode,
    folder: &Path,
    web_of_file: bool,
    mistakes: &mut MistakeCollector,
) -> Vec<Configuration> {
    let nodes = mistakes.check(node.parse_list("configurations", "configurations")).unwrap_or_default();
    let mut names = BTreeSet::new();
    let mut all = Vec::new();
    for node in nodes {
        let Some(fields) =
            MappingFields::collect_from_node(node, "configuration", &CONFIGURATION_FIELDS, mistakes)
        else {
            continue;
        };
        let name = mistakes.check(fields.require_field("name").and_then(|node| {
            let name = parse_name(node, "name")?;
            refuse_repeated(node, &name, &mut names, "a configuration")?;
            Ok(name)
        }));
        let models = fields.find_field("models").map(parse_models);
        let models = mistakes.check_optional(models).unwrap_or_default();
        let capabilities = fields.find_field("capabilities").map(|node| parse_capabilities(node, folder));
        let capabilities = mistakes.check_optional(capabilities).unwrap_or_default();
        let web = mistakes.check_optional(fields.find_field("web").map(|node| node.parse_boolean("web")));
        let web = web.unwrap_or(web_of_file);
        all.extend(name.map(|name| Configuration { name, models, capabilities, web }));
    }
    all
}

fn refuse_repeated(
    node: &YamlNode,
    name: &EntryName,
    seen: &mut BTreeSet<EntryName>,
    what: &str,
) -> Result<(), YamlMistake> {
    if seen.insert(name.clone()) {
        return Ok(());
    }
    Err(YamlMistake::at_position(node.position, format!("there is already {what} {:?}", name.as_str())))
}

/// Returns the texts of a list, or of a single text, each with its node.
fn parse_texts<'a>(node: &'a YamlNode, field: &str) -> Result<Vec<(&'a YamlNode, &'a str)>, YamlMistake> {
    let texts = match &node.value {
        YamlValue::List(nodes) => nodes.iter().map(|one| Ok((one, one.parse_text(field)?))).collect(),
        YamlValue::Text(text) => Ok(vec![(node, text.as_str())]),
        YamlValue::Nothing | YamlValue::Flag(_) | YamlValue::Number(_) | YamlValue::Map(_) => {
            Err(node.mismatch_error(field, "text or a list of texts"))
        }
    };
    texts.and_then(|texts: Vec<_>| match texts.iter().find(|(_, text)| text.trim().is_empty()) {
        Some((node, _)) => Err(node.mismatch_error(field, "text that is not empty")),
        None => Ok(texts),
    })
}

fn parse_models(node: &YamlNode) -> Result<Vec<String>, YamlMistake> {
    let texts = parse_texts(node, "models")?;
    for (node, text) in &texts {
        parse_model_preferences(&[(*text).to_owned()])
            .map_err(|refused| YamlMistake::at_position(node.position, refused.error.to_string()))?;
    }
    let models: Vec<String> = texts.into_iter().map(|(_, text)| text.to_owned()).collect();
    parse_model_preferences(&models)
        .map_err(|refused| YamlMistake::at_position(node.position, refused.error.to_string()))?;
    Ok(models)
}

fn parse_capabilities(node: &YamlNode, folder: &Path) -> Result<Vec<PathBuf>, YamlMistake> {
    let files = parse_texts(node, "capabilities")?.into_iter().map(|(node, text)| {
        let path = folder.join(text);
        match millrace_worker::file::describe_capability_file(&path) {
            Ok(_) => Ok(path),
            Err(error) => Err(YamlMistake::at_position(node.position, error.to_string())),
        }
    });
    files.collect()
}

fn parse_objectives(
    node: &YamlNode,
    documents: Option<&BTreeSet<String>>,
    mistakes: &mut MistakeCollector,
) -> Vec<Objective> {
    let nodes = mistakes.check(node.parse_list("objectives", "objectives")).unwrap_or_default();
    if let YamlValue::List(nodes) = &node.value
        && nodes.is_empty()
    {
        mistakes.check::<()>(Err(node.mismatch_error("objectives", "a list with at least one objective")));
    }
    let mut ids = BTreeSet::new();
    nodes.iter().filter_map(|node| parse_objective(node, documents, &mut ids, mistakes)).collect()
}

fn parse_objective(
    node: &YamlNode,
    documents: Option<&BTreeSet<String>>,
    ids: &mut BTreeSet<EntryName>,
    mistakes: &mut MistakeCollector,
) -> Option<Objective> {
    let fields = MappingFields::collect_from_node(node, "objective", &OBJECTIVE_FIELDS, mistakes)?;
    let id = mistakes.check(fields.require_field("id").and_then(|node| {
        let id = parse_name(node, "id")?;
        refuse_repeated(node, &id, ids, "an objective")?;
        Ok(id)
    }));
    let text = mistakes.check(fields.require_field("objective").and_then(parse_objective_text));
    let named = fields.find_field("documents").map(|node| parse_document_paths(node, documents));
    let named = mistakes.check_optional(named).unwrap_or_default();
    let facts = match fields.find_field("facts") {
        None => Vec::new(),
        Some(node) => parse_statements(node, "facts", mistakes),
    };
    let wrong = match fields.find_field("wrong") {
        None => Vec::new(),
        Some(node) => parse_statements(node, "wrong", mistakes),
    };
    let answerable = fields.find_field("answerable").map(|node| node.parse_boolean("answerable"));
    let answerable = mistakes.check_optional(answerable);
    if mistakes.is_empty() {
        mistakes.check(check_answerable(node, answerable, !facts.is_empty()));
        mistakes.check(check_contradictions(node, &facts, &wrong));
    }
    Some(Objective { id: id?, text: text?.to_owned(), documents: named, facts, wrong })
}

fn parse_objective_text(node: &YamlNode) -> Result<&str, YamlMistake> {
    let text = node.parse_text("objective")?.trim();
    if text.is_empty() || text.len() > MAX_OBJECTIVE {
        let expected = format!("a question or work to do, of at most {MAX_OBJECTIVE} bytes");
        return Err(node.mismatch_error("objective", &expected));
    }
    Ok(text)
}

fn check_answerable(node: &YamlNode, answerable: Option<bool>, has_facts: bool) -> Result<(), YamlMistake> {
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
    Err(YamlMistake::at_position(node.position, text))
}

/// Refuses a wrong statement that is an expected fact.
fn check_contradictions(
    node: &YamlNode,
    facts: &[Statement],
    wrong: &[Statement],
) -> Result<(), YamlMistake> {
    for statement in wrong {
        for fact in facts {
            if let Some(text) = fact.texts().find(|text| statement.is_stated_in(&Wording::read(text))) {
                return Err(YamlMistake::at_position(
                    node.position,
                    format!(
                        "the wrong statement {:?} matches {text:?}, which is an expected fact",
                        statement.name
                    ),
                ));
            }
        }
    }
    Ok(())
}

fn parse_document_paths(
    node: &YamlNode,
    known: Option<&BTreeSet<String>>,
) -> Result<Vec<String>, YamlMistake> {
    let texts = parse_texts(node, "documents")?;
    for (node, path) in &texts {
        if let Some(known) = known.filter(|known| !known.contains(*path)) {
            let hint = did_you_mean_hint(path, known.iter().map(String::as_str));
            let text = format!("there is no document {path:?} in the documents' folder{hint}");
            return Err(YamlMistake::at_position(node.position, text));
        }
    }
    Ok(texts.into_iter().map(|(_, path)| path.to_owned()).collect())
}

fn parse_statements(node: &YamlNode, field: &str, mistakes: &mut MistakeCollector) -> Vec<Statement> {
    let nodes = mistakes.check(node.parse_list(field, "statements")).unwrap_or_default();
    nodes.iter().filter_map(|node| mistakes.check(parse_statement(node, field))).collect()
}

/// Reads a statement: a text, or a map with `any` (texts) and `pattern` (a regular expression).
fn parse_statement(node: &YamlNode, field: &str) -> Result<Statement, YamlMistake> {
    let text = match &node.value {
        YamlValue::Text(text) => Some(text.clone()),
        YamlValue::Number(number) => Some(number.to_string()),
        YamlValue::Map(_) => None,
        YamlValue::Nothing | YamlValue::Flag(_) | YamlValue::List(_) => {
            let expected = "text, or a map with any (texts) and pattern (a regular expression)";
            return Err(node.mismatch_error(field, expected));
        }
    };
    if let Some(text) = text {
        return Ok(Statement { spellings: vec![parse_spelling(node, &text)?], name: text });
    }
    let fields = MappingFields::from_node(node, "statement", &STATEMENT_FIELDS)?;
    let mut spellings = Vec::new();
    if let Some(node) = fields.find_field("any") {
        for (node, text) in parse_texts(node, "any")? {
            spellings.push(parse_spelling(node, text)?);
        }
    }
    if let Some(node) = fields.find_field("pattern") {
        spellings.push(Spelling::Pattern(parse_pattern(node)?));
    }
    let first = spellings.first().map(|spelling| match spelling {
        Spelling::Text(text) => text.clone(),
        Spelling::Pattern(pattern) => pattern.as_str().to_owned(),
    });
    let first = first.ok_or_else(|| {
        YamlMistake::at_position(node.position, "this statement needs \"any\" (texts) or \"pattern\"")
    })?;
    let name = fields.find_field("name").map(|node| node.parse_text("name")).transpose()?;
    Ok(Statement { name: name.map_or(first, str::to_owned), spellings })
}

fn parse_spelling(node: &YamlNode, text: &str) -> Result<Spelling, YamlMistake> {
    match Wording::read(text).is_empty() {
        true => Err(YamlMistake::at_position(node.position, format!("{text:?} has no word and no number"))),
        false => Ok(Spelling::Text(text.to_owned())),
    }
}

fn parse_pattern(node: &YamlNode) -> Result<Regex, YamlMistake> {
    let text = node.parse_text("pattern")?;
    let pattern = RegexBuilder::new(text).case_insensitive(true).size_limit(MAX_PATTERN).build();
    let pattern = pattern.map_err(|error| {
        let why = error.to_string();
        let why = why.lines().last().unwrap_or(&why).trim_start_matches("error: ").to_owned();
        YamlMistake::at_position(node.position, format!("{text:?} is not a valid regular expression: {why}"))
    })?;
    if pattern.is_match("") {
        let text = format!("the pattern {text:?} matches an empty text, so every answer would match");
        return Err(YamlMistake::at_position(node.position, text));
    }
    Ok(pattern)
}

/// Returns the configurations that the command line names: each model without a capability is one, and the others apply to
/// all of them. `web` is `true` if their clusters offer the web.
///
/// # Errors
/// A model name is invalid.
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
