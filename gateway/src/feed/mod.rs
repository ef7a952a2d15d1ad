//! The events of runs as streams that can be cut at any byte and resumed without a gap.
//!
//! | module | contents |
//! |---|---|
//! | `cursor` | the position of an event of one run, which is its id |
//! | `position` | the position in the events of all runs |
//! | `frame` | events and notices as frames |
//! | `message` | a message of a lane with its events |
//! | `hub` | one follower per lane for all streams |
//! | `run_feed` | the messages of one run, from the log, the follower or the archive |
//! | `labels` | the labels of the run of a message |
//! | `lane_log` | the messages of all runs of a lane, with those in the archive |
//! | `stream` | one open stream of one run |
//! | `all_runs` | one open stream of many runs |
//! | `sink` | frames on their way to the client |

mod all_runs;
mod cursor;
mod frame;
mod hub;
mod labels;
mod lane_log;
mod message;
mod position;
mod run_feed;
mod sink;
mod stream;

pub use all_runs::{AllRunsRequest, AllRunsStream, StreamSources, StreamStart};
pub use cursor::EventCursor;
pub use frame::StreamNotice;
pub use hub::LaneHub;
pub use labels::read_labels;
pub use lane_log::LaneLog;
pub use message::LaneMessage;
pub use position::StreamPosition;
pub use run_feed::{FeedStep, RunFeed};
pub use stream::{EventLevel, EventRequest, EventStream, QUEUED_FRAMES};
