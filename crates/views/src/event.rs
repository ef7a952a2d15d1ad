//! Events and decisions of a run. The names of events are `noun_verb`; those of the log are not changed by this.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use millrace_protocol::ids::{Capability, RunId, SessionId, TaskId, WorkerId};
use millrace_protocol::labels::Labels;
use millrace_protocol::plan::{
    AnswerCause, AttemptClock, AttemptEvent, Budget, BudgetEvent, Decision, DeliverableRule, DocumentSet,
    EarlierRun, EndReason, Event, GraphEvent, JournalKey, PlannerConsultMode, PlanningEvent, PlanningMode,
    ProviderEvent, ResourceAmounts, ReviewEvent, ReviewPolicy, RunEvent, RunHold, TaskEvent, TaskSpec,
    UserEvent, Work,
};
use millrace_protocol::provider::ProviderWait;
use millrace_protocol::question::StandingAnswer;
use millrace_protocol::result::{Build, ErrorKind, ExceededLimit, ModelUsage, TaskError, Usage, Verdict};
use millrace_protocol::wait::Signal;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::{PersonAnswerJson, QuestionJson, Time, WaitEndJson, WaitJson, event_data, tagged};

/// An event of a run: a line of `millrace run --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EventLine<'a> {
    /// The run.
    pub run: &'a RunId,
    /// The sequence, in the lane, of the decision with the event; events of one decision share it.
    pub sequence: u64,
    /// The time of the decision.
    pub at: Time,
    /// The event.
    #[serde(flatten)]
    pub event: EventJson<'a>,
}

/// Returns the names of all events of a run.
pub fn event_names() -> &'static BTreeSet<String> {
    static NAMES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let schema = schemars::schema_for!(EventJson<'_>);
        let variants = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
        variants.filter_map(|one| Some(one["properties"]["type"]["const"].as_str()?.to_owned())).collect()
    });
    &NAMES
}

/// An event. `type` is its name.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventJson<'a> {
    /// The run started.
    RunStarted {
        /// The objective.
        objective: &'a str,
        /// The planning mode.
        mode: PlanningMode,
        /// The documents of the run.
        documents: Option<&'a DocumentSet>,
        /// The model of agents.
        model: Option<&'a str>,
        /// The models by capability.
        models: &'a BTreeMap<Capability, String>,
        /// `true` if the first failed task ends the run.
        fail_fast: bool,
        /// The limits of the run.
        budget: &'a Budget,
        /// When the planner is called.
        consult: PlannerConsultMode,
        /// `true` if a person must approve the plan before its first task starts.
        approve_plan: bool,
        /// The criteria for the deliverable.
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        criteria: &'a [String],
        /// The runs that this run follows up on.
        #[serde(skip_serializing_if = "<[EarlierRun]>::is_empty")]
        after: &'a [EarlierRun],
        /// The labels.
        #[serde(skip_serializing_if = "Labels::is_empty")]
        labels: &'a Labels,
        /// The session.
        #[serde(skip_serializing_if = "Option::is_none")]
        session: Option<&'a SessionId>,
    },
    /// The run waits before its first task.
    RunHeld {
        /// The reason.
        hold: RunHold,
    },
    /// The turn of the run in its session has come. It sees the results of the runs before it.
    SessionTurnCame {
        /// The number of the run in its session, from 1.
        position: u32,
        /// The runs before it whose results it sees.
        earlier: &'a [EarlierRun],
        /// All of its documents, the results of these runs included.
        documents: Option<&'a DocumentSet>,
    },
    /// The run has a place among the running runs.
    PlaceGranted {},
    /// The run can't wait for a place, since as many runs as allowed wait. It ends.
    PlaceRefused {
        /// The number of waiting runs.
        waiting: u32,
    },
    /// Clocks have not counted the time in which a worker, or every supervisor, was absent.
    ClocksStopped {
        /// The worker: the clocks of its work stopped. `null` if every supervisor was absent: the clocks of waiting work
        /// stopped.
        worker: Option<&'a WorkerId>,
        /// The only task whose clock stopped: no supervisor was there to read its worker's report. `null` if all of them stopped.
        task: Option<&'a TaskId>,
        /// The start of the absence.
        began_at: Time,
        /// Its end.
        ended_at: Time,
    },
    /// A person must approve the plan.
    PlanQuestionAsked {
        /// The question.
        question: Option<QuestionJson<'a>>,
        /// `true` if it is the next round of the open question, because the plan has changed.
        again: bool,
    },
    /// The question about the plan has ended.
    PlanQuestionEnded {
        /// Its end.
        end: WaitEndJson<'a>,
    },
    /// No new tasks start until the run is resumed.
    RunPaused {},
    /// Nothing of the run is in progress until it is resumed.
    RunInterrupted {},
    /// The run continues after a pause or an interrupt, or with another budget.
    RunResumed {
        /// The new limits.
        budget: &'a Budget,
    },
    /// The run ends as soon as what is in progress has ended.
    RunWindingDown {
        /// The reason.
        reason: EndReason,
        /// Details for a person.
        detail: &'a str,
    },
    /// The run continues after its end.
    RunReopened {},
    /// The run can no longer be resumed.
    RunRetired {},
    /// The run ended.
    RunEnded {
        /// The reason.
        reason: EndReason,
        /// Details for a person.
        detail: &'a str,
        /// The task whose result is the deliverable.
        deliverable: Option<DeliverableChoice<'a>>,
        /// `true` if the run can be resumed.
        resumable: bool,
    },
    /// A user's command was applied; its consequences follow.
    UserCommand {
        /// The id of the command.
        id: &'a str,
        /// The user.
        by: &'a str,
        /// The command, for a person.
        description: &'a str,
    },
    /// A user sent the planner a message.
    UserMessage {
        /// The user.
        by: &'a str,
        /// The message.
        text: &'a str,
    },
    /// A user or a program signalled an event to the run.
    EventSignalled {
        /// The name of the event.
        name: &'a str,
        /// The user or the program.
        by: &'a str,
        /// The data of the event; `null` if it has none.
        data: Option<serde_json::Value>,
    },
    /// A person's answer also decides further calls.
    StandingAnswer {
        /// The capability whose agents make the calls.
        capability: &'a Capability,
        /// The tool.
        tool: &'a str,
        /// The digest of the calls; `null` for all calls of the tool.
        digest: Option<&'a str>,
        /// The person.
        by: &'a str,
        /// The decision.
        #[serde(flatten)]
        answer: PersonAnswerJson<'a>,
    },
    /// There is a reason to call the planner.
    PlannerTriggered {
        /// The reason, for a person.
        trigger: String,
    },
    /// A turn of the planner waits for a planner.
    PlannerRequested {
        /// The turn.
        turn: u32,
        /// The attempt at the turn.
        attempt: u32,
        /// The error of the attempt before.
        feedback: Option<&'a str>,
        /// The reasons, for a person.
        triggers: Vec<String>,
    },
    /// A planner claimed the turn.
    PlannerClaimed {
        /// The turn.
        turn: u32,
        /// The attempt at the turn.
        attempt: u32,
        /// The process.
        worker: &'a WorkerId,
    },
    /// The planner's turn ended with a proposal.
    PlannerFinished {
        /// The turn.
        turn: u32,
        /// The attempt at the turn.
        attempt: u32,
        /// The planner's reasons.
        reasoning: &'a str,
        /// The edits that were refused, with the reason.
        refused: &'a [String],
        /// The reason for a plain plan that was made without the planner's model; absent for the planner's own plan.
        #[serde(skip_serializing_if = "Option::is_none")]
        fallback: Option<&'a str>,
        /// `true` if the turn made no progress.
        idle: bool,
        /// The usage.
        usage: Usage,
        /// The usage by model.
        models: &'a ModelUsage,
    },
    /// An attempt at the planner's turn failed.
    PlannerFailed {
        /// The turn.
        turn: u32,
        /// The attempt at the turn.
        attempt: u32,
        /// The error.
        error: &'a str,
        /// When it is retried; `null` if it is not.
        retry_at: Option<Time>,
        /// `true` if its reservation was used up.
        exceeded_reservation: bool,
        /// `true` if the model's provider refused the request for good.
        refused_by_provider: bool,
        /// The usage.
        usage: Usage,
        /// The usage by model.
        models: &'a ModelUsage,
    },
    /// The plan has one more task.
    TaskAdded {
        /// The task.
        task: &'a TaskId,
        /// The specification, as in a plan file.
        spec: &'a TaskSpec,
        /// `true` if it does not wait for dependencies.
        ready: bool,
    },
    /// A task was changed.
    TaskChanged {
        /// The task.
        task: &'a TaskId,
        /// The specification from now on.
        spec: &'a TaskSpec,
    },
    /// The result of this task is the deliverable.
    TaskMarkedFinal {
        /// The task.
        task: &'a TaskId,
    },
    /// The task waits for a worker.
    TaskReady {
        /// The task.
        task: &'a TaskId,
        /// The attempt.
        attempt: u32,
    },
    /// The task waits for its dependencies.
    TaskPending {
        /// The task.
        task: &'a TaskId,
    },
    /// The task waits for a worker that provides its capability; none does.
    TaskCapabilityMissing {
        /// The task.
        task: &'a TaskId,
        /// The capability.
        capability: &'a Capability,
    },
    /// The task waits for other parameters.
    TaskParametersRejected {
        /// The task.
        task: &'a TaskId,
        /// The problem with its parameters.
        problem: &'a str,
    },
    /// The task runs again.
    TaskReopened {
        /// The task.
        task: &'a TaskId,
        /// The next attempt.
        attempt: u32,
        /// `true` if it does not wait for dependencies.
        ready: bool,
        /// Instructions for the next attempt.
        feedback: Option<&'a str>,
    },
    /// The task must run again, because one that it depends on does.
    TaskInvalidated {
        /// The task.
        task: &'a TaskId,
        /// The next attempt.
        attempt: u32,
        /// The usage counted for work in flight.
        usage: Usage,
    },
    /// The result of the task was accepted.
    TaskCompleted {
        /// The task.
        task: &'a TaskId,
        /// The attempt with the result.
        attempt: u32,
    },
    /// The result was rejected; the next attempt waits for a worker.
    TaskRerun {
        /// The task.
        task: &'a TaskId,
        /// The next attempt.
        attempt: u32,
    },
    /// The task gets instructions of the task that delegated it.
    TaskInstructed {
        /// The task.
        task: &'a TaskId,
        /// The first attempt that gets them.
        attempt: u32,
        /// The instructions.
        text: &'a str,
    },
    /// The task failed for good.
    TaskFailed {
        /// The task.
        task: &'a TaskId,
        /// The reason.
        reason: &'a str,
    },
    /// The task was cancelled.
    TaskCancelled {
        /// The task.
        task: &'a TaskId,
        /// The reason.
        reason: &'a str,
        /// The dependency whose loss cancelled it.
        because_of: Option<&'a TaskId>,
        /// The usage counted for work in flight.
        usage: Usage,
    },
    /// A worker claimed the attempt.
    AttemptClaimed {
        /// The task.
        task: &'a TaskId,
        /// The attempt.
        attempt: u32,
        /// The process.
        worker: &'a WorkerId,
        /// Its software, if it named it.
        #[serde(skip_serializing_if = "Option::is_none")]
        build: Option<&'a Build>,
    },
    /// The attempt produced a result.
    AttemptFinished {
        /// The task.
        task: &'a TaskId,
        /// The attempt.
        attempt: u32,
        /// The process.
        worker: &'a WorkerId,
        /// The sequence, in the lane, of the result.
        result_sequence: u64,
        /// The result in a sentence.
        summary: &'a str,
        /// `true` if the result has text beyond the summary.
        detailed: bool,
        /// `false` if the result does not answer its question.
        answered: bool,
        /// The review that the capability demands.
        review: Option<&'a ReviewPolicy>,
        /// The usage.
        usage: Usage,
        /// The usage by model.
        models: &'a ModelUsage,
    },
    /// The attempt failed.
    AttemptFailed {
        /// The task.
        task: &'a TaskId,
        /// The attempt.
        attempt: u32,
        /// The error.
        error: ErrorDetails<'a>,
        /// When the next attempt starts; `null` if there is none.
        retry_at: Option<Time>,
    },
    /// The attempt timed out.
    AttemptTimedOut {
        /// The task.
        task: &'a TaskId,
        /// The attempt.
        attempt: u32,
        /// The limit that was reached.
        clock: AttemptClock,
        /// When the next attempt starts; `null` if there is none.
        retry_at: Option<Time>,
        /// The counted usage.
        usage: Usage,
    },
    /// The attempt waits for times or events, and holds no worker meanwhile.
    AttemptParked {
        /// The task.
        task: &'a TaskId,
        /// The attempt.
        attempt: u32,
        /// The waits.
        waits: Vec<WaitJson<'a>>,
    },
    /// A task that the attempt delegated is not added to the plan.
    ChildRefused {
        /// The task.
        task: &'a TaskId,
        /// The attempt.
        attempt: u32,
        /// The delegated task.
        child: &'a TaskId,
        /// The reason.
        reason: &'a str,
    },
    /// A wait of the attempt has ended.
    AttemptWaitEnded {
        /// The task.
        task: &'a TaskId,
        /// The attempt.
        attempt: u32,
        /// The key of the wait.
        key: &'a str,
        /// The end.
        end: WaitEndJson<'a>,
    },
    /// A question of the attempt expired and is asked again.
    QuestionRenewed {
        /// The task.
        task: &'a TaskId,
        /// The attempt.
        attempt: u32,
        /// The key of its wait.
        key: &'a str,
        /// The person or role that should answer now; empty is anyone.
        to: &'a str,
    },
    /// All waits of the attempt have ended; it waits for a worker again.
    AttemptWoken {
        /// The task.
        task: &'a TaskId,
        /// The attempt.
        attempt: u32,
    },
    /// A review failed.
    ReviewFailed {
        /// The task.
        task: &'a TaskId,
        /// The attempt under review.
        attempt: u32,
        /// The number of the try at the review.
        review: u32,
        /// The error.
        error: &'a str,
        /// `true` if it is tried again.
        retried: bool,
        /// When it is tried again.
        retry_at: Option<Time>,
        /// The usage.
        usage: Usage,
        /// The usage by model.
        models: &'a ModelUsage,
    },
    /// A review waits for a critic again.
    ReviewReady {
        /// The task.
        task: &'a TaskId,
    },
    /// A critic gave its verdict.
    ReviewFinished {
        /// The task.
        task: &'a TaskId,
        /// The attempt under review.
        attempt: u32,
        /// The critic.
        critic: &'a WorkerId,
        /// The verdict.
        verdict: &'a Verdict,
    },
    /// Part of the budget is reserved for work in flight.
    BudgetReserved {
        /// The work.
        work: WorkJson<'a>,
        /// The amounts.
        amounts: ResourceAmounts,
    },
    /// A reservation does not pay for the first request of its work.
    BudgetReservationTooSmall {
        /// The work.
        work: WorkJson<'a>,
        /// The amounts that it needs.
        needs: ResourceAmounts,
    },
    /// The budget runs low.
    BudgetLow {
        /// The amount, for a person.
        detail: &'a str,
    },
    /// Work waits for the provider of its model.
    ProviderAwaited {
        /// The work.
        work: WorkJson<'a>,
        /// The wait.
        wait: ProviderWaitJson<'a>,
    },
    /// The provider answers again.
    ProviderRecovered {
        /// The work.
        work: WorkJson<'a>,
    },
    /// The provider did not answer in time; the run is paused.
    ProviderGivenUp {
        /// The work.
        work: WorkJson<'a>,
        /// The wait.
        wait: ProviderWaitJson<'a>,
    },
}

/// The task whose result is the deliverable, and the rule by which it was chosen.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DeliverableChoice<'a> {
    /// The task.
    pub task: &'a TaskId,
    /// The rule.
    pub rule: DeliverableRule,
}

/// A piece of work.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WorkJson<'a> {
    /// The kind of the work.
    pub kind: WorkKindJson,
    /// The task, of work on a task or its review.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<&'a TaskId>,
    /// The planner's turn, of work on a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// The attempt.
    pub attempt: u32,
    /// The number of the try at a review.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub review: Option<u32>,
}

/// A kind of work.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkKindJson {
    /// An attempt at a task.
    Task,
    /// A review of an attempt's result.
    Review,
    /// An attempt at a turn of the planner.
    Planning,
}

impl<'a> WorkJson<'a> {
    fn of_task(kind: WorkKindJson, task: &'a TaskId, attempt: u32) -> Self {
        Self { kind, task: Some(task), turn: None, attempt, review: None }
    }

    fn of_turn(turn: u32, attempt: u32) -> Self {
        Self { kind: WorkKindJson::Planning, task: None, turn: Some(turn), attempt, review: None }
    }
}

impl<'a> From<&'a Work> for WorkJson<'a> {
    fn from(work: &'a Work) -> Self {
        match work {
            Work::Task { task, attempt } => Self::of_task(WorkKindJson::Task, task, *attempt),
            Work::Review { task, attempt, review } => {
                Self { review: Some(*review), ..Self::of_task(WorkKindJson::Review, task, *attempt) }
            }
            Work::Planning { turn, attempt } => Self::of_turn(*turn, *attempt),
        }
    }
}

impl<'a> From<&'a JournalKey> for WorkJson<'a> {
    fn from(journal: &'a JournalKey) -> Self {
        match journal {
            JournalKey::Task(task, attempt) => Self::of_task(WorkKindJson::Task, task, *attempt),
            JournalKey::Review(task, attempt) => Self::of_task(WorkKindJson::Review, task, *attempt),
            JournalKey::Planning(turn, attempt) => Self::of_turn(*turn, *attempt),
        }
    }
}

/// A wait for a model's provider.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProviderWaitJson<'a> {
    /// The model, as `provider:model`.
    pub model: &'a str,
    /// The time of the first failure.
    pub since: Time,
    /// The time of the next request.
    pub next_try_at: Time,
    /// The number of failures.
    pub tries: u32,
    /// The last error.
    pub error: &'a str,
}

impl<'a> From<&'a ProviderWait> for ProviderWaitJson<'a> {
    fn from(wait: &'a ProviderWait) -> Self {
        let ProviderWait { model, since, next_try, tries, error } = wait;
        Self { model, since: (*since).into(), next_try_at: (*next_try).into(), tries: *tries, error }
    }
}

/// The error of an attempt.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct ErrorDetails<'a> {
    /// The kind of the error.
    pub kind: AttemptErrorKind,
    /// The error, for a person.
    pub message: std::borrow::Cow<'a, str>,
    /// The limit that was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<ExceededLimit>,
    /// `true` if the model's provider refused the request for good.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub refused_by_provider: bool,
    /// The unfinished answer of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub produced: Option<&'a str>,
    /// The usage.
    #[serde(skip_serializing_if = "Usage::is_zero")]
    pub usage: Usage,
    /// The usage by model.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: std::borrow::Cow<'a, ModelUsage>,
}

/// The kind of an attempt's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum AttemptErrorKind {
    /// An error that the worker reported.
    Reported(ErrorKind),
    /// The attempt timed out.
    TimedOut(TimedOutKind),
}

/// The kind of a time-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimedOutKind {
    /// The attempt timed out.
    TimedOut,
}

impl<'a> From<&'a TaskError> for ErrorDetails<'a> {
    fn from(error: &'a TaskError) -> Self {
        let TaskError { kind, message, limit, usage, models, is_refused_by_provider, produced } = error;
        Self {
            kind: AttemptErrorKind::Reported(*kind),
            message: message.into(),
            limit: *limit,
            refused_by_provider: *is_refused_by_provider,
            produced: produced.as_deref(),
            usage: *usage,
            models: std::borrow::Cow::Borrowed(models),
        }
    }
}

impl From<AttemptClock> for ErrorDetails<'_> {
    fn from(clock: AttemptClock) -> Self {
        Self {
            kind: AttemptErrorKind::TimedOut(TimedOutKind::TimedOut),
            message: clock.to_string().into(),
            limit: None,
            refused_by_provider: false,
            produced: None,
            usage: Usage::default(),
            models: std::borrow::Cow::Owned(ModelUsage::new()),
        }
    }
}

/// A decision of a run: a line of `millrace replay --log --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "decision")]
#[schemars(transform = tagged("decision"))]
pub struct DecisionLine<'a> {
    /// The run.
    run: &'a RunId,
    /// The sequence of the decision in the lane.
    sequence: u64,
    /// The time of the decision.
    at: Time,
    /// The supervisor.
    by: &'a WorkerId,
    /// The answered inputs, in order.
    answers: Vec<AnswerJson>,
    /// The events, those of one answer after those of the one before.
    events: Vec<EventJson<'a>>,
}

/// The answer to an input.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AnswerJson {
    /// The input.
    cause: CauseJson,
    /// The sequence, in the lane, of the message that was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<u64>,
    /// The number of its events.
    events: u32,
    /// The reason why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
}

/// The kind of an input.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CauseJson {
    /// A message of a client, worker or critic.
    Message,
    /// A time that was reached.
    Clock,
    /// A change of the cluster's capabilities.
    Registry,
    /// A rule that follows from the answer before.
    Rules,
}

impl<'a> DecisionLine<'a> {
    /// Returns the line for a decision.
    pub fn new(run: &'a RunId, sequence: u64, decision: &'a Decision) -> Self {
        let answers = decision.answers.iter().map(|answer| {
            let (cause, message) = match answer.cause {
                AnswerCause::Fact(sequence) => (CauseJson::Message, Some(sequence)),
                AnswerCause::Clock => (CauseJson::Clock, None),
                AnswerCause::Registry => (CauseJson::Registry, None),
                AnswerCause::Rules => (CauseJson::Rules, None),
            };
            let refusal = answer.refusal.as_ref().map(ToString::to_string);
            AnswerJson { cause, message, events: answer.events, refusal }
        });
        Self {
            run,
            sequence,
            at: decision.at.into(),
            by: &decision.by,
            answers: answers.collect(),
            events: decision.events.iter().map(EventJson::from).collect(),
        }
    }
}

impl<'a> From<&'a Event> for EventJson<'a> {
    fn from(event: &'a Event) -> Self {
        match event {
            Event::Run(event) => run_event(event),
            Event::User(event) => user_event(event),
            Event::Planning(event) => planning_event(event),
            Event::Graph(event) => graph_event(event),
            Event::Task(event) => task_event(event),
            Event::Attempt(event) => attempt_event(event),
            Event::Review(event) => review_event(event),
            Event::Budget(event) => budget_event(event),
            Event::Provider(event) => provider_event(event),
        }
    }
}

fn run_event(event: &RunEvent) -> EventJson<'_> {
    match event {
        RunEvent::Started {
            objective,
            mode,
            documents,
            model,
            models,
            fail_fast,
            budget,
            consult,
            approve_plan,
            criteria,
            after,
            labels,
            session,
        } => EventJson::RunStarted {
            objective,
            mode: *mode,
            documents: documents.as_deref(),
            model: model.as_deref(),
            models,
            fail_fast: *fail_fast,
            budget,
            consult: *consult,
            approve_plan: *approve_plan,
            criteria,
            after,
            labels,
            session: session.as_ref(),
        },
        RunEvent::Held { hold, submitted: _ } => EventJson::RunHeld { hold: *hold },
        RunEvent::SessionTurnCame { position, earlier, documents } => {
            EventJson::SessionTurnCame { position: *position, earlier, documents: documents.as_deref() }
        }
        RunEvent::PlaceGranted => EventJson::PlaceGranted {},
        RunEvent::PlaceRefused { waiting } => EventJson::PlaceRefused { waiting: *waiting },
        RunEvent::PlanQuestionAsked { wait, again } => EventJson::PlanQuestionAsked {
            question: wait.condition.question().map(QuestionJson::from),
            again: *again,
        },
        RunEvent::ClocksStopped(stopped) => EventJson::ClocksStopped {
            worker: stopped.worker.as_ref(),
            task: stopped.task.as_ref(),
            began_at: stopped.absence.from.into(),
            ended_at: stopped.absence.until.into(),
        },
        RunEvent::PlanQuestionEnded { end } => EventJson::PlanQuestionEnded { end: end.into() },
        RunEvent::Paused => EventJson::RunPaused {},
        RunEvent::Interrupted => EventJson::RunInterrupted {},
        RunEvent::Resumed { budget } => EventJson::RunResumed { budget },
        RunEvent::WindingDown { reason, detail } => EventJson::RunWindingDown { reason: *reason, detail },
        RunEvent::Reopened => EventJson::RunReopened {},
        RunEvent::Retired => EventJson::RunRetired {},
        RunEvent::Ended { reason, detail, deliverable, is_resumable } => EventJson::RunEnded {
            reason: *reason,
            detail,
            deliverable: deliverable.as_ref().map(|(task, rule)| DeliverableChoice { task, rule: *rule }),
            resumable: *is_resumable,
        },
    }
}

fn user_event(event: &UserEvent) -> EventJson<'_> {
    match event {
        UserEvent::Commanded { id, by, what } => EventJson::UserCommand { id, by, description: what },
        UserEvent::MessageReceived { by, text } => EventJson::UserMessage { by, text },
        UserEvent::Signalled(Signal { name, by, data }) => {
            EventJson::EventSignalled { name, by, data: event_data(data) }
        }
        UserEvent::StandingAnswerGiven(StandingAnswer { capability, tool, digest, by, answer }) => {
            EventJson::StandingAnswer {
                capability,
                tool,
                digest: digest.as_deref(),
                by,
                answer: answer.into(),
            }
        }
    }
}

fn planning_event(event: &PlanningEvent) -> EventJson<'_> {
    match event {
        PlanningEvent::TriggerRaised { trigger } => {
            EventJson::PlannerTriggered { trigger: trigger.to_string() }
        }
        PlanningEvent::Requested { turn, attempt, feedback, triggers } => EventJson::PlannerRequested {
            turn: *turn,
            attempt: *attempt,
            feedback: feedback.as_deref(),
            triggers: triggers.iter().map(ToString::to_string).collect(),
        },
        PlanningEvent::Claimed { turn, attempt, worker } => {
            EventJson::PlannerClaimed { turn: *turn, attempt: *attempt, worker }
        }
        PlanningEvent::ProposalAccepted {
            turn,
            attempt,
            reasoning,
            refused,
            fallback,
            is_idle,
            is_repetition,
            usage,
            models,
        } => EventJson::PlannerFinished {
            turn: *turn,
            attempt: *attempt,
            reasoning,
            refused,
            fallback: fallback.as_deref(),
            idle: *is_idle || *is_repetition,
            usage: *usage,
            models,
        },
        PlanningEvent::Errored {
            turn,
            attempt,
            error,
            retry_at,
            exceeded_reservation,
            is_refused_by_provider,
            usage,
            models,
        } => EventJson::PlannerFailed {
            turn: *turn,
            attempt: *attempt,
            error,
            retry_at: retry_at.map(Time::from),
            exceeded_reservation: *exceeded_reservation,
            refused_by_provider: *is_refused_by_provider,
            usage: *usage,
            models,
        },
    }
}

fn graph_event(event: &GraphEvent) -> EventJson<'_> {
    match event {
        GraphEvent::TaskAdded { spec, ready } => EventJson::TaskAdded { task: &spec.id, spec, ready: *ready },
        GraphEvent::TaskPatched { spec, attempt: _ } => EventJson::TaskChanged { task: &spec.id, spec },
        GraphEvent::FinalMarked { task } => EventJson::TaskMarkedFinal { task },
    }
}

fn task_event(event: &TaskEvent) -> EventJson<'_> {
    match event {
        TaskEvent::Ready { task, attempt } => EventJson::TaskReady { task, attempt: *attempt },
        TaskEvent::Pending { task } => EventJson::TaskPending { task },
        TaskEvent::CapabilityMissing { task, capability } => {
            EventJson::TaskCapabilityMissing { task, capability }
        }
        TaskEvent::ParametersRejected { task, problem } => {
            EventJson::TaskParametersRejected { task, problem }
        }
        TaskEvent::Reopened { task, attempt, ready, feedback } => {
            EventJson::TaskReopened { task, attempt: *attempt, ready: *ready, feedback: feedback.as_deref() }
        }
        TaskEvent::Invalidated { task, attempt, usage } => {
            EventJson::TaskInvalidated { task, attempt: *attempt, usage: *usage }
        }
        TaskEvent::Accepted { task, attempt } => EventJson::TaskCompleted { task, attempt: *attempt },
        TaskEvent::Rerun { task, attempt } => EventJson::TaskRerun { task, attempt: *attempt },
        TaskEvent::Instructed { task, attempt, text } => {
            EventJson::TaskInstructed { task, attempt: *attempt, text }
        }
        TaskEvent::Failed { task, reason } => EventJson::TaskFailed { task, reason },
        TaskEvent::Cancelled { task, reason, with, usage } => {
            EventJson::TaskCancelled { task, reason, because_of: with.as_ref(), usage: *usage }
        }
    }
}

fn attempt_event(event: &AttemptEvent) -> EventJson<'_> {
    match event {
        AttemptEvent::Claimed { task, attempt, worker, build } => {
            EventJson::AttemptClaimed { task, attempt: *attempt, worker, build: build.as_deref() }
        }
        AttemptEvent::Finished {
            task,
            attempt,
            worker,
            at_sequence,
            summary,
            is_detailed,
            is_answered,
            review,
            usage,
            models,
        } => EventJson::AttemptFinished {
            task,
            attempt: *attempt,
            worker,
            result_sequence: *at_sequence,
            summary,
            detailed: *is_detailed,
            answered: *is_answered,
            review: review.as_deref(),
            usage: *usage,
            models,
        },
        AttemptEvent::Errored { task, attempt, error, retry_at } => EventJson::AttemptFailed {
            task,
            attempt: *attempt,
            error: error.as_ref().into(),
            retry_at: retry_at.map(Time::from),
        },
        AttemptEvent::TimedOut { task, attempt, clock, retry_at, usage } => EventJson::AttemptTimedOut {
            task,
            attempt: *attempt,
            clock: *clock,
            retry_at: retry_at.map(Time::from),
            usage: *usage,
        },
        AttemptEvent::Parked { task, attempt, waits } => EventJson::AttemptParked {
            task,
            attempt: *attempt,
            waits: waits.iter().map(Into::into).collect(),
        },
        AttemptEvent::ChildRefused { task, attempt, child, reason } => {
            EventJson::ChildRefused { task, attempt: *attempt, child, reason }
        }
        AttemptEvent::WaitEnded { task, attempt, ended } => {
            EventJson::AttemptWaitEnded { task, attempt: *attempt, key: &ended.key, end: (&ended.end).into() }
        }
        AttemptEvent::QuestionRenewed { task, attempt, key, to } => {
            EventJson::QuestionRenewed { task, attempt: *attempt, key, to }
        }
        AttemptEvent::Woken { task, attempt } => EventJson::AttemptWoken { task, attempt: *attempt },
    }
}

fn review_event(event: &ReviewEvent) -> EventJson<'_> {
    match event {
        ReviewEvent::Errored { task, attempt, review, error, again, retry_at, usage, models } => {
            EventJson::ReviewFailed {
                task,
                attempt: *attempt,
                review: *review,
                error,
                retried: *again,
                retry_at: retry_at.map(Time::from),
                usage: *usage,
                models,
            }
        }
        ReviewEvent::Ready { task } => EventJson::ReviewReady { task },
        ReviewEvent::VerdictGiven { task, attempt, critic, verdict } => {
            EventJson::ReviewFinished { task, attempt: *attempt, critic, verdict }
        }
    }
}

fn budget_event(event: &BudgetEvent) -> EventJson<'_> {
    match event {
        BudgetEvent::Reserved { work, amounts } => {
            EventJson::BudgetReserved { work: work.into(), amounts: *amounts }
        }
        BudgetEvent::TooSmall { journal, needs } => {
            EventJson::BudgetReservationTooSmall { work: journal.into(), needs: *needs }
        }
        BudgetEvent::Low { detail } => EventJson::BudgetLow { detail },
    }
}

fn provider_event(event: &ProviderEvent) -> EventJson<'_> {
    match event {
        ProviderEvent::Awaited { journal, wait } => {
            EventJson::ProviderAwaited { work: journal.into(), wait: wait.into() }
        }
        ProviderEvent::Recovered { journal } => EventJson::ProviderRecovered { work: journal.into() },
        ProviderEvent::GivenUp { journal, wait } => {
            EventJson::ProviderGivenUp { work: journal.into(), wait: wait.into() }
        }
    }
}
