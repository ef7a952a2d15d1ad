//! Hooks that are programs: the field `hooks` of a capability file. A call goes to the program's standard input as JSON; its standard
//! output is empty or a JSON object with its changes or its refusal.
//!
//! ```text
//! {"event": "before_tool", "attempt": "RUN/TASK/1", "capability": "clerk", "tool": "execute", "arguments": {…}}
//!     ─▶ nothing or {} · {"refuse": "no network"}
//! {"event": "after_tool", …, "tool": "execute", "arguments": {…}, "text": "…", "is_error": false}
//!     ─▶ nothing or {} · {"text": "…"} · {"refuse": "…"}
//! {"event": "before_model", …, "model": "a:b", "system": "…", "messages": [{"role": "user", "text": "…"}, …]}
//!     ─▶ nothing or {} · {"system": "…", "texts": ["…", …]} · {"refuse": "…"}
//! {"event": "after_model", …, "model": "a:b", "text": "…", "calls": [{"tool": "…", "arguments": "…"}]}
//!     ─▶ nothing or {} · {"text": "…"} · {"refuse": "…"}
//! ```
//! A program that fails, times out or writes anything else refuses the call. It has answered when it exits; then all processes
//! that it has started are ended.

use std::path::{Path, PathBuf};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::hooks::{Hook, HookContext, HookEvent, HookPoint, HookRefusal};
use millrace_agent::model::{Message, Request};
use millrace_agent::spec::CommandHook;
use millrace_protocol::foreign_json::{parse_foreign_json, plain_json_error};
use millrace_protocol::secrets::{redact_bytes, redact_text};
use millrace_tools::program::{self, Program, RunningProgram};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::external::command::{PASSED, remember_passed_variables};
use crate::tools::launcher_of_this_program;

/// The most bytes of a program's output.
const MAX_OUTPUT: usize = 32 * 1024 * 1024;
/// The most characters of a program's error output in a refusal.
const MAX_ERROR: usize = 500;

/// A program as a hook.
pub(crate) struct CommandHookRunner {
    hook: CommandHook,
    /// The folder of the capability file.
    folder: PathBuf,
}

/// The answer of a program.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HookAnswer {
    /// The reason of its refusal.
    refuse: Option<String>,
    /// The text in place of that of the call.
    text: Option<String>,
    /// The system prompt in place of that of the request.
    system: Option<String>,
    /// The texts in place of those of the messages, all of them in order.
    texts: Option<Vec<String>>,
}

impl CommandHookRunner {
    pub fn new(hook: CommandHook, folder: &Path) -> Self {
        Self { hook, folder: folder.to_owned() }
    }

    async fn call_program(&self, context: &HookContext, event: HookEvent<'_>) -> Result<(), HookRefusal> {
        let mut input = describe_event(&event);
        input["event"] = event.point().name().into();
        input["attempt"] = context.attempt.to_string().into();
        input["capability"] = context.capability.as_str().into();
        let output = tokio::time::timeout(self.hook.timeout(), self.run_program(input.to_string())).await;
        let output = output
            .unwrap_or_else(|_| Err(format!("it timed out after {:?}", self.hook.timeout())))
            .map_err(|why| HookRefusal(format!("{} failed: {why}", self.hook.command[0])))?;
        let answer = read_answer(&output).map_err(HookRefusal)?;
        match answer.refuse {
            Some(reason) => Err(HookRefusal(reason)),
            None => apply_answer(answer, event).map_err(HookRefusal),
        }
    }

    async fn run_program(&self, input: String) -> Result<Vec<u8>, String> {
        remember_passed_variables(&self.hook.environment, &self.hook.command);
        let program = Program {
            command: self.hook.command.iter().map(Into::into).collect(),
            folder: Some(self.folder.clone()),
            ..Program::default()
        };
        let program = program
            .pass_variables(PASSED.into_iter().chain(self.hook.environment.iter().map(String::as_str)));
        let mut running = RunningProgram::start(launcher_of_this_program().as_ref(), &program)
            .await
            .map_err(|fault| format!("can't start it: {fault}"))?;
        let stderr = running.stderr.take();
        let exchange = running.exchange(input.as_bytes(), MAX_OUTPUT);
        let (answer, error) = program::with_error_output(stderr, MAX_OUTPUT, exchange).await;
        let (status, output) = answer.map_err(|fault| fault.to_string())?;
        if !status.success() {
            let error = String::from_utf8_lossy(&error);
            let error = redact_text(&error);
            let last: String = error.trim().chars().take(MAX_ERROR).collect();
            return Err(format!("{status}: {last}"));
        }
        Ok(redact_bytes(output))
    }
}

impl Hook for CommandHookRunner {
    fn name(&self) -> &str {
        &self.hook.command[0]
    }

    fn points(&self) -> &[HookPoint] {
        &self.hook.on
    }

    fn sees_tool(&self, tool: &str) -> bool {
        self.hook.tools.as_ref().is_none_or(|tools| tools.iter().any(|name| name == tool))
    }

    fn call<'a>(
        &'a self,
        context: &'a HookContext,
        event: HookEvent<'a>,
    ) -> BoxFuture<'a, Result<(), HookRefusal>> {
        self.call_program(context, event).boxed()
    }
}

fn describe_event(event: &HookEvent<'_>) -> Value {
    match event {
        HookEvent::BeforeModel { model, request } => {
            let messages: Vec<Value> = request.messages.iter().map(describe_message).collect();
            json!({"model": model, "system": request.system, "messages": messages})
        }
        HookEvent::AfterModel { model, reply } => {
            let calls =
                reply.calls.iter().map(|call| json!({"tool": call.name, "arguments": call.arguments}));
            json!({"model": model, "text": reply.text, "calls": calls.collect::<Vec<_>>()})
        }
        HookEvent::BeforeTool { tool, arguments } => json!({"tool": tool, "arguments": arguments}),
        HookEvent::AfterTool { tool, arguments, text, is_error } => {
            json!({"tool": tool, "arguments": arguments, "text": text, "is_error": is_error})
        }
    }
}

fn describe_message(message: &Message) -> Value {
    match message {
        Message::User { text } => json!({"role": "user", "text": text}),
        Message::Assistant { text, .. } => json!({"role": "assistant", "text": text}),
        Message::Tool(result) => json!({"role": "tool", "text": result.text}),
    }
}

fn replace_text(message: &mut Message, new: String) {
    match message {
        Message::User { text } => *text = new,
        Message::Assistant { text, provider_state, .. } => {
            if *text != new {
                // It holds the original reply.
                *provider_state = None;
            }
            *text = new;
        }
        Message::Tool(result) => result.text = new,
    }
}

fn read_answer(output: &[u8]) -> Result<HookAnswer, String> {
    if output.trim_ascii().is_empty() {
        return Ok(HookAnswer::default());
    }
    parse_foreign_json(output).map_err(|mistake| {
        let mistake = plain_json_error(&mistake.to_string());
        format!("its output is no answer: {mistake}; write nothing, or an object with \"refuse\" or the changed texts")
    })
}

/// Applies the changes of an answer.
fn apply_answer(answer: HookAnswer, event: HookEvent<'_>) -> Result<(), String> {
    let HookAnswer { refuse: _, text, system, texts } = answer;
    let point = event.point();
    let misplaced =
        |field: &str| Err(format!("its answer has {field:?}, which can't be changed at {}", point.name()));
    match event {
        HookEvent::BeforeModel { .. } if text.is_some() => misplaced("text"),
        HookEvent::BeforeModel { request, .. } => change_request(request, system, texts),
        HookEvent::AfterModel { .. } | HookEvent::BeforeTool { .. } | HookEvent::AfterTool { .. }
            if system.is_some() || texts.is_some() =>
        {
            misplaced(if system.is_some() { "system" } else { "texts" })
        }
        HookEvent::BeforeTool { .. } if text.is_some() => misplaced("text"),
        HookEvent::BeforeTool { .. } => Ok(()),
        HookEvent::AfterModel { reply, .. } => {
            reply.text = text.unwrap_or_else(|| std::mem::take(&mut reply.text));
            Ok(())
        }
        HookEvent::AfterTool { text: old, .. } => {
            *old = text.unwrap_or_else(|| std::mem::take(old));
            Ok(())
        }
    }
}

fn change_request(
    request: &mut Request,
    system: Option<String>,
    texts: Option<Vec<String>>,
) -> Result<(), String> {
    if let Some(texts) = &texts
        && texts.len() != request.messages.len()
    {
        let (own, all) = (texts.len(), request.messages.len());
        return Err(format!("its answer has {own} texts for {all} messages; write one for each"));
    }
    if let Some(system) = system {
        request.system = system;
    }
    for (message, text) in request.messages.iter_mut().zip(texts.into_iter().flatten()) {
        replace_text(message, text);
    }
    Ok(())
}
