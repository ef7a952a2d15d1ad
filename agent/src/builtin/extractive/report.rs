//! The producer's part: reads the results of the tasks before it and puts them together. It adds nothing to what they
//! found; their sources have one numbering for all of them already.

use millrace_protocol::ids::TaskId;
use millrace_protocol::result::{Quotation, Source};
use serde_json::json;

use super::conversation::{self, Exchange, exchanges, has_tool};
use super::question::Question;
use crate::citations;
use crate::desk::Report;
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
            false => conversation::answer(&Parts::default().write(task)),
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
    conversation::answer(&Parts::of(&entries, shown).write(task))
}

/// What a reader must know of a report that no language model wrote.
const CLOSING: &str =
    "\nPut together from verbatim quotations, chosen by their words, without a language model.\n";

/// The parts of a report.
#[derive(Default)]
struct Parts {
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

impl Parts {
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
        let number =
            |id: &str| result.sources.iter().find(|known| known.id == id).map(|known| known.id.clone());
        let mut body = lowered(&citations::renumber(&result.output, &result.quotations, number));
        if citations::citations(&body, &result.quotations).is_empty() && !result.sources.is_empty() {
            // Its citations are in what was left out for its length.
            let marks: Vec<String> = result.sources.iter().map(|source| format!("[{}]", source.id)).collect();
            body = format!("{}\n\nFrom {}.", body.trim_end(), marks.join(", "));
        }
        let summary = if result.summary.is_empty() { entry.summary.clone() } else { result.summary };
        let summary = citations::renumber(&summary, &[], number);
        for quotation in result.quotations {
            if !self.quotations.contains(&quotation) {
                self.quotations.push(quotation);
            }
        }
        for source in result.sources {
            if self.sources.iter().all(|known| known.id != source.id) {
                self.sources.push(source);
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

    fn write(self, task: &WorkTask) -> Report {
        if self.sections.is_empty() {
            return nothing_to_report(task);
        }
        let mut output = "## Summary\n\n".to_owned();
        for section in &self.sections {
            output.push_str(&format!("- **{}** {}\n", section.heading, section.summary));
        }
        for section in &self.sections {
            output.push_str(&format!("\n## {}\n\n{}\n", section.heading, section.body.trim()));
            if let Some(notes) = &section.notes {
                output.push_str(&format!("\nNote: {}\n", citations::plain(notes)));
            }
        }
        output.push_str(CLOSING);
        Report {
            title: Some(heading(&task.objective)),
            summary: self.summary(),
            output,
            notes: self.notes(task),
        }
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

fn nothing_to_report(task: &WorkTask) -> Report {
    let notes = "No task before this one has a result.";
    Report {
        title: Some(heading(&task.objective)),
        summary: "There is nothing to report on.".into(),
        output: format!("There is nothing to report on. {notes}\n"),
        notes: Some(notes.into()),
    }
}

/// A text as a heading: one line, not too long.
fn heading(text: &str) -> String {
    const LONGEST: usize = 200;
    let line = citations::plain(text);
    match line.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", line[..at].trim_end()),
        None => line,
    }
}
