//! A planner's turn in the making: a copy of the plan on which its edits are tried by the very rules that they will be
//! carried out by, so that a mistake is told at once. What comes out is the list of edits that held.

use std::sync::Arc;

use jiff::Timestamp;

use super::cluster::Cluster;
use super::decide::{By, edit};
use super::edit::Edit;
use super::refusal::Refusal;
use super::spec::TaskSpec;
use super::state::Plan;
use super::{Event, apply};

/// The copy, and what was changed on it.
#[derive(Debug, Clone)]
pub struct Draft {
    plan: Plan,
    cluster: Arc<Cluster>,
    now: Timestamp,
    edits: Vec<Edit>,
}

impl Draft {
    /// A draft on a plan as it stands, in a cluster that can do this.
    #[must_use]
    pub fn new(plan: Plan, cluster: Arc<Cluster>, now: Timestamp) -> Self {
        Self { plan, cluster, now, edits: Vec::new() }
    }

    /// The plan with all edits so far.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the cluster can do.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The edits so far.
    #[must_use]
    pub fn edits(&self) -> &[Edit] {
        &self.edits
    }

    /// The edits, in order.
    #[must_use]
    pub fn into_edits(self) -> Vec<Edit> {
        self.edits
    }

    /// Tries one more edit; what it changed is told by its events.
    ///
    /// # Errors
    /// Why it changes nothing.
    pub fn apply(&mut self, wanted: Edit) -> Result<Vec<Event>, Refusal> {
        if self.plan.end.is_some() {
            return Err(Refusal::WrongMoment(
                "the run is finished by this very turn; nothing can follow that".into(),
            ));
        }
        let events = edit(&self.plan, &wanted, By::Planner)?;
        for spec in events.iter().filter_map(of_task) {
            self.cluster.check(spec)?;
        }
        events.iter().for_each(|event| apply(&mut self.plan, event, self.now));
        self.edits.push(wanted);
        Ok(events)
    }
}

/// The task that an event puts into the plan as it is from then on.
fn of_task(event: &Event) -> Option<&TaskSpec> {
    if let Event::TaskAdded { spec, .. } = event {
        return Some(spec);
    }
    let Event::TaskPatched { spec, .. } = event else { return None };
    Some(spec)
}
