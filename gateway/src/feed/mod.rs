//! The events of a run as a stream that can be cut at any byte and resumed without a gap.
//!
//! | module | contents |
//! |---|---|
//! | `cursor` | the position of an event, which is its id |
//! | `frame` | events and notices as frames |
//! | `reader` | the messages of a run, from the lane or the archive |
//! | `stream` | one open stream |

mod cursor;
mod frame;
mod reader;
mod stream;

pub use cursor::EventCursor;
pub use frame::StreamNotice;
pub use stream::{EventLevel, EventRequest, EventStream, QUEUED_FRAMES};
