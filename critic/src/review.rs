//! The handler of the critics' queue: reads the result under review, makes its checks, lets the right reviewer judge what
//! stands them, and puts the verdict into the words of the journal.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::critic::CRITIC_DESCRIPTION;
use millrace_agent::critic::checks::{empty_verdict, verdict};
use millrace_agent::desk::{Desk, DeskError, Seat};
use millrace_agent::files::Files;
use millrace_protocol::ids::{Capability, WorkerId};
use millrace_protocol::plan::Work;
use millrace_protocol::result::{CapabilityDescription, ErrorKind, TaskError, TaskResult, Verdict};
use millrace_protocol::subject::CRITIC;
use millrace_protocol::work::{Order, Outcome};
use millrace_runtime::host::{Attempt, Handler};
use millrace_seat::{Live, Reading, Recorded, Shared, unreadable};

use crate::program::Programs;
use crate::{checks, echo};

/// The capability whose results need no agent.
const ECHO: &str = "echo";

pub(crate) struct Critic {
    desk: Desk,
    programs: Programs,
}

impl Critic {
    pub fn new(desk: Desk, programs: Programs) -> Self {
        Self { desk, programs }
    }

    async fn review(&self, attempt: &mut Attempt) -> Result<Verdict, TaskError> {
        let order = attempt.order().clone();
        let (Work::Review { .. }, Some(input)) = (&order.work, order.inputs.first()) else {
            return Err(TaskError::new(ErrorKind::InvalidTask, "the order is no review of a result"));
        };
        let read = attempt.reader().result(input).await;
        let result = read.map_err(|fault| attempt.fault(fault))?;
        if result.is_empty() {
            return Ok(empty_verdict());
        }
        let mut outcomes = checks::make(&self.desk, &self.programs, attempt, &order, &result).await?;
        let is_over = outcomes.iter().any(|outcome| !outcome.met);
        // An order that names neither checks nor judges is of a writer that knew of critics only.
        if is_over || (order.panel.is_none() && !outcomes.is_empty()) {
            return Ok(verdict(outcomes));
        }
        let judged = self.judge(attempt, &order, &result).await?;
        outcomes.extend(judged.criteria);
        Ok(Verdict { criteria: outcomes, ..judged })
    }

    async fn judge(
        &self,
        attempt: &mut Attempt,
        order: &Order,
        result: &TaskResult,
    ) -> Result<Verdict, TaskError> {
        if order.capability.as_str() == ECHO {
            return Ok(echo::judge(&order.criteria, result));
        }
        let criteria = criteria(attempt, order).await?;
        let sources = Arc::new(Reading(attempt.reader()));
        let files: Arc<dyn Files> = Arc::new(Shared::of(attempt.bus(), order));
        let live = Live::of(attempt.bus(), order);
        let mut journal = Recorded(attempt);
        let allowance = order.allowance.unwrap_or_default();
        let seat = Seat { watch: &live, allowance, files: Some(files), ..Seat::new(sources, &mut journal) };
        let judged = self.desk.judge(order, &criteria, seat).await;
        judged.map_err(|error| match error {
            DeskError::Task(error) => error,
            DeskError::Source(error) => unreadable(attempt, error),
        })
    }
}

impl Handler for Critic {
    fn describe(&self) -> CapabilityDescription {
        CapabilityDescription::new(Capability::new(CRITIC).expect("it is letters"), CRITIC_DESCRIPTION)
    }

    /// The author of a result never reviews it.
    fn takes(&self, order: &Order, me: &WorkerId) -> bool {
        order.inputs.iter().all(|input| input.worker != *me)
    }

    fn run<'a>(&'a self, attempt: &'a mut Attempt) -> BoxFuture<'a, Result<Outcome, TaskError>> {
        self.review(attempt).map(|judged| judged.map(Outcome::Judged)).boxed()
    }
}

/// What the capability asks of its results. Written down as a step, so that a critic that takes this review over asks
/// the same.
async fn criteria(attempt: &mut Attempt, order: &Order) -> Result<Vec<String>, TaskError> {
    if let Some(value) = attempt.recorded(CRITERIA).await? {
        return serde_json::from_value(value)
            .map_err(|mistake| TaskError::new(ErrorKind::Panic, format!("{CRITERIA}: {mistake}")));
    }
    let known = attempt.reader().capabilities().await.map_err(|fault| attempt.fault(fault))?;
    let own = known.into_iter().find(|capability| capability.name == order.capability);
    let criteria = own.map(|capability| capability.criteria).unwrap_or_default();
    attempt.append(CRITERIA, &criteria.iter().map(String::as_str).collect()).await?;
    Ok(criteria)
}

const CRITERIA: &str = "criteria";
