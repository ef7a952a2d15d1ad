//! `script:FILE`: a model that answers by hand, for tests and demonstrations. It owns the form of the file, the choice
//! of a rule and what is filled in; it remembers nothing of a conversation: which rule fits follows from the request,
//! so that an attempt that another process continues is answered on. Only `times` counts, in each process by itself.
//!
//! ```yaml
//! rules:
//! - when: {answer: plan}                  # all that `when` names must hold; without `when` a rule fits always
//!   reply:
//!     answer: {reasoning: simple, tasks: []}
//! - when: {answer: findings, task: patents}
//!   turns:                                # the first reply of a conversation, the second …; the last one stays
//!   - calls:                              # at once, in this order
//!     - search_documents: {query: "{{task.objective}}"}
//!     - now                               # a tool without arguments
//!   - error: rate_limited                 # as an agent would see it, once retries are used up
//!     retry_after: 2
//!   - answer: {output: "It says [S1].", summary: short}
//!     delay: 0.5                          # seconds
//! - times: 1                              # for one request only
//!   reply: {text: "Hello, {{turn}}.", pieces: 4}
//! ```
//!
//! `when`: `answer` (the name of the form that is asked for: `plan`, `findings`, `report`, `verdict`, the capability's
//! own; empty for plain text), `system`, `task` and `last` (words of the instructions, of the first message and of the
//! newest one), `tool` (whose result is the newest message), `failed` (whether that is an error), `offered` (a tool
//! that may be called), `turn` (1 is the first reply of the conversation). The first rule that fits answers.
//!
//! A reply is one of `text`, `answer` (JSON), `calls` (perhaps beside `text`) and `error` (a kind of [`ModelError`]
//! with `message` and `retry_after`), and besides: `delay`, `pieces` (the text comes in so many, over the delay),
//! `reasoning`, `usage`, `finish`. Arguments that are a text are passed on as they are, whatever they are.
//!
//! In texts `{{task}}` is the first message, `{{last}}` the newest, `{{task.objective}}` and `{{last.hits.0.path}}`
//! what stands there in the JSON that it holds, `{{turn}}` the turn. A text that is nothing but one of these becomes
//! what stands there, of whatever type.
//!
//! Beside `rules` a file may have `tries` (how often a request is made when the reply is an error that may pass; 1 if
//! left out) and `ledger` (a file beside it that gets a line for each request: rule, answer, turn and task).

mod filled;
mod rules;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::result::Usage;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cassette::append;
use crate::guard::size;
use crate::model::{Delta, Finish, Model, ModelError, Reply, Request, ToolCall, Watch};
use filled::Scene;
use rules::{Act, Call, File, Rule};

/// A model that answers by hand.
#[derive(Debug)]
pub struct Script {
    name: String,
    file: File,
    /// How often each rule has answered.
    used: Vec<AtomicU64>,
    ledger: Option<PathBuf>,
}

/// A script that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{file} is no script of a model: {mistake}")]
pub struct ScriptError {
    /// The file.
    pub file: String,
    /// What is wrong, and where.
    pub mistake: String,
}

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// The file can't be read or has a mistake in it.
    pub fn load(path: &Path) -> Result<Self, ScriptError> {
        let wrong = |mistake: String| ScriptError { file: path.display().to_string(), mistake };
        let text =
            std::fs::read_to_string(path).map_err(|error| wrong(format!("it can't be read ({error})")))?;
        Self::parse(&text, path).map_err(wrong)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, String> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        file.check()?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok(Self {
            name: format!("script:{}", path.display()),
            used: file.rules.iter().map(|_| AtomicU64::new(0)).collect(),
            ledger: file.ledger.as_ref().map(|ledger| folder.join(ledger)),
            file,
        })
    }

    /// How often a request is made when the reply is an error that may pass.
    #[must_use]
    pub fn tries(&self) -> u32 {
        self.file.tries
    }

    /// The first rule that fits and has not answered as often as it may.
    fn rule(&self, scene: &Scene<'_>) -> Result<(usize, &Rule), ModelError> {
        let mut passed = Vec::new();
        for (at, rule) in self.file.rules.iter().enumerate() {
            match rule.when.misfit(scene) {
                Some(misfit) => passed.push(format!("rule {}: {misfit}", at + 1)),
                None if !self.take(at, rule) => passed.push(format!("rule {}: used up", at + 1)),
                None => return Ok((at, rule)),
            }
        }
        let message = format!("{} has no rule for {}; {}", self.name, scene.summary(), passed.join("; "));
        Err(ModelError::BadRequest { message })
    }

    fn take(&self, at: usize, rule: &Rule) -> bool {
        let limit = rule.times.unwrap_or(u64::MAX);
        let more = |used| (used < limit).then_some(used + 1);
        self.used[at].fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    async fn answer(&self, request: &Request, watch: &dyn Watch) -> Result<Reply, ModelError> {
        let scene = Scene::of(request);
        let found = self.rule(&scene);
        self.note(found.as_ref().ok().map(|(at, _)| *at), &scene)?;
        let act = found?.1.act(scene.turn);
        if let Some(kind) = act.error {
            sleep(act.delay()).await;
            return Err(kind.error(act));
        }
        let reply = self.composed(act, &scene)?;
        perform(act, &reply, watch).await;
        Ok(reply)
    }

    fn composed(&self, act: &Act, scene: &Scene<'_>) -> Result<Reply, ModelError> {
        let missing =
            |mistake: String| ModelError::BadRequest { message: format!("{}: {mistake}", self.name) };
        let text = match (&act.answer, &act.text) {
            (Some(answer), _) => scene.fill(answer).map_err(missing)?.to_string(),
            (None, Some(text)) => filled::text(&scene.fill(&Value::from(text.as_str())).map_err(missing)?),
            (None, None) => String::new(),
        };
        let calls = act.calls.iter().enumerate().map(|(at, call)| called(at, call, scene));
        let calls = calls.collect::<Result<Vec<_>, _>>().map_err(missing)?;
        let finish = if calls.is_empty() { Finish::Stop } else { Finish::ToolCalls };
        let usage = act.usage.unwrap_or_else(|| usage(scene.request, &text, &calls));
        Ok(Reply { text, calls, usage, finish: act.finish.unwrap_or(finish), model: None, keepsake: None })
    }

    fn note(&self, rule: Option<usize>, scene: &Scene<'_>) -> Result<(), ModelError> {
        let Some(ledger) = &self.ledger else {
            return Ok(());
        };
        let line = json!({
            "rule": rule.map(|at| at + 1),
            "answer": scene.answer,
            "turn": scene.turn,
            "task": scene.task.chars().take(200).collect::<String>(),
        });
        append(ledger, &line.to_string()).map_err(|error| ModelError::BadRequest {
            message: format!("{} can't write to {}: {error}", self.name, ledger.display()),
        })
    }
}

impl Model for Script {
    fn name(&self) -> &str {
        &self.name
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        watch: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        self.answer(request, watch).boxed()
    }
}

/// A call's name follows from its place in the conversation, so that it is the same again after a restart.
fn called(at: usize, call: &Call, scene: &Scene<'_>) -> Result<ToolCall, String> {
    let arguments =
        if call.arguments.is_null() { "{}".to_owned() } else { filled::text(&scene.fill(&call.arguments)?) };
    Ok(ToolCall { id: format!("call_{}_{}", scene.turn, at + 1), name: call.tool.clone(), arguments })
}

fn usage(request: &Request, text: &str, calls: &[ToolCall]) -> Usage {
    let written = text.len() + calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>();
    Usage { input_tokens: size(request), output_tokens: (written as u64 / 4).max(1), ..Usage::default() }
}

/// Lets the onlooker see the reply being written.
async fn perform(act: &Act, reply: &Reply, watch: &dyn Watch) {
    if let Some(reasoning) = &act.reasoning {
        watch.delta(Delta::Reasoning(reasoning));
    }
    let pieces = pieces(&reply.text, act.pieces);
    let pause = act.delay() / u32::try_from(pieces.len().max(1)).unwrap_or(u32::MAX);
    if pieces.is_empty() {
        sleep(pause).await;
    }
    for piece in pieces {
        sleep(pause).await;
        watch.delta(Delta::Text(piece));
    }
    reply.calls.iter().for_each(|call| watch.delta(Delta::Call(&call.name)));
}

/// A text in so many pieces of about the same length, none of them empty.
fn pieces(text: &str, count: usize) -> Vec<&str> {
    let length = text.chars().count().div_ceil(count.max(1)).max(1);
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).step_by(length).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
}

impl Act {
    fn delay(&self) -> Duration {
        Duration::try_from_secs_f64(self.delay).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
