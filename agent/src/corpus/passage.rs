//! Cuts a document into passages: the unit that is searched. Borders are those of paragraphs wherever these are not
//! too long; a passage is a range of whole lines.

use super::Document;

/// A passage that has this many characters takes no further paragraph that would make it longer than [`MOST`].
const ENOUGH: usize = 800;
/// The most characters of a passage, unless one line has more.
const MOST: usize = 1_200;

/// A range of lines, both included, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Passage {
    pub first: usize,
    pub last: usize,
}

/// The passages of a document in order. Together they hold every line that is not blank, each once.
pub(super) fn passages(document: &Document) -> Vec<Passage> {
    let mut passages: Vec<Passage> = Vec::new();
    let mut open: Option<(Passage, usize)> = None;
    for (block, size) in blocks(document) {
        open = Some(match open {
            Some((passage, so_far)) if so_far < ENOUGH && so_far + size <= MOST => {
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

/// Paragraphs with their sizes; those longer than a passage in pieces.
fn blocks(document: &Document) -> Vec<(Passage, usize)> {
    let mut blocks: Vec<(Passage, usize)> = Vec::new();
    let mut continues = false;
    for number in 1..=document.line_count() {
        let line = document.line(number).unwrap_or_default();
        if line.trim().is_empty() {
            continues = false;
            continue;
        }
        let size = line.chars().count() + 1;
        match blocks.last_mut() {
            Some((block, so_far)) if continues && *so_far + size <= MOST => {
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
    use crate::corpus::{Corpus, File};

    use super::*;

    fn cut(text: &str) -> (Vec<Passage>, Corpus) {
        let file = File { path: "a.txt".into(), bytes: text.as_bytes().to_vec() };
        let corpus = Corpus::open(vec![file], None).unwrap();
        (passages(&corpus.documents()[0]), corpus)
    }

    #[test]
    fn short_paragraphs_share_a_passage_and_borders_are_theirs() {
        let paragraph = "x".repeat(49) + "\n" + &"y".repeat(49) + "\n\n";
        let (passages, corpus) = cut(&paragraph.repeat(40));
        let document = &corpus.documents()[0];
        assert!(passages.len() > 3);
        for passage in &passages {
            let size = document.lines(passage.first, passage.last).chars().count();
            assert!((700..=MOST).contains(&size) || passage.last == document.line_count(), "{size}");
            assert!(document.line(passage.first).unwrap().starts_with('x'), "begins with a paragraph");
            assert!(document.line(passage.last).unwrap().starts_with('y'), "ends with one");
        }
    }

    #[test]
    fn every_line_that_is_not_blank_is_in_exactly_one_passage() {
        let text = format!("\n\na\n{}\n\n\nb\n{}\n\nc\n", "long ".repeat(700), "line\n".repeat(2_000));
        let (passages, corpus) = cut(&text);
        let document = &corpus.documents()[0];
        for number in 1..=document.line_count() {
            let holding = passages.iter().filter(|p| (p.first..=p.last).contains(&number)).count();
            let blank = document.line(number).unwrap().is_empty();
            assert!(holding == 1 || (blank && holding <= 1), "line {number}");
        }
    }
}
