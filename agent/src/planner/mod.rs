//! A planner's turn: the board it sees, the tools it changes the plan with, and the form of its answer. It owns the words
//! between the rules and a model, and the kindness with which slips that can mean only one thing are put right. What
//! holds is said by the rules alone: every change is tried on a [`Draft`], a copy of the plan, by the very rules that
//! the supervisor carries it out by.
//!
//! ```text
//! plan of the log ─┬─▶ board ─▶ model ─▶ tools ──┐ each call: tried on the draft, and told what it changed
//! registry ────────┘             └────▶ answer ──┤ tried behind the tools' edits; mistakes go back as corrections
//!                                                ▼
//!                                            Proposal
//! ```
//! A turn that is taken up again reads the same board, and its tools are told of the calls that are recorded, in order: so
//! the draft is the same again.

mod answer;
mod board;
mod cards;
mod change;
mod drafted;
mod kindness;
mod look;
mod told;
mod wish;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::{Cluster, Consult, Draft, Edit, Event, Mode, Occasion, Plan, TaskState, apply};
use millrace_protocol::result::{CapabilityDescription, Proposal};
use millrace_protocol::work::Order;
use serde::{Deserialize, Serialize};

use crate::desk::Sources;
use crate::model::AnswerSchema;
use crate::roles::DocumentList;
use crate::tool::Tool;

pub use answer::PlanAnswer;
pub use wish::{CancelWish, PatchWish, RetryWish, TaskWish};

pub(crate) use board::{Glance, glance};

/// The tools of a planner that no other agent has; in a fixed plan it gets those that leave the graph alone.
pub const TOOLS: [&str; 10] = [
    "add_task",
    "add_tasks",
    "cancel_task",
    "finish",
    "get_task_result",
    "mark_final",
    "patch_task",
    "retry_task",
    "set_status",
    "view_qa_report",
];

/// How often an answer is sent back for what the rules refuse of it. After that, what holds of it counts.
const MAX_CORRECTIONS: u32 = 2;

/// A capability as a planner sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// What it says of itself.
    #[serde(flatten)]
    pub about: CapabilityDescription,
    /// How many slots live workers have for it; `None` is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

/// What a turn rests on that its order does not say: recorded at its beginning, so that whoever takes it over sees the
/// same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// When it began.
    pub at: Timestamp,
    /// The sequence of the decision up to which the plan is read.
    pub plan_at: u64,
    /// What the cluster can do.
    pub offers: Vec<Offer>,
}

/// A turn under way: the plan with what was changed so far.
pub struct Turn {
    offers: Vec<Offer>,
    at: Timestamp,
    mode: Mode,
    draft: Mutex<Draft>,
    corrections: AtomicU32,
}

impl Turn {
    /// A turn on a plan as it stands.
    #[must_use]
    pub fn new(plan: Plan, seen: Seen) -> Self {
        let Seen { at, offers, .. } = seen;
        let mut cluster = Cluster::of(offers.iter().map(|offer| &offer.about));
        for offer in &offers {
            cluster.set_slots(&offer.about.name, offer.slots.unwrap_or(0) as usize);
        }
        let mode = plan.start.as_ref().map(|start| start.mode).unwrap_or_default();
        let draft = Mutex::new(Draft::new(plan, Arc::new(cluster), at));
        Self { offers, at, mode, draft, corrections: AtomicU32::new(0) }
    }

    /// What the planner is shown at its beginning.
    #[must_use]
    pub fn board(&self, order: &Order, documents: &DocumentList) -> String {
        board::render(self.draft().plan(), order, &self.offers, documents, self.at)
    }

    /// The form of its answer.
    #[must_use]
    pub fn form(&self, name: &str) -> AnswerSchema {
        let draft = self.draft();
        AnswerSchema { name: name.to_owned(), schema: answer::schema(&draft, &self.offers, self.mode) }
    }

    /// Its own tools: those that change the plan, as far as its mode lets it, and those that look closer. Where the plan
    /// is still empty, only those that make one.
    #[must_use]
    pub fn tools(self: &Arc<Self>, sources: &Arc<dyn Sources>) -> Vec<Arc<dyn Tool>> {
        let mut tools = change::tools(self);
        if self.has_tasks() {
            tools.extend(look::tools(self, sources));
        }
        tools
    }

    /// Tries an answer behind what the tools have changed.
    ///
    /// # Errors
    /// What of it the rules refuse, for the model that is to mend it; not more than twice in a turn.
    pub fn check(&self, answer: PlanAnswer) -> Result<PlanAnswer, String> {
        let mistakes = answer::tried(&self.draft(), &self.offers, &answer).mistakes;
        if mistakes.is_empty() || self.corrections.fetch_add(1, Ordering::Relaxed) >= MAX_CORRECTIONS {
            return Ok(answer);
        }
        Err(answer::correction(&mistakes))
    }

    /// What the turn comes to. What the rules refuse of the answer to the last goes along where they can say it again:
    /// the decision then names it.
    #[must_use]
    pub fn proposal(&self, answer: PlanAnswer) -> Proposal {
        answer::proposal(answer::tried(&self.draft(), &self.offers, &answer), answer.reasoning)
    }

    /// Whether there were tasks when it began.
    fn has_tasks(&self) -> bool {
        let draft = self.draft();
        draft.plan().tasks().len() > added(draft.edits())
    }

    fn draft(&self) -> MutexGuard<'_, Draft> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The plan of a run of which nothing is known but an order.
#[must_use]
pub fn blank(order: &Order) -> Plan {
    let mut plan = Plan::default();
    let started = Event::RunStarted {
        objective: order.mission.clone(),
        mode: Mode::Llm,
        documents: order.documents.clone(),
        model: order.model.clone(),
        models: Default::default(),
        fail_fast: false,
        budget: Box::default(),
        consult: Consult::Judgement,
    };
    let asked =
        Event::PlanningAsked { turn: 1, attempt: 1, feedback: None, occasions: vec![Occasion::NoPlan] };
    for event in [started, asked] {
        apply(&mut plan, &event, Timestamp::UNIX_EPOCH);
    }
    plan
}

/// Whether anything of the plan is under way, or waits for somebody outside of it.
fn is_in_motion(plan: &Plan) -> bool {
    plan.open() > plan.count(TaskState::Pending)
}

/// The capabilities that a planner is told of. `echo` is for tests: it is told of where there is nothing else.
fn told_of(offers: &[Offer]) -> Vec<&Offer> {
    let is_own = |name: &Capability| {
        [millrace_protocol::subject::PLANNER, millrace_protocol::subject::CRITIC].contains(&name.as_str())
    };
    let all: Vec<&Offer> = offers.iter().filter(|offer| !is_own(&offer.about.name)).collect();
    let useful: Vec<&Offer> =
        all.iter().filter(|offer| offer.about.name.as_str() != "echo").copied().collect();
    if useful.is_empty() { all } else { useful }
}

/// How many tasks some edits add.
fn added(edits: &[Edit]) -> usize {
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
