//! The flat form of events: `{"TaskFailed": {…}}`, whichever noun a variant belongs to. Writing passes through to the noun's
//! own enum; reading looks the variant's name up first and lets that noun read the rest.

use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use serde::de::value::Error as ProbeError;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, Visitor};
use serde::{Serialize, Serializer, forward_to_deserialize_any};

use super::{
    AttemptEvent, BudgetEvent, Event, GraphEvent, PlanningEvent, ProviderEvent, ReviewEvent, RunEvent,
    TaskEvent, UserEvent,
};

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Run(event) => event.serialize(serializer),
            Self::User(event) => event.serialize(serializer),
            Self::Planning(event) => event.serialize(serializer),
            Self::Graph(event) => event.serialize(serializer),
            Self::Task(event) => event.serialize(serializer),
            Self::Attempt(event) => event.serialize(serializer),
            Self::Review(event) => event.serialize(serializer),
            Self::Budget(event) => event.serialize(serializer),
            Self::Provider(event) => event.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_enum("Event", &VARIANTS.names, EventVisitor)
    }
}

/// The noun that a variant belongs to.
#[derive(Debug, Clone, Copy)]
enum EventGroup {
    Run,
    User,
    Planning,
    Graph,
    Task,
    Attempt,
    Review,
    Budget,
    Provider,
}

/// The names of all variants on the wire.
struct EventVariantNames {
    names: Vec<&'static str>,
    nouns: HashMap<&'static str, EventGroup>,
}

static VARIANTS: LazyLock<EventVariantNames> = LazyLock::new(|| {
    let by_noun = [
        (EventGroup::Run, variant_names_of::<RunEvent>()),
        (EventGroup::User, variant_names_of::<UserEvent>()),
        (EventGroup::Planning, variant_names_of::<PlanningEvent>()),
        (EventGroup::Graph, variant_names_of::<GraphEvent>()),
        (EventGroup::Task, variant_names_of::<TaskEvent>()),
        (EventGroup::Attempt, variant_names_of::<AttemptEvent>()),
        (EventGroup::Review, variant_names_of::<ReviewEvent>()),
        (EventGroup::Budget, variant_names_of::<BudgetEvent>()),
        (EventGroup::Provider, variant_names_of::<ProviderEvent>()),
    ];
    let all = || by_noun.iter().flat_map(|(noun, names)| names.iter().map(|&name| (name, *noun)));
    EventVariantNames { names: all().map(|(name, _)| name).collect(), nouns: all().collect() }
});

/// The names of an enum's variants, as its derived `Deserialize` passes them to a deserializer.
fn variant_names_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
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
        _visitor: V,
    ) -> Result<V::Value, ProbeError> {
        *self.0 = variants;
        Err(ProbeError::custom("a probe has no value"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, ProbeError> {
        Err(ProbeError::custom("a probe has no value"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct EventVisitor;

impl<'de> Visitor<'de> for EventVisitor {
    type Value = Event;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Event, A::Error> {
        let ((name, noun), content) = data.variant_seed(VariantNameSeed)?;
        let variant = NamedVariant { name, content };
        match noun {
            EventGroup::Run => RunEvent::deserialize(variant).map(Event::Run),
            EventGroup::User => UserEvent::deserialize(variant).map(Event::User),
            EventGroup::Planning => PlanningEvent::deserialize(variant).map(Event::Planning),
            EventGroup::Graph => GraphEvent::deserialize(variant).map(Event::Graph),
            EventGroup::Task => TaskEvent::deserialize(variant).map(Event::Task),
            EventGroup::Attempt => AttemptEvent::deserialize(variant).map(Event::Attempt),
            EventGroup::Review => ReviewEvent::deserialize(variant).map(Event::Review),
            EventGroup::Budget => BudgetEvent::deserialize(variant).map(Event::Budget),
            EventGroup::Provider => ProviderEvent::deserialize(variant).map(Event::Provider),
        }
    }
}

/// Reads a variant's name.
struct VariantNameSeed;

impl<'de> DeserializeSeed<'de> for VariantNameSeed {
    type Value = (&'static str, EventGroup);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for VariantNameSeed {
    type Value = (&'static str, EventGroup);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an event")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        let variant = VARIANTS.nouns.get_key_value(name).map(|(name, noun)| (*name, *noun));
        variant.ok_or_else(|| E::unknown_variant(name, &VARIANTS.names))
    }
}

/// A variant whose name was read and whose content was not.
struct NamedVariant<C> {
    name: &'static str,
    content: C,
}

impl<'de, C: serde::de::VariantAccess<'de>> Deserializer<'de> for NamedVariant<C> {
    type Error = C::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, C::Error> {
        visitor.visit_enum(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, C: serde::de::VariantAccess<'de>> EnumAccess<'de> for NamedVariant<C> {
    type Error = C::Error;
    type Variant = C;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, C), C::Error> {
        Ok((seed.deserialize(self.name.into_deserializer())?, self.content))
    }
}
