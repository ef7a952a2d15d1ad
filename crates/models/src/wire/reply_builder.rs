//! Assembles a reply from streamed pieces of text and tool calls, which may arrive in any order, and reports them to the
//! listener. It knows no provider.

use std::borrow::Cow;

use millrace_protocol::foreign_json::{mend_json_text, parse_foreign_json};
use millrace_protocol::result::Usage;
use millrace_protocol::secrets::redact_text;
use serde_json::Value;

use crate::model::{Delta, DeltaListener, FinishReason, Reply, Request, ToolCall};

/// The beginning of the ids of calls whose provider sends none.
pub(super) const GENERATED_ID_PREFIX: &str = "call_";

/// A reply that is being streamed.
#[derive(Default)]
pub(super) struct ReplyBuilder {
    /// The text so far.
    pub(super) text: String,
    /// The token usage reported so far.
    pub(super) usage: Usage,
    /// The finish reason, once received.
    pub(super) finish: Option<FinishReason>,
    slots: Vec<ToolCallSlot>,
    /// The number of messages before this reply. It makes generated call ids unique in the conversation.
    prior_messages: usize,
}

/// A tool call that is being streamed.
#[derive(Default)]
struct ToolCallSlot {
    index: u64,
    id: String,
    name: String,
    arguments: String,
    announced: bool,
}

/// A piece of a tool call.
pub(super) struct ToolCallFragment<'a> {
    /// The index of the call, if the provider sent one.
    pub(super) index: Option<u64>,
    /// The id of the call, or empty.
    pub(super) id: &'a str,
    /// The complete name of the tool in the first piece, empty in later ones.
    pub(super) name: &'a str,
    /// More of the arguments.
    pub(super) arguments: &'a str,
}

impl ReplyBuilder {
    pub(super) fn new(request: &Request) -> Self {
        Self { prior_messages: request.messages.len(), ..Self::default() }
    }

    /// Appends text.
    pub(super) fn push_text(&mut self, words: &str, listener: &dyn DeltaListener) {
        if !words.is_empty() {
            self.text.push_str(words);
            listener.on_delta(Delta::Text(words));
        }
    }

    /// Adds a piece to its call, or begins a new call. A piece without an index belongs to the call with its id, or to the
    /// last call unless the piece names a tool. Some servers give all calls the same index, others the same id: so a
    /// further tool name begins a new call.
    pub(super) fn push_call_fragment(&mut self, piece: &ToolCallFragment<'_>, listener: &dyn DeltaListener) {
        let at = self.find_call_slot(piece).unwrap_or_else(|| {
            let next = self.slots.iter().map(|slot| slot.index.saturating_add(1)).max().unwrap_or(0);
            self.slots.push(ToolCallSlot { index: piece.index.unwrap_or(next), ..ToolCallSlot::default() });
            self.slots.len() - 1
        });
        let slot = &mut self.slots[at];
        if slot.id.is_empty() {
            piece.id.clone_into(&mut slot.id);
        }
        if slot.name.is_empty() {
            piece.name.clone_into(&mut slot.name);
        }
        slot.arguments.push_str(piece.arguments);
        if !slot.announced && !slot.name.is_empty() {
            slot.announced = true;
            listener.on_delta(Delta::Call(&slot.name));
        }
    }

    fn find_call_slot(&self, piece: &ToolCallFragment<'_>) -> Option<usize> {
        let last_slot = |is: &dyn Fn(&ToolCallSlot) -> bool| self.slots.iter().rposition(is);
        let at = match (piece.index, piece.id) {
            (Some(index), _) => last_slot(&|slot| slot.index == index)?,
            (None, "") if piece.name.is_empty() => last_slot(&|_| true)?,
            (None, "") => return None,
            (None, id) => last_slot(&|slot| slot.id == id)?,
        };
        let slot = &self.slots[at];
        let other_id = !piece.id.is_empty() && !slot.id.is_empty() && piece.id != slot.id;
        let other_name = piece.name != slot.name;
        let without_id = piece.id.is_empty() && !slot.arguments.is_empty();
        let named_again = !piece.name.is_empty() && !slot.name.is_empty();
        (!(named_again && (other_id || other_name || without_id))).then_some(at)
    }

    /// Sets the complete arguments of a call that was streamed before.
    pub(super) fn set_call_arguments(&mut self, index: u64, arguments: &str) {
        if let Some(slot) = self.slots.iter_mut().rev().find(|slot| slot.index == index) {
            arguments.clone_into(&mut slot.arguments);
        }
    }

    /// Returns a copy without text and calls.
    pub(super) fn copy_without_content(&self) -> Self {
        Self {
            usage: self.usage,
            finish: self.finish,
            prior_messages: self.prior_messages,
            ..Self::default()
        }
    }

    /// Returns the reply; `None` if the finish reason is missing.
    pub(super) fn build(mut self) -> Option<Reply> {
        let reason = self.finish?;
        self.slots.sort_by_key(|slot| slot.index);
        let mut calls: Vec<ToolCall> = Vec::with_capacity(self.slots.len());
        for slot in std::mem::take(&mut self.slots).into_iter().filter(|slot| !slot.name.is_empty()) {
            let id = self.unique_id(&slot, &calls);
            let arguments = if slot.arguments.trim().is_empty() { "{}".to_owned() } else { slot.arguments };
            let arguments = redact_text(&mend_json_text(arguments)).into_owned();
            calls.push(ToolCall { id, name: slot.name, arguments });
        }
        let finish = match (reason, calls.is_empty()) {
            (FinishReason::Stop | FinishReason::ToolCalls, true) => FinishReason::Stop,
            (FinishReason::Stop | FinishReason::ToolCalls, false) => FinishReason::ToolCalls,
            (FinishReason::Length | FinishReason::ContentFilter, _) => reason,
        };
        let usage = self.usage;
        let text = match redact_text(&self.text) {
            Cow::Borrowed(_) => self.text,
            Cow::Owned(redacted) => redacted,
        };
        Some(Reply { text, calls, usage, finish, model: None, provider_state: None })
    }

    fn unique_id(&self, slot: &ToolCallSlot, earlier: &[ToolCall]) -> String {
        let is_taken = |id: &str| earlier.iter().any(|call| call.id == id);
        if slot.id.is_empty() {
            return format!("{GENERATED_ID_PREFIX}{}_{}", self.prior_messages, earlier.len());
        }
        if is_taken(&slot.id) { format!("{}_{}", slot.id, earlier.len()) } else { slot.id.clone() }
    }
}

/// Returns `true` if a call got its id here, because its provider sends none.
pub(super) fn is_generated_call_id(id: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = id.strip_prefix(GENERATED_ID_PREFIX).filter(|numbers| numbers.contains('_'));
    numbers.is_some_and(|numbers| numbers.split('_').all(is_number))
}

/// Converts any JSON value to text: strings unchanged, null as empty text, everything else as JSON.
pub(super) fn json_to_text(value: &Value) -> std::borrow::Cow<'_, str> {
    match value {
        Value::Null => "".into(),
        Value::String(text) => text.into(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string().into(),
    }
}

/// Returns a call's arguments as an object, which chat templates and providers require. Anything else is wrapped into an
/// object, so that the model sees what it wrote.
pub(super) fn parse_arguments_object(call: &ToolCall) -> Value {
    match parse_foreign_json(&call.arguments) {
        Ok(Value::Object(object)) => Value::Object(object),
        Ok(_) | Err(_) => serde_json::json!({ "not_an_object": call.arguments }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_calls(pieces: &[(Option<u64>, &str, &str, &str)]) -> Vec<(String, String, String)> {
        let mut builder =
            ReplyBuilder { finish: Some(FinishReason::Stop), prior_messages: 3, ..ReplyBuilder::default() };
        for &(index, id, name, arguments) in pieces {
            builder.push_call_fragment(&ToolCallFragment { index, id, name, arguments }, &());
        }
        let calls = builder.build().unwrap().calls;
        calls.into_iter().map(|call| (call.id, call.name, call.arguments)).collect()
    }

    fn call_parts(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.into(), name.into(), arguments.into())
    }

    #[test]
    fn pieces_are_assembled_whatever_they_omit() {
        let two = vec![call_parts("a", "ls", "{\"x\":1}"), call_parts("b", "rm", "{\"y\":2}")];
        let in_order =
            [(Some(0), "a", "ls", ""), (Some(0), "", "", "{\"x\":1}"), (Some(1), "b", "rm", "{\"y\":2}")];
        assert_eq!(build_calls(&in_order), two);
        let mixed = [
            (Some(1), "b", "rm", "{\"y\""),
            (Some(0), "a", "ls", ""),
            (Some(1), "", "", ":2}"),
            (Some(0), "", "", "{\"x\":1}"),
        ];
        assert_eq!(build_calls(&mixed), two);
        let no_place = [(None, "a", "ls", "{\"x\""), (None, "", "", ":1}"), (None, "b", "rm", "{\"y\":2}")];
        assert_eq!(build_calls(&no_place), two);
        let one_place =
            [(Some(0), "a", "ls", "{\"x\":1}"), (Some(0), "b", "rm", "{\"y\""), (Some(0), "", "", ":2}")];
        assert_eq!(build_calls(&one_place), two);
        let id_in_each = [
            (None, "a", "ls", ""),
            (None, "b", "rm", ""),
            (None, "a", "", "{\"x\":1}"),
            (None, "b", "", "{\"y\":2}"),
        ];
        assert_eq!(build_calls(&id_in_each), two);
        let name_in_each =
            [(Some(0), "a", "ls", "{\"x\""), (Some(0), "a", "ls", ":1}"), (Some(1), "b", "rm", "{\"y\":2}")];
        assert_eq!(build_calls(&name_in_each), two);
    }

    #[test]
    fn missing_and_duplicate_ids_are_replaced() {
        let none = [(None, "", "ls", "{}"), (None, "", "rm", "")];
        assert_eq!(
            build_calls(&none),
            vec![call_parts("call_3_0", "ls", "{}"), call_parts("call_3_1", "rm", "{}")]
        );
        assert!(is_generated_call_id("call_3_0") && is_generated_call_id("call_3_0_2"));
        assert!(!is_generated_call_id("call_a_1") && !is_generated_call_id("call_1"));
        let same = [(Some(0), "c", "ls", "{\"x\":1}"), (Some(1), "c", "rm", "{}")];
        assert_eq!(
            build_calls(&same),
            vec![call_parts("c", "ls", "{\"x\":1}"), call_parts("c_1", "rm", "{}")]
        );
        let by_name = [(None, "c", "ls", "{\"x\":1}"), (None, "c", "rm", "{}")];
        assert_eq!(build_calls(&by_name), build_calls(&same));
        assert_eq!(build_calls(&[(Some(0), "c", "", "{}")]), vec![]);
    }

    #[test]
    fn a_reply_without_finish_reason_is_incomplete() {
        let mut builder = ReplyBuilder::default();
        builder.push_text("half", &());
        assert!(builder.build().is_none());
    }

    #[test]
    fn arguments_other_than_objects_are_wrapped() {
        let call = |text: &str| ToolCall { id: "a".into(), name: "n".into(), arguments: text.into() };
        assert_eq!(parse_arguments_object(&call("{\"a\":1}")), serde_json::json!({"a": 1}));
        assert_eq!(parse_arguments_object(&call("{\"a\":")), serde_json::json!({"not_an_object": "{\"a\":"}));
        assert_eq!(parse_arguments_object(&call("[1]")), serde_json::json!({"not_an_object": "[1]"}));
    }
}
