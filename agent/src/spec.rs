//! What an agent is, as data: the definition that a capability file gives in YAML and a builder gives in Rust. It owns
//! the form of the file, the words of its mistakes and the template of the instructions; it opens no model and no
//! tool, and runs nothing.

mod review;
mod schema;
mod template;

use std::path::Path;

use millrace_forms::{Fault, Fields, Kind, Mistake, Node, Place, Value, did_you_mean, typed};
use millrace_models::Choice;
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::Review;
use millrace_protocol::result::{CapabilityDescription, Consult};
use serde::{Deserialize, Serialize};

pub use review::{review, review_schema};
pub use schema::{common, merge, schema};
pub use template::{RunView, TaskView, Template, TemplateError, View, day};

use crate::files::permissions::{Permissions, Rules};
use crate::turn::Limits;

/// The most bytes of a capability file.
pub const MAX_BYTES: u64 = 1024 * 1024;
/// What the file is called in mistakes.
pub const KIND: Kind = Kind { name: "capability", holds: "a name and a description" };

/// The fields that capabilities of every kind have.
pub const COMMON: [&str; 7] = ["name", "kind", "description", "concurrency", "input", "output", "review"];
/// The fields of an agent besides [`COMMON`].
pub const AGENT: [&str; 8] =
    ["instructions", "model", "tools", "mcp", "permissions", "limits", "answer", "consult"];

/// What a capability of any kind says of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct About {
    /// Its name.
    pub name: Capability,
    /// What it does, for planners and people.
    pub description: String,
    /// How many attempts a worker has in hand at once; `None` is what the worker is told.
    pub slots: Option<u32>,
    /// The JSON Schema of a task's parameters; `None` takes any.
    pub input: Option<serde_json::Value>,
    /// The JSON Schema of a result's `data`; `None` promises nothing.
    pub output: Option<serde_json::Value>,
    /// How its results are judged where a task does not say.
    pub review: Review,
}

/// An agent: what it is told, what it may use and how it answers.
#[derive(Debug, Clone)]
pub struct Spec {
    /// What it says of itself.
    pub about: About,
    /// What stands above its conversation.
    pub instructions: Template,
    /// Its model; `None` leaves it to the run and the worker.
    pub model: Option<Choice>,
    /// The tools it gets.
    pub tools: Vec<ToolEntry>,
    /// The MCP servers whose tools it gets, as the file says them.
    pub servers: Vec<Node>,
    /// What it may do with files.
    pub permissions: Rules,
    /// How far it may go.
    pub limits: Limits,
    /// The form of its answer.
    pub answer: AnswerForm,
    /// Whether other agents may ask it short questions.
    pub is_consultable: bool,
}

/// A tool of an agent.
#[derive(Debug, Clone)]
pub struct ToolEntry {
    /// Its name.
    pub name: String,
    /// Where it stands in the file.
    pub place: Place,
    /// How it is set, where the file says that.
    pub settings: Option<Node>,
}

/// How an agent answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerForm {
    /// Markdown that cites passages of the run's documents, each of which is checked against the document.
    Findings,
    /// Markdown that cites the sources of the results it builds on, each of which is checked.
    Report,
    /// Plain text.
    #[default]
    Text,
    /// A JSON value that fits the capability's output schema.
    Data,
    /// Tasks for a plan. Only for the capability `planner`.
    Plan,
}

impl AnswerForm {
    /// All forms.
    pub const ALL: [Self; 5] = [Self::Findings, Self::Report, Self::Text, Self::Data, Self::Plan];

    /// Its name in a file; also that of the answer's schema.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Findings => "findings",
            Self::Report => "report",
            Self::Text => "text",
            Self::Data => "data",
            Self::Plan => "plan",
        }
    }
}

/// Which tool names a file may use.
pub trait Shelf {
    /// All of them.
    fn names(&self) -> Vec<&str>;

    /// Whether the tool of this name can be set.
    fn has_settings(&self, name: &str) -> bool;
}

impl About {
    /// Reads the common fields.
    ///
    /// # Errors
    /// The first mistake in them.
    pub fn read(fields: &Fields<'_>) -> Result<Self, Mistake> {
        let name = fields.required("name")?;
        let name = Capability::new(name.text("name")?)
            .map_err(|invalid| Mistake::at(name.place, invalid.to_string()))?;
        let description = fields.required("description")?;
        if description.text("description")?.trim().is_empty() {
            return Err(description.not("description", "a sentence that says what it does"));
        }
        let slots =
            fields.get("concurrency").map(|node| match node.whole("concurrency", "from 1 to 1000")? {
                slots @ 1..=1000 => Ok(slots),
                _ => Err(node.not("concurrency", "a whole number from 1 to 1000")),
            });
        Ok(Self {
            name,
            description: description.text("description")?.trim().to_owned(),
            slots: slots.transpose()?,
            input: fields.get("input").map(|node| json_schema(node, "input")).transpose()?,
            output: fields.get("output").map(|node| json_schema(node, "output")).transpose()?,
            review: fields.get("review").map(review).transpose()?.unwrap_or_default(),
        })
    }

    /// Adds what critics ask of every result; a capability whose results nobody judged has a review by that.
    pub fn ask(&mut self, sentence: &str) {
        let sentence = sentence.to_owned();
        self.review = match std::mem::take(&mut self.review) {
            Review::None => Review::critic(vec![sentence]),
            Review::Checks { checks } => Review::Critic {
                criteria: vec![sentence],
                checks,
                models: Vec::new(),
                quorum: None,
                sample_percent: None,
            },
            Review::Critic { mut criteria, checks, models, quorum, sample_percent } => {
                criteria.push(sentence);
                Review::Critic { criteria, checks, models, quorum, sample_percent }
            }
        };
    }

    /// What critics ask of every result, whatever a task's own review asks besides.
    fn criteria(&self) -> Vec<String> {
        match &self.review {
            Review::Critic { criteria, .. } => criteria.clone(),
            Review::None | Review::Checks { .. } => Vec::new(),
        }
    }

    /// What the registry is told.
    #[must_use]
    pub fn describe(&self) -> CapabilityDescription {
        CapabilityDescription {
            parameters: self.input.clone(),
            output: self.output.clone(),
            criteria: self.criteria(),
            review: self.review.clone(),
            ..CapabilityDescription::new(self.name.clone(), self.description.clone())
        }
    }
}

impl Spec {
    /// An agent that answers in plain text, with this name.
    ///
    /// # Panics
    /// `name` is no name: letters, digits, '-' and '_', at most 64.
    #[must_use]
    pub fn new(name: &str, description: &str) -> Self {
        let name = Capability::new(name).expect("a capability's name holds letters, digits, '-' and '_'");
        Self {
            about: About {
                name,
                description: description.to_owned(),
                slots: None,
                input: None,
                output: None,
                review: Review::None,
            },
            instructions: Template::default(),
            model: None,
            tools: Vec::new(),
            servers: Vec::new(),
            permissions: Rules::default(),
            limits: Limits::default(),
            answer: AnswerForm::default(),
            is_consultable: false,
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read, or has a mistake in it.
    pub fn load(path: &Path, shelf: &dyn Shelf) -> Result<Self, Fault> {
        millrace_forms::load(path, KIND, MAX_BYTES, |bytes| Self::parse(bytes, shelf))
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// The first mistake in them.
    pub fn parse(bytes: &[u8], shelf: &dyn Shelf) -> Result<Self, Mistake> {
        Self::read(&millrace_forms::read(bytes, KIND)?, shelf)
    }

    /// Reads the tree of a file.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn read(root: &Node, shelf: &dyn Shelf) -> Result<Self, Mistake> {
        let known: Vec<&str> = COMMON.into_iter().chain(AGENT).collect();
        let fields = Fields::of(root, "capability", &known)?;
        let about = About::read(&fields)?;
        let answer = fields.get("answer").map(answer_form).transpose()?.unwrap_or(match about.output {
            Some(_) => AnswerForm::Data,
            None => AnswerForm::Text,
        });
        if answer == AnswerForm::Data && about.output.is_none() {
            let place = fields.get("answer").map_or(root.place, |node| node.place);
            let text = "an answer of the form data needs its JSON Schema: add the field \"output\"";
            return Err(Mistake::at(place, text));
        }
        Ok(Self {
            about,
            instructions: instructions(fields.required("instructions")?)?,
            model: fields.get("model").map(|node| typed(node, "model")).transpose()?,
            tools: fields.get("tools").map(|node| tools(node, shelf)).transpose()?.unwrap_or_default(),
            servers: match fields.get("mcp") {
                None => Vec::new(),
                Some(node) => node.list("mcp", "MCP servers")?.to_vec(),
            },
            permissions: fields.get("permissions").map(permissions).transpose()?.unwrap_or_default(),
            limits: fields.get("limits").map(|node| typed(node, "limits")).transpose()?.unwrap_or_default(),
            answer,
            is_consultable: fields
                .get("consult")
                .map(|node| node.flag("consult"))
                .transpose()?
                .unwrap_or(false),
        })
    }

    /// What the registry is told.
    #[must_use]
    pub fn describe(&self) -> CapabilityDescription {
        let names = |choice: &Choice| {
            let names: Vec<&str> = choice.models.iter().map(|chosen| chosen.name.as_str()).collect();
            names.join(", ")
        };
        let consult = self.is_consultable.then(|| Consult {
            instructions: self.instructions.loosely(),
            model: self.model.as_ref().map(names),
        });
        CapabilityDescription { consult, ..self.about.describe() }
    }
}

fn instructions(node: &Node) -> Result<Template, Mistake> {
    let text = node.text("instructions")?;
    if text.trim().is_empty() {
        return Err(node.not("instructions", "what the agent is told"));
    }
    Template::new(text).map_err(|error| Mistake::at(node.place, format!("\"instructions\": {error}")))
}

fn permissions(node: &Node) -> Result<Rules, Mistake> {
    let rules: Permissions = typed(node, "list of permissions")?;
    rules.compile().map_err(|invalid| Mistake::at(node.place, format!("\"permissions\": {invalid}")))
}

fn answer_form(node: &Node) -> Result<AnswerForm, Mistake> {
    let names = AnswerForm::ALL.map(AnswerForm::name);
    Ok(AnswerForm::ALL[node.choice("answer", &names)?])
}

fn json_schema(node: &Node, name: &str) -> Result<serde_json::Value, Mistake> {
    let Value::Map(_) = node.value else {
        return Err(node.not(name, "a JSON Schema, which is a map"));
    };
    let schema = node.json();
    match jsonschema::validator_for(&schema) {
        Ok(_) => Ok(schema),
        Err(error) => Err(Mistake::at(node.place, format!("{name:?} is no JSON Schema: {error}"))),
    }
}

fn tools(node: &Node, shelf: &dyn Shelf) -> Result<Vec<ToolEntry>, Mistake> {
    let mut entries: Vec<ToolEntry> = Vec::new();
    for item in node.list("tools", "tools")? {
        let entry = tool(item, shelf)?;
        if entries.iter().any(|known| known.name == entry.name) {
            return Err(Mistake::at(entry.place, format!("the tool {:?} is there twice", entry.name)));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn tool(item: &Node, shelf: &dyn Shelf) -> Result<ToolEntry, Mistake> {
    let (name, place, settings) = match &item.value {
        Value::Text(name) => (name, item.place, None),
        Value::Map(entries) if entries.len() == 1 => {
            (&entries[0].key, entries[0].place, Some(entries[0].node.clone()))
        }
        Value::Nothing | Value::Flag(_) | Value::Number(_) | Value::List(_) | Value::Map(_) => {
            return Err(item.not("tools", "the name of a tool, or a map from its name to its settings"));
        }
    };
    let known = shelf.names();
    if !known.contains(&name.as_str()) {
        let hint = did_you_mean(name, known.iter().copied());
        let text = format!("there is no tool {name:?}{hint}; the tools are {}", known.join(", "));
        return Err(Mistake::at(place, text));
    }
    match settings {
        Some(_) if !shelf.has_settings(name) => {
            Err(Mistake::at(place, format!("the tool {name:?} has no settings; write its name alone")))
        }
        settings => Ok(ToolEntry { name: name.clone(), place, settings }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Few;

    impl Shelf for Few {
        fn names(&self) -> Vec<&str> {
            vec!["think", "read_document", "execute"]
        }

        fn has_settings(&self, name: &str) -> bool {
            name == "execute"
        }
    }

    const GOOD: &str = "\
name: legal
description: Answers questions of law.
instructions: You answer {{ task.objective }} for {{ parameters.client }}.
tools: [think, execute: {timeout: 5}]
input: {type: object, required: [client]}
review: {criteria: [It names the law.]}
concurrency: 2
";

    fn says(text: &str) -> String {
        match Spec::parse(text.as_bytes(), &Few) {
            Ok(spec) => panic!("it is {}", spec.about.name),
            Err(mistake) => mistake.to_string(),
        }
    }

    #[test]
    fn a_file_says_what_an_agent_is() {
        let spec = Spec::parse(GOOD.as_bytes(), &Few).unwrap();
        assert_eq!(
            (spec.about.name.as_str(), spec.about.slots, spec.answer),
            ("legal", Some(2), AnswerForm::Text)
        );
        assert_eq!(
            spec.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(),
            ["think", "execute"]
        );
        assert!(spec.tools[1].settings.is_some());
        let described = spec.describe();
        assert_eq!(described.criteria, ["It names the law."]);
        assert_eq!(described.review, Review::critic(described.criteria.clone()));
        assert!(described.parameters.is_some() && described.consult.is_none());
        let consulted = Spec::parse(format!("{GOOD}consult: true\n").as_bytes(), &Few).unwrap().describe();
        assert_eq!(consulted.consult.unwrap().instructions, "You answer  for .");
    }

    #[test]
    fn every_mistake_is_told_with_its_line_and_what_was_expected() {
        let with = |line: &str| says(&format!("{GOOD}{line}\n"));
        let instead = |from: &str, to: &str| says(&GOOD.replace(from, to));
        for (said, expected) in [
            (says(""), "1:1: there is nothing in the file; a capability has a name and a description"),
            (instead("name: legal", "name: le gal"), "1:7: \"le gal\" is no capability name"),
            (
                with("instrutions: x"),
                "8:1: there is no field \"instrutions\" in a capability; did you mean \"instructions\"?",
            ),
            (
                instead("description: Answers questions of law.\n", ""),
                "1:1: this capability lacks the field \"description\"",
            ),
            (
                instead("{{ task.objective }}", "{{ task.objectiv }}"),
                "3:15: \"instructions\": line 1: there is no \"task.objectiv\"",
            ),
            (instead("{{ task.objective }}", "{{ task.objective"), "3:15: \"instructions\": line 1: "),
            (
                instead("think,", "thikn,"),
                "4:9: there is no tool \"thikn\"; did you mean \"think\"?; the tools are think, read_document, execute",
            ),
            (
                instead("think,", "think: {a: 1},"),
                "4:9: the tool \"think\" has no settings; write its name alone",
            ),
            (instead("think,", "think, think,"), "4:16: the tool \"think\" is there twice"),
            (instead("type: object", "type: objct"), "5:8: \"input\" is no JSON Schema: "),
            (
                instead("criteria: [It names the law.]", "criteria: It"),
                "6:20: \"criteria\" must be a list of sentences, not the text \"It\"",
            ),
            (
                instead("concurrency: 2", "concurrency: 0"),
                "7:14: \"concurrency\" must be a whole number from 1 to 1000, not the number 0",
            ),
            (
                with("answer: finding"),
                "8:9: \"answer\" must be findings, report, text, data or plan, not the text \"finding\"; did you mean \"findings\"?",
            ),
            (
                with("answer: data"),
                "8:9: an answer of the form data needs its JSON Schema: add the field \"output\"",
            ),
            (with("limits: {turn: 3}"), "8:10: there is no field \"turn\" here; did you mean \"turns\"?"),
            (
                with("limits: {turns: many}"),
                "8:17: \"turns\": it must be a whole number of 0 or more, not the text \"many\"",
            ),
            (with("consult: maybe"), "8:10: \"consult\" must be true or false, not the text \"maybe\""),
            (with("mcp: {}"), "8:6: \"mcp\" must be a list of MCP servers, not a map"),
        ] {
            assert!(said.starts_with(expected), "{said}\n{expected}");
        }
    }
}
