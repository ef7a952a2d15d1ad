//! The changes that a planner can request through its tools and its answer, and their normalization: it corrects mistakes of models
//! that can mean only one thing before the rules see them, such as names with spaces or wrong case, or a report without dependencies.
//! All other mistakes are left as they are and reported by the rules.

use std::collections::BTreeSet;

use millrace_protocol::ids::{Capability, MAX_NAME, TaskId};
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::{
    CapabilityRegistry, OnFailedDependency, Plan, PlanDraft, ReviewPolicy, Task, TaskSpec, TaskState,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CapabilityOffer, filter_visible_offers, messages};

use crate::roles::PRODUCER;

/// Normalizes a text to a task id: characters that are not allowed become a hyphen. `None` if nothing is left.
fn normalize_task_name(text: &str) -> Option<TaskId> {
    let mut normalized = String::new();
    for c in text.trim().chars() {
        let c = if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        if c != '-' || !normalized.ends_with('-') {
            normalized.push(c);
        }
    }
    let normalized = normalized.trim_start_matches(['-', '_']);
    let normalized = &normalized[..normalized.len().min(MAX_NAME)];
    TaskId::new(normalized.trim_end_matches('-')).ok()
}

/// Finds the id that a text refers to, ignoring case and characters that are not allowed in ids.
fn resolve_id_among<'a>(ids: impl Iterator<Item = &'a TaskId> + Clone, text: &str) -> Option<TaskId> {
    let wanted = normalize_task_name(text)?;
    let same = |id: &&TaskId| **id == wanted;
    let alike = |id: &&TaskId| id.as_str().eq_ignore_ascii_case(wanted.as_str());
    let mut like = ids.clone().filter(alike);
    let only = like.next().filter(|_| like.next().is_none());
    ids.clone().find(same).or(only).cloned()
}

/// Finds the id among `ids` that a text refers to.
pub(super) fn find_task_id(ids: &[TaskId], text: &str) -> Option<TaskId> {
    resolve_id_among(ids.iter(), text)
}

/// Finds the task of the plan that a text refers to.
pub(super) fn resolve_task(plan: &Plan, text: &str) -> Option<TaskId> {
    // Nearly always an exact match, which the plan's index answers.
    let exact = normalize_task_name(text).filter(|id| plan.task(id).is_some());
    exact.or_else(|| resolve_id_among(plan.tasks().iter().map(|task| &task.spec.id), text))
}

/// Finds the capability that a text refers to; the rules refuse one that no worker offers.
pub(super) fn find_capability(offers: &[CapabilityOffer], text: &str) -> Result<Capability, String> {
    let wanted = text.trim().replace(' ', "-");
    let alike = |offer: &&CapabilityOffer| {
        let name = offer.about.name.as_str();
        name.eq_ignore_ascii_case(&wanted) || name.eq_ignore_ascii_case(&wanted.replace('-', "_"))
    };
    if let Some(offer) = offers.iter().find(alike) {
        return Ok(offer.about.name.clone());
    }
    let available = CapabilityRegistry::from_descriptions(offers.iter().map(|offer| &offer.about))
        .format_task_capabilities();
    Capability::new(&wanted).map_err(|_| format!("{text:?} is not a capability; {available}"))
}

/// Resolves a list of names to tasks, without duplicates; `new` are the ids that are added together with the dependent.
pub(super) fn resolve_dependencies(
    plan: &Plan,
    new: &[TaskId],
    names: &[String],
) -> Result<Vec<TaskId>, String> {
    let mut ids = Vec::new();
    for text in names.iter().filter(|text| !text.trim().is_empty()) {
        let id = resolve_id_among(new.iter(), text)
            .or_else(|| resolve_task(plan, text))
            .or_else(|| normalize_task_name(text));
        let id = id.ok_or_else(|| messages::unknown_task_error(plan, text))?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

pub(super) fn remove_empty_texts(texts: &[String]) -> Vec<String> {
    texts.iter().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect()
}

/// Builds the specs of requested tasks, without those that the plan has already.
pub(super) fn build_specs(
    draft: &PlanDraft,
    offers: &[CapabilityOffer],
    requests: &[TaskRequest],
) -> Result<Vec<TaskSpec>, String> {
    let plan = draft.plan();
    let ids = choose_task_ids(plan, requests);
    let mut specs = Vec::with_capacity(requests.len());
    for (request, id) in requests.iter().zip(&ids) {
        specs.push(build_spec(plan, offers, request, id, &ids)?);
    }
    specs.retain(|spec| !is_already_planned(plan, spec));
    reject_taken_ids(plan, &specs)?;
    keep_one_final(&mut specs);
    connect_report_to_inputs(plan, &mut specs);
    reject_report_without_input(plan, offers, &specs)?;
    reject_duplicates(plan, &specs)?;
    Ok(specs)
}

/// An id for each requested task: its own, or one made from its capability.
pub(super) fn choose_task_ids(plan: &Plan, requests: &[TaskRequest]) -> Vec<TaskId> {
    let own = |text: &str| resolve_task(plan, text).or_else(|| normalize_task_name(text));
    let own: Vec<Option<TaskId>> = requests.iter().map(|request| own(request.id.as_deref()?)).collect();
    let mut taken: BTreeSet<TaskId> = own.iter().flatten().cloned().collect();
    let generated = |request: &TaskRequest, taken: &BTreeSet<TaskId>| {
        let word =
            normalize_task_name(&request.capability).map_or_else(|| "task".into(), |word| word.to_string());
        let word = &word[..word.len().min(MAX_NAME - 10)];
        let mut names = (1..).filter_map(|number: u32| TaskId::new(format!("{word}-{number}")).ok());
        names.find(|id| plan.task(id).is_none() && !taken.contains(id)).expect("numbers do not end")
    };
    let all = own.into_iter().zip(requests).map(|(own, request)| {
        let id = own.unwrap_or_else(|| generated(request, &taken));
        taken.insert(id.clone());
        id
    });
    all.collect()
}

fn build_spec(
    plan: &Plan,
    offers: &[CapabilityOffer],
    request: &TaskRequest,
    id: &TaskId,
    new: &[TaskId],
) -> Result<TaskSpec, String> {
    let capability =
        find_capability(offers, &request.capability).map_err(|why| format!("task {id}: {why}"))?;
    let depends_on =
        resolve_dependencies(plan, new, &request.depends_on).map_err(|why| format!("task {id}: {why}"))?;
    let has_own_review =
        offers.iter().any(|offer| offer.about.name == capability && !offer.about.review.is_none());
    let review = match remove_empty_texts(&request.criteria) {
        none if none.is_empty() && has_own_review => ReviewPolicy::None,
        some => ReviewPolicy::critic(some),
    };
    Ok(TaskSpec {
        depends_on,
        parameters: request.parameters.clone(),
        review,
        on_failed_dependency: request.on_failed_dependency.unwrap_or(OnFailedDependency::Ask),
        is_final: request.is_final,
        ..TaskSpec::new(id.clone(), request.objective.trim(), capability)
    })
}

/// Lowercases a text and collapses its white space.
fn fold_case(text: &str) -> String {
    text.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

fn is_task_lost(task: &Task) -> bool {
    matches!(task.state(), TaskState::Failed | TaskState::Cancelled)
}

/// `true` if the plan has this very task, as when a planner repeats its whole plan.
fn is_already_planned(plan: &Plan, spec: &TaskSpec) -> bool {
    plan.task(&spec.id).is_some_and(|task| {
        !is_task_lost(task)
            && task.spec.capability == spec.capability
            && fold_case(&task.spec.objective) == fold_case(&spec.objective)
    })
}

fn reject_taken_ids(plan: &Plan, specs: &[TaskSpec]) -> Result<(), String> {
    let Some(task) = specs.iter().find_map(|spec| plan.task(&spec.id)) else { return Ok(()) };
    let advice = match is_task_lost(task) {
        true => "retry it with feedback, or give the new task another id",
        false => "change that one, or give the new task another id",
    };
    Err(format!("there already is a task {}, which is {}: {advice}", task.spec.id, task.state()))
}

/// Rejects tasks with the same objective, capability, parameters and dependencies: they would have the same result.
fn reject_duplicates(plan: &Plan, specs: &[TaskSpec]) -> Result<(), String> {
    let key = |spec: &TaskSpec| {
        let inputs: BTreeSet<&TaskId> = spec.depends_on.iter().collect();
        (fold_case(&spec.objective), spec.capability.clone(), format!("{:?} {inputs:?}", spec.parameters))
    };
    let live = plan.tasks().iter().filter(|task| !is_task_lost(task));
    let mut seen: std::collections::BTreeMap<_, &TaskId> =
        live.map(|task| (key(&task.spec), &task.spec.id)).collect();
    let mut repeated: Vec<(&TaskId, &TaskId)> = Vec::new();
    for spec in specs {
        match seen.get(&key(spec)) {
            Some(first) => repeated.push((&spec.id, first)),
            None => drop(seen.insert(key(spec), &spec.id)),
        }
    }
    match repeated.first() {
        None => Ok(()),
        Some((again, first)) => Err(format!(
            "{} of the new tasks duplicate another task, such as {again}, which is the same as {first}: leave them out, or \
             ask for something else",
            repeated.len()
        )),
    }
}

/// If several new tasks are marked final, keeps the mark on the one without dependents, or else on the one that reports.
fn keep_one_final(specs: &mut [TaskSpec]) {
    let named: BTreeSet<TaskId> = specs.iter().flat_map(|spec| spec.depends_on.iter().cloned()).collect();
    let ends = || specs.iter().filter(|spec| spec.is_final);
    let is_last = |spec: &&TaskSpec| !named.contains(&spec.id);
    let reports = |spec: &&TaskSpec| is_last(spec) && spec.capability.as_str() == PRODUCER;
    let only = |mut some: Box<dyn Iterator<Item = &TaskSpec> + '_>| {
        some.next().filter(|_| some.next().is_none()).map(|spec| spec.id.clone())
    };
    let end = only(Box::new(ends().filter(is_last))).or_else(|| only(Box::new(ends().filter(reports))));
    if let Some(end) = end {
        specs.iter_mut().filter(|spec| spec.id != end).for_each(|spec| spec.is_final = false);
    }
}

/// Makes a report without dependencies depend on all tasks that have no dependents.
fn connect_report_to_inputs(plan: &Plan, specs: &mut [TaskSpec]) {
    let named: BTreeSet<TaskId> = specs.iter().flat_map(|spec| spec.depends_on.iter().cloned()).collect();
    let is_report = |spec: &TaskSpec| {
        spec.capability.as_str() == PRODUCER && spec.depends_on.is_empty() && !named.contains(&spec.id)
    };
    let mut reports = specs.iter().enumerate().filter(|(_, spec)| is_report(spec));
    let Some((at, report)) = reports.next().filter(|_| reports.next().is_none()) else { return };
    let others_final = specs.iter().any(|spec| spec.is_final && spec.id != report.id);
    if others_final {
        return;
    }
    let old =
        find_tasks_without_dependents(plan).map(|task| task.spec.id.clone()).filter(|id| !named.contains(id));
    let new = specs.iter().map(|spec| &spec.id).filter(|id| **id != report.id && !named.contains(*id));
    specs[at].depends_on = old.chain(new.cloned()).collect();
}

/// Rejects a report without input: its content could only be invented.
fn reject_report_without_input(
    plan: &Plan,
    offers: &[CapabilityOffer],
    specs: &[TaskSpec],
) -> Result<(), String> {
    let has_no_input = |spec: &&TaskSpec| spec.capability.as_str() == PRODUCER && spec.depends_on.is_empty();
    let Some(report) = specs.iter().find(has_no_input) else { return Ok(()) };
    let others = filter_visible_offers(offers).into_iter().map(|offer| offer.about.name.as_str());
    let others: Vec<&str> = others.filter(|name| *name != PRODUCER).collect();
    if others.is_empty() {
        return Ok(());
    }
    let first =
        if plan.tasks().is_empty() { "add tasks that find things out first" } else { "name its tasks" };
    Err(format!(
        "task {} is for {PRODUCER}, which combines results of other tasks, but it depends on none: {first} ({}), and let \
         it depend on them",
        report.id,
        others.join(", ")
    ))
}

/// The tasks that are not lost and have no dependents, or only lost ones.
pub(super) fn find_tasks_without_dependents(plan: &Plan) -> impl Iterator<Item = &Task> {
    let is_used = |task: &Task| {
        plan.dependents(task).filter_map(|id| plan.task(id)).any(|dependent| !is_task_lost(dependent))
    };
    plan.tasks().iter().filter(move |task| !is_task_lost(task) && !is_used(task))
}

/// The final task that the plan implies if none is marked: the only task without dependents. If the marked one is lost, only
/// a new task, from the `began`-th on, can replace it.
pub(super) fn find_implied_final_task(plan: &Plan, began: usize) -> Option<&TaskId> {
    let end = plan.tasks().iter().find(|task| task.spec.is_final);
    if end.is_some_and(|task| !is_task_lost(task)) {
        return None;
    }
    let mut ends = find_tasks_without_dependents(plan).map(|task| &task.spec.id);
    let only = ends.next().filter(|_| ends.next().is_none())?;
    let is_new = || plan.tasks().iter().skip(began).any(|task| task.spec.id == *only);
    (end.is_none() || is_new()).then_some(only)
}

/// A requested task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// A short id, such as research-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The work, understandable without the other tasks.
    #[schemars(length(min = 1))]
    pub objective: String,
    /// The capability that does it.
    pub capability: String,
    /// The ids of the tasks whose results it needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    /// Up to three sentences that a critic can check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub criteria: Vec<String>,
    /// Named values, if the capability takes any.
    #[serde(default, skip_serializing_if = "TaskParameters::is_empty")]
    #[schemars(schema_with = "parameters_schema")]
    pub parameters: TaskParameters,
    /// If a dependency fails: ask you (the default), skip it, or cancel this task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "policy_schema")]
    pub on_failed_dependency: Option<OnFailedDependency>,
    /// true for the one task whose result is the deliverable.
    #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
}

/// Changes of a waiting task; omitted fields stay.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchRequest {
    /// The id of the task.
    pub task: String,
    /// The work to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// The capability that does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    /// All of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
    /// All of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub criteria: Option<Vec<String>>,
    /// Named values to set; null removes one.
    #[serde(default, skip_serializing_if = "TaskParameters::is_empty")]
    #[schemars(schema_with = "parameters_schema")]
    pub parameters: TaskParameters,
    /// As for a new task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "policy_schema")]
    pub on_failed_dependency: Option<OnFailedDependency>,
}

/// A task to run again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// The id of a task that has ended or waits for a retry.
    pub task: String,
    /// Instructions for the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
}

/// A task that is no longer needed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// The id of the task.
    pub task: String,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

fn parameters_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object" })
}

fn policy_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["ask", "skip", "cancel"] })
}

/// Shortens a schema without removing information for a model: optional fields need not be nullable, and objects need no
/// titles.
pub(super) fn shorten_schema(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("title");
            if let Some(Value::Array(kinds)) = fields.get_mut("type")
                && kinds.len() == 2
            {
                kinds.retain(|kind| kind != "null");
                let kind = kinds.pop().unwrap_or_default();
                fields.insert("type".into(), kind);
            }
            if fields.contains_key("properties") {
                fields.remove("description");
            }
            fields.values_mut().for_each(shorten_schema);
        }
        Value::Array(items) => items.iter_mut().for_each(shorten_schema),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// One requested change, from a tool or an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ChangeRequest {
    Add(Vec<TaskRequest>),
    Patch(PatchRequest),
    Retry(RetryRequest),
    Cancel(CancelRequest),
    Final(String),
    Finish(String),
    GiveUp(String),
}

impl ChangeRequest {
    /// Names the change in reports of mistakes.
    pub fn describe_change(&self) -> String {
        match self {
            Self::Add(_) => "the new tasks".into(),
            Self::Patch(patch) => format!("the change of '{}'", patch.task),
            Self::Retry(retry) => format!("the retry of '{}'", retry.task),
            Self::Cancel(cancel) => format!("the cancellation of '{}'", cancel.task),
            Self::Final(task) => format!("marking '{task}' final"),
            Self::Finish(_) => "finishing".into(),
            Self::GiveUp(_) => "giving up".into(),
        }
    }
}
