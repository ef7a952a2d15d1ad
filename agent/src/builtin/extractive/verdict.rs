//! The critic's part: checks a result against the documents themselves. It owns the checks that need no judgement, and
//! says of the others that they were not judged.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::result::{Quotation, SourceKind, TaskResult};
use serde_json::{Value, json};

use super::conversation::{self, Exchange, Passage, exchanges, has_tool};
use super::criteria;
use super::question::{Question, Wanted};
use crate::citations;
use crate::citations::fold;
use crate::corpus::terms;
use crate::critic::{Answered, Judgement, ReviewTask};
use crate::model::{Reply, Request};
use crate::roles::{PRODUCER, RESEARCH};

const SEARCH: &str = "search_documents";
const READ: &str = "read_document";

/// The most faults of one kind that are named.
const MAX_NAMED: usize = 5;

pub(super) fn reply(request: &Request, task: &ReviewTask) -> Reply {
    let exchanges = exchanges(request);
    if exchanges.is_empty() {
        let mut calls = Vec::new();
        if has_tool(request, READ) {
            calls.extend(readings(&task.result));
        }
        let open = uncovered(task);
        if has_tool(request, SEARCH) && !open.is_empty() {
            let words: Vec<&str> = open.iter().map(|wanted| wanted.word.as_str()).collect();
            calls.push((SEARCH, json!({"query": words.join(" "), "limit": 1})));
        }
        if !calls.is_empty() {
            return conversation::call(request, calls);
        }
    }
    conversation::answer(&Review { task, exchanges }.judge())
}

/// What must be read to check a result: the lines of each quotation, and one line of each other document.
fn readings(result: &TaskResult) -> Vec<(&'static str, Value)> {
    let mut calls = Vec::new();
    let mut seen = BTreeSet::new();
    for source in result.sources.iter().filter(|source| source.kind == SourceKind::Document) {
        let quotations: Vec<&Quotation> =
            result.quotations.iter().filter(|quotation| quotation.source == source.id).collect();
        let mut places: Vec<(u32, u32)> =
            quotations.iter().map(|quotation| (quotation.first_line, quotation.last_line)).collect();
        if places.is_empty() {
            places.push((1, 1));
        }
        for (first, last) in places {
            if seen.insert((source.location.as_str(), first, last)) {
                calls.push((READ, json!({"path": source.location, "first_line": first, "last_line": last})));
            }
        }
    }
    calls
}

/// The terms of the question that no quotation has.
fn uncovered(task: &ReviewTask) -> Vec<Wanted> {
    if !is_cited_work(task) {
        return Vec::new();
    }
    Question::read(&task.objective).uncovered(&task.result.quotations)
}

/// Whether the result is of the kind that quotes documents. Other work is not held to that.
fn is_cited_work(task: &ReviewTask) -> bool {
    [RESEARCH, PRODUCER].contains(&task.capability.as_str()) || !task.result.quotations.is_empty()
}

struct Review<'a> {
    task: &'a ReviewTask,
    exchanges: Vec<Exchange<'a>>,
}

impl Review<'_> {
    fn judge(&self) -> Judgement {
        let mut outcomes = vec![
            outcome(criteria::NOT_EMPTY, self.emptiness()),
            outcome(criteria::CITATIONS, self.citations()),
            outcome(criteria::QUOTATIONS, self.quotations()),
        ];
        if is_cited_work(self.task) {
            outcomes.push(outcome(criteria::COVERAGE, self.coverage()));
        }
        let mut not_judged = 0;
        for criterion in &self.task.criteria {
            if outcomes.iter().all(|known| known.criterion != *criterion) {
                not_judged += 1;
                outcomes.push(outcome(criterion, Vec::new()));
            }
        }
        self.verdict(outcomes, not_judged)
    }

    fn verdict(&self, criteria: Vec<Answered>, not_judged: usize) -> Judgement {
        let passed = criteria.iter().all(|outcome| outcome.met);
        let gaps: Vec<&str> = criteria.iter().filter_map(|outcome| outcome.gap.as_deref()).collect();
        let result = &self.task.result;
        let mut reasoning = format!(
            "Checked word for word against the documents: {} quotations, {} sources. ",
            result.quotations.len(),
            result.sources.len()
        );
        reasoning.push_str(if passed { "Nothing is wrong with them." } else { "What is wrong:" });
        for gap in &gaps {
            reasoning.push_str(&format!(" {gap}"));
        }
        if not_judged > 0 {
            reasoning.push_str(&format!(
                " {not_judged} criteria need judgement; without a language model they were taken as met."
            ));
        }
        let feedback = (!passed).then(|| gaps.join("\n"));
        let task_id = Some(self.task.task_id.to_string());
        Judgement { task_id, criteria, reasoning, feedback, passed, confidence: None }
    }

    fn emptiness(&self) -> Vec<String> {
        if self.task.result.is_empty() {
            vec!["There is neither output nor data.".into()]
        } else {
            Vec::new()
        }
    }

    fn citations(&self) -> Vec<String> {
        let result = &self.task.result;
        let cited: BTreeSet<&str> =
            citations::citations(&result.output, &result.quotations).into_iter().collect();
        let listed: BTreeSet<&str> = result.sources.iter().map(|source| source.id.as_str()).collect();
        let mut faults: Vec<String> = Vec::new();
        if is_cited_work(self.task) {
            let unlisted = cited.difference(&listed).map(|mark| format!("[{mark}] names no listed source."));
            let uncited =
                listed.difference(&cited).map(|id| format!("Source {id} is not cited in the output."));
            faults.extend(unlisted);
            // In what it was not shown it may be cited.
            faults.extend(uncited.filter(|_| !self.task.is_cut));
        }
        for source in result.sources.iter().filter(|source| source.kind == SourceKind::Document) {
            if !self.can_be_read(&source.location) {
                faults.push(format!("Source {} ({}) can't be read.", source.id, source.location));
            }
        }
        faults
    }

    /// A document can be read if any of its lines could: wrong lines are a fault of the quotation.
    fn can_be_read(&self, path: &str) -> bool {
        self.task.documents.paths.iter().any(|known| known == path)
            || self.passages().any(|passage| passage.path == path)
    }

    fn quotations(&self) -> Vec<String> {
        let result = &self.task.result;
        let sources: BTreeMap<&str, _> =
            result.sources.iter().map(|source| (source.id.as_str(), source)).collect();
        let mut faults = Vec::new();
        for quotation in &result.quotations {
            let words: String = quotation.text.chars().take(60).collect();
            match sources.get(quotation.source.as_str()) {
                None => faults
                    .push(format!("“{words}…” names the source {}, which is not listed.", quotation.source)),
                Some(source) if source.kind != SourceKind::Document => {}
                Some(source) if self.stands(&source.location, quotation) => {}
                Some(source) => faults.push(format!(
                    "“{words}…” does not stand in {}, {}.",
                    source.location,
                    citations::lines(quotation.first_line, quotation.last_line)
                )),
            }
        }
        faults
    }

    fn stands(&self, path: &str, quotation: &Quotation) -> bool {
        let wanted = fold(&quotation.text);
        let (first, last) = (quotation.first_line as usize, quotation.last_line as usize);
        !wanted.is_empty()
            && self
                .passages()
                .filter(|passage| {
                    passage.path == path && passage.first_line() == first && passage.last_line() <= last
                })
                .any(|passage| {
                    let text: Vec<&str> = passage.lines.iter().map(|(_, line)| *line).collect();
                    fold(&text.join("\n")).contains(&wanted)
                })
    }

    /// A term that no quotation has must be named in the notes, and notes that say it stands in no document must be
    /// right.
    fn coverage(&self) -> Vec<String> {
        let notes = self.task.result.notes.as_deref().unwrap_or_default();
        let noted: BTreeSet<String> = terms(notes).into_iter().map(|term| term.stem).collect();
        let search = self.exchanges.iter().find(|exchange| exchange.tool == SEARCH);
        let Some(search) = search else {
            return self.nothing_to_search(notes);
        };
        let counts = conversation::word_counts(search);
        let mut faults = Vec::new();
        for wanted in uncovered(self.task) {
            if wanted.stems.is_disjoint(&noted) {
                let count =
                    counts.iter().find(|(word, _, _)| *word == wanted.word).map_or(0, |(_, some, _)| *some);
                faults.push(format!(
                    "No quotation is about “{}”, which stands in {count} documents, and the notes don't say so.",
                    wanted.word
                ));
            }
        }
        faults
    }

    /// Without documents, all that can be asked of a result is that it says so.
    fn nothing_to_search(&self, notes: &str) -> Vec<String> {
        let says_why = !self.task.result.quotations.is_empty() || !notes.trim().is_empty();
        if says_why { Vec::new() } else { vec!["It quotes nothing and does not say why.".into()] }
    }

    fn passages(&self) -> impl Iterator<Item = Passage<'_>> {
        self.exchanges.iter().filter(|exchange| exchange.tool == READ).filter_map(conversation::reading)
    }
}

fn outcome(criterion: &str, faults: Vec<String>) -> Answered {
    let more = faults.len().saturating_sub(MAX_NAMED);
    let mut named: Vec<String> = faults.into_iter().take(MAX_NAMED).collect();
    if more > 0 {
        named.push(format!("And {more} more."));
    }
    let gap = (!named.is_empty()).then(|| named.join(" "));
    Answered { criterion: criterion.to_owned(), met: gap.is_none(), gap }
}
