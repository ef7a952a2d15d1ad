//! Applies a requested change to a draft: it becomes an edit, which the rules accept or refuse. It owns the advice that
//! is added to a refusal.

use millrace_protocol::plan::{
    Edit, Event, GraphError, OnFailedDependency, PlanDraft, Refusal, ReviewPolicy, TaskPatch, TaskSpec,
    TaskState,
};

use super::normalize::{self, find_capability, remove_empty_texts, resolve_task};
use super::request::{ChangeRequest, PatchRequest};
use super::{CapabilityOffer, messages};

/// The maximum number of the answer's own tasks that a refusal names.
const MAX_NAMED: usize = 12;

/// The reason that a change can't be applied.
pub(super) struct ChangeError {
    /// In words, with the alternatives.
    pub why: String,
    /// The edit that the rules refused, if it got that far.
    pub edit: Option<Box<Edit>>,
}

/// Applies a change and returns its events; `None` if no change is needed.
pub(super) fn apply_change(
    draft: &mut PlanDraft,
    offers: &[CapabilityOffer],
    change: &ChangeRequest,
) -> Result<Option<Vec<Event>>, ChangeError> {
    let edit = build_edit(draft, offers, change).map_err(|why| ChangeError { why, edit: None })?;
    let Some(edit) = edit else { return Ok(None) };
    let (edit, end) = split_off_final_mark(draft, edit);
    let mut changed = Vec::new();
    for edit in [Some(edit), end].into_iter().flatten() {
        match draft.apply_edit(edit.clone()) {
            Ok(events) => changed.extend(events),
            Err(refusal) => {
                return Err(ChangeError {
                    why: describe_refusal(draft, &edit, &refusal),
                    edit: Some(Box::new(edit)),
                });
            }
        }
    }
    Ok(Some(changed))
}

/// Splits the final mark off an added task if another task has it: the mark then moves by an edit of its own.
fn split_off_final_mark(draft: &PlanDraft, mut edit: Edit) -> (Edit, Option<Edit>) {
    let Edit::Add(specs) = &mut edit else { return (edit, None) };
    let has_end = draft.plan().tasks().iter().any(|task| task.spec.is_final);
    let mut ends = specs.iter_mut().filter(|spec| spec.is_final);
    let only = ends.next().filter(|_| has_end && ends.next().is_none());
    let end = only.map(|spec| {
        spec.is_final = false;
        Edit::MarkFinal { task: spec.id.clone() }
    });
    (edit, end)
}

fn build_edit(
    draft: &PlanDraft,
    offers: &[CapabilityOffer],
    change: &ChangeRequest,
) -> Result<Option<Edit>, String> {
    let existing = |name: &str| {
        resolve_task(draft.plan(), name).ok_or_else(|| messages::unknown_task_error(draft.plan(), name))
    };
    Ok(Some(match change {
        ChangeRequest::Add(tasks) => match normalize::build_specs(draft, offers, tasks)? {
            specs if specs.is_empty() => return Ok(None),
            specs => Edit::Add(specs),
        },
        ChangeRequest::Patch(request) => Edit::Patch(build_patch(draft, offers, request)?),
        ChangeRequest::Retry(retry) => {
            let task = existing(&retry.task)?;
            // A retry of a task that it depends on has brought it back.
            let is_pending = draft.plan().task(&task).is_some_and(|task| task.state() == TaskState::Pending);
            if is_pending && draft.edits().iter().any(|edit| matches!(edit, Edit::Retry { .. })) {
                return Ok(None);
            }
            Edit::Retry { task, feedback: retry.feedback.clone(), changes: None }
        }
        ChangeRequest::Cancel(cancel) => {
            let reason = cancel.reason.clone().filter(|reason| !reason.trim().is_empty());
            let reason = reason.unwrap_or_else(|| "the planner no longer needs it".into());
            Edit::Cancel { task: existing(&cancel.task)?, reason }
        }
        ChangeRequest::Final(task) => {
            let task = existing(task)?;
            if draft.plan().task(&task).is_some_and(|task| task.spec.is_final) {
                return Ok(None);
            }
            Edit::MarkFinal { task }
        }
        ChangeRequest::Finish(reason) => Edit::Finish { reason: reason.clone() },
        ChangeRequest::GiveUp(reason) => Edit::GiveUp { reason: reason.clone() },
    }))
}

fn build_patch(
    draft: &PlanDraft,
    offers: &[CapabilityOffer],
    request: &PatchRequest,
) -> Result<TaskPatch, String> {
    let plan = draft.plan();
    let task =
        resolve_task(plan, &request.task).ok_or_else(|| messages::unknown_task_error(plan, &request.task))?;
    let mut on_failed_dependency: Option<OnFailedDependency> = request.on_failed_dependency;
    let depends_on = match &request.depends_on {
        None => None,
        Some(names) => Some(normalize::resolve_dependencies(plan, &[], names)?),
    };
    // If the planner adds dependencies, the planner decides what to do when one of them is lost.
    if depends_on.is_some() && plan.task(&task).is_some_and(|task| task.spec.depends_on.is_empty()) {
        on_failed_dependency = on_failed_dependency.or(Some(OnFailedDependency::Ask));
    }
    Ok(TaskPatch {
        objective: request.objective.clone(),
        capability: request.capability.as_deref().map(|name| find_capability(offers, name)).transpose()?,
        depends_on,
        parameters: request.parameters.clone(),
        review: request.criteria.as_deref().map(|all| ReviewPolicy::critic(remove_empty_texts(all))),
        on_failed_dependency,
        ..TaskPatch::without_changes(task)
    })
}

/// Words a refusal and adds advice where its own text has none: the ids of the refused tasks are the planner's own, or made
/// from their capabilities, so that the planner may not know them.
fn describe_refusal(draft: &PlanDraft, edit: &Edit, refusal: &Refusal) -> String {
    let advice = match (edit, refusal) {
        (Edit::Add(specs), Refusal::Graph(GraphError::MissingDependency { .. })) => {
            let name = |spec: &TaskSpec| format!("{} ({})", spec.id, spec.capability);
            let new: Vec<String> = specs.iter().take(MAX_NAMED).map(name).collect();
            let (old, own) = match draft.plan().tasks() {
                [] => (String::new(), "your tasks are"),
                _ => (format!("; {}", messages::format_task_list(draft.plan())), "your new ones are"),
            };
            format!("{old}; {own} {}; write their ids in depends_on", new.join(", "))
        }
        (_, refusal) => advice_on(draft, refusal),
    };
    format!("{refusal}{advice}")
}

fn advice_on(draft: &PlanDraft, refusal: &Refusal) -> String {
    match refusal {
        Refusal::Graph(GraphError::MissingDependency { .. }) | Refusal::UnknownTask(_) => {
            format!("; {}", messages::format_task_list(draft.plan()))
        }
        Refusal::Graph(GraphError::TwoFinal(..)) => "; mark only one of them".into(),
        Refusal::Graph(GraphError::Cycle(_)) => "; remove one of these dependencies".into(),
        Refusal::Unusable(why) if why.starts_with("the objective is not achieved") => {
            "; continue, you get another turn when something has ended".into()
        }
        Refusal::WrongState { .. }
        | Refusal::AlreadySubmitted
        | Refusal::NotSubmitted
        | Refusal::RunAlreadyEnded(_)
        | Refusal::NotCurrentAttempt { .. }
        | Refusal::AuthorIsCritic(_)
        | Refusal::NotCurrentTurn { .. }
        | Refusal::NotDue(_)
        | Refusal::AlreadyApplied(_)
        | Refusal::WrongMoment(_)
        | Refusal::Unusable(_)
        | Refusal::Question { .. }
        | Refusal::UnknownCapability { .. }
        | Refusal::WrongParameters { .. }
        | Refusal::FixedPlan { .. }
        | Refusal::TooLarge { .. }
        | Refusal::Graph(
            GraphError::DuplicateTask(_)
            | GraphError::SelfDependency(_)
            | GraphError::DuplicateDependency { .. }
            | GraphError::Empty
            | GraphError::TooManyTasks(_)
            | GraphError::EmptyObjective(_)
            | GraphError::LongObjective { .. }
            | GraphError::Limit { .. }
            | GraphError::ReservedCapability { .. },
        ) => String::new(),
    }
}
