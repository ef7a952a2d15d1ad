//! Grounds an answer of a small model in the lines of its passages and those that it has read: code compares each statement with the lines that it
//! cites, cites other lines where those say it, and takes out what no line says. It owns the comparison; the words of a
//! statement stay as they are.
//!
//! ```text
//! "It weighs 1.4 kg. It costs 9 euros." ─┬─ 1.4 kg: line 4 of tarn.md ─▶ "It weighs 1.4 kg [1]."
//!                                        └─ 9: no line               ─▶ unsupported
//! ```
//!
//! # Invariants
//!
//! - I101: No statement of a small model is accepted whose numbers are in no line of its passages; each accepted statement cites
//!   lines that support it. (`crates/agent/tests/answers.rs::a_statement_that_no_passage_says_is_sent_back_and_then_left_out`,
//!   `crates/agent/src/answers/grounding.rs::statement_that_no_line_says_is_taken_out`,
//!   `crates/agent/tests/answers.rs::a_number_that_no_result_has_is_left_out_of_a_report`)

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{Findings, Passage, content};
use crate::citations;
use crate::corpus::{Corpus, Document, Language, fold_words, tokenize};

/// The most lines that code cites for one statement.
const MAX_LINES: usize = 3;
/// The least share of a statement's own words (those that are not in the question) that its lines must have, if they have all
/// of its numbers.
const MIN_SHARE_WITH_NUMBERS: f64 = 0.3;
/// The same for a statement without numbers of its own.
const MIN_SHARE: f64 = 0.5;
/// Numbers in words, by value from 0.
const NUMBER_WORDS: [&str; 13] = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
];
/// Words of questions that documents answer without using them, as stems.
const LIGHT_WORDS: [&str; 47] = [
    "much", "mani", "often", "long", "old", "far", "fast", "heavi", "high", "deep", "wide", "larg", "big",
    "loud", "go", "goe", "come", "get", "give", "take", "tell", "say", "name", "call", "mean", "case", "now",
    "dure", "around", "degre", "need", "use", "requir", "want", "allow", "happen", "make", "made", "work",
    "run", "find", "show", "exist", "last", "cost", "price", "pay",
];
/// The least number of equal characters at the beginning of two words of one family, and the most after them.
const FAMILY: (usize, usize) = (4, 3);
/// Phrases by which a statement says that something is not in the documents, in lowercase.
const NEGATIONS: [&str; 14] = [
    "not answer",
    "not mention",
    "not specif",
    "not provide",
    "not state",
    "not contain",
    "not say",
    "not list",
    "not include",
    "not given",
    "not found",
    "not available",
    "no information",
    "no mention",
];

/// An answer whose statements were compared with their lines.
#[derive(Debug)]
pub(super) struct GroundedFindings {
    /// The supported statements with their marks, and those that say what is missing.
    pub findings: Findings,
    /// The statements that no line supports.
    pub unsupported: Vec<String>,
    /// The words of the question in these statements that no document has.
    pub foreign_words: BTreeSet<String>,
    /// `true` if a statement is supported.
    pub is_answer: bool,
}

/// A line that can be cited, with the words that it stands for.
struct CitableLine<'c> {
    document: &'c Document,
    number: usize,
    numbers: BTreeSet<String>,
    words: BTreeSet<String>,
}

/// What a statement says beyond the question.
struct Claim {
    numbers: BTreeSet<String>,
    words: BTreeSet<String>,
    /// Its words, also those of the question.
    all_words: BTreeSet<String>,
    /// `true` if it says nothing but words of the question.
    is_echo: bool,
}

/// Compares an answer with the lines that were shown to the model, and those that it quotes.
pub(super) fn ground_findings(
    findings: &Findings,
    objective: &str,
    shown: &[(&Document, usize)],
    corpus: &Corpus,
) -> GroundedFindings {
    let lines = list_citable_lines(shown, &findings.quotations, corpus);
    let mut grounded = Findings { output: String::new(), quotations: Vec::new(), ..findings.clone() };
    let foreign = find_foreign_words(objective, &lines, corpus);
    let (mut unsupported, mut is_answer, mut foreign_words) = (Vec::new(), false, BTreeSet::new());
    let text = citations::split_combined_citations(&findings.output);
    let mut end = 0;
    for range in split_into_statements(&text) {
        grounded.output.push_str(&text[end..range.start]);
        end = range.end;
        let statement = &text[range];
        let plain = remove_marks(statement);
        let claim = Claim::of_statement(&plain, objective);
        if !plain.contains(char::is_alphanumeric) || plain.trim_start().starts_with('#') {
            grounded.output.push_str(&plain);
            continue;
        }
        if claim.numbers.is_empty() && is_negation(&plain) {
            grounded.output.push_str(plain.trim_end());
            continue;
        }
        let said: Vec<&String> = foreign
            .iter()
            .filter(|(stem, _)| claim.all_words.contains(*stem))
            .map(|(_, word)| word)
            .collect();
        if !said.is_empty() {
            foreign_words.extend(said.into_iter().cloned());
            unsupported.push(plain.trim().to_owned());
            continue;
        }
        let support = find_support(statement, &claim, objective, &lines, &findings.quotations);
        match support {
            Some(support) => {
                is_answer = true;
                let marks: Vec<usize> = support
                    .iter()
                    .map(|line| number_of(&mut grounded.quotations, line.to_passage()))
                    .collect();
                grounded.output.push_str(&add_marks(&plain, &marks));
            }
            None => unsupported.push(plain.trim().to_owned()),
        }
    }
    grounded.output.push_str(&text[end..]);
    grounded.output = grounded.output.trim().to_owned();
    grounded.summary = String::new();
    grounded.notes = findings.notes.clone().filter(|notes| !repeats(notes, &findings.output));
    GroundedFindings { findings: grounded, unsupported, foreign_words, is_answer }
}

/// Returns the lines that say what a statement says: those that it cites, or others.
fn find_support<'l, 'd>(
    statement: &str,
    claim: &Claim,
    objective: &str,
    lines: &'l [CitableLine<'d>],
    quotations: &[Passage],
) -> Option<Vec<&'l CitableLine<'d>>> {
    let others = find_documents_about_others(claim, objective, lines);
    let lines: Vec<&CitableLine<'_>> =
        lines.iter().filter(|line| !others.contains(line.document.path.as_str())).collect();
    let own = cited_passages(statement, quotations);
    let own_lines: Vec<&CitableLine<'_>> = lines.iter().copied().filter(|line| line.is_in(&own)).collect();
    match !own_lines.is_empty() && own_lines.len() <= MAX_LINES && claim.is_said_by(&own_lines) {
        true => Some(own_lines),
        false => claim.find_lines(&lines),
    }
}

/// Returns the statements of a text with a number that no text of `material` has.
pub(crate) fn find_invented_numbers(text: &str, material: &[&str]) -> Vec<String> {
    let known: BTreeSet<String> = material.iter().flat_map(|text| numbers_of(text, true)).collect();
    let statements = split_into_statements(text).into_iter().map(|range| &text[range]);
    let is_invented = |statement: &&str| !numbers_of(&remove_marks(statement), false).is_subset(&known);
    statements.filter(is_invented).map(str::to_owned).collect()
}

impl Claim {
    fn of_statement(statement: &str, objective: &str) -> Self {
        let asked = words_of(objective);
        let mut all = words_of(statement);
        all.remove("yes");
        let numbers: BTreeSet<String> =
            numbers_of(statement, false).difference(&numbers_of(objective, true)).cloned().collect();
        let own: BTreeSet<String> = all.difference(&asked).cloned().collect();
        let is_choice = is_yes_or_no(statement) || objective.contains(" or ");
        let says_nothing_new = own.is_empty() && numbers.is_empty();
        let words = if says_nothing_new { all.clone() } else { own };
        Self { numbers, words, all_words: all, is_echo: says_nothing_new && !is_choice }
    }

    fn is_said_by(&self, lines: &[&CitableLine<'_>]) -> bool {
        let has_number = |number: &String| lines.iter().any(|line| line.numbers.contains(number));
        let has_word = |word: &&String| lines.iter().any(|line| line.words.contains(*word));
        let share = self.words.iter().filter(has_word).count() as f64 / self.words.len().max(1) as f64;
        let least = match (self.numbers.is_empty(), self.words.is_empty()) {
            (false, true) => 0.0,
            (false, false) => MIN_SHARE_WITH_NUMBERS,
            (true, _) => MIN_SHARE,
        };
        !self.is_echo && self.numbers.iter().all(has_number) && share >= least
    }

    /// The lines that say it: the fewest that have its numbers, and of these the ones with most of its words.
    fn find_lines<'l, 'c>(&self, lines: &[&'l CitableLine<'c>]) -> Option<Vec<&'l CitableLine<'c>>> {
        let mut chosen: Vec<&'l CitableLine<'c>> = Vec::new();
        let (mut numbers, mut words) = (self.numbers.clone(), self.words.clone());
        while chosen.len() < MAX_LINES && !self.is_said_by(&chosen) {
            let gain = |line: &CitableLine<'_>| {
                let gained =
                    |wanted: &BTreeSet<String>, has: &BTreeSet<String>| wanted.intersection(has).count();
                (gained(&numbers, &line.numbers), gained(&words, &line.words))
            };
            // The first of equal lines.
            let best = lines.iter().copied().rev().max_by_key(|line| gain(line));
            let best = best.filter(|line| gain(line) > (0, 0))?;
            numbers.retain(|number| !best.numbers.contains(number));
            words.retain(|word| !best.words.contains(word));
            chosen.push(best);
        }
        self.is_said_by(&chosen).then_some(chosen)
    }
}

/// The lines from which another line takes words.
#[derive(Debug, Clone, Copy, Default)]
struct LineContext {
    /// The heading above it.
    heading: Option<usize>,
    /// The first row of its table.
    header: Option<usize>,
}

impl LineContext {
    /// Returns the context of each line of a document.
    fn of_lines(document: &Document) -> Vec<Self> {
        let (mut heading, mut header) = (None, None);
        let context = |number: usize| {
            let line = document.nth_line(number).unwrap_or_default();
            header = line.trim_start().starts_with('|').then(|| header.unwrap_or(number));
            let context = Self { heading, header };
            heading = if line.starts_with('#') { Some(number) } else { heading };
            context
        };
        (1..=document.line_count()).map(context).collect()
    }
}

impl<'c> CitableLine<'c> {
    /// A line stands for its own words and those of the title, the heading above it and the header of its table.
    fn new(document: &'c Document, number: usize, context: &[LineContext]) -> Option<Self> {
        let text = document.nth_line(number).filter(|text| is_citable(text))?;
        let LineContext { heading, header } = context.get(number - 1).copied().unwrap_or_default();
        let mut words = words_of(text);
        words.append(&mut words_of(&document.title));
        for more in [heading, header].into_iter().flatten().filter_map(|number| document.nth_line(number)) {
            words.append(&mut words_of(more));
        }
        Some(Self { document, number, numbers: numbers_of(text, true), words })
    }

    fn is_in(&self, passages: &[&Passage]) -> bool {
        let contains = |passage: &&Passage| {
            (passage.first_line as usize..=passage.last_line as usize).contains(&self.number)
                && passage.document == self.document.path
        };
        passages.iter().any(contains)
    }

    fn to_passage(&self) -> Passage {
        let line = u32::try_from(self.number).unwrap_or(u32::MAX);
        Passage { document: self.document.path.clone(), first_line: line, last_line: line, text: None }
    }
}

/// The words of a question that no document has, as stem and as written: a statement with such a word says what the
/// documents do not. Words of one family with one of the passages, such as `weigh` and `weight`, count as known.
fn find_foreign_words(
    objective: &str,
    lines: &[CitableLine<'_>],
    corpus: &Corpus,
) -> BTreeMap<String, String> {
    let counts = corpus.search(&objective.replace('"', " "), 1, 1).words;
    let unknown = counts.into_iter().filter(|count| count.documents == 0);
    let stems = unknown
        .flat_map(|count| words_of(&count.word).into_iter().map(move |stem| (stem, count.word.clone())));
    let is_known = |stem: &String| {
        LIGHT_WORDS.contains(&stem.as_str())
            || lines.iter().any(|line| line.words.iter().any(|word| is_one_family(word, stem)))
    };
    stems.filter(|(stem, _)| !is_known(stem)).collect()
}

/// The documents that can't say anything of a name in the statement: another document of the same folder has the name in its
/// title, and these do not mention it. The weight of one machine is not on the sheet of another.
fn find_documents_about_others<'c>(
    claim: &Claim,
    objective: &str,
    lines: &[CitableLine<'c>],
) -> BTreeSet<&'c str> {
    let folder =
        |document: &Document| document.path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
    let mut listed = BTreeSet::new();
    let documents = lines.iter().map(|line| line.document);
    let documents: Vec<&'c Document> =
        documents.filter(|document| listed.insert(document.path.as_str())).collect();
    let mut others = BTreeSet::new();
    for name in content::list_names(objective).iter().flat_map(|name| words_of(name)) {
        if !claim.all_words.contains(&name) {
            continue;
        }
        let has_title = |document: &&&Document| words_of(&document.title).contains(&name);
        let Some(own) = documents.iter().find(has_title) else { continue };
        let siblings = documents.iter().filter(|document| folder(document) == folder(own));
        let of_others = siblings.filter(|document| !words_of(document.text()).contains(&name));
        others.extend(of_others.map(|document| document.path.as_str()));
    }
    others
}

/// `true` if a statement begins with yes or no.
fn is_yes_or_no(statement: &str) -> bool {
    let first = statement.trim_start().split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    ["yes", "no"].contains(&first.to_lowercase().as_str())
}

fn is_one_family(one: &str, other: &str) -> bool {
    let common = one.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    common >= FAMILY.0 && one.chars().count().max(other.chars().count()) - common <= FAMILY.1
}

/// `true` if a line says something by itself: not a heading, and not the rule of a table.
fn is_citable(line: &str) -> bool {
    line.contains(char::is_alphanumeric) && !line.trim_start().starts_with('#')
}

fn list_citable_lines<'c>(
    shown: &[(&'c Document, usize)],
    quoted: &[Passage],
    corpus: &'c Corpus,
) -> Vec<CitableLine<'c>> {
    let quoted = quoted.iter().flat_map(|passage| {
        let document = corpus.find_document(&passage.document);
        document.into_iter().flat_map(|document| {
            let last = (passage.last_line as usize).min(document.line_count());
            (passage.first_line as usize..=last).map(move |number| (document, number))
        })
    });
    let (mut listed, mut contexts) = (BTreeSet::new(), BTreeMap::new());
    let new = |(document, number): &(&'c Document, usize)| listed.insert((document.path.as_str(), *number));
    let lines = shown.iter().copied().chain(quoted).filter(new);
    let citable = |(document, number): (&'c Document, usize)| {
        let context = contexts.entry(&document.path).or_insert_with(|| LineContext::of_lines(document));
        CitableLine::new(document, number, context)
    };
    lines.filter_map(citable).collect()
}

/// The number of a passage from 1; a new one is added.
fn number_of(passages: &mut Vec<Passage>, passage: Passage) -> usize {
    match passages.iter().position(|known| *known == passage) {
        Some(at) => at + 1,
        None => {
            passages.push(passage);
            passages.len()
        }
    }
}

/// The sentences and lines of a text, each with the marks after it.
fn split_into_statements(text: &str) -> Vec<Range<usize>> {
    let mut statements = Vec::new();
    let mut start = 0;
    let mut push = |range: Range<usize>| {
        let own = &text[range.clone()];
        let begin = range.start + (own.len() - own.trim_start().len());
        let end = range.start + own.trim_end().len();
        if begin < end {
            statements.push(begin..end);
        }
    };
    for (at, c) in text.char_indices() {
        let rest = &text[at + c.len_utf8()..];
        let is_end = match c {
            '\n' => true,
            '.' | '!' | '?' => {
                let after = skip_marks(rest);
                after.starts_with(char::is_whitespace)
                    && after.trim_start().starts_with(|c: char| !c.is_lowercase() && !c.is_ascii_digit())
            }
            _ => false,
        };
        if is_end && at >= start {
            let end = text.len() - skip_marks(rest).len();
            push(start..end);
            start = end;
        }
    }
    push(start..text.len());
    statements
}

/// A text without the marks at its beginning.
fn skip_marks(text: &str) -> &str {
    let mut rest = text;
    while let Some((mark, after)) =
        rest.trim_start_matches(' ').strip_prefix('[').and_then(|rest| rest.split_once(']'))
        && mark.bytes().all(|byte| byte.is_ascii_digit())
    {
        rest = after;
    }
    rest
}

/// A statement without its marks.
fn remove_marks(statement: &str) -> String {
    let mut plain = String::with_capacity(statement.len());
    let mut rest = statement;
    while let Some((before, after)) = rest.split_once('[') {
        match after.split_once(']') {
            Some((mark, after)) if is_mark(mark) => {
                plain.push_str(before.trim_end_matches(' '));
                rest = after;
            }
            Some(_) | None => {
                plain.push_str(before);
                plain.push('[');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    // A label without brackets, as in `P1: It weighs 9 kg.`
    match plain.trim_start().split_once(':') {
        Some((label, rest)) if label.starts_with('P') && is_mark(label) => rest.trim_start().to_owned(),
        Some(_) | None => plain,
    }
}

/// `true` for `3`, for a source such as `S3`, for a label of a line that does not exist, such as `P9:1`, and for an address.
fn is_mark(mark: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| b"0123456789:-".contains(&byte));
    let is_address = mark.starts_with("http") && mark.contains("://") && !mark.contains(char::is_whitespace);
    is_address || digits(mark) || mark.strip_prefix(['P', 'S']).is_some_and(digits)
}

/// Adds marks before the final punctuation of a statement.
fn add_marks(plain: &str, marks: &[usize]) -> String {
    let plain = plain.trim_end();
    let text = plain.trim_end_matches(['.', '!', '?']);
    let marks: String = marks.iter().map(|number| format!("[{number}]")).collect();
    format!("{} {marks}{}", text.trim_end(), &plain[text.len()..])
}

fn cited_passages<'p>(statement: &str, quotations: &'p [Passage]) -> Vec<&'p Passage> {
    let marks =
        statement.split('[').skip(1).filter_map(|after| after.split_once(']')?.0.parse::<usize>().ok());
    marks.filter_map(|number| quotations.get(number.checked_sub(1)?)).collect()
}

fn is_negation(statement: &str) -> bool {
    let statement = statement.to_lowercase().replace("n't ", " not ");
    NEGATIONS.iter().any(|phrase| statement.contains(phrase))
}

/// `true` if notes say what the answer says, or nothing.
fn repeats(notes: &str, output: &str) -> bool {
    words_of(&remove_marks(notes)).is_subset(&words_of(&remove_marks(output)))
}

/// The stems of the words of a text, without stop words and numbers.
fn words_of(text: &str) -> BTreeSet<String> {
    let is_number = |stem: &str| stem.starts_with(|c: char| c.is_ascii_digit());
    let terms = tokenize(text, Language::default()).into_iter().flat_map(|term| term.stems);
    terms.filter(|stem| !is_number(stem)).collect()
}

/// The numbers of a text: `1,500` as `1500`, `11:00` as it stands, and `six` as `6` if `in_words`.
fn numbers_of(text: &str, in_words: bool) -> BTreeSet<String> {
    let mut numbers = BTreeSet::new();
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = 0;
    while at < bytes.len() {
        if !is_digit(at) {
            at += 1;
            continue;
        }
        let start = at;
        while is_digit(at) || (matches!(bytes.get(at), Some(b'.' | b',' | b':')) && is_digit(at + 1)) {
            at += 1;
        }
        numbers.insert(text[start..at].replace(',', ""));
    }
    if in_words {
        let values =
            fold_words(text).filter_map(|word| NUMBER_WORDS.iter().position(|number| *number == word));
        numbers.extend(values.map(|value| value.to_string()));
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::labels::{PassageLabels, ShownPassage, format_labelled_passages};
    use crate::corpus::InputFile;

    const ABOUT: &str = "# Larkfield Workshop\n\nIt was founded on 3 May 2011 by Ines Varga.\n\n## People\n\n\
        | role | name | since |\n|---|---|---|\n| chair | Oskar Lindqvist | 2022 |\n| treasurer | Priya Nair | 2019 |\n";
    const SAW: &str = "# Heron band saw\n\n| | |\n|---|---|\n| weight | 1,310 kg |\n| voltage | 400 V |\n";

    const PLOVER: &str = "# Plover table saw\n\nIt cuts 55 mm deep.\n";

    fn ground(objective: &str, output: &str) -> GroundedFindings {
        let file = |path: &str, text: &str| InputFile { path: path.into(), bytes: text.as_bytes().to_vec() };
        let files = vec![file("about.md", ABOUT), file("heron.md", SAW), file("plover.md", PLOVER)];
        let corpus = Corpus::build_or_load(files, None).unwrap();
        let shown = corpus.documents().iter().map(|document| ShownPassage {
            document,
            first_line: 1,
            last_line: document.line_count(),
        });
        let prompt = format_labelled_passages(&shown.collect::<Vec<_>>(), 10_000);
        let labels = PassageLabels::read_from_prompt(&prompt);
        let findings = Findings { output: output.into(), ..Findings::default() };
        let read = labels.number_citations(findings.clone(), Some(&corpus)).unwrap_or(findings);
        ground_findings(&read, objective, &labels.shown_lines(&corpus), &corpus)
    }

    fn places(grounded: &GroundedFindings) -> Vec<(&str, u32)> {
        grounded.findings.quotations.iter().map(|one| (one.document.as_str(), one.first_line)).collect()
    }

    #[test]
    fn statement_without_a_mark_gets_that_of_the_line_that_says_it() {
        for output in [
            "The band saw weighs 1310 kg.",
            "The band saw weighs 1,310 kg [P1:3].",
            "The band saw weighs 1,310 kg [P7:1].",
        ] {
            let grounded = ground("How much does the Heron band saw weigh?", output);
            assert_eq!(places(&grounded), [("heron.md", 5)], "{output}");
            assert!(grounded.findings.output.ends_with(" kg [1]."), "{}", grounded.findings.output);
            assert!(grounded.is_answer && grounded.unsupported.is_empty());
        }
        let grounded = ground("Who is the treasurer?", "Priya Nair is the treasurer since 2019.");
        assert_eq!(grounded.findings.output, "Priya Nair is the treasurer since 2019 [1].");
        assert_eq!(places(&grounded), [("about.md", 10)]);
        let both = "It was founded on 3 May 2011. The saw needs 400 V.";
        let grounded = ground("When was it founded, and what does the saw need?", both);
        assert_eq!(grounded.findings.output, "It was founded on 3 May 2011 [1]. The saw needs 400 V [2].");
    }

    #[test]
    fn label_without_brackets_is_no_part_of_a_statement() {
        let grounded = ground("How much does the saw weigh?", "P2: The saw weighs 1,310 kg.");
        assert_eq!(grounded.findings.output, "The saw weighs 1,310 kg [1].");
        assert_eq!(places(&grounded), [("heron.md", 5)]);
    }

    #[test]
    fn mark_of_a_line_that_says_it_stays() {
        let grounded = ground("Who founded it?", "Ines Varga founded it [P1:3].");
        assert_eq!(grounded.findings.output, "Ines Varga founded it [1].");
        assert_eq!(places(&grounded), [("about.md", 3)]);
    }

    #[test]
    fn statement_that_no_line_says_is_taken_out() {
        let grounded = ground("How much does the saw weigh?", "It weighs 690 kg. The saw weighs 1,310 kg.");
        assert_eq!(grounded.unsupported, ["It weighs 690 kg."]);
        assert_eq!(grounded.findings.output, "The saw weighs 1,310 kg [1].");
        let grounded = ground("What does lunch cost?", "Lunch in the cafeteria is free for guests.");
        assert!(!grounded.is_answer && grounded.findings.output.is_empty(), "{grounded:?}");
        let grounded = ground("When was Ines Varga born?", "Ines Varga was born in 1970.");
        assert_eq!(grounded.unsupported.len(), 1);
    }

    #[test]
    fn statement_that_only_repeats_the_question_is_no_answer() {
        for (question, answer, is_answer) in [
            ("Who is the treasurer?", "The treasurer.", false),
            ("Who is the treasurer?", "about.md", false),
            ("Is the treasurer Priya Nair?", "Yes, the treasurer is Priya Nair.", true),
            ("Is the chair Priya Nair or Oskar Lindqvist?", "The chair is Oskar Lindqvist.", true),
        ] {
            assert_eq!(ground(question, answer).is_answer, is_answer, "{answer}");
        }
    }

    #[test]
    fn number_from_the_sheet_of_another_subject_is_taken_out() {
        // Both are in one folder; the sheet of the Plover is there, and has no weight.
        let question = "How much does the Plover table saw weigh?";
        let grounded = ground(question, "The Plover table saw weighs 1,310 kg.");
        assert_eq!((grounded.unsupported.len(), grounded.is_answer), (1, false), "{grounded:?}");
        assert!(ground(question, "The Plover table saw cuts 55 mm deep.").is_answer);
    }

    #[test]
    fn statement_with_a_word_of_the_question_that_no_document_has_is_taken_out() {
        let grounded = ground("When was Ines Varga born?", "Ines Varga was born on 3 May 2011.");
        assert_eq!((grounded.unsupported.len(), grounded.is_answer), (1, false));
        assert_eq!(Vec::from_iter(&grounded.foreign_words), ["born"]);
        for (question, answer) in [
            ("How much does the Heron band saw weigh?", "The Heron band saw weighs 1,310 kg."),
            ("During which year did it begin?", "It was founded in 2011."),
            ("How wide or loud is the saw?", "The saw has 400 V."),
        ] {
            let grounded = ground(question, answer);
            assert!(grounded.is_answer && grounded.unsupported.is_empty(), "{grounded:?}");
        }
    }

    #[test]
    fn statement_about_what_is_missing_needs_no_line() {
        for output in
            ["The passages do not mention lunch.", "There is no information about it.", "It isn't stated."]
        {
            let grounded = ground("What does lunch cost?", output);
            assert!(!grounded.is_answer && grounded.unsupported.is_empty(), "{grounded:?}");
            assert_eq!(grounded.findings.output, output);
        }
    }

    #[test]
    fn notes_that_repeat_the_answer_are_dropped() {
        let notes = |notes: &str| {
            let findings = Findings {
                notes: Some(notes.into()),
                output: "It weighs 9 kg.".into(),
                ..Findings::default()
            };
            repeats(findings.notes.as_deref().unwrap(), &findings.output)
        };
        assert!(notes("It weighs 9 kg [3].") && !notes("Its price is missing."));
    }

    #[test]
    fn number_of_a_report_has_to_be_in_a_result() {
        let material = ["The saw weighs 1,310 kg [1].", "What does the saw weigh?"];
        let invented =
            find_invented_numbers("## Saw\n\nIt weighs 1310 kg [1]. It costs 20 euros [1].", &material);
        assert_eq!(invented, ["It costs 20 euros [1]."]);
    }

    #[test]
    fn numbers_are_compared_by_value() {
        assert_eq!(
            Vec::from_iter(numbers_of("1,500 at 11:00, 2.5 and six", true)),
            ["11:00", "1500", "2.5", "6"]
        );
    }
}
