//! Capabilities by name or by file. A capability file is of the kind `agent`, `command` or `http`.

use std::path::Path;
use std::sync::Arc;

use millrace_agent::model::ModelSelection;
use millrace_agent::skills::{LoadSkillsError, LoadedSkills, Skill, load_skills};
use millrace_agent::spec::{self, AgentSpec, CapabilityKind, KIND, MAX_BYTES};
use millrace_protocol::ids;
use millrace_protocol::result::{CapabilityDescription, CapabilityVersion};
use millrace_runtime::store::blobs::sha256_hex;
use millrace_strict_yaml::{LoadError, Position, YamlMistake, YamlMistakes, deserialize_field};
use serde_json::json;

use crate::Capability;
use crate::agent::Agent;
use crate::builtin;
use crate::external::command::{self, CommandCapability};

use crate::external::http::{self, HttpCapability};

use crate::tools::{self, AllToolNames, McpServers};

/// An error in opening a capability.
#[derive(Debug, thiserror::Error)]
pub enum OpenCapabilityError {
    /// There is no built-in capability with this name.
    #[error("there is no built-in capability {name:?}{hint}; available are {}, web_research; for a capability file, give its path, as in ./{name}.yaml", builtin::NAMES.join(", "))]
    Unknown {
        /// The name, cut to 80 characters.
        name: String,
        /// A suggestion: the most similar name.
        hint: String,
    },
    /// Its file is not readable or has a mistake in it.
    #[error(transparent)]
    File(#[from] LoadError),
}

/// A parsed capability file. Its tools are not open yet.
enum CapabilityFile {
    Agent(Box<AgentSpec>, McpServers),
    Command(CommandCapability),
    Http(HttpCapability),
}

/// Opens a capability by the name of a built-in one or by the path of a file. Text with a `/` in it, or with the ending
/// `.yaml` or `.yml`, is a path.
///
/// # Errors
/// The name is unknown, the file has a mistake in it, or a tool that it needs is not available on this machine.
pub async fn open_capability_by_name(name: &str) -> Result<Arc<dyn Capability>, OpenCapabilityError> {
    if !is_capability_file_name(name) {
        return open_built_in_capability(name).await;
    }
    let path = Path::new(name);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = millrace_strict_yaml::load_yaml_file(path, KIND, MAX_BYTES, |bytes| {
        let mut file = parse_capability_file(bytes, folder)?;
        file.version_mut().sha256 = Some(sha256_hex(bytes));
        Ok::<_, YamlMistakes>(file)
    })?;
    if let CapabilityFile::Command(command) = &mut file {
        command.hash_program();
    }
    Ok(file
        .open_capability(Some(folder))
        .await
        .map_err(|mistakes| LoadError::Mistakes { file: name.to_owned(), mistakes })?)
}

/// Validates a capability file and describes the capability. No tool is opened.
///
/// # Errors
/// The file can't be read, or has a mistake in it.
pub fn describe_capability_file(path: &Path) -> Result<CapabilityDescription, LoadError> {
    let file = load_capability_file(path)?;
    Ok(file.describe())
}

/// Returns the capability and the model of a capability file that names a model.
///
/// # Errors
/// The file can't be read, or has a mistake in it.
pub fn read_file_model(path: &Path) -> Result<Option<(ids::Capability, ModelSelection)>, LoadError> {
    let file = load_capability_file(path)?;
    Ok(match file {
        CapabilityFile::Agent(spec, _) => {
            let AgentSpec { about, model, .. } = *spec;
            model.map(|model| (about.name, model))
        }
        CapabilityFile::Command(_) | CapabilityFile::Http(_) => None,
    })
}

/// Returns `true` if the capability of a file is an agent whose model is that of the run or the worker.
///
/// # Errors
/// The file can't be read, or has a mistake in it.
pub fn needs_default_model(path: &Path) -> Result<bool, LoadError> {
    let file = load_capability_file(path)?;
    Ok(match file {
        CapabilityFile::Agent(spec, _) => spec.model.is_none(),
        CapabilityFile::Command(_) | CapabilityFile::Http(_) => false,
    })
}

/// Returns the reason why the MCP servers of a capability file can't start on this machine, if they can't.
///
/// # Errors
/// The file can't be read, or has a mistake in it.
pub fn find_missing_mcp_program(path: &Path) -> Result<Option<String>, LoadError> {
    let file = load_capability_file(path)?;
    Ok(match file {
        CapabilityFile::Agent(_, servers) => servers.check_environment().err(),
        CapabilityFile::Command(_) | CapabilityFile::Http(_) => None,
    })
}

/// `true` if a text is the path of a file rather than the name of a built-in capability.
#[must_use]
pub fn is_capability_file_name(name: &str) -> bool {
    let is_yaml = Path::new(name).extension().is_some_and(|end| end == "yaml" || end == "yml");
    is_yaml || name.contains(std::path::MAIN_SEPARATOR) || name.contains('/')
}

/// Returns the skills of a capability file that a worker would skip, each with its file and the mistake.
pub fn find_bad_skills(path: &Path) -> Result<Vec<String>, LoadError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = millrace_strict_yaml::load_yaml_file(path, KIND, MAX_BYTES, |bytes| {
        parse_capability_file(bytes, folder)
    })?;
    let CapabilityFile::Agent(spec, _) = file else { return Ok(Vec::new()) };
    let loaded = load_skills(&spec.skills).map_err(|error| LoadError::Mistakes {
        file: path.display().to_string(),
        mistakes: unusable_skills_error(&error).into(),
    })?;
    Ok(loaded.warnings)
}

async fn open_built_in_capability(name: &str) -> Result<Arc<dyn Capability>, OpenCapabilityError> {
    if let Some(spec) = builtin::read_built_in_agent(name) {
        let opened = CapabilityFile::Agent(Box::new(spec), McpServers::default()).open_capability(None).await;
        return opened.map_err(|mistakes| LoadError::Mistakes { file: name.to_owned(), mistakes }.into());
    }
    builtin::open_built_in(name).ok_or_else(|| {
        let names = builtin::NAMES.into_iter().chain([builtin::WEB_RESEARCH]);
        let hint = millrace_strict_yaml::did_you_mean_hint(name, names);
        OpenCapabilityError::Unknown { name: name.chars().take(80).collect(), hint }
    })
}

/// Parses a capability file whose capability is not opened.
fn load_capability_file(path: &Path) -> Result<CapabilityFile, LoadError> {
    millrace_strict_yaml::load_yaml_file(path, KIND, MAX_BYTES, |bytes| {
        parse_capability_file(bytes, Path::new("."))
    })
}

fn parse_capability_file(bytes: &[u8], folder: &Path) -> Result<CapabilityFile, YamlMistakes> {
    let root = millrace_strict_yaml::parse_yaml(bytes, KIND)?;
    let kind = root.child("kind").map(|kind| deserialize_field(kind, "kind")).transpose()?;
    match kind.unwrap_or_default() {
        CapabilityKind::Command => Ok(CapabilityFile::Command(CommandCapability::parse(&root, folder)?)),
        CapabilityKind::Http => Ok(CapabilityFile::Http(HttpCapability::parse(&root)?)),
        CapabilityKind::Agent => {
            let mut spec = AgentSpec::read(&root, &AllToolNames)?;
            spec.folder = spec.folder.map(|files| files.relative_to(folder));
            spec.skills.iter_mut().for_each(|skills| *skills = folder.join(&skills));
            let servers = McpServers::parse(&spec.servers)?;
            Ok(CapabilityFile::Agent(Box::new(spec), servers))
        }
    }
}

impl CapabilityFile {
    fn describe(&self) -> CapabilityDescription {
        match self {
            Self::Agent(spec, _) => spec.describe(),
            Self::Command(command) => command.info().to_capability_description(),
            Self::Http(http) => http.info().to_capability_description(),
        }
    }

    /// The version of the capability.
    fn version_mut(&mut self) -> &mut CapabilityVersion {
        match self {
            Self::Agent(spec, _) => &mut spec.about.version,
            Self::Command(command) => &mut command.about.version,
            Self::Http(http) => &mut http.about.version,
        }
    }

    /// Opens the tools that the file names.
    async fn open_capability(self, folder: Option<&Path>) -> Result<Arc<dyn Capability>, YamlMistakes> {
        Ok(match self {
            Self::Agent(spec, servers) => {
                check_host_folder(&spec)?;
                let skills = open_skills(&spec)?;
                let tools = tools::open_outside_tools(&spec).await?;
                Arc::new(Agent::from_spec(*spec, tools, servers, folder).with_skills(skills))
            }
            Self::Command(command) => Arc::new(command),
            Self::Http(http) => Arc::new(http),
        })
    }
}

/// Checks that the folder of the host that an agent works on can be opened.
fn check_host_folder(spec: &AgentSpec) -> Result<(), YamlMistake> {
    let Some(folder) = &spec.folder else { return Ok(()) };
    let unusable =
        |why| YamlMistake::at_position(Position { line: 1, column: 1 }, format!("\"files\": {why}"));
    folder.open().map(drop).map_err(unusable)
}

/// Loads the skills of an agent. Those that can't be used are skipped.
fn open_skills(spec: &AgentSpec) -> Result<Vec<Arc<Skill>>, YamlMistake> {
    let loaded = load_skills(&spec.skills).map_err(|error| unusable_skills_error(&error))?;
    let LoadedSkills { skills, warnings } = loaded;
    for warning in warnings {
        tracing::warn!(capability = %spec.about.name, warning, "skipping skill");
    }
    Ok(skills)
}

fn unusable_skills_error(error: &LoadSkillsError) -> YamlMistake {
    YamlMistake::at_position(Position { line: 1, column: 1 }, format!("\"skills\": {error}"))
}

/// Returns the JSON Schema of capability files.
#[must_use]
pub fn capability_file_schema() -> serde_json::Value {
    let agent = spec::agent_file_schema(&tools::tool_schemas(), &tools::mcp_servers_schema());
    let title = "A capability: what workers offer to tasks";
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "oneOf": [agent, command::capability_file_schema(), http::capability_file_schema()],
    })
}

#[cfg(test)]
mod tests {
    use millrace_protocol::plan::{ReviewCheck, ReviewPolicy};

    use super::*;

    #[tokio::test]
    async fn every_built_in_capability_opens_under_its_name() {
        for name in builtin::NAMES {
            let capability = open_capability_by_name(name).await.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(capability.describe().name.as_str(), name);
        }
        let error = open_capability_by_name("reserch").await.err().unwrap().to_string();
        assert!(
            error.starts_with("there is no built-in capability \"reserch\"; did you mean \"research\"?"),
            "{error}"
        );
        let error = open_capability_by_name("./none.yaml").await.err().unwrap().to_string();
        assert_eq!(error, "cannot read the capability file ./none.yaml");
    }

    #[test]
    fn the_review_in_a_file_of_any_kind_is_registered() {
        let review = json!({"checks": ["quotations", {"matches_not": "draft"}]});
        let checks = vec![ReviewCheck::Quotations, ReviewCheck::MatchesNot("draft".into())];
        for own in [
            json!({"instructions": "x"}),
            json!({"kind": "command", "command": ["cat"]}),
            json!({"kind": "http", "url": "http://127.0.0.1:1/x"}),
        ] {
            let mut file = own;
            (file["name"], file["description"], file["review"]) = ("a".into(), "x".into(), review.clone());
            let described =
                parse_capability_file(file.to_string().as_bytes(), Path::new(".")).unwrap().describe();
            assert_eq!(described.review, ReviewPolicy::Checks { checks: checks.clone() }, "{file}");
        }
    }

    /// `wrong_fields.txt` has a file in each line, mostly with one wrong field, and below it the messages.
    #[test]
    fn every_field_reports_its_wrong_values() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/golden/wrong_fields.txt");
        let golden = std::fs::read_to_string(&path).unwrap();
        let mut text = String::new();
        for file in golden.lines().filter(|line| !line.starts_with("=> ")) {
            let message = match parse_capability_file(file.as_bytes(), Path::new(".")) {
                Ok(_) => "valid".to_owned(),
                Err(mistakes) => mistakes.to_string(),
            };
            text += &format!("{file}\n=> {}\n", message.replace('\n', "\n=> "));
        }
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            return std::fs::write(&path, text).unwrap();
        }
        for (should, is) in golden.lines().zip(text.lines()) {
            assert_eq!(is, should);
        }
        assert_eq!(text, golden);
    }

    #[tokio::test]
    async fn the_examples_are_valid_capability_files() {
        let validator = jsonschema::validator_for(&capability_file_schema()).unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/capabilities");
        let mut count = 0;
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let own = ["research", "worker", "producer", "planner"]
            .map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("capabilities/{name}.yaml")));
        for path in files.filter(|path| path.extension().is_some_and(|end| end == "yaml")).chain(own) {
            describe_capability_file(&path).unwrap_or_else(|fault| panic!("{fault}"));
            let text = std::fs::read(&path).unwrap();
            let value = millrace_strict_yaml::parse_yaml(&text, KIND).unwrap().to_json();
            let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{}: {errors:?}", path.display());
            count += 1;
        }
        assert!(count >= 7, "{count}");
    }

    #[test]
    fn the_schema_and_the_parser_reject_the_same_files() {
        let validator = jsonschema::validator_for(&capability_file_schema()).unwrap();
        let good = json!({"name": "a", "description": "x", "instructions": "y"});
        let with = |name: &str, value: serde_json::Value| {
            let mut file = good.clone();
            file[name] = value;
            file
        };
        let parses =
            |file: &serde_json::Value| parse_capability_file(file.to_string().as_bytes(), Path::new("."));
        assert!(validator.is_valid(&good) && parses(&good).is_ok());
        for fine in [
            with("tools", json!(["think", {"fetch_url": {"allowed_hosts": ["example.org"]}}])),
            with("limits", json!({"turns": 3, "cost": 0.5})),
            with("permissions", json!([{"paths": ["/secret"], "mode": "deny"}])),
            with("review", json!("critic")),
            with("review", json!({"checks": ["citations", {"command": ["lint"], "timeout": "30s"}]})),
            with(
                "review",
                json!({"criteria": ["It is short."], "models": ["ollama:a", "ollama:b"], "sample": 20}),
            ),
            json!({"kind": "command", "name": "a", "description": "x", "command": ["cat"], "effect": "pure"}),
            json!({"kind": "http", "name": "a", "description": "x", "url": "http://127.0.0.1:1/x"}),
        ] {
            assert!(validator.is_valid(&fine), "{fine}");
            assert!(parses(&fine).is_ok(), "{fine}");
        }
        for bad in [
            json!({}),
            with("name", json!("a b")),
            with("colour", json!("red")),
            with("tools", json!(["thin"])),
            with("tools", json!([{"think": {}}])),
            with("concurrency", json!(0)),
            with("review", json!("citic")),
            with("review", json!({"checks": [{"command": []}]})),
            with("answer", json!("poem")),
            with("limits", json!({"turn": 3})),
            with("kind", json!("magic")),
            with("kind", json!("command")),
            json!({"kind": "command", "name": "a", "description": "x", "command": []}),
            json!({"kind": "http", "name": "a", "description": "x"}),
        ] {
            assert!(!validator.is_valid(&bad), "{bad}");
            assert!(parses(&bad).is_err(), "{bad}");
        }
    }
}
