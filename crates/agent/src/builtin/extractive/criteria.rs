//! The criteria that can be checked without judgement, as sentences. Planner and critic share them: the critic recognises
//! the sentences that the planner writes.

pub(super) const NOT_EMPTY: &str = "The result is not empty.";
pub(super) const CITATIONS: &str =
    "Every citation names a listed source, and every listed source is cited and can be read.";
pub(super) const QUOTATIONS: &str =
    "Every quotation stands in its source word for word, at the lines it names.";
pub(super) const COVERAGE: &str = "Every term of the question is covered by a quotation, or the notes say that the documents are silent on it.";
