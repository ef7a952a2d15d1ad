//! The agent's turn as a machine that does no I/O: it says what to do next, is fed what came of it, and can be
//! serialised between any two steps. It owns the conversation, the limits, the checks of tool calls, the agent's notes
//! and the repair of answers. It never calls a model or a tool and knows no clock.
//!
//! ```text
//!            ┌──────────── results ────────────┐
//!            ▼                                 │
//!   Ask the model ──calls──▶ check ──good──▶ Call the tools
//!      ▲  │  ▲                 │
//!      │  │  └── all bad, or ──┘
//!      │  │      answered inside: told
//!      │  ├──too long──▶ made shorter, at most twice, and asked again
//!      │  └──answer──▶ read ──fits──▶ Check the answer ──holds──▶ Done(answered)
//!      │                 │                │
//!      └── does not fit: told, at most `repairs` times
//! ```
//! A limit that is reached ends in `Done(stopped)` with its reason and what was produced. Tool calls and turns are
//! softer: when they are used up, the model is told so once and asked to answer without tools.

mod asking;
mod reply;

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_protocol::plan::Amounts;
use millrace_protocol::result::{MAX_PRODUCED, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::compact::compact;
use super::record::{Asked, Heard, Returned};
use super::scratch::Scratch;
use super::{Answer, Ended, Limits, Outcome, Spent, Stop};
use crate::model::{AnswerSchema, Finish, Message, Reply, Request, ToolResult};
use millrace_protocol::schema::Compiled;

use crate::tool::{Specs, head_and_tail};
use asking::{LAST_TURN, NEARLY_SPENT, NO_CALLS_LEFT};
use reply::tell_apart;

/// How often a conversation that is too long is made shorter.
pub const MAX_COMPACTIONS: u32 = 2;
/// The most calls of one reply that are looked at; the others are refused.
pub const MAX_CALLS_AT_ONCE: usize = 50;

/// All that an agent is told before it begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Brief {
    /// The role's instructions.
    pub system: String,
    /// The task, as the first user message.
    pub task: String,
    /// The tools it may call.
    pub tools: Specs,
    /// The form of its answer; `None` is plain text.
    pub answer: Option<AnswerSchema>,
    /// How far it may go.
    pub limits: Limits,
    /// The most tokens of one reply.
    pub max_output_tokens: u32,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step<'a, A> {
    /// Ask the model this, then [`Machine::feed_reply`], [`Machine::feed_overflow`] or [`Machine::feed_time_up`].
    AskModel(&'a Request),
    /// Run these calls, at once if you can, then [`Machine::feed_results`] with one result per call in this order.
    CallTools(&'a [Invocation]),
    /// Check the answer against what the machine can't see, then [`Machine::feed_check`].
    CheckAnswer(&'a A),
    /// Nothing: it is over.
    Done(Ended<A>),
}

/// A tool call that was checked: the tool exists and the arguments fit its schema.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Invocation {
    /// The model's name for the call.
    pub call_id: String,
    /// The tool.
    pub tool: String,
    /// Its arguments.
    pub arguments: Value,
}

/// What was fed is not what the machine waits for: a bug of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the agent waits for {waits_for} and was fed {fed}")]
pub struct OutOfStep {
    /// What it waits for.
    pub waits_for: &'static str,
    /// What it was fed.
    pub fed: String,
}

/// The agent's work on one task. See the module's text for its steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "A: Answer")]
pub struct Machine<A> {
    limits: Limits,
    /// What is reserved of the run's budget; it counts beside the limits.
    #[serde(default, skip_serializing_if = "Amounts::is_empty")]
    reserved: Amounts,
    /// The full name of the model that is asked.
    model: String,
    tools: Specs,
    max_output_tokens: u32,
    /// The next question; its messages are the conversation.
    request: Request,
    scratch: Scratch,
    spent: Spent,
    worked: Duration,
    /// How often the model was asked.
    turns: u64,
    /// The tokens that the last question sent: the next one sends no fewer.
    last_input: u64,
    /// How often each call was made, by a digest of tool and arguments.
    calls_made: BTreeMap<String, u32>,
    calls_counted: u32,
    calls_allowed: u32,
    repairs: u32,
    compactions: u32,
    /// Whether the model was told that it has no tool calls left.
    out_of_calls: bool,
    /// Whether the model was told to come to an end.
    told_to_end: bool,
    state: State<A>,
    #[serde(skip)]
    answer_form: Compiled,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "A: Answer")]
enum State<A> {
    Asking,
    Calling {
        /// One entry per call of the last reply, in its order.
        calls: Vec<Checked>,
        /// Those of them that are to be run.
        run: Vec<Invocation>,
    },
    Checking(A),
    Over(Outcome<A>),
}

/// A call of a reply after its check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Checked {
    /// The next of those that are to be run.
    Run,
    /// Refused, or answered from the machine's own state.
    Told(ToolResult),
}

impl<A: Answer> Machine<A> {
    /// An agent that has not begun.
    #[must_use]
    pub fn new(brief: Brief) -> Self {
        let Brief { system, task, tools, answer, limits, max_output_tokens } = brief;
        let request = Request {
            system,
            messages: vec![Message::User { text: task }],
            tools: tools.iter().cloned().collect(),
            answer,
            max_output_tokens,
        };
        let mut machine = Self {
            limits,
            reserved: Amounts::default(),
            model: String::new(),
            tools,
            max_output_tokens,
            request,
            scratch: Scratch::default(),
            spent: Spent::default(),
            worked: Duration::ZERO,
            turns: 0,
            last_input: 0,
            calls_made: BTreeMap::new(),
            calls_counted: 0,
            calls_allowed: limits.tool_calls,
            repairs: 0,
            compactions: 0,
            out_of_calls: false,
            told_to_end: false,
            state: State::Asking,
            answer_form: Compiled::default(),
        };
        machine.ask_again();
        machine
    }

    /// The same, held to what is reserved of the run's budget beside its own limits. Said before it has begun.
    #[must_use]
    pub fn within(mut self, reserved: Amounts) -> Self {
        self.reserved = reserved;
        if let State::Asking = self.state {
            self.ask_again();
        }
        self
    }

    /// What is to be done next. Asking again changes nothing.
    #[must_use]
    pub fn next(&self) -> Step<'_, A> {
        match &self.state {
            State::Asking => Step::AskModel(&self.request),
            State::Calling { run, .. } => Step::CallTools(run),
            State::Checking(answer) => Step::CheckAnswer(answer),
            State::Over(outcome) => Step::Done(Ended {
                outcome: outcome.clone(),
                usage: self.spent.usage,
                models: self.spent.models.clone(),
                produced: match outcome {
                    Outcome::Answered(_) => None,
                    Outcome::Stopped(_) => self.produced(),
                },
            }),
        }
    }

    /// How often the model was asked.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// What was used so far.
    #[must_use]
    pub fn spent(&self) -> &Spent {
        &self.spent
    }

    /// What the calls that are to be run may use of models together: what is left but for the next question.
    #[must_use]
    pub fn left_for_calls(&self) -> Amounts {
        self.allowance().left_for_calls(&self.spent.usage, self.last_input)
    }

    /// What is left of the working time; `None` if it is not limited.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.limits.time.map(|limit| limit.saturating_sub(self.worked))
    }

    /// The conversation so far.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.request.messages
    }

    /// What there is besides an answer: the last words of the model, its notes and its to-do list, at most
    /// [`MAX_PRODUCED`] characters; `None` if there is nothing.
    #[must_use]
    pub fn produced(&self) -> Option<String> {
        let said = self.request.messages.iter().rev().find_map(|message| match message {
            Message::Assistant { text, .. } if !text.trim().is_empty() => Some(text.trim().to_owned()),
            Message::Assistant { .. } | Message::User { .. } | Message::Tool(_) => None,
        });
        let notes = self.scratch.newest_notes(MAX_PRODUCED / 2).map(|notes| format!("Notes:\n{notes}"));
        let todos = self.scratch.todo_list().map(|todos| format!("To-do list:\n{todos}"));
        let said = said.map(|said| head_and_tail(&said, MAX_PRODUCED / 4));
        let parts: Vec<String> = [said, notes, todos].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("\n\n").chars().take(MAX_PRODUCED).collect())
    }

    /// Takes the model's reply, and how long it took.
    ///
    /// # Errors
    /// The machine does not wait for one.
    pub fn feed_reply(&mut self, reply: Reply, took: Duration) -> Result<(), OutOfStep> {
        self.asking("a reply")?;
        let Reply { text, mut calls, usage, finish, model, keepsake } = reply;
        self.asked(model, usage, took);
        tell_apart(&mut calls, self.turns - 1);
        self.last_input = usage.input_tokens;
        self.request.messages.push(Message::Assistant { text: text.clone(), calls: calls.clone(), keepsake });
        if finish == Finish::ContentFilter {
            self.stop(Stop::ContentFilter);
        } else if calls.is_empty() {
            self.take_answer(&text, finish);
        } else {
            self.take_calls(calls, finish);
        }
        Ok(())
    }

    /// Takes that the conversation is too long for the model, in the provider's words: it is made shorter and asked
    /// again, or the work ends.
    ///
    /// # Errors
    /// The machine does not wait for a reply.
    pub fn feed_overflow(&mut self, message: String, took: Duration) -> Result<(), OutOfStep> {
        self.asking("an overflow")?;
        self.asked(None, Usage::default(), took);
        if self.compactions == MAX_COMPACTIONS {
            self.stop(Stop::Context { compactions: self.compactions, message });
            return Ok(());
        }
        let passing = [NO_CALLS_LEFT, LAST_TURN, NEARLY_SPENT];
        self.request.messages =
            compact(&self.request.messages, self.compactions > 0, &self.scratch, &passing);
        self.compactions += 1;
        // What was looked up is gone with the conversation, and may be looked up once more.
        self.calls_made.clear();
        self.calls_counted = 0;
        self.calls_allowed = self.limits.tool_calls.div_ceil(2);
        self.last_input = 0;
        self.told_to_end = false;
        if std::mem::take(&mut self.out_of_calls) {
            self.request.tools = self.tools.iter().cloned().collect();
        }
        self.ask_again();
        Ok(())
    }

    /// Takes that the working time was used up before the model had answered.
    ///
    /// # Errors
    /// The machine does not wait for a reply.
    pub fn feed_time_up(&mut self, took: Duration) -> Result<(), OutOfStep> {
        self.asking("the end of the time")?;
        self.asked(None, Usage::default(), took);
        self.stop(Stop::Time { limit: self.limits.time.unwrap_or(self.worked) });
        Ok(())
    }

    /// Takes what came of asking this model, in whichever of the three forms.
    pub(super) fn feed(&mut self, asked: Asked, model: &str) -> Result<(), OutOfStep> {
        let took = Duration::from_millis(asked.took_ms);
        self.model = asked.model.unwrap_or_else(|| model.to_owned());
        match asked.heard {
            Heard::Reply(reply) => self.feed_reply(*reply, took),
            Heard::Overflow(message) => self.feed_overflow(message, took),
            Heard::TimeUp => self.feed_time_up(took),
        }
    }

    /// Takes the results of the calls that [`Step::CallTools`] named, in its order. Calls that ran at once took as long
    /// as the longest.
    ///
    /// # Errors
    /// The machine does not wait for results, or they are not those of its calls.
    pub fn feed_results(&mut self, results: Vec<Returned>) -> Result<(), OutOfStep> {
        let State::Calling { calls, run } = &mut self.state else {
            return Err(self.out_of_step("tool results"));
        };
        let expected: Vec<&str> = run.iter().map(|call| call.call_id.as_str()).collect();
        let fed: Vec<&str> = results.iter().map(|returned| returned.result.call_id.as_str()).collect();
        if expected != fed {
            let waits_for = "the results of its calls in their order";
            return Err(OutOfStep { waits_for, fed: fed.join(", ") });
        }
        let calls = std::mem::take(calls);
        self.spent.usage.tool_calls += results.len() as u64;
        results.iter().for_each(|returned| self.spent.add(&returned.spent()));
        self.worked += results.iter().map(Returned::took).max().unwrap_or_default();
        self.tell_results(calls, results);
        Ok(())
    }

    /// Takes what came of checking the answer: the answer as it is to be kept, or what the model is told is wrong.
    ///
    /// # Errors
    /// The machine does not wait for it.
    pub fn feed_check(&mut self, checked: Result<A, String>) -> Result<(), OutOfStep> {
        let State::Checking(_) = &self.state else {
            return Err(self.out_of_step("a checked answer"));
        };
        match checked {
            Ok(answer) => self.state = State::Over(Outcome::Answered(answer)),
            Err(mistake) => self.mend(mistake),
        }
        Ok(())
    }

    fn asking(&self, fed: &str) -> Result<(), OutOfStep> {
        match &self.state {
            State::Asking => Ok(()),
            State::Calling { .. } | State::Checking(_) | State::Over(_) => Err(self.out_of_step(fed)),
        }
    }

    /// Notes that the model was asked, and which one answered where it was another.
    fn asked(&mut self, answered: Option<String>, usage: Usage, took: Duration) {
        self.turns += 1;
        self.worked += took;
        let usage = Usage { model_calls: 1, ..usage };
        self.spent.add(&Spent::on(answered.as_ref().unwrap_or(&self.model), usage));
    }

    fn tell(&mut self, text: String) {
        self.request.messages.push(Message::User { text });
    }

    fn stop(&mut self, reason: Stop) {
        self.state = State::Over(Outcome::Stopped(reason));
    }

    fn out_of_step(&self, fed: &str) -> OutOfStep {
        let waits_for = match &self.state {
            State::Asking => "a reply",
            State::Calling { .. } => "tool results",
            State::Checking(_) => "a checked answer",
            State::Over(_) => "nothing",
        };
        OutOfStep { waits_for, fed: fed.to_owned() }
    }
}
