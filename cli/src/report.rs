//! What a run leaves: the deliverable as Markdown, and everything as JSON.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{End, Plan, TaskState};
use millrace_protocol::result::{SourceKind, TaskResult};
use millrace_runtime::Bus;
use serde::Serialize;
use serde_json::Value;

use crate::client::result_of;
use crate::exit::Stop;
use crate::intake::write;

/// A run that is over, with its deliverable.
pub struct Report {
    run: RunId,
    plan: Plan,
    end: End,
    deliverable: Option<TaskResult>,
}

/// The whole result, as it stands in the JSON file.
#[derive(Serialize)]
struct Whole<'a> {
    run: &'a RunId,
    reason: millrace_protocol::plan::EndReason,
    detail: &'a str,
    /// The deliverable's task, and by which rule it was chosen.
    deliverable: Option<Value>,
    result: Option<&'a TaskResult>,
    plan: &'a Plan,
}

impl Report {
    /// Fetches the deliverable of a run that is over; `None` if it is not.
    pub async fn fetch(bus: &Bus, run: &RunId, plan: Plan) -> Result<Option<Self>, Stop> {
        let Some(end) = plan.end.clone() else { return Ok(None) };
        let deliverable = match &end.deliverable {
            Some((task, _)) => result_of(bus, run, &plan, task).await?,
            None => None,
        };
        Ok(Some(Self { run: run.clone(), plan, end, deliverable }))
    }

    /// How it ended.
    pub fn end(&self) -> &End {
        &self.end
    }

    /// The deliverable as Markdown, with its sources; `None` if there is none.
    pub fn markdown(&self) -> Option<String> {
        let result = self.deliverable.as_ref()?;
        let mut text = result.output.trim_end().to_owned();
        text.push('\n');
        if !result.sources.is_empty() && !lists_sources(&text) {
            text.push_str("\n## Sources\n\n");
            for source in &result.sources {
                let kind = match source.kind {
                    SourceKind::Document | SourceKind::Web => "",
                    SourceKind::Code => "code, ",
                    SourceKind::Data => "data, ",
                    SourceKind::Other => "other, ",
                };
                let _ = writeln!(text, "- [{}] {} ({kind}{})", source.id, source.title, source.location);
            }
        }
        if self.end.reason != millrace_protocol::plan::EndReason::Completed {
            let _ = write!(text, "\n> This run ended **{}**", self.end.reason);
            let detail =
                if self.end.detail.is_empty() { String::new() } else { format!(": {}", self.end.detail) };
            let _ = writeln!(text, "{detail}.");
        }
        Some(text)
    }

    /// Everything, as JSON.
    pub fn json(&self) -> Value {
        let chosen = |(task, rung): &(millrace_protocol::ids::TaskId, millrace_protocol::plan::FinalRung)| serde_json::json!({ "task": task, "rung": rung });
        let whole = Whole {
            run: &self.run,
            reason: self.end.reason,
            detail: &self.end.detail,
            deliverable: self.end.deliverable.as_ref().map(chosen),
            result: self.deliverable.as_ref(),
            plan: &self.plan,
        };
        serde_json::to_value(whole).expect("a result has a form in JSON")
    }

    /// Writes both files. Without names of their own they go below the data folder.
    pub fn save(&self, data: &Path, out: Option<&Path>, result: Option<&Path>) -> Result<Saved, Stop> {
        let folder = data.join("results").join(self.run.as_str());
        let report = match self.markdown() {
            None => None,
            Some(text) => {
                let path = out.map_or_else(|| folder.join("report.md"), Path::to_owned);
                write(&path, &text)?;
                Some(path)
            }
        };
        let json = result.map_or_else(|| folder.join("result.json"), Path::to_owned);
        let text = serde_json::to_string_pretty(&self.json()).expect("JSON has a form as text");
        write(&json, &(text + "\n"))?;
        Ok(Saved { report, json })
    }

    /// One line on how it went.
    pub fn summary(&self) -> String {
        let (all, done) = (self.plan.tasks().len(), self.plan.count(TaskState::Completed));
        let took = self.plan.start.as_ref().map(|start| self.end.at.duration_since(start.at).as_secs_f64());
        let detail =
            if self.end.detail.is_empty() { String::new() } else { format!(" ({})", self.end.detail) };
        let tasks = if all == 1 { "task" } else { "tasks" };
        format!(
            "{}: {done} of {all} {tasks} completed in {:.1} s{detail}",
            self.end.reason,
            took.unwrap_or_default()
        )
    }
}

/// Where the files are.
pub struct Saved {
    /// The deliverable, if there is one.
    pub report: Option<PathBuf>,
    /// The whole result.
    pub json: PathBuf,
}

fn lists_sources(text: &str) -> bool {
    text.lines().any(|line| line.trim_start_matches('#').trim() == "Sources")
}
