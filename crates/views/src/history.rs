//! The history of a run: its state, and the parts of its decisions that the state does not keep (the planner's turns,
//! commands, messages, errors). Pure: decisions in, values out.

use jiff::Timestamp;
use millrace_protocol::ids::{TaskId, WorkerId};
use millrace_protocol::plan::{
    Decision, EndReason, Event, Plan, PlannerTrigger, PlanningEvent, ProviderEvent, RunEvent, UserEvent,
    apply_decision,
};
use millrace_protocol::result::Usage;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Time;

/// A run up to some decision.
#[derive(Debug, Clone, Default)]
pub struct RunHistory {
    pub plan: Plan,
    /// The turns of the planner, oldest first.
    pub turns: Vec<PlannerTurn>,
    /// The commands that were carried out, oldest first.
    pub commands: Vec<UserCommand>,
    /// The messages of users to the planner, oldest first.
    pub messages: Vec<UserMessage>,
    pub errors: Vec<FailureRecord>,
    /// `true` if the reason for the run's end is recorded already.
    is_winding_down: bool,
}

/// A turn of the planner.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PlannerTurn {
    /// Its number, from 1.
    pub turn: u32,
    /// When it was requested.
    #[serde(rename = "requested_at")]
    #[schemars(with = "Time")]
    pub asked_at: Timestamp,
    /// The triggers, as the planner reads them.
    pub triggers: Vec<String>,
    /// The number of attempts.
    pub attempts: u32,
    /// The last claimant.
    pub worker: Option<WorkerId>,
    /// When it ended.
    #[schemars(with = "Option<Time>")]
    pub ended_at: Option<Timestamp>,
    /// The planner's reasons; `None` if the turn failed or is under way.
    pub reasoning: Option<String>,
    /// The edits that were refused, and why.
    pub refused: Vec<String>,
    /// `true` if it made no progress.
    #[serde(rename = "idle")]
    pub is_idle: bool,
    /// The usage, failed attempts included.
    pub usage: Usage,
}

/// A command of a user.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct UserCommand {
    /// When it was applied.
    #[schemars(with = "Time")]
    pub at: Timestamp,
    /// Its id.
    pub id: String,
    /// The user's name.
    pub by: String,
    /// A description of the command.
    #[serde(rename = "description")]
    pub what: String,
}

/// A user's message to the planner.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct UserMessage {
    /// When.
    #[schemars(with = "Time")]
    pub at: Timestamp,
    /// The user's name.
    pub by: String,
    /// The message.
    pub text: String,
}

/// An error in a run.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FailureRecord {
    /// When.
    #[schemars(with = "Time")]
    pub at: Timestamp,
    /// The part that failed.
    #[serde(rename = "part")]
    pub of: FailedPart,
    /// The task, if one failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// The planner's turn, if a part of the planner failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// The attempt at the task or at the planner's turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The error.
    #[serde(rename = "message")]
    pub text: String,
}

/// The parts of a run that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailedPart {
    /// A turn of the planner.
    Planner,
    /// An edit of the planner that was refused.
    Edit,
    /// An attempt at a task.
    Attempt,
    /// A review.
    Review,
    /// A task as a whole.
    Task,
    /// The run as a whole.
    Run,
}

impl RunHistory {
    pub fn add_decision(&mut self, decision: &Decision) {
        for event in &decision.events {
            self.record_event(event, decision.at);
        }
        apply_decision(&mut self.plan, decision);
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the plan keeps what the other events say")]
    fn record_event(&mut self, event: &Event, at: Timestamp) {
        let new = |of, task: Option<&TaskId>, attempt, text| FailureRecord {
            at,
            of,
            task: task.cloned(),
            turn: None,
            attempt,
            text,
        };
        let failure = match event {
            Event::Run(RunEvent::WindingDown { reason, detail }) => {
                self.is_winding_down = true;
                Some(new(FailedPart::Run, None, None, format!("{reason}: {detail}")))
            }
            // An end that is not a success is an error too, unless it was recorded when the run began to wind down.
            Event::Run(RunEvent::Ended { reason, detail, .. })
                if *reason != EndReason::Completed && !std::mem::take(&mut self.is_winding_down) =>
            {
                let gap = if detail.is_empty() { "" } else { ": " };
                Some(new(FailedPart::Run, None, None, format!("{reason}{gap}{detail}")))
            }
            // The commands that cause the other events of users are in the list of commands.
            Event::User(UserEvent::Commanded { id, by, what }) => {
                let (id, by, what) = (id.clone(), by.clone(), what.clone());
                self.commands.push(UserCommand { at, id, by, what });
                None
            }
            Event::User(UserEvent::MessageReceived { by, text }) => {
                self.messages.push(UserMessage { at, by: by.clone(), text: text.clone() });
                None
            }
            Event::Planning(event) => {
                self.record_planning_event(event, at);
                None
            }
            Event::Task(event) => {
                event.error_message().map(|error| new(FailedPart::Task, Some(event.task()), None, error))
            }
            Event::Attempt(event) => event
                .attempt_and_error()
                .map(|(attempt, error)| new(FailedPart::Attempt, Some(event.task()), Some(attempt), error)),
            Event::Review(event) => event
                .attempt_and_error()
                .map(|(attempt, error)| new(FailedPart::Review, Some(event.task()), Some(attempt), error)),
            Event::Provider(event @ ProviderEvent::GivenUp { .. }) => {
                Some(new(FailedPart::Run, event.task(), None, event.to_string()))
            }
            _ => None,
        };
        self.errors.extend(failure);
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the other events change no turn")]
    fn record_planning_event(&mut self, event: &PlanningEvent, at: Timestamp) {
        let new = |of, turn: &u32, attempt: &u32, text: &String| FailureRecord {
            at,
            of,
            task: None,
            turn: Some(*turn),
            attempt: Some(*attempt),
            text: text.clone(),
        };
        if let PlanningEvent::Requested { turn, triggers, .. } = event {
            return self.record_turn_start(*turn, triggers, at);
        }
        let Some(last) = self.turns.last_mut() else { return };
        match event {
            PlanningEvent::Claimed { worker, .. } => last.worker = Some(worker.clone()),
            PlanningEvent::ProposalAccepted {
                turn,
                attempt,
                reasoning,
                refused,
                is_idle,
                is_repetition,
                usage,
                ..
            } => {
                self.errors.extend(refused.iter().map(|why| new(FailedPart::Edit, turn, attempt, why)));
                last.reasoning = Some(reasoning.clone());
                last.refused.clone_from(refused);
                last.is_idle = *is_idle || *is_repetition;
                last.usage.add(*usage);
                last.ended_at = Some(at);
            }
            PlanningEvent::Errored { turn, attempt, error, retry_at, usage, .. } => {
                self.errors.push(new(FailedPart::Planner, turn, attempt, error));
                last.usage.add(*usage);
                last.ended_at = retry_at.is_none().then_some(at);
            }
            _ => {}
        }
    }

    fn record_turn_start(&mut self, turn: u32, triggers: &[PlannerTrigger], at: Timestamp) {
        if let Some(last) = self.turns.last_mut().filter(|last| last.turn == turn) {
            last.attempts += 1;
            return;
        }
        self.turns.push(PlannerTurn {
            turn,
            asked_at: at,
            triggers: triggers.iter().map(PlannerTrigger::to_string).collect(),
            attempts: 1,
            worker: None,
            ended_at: None,
            reasoning: None,
            refused: Vec::new(),
            is_idle: false,
            usage: Usage::default(),
        });
    }
}
