//! A wish on a draft: it becomes an edit, and the rules are asked. It owns what a refusal is told with: what there is
//! instead.

use millrace_protocol::plan::{Draft, Edit, Event, GraphError, OnFailedDependency, Patch, Refusal, Review};

use super::kindness::{self, capability, criteria, meant};
use super::wish::{PatchWish, Wish};
use super::{Offer, told};

/// Why a wish can't be had.
pub(super) struct Refused {
    /// In words, with what to do instead.
    pub why: String,
    /// What the rules refuse, where it came as far as them.
    pub edit: Option<Box<Edit>>,
}

/// Tries a wish; what it changed is told by its events. `None`: it is so already.
pub(super) fn carry_out(
    draft: &mut Draft,
    offers: &[Offer],
    wish: &Wish,
) -> Result<Option<Vec<Event>>, Refused> {
    let edit = edit(draft, offers, wish).map_err(|why| Refused { why, edit: None })?;
    let Some(edit) = edit else { return Ok(None) };
    let (edit, end) = with_another_end(draft, edit);
    let mut changed = Vec::new();
    for edit in [Some(edit), end].into_iter().flatten() {
        match draft.apply(edit.clone()) {
            Ok(events) => changed.extend(events),
            Err(refusal) => return Err(Refused { why: said(draft, &refusal), edit: Some(Box::new(edit)) }),
        }
    }
    Ok(Some(changed))
}

/// A new task that is final takes that from the one that is.
fn with_another_end(draft: &Draft, mut edit: Edit) -> (Edit, Option<Edit>) {
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

fn edit(draft: &Draft, offers: &[Offer], wish: &Wish) -> Result<Option<Edit>, String> {
    let existing = |name: &str| meant(draft.plan(), name).ok_or_else(|| told::unknown(draft.plan(), name));
    Ok(Some(match wish {
        Wish::Add(tasks) => match kindness::specs(draft, offers, tasks)? {
            specs if specs.is_empty() => return Ok(None),
            specs => Edit::Add(specs),
        },
        Wish::Patch(patch) => Edit::Patch(patched(draft, offers, patch)?),
        Wish::Retry(retry) => Edit::Retry { task: existing(&retry.task)?, feedback: retry.feedback.clone() },
        Wish::Cancel(cancel) => {
            let reason = cancel.reason.clone().filter(|reason| !reason.trim().is_empty());
            let reason = reason.unwrap_or_else(|| "the planner does without it".into());
            Edit::Cancel { task: existing(&cancel.task)?, reason }
        }
        Wish::Final(task) => {
            let task = existing(task)?;
            if draft.plan().task(&task).is_some_and(|task| task.spec.is_final) {
                return Ok(None);
            }
            Edit::MarkFinal { task }
        }
        Wish::Finish(reason) => Edit::Finish { reason: reason.clone() },
        Wish::GiveUp(reason) => Edit::GiveUp { reason: reason.clone() },
    }))
}

fn patched(draft: &Draft, offers: &[Offer], wish: &PatchWish) -> Result<Patch, String> {
    let plan = draft.plan();
    let task = meant(plan, &wish.task).ok_or_else(|| told::unknown(plan, &wish.task))?;
    let mut on_failed_dependency: Option<OnFailedDependency> = wish.on_failed_dependency;
    let depends_on = match &wish.depends_on {
        None => None,
        Some(names) => Some(kindness::dependencies(plan, &[], names)?),
    };
    // What the planner puts behind other tasks is its own to judge when one of them is lost.
    if depends_on.is_some() && plan.task(&task).is_some_and(|task| task.spec.depends_on.is_empty()) {
        on_failed_dependency = on_failed_dependency.or(Some(OnFailedDependency::Ask));
    }
    Ok(Patch {
        objective: wish.objective.clone(),
        capability: wish.capability.as_deref().map(|name| capability(offers, name)).transpose()?,
        depends_on,
        parameters: wish.parameters.clone(),
        review: wish.criteria.as_deref().map(|all| Review::critic(criteria(all))),
        on_failed_dependency,
        ..Patch::of(task)
    })
}

/// A refusal with what there is instead, where its own words don't say it.
fn said(draft: &Draft, refusal: &Refusal) -> String {
    let instead = match refusal {
        Refusal::Graph(GraphError::MissingDependency { .. }) | Refusal::UnknownTask(_) => {
            format!("; {}", told::tasks(draft.plan()))
        }
        Refusal::Graph(GraphError::TwoFinal(..)) => "; mark one of them only".into(),
        Refusal::Graph(GraphError::Cycle(_)) => "; take one of these dependencies away".into(),
        Refusal::Unusable(why) if why.starts_with("the objective is not achieved") => {
            "; go on, you are asked again when something has ended".into()
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
    };
    format!("{refusal}{instead}")
}
