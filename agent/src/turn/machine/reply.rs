//! What becomes of a reply: its answer is read, its calls are checked, and both are told what is wrong with them.

use std::collections::BTreeSet;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Checked, Invocation, MAX_CALLS_AT_ONCE, Machine, State};
use crate::model::{AnswerSchema, Finish, Message, ToolCall, ToolResult};
use millrace_protocol::schema::straighten;

use crate::tool::{Inner, Readable, read_json};
use crate::turn::{Answer, Returned, Stop};

impl<A: Answer> Machine<A> {
    pub(super) fn take_answer(&mut self, text: &str, finish: Finish) {
        let cut_off = finish == Finish::Length;
        let too_long =
            || format!("It was cut off at {} tokens; answer more briefly.", self.request.max_output_tokens);
        let answer = match self.read_answer(text) {
            // A text that was cut off is no whole answer; a JSON value that can be read is.
            Ok(answer) if !cut_off || self.request.answer.is_some() => Ok(answer),
            Ok(_) => Err(too_long()),
            Err(mistake) => Err(if cut_off { too_long() } else { mistake }),
        };
        match answer {
            Ok(answer) => self.state = State::Checking(answer),
            Err(mistake) => self.mend(mistake),
        }
    }

    fn read_answer(&self, text: &str) -> Result<A, String> {
        let Some(AnswerSchema { schema, .. }) = &self.request.answer else {
            return A::parse(text);
        };
        let mut value =
            read_json(text).map_err(|mistake| format!("The answer is not one JSON object: {mistake}."))?;
        straighten(schema, &mut value);
        self.answer_form
            .check(schema, &value)
            .map_err(|mistakes| format!("The answer does not fit its schema: {mistakes}."))?;
        A::parse(&value.to_string())
    }

    /// Shows the model what is wrong with its answer, while it has repairs left.
    pub(super) fn mend(&mut self, mistake: String) {
        if self.repairs == self.limits.repairs {
            return self.stop(Stop::UnusableAnswer { repairs: self.repairs, mistake });
        }
        self.repairs += 1;
        self.tell(format!(
            "Your answer could not be used. {mistake} Give the whole answer again, corrected."
        ));
        self.ask_again();
    }

    pub(super) fn take_calls(&mut self, calls: Vec<ToolCall>, finish: Finish) {
        // Whoever can't be asked again needs no results, least of all those that change something.
        if let Some(stop) = self.reached() {
            return self.stop(stop);
        }
        if self.out_of_calls {
            return self.stop(Stop::ToolCalls { limit: self.calls_allowed });
        }
        for call in &calls {
            let made = self.calls_made.entry(digest(call)).or_default();
            *made += 1;
            if *made > self.limits.identical_calls {
                let limit = self.limits.identical_calls;
                return self.stop(Stop::IdenticalCalls { tool: call.name.clone(), limit });
            }
        }
        let mut run = Vec::new();
        let lists =
            calls.iter().filter(|call| self.tools.inner(&call.name) == Some(Inner::WriteTodos)).count();
        let checked = calls.into_iter().enumerate().map(|(at, call)| {
            let id = call.id.clone();
            match self.check_call(call, at, lists, finish) {
                Ok(Good::Run(invocation)) => {
                    run.push(invocation);
                    Checked::Run
                }
                Ok(Good::Done(text)) => Checked::Told(ToolResult { call_id: id, text, is_error: false }),
                Err(text) => Checked::Told(ToolResult { call_id: id, text, is_error: true }),
            }
        });
        let checked: Vec<Checked> = checked.collect();
        if run.is_empty() {
            self.tell_results(checked, Vec::new());
        } else {
            self.state = State::Calling { calls: checked, run };
        }
    }

    /// Checks one call, the `at`-th of its reply, in which there are `lists` calls of write_todos.
    fn check_call(
        &mut self,
        call: ToolCall,
        at: usize,
        lists: usize,
        finish: Finish,
    ) -> Result<Good, String> {
        if at >= MAX_CALLS_AT_ONCE {
            return Err(format!(
                "at most {MAX_CALLS_AT_ONCE} calls may be made at once; this one was not run"
            ));
        }
        match self.tools.read(&call) {
            Ok(Readable { inner: Some(Inner::WriteTodos), .. }) if lists > 1 => Err(
                "write_todos was called several times in one message, and each takes the place of the whole list: \
                 none was carried out. Call it once, with the whole list."
                    .into(),
            ),
            Ok(Readable { arguments, inner: Some(inner) }) => self.scratch.call(inner, arguments).map(Good::Done),
            Ok(Readable { arguments, inner: None }) => {
                self.count_call()?;
                Ok(Good::Run(Invocation { call_id: call.id, tool: call.name, arguments }))
            }
            Err(mistake) => {
                self.count_call()?;
                let limit = self.request.max_output_tokens;
                Err(match finish {
                    Finish::Length => format!("{mistake} (the reply was cut off at {limit} tokens)"),
                    Finish::Stop | Finish::ToolCalls | Finish::ContentFilter => mistake,
                })
            }
        }
    }

    fn count_call(&mut self) -> Result<(), String> {
        if self.calls_counted >= self.calls_allowed {
            return Err(format!("all {} tool calls are used up", self.calls_allowed));
        }
        self.calls_counted += 1;
        Ok(())
    }

    /// Puts the results of a turn into the conversation, in the order of its calls.
    pub(super) fn tell_results(&mut self, calls: Vec<Checked>, results: Vec<Returned>) {
        let mut results = results.into_iter();
        self.request.messages.extend(calls.into_iter().filter_map(|call| match call {
            Checked::Run => results.next().map(|returned| Message::Tool(returned.result)),
            Checked::Told(result) => Some(Message::Tool(result)),
        }));
        self.ask_again();
    }
}

/// What a good call comes to.
enum Good {
    Run(Invocation),
    Done(String),
}

/// Gives calls that have no name, or that of another beside them, one of their own: providers refuse a conversation in
/// which it is not clear whose a result is.
pub(super) fn tell_apart(calls: &mut [ToolCall], turn: u64) {
    let mut ids = BTreeSet::new();
    for (at, call) in calls.iter_mut().enumerate() {
        if call.id.is_empty() || !ids.insert(call.id.clone()) {
            call.id = format!("call_{turn}_{at}");
            ids.insert(call.id.clone());
        }
    }
}

/// The same text for the same tool and arguments, however these were spaced or ordered.
fn digest(call: &ToolCall) -> String {
    let arguments = match serde_json::from_str::<Value>(&call.arguments) {
        Ok(mut value) => {
            value.sort_all_objects();
            value.to_string()
        }
        Err(_) => call.arguments.clone(),
    };
    let digest = Sha256::new().chain_update(&call.name).chain_update([0]).chain_update(arguments).finalize();
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
