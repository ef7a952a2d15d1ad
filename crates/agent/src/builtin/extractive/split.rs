//! Splits an objective into questions that can be answered separately: sentences that end with a question mark, and the items of
//! lists. Nothing is dropped: other sentences belong to the question after them, a question with few words of its own
//! belongs to the one before it.

use std::mem::take;

use millrace_verification::QUESTION_MARKS;

use super::sentences;
use crate::corpus::{Language, tokenize};

/// The maximum number of questions of one objective; more are combined in groups.
pub(super) const MAX_QUESTIONS: usize = 12;
/// A question with fewer words, without stop words, may refer to the one before it.
const OWN_WORDS: usize = 3;

/// The questions of an objective, in order; at least one.
pub(super) fn split_into_questions(objective: &str) -> Vec<String> {
    let language = Language::detect(objective);
    let mut questions: Vec<String> = Vec::new();
    let mut waiting: Vec<String> = Vec::new();
    for (text, asks) in split_into_parts(objective) {
        let depends = tokenize(&text, language).len() < OWN_WORDS;
        if questions.contains(&text) {
            continue;
        }
        waiting.push(text);
        match questions.last_mut() {
            Some(last) if asks && depends => {
                last.extend(take(&mut waiting).into_iter().flat_map(|text| [" ".to_owned(), text]));
            }
            Some(_) | None if asks => questions.push(take(&mut waiting).join(" ")),
            Some(_) | None => {}
        }
    }
    match questions.last_mut() {
        Some(last) => last.extend(waiting.into_iter().flat_map(|text| [" ".to_owned(), text])),
        None => questions.push(objective.trim().to_owned()),
    }
    let group = questions.len().div_ceil(MAX_QUESTIONS);
    questions.chunks(group).map(|group| group.join(" ")).collect()
}

/// The sentences of an objective without the marks of list items, and `true` for one that asks.
fn split_into_parts(objective: &str) -> Vec<(String, bool)> {
    let lines: Vec<(usize, &str)> = objective.lines().enumerate().map(|(at, line)| (at + 1, line)).collect();
    sentences::split_into_sentences(&lines)
        .into_iter()
        .filter(|sentence| sentence.text.contains(char::is_alphanumeric))
        .map(|sentence| {
            let text = sentences::strip_list_marker(&sentence.text);
            let asks = text.len() < sentence.text.len() || text.ends_with(QUESTION_MARKS);
            (text.to_owned(), asks)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_is_split_into_its_questions() {
        let table: &[(&str, &[&str])] = &[
            (
                "How do these licences treat patents, and when does a patent grant end?",
                &["How do these licences treat patents, and when does a patent grant end?"],
            ),
            (
                "How do the licences treat patents? When does a patent grant end?",
                &["How do the licences treat patents?", "When does a patent grant end?"],
            ),
            ("What is a lane and why?", &["What is a lane and why?"]),
            (
                "We sell a closed product. Which open licences let us? Is it safe?",
                &["We sell a closed product. Which open licences let us? Is it safe?"],
            ),
            (
                "Answer these:\n1. What was the lease of the upper mill?\n2. Who holds it?\n\n- how long the mill may run in a year",
                &[
                    "Answer these: What was the lease of the upper mill? Who holds it?",
                    "how long the mill may run in a year",
                ],
            ),
            ("合同什么时候结束？谁可以续签租约？", &["合同什么时候结束？", "谁可以续签租约？"]),
            ("patent clauses in open-source licences", &["patent clauses in open-source licences"]),
            ("Is the clause safe? It ends early.", &["Is the clause safe? It ends early."]),
            ("???", &["???"]),
        ];
        for (objective, expected) in table {
            assert_eq!(split_into_questions(objective), *expected, "{objective}");
        }
    }

    #[test]
    fn no_question_is_dropped_however_many_there_are() {
        let objective: String = (0..100).map(|n| format!("Is subject{n} safe for old mills? ")).collect();
        let questions = split_into_questions(&objective);
        assert!(questions.len() <= MAX_QUESTIONS);
        let all = questions.join(" ");
        assert!((0..100).all(|n| all.contains(&format!("Is subject{n} safe for old mills?"))));
    }
}
