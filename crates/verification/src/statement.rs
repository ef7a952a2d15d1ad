//! The statements of a Markdown text: sentences, items and rows that claim something, each with its place, its marks and its
//! context. Headings, code and questions claim nothing.

use std::collections::BTreeMap;
use std::mem::take;
use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::sentence::{QUESTION_MARKS, split_sentences};

/// A sentence, a list item or a table row of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Its place in the text, in bytes, with its marks.
    pub range: Range<usize>,
    /// Its words without marks and markup.
    pub text: String,
    /// The labels of its marks: `3` of `[3]`, `^note` of a footnote, the address of a link.
    pub marks: Vec<String>,
    pub context: Context,
}

/// The text around a statement that tells what its words refer to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// The heading above it.
    pub heading: Option<String>,
    /// The sentence that introduces its list.
    pub introduction: Option<String>,
}

/// A text with its statements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MarkedText {
    pub statements: Vec<Statement>,
    /// The addresses of the links in each footnote, by label (without `^`).
    pub footnotes: BTreeMap<String, Vec<String>>,
}

/// Splits a Markdown text. `is_mark` tells which texts in brackets are marks.
pub fn split_statements(markdown: &str, is_mark: &dyn Fn(&str) -> bool) -> MarkedText {
    let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH;
    let mut splitter = Splitter::new(is_mark);
    for (event, range) in Parser::new_ext(markdown, options).into_offset_iter() {
        splitter.read_event(event, range);
    }
    splitter.end_block();
    splitter.found
}

/// The words of a block, and where each piece of them stands in the text.
#[derive(Default)]
struct Block {
    words: String,
    /// The start of each piece in `words`, with its place in the text.
    pieces: Vec<(usize, Range<usize>)>,
    /// The labels of footnotes and links, with their place in `words` and in the text.
    marks: Vec<(usize, Range<usize>, String)>,
}

impl Block {
    fn push(&mut self, words: &str, place: Range<usize>) {
        self.pieces.push((self.words.len(), place));
        self.words.push_str(words);
    }

    /// The place in the text of a position in the words: before the next word, or at the end of the last one.
    fn place_of(&self, at: usize, is_end: bool) -> usize {
        let is_before = |(start, _): &(usize, Range<usize>)| if is_end { *start < at } else { *start <= at };
        let Some(number) = self.pieces.iter().rposition(is_before) else {
            return self.pieces.first().map_or(0, |(_, place)| place.start);
        };
        let (start, place) = &self.pieces[number];
        let next = self.pieces.get(number + 1).map_or(self.words.len(), |(start, _)| *start);
        // Code and entities are longer in the text than in the words.
        if is_end && at == next { place.end } else { (place.start + (at - start)).min(place.end) }
    }
}

struct Splitter<'a> {
    is_mark: &'a dyn Fn(&str) -> bool,
    found: MarkedText,
    block: Block,
    heading: Option<String>,
    /// The sentence that introduces the list.
    introduction: Option<String>,
    list_depth: usize,
    /// `true` inside a heading or a code block.
    skips: bool,
    is_heading: bool,
    footnote: Option<String>,
    link: Option<String>,
    table: Option<Table>,
}

#[derive(Default)]
struct Table {
    head: Vec<String>,
    /// The cells of the row so far.
    row: Vec<Cell>,
}

struct Cell {
    words: String,
    marks: Vec<String>,
    /// Its place in the text, between the bars; `None` if it is empty.
    place: Option<Range<usize>>,
}

impl<'a> Splitter<'a> {
    fn new(is_mark: &'a dyn Fn(&str) -> bool) -> Self {
        Self {
            is_mark,
            found: MarkedText::default(),
            block: Block::default(),
            heading: None,
            introduction: None,
            list_depth: 0,
            skips: false,
            is_heading: false,
            footnote: None,
            link: None,
            table: None,
        }
    }

    fn read_event(&mut self, event: Event<'_>, range: Range<usize>) {
        match event {
            Event::Start(tag) => self.begin(tag),
            Event::End(tag) => self.end(tag, range),
            Event::Text(words) => self.push_words(&words, range),
            Event::Code(words) => self.push_words(&words, range.start + 1..range.end),
            Event::SoftBreak | Event::HardBreak => self.push_words(" ", range),
            Event::FootnoteReference(label) => {
                self.block.marks.push((self.block.words.len(), range, format!("^{label}")));
            }
            Event::Html(_)
            | Event::InlineHtml(_)
            | Event::InlineMath(_)
            | Event::DisplayMath(_)
            | Event::Rule
            | Event::TaskListMarker(_) => {}
        }
    }

    fn push_words(&mut self, words: &str, range: Range<usize>) {
        if !self.skips {
            self.block.push(words, range);
        }
    }

    fn begin(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { .. } => {
                self.end_block();
                self.is_heading = true;
            }
            Tag::CodeBlock(_) | Tag::HtmlBlock | Tag::MetadataBlock(_) | Tag::Image { .. } => {
                self.skips = true
            }
            Tag::List(_) => {
                self.end_block();
                self.list_depth += 1;
            }
            Tag::Paragraph | Tag::Item | Tag::BlockQuote(_) => self.end_block(),
            Tag::FootnoteDefinition(label) => {
                self.end_block();
                self.footnote = Some(label.to_string());
                self.found.footnotes.entry(label.to_string()).or_default();
            }
            Tag::Link { dest_url, .. } => self.link = Some(dest_url.to_string()),
            Tag::Table(_) => {
                self.end_block();
                self.table = Some(Table::default());
            }
            Tag::DefinitionList
            | Tag::DefinitionListTitle
            | Tag::DefinitionListDefinition
            | Tag::TableHead
            | Tag::TableRow
            | Tag::TableCell
            | Tag::Emphasis
            | Tag::Strong
            | Tag::Strikethrough
            | Tag::Superscript
            | Tag::Subscript => {}
        }
    }

    fn end(&mut self, tag: TagEnd, range: Range<usize>) {
        match tag {
            TagEnd::Heading(_) => {
                let words = take(&mut self.block).words.trim().to_owned();
                self.heading = Some(words).filter(|words| !words.is_empty());
                (self.is_heading, self.introduction) = (false, None);
            }
            TagEnd::CodeBlock | TagEnd::HtmlBlock | TagEnd::MetadataBlock(_) | TagEnd::Image => {
                self.skips = false;
            }
            TagEnd::List(_) => {
                self.end_block();
                self.list_depth = self.list_depth.saturating_sub(1);
            }
            TagEnd::Paragraph | TagEnd::Item | TagEnd::BlockQuote(_) => self.end_block(),
            TagEnd::FootnoteDefinition => {
                self.end_block();
                self.footnote = None;
            }
            TagEnd::Link => self.end_link(range),
            TagEnd::TableCell => {
                let cell = self.take_cell();
                if let Some(table) = &mut self.table {
                    table.row.push(cell);
                }
            }
            TagEnd::TableHead => {
                if let Some(table) = &mut self.table {
                    table.head = take(&mut table.row).into_iter().map(|cell| cell.words).collect();
                }
            }
            TagEnd::TableRow => self.end_row(),
            TagEnd::Table => self.table = None,
            TagEnd::DefinitionList
            | TagEnd::DefinitionListTitle
            | TagEnd::DefinitionListDefinition
            | TagEnd::Emphasis
            | TagEnd::Strong
            | TagEnd::Strikethrough
            | TagEnd::Superscript
            | TagEnd::Subscript => {}
        }
    }

    fn end_link(&mut self, range: Range<usize>) {
        let Some(address) = self.link.take() else { return };
        match &self.footnote {
            Some(label) => self.found.footnotes.entry(label.clone()).or_default().push(address),
            None => self.block.marks.push((self.block.words.len(), range, address)),
        }
    }

    /// The words of a cell without its marks, the marks, and the place of both.
    fn take_cell(&mut self) -> Cell {
        let block = cut_marks(take(&mut self.block), self.is_mark);
        let words = block.words.trim();
        let start = block.words.len() - block.words.trim_start().len();
        let own = start..start + words.len();
        let own = (!own.is_empty()).then(|| block.place_of(own.start, false)..block.place_of(own.end, true));
        let places = own.into_iter().chain(block.marks.iter().map(|(_, place, _)| place.clone()));
        let place = places.reduce(|one, other| one.start.min(other.start)..one.end.max(other.end));
        let marks = block.marks.iter().map(|(_, _, label)| label.clone()).collect();
        Cell { words: words.to_owned(), marks, place }
    }

    /// A row is one statement: each cell with the head of its column. Its place is that of its cells without the outer bars, so
    /// that a mark after it stands in the last cell.
    fn end_row(&mut self) {
        let Some(table) = &mut self.table else { return };
        let row = take(&mut table.row);
        let name = |at: usize| table.head.get(at).filter(|head| !head.is_empty());
        let cells = row.iter().enumerate().filter(|(_, cell)| !cell.words.is_empty());
        let cells: Vec<String> = cells
            .map(|(at, Cell { words, .. })| {
                name(at).map_or_else(|| words.clone(), |head| format!("{head}: {words}"))
            })
            .collect();
        let places = row.iter().filter_map(|cell| cell.place.clone());
        let place = places.reduce(|first, last| first.start..last.end);
        let marks = row.into_iter().flat_map(|cell| cell.marks).collect();
        let context = Context { heading: self.heading.clone(), introduction: None };
        let text = cells.join("; ");
        if let Some(range) = place.filter(|_| text.contains(char::is_alphanumeric)) {
            self.found.statements.push(Statement { range, text, marks, context });
        }
    }

    fn end_block(&mut self) {
        let block = take(&mut self.block);
        if self.is_heading || self.footnote.is_some() || self.table.is_some() || block.words.trim().is_empty()
        {
            return;
        }
        let block = cut_marks(block, self.is_mark);
        let introduction = self.introduction.clone().filter(|_| self.list_depth > 0);
        for sentence in split_sentences(&block.words) {
            let words = block.words[sentence.clone()].trim();
            if self.list_depth == 0 {
                self.introduction = words.ends_with([':', '：']).then(|| words.to_owned());
            }
            if is_claim(words) {
                let context = Context { heading: self.heading.clone(), introduction: introduction.clone() };
                self.found.statements.push(to_statement(&block, sentence, context));
            }
        }
    }
}

/// `true` if a sentence says something: it has a word, is no question, and introduces nothing.
fn is_claim(sentence: &str) -> bool {
    sentence.contains(char::is_alphanumeric)
        && !sentence.ends_with(QUESTION_MARKS)
        && !sentence.ends_with([':', '：'])
}

fn to_statement(block: &Block, sentence: Range<usize>, context: Context) -> Statement {
    let words = &block.words[sentence.clone()];
    let start = sentence.start + (words.len() - words.trim_start().len());
    let end = sentence.start + words.trim_end().len();
    // A mark at the start of a sentence belongs to the one before it.
    let is_own = |at: usize| start < at && at <= sentence.end || (at == start && start == 0 && at == end);
    let own = block.marks.iter().filter(|(at, _, _)| is_own(*at));
    let marks: Vec<(Range<usize>, String)> =
        own.map(|(_, place, label)| (place.clone(), label.clone())).collect();
    let last = marks.iter().map(|(place, _)| place.end).max().unwrap_or_default();
    let range = block.place_of(start, false)..block.place_of(end, true).max(last);
    let text = block.words[start..end].split_whitespace().collect::<Vec<_>>().join(" ");
    Statement { range, text, marks: marks.into_iter().map(|(_, label)| label).collect(), context }
}

/// Takes the marks in brackets out of the words of a block.
fn cut_marks(block: Block, is_mark: &dyn Fn(&str) -> bool) -> Block {
    let mut cut = Block::default();
    let mut done = 0;
    let mut known = block.marks.clone().into_iter().peekable();
    let mut copy = |cut: &mut Block, range: Range<usize>, removed: usize| {
        while let Some((at, place, label)) = known.next_if(|(at, _, _)| *at <= range.end) {
            cut.marks.push((at - removed, place, label));
        }
        let pieces = block
            .pieces
            .iter()
            .zip(block.pieces.iter().skip(1).map(|(start, _)| *start).chain([block.words.len()]));
        for ((start, place), end) in pieces {
            let (from, to) = ((*start).max(range.start), end.min(range.end));
            if from < to {
                let begin = (place.start + (from - start)).min(place.end);
                let finish = if to == end { place.end } else { (begin + (to - from)).min(place.end) };
                cut.push(&block.words[from..to], begin..finish);
            }
        }
    };
    let mut removed = 0;
    for (at, label) in find_marks(&block.words, is_mark) {
        copy(&mut cut, done..at, removed);
        let end = at + label.len() + 2;
        // `9 kg [1].` is `9 kg.`
        let is_closed = block.words[end..].starts_with(|c: char| c.is_ascii_punctuation() && c != '[');
        if is_closed {
            let blanks = cut.words.len() - cut.words.trim_end().len();
            cut.words.truncate(cut.words.len() - blanks);
            removed += blanks;
        }
        let place = block.place_of(at, false)..block.place_of(end, true);
        cut.marks.push((cut.words.trim_end().len(), place, label.to_owned()));
        removed += end - at;
        done = end;
    }
    copy(&mut cut, done..block.words.len(), removed);
    cut
}

/// The marks in brackets, with the position of the bracket.
fn find_marks<'t>(words: &'t str, is_mark: &dyn Fn(&str) -> bool) -> Vec<(usize, &'t str)> {
    let inner = |at: usize| words[at + 1..].split_once(']').map(|(inner, _)| inner);
    let opened = words.match_indices('[').filter_map(|(at, _)| Some((at, inner(at)?)));
    opened.filter(|(_, inner)| is_mark(inner)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_mark(text: &str) -> bool {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
    }

    fn list(markdown: &str) -> Vec<(String, String, Vec<String>)> {
        let found = split_statements(markdown, &is_mark).statements;
        found.into_iter().map(|one| (markdown[one.range.clone()].to_owned(), one.text, one.marks)).collect()
    }

    #[test]
    fn statement_has_its_place_its_words_and_its_marks() {
        let text = "# Kiln\n\nIt needs 400 V. It fires at **1,240 °C** [1][2]. It was built by Dr. Aho in 1931.[3] Why?\n\n```\ncode.\n```\n";
        let found = list(text);
        let words: Vec<&str> = found.iter().map(|(_, words, _)| words.as_str()).collect();
        assert_eq!(words, ["It needs 400 V.", "It fires at 1,240 °C.", "It was built by Dr. Aho in 1931."]);
        assert_eq!(found[1].0, "It fires at **1,240 °C** [1][2].");
        assert_eq!(found[2].0, "It was built by Dr. Aho in 1931.[3]");
        assert_eq!((found[1].2.join(" "), found[2].2.join(" ")), ("1 2".into(), "3".into()));
    }

    #[test]
    fn item_and_row_are_statements_with_their_context() {
        let text = "## Costs\n\nThe tickets are:\n\n- adults 12 €\n- children 5 € [1]\n\n| day | opens |\n|---|---|\n| Monday | 9:00 [2] |\n";
        let found = split_statements(text, &is_mark).statements;
        assert_eq!(&text[found[2].range.clone()], "Monday | 9:00 [2]");
        let words: Vec<&str> = found.iter().map(|one| one.text.as_str()).collect();
        assert_eq!(words, ["adults 12 €", "children 5 €", "day: Monday; opens: 9:00"]);
        assert_eq!(found[0].context.introduction.as_deref(), Some("The tickets are:"));
        assert!(found.iter().all(|one| one.context.heading.as_deref() == Some("Costs")));
        assert_eq!(found[2].marks, ["2"]);
    }

    #[test]
    fn sentences_of_other_scripts_end_with_their_own_signs() {
        let words: Vec<String> = list("窑的温度是1240度。它建于1931年[1]。为什么？")
            .into_iter()
            .map(|(_, words, _)| words)
            .collect();
        assert_eq!(words, ["窑的温度是1240度。", "它建于1931年。"]);
        assert_eq!(list("भट्ठी गर्म है। यह पुरानी है।").len(), 2);
    }

    #[test]
    fn links_and_footnotes_are_marks() {
        let text = "It is [old](a/kiln.md). It is hot.[^1]\n\n[^1]: See [the log](log.md), line 3.\n";
        let found = split_statements(text, &is_mark);
        let marks: Vec<_> = found.statements.iter().map(|one| one.marks.join(" ")).collect();
        assert_eq!(marks, ["a/kiln.md", "^1"]);
        assert_eq!(found.footnotes["1"], ["log.md"]);
    }
}
