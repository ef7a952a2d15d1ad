//! The tools of an agent as its machine knows them: what the model is told of each, and how its calls are checked. It
//! owns what a bad call is told. It can't run a tool.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::arguments::read_arguments;
use super::{Inner, ToolSpec};
use crate::model::ToolCall;
use millrace_protocol::schema::{Compiled, nearest, straighten};

/// The most characters of a schema that a model is shown again.
const MAX_SCHEMA: usize = 2_000;

/// What a model is told of its tools, by name. Clones share it, and each schema is made ready for checking once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Specs(Arc<[Known]>);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Known {
    #[serde(flatten)]
    spec: ToolSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inner: Option<Inner>,
    #[serde(skip)]
    compiled: Compiled,
}

/// A call that may run.
pub(crate) struct Readable {
    pub arguments: Value,
    pub inner: Option<Inner>,
}

impl Default for Specs {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl Specs {
    pub(super) fn new(tools: impl Iterator<Item = (ToolSpec, Option<Inner>)>) -> Self {
        let known = tools.map(|(spec, inner)| Known { spec, inner, compiled: Compiled::default() });
        Self(known.collect())
    }

    /// The tools, by name.
    pub fn iter(&self) -> impl Iterator<Item = &ToolSpec> {
        self.0.iter().map(|known| &known.spec)
    }

    /// Whether there is a tool of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Which of the inner tools has this name, if one has.
    pub(crate) fn inner(&self, name: &str) -> Option<Inner> {
        self.find(name).and_then(|known| known.inner)
    }

    /// Reads a call and checks it.
    ///
    /// # Errors
    /// What the model is told in place of a result.
    pub(crate) fn read(&self, call: &ToolCall) -> Result<Readable, String> {
        let name = &call.name;
        let known = self.find(name).ok_or_else(|| self.unknown(name))?;
        let schema = &known.spec.schema;
        let mut arguments = read_arguments(&call.arguments)
            .map_err(|mistake| format!("the arguments of {name} {mistake}; expected: {}", shown(schema)))?;
        straighten(schema, &mut arguments);
        known.compiled.check(schema, &arguments).map_err(|mistakes| {
            format!("the arguments of {name} do not fit: {mistakes}. Correct them and call it again.")
        })?;
        Ok(Readable { arguments, inner: known.inner })
    }

    fn find(&self, name: &str) -> Option<&Known> {
        self.0.iter().find(|known| known.spec.name == name)
    }

    fn unknown(&self, name: &str) -> String {
        let names: Vec<&str> = self.iter().map(|spec| spec.name.as_str()).collect();
        let meant = nearest(name, names.iter().copied()).map(|near| format!("did you mean '{near}'? "));
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        let name: String = name.chars().take(100).collect();
        format!("there is no tool '{name}'; {}the tools are: {names}", meant.unwrap_or_default())
    }
}

fn shown(schema: &Value) -> String {
    let text = schema.to_string();
    if text.chars().count() <= MAX_SCHEMA { text } else { "an object as its description says".into() }
}
