//! What a provider wants to see again (signed or encrypted reasoning), in its place among the text and the calls of a
//! reply. Providers check the order; a conversation keeps text and calls by themselves, so that only their places are
//! written down here. It must not read what it keeps.

use serde_json::{Value, json};

use crate::model::{Keepsake, ToolCall};

/// One part of a reply, in the provider's order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part<'a> {
    /// The provider's own item.
    Kept(&'a Value),
    /// Words, with what the provider said of them beside.
    Text(&'a str, Option<&'a str>),
    /// A call.
    Call(&'a ToolCall),
}

/// The places of a reply's parts while it is being read.
#[derive(Default)]
pub(super) struct Places {
    items: Vec<Value>,
    any: bool,
}

impl Places {
    /// An item of the provider's own.
    pub(super) fn kept(&mut self, item: Value) {
        self.any = true;
        self.items.push(json!({ "kept": item }));
    }

    /// So many bytes of the text; `phase` is what the provider said of them.
    pub(super) fn text(&mut self, bytes: usize, phase: Option<&str>) {
        if bytes > 0 {
            self.any |= phase.is_some();
            self.items.push(json!({ "text": bytes, "phase": phase }));
        }
    }

    /// The next call.
    pub(super) fn call(&mut self) {
        self.items.push(json!({ "call": true }));
    }

    /// What goes along with the reply; nothing where the provider has nothing of its own in it.
    pub(super) fn keepsake(self, model: &str) -> Option<Keepsake> {
        self.any.then(|| Keepsake { model: model.to_owned(), items: Value::Array(self.items) })
    }
}

/// The parts of a message in the provider's order. Without a keepsake of this model's: the text, then the calls. With
/// one whose places do not fit text and calls (somebody changed them): what was kept, then the text, then the calls.
pub(super) fn parts<'a>(
    model: &str,
    text: &'a str,
    calls: &'a [ToolCall],
    keepsake: Option<&'a Keepsake>,
) -> Vec<Part<'a>> {
    let own = keepsake.filter(|keepsake| keepsake.model == model);
    let items = own.and_then(|keepsake| keepsake.items.as_array()).map_or(&[][..], Vec::as_slice);
    in_place(items, text, calls).unwrap_or_else(|| {
        let kept = items.iter().filter_map(|item| item.get("kept")).map(Part::Kept);
        let words = Some(Part::Text(text, None)).filter(|_| !text.is_empty());
        kept.chain(words).chain(calls.iter().map(Part::Call)).collect()
    })
}

fn in_place<'a>(items: &'a [Value], mut text: &'a str, calls: &'a [ToolCall]) -> Option<Vec<Part<'a>>> {
    let mut calls = calls.iter();
    let mut parts = Vec::with_capacity(items.len());
    for item in items {
        if let Some(kept) = item.get("kept") {
            parts.push(Part::Kept(kept));
        } else if let Some(bytes) = item.get("text").and_then(Value::as_u64) {
            let (words, rest) = text.split_at_checked(usize::try_from(bytes).ok()?)?;
            parts.push(Part::Text(words, item.get("phase").and_then(Value::as_str)));
            text = rest;
        } else {
            parts.push(Part::Call(calls.next()?));
        }
    }
    (text.is_empty() && calls.next().is_none()).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_comes_back_in_its_place_or_first() {
        let call = |id: &str| ToolCall { id: id.into(), name: "ls".into(), arguments: "{}".into() };
        let calls = [call("a"), call("b")];
        let (one, two) = (json!({"n": 1}), json!({"n": 2}));
        let mut places = Places::default();
        places.kept(one.clone());
        places.text(2, None);
        places.call();
        places.kept(two.clone());
        places.call();
        let keepsake = places.keepsake("p:m").unwrap();
        let (a, b) = (&calls[0], &calls[1]);
        let all = parts("p:m", "hi", &calls, Some(&keepsake));
        assert_eq!(
            all,
            [Part::Kept(&one), Part::Text("hi", None), Part::Call(a), Part::Kept(&two), Part::Call(b)]
        );
        let changed = parts("p:m", "hi!", &calls[..1], Some(&keepsake));
        assert_eq!(changed, [Part::Kept(&one), Part::Kept(&two), Part::Text("hi!", None), Part::Call(a)]);
        assert_eq!(parts("p:other", "", &calls[..1], Some(&keepsake)), [Part::Call(a)]);
        assert_eq!(parts("p:m", "süß", &[], Some(&keepsake)).len(), 3, "no word is cut within a letter");
    }

    #[test]
    fn where_nothing_is_to_be_kept_there_is_no_keepsake() {
        let mut places = Places::default();
        places.text(5, None);
        places.call();
        assert_eq!(places.keepsake("p:m"), None);
    }
}
