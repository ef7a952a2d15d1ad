//! The capabilities that are agents: planner, researcher and producer. What an agent does is said by its role and its
//! model; here it only gets its attempt.

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::desk::DeskError;
use millrace_agent::roles::Role;
use millrace_protocol::ids;
use millrace_protocol::result::{CapabilityDescription, TaskError};
use millrace_protocol::subject::{CRITIC, PLANNER};

use crate::builtin::Echo;
use crate::{Attempt, Capability, Outcome};

/// An agent in a role.
#[derive(Debug, Clone, Copy)]
pub struct Agent {
    role: Role,
}

impl Agent {
    /// An agent in this role. A [`Role::Critic`] is no capability of a worker: critics are programs of their own.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self { role }
    }

    async fn plan(self, attempt: &mut Attempt<'_>) -> Result<Outcome, TaskError> {
        let mut capabilities = attempt.capabilities().await?;
        // These are for the system itself, and for tests.
        let hidden = [PLANNER, CRITIC, Echo::NAME];
        capabilities.retain(|capability| !hidden.contains(&capability.name.as_str()));
        let (desk, order, sources) = (attempt.desk(), attempt.order().clone(), attempt.sources());
        let planned = desk.plan(&order, capabilities, sources, &mut attempt.journal()).await;
        planned
            .map(|(proposal, usage)| Outcome::Proposal(proposal, usage))
            .map_err(|error| failed(attempt, error))
    }

    async fn work(self, attempt: &mut Attempt<'_>) -> Result<Outcome, TaskError> {
        let (desk, order, sources) = (attempt.desk(), attempt.order().clone(), attempt.sources());
        let worked = desk.work(self.role, &order, sources, &mut attempt.journal()).await;
        worked.map(Outcome::Result).map_err(|error| failed(attempt, error))
    }
}

fn failed(attempt: &mut Attempt<'_>, error: DeskError) -> TaskError {
    match error {
        DeskError::Task(error) => error,
        DeskError::Source(error) => attempt.unreadable(error),
    }
}

impl Capability for Agent {
    fn describe(&self) -> CapabilityDescription {
        CapabilityDescription::new(
            ids::Capability::new(self.role.capability()).expect("the roles' capabilities are names"),
            self.role.description(),
        )
    }

    fn run<'a>(&'a self, attempt: &'a mut Attempt<'_>) -> BoxFuture<'a, Result<Outcome, TaskError>> {
        match self.role {
            Role::Planner => self.plan(attempt).boxed(),
            Role::Researcher | Role::Producer | Role::Critic => self.work(attempt).boxed(),
        }
    }
}
