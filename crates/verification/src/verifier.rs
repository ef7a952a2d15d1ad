//! The verification of one text: the decisions of code, the questions for a model, and the verdicts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use millrace_models::model::Reply;
use millrace_protocol::result::{Finder, SourceLines, StatementVerdict, VerifiedStatement};

use crate::figure::{FigureIndex, FigurePlaces};
use crate::lines::{CharacterPositions, CitedLines, Sources};
use crate::phrases::Phrases;
use crate::probe::Calibration;
use crate::question::{
    Case, Form, Judgement, Question, Subject, answer_claim, read_reply, write_answer_question, write_question,
};
use crate::quotation::{QuotableTexts, inside_quotes};
use crate::sentence::is_single_question;
use crate::statement::{Context, MarkedText, Statement, split_statements};

/// The most characters of the passages for one statement.
const MAX_PASSAGES: usize = 2_400;
/// The most passages that search adds.
const MAX_FOUND: usize = 4;

/// The verification of a text.
pub struct Verification {
    text: String,
    statements: Vec<State>,
    /// Verdicts of models on statements of earlier texts.
    known: Vec<VerifiedStatement>,
    /// The question that the text answers, if it is a single one. Then a statement counts as supported only if a passage answers it.
    asked: Option<String>,
    phrases: &'static Phrases,
}

/// A statement, with its verdict as soon as there is one.
enum State {
    Decided(Range<usize>, VerifiedStatement),
    Open(OpenStatement),
}

struct OpenStatement {
    range: Range<usize>,
    text: String,
    case: Case,
    /// Calculations from which its figures follow.
    derived: Vec<String>,
    /// The locations of the sources that it cites.
    cited: Vec<String>,
    judgement: Option<(Judgement, Decider)>,
    /// The probability that its passages answer the question of the text.
    answers: Option<f64>,
    /// The number of rounds of questions about it.
    rounds: usize,
}

/// The model of a judgement.
#[derive(Clone)]
struct Decider {
    model: String,
    threshold: f64,
}

impl Verification {
    /// Splits a text and decides what code can decide. `question` is the question that the text answers, or empty; `known` are verdicts on
    /// earlier texts of the same run: a statement with the same words takes one over if it cites the source of its lines.
    pub fn new(
        text: &str,
        is_mark: &dyn Fn(&str) -> bool,
        question: &str,
        sources: &dyn Sources,
        known: impl IntoIterator<Item = VerifiedStatement>,
    ) -> Self {
        let marked = split_statements(text, is_mark);
        let (figures, texts) = (FigureIndex::new(sources), QuotableTexts::new(sources));
        let phrases = Phrases::choose(question, text);
        let lines = RefCell::default();
        let comparison = Comparison { sources, figures, texts, lines, question, marked: &marked, phrases };
        let statements =
            marked.statements.iter().map(|statement| comparison.compare(statement, text)).collect();
        let asked = is_single_question(question).then(|| question.trim().to_owned());
        Self { text: text.to_owned(), statements, known: known.into_iter().collect(), asked, phrases }
    }

    /// The verification of one claim: that a text answers a question. The text is its only source.
    pub fn of_answer(question: &str, text: &str) -> Self {
        let claim = answer_claim(question);
        let words: String = text.chars().take(MAX_PASSAGES).collect();
        let last_line = u32::try_from(words.lines().count()).unwrap_or(u32::MAX);
        let lines = SourceLines { source: "answer".into(), first_line: 1, last_line };
        let case =
            Case { claim: claim.clone(), context: String::new(), passages: vec![(lines, words)], first: 1 };
        let open = OpenStatement {
            range: 0..claim.len(),
            text: claim.clone(),
            case,
            derived: Vec::new(),
            cited: Vec::new(),
            judgement: None,
            answers: None,
            rounds: 0,
        };
        let phrases = Phrases::choose(question, text);
        Self { text: claim, statements: vec![State::Open(open)], known: Vec::new(), asked: None, phrases }
    }

    /// The phrases in the language of the reasons.
    pub fn phrases(&self) -> &'static Phrases {
        self.phrases
    }

    /// Leaves out the statements that code did not decide.
    #[must_use]
    pub fn without_open_statements(mut self) -> Self {
        self.statements.retain(|state| matches!(state, State::Decided(..)));
        self
    }

    /// `true` if a model is needed for nothing.
    pub fn is_decided(&self) -> bool {
        self.statements.iter().all(|state| matches!(state, State::Decided(..)))
    }

    /// The next questions about the statements that code left open, in order; none after the last round. Verdicts that are known are
    /// taken over first. A small model gets the first passages of a statement alone, and all of them if those did not
    /// decide it: other passages beside the right one mislead it.
    pub fn questions(&mut self, calibration: &Calibration) -> Vec<Question> {
        self.take_known(&calibration.model);
        let open = self.statements.iter_mut().enumerate().filter_map(|(at, state)| match state {
            State::Open(open) => Some((at, open)),
            State::Decided(..) => None,
        });
        match calibration.form {
            Form::Single => {
                let asked = self.asked.as_deref();
                open.flat_map(|(at, open)| open.next_questions(at, asked, calibration.threshold)).collect()
            }
            Form::Several => {
                let new: Vec<(usize, &Case)> = open
                    .filter_map(|(at, open)| {
                        let is_new = open.rounds == 0;
                        open.rounds = 1;
                        is_new.then_some((at, &open.case))
                    })
                    .collect();
                new.chunks(Form::Several.max_statements())
                    .map(|cases| write_question(Form::Several, cases))
                    .collect()
            }
        }
    }

    /// Takes over the verdicts of a model on statements with the same words.
    fn take_known(&mut self, model: &str) {
        for state in &mut self.statements {
            let taken = match state {
                State::Open(open) => self.known.iter().find(|known| open.can_take(known, model)),
                State::Decided(..) => None,
            };
            if let (State::Open(open), Some(taken)) = (&*state, taken) {
                let own = VerifiedStatement { text: open.text.clone(), ..taken.clone() };
                *state = State::Decided(open.range.clone(), own);
            }
        }
    }

    /// Takes the reply to one of the questions. A reply that can't be read leaves its statements unverified.
    pub fn answer(&mut self, question: &Question, reply: &Reply, calibration: &Calibration) {
        let judgements = read_reply(question.form, question.statements.len(), reply);
        let decider = Decider { model: calibration.model.clone(), threshold: calibration.threshold };
        for (number, judgement) in question.statements.iter().zip(judgements) {
            let (Some(State::Open(open)), Some(judgement)) = (self.statements.get_mut(*number), judgement)
            else {
                continue;
            };
            match question.subject {
                Subject::Statements => open.judgement = Some((judgement, decider.clone())),
                Subject::Answer => open.answers = judgement.likelihood().or(open.answers),
            }
        }
    }

    /// The verdicts, in the order of the statements. `reason` explains the missing verdicts; `None` if the model gave
    /// no verdict on them.
    pub fn finish(self, reason: Option<&str>) -> Vec<VerifiedStatement> {
        let reason = reason.unwrap_or(&self.phrases.no_verdict);
        let is_answered = self.is_answered();
        let mut characters = CharacterPositions::new(&self.text);
        let mut place = |range: &Range<usize>, one: VerifiedStatement| {
            let (start, end) = (characters.before(range.start), characters.before(range.end));
            VerifiedStatement { start, end, ..one }
        };
        self.statements
            .into_iter()
            .map(|state| match state {
                State::Decided(range, verdict) => place(&range, verdict),
                State::Open(open) => {
                    let range = open.range.clone();
                    place(&range, open.conclude(is_answered, reason, self.phrases))
                }
            })
            .collect()
    }
}

impl Verification {
    /// `false` if the text answers a single question, and no passage of its statements does.
    fn is_answered(&self) -> bool {
        let mut was_asked = false;
        let answers = |state: &State| match state {
            State::Decided(_, known) => {
                known.verdict == StatementVerdict::Supported
                    && matches!(known.found_by, Some(Finder::Model(_)))
            }
            State::Open(open) => {
                was_asked |= open.answers.is_some();
                open.answers.zip(open.judgement.as_ref()).is_some_and(|(p, (_, by))| p >= by.threshold)
            }
        };
        let found = self.statements.iter().map(answers).fold(false, |any, one| any | one);
        found || !was_asked
    }
}

impl OpenStatement {
    /// The questions of the next round in the single form; none if the rounds before have decided it.
    fn next_questions(&mut self, number: usize, asked: Option<&str>, threshold: f64) -> Vec<Question> {
        let likelihood = self.judgement.as_ref().and_then(|(judgement, _)| judgement.likelihood());
        let is_open = |known: Option<f64>| known.is_none_or(|probability| probability < threshold);
        let case = match self.rounds {
            0 if self.case.has_more() => self.case.narrowed(),
            0 => self.case.clone(),
            1 if self.case.has_more() => self.case.clone(),
            _ => return Vec::new(),
        };
        self.rounds += 1;
        let claim = is_open(likelihood).then(|| write_question(Form::Single, &[(number, &case)]));
        let asked = asked.filter(|_| is_open(self.answers));
        claim.into_iter().chain(asked.map(|asked| write_answer_question(number, asked, &case))).collect()
    }

    /// `true` if a verdict of this model on a statement with the same words is one on this statement.
    fn can_take(&self, known: &VerifiedStatement, model: &str) -> bool {
        let is_by_model = matches!(&known.found_by, Some(Finder::Model(name)) if name == model);
        let is_cited = |lines: &SourceLines| self.cited.is_empty() || self.cited.contains(&lines.source);
        is_by_model && known.text == self.text && known.lines.iter().all(is_cited)
    }

    fn conclude(self, is_answered: bool, reason: &str, phrases: &Phrases) -> VerifiedStatement {
        let unplaced = decided(&self.text, StatementVerdict::Unverified, None, Vec::new(), reason.to_owned());
        let Some((judgement, decider)) = self.judgement else {
            let lines = self.case.passages.first().map(|(lines, _)| lines.clone());
            return VerifiedStatement { lines: lines.into_iter().collect(), ..unplaced };
        };
        let is_likely = |probability: f64| match probability >= decider.threshold {
            true => StatementVerdict::Supported,
            false => StatementVerdict::Unsupported,
        };
        let verdict = judgement
            .verdict
            .or(judgement.probability.map(is_likely))
            .unwrap_or(StatementVerdict::Unverified);
        let is_no_answer = verdict == StatementVerdict::Supported && !is_answered;
        let named: Vec<SourceLines> =
            judgement.passages.iter().filter_map(|at| Some(self.case.passages.get(*at)?.0.clone())).collect();
        let first = self.case.passages.first().map(|(lines, _)| lines.clone());
        let lines = if named.is_empty() { first.into_iter().collect() } else { named };
        let mut reason = match is_no_answer {
            true => phrases.describe_no_answer(&lines),
            false => judgement.reason.unwrap_or_else(|| phrases.describe_verdict(verdict, &lines)),
        };
        for calculation in &self.derived {
            reason.push_str(&format!(" {calculation}."));
        }
        let probability = if is_no_answer { self.answers } else { judgement.probability };
        VerifiedStatement {
            verdict: if is_no_answer { StatementVerdict::Unsupported } else { verdict },
            lines,
            found_by: Some(Finder::Model(decider.model)),
            reason,
            probability,
            ..unplaced
        }
    }
}

fn decided(
    text: &str,
    verdict: StatementVerdict,
    found_by: Option<Finder>,
    lines: Vec<SourceLines>,
    reason: String,
) -> VerifiedStatement {
    VerifiedStatement {
        text: text.to_owned(),
        start: 0,
        end: 0,
        verdict,
        lines,
        found_by,
        reason,
        probability: None,
        removed: false,
    }
}

/// The comparison of a text with its sources.
struct Comparison<'a> {
    sources: &'a dyn Sources,
    figures: FigureIndex<'a>,
    texts: QuotableTexts<'a>,
    /// The lines of the sources, split once when they are needed.
    lines: RefCell<BTreeMap<String, Rc<Vec<&'a str>>>>,
    question: &'a str,
    marked: &'a MarkedText,
    phrases: &'static Phrases,
}

impl<'a> Comparison<'a> {
    fn compare(&self, statement: &Statement, text: &str) -> State {
        let range = statement.range.clone();
        let cited = self.resolve_marks(statement);
        let cited_sources: Vec<String> = cited.iter().map(|one| one.location().to_owned()).collect();
        let passages = self.cited_passages(statement, &cited);
        let hits = self.sources.search(&self.search_text(statement), None);
        let hits: Vec<SourceLines> = hits.into_iter().take(MAX_FOUND).collect();
        let found = self.add_passages(passages.clone(), hits.iter().cloned());
        let places = cited_sources.iter().map(String::as_str);
        let places: Vec<&str> = places.chain(found.iter().map(|(lines, _)| lines.source.as_str())).collect();
        if let Some(verdict) = self.find_quotation(statement, &text[range.clone()], &places) {
            return State::Decided(range, verdict);
        }
        let near: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
        let places = self.figures.find(&statement.text, &cited_sources, &near, self.question);
        let (lines, derived) = match places {
            FigurePlaces::Invented(invented) => {
                let reason = self.phrases.describe_missing_figures(&invented);
                let verdict = StatementVerdict::Unsupported;
                return State::Decided(
                    range,
                    decided(&statement.text, verdict, Some(Finder::Figure), Vec::new(), reason),
                );
            }
            FigurePlaces::Found { lines, derived } => (lines, derived),
        };
        if let Some(missing) = self.texts.find_missing_quotation(&statement.text, &cited_sources) {
            let reason = self.phrases.describe_missing_quotation(missing);
            let verdict = StatementVerdict::Unsupported;
            return State::Decided(
                range,
                decided(&statement.text, verdict, Some(Finder::Quotation), Vec::new(), reason),
            );
        }
        let passages = self.add_passages(passages, lines);
        let first = passages.len().max(1);
        let passages = self.add_passages(passages, hits);
        if passages.is_empty() {
            let reason = self.phrases.no_lines.clone();
            let verdict = decided(&statement.text, StatementVerdict::Unverified, None, Vec::new(), reason);
            return State::Decided(range, verdict);
        }
        let case =
            Case { claim: statement.text.clone(), context: self.context_of(statement), passages, first };
        State::Open(OpenStatement {
            range,
            text: statement.text.clone(),
            case,
            derived,
            cited: cited_sources,
            judgement: None,
            answers: None,
            rounds: 0,
        })
    }

    /// The lines and sources that the marks of a statement cite.
    fn resolve_marks(&self, statement: &Statement) -> Vec<CitedLines> {
        let cited = statement.marks.iter().flat_map(|mark| match mark.strip_prefix('^') {
            Some(label) => {
                let addresses = self.marked.footnotes.get(label).into_iter().flatten();
                addresses.flat_map(|address| self.sources.cited(address)).collect()
            }
            None => self.sources.cited(mark),
        });
        let mut unique: Vec<CitedLines> = Vec::new();
        cited.for_each(|one| {
            if !unique.contains(&one) {
                unique.push(one);
            }
        });
        unique
    }

    /// A statement that is wholly a quotation is decided by its words. One without quotation marks is looked for in `near`: the sources
    /// that it cites, and those that search finds for it.
    fn find_quotation(
        &self,
        statement: &Statement,
        written: &str,
        near: &[&str],
    ) -> Option<VerifiedStatement> {
        let inner = inside_quotes(&statement.text);
        let is_block_quote = written.trim_start().starts_with('>');
        let is_whole = inner.is_none();
        let place = match inner {
            Some(words) => self.texts.find_words(words, near),
            None => self.texts.find_sentences(&statement.text, near),
        };
        if let Some(place) = place {
            let reason = self.phrases.describe_quotation(&place);
            let finder = Some(Finder::Quotation);
            return Some(decided(&statement.text, StatementVerdict::Supported, finder, vec![place], reason));
        }
        if (is_whole && !is_block_quote) || !self.texts.is_complete() {
            return None;
        }
        let reason = self.phrases.missing_words.clone();
        let verdict = StatementVerdict::Unsupported;
        Some(decided(&statement.text, verdict, Some(Finder::Quotation), Vec::new(), reason))
    }

    /// The passages that a statement cites; of a source that is cited as a whole, those that share most with it, or else its beginning: it
    /// may be in another language.
    fn cited_passages(&self, statement: &Statement, cited: &[CitedLines]) -> Vec<(SourceLines, String)> {
        let lines = cited.iter().flat_map(|one| match one {
            CitedLines::Lines(lines) => vec![lines.clone()],
            CitedLines::Source(location) => {
                let found = self.sources.search(&self.search_text(statement), Some(location));
                match found.is_empty() {
                    true => self.beginning_of(location).into_iter().collect(),
                    false => found.into_iter().take(MAX_FOUND).collect::<Vec<_>>(),
                }
            }
        });
        self.add_passages(Vec::new(), lines)
    }

    /// The first lines of a source that fit in the passages; `None` if it has no text.
    fn beginning_of(&self, location: &str) -> Option<SourceLines> {
        let mut room = MAX_PASSAGES;
        let fits = |line: &&&str| {
            let length = line.chars().count() + 1;
            let has_room = length <= room;
            room = room.saturating_sub(length);
            has_room
        };
        let count = self.lines_of(location).iter().take_while(fits).count();
        let last_line = u32::try_from(count).unwrap_or(u32::MAX);
        (last_line > 0).then(|| SourceLines { source: location.to_owned(), first_line: 1, last_line })
    }

    /// Adds lines that are not known, as long as there is room.
    fn add_passages(
        &self,
        mut passages: Vec<(SourceLines, String)>,
        more: impl IntoIterator<Item = SourceLines>,
    ) -> Vec<(SourceLines, String)> {
        let mut room = MAX_PASSAGES;
        room = passages.iter().fold(room, |room, (_, text)| room.saturating_sub(text.chars().count()));
        for lines in more {
            let is_known = |(known, _): &(SourceLines, String)| {
                known.source == lines.source
                    && known.first_line <= lines.first_line
                    && lines.last_line <= known.last_line
            };
            if room == 0 || passages.iter().any(is_known) {
                continue;
            }
            let mut words = passage_text(&self.lines_of(&lines.source), &lines);
            let length = words.chars().count();
            if length > room {
                words = words.chars().take(room).collect();
            }
            room = room.saturating_sub(length);
            if words.contains(char::is_alphanumeric) {
                passages.push((lines, words));
            }
        }
        passages
    }

    /// The lines of a source; none if it has no text.
    fn lines_of(&self, location: &str) -> Rc<Vec<&'a str>> {
        if let Some(known) = self.lines.borrow().get(location) {
            return known.clone();
        }
        let lines: Rc<Vec<&str>> = Rc::new(self.sources.text(location).unwrap_or_default().lines().collect());
        self.lines.borrow_mut().insert(location.to_owned(), lines.clone());
        lines
    }

    fn search_text(&self, statement: &Statement) -> String {
        let heading = statement.context.heading.as_deref().unwrap_or_default();
        format!("{} {heading}", statement.text)
    }

    /// The text that completes the meaning of a statement: the question that it answers, or the heading and the introduction above it.
    /// The sentence before it is no part: it may be false, and would make a true statement false.
    fn context_of(&self, statement: &Statement) -> String {
        let Context { heading, introduction } = &statement.context;
        match self.question.trim() {
            "" => [heading, introduction]
                .into_iter()
                .flatten()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(" "),
            question => question.to_owned(),
        }
    }
}

/// The text of lines, after the heading above them and the head of their table.
fn passage_text(all: &[&str], lines: &SourceLines) -> String {
    let (first, last) = (lines.first_line as usize, lines.last_line as usize);
    let own = all.get(first.saturating_sub(1)..last.min(all.len())).unwrap_or_default();
    let above = all.get(..first.saturating_sub(1)).unwrap_or_default();
    let heading = above.iter().rev().find(|line| line.starts_with('#'));
    let is_row = |line: &&&str| line.trim_start().starts_with('|');
    let is_in_table = own.first().is_some_and(|line| is_row(&line));
    let head = above.iter().rev().take_while(is_row).last().filter(|_| is_in_table);
    heading.into_iter().chain(head).chain(own).copied().collect::<Vec<_>>().join("\n")
}
