//! Results that repeat others. A small model that sees an earlier result often gives it as its own.

use std::collections::BTreeSet;

use millrace_protocol::ids::TaskId;
use millrace_protocol::result::TaskResult;

use crate::corpus::fold_words;

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
