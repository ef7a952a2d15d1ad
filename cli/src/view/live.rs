//! Streamed model output and requests, by the work they belong to. They are shown live and not stored in the log.

use std::collections::BTreeMap;

use jiff::Timestamp;
use millrace_protocol::plan::{Task, TaskState, Work};
use millrace_protocol::safe_text::single_line;
use millrace_protocol::subject::Topic;
use serde::Deserialize;

/// Maximum number of characters that are kept per stream.
const REMEMBERED: usize = 400;

/// The most recent model output of each attempt and review.
#[derive(Debug, Default)]
pub struct LiveModelOutput {
    output: BTreeMap<String, String>,
    requests: BTreeMap<String, LiveRequest>,
}

/// The request that an agent has sent last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveRequest {
    pub sent_at: Timestamp,
    /// Its estimated number of tokens.
    pub tokens: u64,
    /// When the first part of the reply arrived.
    pub first_token_at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct LiveChunk {
    text: String,
    calls: Vec<String>,
    /// Discard the earlier output: the model call was restarted.
    anew: bool,
    /// A request was sent, before the text.
    #[serde(default)]
    sent_tokens: Option<u64>,
    /// The model has written something that is not shown.
    #[serde(default)]
    writing: bool,
}

impl LiveModelOutput {
    /// Adds a message from a subject `live.<run>.<topic>` of the run. Invalid messages are ignored.
    pub fn add_message(&mut self, subject: &str, payload: &[u8], now: Timestamp) {
        let (Some(topic), Ok(chunk)) =
            (subject.splitn(3, '.').nth(2), serde_json::from_slice::<LiveChunk>(payload))
        else {
            return;
        };
        if let Some(tokens) = chunk.sent_tokens {
            let request = LiveRequest { sent_at: now, tokens, first_token_at: None };
            self.requests.insert(topic.to_owned(), request);
        }
        let is_writing = chunk.writing || !chunk.text.is_empty() || !chunk.calls.is_empty();
        if let Some(request) = self.requests.get_mut(topic).filter(|_| is_writing) {
            request.first_token_at.get_or_insert(now);
        }
        let output = self.output.entry(topic.to_owned()).or_default();
        if chunk.anew {
            output.clear();
        }
        output.push_str(&chunk.text);
        for tool in chunk.calls {
            output.push_str(&format!(" [{tool}] "));
        }
        let over = output.chars().count().saturating_sub(REMEMBERED);
        *output = output.chars().skip(over).collect();
    }

    /// Returns the request that the agent of some work has sent last, as far as it was observed.
    pub fn last_request_of_work(&self, work: &Work) -> Option<LiveRequest> {
        self.requests.get(&Topic::journal_of_work(work).to_string()).copied()
    }

    /// Returns the last `width` characters of output for a task, on one line.
    pub fn last_output_of_task(&self, task: &Task, width: usize) -> Option<String> {
        let (id, attempt) = (task.spec.id.clone(), task.attempt);
        let work = match task.state() {
            TaskState::Running => Work::Task { task: id, attempt },
            TaskState::NeedsReview => Work::Review { task: id, attempt, review: task.review_number() },
            TaskState::Pending
            | TaskState::Ready
            | TaskState::Completed
            | TaskState::Rerun
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled
            | TaskState::Waiting => return None,
        };
        let output =
            single_line(&readable_text(self.output.get(&Topic::journal_of_work(&work).to_string())?));
        let over = output.chars().count().saturating_sub(width);
        (!output.is_empty()).then(|| format!("writing: …{}", output.chars().skip(over).collect::<String>()))
    }
}

/// Returns the text that a person reads: of an answer in JSON, the end of its last string.
fn readable_text(output: &str) -> String {
    if !output.trim_start().starts_with(['{', '[']) {
        return output.to_owned();
    }
    let last = output.rsplit("\": \"").next().filter(|text| text.len() < output.len()).unwrap_or_default();
    let end = last.find("\"}").or_else(|| last.find("\",")).unwrap_or(last.len());
    last[..end].replace("\\n", " ").replace("\\\"", "\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_is_written_is_shown_as_text() {
        assert_eq!(readable_text("plain \"text\""), "plain \"text\"");
        assert_eq!(
            readable_text(r#"{"summary": "Two rules", "text": "The first\nrule sa"#),
            "The first rule sa"
        );
        assert_eq!(readable_text(r#"{"summary": "Two rules"}"#), "Two rules");
        assert_eq!(readable_text("{"), "");
    }

    #[test]
    fn live_output_is_kept_until_the_call_restarts() {
        let mut live = LiveModelOutput::default();
        let subject = "live.r.task.a.1";
        let now = Timestamp::UNIX_EPOCH;
        live.add_message(subject, br#"{"text":"The licence\n grants","calls":["think"],"anew":false}"#, now);
        live.add_message(subject, b"not JSON", now);
        live.add_message("live", b"{}", now);
        assert_eq!(live.output["task.a.1"], "The licence\n grants [think] ");
        live.add_message(subject, br#"{"text":"again","calls":[],"anew":true}"#, now);
        assert_eq!(live.output["task.a.1"], "again");
        live.add_message(
            subject,
            format!(r#"{{"text":"{}","calls":[],"anew":false}}"#, "x".repeat(900)).as_bytes(),
            now,
        );
        assert_eq!(live.output["task.a.1"].len(), REMEMBERED);
    }
}
