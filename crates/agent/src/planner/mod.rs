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
mod apply;
mod board;
mod board_tasks;
mod change;
mod inspect;
mod messages;
mod normalize;
mod request;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{CapabilityRegistry, Edit, Plan, PlanDraft, PlanningMode, TaskState};
use millrace_protocol::result::PlanProposal;
use millrace_protocol::work::Order;
use serde::{Deserialize, Serialize};

use crate::model::AnswerSchema;
use crate::roles::DocumentList;
use crate::sources::{CapabilityOffer, OrderInputs};
use crate::tool::Tool;

pub use answer::PlanAnswer;
pub use request::{CancelRequest, PatchRequest, RetryRequest, TaskRequest};

pub(crate) use board::{BoardFacts, read_board};

/// The number of times an answer is sent back for changes that the rules refuse. After that, its valid part counts.
const MAX_CORRECTIONS: u32 = 2;

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
}

/// A turn in progress: the plan with the changes so far.
pub struct PlanningTurn {
    offers: Vec<CapabilityOffer>,
    at: Timestamp,
    mode: PlanningMode,
    draft: Mutex<PlanDraft>,
    corrections: AtomicU32,
}

impl PlanningTurn {
    /// Starts a turn on `plan`; `snapshot` is the one recorded at its start.
    #[must_use]
    pub fn new(plan: Plan, snapshot: PlanningSnapshot) -> Self {
        let PlanningSnapshot { at, offers, .. } = snapshot;
        let mut cluster = CapabilityRegistry::from_descriptions(offers.iter().map(|offer| &offer.about));
        for offer in &offers {
            cluster.set_slots(&offer.about.name, offer.slots.unwrap_or(0) as usize);
        }
        let mode = plan.run.start.as_ref().map(|start| start.mode).unwrap_or_default();
        let draft = Mutex::new(PlanDraft::new(plan, Arc::new(cluster), at));
        Self { offers, at, mode, draft, corrections: AtomicU32::new(0) }
    }

    /// The board that the planner sees at the beginning.
    #[must_use]
    pub fn render_board(&self, order: &Order, documents: &DocumentList) -> String {
        board::render_board(self.lock_draft().plan(), order, &self.offers, documents, self.at)
    }

    /// The form of its answer.
    #[must_use]
    pub fn answer_schema(&self, name: &str) -> AnswerSchema {
        let draft = self.lock_draft();
        AnswerSchema {
            name: name.to_owned(),
            schema: answer::build_plan_schema(&draft, &self.offers, self.mode),
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

    /// Checks an answer, applied after the changes that the tools made.
    ///
    /// # Errors
    /// The changes that the rules refuse, for the model to correct; at most twice in a turn.
    pub fn validate_answer(&self, answer: PlanAnswer) -> Result<PlanAnswer, String> {
        let mistakes = answer::apply_answer(&self.lock_draft(), &self.offers, &answer).mistakes;
        if mistakes.is_empty() || self.corrections.fetch_add(1, Ordering::Relaxed) >= MAX_CORRECTIONS {
            return Ok(answer);
        }
        Err(answer::format_correction(&mistakes))
    }

    /// The proposal of the turn. Changes that the rules refuse in the last answer are included if the rules can refuse
    /// them again: the decision then names them.
    #[must_use]
    pub fn build_proposal(&self, answer: PlanAnswer) -> PlanProposal {
        answer::build_proposal(
            answer::apply_answer(&self.lock_draft(), &self.offers, &answer),
            answer.reasoning,
        )
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

/// The capabilities that a planner sees. `echo` is for tests: it is visible only if there is nothing else.
fn filter_visible_offers(offers: &[CapabilityOffer]) -> Vec<&CapabilityOffer> {
    let is_own = |name: &Capability| {
        [millrace_protocol::subject::PLANNER, millrace_protocol::subject::CRITIC].contains(&name.as_str())
    };
    let all: Vec<&CapabilityOffer> = offers.iter().filter(|offer| !is_own(&offer.about.name)).collect();
    let useful: Vec<&CapabilityOffer> =
        all.iter().filter(|offer| offer.about.name.as_str() != "echo").copied().collect();
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
