//! The slips of models that can mean only one thing, put right before the rules are asked: names with spaces, names that
//! differ by case, a report that names nothing it builds on. Whatever else is wrong stays so and is told.

use std::collections::BTreeSet;

use millrace_protocol::ids::{Capability, MAX_NAME, TaskId};
use millrace_protocol::plan::{Cluster, Draft, OnFailedDependency, Plan, Review, Task, TaskSpec, TaskState};
use millrace_protocol::schema::nearest;

use super::wish::TaskWish;
use super::{Offer, told, told_of};
use crate::roles::PRODUCER;

/// The name that a text was meant to be: what is not allowed becomes a hyphen. `None` if nothing is left of it.
fn name(text: &str) -> Option<TaskId> {
    let mut kept = String::new();
    for c in text.trim().chars() {
        let c = if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        if c != '-' || !kept.ends_with('-') {
            kept.push(c);
        }
    }
    let kept = kept.trim_start_matches(['-', '_']);
    let kept = &kept[..kept.len().min(MAX_NAME)];
    TaskId::new(kept.trim_end_matches('-')).ok()
}

/// Of some ids the one that a text means: the same, but for case and for what can't stand in a name.
fn among<'a>(ids: impl Iterator<Item = &'a TaskId> + Clone, text: &str) -> Option<TaskId> {
    let wanted = name(text)?;
    let same = |id: &&TaskId| **id == wanted;
    let alike = |id: &&TaskId| id.as_str().eq_ignore_ascii_case(wanted.as_str());
    let mut like = ids.clone().filter(alike);
    let only = like.next().filter(|_| like.next().is_none());
    ids.clone().find(same).or(only).cloned()
}

/// The task of the plan that a text means.
pub(super) fn meant(plan: &Plan, text: &str) -> Option<TaskId> {
    // The plan's own index answers nearly always.
    let exact = name(text).filter(|id| plan.task(id).is_some());
    exact.or_else(|| among(plan.tasks().iter().map(|task| &task.spec.id), text))
}

/// The capability that a text means; one that nobody offers is for the rules to refuse.
pub(super) fn capability(offers: &[Offer], text: &str) -> Result<Capability, String> {
    let wanted = text.trim().replace(' ', "-");
    let alike = |offer: &&Offer| {
        let known = offer.about.name.as_str();
        known.eq_ignore_ascii_case(&wanted) || known.eq_ignore_ascii_case(&wanted.replace('-', "_"))
    };
    if let Some(offer) = offers.iter().find(alike) {
        return Ok(offer.about.name.clone());
    }
    let known = Cluster::of(offers.iter().map(|offer| &offer.about)).say();
    Capability::new(&wanted).map_err(|_| format!("{text:?} is no capability; {known}"))
}

/// The tasks that a list of names means, each once; `new` are to be added with the task that names them.
pub(super) fn dependencies(plan: &Plan, new: &[TaskId], names: &[String]) -> Result<Vec<TaskId>, String> {
    let mut ids = Vec::new();
    for text in names.iter().filter(|text| !text.trim().is_empty()) {
        let id = among(new.iter(), text).or_else(|| meant(plan, text)).or_else(|| name(text));
        let id = id.ok_or_else(|| told::unknown(plan, text))?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// The sentences among some texts.
pub(super) fn criteria(texts: &[String]) -> Vec<String> {
    texts.iter().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect()
}

/// The tasks that are wanted, as the plan holds them, without those that it has already.
///
/// # Errors
/// What can't be meant.
pub(super) fn specs(draft: &Draft, offers: &[Offer], wishes: &[TaskWish]) -> Result<Vec<TaskSpec>, String> {
    let plan = draft.plan();
    let ids = ids(plan, wishes);
    let mut specs = Vec::with_capacity(wishes.len());
    for (wish, id) in wishes.iter().zip(&ids) {
        specs.push(spec(plan, offers, wish, id, &ids)?);
    }
    specs.retain(|spec| !is_there(plan, spec));
    refuse_taken(plan, &specs)?;
    leave_one_end(&mut specs);
    lead_to_the_end(plan, &mut specs);
    refuse_baseless(plan, offers, &specs)?;
    refuse_repeated(plan, &specs)?;
    Ok(specs)
}

/// A name for each task that is wanted: its own, or one made of its capability.
fn ids(plan: &Plan, wishes: &[TaskWish]) -> Vec<TaskId> {
    let own = |text: &str| meant(plan, text).or_else(|| name(text));
    let own: Vec<Option<TaskId>> = wishes.iter().map(|wish| own(wish.id.as_deref()?)).collect();
    let mut taken: BTreeSet<TaskId> = own.iter().flatten().cloned().collect();
    let made = |wish: &TaskWish, taken: &BTreeSet<TaskId>| {
        let word = name(&wish.capability).map_or_else(|| "task".into(), |word| word.to_string());
        let word = &word[..word.len().min(MAX_NAME - 10)];
        let mut names = (1..).filter_map(|number: u32| TaskId::new(format!("{word}-{number}")).ok());
        names.find(|id| plan.task(id).is_none() && !taken.contains(id)).expect("numbers do not end")
    };
    let all = own.into_iter().zip(wishes).map(|(own, wish)| {
        let id = own.unwrap_or_else(|| made(wish, &taken));
        taken.insert(id.clone());
        id
    });
    all.collect()
}

fn spec(
    plan: &Plan,
    offers: &[Offer],
    wish: &TaskWish,
    id: &TaskId,
    new: &[TaskId],
) -> Result<TaskSpec, String> {
    let capability = capability(offers, &wish.capability).map_err(|why| format!("task {id}: {why}"))?;
    let depends_on = dependencies(plan, new, &wish.depends_on).map_err(|why| format!("task {id}: {why}"))?;
    let has_own_review =
        offers.iter().any(|offer| offer.about.name == capability && !offer.about.review.is_none());
    let review = match criteria(&wish.criteria) {
        none if none.is_empty() && has_own_review => Review::None,
        some => Review::critic(some),
    };
    Ok(TaskSpec {
        depends_on,
        parameters: wish.parameters.clone(),
        review,
        on_failed_dependency: wish.on_failed_dependency.unwrap_or(OnFailedDependency::Ask),
        is_final: wish.is_final,
        ..TaskSpec::new(id.clone(), wish.objective.trim(), capability)
    })
}

/// Words without their spacing and case.
fn folded(text: &str) -> String {
    text.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

fn is_lost(task: &Task) -> bool {
    matches!(task.state, TaskState::Failed | TaskState::Cancelled)
}

/// Whether the plan has this very task, as where a planner tells its whole plan again.
fn is_there(plan: &Plan, spec: &TaskSpec) -> bool {
    plan.task(&spec.id).is_some_and(|task| {
        !is_lost(task)
            && task.spec.capability == spec.capability
            && folded(&task.spec.objective) == folded(&spec.objective)
    })
}

fn refuse_taken(plan: &Plan, specs: &[TaskSpec]) -> Result<(), String> {
    let Some(task) = specs.iter().find_map(|spec| plan.task(&spec.id)) else { return Ok(()) };
    let instead = match is_lost(task) {
        true => "retry it with feedback, or give the new one another id",
        false => "change that one, or give the new one another id",
    };
    Err(format!("there is a task {} already, which is {}: {instead}", task.spec.id, task.state))
}

/// Two tasks that ask the same of the same on the same ground would bring the same.
fn refuse_repeated(plan: &Plan, specs: &[TaskSpec]) -> Result<(), String> {
    let key = |spec: &TaskSpec| {
        let ground: BTreeSet<&TaskId> = spec.depends_on.iter().collect();
        (folded(&spec.objective), spec.capability.clone(), format!("{:?} {ground:?}", spec.parameters))
    };
    let live = plan.tasks().iter().filter(|task| !is_lost(task));
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
            "{} of the new tasks ask what another asks already, such as {again}, which is the same as {first}: leave \
             them out, or ask something else",
            repeated.len()
        )),
    }
}

/// Of several new tasks that are said to be final, the one that no other builds on is; else the one that reports.
fn leave_one_end(specs: &mut [TaskSpec]) {
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

/// A report that names nothing it builds on builds on all that nothing else builds on.
fn lead_to_the_end(plan: &Plan, specs: &mut [TaskSpec]) {
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
    let old = sinks(plan).map(|task| task.spec.id.clone()).filter(|id| !named.contains(id));
    let new = specs.iter().map(|spec| &spec.id).filter(|id| **id != report.id && !named.contains(*id));
    specs[at].depends_on = old.chain(new.cloned()).collect();
}

/// A report on nothing can only be made up.
fn refuse_baseless(plan: &Plan, offers: &[Offer], specs: &[TaskSpec]) -> Result<(), String> {
    let is_baseless = |spec: &&TaskSpec| spec.capability.as_str() == PRODUCER && spec.depends_on.is_empty();
    let Some(report) = specs.iter().find(is_baseless) else { return Ok(()) };
    let others = told_of(offers).into_iter().map(|offer| offer.about.name.as_str());
    let others: Vec<&str> = others.filter(|name| *name != PRODUCER).collect();
    if others.is_empty() {
        return Ok(());
    }
    let first =
        if plan.tasks().is_empty() { "add tasks that find things out first" } else { "name its tasks" };
    Err(format!(
        "task {} is for {PRODUCER}, which puts results of other tasks together, and it depends on none: {first} ({}), \
         and let it depend on them",
        report.id,
        others.join(", ")
    ))
}

/// The tasks that are not lost and that nothing builds on which is not lost.
pub(super) fn sinks(plan: &Plan) -> impl Iterator<Item = &Task> {
    let is_used = |task: &Task| {
        plan.dependents(task).filter_map(|id| plan.task(id)).any(|dependent| !is_lost(dependent))
    };
    plan.tasks().iter().filter(move |task| !is_lost(task) && !is_used(task))
}

/// The task that is meant to be final where none is: the only one that leads nowhere else. Where the final one is lost,
/// only one that is new, from the `began`-th on, can take its place.
pub(super) fn only_end(plan: &Plan, began: usize) -> Option<&TaskId> {
    let end = plan.tasks().iter().find(|task| task.spec.is_final);
    if end.is_some_and(|task| !is_lost(task)) {
        return None;
    }
    let mut ends = sinks(plan).map(|task| &task.spec.id);
    let only = ends.next().filter(|_| ends.next().is_none())?;
    let is_new = || plan.tasks().iter().skip(began).any(|task| task.spec.id == *only);
    (end.is_none() || is_new()).then_some(only)
}

/// Of some names the nearest to one that is none of them.
pub(super) fn near<'a>(plan: &'a Plan, text: &str) -> Option<&'a str> {
    nearest(text.trim(), plan.tasks().iter().map(|task| task.spec.id.as_str()))
}
