//! The deliverable of a run as Markdown. Pure.

use std::fmt::Write;

use millrace_protocol::plan::{EndReason, RunEnd};
use millrace_protocol::result::{SourceKind, TaskResult};
use millrace_protocol::safe_text::{self, markdown_line};

/// Returns a deliverable as Markdown, with its sources and the end of its run. `has_fallback` is `true` if the plan was made
/// without the planner's model.
#[must_use]
pub fn report_markdown(result: &TaskResult, end: &RunEnd, has_fallback: bool) -> String {
    let mut text = safe_text::markdown_document(result.output.trim_end());
    text.push('\n');
    if !result.sources.is_empty() && !has_source_list(&text) {
        text.push_str("\n## Sources\n\n");
        for source in &result.sources {
            let kind = match source.kind {
                SourceKind::Document | SourceKind::Web => "",
                SourceKind::Code => "code, ",
                SourceKind::Data => "data, ",
                SourceKind::Other => "other, ",
            };
            let (id, title) = (markdown_line(&source.id), markdown_line(&source.title));
            let _ = writeln!(text, "- [{id}] {title} ({kind}{})", markdown_line(&source.location));
        }
    }
    if end.reason != EndReason::Completed || has_fallback {
        let _ = write!(text, "\n> This run ended **{}**", end.reason);
        let detail =
            if end.detail.is_empty() { String::new() } else { format!(": {}", markdown_line(&end.detail)) };
        let _ = writeln!(text, "{detail}.");
    }
    text
}

fn has_source_list(text: &str) -> bool {
    text.lines().any(|line| line.trim_start_matches('#').trim() == "Sources")
}
