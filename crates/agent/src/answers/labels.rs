//! Passages with labels, by which an answer cites lines: `[P2:8]` is line 8 of the document of the second passage,
//! `[tarn.md:8]` line 8 of a document. It owns how passages are shown and how marks are read; the words of a quotation come
//! from the document.
//!
//! ```text
//! P2: tarn-20.md
//! | [P2:7] The case is made of steel.
//! | [P2:8] It weighs 1.4 kg.
//! ```

use std::fmt::Write;

use super::{Findings, Passage, content};
use crate::citations;
use crate::corpus::{Corpus, Document};
use crate::material::prefix_lines_with_bar;

/// The most lines that one mark may name.
const MAX_LINES: u32 = 20;

/// A range of lines to be shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShownPassage<'c> {
    pub document: &'c Document,
    pub first_line: usize,
    pub last_line: usize,
}

/// The passages of a prompt, P1 first: the path of the document and the lines that are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PassageLabels(Vec<(String, Vec<usize>)>);

/// A mark, as read: the lines of a document, or the mistake in it.
type ReadMark = Result<Passage, String>;

/// Formats passages with a label at the beginning of each line that has text.
pub(crate) fn format_labelled_passages(passages: &[ShownPassage<'_>], limit: usize) -> String {
    format_passages_from(1, passages, limit)
}

fn format_passages_from(first: usize, passages: &[ShownPassage<'_>], limit: usize) -> String {
    let mut text = String::new();
    for (number, passage) in (first..).zip(passages) {
        let path = citations::collapse_whitespace(&passage.document.path);
        let lines = (passage.first_line..=passage.last_line).filter_map(|line| {
            let words = passage.document.nth_line(line)?.trim_end();
            (!words.trim().is_empty()).then(|| format!("[P{number}:{line}] {words}"))
        });
        let lines: Vec<String> = lines.collect();
        if !lines.is_empty() {
            writeln!(
                text,
                "P{number}: {path}\n{}",
                prefix_lines_with_bar(&lines.join("\n"), limit).trim_end()
            )
            .expect("writing to a String can't fail");
        }
    }
    text
}

impl PassageLabels {
    /// Reads the labels of a prompt. Only lines without a bar name documents, and only the label at the beginning of a line
    /// counts, so that no document can add one.
    pub fn read_from_prompt(prompt: &str) -> Self {
        let mut labels = Self::default();
        labels.read_more(prompt);
        labels
    }

    /// Adds passages after those that are known, and returns them as they are shown.
    pub fn append_passages(&mut self, passages: &[ShownPassage<'_>], limit: usize) -> String {
        let text = format_passages_from(self.0.len() + 1, passages, limit);
        self.read_more(&text);
        text
    }

    fn read_more(&mut self, prompt: &str) {
        let labels = self;
        for line in prompt.lines() {
            if let Some(shown) = line.strip_prefix("| [P")
                && let Some((passage, number)) =
                    shown.split_once(']').and_then(|(label, _)| label.split_once(':'))
                && passage.parse() == Ok(labels.0.len())
                && let (Some((_, lines)), Ok(number)) = (labels.0.last_mut(), number.parse())
            {
                lines.push(number);
            }
            let label = line.strip_prefix('P').and_then(|rest| rest.split_once(": "));
            if let Some((number, path)) = label
                && number.parse() == Ok(labels.0.len() + 1)
            {
                labels.0.push((path.to_owned(), Vec::new()));
            }
        }
    }

    /// `true` if the prompt had no passages.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the lines that the prompt shows, with their documents.
    pub fn shown_lines<'c>(&self, corpus: &'c Corpus) -> Vec<(&'c Document, usize)> {
        let passages =
            self.0.iter().filter_map(|(path, lines)| Some((find_labelled_document(corpus, path)?, lines)));
        passages.flat_map(|(document, lines)| lines.iter().map(move |line| (document, *line))).collect()
    }

    /// Returns the lines that an answer names if it is nothing but labels, such as `P1:3, P1:4`: each with its text and label.
    pub fn expand_labels(&self, answer: &str, corpus: Option<&Corpus>) -> Option<String> {
        let is_between = |c: char| c.is_whitespace() || [',', ';', '.', '[', ']'].contains(&c);
        let labels: Vec<&str> = answer.split(is_between).filter(|label| !label.is_empty()).collect();
        let line = |label: &&str| {
            let (passage, number) = label.strip_prefix('P')?.split_once(':')?;
            let (path, shown) = self.0.get(passage.parse::<usize>().ok()?.checked_sub(1)?)?;
            let number = number.parse().ok().filter(|number| shown.contains(number))?;
            let text = find_labelled_document(corpus?, path)?.nth_line(number)?.trim();
            Some(format!("{text} [{label}]"))
        };
        let lines: Option<Vec<String>> = labels.iter().map(line).collect();
        lines.filter(|lines| !lines.is_empty()).map(|lines| lines.join("\n"))
    }

    /// Replaces the marks that name lines, in the texts and in the list of citations, by quotations with numbers.
    pub fn number_citations(&self, findings: Findings, corpus: Option<&Corpus>) -> Result<Findings, String> {
        let mut quotations = findings.quotations.clone();
        let mut mistakes = Vec::new();
        let mut number = |mark: &str, statement: &str| -> Option<usize> {
            match self.read_mark(mark, statement, corpus)? {
                Ok(passage) => {
                    let known = quotations.iter().position(|quotation| *quotation == passage);
                    Some(
                        known.unwrap_or_else(|| {
                            quotations.push(passage);
                            quotations.len() - 1
                        }) + 1,
                    )
                }
                Err(mistake) => {
                    mistakes.push(mistake);
                    None
                }
            }
        };
        let output = replace_marks(&findings.output, &mut number);
        let summary = replace_marks(&findings.summary, &mut number);
        for citation in &findings.citations {
            number(citation.trim().trim_matches(['[', ']']), &output);
        }
        if !mistakes.is_empty() {
            mistakes.sort_unstable();
            mistakes.dedup();
            return Err(mistakes.join(" "));
        }
        Ok(Findings { quotations, output, summary, citations: Vec::new(), ..findings })
    }

    /// Removes the marks that name no line: the fallback after the last correction.
    pub fn remove_unknown_marks(&self, findings: &Findings, corpus: Option<&Corpus>) -> Findings {
        let is_known = |mark: &str| self.read_mark(mark, "", corpus).is_none_or(|read| read.is_ok());
        let clean = |text: &str| {
            let marks = find_marks(text);
            marks.into_iter().rev().fold(text.to_owned(), |mut text, (range, inner)| {
                if !inner.split([',', ';']).all(|mark| is_known(mark.trim())) {
                    text.replace_range(range, "");
                }
                text
            })
        };
        let citations = findings.citations.iter();
        let citations = citations.filter(|mark| is_known(mark.trim().trim_matches(['[', ']'])));
        Findings {
            output: clean(&findings.output),
            summary: clean(&findings.summary),
            citations: citations.cloned().collect(),
            ..findings.clone()
        }
    }

    /// Reads a mark; `None` if the text in the brackets is none.
    fn read_mark(&self, mark: &str, statement: &str, corpus: Option<&Corpus>) -> Option<ReadMark> {
        let corpus = corpus?;
        let (source, lines) =
            mark.rsplit_once(':').map_or((mark, None), |(source, lines)| (source, Some(lines)));
        let lines = match lines {
            Some(lines) => Some(citations::read_line_range(lines)?),
            None => None,
        };
        if let Some(number) = source.strip_prefix('P').and_then(|number| number.parse::<usize>().ok()) {
            let Some((path, _)) = number.checked_sub(1).and_then(|at| self.0.get(at)) else {
                return Some(Err(self.unknown_passage_error(number)));
            };
            let document = find_labelled_document(corpus, path)?;
            return Some(quote_lines(document, lines, statement, mark));
        }
        let lines = lines?;
        let document = corpus.find_document(source)?;
        Some(quote_lines(document, Some(lines), statement, mark))
    }

    fn unknown_passage_error(&self, number: usize) -> String {
        match self.0.len() {
            0 => format!("There is no passage P{number}: cite lines of documents, such as [PATH:8]."),
            1 => format!("There is no passage P{number}; the only one is P1."),
            count => format!("There is no passage P{number}; the passages are P1 to P{count}."),
        }
    }
}

/// Finds a document by its path as labels show it.
fn find_labelled_document<'c>(corpus: &'c Corpus, path: &str) -> Option<&'c Document> {
    corpus.documents().iter().find(|document| citations::collapse_whitespace(&document.path) == path)
}

/// Returns the passage that a mark names. Without lines it is the line that has most words of the statement; a line without
/// text stands for the next one that has some.
fn quote_lines(document: &Document, lines: Option<(u32, u32)>, statement: &str, mark: &str) -> ReadMark {
    let count = u32::try_from(document.line_count()).unwrap_or(u32::MAX);
    let has_text = |line: &u32| document.nth_line(*line as usize).is_some_and(|text| !text.trim().is_empty());
    let (first, last) = match lines {
        Some(lines) => lines,
        None => {
            let line = content::nearest_line(document, statement).map_or(1, |(line, _)| line);
            (line, line)
        }
    };
    let Some(first) = (first.max(1)..=count).find(has_text).filter(|_| first <= count) else {
        return Err(format!("[{mark}] names no line: {} has lines 1 to {count}.", document.path));
    };
    let last = last.max(first).min(count);
    if last - first >= MAX_LINES {
        return Err(format!("[{mark}] names {} lines: cite only the line that says it.", last - first + 1));
    }
    Ok(Passage { document: document.path.clone(), first_line: first, last_line: last, text: None })
}

/// The brackets of a text with what is in them.
fn find_marks(text: &str) -> Vec<(std::ops::Range<usize>, &str)> {
    let marks = text.match_indices('[').filter_map(|(at, _)| {
        let inner = &text[at + 1..];
        let inner = &inner[..inner.find(']')?];
        (!inner.contains(['[', '\n'])).then_some((at..at + inner.len() + 2, inner))
    });
    marks.collect()
}

/// Replaces marks by numbers; brackets that hold something else stay. `number` gets each mark and the statement before it.
fn replace_marks(text: &str, number: &mut impl FnMut(&str, &str) -> Option<usize>) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut done = 0;
    for (range, inner) in find_marks(text) {
        let statement = text[..range.start].rsplit(['\n', ']']).next().unwrap_or_default();
        let numbers: Option<Vec<String>> = inner
            .split([',', ';'])
            .map(|mark| number(mark.trim(), statement).map(|number| format!("[{number}]")))
            .collect();
        if let Some(numbers) = numbers {
            replaced.push_str(&text[done..range.start]);
            replaced.push_str(&numbers.concat());
            done = range.end;
        }
    }
    replaced.push_str(&text[done..]);
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::InputFile;

    fn build_corpus() -> Corpus {
        let file = |path: &str, text: &str| InputFile { path: path.into(), bytes: text.as_bytes().to_vec() };
        let files = vec![
            file("skua.md", "# Skua probe\n\nIt needs firmware 4.2."),
            file("tarn 20.md", "# Tarn 20\n\nThe case is steel.\nIt weighs 1.4 kg.\nP3: no label\n"),
        ];
        Corpus::build_or_load(files, None).unwrap()
    }

    fn labelled(corpus: &Corpus) -> (String, PassageLabels) {
        let shown = |at: usize| {
            let document = &corpus.documents()[at];
            ShownPassage { document, first_line: 1, last_line: document.line_count() }
        };
        let text = format_labelled_passages(&[shown(1), shown(0)], 1_000);
        let labels = PassageLabels::read_from_prompt(&format!("Question: P1: x?\n\n{text}"));
        (text, labels)
    }

    fn findings(output: &str, citations: &[&str]) -> Findings {
        let citations = citations.iter().map(|mark| (*mark).to_owned()).collect();
        Findings { output: output.into(), citations, ..Findings::default() }
    }

    #[test]
    fn passages_are_labelled_and_their_labels_read_back() {
        let corpus = build_corpus();
        let (text, labels) = labelled(&corpus);
        assert!(
            text.starts_with("P1: tarn 20.md\n| [P1:1] # Tarn 20\n| [P1:3] The case is steel.\n"),
            "{text}"
        );
        let shown = [("tarn 20.md".to_owned(), vec![1, 3, 4, 5]), ("skua.md".to_owned(), vec![1, 3])];
        assert_eq!(labels, PassageLabels(shown.to_vec()));
    }

    #[test]
    fn answer_of_labels_alone_means_their_lines() {
        let corpus = build_corpus();
        let (_, labels) = labelled(&corpus);
        let expand = |answer: &str| labels.expand_labels(answer, Some(&corpus));
        assert_eq!(expand("P1:4").as_deref(), Some("It weighs 1.4 kg. [P1:4]"));
        let both = Some("The case is steel. [P1:3]\nIt needs firmware 4.2. [P2:3]");
        assert_eq!(expand("[P1:3], [P2:3].").as_deref(), both);
        assert!(["", "P1:2", "P3:1", "P1:4 weighs", "P1"].into_iter().all(|answer| expand(answer).is_none()));
    }

    #[test]
    fn marks_become_numbered_quotations() {
        let corpus = build_corpus();
        let (_, labels) = labelled(&corpus);
        let read = |output: &str, citations: &[&str]| {
            labels.number_citations(findings(output, citations), Some(&corpus))
        };
        let answer = read(
            "It weighs 1.4 kg [P1:4], see [skua.md:3] and [P1:4, P2:2-3] [x] [a](b).",
            &["P1:3", "[P1:4]"],
        );
        let answer = answer.unwrap();
        assert_eq!(answer.output, "It weighs 1.4 kg [1], see [2] and [1][2] [x] [a](b).");
        let places: Vec<(&str, u32, u32)> =
            answer.quotations.iter().map(|q| (q.document.as_str(), q.first_line, q.last_line)).collect();
        assert_eq!(places, [("tarn 20.md", 4, 4), ("skua.md", 3, 3), ("tarn 20.md", 3, 3)]);
        assert!(answer.citations.is_empty());
        // Without a line, it is the line that says most of the statement.
        let answer = read("The weight: it weighs 1.4 kg [P1].", &[]).unwrap();
        assert_eq!(answer.quotations[0].first_line, 4);
        for (output, mistake) in [
            ("It is so [P3:1].", "There is no passage P3; the passages are P1 to P2."),
            ("It is so [P1:40].", "[P1:40] names no line: tarn 20.md has lines 1 to 5."),
        ] {
            assert_eq!(read(output, &[]).unwrap_err(), mistake);
            let cleaned = labels.remove_unknown_marks(&findings(output, &["P9:1", "P1:3"]), Some(&corpus));
            assert_eq!((cleaned.output.as_str(), cleaned.citations.len()), ("It is so .", 1));
        }
    }
}
