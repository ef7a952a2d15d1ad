//! The answer of a planning turn: one JSON object that a small model can fill, most of it optional. It owns the schema,
//! which depends on the plan's mode and state, and the order in which an answer is applied to the draft.

use millrace_models::ModelAbility;
use millrace_protocol::plan::{Edit, PlanDraft, PlanningMode};
use millrace_protocol::result::PlanProposal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::change::{ChangeError, apply_change};

use super::form::{PlanningForm, max_questions};

use super::normalize::find_implied_final_task;
use super::normalize::{
    CancelRequest, ChangeRequest, PatchRequest, RetryRequest, TaskRequest, shorten_schema,
};

use super::{count_added_tasks, filter_visible_offers, has_work_in_progress};

use crate::model::AnswerSchema;
use crate::roles::{PRODUCER, RESEARCH};

use crate::sources::CapabilityOffer;
use crate::tool::schema_of;
use crate::turn::Answer;

/// The reasoning of a plan that follows from questions.
const NO_REASONING: &str = "A task for each question, and a report on all of them.";
/// The maximum number of capabilities that the schema lists by name.
const MAX_NAMED: usize = 60;
/// The maximum number of mistakes reported at once.
const MAX_MISTAKES: usize = 6;
/// The sizes of an answer of a small model: entries of a list, characters of a text, and characters of an id.
const MAX_ITEMS: u32 = 8;
const MAX_TEXT: u32 = 400;
const MAX_NAME: u32 = 64;
/// The fields of a task that a small model is not asked for: it fills them with names that it sees.
const OPTIONAL_OF_TASKS: [&str; 2] = ["criteria", "on_failed_dependency"];

/// A planner's answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanAnswer {
    /// Why, in a few sentences.
    #[serde(default)]
    pub reasoning: String,
    /// The questions that the documents must answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<String>,
    /// New tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskRequest>,
    /// Tasks to run again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry: Vec<RetryRequest>,
    /// Changes of waiting tasks; omitted fields stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patch: Vec<PatchRequest>,
    /// Tasks that are no longer needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancel: Vec<CancelRequest>,
    /// The id of the one task whose result is the deliverable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_task: Option<String>,
    /// true only if the final task is completed and is what the objective asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<bool>,
    /// Only if nothing more can be done: the missing part, and the reason.
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
pub(super) fn build_plan_schema(
    draft: &PlanDraft,
    offers: &[CapabilityOffer],
    form: PlanningForm,
    ability: ModelAbility,
) -> Value {
    let mut schema = schema_of::<PlanAnswer>();
    shorten_schema(&mut schema);
    let (mut fields, required) = match form {
        PlanningForm::SingleQuestion | PlanningForm::Questions => (vec!["questions"], vec!["questions"]),
        PlanningForm::Tasks => match ability {
            ModelAbility::Small => (vec!["tasks", "final_task"], vec!["tasks"]),
            ModelAbility::Strong => (vec!["reasoning", "tasks", "final_task"], vec!["reasoning", "tasks"]),
        },
        PlanningForm::Changes => fields_of_changes(draft),
    };
    if let Some(properties) = allow_additional_fields(&mut schema) {
        properties.retain(|name, _| fields.contains(&name.as_str()));
        fields.clear();
        for list in ["tasks", "patch"] {
            if let Some(fields) =
                properties.get_mut(list).and_then(|list| allow_additional_fields(&mut list["items"]))
            {
                restrict_capability_names(offers, fields);
                // "final_task" says the same.
                fields.remove("final");
                if ability == ModelAbility::Small {
                    OPTIONAL_OF_TASKS.iter().for_each(|name| drop(fields.remove(*name)));
                }
            }
        }
        for list in required.iter().filter(|name| **name != "reasoning") {
            properties[*list]["default"] = Value::Array(Vec::new());
        }
    }
    schema["required"] = Value::from(required);
    if ability == ModelAbility::Small {
        bound_sizes(&mut schema);
        if let Some(questions) = schema["properties"].get_mut("questions") {
            let objective = draft.plan().run.start.as_ref().map_or("", |start| start.objective.as_str());
            questions["maxItems"] = max_questions(objective, MAX_ITEMS).into();
        }
    }
    schema
}

/// The fields of an answer that changes a plan, and the required ones. Lists that matter are required, possibly empty: a
/// small model that may omit a list tends to describe its changes in "reasoning" only.
fn fields_of_changes(draft: &PlanDraft) -> (Vec<&'static str>, Vec<&'static str>) {
    let plan = draft.plan();
    let mode = plan.run.start.as_ref().map(|start| start.mode).unwrap_or_default();
    let mut fields =
        vec!["reasoning", "tasks", "retry", "patch", "cancel", "final_task", "finished", "give_up"];
    let mut required = vec!["reasoning"];
    if plan.tasks().is_empty() {
        fields.retain(|name| ["reasoning", "tasks", "final_task"].contains(name));
        required.push("tasks");
    } else if has_work_in_progress(plan) {
        fields.retain(|name| *name != "give_up");
    } else {
        required.extend(["retry", "tasks"]);
    }
    if mode == PlanningMode::Fixed {
        fields.retain(|name| !["tasks", "patch", "final_task"].contains(name));
    }
    required.retain(|name| fields.contains(name));
    (fields, required)
}

/// Bounds lists and texts, so that a model that repeats itself comes to an end.
fn bound_sizes(schema: &mut Value) {
    let Some(fields) = schema["properties"].as_object_mut() else { return };
    for (name, field) in fields {
        match field["type"].as_str() {
            Some("array") => {
                field["maxItems"] = MAX_ITEMS.into();
                if field["items"]["type"] == "string" {
                    field["items"]["maxLength"] = MAX_TEXT.into();
                } else {
                    bound_sizes(&mut field["items"]);
                }
            }
            Some("string") if field.get("enum").is_none() => {
                let is_name = ["id", "task", "final_task"].contains(&name.as_str());
                field["maxLength"] = if is_name { MAX_NAME } else { MAX_TEXT }.into();
            }
            Some(_) | None => {}
        }
    }
}

/// Returns the fields of an object's schema, and allows additional ones.
fn allow_additional_fields(schema: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    schema.as_object_mut()?.remove("additionalProperties");
    schema["properties"].as_object_mut()
}

/// Restricts capabilities to the known ones, and keeps `parameters` only if some capability takes any. If the cluster's own
/// agents are missing, it is still starting: another capability may appear, and its tasks wait for it.
fn restrict_capability_names(offers: &[CapabilityOffer], fields: &mut serde_json::Map<String, Value>) {
    let visible = filter_visible_offers(offers);
    let names: Vec<&str> = visible.iter().map(|offer| offer.about.name.as_str()).collect();
    let is_started = [RESEARCH, PRODUCER].iter().all(|own| names.contains(own));
    if is_started
        && names.len() <= MAX_NAMED
        && let Some(capability) = fields.get_mut("capability")
    {
        capability["enum"] = Value::from(names);
    }
    if !visible.iter().any(|offer| offer.about.parameters.is_some()) {
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
            "there is no plan yet, and the answer has no tasks: list what to find out, and a task that combines the results"
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

/// The correction for an answer that was refused before.
pub(super) fn format_repeated_correction(mistakes: &[String], instead: Option<&PlanAnswer>) -> String {
    let mistake = mistakes.first().map_or("", String::as_str);
    let advice = match instead {
        Some(plan) => {
            let json = serde_json::to_string(plan).expect("an answer serialises to JSON");
            format!("Give this plan, or another one in its form: {json}")
        }
        None => "Leave that part out, or write something else in its place; the rest is valid.".into(),
    };
    format!(
        "It is the same answer as before, and this part of it still can't be applied: {mistake}. {advice}"
    )
}

/// The proposal of a turn.
pub(super) fn build_proposal(applied: AppliedAnswer, reasoning: String) -> PlanProposal {
    let reasoning = if reasoning.trim().is_empty() { NO_REASONING.to_owned() } else { reasoning };
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
    PlanProposal { reasoning, tasks, edits, fallback: None }
}
