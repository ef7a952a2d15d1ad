//! A planner's turn: the board that it sees, the tools that change the plan, and the form of its answer. It owns the texts
//! between the rules and a model, and the normalization of mistakes that can mean only one thing. Only the rules decide
//! what is valid: each change is tried on a [`PlanDraft`], a copy of the plan, with the same rules that the supervisor
//! applies.
//!
//! ```text
//! plan of the log ─┬─▶ board ─▶ model ─▶ tools ──┐ each call: applied to the draft; the result lists the changes
//! registry ────────┘             └────▶ answer ──┤ applied after the tools' edits; mistakes go back as corrections
//!                                                ▼
//!                                            Proposal
//! ```
//! A resumed turn reads the same board and replays the recorded tool calls in order, so that its draft is the same as
//! before.

mod answer;
mod board;
mod board_tasks;
mod change;
mod complete;
mod form;
mod inspect;
mod messages;
mod normalize;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use millrace_models::ModelAbility;
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{CapabilityRegistry, Edit, Plan, PlanDraft, PlanningMode, TaskState};
use millrace_protocol::result::PlanProposal;
use millrace_protocol::subject::{CRITIC, PLANNER, VERIFY};
use millrace_protocol::work::Order;
use serde::{Deserialize, Serialize};

use crate::model::AnswerSchema;
use crate::roles::{DocumentList, MAX_OUTPUT_TOKENS, PRODUCER, RESEARCH};

use crate::sources::{CapabilityOffer, OrderInputs};

use crate::spec::Template;
use crate::tool::Tool;

pub use answer::PlanAnswer;
pub use form::PlanningForm;
pub use normalize::{CancelRequest, PatchRequest, RetryRequest, TaskRequest};

pub(crate) use board::{BoardFacts, read_board};

use board::BoardView;
use complete::AnswerContext;

/// The number of times an answer is sent back for changes that the rules refuse. After that, its valid part counts.
const MAX_CORRECTIONS: usize = 2;
/// The maximum number of tokens of one reply of a small model: room for the longest answer that its schema allows.
const MAX_OUTPUT_TOKENS_SMALL: u32 = 1_500;

/// The inputs of a turn that are not in its order: recorded at its beginning, so that a worker that resumes the turn has
/// the same inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanningSnapshot {
    /// The start time.
    pub at: Timestamp,
    /// The sequence number of the last decision that the plan includes.
    pub plan_at: u64,
    /// The capabilities of the cluster.
    pub offers: Vec<CapabilityOffer>,
    /// The form of the turn.
    pub form: PlanningForm,
    /// The ability of the model, which selects the variant of the prompts.
    pub ability: ModelAbility,
    /// `true` if all documents together fit into one task.
    pub documents_fit: bool,
}

/// A turn in progress: the plan with the changes so far.
pub struct PlanningTurn {
    offers: Vec<CapabilityOffer>,
    at: Timestamp,
    mode: PlanningMode,
    form: PlanningForm,
    ability: ModelAbility,
    documents_fit: bool,
    /// The plan at the beginning.
    began: Plan,
    draft: Mutex<PlanDraft>,
    /// The answers that were refused, in order.
    refused: Mutex<Vec<PlanAnswer>>,
}

impl PlanningTurn {
    /// Starts a turn on `plan`; `snapshot` is the one recorded at its start.
    #[must_use]
    pub fn new(plan: Plan, snapshot: PlanningSnapshot) -> Self {
        let PlanningSnapshot { at, plan_at: _, offers, form, ability, documents_fit } = snapshot;
        let mut cluster = CapabilityRegistry::from_descriptions(offers.iter().map(|offer| &offer.about));
        for offer in &offers {
            cluster.set_slots(&offer.about.name, offer.slots.unwrap_or(0) as usize);
        }
        let mode = plan.run.start.as_ref().map(|start| start.mode).unwrap_or_default();
        let draft = Mutex::new(PlanDraft::new(plan.clone(), Arc::new(cluster), at));
        let refused = Mutex::default();
        Self { offers, at, mode, form, ability, documents_fit, began: plan, draft, refused }
    }

    /// The board that the planner sees at the beginning.
    pub fn render_board(&self, order: &Order, documents: &DocumentList) -> String {
        let view = BoardView {
            plan: &self.began,
            order,
            offers: &self.offers,
            documents,
            form: self.form,
            documents_fit: self.documents_fit,
            at: self.at,
        };
        board::render_board(&view)
    }

    /// The instructions of a planner whose capability file has none.
    pub fn instructions(&self) -> Template {
        self.form.instructions(self.ability)
    }

    /// The form of its answer.
    pub fn answer_schema(&self, name: &str) -> AnswerSchema {
        let draft = self.lock_draft();
        AnswerSchema {
            name: name.to_owned(),
            schema: answer::build_plan_schema(&draft, &self.offers, self.form, self.ability),
        }
    }

    /// The maximum number of tokens of one reply. The answers of strong models are not bounded by their schema, and some
    /// count their reasoning.
    pub fn max_output_tokens(&self) -> u32 {
        match self.ability {
            ModelAbility::Small => MAX_OUTPUT_TOKENS_SMALL,
            ModelAbility::Strong => MAX_OUTPUT_TOKENS,
        }
    }

    /// The planner's tools: those that change the plan, as far as its mode allows, and those that inspect it. While the
    /// plan is empty, only those that create one.
    #[must_use]
    pub fn create_tools(self: &Arc<Self>, sources: &Arc<dyn OrderInputs>) -> Vec<Arc<dyn Tool>> {
        let mut tools = change::create_plan_change_tools(self);
        if self.has_planned_tasks() {
            tools.extend(inspect::create_inspection_tools(self, sources));
        }
        tools
    }

    /// The names of the tools that the planner is not offered; see [`PlanningForm::hidden_tools`].
    pub fn hidden_tools(
        &self,
        documents: &DocumentList,
        has_own_instructions: bool,
    ) -> BTreeSet<&'static str> {
        self.form.hidden_tools(&self.began, self.ability, documents, has_own_instructions)
    }

    /// Checks an answer, applied after the changes that the tools made.
    ///
    /// # Errors
    /// The changes that the rules refuse, for the model to correct; at most twice in a turn, and never in the same words for
    /// the same answer.
    pub fn validate_answer(&self, answer: PlanAnswer) -> Result<PlanAnswer, String> {
        let mistakes = self.apply(&answer).mistakes;
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if mistakes.is_empty() || refused.len() >= MAX_CORRECTIONS {
            return Ok(answer);
        }
        let is_repeated = refused.contains(&answer);
        refused.push(answer);
        if !is_repeated {
            return Err(answer::format_correction(&mistakes));
        }
        let instead = self.plain_answer().map(|plain| self.shape_as_answer(plain));
        Err(answer::format_repeated_correction(&mistakes, instead.as_ref()))
    }

    /// The proposal of the turn. Changes that the rules refuse in the last answer are included if the rules can refuse
    /// them again: the decision then names them. If nothing of a first plan is left, the plain plan takes its place.
    pub fn build_proposal(&self, answer: PlanAnswer) -> PlanProposal {
        let applied = self.apply(&answer);
        if applied.draft.plan().tasks().is_empty()
            && let Some(proposal) = self.build_plain_proposal(&applied.mistakes.join("; "))
        {
            return proposal;
        }
        answer::build_proposal(applied, answer.reasoning)
    }

    /// The proposal of a first turn that needs no model; `None` if a model has to be asked.
    pub fn build_single_question_proposal(&self) -> Option<PlanProposal> {
        match self.form {
            PlanningForm::SingleQuestion => {
                let answer = complete::build_single_task_answer(self.context());
                let applied = answer::apply_answer(&self.lock_draft(), &self.offers, &answer);
                let reasoning = "The objective is one question: one task of research answers it.";
                applied.mistakes.is_empty().then(|| answer::build_proposal(applied, reasoning.into()))
            }
            PlanningForm::Questions | PlanningForm::Tasks | PlanningForm::Changes => None,
        }
    }

    /// The proposal of a first turn whose planner gave no valid plan, for this reason: one task of research on the
    /// objective, and a report. `None` if this is not a first turn, or the cluster does not offer both.
    pub fn build_plain_proposal(&self, reason: &str) -> Option<PlanProposal> {
        let applied = answer::apply_answer(
            &PlanDraft::new(self.began.clone(), self.lock_draft().shared_cluster(), self.at),
            &self.offers,
            &self.plain_answer()?,
        );
        let reasoning =
            "The planner gave no valid plan: one task researches the objective, another reports on it.";
        let proposal = answer::build_proposal(applied, reasoning.into());
        Some(PlanProposal { fallback: Some(reason.to_owned()), ..proposal })
    }

    fn apply(&self, answer: &PlanAnswer) -> answer::AppliedAnswer {
        let completed = complete::complete_answer(self.context(), answer);
        answer::apply_answer(&self.lock_draft(), &self.offers, &completed)
    }

    fn context(&self) -> AnswerContext<'_> {
        AnswerContext { plan: &self.began, offers: &self.offers, documents_fit: self.documents_fit }
    }

    fn plain_answer(&self) -> Option<PlanAnswer> {
        let context = self.context();
        let is_possible =
            self.form.is_first_plan() && [RESEARCH, PRODUCER].iter().all(|own| context.is_offered(own));
        is_possible.then(|| complete::build_plain_answer(context))
    }

    /// A plan in the shape that the turn's form asks for.
    fn shape_as_answer(&self, plan: PlanAnswer) -> PlanAnswer {
        match self.form {
            PlanningForm::SingleQuestion | PlanningForm::Questions => PlanAnswer {
                questions: plan.tasks.into_iter().take(1).map(|task| task.objective).collect(),
                ..PlanAnswer::default()
            },
            PlanningForm::Tasks | PlanningForm::Changes => plan,
        }
    }

    /// `true` if there were tasks at the beginning of the turn.
    fn has_planned_tasks(&self) -> bool {
        let draft = self.lock_draft();
        draft.plan().tasks().len() > count_added_tasks(draft.edits())
    }

    fn lock_draft(&self) -> MutexGuard<'_, PlanDraft> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `true` if any part of the plan is in progress or waits for something outside of it.
fn has_work_in_progress(plan: &Plan) -> bool {
    plan.open_task_count() > plan.task_count_in_state(TaskState::Pending)
}

/// The capabilities that a planner sees. `echo` is for tests and `verify` for texts of users: they are visible only if no
/// other capability is offered.
fn filter_visible_offers(offers: &[CapabilityOffer]) -> Vec<&CapabilityOffer> {
    let is_own = |name: &Capability| [PLANNER, CRITIC].contains(&name.as_str());
    let all: Vec<&CapabilityOffer> = offers.iter().filter(|offer| !is_own(&offer.about.name)).collect();
    let useful: Vec<&CapabilityOffer> =
        all.iter().filter(|offer| !["echo", VERIFY].contains(&offer.about.name.as_str())).copied().collect();
    if useful.is_empty() { all } else { useful }
}

/// The number of tasks that some edits add.
fn count_added_tasks(edits: &[Edit]) -> usize {
    let tasks = edits.iter().map(|edit| match edit {
        Edit::Add(tasks) => tasks.len(),
        Edit::Patch(_)
        | Edit::Cancel { .. }
        | Edit::Retry { .. }
        | Edit::MarkFinal { .. }
        | Edit::Finish { .. }
        | Edit::GiveUp { .. } => 0,
    });
    tasks.sum()
}
