//! Hooks: code of a worker that sees the model calls and tool calls of its agents, to redact, to guard or to log.
//!
//! ```text
//! request ─▶ before_model ─▶ model ─▶ reply ─▶ after_model ─▶ journal
//! call    ─▶ before_tool  ─▶ tool  ─▶ text  ─▶ after_tool  ─▶ journal
//! ```
//! They are a stage of each model call of a conversation, and wrap its tools. The journal records replies and
//! results as the hooks leave them, and a recorded step calls no hook again. It records requests as the agent made
//! them: what `before_model` removes stays away from the provider, not from the journal. Tools that the machine answers itself
//! (`think`, to-do lists, notes) call no hooks.
//!
//! A hook refuses by an error. The model reads why a tool call was refused; a refused model call ends the attempt. A hook that
//! fails must refuse too, so that nothing passes a guard that is broken.
//!
//! The model calls that hooks see.
//!
//! A tool whose calls hooks see.
//!
//! # Invariants
//!
//! - I155: A call is not run, or its result is withheld, if a hook refuses it or fails; the journal holds replies and results as
//!   the hooks left them. (`worker/tests/hooks.rs::hook_redacts_and_refuses_calls`,
//!   `worker/tests/hooks.rs::hook_that_fails_refuses_its_call`,
//!   `worker/tests/hooks.rs::rust_hook_is_not_called_for_recorded_steps`)

use std::borrow::Cow;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::Capability;
use millrace_protocol::wait::WaitEnd;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::{
    Delta, DeltaListener, Model, ModelError, ProviderDeadline, Reply, Request, ToolResult, ToolSpec,
};

use crate::tool::{Call, Effect, InnerTool, Output, Tool, ToolError};

use crate::turn::AttemptName;

/// A point at which hooks are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HookPoint {
    /// Before a request is sent to a model.
    BeforeModel,
    /// After a model's reply, before the agent sees it.
    AfterModel,
    /// Before a tool is called. An approval of the call, if it needs one, has been given.
    BeforeTool,
    /// After a tool's call, before its text is recorded and the model sees it.
    AfterTool,
}

impl HookPoint {
    /// All points.
    pub const ALL: [Self; 4] = [Self::BeforeModel, Self::AfterModel, Self::BeforeTool, Self::AfterTool];

    /// Its name in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeModel => "before_model",
            Self::AfterModel => "after_model",
            Self::BeforeTool => "before_tool",
            Self::AfterTool => "after_tool",
        }
    }
}

/// A call that a hook sees, with what it may change.
#[derive(Debug)]
pub enum HookEvent<'a> {
    /// A request to a model; the hook may change all of it.
    BeforeModel {
        /// The model, as `provider:model`.
        model: &'a str,
        /// The request.
        request: &'a mut Request,
    },
    /// A model's reply; the hook may change all of it. While hooks see replies, no text is streamed to observers.
    AfterModel {
        /// The model, as `provider:model`.
        model: &'a str,
        /// The reply.
        reply: &'a mut Reply,
    },
    /// A call of a tool. The hook can refuse it and not change it, because a person may have approved these arguments.
    BeforeTool {
        /// The name of the tool.
        tool: &'a str,
        /// The arguments.
        arguments: &'a Value,
    },
    /// The text of a tool's result or error; the hook may change it. A web page whose text was changed can't be cited.
    AfterTool {
        /// The name of the tool.
        tool: &'a str,
        /// The arguments.
        arguments: &'a Value,
        /// The text for the model.
        text: &'a mut String,
        /// `true` if the call failed.
        is_error: bool,
    },
}

impl HookEvent<'_> {
    /// The point of the call.
    pub fn point(&self) -> HookPoint {
        match self {
            Self::BeforeModel { .. } => HookPoint::BeforeModel,
            Self::AfterModel { .. } => HookPoint::AfterModel,
            Self::BeforeTool { .. } => HookPoint::BeforeTool,
            Self::AfterTool { .. } => HookPoint::AfterTool,
        }
    }
}

/// The attempt that a call belongs to.
#[derive(Debug, Clone)]
pub struct HookContext {
    /// The name of the attempt: `<run>/<task>/<attempt>`.
    pub attempt: AttemptName,
    /// The capability.
    pub capability: Capability,
}

/// The refusal of a call by a hook: the reason, for the model and for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HookRefusal(pub String);

/// Code that sees the calls of agents.
pub trait Hook: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// The points at which it is called.
    fn points(&self) -> &[HookPoint];

    /// `true` if it sees the calls of this tool.
    fn sees_tool(&self, tool: &str) -> bool {
        let _ = tool;
        true
    }

    /// Sees a call, and changes or refuses it. It runs again if the worker is lost before the call is recorded.
    fn call<'a>(
        &'a self,
        context: &'a HookContext,
        event: HookEvent<'a>,
    ) -> BoxFuture<'a, Result<(), HookRefusal>>;
}

/// The hooks of one attempt, called in their order.
#[derive(Clone)]
pub(crate) struct AttemptHooks {
    context: Arc<HookContext>,
    hooks: Vec<Arc<dyn Hook>>,
}

impl AttemptHooks {
    pub fn new(context: HookContext, hooks: Vec<Arc<dyn Hook>>) -> Self {
        Self { context: Arc::new(context), hooks }
    }

    /// Returns a tool whose calls these hooks see; the tool itself if none does.
    pub fn wrap_tool(&self, tool: Arc<dyn Tool>) -> Arc<dyn Tool> {
        let name = tool.spec().name;
        let is_seen = |hook: &&Arc<dyn Hook>| {
            let points = hook.points();
            hook.sees_tool(&name)
                && (points.contains(&HookPoint::BeforeTool) || points.contains(&HookPoint::AfterTool))
        };
        let hooks: Vec<Arc<dyn Hook>> = self.hooks.iter().filter(is_seen).cloned().collect();
        if hooks.is_empty() || tool.inner().is_some() {
            return tool;
        }
        Arc::new(HookedTool { tool, name, hooks: Self { context: self.context.clone(), hooks } })
    }

    fn has_point(&self, point: HookPoint) -> bool {
        self.hooks.iter().any(|hook| hook.points().contains(&point))
    }

    /// The hooks that are called at a point.
    fn at_point(&self, point: HookPoint) -> impl Iterator<Item = &dyn Hook> {
        self.hooks.iter().filter(move |hook| hook.points().contains(&point)).map(AsRef::as_ref)
    }
}

/// Returns the text of a refusal that names the hook.
fn describe_refusal(hook: &dyn Hook, refusal: &HookRefusal) -> String {
    format!("the hook {} refused it: {refusal}", hook.name())
}

impl AttemptHooks {
    /// Returns the reply of a model to a request as these hooks leave both.
    pub async fn reply(
        &self,
        model: &dyn Model,
        request: &Request,
        listener: &dyn DeltaListener,
    ) -> Result<Reply, ModelError> {
        let mut request = Cow::Borrowed(request);
        for hook in self.at_point(HookPoint::BeforeModel) {
            let event = HookEvent::BeforeModel { model: model.name(), request: request.to_mut() };
            let refusal = |refusal| refuse_model_call(&describe_refusal(hook, &refusal));
            hook.call(&self.context, event).await.map_err(refusal)?;
        }
        if !self.has_point(HookPoint::AfterModel) {
            return model.reply(&request, listener).await;
        }
        let mut reply = model.reply(&request, &HiddenText(listener)).await?;
        let original = reply.clone();
        for hook in self.at_point(HookPoint::AfterModel) {
            let event = HookEvent::AfterModel { model: model.name(), reply: &mut reply };
            let refusal = |refusal| refuse_model_call(&describe_refusal(hook, &refusal));
            hook.call(&self.context, event).await.map_err(refusal)?;
        }
        if reply.text != original.text || reply.calls != original.calls {
            // It holds the original reply.
            reply.provider_state = None;
        }
        Ok(reply)
    }
}

fn refuse_model_call(message: &str) -> ModelError {
    ModelError::ContentFilter { message: message.to_owned() }
}

/// Forwards the progress of a reply without its text, which hooks have not seen yet.
struct HiddenText<'a>(&'a dyn DeltaListener);

impl DeltaListener for HiddenText<'_> {
    fn on_delta(&self, delta: Delta<'_>) {
        self.0.on_delta(match delta {
            Delta::Text(_) | Delta::Reasoning(_) | Delta::Call(_) | Delta::Hidden => Delta::Hidden,
            shown @ (Delta::Restart | Delta::Waiting(_) | Delta::Sending | Delta::Sent(_)) => shown,
        });
    }

    fn provider_deadline(&self) -> Option<&ProviderDeadline> {
        self.0.provider_deadline()
    }
}

struct HookedTool {
    pub tool: Arc<dyn Tool>,
    pub name: String,
    pub hooks: AttemptHooks,
}

impl HookedTool {
    async fn refuse_by_hooks(&self, arguments: &Value) -> Result<(), ToolError> {
        for hook in self.hooks.at_point(HookPoint::BeforeTool) {
            let event = HookEvent::BeforeTool { tool: &self.name, arguments };
            if let Err(refusal) = hook.call(&self.hooks.context, event).await {
                let why = describe_refusal(hook, &refusal);
                return Err(ToolError::Refused(format!("{} did not run: {why}", self.name)));
            }
        }
        Ok(())
    }

    /// Passes a result or an error through the hooks.
    async fn pass_result(
        &self,
        arguments: &Value,
        result: Result<Output, ToolError>,
    ) -> Result<Output, ToolError> {
        match result {
            Ok(mut output) => {
                let original = output.text.clone();
                match self.pass_text(arguments, &mut output.text, false).await {
                    Ok(()) if output.text == original => {}
                    Ok(()) => output.page = None,
                    // The call may have had effects, which are recorded with its result.
                    Err(withheld) => {
                        (output.text, output.page) = (withheld, None);
                        output.images.clear();
                    }
                }
                Ok(output)
            }
            Err(error) => Err(self.pass_error(arguments, error).await),
        }
    }

    async fn pass_error(&self, arguments: &Value, error: ToolError) -> ToolError {
        let pass = async |mut text: String| match self.pass_text(arguments, &mut text, true).await {
            Ok(()) => text,
            Err(withheld) => withheld,
        };
        match error {
            ToolError::Refused(text) => ToolError::Refused(pass(text).await),
            ToolError::Failed { message, detail } => {
                ToolError::Failed { message: pass(message).await, detail }
            }
            ToolError::Lost { text, delegated } => ToolError::Lost { text: pass(text).await, delegated },
            error @ (ToolError::Unavailable(_) | ToolError::Waits(_) | ToolError::Delegates(_)) => error,
        }
    }

    /// Passes a text through the hooks.
    ///
    /// # Errors
    /// A hook refused it: the text for the model in its place.
    async fn pass_text(&self, arguments: &Value, text: &mut String, is_error: bool) -> Result<(), String> {
        for hook in self.hooks.at_point(HookPoint::AfterTool) {
            let event = HookEvent::AfterTool { tool: &self.name, arguments, text: &mut *text, is_error };
            if let Err(refusal) = hook.call(&self.hooks.context, event).await {
                let why = describe_refusal(hook, &refusal);
                return Err(format!("{} ran, and its result is withheld: {why}", self.name));
            }
        }
        Ok(())
    }
}

impl Tool for HookedTool {
    fn spec(&self) -> ToolSpec {
        self.tool.spec()
    }

    fn effect(&self) -> Effect {
        self.tool.effect()
    }

    fn has_bounded_output(&self) -> bool {
        self.tool.has_bounded_output()
    }

    fn names_its_changes(&self) -> bool {
        self.tool.names_its_changes()
    }

    fn reads_pages(&self) -> bool {
        self.tool.reads_pages()
    }

    fn approval_reason(&self, arguments: &Value) -> Option<String> {
        self.tool.approval_reason(arguments)
    }

    fn inner(&self) -> Option<InnerTool> {
        self.tool.inner()
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move {
            self.refuse_by_hooks(&arguments).await?;
            let result = self.tool.call(arguments.clone(), call).await;
            self.pass_result(&arguments, result).await
        }
        .boxed()
    }

    fn delegated_tasks(&self) -> u32 {
        self.tool.delegated_tasks()
    }

    fn end_wait<'a>(
        &'a self,
        arguments: Value,
        end: &'a WaitEnd,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move {
            let result = self.tool.end_wait(arguments.clone(), end, call).await;
            self.pass_result(&arguments, result).await
        }
        .boxed()
    }

    fn on_replay(&self, arguments: &Value, result: &ToolResult, call: &Call) {
        self.tool.on_replay(arguments, result, call);
    }
}
