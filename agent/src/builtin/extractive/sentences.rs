//! Sentences from numbered lines. It owns what a paragraph, a list item and a sentence are in plain text and
//! Markdown; a sentence keeps the lines it stands on and its words exactly, with white space folded.

use crate::citations::fold;

/// A sentence of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sentence {
    /// Its words, white space folded.
    pub text: String,
    /// The line it begins on.
    pub first_line: usize,
    /// The line it ends on.
    pub last_line: usize,
    /// For a list item, the place in the list of sentences of what introduces the list ("The licensee may:").
    pub introduction: Option<usize>,
}

/// A sentence longer than this, in characters, is cut into clauses.
const LONG: usize = 1_200;
/// A line shorter than this share of the usual width that is not the last of its paragraph was ended on purpose.
const SHORT_LINE: f64 = 0.6;
/// The usual width of lines, in characters, at most: where a line is a paragraph, lines say nothing of width.
const USUAL_WIDTH: usize = 80;

const ABBREVIATIONS: &[&str] = &[
    "e.g.", "i.e.", "etc.", "vs.", "no.", "nos.", "sec.", "art.", "fig.", "cf.", "inc.", "ltd.", "corp.",
    "co.", "dr.", "mr.", "mrs.", "ms.", "st.", "v.", "p.", "pp.", "ch.", "vol.", "u.s.", "approx.", "al.",
];

/// The sentences of consecutive lines, each with its number.
pub(super) fn split(lines: &[(usize, &str)]) -> Vec<Sentence> {
    let mut sentences: Vec<Sentence> = Vec::new();
    // What introduces the list that is open, with the kind of mark that it begins with itself.
    let mut introduction: Option<(usize, Option<Mark>)> = None;
    for paragraph in paragraphs(lines) {
        let mark = mark_of(&paragraph);
        // An item with the same kind of mark is no part of the list, but stands beside what introduced it.
        if mark.is_none() || introduction.is_some_and(|(_, own)| own == mark) {
            introduction = None;
        }
        for mut sentence in of_paragraph(&paragraph) {
            sentence.introduction = introduction.map(|(at, _)| at);
            sentences.push(sentence);
        }
        if let Some(last) = sentences.last()
            && last.text.ends_with(':')
        {
            introduction = Some((sentences.len() - 1, mark));
        }
    }
    sentences
}

/// A list item's text without its mark.
pub(super) fn without_item_mark(text: &str) -> &str {
    item_mark(text).map_or(text, |(_, length)| text[length..].trim_start())
}

/// The kinds of mark that a list item begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// `-`, `*`, `•`, `—`
    Bullet,
    /// `1.`, `2.1.`, `3)`
    Number,
    /// `(a)`, `(iv)`, `b)`, `c.`
    Letter,
}

/// The mark that a list item begins with, and its length.
fn item_mark(text: &str) -> Option<(Mark, usize)> {
    let first = text.split_whitespace().next()?;
    if text.len() == first.len() {
        return None;
    }
    if matches!(first, "-" | "*" | "+" | "•" | "—" | "–" | "o") {
        return Some((Mark::Bullet, first.len()));
    }
    let inner = first.strip_prefix('(').unwrap_or(first);
    let sign = inner.strip_suffix([')', '.'])?;
    let is_number = sign.len() <= 6
        && sign.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    if is_number {
        return Some((Mark::Number, first.len()));
    }
    let is_letter = sign.len() == 1 && sign.bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_roman = !sign.is_empty() && sign.len() <= 5 && sign.bytes().all(|byte| b"ivxIVX".contains(&byte));
    // "A." and "I." begin names and sentences as well.
    let is_mark = if inner.ends_with(')') {
        is_letter || is_roman
    } else {
        is_letter && sign.bytes().all(|byte| byte.is_ascii_lowercase())
    };
    is_mark.then_some((Mark::Letter, first.len()))
}

/// The mark that a paragraph begins with.
fn mark_of(paragraph: &[(usize, &str)]) -> Option<Mark> {
    let (_, line) = paragraph.first()?;
    item_mark(line.trim_start()).map(|(mark, _)| mark)
}

/// Lines that belong together: no blank line, heading, rule or list item between them.
fn paragraphs<'a>(lines: &[(usize, &'a str)]) -> Vec<Vec<(usize, &'a str)>> {
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
            || before.ends_with(':')
            || (is_short && !text.starts_with(char::is_lowercase));
        let begins = text.starts_with('#')
            || item_mark(text).is_some_and(|(mark, _)| {
                // A number at the beginning of a line may be in the middle of a sentence: "under section / 7. This".
                let in_list = paragraphs.last().is_some_and(|paragraph| mark_of(paragraph) == Some(mark));
                let stops = before.ends_with(['.', ';', ',', '!', '?', ')']);
                mark == Mark::Bullet
                    || in_list
                    || stops
                    || [" and", " or"].iter().any(|word| before.ends_with(word))
            });
        match paragraphs.last_mut() {
            Some(paragraph) if continues && !begins && !ended => paragraph.push((number, line)),
            Some(_) | None => paragraphs.push(vec![(number, line)]),
        }
        continues = true;
    }
    paragraphs
}

/// The words of a paragraph in one line, and where each of its lines begins in it.
struct Flow {
    text: String,
    lines: Vec<(usize, usize)>,
}

impl Flow {
    fn of(paragraph: &[(usize, &str)]) -> Self {
        let mut flow = Self { text: String::new(), lines: Vec::new() };
        for (number, line) in paragraph {
            if !flow.text.is_empty() {
                flow.text.push(' ');
            }
            flow.lines.push((flow.text.len(), *number));
            flow.text.push_str(&fold(line));
        }
        flow
    }

    fn line_at(&self, offset: usize) -> usize {
        let after = self.lines.partition_point(|(start, _)| *start <= offset);
        self.lines[after.saturating_sub(1)].1
    }

    fn sentence(&self, start: usize, end: usize) -> Option<Sentence> {
        let raw = &self.text[start..end];
        let text = raw.trim();
        let start = start + (raw.len() - raw.trim_start().len());
        (!text.is_empty()).then(|| Sentence {
            text: text.to_owned(),
            first_line: self.line_at(start),
            last_line: self.line_at(start + text.len() - 1),
            introduction: None,
        })
    }
}

fn of_paragraph(paragraph: &[(usize, &str)]) -> Vec<Sentence> {
    let flow = Flow::of(paragraph);
    let mut sentences = Vec::new();
    let mut start = 0;
    for end in ends(&flow.text) {
        for (from, to) in clauses(&flow.text, start, end) {
            sentences.extend(flow.sentence(from, to));
        }
        start = end;
    }
    sentences
}

/// Where the sentences of a text end.
fn ends(text: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices(['.', '!', '?']) {
        let after = &text[at + 1..];
        let closing =
            after.len() - after.trim_start_matches(['"', '\'', '”', '’', ')', ']', '»', '*', '_']).len();
        let rest = &after[closing..];
        let next = rest.trim_start().chars().next();
        let begins = next.is_some_and(|c| {
            c.is_uppercase()
                || c.is_ascii_digit()
                || matches!(c, '"' | '“' | '‘' | '\'' | '(' | '[' | '«' | '*' | '—')
        });
        let end = at + 1 + closing;
        if rest.starts_with(char::is_whitespace) && begins && !is_abbreviation(text, start, at) {
            ends.push(end);
            start = end;
        }
    }
    ends.push(text.len());
    ends
}

/// Whether the stop at `at` belongs to an abbreviation, an initial, or the number that the sentence begins with.
fn is_abbreviation(text: &str, start: usize, at: usize) -> bool {
    if !text[at..].starts_with('.') {
        return false;
    }
    let before = text[start..at].trim_start();
    let is_mark = !before.contains(char::is_whitespace) && item_mark(&format!("{before}. x")).is_some();
    if is_mark {
        return true;
    }
    let word =
        before.rsplit(|c: char| c.is_whitespace() || matches!(c, '(' | '"' | '“')).next().unwrap_or(before);
    let is_initial = word.chars().count() == 1 && word.chars().all(char::is_uppercase);
    is_initial || ABBREVIATIONS.contains(&format!("{}.", word.to_lowercase()).as_str())
}

/// A sentence as it is or, if it is long, in pieces that end at semicolons or, failing that, commas.
fn clauses(text: &str, start: usize, end: usize) -> Vec<(usize, usize)> {
    let mut pieces = vec![(start, end)];
    for mark in ["; ", ": ", ", "] {
        pieces = pieces.into_iter().flat_map(|(from, to)| cut(text, from, to, mark)).collect();
    }
    pieces
}

fn cut(text: &str, start: usize, end: usize, mark: &str) -> Vec<(usize, usize)> {
    let mut pieces = Vec::new();
    let mut from = start;
    while text[from..end].chars().count() > LONG {
        let limit = text[from..end].char_indices().nth(LONG).map_or(end, |(at, _)| from + at);
        let Some(at) = text[from..limit].rfind(mark) else { break };
        pieces.push((from, from + at + mark.len()));
        from += at + mark.len();
    }
    pieces.push((from, end));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<Sentence> {
        split(&text.lines().enumerate().map(|(at, line)| (at + 1, line)).collect::<Vec<_>>())
    }

    fn texts(text: &str) -> Vec<String> {
        of(text).into_iter().map(|sentence| sentence.text).collect()
    }

    #[test]
    fn a_sentence_runs_over_lines_and_keeps_where_it_stands() {
        let sentences = of(
            "TITLE\n\n3. Grant of Patent License. Subject to this\n   License, each Contributor\n   grants. Next one.\n",
        );
        let told: Vec<_> = sentences.iter().map(|s| (s.text.as_str(), s.first_line, s.last_line)).collect();
        assert_eq!(
            told,
            [
                ("TITLE", 1, 1),
                ("3. Grant of Patent License.", 3, 3),
                ("Subject to this License, each Contributor grants.", 3, 5),
                ("Next one.", 5, 5),
            ]
        );
    }

    #[test]
    fn stops_inside_a_sentence_do_not_end_it() {
        for text in [
            "See e.g. The Book, Sec. 3, by A. Author of Inc. Magazine.",
            "2.1. Each of version 2.0 counts.",
            "(b) It ends (see above.) now.",
        ] {
            assert_eq!(texts(text), [text]);
        }
        assert_eq!(
            texts("He said “yes.” Then “No!” (Really.) So."),
            ["He said “yes.”", "Then “No!”", "(Really.)", "So."]
        );
    }

    #[test]
    fn list_items_stand_apart_and_know_what_introduces_them() {
        let sentences = of("You may:\n\n(a) copy it; and\n(b) sell it.\n\n- third\n\nElse not.");
        let told: Vec<_> = sentences.iter().map(|s| (s.text.as_str(), s.introduction)).collect();
        assert_eq!(
            told,
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
    fn a_number_at_the_beginning_of_a_line_is_no_list_item_in_the_middle_of_a_sentence() {
        let text =
            "b) It is released under this License and any conditions added under section\n7. This is more.";
        assert_eq!(texts(text)[0], text.replace('\n', " ").trim_end_matches(" This is more."));
        assert_eq!(texts("1. one thing that is named\n2. another").len(), 2);
    }

    #[test]
    fn a_heading_above_its_text_is_no_part_of_the_sentence() {
        let text = "1. DEFINITIONS\n“Program” means this, and in whatever form it comes.\n# Head\ntext here";
        let expected =
            ["1. DEFINITIONS", "“Program” means this, and in whatever form it comes.", "# Head", "text here"];
        assert_eq!(texts(text), expected);
    }

    #[test]
    fn an_endless_sentence_is_cut_at_its_clauses_and_nothing_is_lost() {
        let text =
            format!("{}; {}, {}", "a ".repeat(500).trim(), "b ".repeat(500).trim(), "c ".repeat(500).trim());
        let pieces = texts(&text);
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces.join(" "), text);
        let solid = texts(&"x".repeat(5_000));
        assert_eq!(solid[0].len(), 5_000);
    }
}
