//! The instructions of an agent as a template over its run, its task and its documents. It owns the names that a template
//! may use; an unknown name is a mistake, found as early as possible.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::parameters::TaskParameters;
use minijinja::{Environment, UndefinedBehavior};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::roles::DocumentList;

/// Instructions with placeholders that are filled in for each task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Template(String);

/// The values for a template.
#[derive(Debug, Serialize)]
pub struct TemplateView<'a> {
    pub run: RunTemplateView<'a>,
    pub task: TaskTemplateView<'a>,
    /// The task's parameters.
    pub parameters: &'a TaskParameters,
    /// The documents of the run.
    pub documents: &'a DocumentList,
    /// The names of the agent's tools.
    pub tools: &'a [String],
    /// The day, as `2026-11-22`.
    pub today: String,
    /// The fields of the agent's state.
    pub state: BTreeMap<String, Value>,
    /// The agent's phase; empty if it has none.
    pub phase: String,
}

#[derive(Debug, Serialize)]
pub struct RunTemplateView<'a> {
    pub id: &'a RunId,
    /// The objective of the run, in the user's words.
    pub objective: &'a str,
}

#[derive(Debug, Serialize)]
pub struct TaskTemplateView<'a> {
    pub id: &'a TaskId,
    pub objective: &'a str,
    /// The feedback on earlier attempts.
    pub feedback: &'a [String],
    /// `true` if its result is the deliverable of the run.
    #[serde(rename = "final")]
    pub is_final: bool,
}

/// A mistake in a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct TemplateError {
    /// The line of the template, from 1, if known.
    pub line: Option<usize>,
    /// The mistake.
    pub text: String,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// The names that a template may use: of those with a dot, the first part has no other fields.
const NAMES: [&str; 14] = [
    "run.id",
    "run.objective",
    "task.id",
    "task.objective",
    "task.feedback",
    "task.final",
    "documents.count",
    "documents.paths",
    "documents.passed_over",
    "parameters",
    "tools",
    "today",
    "state",
    "phase",
];

impl Template {
    /// Parses a template.
    pub fn new(text: &str) -> Result<Self, TemplateError> {
        let environment = create_environment(UndefinedBehavior::Strict);
        let template =
            environment.template_from_str(text).map_err(|error| convert_minijinja_error(&error))?;
        let mut used: Vec<String> = template.undeclared_variables(true).into_iter().collect();
        used.sort_unstable();
        match used.iter().find(|name| !is_known_variable(name)) {
            None => Ok(Self(text.to_owned())),
            Some(unknown) => Err(TemplateError {
                line: line_of_variable(text, unknown),
                text: format!("there is no {unknown:?}; the names are {}", NAMES.join(", ")),
            }),
        }
    }

    /// `true` if there are no instructions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Renders the instructions for a task.
    ///
    /// # Errors
    /// A name has no value, such as a parameter that the task does not have.
    pub fn render(&self, view: &TemplateView<'_>) -> Result<String, TemplateError> {
        create_environment(UndefinedBehavior::Strict)
            .render_str(&self.0, view)
            .map_err(|error| convert_minijinja_error(&error))
    }

    /// Renders the instructions from the values of a view as JSON.
    pub fn render_value(&self, view: &Value) -> Result<String, TemplateError> {
        create_environment(UndefinedBehavior::Strict)
            .render_str(&self.0, view)
            .map_err(|error| convert_minijinja_error(&error))
    }

    /// The names of the agent's state that it uses, such as `phase` and `state.count`, sorted.
    pub fn state_names(&self) -> Vec<String> {
        let environment = create_environment(UndefinedBehavior::Strict);
        let Ok(template) = environment.template_from_str(&self.0) else { return Vec::new() };
        let is_state =
            |name: &String| matches!(name.split('.').next().unwrap_or_default(), "state" | "phase");
        let mut names: Vec<String> =
            template.undeclared_variables(true).into_iter().filter(is_state).collect();
        names.sort_unstable();
        names
    }

    /// Renders the instructions without a task: unknown values are left out.
    pub fn render_without_task(&self) -> String {
        let rendered = create_environment(UndefinedBehavior::Chainable).render_str(&self.0, ());
        rendered.unwrap_or_else(|_| self.0.clone())
    }
}

/// The date of a moment in UTC, in the form that templates and agents see.
#[must_use]
pub fn format_utc_date(now: Timestamp) -> String {
    now.strftime("%Y-%m-%d").to_string()
}

fn create_environment<'a>(undefined: UndefinedBehavior) -> Environment<'a> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(undefined);
    environment
}

fn is_known_variable(name: &str) -> bool {
    NAMES.iter().any(|path| {
        let below = name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        below || path.split_once('.').is_some_and(|(first, _)| first == name)
    })
}

fn line_of_variable(text: &str, name: &str) -> Option<usize> {
    text.find(name).map(|at| text[..at].matches('\n').count() + 1)
}

fn convert_minijinja_error(error: &minijinja::Error) -> TemplateError {
    let text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    TemplateError { line: error.line(), text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render_sample(text: &str) -> Result<String, String> {
        let template = Template::new(text).map_err(|error| error.to_string())?;
        let (run, task) = (RunId::new("r1").unwrap(), TaskId::new("t1").unwrap());
        let parameters = TaskParameters::from([("client".to_owned(), json!({"name": "ACME"}))]);
        let documents = DocumentList { count: 1, paths: vec!["a.txt".into()], passed_over: Vec::new() };
        let feedback = ["be brief".to_owned()];
        let view = TemplateView {
            run: RunTemplateView { id: &run, objective: "all of it" },
            task: TaskTemplateView { id: &task, objective: "a part", feedback: &feedback, is_final: true },
            parameters: &parameters,
            documents: &documents,
            tools: &["look".to_owned()],
            today: format_utc_date("2026-11-22T10:00:00Z".parse().unwrap()),
            state: BTreeMap::from([("count".to_owned(), json!(0))]),
            phase: "draft".into(),
        };
        template.render(&view).map_err(|error| error.to_string())
    }

    #[test]
    fn a_template_shows_the_run_the_task_and_its_documents() {
        let text = "{{ run.id }} {{ run.objective }} {{ task.id }} {{ task.objective }} {{ parameters.client.name }} \
                    {{ today }}{% if task.final %} final{% endif %}{% for text in task.feedback %} {{ text }}{% endfor %} \
                    {{ documents.paths | join(', ') }}{% if tools %} {{ tools | join(', ') }}{% endif %}";
        assert_eq!(
            render_sample(text).unwrap(),
            "r1 all of it t1 a part ACME 2026-11-22 final be brief a.txt look"
        );
    }

    #[test]
    fn unknown_names_are_reported_with_their_line() {
        assert!(render_sample("a\n{{ taks.id }}").unwrap_err().starts_with("line 2: there is no \"taks"));
        assert!(render_sample("{{ run.name }}").unwrap_err().starts_with("line 1: there is no \"run.name\""));
        assert!(render_sample("\n{{ parameters.colour.shade }}").unwrap_err().starts_with("line 2: "));
        assert!(render_sample("{% if %}").unwrap_err().starts_with("line 1: "));
    }
}
