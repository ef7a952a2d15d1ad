//! From what a command line names to a capability: a name is one that is built in, a path is a file. It owns the kinds
//! of file; what each kind does stands in its own place.

use std::path::Path;
use std::sync::Arc;

use millrace_agent::files::permissions::Permissions;
use millrace_agent::spec::{self, COMMON, KIND, MAX_BYTES, Spec};
use millrace_agent::tool::schema_of;
use millrace_forms::{Fault, Mistake, Node, Value};
use serde_json::json;

use crate::Capability;
use crate::agent::Agent;
use crate::builtin;
use crate::command::{self, Command};
use crate::http::{self, Http};
use crate::servers::{self, Servers};
use crate::shelf::{self, Whole};

/// The kinds of capability file.
const KINDS: [&str; 3] = ["agent", "command", "http"];

/// Why a capability can't be offered.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// No capability is built in under that name.
    #[error("there is no built-in capability {name:?}{hint}; there are {}, and files: name one by its path, as ./{name}.yaml", builtin::NAMES.join(", "))]
    Unknown {
        /// The name, cut to 80 characters.
        name: String,
        /// The nearest that there is.
        hint: String,
    },
    /// Its file can't be used.
    #[error(transparent)]
    File(#[from] Fault),
}

/// A capability that was read, but for what has to be tried out on this machine.
enum Read {
    Agent(Box<Spec>, Servers),
    Command(Command),
    Http(Http),
}

/// The capability that a text names: a text with a `/` in it, or one that ends in `.yaml` or `.yml`, is a file.
///
/// # Errors
/// There is none of that name, the file has a mistake in it, or what it needs can't be had on this machine.
pub async fn open(named: &str) -> Result<Arc<dyn Capability>, FileError> {
    if !is_file(named) {
        return built_in(named);
    }
    let path = Path::new(named);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let read = millrace_forms::load(path, KIND, MAX_BYTES, |bytes| read(bytes, folder))?;
    Ok(finish(read).await.map_err(|mistake| Fault::Mistake { file: named.to_owned(), mistake })?)
}

/// Looks whether a file describes a capability, and gives its name. Nothing is opened or tried out.
///
/// # Errors
/// It can't be read, or has a mistake in it.
pub fn check(path: &Path) -> Result<String, Fault> {
    let read = millrace_forms::load(path, KIND, MAX_BYTES, |bytes| read(bytes, Path::new(".")))?;
    let about = match &read {
        Read::Agent(spec, _) => &spec.about,
        Read::Command(command) => command.about(),
        Read::Http(http) => http.about(),
    };
    Ok(about.name.to_string())
}

/// Whether a text names a file rather than a built-in capability.
#[must_use]
pub fn is_file(named: &str) -> bool {
    let is_yaml = Path::new(named).extension().is_some_and(|end| end == "yaml" || end == "yml");
    is_yaml || named.contains(std::path::MAIN_SEPARATOR) || named.contains('/')
}

fn built_in(name: &str) -> Result<Arc<dyn Capability>, FileError> {
    builtin::open(name).ok_or_else(|| {
        let hint = millrace_forms::did_you_mean(name, builtin::NAMES);
        FileError::Unknown { name: name.chars().take(80).collect(), hint }
    })
}

fn read(bytes: &[u8], folder: &Path) -> Result<Read, Mistake> {
    let root = millrace_forms::read(bytes, KIND)?;
    match kind(&root)? {
        1 => Command::read(&root, folder).map(Read::Command),
        2 => Http::read(&root).map(Read::Http),
        _ => {
            let spec = Spec::read(&root, &Whole)?;
            let servers = Servers::read(&spec.servers)?;
            Ok(Read::Agent(Box::new(spec), servers))
        }
    }
}

fn kind(root: &Node) -> Result<usize, Mistake> {
    let Value::Map(entries) = &root.value else { return Ok(0) };
    let kind = entries.iter().find(|entry| entry.key == "kind");
    kind.map_or(Ok(0), |entry| entry.node.choice("kind", &KINDS))
}

async fn finish(read: Read) -> Result<Arc<dyn Capability>, Mistake> {
    Ok(match read {
        Read::Agent(spec, servers) => {
            let tools = shelf::open(&spec).await?;
            Arc::new(Agent::of(*spec, tools, servers))
        }
        Read::Command(command) => Arc::new(command),
        Read::Http(http) => Arc::new(http),
    })
}

/// The JSON Schema of a capability file.
#[must_use]
pub fn schema() -> serde_json::Value {
    let agent = spec::schema(&shelf::known(), &servers::schema(), &schema_of::<Permissions>());
    let title = "A capability: what workers offer to tasks";
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "oneOf": [agent, command::schema(), http::schema()],
    })
}

/// The fields of a kind besides those of all.
pub(crate) fn fields(own: &[&'static str]) -> Vec<&'static str> {
    COMMON.into_iter().chain(own.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use millrace_protocol::plan::{Review, ReviewCheck};

    use super::*;

    #[tokio::test]
    async fn every_built_in_capability_opens_under_its_name() {
        for name in builtin::NAMES {
            let capability = open(name).await.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(capability.describe().name.as_str(), name);
        }
        let told = open("reserch").await.err().unwrap().to_string();
        assert!(
            told.starts_with("there is no built-in capability \"reserch\"; did you mean \"research\"?"),
            "{told}"
        );
        let told = open("./none.yaml").await.err().unwrap().to_string();
        assert_eq!(told, "can't read the capability file ./none.yaml");
    }

    #[test]
    fn what_a_file_of_any_kind_says_of_reviews_is_what_the_cluster_is_told() {
        let review = json!({"checks": ["quotations", {"matches_not": "draft"}]});
        let checks = vec![ReviewCheck::Quotations, ReviewCheck::MatchesNot("draft".into())];
        for own in [
            json!({"instructions": "x"}),
            json!({"kind": "command", "command": ["cat"]}),
            json!({"kind": "http", "url": "http://127.0.0.1:1/x"}),
        ] {
            let mut file = own;
            (file["name"], file["description"], file["review"]) = ("a".into(), "x".into(), review.clone());
            let described = match read(file.to_string().as_bytes(), Path::new(".")).unwrap() {
                Read::Agent(spec, _) => spec.describe(),
                Read::Command(command) => command.about().describe(),
                Read::Http(http) => http.about().describe(),
            };
            assert_eq!(described.review, Review::Checks { checks: checks.clone() }, "{file}");
        }
    }

    #[tokio::test]
    async fn the_examples_are_capabilities_and_fit_the_schema() {
        let validator = jsonschema::validator_for(&schema()).unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/capabilities");
        let mut count = 0;
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let own = ["research", "worker", "producer", "planner"]
            .map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("capabilities/{name}.yaml")));
        for path in files.filter(|path| path.extension().is_some_and(|end| end == "yaml")).chain(own) {
            check(&path).unwrap_or_else(|fault| panic!("{fault}"));
            let text = std::fs::read(&path).unwrap();
            let value = millrace_forms::read(&text, KIND).unwrap().json();
            let wrong: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(wrong.is_empty(), "{}: {wrong:?}", path.display());
            count += 1;
        }
        assert!(count >= 7, "{count}");
    }

    #[test]
    fn the_schema_refuses_what_the_reader_refuses() {
        let validator = jsonschema::validator_for(&schema()).unwrap();
        let good = json!({"name": "a", "description": "x", "instructions": "y"});
        let with = |name: &str, value: serde_json::Value| {
            let mut file = good.clone();
            file[name] = value;
            file
        };
        let reads = |file: &serde_json::Value| read(file.to_string().as_bytes(), Path::new("."));
        assert!(validator.is_valid(&good) && reads(&good).is_ok());
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
            assert!(reads(&fine).is_ok(), "{fine}");
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
            assert!(reads(&bad).is_err(), "{bad}");
        }
    }
}
