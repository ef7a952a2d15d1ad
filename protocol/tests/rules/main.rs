//! The rules of the plan and the words of the wire, tried as plain values: no sockets, no clock, no waiting. Each
//! module proves one thing; `cast`, `scene`, `show` and `golden` are what they share.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail like the tests they serve")]
#![allow(clippy::result_large_err, reason = "what comes back is looked at and dropped")]

mod cast;
mod clocks;
mod drafts;
mod effects;
mod golden;
mod graphs;
mod oracle;
mod properties;
mod random;
mod resumed;
mod scene;
mod show;
mod speed;
mod table;
mod transcripts;
mod wire;
mod world;
