//! The setup of a configuration: everything beside the objective and the documents that determines its samples. That is its
//! models with the scripts and recordings that they answer from, its capability files with the files that these name, the web,
//! and the settings of the environment that change prompts, tools or costs.
//!
//! Not part of it are the contents of a folder that agents work on (`files:`), since they change it, the memories below
//! `/memories`, the settings of reviewers' programs, and the address of a provider.

use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use millrace_agent::skills::load_skills;
use millrace_models::provider::default_model_selection;
use millrace_protocol::plan::Budget;
use millrace_runtime::store::blobs::sha256_hex;
use millrace_worker::file::{open_capability_by_name, read_file_model};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::environment::EvaluationEnvironment;
use super::input::file::{Configuration, list_of, read_capability_fields};
use super::store::SampleMethod;
use crate::exit::CommandError;
use crate::submission::parse_model_preferences;

/// The largest file of a program that is part of a setup, in bytes. A larger one is a runtime, such as an interpreter.
const MAX_PROGRAM: u64 = 64 * 1024 * 1024;
/// The models that answer from a file.
const FILE_MODELS: [&str; 2] = ["script:", "replay:"];

/// The conditions that all samples of an evaluation share.
#[derive(Debug, Clone)]
pub struct SampleConditions {
    /// The number of samples of each item.
    pub samples: u32,
    /// The time limit of a sample.
    pub timeout: Duration,
    pub budget: Budget,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationSetup {
    run: String,
    /// That of the model alone.
    model: String,
}

impl ConfigurationSetup {
    /// Reads the setup of a configuration.
    pub async fn read(
        configuration: &Configuration,
        environment: &EvaluationEnvironment,
    ) -> Result<Self, CommandError> {
        let models = model_parts(configuration, environment)?;
        let model = [models, environment.settings_parts()].concat();
        let mut run = model.clone();
        run.push(format!("web {}", configuration.web));
        for file in &configuration.capabilities {
            run.extend(capability_parts(file).await?);
        }
        if configuration.reads_web().map_err(CommandError::invalid_input)? {
            run.extend(environment.search_parts());
        }
        Ok(Self { run: hash_parts(&run), model: hash_parts(&model) })
    }

    /// Returns the fingerprint for samples that are measured in one way. The model alone and the verifier have no capabilities.
    pub fn fingerprint(&self, method: SampleMethod) -> &str {
        match method {
            SampleMethod::Run => &self.run,
            SampleMethod::Ceiling | SampleMethod::Verification | SampleMethod::Direct => &self.model,
        }
    }
}

/// Returns the SHA-256 of parts, in hexadecimal.
pub fn hash_hex(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash_parts(parts: &[String]) -> String {
    hash_hex(&parts.iter().map(String::as_str).collect::<Vec<_>>())
}

fn model_parts(
    configuration: &Configuration,
    environment: &EvaluationEnvironment,
) -> Result<Vec<String>, CommandError> {
    let models = match configuration.models.as_slice() {
        [] => environment.default_models(),
        models => models.to_vec(),
    };
    let preferences = parse_model_preferences(&models)?;
    let mut parts: Vec<String> = models.iter().map(|model| format!("model {model}")).collect();
    if preferences.default.is_none() {
        let default = default_model_selection(&|name| environment.variable(name));
        parts.extend(default.map(|default| format!("default model {default}")));
    }
    let chosen = preferences.default.iter().chain(preferences.by_capability.values());
    for model in chosen.flat_map(|choice| &choice.models) {
        parts.extend(model_file_part(&model.name));
    }
    Ok(parts)
}

/// Returns the part of the file that a model answers from, if it does.
fn model_file_part(model: &str) -> Option<String> {
    let file = FILE_MODELS.iter().find_map(|prefix| model.strip_prefix(prefix))?;
    Some(file_part("answers", file, Path::new(file)))
}

/// Returns the parts of a capability file: its text, and the files that it names.
async fn capability_parts(file: &Path) -> Result<Vec<String>, CommandError> {
    let (sha256, fields) = read_capability_fields(file).map_err(CommandError::invalid_input)?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut parts = vec![format!("capability {sha256}")];
    if fields["kind"] == "command" {
        // The build of an attempt: the hashes of the files that the command names.
        let path = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let opened = open_capability_by_name(&path.display().to_string()).await;
        let version = opened.map_err(CommandError::invalid_input)?.describe().version;
        let program = version.and_then(|version| version.program_sha256);
        parts.extend(program.map(|program| format!("command {program}")));
    }
    let skills: Vec<_> = texts_of(&fields["skills"]).map(|skills| folder.join(skills)).collect();
    let skills = load_skills(&skills)
        .map_err(|error| CommandError::invalid_input(anyhow!("{}: \"skills\": {error}", file.display())))?;
    parts.extend(
        skills.skills.iter().map(|skill| format!("skill {} {}", skill.entry.name, skill.entry.sha256)),
    );
    let memories = texts_of(&fields["memory"]).filter(|place| !place.starts_with('/'));
    parts.extend(memories.map(|place| file_part("memory", place, &folder.join(place))));
    for hook in list_of(&fields["hooks"]) {
        parts.extend(program_parts("hook", texts_of(&hook["command"]), folder));
    }
    for server in list_of(&fields["mcp"]) {
        // Its paths are relative to the folder in which the worker runs.
        let words = server["command"].as_str().into_iter().chain(texts_of(&server["args"]));
        parts.extend(program_parts("mcp", words, Path::new(server["cwd"].as_str().unwrap_or(""))));
    }
    let model = read_file_model(file).map_err(CommandError::invalid_input)?;
    parts.extend(
        model.iter().flat_map(|(_, choice)| &choice.models).filter_map(|model| model_file_part(&model.name)),
    );
    Ok(parts)
}

/// Returns the parts of the files that the words of a command name. A program that is found by `PATH` is not one of them.
fn program_parts<'a>(
    what: &str,
    words: impl Iterator<Item = &'a str>,
    folder: &Path,
) -> impl Iterator<Item = String> {
    let is_small = |file: &Path| {
        std::fs::metadata(file).is_ok_and(|about| about.is_file() && about.len() <= MAX_PROGRAM)
    };
    let files = words.map(move |word| (word, folder.join(word))).filter(move |(_, file)| is_small(file));
    files.map(move |(word, file)| file_part(what, word, &file))
}

/// Returns the part of a file that may be missing.
fn file_part(what: &str, name: &str, file: &Path) -> String {
    let content = std::fs::read(file).map_or_else(|_| "missing".to_owned(), |bytes| sha256_hex(&bytes));
    format!("{what} {name} {content}")
}

fn texts_of(value: &Value) -> impl Iterator<Item = &str> {
    list_of(value).filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::super::input::file::EntryName;
    use super::*;

    const AGENT: &str = "{name: a, description: d, instructions: i, tools: [read_file], skills: [skills], memory: [AGENTS.md, \
                         /memories/own.md], hooks: [{on: [before_tool], command: [sh, hook.sh]}], model: 'replay:REPLAY'}";
    const PROGRAM: &str = "{kind: command, name: p, description: d, command: [sh, run.sh], folder: programs}";
    /// The files that determine the samples of a configuration with these capability files.
    const FILES: [&str; 7] = [
        "skills/mill/SKILL.md",
        "skills/mill/references/wheel.md",
        "AGENTS.md",
        "hook.sh",
        "programs/run.sh",
        "script.yaml",
        "replay.jsonl",
    ];

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            let folder = Self(tempfile::tempdir().unwrap());
            let replay = folder.path_of("replay.jsonl").display().to_string();
            folder.write("agent.yaml", &AGENT.replace("REPLAY", &replay));
            folder.write("program.yaml", PROGRAM);
            FILES.iter().for_each(|file| folder.write(file, &text_of(file, "first")));
            folder
        }

        fn path_of(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            fs::create_dir_all(self.path_of(name).parent().unwrap()).unwrap();
            fs::write(self.path_of(name), text).unwrap();
        }

        async fn read_setup(&self, environment: &EvaluationEnvironment, web: bool) -> ConfigurationSetup {
            let configuration = Configuration {
                name: EntryName::from_any_text("a"),
                models: vec![format!("script:{}", self.path_of("script.yaml").display())],
                capabilities: ["agent.yaml", "program.yaml"].map(|file| self.path_of(file)).into(),
                web,
            };
            ConfigurationSetup::read(&configuration, environment)
                .await
                .unwrap_or_else(|error| panic!("{}", error.error))
        }
    }

    fn text_of(file: &str, text: &str) -> String {
        match file.ends_with("SKILL.md") {
            true => format!("---\nname: mill\ndescription: d\n---\n{text}\n"),
            false => text.to_owned(),
        }
    }

    #[tokio::test]
    async fn every_file_that_capability_files_name_counts() {
        let folder = Folder::new();
        let environment = EvaluationEnvironment::default();
        let first = folder.read_setup(&environment, false).await;
        folder.write("other.md", "not named");
        assert_eq!(folder.read_setup(&environment, false).await, first);
        for file in FILES {
            folder.write(file, &text_of(file, "second"));
            let changed = folder.read_setup(&environment, false).await;
            assert_ne!(changed.run, first.run, "{file}");
            // The model alone knows no capabilities.
            assert_eq!(changed.model == first.model, file != "script.yaml", "{file}");
            folder.write(file, &text_of(file, "first"));
            assert_eq!(folder.read_setup(&environment, false).await, first, "{file}");
        }
        fs::remove_file(folder.path_of("AGENTS.md")).unwrap();
        assert_ne!(folder.read_setup(&environment, false).await, first, "a missing memory");
    }

    #[tokio::test]
    async fn settings_and_the_web_count() {
        let folder = Folder::new();
        let with = |variables: &[(&str, &str)]| {
            let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            EvaluationEnvironment::from_variables(owned)
        };
        let first = folder.read_setup(&with(&[]), false).await;
        assert_eq!(folder.read_setup(&with(&[("MILLRACE_WEB", "true")]), false).await, first);
        assert_eq!(
            folder.read_setup(&with(&[("SEARXNG_URL", "http://s/")]), false).await,
            first,
            "nobody searches"
        );
        assert_ne!(folder.read_setup(&with(&[("MILLRACE_CONTEXT_WINDOW", "2048")]), false).await, first);
        let web = folder.read_setup(&with(&[]), true).await;
        assert_ne!(web.run, first.run);
        assert_eq!(web.model, first.model);
        assert_ne!(folder.read_setup(&with(&[("SEARXNG_URL", "http://s/")]), true).await, web);
    }

    #[tokio::test]
    async fn missing_folder_of_skills_is_reported_with_the_capability_file() {
        let folder = Folder::new();
        fs::remove_dir_all(folder.path_of("skills")).unwrap();
        let error = capability_parts(&folder.path_of("agent.yaml")).await.unwrap_err().error.to_string();
        assert!(error.contains("agent.yaml: \"skills\": the folder of skills"), "{error}");
    }
}
