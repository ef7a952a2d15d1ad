//! The answer of whoever puts results together: text that cites the sources of these results. It owns the one numbering
//! under which the sources of all inputs are shown, and what turns an answer into a result: every citation must be one
//! of theirs, and sources and quotations are carried over as they are. It judges nothing else.

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_protocol::ids::TaskId;
use millrace_protocol::result::{Quotation, Source, TaskResult};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::marks;
use crate::citations;
use crate::model::AnswerSchema;
use crate::tool::{ResultEntry, Results, ToolError, schema_of};
use crate::turn::Answer;

/// The most sources that a mistake names.
const MAX_NAMED: usize = 20;

/// A report, as a model gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct Report {
    /// The report's title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The report in Markdown. Each statement keeps the numbers of its sources: [1], [2]. The list of sources is
    /// added by itself.
    #[schemars(length(min = 1))]
    pub output: String,
    /// The answer in one or two sentences.
    #[schemars(length(min = 1))]
    pub summary: String,
    /// What the results leave open; null if nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
}

impl Answer for Report {
    fn schema(name: &str) -> Option<AnswerSchema> {
        let mut schema = schema_of::<Self>();
        schema["required"] = json!(["output", "summary"]);
        Some(AnswerSchema { name: name.to_owned(), schema })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let report: Self = super::read(text)?;
        if report.output.trim().is_empty() {
            return Err("'output' is empty.".into());
        }
        Ok(report)
    }
}

/// The results that a report builds on, under one numbering of their sources.
#[derive(Debug, Default)]
pub(super) struct Numbered {
    results: Vec<(ResultEntry, TaskResult)>,
    /// With their numbers as ids.
    sources: Vec<Source>,
    quotations: Vec<Quotation>,
    /// Which number the source of a task has: task, its own name for the source, the number.
    names: Vec<(TaskId, String, String)>,
}

impl Numbered {
    pub fn of(results: Vec<(ResultEntry, TaskResult)>) -> Self {
        let mut inputs = Self::default();
        for (entry, result) in results {
            inputs.add(entry, result);
        }
        inputs
    }

    /// The results, with the marks and ids of the one numbering.
    pub fn results(&self) -> &[(ResultEntry, TaskResult)] {
        &self.results
    }

    fn add(&mut self, entry: ResultEntry, result: TaskResult) {
        let numbers: Vec<(String, String)> =
            result.sources.iter().map(|source| (source.id.clone(), self.number(source))).collect();
        let number = |id: &str| numbers.iter().find(|(own, _)| own == id).map(|(_, number)| number.clone());
        let renumber =
            |text: &str| marks::without_repeats(&citations::renumber(text, &result.quotations, number));
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
            if sources.iter().all(|known| known.id != id) {
                sources.push(Source { id, ..source.clone() });
            }
        }
        self.quotations.extend(quotations.iter().cloned());
        let names = numbers.into_iter().map(|(own, number)| (entry.task_id.clone(), own, number));
        self.names.extend(names);
        let entry = ResultEntry { summary: summary.clone(), ..entry };
        self.results.push((entry, TaskResult { output, summary, sources, quotations, ..result }));
    }

    /// The number of a source; the same document is one source, whoever found it.
    fn number(&mut self, source: &Source) -> String {
        let known = self.sources.iter().find(|known| {
            known.kind == source.kind && known.location == source.location && known.sha256 == source.sha256
        });
        if let Some(known) = known {
            return known.id.clone();
        }
        let id = (self.sources.len() + 1).to_string();
        self.sources.push(Source { id: id.clone(), ..source.clone() });
        id
    }

    /// The source that a mark means: its number, `task/S1`, or `S1` where only one task has a source of that name.
    fn meant(&self, mark: &str) -> Option<&Source> {
        let number = if let Some((task, own)) = mark.rsplit_once('/') {
            let found = self.names.iter().find(|(id, name, _)| id.as_str() == task && name == own);
            found.map(|(_, _, number)| number.as_str())?
        } else if mark.starts_with('S') {
            let mut found =
                self.names.iter().filter(|(_, name, _)| name == mark).map(|(_, _, number)| number);
            let first = found.next()?;
            if found.any(|other| other != first) {
                return None;
            }
            first
        } else {
            mark
        };
        self.sources.iter().find(|source| source.id == number)
    }

    /// The result that a report makes: its sources numbered as they come, and listed at its end.
    ///
    /// # Errors
    /// What is wrong with it, for the model that is to mend it.
    pub fn resolve(&self, report: &Report) -> Result<TaskResult, String> {
        let body = citations::single(without_list(&report.output));
        let summary = citations::single(&report.summary);
        let cited = citations::citations(&body, &self.quotations);
        let unknown: Vec<&str> = cited
            .iter()
            .copied()
            .chain(citations::citations(&summary, &self.quotations))
            .filter(|mark| self.meant(mark).is_none())
            .collect();
        if !unknown.is_empty() {
            return Err(self.unknown(&unknown));
        }
        let says_why = report.notes.as_deref().is_some_and(|notes| !notes.trim().is_empty());
        if cited.is_empty() && !self.sources.is_empty() && !says_why {
            return Err(format!(
                "The report cites nothing. Keep the citations of the results, as [1], or say in 'notes' why there are \
                 none; the sources are {}.",
                self.known()
            ));
        }
        Ok(self.result(report, &body, &summary, &cited))
    }

    fn result(&self, report: &Report, body: &str, summary: &str, cited: &[&str]) -> TaskResult {
        let mut sources: Vec<&Source> = Vec::new();
        for source in cited.iter().filter_map(|mark| self.meant(mark)) {
            if sources.iter().all(|known| known.id != source.id) {
                sources.push(source);
            }
        }
        let number = |id: &str| {
            let at = sources.iter().position(|source| source.id == id)?;
            Some((at + 1).to_string())
        };
        let name = |mark: &str| number(&self.meant(mark)?.id);
        let quotations = self.quotations.iter().filter_map(|quotation| {
            Some(Quotation { source: number(&quotation.source)?, ..quotation.clone() })
        });
        let quotations = marks::unique(quotations.collect());
        let renumber =
            |text: &str| marks::without_repeats(&citations::renumber(text, &self.quotations, name));
        let numbered = sources.iter().enumerate();
        let sources: Vec<Source> =
            numbered.map(|(at, source)| Source { id: (at + 1).to_string(), ..(*source).clone() }).collect();
        let mut output = title(report.title.as_deref(), body);
        output.push_str(renumber(body).trim());
        output.push('\n');
        output.push_str(&source_list(&sources, &quotations));
        TaskResult {
            summary: renumber(summary),
            output,
            notes: report.notes.clone().filter(|notes| !notes.trim().is_empty()),
            sources,
            quotations,
            ..TaskResult::default()
        }
    }

    fn unknown(&self, marks: &[&str]) -> String {
        let mut named: Vec<String> = marks.iter().map(|mark| format!("[{mark}]")).collect();
        named.dedup();
        named.truncate(MAX_NAMED);
        match self.sources.as_slice() {
            [] => format!("The results have no sources, and the report cites {}.", named.join(", ")),
            _ => {
                format!("{} is no source of the results. The sources are {}.", named.join(", "), self.known())
            }
        }
    }

    fn known(&self) -> String {
        let named =
            self.sources.iter().take(MAX_NAMED).map(|source| format!("[{}] {}", source.id, source.location));
        let mut named: Vec<String> = named.collect();
        if self.sources.len() > MAX_NAMED {
            named.push(format!("and so on up to [{}]", self.sources.len()));
        }
        named.join(", ")
    }
}

impl Results for Numbered {
    fn list(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>> {
        ready(Ok(self.results.iter().map(|(entry, _)| entry.clone()).collect())).boxed()
    }

    fn get<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>> {
        let found = self.results.iter().find(|(entry, _)| entry.task_id == *task);
        ready(Ok(found.map(|(_, result)| result.clone()))).boxed()
    }
}

/// A report without the list of sources that a model wrote at its end itself.
fn without_list(output: &str) -> &str {
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

fn title(title: Option<&str>, body: &str) -> String {
    match title.map(str::trim).filter(|title| !title.is_empty()) {
        Some(title) if !body.trim_start().starts_with("# ") => {
            format!("# {}\n\n", title.trim_start_matches('#').trim())
        }
        Some(_) | None => String::new(),
    }
}

fn source_list(sources: &[Source], quotations: &[Quotation]) -> String {
    if sources.is_empty() {
        return String::new();
    }
    let mut list = "\n## Sources\n\n".to_owned();
    for source in sources {
        let quoted = quotations.iter().filter(|quotation| quotation.source == source.id);
        let mut places: Vec<(u32, u32)> =
            quoted.map(|quotation| (quotation.first_line, quotation.last_line)).collect();
        places.sort_unstable();
        places.dedup();
        let places = match places.as_slice() {
            [] => String::new(),
            [(first, last)] => format!(", {}", citations::lines(*first, *last)),
            several => {
                let ranges: Vec<String> =
                    several.iter().map(|(first, last)| citations::range(*first, *last)).collect();
                format!(", lines {}", ranges.join(", "))
            }
        };
        let (title, location) = (citations::plain(&source.title), citations::plain(&source.location));
        list.push_str(&format!("- [{}] {title}: {location}{places}\n", source.id));
    }
    list
}

#[cfg(test)]
mod tests {
    use millrace_protocol::result::SourceKind;

    use super::*;

    fn source(id: &str, location: &str) -> Source {
        Source {
            id: id.into(),
            kind: SourceKind::Document,
            title: location.to_uppercase(),
            location: location.into(),
            sha256: None,
        }
    }

    fn quotation(source: &str, text: &str) -> Quotation {
        Quotation { source: source.into(), text: text.into(), first_line: 3, last_line: 4 }
    }

    fn inputs() -> Numbered {
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
        Numbered::of(vec![
            (
                entry("patents"),
                result(
                    "Grants [S1], ends [S2].",
                    vec![source("S1", "a.txt"), source("S2", "b.txt")],
                    vec![quotation("S1", "grants [9]"), quotation("S2", "ends")],
                ),
            ),
            (
                entry("notices"),
                result("Keep [S1].", vec![source("S1", "b.txt")], vec![quotation("S1", "keep")]),
            ),
        ])
    }

    fn report(output: &str) -> Report {
        Report { title: Some("T".into()), summary: "s".into(), output: output.into(), notes: None }
    }

    #[test]
    fn all_results_are_shown_under_one_numbering() {
        let inputs = inputs();
        let outputs: Vec<&str> = inputs.results().iter().map(|(_, result)| result.output.as_str()).collect();
        assert_eq!(outputs, ["Grants [1], ends [2].", "Keep [2]."]);
        assert_eq!(inputs.results()[1].1.sources[0].id, "2");
    }

    #[test]
    fn citations_are_numbered_as_they_come_and_sources_listed() {
        for output in [
            "Keep [2]. “grants [9]” [1]",
            "Keep [notices/S1]. “grants [9]” [patents/S1]",
            "Keep [2,S2]. “grants [9]” [1]\n\n## Sources\n- [1] x",
        ] {
            let result = inputs().resolve(&report(output)).unwrap();
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
    fn citations_of_nothing_and_none_at_all_are_told() {
        let told = |output: &str| inputs().resolve(&report(output)).unwrap_err();
        assert_eq!(told("x [3]"), "[3] is no source of the results. The sources are [1] a.txt, [2] b.txt.");
        assert!(told("x [S1]").starts_with("[S1] is no source"), "two tasks have one of that name");
        assert!(told("x").starts_with("The report cites nothing."));
        let none = Numbered::default();
        assert!(none.resolve(&report("nothing to say")).is_ok());
        assert_eq!(
            none.resolve(&report("x [1]")).unwrap_err(),
            "The results have no sources, and the report cites [1]."
        );
    }
}
