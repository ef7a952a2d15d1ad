//! The state of a reading: the mistakes that were found, and the values that the next pass leaves out.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use crate::mistake::{
    MistakeCollector, Position, YamlMistake, closest_name, did_you_mean_hint, join_with_or,
};
use crate::yaml::{YamlEntry, YamlNode, YamlValue, quote_truncated};

/// The mistakes that were found so far in a node, and the values in it that are left out.
pub(crate) struct Reading<'n> {
    pub root: &'n YamlNode,
    pub what: &'n str,
    /// The name of its field, if it is one.
    pub field: Option<&'n str>,
    pub mistakes: RefCell<MistakeCollector>,
    pub unreadable: RefCell<HashSet<*const YamlNode>>,
    pub placeholder: YamlNode,
    /// The required fields that get a placeholder, each with its map.
    pub placeholders: RefCell<HashSet<(*const YamlNode, &'static str)>>,
    /// The number of values that this pass has left out.
    pub left_out: Cell<usize>,
    /// `true` if this pass has found something new.
    pub has_news: Cell<bool>,
}

impl<'n> Reading<'n> {
    pub fn new(root: &'n YamlNode, what: &'n str) -> Self {
        Self {
            root,
            what,
            field: None,
            mistakes: RefCell::default(),
            unreadable: RefCell::default(),
            placeholder: YamlNode { position: root.position, value: YamlValue::Text("x".into()) },
            placeholders: RefCell::default(),
            left_out: Cell::new(0),
            has_news: Cell::new(false),
        }
    }

    /// The name of the thing that a node describes.
    pub fn name_of(&self, node: &YamlNode, own: &'n str) -> &'n str {
        if std::ptr::eq(node, self.root) { self.what } else { own }
    }

    pub fn leave_out(&self) {
        self.left_out.set(self.left_out.get() + 1);
    }

    pub fn is_unreadable(&self, node: &YamlNode) -> bool {
        self.unreadable.borrow().contains(&std::ptr::from_ref(node))
    }

    /// Leaves out a value that can't be read.
    pub fn leaves_out(&self, node: &YamlNode) -> bool {
        let is_left_out = self.is_unreadable(node);
        if is_left_out {
            self.leave_out();
        }
        is_left_out
    }

    pub fn add_mistake(&self, position: Position, text: String) {
        self.mistakes.borrow_mut().add(YamlMistake::at_position(position, text));
    }

    pub fn refuse_unknown_fields(&self, entries: &[YamlEntry], name: &str, known: &[&str]) {
        let place = noun(name).map_or("here".into(), |name| format!("in {}", with_article(name)));
        for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            self.leave_out();
            let hint = match did_you_mean_hint(&entry.key, known.iter().copied()) {
                hint if hint.is_empty() => {
                    let can = if place == "here" { "there can be" } else { "it can have" };
                    format!("; {can} {}", join_with_or(known))
                }
                hint => hint,
            };
            let key = quote_truncated(&entry.key);
            self.add_mistake(entry.position, format!("there is no field {key} {place}{hint}"));
        }
    }

    /// Requests a placeholder for a missing field of a map. The mistake is new unless its value can't be read or its name is
    /// misspelt.
    pub fn replace_missing_field(&self, node: &YamlNode, name: &str, fields: &[&str], missing: &'static str) {
        if let YamlValue::Map(entries) = &node.value {
            let is_meant = |entry: &YamlEntry| {
                let key = entry.key.as_str();
                key == missing
                    || !fields.contains(&key) && closest_name(key, fields.iter().copied()) == Some(missing)
            };
            if !entries.iter().any(is_meant) {
                let text = match noun(name) {
                    Some(name) => format!("this {name} lacks the field {missing:?}"),
                    None => format!("the field {missing:?} is missing here"),
                };
                self.add_mistake(node.position, text);
            }
        }
        self.placeholders.borrow_mut().insert((std::ptr::from_ref(node), missing));
        self.has_news.set(true);
    }
}

/// The name of a described thing; `None` for the name of a type.
pub(crate) fn noun(name: &str) -> Option<&str> {
    (!name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

pub(crate) fn with_article(what: &str) -> String {
    let is_vowel = what.starts_with(['a', 'e', 'i', 'o']) || what.starts_with("MCP");
    let article = if is_vowel { "an" } else { "a" };
    format!("{article} {what}")
}
