//! A tool whose calls hooks see.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::wait::WaitEnd;
use serde_json::Value;

use super::{AttemptHooks, HookEvent, HookPoint, describe_refusal};
use crate::model::{ToolResult, ToolSpec};
use crate::tool::{Call, Effect, InnerTool, Output, Tool, ToolError};

pub(super) struct HookedTool {
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
