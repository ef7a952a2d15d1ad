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

#[cfg(test)]
mod tests {
    use millrace_agent::corpus::InputFile;

    use super::*;

    #[test]
    fn invented_figures_count_in_statements_without_a_mark() {
        let bytes = b"The mill was built in 1811.\n".to_vec();
        let corpus = Corpus::build_or_load(vec![InputFile { path: "mill.md".into(), bytes }], None).unwrap();
        let objective = Objective::new("How old is the mill?");
        let statement = |text: &str, verdict| VerifiedStatement {
            text: text.into(),
            start: 0,
            end: 0,
            verdict,
            lines: Vec::new(),
            found_by: Some(Finder::Model("m".into())),
            reason: String::new(),
            probability: None,
            removed: false,
        };
        let statements = [
            statement("It was built in 1811.", StatementVerdict::Supported),
            statement("It burnt down in 1845.", StatementVerdict::Supported),
            statement("It was rebuilt in 1862.", StatementVerdict::Unsupported),
        ];
        assert_eq!(find_unmarked_figures("", &statements, &objective, &corpus), ["It burnt down in 1845."]);
        let alone =
            find_unmarked_figures("It is from 1811. It burnt down in 1845.", &[], &objective, &corpus);
        assert_eq!(alone, ["It burnt down in 1845."]);
    }
}
