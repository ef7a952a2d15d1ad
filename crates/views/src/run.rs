//! A run: a line of `millrace list --json`, and the complete result (`millrace show --json`, `result.json`, the last line of
//! `millrace run --json`). A field of the list has the same name in the result. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use jiff::Timestamp;
use millrace_protocol::form::Time;
use millrace_protocol::ids::{Capability, Lane, RunId, SessionId, TaskId};
use millrace_protocol::labels::Labels;
use millrace_protocol::plan::{
    Budget, DeliverableRule, EarlierRun, EndReason, Plan, PlanningMode, ResourceAmounts, RunEnd, RunHold,
    RunWaitKind, Submission, Task, UsageBreakdown,
};
use millrace_protocol::registry::{QueuePlace, RunSummary};
use millrace_protocol::result::{SourceKind, TaskResult, Usage};
use millrace_protocol::safe_text::{self, markdown_line};
use millrace_protocol::wait::ProviderWaitJson;
use millrace_runtime::work::queue_place::PlacesInQueue;
use millrace_verification::VerificationCounts;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::AnswerState;
use crate::history::{FailureRecord, PlannerTurn, RunHistory, UserCommand, UserMessage};
use crate::queue_wait::describe_wait_of_plan;
use crate::run_state::{RunState, TaskCounts};
use crate::tagged;
use crate::task::TaskJson;
use crate::wording::{describe_hold, explain_deliverable_choice};

/// A run in a list: a line of `millrace list --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "run")]
#[schemars(transform = tagged("run"))]
pub struct RunListLine<'a> {
    /// The run.
    run: &'a RunId,
    /// Its state.
    state: RunState,
    /// Its objective, truncated to 200 characters. Fields are absent that are not known before a supervisor has started the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    objective: Option<&'a str>,
    /// Its labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<&'a Labels>,
    /// Its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a SessionId>,
    /// Its number in its session, from 1; absent before its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_position: Option<u32>,
    /// The reason for which it waits before its first task.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<RunHold>,
    /// Its place among the runs that wait for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_place: Option<&'a QueuePlace>,
    /// Its lane of the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    lane: Option<u16>,
    /// When it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Time>,
    /// When it changed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<Time>,
    /// `true` if it has ended and can be resumed.
    resumable: bool,
    /// `true` if its log is in the archive.
    archived: bool,
    /// The number of tasks, by state.
    task_counts: TaskCounts,
    /// Its usage.
    usage: Usage,
    /// The provider that it waits for, or for which it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for_provider: Option<ProviderWaitJson<'a>>,
    /// The current wait of a live run; absent while one of its own tasks is in progress. `state` does not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<RunWaitKind>,
    /// A description of the wait, also of the hold before the first task.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<Cow<'a, str>>,
    /// The number of its open questions to persons; `millrace inbox` shows them.
    open_questions: u32,
    /// The damage of its log; such a run cannot continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_damage: Option<&'a str>,
}

impl<'a> RunListLine<'a> {
    pub fn new(run: &'a RunId, summary: Option<&'a RunSummary>) -> Self {
        let counts = |summary: &RunSummary| TaskCounts::new(|state| summary.task_count(state));
        Self {
            run,
            state: RunState::of_summary(summary),
            objective: summary.map(|summary| summary.objective.as_str()),
            labels: summary.map(|summary| &summary.labels).filter(|labels| !labels.is_empty()),
            session: summary.and_then(|summary| summary.session.as_ref()),
            session_position: summary.and_then(|summary| summary.session_position),
            hold: summary.and_then(|summary| summary.hold),
            queue_place: summary.and_then(|summary| summary.queue_place.as_ref()),
            lane: summary.map(|RunSummary { lane: Lane(lane), .. }| *lane),
            started_at: summary.map(|summary| summary.started.into()),
            updated_at: summary.map(|summary| summary.updated.into()),
            resumable: summary.is_some_and(|summary| summary.is_resumable),
            archived: summary.is_some_and(|summary| summary.archived),
            task_counts: summary.map(counts).unwrap_or_default(),
            usage: summary.map(|summary| summary.usage).unwrap_or_default(),
            waiting_for_provider: summary
                .and_then(|summary| summary.waiting_for_provider.as_ref())
                .map(Into::into),
            waiting: summary.and_then(|summary| summary.wait.as_ref()).map(|wait| wait.kind),
            waiting_for: summary.and_then(|summary| summary.waiting_for.as_deref()).map(Cow::Borrowed),
            open_questions: summary.map(|summary| summary.open_questions).unwrap_or_default(),
            log_damage: summary.and_then(|summary| summary.log_damage.as_deref()),
        }
    }

    /// The same with another text of its wait, if there is one.
    pub fn with_waiting_for(self, text: Option<String>) -> Self {
        Self { waiting_for: text.map(Cow::Owned).or(self.waiting_for), ..self }
    }

    /// Returns the line for a run that no supervisor has started.
    pub fn submitted(
        run: &'a RunId,
        objective: &'a str,
        labels: &'a Labels,
        session: Option<&'a SessionId>,
    ) -> Self {
        let labels = Some(labels).filter(|labels| !labels.is_empty());
        Self { objective: Some(objective), labels, session, ..Self::new(run, None) }
    }
}

/// A run with everything that happened in it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "result")]
#[schemars(transform = tagged("result"))]
pub struct RunResult<'a> {
    /// The run.
    run: &'a RunId,
    /// Its state.
    state: RunState,
    /// Its objective.
    objective: Option<&'a str>,
    /// The planning mode.
    mode: Option<PlanningMode>,
    /// The runs that it follows up on.
    #[serde(skip_serializing_if = "<[EarlierRun]>::is_empty")]
    after: &'a [EarlierRun],
    /// Its labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<&'a Labels>,
    /// Its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a SessionId>,
    /// Its number in its session, from 1; absent before its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_position: Option<u32>,
    /// The reason for which it waits before its first task.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<RunHold>,
    /// When it started.
    started_at: Option<Time>,
    /// Its end; `null` until then.
    end: Option<EndJson<'a>>,
    /// `true` if it has ended and can be resumed.
    resumable: bool,
    /// The provider that the run waits for, or for which it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for_provider: Option<ProviderWaitJson<'a>>,
    /// The current wait of a live run; absent while one of its own tasks is in progress. `state` does not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<RunWaitKind>,
    /// A description of the wait, also of the hold before the first task.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<String>,
    /// The task whose result is the deliverable.
    deliverable: Option<DeliverableJson<'a>>,
    /// `false` if the deliverable does not answer its question; absent as long as there is no deliverable.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered: Option<bool>,
    /// The relation of the deliverable to its question; absent where the deliverable is not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<AnswerState>,
    /// The result of the deliverable's task: text in `output`, structured output in `data`.
    result: Option<&'a TaskResult>,
    /// The numbers of the statements of the deliverable, by verdict and finder; absent if they were not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    verification: Option<VerificationCounts>,
    /// The number of tasks, by state.
    task_counts: TaskCounts,
    /// All tasks, with all attempts.
    tasks: Vec<TaskJson<'a>>,
    /// The planner's turns.
    turns: &'a [PlannerTurn],
    /// The messages of users.
    messages: &'a [UserMessage],
    /// The commands of users.
    commands: &'a [UserCommand],
    /// The usage.
    usage: Usage,
    /// The usage by role, capability and model.
    spend: &'a UsageBreakdown,
    /// The limits, and the remaining amounts.
    budget: Option<BudgetJson<'a>>,
    /// The errors, from first to last.
    errors: &'a [FailureRecord],
}

/// The tasks of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "tasks")]
#[schemars(transform = tagged("tasks"))]
pub struct TaskList<'a> {
    /// The run.
    run: &'a RunId,
    /// The sequence of the last decision; 0 before the first.
    sequence: u64,
    /// The number of tasks, by state.
    task_counts: TaskCounts,
    /// The tasks, with all attempts.
    tasks: Vec<TaskJson<'a>>,
}

impl<'a> TaskList<'a> {
    /// Returns the tasks of a run that `is_wanted` selects.
    pub fn new(run: &'a RunId, (plan, sequence): (&'a Plan, u64), is_wanted: impl Fn(&Task) -> bool) -> Self {
        let hold = describe_hold(plan, false);
        let tasks = plan.tasks().iter().filter(|task| is_wanted(task));
        Self {
            run,
            sequence,
            task_counts: TaskCounts::new(|state| plan.task_count_in_state(state)),
            tasks: tasks.map(|task| TaskJson::new(plan, task, hold)).collect(),
        }
    }

    /// The same with the places of the tasks that wait for a worker.
    pub fn with_places(mut self, plan: &Plan, places: &PlacesInQueue) -> Self {
        self.tasks.iter_mut().for_each(|task| task.set_place(self.run, plan, places));
        self
    }
}

/// The end of a run.
#[derive(Debug, Serialize, JsonSchema)]
struct EndJson<'a> {
    /// The reason, as in `state`.
    reason: EndReason,
    /// Details for a person.
    detail: &'a str,
    /// When it ended.
    at: Time,
    /// The command that resumes the run, if it can be resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    resume_with: Option<String>,
}

/// The task whose result is the deliverable.
#[derive(Debug, Serialize, JsonSchema)]
struct DeliverableJson<'a> {
    /// The task.
    task: &'a TaskId,
    /// The rule by which it was chosen.
    rule: DeliverableRule,
    /// The rule, for a person.
    reason: &'static str,
}

/// The budget of a run.
#[derive(Debug, Serialize, JsonSchema)]
struct BudgetJson<'a> {
    /// The limits; times are in seconds, as in a plan file.
    limits: &'a Budget,
    /// The remaining amounts, under the names of the limits.
    left: RemainingBudget,
}

/// The remaining amounts of all limited resources.
#[derive(Debug, Serialize, JsonSchema)]
struct RemainingBudget {
    #[serde(flatten)]
    amounts: ResourceAmountsJson,
    /// The remaining time in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    wall_time: Option<f64>,
    /// The remaining turns of the planner.
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u32>,
    /// The remaining amounts by capability.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    capabilities: BTreeMap<Capability, ResourceAmounts>,
}

/// Amounts of resources; one that is not limited is absent.
#[derive(Debug, Serialize, JsonSchema)]
struct ResourceAmountsJson {
    /// Tokens in both directions.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    /// Tokens sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    input_tokens: Option<u64>,
    /// Tokens received.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_tokens: Option<u64>,
    /// Tokens that the provider read from its cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    /// Calls to models.
    #[serde(skip_serializing_if = "Option::is_none")]
    model_calls: Option<u64>,
    /// Millionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_micros: Option<u64>,
}

impl From<ResourceAmounts> for ResourceAmountsJson {
    fn from(amounts: ResourceAmounts) -> Self {
        let ResourceAmounts { tokens, input_tokens, output_tokens, cached_tokens, model_calls, cost_micros } =
            amounts;
        Self { tokens, input_tokens, output_tokens, cached_tokens, model_calls, cost_micros }
    }
}

impl<'a> RunResult<'a> {
    /// Adds what was submitted to a run that no supervisor has started.
    #[must_use]
    pub fn of_submission(self, submission: &'a Submission) -> Self {
        Self {
            objective: Some(&submission.objective),
            mode: Some(submission.mode),
            after: &submission.after,
            labels: Some(&submission.labels).filter(|labels| !labels.is_empty()),
            session: submission.session.as_ref(),
            ..self
        }
    }

    /// Returns a run and the result of its deliverable, as of `now`. `resume_with` is the command that resumes it.
    pub fn new(
        run: &'a RunId,
        history: &'a RunHistory,
        result: Option<&'a TaskResult>,
        now: Timestamp,
        resume_with: Option<String>,
    ) -> Self {
        let plan = &history.plan;
        let (start, end) = (plan.run.start.as_ref(), plan.run.end.as_ref());
        let deliverable = end.and_then(|end| end.deliverable.as_ref());
        let hold = plan.run.holds.first().filter(|_| plan.is_live());
        let (waiting, waiting_for) = plan.current_wait().map(|(wait, text)| (wait.kind, text)).unzip();
        Self {
            run,
            state: RunState::of_plan(plan),
            objective: start.map(|start| start.objective.as_str()),
            mode: start.map(|start| start.mode),
            after: start.map_or(&[][..], |start| start.after.as_slice()),
            labels: start.map(|start| &start.labels).filter(|labels| !labels.is_empty()),
            session: start.and_then(|start| start.session.as_ref()),
            session_position: plan.run.holds.position,
            hold,
            started_at: start.map(|start| start.at.into()),
            end: end.map(|end| EndJson {
                reason: end.reason,
                detail: &end.detail,
                at: end.at.into(),
                resume_with,
            }),
            resumable: end.is_some_and(|end| end.is_resumable),
            waiting_for_provider: plan.oldest_provider_wait().map(Into::into),
            waiting,
            waiting_for: waiting_for
                .flatten()
                .or_else(|| hold.filter(|_| plan.run.paused.is_none()).map(|hold| hold.to_string())),
            deliverable: deliverable.map(|(task, rule)| DeliverableJson {
                task,
                rule: *rule,
                reason: explain_deliverable_choice(*rule),
            }),
            answered: deliverable.map(|(id, _)| plan.task(id).is_none_or(Task::is_answered)),
            answer: result.map(AnswerState::of),
            result,
            verification: result
                .filter(|result| !result.statements.is_empty())
                .map(VerificationCounts::of_result),
            task_counts: TaskCounts::new(|state| plan.task_count_in_state(state)),
            tasks: tasks_of_plan(plan, false),
            turns: &history.turns,
            messages: &history.messages,
            commands: &history.commands,
            usage: plan.budget.spend.total,
            spend: &plan.budget.spend,
            budget: start
                .map(|start| BudgetJson { limits: &start.budget, left: remaining_budget(plan, now) }),
            errors: &history.errors,
        }
    }

    /// The same while no cluster is running: its tasks wait for one.
    pub fn without_cluster(self, history: &'a RunHistory) -> Self {
        Self { waiting: None, waiting_for: None, tasks: tasks_of_plan(&history.plan, true), ..self }
    }

    /// The same with the places of the work that waits for a worker.
    pub fn with_places(mut self, history: &'a RunHistory, places: &PlacesInQueue) -> Self {
        self.waiting_for = describe_wait_of_plan(self.run, &history.plan, places).or(self.waiting_for);
        self.tasks.iter_mut().for_each(|task| task.set_place(self.run, &history.plan, places));
        self
    }
}

fn tasks_of_plan(plan: &Plan, is_offline: bool) -> Vec<TaskJson<'_>> {
    let hold = describe_hold(plan, is_offline);
    plan.tasks().iter().map(|task| TaskJson::new(plan, task, hold)).collect()
}

fn remaining_budget(plan: &Plan, now: Timestamp) -> RemainingBudget {
    let budget = plan.run.start.as_ref().map(|start| &start.budget);
    let until = plan.run.end.as_ref().map_or(now, |end| end.at);
    let time = budget.and_then(|budget| budget.wall_time);
    let seconds = time.map(|limit| (limit.as_secs_f64() - plan.worked_time(until).as_secs_f64()).max(0.0));
    RemainingBudget {
        amounts: remaining_amounts(plan).into(),
        wall_time: seconds.map(|seconds| (seconds * 1000.0).round() / 1000.0),
        steps: plan.has_planner().then(|| plan.max_planning_turns().saturating_sub(plan.planning.turns)),
        capabilities: budget.map(|budget| remaining_by_capability(plan, budget)).unwrap_or_default(),
    }
}

fn remaining_amounts(plan: &Plan) -> ResourceAmounts {
    let mut remaining = ResourceAmounts::default();
    for (dimension, limit) in plan.run.start.iter().flat_map(|start| start.budget.amounts.iter()) {
        let used = dimension
            .amount_used(&plan.budget.spend.total)
            .saturating_add(plan.budget.reserved.total_reserved(dimension));
        remaining.set(dimension, Some(limit.saturating_sub(used)));
    }
    remaining
}

fn remaining_by_capability(plan: &Plan, budget: &Budget) -> BTreeMap<Capability, ResourceAmounts> {
    let remaining = budget.capabilities.iter().map(|(name, limits)| {
        let used = plan.budget.spend.by_capability.get(name).copied().unwrap_or_default();
        let mut amounts = ResourceAmounts::default();
        for (dimension, limit) in limits.iter() {
            amounts.set(dimension, Some(limit.saturating_sub(dimension.amount_used(&used))));
        }
        (name.clone(), amounts)
    });
    remaining.collect()
}

/// The state of a run at some point of its log: the last line of `millrace replay --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "replay")]
#[schemars(transform = tagged("replay"))]
pub struct ReplayJson<'a> {
    /// The run.
    run: &'a RunId,
    /// The sequence of the last decision; `null` before the first.
    sequence: Option<u64>,
    /// The time of the last decision.
    at: Option<Time>,
    /// The run at that point, without the text of its deliverable.
    result: RunResult<'a>,
    /// The state as folded from the log. For debugging: its fields may change with every release.
    #[schemars(with = "serde_json::Value")]
    plan: Cow<'a, Plan>,
}

impl<'a> ReplayJson<'a> {
    /// Returns the state after the decision at `last`, or the state before the first decision.
    /// `resume_with` is the command that resumes the run.
    pub fn new(
        run: &'a RunId,
        history: &'a RunHistory,
        last: Option<(u64, Timestamp)>,
        resume_with: Option<String>,
    ) -> Self {
        let now = last.map_or(Timestamp::UNIX_EPOCH, |(_, at)| at);
        Self {
            run,
            sequence: last.map(|(sequence, _)| sequence),
            at: last.map(|(_, at)| at.into()),
            result: RunResult::new(run, history, None, now, resume_with),
            plan: Cow::Borrowed(&history.plan),
        }
    }
}

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
