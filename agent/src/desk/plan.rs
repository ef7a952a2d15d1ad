//! A planner at the desk: what it sees of the plan and the cluster is put before it, with tools to change the plan. What is
//! seen is recorded first, so that whoever takes the turn over sees the same.

use std::sync::Arc;

use jiff::Timestamp;
use millrace_protocol::plan::Work;
use millrace_protocol::result::{ErrorKind, Proposal, TaskError};
use millrace_protocol::work::Order;

use super::laid::Laid;
use super::{Desk, DeskError, Seat, invalid};
use crate::planner::{PlanAnswer, Seen, Turn};
use crate::spec::{AnswerForm, Spec};
use crate::turn::{JournalError, Spent};

/// The step in which what is seen is recorded.
const BOARD: &str = "board";

impl Desk {
    /// Carries out a planner's turn.
    ///
    /// # Errors
    /// The agent failed, or what it builds on can't be read; or the order is no planner's turn.
    pub async fn plan(
        &self,
        spec: &Spec,
        order: &Order,
        mut seat: Seat<'_>,
    ) -> Result<(Proposal, Spent), DeskError> {
        let (Work::Planning { .. }, AnswerForm::Plan) = (&order.work, spec.answer) else {
            return Err(invalid("only an agent that answers with a plan makes one").into());
        };
        let laid = Laid::out(&self.library, spec, order, seat.sources.as_ref()).await?;
        let seen = seen(order, &mut seat).await?;
        let plan = seat.sources.plan(order, seen.plan_at).await?;
        let turn = Arc::new(Turn::new(plan, seen));
        let named = |name: &str| spec.tools.iter().any(|tool| tool.name == name);
        seat.tools.extend(turn.tools(&seat.sources).into_iter().filter(|tool| named(&tool.spec().name)));
        let board = turn.board(order, &laid.documents());
        let form = turn.form(AnswerForm::Plan.name());
        let ready = self.ready(spec, order, board, Some(form), &laid, seat)?;
        let (answer, spent) = ready.answer::<PlanAnswer>(&|answer| turn.check(answer)).await?;
        Ok((turn.proposal(answer), spent))
    }
}

/// What the turn rests on that stands nowhere in the log.
async fn seen(order: &Order, seat: &mut Seat<'_>) -> Result<Seen, DeskError> {
    if let Some((_, value)) = seat.journal.recorded(&[BOARD.to_owned()]).await.map_err(unusable)? {
        return serde_json::from_value(value).map_err(|mistake| {
            let why = format!("the journal's step {BOARD:?} can't be read: {mistake}");
            TaskError::new(ErrorKind::Panic, why).into()
        });
    }
    let offers = seat.sources.offers().await?;
    let seen = Seen { at: Timestamp::now(), plan_at: order.plan_at, offers };
    let value = serde_json::to_value(&seen).expect("descriptions have a form in JSON");
    seat.journal.append(BOARD, &value).await.map_err(unusable)?;
    Ok(seen)
}

fn unusable(error: JournalError) -> DeskError {
    let kind = match &error {
        JournalError::Diverged { .. } => ErrorKind::Panic,
        JournalError::Failed(_) => ErrorKind::Other,
    };
    TaskError::new(kind, error.to_string()).into()
}
