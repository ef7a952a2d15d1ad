//! What can be said of a result without a model and without leaving the process. It owns the checks and the words of
//! their faults; programs as checks are run by whoever hosts the critic.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::plan::ReviewCheck;
use millrace_protocol::result::{CriterionOutcome, Quotation, Source, SourceKind, TaskResult, Verdict};
use millrace_protocol::schema;
use regex::{Regex, RegexBuilder};
use serde_json::Value;

use crate::citations::{self, fold};
use crate::corpus::Corpus;
use crate::tool::read_json;

/// The most faults of one check that are named.
const MAX_NAMED: usize = 5;
/// The most bytes of a regular expression once it is made ready.
const MAX_EXPRESSION: usize = 1024 * 1024;
/// The most characters of a place that must not be there, as it is told.
const MAX_PLACE: usize = 80;

/// What a result without anything in it is told.
const EMPTY: &str = "There is neither output nor data.";

/// A check that can't be made, whatever the result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the check {check} can't be made: {why}")]
pub struct NoCheck {
    /// Its name.
    pub check: String,
    /// Why.
    pub why: String,
}

/// A regular expression, made ready. It takes time that grows with the text and no faster.
///
/// # Errors
/// It is none, or too large.
pub(crate) fn expression(pattern: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(pattern).size_limit(MAX_EXPRESSION).build();
    built.map_err(|error| format!("it is no regular expression: {error}"))
}

/// What a check is called in verdicts.
#[must_use]
pub fn name(check: &ReviewCheck) -> String {
    match check {
        ReviewCheck::Citations => "citations".into(),
        ReviewCheck::Quotations => "quotations".into(),
        ReviewCheck::Schema(_) => "schema".into(),
        ReviewCheck::Matches(pattern) => format!("matches {pattern}"),
        ReviewCheck::MatchesNot(pattern) => format!("matches_not {pattern}"),
        ReviewCheck::Command { command, timeout_s: _ } => format!("command {}", command.join(" ")),
    }
}

/// Whether a check wants the documents of the run.
#[must_use]
pub fn reads_documents(check: &ReviewCheck) -> bool {
    match check {
        ReviewCheck::Citations | ReviewCheck::Quotations => true,
        ReviewCheck::Schema(_)
        | ReviewCheck::Matches(_)
        | ReviewCheck::MatchesNot(_)
        | ReviewCheck::Command { .. } => false,
    }
}

/// What is wrong with a result by one check; nothing if it stands it. A command is not run here: `None`.
///
/// # Errors
/// The check itself makes no sense.
pub fn faults(
    check: &ReviewCheck,
    result: &TaskResult,
    corpus: Option<&Corpus>,
) -> Result<Option<Vec<String>>, NoCheck> {
    let no_check = |why| NoCheck { check: name(check), why };
    Ok(Some(match check {
        ReviewCheck::Citations => cited(result, corpus),
        ReviewCheck::Quotations => quoted(result, corpus),
        ReviewCheck::Schema(schema) => fits(schema, result),
        ReviewCheck::Matches(pattern) => {
            let found = expression(pattern).map_err(no_check)?.is_match(&result.output);
            let fault = format!("The output has no place that the regular expression {pattern} matches.");
            (!found).then_some(fault).into_iter().collect()
        }
        ReviewCheck::MatchesNot(pattern) => {
            let found = expression(pattern).map_err(no_check)?;
            let found =
                found.find(&result.output).map(|found| place(&result.output, found.start(), found.as_str()));
            let fault =
                |place| format!("The regular expression {pattern} must match nowhere, and does {place}.");
            found.map(fault).into_iter().collect()
        }
        ReviewCheck::Command { .. } => return Ok(None),
    }))
}

/// A criterion's outcome by its faults, of which the first are named.
#[must_use]
pub fn outcome(criterion: &str, faults: Vec<String>) -> CriterionOutcome {
    let more = faults.len().saturating_sub(MAX_NAMED);
    let mut named: Vec<String> = faults.into_iter().take(MAX_NAMED).collect();
    if more > 0 {
        named.push(format!("And {more} more."));
    }
    let gap = (!named.is_empty()).then(|| named.join(" "));
    CriterionOutcome { criterion: criterion.to_owned(), met: gap.is_none(), gap }
}

/// What checks alone say of a result.
#[must_use]
pub fn verdict(criteria: Vec<CriterionOutcome>) -> Verdict {
    let failed: Vec<&CriterionOutcome> = criteria.iter().filter(|outcome| !outcome.met).collect();
    let told = |outcome: &&CriterionOutcome| {
        format!("{}: {}", outcome.criterion, outcome.gap.as_deref().unwrap_or("it does not hold"))
    };
    let feedback = failed.iter().map(told).collect::<Vec<_>>().join("\n");
    let passed = failed.is_empty();
    let reasoning = match (passed, criteria.len()) {
        (true, 1) => "The result stands its check; no model was asked.".to_owned(),
        (true, all) => format!("The result stands all {all} checks; no model was asked."),
        (false, all) => {
            format!("{} of {all} checks failed, and no model was asked.\n{feedback}", failed.len())
        }
    };
    let feedback = (!passed).then(|| format!("Mend what these checks found:\n{feedback}"));
    Verdict { passed, criteria, reasoning, feedback, ..Verdict::default() }
}

/// The verdict on a result with nothing in it, whoever would judge it.
#[must_use]
pub fn empty_verdict() -> Verdict {
    let criteria = vec![outcome("The result is not empty.", vec![EMPTY.to_owned()])];
    let feedback = Some("The result was empty. Do the task and give its result.".to_owned());
    Verdict { passed: false, criteria, reasoning: EMPTY.to_owned(), feedback, ..Verdict::default() }
}

fn place(text: &str, at: usize, found: &str) -> String {
    let line = text[..at].matches('\n').count() + 1;
    let shown: String = fold(found).chars().take(MAX_PLACE).collect();
    format!("in line {line} of the output: “{shown}”")
}

fn fits(schema: &Value, result: &TaskResult) -> Vec<String> {
    let read = match &result.data {
        Some(data) => Ok(data.clone()),
        None => read_json(&result.output)
            .map_err(|mistake| format!("There is no data, and the output is not one JSON value: {mistake}.")),
    };
    let fits = |value: Value| {
        schema::check(schema, &value).map_err(|mistakes| format!("It does not fit its schema: {mistakes}."))
    };
    read.and_then(fits).err().into_iter().collect()
}

/// Citations that name no source, sources that nobody cites, and documents that are not there.
fn cited(result: &TaskResult, corpus: Option<&Corpus>) -> Vec<String> {
    let cited: BTreeSet<&str> =
        citations::citations(&result.output, &result.quotations).into_iter().collect();
    let listed: BTreeSet<&str> = result.sources.iter().map(|source| source.id.as_str()).collect();
    let unlisted = cited.difference(&listed).map(|mark| format!("[{mark}] names no listed source."));
    let uncited = listed.difference(&cited).map(|id| format!("Source {id} is not cited in the output."));
    let documents = result.sources.iter().filter(|source| source.kind == SourceKind::Document);
    let unread =
        documents.filter(|source| corpus.and_then(|corpus| corpus.document(&source.location)).is_none());
    let unread = unread.map(|source| format!("Source {} ({}) can't be read.", source.id, source.location));
    unlisted.chain(uncited).chain(unread).collect()
}

/// Quotations whose words don't stand at their lines. What is no document of the run can't be looked up here and is
/// passed over.
fn quoted(result: &TaskResult, corpus: Option<&Corpus>) -> Vec<String> {
    let sources: BTreeMap<&str, &Source> =
        result.sources.iter().map(|source| (source.id.as_str(), source)).collect();
    let fault = |quotation: &Quotation| {
        let words: String = quotation.text.chars().take(60).collect();
        match sources.get(quotation.source.as_str()) {
            None => Some(format!("“{words}…” names the source {}, which is not listed.", quotation.source)),
            Some(source) if source.kind != SourceKind::Document => None,
            Some(source) if stands(corpus, &source.location, quotation) => None,
            Some(source) => Some(format!(
                "“{words}…” does not stand in {}, {}.",
                source.location,
                citations::lines(quotation.first_line, quotation.last_line)
            )),
        }
    };
    result.quotations.iter().filter_map(fault).collect()
}

fn stands(corpus: Option<&Corpus>, path: &str, quotation: &Quotation) -> bool {
    let wanted = fold(&quotation.text);
    let (first, last) = (quotation.first_line as usize, quotation.last_line as usize);
    let document = corpus.and_then(|corpus| corpus.document(path));
    !wanted.is_empty() && document.is_some_and(|document| fold(document.lines(first, last)).contains(&wanted))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::corpus::File;

    fn corpus() -> Corpus {
        let file = |path: &str, text: &str| File { path: path.into(), bytes: text.as_bytes().to_vec() };
        Corpus::open(vec![file("a.txt", "A lease ends at noon.\n\nA lane is\na stream.")], None).unwrap()
    }

    fn good() -> TaskResult {
        let source = |id: &str, kind, location: &str| Source {
            id: id.into(),
            kind,
            title: id.into(),
            location: location.into(),
            sha256: None,
        };
        let quotation = |source: &str, text: &str, first_line, last_line| Quotation {
            source: source.into(),
            text: text.into(),
            first_line,
            last_line,
        };
        TaskResult {
            output: "It ends at noon [S1], so they say [S2].".into(),
            sources: vec![
                source("S1", SourceKind::Document, "a.txt"),
                source("S2", SourceKind::Web, "https://example.org"),
            ],
            quotations: vec![
                quotation("S1", "A lease ends at  noon.", 1, 1),
                quotation("S1", "A lane is a stream.", 3, 4),
                quotation("S2", "unknown here", 1, 1),
            ],
            data: Some(json!({"hour": 12})),
            ..TaskResult::default()
        }
    }

    fn said(check: &ReviewCheck, result: &TaskResult) -> String {
        faults(check, result, Some(&corpus())).unwrap().expect("no command").join(" ")
    }

    #[test]
    fn a_good_result_stands_every_check_and_each_fault_is_named() {
        type Spoil = fn(&mut TaskResult);
        let schema =
            json!({"type": "object", "properties": {"hour": {"type": "integer"}}, "required": ["hour"]});
        let (schema, matches) =
            (ReviewCheck::Schema(schema), ReviewCheck::Matches("(?i)NOON \\[S\\d".into()));
        let none = ReviewCheck::MatchesNot("draft|to be checked".into());
        let table: [(&ReviewCheck, &str, Spoil); 13] = [
            (&ReviewCheck::Citations, "[S9] names no listed source.", |r| r.output.push_str(" [S9]")),
            (&ReviewCheck::Citations, "Source S2 is not cited in the output.", |r| r.output = "[S1]".into()),
            (&ReviewCheck::Citations, "Source S1 (b.txt) can't be read.", |r| {
                r.sources[0].location = "b.txt".into();
            }),
            (
                &ReviewCheck::Quotations,
                "“A lease ends at midnight.…” does not stand in a.txt, line 1.",
                |r| {
                    r.quotations[0].text = "A lease ends at midnight.".into();
                },
            ),
            (&ReviewCheck::Quotations, "does not stand in a.txt, line 3.", |r| r.quotations[1].last_line = 3),
            (&ReviewCheck::Quotations, "does not stand in a.txt, lines 900–901.", |r| {
                (r.quotations[0].first_line, r.quotations[0].last_line) = (900, 901);
            }),
            (&ReviewCheck::Quotations, "does not stand", |r| r.quotations[0].text = " \n".into()),
            (&ReviewCheck::Quotations, "names the source S7, which is not listed.", |r| {
                r.quotations[2].source = "S7".into();
            }),
            (&schema, "It does not fit its schema: ", |r| r.data = Some(json!({"hour": "noon"}))),
            (&schema, "There is no data, and the output is not one JSON value", |r| r.data = None),
            (&schema, "It does not fit its schema: ", |r| {
                r.data = None;
                r.output = "```json\n{}\n```".into();
            }),
            (&matches, "The output has no place that the regular expression (?i)NOON", |r| {
                r.output = "midnight".into();
            }),
            (&none, "and does in line 2 of the output: “draft”.", |r| {
                r.output = "a\ndraft, see later".into()
            }),
        ];
        for (check, fault, spoil) in table {
            assert_eq!(said(check, &good()), "", "{}", name(check));
            let mut result = good();
            spoil(&mut result);
            let said = said(check, &result);
            assert!(said.contains(fault), "{said}\n{fault}");
        }
        let of_output = TaskResult { data: None, output: "```\n{\"hour\": 3}\n```".into(), ..good() };
        assert_eq!(said(&schema, &of_output), "");
    }

    #[test]
    fn documents_that_a_run_does_not_have_are_cited_by_nobody_unpunished() {
        for check in [ReviewCheck::Citations, ReviewCheck::Quotations] {
            assert!(!faults(&check, &good(), None).unwrap().unwrap().is_empty(), "{check:?}");
        }
    }

    #[test]
    fn what_is_no_regular_expression_is_no_fault_of_the_result() {
        for pattern in ["(", "(a{1000}){1000}{1000}"] {
            let told = faults(&ReviewCheck::Matches(pattern.into()), &good(), None).unwrap_err().to_string();
            assert!(told.contains("can't be made: it is no regular expression"), "{told}");
        }
    }

    #[test]
    fn a_verdict_of_checks_says_what_to_mend_and_never_contradicts_itself() {
        let passed = verdict(vec![outcome("citations", Vec::new())]);
        assert!(passed.passed && passed.feedback.is_none() && passed.inconsistency().is_none());
        let many = (0..8).map(|n| format!("fault {n}.")).collect();
        let failed = verdict(vec![outcome("citations", Vec::new()), outcome("quotations", many)]);
        assert!(!failed.passed && failed.inconsistency().is_none());
        let feedback = failed.feedback.unwrap();
        assert!(
            feedback.contains("quotations: fault 0. ") && feedback.ends_with("And 3 more."),
            "{feedback}"
        );
        assert!(!feedback.contains("citations"));
        assert_eq!(empty_verdict().inconsistency(), None);
    }
}
