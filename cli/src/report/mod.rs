//! What a run leaves: the deliverable as Markdown, and everything as JSON.

mod whole;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Dimension, End, EndReason, FinalRung, Plan, TaskState};
use millrace_protocol::result::{SourceKind, TaskResult, Usage};
use millrace_runtime::Bus;
use serde_json::Value;

use crate::client::result_of;
use crate::exit::Stop;
use crate::intake::write;
use crate::story::Story;
use crate::view::one_line;

pub use whole::{how_to_go_on, json, why};

/// How many characters of the detail of an end stand in the line about it.
const MAX_DETAIL: usize = 400;

/// A run that is over, with its deliverable.
pub struct Report {
    run: RunId,
    story: Story,
    end: End,
    deliverable: Option<TaskResult>,
}

impl Report {
    /// Fetches the deliverable of a run that is over.
    ///
    /// # Errors
    /// The run is given back where it is not over; or the cluster does not answer.
    pub async fn fetch(bus: &Bus, run: &RunId, story: Story) -> Result<Result<Self, Story>, Stop> {
        let Some(end) = story.plan.end.clone() else { return Ok(Err(story)) };
        let deliverable = match &end.deliverable {
            Some((task, _)) => result_of(bus, run, &story.plan, task).await?,
            None => None,
        };
        Ok(Ok(Self { run: run.clone(), story, end, deliverable }))
    }

    /// The run.
    pub fn run(&self) -> &RunId {
        &self.run
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
        if self.end.reason != EndReason::Completed {
            let _ = write!(text, "\n> This run ended **{}**", self.end.reason);
            let detail =
                if self.end.detail.is_empty() { String::new() } else { format!(": {}", self.end.detail) };
            let _ = writeln!(text, "{detail}.");
        }
        Some(text)
    }

    /// Everything, as JSON.
    pub fn json(&self) -> Value {
        json(&self.run, &self.story, self.deliverable.as_ref(), self.end.at)
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

    /// How it went, in a line or a few: the end, what was spent and by whom, which result it is where that is not plain,
    /// and how to go on.
    pub fn summary(&self) -> Vec<String> {
        let plan = &self.story.plan;
        let (all, done) = (plan.tasks().len(), plan.count(TaskState::Completed));
        let took = plan.start.as_ref().map(|start| self.end.at.duration_since(start.at).as_secs_f64());
        let detail = shortly(&self.end.detail);
        let detail = if detail.is_empty() { detail } else { format!(" ({detail})") };
        let tasks = if all == 1 { "task" } else { "tasks" };
        let first = format!(
            "{}: {done} of {all} {tasks} completed in {:.1} s{detail}",
            self.end.reason,
            took.unwrap_or_default()
        );
        let rung = self.end.deliverable.as_ref().filter(|(_, rung)| *rung != FinalRung::Final);
        let rung = rung.map(|(task, rung)| format!("the result is that of {task}: {}", why(*rung)));
        let more = how_to_go_on(&self.run, plan).map(|how| format!("go on with more: {how}"));
        [Some(first), spend(plan), rung, more].into_iter().flatten().collect()
    }
}

/// A text on one line, cut where it is long: the JSON has all of it.
fn shortly(text: &str) -> String {
    let text = one_line(text);
    match text.char_indices().nth(MAX_DETAIL) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// What was spent, and by whom; `None` where no model was asked that is paid for by tokens.
pub fn spend(plan: &Plan) -> Option<String> {
    let spend = &plan.spend;
    if Dimension::Tokens.of(&spend.total) == 0 && spend.total.cost_micros == 0 {
        return None;
    }
    let roles = [("planner", spend.planner), ("workers", spend.workers), ("critics", spend.critics)];
    let roles = roles.iter().filter(|(_, usage)| !usage.is_zero());
    let roles: Vec<String> = roles.map(|(name, usage)| format!("{name} {}", said(usage))).collect();
    Some(format!("spent {} ({})", said(&spend.total), roles.join("; ")))
}

fn said(usage: &Usage) -> String {
    let calls = if usage.model_calls == 1 { "call" } else { "calls" };
    let tokens = Dimension::Tokens.say(Dimension::Tokens.of(usage));
    let mut text = format!("{tokens} in {} {calls}", usage.model_calls);
    if usage.cost_micros > 0 {
        let _ = write!(text, ", {}", Dimension::Cost.say(usage.cost_micros));
    }
    text
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

#[cfg(test)]
mod tests;
