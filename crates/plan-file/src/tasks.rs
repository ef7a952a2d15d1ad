//! The tasks of a plan file, and the lines of mistakes that concern the plan as a whole.

use millrace_agent::spec::read_review;
use millrace_protocol::ids::{Capability, InvalidName, TaskId};
use millrace_protocol::plan::{
    CapabilityRegistry, GraphError, OnFailedDependency, Plan, TaskLimits, TaskSpec, check_new_tasks,
};
use millrace_strict_yaml::{
    MappingFields, MistakeCollector, Position, YamlMistake, YamlNode, YamlValue, did_you_mean_hint,
};

use super::{budget, start};

/// The fields of a task.
pub const FIELDS: [&str; 12] = [
    "id",
    "objective",
    "capability",
    "depends_on",
    "parameters",
    "review",
    "limits",
    "on_failed_dependency",
    "budget",
    "not_before",
    "wait_for_event",
    "final",
];
/// The fields of a task's limits.
pub const LIMITS: [&str; 5] = ["max_attempts", "backoff", "queue_wait", "run_time", "silence"];

/// Values of `on_failed_dependency`.
const POLICIES: [&str; 4] = ["cancel", "skip", "ask", "block"];

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
        let parameters = find_child_node(node, "parameters");
        let by_name = match parameters.map(|node| &node.value) {
            Some(YamlValue::Map(entries)) => {
                entries.iter().map(|entry| (entry.key.clone(), entry.node.position)).collect()
            }
            Some(
                YamlValue::Nothing
                | YamlValue::Flag(_)
                | YamlValue::Number(_)
                | YamlValue::Text(_)
                | YamlValue::List(_),
            )
            | None => Vec::new(),
        };
        Self {
            capability: field_position(node, "capability"),
            parameters: parameters.map_or(node.position, |found| found.position),
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
    match &list.value {
        YamlValue::List(nodes) => nodes.iter().map(TaskFieldPositions::of_node).collect(),
        YamlValue::Nothing
        | YamlValue::Flag(_)
        | YamlValue::Number(_)
        | YamlValue::Text(_)
        | YamlValue::Map(_) => Vec::new(),
    }
}

/// A task that the capabilities of a cluster do not fit.
pub enum CapabilityMistake {
    /// No worker is known to provide its capability.
    Unknown(YamlMistake),
    /// Its capability does not accept its parameters.
    Parameters(YamlMistake),
}

/// Checks all tasks against the known capabilities and returns every mistake.
pub fn find_capability_mistakes(
    tasks: &[TaskSpec],
    positions: &[TaskFieldPositions],
    known: &CapabilityRegistry,
) -> Vec<CapabilityMistake> {
    let check = |(task, position): (&TaskSpec, &TaskFieldPositions)| {
        let name = task.capability.as_str();
        if known.find_capability(&task.capability).is_none() {
            let hint = did_you_mean_hint(name, known.capability_names().map(Capability::as_str));
            let text = format!("no worker provides {name:?}{hint}; {}", known.format_task_capabilities());
            return Some(CapabilityMistake::Unknown(YamlMistake::at_position(position.capability, text)));
        }
        let problem = known.find_parameter_problem(task)?;
        let text = format!("{name} does not accept the parameters of task {}: {problem}", task.id);
        Some(CapabilityMistake::Parameters(YamlMistake::at_position(
            position.problem_position(&problem),
            text,
        )))
    };
    tasks.iter().zip(positions).filter_map(check).collect()
}

/// Reads the list of tasks and checks that, with the tasks of `plan`, they form a valid plan. Collects the mistakes; the
/// plan as a whole is checked once all tasks are valid.
pub fn parse_and_validate_tasks(
    node: &YamlNode,
    plan: &Plan,
    mistakes: &mut MistakeCollector,
) -> Vec<TaskSpec> {
    let nodes = mistakes.check(node.parse_list("tasks", "tasks")).unwrap_or_default();
    let mut tasks_mistakes = MistakeCollector::default();
    let tasks: Vec<TaskSpec> =
        nodes.iter().filter_map(|node| parse_task(node, &mut tasks_mistakes)).collect();
    let are_valid = tasks_mistakes.is_empty() && matches!(node.value, YamlValue::List(_));
    mistakes.append(tasks_mistakes);
    if are_valid && let Err(error) = check_new_tasks(plan, &tasks) {
        mistakes.check::<()>(Err(locate_graph_error(&error, node.position, nodes, &tasks, plan)));
    }
    tasks
}

fn parse_task(node: &YamlNode, mistakes: &mut MistakeCollector) -> Option<TaskSpec> {
    let fields = MappingFields::collect_from_node(node, "task", &FIELDS, mistakes)?;
    let name = |field: &str| fields.require_field(field);
    let id = name("id").and_then(|node| parse_name(node, "id", |text| TaskId::new(text)));
    let id = mistakes.check(id);
    let objective = name("objective").and_then(|node| Ok(node.parse_text("objective")?.to_owned()));
    let objective = mistakes.check(objective);
    let capability =
        name("capability").and_then(|node| parse_name(node, "capability", |text| Capability::new(text)));
    let capability = mistakes.check(capability);
    let depends_on = mistakes.check_optional(fields.find_field("depends_on").map(parse_depends_on));
    let parameters = fields
        .find_field("parameters")
        .map(|node| node.to_json_entries("parameters").map(|entries| entries.collect()));
    let parameters = mistakes.check_optional(parameters);
    let review = mistakes.check_optional(fields.find_field("review").map(read_review));
    let limits = mistakes.check_optional(fields.find_field("limits").map(parse_limits));
    let policy = fields.find_field("on_failed_dependency").map(parse_failed_dependency_policy);
    let policy = mistakes.check_optional(policy);
    let budget = fields.find_field("budget").map(|node| budget::parse_amounts(node, "task's budget"));
    let budget = mistakes.check_optional(budget);
    let not_before = fields.find_field("not_before").map(|node| start::parse_time(node, "not_before"));
    let not_before = mistakes.check_optional(not_before);
    let wait_for_event = mistakes.check_optional(fields.find_field("wait_for_event").map(start::parse_event));
    let is_final = fields.find_field("final").map(|node| node.parse_boolean("final"));
    let is_final = mistakes.check_optional(is_final);
    Some(TaskSpec {
        depends_on: depends_on.unwrap_or_default(),
        parameters: parameters.unwrap_or_default(),
        review: review.unwrap_or_default(),
        limits: limits.unwrap_or_default(),
        on_failed_dependency: policy.unwrap_or_default(),
        budget: budget.unwrap_or_default(),
        not_before,
        wait_for_event,
        is_final: is_final.unwrap_or_default(),
        ..TaskSpec::new(id?, objective?, capability?)
    })
}

fn parse_name<T>(
    node: &YamlNode,
    field: &str,
    new: impl Fn(&str) -> Result<T, InvalidName>,
) -> Result<T, YamlMistake> {
    new(node.parse_text(field)?).map_err(|error| YamlMistake::at_position(node.position, error.to_string()))
}

fn parse_depends_on(node: &YamlNode) -> Result<Vec<TaskId>, YamlMistake> {
    let items = node.parse_list("depends_on", "task ids")?;
    items.iter().map(|item| parse_name(item, "depends_on", |text| TaskId::new(text))).collect()
}

fn parse_limits(node: &YamlNode) -> Result<TaskLimits, YamlMistake> {
    let fields = MappingFields::from_node(node, "task's limits", &LIMITS)?;
    let defaults = TaskLimits::default();
    let duration = |name: &str, default| match fields.find_field(name) {
        None => Ok(default),
        Some(node) => node.parse_duration(name),
    };
    Ok(TaskLimits {
        max_attempts: match fields.find_field("max_attempts") {
            None => defaults.max_attempts,
            Some(node) => node.parse_integer("max_attempts", "from 1 to 100")?,
        },
        backoff: duration("backoff", defaults.backoff)?,
        queue_wait: duration("queue_wait", defaults.queue_wait)?,
        run_time: duration("run_time", defaults.run_time)?,
        silence: duration("silence", defaults.silence)?,
    })
}

fn parse_failed_dependency_policy(node: &YamlNode) -> Result<OnFailedDependency, YamlMistake> {
    Ok(failed_dependency_policy_at(node.index_of_choice("on_failed_dependency", &POLICIES)?))
}

fn failed_dependency_policy_at(at: usize) -> OnFailedDependency {
    match at {
        0 => OnFailedDependency::Cancel,
        1 => OnFailedDependency::Skip,
        _ => OnFailedDependency::Ask,
    }
}

/// Parses a value of `on_failed_dependency`.
///
/// # Errors
/// There is no such value.
pub fn parse_on_failed_dependency(text: &str) -> Result<OnFailedDependency, String> {
    let at = POLICIES.iter().position(|policy| *policy == text);
    at.map(failed_dependency_policy_at).ok_or_else(|| "it must be cancel, skip or ask".into())
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
    let text = error.to_string();
    match error {
        GraphError::Empty | GraphError::TooManyTasks(_) => YamlMistake::at_position(list, text),
        GraphError::DuplicateTask(id) => {
            let mut definitions = places.nodes_with_id(id);
            let first = definitions.next().map_or(list, |node| field_position(node, "id"));
            // If the file has it only once, the other one is in the existing plan.
            let Some(second) = definitions.next().map(|node| field_position(node, "id")) else {
                return YamlMistake::at_position(first, text);
            };
            YamlMistake::at_position(second, format!("{text}; the first is on line {}", first.line))
        }
        GraphError::MissingDependency { task, dependency } => {
            let existing = plan.tasks().iter().map(|task| task.spec.id.as_str());
            let hint = did_you_mean_hint(dependency.as_str(), places.other_task_ids(task).chain(existing));
            YamlMistake::at_position(
                places.dependency_position(task, dependency, 0).unwrap_or(list),
                format!("{text}{hint}"),
            )
        }
        GraphError::SelfDependency(task) => {
            YamlMistake::at_position(places.dependency_position(task, task, 0).unwrap_or(list), text)
        }
        GraphError::DuplicateDependency { task, dependency } => {
            YamlMistake::at_position(places.dependency_position(task, dependency, 1).unwrap_or(list), text)
        }
        GraphError::Cycle(ids) => {
            let lines: Vec<String> = ids
                .iter()
                .filter_map(|id| Some(places.position_of_field(id, "id")?.line.to_string()))
                .collect();
            let place = ids.first().and_then(|id| places.position_of_field(id, "id")).unwrap_or(list);
            YamlMistake::at_position(place, format!("{text} (on lines {})", lines.join(", ")))
        }
        GraphError::TwoFinal(first, second) => {
            let (first, second) =
                (places.position_of_field(first, "final"), places.position_of_field(second, "final"));
            match (first, second) {
                (Some(first), Some(second)) => {
                    YamlMistake::at_position(second, format!("{text}; the first is on line {}", first.line))
                }
                (one, other) => YamlMistake::at_position(one.or(other).unwrap_or(list), text),
            }
        }
        GraphError::EmptyObjective(task) | GraphError::LongObjective { task, .. } => {
            YamlMistake::at_position(places.position_of_field(task, "objective").unwrap_or(list), text)
        }
        GraphError::Limit { task, limit, .. } => {
            YamlMistake::at_position(places.limit_position(task, limit).unwrap_or(list), text)
        }
        GraphError::ReservedCapability { task, .. } => {
            YamlMistake::at_position(places.position_of_field(task, "capability").unwrap_or(list), text)
        }
    }
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
        self.nodes_with_id(id).next().map(|node| field_position(node, name))
    }

    /// Returns the place where a task lists a dependency; `time` 0 is the first time, 1 the second.
    fn dependency_position(&self, id: &TaskId, dependency: &TaskId, time: usize) -> Option<Position> {
        let (node, task) = self.nodes.iter().zip(self.tasks).find(|(_, task)| task.id == *id)?;
        let at = task.depends_on.iter().enumerate().filter(|(_, name)| *name == dependency).nth(time)?.0;
        match &find_child_node(node, "depends_on")?.value {
            YamlValue::List(items) => items.get(at).map(|item| item.position),
            YamlValue::Nothing
            | YamlValue::Flag(_)
            | YamlValue::Number(_)
            | YamlValue::Text(_)
            | YamlValue::Map(_) => None,
        }
    }

    /// Returns the place of a limit of a task, or else of its `limits` field, or else of the task.
    fn limit_position(&self, id: &TaskId, limit: &str) -> Option<Position> {
        let node = self.nodes_with_id(id).next()?;
        let own = find_child_node(node, limit);
        let among =
            || find_child_node(node, "limits").map(|limits| find_child_node(limits, limit).unwrap_or(limits));
        Some(own.or_else(among).map_or(node.position, |found| found.position))
    }

    /// Returns the ids of all tasks except one.
    fn other_task_ids<'b>(&self, id: &'b TaskId) -> impl Iterator<Item = &'a str> + use<'a, 'b> {
        self.tasks.iter().map(|task| task.id.as_str()).filter(move |other| *other != id.as_str())
    }
}

fn find_child_node<'a>(node: &'a YamlNode, name: &str) -> Option<&'a YamlNode> {
    match &node.value {
        YamlValue::Map(entries) => entries.iter().find(|entry| entry.key == name).map(|entry| &entry.node),
        YamlValue::Nothing
        | YamlValue::Flag(_)
        | YamlValue::Number(_)
        | YamlValue::Text(_)
        | YamlValue::List(_) => None,
    }
}

fn field_position(node: &YamlNode, name: &str) -> Position {
    find_child_node(node, name).map_or(node.position, |child| child.position)
}
