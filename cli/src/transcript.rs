//! The transcript as lines for a person. Everything that came from models, tools, documents or users is made printable.
//! Pure, except that the printer remembers whether it has cut a text.

use std::fmt::Write;

use millrace_agent::transcript::{ModelCall, ModelCallOutcome, ToolCallResult, TranscriptStep};
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Attempt, JournalKey, ResourceKind, Task};
use millrace_protocol::result::{Build, PlanProposal, TaskError, TaskResult, Usage, Verdict};
use millrace_protocol::safe_text::{single_line, terminal_text};
use serde_json::Value;

use crate::json::AttemptState;
use millrace_views::journal::{TranscriptEntry, TranscriptEvent};

/// The maximum number of lines of one text on a terminal.
const MAX_LINES: usize = 16;
/// The maximum number of characters of one text on a terminal.
const MAX_CHARS: usize = 1_600;
/// The indentation of a text below the line of its entry.
const INDENT: &str = "    ";

/// Renders entries one after the other, with a heading for each attempt.
pub struct TranscriptPrinter {
    /// `true` if long texts are cut.
    is_cutting: bool,
    has_cut: bool,
    /// The attempt of the entry before, as its heading numbers it.
    last: Option<(u32, u32)>,
}

impl TranscriptPrinter {
    /// A printer that cuts long texts, or prints all of them.
    pub fn new(is_cutting: bool) -> Self {
        Self { is_cutting, has_cut: false, last: None }
    }

    pub fn has_cut(&self) -> bool {
        self.has_cut
    }

    /// Returns `true` if the next entry of this journal begins another attempt, so that a heading is due.
    pub fn starts_attempt(&mut self, journal: &JournalKey) -> bool {
        // The attempts at a turn are distinguished, the reviews of an attempt belong to it.
        let attempt = match journal {
            JournalKey::Planning(turn, attempt) => (*turn, *attempt),
            JournalKey::Task(_, attempt) | JournalKey::Review(_, attempt) => (*attempt, 0),
        };
        self.last.replace(attempt) != Some(attempt)
    }

    pub fn entry_lines(&mut self, entry: &TranscriptEntry) -> Vec<String> {
        let (head, texts) = self.render(&entry.journal, &entry.event);
        let mut lines = vec![format!("{} {head}", entry.at.strftime("%H:%M:%S"))];
        lines.extend(texts);
        lines
    }

    fn render(&mut self, journal: &JournalKey, event: &TranscriptEvent) -> (String, Vec<String>) {
        match event {
            TranscriptEvent::Claimed { worker, claim, build } => {
                let what =
                    if matches!(journal, JournalKey::Review(..)) { "review claimed" } else { "claimed" };
                let again = if *claim > 1 { format!(" (claim {claim})") } else { String::new() };
                let build = build.as_deref().map(describe_build).unwrap_or_default();
                (format!("{what} by {worker}{again}{build}"), Vec::new())
            }
            TranscriptEvent::Released { worker, reason } => {
                (format!("released by {worker}: {}", single_line(reason)), Vec::new())
            }
            TranscriptEvent::Parked { worker, waits } => {
                (format!("parked by {worker}, waits for {}", single_line(&waits.join(", "))), Vec::new())
            }
            TranscriptEvent::Delegated { started, cancelled, instructed, .. } => {
                let parts = [("starts", started), ("cancels", cancelled), ("instructs", instructed)];
                let parts = parts.iter().filter(|(_, tasks)| !tasks.is_empty()).map(|(verb, tasks)| {
                    let names: Vec<&str> = tasks.iter().map(TaskId::as_str).collect();
                    format!("{verb} {}", names.join(", "))
                });
                (parts.collect::<Vec<_>>().join("; "), Vec::new())
            }
            TranscriptEvent::Note { text } => (format!("note: {}", single_line(text)), Vec::new()),
            TranscriptEvent::Step(step) => self.render_step(step),
            TranscriptEvent::Result { summary, usage, result, .. } => {
                let head = format!("result{}: {}", usage_suffix(usage), single_line(summary));
                (
                    head,
                    result.as_ref().map(|result| self.result_lines(result)).unwrap_or_else(|| {
                        vec![format!("{INDENT}(the complete result can't be read any more)")]
                    }),
                )
            }
            TranscriptEvent::Verdict { critic, verdict, .. } => {
                let word = if verdict.passed { "passed" } else { "rejected" };
                let head = format!("verdict: {word} by {critic}{}", usage_suffix(&verdict.usage));
                (head, self.verdict_lines(verdict))
            }
            TranscriptEvent::Proposal { proposal, usage, .. } => {
                (format!("proposal{}", usage_suffix(usage)), self.proposal_lines(proposal))
            }
            TranscriptEvent::Error { error, .. } => {
                let head = format!("error ({}){}", error.kind.name(), usage_suffix(&error.usage));
                (head, self.error_lines(error))
            }
            TranscriptEvent::StoredStep { name, sha256, bytes } => {
                (format!("step {}: {bytes} bytes in blob {sha256}", single_line(name)), Vec::new())
            }
            TranscriptEvent::Unreadable { error } => {
                (format!("unreadable entry: {}", single_line(error)), Vec::new())
            }
        }
    }

    fn proposal_lines(&mut self, proposal: &PlanProposal) -> Vec<String> {
        let mut lines = self.text_lines(&proposal.reasoning);
        for edit in proposal.all_edits() {
            lines.extend(self.text_lines(&format!("→ {}", single_line(&json_text(&edit)))));
        }
        lines
    }

    fn error_lines(&mut self, TaskError { message, produced, .. }: &TaskError) -> Vec<String> {
        let mut lines = self.text_lines(message);
        if let Some(produced) = produced {
            lines.push(format!("{INDENT}The output until then:"));
            lines.extend(self.text_lines(produced));
        }
        lines
    }

    fn render_step(&mut self, step: &TranscriptStep) -> (String, Vec<String>) {
        match step {
            TranscriptStep::ModelCall(call) => self.render_model_call(call),
            TranscriptStep::ToolResult(result) => self.render_tool_result(result),
            TranscriptStep::CallsBegun { calls, judge, .. } => (
                format!("{}calls begin: {}", judge_prefix(*judge), single_line(&calls.join(", "))),
                Vec::new(),
            ),
            TranscriptStep::JudgeFailed { judge, error } => {
                (format!("{}failed: {}", judge_prefix(Some(*judge)), single_line(error)), Vec::new())
            }
            TranscriptStep::Step { name, value } => {
                let text = match value {
                    Value::Null => String::new(),
                    Value::String(text) => text.clone(),
                    Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                        format!("{value:#}")
                    }
                };
                (format!("step {}", single_line(name)), self.text_lines(&text))
            }
        }
    }

    fn render_model_call(&mut self, call: &ModelCall) -> (String, Vec<String>) {
        let mut lines = Vec::new();
        for message in &call.messages {
            let refused = if message.is_error { " (refused)" } else { "" };
            lines.push(format!("  {}{refused}:", message.role));
            lines.extend(self.text_lines(&message.text));
        }
        if !call.tools.is_empty() {
            lines.push(format!("  tools: {}", single_line(&call.tools.join(", "))));
        }
        if !call.text.trim().is_empty() {
            lines.push(
                if call.outcome == ModelCallOutcome::Reply { "  assistant:" } else { "  provider:" }.into(),
            );
            lines.extend(self.text_lines(&call.text));
        }
        for request in &call.calls {
            let arguments = match &request.arguments {
                Value::String(text) => text.clone(),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                    request.arguments.to_string()
                }
            };
            lines.extend(self.text_lines(&format!(
                "→ {} {}",
                single_line(&request.tool),
                single_line(&arguments)
            )));
        }
        let outcome = match call.outcome {
            ModelCallOutcome::Reply => "",
            ModelCallOutcome::Overflow => "; the conversation is too long for the model",
            ModelCallOutcome::TimeUp => "; the working time ran out",
        };
        let model = call.model.as_deref().map_or_else(|| "unknown model".to_owned(), single_line);
        let compacted = if call.is_compacted { "; after the conversation was compacted" } else { "" };
        let head = format!(
            "{}model call {} to {model}, {}{}{outcome}{compacted}",
            judge_prefix(call.judge),
            call.turn + 1,
            seconds(call.duration_ms),
            usage_suffix(&call.usage),
        );
        (head, lines)
    }

    fn render_tool_result(&mut self, result: &ToolCallResult) -> (String, Vec<String>) {
        let error = if result.is_error { " failed" } else { "" };
        let head = format!(
            "{}tool {}{error}, {}{}",
            judge_prefix(result.judge),
            single_line(&result.tool),
            seconds(result.duration_ms),
            usage_suffix(&result.usage),
        );
        (head, self.text_lines(&result.text))
    }

    fn result_lines(&mut self, result: &TaskResult) -> Vec<String> {
        let mut lines = self.text_lines(&result.output);
        if let Some(notes) = &result.notes {
            lines.push("  notes:".into());
            lines.extend(self.text_lines(notes));
        }
        for source in &result.sources {
            let text = format!("[{}] {} ({})", source.id, source.title, source.location);
            lines.push(format!("{INDENT}{}", single_line(&text)));
        }
        for artifact in &result.artifacts {
            let text =
                format!("file {} (version {}, {} bytes)", artifact.path, artifact.version, artifact.bytes);
            lines.push(format!("{INDENT}{}", single_line(&text)));
        }
        lines
    }

    fn verdict_lines(&mut self, verdict: &Verdict) -> Vec<String> {
        let mut lines = Vec::new();
        for criterion in &verdict.criteria {
            let mark = if criterion.met { '✓' } else { '✗' };
            let gap = criterion.gap.as_ref().map(|gap| format!(": {gap}")).unwrap_or_default();
            lines.extend(self.text_lines(&format!("{mark} {}{gap}", criterion.criterion)));
        }
        lines.extend(self.text_lines(&verdict.reasoning));
        if let Some(feedback) = &verdict.feedback {
            lines.extend(self.text_lines(&format!("feedback: {feedback}")));
        }
        for opinion in &verdict.opinions {
            let word = if opinion.passed { "passes" } else { "rejects" };
            lines.extend(self.text_lines(&format!("{} {word}: {}", opinion.model, opinion.reasoning)));
        }
        lines
    }

    /// Returns a text, printable and indented, without its end if it is long.
    fn text_lines(&mut self, text: &str) -> Vec<String> {
        let text = terminal_text(text.trim_end());
        if text.is_empty() {
            return Vec::new();
        }
        let all: Vec<&str> = text.lines().collect();
        if !self.is_cutting {
            return all.iter().map(|line| format!("{INDENT}{line}")).collect();
        }
        let (mut shown, mut room) = (Vec::new(), MAX_CHARS);
        for line in all.iter().take(MAX_LINES) {
            if line.chars().count() > room {
                shown.push(format!("{INDENT}{}…", line.chars().take(room).collect::<String>()));
                room = 0;
                break;
            }
            room -= line.chars().count();
            shown.push(format!("{INDENT}{line}"));
        }
        let total: usize = text.chars().count();
        if shown.len() < all.len() || room == 0 {
            self.has_cut = true;
            shown.push(format!("{INDENT}[cut: {} lines, {total} characters in all]", all.len()));
        }
        shown
    }
}

/// Returns the heading of an attempt: its state, worker, duration and usage, as far as known.
pub fn attempt_heading(journal: &JournalKey, task: Option<&Task>) -> String {
    if let JournalKey::Planning(turn, attempt) = journal {
        let again = if *attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
        return format!("planner turn {turn}{again}");
    }
    let number = journal.number();
    let known = task.and_then(|task| Some((task, task.attempts.iter().find(|one| one.number == number)?)));
    let Some((task, attempt)) = known else { return format!("attempt {number}") };
    let mut text = format!("attempt {number}  {}", AttemptState::of_attempt(task, attempt).name());
    if let Some(worker) = &attempt.worker {
        let _ = write!(text, "  on {worker}");
    }
    if let Attempt { claimed_at: Some(from), ended_at: Some(to), .. } = attempt {
        let _ = write!(text, "  {:.1} s", to.duration_since(*from).as_secs_f64().max(0.0));
    }
    if !attempt.usage.is_zero() {
        let _ = write!(text, "  {}", usage_text(&attempt.usage));
    }
    text
}

fn judge_prefix(judge: Option<u32>) -> String {
    judge.map(|judge| format!("judge {}: ", judge + 1)).unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "it is shown to a person")]
fn seconds(duration_ms: u64) -> String {
    format!("{:.1} s", duration_ms as f64 / 1_000.0)
}

fn usage_suffix(usage: &Usage) -> String {
    if usage.is_zero() { String::new() } else { format!(", {}", usage_text(usage)) }
}

fn usage_text(usage: &Usage) -> String {
    let mut parts = Vec::new();
    if usage.model_calls > 1 {
        parts.push(format!("{} model calls", usage.model_calls));
    }
    match usage.tool_calls {
        0 => {}
        1 => parts.push("1 tool call".to_owned()),
        calls => parts.push(format!("{calls} tool calls")),
    }
    parts.push(format!("{} tokens in, {} out", usage.input_tokens, usage.output_tokens));
    if usage.cached_tokens > 0 {
        parts.push(ResourceKind::CachedTokens.format_amount(usage.cached_tokens));
    }
    if usage.cost_micros > 0 {
        parts.push(ResourceKind::Cost.format_amount(usage.cost_micros));
    }
    parts.join(", ")
}

fn json_text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("edits and kinds of errors serialise to JSON")
}

/// Returns the software of a claimant, as in `, millrace 0.5.0, version 1.2, file 3f9a0c1d2e4b`.
fn describe_build(build: &Build) -> String {
    let capability = build.capability.as_ref();
    let version = capability.and_then(|capability| capability.version.as_ref());
    let file = capability.and_then(|capability| capability.sha256.as_ref());
    let version = version.map(|version| format!(", version {}", single_line(version)));
    let file = file.map(|file| format!(", file {}", single_line(&file.chars().take(12).collect::<String>())));
    format!(", {}{}{}", single_line(&build.program), version.unwrap_or_default(), file.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use millrace_agent::transcript::read_step;
    use serde_json::json;

    use super::*;

    fn entry(event: TranscriptEvent) -> TranscriptEntry {
        let at = "2026-11-21T23:00:05Z".parse().unwrap();
        TranscriptEntry { at, sequence: 1, journal: JournalKey::Planning(1, 1), step: None, event }
    }

    fn step(name: &str, value: Value) -> TranscriptEntry {
        entry(TranscriptEvent::Step(read_step(name, value)))
    }

    fn text(printer: &mut TranscriptPrinter, entry: &TranscriptEntry) -> String {
        printer.entry_lines(entry).join("\n")
    }

    #[test]
    fn a_model_call_shows_prompt_reply_calls_and_usage() {
        let call = step(
            "model.0",
            json!({
                "heard": {"reply": {"text": "Let me look.", "finish": "tool_calls",
                    "usage": {"input_tokens": 700, "output_tokens": 20, "cost_micros": 1500},
                    "calls": [{"id": "c", "name": "search", "arguments": "{\"query\":\"patent\"}"}]}},
                "sent": {"system": "You research.", "user": ["Find it."], "tools": ["search"]},
                "model": "openai:x", "took_ms": 1300,
            }),
        );
        assert_eq!(
            text(&mut TranscriptPrinter::new(true), &call),
            "23:00:05 model call 1 to openai:x, 1.3 s, 700 tokens in, 20 out, $0.0015\n  system:\n    You research.\n  \
             user:\n    Find it.\n  tools: search\n  assistant:\n    Let me look.\n    → search {\"query\":\"patent\"}"
        );
    }

    #[test]
    fn long_texts_are_cut_on_a_terminal_only() {
        let lines = (0..100).map(|n| format!("line {n}")).collect::<Vec<_>>().join("\n");
        for long in [lines, "x".repeat(5_000)] {
            let result = step("tool.0.0.look", json!({"call_id": "c", "text": long, "took_ms": 1}));
            let mut cutting = TranscriptPrinter::new(true);
            let cut = text(&mut cutting, &result);
            assert!(cutting.has_cut() && cut.len() < 2_000 && cut.contains("characters in all"), "{cut}");
            let mut complete = TranscriptPrinter::new(false);
            assert!(text(&mut complete, &result).replace(INDENT, "").ends_with(&long) && !complete.has_cut());
        }
        let mut cutting = TranscriptPrinter::new(true);
        let exact = vec!["y".repeat(MAX_CHARS / MAX_LINES); MAX_LINES].join("\n");
        let result = step("tool.0.0.look", json!({"call_id": "c", "text": exact, "took_ms": 1}));
        assert!(text(&mut cutting, &result).lines().count() >= MAX_LINES);
    }

    #[test]
    fn nothing_from_outside_reaches_the_terminal_raw() {
        let evil = "\u{1b}]52;c;x\u{7}\u{9b}31m\u{202e}";
        let error = TaskError {
            produced: Some(evil.into()),
            ..TaskError::new(millrace_protocol::result::ErrorKind::Tool, evil)
        };
        let worker = millrace_protocol::ids::WorkerId::new("w").unwrap();
        let criterion = millrace_protocol::result::CriterionOutcome {
            criterion: evil.into(),
            met: false,
            gap: Some(evil.into()),
        };
        let opinion = millrace_protocol::result::JudgeOpinion {
            model: evil.into(),
            passed: true,
            reasoning: evil.into(),
            confidence: None,
        };
        let source = millrace_protocol::result::Source {
            id: evil.into(),
            kind: millrace_protocol::result::SourceKind::Web,
            title: evil.into(),
            location: evil.into(),
            sha256: None,
            accessed_at: None,
        };
        let result = TaskResult {
            output: evil.into(),
            notes: Some(evil.into()),
            sources: vec![source],
            ..TaskResult::default()
        };
        let verdict = Verdict {
            criteria: vec![criterion],
            reasoning: evil.into(),
            feedback: Some(evil.into()),
            opinions: vec![opinion],
            ..Verdict::default()
        };
        let reply =
            json!({"text": evil, "finish": "stop", "calls": [{"id": evil, "name": evil, "arguments": evil}]});
        let events = [
            entry(TranscriptEvent::Note { text: evil.into() }),
            entry(TranscriptEvent::Released { worker: worker.clone(), reason: evil.into() }),
            entry(TranscriptEvent::Parked { worker: worker.clone(), waits: vec![evil.into()] }),
            entry(TranscriptEvent::Unreadable { error: evil.into() }),
            entry(TranscriptEvent::Error { worker: worker.clone(), error }),
            entry(TranscriptEvent::Verdict { critic: worker.clone(), review: 1, verdict }),
            entry(TranscriptEvent::Result {
                worker: worker.clone(),
                summary: evil.into(),
                usage: Usage::default(),
                models: std::collections::BTreeMap::new(),
                result: Some(Box::new(result)),
            }),
            entry(TranscriptEvent::Proposal {
                worker,
                proposal: Box::new(millrace_protocol::result::PlanProposal {
                    reasoning: evil.into(),
                    ..Default::default()
                }),
                usage: Usage::default(),
                models: std::collections::BTreeMap::new(),
            }),
            step(evil, json!({ evil: evil })),
            step("judge.0.lost", json!({ "message": evil })),
            step("begin.0", json!({ "calls": [evil] })),
            step(&format!("tool.0.0.{evil}"), json!({"call_id": evil, "text": evil, "took_ms": 1})),
            step(
                "model.0",
                json!({"heard": {"reply": reply}, "model": evil, "took_ms": 1,
                "sent": {"system": evil, "user": [evil], "tools": [evil]}}),
            ),
            step("model.1", json!({"heard": {"overflow": evil}, "took_ms": 1})),
        ];
        for event in events {
            let mut printer = TranscriptPrinter::new(false);
            for line in printer.entry_lines(&event) {
                let is_bad = |c: char| c.is_control() || c == '\u{202e}';
                assert!(!line.chars().any(is_bad), "{line:?} of {event:?}");
            }
        }
    }

    #[test]
    fn a_heading_is_due_for_each_attempt_and_not_for_its_review() {
        let mut printer = TranscriptPrinter::new(true);
        let task = TaskId::new("draft").unwrap();
        let journals = [
            (JournalKey::Task(task.clone(), 1), true),
            (JournalKey::Task(task.clone(), 1), false),
            (JournalKey::Review(task.clone(), 1), false),
            (JournalKey::Task(task, 2), true),
            (JournalKey::Planning(2, 1), true),
            (JournalKey::Planning(2, 2), true),
            (JournalKey::Planning(2, 2), false),
        ];
        for (journal, is_due) in journals {
            assert_eq!(printer.starts_attempt(&journal), is_due, "{journal:?}");
        }
    }
}
