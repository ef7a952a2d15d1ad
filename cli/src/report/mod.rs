//! The results of a run: the deliverable as Markdown, and the complete result as JSON.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use millrace_agent::builtin::Extractive;
use millrace_plan_file::limits::resume_arguments;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{
    DeliverableRule, EndReason, Plan, ResourceKind, RunEnd, TaskState, tasks_without_budget,
};
use millrace_protocol::result::{Artifact, TaskResult, Usage, VerifiedStatement};
use millrace_protocol::safe_text::{self, single_line};
use millrace_protocol::subject::PLANNER;
use millrace_runtime::Bus;
use millrace_verification::VerificationCounts;

use crate::exit::CommandError;
use crate::history::RunHistory;
use crate::invocation::command_hint;
use crate::json::{RunResult, to_value};
use crate::submission::{create_private_folder, write_file_and_create_folder};
use crate::view::{format_short_duration, separate_thousands};
use millrace_client::read_task_result;
use millrace_views::wording::explain_deliverable_choice;
use millrace_views::{AnswerState, report_markdown};

/// Maximum number of characters of the end's detail in the summary line.
const MAX_DETAIL: usize = 400;

/// The most statements that were taken out and are listed.
const MAX_REMOVED: usize = 5;

/// A run that has ended, with its deliverable.
pub struct RunReport {
    run: RunId,
    history: RunHistory,
    end: RunEnd,
    deliverable: Option<TaskResult>,
}

impl RunReport {
    /// Fetches the deliverable of a run that has ended. Returns the history as `Err` if the run has not ended.
    pub async fn fetch_if_ended(
        bus: &Bus,
        run: &RunId,
        history: RunHistory,
    ) -> Result<Result<Self, RunHistory>, CommandError> {
        let Some(end) = history.plan.run.end.clone() else { return Ok(Err(history)) };
        let deliverable = match &end.deliverable {
            Some((task, _)) => read_task_result(bus, run, &history.plan, task).await?,
            None => None,
        };
        Ok(Ok(Self { run: run.clone(), history, end, deliverable }))
    }

    pub fn run_id(&self) -> &RunId {
        &self.run
    }

    pub fn run_end(&self) -> &RunEnd {
        &self.end
    }

    /// Returns the deliverable as Markdown, with its sources; `None` if there is none.
    pub fn deliverable_markdown(&self) -> Option<String> {
        let result = self.deliverable.as_ref()?;
        Some(report_markdown(result, &self.end, self.history.plan.planning.fallback.is_some()))
    }

    /// Returns the files that the task of the deliverable made or changed.
    pub fn artifacts(&self) -> &[Artifact] {
        self.deliverable.as_ref().map_or(&[], |result| result.artifacts.as_slice())
    }

    pub fn result_json(&self) -> RunResult<'_> {
        RunResult::new(
            &self.run,
            &self.history,
            self.deliverable.as_ref(),
            self.end.at,
            resume_command_hint(&self.run, &self.history.plan),
        )
    }

    /// Writes both files, by default below the data folder.
    pub fn save_files(
        &self,
        data: &Path,
        out: Option<&Path>,
        result: Option<&Path>,
    ) -> Result<ReportFiles, CommandError> {
        let results = data.join("results");
        let folder = results.join(self.run.as_str());
        if out.is_none() || result.is_none() {
            create_private_folder(&results)?;
        }
        let report = match self.deliverable_markdown() {
            None => None,
            Some(text) => {
                let path = out.map_or_else(|| folder.join("report.md"), Path::to_owned);
                write_file_and_create_folder(&path, &text)?;
                Some(path)
            }
        };
        let json = result.map_or_else(|| folder.join("result.json"), Path::to_owned);
        let text = safe_text::json_document(&to_value(&self.result_json()));
        write_file_and_create_folder(&json, &(text + "\n"))?;
        Ok(ReportFiles { report, json })
    }

    /// Summarizes the run in a few lines: how it ended, usage by role, why this result is the deliverable (if not obvious),
    /// and how to resume it.
    pub fn summary_lines(&self) -> Vec<String> {
        let plan = &self.history.plan;
        let (all, done) = (plan.tasks().len(), plan.task_count_in_state(TaskState::Completed));
        let took = plan.run.start.as_ref().map(|start| self.end.at.duration_since(start.at));
        let detail = truncate_to_one_line(&self.end.detail);
        let detail = if detail.is_empty() { detail } else { format!(" ({detail})") };
        let tasks = if all == 1 { "task" } else { "tasks" };
        let first = format!(
            "{}: {done} of {all} {tasks} completed in {}{detail}",
            self.end.reason,
            format_short_duration(took.unwrap_or_default())
        );
        let rung = self.end.deliverable.as_ref().filter(|(_, rung)| *rung != DeliverableRule::Final);
        let rung = rung.map(|(task, rung)| {
            format!("the deliverable is the result of {task}: {}", explain_deliverable_choice(*rung))
        });
        let more = resume_command_hint(&self.run, plan).map(|how| format!("resume it: {how}"));
        let other = other_planner_hint(&self.run, plan);
        let own_budget = own_budget_hint(plan);
        let verified = self.verification_lines();
        let answer = self.deliverable.as_ref().and_then(|result| AnswerState::of(result).describe());
        let answer = answer.map(str::to_owned);
        let lines = [Some(first), answer, describe_usage_by_role(plan), rung];
        let lines = lines.into_iter().flatten().chain(verified);
        lines.chain([more, other, own_budget].into_iter().flatten()).collect()
    }

    /// The counts of verdicts on the deliverable's statements; `None` if there is no deliverable.
    pub fn verification(&self) -> Option<VerificationCounts> {
        self.deliverable.as_ref().map(VerificationCounts::of_result)
    }

    /// The counts of verdicts, and the statements that were taken out with the reasons; empty if nothing was verified.
    fn verification_lines(&self) -> Vec<String> {
        let Some(result) = self.deliverable.as_ref().filter(|result| !result.statements.is_empty()) else {
            return Vec::new();
        };
        let removed = result.statements.iter().filter(|one| one.removed).take(MAX_REMOVED);
        let line = |one: &VerifiedStatement| {
            truncate_to_one_line(&format!("removed, {}: “{}” {}", one.outcome(), one.text, one.reason))
        };
        std::iter::once(VerificationCounts::of_result(result).to_string()).chain(removed.map(line)).collect()
    }

    /// The last line of the output: the notice that nobody judged the deliverable.
    pub fn missing_review_line(&self) -> Option<String> {
        describe_missing_review(&self.history.plan, &self.end)
    }
}

/// Returns a notice if no critic and no check judged the deliverable; `None` if one did, or there is no deliverable.
pub fn describe_missing_review(plan: &Plan, end: &RunEnd) -> Option<String> {
    let (task, _) = end.deliverable.as_ref()?;
    let task = plan.task(task)?;
    let is_judged = task.attempts.last().is_some_and(|attempt| attempt.verdict().is_some());
    (!is_judged)
        .then(|| format!("not reviewed: no critic and no check judged the result of {}", task.spec.id))
}

/// Returns the command that resumes a run that has ended, if it can be resumed.
pub fn resume_command_hint(run: &RunId, plan: &Plan) -> Option<String> {
    resume_arguments(run, plan).map(|arguments| command_hint(&arguments))
}

/// Returns what helps a run whose failed tasks have used up their own budgets.
pub fn own_budget_hint(plan: &Plan) -> Option<String> {
    let tasks = tasks_without_budget(plan);
    let task = tasks.first()?;
    Some(format!(
        "task {task} has used up its own budget, which a resume or a retry does not raise: give it a larger `budget` in the plan \
         and submit that as a new run"
    ))
}

/// Returns how to resume a run with another model for its planner, if the planner was the reason for its end. A model that the
/// run itself names for its planner stays with it.
pub fn other_planner_hint(run: &RunId, plan: &Plan) -> Option<String> {
    let end = plan.run.end.as_ref()?;
    let names_planner =
        plan.run.start.as_ref().is_some_and(|start| start.models.keys().any(|name| name.as_str() == PLANNER));
    if end.reason != EndReason::PlannerUnavailable || !end.is_resumable {
        return None;
    }
    Some(if names_planner {
        "or start it again with another model for its planner, or with --plan FILE".to_owned()
    } else {
        let resume = command_hint(&format!("resume {run} --model planner=PROVIDER:MODEL"));
        format!("or with another model for its planner: {resume}; --plan FILE of `run` needs no planner")
    })
}

/// Returns a text on one line, truncated if it is long: the JSON has all of it.
fn truncate_to_one_line(text: &str) -> String {
    let text = single_line(text);
    match text.char_indices().nth(MAX_DETAIL) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Describes the usage by role, or that there was no language model; `None` if no tokens were used so far.
pub fn describe_usage_by_role(plan: &Plan) -> Option<String> {
    let spend = &plan.budget.spend;
    if !spend.by_model.is_empty() && spend.by_model.keys().all(|model| model == Extractive::NAME) {
        return Some(format!("used no language model: {} quotes the documents", Extractive::NAME));
    }
    if ResourceKind::Tokens.amount_used(&spend.total) == 0 && spend.total.cost_micros == 0 {
        return None;
    }
    let roles = [("planner", spend.planner), ("workers", spend.workers), ("critics", spend.critics)];
    let roles = roles.iter().filter(|(_, usage)| !usage.is_zero());
    let roles: Vec<String> = roles.map(|(name, usage)| format!("{name} {}", describe_usage(usage))).collect();
    Some(format!("used {} ({})", describe_usage(&spend.total), roles.join("; ")))
}

pub fn describe_usage(usage: &Usage) -> String {
    let calls = if usage.model_calls == 1 { "call" } else { "calls" };
    let tokens = ResourceKind::Tokens.format_amount(ResourceKind::Tokens.amount_used(usage));
    let mut text = separate_thousands(&format!("{tokens} in {} {calls}", usage.model_calls));
    if usage.cost_micros > 0 {
        let _ = write!(text, ", {}", ResourceKind::Cost.format_amount(usage.cost_micros));
    }
    text
}

/// The paths of the files that were written.
pub struct ReportFiles {
    /// The deliverable, if there is one.
    pub report: Option<PathBuf>,
    /// The complete result.
    pub json: PathBuf,
}

#[cfg(test)]
mod tests;
