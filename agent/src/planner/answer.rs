//! The answer of a turn: one JSON object that a small model can fill, most of it optional. It owns the form, which is as
//! large as the plan's mode and state give it reason to be, and the order in which an answer is tried on the draft.

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{Draft, Edit, Mode};
use millrace_protocol::result::Proposal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::drafted::{Refused, carry_out};
use super::kindness::only_end;
use super::wish::{CancelWish, PatchWish, RetryWish, TaskWish, Wish, slim};
use super::{Offer, added, is_in_motion, told_of};
use crate::model::AnswerSchema;
use crate::roles::{PRODUCER, RESEARCH};
use crate::tool::schema_of;
use crate::turn::Answer;

/// The most capabilities that the form names one by one.
const MAX_NAMED: usize = 60;
/// The most mistakes that are told at once.
const MAX_MISTAKES: usize = 6;

/// What a planner answers with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanAnswer {
    /// Why, in a few sentences.
    pub reasoning: String,
    /// New tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskWish>,
    /// Tasks to run once more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry: Vec<RetryWish>,
    /// Changes of tasks that wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patch: Vec<PatchWish>,
    /// Tasks that are not wanted any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cancel: Vec<CancelWish>,
    /// The id of the one task whose result is the deliverable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_task: Option<String>,
    /// true only if the final task is completed and its result is what the objective asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<bool>,
    /// Only if nothing can be done any more: what is lost, and why nothing makes up for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub give_up: Option<String>,
}

impl Answer for PlanAnswer {
    fn schema(name: &str) -> Option<AnswerSchema> {
        Some(AnswerSchema { name: name.to_owned(), schema: schema_of::<Self>() })
    }

    fn parse(text: &str) -> Result<Self, String> {
        crate::desk::read(text)
    }
}

impl PlanAnswer {
    /// What it wants, in the order in which it is tried: what is new, what runs again, what is changed, and only then
    /// what goes.
    fn wishes(&self) -> Vec<Wish> {
        let tasks = (!self.tasks.is_empty()).then(|| Wish::Add(self.tasks.clone()));
        let said = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        tasks
            .into_iter()
            .chain(self.retry.iter().cloned().map(Wish::Retry))
            .chain(self.patch.iter().cloned().map(Wish::Patch))
            .chain(self.cancel.iter().cloned().map(Wish::Cancel))
            .chain(said(&self.final_task).map(Wish::Final))
            .collect()
    }

    fn end(&self) -> Option<Wish> {
        let finish = (self.finished == Some(true)).then(|| Wish::Finish(self.reasoning.clone()));
        let give_up = || self.give_up.clone().filter(|why| !why.trim().is_empty()).map(Wish::GiveUp);
        finish.or_else(give_up)
    }
}

/// The form of an answer, without what there is nothing to use it on. What is given beside it is read all the same.
pub(super) fn schema(draft: &Draft, offers: &[Offer], mode: Mode) -> Value {
    let mut schema = schema_of::<PlanAnswer>();
    slim(&mut schema);
    let mut without: Vec<&str> = Vec::new();
    let plan = draft.plan();
    if mode == Mode::Fixed {
        without.extend(["tasks", "patch", "final_task"]);
    }
    // What is asked for is filled in: a small model that may leave a list away tends to write what it wants into its
    // reasons, and nothing else. An empty list is an answer too.
    let mut asked = vec!["reasoning"];
    if plan.tasks().is_empty() {
        without.extend(["retry", "patch", "cancel", "finished", "give_up"]);
        asked.push("tasks");
    } else if is_in_motion(plan) {
        without.push("give_up");
    } else {
        asked.extend(["retry", "tasks"]);
    }
    asked.retain(|name| !without.contains(name));
    for list in asked.iter().filter(|name| **name != "reasoning") {
        schema["properties"][*list]["default"] = Value::Array(Vec::new());
    }
    schema["required"] = Value::from(asked);
    if let Some(fields) = opened(&mut schema) {
        fields.retain(|name, _| !without.contains(&name.as_str()));
        for wish in ["tasks", "patch"] {
            if let Some(fields) = fields.get_mut(wish).and_then(|wish| opened(&mut wish["items"])) {
                name_capabilities(draft, offers, fields);
            }
        }
    }
    schema
}

/// The fields of an object's schema, which takes others from now on.
fn opened(schema: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    schema.as_object_mut()?.remove("additionalProperties");
    schema["properties"].as_object_mut()
}

/// Only capabilities that are known can be named, and parameters are asked for only where one takes some. A cluster whose
/// own agents are not there is only just starting: another capability may come, and its tasks wait for it.
fn name_capabilities(draft: &Draft, offers: &[Offer], fields: &mut serde_json::Map<String, Value>) {
    let names: Vec<&str> = draft.cluster().names().map(Capability::as_str).collect();
    let is_started = [RESEARCH, PRODUCER].iter().all(|own| names.contains(own));
    if is_started
        && names.len() <= MAX_NAMED
        && let Some(capability) = fields.get_mut("capability")
    {
        capability["enum"] = Value::from(names);
    }
    if !told_of(offers).iter().any(|offer| offer.about.parameters.is_some()) {
        fields.remove("parameters");
    }
}

/// An answer on a draft of its own.
pub(super) struct Tried {
    pub draft: Draft,
    /// What of it can't be had, in words.
    pub mistakes: Vec<String>,
    /// What of that the rules refuse.
    refused: Vec<Edit>,
}

/// Tries an answer on a copy of the draft. What is refused is tried again behind what was not, so that the order of an
/// answer matters to nobody.
pub(super) fn tried(draft: &Draft, offers: &[Offer], answer: &PlanAnswer) -> Tried {
    let mut tried = Tried { draft: draft.clone(), mistakes: Vec::new(), refused: Vec::new() };
    let mut open = answer.wishes();
    loop {
        let before = open.len();
        let mut refused: Vec<(Wish, Refused)> = Vec::new();
        for wish in open {
            if let Err(why) = carry_out(&mut tried.draft, offers, &wish) {
                refused.push((wish, why));
            }
        }
        if refused.is_empty() || refused.len() == before {
            refused.into_iter().for_each(|(wish, why)| tried.refuse(&wish, why));
            break;
        }
        open = refused.into_iter().map(|(wish, _)| wish).collect();
    }
    tried.come_to_an_end(draft, offers, answer);
    tried
}

impl Tried {
    fn refuse(&mut self, wish: &Wish, refused: Refused) {
        self.mistakes.push(format!("{}: {}", wish.label(), refused.why));
        self.refused.extend(refused.edit.map(|edit| *edit));
    }

    fn come_to_an_end(&mut self, before: &Draft, offers: &[Offer], answer: &PlanAnswer) {
        // A tool has finished the run already.
        if self.draft.plan().end.is_some() {
            return;
        }
        let began = before.plan().tasks().len() - added(before.edits());
        if let Some(end) = only_end(self.draft.plan(), began).cloned() {
            // In a fixed plan the rules say no, which is as good.
            let _ = carry_out(&mut self.draft, offers, &Wish::Final(end.to_string()));
        }
        if let Some(end) = answer.end()
            && let Err(why) = carry_out(&mut self.draft, offers, &end)
        {
            self.refuse(&end, why);
        } else if self.draft.edits().is_empty() && self.mistakes.is_empty() {
            self.mistakes.extend(standstill(&self.draft));
        }
    }
}

/// What is wrong with changing nothing, if anything is.
fn standstill(draft: &Draft) -> Option<String> {
    let plan = draft.plan();
    if plan.tasks().is_empty() {
        return Some(
            "there is no plan yet, and the answer has no tasks. Give them in \"tasks\": one for each thing to find out, \
             and one that puts the results together"
                .into(),
        );
    }
    let end = plan.tasks().iter().find(|task| task.spec.is_final);
    let is_there = end.is_some_and(|task| task.state == millrace_protocol::plan::TaskState::Completed);
    (!is_in_motion(plan) && !is_there).then(|| {
        "the answer changes nothing and nothing is under way, so that the run would stand still: add tasks, retry \
         one, change what one waits for, or give up"
            .into()
    })
}

/// What a model is told of its mistakes.
pub(super) fn correction(mistakes: &[String]) -> String {
    let more = mistakes.len().saturating_sub(MAX_MISTAKES);
    let told: Vec<String> =
        mistakes.iter().take(MAX_MISTAKES).map(|mistake| format!("- {mistake}")).collect();
    let more = if more == 0 { String::new() } else { format!("\n- and {more} more") };
    format!("This of it can't be carried out:\n{}{more}\nNothing else is wrong with it.", told.join("\n"))
}

/// What a turn comes to.
pub(super) fn proposal(tried: Tried, reasoning: String) -> Proposal {
    let Tried { draft, mistakes, refused } = tried;
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
        some => format!("{reasoning}\n\nNot to be had: {}", some.join("; ")),
    };
    Proposal { reasoning, tasks, edits }
}
