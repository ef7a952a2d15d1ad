//! The criteria that can be checked without judgement, as sentences. Planner and critic share them: the critic recognises
//! the sentences that the planner writes.

pub(super) use crate::critic::standing::{ANSWERS, CITATIONS, NOT_EMPTY, QUOTATIONS};

pub(super) const COVERAGE: &str = "Every term of the question is covered by a quotation, or the notes say that the documents are silent on it.";
