//! All rules. [`decide`] says what a fact, a command or the passing of time means for a run: the events it makes, or
//! why it makes none. The table of moves is in [`super`].

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::event::whole_micros;
use super::spec::{Limits, MAX_OBJECTIVE, Mode, OnFailedDependency, Submission, TaskSpec};
use super::state::{EndReason, ErroredFor, FinalRung, MAX_BLOCKED, Plan, Task, TaskState};
use super::{Clock, Event, Refusal, Work, check};
use crate::ids::{Capability, TaskId, WorkerId};
use crate::result::{ErrorKind, MAX_MESSAGE, MAX_SUMMARY, Proposal, TaskError, Usage, Verdict};

/// How often the planner may come to nothing at one turn before the run ends.
pub const MAX_PLANNING_ATTEMPTS: u32 = 3;
/// How often the review of one attempt may come to nothing before the task fails.
pub const MAX_REVIEWS: u32 = 3;

/// What a decision can be asked on.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Somebody wrote to the log.
    Fact(&'a Fact),
    /// The backoff of a task is over.
    Retry(&'a TaskId),
    /// The backoff of the planner's turn is over.
    RetryPlanning,
    /// A clock of a piece of work ran out.
    Clock(&'a Work, Clock),
    /// These capabilities are known to the cluster.
    Capabilities(&'a BTreeSet<Capability>),
    /// Everything else is decided: has the run come to its end?
    Settle,
}

/// What clients, workers and critics have written, as far as it matters to the plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    /// A client handed the run in.
    Submitted(Box<Submission>),
    /// A worker claimed a piece of work.
    Claimed(Work, WorkerId),
    /// A planner's attempt ended.
    Planned {
        /// The turn.
        turn: u32,
        /// The attempt.
        attempt: u32,
        /// What it proposes, and what that took; or why it came to nothing.
        outcome: Result<(Proposal, Usage), TaskError>,
    },
    /// A worker's attempt ended.
    Ended {
        /// The task.
        task: TaskId,
        /// The attempt.
        attempt: u32,
        /// Who worked on it.
        worker: WorkerId,
        /// What it brought.
        outcome: Result<Finished, TaskError>,
    },
    /// A critic's review ended.
    Reviewed {
        /// The task.
        task: TaskId,
        /// The attempt under review.
        attempt: u32,
        /// Which try at the review this was.
        review: u32,
        /// Who judged.
        critic: WorkerId,
        /// The judgement, or why there is none.
        outcome: Result<Verdict, TaskError>,
    },
    /// A user steers.
    Control(Control),
}

/// A result, as far as the plan needs to know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Where it is: a sequence of the lane.
    pub at_sequence: u64,
    /// The result in a sentence.
    pub summary: String,
    /// Whether there is nothing in it.
    pub is_empty: bool,
    /// What it took.
    pub usage: Usage,
}

/// What a user can ask of a run under way.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Control {
    /// Cancel the whole run.
    CancelRun {
        /// Why, and who says so.
        reason: String,
    },
    /// Cancel one task, and what hangs on it.
    CancelTask {
        /// The task.
        task: TaskId,
        /// Why, and who says so.
        reason: String,
    },
}

/// Decides. Pure: the same plan, input and time give the same events. The caller logs them, applies them, and asks
/// [`super::due`] what to do.
///
/// # Errors
/// Why the input changes nothing.
pub fn decide(plan: &Plan, input: &Input<'_>, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    if let Input::Fact(Fact::Submitted(submission)) = input {
        return submit(plan, submission);
    }
    if let Some(end) = &plan.end {
        return Err(Refusal::RunAlreadyEnded(end.reason));
    }
    if plan.start.is_none() {
        return Err(Refusal::NotSubmitted);
    }
    match input {
        Input::Fact(fact) => on_fact(plan, fact, now),
        Input::Retry(task) => retry(plan, task, now),
        Input::RetryPlanning => retry_planning(plan, now),
        Input::Clock(Work::Task { task, attempt }, clock) => time_out(plan, task, *attempt, *clock, now),
        Input::Clock(Work::Review { task, attempt, review }, clock) => {
            let error = TaskError::new(ErrorKind::Other, clock.to_string());
            review_errored(under_review(plan, task, *attempt)?, *review, &error)
                .map(|events| with_consequences(plan, events))
        }
        Input::Clock(Work::Planning { turn, attempt }, clock) => {
            let error = TaskError::new(ErrorKind::Other, format!("the planner: {clock}"));
            planned(plan, *turn, *attempt, &Err(error), now)
        }
        Input::Capabilities(known) => Ok(capabilities(plan, known)),
        Input::Settle => Ok(settle(plan)),
    }
}

fn on_fact(plan: &Plan, fact: &Fact, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    match fact {
        Fact::Submitted(submission) => submit(plan, submission),
        Fact::Claimed(work, worker) => claimed(plan, work, worker),
        Fact::Planned { turn, attempt, outcome } => planned(plan, *turn, *attempt, outcome, now),
        Fact::Ended { task, attempt, worker, outcome } => ended(plan, task, *attempt, worker, outcome, now),
        Fact::Reviewed { task, attempt, review, critic, outcome } => {
            reviewed(under_review(plan, task, *attempt)?, *review, critic, outcome)
                .map(|events| with_consequences(plan, events))
        }
        Fact::Control(Control::CancelRun { reason }) => Ok(cancel_run(plan, reason)),
        Fact::Control(Control::CancelTask { task, reason }) => cancel_task(plan, task, reason),
    }
}

// ---- the run begins

fn submit(plan: &Plan, submission: &Submission) -> Result<Vec<Event>, Refusal> {
    if plan.start.is_some() {
        return Err(Refusal::AlreadySubmitted);
    }
    let fault = objective_fault(&submission.objective);
    let mut events = vec![Event::RunStarted {
        objective: match fault {
            Some(_) => submission.objective.chars().take(MAX_SUMMARY).collect(),
            None => submission.objective.clone(),
        },
        mode: submission.mode,
        documents: submission.documents.clone(),
        model: submission.model.clone(),
        models: submission.models.clone(),
        fail_fast: submission.fail_fast,
    }];
    if let Some(detail) = fault {
        events.push(Event::RunEnded { reason: EndReason::Failed, detail, deliverable: None });
        return Ok(events);
    }
    match submission.mode {
        Mode::Llm => events.push(Event::PlanningAsked { turn: 1, attempt: 1, feedback: None }),
        Mode::Fixed => match check(plan, &submission.tasks) {
            Ok(()) => events.extend(added(plan, &submission.tasks)),
            Err(error) => events.push(Event::RunEnded {
                reason: EndReason::Failed,
                detail: format!("the plan was refused: {error}"),
                deliverable: None,
            }),
        },
    }
    Ok(events)
}

fn objective_fault(objective: &str) -> Option<String> {
    if objective.trim().is_empty() {
        return Some("the objective is empty".into());
    }
    let bytes = objective.len();
    (bytes > MAX_OBJECTIVE)
        .then(|| format!("the objective has {bytes} bytes; at most {MAX_OBJECTIVE} are allowed"))
}

/// Adds tasks to the plan, each ready or pending.
fn added(plan: &Plan, tasks: &[TaskSpec]) -> Vec<Event> {
    let is_met = |spec: &TaskSpec, id: &TaskId| {
        plan.task(id).is_some_and(|task| match task.state {
            TaskState::Completed => true,
            TaskState::Failed | TaskState::Cancelled => spec.on_failed_dependency == OnFailedDependency::Skip,
            TaskState::Pending
            | TaskState::Ready
            | TaskState::Running
            | TaskState::NeedsReview
            | TaskState::Rerun
            | TaskState::Errored => false,
        })
    };
    tasks
        .iter()
        .map(|spec| {
            let ready = spec.depends_on.iter().all(|id| is_met(spec, id));
            Event::TaskAdded { spec: spec.clone(), ready }
        })
        .collect()
}

// ---- planning

fn planned(
    plan: &Plan,
    turn: u32,
    attempt: u32,
    outcome: &Result<(Proposal, Usage), TaskError>,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let current = plan.planning.as_ref().filter(|planning| planning.retry_at.is_none());
    if current.is_none_or(|planning| (planning.turn, planning.attempt) != (turn, attempt)) {
        return Err(Refusal::NotCurrentTurn { turn, attempt });
    }
    let error = match outcome {
        Ok((proposal, usage)) => match check(plan, &proposal.tasks) {
            Ok(()) => {
                let (reasoning, usage) = (proposal.reasoning.clone(), *usage);
                let mut events = vec![Event::ProposalAccepted { turn, attempt, reasoning, usage }];
                events.extend(added(plan, &proposal.tasks));
                return Ok(events);
            }
            Err(error) => format!("the proposed plan was refused: {error}"),
        },
        Err(error) => on_the_plan(&error.message),
    };
    if attempt < MAX_PLANNING_ATTEMPTS {
        let retry_at = Some(after(now, Limits::default().backoff_before(attempt + 1)));
        return Ok(vec![Event::PlanningErrored { turn, attempt, error, retry_at }]);
    }
    let detail = format!("{attempt} attempts at a plan came to nothing; the last: {error}");
    let (reason, deliverable) = (EndReason::PlannerUnavailable, deliverable(plan));
    Ok(vec![
        Event::PlanningErrored { turn, attempt, error, retry_at: None },
        Event::RunEnded { reason, detail, deliverable },
    ])
}

fn retry_planning(plan: &Plan, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let waiting = plan.planning.as_ref().and_then(|planning| Some((planning, planning.retry_at?)));
    match waiting {
        Some((planning, at)) if at <= now => Ok(vec![Event::PlanningAsked {
            turn: planning.turn,
            attempt: planning.attempt + 1,
            feedback: planning.feedback.clone(),
        }]),
        Some((_, at)) => Err(Refusal::NotDue(at)),
        None => Err(Refusal::NotCurrentTurn { turn: 0, attempt: 0 }),
    }
}

// ---- attempts

fn claimed(plan: &Plan, work: &Work, worker: &WorkerId) -> Result<Vec<Event>, Refusal> {
    match work {
        Work::Planning { turn, attempt } => {
            let (turn, attempt) = (*turn, *attempt);
            match &plan.planning {
                Some(planning)
                    if (planning.turn, planning.attempt) == (turn, attempt)
                        && planning.retry_at.is_none() =>
                {
                    if planning.worker.as_ref() == Some(worker) {
                        return Ok(Vec::new());
                    }
                    Ok(vec![Event::PlanningClaimed { turn, attempt, worker: worker.clone() }])
                }
                Some(_) | None => Err(Refusal::NotCurrentTurn { turn, attempt }),
            }
        }
        // Who reviews is told by the verdict; until then the plan only waits.
        Work::Review { task, attempt, review } => {
            current_review(under_review(plan, task, *attempt)?, *review).map(|()| Vec::new())
        }
        Work::Task { task, attempt } => {
            let (id, attempt) = (task.clone(), *attempt);
            let task = current_attempt(plan, task, attempt)?;
            match task.state {
                TaskState::Ready | TaskState::Rerun | TaskState::Running => {
                    if task.current().is_some_and(|current| current.worker.as_ref() == Some(worker)) {
                        return Ok(Vec::new());
                    }
                    Ok(vec![Event::AttemptClaimed { task: id, attempt, worker: worker.clone() }])
                }
                // Whoever claims offers the capability: the registry is only behind.
                TaskState::Errored if attempt > 0 && task.errored == Some(ErroredFor::Capability) => {
                    Ok(vec![Event::AttemptClaimed { task: id, attempt, worker: worker.clone() }])
                }
                TaskState::Pending
                | TaskState::NeedsReview
                | TaskState::Completed
                | TaskState::Errored
                | TaskState::Failed
                | TaskState::Cancelled => Err(wrong_state(task, "a claim")),
            }
        }
    }
}

fn ended(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    worker: &WorkerId,
    outcome: &Result<Finished, TaskError>,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = current_attempt(plan, id, attempt)?;
    if task.state != TaskState::Running {
        return Err(wrong_state(task, "an outcome"));
    }
    let finished = match outcome {
        Ok(finished) if !finished.is_empty => finished,
        Ok(_) => {
            let error = TaskError::new(ErrorKind::Other, "the result is empty");
            return Ok(errored(plan, task, &error, now));
        }
        Err(error) => return Ok(errored(plan, task, error, now)),
    };
    let events = vec![Event::AttemptFinished {
        task: id.clone(),
        attempt,
        worker: worker.clone(),
        at_sequence: finished.at_sequence,
        summary: finished.summary.chars().take(MAX_SUMMARY).collect(),
        usage: finished.usage,
    }];
    if !task.spec.review.is_none() {
        return Ok(events);
    }
    Ok(with_consequences(plan, [events, vec![Event::TaskAccepted { task: id.clone(), attempt }]].concat()))
}

/// The error without what its attempt had produced, and without more of its text than a person reads: both stay in the
/// journal.
fn for_the_plan(error: &TaskError) -> TaskError {
    TaskError { message: on_the_plan(&error.message), produced: None, ..error.clone() }
}

fn on_the_plan(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).collect()
}

fn errored(plan: &Plan, task: &Task, error: &TaskError, now: Timestamp) -> Vec<Event> {
    let (id, attempt) = (task.spec.id.clone(), task.attempt);
    let retry_at = next_attempt_at(task, error.kind.is_retryable(), now);
    let error = for_the_plan(error);
    let why = error.message.clone();
    let event = Event::AttemptErrored { task: id, attempt, error, retry_at };
    after_failed_attempt(plan, task, event, retry_at, &why)
}

fn time_out(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    clock: Clock,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = current_attempt(plan, id, attempt)?;
    let can_run_out = match (task.state, clock) {
        (TaskState::Ready | TaskState::Rerun, Clock::QueueWait)
        | (TaskState::Running, Clock::RunTime | Clock::Silence) => true,
        (TaskState::Errored, Clock::QueueWait) => task.errored == Some(ErroredFor::Capability),
        (
            TaskState::Pending
            | TaskState::Ready
            | TaskState::Running
            | TaskState::NeedsReview
            | TaskState::Completed
            | TaskState::Rerun
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled,
            _,
        ) => false,
    };
    if !can_run_out {
        return Err(wrong_state(task, "a time-out"));
    }
    // Where nobody offers the capability, waiting once more can't help.
    let retry_at = next_attempt_at(task, task.state != TaskState::Errored, now);
    let event = Event::AttemptTimedOut { task: id.clone(), attempt, clock, retry_at };
    let why = match task.errored {
        Some(ErroredFor::Capability) => format!("nobody offers the capability {}", task.spec.capability),
        Some(ErroredFor::Retry(_)) | None => clock.to_string(),
    };
    Ok(after_failed_attempt(plan, task, event, retry_at, &why))
}

fn next_attempt_at(task: &Task, is_retryable: bool, now: Timestamp) -> Option<Timestamp> {
    let limits = &task.spec.limits;
    (is_retryable && task.attempt < limits.max_attempts)
        .then(|| after(now, limits.backoff_before(task.attempt + 1)))
}

fn after_failed_attempt(
    plan: &Plan,
    task: &Task,
    event: Event,
    retry_at: Option<Timestamp>,
    why: &str,
) -> Vec<Event> {
    if retry_at.is_some() {
        return vec![event];
    }
    let reason = match task.attempt {
        0 | 1 => why.to_owned(),
        attempts => format!("{attempts} attempts came to nothing; the last: {why}"),
    };
    with_consequences(plan, vec![event, Event::TaskFailed { task: task.spec.id.clone(), reason }])
}

fn retry(plan: &Plan, id: &TaskId, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let task = plan.task(id).ok_or_else(|| Refusal::UnknownTask(id.clone()))?;
    match task.errored {
        Some(ErroredFor::Retry(at)) if at <= now => {
            Ok(vec![Event::TaskReady { task: id.clone(), attempt: task.attempt + 1 }])
        }
        Some(ErroredFor::Retry(at)) => Err(Refusal::NotDue(at)),
        Some(ErroredFor::Capability) | None => Err(wrong_state(task, "a retry")),
    }
}

// ---- reviews

fn under_review<'a>(plan: &'a Plan, id: &TaskId, attempt: u32) -> Result<&'a Task, Refusal> {
    let task = current_attempt(plan, id, attempt)?;
    if task.state == TaskState::NeedsReview { Ok(task) } else { Err(wrong_state(task, "a review")) }
}

fn current_review(task: &Task, review: u32) -> Result<(), Refusal> {
    if task.review == review { Ok(()) } else { Err(wrong_state(task, "a review that is over")) }
}

/// A verdict counts from an earlier try at the review too: an order that nobody took in time still waits in its queue
/// under that number. Whatever is no verdict counts from the current try alone.
fn reviewed(
    task: &Task,
    review: u32,
    critic: &WorkerId,
    outcome: &Result<Verdict, TaskError>,
) -> Result<Vec<Event>, Refusal> {
    let id = task.spec.id.clone();
    if task.current().and_then(|current| current.worker.as_ref()) == Some(critic) {
        let error = TaskError::new(ErrorKind::Other, Refusal::AuthorIsCritic(id).to_string());
        return review_errored(task, review, &error);
    }
    let verdict = match outcome {
        Ok(verdict) => verdict,
        Err(error) => return review_errored(task, review, error),
    };
    if let Some(inconsistency) = verdict.inconsistency() {
        let error = TaskError::new(ErrorKind::Other, format!("the verdict was refused: {inconsistency}"));
        return review_errored(task, review, &error);
    }
    if review > task.review {
        return Err(wrong_state(task, "a review that has not begun"));
    }
    let attempt = task.attempt;
    let given =
        Event::VerdictGiven { task: id.clone(), attempt, critic: critic.clone(), verdict: verdict.clone() };
    let next = if verdict.passed {
        Event::TaskAccepted { task: id, attempt }
    } else if attempt < task.spec.limits.max_attempts {
        Event::TaskRerun { task: id, attempt: attempt + 1 }
    } else {
        let why = verdict.feedback.as_ref().unwrap_or(&verdict.reasoning);
        let reason = format!("its result was rejected at attempt {attempt} of {attempt}: {why}");
        Event::TaskFailed { task: id, reason }
    };
    Ok(vec![given, next])
}

fn review_errored(task: &Task, review: u32, error: &TaskError) -> Result<Vec<Event>, Refusal> {
    current_review(task, review)?;
    let (id, attempt) = (task.spec.id.clone(), task.attempt);
    let again = review < MAX_REVIEWS;
    let error = on_the_plan(&error.message);
    let failed = (!again).then(|| Event::TaskFailed {
        task: id.clone(),
        reason: format!("its result could not be judged: {error}"),
    });
    let event = Event::ReviewErrored { task: id.clone(), attempt, review, error: error.clone(), again };
    Ok(std::iter::once(event).chain(failed).collect())
}

// ---- consequences

/// Adds what follows for other tasks from the ends of tasks among `events`: those that can begin now, those that are
/// cancelled with what they depend on, and the end of everything where the first failure ends the run.
fn with_consequences(plan: &Plan, mut events: Vec<Event>) -> Vec<Event> {
    let mut wave = Wave::default();
    for event in &events {
        match event {
            Event::TaskAccepted { task, .. } => wave.accepted(plan, task),
            Event::TaskFailed { task, .. } if plan.start.as_ref().is_some_and(|start| start.fail_fast) => {
                let reason = format!("task {task} failed, and the first failure ends this run");
                wave.cancel_all(plan, Some(task), &reason);
            }
            Event::TaskFailed { task, .. } => wave.lost(plan, task, "failed"),
            Event::TaskCancelled { task, .. } => wave.lost(plan, task, "was cancelled"),
            Event::RunStarted { .. }
            | Event::PlanningAsked { .. }
            | Event::PlanningClaimed { .. }
            | Event::ProposalAccepted { .. }
            | Event::PlanningErrored { .. }
            | Event::TaskAdded { .. }
            | Event::TaskReady { .. }
            | Event::CapabilityMissing { .. }
            | Event::TaskPending { .. }
            | Event::AttemptClaimed { .. }
            | Event::AttemptFinished { .. }
            | Event::AttemptErrored { .. }
            | Event::AttemptTimedOut { .. }
            | Event::ReviewErrored { .. }
            | Event::VerdictGiven { .. }
            | Event::TaskRerun { .. }
            | Event::RunEnded { .. } => {}
        }
    }
    events.extend(wave.events);
    events
}

/// The spread of one task's end through the plan, before any of it is applied.
#[derive(Default)]
struct Wave {
    events: Vec<Event>,
    /// How many dependencies of a task this wave has met.
    met: BTreeMap<u32, u32>,
    /// The tasks that this wave has ended.
    gone: BTreeSet<u32>,
}

impl Wave {
    fn accepted(&mut self, plan: &Plan, id: &TaskId) {
        let Some(position) = plan.position(id) else { return };
        for &dependent in &plan.tasks[position as usize].dependents {
            self.meet(plan, dependent);
        }
    }

    /// One more dependency of a task is met; the last one makes it ready.
    fn meet(&mut self, plan: &Plan, position: u32) {
        let task = &plan.tasks[position as usize];
        let met = self.met.entry(position).or_default();
        *met += 1;
        if task.state == TaskState::Pending && *met == task.unmet && !self.gone.contains(&position) {
            let attempt = task.attempt.max(1);
            self.events.push(Event::TaskReady { task: task.spec.id.clone(), attempt });
        }
    }

    /// A task is lost: what hangs on it goes by its own policy, and so on to the last.
    fn lost(&mut self, plan: &Plan, id: &TaskId, how: &str) {
        let Some(first) = plan.position(id) else { return };
        self.gone.insert(first);
        let mut queue = std::collections::VecDeque::from([(first, how)]);
        while let Some((position, how)) = queue.pop_front() {
            let lost = &plan.tasks[position as usize];
            for &dependent in &lost.dependents {
                let task = &plan.tasks[dependent as usize];
                if task.state.is_terminal() || self.gone.contains(&dependent) {
                    continue;
                }
                match task.spec.on_failed_dependency {
                    OnFailedDependency::Skip => self.meet(plan, dependent),
                    OnFailedDependency::Block => {}
                    OnFailedDependency::Cancel => {
                        self.cancel(plan, dependent, format!("task {} {how}", lost.spec.id));
                        queue.push_back((dependent, "was cancelled"));
                    }
                }
            }
        }
    }

    fn cancel(&mut self, plan: &Plan, position: u32, reason: String) {
        self.gone.insert(position);
        let task = plan.tasks[position as usize].spec.id.clone();
        self.events.push(Event::TaskCancelled { task, reason });
    }

    fn cancel_all(&mut self, plan: &Plan, except: Option<&TaskId>, reason: &str) {
        for (position, task) in (0_u32..).zip(&plan.tasks) {
            if !task.state.is_terminal() && Some(&task.spec.id) != except && !self.gone.contains(&position) {
                self.cancel(plan, position, reason.to_owned());
            }
        }
    }
}

// ---- steering

fn cancel_run(plan: &Plan, reason: &str) -> Vec<Event> {
    let mut wave = Wave::default();
    wave.cancel_all(plan, None, reason);
    wave.events.push(Event::RunEnded {
        reason: EndReason::Cancelled,
        detail: reason.to_owned(),
        deliverable: deliverable(plan),
    });
    wave.events
}

fn cancel_task(plan: &Plan, id: &TaskId, reason: &str) -> Result<Vec<Event>, Refusal> {
    let task = plan.task(id).ok_or_else(|| Refusal::UnknownTask(id.clone()))?;
    if task.state.is_terminal() {
        return Err(wrong_state(task, "cancelling it"));
    }
    let event = Event::TaskCancelled { task: id.clone(), reason: reason.to_owned() };
    Ok(with_consequences(plan, vec![event]))
}

// ---- what the cluster can do

fn capabilities(plan: &Plan, known: &BTreeSet<Capability>) -> Vec<Event> {
    let all_known = plan.open_by_capability.iter().all(|(name, open)| *open == 0 || known.contains(name));
    if all_known && plan.count(TaskState::Errored) == 0 {
        return Vec::new();
    }
    plan.tasks.iter().filter_map(|task| capability_of(task, known)).collect()
}

fn capability_of(task: &Task, known: &BTreeSet<Capability>) -> Option<Event> {
    let (id, capability) = (task.spec.id.clone(), task.spec.capability.clone());
    let is_known = known.contains(&capability);
    match task.state {
        TaskState::Pending | TaskState::Ready | TaskState::Rerun if !is_known => {
            Some(Event::CapabilityMissing { task: id, capability })
        }
        TaskState::Errored if is_known && task.errored == Some(ErroredFor::Capability) => {
            Some(if task.unmet == 0 {
                Event::TaskReady { task: id, attempt: task.attempt.max(1) }
            } else {
                Event::TaskPending { task: id }
            })
        }
        TaskState::Pending
        | TaskState::Ready
        | TaskState::Running
        | TaskState::NeedsReview
        | TaskState::Completed
        | TaskState::Rerun
        | TaskState::Errored
        | TaskState::Failed
        | TaskState::Cancelled => None,
    }
}

// ---- the run ends

fn settle(plan: &Plan) -> Vec<Event> {
    if plan.planning.is_some() {
        return Vec::new();
    }
    let (open, pending) = (plan.open(), plan.count(TaskState::Pending));
    if open > pending {
        return Vec::new();
    }
    let deliverable = deliverable(plan);
    let (reason, detail) = if open > 0 {
        (EndReason::NoProgress, blocked(plan))
    } else {
        outcome(plan, deliverable.as_ref().map(|(_, rung)| *rung))
    };
    vec![Event::RunEnded { reason, detail, deliverable }]
}

/// How a run ends in which every task has ended.
fn outcome(plan: &Plan, rung: Option<FinalRung>) -> (EndReason, String) {
    let lost = plan.count(TaskState::Failed) + plan.count(TaskState::Cancelled);
    let has_final = plan.tasks.iter().any(|task| task.spec.is_final);
    let first = plan.tasks.iter().find(|task| task.state == TaskState::Failed);
    let detail = match first.and_then(|task| task.reason.as_ref().map(|reason| (&task.spec.id, reason))) {
        Some((id, reason)) => format!("task {id} failed: {reason}"),
        None if lost > 0 => format!("{} cancelled", tasks_were(lost)),
        None => String::new(),
    };
    match rung {
        None => (EndReason::Failed, detail),
        Some(FinalRung::Final) if lost == 0 => (EndReason::Completed, detail),
        Some(FinalRung::Producer | FinalRung::Any) if lost == 0 && !has_final => {
            (EndReason::Completed, detail)
        }
        Some(FinalRung::Final | FinalRung::Producer | FinalRung::Any) => {
            (EndReason::CompletedPartial, detail)
        }
    }
}

/// The completed task whose result is the deliverable: the final one, else the newest of a producer, else the newest.
fn deliverable(plan: &Plan) -> Option<(TaskId, FinalRung)> {
    let completed = || plan.tasks.iter().rev().filter(|task| task.state == TaskState::Completed);
    let named = |rung| move |task: &Task| (task.spec.id.clone(), rung);
    completed()
        .find(|task| task.spec.is_final)
        .map(named(FinalRung::Final))
        .or_else(|| {
            completed()
                .find(|task| task.spec.capability.as_str() == "producer")
                .map(named(FinalRung::Producer))
        })
        .or_else(|| completed().next().map(named(FinalRung::Any)))
}

/// Which tasks are open and what each waits for; at most [`MAX_BLOCKED`] of them are named.
fn blocked(plan: &Plan) -> String {
    let waiting = plan.tasks.iter().filter(|task| !task.state.is_terminal());
    let lines: Vec<String> = waiting
        .take(MAX_BLOCKED)
        .map(|task| {
            let skips = task.spec.on_failed_dependency == OnFailedDependency::Skip;
            let mut dependencies = task.spec.depends_on.iter().filter_map(|id| plan.task(id));
            let awaited = dependencies.find(|dependency| match dependency.state {
                TaskState::Pending => true,
                TaskState::Failed | TaskState::Cancelled => !skips,
                TaskState::Ready
                | TaskState::Running
                | TaskState::NeedsReview
                | TaskState::Completed
                | TaskState::Rerun
                | TaskState::Errored => false,
            });
            match awaited {
                Some(awaited) => {
                    format!("{} waits for {}, which is {}", task.spec.id, awaited.spec.id, awaited.state)
                }
                None => format!("{} is {}", task.spec.id, task.state),
            }
        })
        .collect();
    let tasks = match plan.open() {
        1 => "1 task".to_owned(),
        open => format!("{open} tasks"),
    };
    format!("{tasks} can never begin: {}", lines.join("; "))
}

fn tasks_were(count: u32) -> String {
    if count == 1 { "1 task was".into() } else { format!("{count} tasks were") }
}

// ---- shared

fn current_attempt<'a>(plan: &'a Plan, id: &TaskId, attempt: u32) -> Result<&'a Task, Refusal> {
    let task = plan.task(id).ok_or_else(|| Refusal::UnknownTask(id.clone()))?;
    if task.attempt == attempt {
        Ok(task)
    } else {
        Err(Refusal::NotCurrentAttempt { task: id.clone(), attempt, current: task.attempt })
    }
}

fn wrong_state(task: &Task, what: &str) -> Refusal {
    Refusal::WrongState { task: task.spec.id.clone(), state: task.state, what: what.into() }
}

fn after(now: Timestamp, wait: std::time::Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    whole_micros(now.saturating_add(wait).unwrap_or(Timestamp::MAX))
}
