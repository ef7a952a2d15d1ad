//! A planner's turn: the agent gets the board (the plan and the capabilities of the cluster) and tools that change the
//! plan. The board's inputs are recorded first, so that a planner that resumes the turn sees the same board.

use std::sync::Arc;

use jiff::Timestamp;
use millrace_protocol::result::{ErrorKind, PlanProposal, TaskError};
use millrace_protocol::work::Assignment;

use super::environment::journal_error;
use super::{AgentSession, SessionEnvironment, SessionError, invalid_order_error};
use crate::planner::{PlanAnswer, PlanningSnapshot, PlanningTurn};
use crate::spec::AnswerForm;
use crate::turn::{AttemptName, UsageTotals};

/// The step that records the board's inputs.
const BOARD: &str = "board";

impl AgentSession<'_> {
    /// Carries out a planner's turn.
    ///
    /// # Errors
    /// The agent failed, an input can't be read, or the order is not a planner's turn.
    pub async fn run_planning(mut self) -> Result<(PlanProposal, UsageTotals), SessionError> {
        let (Assignment::Planning { plan_at, .. }, AnswerForm::Plan) =
            (&self.order.assignment, self.spec.answer)
        else {
            return Err(invalid_order_error("only an agent that answers with a plan can plan").into());
        };
        let seen = read_turn_snapshot(*plan_at, &mut self.env).await?;
        let plan = self.env.sources.read_plan(self.order, seen.plan_at).await?;
        let turn = Arc::new(PlanningTurn::new(plan, seen));
        let tools = turn.create_tools(&self.env.sources);
        let board = turn.render_board(self.order, &self.inputs.document_list());
        let form = turn.answer_schema(AnswerForm::Plan.name());
        let opened = self.open_model().await?;
        let conversation = self.prepare_conversation(opened, board, Some(form), tools)?;
        let attempt = AttemptName::from_order(self.order);
        let check = |answer: PlanAnswer| turn.validate_answer(answer);
        let (answer, spent) = self.env.run_conversation(attempt, conversation, &check).await?;
        Ok((turn.build_proposal(answer), spent))
    }
}

/// Returns the inputs of the turn that are not in the log: recorded ones if the turn is resumed, else current ones.
async fn read_turn_snapshot(
    plan_at: u64,
    env: &mut SessionEnvironment<'_>,
) -> Result<PlanningSnapshot, SessionError> {
    if let Some((_, value)) =
        env.journal.read_recorded_step(&[BOARD.to_owned()]).await.map_err(journal_error)?
    {
        return serde_json::from_value(value).map_err(|mistake| {
            let why = format!("the journal's step {BOARD:?} can't be read: {mistake}");
            TaskError::new(ErrorKind::Panic, why).into()
        });
    }
    let offers = env.sources.read_offers().await?;
    let seen = PlanningSnapshot { at: Timestamp::now(), plan_at, offers };
    let value = serde_json::to_value(&seen).expect("descriptions have a form in JSON");
    env.journal.append_step(BOARD, &value).await.map_err(journal_error)?;
    Ok(seen)
}
