//! The critic role: checks a result against the documents. It owns the checks that need no judgement, and reports the other
//! criteria as not judged.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::result::{Quotation, SourceKind, TaskResult};
use serde_json::{Value, json};

use super::conversation::{self, NumberedLines, ToolExchange, has_tool, list_tool_exchanges};

use super::{CITATIONS, NOT_EMPTY, QUOTATIONS, REASON};

use crate::citations;
use crate::citations::collapse_whitespace;
use crate::critic::{CriterionJudgement, Judgement, ReviewTask};

use crate::model::{Reply, Request};

use crate::roles::{PRODUCER, RESEARCH};

const READ: &str = "read_document";

/// The maximum number of faults listed per kind.
const MAX_NAMED: usize = 5;

pub(super) fn reply_to_review_task(request: &Request, task: &ReviewTask) -> Reply {
    let exchanges = list_tool_exchanges(request);
    if exchanges.is_empty() && has_tool(request, READ) {
        let calls = list_reads_to_check(&task.result);
        if !calls.is_empty() {
            return conversation::reply_with_calls(request, calls);
        }
    }
    conversation::reply_with_answer(&DocumentReview { task, exchanges }.judge_result())
}

/// The reads needed to check a result: the lines of each quotation, and one line of each other document.
fn list_reads_to_check(result: &TaskResult) -> Vec<(&'static str, Value)> {
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

/// `true` if the result is of a kind that quotes documents. Other work need not.
fn is_cited_work(task: &ReviewTask) -> bool {
    [RESEARCH, PRODUCER].contains(&task.capability.as_str()) || !task.result.quotations.is_empty()
}

struct DocumentReview<'a> {
    task: &'a ReviewTask,
    exchanges: Vec<ToolExchange<'a>>,
}

impl DocumentReview<'_> {
    fn judge_result(&self) -> Judgement {
        let mut outcomes = vec![
            judge_criterion(NOT_EMPTY, self.check_not_empty()),
            judge_criterion(CITATIONS, self.check_citations()),
            judge_criterion(QUOTATIONS, self.check_quotations()),
        ];
        if is_cited_work(self.task) {
            outcomes.push(judge_criterion(REASON, self.check_reason()));
        }
        let mut not_judged = 0;
        for criterion in &self.task.criteria {
            if outcomes.iter().all(|earlier| earlier.criterion != *criterion) {
                not_judged += 1;
                outcomes.push(judge_criterion(criterion, Vec::new()));
            }
        }
        self.build_judgement(outcomes, not_judged)
    }

    fn build_judgement(&self, criteria: Vec<CriterionJudgement>, not_judged: usize) -> Judgement {
        let passed = criteria.iter().all(|outcome| outcome.met);
        let gaps: Vec<&str> = criteria.iter().filter_map(|outcome| outcome.gap.as_deref()).collect();
        let result = &self.task.result;
        let has_evidence = !result.quotations.is_empty() || !result.sources.is_empty();
        let mut reasoning = match has_evidence {
            true => format!(
                "Checked word for word against the documents: {} quotations, {} sources. ",
                result.quotations.len(),
                result.sources.len()
            ),
            false => "There is nothing to check: the result has neither quotations nor sources. ".to_owned(),
        };
        reasoning.push_str(match (passed, has_evidence) {
            (true, true) => "No fault was found.",
            (true, false) => "",
            (false, _) => "Faults:",
        });
        for gap in &gaps {
            reasoning.push_str(&format!(" {gap}"));
        }
        if not_judged > 0 {
            reasoning.push_str(&format!(
                " Assumed to be met, since only a language model or a person can judge them: {not_judged} of {} criteria.",
                criteria.len()
            ));
        }
        let feedback = (!passed).then(|| gaps.join("\n"));
        let task_id = Some(self.task.task_id.to_string());
        Judgement { task_id, criteria, reasoning, feedback, passed, confidence: None }
    }

    fn check_not_empty(&self) -> Vec<String> {
        if self.task.result.is_empty() {
            vec!["There is neither output nor data.".into()]
        } else {
            Vec::new()
        }
    }

    fn check_citations(&self) -> Vec<String> {
        let result = &self.task.result;
        let cited: BTreeSet<&str> =
            citations::find_citations(&result.output, &result.quotations).into_iter().collect();
        let listed: BTreeSet<&str> = result.sources.iter().map(|source| source.id.as_str()).collect();
        let mut faults: Vec<String> = Vec::new();
        if is_cited_work(self.task) {
            let unlisted = cited.difference(&listed).map(|mark| format!("[{mark}] names no listed source."));
            let uncited =
                listed.difference(&cited).map(|id| format!("Source {id} is not cited in the output."));
            faults.extend(unlisted);
            // It may be cited in the part that was cut.
            faults.extend(uncited.filter(|_| !self.task.is_cut));
        }
        for source in result.sources.iter().filter(|source| source.kind == SourceKind::Document) {
            if !self.is_readable_document(&source.location) {
                faults.push(format!("Source {} ({}) can't be read.", source.id, source.location));
            }
        }
        faults
    }

    /// A document is readable if any of its lines was: wrong lines are a fault of the quotation.
    fn is_readable_document(&self, path: &str) -> bool {
        self.task.documents.paths.iter().any(|readable| readable == path)
            || self.list_read_passages().any(|passage| passage.path == path)
    }

    fn check_quotations(&self) -> Vec<String> {
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
                Some(source) if self.is_quotation_at_lines(&source.location, quotation) => {}
                Some(source) => faults.push(format!(
                    "“{words}…” is not in {}, {}.",
                    source.location,
                    citations::format_lines_in_words(quotation.first_line, quotation.last_line)
                )),
            }
        }
        faults
    }

    fn is_quotation_at_lines(&self, path: &str, quotation: &Quotation) -> bool {
        let wanted = collapse_whitespace(&quotation.text);
        let (first, last) = (quotation.first_line as usize, quotation.last_line as usize);
        !wanted.is_empty()
            && self
                .list_read_passages()
                .filter(|passage| {
                    passage.path == path && passage.first_line() == first && passage.last_line() <= last
                })
                .any(|passage| {
                    let text: Vec<&str> = passage.lines.iter().map(|(_, line)| *line).collect();
                    collapse_whitespace(&text.join("\n")).contains(&wanted)
                })
    }

    fn check_reason(&self) -> Vec<String> {
        let notes = self.task.result.notes.as_deref().unwrap_or_default();
        let says_why = !self.task.result.quotations.is_empty() || !notes.trim().is_empty();
        if says_why { Vec::new() } else { vec!["It quotes nothing and does not say why.".into()] }
    }

    fn list_read_passages(&self) -> impl Iterator<Item = NumberedLines<'_>> {
        self.exchanges
            .iter()
            .filter(|exchange| exchange.tool == READ)
            .filter_map(conversation::parse_read_lines)
    }
}

fn judge_criterion(criterion: &str, faults: Vec<String>) -> CriterionJudgement {
    let more = faults.len().saturating_sub(MAX_NAMED);
    let mut named: Vec<String> = faults.into_iter().take(MAX_NAMED).collect();
    if more > 0 {
        named.push(format!("And {more} more."));
    }
    let gap = (!named.is_empty()).then(|| named.join(" "));
    CriterionJudgement { criterion: criterion.to_owned(), met: gap.is_none(), gap }
}
