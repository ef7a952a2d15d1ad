//! Splits a document into passages, the unit of search. Borders are those of paragraphs unless these are too long; a
//! passage is a range of whole lines.

use serde::{Deserialize, Serialize};

use super::Document;

/// A passage of this many characters takes no further paragraphs.
const MIN_PASSAGE_SIZE: usize = 800;
/// The maximum number of characters of a passage, unless a single line has more.
const MAX_PASSAGE_SIZE: usize = 1_200;

/// An inclusive range of lines, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Passage {
    pub first: usize,
    pub last: usize,
}

/// The passages of a document in order. Together they contain each non-blank line exactly once.
pub(super) fn split_into_passages(document: &Document) -> Vec<Passage> {
    let mut passages: Vec<Passage> = Vec::new();
    let mut open: Option<(Passage, usize)> = None;
    for (block, size) in split_into_paragraphs(document) {
        open = Some(match open {
            Some((passage, so_far)) if so_far < MIN_PASSAGE_SIZE && so_far + size <= MAX_PASSAGE_SIZE => {
                (Passage { last: block.last, ..passage }, so_far + size)
            }
            Some((passage, _)) => {
                passages.push(passage);
                (block, size)
            }
            None => (block, size),
        });
    }
    passages.extend(open.map(|(passage, _)| passage));
    passages
}

/// Paragraphs with their sizes; those longer than a passage are split.
fn split_into_paragraphs(document: &Document) -> Vec<(Passage, usize)> {
    let mut blocks: Vec<(Passage, usize)> = Vec::new();
    let mut continues = false;
    for number in 1..=document.line_count() {
        let line = document.nth_line(number).unwrap_or_default();
        if line.trim().is_empty() {
            continues = false;
            continue;
        }
        let size = line.chars().count() + 1;
        match blocks.last_mut() {
            Some((block, so_far)) if continues && *so_far + size <= MAX_PASSAGE_SIZE => {
                block.last = number;
                *so_far += size;
            }
            Some(_) | None => blocks.push((Passage { first: number, last: number }, size)),
        }
        continues = true;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use crate::corpus::{Corpus, InputFile};

    use super::*;

    fn split_file_into_passages(text: &str) -> (Vec<Passage>, Corpus) {
        let file = InputFile { path: "a.txt".into(), bytes: text.as_bytes().to_vec() };
        let corpus = Corpus::build_or_load(vec![file], None).unwrap();
        (split_into_passages(&corpus.documents()[0]), corpus)
    }

    #[test]
    fn short_paragraphs_share_a_passage_with_their_borders() {
        let paragraph = "x".repeat(49) + "\n" + &"y".repeat(49) + "\n\n";
        let (passages, corpus) = split_file_into_passages(&paragraph.repeat(40));
        let document = &corpus.documents()[0];
        assert!(passages.len() > 3);
        for passage in &passages {
            let size = document.line_range(passage.first, passage.last).chars().count();
            assert!(
                (700..=MAX_PASSAGE_SIZE).contains(&size) || passage.last == document.line_count(),
                "{size}"
            );
            assert!(document.nth_line(passage.first).unwrap().starts_with('x'), "begins with a paragraph");
            assert!(document.nth_line(passage.last).unwrap().starts_with('y'), "ends with one");
        }
    }

    #[test]
    fn each_non_blank_line_is_in_exactly_one_passage() {
        let text = format!("\n\na\n{}\n\n\nb\n{}\n\nc\n", "long ".repeat(700), "line\n".repeat(2_000));
        let (passages, corpus) = split_file_into_passages(&text);
        let document = &corpus.documents()[0];
        for number in 1..=document.line_count() {
            let holding = passages.iter().filter(|p| (p.first..=p.last).contains(&number)).count();
            let blank = document.nth_line(number).unwrap().is_empty();
            assert!(holding == 1 || (blank && holding <= 1), "line {number}");
        }
    }
}
