//! Makes any model answer as the request asks: with calls of the tools that are offered, and in the end with an answer
//! in the form that is wanted. Pure functions from request to request and from reply to reply; nothing is asked twice
//! here, and whether an answer really fits is for whoever asked.
//!
//! ```text
//! request ─▶ form (which way is best) ─▶ request as the model can answer it ─▶ wire
//! reply   ◀─ calls and answer in our words ◀────────────────────────────────── wire
//! ```
//! | form | tools | answer |
//! |---|---|---|
//! | [`Form::Plain`] | the provider's | plain text |
//! | [`Form::Native`] | the provider's | the provider's JSON schema |
//! | [`Form::Submit`] | the provider's | the arguments of one more tool |
//! | [`Form::Envelope`] | `{"action": TOOL, "arguments": …}` | `{"action": "final", "answer": …}`, both by JSON schema where there is one |
//! | [`Form::Prompt`] | the provider's | asked for in words |
//!
//! What comes before the newest messages never depends on them, so that the provider's cache can hold it.

pub mod calls;
mod envelope;
mod form;
pub mod json;
mod prompt;
mod submit;

use std::borrow::Cow;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::choice::Structured;
use crate::model::{Delta, Finish, Model, ModelError, Reply, Request, ToolCall, Watch};
use crate::wire::schema::unstrict;

pub use form::{Abilities, Form};

/// A model that answers as requests ask.
pub struct Shaped {
    inner: Arc<dyn Model>,
    abilities: Abilities,
    structured: Structured,
}

impl Shaped {
    /// Puts `inner` into shape.
    #[must_use]
    pub fn new(inner: Arc<dyn Model>, abilities: Abilities, structured: Structured) -> Self {
        Self { inner, abilities, structured }
    }
}

impl Model for Shaped {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        watch: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        async move {
            let form = Form::of(request, self.structured, self.abilities);
            let shown = Shown { form, watch };
            let reply = self.inner.reply(&asked(form, request), &shown).await?;
            let reply = answered(form, request, reply);
            if form == Form::Envelope {
                reply.calls.iter().for_each(|call| watch.delta(Delta::Call(&call.name)));
            }
            Ok(reply)
        }
        .boxed()
    }
}

/// The request as the model is asked.
#[must_use]
pub fn asked(form: Form, request: &Request) -> Cow<'_, Request> {
    match form {
        Form::Plain | Form::Native => Cow::Borrowed(request),
        Form::Submit => Cow::Owned(submit::asked(request)),
        Form::Envelope => Cow::Owned(envelope::asked(request)),
        Form::Prompt => Cow::Owned(prompt::asked(request)),
    }
}

/// The reply in our words.
#[must_use]
pub fn answered(form: Form, request: &Request, reply: Reply) -> Reply {
    let reply = match form {
        Form::Plain | Form::Native | Form::Prompt => written_calls(request, reply),
        Form::Submit => submit::answered(written_calls(&submit::asked(request), reply)),
        Form::Envelope => envelope::answered(request, reply),
    };
    tidied(request, reply)
}

/// Small models write a call as text. Its words are taken for what they mean if they name a tool that is offered.
fn written_calls(request: &Request, mut reply: Reply) -> Reply {
    if !reply.calls.is_empty() || request.tools.is_empty() {
        return reply;
    }
    if let Some(found) = calls::in_text(&reply.text, &calls::Known::of(request)) {
        reply.calls = called(request, found.calls);
        reply.text = found.prose;
        reply.finish = Finish::ToolCalls;
    }
    reply
}

/// Calls with ids of their own. A call's place in the conversation names it, so that the same conversation gives the
/// same names again.
fn called(request: &Request, calls: Vec<calls::Written>) -> Vec<ToolCall> {
    let before = request.messages.iter().map(calls::count).sum::<usize>();
    let numbered = calls.into_iter().enumerate();
    let call = |(at, call): (usize, calls::Written)| ToolCall {
        id: format!("call_{}", before + at + 1),
        name: call.name,
        arguments: call.arguments,
    };
    numbered.map(call).collect()
}

/// Takes away what a model puts around an answer, and the nulls that stand for what it left out.
fn tidied(request: &Request, mut reply: Reply) -> Reply {
    for call in &mut reply.calls {
        let tool = request.tools.iter().find(|tool| tool.name == call.name);
        if let Some(plain) = tool.and_then(|tool| without_nulls(&tool.schema, &call.arguments)) {
            call.arguments = plain;
        }
    }
    match &request.answer {
        Some(answer) if reply.calls.is_empty() => {
            let text = json::object_in(&reply.text).unwrap_or_else(|| json::without_thoughts(&reply.text));
            reply.text = without_nulls(&answer.schema, text).unwrap_or_else(|| text.to_owned());
        }
        Some(_) | None => {
            if let Cow::Owned(text) = json::without_leading_thoughts(&reply.text) {
                reply.text = text;
            }
        }
    }
    reply
}

fn without_nulls(schema: &Value, text: &str) -> Option<String> {
    if !text.contains("null") {
        return None;
    }
    let value: Value = serde_json::from_str(text).ok()?;
    let plain = unstrict(schema, value.clone());
    (plain != value).then(|| plain.to_string())
}

/// What an onlooker sees: words, but not the words of an envelope, and calls, but not the one that is the answer.
struct Shown<'a> {
    form: Form,
    watch: &'a dyn Watch,
}

impl Watch for Shown<'_> {
    fn delta(&self, delta: Delta<'_>) {
        let hidden = match (self.form, delta) {
            (Form::Envelope, Delta::Text(_)) => true,
            (Form::Submit, Delta::Call(name)) => submit::is_answer(name),
            (
                _,
                Delta::Text(_)
                | Delta::Reasoning(_)
                | Delta::Call(_)
                | Delta::Restart
                | Delta::Waiting(_)
                | Delta::Asking,
            ) => false,
        };
        if !hidden {
            self.watch.delta(delta);
        }
    }
}
