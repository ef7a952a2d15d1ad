//! The tasks of a plan file, and the lines of mistakes that concern the plan as a whole.

use std::time::Duration;

use jiff::Timestamp;
use millrace_agent::spec::ReviewForm;
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::{
    CapabilityRegistry, GraphError, OnFailedDependency, Plan, PlanTime, ReviewPolicy, StartEvent,
    StartEventExpiry, StartExpiryAction, TaskLimits, TaskSpec, check_new_tasks,
};
use millrace_protocol::time_text::parse_timestamp_within_a_year;
use millrace_strict_yaml::{
    FileDescription, Position, ValueMistake, YamlMistake, YamlMistakes, YamlNode, YamlValue,
    deserialize_field, did_you_mean_hint, from_form, tidy_schema, without_defaults,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::IntoDeserializer;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Deserializer};

use super::budget::AmountFields;
use crate::ReviewSchema;

/// The positions of the fields of a task that depend on the capabilities of the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskFieldPositions {
    capability: Position,
    /// The parameters as a whole, or else the task.
    parameters: Position,
    /// Each parameter, by name.
    by_name: Vec<(String, Position)>,
}

impl TaskFieldPositions {
    fn of_node(node: &YamlNode) -> Self {
        let parameters = node.child("parameters");
        let by_name = match parameters.map(|node| &node.value) {
            Some(YamlValue::Map(entries)) => {
                entries.iter().map(|entry| (entry.key.clone(), entry.node.position)).collect()
            }
            Some(_) | None => Vec::new(),
        };
        Self {
            capability: node.position_of("capability"),
            parameters: node.position_of("parameters"),
            by_name,
        }
    }

    /// Returns the position of the first parameter that a problem names in single quotes.
    fn problem_position(&self, problem: &str) -> Position {
        let named = self.by_name.iter().find(|(name, _)| problem.contains(&format!("'{name}'")));
        named.map_or(self.parameters, |(_, position)| *position)
    }
}

/// Returns the positions of the fields of all tasks of a list.
pub fn task_field_positions(list: &YamlNode) -> Vec<TaskFieldPositions> {
    list.items().iter().map(TaskFieldPositions::of_node).collect()
}

/// The tasks that the capabilities of a cluster do not fit.
#[derive(Debug, Default)]
pub struct CapabilityMistakes {
    /// No worker is known to provide their capabilities.
    pub unknown: Vec<YamlMistake>,
    /// Their capabilities do not accept their parameters.
    pub parameters: Vec<YamlMistake>,
}

/// Checks all tasks against the known capabilities.
pub fn find_capability_mistakes<'a>(
    tasks: impl IntoIterator<Item = &'a TaskSpec>,
    positions: &[TaskFieldPositions],
    known: &CapabilityRegistry,
) -> CapabilityMistakes {
    let mut mistakes = CapabilityMistakes::default();
    for (task, position) in tasks.into_iter().zip(positions) {
        let name = task.capability.as_str();
        if known.find_capability(&task.capability).is_none() {
            let hint = did_you_mean_hint(name, known.capability_names().map(Capability::as_str));
            let text = format!("no worker provides {name:?}{hint}; {}", known.format_task_capabilities());
            mistakes.unknown.push(YamlMistake::at_position(position.capability, text));
        } else if let Some(problem) = known.find_parameter_problem(task) {
            let text = format!("{name} does not accept the parameters of task {}: {problem}", task.id);
            let position = position.problem_position(&problem);
            mistakes.parameters.push(YamlMistake::at_position(position, text));
        }
    }
    mistakes
}

/// Returns the limits of a task with changes, if there are any.
#[must_use]
pub fn changed_limits(
    plan: &Plan,
    task: &TaskId,
    (max_attempts, run_time): (Option<u32>, Option<Duration>),
) -> Option<TaskLimits> {
    let old = plan.task(task).map(|task| task.spec.limits.clone()).unwrap_or_default();
    (max_attempts.is_some() || run_time.is_some()).then(|| TaskLimits {
        max_attempts: max_attempts.unwrap_or(old.max_attempts),
        run_time: run_time.unwrap_or(old.run_time),
        ..old
    })
}

/// A task of a plan.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "task", deny_unknown_fields)]
#[schemars(rename = "TaskSpec", transform = tidy_schema, transform = without_defaults)]
pub struct TaskForm {
    /// Its id, unique within the plan.
    id: TaskId,
    /// The objective, in plain language.
    objective: String,
    /// The capability that executes it.
    capability: Capability,
    /// The tasks whose results it uses.
    #[serde(default)]
    depends_on: Vec<TaskId>,
    /// Named parameters of the capability.
    #[serde(default)]
    parameters: TaskParameters,
    /// The review of its result.
    #[serde(default, deserialize_with = "from_form::<_, ReviewForm, _>")]
    #[schemars(with = "ReviewSchema")]
    review: ReviewPolicy,
    /// Its time limits and attempts.
    #[serde(default)]
    limits: TaskLimits,
    /// The policy for a dependency that fails or is cancelled.
    #[serde(default)]
    on_failed_dependency: OnFailedDependency,
    /// The budget of its attempts and their reviews together.
    #[serde(default)]
    budget: AmountFields,
    /// The time before which no attempt at it starts.
    not_before: Option<FileTime>,
    /// The event of the run without which no attempt at it starts.
    #[serde(default, deserialize_with = "read_event")]
    #[schemars(with = "Option<EventForm>")]
    wait_for_event: Option<Box<StartEvent>>,
    /// `true` if its result is the deliverable of the run. At most one task of a plan is final.
    #[serde(default)]
    r#final: bool,
}

impl From<TaskForm> for TaskSpec {
    fn from(form: TaskForm) -> Self {
        Self {
            depends_on: form.depends_on,
            parameters: form.parameters,
            review: form.review,
            limits: form.limits,
            on_failed_dependency: form.on_failed_dependency,
            budget: form.budget.into(),
            not_before: form.not_before.map(|FileTime(time)| time),
            wait_for_event: form.wait_for_event,
            is_final: form.r#final,
            ..Self::new(form.id, form.objective, form.capability)
        }
    }
}

fn read_event<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<StartEvent>>, D::Error> {
    from_form::<D, EventForm, _>(deserializer).map(Some)
}

/// Reads the tasks of a file.
pub fn read_tasks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<TaskSpec>, D::Error> {
    Ok(Vec::<TaskForm>::deserialize(deserializer)?.into_iter().map(TaskSpec::from).collect())
}

/// Parses a value of `on_failed_dependency`.
pub fn parse_on_failed_dependency(text: &str) -> Result<OnFailedDependency, String> {
    let name: StrDeserializer<'_, serde::de::value::Error> = text.into_deserializer();
    OnFailedDependency::deserialize(name).map_err(|_| "it must be cancel, skip or ask".into())
}

/// Checks that the tasks of a file form a valid plan with those of `plan`.
pub fn check_tasks(list: &YamlNode, tasks: &[TaskSpec], plan: &Plan) -> Result<(), YamlMistake> {
    check_new_tasks(plan, tasks)
        .map_err(|error| locate_graph_error(&error, list.position, list.items(), tasks, plan))
}

// ---- mistakes of the plan as a whole

/// Converts a mistake of the plan to one with the line of the task it concerns; other tasks are mentioned with theirs.
fn locate_graph_error(
    error: &GraphError,
    list: Position,
    nodes: &[YamlNode],
    tasks: &[TaskSpec],
    plan: &Plan,
) -> YamlMistake {
    let places = TaskPositions { nodes, tasks };
    let (position, more) = match error {
        GraphError::Empty | GraphError::TooManyTasks(_) => (None, String::new()),
        GraphError::DuplicateTask(id) => {
            let mut definitions = places.nodes_with_id(id).map(|node| node.position_of("id"));
            // If the file has it only once, the other one is in the existing plan.
            match (definitions.next(), definitions.next()) {
                (Some(first), Some(second)) => (Some(second), first_is_at(first)),
                (first, _) => (first, String::new()),
            }
        }
        GraphError::MissingDependency { task, dependency } => {
            let existing = plan.tasks().iter().map(|task| task.spec.id.as_str());
            let hint = did_you_mean_hint(dependency.as_str(), places.other_task_ids(task).chain(existing));
            (places.dependency_position(task, dependency, 0), hint)
        }
        GraphError::SelfDependency(task) => (places.dependency_position(task, task, 0), String::new()),
        GraphError::DuplicateDependency { task, dependency } => {
            (places.dependency_position(task, dependency, 1), String::new())
        }
        GraphError::Cycle(ids) => {
            let positions = ids.iter().filter_map(|id| places.position_of_field(id, "id"));
            let lines: Vec<String> = positions.map(|position| position.line.to_string()).collect();
            let first = ids.first().and_then(|id| places.position_of_field(id, "id"));
            (first, format!(" (on lines {})", lines.join(", ")))
        }
        GraphError::TwoFinal(first, second) => {
            let [first, second] = [first, second].map(|id| places.position_of_field(id, "final"));
            match (first, second) {
                (Some(first), Some(second)) => (Some(second), first_is_at(first)),
                (one, other) => (one.or(other), String::new()),
            }
        }
        GraphError::EmptyObjective(task) | GraphError::LongObjective { task, .. } => {
            (places.position_of_field(task, "objective"), String::new())
        }
        GraphError::Limit { task, limit, .. } => (places.limit_position(task, limit), String::new()),
        GraphError::ReservedCapability { task, .. } => {
            (places.position_of_field(task, "capability"), String::new())
        }
    };
    YamlMistake::at_position(position.unwrap_or(list), format!("{error}{more}"))
}

fn first_is_at(first: Position) -> String {
    format!("; the first is on line {}", first.line)
}

/// Looks up the YAML nodes of tasks by id.
struct TaskPositions<'a> {
    nodes: &'a [YamlNode],
    tasks: &'a [TaskSpec],
}

impl<'a> TaskPositions<'a> {
    fn nodes_with_id(&self, id: &TaskId) -> impl Iterator<Item = &'a YamlNode> + use<'a, '_> {
        let id = id.clone();
        self.nodes.iter().zip(self.tasks).filter(move |(_, task)| task.id == id).map(|(node, _)| node)
    }

    /// Returns the place of a field of a task, or else of the task.
    fn position_of_field(&self, id: &TaskId, name: &str) -> Option<Position> {
        self.nodes_with_id(id).next().map(|node| node.position_of(name))
    }

    /// Returns the place where a task lists a dependency; `time` 0 is the first time, 1 the second.
    fn dependency_position(&self, id: &TaskId, dependency: &TaskId, time: usize) -> Option<Position> {
        let (node, task) = self.nodes.iter().zip(self.tasks).find(|(_, task)| task.id == *id)?;
        let at = task.depends_on.iter().enumerate().filter(|(_, name)| *name == dependency).nth(time)?.0;
        Some(node.position_of(&format!("depends_on/{at}")))
    }

    /// Returns the place of a limit of a task, or else of its `limits` field, or else of the task.
    fn limit_position(&self, id: &TaskId, limit: &str) -> Option<Position> {
        let node = self.nodes_with_id(id).next()?;
        let place = if node.child(limit).is_some() { limit } else { &format!("limits/{limit}") };
        Some(node.position_of(place))
    }

    /// Returns the ids of all tasks except one.
    fn other_task_ids<'b>(&self, id: &'b TaskId) -> impl Iterator<Item = &'a str> + use<'a, 'b> {
        self.tasks.iter().map(|task| task.id.as_str()).filter(move |other| *other != id.as_str())
    }
}

/// The notation of a [`PlanTime`]: a timestamp, or a duration from the start of the run.
#[derive(Deserialize)]
#[serde(try_from = "YamlNode")]
pub(super) struct FileTime(pub PlanTime);

impl TryFrom<YamlNode> for FileTime {
    type Error = ValueMistake;

    fn try_from(node: YamlNode) -> Result<Self, ValueMistake> {
        let expected = "a time with its offset, such as 2026-12-01T09:00:00Z, or a duration from the start of the run, such as \"2h 30m\"";
        if let Some(after) = node.to_duration() {
            return Ok(Self(PlanTime::AfterStart(after)));
        }
        let Some(text) = node.as_text() else { return Err(node.mismatch(expected)) };
        let at = parse_timestamp_within_a_year(text, Timestamp::now());
        at.map(PlanTime::At).map(Self).map_err(|why| node.mismatch(&format!("{expected} ({why})")))
    }
}

impl JsonSchema for FileTime {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FileTime".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string", "format": "date-time", "examples": ["2026-12-01T09:00:00Z"] },
                { "type": "string", "description": "A duration from the start of the run.", "examples": ["90s", "2h 30m"] },
                { "type": "number", "minimum": 0, "description": "Seconds after the start of the run." },
            ],
        })
    }
}

/// The notations of a [`StartEvent`]: its name, or a map with the time at which the wait for it ends.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "the name of an event, or a map of name, until and on_expiry", rename_all = "lowercase")]
#[schemars(untagged, inline)]
pub(super) enum EventForm {
    Text(#[schemars(length(min = 1), extend("description" = "The name of the event."))] String),
    Map(EventFields),
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename = "wait_for_event", deny_unknown_fields)]
#[schemars(inline, transform = tidy_schema)]
#[schemars(extend("dependentRequired" = { "until": ["on_expiry"], "on_expiry": ["until"] }))]
pub(super) struct EventFields {
    /// The name of the event.
    #[schemars(length(min = 1))]
    name: String,
    /// The time at which the wait ends without the event.
    until: Option<FileTime>,
    /// The consequence for a task whose event was not signalled in time: it starts without it, or fails.
    on_expiry: Option<StartExpiryAction>,
}

impl TryFrom<EventForm> for Box<StartEvent> {
    type Error = ValueMistake;

    fn try_from(form: EventForm) -> Result<Self, ValueMistake> {
        let EventFields { name, until, on_expiry } = match form {
            EventForm::Text(name) => EventFields { name, until: None, on_expiry: None },
            EventForm::Map(fields) => fields,
        };
        let expiry = match (until, on_expiry) {
            (None, None) => None,
            (Some(FileTime(until)), Some(action)) => Some(StartEventExpiry { until, action }),
            (Some(_), None) => {
                let text =
                    "\"until\" needs \"on_expiry\": start or fail_task, for a task whose event does not come";
                return Err(ValueMistake::at("until", text));
            }
            (None, Some(_)) => {
                let text = "\"on_expiry\" needs \"until\", the time at which the wait ends";
                return Err(ValueMistake::at("on_expiry", text));
            }
        };
        Ok(Self::new(StartEvent { name, expiry }))
    }
}

/// Parses a time from the command line, in the format of a plan file; `none` removes it.
pub fn parse_not_before(text: &str) -> Result<PlanTime, YamlMistakes> {
    if text == "none" {
        return Ok(PlanTime::AfterStart(Duration::ZERO));
    }
    let kind = FileDescription { name: "time", holds: "a time or a duration" };
    let node = millrace_strict_yaml::parse_yaml(text.as_bytes(), kind)?;
    deserialize_field(&node, "the time").map(|FileTime(time)| time)
}

/// Parses an event from the command line, in the format of a plan file; `none` removes it.
pub fn parse_start_event(text: &str) -> Result<Box<StartEvent>, YamlMistakes> {
    if text == "none" {
        return Ok(Box::new(StartEvent { name: String::new(), expiry: None }));
    }
    let kind = FileDescription { name: "event", holds: "name, until and on_expiry" };
    let node = millrace_strict_yaml::parse_yaml(text.as_bytes(), kind)?;
    let event: EventForm = deserialize_field(&node, "wait_for_event")?;
    Box::try_from(event).map_err(|mistake| node.locate_mistake(mistake).into())
}
