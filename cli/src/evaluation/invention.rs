//! Figures that an answer invents: in a statement that carries no mark, and in no document.

use millrace_agent::corpus::Corpus;
use millrace_agent::verification::find_invented_figures;
use millrace_protocol::result::{Finder, StatementVerdict, VerifiedStatement};
use millrace_protocol::safe_text::markdown_line;

use super::input::file::Objective;

/// Returns the statements of an answer without a mark that have a figure which no document has. `statements` are those that were
/// verified; an answer without any has no marks.
pub fn find_unmarked_figures(
    answer: &str,
    statements: &[VerifiedStatement],
    objective: &Objective,
    corpus: &Corpus,
) -> Vec<String> {
    let is_unmarked = |one: &&VerifiedStatement| {
        one.verdict == StatementVerdict::Supported && !matches!(one.found_by, Some(Finder::Quotation))
    };
    let text = match statements {
        [] => answer.to_owned(),
        statements => {
            let unmarked = statements.iter().filter(is_unmarked).map(|one| markdown_line(&one.text));
            unmarked.collect::<Vec<_>>().join("\n\n")
        }
    };
    if text.trim().is_empty() {
        return Vec::new();
    }
    let invented = find_invented_figures(&text, &objective.text, corpus);
    invented.into_iter().map(|one| one.text).collect()
}
