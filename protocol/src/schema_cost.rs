//! Bounds the time of a validation. A JSON Schema of a few lines can take exponential time: references that double
//! (`allOf` of twice the next definition, 30 times) or recursion that branches. Schemas come from capability registrations
//! and MCP servers, so the cost is estimated before a value is validated.
//!
//! # Invariants
//!
//! - I95: A JSON Schema from outside can't take exponential time: its values are then accepted without validation.
//!   (`protocol/src/schema_cost.rs::doubling_references_and_cycles_have_no_bound`,
//!   `protocol/src/schema.rs::schemas_that_double_are_not_applied`)

use serde_json::{Map, Value};

/// The maximum number of subschemas, each reference counted as often as it is used.
const MAX_SUBSCHEMAS: u64 = 50_000;
/// The maximum number of references within each other.
const MAX_REFERENCE_DEPTH: usize = 64;
/// The keywords whose argument, a schema or several, is applied to the items or properties of a value.
const CHILD_KEYWORDS: [&str; 8] = [
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
];
/// The maximum estimated number of subschemas that are applied to a value: less than a second.
const MAX_APPLICATIONS: f64 = 1e7;

/// The cost of validating values against a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SchemaCost {
    subschemas: u64,
    /// The number of references to a schema that contains them, each followed once.
    recursive_references: u64,
}

impl SchemaCost {
    /// Estimates the cost; `None` if it has no useful bound: too many subschemas, a reference that can't be resolved within
    /// the schema, or one that applies itself to the same value.
    pub(crate) fn estimate(schema: &Value) -> Option<Self> {
        let mut walk = CostWalk {
            root: schema,
            cost: Self { subschemas: 0, recursive_references: 0 },
            references: Vec::new(),
            levels: 0,
        };
        walk.visit_schema(schema, true)?;
        Some(walk.cost)
    }

    /// Returns whether a value can be validated in bounded time: each level of the value may multiply the work by the number of
    /// recursive references.
    pub(crate) fn is_affordable_for(self, value: &Value) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let (subschemas, factor) = (self.subschemas as f64, self.recursive_references.max(1) as f64);
        let depth = if self.recursive_references > 1 { depth_of(value) } else { 0 };
        subschemas * factor.powi(depth) <= MAX_APPLICATIONS
    }
}

struct CostWalk<'a> {
    root: &'a Value,
    cost: SchemaCost,
    /// The targets of the references that lead to the current schema, each with the number of levels of the value above it.
    references: Vec<(&'a str, u32)>,
    /// The number of levels of the value above the current schema.
    levels: u32,
}

impl<'a> CostWalk<'a> {
    fn visit_schema(&mut self, schema: &'a Value, is_root: bool) -> Option<()> {
        self.cost.subschemas += 1;
        if self.cost.subschemas > MAX_SUBSCHEMAS {
            return None;
        }
        let Value::Object(keywords) = schema else { return Some(()) };
        if keywords.contains_key("$dynamicRef")
            || keywords.contains_key("$recursiveRef")
            || (!is_root && keywords.contains_key("$id"))
        {
            return None;
        }
        keywords.iter().try_for_each(|(keyword, argument)| self.visit_keyword(keyword, argument))
    }

    fn visit_keyword(&mut self, keyword: &str, argument: &'a Value) -> Option<()> {
        match (keyword, argument) {
            ("$ref", Value::String(target)) => self.visit_reference(target),
            ("properties" | "patternProperties", Value::Object(named)) => self.visit_children(named.values()),
            (keyword, Value::Array(schemas)) if CHILD_KEYWORDS.contains(&keyword) => {
                self.visit_children(schemas.iter())
            }
            (keyword, Value::Object(_)) if CHILD_KEYWORDS.contains(&keyword) => {
                self.visit_children(std::iter::once(argument))
            }
            ("dependentSchemas" | "dependencies", Value::Object(named)) => {
                named.values().try_for_each(|schema| self.visit_schema(schema, false))
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                schemas.iter().try_for_each(|schema| self.visit_schema(schema, false))
            }
            ("not" | "if" | "then" | "else", Value::Object(_)) => self.visit_schema(argument, false),
            _ => Some(()),
        }
    }

    fn visit_children(&mut self, mut schemas: impl Iterator<Item = &'a Value>) -> Option<()> {
        self.levels += 1;
        let visited = schemas.try_for_each(|schema| self.visit_schema(schema, false));
        self.levels -= 1;
        visited
    }

    fn visit_reference(&mut self, target: &'a str) -> Option<()> {
        let pointer = target.strip_prefix('#')?;
        if let Some((_, levels)) = self.references.iter().rev().find(|(earlier, _)| *earlier == target) {
            self.cost.recursive_references += 1;
            return (*levels < self.levels).then_some(());
        }
        if pointer.is_empty() {
            // The whole schema contains this reference.
            self.cost.recursive_references += 1;
            return (self.levels > 0).then_some(());
        }
        if self.references.len() >= MAX_REFERENCE_DEPTH {
            return None;
        }
        let schema = self.root.pointer(pointer)?;
        self.references.push((target, self.levels));
        let visited = self.visit_schema(schema, false);
        self.references.pop();
        visited
    }
}

/// Returns the number of levels of nested arrays and objects.
fn depth_of(value: &Value) -> i32 {
    let deepest = |values: &mut dyn Iterator<Item = &Value>| values.map(depth_of).max().unwrap_or(0) + 1;
    match value {
        Value::Array(items) => deepest(&mut items.iter()),
        Value::Object(fields) => deepest(&mut Map::values(fields)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nested(depth: usize) -> Value {
        (0..depth).fold(json!(1), |value, _| json!({ "a": value }))
    }

    #[test]
    fn doubling_references_and_cycles_have_no_bound() {
        let mut definitions = Map::new();
        for number in 0..30 {
            let next = json!({"$ref": format!("#/$defs/d{}", number + 1)});
            definitions.insert(format!("d{number}"), json!({"allOf": [next, next]}));
        }
        definitions.insert("d30".into(), json!({"type": "object"}));
        let doubling = json!({"$defs": definitions, "$ref": "#/$defs/d0"});
        assert_eq!(SchemaCost::estimate(&doubling), None);
        for without_bound in [
            json!({"$ref": "#"}),
            json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}),
            json!({"$ref": "https://example.com/schema"}),
            json!({"$ref": "#/$defs/missing"}),
            json!({"properties": {"$defs": {"$id": "x", "$ref": "#/y"}}}),
            json!({"$dynamicRef": "#a"}),
        ] {
            assert_eq!(SchemaCost::estimate(&without_bound), None, "{without_bound}");
        }
    }

    #[test]
    fn branching_recursion_is_affordable_for_shallow_values_only() {
        let twice = json!({"$defs": {"n": {"allOf": [
            {"properties": {"a": {"$ref": "#/$defs/n"}}},
            {"properties": {"a": {"$ref": "#/$defs/n"}}},
        ]}}, "$ref": "#/$defs/n"});
        let cost = SchemaCost::estimate(&twice).unwrap();
        assert_eq!(cost.recursive_references, 2);
        assert!(cost.is_affordable_for(&nested(10)));
        assert!(!cost.is_affordable_for(&nested(60)));
    }

    #[test]
    fn ordinary_schemas_are_affordable() {
        let tree =
            json!({"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#"}}});
        let cost = SchemaCost::estimate(&tree).unwrap();
        assert_eq!(cost, SchemaCost { subschemas: 3, recursive_references: 1 });
        assert!(cost.is_affordable_for(&nested(100)));
        let shared = json!({"$defs": {"a": {"type": "string", "const": {"$ref": "#"}}},
            "properties": {"x": {"$ref": "#/$defs/a"}, "y": {"items": {"$ref": "#/$defs/a"}}}});
        assert_eq!(
            SchemaCost::estimate(&shared),
            Some(SchemaCost { subschemas: 6, recursive_references: 0 })
        );
    }
}
