//! The position of an event in a run: the sequence of its message in the lane, and its index in that message. Pure.

use std::fmt;
use std::str::FromStr;

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
    fn ids_are_read_back_and_ordered() {
        let cursor = EventCursor { sequence: 17, index: 3 };
        assert_eq!(cursor.to_string().parse::<EventCursor>().unwrap(), cursor);
        assert!(cursor < "18.0".parse().unwrap() && cursor < "17".parse().unwrap());
        for text in ["", ".", "1.", ".1", "-1", "+1.0", "1.5.2", "a", "1.99999999999"] {
            assert!(text.parse::<EventCursor>().is_err(), "{text}");
        }
    }
}
