//! The instructions of an agent as a template over its run, its task and what belongs to it. It owns the names that a
//! template may use; a name that is not there is a mistake, found before anything runs as far as that can be.

use std::fmt;

use jiff::Timestamp;
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::result::Parameters;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;

use crate::roles::DocumentList;

/// Instructions with places for what is known only when a task is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template(String);

/// What a template can show.
#[derive(Debug, Serialize)]
pub struct View<'a> {
    /// The run.
    pub run: RunView<'a>,
    /// The task.
    pub task: TaskView<'a>,
    /// The task's parameters.
    pub parameters: &'a Parameters,
    /// The documents of the run.
    pub documents: &'a DocumentList,
    /// The day, as `2026-11-22`.
    pub today: String,
}

/// What a template sees of the run.
#[derive(Debug, Serialize)]
pub struct RunView<'a> {
    /// Its id.
    pub id: &'a RunId,
    /// What the user wants of it.
    pub objective: &'a str,
}

/// What a template sees of the task.
#[derive(Debug, Serialize)]
pub struct TaskView<'a> {
    /// Its id.
    pub id: &'a TaskId,
    /// What is to be done.
    pub objective: &'a str,
    /// What earlier attempts were told.
    pub feedback: &'a [String],
    /// Whether its result is the deliverable of the run.
    #[serde(rename = "final")]
    pub is_final: bool,
}

/// What is wrong with a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct TemplateError {
    /// The line of the template, from 1, where it is known.
    pub line: Option<usize>,
    /// What is wrong there.
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

/// The names that a template may use: those with a dot are all that there is below the first part.
const KNOWN: [&str; 11] = [
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
    "today",
];

impl Template {
    /// A template from its text.
    ///
    /// # Errors
    /// It is no template, or uses a name that there is not.
    pub fn new(text: &str) -> Result<Self, TemplateError> {
        let environment = environment(UndefinedBehavior::Strict);
        let template = environment.template_from_str(text).map_err(|error| of(&error))?;
        let mut used: Vec<String> = template.undeclared_variables(true).into_iter().collect();
        used.sort_unstable();
        match used.iter().find(|name| !is_known(name)) {
            None => Ok(Self(text.to_owned())),
            Some(unknown) => Err(TemplateError {
                line: line_of(text, unknown),
                text: format!("there is no {unknown:?}; there are {}", KNOWN.join(", ")),
            }),
        }
    }

    /// The instructions for a task.
    ///
    /// # Errors
    /// A name has no value, such as a parameter that the task does not have.
    pub fn render(&self, view: &View<'_>) -> Result<String, TemplateError> {
        environment(UndefinedBehavior::Strict).render_str(&self.0, view).map_err(|error| of(&error))
    }

    /// The instructions without a task: what is not known is left out.
    #[must_use]
    pub fn loosely(&self) -> String {
        let rendered = environment(UndefinedBehavior::Chainable).render_str(&self.0, ());
        rendered.unwrap_or_else(|_| self.0.clone())
    }
}

/// The day of a moment, in UTC, as templates and agents are told it.
#[must_use]
pub fn day(now: Timestamp) -> String {
    now.strftime("%Y-%m-%d").to_string()
}

fn environment<'a>(undefined: UndefinedBehavior) -> Environment<'a> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(undefined);
    environment
}

fn is_known(name: &str) -> bool {
    KNOWN.iter().any(|known| {
        let below = name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        below || known.split_once('.').is_some_and(|(whole, _)| whole == name)
    })
}

fn line_of(text: &str, name: &str) -> Option<usize> {
    text.find(name).map(|at| text[..at].matches('\n').count() + 1)
}

fn of(error: &minijinja::Error) -> TemplateError {
    let text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    TemplateError { line: error.line(), text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered(text: &str) -> Result<String, String> {
        let template = Template::new(text).map_err(|error| error.to_string())?;
        let (run, task) = (RunId::new("r1").unwrap(), TaskId::new("t1").unwrap());
        let parameters = Parameters::from([("client".to_owned(), json!({"name": "ACME"}))]);
        let documents = DocumentList { count: 1, paths: vec!["a.txt".into()], passed_over: Vec::new() };
        let feedback = ["be brief".to_owned()];
        let view = View {
            run: RunView { id: &run, objective: "all of it" },
            task: TaskView { id: &task, objective: "a part", feedback: &feedback, is_final: true },
            parameters: &parameters,
            documents: &documents,
            today: day("2026-11-22T10:00:00Z".parse().unwrap()),
        };
        template.render(&view).map_err(|error| error.to_string())
    }

    #[test]
    fn a_template_shows_the_run_the_task_and_what_belongs_to_it() {
        let text = "{{ run.id }} {{ run.objective }} {{ task.id }} {{ task.objective }} {{ parameters.client.name }} \
                    {{ today }}{% if task.final %} final{% endif %}{% for told in task.feedback %} {{ told }}{% endfor %} \
                    {{ documents.paths | join(', ') }}";
        assert_eq!(rendered(text).unwrap(), "r1 all of it t1 a part ACME 2026-11-22 final be brief a.txt");
    }

    #[test]
    fn what_is_not_there_is_told_with_its_line() {
        assert!(rendered("a\n{{ taks.id }}").unwrap_err().starts_with("line 2: there is no \"taks"));
        assert!(rendered("{{ run.name }}").unwrap_err().starts_with("line 1: there is no \"run.name\""));
        assert!(rendered("\n{{ parameters.colour.shade }}").unwrap_err().starts_with("line 2: "));
        assert!(rendered("{% if %}").unwrap_err().starts_with("line 1: "));
    }
}
