//! The trace context of a caller, as W3C Trace Context defines it: the span in which a run was submitted. The run's own trace
//! links to it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The length of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// The position of a span in a distributed trace: the value of the header `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceParent {
    /// The trace.
    pub trace: [u8; 16],
    /// The span.
    pub span: [u8; 8],
    /// The flags; bit 0 is set if the caller records the trace.
    pub flags: u8,
}

/// A text is no `traceparent`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a traceparent; it looks like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01: version, trace id, \
     span id and flags in lower-case hexadecimal"
)]
pub struct InvalidTraceParent(String);

impl FromStr for TraceParent {
    type Err = InvalidTraceParent;

    fn from_str(text: &str) -> Result<Self, InvalidTraceParent> {
        parse(text.trim()).ok_or_else(|| InvalidTraceParent(text.chars().take(2 * LENGTH).collect()))
    }
}

/// Parses a value. Versions above 00 may have more fields; `ff` is no version, and ids of zeros are invalid.
fn parse(text: &str) -> Option<TraceParent> {
    let mut fields = text.split('-');
    let version: [u8; 1] = parse_hex(fields.next()?)?;
    let parsed = TraceParent {
        trace: parse_hex(fields.next()?)?,
        span: parse_hex(fields.next()?)?,
        flags: parse_hex::<1>(fields.next()?)?[0],
    };
    let is_over = fields.next().is_none();
    let is_valid = match version {
        [0] => is_over,
        [0xff] => false,
        [_] => true,
    };
    (is_valid && parsed.trace != [0; 16] && parsed.span != [0; 8]).then_some(parsed)
}

fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", self.flags)
    }
}

impl TryFrom<String> for TraceParent {
    type Error = InvalidTraceParent;

    fn try_from(text: String) -> Result<Self, InvalidTraceParent> {
        text.parse()
    }
}

impl From<TraceParent> for String {
    fn from(parent: TraceParent) -> Self {
        parent.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn values_are_read_and_written_back() {
        let parent: TraceParent = TEXT.parse().unwrap();
        assert_eq!((parent.trace[0], parent.span[1], parent.flags), (0x4b, 0xf0, 1));
        assert_eq!(parent.to_string(), TEXT);
        assert_eq!(TEXT.len(), LENGTH);
        let later = format!("01{}-more", &TEXT[2..]);
        assert_eq!(later.parse::<TraceParent>().unwrap(), parent, "later versions may have more fields");
    }

    #[test]
    fn invalid_values_are_refused() {
        let zeros = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        let no_span = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01";
        let upper = TEXT.to_uppercase();
        let more = format!("{TEXT}-more");
        let unknown = format!("ff{}", &TEXT[2..]);
        for text in ["", "00", zeros, no_span, &upper, &more, &unknown, "00-é-é-é"] {
            let error = text.parse::<TraceParent>().unwrap_err();
            assert!(error.to_string().contains("is not a traceparent"), "{error}");
        }
    }
}
