//! The verifier: a verdict on each statement of a text, with its lines and its reason. Code decides what code can know; a model decides
//! the rest.
//!
//! ```text
//! text ─▶ statements ─┬─ a whole quotation ────────────▶ supported, or unsupported: the words are in no line
//!         (statement) ├─ a figure that is in no line ──▶ unsupported
//!                     └─ cited lines, those with its figures, those found by search
//!                           └─▶ a model that was probed (question, probe) ─▶ supported … contradicted;
//!                               a small one: those cited, then all; and whether they answer the question
//!                               or none ───────────────────────────────────▶ unverified
//! ```
//!
//! It does no I/O: the caller sends the requests to a model, keeps the replies and searches the sources.
//!
//! # Invariants
//!
//! - I300: Code supports a statement only if it is a quotation, and refutes one only by a figure or a quotation that no source
//!   has. (`crates/verification/tests/verifier.rs::code_supports_quotations_only`,
//!   `crates/verification/tests/verifier.rs::figure_that_stands_nowhere_refutes_and_one_that_stands_somewhere_proves_nothing`)
//! - I301: A model that does no better than chance at claims with known answers verifies nothing.
//!   (`crates/verification/tests/verifier.rs::model_without_skill_is_found_out`)

mod counts;
mod figure;
mod language;
mod lines;
mod marks;
mod phrases;
mod probe;
mod question;
mod quotation;
mod sentence;
mod statement;
mod verifier;

pub use counts::VerificationCounts;
pub use lines::{CitedLines, Sources};
pub use marks::{mark_statements, place_statements, remove_refuted_statements};
pub use phrases::Phrases;
pub use probe::{Calibration, probe_questions};
pub use question::{Form, Question, ask_directly, read_direct_reply};
pub use quotation::normalize;
pub use sentence::{QUESTION_MARKS, is_single_question, split_sentences};
pub use statement::{Context, MarkedText, Statement, split_statements};
pub use verifier::Verification;
