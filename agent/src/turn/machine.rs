//! The agent's turn as a machine that does no I/O: it says what to do next, is fed what came of it, and can be
//! serialised between any two steps. It owns the conversation, the limits, the checks of tool calls and the repair of
//! answers. It never calls a model or a tool and knows no clock.
//!
//! ```text
//!            ┌──────────── results ────────────┐
//!            ▼                                 │
//!   Ask the model ──calls──▶ check ──good──▶ Call the tools
//!      ▲  │  ▲                 │
//!      │  │  └──all bad: told──┘
//!      │  └──answer──▶ parse ──fits──▶ Done(answered)
//!      └──does not fit: told, at most `repairs` times
//! ```
//! A limit that is reached ends in `Done(stopped)` with its reason. Tool calls are the exception: when they are used
//! up, the model is told so once and asked to answer without tools.

use std::collections::BTreeMap;

use millrace_protocol::result::Usage;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Answer;
use crate::model::{AnswerSchema, Finish, Message, Reply, Request, ToolCall, ToolResult, ToolSpec};
use crate::tool::check;

/// All that an agent is told before it begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Brief {
    /// The role's instructions.
    pub system: String,
    /// The task, as the first user message.
    pub task: String,
    /// The tools it may call.
    pub tools: Vec<ToolSpec>,
    /// The form of its answer; `None` is plain text.
    pub answer: Option<AnswerSchema>,
    /// How far it may go.
    pub limits: Limits,
    /// The most tokens of one reply.
    pub max_output_tokens: u32,
}

/// How far an agent may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Replies of the model, all in all.
    pub turns: u32,
    /// Tool calls, the refused ones included.
    pub tool_calls: u32,
    /// How often one call with the same arguments may be made.
    pub identical_calls: u32,
    /// How often an unusable answer may be mended.
    pub repairs: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { turns: 30, tool_calls: 20, identical_calls: 3, repairs: 2 }
    }
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step<A> {
    /// Ask the model this, then [`Machine::feed_reply`].
    AskModel(Request),
    /// Run these calls, at once if you can, then [`Machine::feed_results`] with one result per call in this order.
    CallTools(Vec<Invocation>),
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

/// How the work ended and what it cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended<A> {
    /// How it ended.
    pub outcome: Outcome<A>,
    /// Model calls, tool calls and tokens of the whole work.
    pub usage: Usage,
}

/// How the work ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<A> {
    /// With an answer.
    Answered(A),
    /// Without one.
    Stopped(Stop),
}

/// Why the work ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Stop {
    /// The model was asked as often as allowed.
    #[error("no answer after {limit} turns")]
    Turns {
        /// The limit.
        limit: u32,
    },
    /// The model went on calling tools after it was told that its calls are used up.
    #[error("all {limit} tool calls were used up and the model did not answer without them")]
    ToolCalls {
        /// The limit.
        limit: u32,
    },
    /// The model made one call over and over.
    #[error("the call of {tool} with the same arguments was made more than {limit} times")]
    IdenticalCalls {
        /// The tool.
        tool: String,
        /// The limit.
        limit: u32,
    },
    /// The answer could not be used, and mending it did not help.
    #[error("the answer could not be used after {repairs} corrections: {mistake}")]
    UnusableAnswer {
        /// How often it was mended.
        repairs: u32,
        /// What was wrong with the last one.
        mistake: String,
    },
    /// The provider's filter cut the reply off.
    #[error("the model's provider filtered the reply")]
    ContentFilter,
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
    brief: Brief,
    messages: Vec<Message>,
    usage: Usage,
    /// How often each call was made: tool and arguments, in one text.
    calls_made: BTreeMap<String, u32>,
    repairs: u32,
    /// Whether the model was told that it has no tool calls left.
    out_of_calls: bool,
    state: State<A>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "A: Answer")]
enum State<A> {
    Asking,
    /// One entry per call of the last reply, in its order.
    Calling(Vec<Checked>),
    Over(Outcome<A>),
}

/// A call of a reply after its check: to be run, or refused with what the model is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Checked {
    Good(Invocation),
    Bad(ToolResult),
}

impl<A: Answer> Machine<A> {
    /// An agent that has not begun.
    #[must_use]
    pub fn new(brief: Brief) -> Self {
        let messages = vec![Message::User { text: brief.task.clone() }];
        Self {
            brief,
            messages,
            usage: Usage::default(),
            calls_made: BTreeMap::new(),
            repairs: 0,
            out_of_calls: false,
            state: State::Asking,
        }
    }

    /// What is to be done next. Asking again changes nothing.
    #[must_use]
    pub fn next(&self) -> Step<A> {
        match &self.state {
            State::Asking => Step::AskModel(self.request()),
            State::Calling(calls) => {
                Step::CallTools(calls.iter().filter_map(Checked::good).cloned().collect())
            }
            State::Over(outcome) => Step::Done(Ended { outcome: outcome.clone(), usage: self.usage }),
        }
    }

    /// How many replies of the model were fed.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.usage.model_calls
    }

    /// The conversation so far.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Takes the model's reply.
    ///
    /// # Errors
    /// The machine does not wait for one.
    pub fn feed_reply(&mut self, reply: Reply) -> Result<(), OutOfStep> {
        match &self.state {
            State::Asking => {}
            State::Calling(_) => return Err(out_of_step("tool results", "a reply")),
            State::Over(_) => return Err(out_of_step("nothing", "a reply")),
        }
        self.usage.add(Usage { model_calls: 1, ..reply.usage });
        let Reply { text, calls, usage: _, finish, model: _, keepsake } = reply;
        self.messages.push(Message::Assistant { text: text.clone(), calls: calls.clone(), keepsake });
        if finish == Finish::ContentFilter {
            self.stop(Stop::ContentFilter);
        } else if calls.is_empty() {
            self.take_answer(&text, finish);
        } else {
            self.take_calls(calls);
        }
        Ok(())
    }

    /// Takes the results of the calls that [`Step::CallTools`] named, in its order.
    ///
    /// # Errors
    /// The machine does not wait for results, or they are not those of its calls.
    pub fn feed_results(&mut self, results: Vec<ToolResult>) -> Result<(), OutOfStep> {
        let calls = match &mut self.state {
            State::Calling(calls) => std::mem::take(calls),
            State::Asking => return Err(out_of_step("a reply", "tool results")),
            State::Over(_) => return Err(out_of_step("nothing", "tool results")),
        };
        let expected: Vec<&str> =
            calls.iter().filter_map(Checked::good).map(|call| call.call_id.as_str()).collect();
        let fed: Vec<&str> = results.iter().map(|result| result.call_id.as_str()).collect();
        if expected != fed {
            let mistake = out_of_step("the results of its calls in their order", &fed.join(", "));
            self.state = State::Calling(calls);
            return Err(mistake);
        }
        self.usage.tool_calls += results.len() as u64;
        self.tell_results(calls, results);
        Ok(())
    }

    fn request(&self) -> Request {
        Request {
            system: self.brief.system.clone(),
            messages: self.messages.clone(),
            tools: if self.out_of_calls { Vec::new() } else { self.brief.tools.clone() },
            answer: self.brief.answer.clone(),
            max_output_tokens: self.brief.max_output_tokens,
        }
    }

    fn take_answer(&mut self, text: &str, finish: Finish) {
        let mistake = match A::parse(text) {
            Ok(answer) => return self.state = State::Over(Outcome::Answered(answer)),
            Err(_) if finish == Finish::Length => {
                format!("It was cut off at {} tokens; answer more briefly.", self.brief.max_output_tokens)
            }
            Err(mistake) => mistake,
        };
        if self.repairs == self.brief.limits.repairs {
            return self.stop(Stop::UnusableAnswer { repairs: self.repairs, mistake });
        }
        self.repairs += 1;
        let text =
            format!("Your answer could not be used. {mistake} Give the whole answer again, corrected.");
        self.messages.push(Message::User { text });
        self.ask_again();
    }

    fn take_calls(&mut self, calls: Vec<ToolCall>) {
        let limits = self.brief.limits;
        if self.out_of_calls {
            return self.stop(Stop::ToolCalls { limit: limits.tool_calls });
        }
        let mut checked = Vec::with_capacity(calls.len());
        for call in calls {
            let made =
                self.calls_made.entry(format!("{} {}", call.name, canonical(&call.arguments))).or_default();
            *made += 1;
            if *made > limits.identical_calls {
                return self.stop(Stop::IdenticalCalls { tool: call.name, limit: limits.identical_calls });
            }
            checked.push(self.check_call(call));
        }
        self.state = State::Calling(Vec::new());
        if checked.iter().any(|call| call.good().is_some()) {
            self.state = State::Calling(checked);
        } else {
            self.tell_results(checked, Vec::new());
        }
    }

    fn check_call(&mut self, call: ToolCall) -> Checked {
        let made: u32 = self.calls_made.values().sum();
        let checked = if made > self.brief.limits.tool_calls {
            Err(format!("all {} tool calls are used up", self.brief.limits.tool_calls))
        } else {
            arguments_of(&self.brief.tools, &call)
        };
        match checked {
            Ok(arguments) => Checked::Good(Invocation { call_id: call.id, tool: call.name, arguments }),
            Err(text) => Checked::Bad(ToolResult { call_id: call.id, text, is_error: true }),
        }
    }

    /// Puts the results of a turn into the conversation, in the order of its calls.
    fn tell_results(&mut self, calls: Vec<Checked>, results: Vec<ToolResult>) {
        let mut results = results.into_iter();
        self.messages.extend(calls.into_iter().filter_map(|call| match call {
            Checked::Good(_) => results.next().map(Message::Tool),
            Checked::Bad(refusal) => Some(Message::Tool(refusal)),
        }));
        if self.calls_made.values().sum::<u32>() >= self.brief.limits.tool_calls {
            self.out_of_calls = true;
            let text = "You have no tool calls left. Answer now with what you have, and say what is missing.";
            self.messages.push(Message::User { text: text.into() });
        }
        self.ask_again();
    }

    fn ask_again(&mut self) {
        let limit = self.brief.limits.turns;
        if self.turns() >= u64::from(limit) {
            return self.stop(Stop::Turns { limit });
        }
        self.state = State::Asking;
    }

    fn stop(&mut self, reason: Stop) {
        self.state = State::Over(Outcome::Stopped(reason));
    }
}

impl Checked {
    fn good(&self) -> Option<&Invocation> {
        match self {
            Self::Good(invocation) => Some(invocation),
            Self::Bad(_) => None,
        }
    }
}

/// The arguments of a call, if it may run.
fn arguments_of(tools: &[ToolSpec], call: &ToolCall) -> Result<Value, String> {
    let Some(tool) = tools.iter().find(|tool| tool.name == call.name) else {
        let known: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        return Err(format!("there is no tool '{}'; the tools are: {known}", call.name));
    };
    // Some providers send nothing at all for a call without arguments.
    let text = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
    let arguments: Value = serde_json::from_str(text).map_err(|mistake| {
        format!("the arguments of {} are not JSON: {mistake}; expected: {}", call.name, tool.schema)
    })?;
    check(&tool.schema, &arguments)
        .map_err(|mistakes| format!("the arguments of {} do not fit: {mistakes}", call.name))?;
    Ok(arguments)
}

/// The same text for the same arguments, however they were spaced or ordered.
fn canonical(arguments: &str) -> String {
    match serde_json::from_str::<Value>(arguments) {
        Ok(value) => value.to_string(),
        Err(_) => arguments.to_owned(),
    }
}

fn out_of_step(waits_for: &'static str, fed: &str) -> OutOfStep {
    OutOfStep { waits_for, fed: fed.to_owned() }
}
