//! The flat forms of events: `{"TaskFailed": {…}}` in the log and `{"type": "task_failed", …}` in the API, whichever noun a variant
//! belongs to. Writing passes through to the noun's own enum; reading looks the variant's name up first and lets that noun read the rest.

use serde::de::value::Error as ProbeError;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

/// Defines the enum of all events, of which each noun has its own enum, and the forms that all of them share.
macro_rules! define_events {
    ($($(#[$docs:meta])* $noun:ident($event:ident, $form:ident),)*) => {
        /// A decided event.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Event {
            $($(#[$docs])* $noun($event),)*
        }

        /// An event. `type` is its name.
        #[derive(Debug, Serialize)]
        #[serde(untagged)]
        pub enum EventJson<'a> {
            $($noun($form<'a>),)*
        }

        impl<'a> From<&'a Event> for EventJson<'a> {
            fn from(event: &'a Event) -> Self {
                match event {
                    $(Event::$noun(event) => Self::$noun(event.into()),)*
                }
            }
        }

        impl JsonSchema for EventJson<'_> {
            fn schema_name() -> Cow<'static, str> {
                "EventJson".into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                let nouns = [$($form::json_schema(generator)),*];
                let variants = nouns.into_iter().filter_map(|mut noun| match noun.remove("oneOf") {
                    Some(Value::Array(variants)) => Some(variants),
                    Some(_) | None => None,
                });
                let variants: Vec<Value> = variants.flatten().collect();
                json_schema!({ "oneOf": variants, "description": "An event. `type` is its name." })
            }
        }

        /// One line for a person. Texts of users and models may bring line breaks in.
        impl fmt::Display for Event {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$noun(event) => event.fmt(f),)*
                }
            }
        }

        impl Serialize for Event {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Self::$noun(event) => event.serialize(serializer),)*
                }
            }
        }

        static EVENT_NAMES: LazyLock<Vec<&str>> =
            LazyLock::new(|| [$(wire::variant_names_of::<$event>()),*].concat());

        impl<'de> Deserialize<'de> for Event {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_enum("Event", &EVENT_NAMES, EventVisitor)
            }
        }

        struct EventVisitor;

        impl<'de> Visitor<'de> for EventVisitor {
            type Value = Event;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event")
            }

            fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Event, A::Error> {
                let (name, content) = data.variant::<String>()?;
                $({
                    static NAMES: LazyLock<&[&str]> = LazyLock::new(wire::variant_names_of::<$event>);
                    if NAMES.contains(&name.as_str()) {
                        let variant = wire::NamedVariant { name, content };
                        return $event::deserialize(variant).map(Event::$noun);
                    }
                })*
                Err(A::Error::unknown_variant(&name, &EVENT_NAMES))
            }
        }
    };
}
pub(super) use define_events;

/// Returns the names of an enum's variants, as its derived `Deserialize` passes them to a deserializer.
pub(super) fn variant_names_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // The probe reads no value, so that this is always an error.
    drop(T::deserialize(VariantProbe(&mut names)));
    names
}

struct VariantProbe<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for VariantProbe<'_> {
    type Error = ProbeError;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        *self.0 = variants;
        self.deserialize_any(visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, ProbeError> {
        Err(ProbeError::custom("a probe has no value"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// A variant whose name was read and whose content was not.
pub(super) struct NamedVariant<C> {
    pub name: String,
    pub content: C,
}

impl<'de, C: VariantAccess<'de>> Deserializer<'de> for NamedVariant<C> {
    type Error = C::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, C::Error> {
        visitor.visit_enum(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, C: VariantAccess<'de>> EnumAccess<'de> for NamedVariant<C> {
    type Error = C::Error;
    type Variant = C;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, C), C::Error> {
        Ok((seed.deserialize(self.name.into_deserializer())?, self.content))
    }
}
