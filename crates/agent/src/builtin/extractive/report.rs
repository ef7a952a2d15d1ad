//! The producer role: reads the results of the tasks before it and combines them. It adds nothing to their findings; their
//! sources already share one numbering.

use millrace_protocol::ids::TaskId;
use millrace_protocol::result::{Quotation, Source};
use millrace_protocol::safe_text::markdown_line;
use millrace_verification::Phrases;
use serde_json::json;

use super::conversation::{self, ToolExchange, has_tool, list_tool_exchanges};
use crate::answers::Report;
use crate::citations;
use crate::model::{Reply, Request};
use crate::roles::WorkTask;
use crate::tool::{MAX_RESULT_CHARS, ResultEntry, ResultView};

const LIST: &str = "list_completed_tasks";
const GET: &str = "get_task_result";

pub(super) fn reply_to_report_task(request: &Request, task: &WorkTask) -> Reply {
    let exchanges = list_tool_exchanges(request);
    let list = exchanges.iter().find(|exchange| exchange.tool == LIST);
    let Some(list) = list else {
        return match has_tool(request, LIST) {
            true => conversation::reply_with_calls(request, vec![(LIST, json!({}))]),
            false => conversation::reply_with_answer(&ReportParts::default().into_report(task)),
        };
    };
    let entries: Vec<ResultEntry> = list.parse_result().unwrap_or_default();
    let read: Vec<&ToolExchange<'_>> = exchanges.iter().filter(|exchange| exchange.tool == GET).collect();
    let wanted: Vec<&ResultEntry> = entries.iter().filter(|entry| entry.missing.is_none()).collect();
    if read.is_empty() && !wanted.is_empty() && has_tool(request, GET) {
        let get = |entry: &&ResultEntry| {
            (GET, json!({"task_id": entry.task_id.as_str(), "max_chars": MAX_RESULT_CHARS}))
        };
        return conversation::reply_with_calls(request, wanted.iter().map(get).collect());
    }
    let shown: Vec<ResultView> = read.iter().filter_map(|exchange| exchange.parse_result()).collect();
    conversation::reply_with_answer(&ReportParts::from_results(&entries, shown).into_report(task))
}

#[derive(Default)]
struct ReportParts {
    sections: Vec<ReportSection>,
    sources: Vec<Source>,
    quotations: Vec<Quotation>,
}

struct ReportSection {
    task: TaskId,
    heading: String,
    summary: String,
    body: String,
    notes: Option<String>,
    /// `false` if its result states that it does not answer its question.
    is_answered: bool,
}

impl ReportParts {
    fn from_results(entries: &[ResultEntry], mut shown: Vec<ResultView>) -> Self {
        let mut report = Self::default();
        for entry in entries {
            let result =
                shown.iter().position(|shown| shown.task_id == entry.task_id).map(|at| shown.remove(at));
            match result {
                Some(shown) => report.add_result(entry, shown),
                None => report.add_missing_result(entry),
            }
        }
        report
    }

    fn add_result(&mut self, entry: &ResultEntry, shown: ResultView) {
        let ResultView { task_id, result, cut } = shown;
        let number =
            |id: &str| result.sources.iter().find(|source| source.id == id).map(|source| source.id.clone());
        let is_answered = result.is_answered();
        let mut body =
            demote_headings(&citations::rename_citations(&result.output, &result.quotations, number));
        if citations::find_citations(&body, &result.quotations).is_empty() && !result.sources.is_empty() {
            // Its citations are in the part that was cut.
            let marks: Vec<String> = result.sources.iter().map(|source| format!("[{}]", source.id)).collect();
            body = format!("{}\n\nFrom {}.", body.trim_end(), marks.join(", "));
        }
        let summary = if result.summary.is_empty() { entry.summary.clone() } else { result.summary };
        let summary = citations::rename_citations(&summary, &[], number);
        for quotation in result.quotations {
            if !self.quotations.contains(&quotation) {
                self.quotations.push(quotation);
            }
        }
        for source in result.sources {
            if self.sources.iter().all(|earlier| earlier.id != source.id) {
                self.sources.push(source);
            }
        }
        let notes = [result.notes, cut.map(|cut| format!("Cut here for length: {cut}."))];
        self.sections.push(ReportSection {
            task: task_id,
            heading: shorten_to_heading(&entry.objective),
            summary,
            body,
            notes: Some(notes.into_iter().flatten().collect::<Vec<_>>().join(" "))
                .filter(|notes| !notes.is_empty()),
            is_answered,
        });
    }

    fn add_missing_result(&mut self, entry: &ResultEntry) {
        let reason = entry.missing.clone().unwrap_or_else(|| "its result could not be read".into());
        let text = format!("There is no result: {}.", reason.trim_end_matches('.'));
        self.sections.push(ReportSection {
            task: entry.task_id.clone(),
            heading: shorten_to_heading(&entry.objective),
            summary: text.clone(),
            body: text,
            notes: None,
            is_answered: true,
        });
    }

    fn into_report(self, task: &WorkTask) -> Report {
        if self.sections.is_empty() {
            return build_empty_report(task);
        }
        // The title of a report on one question is the question.
        let has_headings = self.sections.len() > 1;
        let mut output = String::new();
        if has_headings {
            output.push_str("## Summary\n\n");
            for section in &self.sections {
                output.push_str(&format!("- **{}** {}\n", section.heading, section.summary));
            }
        }
        for section in &self.sections {
            if has_headings {
                output.push_str(&format!("\n## {}\n\n", section.heading));
            }
            output.push_str(&format!("{}\n", section.body.trim()));
            if let Some(notes) = &section.notes {
                output.push_str(&format!("\nNote: {}\n", markdown_line(notes)));
            }
        }
        let unanswered = self.sections.iter().filter(|section| !section.is_answered);
        let unanswered: Vec<&str> = unanswered.map(|section| section.heading.as_str()).collect();
        // No language model wrote the report.
        let phrases = Phrases::choose(&task.objective, "");
        output.push_str(&format!("\n{}\n", phrases.closing));
        if has_headings && !unanswered.is_empty() {
            output.push_str(&format!("\n{}\n", phrases.describe_unanswered(&unanswered.join(" "))));
        }
        Report {
            title: Some(shorten_to_heading(&task.objective)),
            summary: self.build_summary(),
            output,
            notes: self.build_notes(),
            answered: (!unanswered.is_empty()).then_some(false),
            statements: Vec::new(),
        }
    }

    fn build_summary(&self) -> String {
        let questions = if self.sections.len() == 1 {
            "1 question".into()
        } else {
            format!("{} questions", self.sections.len())
        };
        let documents = self.sources.len();
        let sources = if documents == 1 { "1 source".into() } else { format!("{documents} sources") };
        let quotations = match self.quotations.len() {
            1 => "1 quotation".into(),
            several => format!("{several} quotations"),
        };
        format!("A report on {questions} with {quotations} from {sources}.")
    }

    /// The notes of the sections.
    fn build_notes(&self) -> Option<String> {
        let notes: Vec<String> = self
            .sections
            .iter()
            .filter_map(|section| section.notes.as_ref().map(|notes| format!("{}: {notes}", section.task)))
            .collect();
        (!notes.is_empty()).then(|| notes.join("\n"))
    }
}

/// Moves Markdown headings below those of the report.
fn demote_headings(output: &str) -> String {
    let lines =
        output.lines().map(|line| if line.starts_with('#') { format!("##{line}") } else { line.to_owned() });
    lines.collect::<Vec<_>>().join("\n")
}

fn build_empty_report(task: &WorkTask) -> Report {
    let notes = "No task before this one has a result.";
    Report {
        title: Some(shorten_to_heading(&task.objective)),
        summary: "There is nothing to report on.".into(),
        output: format!("There is nothing to report on. {notes}\n"),
        notes: Some(notes.into()),
        answered: Some(false),
        statements: Vec::new(),
    }
}

/// Shortens a text to a heading on one line.
fn shorten_to_heading(text: &str) -> String {
    const LONGEST: usize = 200;
    let line = markdown_line(text);
    match line.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", line[..at].trim_end()),
        None => line,
    }
}
