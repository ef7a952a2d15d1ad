//! The parameters of a task.

use std::fmt;
use std::ops::Index;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A task's parameters: named JSON values, by name. On the wire they are a map.
///
/// A plan holds up to a million of these, each with a few entries, so an entry takes 96 bytes and the set no more than that; a
/// [`std::collections::BTreeMap`] takes 1,085 bytes for the first entry.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct TaskParameters(Box<[(String, Value)]>);

impl TaskParameters {
    /// No parameters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `true` if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.find(name).ok().map(|at| &self.0[at].1)
    }

    /// `true` if the name has a value.
    pub fn contains_key(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// Sets the value of a name.
    pub fn insert(&mut self, name: String, value: Value) {
        match self.find(&name) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.change(|entries| entries.insert(at, (name, value))),
        }
    }

    /// Removes a name and its value, if it has one.
    pub fn remove(&mut self, name: &str) {
        if let Ok(at) = self.find(name) {
            self.change(|entries| drop(entries.remove(at)));
        }
    }

    /// The names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.into_iter()
    }

    /// The values, by name.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().map(|(_, value)| value)
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.as_str().cmp(name))
    }

    fn change(&mut self, change: impl FnOnce(&mut Vec<(String, Value)>)) {
        let mut entries = std::mem::take(&mut self.0).into_vec();
        change(&mut entries);
        self.0 = entries.into_boxed_slice();
    }
}

/// Of several values of a name the last one counts.
impl FromIterator<(String, Value)> for TaskParameters {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(entries: I) -> Self {
        let mut entries: Vec<_> = entries.into_iter().collect();
        // A stable sort: the last value of a name stays last.
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        entries.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                std::mem::swap(&mut later.1, &mut earlier.1);
            }
            is_same
        });
        Self(entries.into_boxed_slice())
    }
}

impl<const N: usize> From<[(String, Value); N]> for TaskParameters {
    fn from(entries: [(String, Value); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl From<TaskParameters> for Map<String, Value> {
    fn from(parameters: TaskParameters) -> Self {
        parameters.0.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a TaskParameters {
    type Item = (&'a String, &'a Value);
    type IntoIter = std::iter::Map<
        std::slice::Iter<'a, (String, Value)>,
        fn(&'a (String, Value)) -> (&'a String, &'a Value),
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(name, value)| (name, value))
    }
}

impl IntoIterator for TaskParameters {
    type Item = (String, Value);
    type IntoIter = std::vec::IntoIter<(String, Value)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_vec().into_iter()
    }
}

/// Panics if the name has no value.
impl Index<&str> for TaskParameters {
    type Output = Value;

    fn index(&self, name: &str) -> &Value {
        self.get(name).unwrap_or_else(|| panic!("no parameter {name:?}"))
    }
}

impl fmt::Debug for TaskParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for TaskParameters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de> Deserialize<'de> for TaskParameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = TaskParameters;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(entries.into_iter().collect())
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

impl JsonSchema for TaskParameters {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        Map::<String, Value>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Map::<String, Value>::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn they_behave_like_a_map(changes in prop::collection::vec(("[a-d]", prop::option::of(0..9)), 0..20)) {
            let (mut parameters, mut map) = (TaskParameters::new(), BTreeMap::new());
            for (name, value) in changes.clone() {
                if let Some(value) = value {
                    parameters.insert(name.clone(), json!(value));
                    map.insert(name.clone(), json!(value));
                } else {
                    parameters.remove(&name);
                    map.remove(&name);
                }
                prop_assert_eq!(parameters.get(&name), map.get(&name));
            }
            prop_assert_eq!(format!("{parameters:?}"), format!("{map:?}"));
            prop_assert_eq!(rmp_serde::to_vec(&parameters).unwrap(), rmp_serde::to_vec(&map).unwrap());
            let entries = || changes.iter().map(|(name, value)| (name.clone(), json!(value)));
            let (collected, map) = (entries().collect::<TaskParameters>(), entries().collect::<BTreeMap<_, _>>());
            let text = serde_json::to_string(&collected).unwrap();
            prop_assert_eq!(&text, &serde_json::to_string(&map).unwrap());
            prop_assert_eq!(serde_json::from_str::<TaskParameters>(&text).unwrap(), collected);
        }
    }

    #[test]
    fn the_last_value_of_a_name_counts() {
        let parameters: TaskParameters = serde_json::from_str(r#"{"b": 1, "a": 2, "b": 3}"#).unwrap();
        assert_eq!(serde_json::to_string(&parameters).unwrap(), r#"{"a":2,"b":3}"#);
    }

    #[test]
    fn their_schema_is_that_of_a_map() {
        assert_eq!(schemars::schema_for!(TaskParameters), schemars::schema_for!(BTreeMap<String, Value>));
    }
}
