//! Ids and names. Each is a newtype whose constructor validates, and serde uses the constructor: every value is safe as
//! a NATS subject token, as a key and as a file name.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The maximum length of a name in bytes.
pub const MAX_NAME: usize = 64;

/// A text that is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid {kind}: {reason}")]
pub struct InvalidName {
    /// The kind of name, such as "task id".
    pub kind: &'static str,
    /// The text, truncated to 80 characters.
    pub text: String,
    /// The reason, with the allowed form.
    pub reason: String,
}

fn check_name(kind: &'static str, text: &str) -> Result<(), InvalidName> {
    let refuse = |reason: String| InvalidName { kind, text: text.chars().take(80).collect(), reason };
    let Some(first) = text.chars().next() else {
        return Err(refuse("it is empty".into()));
    };
    if text.len() > MAX_NAME {
        return Err(refuse(format!("it has {} bytes; the maximum is {MAX_NAME}", text.len())));
    }
    if !first.is_ascii_alphanumeric() {
        return Err(refuse("it must begin with a letter or a digit".into()));
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))) {
        Some(c) => Err(refuse(format!("{c:?} is not allowed; use letters, digits, '-' and '_'"))),
        None => Ok(()),
    }
}

/// The last name of a type that this thread has read. Messages in a row mostly name the same run, capability and process: those
/// names share their text, and are not checked anew.
type LastName = RefCell<Option<Arc<str>>>;

fn read_name(kind: &'static str, last: &LastName, text: &str) -> Result<Arc<str>, InvalidName> {
    let mut last = last.borrow_mut();
    if let Some(name) = last.as_ref().filter(|name| &***name == text) {
        return Ok(Arc::clone(name));
    }
    check_name(kind, text)?;
    Ok(Arc::clone(last.insert(text.into())))
}

/// Visits the text of a name with a function that validates it.
struct NameVisitor<F>(&'static str, F);

impl<N, F: FnOnce(&str) -> Result<N, InvalidName>> Visitor<'_> for NameVisitor<F> {
    type Value = N;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {}", self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<N, E> {
        self.1(text).map_err(E::custom)
    }
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $kind:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                thread_local! { static LAST: LastName = const { RefCell::new(None) } }
                let read = |text: &str| LAST.with(|last| read_name($kind, last, text)).map(Self);
                deserializer.deserialize_str(NameVisitor($kind, read))
            }
        }

        impl $name {
            /// Validates a name.
            /// Errors: the text is empty, longer than [`MAX_NAME`] bytes, or has a character that is not allowed.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidName> {
                check_name($kind, text.as_ref())?;
                Ok(Self(text.as_ref().into()))
            }

            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;
            fn from_str(text: &str) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                check_name($kind, &text)?;
                Ok(Self(text.into()))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().into()
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
                })
            }
        }
    )*};
}

names! {
    /// A run: one objective and everything done for it. Letters, digits, '-' and '_'.
    RunId = "run id";
    /// A session: runs that run one after the other, each with the results of those before it.
    SessionId = "session name";
    /// A task of a plan, unique within its run.
    TaskId = "task id";
    /// A kind of work that workers provide, such as `research`.
    Capability = "capability name";
    /// A process: a worker, a critic or a supervisor.
    WorkerId = "worker id";
    /// A webhook of the HTTP API.
    WebhookId = "webhook id";
    /// A message to the receivers of webhooks: the same in every attempt and for every receiver.
    MessageId = "message id";
}

impl RunId {
    /// Creates a run id of the form `20261121-231500-k3f9q2`: the date and time of creation in UTC, the 1024ths of its second in two
    /// digits, and 20 random bits in four, so that ids sort by age and can be read aloud.
    #[must_use]
    pub fn generate(when: jiff::Timestamp, random: u32) -> Self {
        const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        let digit = |number: u32| char::from(DIGITS[number as usize & 31]);
        let stamp = when.strftime("%Y%m%d-%H%M%S");
        let part = (i64::from(when.subsec_nanosecond().max(0)) * 1024 / 1_000_000_000) as u32;
        let tail: String = (0..4).map(|i| digit(random >> (5 * i))).collect();
        Self(format!("{stamp}-{}{}{tail}", digit(part >> 5), digit(part)).into())
    }

    /// Returns the second in which the id was created; `None` if it was not generated.
    pub fn created(&self) -> Option<jiff::Timestamp> {
        let stamp = self.0.get(..15).filter(|_| self.0.len() == 22 && self.0.as_bytes()[15] == b'-')?;
        let time = jiff::civil::DateTime::strptime("%Y%m%d-%H%M%S", stamp).ok()?;
        Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    }

    /// Returns the lane of a run: FNV-1a (64 bit) of its id, modulo the number of lanes of the cluster.
    pub fn lane(&self, lanes: u16) -> Lane {
        lane_of_name(&self.0, lanes)
    }
}

impl SessionId {
    /// Returns the lane of a session, by the same rule as that of a run. All runs of the session have ids of this lane, so that the
    /// order in the lane is their order in the session, and one owner sees all of them.
    pub fn lane(&self, lanes: u16) -> Lane {
        lane_of_name(&self.0, lanes)
    }
}

/// FNV-1a (64 bit) of a name, modulo the number of lanes.
fn lane_of_name(name: &str, lanes: u16) -> Lane {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    Lane((hash % u64::from(lanes.max(1))) as u16)
}

/// A lane: one stream of the log, from 0 to the cluster's lane count less one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lane(pub u16);

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_rejected() {
        for text in ["", "a.b", "*", ">", "-a", "a b", "ä", &"x".repeat(65)] {
            assert!(TaskId::new(text).is_err(), "{text:?}");
        }
        assert_eq!(
            TaskId::new("a.b").unwrap_err().to_string(),
            r#""a.b" is not a valid task id: '.' is not allowed; use letters, digits, '-' and '_'"#
        );
    }

    #[test]
    fn deserialising_validates() {
        assert!(serde_json::from_str::<TaskId>("\"a b\"").is_err());
        assert_eq!(serde_json::from_str::<TaskId>("\"a_b-1\"").unwrap(), TaskId::new("a_b-1").unwrap());
    }

    #[test]
    fn equal_names_that_are_read_in_a_row_share_their_text() {
        let read = |text: &str| serde_json::from_str::<Capability>(text);
        let (first, again) = (read("\"echo\"").unwrap(), read("\"echo\"").unwrap());
        assert!(Arc::ptr_eq(&first.0, &again.0));
        assert!(read("\"a b\"").is_err());
        assert_eq!(read("\"research\"").unwrap().as_str(), "research");
        assert_eq!(read("\"echo\"").unwrap(), first);
    }

    #[test]
    fn run_ids_sort_by_age_and_are_valid_names() {
        let early = RunId::generate("2026-11-21T23:15:00Z".parse().unwrap(), 7);
        let late = RunId::generate("2026-11-21T23:15:01Z".parse().unwrap(), 0);
        assert_eq!(early.as_str(), "20261121-231500-007000");
        assert!(early < late && RunId::new(early.as_str()).is_ok());
        let in_a_second = |time: &str, random| RunId::generate(time.parse().unwrap(), random);
        let ids = [
            in_a_second("2026-11-21T23:15:00.002Z", u32::MAX),
            in_a_second("2026-11-21T23:15:00.004Z", 5),
            in_a_second("2026-11-21T23:15:00.5Z", 3),
            in_a_second("2026-11-21T23:15:00.999Z", 0),
        ];
        assert!(early < ids[0] && ids.is_sorted() && ids[3] < late, "{ids:?}");
        for id in ids {
            assert_eq!(id.created(), Some("2026-11-21T23:15:00Z".parse().unwrap()), "{id}");
        }
        for id in ["r-1", "20261121-231500", "20261321-231500-700000", "20261121_231500-700000"] {
            assert_eq!(RunId::new(id).unwrap().created(), None, "{id}");
        }
    }

    #[test]
    fn lanes_are_spread_evenly() {
        let mut count = [0; 16];
        for i in 0..16_000 {
            count[usize::from(RunId::new(format!("r{i}")).unwrap().lane(16).0)] += 1;
        }
        assert!(count.iter().all(|&n| (800..1200).contains(&n)), "{count:?}");
    }
}
