//! The form of a turn: its instructions, the tools that the planner is offered, and the shape of its answer. It follows from
//! the plan at the beginning of the turn and from the ability of the model, and is recorded with the turn's snapshot.
//!
//! # Invariants
//!
//! - I86: A first plan needs no tools and no long prompt, and code completes an answer of plain meaning, without guesses: any
//!   other mistake is refused by the rules. (`crates/agent/tests/prompt_size.rs::prompts_of_planners_stay_within_their_limits`,
//!   `crates/agent/tests/planner/small.rs::dependency_on_a_capability_means_its_tasks`,
//!   `crates/agent/tests/planner/small.rs::prompt_of_a_small_planner_has_no_tools`)
//! - I89: A planner's turn has the same board, form and tools when it is resumed.
//!   (`crates/agent/tests/planner/turns.rs::turn_resumed_after_any_step_gives_the_same_proposal`)

use std::collections::BTreeSet;

use millrace_models::ModelAbility;
use millrace_protocol::plan::{ErroredTaskWait, Plan, PlanningMode, Task, TaskState};
use millrace_verification::{is_single_question, split_sentences};
use serde::{Deserialize, Serialize};

use super::filter_visible_offers;
use crate::roles::{DocumentList, PRODUCER, RESEARCH, WORKER};
use crate::sources::CapabilityOffer;
use crate::spec::Template;

/// The maximum number of documents that the board of a first turn names; if there are more, the planner may search them.
pub(super) const MAX_NAMED_DOCUMENTS: usize = 40;

/// The form of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanningForm {
    /// The first plan where the objective is one question for a small model: one task of research, without a model.
    SingleQuestion,
    /// The first plan, as questions to the documents; the tasks follow from them.
    Questions,
    /// The first plan, as tasks.
    Tasks,
    /// Changes of a plan.
    Changes,
}

/// The tools that no form offers: others do the same.
const REDUNDANT: [&str; 7] =
    ["add_tasks", "set_status", "mark_final", "finish", "read_document", "think", "now"];
/// The tools that change a plan, as an answer can.
const CHANGES: [&str; 4] = ["add_task", "patch_task", "cancel_task", "retry_task"];
/// The tools that read the tasks of a plan.
const INSPECTION: [&str; 2] = ["view_qa_report", "get_task_result"];
/// The tool that finds passages where a board can't name all documents.
const SEARCH: &str = "search_documents";

impl PlanningForm {
    /// Chooses the form of a turn on `plan`.
    #[must_use]
    pub fn choose(plan: &Plan, offers: &[CapabilityOffer], ability: ModelAbility) -> Self {
        let mode = plan.run.start.as_ref().map(|start| start.mode).unwrap_or_default();
        if !plan.tasks().is_empty() || mode == PlanningMode::Fixed {
            return Self::Changes;
        }
        let visible = filter_visible_offers(offers);
        let names: Vec<&str> = visible.iter().map(|offer| offer.about.name.as_str()).collect();
        let is_usual = [RESEARCH, PRODUCER].iter().all(|own| names.contains(own))
            && names.iter().all(|name| [RESEARCH, PRODUCER, WORKER].contains(name));
        let objective = plan.run.start.as_ref().map_or("", |start| start.objective.as_str());
        let is_single = plan.run.messages.is_empty() && is_single_question(objective);
        match ability {
            ModelAbility::Small if is_usual && is_single => Self::SingleQuestion,
            ModelAbility::Small if is_usual => Self::Questions,
            ModelAbility::Small | ModelAbility::Strong => Self::Tasks,
        }
    }

    /// `true` if the turn makes the first plan.
    #[must_use]
    pub fn is_first_plan(self) -> bool {
        match self {
            Self::SingleQuestion | Self::Questions | Self::Tasks => true,
            Self::Changes => false,
        }
    }

    /// The instructions of a planner whose capability file has none.
    #[must_use]
    pub fn instructions(self, ability: ModelAbility) -> Template {
        let text = match (self, ability) {
            (Self::SingleQuestion | Self::Questions, _) => {
                include_str!("../../prompts/planner/questions.md").to_owned()
            }
            (Self::Tasks, ModelAbility::Small) => {
                include_str!("../../prompts/planner/tasks.small.md").to_owned()
            }
            (Self::Tasks, ModelAbility::Strong) => {
                include_str!("../../prompts/planner/tasks.strong.md").to_owned()
            }
            (Self::Changes, ModelAbility::Small) => {
                include_str!("../../prompts/planner/changes.small.md").to_owned()
            }
            (Self::Changes, ModelAbility::Strong) => {
                include_str!("../../prompts/planner/changes.strong.md").to_owned()
            }
        };
        Template::new(&text).expect("the built-in instructions have no mistakes")
    }

    /// The names of the built-in tools that the planner is not offered: those that its state has no use for, and those that
    /// repeat what its answer can do. A call of one of them is carried out all the same. Instructions of a user may name the
    /// tools that change the plan, so that those stay with them.
    #[must_use]
    pub fn hidden_tools(
        self,
        plan: &Plan,
        ability: ModelAbility,
        documents: &DocumentList,
        has_own_instructions: bool,
    ) -> BTreeSet<&'static str> {
        let is_offered = |name: &str| match (self, ability) {
            // A small model takes what it finds for questions of its own.
            (_, ModelAbility::Small) => false,
            (Self::Tasks | Self::Changes, ModelAbility::Strong) if name == SEARCH => {
                documents.count > MAX_NAMED_DOCUMENTS
            }
            (Self::SingleQuestion | Self::Questions | Self::Tasks, ModelAbility::Strong) => false,
            (Self::Changes, ModelAbility::Strong) => {
                let is_change = has_own_instructions && CHANGES.contains(&name);
                (is_change || INSPECTION.contains(&name)) && has_something_to_act_on(plan, name)
            }
        };
        let all = REDUNDANT.into_iter().chain(CHANGES).chain(INSPECTION).chain([SEARCH]);
        all.filter(|name| !is_offered(name)).collect()
    }
}

/// The maximum number of questions that an objective is split into: two for each of its sentences, from 2 to `most`.
pub(super) fn max_questions(objective: &str, most: u32) -> u32 {
    let sentences = split_sentences(objective).into_iter();
    let sentences = sentences.filter(|place| objective[place.clone()].contains(char::is_alphabetic)).count();
    u32::try_from(sentences * 2).map_or(most, |count| count.clamp(2, most))
}

/// `true` if a plan has a task that the tool of this name can act on.
fn has_something_to_act_on(plan: &Plan, tool: &str) -> bool {
    let any = |is_it: fn(&Task) -> bool| plan.tasks().iter().any(is_it);
    match tool {
        "patch_task" => any(|task| match task.state() {
            TaskState::Pending | TaskState::Ready | TaskState::Rerun | TaskState::Errored => true,
            TaskState::Running
            | TaskState::NeedsReview
            | TaskState::Completed
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Waiting => false,
        }),
        "cancel_task" => any(|task| !task.state().is_terminal()),
        "retry_task" => any(|task| {
            task.state().is_terminal() || matches!(task.errored_wait(), Some(ErroredTaskWait::Retry(_)))
        }),
        "view_qa_report" | "get_task_result" => any(|task| !task.attempts.is_empty()),
        _ => true,
    }
}
