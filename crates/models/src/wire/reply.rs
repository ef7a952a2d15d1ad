//! A reply that is assembled from streamed pieces of text and tool calls, which may arrive in any order, and the order of its parts.
//! Providers verify the position of opaque items, such as signed or encrypted reasoning, among text and calls, while a conversation
//! stores text and calls separately: so the order is recorded with the items. It knows no provider.
//!
//! The reason why a model stopped, as providers write it. There is one table for all APIs, since gateways pass on the words of
//! other providers. An unknown reason counts as what it most resembles, and is logged once.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use millrace_protocol::foreign_json::{mend_json_text, parse_foreign_json};
use millrace_protocol::result::Usage;
use millrace_protocol::secrets::redact_text;
use serde_json::{Map, Value, json};
use tracing::warn;

use super::json::{items_of, read_number_at, read_text_at};

use crate::tool_names::tool_name_or_written;

use crate::model::{
    Delta, DeltaListener, FinishReason, ProviderState, Reply, Request, TokenProbability, ToolCall,
};

/// The beginning of the ids of calls whose provider sends none.
pub(super) const GENERATED_ID_PREFIX: &str = "call_";

pub(super) struct ReplyBuilder<'a> {
    listener: &'a dyn DeltaListener,
    pub(super) model: &'a str,
    pub(super) text: String,
    pub(super) usage: Usage,
    /// The fields of the usage so far, where events report some of them each.
    pub(super) usage_fields: Map<String, Value>,
    pub(super) finish: Option<FinishReason>,
    pub(super) is_ended: bool,
    /// The parts in the provider's order, each with its place.
    pub(super) parts: Vec<(u64, Part)>,
    /// `true` if opaque items of a reply that was cut off are complete.
    pub(super) keeps_items_of_cut_reply: bool,
    /// Items of the reasoning that return as a field of the message, with the field's name.
    pub(super) details: Option<(&'static str, Vec<Value>)>,
    /// Text of the reasoning that returns as a field of a message with calls, with the field's name.
    pub(super) reasoning: Option<(&'static str, String)>,
    slots: Vec<ToolCallSlot>,
    /// The alternatives of the first token; `None` if the request does not ask for them.
    first_token: Option<Vec<TokenProbability>>,
    /// The number of messages before this reply. It makes generated call ids unique in the conversation.
    prior_messages: usize,
    /// The names of the tools that the request offers.
    tools: Vec<String>,
}

/// A part of a reply; `tag` is the provider's tag of it: a phase or a signature.
pub(super) enum Part {
    Text { bytes: usize, tag: Option<String> },
    Call { tag: Option<String> },
    Opaque(Value),
}

#[derive(Default)]
struct ToolCallSlot {
    index: u64,
    id: String,
    name: String,
    /// The name as the model wrote it.
    written_name: String,
    arguments: String,
    announced: bool,
}

impl<'a> ReplyBuilder<'a> {
    pub(super) fn new(request: &Request, model: &'a str, listener: &'a dyn DeltaListener) -> Self {
        Self {
            listener,
            model,
            text: String::new(),
            usage: Usage::default(),
            usage_fields: Map::new(),
            finish: None,
            is_ended: false,
            parts: Vec::new(),
            keeps_items_of_cut_reply: false,
            details: None,
            reasoning: None,
            slots: Vec::new(),
            first_token: request.first_token_probabilities.then(Vec::new),
            prior_messages: request.messages.len(),
            tools: request.tools.iter().map(|tool| tool.name.clone()).collect(),
        }
    }

    pub(super) fn push_text(&mut self, words: &str) {
        if !words.is_empty() {
            self.text.push_str(words);
            self.listener.on_delta(Delta::Text(words));
        }
    }

    /// Reads the alternatives of the first token that is not blank from the tokens of a piece of the text, which is pushed
    /// next. `tokens` is in the format of OpenAI, which Ollama has too. Tokens of the reasoning come with no text.
    pub(super) fn read_first_token(&mut self, piece: &str, tokens: &Value) {
        let is_blank = |token: &&Value| read_text_at(token, "/token").trim().is_empty();
        let first = items_of(tokens).iter().find(|token| !is_blank(token));
        let alternatives = first.map_or(&[][..], |first| items_of(&first["top_logprobs"]));
        self.set_first_token(piece, alternatives, "logprob");
    }

    /// Sets the alternatives of the first token, if `piece` is the first piece of the text that is not blank.
    pub(super) fn set_first_token(&mut self, piece: &str, alternatives: &[Value], logarithm: &str) {
        let is_first = self.text.trim().is_empty() && !piece.trim().is_empty();
        let Some(first_token) = self.first_token.as_mut().filter(|_| is_first) else { return };
        let probability = |alternative: &Value| {
            let probability = alternative[logarithm].as_f64()?.exp().min(1.0);
            Some(TokenProbability { token: read_text_at(alternative, "/token").to_owned(), probability })
        };
        *first_token = alternatives.iter().filter_map(probability).collect();
        first_token.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    }

    pub(super) fn push_text_at(&mut self, place: u64, words: &str) {
        if let Part::Text { bytes, .. } = self.part_at(place, Part::Text { bytes: 0, tag: None }) {
            *bytes += words.len();
        }
        self.push_text(words);
    }

    pub(super) fn push_reasoning(&self, words: &str) {
        if !words.is_empty() {
            self.listener.on_delta(Delta::Reasoning(words));
        }
    }

    pub(super) fn push_call_at(&mut self, place: u64, id: &str, name: &str, arguments: &str) {
        self.part_at(place, Part::Call { tag: None });
        self.push_call(Some(place), id, name, arguments);
    }

    /// Returns the part at a place, which may begin without an event of its own.
    pub(super) fn part_at(&mut self, place: u64, new: Part) -> &mut Part {
        let at = self.parts.iter().position(|(at, _)| *at == place).unwrap_or_else(|| {
            self.parts.push((place, new));
            self.parts.len() - 1
        });
        &mut self.parts[at].1
    }

    /// Appends to a text field of an object in the opaque item at a place.
    pub(super) fn append_to_item(&mut self, place: u64, object: &str, field: &str, words: &str) {
        let part = self.parts.iter_mut().find(|(at, _)| *at == place);
        let Some((_, Part::Opaque(item))) = part else { return };
        let Some(Value::Object(fields)) = item.pointer_mut(object) else { return };
        match fields.get_mut(field) {
            Some(Value::String(text)) => text.push_str(words),
            Some(_) | None => drop(fields.insert(field.to_owned(), words.into())),
        }
    }

    /// Adds a piece to its call, or begins a new call. `name` is the complete name of the tool in the first piece, and empty in later
    /// ones. A piece without an index belongs to the call with its id, or to the last call unless the piece names a tool. Some servers
    /// give all calls the same index, others the same id: so a further tool name begins a new call.
    pub(super) fn push_call(&mut self, index: Option<u64>, id: &str, name: &str, arguments: &str) {
        let at = self.find_call_slot(index, id, name).unwrap_or_else(|| {
            let next = self.slots.iter().map(|slot| slot.index.saturating_add(1)).max().unwrap_or(0);
            self.slots.push(ToolCallSlot { index: index.unwrap_or(next), ..ToolCallSlot::default() });
            self.slots.len() - 1
        });
        let slot = &mut self.slots[at];
        if slot.id.is_empty() {
            id.clone_into(&mut slot.id);
        }
        if slot.name.is_empty() && !name.is_empty() {
            let tools: Vec<&str> = self.tools.iter().map(String::as_str).collect();
            slot.name = tool_name_or_written(name, &tools);
            name.clone_into(&mut slot.written_name);
        }
        slot.arguments.push_str(arguments);
        if !slot.announced && !slot.name.is_empty() {
            slot.announced = true;
            self.listener.on_delta(Delta::Call(&slot.name));
        }
    }

    fn find_call_slot(&self, index: Option<u64>, id: &str, name: &str) -> Option<usize> {
        let last_slot = |is: &dyn Fn(&ToolCallSlot) -> bool| self.slots.iter().rposition(is);
        let at = match (index, id) {
            (Some(index), _) => last_slot(&|slot| slot.index == index)?,
            (None, "") if name.is_empty() => last_slot(&|_| true)?,
            (None, "") => return None,
            (None, id) => last_slot(&|slot| slot.id == id)?,
        };
        let slot = &self.slots[at];
        let other_id = !id.is_empty() && !slot.id.is_empty() && id != slot.id;
        let without_id = id.is_empty() && !slot.arguments.is_empty();
        let named_again = !name.is_empty() && !slot.name.is_empty();
        (!(named_again && (other_id || name != slot.written_name || without_id))).then_some(at)
    }

    pub(super) fn call_count(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn set_call_arguments(&mut self, index: u64, arguments: &str) {
        if let Some(slot) = self.slots.iter_mut().rev().find(|slot| slot.index == index) {
            arguments.clone_into(&mut slot.arguments);
        }
    }

    /// Replaces all calls without a delta: they were streamed before.
    pub(super) fn replace_calls<'b>(
        &mut self,
        calls: impl Iterator<Item = (u64, &'b str, &'b str, Cow<'b, str>)>,
    ) {
        self.slots.clear();
        let listener = std::mem::replace(&mut self.listener, &());
        calls.for_each(|(place, id, name, arguments)| self.push_call(Some(place), id, name, &arguments));
        self.listener = listener;
    }

    /// Sets the finish reason, unless the model is still generating.
    pub(super) fn set_finish(&mut self, reason: &str) -> Result<(), Value> {
        self.finish = parse_finish_reason(self.model, reason)?.or(self.finish);
        Ok(())
    }

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
        let finish = match (reason.is_cut_off(), calls.is_empty()) {
            (true, _) => reason,
            (false, true) => FinishReason::Stop,
            (false, false) => FinishReason::ToolCalls,
        };
        let items = self.take_provider_items(finish, !calls.is_empty());
        let provider_state = items.map(|items| ProviderState { model: self.model.to_owned(), items });
        let text = match redact_text(&self.text) {
            Cow::Borrowed(_) => self.text,
            Cow::Owned(redacted) => redacted,
        };
        let first_token = self.first_token.unwrap_or_default();
        Some(Reply {
            text,
            calls,
            usage: self.usage,
            finish,
            model: None,
            provider_state,
            first_token,
            vectors: Vec::new(),
        })
    }

    fn unique_id(&self, slot: &ToolCallSlot, earlier: &[ToolCall]) -> String {
        let is_taken = |id: &str| earlier.iter().any(|call| call.id == id);
        if slot.id.is_empty() {
            return format!("{GENERATED_ID_PREFIX}{}_{}", self.prior_messages, earlier.len());
        }
        if is_taken(&slot.id) { format!("{}_{}", slot.id, earlier.len()) } else { slot.id.clone() }
    }

    /// Returns the provider state to store with the reply; `None` if there is nothing but text and calls.
    fn take_provider_items(&mut self, finish: FinishReason, has_calls: bool) -> Option<Value> {
        if let Some((name, details)) = self.details.take() {
            return Some(json!({ name: details }));
        }
        if let Some((name, words)) = self.reasoning.take().filter(|_| has_calls) {
            return Some(json!({ name: words }));
        }
        let has_state = |(_, part): &(u64, Part)| match part {
            Part::Text { bytes, tag } => *bytes > 0 && tag.is_some(),
            Part::Call { tag } => tag.is_some(),
            Part::Opaque(_) => true,
        };
        // The items of a truncated reply may be incomplete, such as reasoning without its signature.
        let is_complete = !finish.is_cut_off() || self.keeps_items_of_cut_reply;
        if !is_complete || !self.parts.iter().any(has_state) {
            return None;
        }
        let items = self.parts.drain(..).filter_map(|(_, part)| match part {
            Part::Text { bytes: 0, .. } => None,
            Part::Text { bytes, tag } => Some(json!({ "text": bytes, "tag": tag })),
            Part::Call { tag } => Some(json!({ "call": true, "tag": tag })),
            Part::Opaque(item) => Some(json!({ "kept": item })),
        });
        Some(items.collect())
    }
}

/// A part of a message of the model, in the provider's order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum MessagePart<'a> {
    Opaque(&'a Value),
    Text(&'a str, Option<&'a str>),
    Call(&'a ToolCall, Option<&'a str>),
}

/// Returns the parts of a message in the provider's order. Without state from this model: text, then calls. If text and
/// calls were changed since and no longer fit the recorded order: opaque items, then text, then calls.
pub(super) fn restore_message_parts<'a>(
    model: &str,
    text: &'a str,
    calls: &'a [ToolCall],
    provider_state: Option<&'a ProviderState>,
) -> Vec<MessagePart<'a>> {
    let own = provider_state.filter(|provider_state| provider_state.model == model);
    let items = own.and_then(|provider_state| provider_state.items.as_array()).map_or(&[][..], Vec::as_slice);
    restore_recorded_order(items, text, calls).unwrap_or_else(|| {
        let opaque = items.iter().filter_map(|item| item.get("kept")).map(MessagePart::Opaque);
        let words = Some(MessagePart::Text(text, None)).filter(|_| !text.is_empty());
        opaque.chain(words).chain(calls.iter().map(|call| MessagePart::Call(call, None))).collect()
    })
}

fn restore_recorded_order<'a>(
    items: &'a [Value],
    mut text: &'a str,
    calls: &'a [ToolCall],
) -> Option<Vec<MessagePart<'a>>> {
    let mut calls = calls.iter();
    let mut parts = Vec::with_capacity(items.len());
    for item in items {
        let tag = item.get("tag").and_then(Value::as_str);
        if let Some(opaque) = item.get("kept") {
            parts.push(MessagePart::Opaque(opaque));
        } else if let Some(bytes) = item.get("text").and_then(Value::as_u64) {
            let (words, rest) = text.split_at_checked(usize::try_from(bytes).ok()?)?;
            parts.push(MessagePart::Text(words, tag));
            text = rest;
        } else {
            parts.push(MessagePart::Call(calls.next()?, tag));
        }
    }
    (text.is_empty() && calls.next().is_none()).then_some(parts)
}

/// Reads usage: the fields whose sum is the input, those whose sum is the output, and the parts of both that were read from a cache,
/// written to it, and used for reasoning. An empty pointer is no field.
pub(super) fn read_usage(usage: &Value, input: &[&str], output: &[&str], parts: [&str; 3]) -> Usage {
    let sum = |fields: &[&str]| {
        fields.iter().fold(0_u64, |sum, field| sum.saturating_add(read_number_at(usage, field)))
    };
    let [cached_tokens, cache_write_tokens, reasoning_tokens] =
        parts.map(|field| read_number_at(usage, field));
    let (input_tokens, output_tokens) = (sum(input), sum(output));
    Usage {
        input_tokens,
        output_tokens,
        cached_tokens,
        cache_write_tokens,
        reasoning_tokens,
        ..Usage::default()
    }
}

/// Returns `true` if a call got its id here, because its provider sends none.
pub(super) fn is_generated_call_id(id: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = id.strip_prefix(GENERATED_ID_PREFIX).filter(|numbers| numbers.contains('_'));
    numbers.is_some_and(|numbers| numbers.split('_').all(is_number))
}

/// Returns a call's arguments as an object, which chat templates and providers require. Anything else is wrapped into an
/// object, so that the model sees what it wrote.
pub(super) fn parse_arguments_object(call: &ToolCall) -> Value {
    match parse_foreign_json(&call.arguments) {
        Ok(Value::Object(object)) => Value::Object(object),
        Ok(_) | Err(_) => json!({ "not_an_object": call.arguments }),
    }
}

/// The maximum number of unknown reasons that are logged, so that a server can't fill the log or the memory.
const MAX_LOGGED: usize = 200;

static LOGGED: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Unfinished,
    Finished(FinishReason),
    /// The reply reached the end of the context window: the same error as a conversation that is too long.
    WindowExceeded,
    Interrupted,
}

use FinishReason::{ContentFilter, Length, Stop, ToolCalls};
use Meaning::{Finished, Interrupted, Unfinished, WindowExceeded};

/// The known reasons, in lower case and without punctuation. Gemini's and Bedrock's reasons for a call that the model wrote wrongly
/// are among those of a complete reply: the call is left out.
const KNOWN: [(Meaning, &str); 7] = [
    (Unfinished, "null none finishreasonunspecified"),
    (
        Finished(Stop),
        "stop endturn stopsequence eos eostoken complete completed done pauseturn load unload language other \
         malformedfunctioncall unexpectedtoolcall malformedmodeloutput malformedtooluse",
    ),
    (Finished(ToolCalls), "toolcalls toolcall functioncall tooluse"),
    (Finished(Length), "length maxtokens modellength maxoutputtokens maxcompletiontokens incomplete"),
    (
        Finished(ContentFilter),
        "contentfilter contentfiltered refusal safety sensitive guardrailintervened recitation blocklist \
         prohibitedcontent spii imagesafety",
    ),
    (WindowExceeded, "modelcontextwindowexceeded contextwindowexceeded contextlengthexceeded"),
    (Interrupted, "error failed abort aborted cancelled insufficientsystemresource"),
];

/// Parts of words that an unknown reason may have, in lower case. The first one found decides: a filter and an interruption
/// also say which part of the reply they concern.
const RESEMBLANCES: [(Meaning, &str); 4] = [
    (
        Finished(ContentFilter),
        "filter safety block prohibit refus guard policy moderat sensitiv violat censor harm",
    ),
    (Interrupted, "error fail abort cancel interrupt disconnect timeout overload insufficient"),
    (Finished(Length), "length token limit max trunc incomplete partial budget cutoff"),
    (Finished(ToolCalls), "tool function"),
];

/// Parses the reason in an event of a model; `None` if the model is still generating.
pub(super) fn parse_finish_reason(model: &str, reason: &str) -> Result<Option<FinishReason>, Value> {
    let word: String = reason.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    let is_known = |(_, words): &&(Meaning, &str)| words.split(' ').any(|known| known == word);
    let meaning = match KNOWN.iter().find(is_known) {
        _ if word.is_empty() => Unfinished,
        Some((meaning, _)) => *meaning,
        None => interpret_unknown_reason(model, reason, &word),
    };
    match meaning {
        Unfinished => Ok(None),
        Finished(finish) => Ok(Some(finish)),
        WindowExceeded => {
            let message = "the reply reached the end of the model's context window";
            Err(json!({"error": {"type": "context_window_exceeded", "message": message}}))
        }
        Interrupted => {
            let message = format!("the provider ended the reply early: {reason}");
            Err(json!({"error": {"type": "server_error", "message": message}}))
        }
    }
}

/// Parses the reason for which a response of the Responses API is incomplete.
pub(super) fn parse_incomplete_reason(model: &str, response: &Value) -> Result<FinishReason, Value> {
    let reason = read_text_at(response, "/incomplete_details/reason");
    Ok(match parse_finish_reason(model, reason)? {
        Some(ContentFilter) => ContentFilter,
        Some(Length | Stop | ToolCalls) | None => Length,
    })
}

fn interpret_unknown_reason(model: &str, reason: &str, word: &str) -> Meaning {
    let resembles = |(_, parts): &&(Meaning, &str)| parts.split(' ').any(|part| word.contains(part));
    let meaning = RESEMBLANCES.iter().find(resembles).map_or(Finished(Stop), |(meaning, _)| *meaning);
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.len() < MAX_LOGGED && logged.insert((model.to_owned(), reason.to_owned())) {
        warn!(model, reason, ?meaning, "unknown finish reason");
    }
    meaning
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> ReplyBuilder<'static> {
        let request = Request {
            system: String::new(),
            messages: vec![crate::model::Message::User { text: "x".into() }; 3],
            tools: Vec::new(),
            answer: None,
            max_output_tokens: 1,
            ..Request::default()
        };
        ReplyBuilder { finish: Some(FinishReason::Stop), ..ReplyBuilder::new(&request, "p:m", &()) }
    }

    fn build_calls(pieces: &[(Option<u64>, &str, &str, &str)]) -> Vec<(String, String, String)> {
        let mut builder = builder();
        for &(index, id, name, arguments) in pieces {
            builder.push_call(index, id, name, arguments);
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
        let mut builder = ReplyBuilder { finish: None, ..builder() };
        builder.push_text("half");
        assert!(builder.build().is_none());
    }

    #[test]
    fn arguments_other_than_objects_are_wrapped() {
        let call = |text: &str| ToolCall { id: "a".into(), name: "n".into(), arguments: text.into() };
        assert_eq!(parse_arguments_object(&call("{\"a\":1}")), json!({"a": 1}));
        assert_eq!(parse_arguments_object(&call("{\"a\":")), json!({"not_an_object": "{\"a\":"}));
        assert_eq!(parse_arguments_object(&call("[1]")), json!({"not_an_object": "[1]"}));
    }

    #[test]
    fn opaque_items_return_to_their_position_or_come_first() {
        let call = |id: &str| ToolCall { id: id.into(), name: "ls".into(), arguments: "{}".into() };
        let calls = [call("a"), call("b")];
        let (one, two) = (json!({"n": 1}), json!({"n": 2}));
        let mut reply = builder();
        reply.part_at(0, Part::Opaque(one.clone()));
        reply.push_text_at(1, "hi");
        reply.push_call_at(2, "a", "ls", "");
        reply.part_at(3, Part::Opaque(two.clone()));
        reply.part_at(4, Part::Call { tag: Some("s".into()) });
        let provider_state = reply.build().unwrap().provider_state.unwrap();
        let (a, b) = (&calls[0], &calls[1]);
        let all = restore_message_parts("p:m", "hi", &calls, Some(&provider_state));
        assert_eq!(
            all,
            [
                MessagePart::Opaque(&one),
                MessagePart::Text("hi", None),
                MessagePart::Call(a, None),
                MessagePart::Opaque(&two),
                MessagePart::Call(b, Some("s"))
            ]
        );
        let changed = restore_message_parts("p:m", "hi!", &calls[..1], Some(&provider_state));
        assert_eq!(
            changed,
            [
                MessagePart::Opaque(&one),
                MessagePart::Opaque(&two),
                MessagePart::Text("hi!", None),
                MessagePart::Call(a, None)
            ]
        );
        assert_eq!(
            restore_message_parts("p:other", "", &calls[..1], Some(&provider_state)),
            [MessagePart::Call(a, None)]
        );
        assert_eq!(
            restore_message_parts("p:m", "süß", &[], Some(&provider_state)).len(),
            3,
            "no word is cut within a letter"
        );
    }

    #[test]
    fn without_opaque_items_there_is_no_state() {
        let mut reply = builder();
        reply.push_text_at(0, "hello");
        reply.push_call_at(1, "a", "ls", "");
        assert_eq!(reply.build().unwrap().provider_state, None);
    }

    #[test]
    fn reasons_do_not_depend_on_case_and_punctuation() {
        for (reason, expected) in [
            ("LENGTH", Length),
            ("MAX_TOKENS", Length),
            ("maxTokens", Length),
            ("max-output-tokens", Length),
            ("End_Turn", Stop),
            ("STOP", Stop),
            ("Tool_Calls", ToolCalls),
            ("toolUse", ToolCalls),
            ("CONTENT_FILTER", ContentFilter),
            ("Refusal", ContentFilter),
        ] {
            assert_eq!(parse_finish_reason("p:m", reason), Ok(Some(expected)), "{reason}");
        }
        for unfinished in ["", "null", "FINISH_REASON_UNSPECIFIED"] {
            assert_eq!(parse_finish_reason("p:m", unfinished), Ok(None), "{unfinished}");
        }
    }

    #[test]
    fn unknown_reasons_count_as_what_they_most_resemble() {
        for (reason, expected) in [
            ("output_token_limit", Length),
            ("TRUNCATED_BY_SERVER", Length),
            ("thinking_budget_exhausted", Length),
            ("blocked_by_policy", ContentFilter),
            ("safety_max_severity", ContentFilter),
            ("parallel_tools", ToolCalls),
            ("natural", Stop),
        ] {
            assert_eq!(parse_finish_reason("p:m", reason), Ok(Some(expected)), "{reason}");
        }
        for interrupted in ["error", "abort", "network_error", "tool_timeout", "Cancelled by operator"] {
            let error = parse_finish_reason("p:m", interrupted).unwrap_err();
            assert_eq!(error["error"]["type"], "server_error", "{interrupted}");
        }
        let window = parse_finish_reason("p:m", "model_context_window_exceeded").unwrap_err();
        assert_eq!(window["error"]["type"], "context_window_exceeded");
    }

    #[test]
    fn an_unknown_reason_is_logged_once_per_model() {
        let is_logged = |model: &str| {
            let logged = LOGGED.lock().unwrap();
            logged.iter().filter(|(of, _)| of == model).count()
        };
        for _ in 0..3 {
            let _ = parse_finish_reason("once:m", "natural");
            let _ = parse_finish_reason("once:m", "stop");
        }
        assert_eq!(is_logged("once:m"), 1);
        assert_eq!(is_logged("known:m"), 0);
    }
}
