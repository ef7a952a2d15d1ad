//! Reports: text that combines earlier results and cites their sources. The sources of all inputs share one numbering.
//! Every citation of a report must be one of these sources; sources and quotations are copied from the inputs.

use std::collections::BTreeMap;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_protocol::ids::TaskId;
use millrace_protocol::result::{Quotation, Source, TaskResult, VerifiedStatement};
use millrace_protocol::safe_text::markdown_line;
use millrace_verification::CitedLines;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::content;
use super::findings::summarize_output;
use crate::citations;
use crate::corpus::Corpus;
use crate::model::{AnswerSchema, ModelAbility};

use crate::spec::{AnswerForm, format_utc_date};

use crate::tool::{ResultEntry, TaskResultSource, ToolError, schema_of};

use crate::turn::{Answer, parse_json_answer};
use crate::verification::cited_lines;

/// The most sources that a correction lists.
const MAX_NAMED: usize = 20;

/// A report, as the model writes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct Report {
    /// The report's title.
    #[schemars(length(max = 400))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The report in Markdown. Each statement keeps the numbers of its sources: [1], [2]. The list of sources is
    /// added automatically.
    #[schemars(length(min = 1, max = 400_000))]
    pub output: String,
    /// The answer in one or two sentences.
    #[schemars(length(min = 1, max = 4_000))]
    pub summary: String,
    /// Questions that the results leave open; null if there are none.
    #[schemars(length(max = 40_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// `false` if the results leave the objective without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<bool>,
    /// The verdicts on its statements.
    #[serde(skip)]
    pub statements: Vec<VerifiedStatement>,
}

impl Answer for Report {
    fn answer_schema(name: &str) -> Option<AnswerSchema> {
        let mut schema = schema_of::<Self>();
        schema["required"] = json!(["output", "summary"]);
        Some(AnswerSchema { name: name.to_owned(), schema })
    }

    fn parse_answer(text: &str) -> Result<Self, String> {
        let report: Self = parse_json_answer(text)?;
        if content::is_blank(&report.output) {
            return Err("'output' is empty.".into());
        }
        Ok(report)
    }
}

/// The most tokens of a small model's report.
pub(crate) const MAX_OUTPUT_TOKENS_SMALL: u32 = 2_000;

pub(crate) fn report_schema(ability: ModelAbility) -> Option<AnswerSchema> {
    let mut schema = Report::answer_schema(AnswerForm::Report.name())?;
    if ability.is_small() {
        schema.schema = json!({
            "type": "object",
            "properties": {
                "output": {"type": "string", "minLength": 1, "maxLength": 4_000},
                "notes": {"type": "string", "maxLength": 400},
                "answered": {"type": "boolean"},
            },
            "required": ["output"],
            "additionalProperties": false,
        });
    }
    Some(schema)
}

/// The inputs of a report, with one numbering of all their sources.
#[derive(Debug, Default)]
pub(crate) struct NumberedResults {
    results: Vec<(ResultEntry, TaskResult)>,
    /// All sources; their ids are their numbers.
    sources: Vec<Source>,
    quotations: Vec<Quotation>,
    /// For each source of each task: the task, the task's id of the source, the number.
    names: Vec<(TaskId, String, String)>,
}

impl NumberedResults {
    pub fn new(results: Vec<(ResultEntry, TaskResult)>) -> Self {
        let mut inputs = Self::default();
        for (entry, result) in results {
            inputs.add_result(entry, result);
        }
        inputs
    }

    /// Returns the results, with citations and ids of the common numbering.
    pub fn numbered_results(&self) -> &[(ResultEntry, TaskResult)] {
        &self.results
    }

    fn add_result(&mut self, entry: ResultEntry, result: TaskResult) {
        let numbers: Vec<(String, String)> = result
            .sources
            .iter()
            .map(|source| (source.id.clone(), self.assign_source_number(source)))
            .collect();
        let number = |id: &str| numbers.iter().find(|(own, _)| own == id).map(|(_, number)| number.clone());
        let renumber = |text: &str| {
            content::remove_repeated_citations(&citations::rename_citations(text, &result.quotations, number))
        };
        let (output, summary) = (renumber(&result.output), renumber(&result.summary));
        let quotations: Vec<Quotation> = result
            .quotations
            .iter()
            .filter_map(|quotation| {
                Some(Quotation { source: number(&quotation.source)?, ..quotation.clone() })
            })
            .collect();
        let mut sources: Vec<Source> = Vec::new();
        for source in &result.sources {
            let id = number(&source.id).unwrap_or_default();
            if sources.iter().all(|listed| listed.id != id) {
                sources.push(Source { id, ..source.clone() });
            }
        }
        self.quotations.extend(quotations.iter().cloned());
        let names = numbers.into_iter().map(|(own, number)| (entry.task_id.clone(), own, number));
        self.names.extend(names);
        let entry = ResultEntry { summary: summary.clone(), ..entry };
        self.results.push((entry, TaskResult { output, summary, sources, quotations, ..result }));
    }

    /// Returns the number of a source. The same document in several results is one source.
    fn assign_source_number(&mut self, source: &Source) -> String {
        let same = self.sources.iter().find(|other| {
            other.kind == source.kind && other.location == source.location && other.sha256 == source.sha256
        });
        if let Some(same) = same {
            return same.id.clone();
        }
        let id = (self.sources.len() + 1).to_string();
        self.sources.push(Source { id: id.clone(), ..source.clone() });
        id
    }

    /// Returns the source that a citation refers to: by number, as `task/S1`, or as `S1` if only one task has a source
    /// with that id.
    fn find_source(&self, mark: &str) -> Option<&Source> {
        let number = if let Some((task, own)) = mark.rsplit_once('/') {
            let entry = self.names.iter().find(|(id, name, _)| id.as_str() == task && name == own);
            entry.map(|(_, _, number)| number.as_str())?
        } else if mark.starts_with('S') {
            let mut numbers =
                self.names.iter().filter(|(_, name, _)| name == mark).map(|(_, _, number)| number);
            let first = numbers.next()?;
            if numbers.any(|other| other != first) {
                return None;
            }
            first
        } else {
            mark
        };
        self.sources.iter().find(|source| source.id == number)
    }

    /// `true` if a mark refers to a source.
    pub fn knows_mark(&self, mark: &str) -> bool {
        self.find_source(mark).is_some()
    }

    /// The lines that each mark cites, of those sources that can be read.
    pub fn cited_lines(&self, corpus: &Corpus) -> BTreeMap<String, Vec<CitedLines>> {
        let own = self
            .names
            .iter()
            .flat_map(|(task, own, number)| [own.clone(), format!("{task}/{own}"), number.clone()]);
        let lines = |mark: String| {
            let source = self.find_source(&mark)?;
            Some((mark, cited_lines(source, &self.quotations, corpus)?))
        };
        own.filter_map(lines).collect()
    }

    /// The sources and quotations of all results, as those of one result.
    pub fn cited_sources(&self) -> TaskResult {
        TaskResult {
            sources: self.sources.clone(),
            quotations: self.quotations.clone(),
            ..TaskResult::default()
        }
    }

    /// Converts a report into a result: numbers its sources in order of citation and appends their list.
    pub fn resolve_citations(&self, report: &Report) -> Result<TaskResult, String> {
        let body = citations::split_combined_citations(remove_source_list(&report.output));
        let summary = match report.summary.trim() {
            "" => summarize_output(&body),
            summary => citations::split_combined_citations(summary),
        };
        let cited = citations::find_citations(&body, &self.quotations);
        let unknown: Vec<&str> = cited
            .iter()
            .copied()
            .chain(citations::find_citations(&summary, &self.quotations))
            .filter(|mark| self.find_source(mark).is_none())
            .collect();
        if !unknown.is_empty() {
            return Err(self.describe_unknown_citations(&unknown));
        }
        let has_notes = report.notes.as_deref().is_some_and(|notes| !notes.trim().is_empty());
        if cited.is_empty() && !self.sources.is_empty() && !has_notes {
            return Err(format!(
                "The report has no citations. Keep the citations of the results, such as [1], or say in 'notes' why \
                 there are none; the sources are {}.",
                self.list_source_names()
            ));
        }
        Ok(self.build_result(report, &body, &summary, &cited))
    }

    /// Removes the citations that refer to no source. If none is left, the sources of the results follow the report, and the
    /// notes say that no statement has a mark: the fallback after the last correction.
    pub fn mend_citations(&self, report: &Report) -> Report {
        let clean = |text: &str| {
            let text = citations::split_combined_citations(text);
            let marks = citations::find_citations(&text, &self.quotations);
            let unknown: Vec<String> = marks
                .iter()
                .filter(|mark| self.find_source(mark).is_none())
                .map(|mark| format!("[{mark}]"))
                .collect();
            unknown.iter().fold(text.clone(), |text, mark| text.replace(mark, ""))
        };
        let mut mended =
            Report { output: clean(&report.output), summary: clean(&report.summary), ..report.clone() };
        let has_marks =
            !citations::find_citations(remove_source_list(&mended.output), &self.quotations).is_empty();
        if !has_marks && !self.sources.is_empty() {
            let marks: String = self.sources.iter().map(|source| format!("[{}]", source.id)).collect();
            mended.output = format!(
                "{}\n\nSources of the results: {marks}",
                remove_source_list(&mended.output).trim_end()
            );
            let note = "The report does not mark which source supports which statement.";
            let own = mended.notes.filter(|notes| !notes.trim().is_empty());
            mended.notes = Some(own.map_or_else(|| note.to_owned(), |own| format!("{own} {note}")));
        }
        mended
    }

    fn build_result(&self, report: &Report, body: &str, summary: &str, cited: &[&str]) -> TaskResult {
        let mut sources: Vec<&Source> = Vec::new();
        for source in cited.iter().filter_map(|mark| self.find_source(mark)) {
            if sources.iter().all(|listed| listed.id != source.id) {
                sources.push(source);
            }
        }
        let number = |id: &str| {
            let at = sources.iter().position(|source| source.id == id)?;
            Some((at + 1).to_string())
        };
        let name = |mark: &str| number(&self.find_source(mark)?.id);
        let quotations = self.quotations.iter().filter_map(|quotation| {
            Some(Quotation { source: number(&quotation.source)?, ..quotation.clone() })
        });
        let quotations = content::remove_duplicate_quotations(quotations.collect());
        let renumber = |text: &str| {
            content::remove_repeated_citations(&citations::rename_citations(text, &self.quotations, name))
        };
        let numbered = sources.iter().enumerate();
        let sources: Vec<Source> =
            numbered.map(|(at, source)| Source { id: (at + 1).to_string(), ..(*source).clone() }).collect();
        let mut output = choose_title(report.title.as_deref(), body);
        output.push_str(renumber(body).trim());
        output.push('\n');
        output.push_str(&format_source_list(&sources, &quotations));
        TaskResult {
            summary: renumber(summary),
            output,
            notes: report.notes.clone().filter(|notes| !notes.trim().is_empty()),
            sources,
            quotations,
            answered: report.answered,
            ..TaskResult::default()
        }
    }

    /// Returns the correction for citations that refer to no source.
    fn describe_unknown_citations(&self, marks: &[&str]) -> String {
        let mut listed: Vec<String> = marks.iter().map(|mark| format!("[{mark}]")).collect();
        listed.dedup();
        listed.truncate(MAX_NAMED);
        let listed = listed.join(", ");
        match self.sources.as_slice() {
            [] => format!("The results have no sources, but the report cites {listed}."),
            _ => {
                format!(
                    "{listed} is not a source of the results. The sources are {}.",
                    self.list_source_names()
                )
            }
        }
    }

    fn list_source_names(&self) -> String {
        let names =
            self.sources.iter().take(MAX_NAMED).map(|source| format!("[{}] {}", source.id, source.location));
        let mut names: Vec<String> = names.collect();
        if self.sources.len() > MAX_NAMED {
            names.push(format!("and so on up to [{}]", self.sources.len()));
        }
        names.join(", ")
    }
}

impl TaskResultSource for NumberedResults {
    fn list_results(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>> {
        ready(Ok(self.results.iter().map(|(entry, _)| entry.clone()).collect())).boxed()
    }

    fn get_result<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>> {
        let result = self.results.iter().find(|(entry, _)| entry.task_id == *task);
        ready(Ok(result.map(|(_, result)| result.clone()))).boxed()
    }
}

/// Removes the list of sources at the end of a report, with the footnotes below it.
pub fn remove_source_list(output: &str) -> &str {
    let is_heading = |line: &str| {
        let words = line.trim().trim_start_matches('#').trim().trim_matches(['*', ':']).to_lowercase();
        line.trim_start().starts_with(['#', '*'])
            && matches!(words.as_str(), "sources" | "references" | "citations")
    };
    for line in output.lines().rev() {
        if is_heading(line) {
            let begins = line.as_ptr() as usize - output.as_ptr() as usize;
            return output[..begins].trim_end();
        }
        if line.trim_start().starts_with('#') {
            break;
        }
    }
    output
}

fn choose_title(title: Option<&str>, body: &str) -> String {
    match title.map(str::trim).filter(|title| !title.is_empty()) {
        Some(title) if !body.trim_start().starts_with("# ") => {
            format!("# {}\n\n", title.trim_start_matches('#').trim())
        }
        Some(_) | None => String::new(),
    }
}

fn format_source_list(sources: &[Source], quotations: &[Quotation]) -> String {
    if sources.is_empty() {
        return String::new();
    }
    let mut list = "\n## Sources\n\n".to_owned();
    for source in sources {
        let quoted = quotations.iter().filter(|quotation| quotation.source == source.id);
        let places = format_places(quoted);
        let read =
            source.accessed_at.map(|at| format!(" (read {})", format_utc_date(at))).unwrap_or_default();
        let (title, location) = (markdown_line(&source.title), markdown_line(&source.location));
        list.push_str(&format!("- [{}] {title}: {location}{read}{places}\n", source.id));
    }
    list
}

/// Formats the lines of quotations, by the pages of their source if it has any.
fn format_places<'a>(quotations: impl Iterator<Item = &'a Quotation>) -> String {
    let mut places: Vec<(u32, u32, Option<&str>)> = quotations
        .map(|quotation| (quotation.first_line, quotation.last_line, quotation.place.as_deref()))
        .collect();
    places.sort_unstable();
    places.dedup();
    let by_place = places.chunk_by(|(_, _, one), (_, _, other)| one == other).map(|same| {
        let ranges: Vec<String> =
            same.iter().map(|(first, last, _)| citations::format_line_range(*first, *last)).collect();
        let is_single = matches!(same, [(first, last, _)] if first == last);
        let word = if is_single { "line" } else { "lines" };
        let place = same[0].2.map(|place| format!("{}, ", markdown_line(place))).unwrap_or_default();
        format!("{place}{word} {}", ranges.join(", "))
    });
    let all = by_place.collect::<Vec<_>>().join("; ");
    if all.is_empty() { all } else { format!(", {all}") }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::result::SourceKind;

    use super::*;

    fn build_source(id: &str, location: &str) -> Source {
        Source {
            id: id.into(),
            kind: SourceKind::Document,
            title: location.to_uppercase(),
            location: location.into(),
            sha256: None,
            accessed_at: None,
        }
    }

    fn build_quotation(source: &str, text: &str) -> Quotation {
        Quotation { source: source.into(), text: text.into(), first_line: 3, last_line: 4, place: None }
    }

    fn numbered_inputs() -> NumberedResults {
        let entry = |id: &str| ResultEntry {
            task_id: TaskId::new(id).unwrap(),
            objective: id.into(),
            capability: "research".into(),
            summary: String::new(),
            missing: None,
        };
        let result = |output: &str, sources: Vec<Source>, quotations: Vec<Quotation>| TaskResult {
            output: output.into(),
            sources,
            quotations,
            ..TaskResult::default()
        };
        NumberedResults::new(vec![
            (
                entry("patents"),
                result(
                    "Grants [S1], ends [S2].",
                    vec![build_source("S1", "a.txt"), build_source("S2", "b.txt")],
                    vec![build_quotation("S1", "grants [9]"), build_quotation("S2", "ends")],
                ),
            ),
            (
                entry("notices"),
                result("Keep [S1].", vec![build_source("S1", "b.txt")], vec![build_quotation("S1", "keep")]),
            ),
        ])
    }

    fn build_report(output: &str) -> Report {
        Report {
            title: Some("T".into()),
            summary: "s".into(),
            output: output.into(),
            notes: None,
            ..Report::default()
        }
    }

    #[test]
    fn all_results_share_one_numbering() {
        let inputs = numbered_inputs();
        let outputs: Vec<&str> =
            inputs.numbered_results().iter().map(|(_, result)| result.output.as_str()).collect();
        assert_eq!(outputs, ["Grants [1], ends [2].", "Keep [2]."]);
        assert_eq!(inputs.numbered_results()[1].1.sources[0].id, "2");
    }

    #[test]
    fn citations_are_numbered_in_order_and_sources_are_listed() {
        for output in [
            "Keep [2]. “grants [9]” [1]",
            "Keep [notices/S1]. “grants [9]” [patents/S1]",
            "Keep [2,S2]. “grants [9]” [1]\n\n## Sources\n- [1] x",
        ] {
            let result = numbered_inputs().resolve_citations(&build_report(output)).unwrap();
            assert_eq!(
                result.output,
                "# T\n\nKeep [1]. “grants [9]” [2]\n\n## Sources\n\n- [1] B.TXT: b.txt, lines 3–4\n- [2] A.TXT: a.txt, lines 3–4\n"
            );
            let quoted: Vec<_> =
                result.quotations.iter().map(|q| (q.source.as_str(), q.text.as_str())).collect();
            assert_eq!(quoted, [("2", "grants [9]"), ("1", "ends"), ("1", "keep")]);
        }
    }

    #[test]
    fn unknown_and_missing_citations_are_rejected() {
        let mistake = |output: &str| numbered_inputs().resolve_citations(&build_report(output)).unwrap_err();
        assert_eq!(
            mistake("x [3]"),
            "[3] is not a source of the results. The sources are [1] a.txt, [2] b.txt."
        );
        assert!(
            mistake("x [S1]").starts_with("[S1] is not a source"),
            "two tasks have a source with this id"
        );
        assert!(mistake("x").starts_with("The report has no citations."));
        let none = NumberedResults::default();
        assert!(none.resolve_citations(&build_report("nothing to say")).is_ok());
        assert_eq!(
            none.resolve_citations(&build_report("x [1]")).unwrap_err(),
            "The results have no sources, but the report cites [1]."
        );
    }
}
