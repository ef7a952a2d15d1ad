//! Numbers that an answer invents: in a statement that carries no mark, and in no document. They are compared digit by digit, not by
//! the code that verifies answers, so that this measure does not share its mistakes. Pure.

use std::collections::HashSet;
use std::sync::LazyLock;

use millrace_agent::corpus::Corpus;
use millrace_protocol::result::{StatementVerdict, VerifiedStatement};
use regex::Regex;

use super::input::file::Objective;
use super::wording::Wording;

/// Returns the numbers in digits, in the statements of an answer without a mark, that neither a document nor the question has.
/// `statements` are those that were verified; an answer without any has no marks.
pub fn find_unmarked_numbers(
    answer: &str,
    statements: &[VerifiedStatement],
    objective: &Objective,
    corpus: &Corpus,
) -> Vec<String> {
    let texts: Vec<&str> = match statements {
        [] => vec![answer],
        statements => {
            let unmarked = statements.iter().filter(|one| one.verdict == StatementVerdict::Supported);
            unmarked.map(|one| one.text.as_str()).collect()
        }
    };
    let plain: Vec<Wording> = texts.into_iter().map(Wording::read).collect();
    let stated: Vec<Number> = plain.iter().flat_map(|text| read_numbers(text.plain_text())).collect();
    if stated.is_empty() {
        return Vec::new();
    }
    let known = corpus.documents().iter().map(|document| document.text()).chain([objective.text.as_str()]);
    let known: HashSet<String> = known
        .flat_map(read_numbers)
        .flat_map(|number| number.runs.into_iter().chain([number.digits]))
        .collect();
    let is_known =
        |number: &Number| known.contains(&number.digits) || number.runs.iter().all(|run| known.contains(run));
    stated.into_iter().filter(|number| !is_known(number)).map(|number| number.text).collect()
}

/// A number as it is written: `12,500.5`.
struct Number {
    text: String,
    /// Its digits: `125005`.
    digits: String,
    /// The same without what is between them: `12`, `500`, `5`.
    runs: Vec<String>,
}

fn read_numbers(text: &str) -> impl Iterator<Item = Number> {
    static NUMBER: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\p{Nd}+(?:[.,:/'’\u{a0}\u{202f}]\p{Nd}+)*").expect("a valid pattern"));
    NUMBER.find_iter(text).map(|found| {
        let runs: Vec<String> = found.as_str().split(|c: char| !c.is_numeric()).map(str::to_owned).collect();
        Number { text: found.as_str().to_owned(), digits: runs.concat(), runs }
    })
}

#[cfg(test)]
mod tests {
    use millrace_agent::corpus::InputFile;
    use millrace_protocol::result::Finder;

    use super::*;

    #[test]
    fn numbers_that_no_document_has_count_in_statements_without_a_mark() {
        let bytes = b"The mill was built in 1811 for 12,500 crowns.\n".to_vec();
        let corpus = Corpus::build_or_load(vec![InputFile { path: "mill.md".into(), bytes }], None).unwrap();
        let objective = Objective::new("What happened to the 3 mills?");
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
            statement("It was built in 1811 [S1].", StatementVerdict::Supported),
            statement("All 3 burnt down in 1845, for 12.500 crowns.", StatementVerdict::Supported),
            statement("It was rebuilt in 1862.", StatementVerdict::Unsupported),
        ];
        assert_eq!(find_unmarked_numbers("", &statements, &objective, &corpus), ["1845"]);
        let alone =
            find_unmarked_numbers("From 1811, for 12500 or 13,500. Gone in 1845.", &[], &objective, &corpus);
        assert_eq!(alone, ["13,500", "1845"]);
    }
}
