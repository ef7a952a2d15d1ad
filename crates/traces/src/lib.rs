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
