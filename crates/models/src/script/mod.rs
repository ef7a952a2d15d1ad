//! `script:FILE`: a scripted model for tests and demonstrations. It owns the file format, the choice of a rule and the
//! placeholders. It keeps no state about a conversation: the request alone determines the rule, so that an attempt resumed
//! by another process continues correctly. Only `times` counts, separately in each process.
//! `docs/scripts.md` describes the format.

mod rules;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cassette::append_line;
use crate::limits::estimate_usage;
use crate::model::{
    Delta, DeltaListener, FinishReason, Model, ModelAbility, ModelError, Reply, ReplyFuture, ReplyResult,
    Request, ToolCall,
};

use rules::PlaceholderContext;
use rules::{ScriptFile, ScriptRule, ScriptedCall, ScriptedReply};

#[derive(Debug)]
pub struct ScriptedModel {
    name: String,
    file: ScriptFile,
    /// The number of replies of each rule so far.
    used: Vec<AtomicU64>,
    ledger: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
#[error("{file} is not a valid model script: {mistake}")]
pub struct ScriptError {
    pub file: String,
    pub mistake: String,
}

impl ScriptedModel {
    pub fn load(path: &Path) -> Result<Self, ScriptError> {
        let invalid = |mistake: String| {
            // The parser's own texts begin with a label.
            let mistake = mistake.trim_start_matches("error: ").to_owned();
            ScriptError { file: path.display().to_string(), mistake }
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| invalid(format!("it is not readable ({error})")))?;
        Self::parse(&text, path).map_err(invalid)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, String> {
        let file: ScriptFile = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        file.validate_rules()?;
        if let Some(ledger) = &file.ledger
            && !ledger.components().all(|part| matches!(part, std::path::Component::Normal(_)))
        {
            return Err(format!(
                "'ledger' is {}; it must be a path below the script's folder",
                ledger.display()
            ));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok(Self {
            name: format!("script:{}", path.display()),
            used: file.rules.iter().map(|_| AtomicU64::new(0)).collect(),
            ledger: file.ledger.as_ref().map(|ledger| folder.join(ledger)),
            file,
        })
    }

    /// Returns the number of attempts per request if the reply is a transient error.
    pub fn max_attempts(&self) -> u32 {
        self.file.tries
    }

    fn find_matching_rule(&self, view: &PlaceholderContext<'_>) -> Result<(usize, &ScriptRule), ModelError> {
        let mut rejected = Vec::new();
        for (at, rule) in self.file.rules.iter().enumerate() {
            match rule.when.find_mismatched_condition(view) {
                Some(mismatch) => rejected.push(format!("rule {}: {mismatch}", at + 1)),
                None if !self.claim_rule_use(at, rule) => rejected.push(format!("rule {}: used up", at + 1)),
                None => return Ok((at, rule)),
            }
        }
        let message =
            format!("{}: no rule matches {}; {}", self.name, view.summarize_request(), rejected.join("; "));
        Err(ModelError::bad_request(message))
    }

    fn claim_rule_use(&self, at: usize, rule: &ScriptRule) -> bool {
        let limit = rule.times.unwrap_or(u64::MAX);
        let more = |used| (used < limit).then_some(used + 1);
        self.used[at].fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    async fn reply_from_script(&self, request: &Request, listener: &dyn DeltaListener) -> ReplyResult {
        let view = PlaceholderContext::for_request(request);
        let matching = self.find_matching_rule(&view);
        self.append_to_request_log(matching.as_ref().ok().map(|(at, _)| *at), &view)?;
        let scripted = matching?.1.reply_for_turn(view.turn);
        if let Some(kind) = scripted.error {
            sleep(scripted.chunk_delay()).await;
            return Err(kind.to_model_error(scripted));
        }
        let reply = self.compose_reply(scripted, &view)?;
        stream_reply(scripted, &reply, listener).await;
        Ok(reply)
    }

    fn compose_reply(&self, scripted: &ScriptedReply, view: &PlaceholderContext<'_>) -> ReplyResult {
        let invalid = |mistake: String| ModelError::bad_request(format!("{}: {mistake}", self.name));
        let text = match (&scripted.answer, &scripted.text) {
            (Some(answer), _) => view.fill_placeholders(answer).map_err(invalid)?.to_string(),
            (None, Some(text)) => {
                rules::value_to_text(&view.fill_placeholders(&Value::from(text.as_str())).map_err(invalid)?)
            }
            (None, None) => String::new(),
        };
        let calls = scripted.calls.iter().enumerate().map(|(at, call)| compose_tool_call(at, call, view));
        let calls = calls.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
        let finish = if calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
        let usage = scripted.usage.unwrap_or_else(|| estimate_usage(view.request, &text, &calls));
        Ok(Reply {
            text,
            calls,
            usage,
            finish: scripted.finish.unwrap_or(finish),
            model: None,
            provider_state: None,
            first_token: scripted.first_token(view.request),
            vectors: Vec::new(),
        })
    }

    fn append_to_request_log(
        &self,
        rule: Option<usize>,
        view: &PlaceholderContext<'_>,
    ) -> Result<(), ModelError> {
        let Some(ledger) = &self.ledger else {
            return Ok(());
        };
        let line = json!({
            "rule": rule.map(|at| at + 1),
            "answer": view.answer,
            "turn": view.turn,
            "task": view.task.chars().take(200).collect::<String>(),
        });
        append_line(ledger, &line.to_string()).map_err(|error| {
            ModelError::bad_request(format!("{} cannot write to {}: {error}", self.name, ledger.display()))
        })
    }
}

impl Model for ScriptedModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn ability(&self) -> ModelAbility {
        self.file.ability
    }

    fn reply<'a>(&'a self, request: &'a Request, listener: &'a dyn DeltaListener) -> ReplyFuture<'a> {
        self.reply_from_script(request, listener).boxed()
    }
}

/// Converts a scripted call. Its id is derived from its position in the conversation, so that it is the same after a
/// restart.
fn compose_tool_call(
    at: usize,
    call: &ScriptedCall,
    view: &PlaceholderContext<'_>,
) -> Result<ToolCall, String> {
    let arguments = if call.arguments.is_null() {
        "{}".to_owned()
    } else {
        rules::value_to_text(&view.fill_placeholders(&call.arguments)?)
    };
    Ok(ToolCall { id: format!("call_{}_{}", view.turn, at + 1), name: call.tool.clone(), arguments })
}

async fn stream_reply(scripted: &ScriptedReply, reply: &Reply, listener: &dyn DeltaListener) {
    if let Some(reasoning) = &scripted.reasoning {
        listener.on_delta(Delta::Reasoning(reasoning));
    }
    let pieces = split_into_pieces(&reply.text, scripted.pieces);
    let pause = scripted.chunk_delay() / u32::try_from(pieces.len().max(1)).unwrap_or(u32::MAX);
    if pieces.is_empty() {
        sleep(pause).await;
    }
    for piece in pieces {
        sleep(pause).await;
        listener.on_delta(Delta::Text(piece));
    }
    reply.calls.iter().for_each(|call| listener.on_delta(Delta::Call(&call.name)));
}

/// Splits a text into `count` non-empty pieces of about the same length.
fn split_into_pieces(text: &str, count: usize) -> Vec<&str> {
    let length = text.chars().count().div_ceil(count.max(1)).max(1);
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).step_by(length).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
}

impl ScriptedReply {
    fn chunk_delay(&self) -> Duration {
        Duration::try_from_secs_f64(self.delay).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
