//! Splits numbered lines into sentences. It owns the definition of a heading, a paragraph, a list item, a table row and a
//! sentence in plain text and Markdown; a sentence keeps its line numbers and its exact words, with white space collapsed.

use std::ops::Range;

use millrace_verification::split_sentences;

use crate::citations::collapse_whitespace;
use crate::corpus::has_complex_breaks;

/// A sentence of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sentence {
    /// Its text, with white space collapsed.
    pub text: String,
    pub first_line: usize,
    pub last_line: usize,
    /// The number of its paragraph.
    pub paragraph: usize,
    /// For a list item, the index of the sentence that introduces the list ("The licensee may:"); for a table row, that of
    /// the table's header row.
    pub introduction: Option<usize>,
    /// The indices of the headings above it, the outermost first.
    pub headings: Vec<usize>,
    pub kind: SentenceKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SentenceKind {
    /// A sentence or a fragment of running text.
    Text,
    /// A heading; 1 is the outermost level.
    Heading(usize),
    /// The header row of a table.
    TableHeader,
    /// A row of a table, or a line with a dot leader.
    Row,
}

/// A longer sentence, in characters, is cut into clauses.
const LONG: usize = 1_200;
/// A line shorter than this share of the usual width ends its paragraph.
const SHORT_LINE: f64 = 0.6;
/// The maximum assumed width of lines, in characters: where each paragraph is one line, its length is not a width.
const USUAL_WIDTH: usize = 80;

const SEMICOLONS: &[char] = &[';', '；', '؛'];
const COMMAS: &[char] = &[',', '，', '、', '،'];
/// The signs at the end of a sentence that introduces a list.
pub(super) const INTRODUCTION: &[char] = &[':', '：'];

/// The maximum number of words of a heading in capitals.
const HEADING_WORDS: usize = 8;

/// A phrase of a script without sentence ends is at least so long, in characters.
const PHRASE: usize = 60;
/// Signs at the end of a sentence or of a fragment that can be quoted as one.
const ENDS: &[char] = &[
    '.', '!', '?', ';', ':', ')', '”', '"', '»', '。', '！', '？', '；', '：', '）', '」', '』', '．', '।',
    '॥', '؟', '؛', '۔', '։', '።', '။', '។', '…',
];

/// `true` for a text that ends as a sentence does.
pub(super) fn ends_sentence(text: &str) -> bool {
    text.ends_with(ENDS)
}

/// Splits consecutive numbered lines into sentences.
pub(super) fn split_into_sentences(lines: &[(usize, &str)]) -> Vec<Sentence> {
    let mut sentences: Vec<Sentence> = Vec::new();
    // The introduction of the open list, with the kind of mark that it begins with itself.
    let mut introduction: Option<(usize, Option<ListMarker>)> = None;
    let mut headings: Vec<(usize, usize)> = Vec::new();
    let mut table: Option<OpenTable> = None;
    for (number_of_paragraph, paragraph) in group_into_paragraphs(lines).into_iter().enumerate() {
        let above: Vec<usize> = headings.iter().map(|(_, at)| *at).collect();
        if let Some(level) = heading_level(&paragraph) {
            (introduction, table) = (None, None);
            headings.retain(|(other, _)| *other < level);
            let above = headings.iter().map(|(_, at)| *at).collect();
            let kind = SentenceKind::Heading(level);
            let heading = JoinedLines::new(&paragraph).build_whole();
            headings.push((level, sentences.len()));
            sentences.extend(heading.map(|heading| Sentence { headings: above, kind, ..heading }));
            continue;
        }
        if is_row(&paragraph) {
            let (number, line) = paragraph[0];
            let is_header = is_table_line(line) && is_delimiter_line(find_line(lines, number + 1));
            if is_header {
                table = Some(OpenTable { header: sentences.len(), last_line: number + 1 });
            }
            let open = table.as_mut().filter(|table| !is_header && table.last_line + 1 == number);
            let header = open.map(|table| {
                table.last_line = number;
                table.header
            });
            let kind = if is_header { SentenceKind::TableHeader } else { SentenceKind::Row };
            let row = JoinedLines::new(&paragraph).build_whole();
            sentences.extend(row.map(|row| Sentence { introduction: header, headings: above, kind, ..row }));
            continue;
        }
        let mark = detect_list_marker(&paragraph);
        // An item with the same kind of mark as the introduction is not part of the list.
        if mark.is_none() || introduction.is_some_and(|(_, own)| own == mark) {
            introduction = None;
        }
        for mut sentence in split_paragraph_into_sentences(&paragraph) {
            sentence.introduction = introduction.map(|(at, _)| at);
            sentence.headings.clone_from(&above);
            sentence.paragraph = number_of_paragraph;
            sentences.push(sentence);
        }
        if let Some(last) = sentences.last()
            && last.text.ends_with(INTRODUCTION)
        {
            introduction = Some((sentences.len() - 1, mark));
        }
    }
    sentences
}

/// A table whose rows are being read.
struct OpenTable {
    /// The index of its header row.
    header: usize,
    /// The number of its last line so far.
    last_line: usize,
}

/// Returns the level of a heading; `None` for other paragraphs. A short line in capitals is a heading too.
fn heading_level(paragraph: &[(usize, &str)]) -> Option<usize> {
    let [(number, line)] = paragraph else { return None };
    let text = line.trim();
    let marks = text.len() - text.trim_start_matches('#').len();
    if marks > 0 {
        return Some(marks);
    }
    let is_short = text.split_whitespace().count() <= HEADING_WORDS;
    let is_capitals = text.contains(char::is_uppercase) && !text.contains(char::is_lowercase);
    let is_heading = is_short && is_capitals && !is_row(paragraph) && !text.ends_with(['.', ';', ',', ':']);
    is_heading.then_some(if *number == 1 { 1 } else { 2 })
}

fn is_row(paragraph: &[(usize, &str)]) -> bool {
    matches!(paragraph, [(_, line)] if is_row_line(line))
}

/// `true` for a line that is a record of its own: a row of a table, or a line with a dot leader.
fn is_row_line(line: &str) -> bool {
    is_table_line(line) || line.contains("....")
}

fn is_table_line(line: &str) -> bool {
    let text = line.trim();
    text.starts_with('|') && text.len() > 1 && text.ends_with('|')
}

/// `true` for the line below the header row of a table.
fn is_delimiter_line(line: Option<&str>) -> bool {
    line.is_some_and(|line| {
        is_table_line(line) && line.contains('-') && !line.contains(char::is_alphanumeric)
    })
}

fn find_line<'a>(lines: &[(usize, &'a str)], number: usize) -> Option<&'a str> {
    let at = lines.binary_search_by_key(&number, |(number, _)| *number).ok()?;
    Some(lines[at].1)
}

/// Removes the mark of a list item.
pub(super) fn strip_list_marker(text: &str) -> &str {
    parse_list_marker(text).map_or(text, |(_, length)| text[length..].trim_start())
}

/// The kinds of list marks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListMarker {
    /// `-`, `*`, `•`, `—`
    Bullet,
    /// `1.`, `2.1.`, `3)`
    Number,
    /// `(a)`, `(iv)`, `b)`, `c.`
    Letter,
}

/// The mark at the beginning of a list item, and its length.
fn parse_list_marker(text: &str) -> Option<(ListMarker, usize)> {
    let first = text.split_whitespace().next()?;
    if text.len() == first.len() {
        return None;
    }
    if matches!(first, "-" | "*" | "+" | "•" | "—" | "–" | "o") {
        return Some((ListMarker::Bullet, first.len()));
    }
    let inner = first.strip_prefix('(').unwrap_or(first);
    let sign = inner.strip_suffix([')', '.'])?;
    let is_number = sign.len() <= 6
        && sign.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    if is_number {
        return Some((ListMarker::Number, first.len()));
    }
    let is_letter = sign.len() == 1 && sign.bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_roman = !sign.is_empty() && sign.len() <= 5 && sign.bytes().all(|byte| b"ivxIVX".contains(&byte));
    // "A." and "I." also begin names and sentences.
    let is_mark = if inner.ends_with(')') {
        is_letter || is_roman
    } else {
        is_letter && sign.bytes().all(|byte| byte.is_ascii_lowercase())
    };
    is_mark.then_some((ListMarker::Letter, first.len()))
}

/// The mark at the beginning of a paragraph.
fn detect_list_marker(paragraph: &[(usize, &str)]) -> Option<ListMarker> {
    let (_, line) = paragraph.first()?;
    parse_list_marker(line.trim_start()).map(|(mark, _)| mark)
}

/// Groups lines that belong together: no blank line, heading, rule or list item between them.
fn group_into_paragraphs<'a>(lines: &[(usize, &'a str)]) -> Vec<Vec<(usize, &'a str)>> {
    let width = lines.iter().map(|(_, line)| line.chars().count()).max().unwrap_or_default().min(USUAL_WIDTH);
    let short = width as f64 * SHORT_LINE;
    let mut paragraphs: Vec<Vec<(usize, &str)>> = Vec::new();
    let mut continues = false;
    for &(number, line) in lines {
        let text = line.trim();
        if !text.chars().any(char::is_alphanumeric) {
            continues = false;
            continue;
        }
        let before =
            paragraphs.last().and_then(|paragraph| paragraph.last()).map_or("", |(_, line)| line.trim());
        let is_short = (before.chars().count() as f64) < short;
        let ended = before.starts_with('#')
            || is_row_line(before)
            || before.ends_with(INTRODUCTION)
            || (is_short && !text.starts_with(char::is_lowercase));
        let begins = text.starts_with('#')
            || is_row_line(text)
            || parse_list_marker(text).is_some_and(|(mark, _)| {
                // A number at the beginning of a line may be in the middle of a sentence: "under section / 7. This".
                let in_list =
                    paragraphs.last().is_some_and(|paragraph| detect_list_marker(paragraph) == Some(mark));
                mark == ListMarker::Bullet || in_list || ends_sentence(before) || before.ends_with(COMMAS)
            });
        match paragraphs.last_mut() {
            Some(paragraph) if continues && !begins && !ended => paragraph.push((number, line)),
            Some(_) | None => paragraphs.push(vec![(number, line)]),
        }
        continues = true;
    }
    paragraphs
}

/// The text of a paragraph on one line, and the offset of each of its lines.
struct JoinedLines {
    text: String,
    lines: Vec<(usize, usize)>,
}

impl JoinedLines {
    fn new(paragraph: &[(usize, &str)]) -> Self {
        let mut flow = Self { text: String::new(), lines: Vec::new() };
        for (number, line) in paragraph {
            if !flow.text.is_empty() {
                flow.text.push(' ');
            }
            flow.lines.push((flow.text.len(), *number));
            flow.text.push_str(&collapse_whitespace(line));
        }
        flow
    }

    fn line_number_at(&self, offset: usize) -> usize {
        let after = self.lines.partition_point(|(start, _)| *start <= offset);
        self.lines[after.saturating_sub(1)].1
    }

    fn build_sentence(&self, start: usize, end: usize) -> Option<Sentence> {
        let raw = &self.text[start..end];
        let text = raw.trim();
        let start = start + (raw.len() - raw.trim_start().len());
        (!text.is_empty()).then(|| Sentence {
            text: text.to_owned(),
            first_line: self.line_number_at(start),
            last_line: self.line_number_at(start + text.len() - 1),
            paragraph: 0,
            introduction: None,
            headings: Vec::new(),
            kind: SentenceKind::Text,
        })
    }

    /// The whole text as one sentence.
    fn build_whole(&self) -> Option<Sentence> {
        self.build_sentence(0, self.text.len())
    }
}

fn split_paragraph_into_sentences(paragraph: &[(usize, &str)]) -> Vec<Sentence> {
    let flow = JoinedLines::new(paragraph);
    let mut sentences = Vec::new();
    for sentence in find_sentences(&flow.text) {
        for (from, to) in split_long_sentence(&flow.text, sentence.start, sentence.end) {
            sentences.extend(flow.build_sentence(from, to));
        }
    }
    sentences
}

/// The sentences of a text, where the mark of a list item is no sentence; in scripts without sentence ends, its phrases.
fn find_sentences(text: &str) -> Vec<Range<usize>> {
    let mut sentences: Vec<Range<usize>> = Vec::new();
    for range in split_sentences(text) {
        match sentences.last_mut() {
            Some(last) if is_list_marker(&text[last.clone()]) => last.end = range.end,
            Some(_) | None => sentences.push(range),
        }
    }
    sentences.into_iter().flat_map(|sentence| split_into_phrases(text, sentence)).collect()
}

/// `true` if a text is only the mark of a list item.
fn is_list_marker(text: &str) -> bool {
    let text = text.trim();
    text.ends_with('.')
        && !text.contains(char::is_whitespace)
        && parse_list_marker(&format!("{text} x")).is_some()
}

/// Splits at spaces between letters of a script in which they separate phrases.
fn split_into_phrases(text: &str, sentence: Range<usize>) -> Vec<Range<usize>> {
    let mut phrases = Vec::new();
    let mut from = sentence.start;
    let mut length = 0;
    for (at, c) in text[sentence.clone()].char_indices().map(|(at, c)| (sentence.start + at, c)) {
        length += 1;
        let separates = length > PHRASE
            && c == ' '
            && text[..at].ends_with(has_complex_breaks)
            && text[at + 1..].starts_with(has_complex_breaks);
        if separates {
            phrases.push(from..at + 1);
            (from, length) = (at + 1, 0);
        }
    }
    phrases.push(from..sentence.end);
    phrases
}

/// The sentence or, if it is long, its pieces cut at semicolons or, failing that, commas.
fn split_long_sentence(text: &str, start: usize, end: usize) -> Vec<(usize, usize)> {
    let mut pieces = vec![(start, end)];
    for marks in [SEMICOLONS, INTRODUCTION, COMMAS] {
        pieces =
            pieces.into_iter().flat_map(|(from, to)| split_at_punctuation(text, from, to, marks)).collect();
    }
    pieces
}

fn split_at_punctuation(text: &str, start: usize, end: usize, marks: &[char]) -> Vec<(usize, usize)> {
    let mut pieces = Vec::new();
    let mut from = start;
    while text[from..end].chars().count() > LONG {
        let limit = text[from..end].char_indices().nth(LONG).map_or(end, |(at, _)| from + at);
        // A point or a comma without a space is part of a word, unless the script has no spaces.
        let is_end = |(at, mark): &(usize, &str)| {
            !mark.is_ascii() || text[from + at + mark.len()..].starts_with(char::is_whitespace)
        };
        let Some((at, mark)) = text[from..limit].rmatch_indices(marks).find(is_end) else { break };
        let to = from + at + mark.len();
        let to = to + (text[to..].len() - text[to..].trim_start().len());
        pieces.push((from, to.min(end)));
        from = to.min(end);
    }
    pieces.push((from, end));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_text(text: &str) -> Vec<Sentence> {
        split_into_sentences(&text.lines().enumerate().map(|(at, line)| (at + 1, line)).collect::<Vec<_>>())
    }

    fn sentence_texts(text: &str) -> Vec<String> {
        split_text(text).into_iter().map(|sentence| sentence.text).collect()
    }

    #[test]
    fn a_sentence_spans_lines_and_keeps_their_numbers() {
        let sentences = split_text(
            "TITLE\n\n3. Grant of Patent License. Subject to this\n   License, each Contributor\n   grants. Next one.\n",
        );
        let shown: Vec<_> = sentences.iter().map(|s| (s.text.as_str(), s.first_line, s.last_line)).collect();
        assert_eq!(
            shown,
            [
                ("TITLE", 1, 1),
                ("3. Grant of Patent License.", 3, 3),
                ("Subject to this License, each Contributor grants.", 3, 5),
                ("Next one.", 5, 5),
            ]
        );
    }

    #[test]
    fn periods_inside_a_sentence_do_not_end_it() {
        for text in [
            "See e.g. The Book by Dr. A. Author of Inc. Magazine.",
            "2.1. Each of version 2.0 counts.",
            "(b) It ends (see above.) now.",
        ] {
            assert_eq!(sentence_texts(text), [text]);
        }
        assert_eq!(
            sentence_texts("He said “yes.” Then “No!” (Really.) So."),
            ["He said “yes.”", "Then “No!”", "(Really.)", "So."]
        );
    }

    #[test]
    fn sentences_of_other_scripts_end_with_their_own_signs() {
        for (text, first) in [
            ("窑的温度是1240度。它建于1931年。", "窑的温度是1240度。"),
            ("यह मिल है। यह पुरानी है।", "यह मिल है।"),
            ("هل بدأ العقد؟ بدأ العقد أمس.", "هل بدأ العقد؟"),
        ] {
            let sentences = sentence_texts(text);
            assert_eq!((sentences.len(), sentences[0].as_str()), (2, first));
        }
        let phrase = "สัญญาเช่าสิ้นสุดตอนเที่ยงของวันสุดท้ายของเดือนพฤศจิกายนตามที่ตกลงกัน";
        assert_eq!(sentence_texts(&format!("{phrase} {phrase}")), [phrase, phrase]);
    }

    #[test]
    fn list_items_are_separate_and_refer_to_their_introduction() {
        let sentences = split_text("You may:\n\n(a) copy it; and\n(b) sell it.\n\n- third\n\nElse not.");
        let shown: Vec<_> = sentences.iter().map(|s| (s.text.as_str(), s.introduction)).collect();
        assert_eq!(
            shown,
            [
                ("You may:", None),
                ("(a) copy it; and", Some(0)),
                ("(b) sell it.", Some(0)),
                ("- third", Some(0)),
                ("Else not.", None),
            ]
        );
    }

    #[test]
    fn a_number_that_continues_a_sentence_is_no_list_item() {
        let text =
            "b) It is released under this License and any conditions added under section\n7. This is more.";
        assert_eq!(sentence_texts(text)[0], text.replace('\n', " ").trim_end_matches(" This is more."));
        assert_eq!(sentence_texts("1. one thing that is named\n2. another").len(), 2);
    }

    #[test]
    fn a_heading_is_not_part_of_the_next_sentence() {
        let text = "1. DEFINITIONS\n“Program” means this, and in whatever form it comes.\n# Head\ntext here";
        let expected =
            ["1. DEFINITIONS", "“Program” means this, and in whatever form it comes.", "# Head", "text here"];
        assert_eq!(sentence_texts(text), expected);
    }

    #[test]
    fn a_long_sentence_is_cut_at_clauses_without_loss() {
        let text =
            format!("{}; {}, {}", "a ".repeat(500).trim(), "b ".repeat(500).trim(), "c ".repeat(500).trim());
        let pieces = sentence_texts(&text);
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces.join(" "), text);
        let solid = sentence_texts(&"x".repeat(5_000));
        assert_eq!(solid[0].len(), 5_000);
    }
}
