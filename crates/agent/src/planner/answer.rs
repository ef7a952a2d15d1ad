//! The answer of a planning turn: one JSON object that a small model can fill, most of it optional. It owns the schema,
//! which depends on the plan's mode and state, and the order in which an answer is applied to the draft.

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{Edit, PlanDraft, PlanningMode};
use millrace_protocol::result::PlanProposal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::apply::{ChangeError, apply_change};
use super::normalize::find_implied_final_task;
use super::request::{CancelRequest, ChangeRequest, PatchRequest, RetryRequest, TaskRequest, shorten_schema};
use super::{count_added_tasks, filter_visible_offers, has_work_in_progress};
use crate::model::AnswerSchema;
use crate::roles::{PRODUCER, RESEARCH};
use crate::sources::CapabilityOffer;
use crate::tool::schema_of;
use crate::turn::Answer;

/// The maximum number of capabilities that the schema lists by name.
const MAX_NAMED: usize = 60;
/// The maximum number of mistakes reported at once.
const MAX_MISTAKES: usize = 6;

/// A planner's answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanAnswer {
    /// Why, in a few sentences.
    pub reasoning: String,
    /// New tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskRequest>,
    /// Tasks to run again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry: Vec<RetryRequest>,
    /// Changes of waiting tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patch: Vec<PatchRequest>,
    /// Tasks that are no longer needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancel: Vec<CancelRequest>,
    /// The id of the one task whose result is the deliverable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_task: Option<String>,
    /// true only if the final task is completed and its result is what the objective asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<bool>,
    /// Only if nothing more can be done: what is lost, and why nothing can replace it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub give_up: Option<String>,
}

impl Answer for PlanAnswer {
    fn answer_schema(name: &str) -> Option<AnswerSchema> {
        Some(AnswerSchema { name: name.to_owned(), schema: schema_of::<Self>() })
    }

    fn parse_answer(text: &str) -> Result<Self, String> {
        crate::turn::parse_json_answer(text)
    }
}

impl PlanAnswer {
    /// The requested changes in the order in which they are applied: new tasks, retries, patches, and only then
    /// cancellations and the final mark.
    fn requested_changes(&self) -> Vec<ChangeRequest> {
        let tasks = (!self.tasks.is_empty()).then(|| ChangeRequest::Add(self.tasks.clone()));
        let non_empty = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        tasks
            .into_iter()
            .chain(self.retry.iter().cloned().map(ChangeRequest::Retry))
            .chain(self.patch.iter().cloned().map(ChangeRequest::Patch))
            .chain(self.cancel.iter().cloned().map(ChangeRequest::Cancel))
            .chain(non_empty(&self.final_task).map(ChangeRequest::Final))
            .collect()
    }

    fn requested_finish(&self) -> Option<ChangeRequest> {
        let finish = (self.finished == Some(true)).then(|| ChangeRequest::Finish(self.reasoning.clone()));
        let give_up = || self.give_up.clone().filter(|why| !why.trim().is_empty()).map(ChangeRequest::GiveUp);
        finish.or_else(give_up)
    }
}

/// The schema of an answer, without the fields that have nothing to act on. Those fields are still accepted.
pub(super) fn build_plan_schema(draft: &PlanDraft, offers: &[CapabilityOffer], mode: PlanningMode) -> Value {
    let mut schema = schema_of::<PlanAnswer>();
    shorten_schema(&mut schema);
    let mut omitted: Vec<&str> = Vec::new();
    let plan = draft.plan();
    if mode == PlanningMode::Fixed {
        omitted.extend(["tasks", "patch", "final_task"]);
    }
    // Lists that matter are required, possibly empty: a small model that may omit a list tends to describe its changes in
    // "reasoning" only.
    let mut required = vec!["reasoning"];
    if plan.tasks().is_empty() {
        omitted.extend(["retry", "patch", "cancel", "finished", "give_up"]);
        required.push("tasks");
    } else if has_work_in_progress(plan) {
        omitted.push("give_up");
    } else {
        required.extend(["retry", "tasks"]);
    }
    required.retain(|name| !omitted.contains(name));
    for list in required.iter().filter(|name| **name != "reasoning") {
        schema["properties"][*list]["default"] = Value::Array(Vec::new());
    }
    schema["required"] = Value::from(required);
    if let Some(fields) = extra_plan_fields(&mut schema) {
        fields.retain(|name, _| !omitted.contains(&name.as_str()));
        for list in ["tasks", "patch"] {
            if let Some(fields) = fields.get_mut(list).and_then(|list| extra_plan_fields(&mut list["items"]))
            {
                restrict_capability_names(draft, offers, fields);
            }
        }
    }
    schema
}

/// Returns the fields of an object's schema, and allows additional ones.
fn extra_plan_fields(schema: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    schema.as_object_mut()?.remove("additionalProperties");
    schema["properties"].as_object_mut()
}

/// Restricts capabilities to the known ones, and keeps `parameters` only if some capability takes any. If the cluster's own
/// agents are missing, it is still starting: another capability may appear, and its tasks wait for it.
fn restrict_capability_names(
    draft: &PlanDraft,
    offers: &[CapabilityOffer],
    fields: &mut serde_json::Map<String, Value>,
) {
    let names: Vec<&str> = draft.cluster().capability_names().map(Capability::as_str).collect();
    let is_started = [RESEARCH, PRODUCER].iter().all(|own| names.contains(own));
    if is_started
        && names.len() <= MAX_NAMED
        && let Some(capability) = fields.get_mut("capability")
    {
        capability["enum"] = Value::from(names);
    }
    if !filter_visible_offers(offers).iter().any(|offer| offer.about.parameters.is_some()) {
        fields.remove("parameters");
    }
}

/// An answer applied to a draft of its own.
pub(super) struct AppliedAnswer {
    pub draft: PlanDraft,
    /// The requested changes that could not be applied, in words.
    pub mistakes: Vec<String>,
    /// The edits among them that the rules refused.
    refused: Vec<Edit>,
}

/// Applies an answer to a copy of the draft. Refused changes are retried after the others, so that the order within an
/// answer does not matter.
pub(super) fn apply_answer(
    draft: &PlanDraft,
    offers: &[CapabilityOffer],
    answer: &PlanAnswer,
) -> AppliedAnswer {
    let mut applied = AppliedAnswer { draft: draft.clone(), mistakes: Vec::new(), refused: Vec::new() };
    let mut open = answer.requested_changes();
    loop {
        let before = open.len();
        let mut refused: Vec<(ChangeRequest, ChangeError)> = Vec::new();
        for change in open {
            if let Err(error) = apply_change(&mut applied.draft, offers, &change) {
                refused.push((change, error));
            }
        }
        if refused.is_empty() || refused.len() == before {
            refused.into_iter().for_each(|(change, error)| applied.add_mistake(&change, error));
            break;
        }
        open = refused.into_iter().map(|(change, _)| change).collect();
    }
    applied.validate_finish(draft, offers, answer);
    applied
}

impl AppliedAnswer {
    fn add_mistake(&mut self, change: &ChangeRequest, error: ChangeError) {
        self.mistakes.push(format!("{}: {}", change.describe_change(), error.why));
        self.refused.extend(error.edit.map(|edit| *edit));
    }

    fn validate_finish(&mut self, before: &PlanDraft, offers: &[CapabilityOffer], answer: &PlanAnswer) {
        // A tool may have finished the run already.
        if self.draft.plan().run.end.is_some() {
            return;
        }
        let began = before.plan().tasks().len() - count_added_tasks(before.edits());
        if let Some(end) = find_implied_final_task(self.draft.plan(), began).cloned() {
            // The rules refuse this in a fixed plan, which is fine.
            let _ = apply_change(&mut self.draft, offers, &ChangeRequest::Final(end.to_string()));
        }
        if let Some(end) = answer.requested_finish()
            && let Err(error) = apply_change(&mut self.draft, offers, &end)
        {
            self.add_mistake(&end, error);
        } else if self.draft.edits().is_empty() && self.mistakes.is_empty() {
            self.mistakes.extend(find_stall_reason(&self.draft));
        }
    }
}

/// The reason that an empty change is a mistake, if it is one.
fn find_stall_reason(draft: &PlanDraft) -> Option<String> {
    let plan = draft.plan();
    if plan.tasks().is_empty() {
        return Some(
            "there is no plan yet, and the answer has no tasks. List them in \"tasks\": one for each thing to find out, \
             and one that combines the results"
                .into(),
        );
    }
    let end = plan.tasks().iter().find(|task| task.spec.is_final);
    let is_completed = end.is_some_and(|task| task.state() == millrace_protocol::plan::TaskState::Completed);
    (!has_work_in_progress(plan) && !is_completed).then(|| {
        "the answer changes nothing and nothing is in progress, so the run would stall: add tasks, retry one, change \
         what one depends on, or give up"
            .into()
    })
}

/// The correction that a model gets for its mistakes.
pub(super) fn format_correction(mistakes: &[String]) -> String {
    let more = mistakes.len().saturating_sub(MAX_MISTAKES);
    let lines: Vec<String> =
        mistakes.iter().take(MAX_MISTAKES).map(|mistake| format!("- {mistake}")).collect();
    let more = if more == 0 { String::new() } else { format!("\n- and {more} more") };
    format!("These parts of it can't be applied:\n{}{more}\nThe rest of it is valid.", lines.join("\n"))
}

/// The proposal of a turn.
pub(super) fn build_proposal(applied: AppliedAnswer, reasoning: String) -> PlanProposal {
    let AppliedAnswer { draft, mistakes, refused } = applied;
    let mut edits = draft.into_edits();
    edits.extend(refused);
    let tasks = match edits.first_mut() {
        Some(Edit::Add(tasks)) => {
            let tasks = std::mem::take(tasks);
            edits.remove(0);
            tasks
        }
        _ => Vec::new(),
    };
    let reasoning = match mistakes.as_slice() {
        [] => reasoning,
        some => format!("{reasoning}\n\nNot applied: {}", some.join("; ")),
    };
    PlanProposal { reasoning, tasks, edits }
}
