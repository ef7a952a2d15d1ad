//! The tasks of a plan file, and the lines of mistakes that concern the plan as a whole.

use std::time::Duration;

use millrace_agent::spec::ReviewForm;
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::{
    CapabilityRegistry, GraphError, OnFailedDependency, Plan, ReviewPolicy, StartEvent, TaskLimits, TaskSpec,
    check_new_tasks,
};
use millrace_strict_yaml::{
    Position, YamlMistake, YamlNode, YamlValue, did_you_mean_hint, from_form, tidy_schema, without_defaults,
};
use schemars::JsonSchema;
use serde::de::IntoDeserializer;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Deserializer};

use super::budget::AmountFields;
use super::schema::ReviewSchema;
use super::start::{EventForm, FileTime};

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
