//! All tools that a capability file can name: those of the desk, and those that reach out of the process, which are
//! opened here. It owns their list; what each does is its own business.

use std::process::ExitCode;
use std::sync::Arc;

use millrace_agent::desk::shelf::NAMES;
use millrace_agent::spec::{Shelf, Spec, ToolEntry};
use millrace_agent::tool::{Tool, schema_of};
use millrace_forms::{Mistake, typed};
use millrace_tools::execute::{self, Execute, Launcher};
use millrace_tools::web::{self, Fetch, Search, SearchSettings};
use serde::de::DeserializeOwned;
use serde_json::Value;

const EXECUTE: &str = "execute";
const FETCH: &str = "fetch_url";
const SEARCH: &str = "web_search";
/// The tools that can be set.
const OUTER: [&str; 3] = [EXECUTE, FETCH, SEARCH];

/// Does what tools that start programs ask of a new process, if this process was started for that; else returns `None`
/// at once. To be called first of all in `main`, before there are threads: a runtime's too, so not within
/// `#[tokio::main]`. Without it there is no `execute`, and programs of MCP servers may outlive a worker that is killed.
#[must_use]
pub fn launcher() -> Option<ExitCode> {
    execute::launcher()
}

/// This program as a means of starting others, if it is one.
pub(crate) fn this_program() -> Option<Launcher> {
    Launcher::this_program()
}

/// The shelf of a worker.
pub(crate) struct Whole;

impl Shelf for Whole {
    fn names(&self) -> Vec<&str> {
        NAMES.into_iter().chain(OUTER).collect()
    }

    fn has_settings(&self, name: &str) -> bool {
        OUTER.contains(&name)
    }
}

/// All names, with the schemas of the settings of those that have some.
pub(crate) fn known() -> Vec<(&'static str, Option<Value>)> {
    let inner = NAMES.into_iter().map(|name| (name, None));
    let outer = [
        (EXECUTE, schema_of::<execute::Settings>()),
        (FETCH, schema_of::<web::Settings>()),
        (SEARCH, schema_of::<SearchSettings>()),
    ];
    inner.chain(outer.map(|(name, schema)| (name, Some(schema)))).collect()
}

/// Opens the tools of an agent that are not of the desk.
///
/// # Errors
/// The settings of one do not fit, or it can't be had on this machine.
pub(crate) async fn open(spec: &Spec) -> Result<Vec<Arc<dyn Tool>>, Mistake> {
    let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
    for entry in &spec.tools {
        match entry.name.as_str() {
            EXECUTE => {
                let settings = settings::<execute::Settings>(entry)?;
                let launcher = this_program().ok_or_else(|| refuse(entry, &NoLauncher))?;
                let tool = Execute::open(settings, launcher).await.map_err(|error| refuse(entry, &error))?;
                tools.push(Arc::new(tool));
            }
            FETCH => {
                let tool = Fetch::new(settings(entry)?).map_err(|error| refuse(entry, &error))?;
                tools.push(Arc::new(tool));
            }
            SEARCH => {
                let tool = Search::new(settings(entry)?).map_err(|error| refuse(entry, &error))?;
                tools.push(Arc::new(tool));
            }
            _ => {}
        }
    }
    Ok(tools)
}

/// This program can't confine commands.
#[derive(Debug, thiserror::Error)]
#[error("this program can't confine commands; let its main begin with millrace_worker::launcher()")]
struct NoLauncher;

fn settings<T: DeserializeOwned + Default>(entry: &ToolEntry) -> Result<T, Mistake> {
    entry.settings.as_ref().map_or_else(|| Ok(T::default()), |node| typed(node, &entry.name))
}

fn refuse(entry: &ToolEntry, error: &dyn std::error::Error) -> Mistake {
    Mistake::at(entry.place, format!("the tool {:?} can't be had here: {error}", entry.name))
}
