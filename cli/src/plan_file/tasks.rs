//! The tasks of a plan file, and the places that mistakes of the plan as a whole are told at.

use millrace_agent::spec::review;
use millrace_forms::{Fields, Mistake, Node, Place, Value, did_you_mean};
use millrace_protocol::ids::{Capability, InvalidName, TaskId};
use millrace_protocol::plan::{GraphError, Limits, OnFailedDependency, Plan, TaskSpec, check};

use super::budget;

/// The fields of a task.
pub const FIELDS: [&str; 10] = [
    "id",
    "objective",
    "capability",
    "depends_on",
    "parameters",
    "review",
    "limits",
    "on_failed_dependency",
    "budget",
    "final",
];
/// The fields of a task's limits.
pub const LIMITS: [&str; 5] = ["max_attempts", "backoff", "queue_wait", "run_time", "silence"];

/// What can happen to a task when one it depends on is lost.
const POLICIES: [&str; 4] = ["cancel", "skip", "ask", "block"];

/// Reads the list of tasks, and checks that they make a plan with those that are there already.
pub fn read(node: &Node, plan: &Plan) -> Result<Vec<TaskSpec>, Mistake> {
    let nodes = node.list("tasks", "tasks")?;
    let tasks = nodes.iter().map(task).collect::<Result<Vec<_>, _>>()?;
    match check(plan, &tasks) {
        Ok(()) => Ok(tasks),
        Err(error) => Err(locate(&error, node.place, nodes, &tasks, plan)),
    }
}

fn task(node: &Node) -> Result<TaskSpec, Mistake> {
    let fields = Fields::of(node, "task", &FIELDS)?;
    let id = name(fields.required("id")?, "id", |text| TaskId::new(text))?;
    let objective = fields.required("objective")?.text("objective")?.to_owned();
    let capability = name(fields.required("capability")?, "capability", |text| Capability::new(text))?;
    let depends_on = match fields.get("depends_on") {
        None => Vec::new(),
        Some(node) => depends_on(node)?,
    };
    let parameters = match fields.get("parameters") {
        None => Default::default(),
        Some(node) => node.parameters("parameters")?.collect(),
    };
    Ok(TaskSpec {
        depends_on,
        parameters,
        review: fields.get("review").map(review).transpose()?.unwrap_or_default(),
        limits: fields.get("limits").map(limits).transpose()?.unwrap_or_default(),
        on_failed_dependency: fields.get("on_failed_dependency").map(policy).transpose()?.unwrap_or_default(),
        budget: match fields.get("budget") {
            None => Default::default(),
            Some(node) => budget::of(node, "task's budget")?,
        },
        is_final: fields.get("final").map(|node| node.flag("final")).transpose()?.unwrap_or_default(),
        ..TaskSpec::new(id, objective, capability)
    })
}

fn name<T>(node: &Node, field: &str, new: impl Fn(&str) -> Result<T, InvalidName>) -> Result<T, Mistake> {
    new(node.text(field)?).map_err(|error| Mistake::at(node.place, error.to_string()))
}

fn depends_on(node: &Node) -> Result<Vec<TaskId>, Mistake> {
    let items = node.list("depends_on", "task ids")?;
    items.iter().map(|item| name(item, "depends_on", |text| TaskId::new(text))).collect()
}

fn limits(node: &Node) -> Result<Limits, Mistake> {
    let fields = Fields::of(node, "task's limits", &LIMITS)?;
    let otherwise = Limits::default();
    let duration = |name: &str, otherwise| match fields.get(name) {
        None => Ok(otherwise),
        Some(node) => node.duration(name),
    };
    Ok(Limits {
        max_attempts: match fields.get("max_attempts") {
            None => otherwise.max_attempts,
            Some(node) => node.whole("max_attempts", "from 1 to 100")?,
        },
        backoff: duration("backoff", otherwise.backoff)?,
        queue_wait: duration("queue_wait", otherwise.queue_wait)?,
        run_time: duration("run_time", otherwise.run_time)?,
        silence: duration("silence", otherwise.silence)?,
    })
}

fn policy(node: &Node) -> Result<OnFailedDependency, Mistake> {
    Ok(policy_at(node.choice("on_failed_dependency", &POLICIES)?))
}

fn policy_at(at: usize) -> OnFailedDependency {
    match at {
        0 => OnFailedDependency::Cancel,
        1 => OnFailedDependency::Skip,
        _ => OnFailedDependency::Ask,
    }
}

/// What happens to a task when one it depends on is lost, by its word.
///
/// # Errors
/// There is no such word.
pub fn on_failed_dependency(text: &str) -> Result<OnFailedDependency, String> {
    let at = POLICIES.iter().position(|known| *known == text);
    at.map(policy_at).ok_or_else(|| "it must be cancel, skip or ask".into())
}

// ---- what is wrong with the plan as a whole

/// A mistake of the plan, at the line of the task that it is about; what else it is about is told with its line.
fn locate(error: &GraphError, list: Place, nodes: &[Node], tasks: &[TaskSpec], plan: &Plan) -> Mistake {
    let places = Places { nodes, tasks };
    let text = error.to_string();
    match error {
        GraphError::Empty | GraphError::TooManyTasks(_) => Mistake::at(list, text),
        GraphError::DuplicateTask(id) => {
            let mut found = places.all(id);
            let first = found.next().map_or(list, |node| field(node, "id"));
            // Where it is there once in the file, the other is in the plan that the file adds to.
            let Some(second) = found.next().map(|node| field(node, "id")) else {
                return Mistake::at(first, text);
            };
            Mistake::at(second, format!("{text}; the first is on line {}", first.line))
        }
        GraphError::MissingDependency { task, dependency } => {
            let there = plan.tasks().iter().map(|task| task.spec.id.as_str());
            let hint = did_you_mean(dependency.as_str(), places.ids_but(task).chain(there));
            Mistake::at(places.dependency(task, dependency, 0).unwrap_or(list), format!("{text}{hint}"))
        }
        GraphError::SelfDependency(task) => {
            Mistake::at(places.dependency(task, task, 0).unwrap_or(list), text)
        }
        GraphError::DuplicateDependency { task, dependency } => {
            Mistake::at(places.dependency(task, dependency, 1).unwrap_or(list), text)
        }
        GraphError::Cycle(ids) => {
            let lines: Vec<String> =
                ids.iter().filter_map(|id| Some(places.of(id, "id")?.line.to_string())).collect();
            let place = ids.first().and_then(|id| places.of(id, "id")).unwrap_or(list);
            Mistake::at(place, format!("{text} (on the lines {})", lines.join(", ")))
        }
        GraphError::TwoFinal(first, second) => {
            let (first, second) = (places.of(first, "final"), places.of(second, "final"));
            match (first, second) {
                (Some(first), Some(second)) => {
                    Mistake::at(second, format!("{text}; the first is on line {}", first.line))
                }
                (one, other) => Mistake::at(one.or(other).unwrap_or(list), text),
            }
        }
        GraphError::EmptyObjective(task) | GraphError::LongObjective { task, .. } => {
            Mistake::at(places.of(task, "objective").unwrap_or(list), text)
        }
        GraphError::Limit { task, limit, .. } => Mistake::at(places.limit(task, limit).unwrap_or(list), text),
        GraphError::ReservedCapability { task, .. } => {
            Mistake::at(places.of(task, "capability").unwrap_or(list), text)
        }
    }
}

/// The nodes of the tasks by their ids.
struct Places<'a> {
    nodes: &'a [Node],
    tasks: &'a [TaskSpec],
}

impl<'a> Places<'a> {
    fn all(&self, id: &TaskId) -> impl Iterator<Item = &'a Node> + use<'a, '_> {
        let id = id.clone();
        self.nodes.iter().zip(self.tasks).filter(move |(_, task)| task.id == id).map(|(node, _)| node)
    }

    /// The place of a task's field, or else of the task.
    fn of(&self, id: &TaskId, name: &str) -> Option<Place> {
        self.all(id).next().map(|node| field(node, name))
    }

    /// The place where a task names a dependency for the first time (0), or again (1).
    fn dependency(&self, id: &TaskId, dependency: &TaskId, time: usize) -> Option<Place> {
        let (node, task) = self.nodes.iter().zip(self.tasks).find(|(_, task)| task.id == *id)?;
        let at = task.depends_on.iter().enumerate().filter(|(_, name)| *name == dependency).nth(time)?.0;
        match &child(node, "depends_on")?.value {
            Value::List(items) => items.get(at).map(|item| item.place),
            Value::Nothing | Value::Flag(_) | Value::Number(_) | Value::Text(_) | Value::Map(_) => None,
        }
    }

    /// The place of one of a task's limits, which may be a field of its own, or else of the nearest thing around it.
    fn limit(&self, id: &TaskId, limit: &str) -> Option<Place> {
        let node = self.all(id).next()?;
        let own = child(node, limit);
        let among = || child(node, "limits").map(|limits| child(limits, limit).unwrap_or(limits));
        Some(own.or_else(among).map_or(node.place, |found| found.place))
    }

    /// The ids of all tasks but one.
    fn ids_but<'b>(&self, id: &'b TaskId) -> impl Iterator<Item = &'a str> + use<'a, 'b> {
        self.tasks.iter().map(|task| task.id.as_str()).filter(move |other| *other != id.as_str())
    }
}

fn child<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    match &node.value {
        Value::Map(entries) => entries.iter().find(|entry| entry.key == name).map(|entry| &entry.node),
        Value::Nothing | Value::Flag(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => None,
    }
}

fn field(node: &Node, name: &str) -> Place {
    child(node, name).map_or(node.place, |child| child.place)
}
