//! A run as people are told of it: its state, and what the state alone does not keep of its decisions (turns of the
//! planner, commands, messages, errors). Pure: decisions in, values out.

use jiff::Timestamp;
use millrace_protocol::ids::{TaskId, WorkerId};
use millrace_protocol::plan::{Decision, EndReason, Event, Occasion, Plan, apply_decision};
use millrace_protocol::result::Usage;
use serde::Serialize;

/// A run up to some decision.
#[derive(Debug, Clone, Default)]
pub struct Story {
    /// Its state.
    pub plan: Plan,
    /// The turns of the planner, oldest first.
    pub turns: Vec<Turn>,
    /// The commands that were carried out, oldest first.
    pub commands: Vec<Commanded>,
    /// What users said to the planner, oldest first.
    pub messages: Vec<Message>,
    /// Everything that went wrong, oldest first.
    pub errors: Vec<Trouble>,
    /// Whether it was told already why the run comes to its end.
    is_winding_down: bool,
}

/// A turn of the planner.
#[derive(Debug, Clone, Serialize)]
pub struct Turn {
    /// Its number, from 1.
    pub turn: u32,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// Why, in the words that the planner is told.
    pub occasions: Vec<String>,
    /// How often it was tried.
    pub attempts: u32,
    /// Who took it last.
    pub worker: Option<WorkerId>,
    /// When it was over.
    pub ended_at: Option<Timestamp>,
    /// What the planner gave as its reasons; `None` if it came to nothing.
    pub reasoning: Option<String>,
    /// What of it was not carried out, and why.
    pub refused: Vec<String>,
    /// Whether it brought the run nowhere.
    pub is_idle: bool,
    /// What it used, those attempts included that came to nothing.
    pub usage: Usage,
}

/// A command of a user.
#[derive(Debug, Clone, Serialize)]
pub struct Commanded {
    /// When it was carried out.
    pub at: Timestamp,
    /// Its name.
    pub id: String,
    /// Who gave it.
    pub by: String,
    /// What it was.
    pub what: String,
}

/// What a user said to the planner.
#[derive(Debug, Clone, Serialize)]
pub struct Message {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub by: String,
    /// What.
    pub text: String,
}

/// Something that went wrong.
#[derive(Debug, Clone, Serialize)]
pub struct Trouble {
    /// When.
    pub at: Timestamp,
    /// What it befell.
    pub of: Of,
    /// The task, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// The attempt, or the planner's turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// What went wrong.
    pub text: String,
}

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// A turn of the planner.
    Planner,
    /// An edit of the planner's that did not hold.
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

impl Story {
    /// One decision more.
    pub fn take(&mut self, decision: &Decision) {
        for event in &decision.events {
            self.tell(event, decision.at);
        }
        apply_decision(&mut self.plan, decision);
    }

    fn tell(&mut self, event: &Event, at: Timestamp) {
        match event {
            Event::PlanningAsked { turn, occasions, .. } => self.asked(*turn, occasions, at),
            Event::PlanningClaimed { worker, .. } => {
                if let Some(turn) = self.turns.last_mut() {
                    turn.worker = Some(worker.clone());
                }
            }
            Event::ProposalAccepted { turn, reasoning, refused, is_idle, usage, .. } => {
                for why in refused {
                    self.trouble(at, Of::Edit, None, Some(*turn), why);
                }
                if let Some(last) = self.turns.last_mut() {
                    last.reasoning = Some(reasoning.clone());
                    last.refused.clone_from(refused);
                    last.is_idle = *is_idle;
                    last.usage.add(*usage);
                    last.ended_at = Some(at);
                }
            }
            Event::PlanningErrored { turn, error, retry_at, usage, .. } => {
                self.trouble(at, Of::Planner, None, Some(*turn), error);
                if let Some(last) = self.turns.last_mut() {
                    last.usage.add(*usage);
                    last.ended_at = retry_at.is_none().then_some(at);
                }
            }
            Event::Commanded { id, by, what } => {
                let (id, by, what) = (id.clone(), by.clone(), what.clone());
                self.commands.push(Commanded { at, id, by, what });
            }
            Event::MessageReceived { by, text } => {
                self.messages.push(Message { at, by: by.clone(), text: text.clone() });
            }
            Event::AttemptErrored { task, attempt, error, .. } => {
                self.trouble(at, Of::Attempt, Some(task), Some(*attempt), &error.message);
            }
            Event::AttemptTimedOut { task, attempt, clock, .. } => {
                self.trouble(at, Of::Attempt, Some(task), Some(*attempt), &clock.to_string());
            }
            Event::ReviewErrored { task, attempt, error, .. } => {
                self.trouble(at, Of::Review, Some(task), Some(*attempt), error);
            }
            Event::VerdictGiven { task, attempt, verdict, .. } if !verdict.passed => {
                let text = format!("rejected: {}", verdict.reasoning);
                self.trouble(at, Of::Review, Some(task), Some(*attempt), &text);
            }
            Event::CapabilityMissing { task, capability } => {
                let text = format!("nobody offers the capability {:?}", capability.as_str());
                self.trouble(at, Of::Task, Some(task), None, &text);
            }
            Event::ParametersWrong { task, problem } => {
                self.trouble(at, Of::Task, Some(task), None, problem);
            }
            Event::TaskFailed { task, reason } => {
                self.trouble(at, Of::Task, Some(task), None, &format!("failed: {reason}"));
            }
            Event::WindingDown { reason, detail } => {
                self.is_winding_down = true;
                self.trouble(at, Of::Run, None, None, &format!("{reason}: {detail}"));
            }
            Event::RunEnded { reason, detail, .. } => self.ended(*reason, detail, at),
            Event::RunStarted { .. }
            | Event::OccasionRaised { .. }
            | Event::TaskAdded { .. }
            | Event::TaskReady { .. }
            | Event::TaskPatched { .. }
            | Event::FinalMarked { .. }
            | Event::TaskReopened { .. }
            | Event::TaskInvalidated { .. }
            | Event::Reserved { .. }
            | Event::BudgetLow { .. }
            | Event::Paused
            | Event::Resumed { .. }
            | Event::RunReopened
            | Event::RunRetired
            | Event::TaskPending { .. }
            | Event::AttemptClaimed { .. }
            | Event::AttemptFinished { .. }
            | Event::ReviewReady { .. }
            | Event::VerdictGiven { .. }
            | Event::TaskAccepted { .. }
            | Event::TaskRerun { .. }
            | Event::TaskCancelled { .. } => {}
        }
    }

    fn asked(&mut self, turn: u32, occasions: &[Occasion], at: Timestamp) {
        if let Some(last) = self.turns.last_mut().filter(|last| last.turn == turn) {
            last.attempts += 1;
            return;
        }
        self.turns.push(Turn {
            turn,
            asked_at: at,
            occasions: occasions.iter().map(Occasion::to_string).collect(),
            attempts: 1,
            worker: None,
            ended_at: None,
            reasoning: None,
            refused: Vec::new(),
            is_idle: false,
            usage: Usage::default(),
        });
    }

    /// An end that is not what was wanted is an error too, unless that was told when it began to end.
    fn ended(&mut self, reason: EndReason, detail: &str, at: Timestamp) {
        if reason != EndReason::Completed && !std::mem::take(&mut self.is_winding_down) {
            let text = if detail.is_empty() { reason.to_string() } else { format!("{reason}: {detail}") };
            self.trouble(at, Of::Run, None, None, &text);
        }
    }

    fn trouble(&mut self, at: Timestamp, of: Of, task: Option<&TaskId>, attempt: Option<u32>, text: &str) {
        self.errors.push(Trouble { at, of, task: task.cloned(), attempt, text: text.to_owned() });
    }
}
