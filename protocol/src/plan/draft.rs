//! A draft of a planning turn: a copy of the plan. Each edit is validated on the copy by the rules that will decide on it
//! later, so that the planner learns of a mistake at once. The result is the list of valid edits.
//!
//! # Invariants
//!
//! - I37: A planner's edits are accepted as far as they hold on the current plan, by the same rules that answered its tools; no
//!   answer damages finished work, and the run ends within its limits.
//!   (`protocol/tests/rules/drafts.rs::accepted_edits_are_applied_as_drafted`,
//!   `tests/tests/behaviours/bad_planner.rs::planner_that_proposes_cycles_changes_nothing`,
//!   `crates/agent/tests/planner/turns.rs::turn_resumed_after_any_step_gives_the_same_proposal`)

use std::sync::Arc;

use jiff::Timestamp;

use super::cluster::CapabilityRegistry;
use super::decide::{EditAuthor, decide_edit};
use super::edit::Edit;
use super::refusal::Refusal;
use super::spec::TaskSpec;
use super::state::Plan;
use super::{Event, apply};

/// A copy of a plan with the edits that were applied to it.
#[derive(Debug, Clone)]
pub struct PlanDraft {
    plan: Plan,
    cluster: Arc<CapabilityRegistry>,
    now: Timestamp,
    edits: Vec<Edit>,
}

impl PlanDraft {
    /// Starts a draft of `plan`; `cluster` holds the known capabilities.
    #[must_use]
    pub fn new(plan: Plan, cluster: Arc<CapabilityRegistry>, now: Timestamp) -> Self {
        Self { plan, cluster, now, edits: Vec::new() }
    }

    /// Returns the plan with all edits so far.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the known capabilities.
    pub fn cluster(&self) -> &CapabilityRegistry {
        &self.cluster
    }

    /// Returns the known capabilities, to share them with another draft.
    pub fn shared_cluster(&self) -> Arc<CapabilityRegistry> {
        self.cluster.clone()
    }

    /// Returns the edits so far.
    pub fn edits(&self) -> &[Edit] {
        &self.edits
    }

    /// Returns the edits, in order.
    #[must_use]
    pub fn into_edits(self) -> Vec<Edit> {
        self.edits
    }

    /// Applies an edit; returns its events.
    pub fn apply_edit(&mut self, wanted: Edit) -> Result<Vec<Event>, Refusal> {
        if self.plan.run.end.is_some() {
            return Err(Refusal::WrongMoment("this turn already ends the run; no edit can follow".into()));
        }
        let events = decide_edit(&self.plan, &wanted, EditAuthor::Planner)?;
        for spec in events.iter().filter_map(spec_changed_by_event) {
            self.cluster.check_task(spec)?;
        }
        events.iter().for_each(|event| apply(&mut self.plan, event, self.now));
        self.edits.push(wanted);
        Ok(events)
    }
}

/// Returns the specification of a task that an event adds or changes.
fn spec_changed_by_event(event: &Event) -> Option<&TaskSpec> {
    if let Event::Graph(event) = event { event.spec() } else { None }
}
