//! The events of runs as streams.
//!
//! | module | contents |
//! |---|---|
//! | `position` | the position of an event of one run, which is its id, and that in the events of all runs |
//! | `filter` | the events that a client asks for |
//! | `frame` | events and notices as frames, on their way to the client |
//! | `message` | a message of a lane with its events |
//! | `hub` | one follower per lane for all streams |
//! | `run_feed` | the messages of one run, from the log and then the follower |
//! | `labels` | the labels of the run of a message |
//! | `stream` | one open stream of one run |
//! | `all_runs` | one open stream of many runs |
//!
//! # Invariants
//!
//! - I160: A stream of events that is cut at any byte, and resumed at any gateway with the last id, has every event of the log
//!   once; the archive has the same events with the same ids.
//!   (`tests/tests/gateway.rs::stream_that_is_cut_at_any_byte_and_resumed_equals_the_log`,
//!   `tests/tests/gateway.rs::second_gateway_continues_the_stream_of_one_that_was_killed`)
//! - I161: A slow reader of a stream is notified and misses no event of the log.
//!   (`tests/tests/gateway.rs::slow_reader_is_notified_and_misses_nothing`)
//! - I194: A stream of the events of all runs that is cut at any byte, and resumed at any gateway with the last id, has every
//!   event of every run once, also of runs that were archived meanwhile, across kills of any process.
//!   (`tests/tests/gateway/streams.rs::stream_of_all_runs_equals_their_logs_whatever_is_killed`)
//! - I262: Streams of a run and of all runs that are cut before a run is reopened have every event of it once.
//!   (`tests/tests/gateway/streams.rs::streams_continue_across_reopenings_and_have_every_event_once`)

mod all_runs;
mod filter;
mod frame;
mod hub;
mod labels;
mod message;
mod position;
mod run_feed;
mod stream;

pub use all_runs::{AllRunsRequest, AllRunsStream, StreamSources, StreamStart};
pub use filter::{EventFilter, EventLevel};
pub use frame::{Frame, RUN_SUMMARY, StreamNotice};
pub use hub::LaneHub;
pub use labels::read_labels;
pub use message::LaneMessage;
pub use position::{EventCursor, StreamPosition};
pub use run_feed::{FeedStep, RunFeed};
pub use stream::{EventRequest, EventStream, QUEUED_FRAMES};
