//! Opaque provider state, such as signed or encrypted reasoning, and its position among the text and the tool calls of a
//! reply. Providers verify the order, while a conversation stores text and calls separately; so the order is recorded
//! here. The opaque items are never interpreted.

use serde_json::{Value, json};

use crate::model::{ProviderState, ToolCall};

/// A part of a reply, in the provider's order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum MessagePart<'a> {
    /// An opaque item of the provider.
    Opaque(&'a Value),
    /// Text, with the tag that the provider gave it: a phase or a signature.
    Text(&'a str, Option<&'a str>),
    /// A tool call, with the tag that the provider gave it.
    Call(&'a ToolCall, Option<&'a str>),
}

/// Records the order of the parts of a reply.
#[derive(Default)]
pub(super) struct MessagePartOrder {
    items: Vec<Value>,
    has_state: bool,
}

impl MessagePartOrder {
    pub(super) fn add_opaque_item(&mut self, item: Value) {
        self.has_state = true;
        self.items.push(json!({ "kept": item }));
    }

    /// Adds `bytes` bytes of text; `tag` is the provider's tag of it.
    pub(super) fn add_text(&mut self, bytes: usize, tag: Option<&str>) {
        if bytes > 0 {
            self.has_state |= tag.is_some();
            self.items.push(json!({ "text": bytes, "tag": tag }));
        }
    }

    /// Adds the next tool call; `tag` is the provider's tag of it.
    pub(super) fn add_call(&mut self, tag: Option<&str>) {
        self.has_state |= tag.is_some();
        self.items.push(json!({ "call": true, "tag": tag }));
    }

    /// Returns the state to store with the reply; `None` if there is nothing but text and calls.
    pub(super) fn into_provider_state(self, model: &str) -> Option<ProviderState> {
        self.has_state.then(|| ProviderState { model: model.to_owned(), items: Value::Array(self.items) })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaque_items_return_to_their_position_or_come_first() {
        let call = |id: &str| ToolCall { id: id.into(), name: "ls".into(), arguments: "{}".into() };
        let calls = [call("a"), call("b")];
        let (one, two) = (json!({"n": 1}), json!({"n": 2}));
        let mut order = MessagePartOrder::default();
        order.add_opaque_item(one.clone());
        order.add_text(2, None);
        order.add_call(None);
        order.add_opaque_item(two.clone());
        order.add_call(Some("s"));
        let provider_state = order.into_provider_state("p:m").unwrap();
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
        let mut order = MessagePartOrder::default();
        order.add_text(5, None);
        order.add_call(None);
        assert_eq!(order.into_provider_state("p:m"), None);
    }
}
