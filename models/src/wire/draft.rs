//! A reply while it is being written. It puts text and calls together from their pieces, in whatever order those come,
//! and tells them to whoever looks on. It knows no provider.

use millrace_protocol::result::Usage;
use serde_json::Value;

use crate::model::{Delta, Finish, Reply, Request, ToolCall, Watch};

/// A reply while it is being written.
#[derive(Default)]
pub(super) struct Draft {
    /// The words so far.
    pub(super) text: String,
    /// The tokens it took, as far as the provider has said so.
    pub(super) usage: Usage,
    /// Why it stopped, once it has.
    pub(super) finish: Option<Finish>,
    slots: Vec<Slot>,
    /// How many messages went before it: calls without an id get one that no other message of the conversation has.
    before: usize,
}

/// One call while it is being written.
#[derive(Default)]
struct Slot {
    place: u64,
    id: String,
    name: String,
    arguments: String,
    told: bool,
}

/// A piece of a call.
pub(super) struct Piece<'a> {
    /// Where the provider says that the call stands.
    pub(super) place: Option<u64>,
    /// Its id.
    pub(super) id: &'a str,
    /// The tool's name: whole, and in the first piece.
    pub(super) name: &'a str,
    /// The next piece of the arguments.
    pub(super) arguments: &'a str,
}

impl Draft {
    pub(super) fn new(request: &Request) -> Self {
        Self { before: request.messages.len(), ..Self::default() }
    }

    /// The next words.
    pub(super) fn say(&mut self, words: &str, watch: &dyn Watch) {
        if !words.is_empty() {
            self.text.push_str(words);
            watch.delta(Delta::Text(words));
        }
    }

    /// Adds to the call that a piece belongs to, or begins one. A piece without a place belongs to the call with its
    /// id, else to the last one, unless it names a tool. Some servers give all calls the same place, and some give
    /// all the same id: a name where there was one begins another call.
    pub(super) fn call(&mut self, piece: &Piece<'_>, watch: &dyn Watch) {
        let at = self.slot_of(piece).unwrap_or_else(|| {
            let next = self.slots.iter().map(|slot| slot.place.saturating_add(1)).max().unwrap_or(0);
            self.slots.push(Slot { place: piece.place.unwrap_or(next), ..Slot::default() });
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
        if !slot.told && !slot.name.is_empty() {
            slot.told = true;
            watch.delta(Delta::Call(&slot.name));
        }
    }

    fn slot_of(&self, piece: &Piece<'_>) -> Option<usize> {
        let newest = |is: &dyn Fn(&Slot) -> bool| self.slots.iter().rposition(is);
        let at = match (piece.place, piece.id) {
            (Some(place), _) => newest(&|slot| slot.place == place)?,
            (None, "") if piece.name.is_empty() => newest(&|_| true)?,
            (None, "") => return None,
            (None, id) => newest(&|slot| slot.id == id)?,
        };
        let slot = &self.slots[at];
        let other_id = !piece.id.is_empty() && !slot.id.is_empty() && piece.id != slot.id;
        let other_name = piece.name != slot.name;
        let without_id = piece.id.is_empty() && !slot.arguments.is_empty();
        let named_again = !piece.name.is_empty() && !slot.name.is_empty();
        (!(named_again && (other_id || other_name || without_id))).then_some(at)
    }

    /// The arguments of the call at a place, where they came whole after their pieces.
    pub(super) fn whole_arguments(&mut self, place: u64, arguments: &str) {
        if let Some(slot) = self.slots.iter_mut().rev().find(|slot| slot.place == place) {
            arguments.clone_into(&mut slot.arguments);
        }
    }

    /// The same reply without its words and calls.
    pub(super) fn anew(&self) -> Self {
        Self { usage: self.usage, finish: self.finish, before: self.before, ..Self::default() }
    }

    /// The reply, if the provider said that it is whole.
    pub(super) fn reply(mut self) -> Option<Reply> {
        let stopped = self.finish?;
        self.slots.sort_by_key(|slot| slot.place);
        let mut calls: Vec<ToolCall> = Vec::with_capacity(self.slots.len());
        for slot in std::mem::take(&mut self.slots).into_iter().filter(|slot| !slot.name.is_empty()) {
            let id = self.id_for(&slot, &calls);
            let arguments = if slot.arguments.trim().is_empty() { "{}".to_owned() } else { slot.arguments };
            calls.push(ToolCall { id, name: slot.name, arguments });
        }
        let finish = match (stopped, calls.is_empty()) {
            (Finish::Stop | Finish::ToolCalls, true) => Finish::Stop,
            (Finish::Stop | Finish::ToolCalls, false) => Finish::ToolCalls,
            (Finish::Length | Finish::ContentFilter, _) => stopped,
        };
        let usage = self.usage;
        Some(Reply { text: self.text, calls, usage, finish, model: None, keepsake: None })
    }

    fn id_for(&self, slot: &Slot, before: &[ToolCall]) -> String {
        let taken = |id: &str| before.iter().any(|call| call.id == id);
        if slot.id.is_empty() {
            return format!("call_{}_{}", self.before, before.len());
        }
        if taken(&slot.id) { format!("{}_{}", slot.id, before.len()) } else { slot.id.clone() }
    }
}

/// A text that may have come as any JSON: text as it is, nothing as nothing, all else as JSON.
pub(super) fn text_of(value: &Value) -> std::borrow::Cow<'_, str> {
    match value {
        Value::Null => "".into(),
        Value::String(text) => text.into(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string().into(),
    }
}

/// The arguments of a call as an object, as templates and providers want them: what is no object is wrapped, so that
/// the model sees what it wrote.
pub(super) fn arguments_of(call: &ToolCall) -> Value {
    match serde_json::from_str(&call.arguments) {
        Ok(Value::Object(object)) => Value::Object(object),
        Ok(_) | Err(_) => serde_json::json!({ "not_an_object": call.arguments }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(pieces: &[(Option<u64>, &str, &str, &str)]) -> Vec<(String, String, String)> {
        let mut draft = Draft { finish: Some(Finish::Stop), before: 3, ..Draft::default() };
        for &(place, id, name, arguments) in pieces {
            draft.call(&Piece { place, id, name, arguments }, &());
        }
        let calls = draft.reply().unwrap().calls;
        calls.into_iter().map(|call| (call.id, call.name, call.arguments)).collect()
    }

    fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.into(), name.into(), arguments.into())
    }

    #[test]
    fn calls_come_together_whatever_their_pieces_leave_out() {
        let two = vec![call("a", "ls", "{\"x\":1}"), call("b", "rm", "{\"y\":2}")];
        let in_order =
            [(Some(0), "a", "ls", ""), (Some(0), "", "", "{\"x\":1}"), (Some(1), "b", "rm", "{\"y\":2}")];
        assert_eq!(built(&in_order), two);
        let mixed = [
            (Some(1), "b", "rm", "{\"y\""),
            (Some(0), "a", "ls", ""),
            (Some(1), "", "", ":2}"),
            (Some(0), "", "", "{\"x\":1}"),
        ];
        assert_eq!(built(&mixed), two);
        let no_place = [(None, "a", "ls", "{\"x\""), (None, "", "", ":1}"), (None, "b", "rm", "{\"y\":2}")];
        assert_eq!(built(&no_place), two);
        let one_place =
            [(Some(0), "a", "ls", "{\"x\":1}"), (Some(0), "b", "rm", "{\"y\""), (Some(0), "", "", ":2}")];
        assert_eq!(built(&one_place), two);
        let id_in_each = [
            (None, "a", "ls", ""),
            (None, "b", "rm", ""),
            (None, "a", "", "{\"x\":1}"),
            (None, "b", "", "{\"y\":2}"),
        ];
        assert_eq!(built(&id_in_each), two);
        let name_in_each =
            [(Some(0), "a", "ls", "{\"x\""), (Some(0), "a", "ls", ":1}"), (Some(1), "b", "rm", "{\"y\":2}")];
        assert_eq!(built(&name_in_each), two);
    }

    #[test]
    fn ids_that_are_missing_or_taken_are_made() {
        let none = [(None, "", "ls", "{}"), (None, "", "rm", "")];
        assert_eq!(built(&none), vec![call("call_3_0", "ls", "{}"), call("call_3_1", "rm", "{}")]);
        let same = [(Some(0), "c", "ls", "{\"x\":1}"), (Some(1), "c", "rm", "{}")];
        assert_eq!(built(&same), vec![call("c", "ls", "{\"x\":1}"), call("c_1", "rm", "{}")]);
        let by_name = [(None, "c", "ls", "{\"x\":1}"), (None, "c", "rm", "{}")];
        assert_eq!(built(&by_name), built(&same));
        assert_eq!(built(&[(Some(0), "c", "", "{}")]), vec![]);
    }

    #[test]
    fn a_draft_that_nobody_ended_is_no_reply() {
        let mut draft = Draft::default();
        draft.say("half", &());
        assert!(draft.reply().is_none());
    }

    #[test]
    fn arguments_that_are_no_object_are_wrapped() {
        let call = |text: &str| ToolCall { id: "a".into(), name: "n".into(), arguments: text.into() };
        assert_eq!(arguments_of(&call("{\"a\":1}")), serde_json::json!({"a": 1}));
        assert_eq!(arguments_of(&call("{\"a\":")), serde_json::json!({"not_an_object": "{\"a\":"}));
        assert_eq!(arguments_of(&call("[1]")), serde_json::json!({"not_an_object": "[1]"}));
    }
}
