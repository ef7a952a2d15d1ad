//! The producer's part: reads the results of the tasks before it and puts them together under one numbering of
//! sources. It adds nothing to what they found.

use millrace_protocol::ids::TaskId;
use millrace_protocol::result::{Quotation, Source, TaskResult};
use serde_json::json;

use super::conversation::{self, Exchange, exchanges, has_tool};
use super::markdown;
use super::question::Question;
use crate::model::{Reply, Request};
use crate::roles::WorkTask;
use crate::tool::{MAX_RESULT_CHARS, ResultEntry, Shown};

const LIST: &str = "list_completed_tasks";
const GET: &str = "get_task_result";

pub(super) fn reply(request: &Request, task: &WorkTask) -> Reply {
    let exchanges = exchanges(request);
    let list = exchanges.iter().find(|exchange| exchange.tool == LIST);
    let Some(list) = list else {
        return match has_tool(request, LIST) {
            true => conversation::call(request, vec![(LIST, json!({}))]),
            false => conversation::answer(&Report::default().write(task)),
        };
    };
    let entries: Vec<ResultEntry> = list.json().unwrap_or_default();
    let read: Vec<&Exchange<'_>> = exchanges.iter().filter(|exchange| exchange.tool == GET).collect();
    let wanted: Vec<&ResultEntry> = entries.iter().filter(|entry| entry.missing.is_none()).collect();
    if read.is_empty() && !wanted.is_empty() && has_tool(request, GET) {
        let get = |entry: &&ResultEntry| {
            (GET, json!({"task_id": entry.task_id.as_str(), "max_chars": MAX_RESULT_CHARS}))
        };
        return conversation::call(request, wanted.iter().map(get).collect());
    }
    let shown: Vec<Shown> = read.iter().filter_map(|exchange| exchange.json()).collect();
    conversation::answer(&Report::of(&entries, shown).write(task))
}

/// What a reader must know of a report that no language model wrote.
const CLOSING: &str =
    "\nPut together from verbatim quotations, chosen by their words, without a language model.\n";

/// The parts of a report.
#[derive(Default)]
struct Report {
    sections: Vec<Section>,
    sources: Vec<Source>,
    quotations: Vec<Quotation>,
}

struct Section {
    task: TaskId,
    heading: String,
    summary: String,
    body: String,
    notes: Option<String>,
}

impl Report {
    fn of(entries: &[ResultEntry], mut shown: Vec<Shown>) -> Self {
        let mut report = Self::default();
        for entry in entries {
            let result =
                shown.iter().position(|shown| shown.task_id == entry.task_id).map(|at| shown.remove(at));
            match result {
                Some(shown) => report.add(entry, shown),
                None => report.add_missing(entry),
            }
        }
        report
    }

    fn add(&mut self, entry: &ResultEntry, shown: Shown) {
        let Shown { task_id, result, cut } = shown;
        let numbers: Vec<(String, String)> =
            result.sources.iter().map(|source| (source.id.clone(), self.number(source))).collect();
        let number =
            |id: &str| numbers.iter().find(|(known, _)| known == id).map(|(_, number)| number.clone());
        let body = lowered(&markdown::renumber(&result.output, &result.quotations, number));
        let summary = if result.summary.is_empty() { entry.summary.clone() } else { result.summary };
        let summary = markdown::renumber(&summary, &[], number);
        for quotation in result.quotations {
            let source = number(&quotation.source);
            let quotation = Quotation { source: source.unwrap_or(quotation.source), ..quotation };
            if !self.quotations.contains(&quotation) {
                self.quotations.push(quotation);
            }
        }
        let notes = [result.notes, cut.map(|cut| format!("Left out here for its length: {cut}."))];
        self.sections.push(Section {
            task: task_id,
            heading: heading(&entry.objective),
            summary,
            body,
            notes: Some(notes.into_iter().flatten().collect::<Vec<_>>().join(" "))
                .filter(|notes| !notes.is_empty()),
        });
    }

    fn add_missing(&mut self, entry: &ResultEntry) {
        let reason = entry.missing.clone().unwrap_or_else(|| "its result could not be read".into());
        let text = format!("There is no result: {}.", reason.trim_end_matches('.'));
        self.sections.push(Section {
            task: entry.task_id.clone(),
            heading: heading(&entry.objective),
            summary: text.clone(),
            body: text,
            notes: None,
        });
    }

    /// The number of a source in the report; the same document is one source, whoever found it.
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

    fn write(self, task: &WorkTask) -> TaskResult {
        if self.sections.is_empty() {
            return nothing_to_report(task);
        }
        let mut output = format!("# {}\n\n## Summary\n\n", heading(&task.objective));
        for section in &self.sections {
            output.push_str(&format!("- **{}** {}\n", section.heading, section.summary));
        }
        for section in &self.sections {
            output.push_str(&format!("\n## {}\n\n{}\n", section.heading, section.body.trim()));
            if let Some(notes) = &section.notes {
                output.push_str(&format!("\nNote: {}\n", markdown::plain(notes)));
            }
        }
        output.push_str(&self.source_list());
        output.push_str(CLOSING);
        TaskResult {
            summary: self.summary(),
            output,
            notes: self.notes(task),
            sources: self.sources,
            quotations: self.quotations,
            ..TaskResult::default()
        }
    }

    fn source_list(&self) -> String {
        if self.sources.is_empty() {
            return String::new();
        }
        let mut list = "\n## Sources\n\n".to_owned();
        for source in &self.sources {
            let mut places: Vec<(u32, u32)> = self
                .quotations
                .iter()
                .filter(|quotation| quotation.source == source.id)
                .map(|quotation| (quotation.first_line, quotation.last_line))
                .collect();
            places.sort_unstable();
            places.dedup();
            let places = match places.as_slice() {
                [] => String::new(),
                [(first, last)] => format!(", {}", markdown::lines(*first, *last)),
                several => {
                    let ranges: Vec<String> =
                        several.iter().map(|(first, last)| markdown::range(*first, *last)).collect();
                    format!(", lines {}", ranges.join(", "))
                }
            };
            let title = markdown::plain(&source.title);
            list.push_str(&format!(
                "- [{}] {title}: {}{places}\n",
                source.id,
                markdown::plain(&source.location)
            ));
        }
        list
    }

    fn summary(&self) -> String {
        let questions = if self.sections.len() == 1 {
            "1 question".into()
        } else {
            format!("{} questions", self.sections.len())
        };
        let documents = self.sources.len();
        let sources = if documents == 1 { "1 source".into() } else { format!("{documents} sources") };
        format!("A report on {questions} with {} quotations from {sources}.", self.quotations.len())
    }

    /// The notes of the sections, and which terms of the objective nothing covers.
    fn notes(&self, task: &WorkTask) -> Option<String> {
        let mut notes: Vec<String> = self
            .sections
            .iter()
            .filter_map(|section| section.notes.as_ref().map(|notes| format!("{}: {notes}", section.task)))
            .collect();
        let uncovered = Question::read(&task.objective).uncovered(&self.quotations);
        if !uncovered.is_empty() {
            let words: Vec<String> = uncovered.iter().map(|wanted| format!("“{}”", wanted.word)).collect();
            notes.push(format!("No quotation is about: {}.", words.join(", ")));
        }
        (!notes.is_empty()).then(|| notes.join("\n"))
    }
}

/// Markdown with its headings below those of the report.
fn lowered(output: &str) -> String {
    let lines =
        output.lines().map(|line| if line.starts_with('#') { format!("##{line}") } else { line.to_owned() });
    lines.collect::<Vec<_>>().join("\n")
}

fn nothing_to_report(task: &WorkTask) -> TaskResult {
    let notes = "No task before this one has a result.";
    TaskResult {
        summary: "There is nothing to report on.".into(),
        output: format!("# {}\n\nThere is nothing to report on. {notes}\n", heading(&task.objective)),
        notes: Some(notes.into()),
        ..TaskResult::default()
    }
}

/// A text as a heading: one line, not too long.
fn heading(text: &str) -> String {
    const LONGEST: usize = 200;
    let line = markdown::plain(text);
    match line.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", line[..at].trim_end()),
        None => line,
    }
}
