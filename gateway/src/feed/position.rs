//! The position of a client in the events of all runs: one cursor for each lane, and the revision of the summaries. Pure.

use std::fmt;
use std::str::FromStr;

const FORMAT: u8 = 1;
/// The maximum number of lanes.
const MAX_LANES: usize = 1 << 16;

/// A position in the events of all runs. It is the same for every gateway, and after runs were archived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamPosition {
    /// The revision of the summaries that were sent.
    pub revision: u64,
    pub lanes: Vec<EventCursor>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no event id of this cluster; give the id of an event of /events, or \"start\"")]
pub struct InvalidStreamPosition(String);

impl StreamPosition {
    /// The beginning of the log of a cluster with this number of lanes.
    #[must_use]
    pub fn start(lanes: u16) -> Self {
        Self { revision: 0, lanes: vec![EventCursor::default(); usize::from(lanes)] }
    }
}

/// As an opaque text.
impl fmt::Display for StreamPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![FORMAT];
        write_number(&mut bytes, self.revision);
        for cursor in &self.lanes {
            write_number(&mut bytes, cursor.sequence);
            write_number(&mut bytes, u64::from(cursor.index));
        }
        f.write_str(&data_encoding::BASE64URL_NOPAD.encode(&bytes))
    }
}

impl FromStr for StreamPosition {
    type Err = InvalidStreamPosition;

    fn from_str(text: &str) -> Result<Self, InvalidStreamPosition> {
        parse(text).ok_or_else(|| InvalidStreamPosition(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<StreamPosition> {
    let bytes = data_encoding::BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
    let (format, mut rest) = bytes.split_first()?;
    if *format != FORMAT {
        return None;
    }
    let revision = read_number(&mut rest)?;
    let mut lanes = Vec::new();
    while !rest.is_empty() && lanes.len() < MAX_LANES {
        let sequence = read_number(&mut rest)?;
        let index = u32::try_from(read_number(&mut rest)?).ok()?;
        lanes.push(EventCursor { sequence, index });
    }
    Some(StreamPosition { revision, lanes })
}

/// Writes a number in groups of seven bits, the lowest first.
fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn read_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The position of an event. It is the same for every gateway, and in the archive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventCursor {
    /// The sequence of the message in the lane.
    pub sequence: u64,
    /// The index of the event in the message, from 0.
    pub index: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no event id; it has the form SEQUENCE.INDEX, such as 17.0")]
pub struct InvalidCursor(String);

impl fmt::Display for EventCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.sequence, self.index)
    }
}

impl FromStr for EventCursor {
    type Err = InvalidCursor;

    /// Reads the id of an event. A sequence alone names the last event of its message.
    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let number = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
        };
        let parsed = match text.split_once('.') {
            Some((sequence, index)) => {
                number(sequence).zip(number(index).and_then(|index| u32::try_from(index).ok()))
            }
            None => number(text).map(|sequence| (sequence, u32::MAX)),
        };
        let (sequence, index) = parsed.ok_or_else(|| InvalidCursor(text.to_owned()))?;
        Ok(Self { sequence, index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_back_and_others_are_refused() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let cursor = EventCursor { sequence: number, index: u32::try_from(number).unwrap_or(u32::MAX) };
            let position = StreamPosition { revision: number, lanes: vec![EventCursor::default(), cursor] };
            assert_eq!(position.to_string().parse::<StreamPosition>().unwrap(), position);
        }
        assert_eq!(StreamPosition::start(4).to_string().parse::<StreamPosition>().unwrap().lanes.len(), 4);
        for text in ["", "A", "AQ", "17.0", "AQE_", "AQGAgICAgICAgICAgAE", "\u{e9}"] {
            assert!(text.parse::<StreamPosition>().is_err(), "{text}");
        }
    }
}

#[cfg(test)]
mod cursor_tests {
    use super::*;

    #[test]
    fn ids_are_read_back_and_ordered() {
        let cursor = EventCursor { sequence: 17, index: 3 };
        assert_eq!(cursor.to_string().parse::<EventCursor>().unwrap(), cursor);
        assert!(cursor < "18.0".parse().unwrap() && cursor < "17".parse().unwrap());
        for text in ["", ".", "1.", ".1", "-1", "+1.0", "1.5.2", "a", "1.99999999999"] {
            assert!(text.parse::<EventCursor>().is_err(), "{text}");
        }
    }
}
