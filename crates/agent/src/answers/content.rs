//! The words of answers: how many of a text are in the lines of a document, marks that repeat after citations were renumbered, and
//! results that repeat others, since a small model that sees an earlier result often gives it as its own.

use std::collections::BTreeSet;

use millrace_protocol::ids::TaskId;
use millrace_protocol::result::{Quotation, TaskResult};

use crate::corpus::{Document, fold_words};

/// `true` if a text says nothing: it is empty, or the dots of a form that was copied.
pub(super) fn is_blank(text: &str) -> bool {
    !text.contains(char::is_alphanumeric)
}

/// Returns the line of a document that has the largest share of a text's words, and that share.
pub(super) fn nearest_line(document: &Document, text: &str) -> Option<(u32, f64)> {
    let lines = (1..=document.line_count()).filter_map(|number| {
        let line = document.nth_line(number).filter(|line| !line.trim().is_empty())?;
        Some((u32::try_from(number).ok()?, share_of_common_words(text, line)))
    });
    // The first of equal lines.
    lines.fold(None, |best: Option<(u32, f64)>, line| match best {
        Some(best) if best.1 >= line.1 => Some(best),
        Some(_) | None => Some(line),
    })
}

/// Returns the share of the words of `text` that are in `lines`.
pub(super) fn share_of_common_words(text: &str, lines: &str) -> f64 {
    let words = |text: &str| -> Vec<String> {
        // Numbers are ignored: small models often copy line numbers.
        fold_words(text).filter(|word| word.contains(char::is_alphabetic)).collect()
    };
    let in_lines: BTreeSet<String> = words(lines).into_iter().collect();
    let in_text = words(text);
    let common = in_text.iter().filter(|word| in_lines.contains(*word)).count();
    common as f64 / in_text.len().max(1) as f64
}

/// Removes a citation that directly follows the same citation: `[S1][S1]` becomes `[S1]`.
pub(super) fn remove_repeated_citations(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    let (mut rest, mut last) = (text, None);
    while let Some(first) = rest.chars().next() {
        let mark = rest.find(']').filter(|_| first == '[').map(|at| &rest[..=at]);
        let begin = first.len_utf8();
        let piece = mark.unwrap_or_else(|| {
            let end = rest[begin..].find('[').map_or(rest.len(), |at| begin + at);
            &rest[..end]
        });
        if mark.is_none() || mark != last {
            cleaned.push_str(piece);
        }
        (last, rest) = (mark, &rest[piece.len()..]);
    }
    cleaned
}

pub(super) fn remove_duplicate_quotations(quotations: Vec<Quotation>) -> Vec<Quotation> {
    let mut unique: Vec<Quotation> = Vec::with_capacity(quotations.len());
    for quotation in quotations {
        if !unique.contains(&quotation) {
            unique.push(quotation);
        }
    }
    unique
}

/// The share of a result's sentences that make it a repetition.
const REPEATED_SHARE: f64 = 0.8;
/// A sentence with fewer words says too little to count.
const MIN_WORDS: usize = 4;

/// Returns the task whose result a text repeats, if there is one: nearly all of its sentences are in that result.
pub(crate) fn find_repeated_result<'a>(
    output: &str,
    inputs: &'a [(TaskId, TaskResult)],
) -> Option<&'a TaskId> {
    let own = split_into_plain_sentences(output);
    if own.is_empty() {
        return None;
    }
    let repeats = |(_, input): &&(TaskId, TaskResult)| {
        let theirs: BTreeSet<String> = split_into_plain_sentences(&input.output).into_iter().collect();
        let same = own.iter().filter(|sentence| theirs.contains(*sentence)).count();
        same as f64 >= own.len() as f64 * REPEATED_SHARE
    };
    inputs.iter().find(repeats).map(|(task, _)| task)
}

/// Returns the sentences of a text as words in lowercase, without marks and punctuation.
fn split_into_plain_sentences(text: &str) -> Vec<String> {
    let text = remove_marks(text);
    let sentences = text.split_inclusive(['.', '!', '?', '\n']);
    // A point within a number or a name does not end a sentence: what is too short joins the next one.
    let mut plain: Vec<String> = Vec::new();
    let mut open: Vec<String> = Vec::new();
    for sentence in sentences {
        open.extend(fold_words(sentence));
        if open.len() >= MIN_WORDS {
            plain.push(std::mem::take(&mut open).join(" "));
        }
    }
    plain
}

/// Removes marks such as `[1]` and `[P2:8]`.
fn remove_marks(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        plain.push_str(before);
        rest = match after.split_once(']') {
            Some((mark, after)) if !mark.contains(char::is_whitespace) => after,
            Some(_) | None => after,
        };
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_of_a_form_are_no_answer() {
        assert!(["", " \n", "…", "# …", "..."].into_iter().all(is_blank));
        assert!(!["28", "Yes.", "はい"].into_iter().any(is_blank));
    }

    #[test]
    fn a_repeated_citation_is_removed() {
        for (text, cleaned) in [
            ("a [S1][S1] b [S1]", "a [S1] b [S1]"),
            ("[1][2][1][1]ä", "[1][2][1]ä"),
            ("ä[", "ä["),
            ("x [a] [a]", "x [a] [a]"),
            ("é[1]", "é[1]"),
            ("", ""),
        ] {
            assert_eq!(remove_repeated_citations(text), cleaned);
        }
    }

    fn input(output: &str) -> Vec<(TaskId, TaskResult)> {
        let result = TaskResult { output: output.into(), ..TaskResult::default() };
        vec![(TaskId::new("research-1").unwrap(), result)]
    }

    #[test]
    fn a_result_that_says_the_same_is_a_repetition() {
        let inputs = input("The Tarn 20 weighs 1.4 kg [S1].\n\nIt is made of steel [S2].");
        for (output, is_repeated) in [
            ("The Tarn 20 weighs 1.4 kg [P1:3].", true),
            ("**The Tarn 20 weighs 1.4 kg.** It is made of steel.", true),
            ("The Tarn 20 weighs 1.4 kg. Its battery lasts 9 hours.", false),
            ("The battery of the Tarn 20 lasts 9 hours.", false),
            ("", false),
        ] {
            assert_eq!(find_repeated_result(output, &inputs).is_some(), is_repeated, "{output}");
        }
    }
}
