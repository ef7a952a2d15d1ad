//! Checks of a result that need no model and no other process. It owns the checks and the messages of their faults; the
//! host of the critic runs the programs of command checks.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::plan::ReviewCheck;
use millrace_protocol::result::{CriterionOutcome, Quotation, Source, TaskResult, Verdict};
use millrace_protocol::schema;
use regex::{Regex, RegexBuilder};
use serde_json::Value;

use crate::citations::{self, collapse_whitespace, is_quotation_at_lines};
use crate::corpus::Corpus;
use crate::tool::parse_lenient_json;

/// The maximum number of faults listed per check.
const MAX_NAMED: usize = 5;
/// The maximum size of a compiled regular expression, in bytes.
const MAX_EXPRESSION: usize = 1024 * 1024;
/// The maximum number of characters shown of a forbidden match.
const MAX_PLACE: usize = 80;

/// The fault of an empty result.
const EMPTY: &str = "There is neither output nor data.";

/// A check that is invalid, whatever the result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the check {check} can't run: {why}")]
pub struct InvalidCheckError {
    /// Its name.
    pub check: String,
    /// The reason.
    pub why: String,
}

/// Compiles a regular expression whose matching time is linear in the text.
pub(crate) fn compile_regex(pattern: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(pattern).size_limit(MAX_EXPRESSION).build();
    built.map_err(|error| format!("it is not a valid regular expression: {error}"))
}

/// The name of a check in verdicts.
#[must_use]
pub fn check_name(check: &ReviewCheck) -> String {
    match check {
        ReviewCheck::Citations => "citations".into(),
        ReviewCheck::Quotations => "quotations".into(),
        ReviewCheck::Schema(_) => "schema".into(),
        ReviewCheck::Matches(pattern) => format!("matches {pattern}"),
        ReviewCheck::MatchesNot(pattern) => format!("matches_not {pattern}"),
        ReviewCheck::Command { command, timeout_s: _ } => format!("command {}", command.join(" ")),
    }
}

/// `true` if a check needs the documents of the run.
#[must_use]
pub fn check_reads_documents(check: &ReviewCheck) -> bool {
    match check {
        ReviewCheck::Citations | ReviewCheck::Quotations => true,
        ReviewCheck::Schema(_)
        | ReviewCheck::Matches(_)
        | ReviewCheck::MatchesNot(_)
        | ReviewCheck::Command { .. } => false,
    }
}

/// Runs a check on a result and returns its faults, none if it passes. Commands do not run here: `None`.
pub fn find_faults(
    check: &ReviewCheck,
    result: &TaskResult,
    corpus: Option<&Corpus>,
) -> Result<Option<Vec<String>>, InvalidCheckError> {
    let invalid_check = |why| InvalidCheckError { check: check_name(check), why };
    Ok(Some(match check {
        ReviewCheck::Citations => find_citation_faults(result, corpus),
        ReviewCheck::Quotations => find_quotation_faults(result, corpus),
        ReviewCheck::Schema(schema) => find_schema_faults(schema, result),
        ReviewCheck::Matches(pattern) => {
            let matches = compile_regex(pattern).map_err(invalid_check)?.is_match(&result.output);
            let fault = format!("The output has no match for the regular expression {pattern}.");
            (!matches).then_some(fault).into_iter().collect()
        }
        ReviewCheck::MatchesNot(pattern) => {
            let expression = compile_regex(pattern).map_err(invalid_check)?;
            let matched = expression
                .find(&result.output)
                .map(|at| describe_position(&result.output, at.start(), at.as_str()));
            let fault =
                |place| format!("The regular expression {pattern} must not match, but matches {place}.");
            matched.map(fault).into_iter().collect()
        }
        ReviewCheck::Command { .. } => return Ok(None),
    }))
}

/// The outcome of a criterion with these faults, of which the first are listed.
#[must_use]
pub fn build_criterion_outcome(criterion: &str, faults: Vec<String>) -> CriterionOutcome {
    let more = faults.len().saturating_sub(MAX_NAMED);
    let mut named: Vec<String> = faults.into_iter().take(MAX_NAMED).collect();
    if more > 0 {
        named.push(format!("And {more} more."));
    }
    let gap = (!named.is_empty()).then(|| named.join(" "));
    CriterionOutcome { criterion: criterion.to_owned(), met: gap.is_none(), gap }
}

/// `true` if a check passes because the result has none of what it checks.
#[must_use]
pub fn has_nothing_to_check(check: &ReviewCheck, result: &TaskResult) -> bool {
    match check {
        ReviewCheck::Citations => {
            result.sources.is_empty()
                && citations::find_citations(&result.output, &result.quotations).is_empty()
        }
        ReviewCheck::Quotations => result.quotations.is_empty(),
        ReviewCheck::Schema(_)
        | ReviewCheck::Matches(_)
        | ReviewCheck::MatchesNot(_)
        | ReviewCheck::Command { .. } => false,
    }
}

/// The verdict of checks alone. `vacuous` names the checks that had nothing to check.
#[must_use]
pub fn build_verdict(criteria: Vec<CriterionOutcome>, vacuous: &[String]) -> Verdict {
    let failed: Vec<&CriterionOutcome> = criteria.iter().filter(|outcome| !outcome.met).collect();
    let line = |outcome: &&CriterionOutcome| {
        format!("{}: {}", outcome.criterion, outcome.gap.as_deref().unwrap_or("not met"))
    };
    let feedback = failed.iter().map(line).collect::<Vec<_>>().join("\n");
    let passed = failed.is_empty();
    let mut reasoning = match (passed, criteria.len()) {
        (true, 1) => "The result passes its check; no model was used.".to_owned(),
        (true, all) => format!("The result passes all {all} checks; no model was used."),
        (false, all) => {
            format!("{} of {all} checks failed, and no model was used.\n{feedback}", failed.len())
        }
    };
    if !vacuous.is_empty() {
        reasoning.push_str(&format!(" There was nothing to check for: {}.", vacuous.join(", ")));
    }
    let feedback = (!passed).then(|| format!("Fix what these checks found:\n{feedback}"));
    Verdict { passed, criteria, reasoning, feedback, ..Verdict::default() }
}

/// The verdict on an empty result, the same for every reviewer.
#[must_use]
pub fn verdict_without_criteria() -> Verdict {
    let criteria = vec![build_criterion_outcome("The result is not empty.", vec![EMPTY.to_owned()])];
    let feedback = Some("The result was empty. Do the task and give its result.".to_owned());
    Verdict { passed: false, criteria, reasoning: EMPTY.to_owned(), feedback, ..Verdict::default() }
}

fn describe_position(text: &str, at: usize, matched: &str) -> String {
    let line = text[..at].matches('\n').count() + 1;
    let shown: String = collapse_whitespace(matched).chars().take(MAX_PLACE).collect();
    format!("in line {line} of the output: “{shown}”")
}

fn find_schema_faults(schema: &Value, result: &TaskResult) -> Vec<String> {
    let read = match &result.data {
        Some(data) => Ok(data.clone()),
        None => parse_lenient_json(&result.output)
            .map_err(|mistake| format!("There is no data, and the output is not one JSON value: {mistake}.")),
    };
    let fits = |value: Value| {
        schema::check_value_against_schema(schema, &value)
            .map_err(|mistakes| format!("It does not fit its schema: {mistakes}."))
    };
    read.and_then(fits).err().into_iter().collect()
}

/// Reports citations without a source, sources that are not cited, and documents that can't be read.
fn find_citation_faults(result: &TaskResult, corpus: Option<&Corpus>) -> Vec<String> {
    let cited: BTreeSet<&str> =
        citations::find_citations(&result.output, &result.quotations).into_iter().collect();
    let listed: BTreeSet<&str> = result.sources.iter().map(|source| source.id.as_str()).collect();
    let unlisted = cited.difference(&listed).map(|mark| format!("[{mark}] names no listed source."));
    let uncited = listed.difference(&cited).map(|id| format!("Source {id} is not cited in the output."));
    let readable = result.sources.iter().filter(|source| citations::is_readable_source(source));
    let unread = readable.filter(|source| corpus.and_then(|corpus| corpus.find_source(source)).is_none());
    let unread = unread.map(|source| format!("Source {} ({}) can't be read.", source.id, source.location));
    unlisted.chain(uncited).chain(unread).collect()
}

/// Reports quotations whose text is not at their lines. Sources that are neither documents of the run nor kept web pages
/// can't be checked here and are skipped.
fn find_quotation_faults(result: &TaskResult, corpus: Option<&Corpus>) -> Vec<String> {
    let sources: BTreeMap<&str, &Source> =
        result.sources.iter().map(|source| (source.id.as_str(), source)).collect();
    let fault = |quotation: &Quotation| {
        let words: String = quotation.text.chars().take(60).collect();
        match sources.get(quotation.source.as_str()) {
            None => Some(format!("“{words}…” names the source {}, which is not listed.", quotation.source)),
            Some(source) if !citations::is_readable_source(source) => None,
            Some(source) if corpus.is_some_and(|corpus| is_quotation_at_lines(corpus, source, quotation)) => {
                None
            }
            Some(source) => Some(format!(
                "“{words}…” is not in {}, {}.",
                source.location,
                citations::format_lines_in_words(quotation.first_line, quotation.last_line)
            )),
        }
    };
    result.quotations.iter().filter_map(fault).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use millrace_protocol::result::SourceKind;

    use super::*;
    use crate::corpus::InputFile;

    fn build_corpus() -> Corpus {
        let file = |path: &str, text: &str| InputFile { path: path.into(), bytes: text.as_bytes().to_vec() };
        Corpus::build_or_load(vec![file("a.txt", "A lease ends at noon.\n\nA lane is\na stream.")], None)
            .unwrap()
    }

    fn valid_result() -> TaskResult {
        let source = |id: &str, kind, location: &str| Source {
            id: id.into(),
            kind,
            title: id.into(),
            location: location.into(),
            sha256: None,
            accessed_at: None,
        };
        let quotation = |source: &str, text: &str, first_line, last_line| Quotation {
            source: source.into(),
            text: text.into(),
            first_line,
            last_line,
            place: None,
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

    fn format_faults(check: &ReviewCheck, result: &TaskResult) -> String {
        find_faults(check, result, Some(&build_corpus())).unwrap().expect("no command").join(" ")
    }

    #[test]
    fn a_good_result_passes_and_each_fault_is_named() {
        type ResultMutation = fn(&mut TaskResult);
        let schema =
            json!({"type": "object", "properties": {"hour": {"type": "integer"}}, "required": ["hour"]});
        let (schema, matches) =
            (ReviewCheck::Schema(schema), ReviewCheck::Matches("(?i)NOON \\[S\\d".into()));
        let none = ReviewCheck::MatchesNot("draft|to be checked".into());
        let table: [(&ReviewCheck, &str, ResultMutation); 13] = [
            (&ReviewCheck::Citations, "[S9] names no listed source.", |r| r.output.push_str(" [S9]")),
            (&ReviewCheck::Citations, "Source S2 is not cited in the output.", |r| r.output = "[S1]".into()),
            (&ReviewCheck::Citations, "Source S1 (b.txt) can't be read.", |r| {
                r.sources[0].location = "b.txt".into();
            }),
            (&ReviewCheck::Quotations, "“A lease ends at midnight.…” is not in a.txt, line 1.", |r| {
                r.quotations[0].text = "A lease ends at midnight.".into();
            }),
            (&ReviewCheck::Quotations, "is not in a.txt, line 3.", |r| r.quotations[1].last_line = 3),
            (&ReviewCheck::Quotations, "is not in a.txt, lines 900–901.", |r| {
                (r.quotations[0].first_line, r.quotations[0].last_line) = (900, 901);
            }),
            (&ReviewCheck::Quotations, "is not in", |r| r.quotations[0].text = " \n".into()),
            (&ReviewCheck::Quotations, "names the source S7, which is not listed.", |r| {
                r.quotations[2].source = "S7".into();
            }),
            (&schema, "It does not fit its schema: ", |r| r.data = Some(json!({"hour": "noon"}))),
            (&schema, "There is no data, and the output is not one JSON value", |r| r.data = None),
            (&schema, "It does not fit its schema: ", |r| {
                r.data = None;
                r.output = "```json\n{}\n```".into();
            }),
            (&matches, "The output has no match for the regular expression (?i)NOON", |r| {
                r.output = "midnight".into();
            }),
            (&none, "but matches in line 2 of the output: “draft”.", |r| {
                r.output = "a\ndraft, see later".into()
            }),
        ];
        for (check, fault, spoil) in table {
            assert_eq!(format_faults(check, &valid_result()), "", "{}", check_name(check));
            let mut result = valid_result();
            spoil(&mut result);
            let text = format_faults(check, &result);
            assert!(text.contains(fault), "{text}\n{fault}");
        }
        let of_output = TaskResult { data: None, output: "```\n{\"hour\": 3}\n```".into(), ..valid_result() };
        assert_eq!(format_faults(&schema, &of_output), "");
    }

    #[test]
    fn citing_documents_outside_the_run_is_a_fault() {
        for check in [ReviewCheck::Citations, ReviewCheck::Quotations] {
            assert!(!find_faults(&check, &valid_result(), None).unwrap().unwrap().is_empty(), "{check:?}");
        }
    }

    #[test]
    fn a_check_without_anything_to_check_is_named() {
        let bare = TaskResult { output: "It ends at noon.".into(), ..TaskResult::default() };
        for check in [ReviewCheck::Citations, ReviewCheck::Quotations] {
            assert!(has_nothing_to_check(&check, &bare) && !has_nothing_to_check(&check, &valid_result()));
        }
        assert!(!has_nothing_to_check(&ReviewCheck::Matches("noon".into()), &bare));
        let verdict =
            build_verdict(vec![build_criterion_outcome("citations", Vec::new())], &["citations".to_owned()]);
        assert!(
            verdict.passed && verdict.reasoning.contains("nothing to check for: citations"),
            "{verdict:?}"
        );
    }

    #[test]
    fn an_invalid_expression_is_no_fault_of_the_result() {
        for pattern in ["(", "(a{1000}){1000}{1000}"] {
            let error = find_faults(&ReviewCheck::Matches(pattern.into()), &valid_result(), None)
                .unwrap_err()
                .to_string();
            assert!(error.contains("can't run: it is not a valid regular expression"), "{error}");
        }
    }

    #[test]
    fn a_verdict_of_checks_is_consistent_and_says_what_to_fix() {
        let passed = build_verdict(vec![build_criterion_outcome("citations", Vec::new())], &[]);
        assert!(passed.passed && passed.feedback.is_none() && passed.find_inconsistency().is_none());
        let many = (0..8).map(|n| format!("fault {n}.")).collect();
        let failed = build_verdict(
            vec![
                build_criterion_outcome("citations", Vec::new()),
                build_criterion_outcome("quotations", many),
            ],
            &[],
        );
        assert!(!failed.passed && failed.find_inconsistency().is_none());
        let feedback = failed.feedback.unwrap();
        assert!(
            feedback.contains("quotations: fault 0. ") && feedback.ends_with("And 3 more."),
            "{feedback}"
        );
        assert!(!feedback.contains("citations"));
        assert_eq!(verdict_without_criteria().find_inconsistency(), None);
    }
}
