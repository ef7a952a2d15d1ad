//! Traces of runs: spans that are derived from a run's log. The ids of traces and spans are hashes of the run and of the
//! position in its log, so that every program derives the same spans, at any time, from a live run or an archived one. Pure,
//! except that [`read`] reads the log.
//!
//! ```text
//! invoke_workflow                     the anchor: begins the trace, without a duration
//! ├─ plan                             an attempt at a turn of the planner
//! │  └─ chat MODEL
//! ├─ invoke_agent CAPABILITY          a worker on an attempt, from its claim to its wait or outcome: a leg
//! │  ├─ chat MODEL
//! │  └─ execute_tool TOOL
//! ├─ question                         a wait of an attempt for a person, an event, a time or other tasks
//! ├─ invoke_agent critic              a review
//! └─ run ended                        the totals
//! ```
//!
//! No span stays open while a run waits. What belongs together across waits, attempts and workers has *links*. If nothing
//! happens in a run for longer than [`TraceOptions::split`], the run continues in its next trace.
//!
//! | module | contents |
//! |---|---|
//! | `span` | spans, links, ids |
//! | `names` | the names of spans and attributes, in the versions of the GenAI conventions |
//! | `tracer` | derives the spans, message by message |
//! | `tree` | spans as a tree for a terminal |
//! | `otlp` | spans in the OpenTelemetry protocol |
//! | `read` | reads the log |
//! | `settings` | settings from the environment |
//!
//! # Invariants
//!
//! - I190: The spans of a run follow from its log alone: any prefix of the log has the same spans as far as they are complete,
//!   with the same ids, and parents and links lead to spans.
//!   (`crates/traces/tests/golden.rs::any_prefix_of_a_log_has_the_same_spans`,
//!   `crates/traces/tests/golden.rs::parents_and_links_lead_to_spans_and_ids_are_unique`)
//! - I192: Spans have no texts of prompts, replies, tools, questions and errors unless the user wants them.
//!   (`crates/traces/tests/golden.rs::spans_have_no_content_unless_it_is_wanted`)

pub mod names;
pub mod otlp;
pub mod read;
mod settings;
mod span;
mod tracer;
mod tree;

pub use names::Convention;
pub use settings::{CONTENT_VARIABLE, TraceSettings};
pub use span::{
    AttributeValue, LinkRelation, Span, SpanContext, SpanId, SpanKind, SpanLink, SpanStatus, TraceId,
};
pub use tracer::{DEFAULT_SPLIT, RunTracer, TraceOptions};
pub use tree::render_traces;
