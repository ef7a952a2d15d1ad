//! A planner's turn: the agent gets the board (the plan and the capabilities of the cluster) and tools that change the
//! plan. The board's inputs are recorded first, so that a planner that resumes the turn sees the same board.

use std::sync::Arc;

use jiff::Timestamp;
use millrace_protocol::plan::Plan;
use millrace_protocol::result::{ErrorKind, PlanProposal, TaskError};
use millrace_protocol::work::Assignment;

use super::agent::AgentSession;
use super::environment::{SessionError, host_error, invalid_order_error};
use crate::model::ModelAbility;
use crate::planner::{PlanAnswer, PlanningForm, PlanningSnapshot, PlanningTurn};
use crate::spec::AnswerForm;
use crate::turn::{StopReason, UsageTotals, WorkOutcome, WorkSummary};

/// The step that records the board's inputs.
const BOARD: &str = "board";
/// The maximum number of characters of all documents together that one task of research can read.
const MAX_CHARACTERS_OF_ONE_TASK: usize = 6_000;

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
        let (plan_at, ability, documents_fit) =
            (*plan_at, self.open_pooled_model()?.1, self.do_documents_fit());
        let recorded = self.read_recorded_snapshot().await?;
        let plan_at = recorded.as_ref().map_or(plan_at, |snapshot| snapshot.plan_at);
        let plan = self.env.sources.read_plan(self.order, plan_at).await?;
        let snapshot = match recorded {
            Some(recorded) => recorded,
            None => self.take_snapshot(&plan, plan_at, ability, documents_fit).await?,
        };
        let turn = Arc::new(PlanningTurn::new(plan, snapshot));
        if let Some(proposal) = turn.build_single_question_proposal() {
            return Ok((proposal, UsageTotals::default()));
        }
        let documents = self.inputs.document_list();
        let board = turn.render_board(self.order, &documents);
        let form = turn.answer_schema(AnswerForm::Plan.name());
        let tools = turn.create_tools(&self.env.sources);
        let has_own_instructions = !self.spec.instructions.is_empty();
        let hidden = turn.hidden_tools(&documents, has_own_instructions);
        self.turn_instructions = Some(turn.instructions());
        let (model, beginning) = self.open_model().await?;
        let mut conversation = self.prepare_conversation(model, beginning, board, Some(form), tools)?;
        conversation.brief.tools = conversation.brief.tools.with_hidden_tools(&hidden);
        conversation.brief.max_output_tokens = turn.max_output_tokens();
        let check = |answer: PlanAnswer| turn.validate_answer(answer);
        let WorkSummary { outcome, usage, models, artifacts: _, produced } =
            conversation.drive(self.env.host, &check).await?;
        let spent = UsageTotals { usage, models };
        match outcome {
            WorkOutcome::Answered(answer) => Ok((turn.build_proposal(answer), spent)),
            WorkOutcome::Stopped(stop) => match turn.build_plain_proposal(&stop.to_string()) {
                Some(proposal) if is_fault_of_model(&stop) => Ok((proposal, spent)),
                Some(_) | None => Err(stop.into_task_error(spent, produced).into()),
            },
        }
    }

    /// Returns the recorded snapshot of the turn, if the turn is resumed.
    async fn read_recorded_snapshot(&mut self) -> Result<Option<PlanningSnapshot>, SessionError> {
        let recorded = self.env.host.replay(&[BOARD.to_owned()]).await.map_err(host_error)?;
        let Some((_, value)) = recorded else { return Ok(None) };
        let snapshot = serde_json::from_value(value).map_err(|mistake| {
            let why = format!("the journal's step {BOARD:?} can't be read: {mistake}");
            TaskError::new(ErrorKind::Panic, why)
        })?;
        Ok(Some(snapshot))
    }

    /// Records the inputs of the turn that are not in the log.
    async fn take_snapshot(
        &mut self,
        plan: &Plan,
        plan_at: u64,
        ability: ModelAbility,
        documents_fit: bool,
    ) -> Result<PlanningSnapshot, SessionError> {
        let offers = self.env.sources.read_offers().await?;
        // Instructions of a user may split a question in their own way.
        let form = PlanningForm::choose(plan, &offers, ability);
        let is_split = form == PlanningForm::SingleQuestion && !self.spec.instructions.is_empty();
        let form = if is_split { PlanningForm::Questions } else { form };
        let snapshot =
            PlanningSnapshot { at: Timestamp::now(), plan_at, offers, form, ability, documents_fit };
        let value = serde_json::to_value(&snapshot).expect("descriptions have a form in JSON");
        self.env.host.record(BOARD, &value).await.map_err(host_error)?;
        Ok(snapshot)
    }

    /// `true` if one task of research can read all documents.
    fn do_documents_fit(&self) -> bool {
        let Some(corpus) = &self.inputs.corpus else { return false };
        let sizes = corpus.documents().iter().map(|document| document.text().chars().count());
        sizes.sum::<usize>() <= MAX_CHARACTERS_OF_ONE_TASK
    }
}

/// `true` if the model gave no valid answer, rather than the run's limits or its provider.
fn is_fault_of_model(stop: &StopReason) -> bool {
    match stop {
        StopReason::UnusableAnswer { .. }
        | StopReason::Turns { .. }
        | StopReason::ToolCalls { .. }
        | StopReason::IdenticalCalls { .. }
        | StopReason::Context { .. } => true,
        StopReason::InputTokens { .. }
        | StopReason::OutputTokens { .. }
        | StopReason::CachedTokens { .. }
        | StopReason::Cost { .. }
        | StopReason::Allowance { .. }
        | StopReason::Time { .. }
        | StopReason::ContentFilter => false,
    }
}
