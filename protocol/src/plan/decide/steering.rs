//! Commands of users, and answers of persons to open questions. A command is applied once; its first event names the command.
//!
//! # Invariants
//!
//! - I40: A user's command is carried out exactly once, or refused with the reason and without a trace in the plan.
//!   (`tests/tests/behaviours/steering.rs::repeated_command_is_applied_once`,
//!   `protocol/tests/rules/properties.rs::invariants_hold_for_any_inputs`)
//! - I67: A run that failed, made no progress or lost its planner is resumed as it is; a provider's refusal ends the work after
//!   one request. (`tests/tests/behaviours/providers.rs::refused_requests_end_a_run_at_once_and_it_resumes_when_that_is_mended`,
//!   `tests/tests/behaviours/providers.rs::run_whose_planner_was_refused_resumes_and_failed_tasks_are_retried`)
//! - I114: Of all answers to a question, the first in the log that fits it counts. Every other is refused, with the author, the
//!   answer and the time that count, and an answer that does not fit leaves the question open.
//!   (`protocol/tests/rules/questions.rs::every_answer_to_every_state_of_a_question`,
//!   `tests/tests/questions.rs::of_three_answers_at_once_one_wins_and_the_others_are_told_who`,
//!   `tests/tests/questions.rs::answers_that_do_not_fit_leave_the_question_open`)

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::super::due::work_in_flight;
use super::super::edit::{CommandAction, Edit, MAX_TEXT, RunCommand};
use super::super::graph::check_patched_task;
use super::super::spec::{OnFailedDependency, TaskSpec};
use super::super::state::{
    AttemptWait, EndReason, Plan, PlannerTrigger, QuestionState, RunEnd, RunQuestion, Task, TaskState,
};
use super::super::{
    Budget, Event, GraphError, GraphEvent, PlanningEvent, Refusal, RunEvent, TaskEvent, UserEvent, apply,
};
use super::edits::{
    EditAuthor, LostDependents, cancel_task, decide_edit, is_dependency_lost, reopen_tasks, retry_task,
};
use super::run_end::{answer_plan_question, cancel_run};
use super::turn::accepts_messages;
use super::waits::{end_waits, end_waits_of_attempt, ends_by_standing_answers};
use super::{truncate_for_plan, waits};
use crate::ids::TaskId;
use crate::question::{AnswerScope, Question, QuestionId, RunAnswer, StandingAnswer};
use crate::wait::{EndedWait, Signal, Wait, WaitEnd};

pub(super) fn handle_command(plan: &Plan, command: &RunCommand) -> Result<Vec<Event>, Refusal> {
    let mut events = vec![command_event(plan, command)?];
    events.extend(match &command.control {
        CommandAction::CancelRun { reason } => cancel_run(plan, reason),
        CommandAction::CancelTask { task, reason } => cancel_task(plan, task, reason, EditAuthor::User)?,
        CommandAction::Edit(wanted) => decide_edit(plan, wanted, EditAuthor::User)?,
        CommandAction::Pause if plan.run.paused.is_some() => {
            return Err(Refusal::WrongMoment("the run is already paused".into()));
        }
        CommandAction::Pause => vec![Event::Run(RunEvent::Paused)],
        // A claim may have crossed the first interrupt.
        CommandAction::Interrupt if plan.run.is_interrupted && work_in_flight(plan).is_empty() => {
            return Err(Refusal::WrongMoment("the run is already interrupted".into()));
        }
        CommandAction::Interrupt => vec![Event::Run(RunEvent::Interrupted)],
        CommandAction::Resume { budget: None } if plan.run.paused.is_none() => {
            return Err(Refusal::WrongMoment("the run is not paused".into()));
        }
        CommandAction::Resume { budget: Some(_) }
            if plan.run.winding_down.is_some() && plan.run.paused.is_none() =>
        {
            let why = "the run is winding down; resume it with a larger budget when it has ended";
            return Err(Refusal::WrongMoment(why.into()));
        }
        CommandAction::Resume { budget } => vec![resume_event(plan, budget.as_ref())?],
        CommandAction::Message { text } => handle_user_message(plan, &command.by, text)?,
        CommandAction::Signal { name, data } => {
            let (name, by, data) = (name.clone(), command.by.clone(), data.clone());
            waits::handle_signal(plan, &Signal { name, by, data })?
        }
        CommandAction::Retire => return Err(Refusal::WrongMoment("the run has not ended".into())),
    });
    Ok(events)
}

/// Continues a run that has ended. One that can be resumed: with a larger budget if it lacked one, otherwise as it is. Any one
/// with a plan: with more tasks, or with the retry of one task; that reopens it, even if it is archived.
pub(super) fn continue_ended_run(
    plan: &Plan,
    run_control_command: &RunCommand,
    end: &RunEnd,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    match &run_control_command.control {
        CommandAction::Resume { budget: Some(budget) } if end.is_resumable => {
            resume_with(plan, run_control_command, Some(budget))
        }
        CommandAction::Resume { budget: None } if end.is_resumable && end.reason.can_be_retried() => {
            resume_with(plan, run_control_command, None)
        }
        CommandAction::Edit(edit @ (Edit::Retry { .. } | Edit::Add(_))) if plan.can_be_reopened() => {
            edit_ended_run(plan, run_control_command, edit, end, now)
        }
        CommandAction::Retire if end.is_resumable => {
            Ok(vec![command_event(plan, run_control_command)?, Event::Run(RunEvent::Retired)])
        }
        CommandAction::Retire
        | CommandAction::Resume { .. }
        | CommandAction::Edit(_)
        | CommandAction::CancelRun { .. }
        | CommandAction::CancelTask { .. }
        | CommandAction::Pause
        | CommandAction::Interrupt
        | CommandAction::Message { .. }
        | CommandAction::Signal { .. } => Err(Refusal::RunAlreadyEnded(end.reason)),
    }
}

/// Reopens a run that has ended for more tasks, or for the retry of one task and of its dependents that were lost. What else has
/// failed stays as it is.
fn edit_ended_run(
    plan: &Plan,
    run_control_command: &RunCommand,
    edit: &Edit,
    end: &RunEnd,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let mut events = vec![
        command_event(plan, run_control_command)?,
        Event::Run(RunEvent::Reopened),
        resume_event(plan, None)?,
    ];
    let mut reopened = plan.clone();
    events.iter().for_each(|event| apply(&mut reopened, event, now));
    events.extend(match edit {
        Edit::Retry { task, feedback, changes } => {
            let with = (feedback.as_deref(), changes.as_deref());
            retry_task(&reopened, task, with, EditAuthor::User, Some(end.at))?
        }
        Edit::Add(tasks) => add_to_ended_run(&reopened, tasks, end, now)?,
        Edit::Patch(_)
        | Edit::Cancel { .. }
        | Edit::MarkFinal { .. }
        | Edit::Finish { .. }
        | Edit::GiveUp { .. } => decide_edit(&reopened, edit, EditAuthor::User)?,
    });
    Ok(events)
}

/// Adds tasks to a run that had ended, so that it ends with a new deliverable: a new task that is final takes the place of the old
/// final one. Otherwise the final task, if it was completed, runs again with the results of the new tasks.
fn add_to_ended_run(
    reopened: &Plan,
    tasks: &[TaskSpec],
    end: &RunEnd,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let add = |tasks: Vec<TaskSpec>| decide_edit(reopened, &Edit::Add(tasks), EditAuthor::User);
    let Some(old) = reopened.final_task() else { return add(tasks.to_vec()) };
    let mut finals = tasks.iter().filter(|task| task.is_final).map(|task| &task.id);
    match (finals.next(), finals.next()) {
        (Some(one), Some(two)) => Err(GraphError::TwoFinal(one.clone(), two.clone()).into()),
        (Some(new), None) => {
            let mut events =
                add(tasks.iter().map(|task| TaskSpec { is_final: false, ..task.clone() }).collect())?;
            events.push(Event::Graph(GraphEvent::FinalMarked { task: new.clone() }));
            Ok(events)
        }
        (None, _) => {
            let mut events = add(tasks.to_vec())?;
            if old.state() == TaskState::Completed {
                let mut added = reopened.clone();
                events.iter().for_each(|event| apply(&mut added, event, now));
                events.extend(rerun_final_task(&added, &old.spec, tasks, end)?);
            }
            Ok(events)
        }
    }
}

/// Runs the final task again after those of the new tasks that nothing else uses. A new task that uses the result of the final one
/// is not among them.
fn rerun_final_task(
    plan: &Plan,
    last: &TaskSpec,
    tasks: &[TaskSpec],
    end: &RunEnd,
) -> Result<Vec<Event>, Refusal> {
    let mut after_final: BTreeSet<&TaskId> = BTreeSet::from([&last.id]);
    let mut queue: Vec<&TaskId> = vec![&last.id];
    while let Some(id) = queue.pop() {
        let dependents = plan.task(id).into_iter().flat_map(|task| &task.dependents);
        let dependents = dependents.map(|&at| &plan.tasks[at as usize].spec.id);
        queue.extend(dependents.filter(|id| after_final.insert(id)));
    }
    let used: BTreeSet<&TaskId> = tasks.iter().flat_map(|task| &task.depends_on).collect();
    let inputs =
        tasks.iter().map(|task| &task.id).filter(|id| !used.contains(id) && !after_final.contains(id));
    let inputs: Vec<TaskId> = inputs.cloned().collect();
    if inputs.is_empty() {
        return Ok(Vec::new());
    }
    let spec = TaskSpec { depends_on: [last.depends_on.clone(), inputs].concat(), ..TaskSpec::clone(last) };
    check_patched_task(plan, &spec)?;
    let again: BTreeSet<u32> = plan.task_position(&last.id).into_iter().collect();
    let mut events = reopen_tasks(plan, &again, LostDependents::Rerun { ended: Some(end.at) });
    if let Some(Event::Task(TaskEvent::Reopened { ready, .. })) = events.first_mut() {
        *ready = false;
    }
    events.push(Event::Graph(GraphEvent::TaskPatched { spec: Arc::new(spec), attempt: 0 }));
    Ok(events)
}

fn resume_with(
    plan: &Plan,
    run_control_command: &RunCommand,
    budget: Option<&Budget>,
) -> Result<Vec<Event>, Refusal> {
    let mut events = vec![
        command_event(plan, run_control_command)?,
        Event::Run(RunEvent::Reopened),
        resume_event(plan, budget)?,
    ];
    if plan.has_planner() && plan.tasks.is_empty() {
        events.push(Event::Planning(PlanningEvent::TriggerRaised { trigger: PlannerTrigger::NoPlan }));
    }
    let given_up = tasks_to_run_after_resume(plan);
    let again = reopen_tasks(plan, &given_up, LostDependents::Stay);
    let restored = restore_dependency_policies(plan, &again);
    events.extend(again.into_iter().chain(restored));
    // The planner decides on tasks that depend on one that is lost for good.
    let waits = |task: &&Task| task.spec.on_failed_dependency == OnFailedDependency::Ask;
    let asks = plan.tasks.iter().zip(0_u32..).filter(|(task, at)| waits(task) && given_up.contains(at));
    let lost = asks.flat_map(|(task, _)| &task.spec.depends_on).filter_map(|id| plan.task(id));
    let is_lost = |task: &&Task| {
        let at = plan.task_position(&task.spec.id);
        task.state() == TaskState::Failed && at.is_none_or(|at| !given_up.contains(&at))
    };
    let lost: BTreeSet<&TaskId> = lost.filter(is_lost).map(|task| &task.spec.id).collect();
    if plan.has_planner() {
        events.extend(lost.into_iter().map(|task| {
            Event::Planning(PlanningEvent::TriggerRaised {
                trigger: PlannerTrigger::TaskLost { task: task.clone() },
            })
        }));
    }
    Ok(events)
}

/// Returns the tasks that were cancelled only because the run was winding down and, in a run that did not use up its budget, those
/// that have failed or were cancelled with its end; except those that depend on a task that is lost for good.
fn tasks_to_run_after_resume(plan: &Plan) -> BTreeSet<u32> {
    let is_retried = |end: &&RunEnd| end.reason.can_be_retried() || end.reason == EndReason::CompletedPartial;
    let ended = plan.run.end.as_ref().filter(is_retried);
    // The first failure of a run with `fail_fast`, and a planner that gives up, cancel the rest with the end of the run.
    let is_lost_at_end = |task: &Task, end: &RunEnd| match task.state() {
        TaskState::Failed => true,
        TaskState::Cancelled => task.since == end.at && task.cancelled_with_dependency().is_none(),
        TaskState::Pending
        | TaskState::Ready
        | TaskState::Running
        | TaskState::NeedsReview
        | TaskState::Completed
        | TaskState::Rerun
        | TaskState::Errored
        | TaskState::Waiting => false,
    };
    // A child belongs to an attempt that is over.
    let is_wanted = |task: &Task| {
        !task.spec.is_child() && (task.is_wound_down() || ended.is_some_and(|end| is_lost_at_end(task, end)))
    };
    let all = (0_u32..).zip(&plan.tasks);
    let mut wanted: BTreeSet<u32> = all.filter(|(_, task)| is_wanted(task)).map(|(at, _)| at).collect();
    let goes = |at: u32, wanted: &BTreeSet<u32>| {
        let spec = &plan.tasks[at as usize].spec;
        let is_lost = |id| {
            is_dependency_lost(plan, spec, id)
                && plan.task_position(id).is_none_or(|at| !wanted.contains(&at))
        };
        spec.on_failed_dependency == OnFailedDependency::Cancel && spec.depends_on.iter().any(is_lost)
    };
    let mut gone: Vec<u32> = wanted.iter().copied().filter(|&at| goes(at, &wanted)).collect();
    wanted.retain(|at| gone.binary_search(at).is_err());
    while let Some(at) = gone.pop() {
        let lost = &plan.tasks[at as usize];
        let goes_too = |at: &u32| {
            let policy = plan.tasks[*at as usize].spec.on_failed_dependency;
            policy == OnFailedDependency::Cancel && wanted.remove(at)
        };
        gone.extend(lost.dependents.iter().copied().filter(goes_too));
    }
    wanted
}

/// Restores the dependency policy of the task that was to run without its missing dependencies at the end of the run,
/// unless one of them is lost for good, so that the task would wait forever.
fn restore_dependency_policies(plan: &Plan, again: &[Event]) -> Vec<Event> {
    let again: BTreeSet<&TaskId> = again.iter().filter_map(Event::task).collect();
    let is_there = |spec: &TaskSpec| {
        spec.depends_on.iter().all(|id| again.contains(id) || !is_dependency_lost(plan, spec, id))
    };
    let changed = plan.tasks.iter().filter_map(|task| {
        Some(TaskSpec { on_failed_dependency: task.own_policy?, ..TaskSpec::clone(&task.spec) })
    });
    let restored = changed.filter(is_there);
    restored.map(|spec| Event::Graph(GraphEvent::TaskPatched { spec: Arc::new(spec), attempt: 0 })).collect()
}

fn command_event(plan: &Plan, command: &RunCommand) -> Result<Event, Refusal> {
    let RunCommand { id, by, control } = command;
    if plan.run.commands.contains(id) {
        return Err(Refusal::AlreadyApplied(id.clone()));
    }
    let what = match control {
        CommandAction::CancelRun { reason } => format!("cancel the run: {reason}"),
        CommandAction::CancelTask { task, reason } => format!("cancel task {task}: {reason}"),
        CommandAction::Edit(Edit::Add(tasks)) if tasks.len() == 1 => "add 1 task".into(),
        CommandAction::Edit(Edit::Add(tasks)) => format!("add {} tasks", tasks.len()),
        CommandAction::Edit(Edit::Patch(patch)) => {
            format!("change task {}: {}", patch.task, patch.changed_fields().join(", "))
        }
        CommandAction::Edit(Edit::Cancel { task, reason }) => format!("cancel task {task}: {reason}"),
        CommandAction::Edit(Edit::Retry { task, changes: None, .. }) => format!("retry task {task}"),
        CommandAction::Edit(Edit::Retry { task, changes: Some(changes), .. }) => {
            format!("retry task {task} with changes: {}", changes.changed_fields().join(", "))
        }
        CommandAction::Edit(Edit::MarkFinal { task }) => format!("make task {task} final"),
        CommandAction::Edit(Edit::Finish { .. } | Edit::GiveUp { .. }) => "finish the run".into(),
        CommandAction::Pause => "pause".into(),
        CommandAction::Interrupt => "interrupt".into(),
        CommandAction::Resume { budget: None } => "resume".into(),
        CommandAction::Resume { budget: Some(_) } => "resume with a larger budget".into(),
        CommandAction::Message { .. } => "message to the planner".into(),
        CommandAction::Signal { name, .. } => format!("signal the event {name:?}"),
        CommandAction::Retire => "give up resuming the run".into(),
    };
    Ok(Event::User(UserEvent::Commanded {
        id: id.clone(),
        by: by.clone(),
        what: super::truncate_for_plan(&what),
    }))
}

fn resume_event(plan: &Plan, more: Option<&Budget>) -> Result<Event, Refusal> {
    let old = plan.run.start.as_ref().map(|start| start.budget.clone()).unwrap_or_default();
    let budget = more.map_or_else(|| old.clone(), |more| old.with_overrides(more));
    if let Err((field, expected)) = budget.check_values() {
        return Err(Refusal::Unusable(format!("invalid budget: {field} must be {expected}")));
    }
    Ok(Event::Run(RunEvent::Resumed { budget: Box::new(budget) }))
}

fn handle_user_message(plan: &Plan, by: &str, text: &str) -> Result<Vec<Event>, Refusal> {
    let text = text.trim();
    if text.is_empty() {
        return Err(Refusal::Unusable("the message is empty".into()));
    }
    if text.len() > MAX_TEXT {
        return Err(Refusal::Unusable(format!("the message is longer than {MAX_TEXT} bytes")));
    }
    if !plan.has_planner() {
        return Err(Refusal::WrongMoment("this run has no planner that could receive a message".into()));
    }
    if !accepts_messages(plan) {
        return Err(Refusal::WrongMoment("the planner of this run is no longer called".into()));
    }
    let (by, text) = (by.to_owned(), text.to_owned());
    let trigger = PlannerTrigger::Message { by: by.clone(), text: text.clone() };
    Ok(vec![
        Event::User(UserEvent::MessageReceived { by, text }),
        Event::Planning(PlanningEvent::TriggerRaised { trigger }),
    ])
}

/// The maximum length of the name of an author, in bytes.
const MAX_AUTHOR: usize = 256;
/// The largest number of standing answers that a run keeps.
const MAX_STANDING_ANSWERS: usize = 1_000;

/// Handles the answer of a person.
pub(super) fn handle_answer(plan: &Plan, given: &RunAnswer) -> Result<Vec<Event>, Refusal> {
    let RunAnswer { id, by, question: asked, digest, answer, scope } = given;
    if plan.run.commands.contains(id) {
        return Err(Refusal::AlreadyApplied(id.clone()));
    }
    let refuse = |why: Cow<'static, str>| Refusal::Question { question: asked.clone(), why: why.into() };
    let found = plan.question(asked).ok_or_else(|| refuse("there is no such question".into()))?;
    check_is_open(&found, asked).map_err(|why| refuse(why.into()))?;
    let question = found.question;
    if question.digest != *digest {
        let why = "the answer is for other arguments than those of the question; look at it again";
        return Err(refuse(why.into()));
    }
    question.check_answer(answer, *scope).map_err(|why| refuse(why.into()))?;
    if by.trim().is_empty() || by.len() > MAX_AUTHOR || by.chars().any(char::is_control) {
        let why = format!("the name of its author must be 1 to {MAX_AUTHOR} bytes of text in one line");
        return Err(refuse(why.into()));
    }
    let what = truncate_for_plan(&format!("answer the question {asked}: {answer}"));
    let events = vec![Event::User(UserEvent::Commanded { id: id.clone(), by: by.clone(), what })];
    let Some((task, attempt)) = found.task.and_then(|task| Some((task, task.current_attempt()?))) else {
        return answer_plan_question(plan, events, by, answer).map_err(|why| refuse(why.into()));
    };
    if attempt.judgements().any(|wait| is_answered_by(wait, by)) {
        return Err(refuse(
            format!("{by} has judged this result already; another person must answer").into(),
        ));
    }
    let end = WaitEnd::Answered { by: by.clone(), answer: answer.clone() };
    let ended = EndedWait { key: found.wait.wait.key.clone(), end };
    match standing_answer(task, question, given) {
        None => Ok(end_waits_of_attempt(plan, (task, attempt), events, vec![ended])),
        Some(_) if plan.run.standing_answers.len() >= MAX_STANDING_ANSWERS => Err(refuse(
            format!("a run keeps at most {MAX_STANDING_ANSWERS} answers for further calls").into(),
        )),
        Some(standing) => Ok(apply_standing_answer(plan, task, events, (standing, ended))),
    }
}

fn is_answered_by(wait: &AttemptWait, person: &str) -> bool {
    matches!(&wait.end, Some(WaitEnd::Answered { by, .. }) if by == person)
}

/// Ends a wait, and the other open questions that the same answer decides.
fn apply_standing_answer(
    plan: &Plan,
    task: &Task,
    mut events: Vec<Event>,
    (standing, ended): (StandingAnswer, EndedWait),
) -> Vec<Event> {
    events.push(Event::User(UserEvent::StandingAnswerGiven(standing.clone())));
    for (other, attempt) in plan.parked_attempts() {
        let is_it = other.spec.id == task.spec.id;
        let mut all: Vec<EndedWait> = is_it.then(|| ended.clone()).into_iter().collect();
        let open: Vec<Wait> =
            attempt.open_waits().filter(|wait| !is_it || wait.key != ended.key).cloned().collect();
        all.extend(ends_by_standing_answers(other, &open, std::slice::from_ref(&standing)));
        events = end_waits(other, events, attempt.open_waits(), all);
    }
    events
}

/// The answer for further calls, if this is one.
fn standing_answer(task: &Task, question: &Question, given: &RunAnswer) -> Option<StandingAnswer> {
    let digest = match given.scope {
        AnswerScope::Once => return None,
        AnswerScope::ThisCallInRun => Some(question.digest.clone()),
        AnswerScope::ThisToolInRun => None,
    };
    Some(StandingAnswer {
        capability: task.spec.capability.clone(),
        tool: question.tool()?.to_owned(),
        digest,
        by: given.by.clone(),
        answer: given.answer.clone(),
    })
}

/// # Errors
/// The question is closed; the error says why, since when, and by whom.
fn check_is_open(found: &RunQuestion<'_>, asked: &QuestionId) -> Result<(), String> {
    let at = |at: Option<Timestamp>| match at {
        Some(at) => format!(" at {}", at.strftime("%Y-%m-%d %H:%M:%S UTC")),
        None => String::new(),
    };
    match &found.state {
        QuestionState::Answered { by, answer } => Err(format!("{by} {answer}{}", at(found.wait.ended_at))),
        QuestionState::Expired => Err(format!("it expired{}", at(found.wait.ended_at))),
        QuestionState::Withdrawn(reason) => Err(format!("it was withdrawn: {reason}")),
        QuestionState::Open if asked.round < found.id.round => {
            let what = if found.task.is_some() { "it expired and" } else { "the plan has changed, and it" };
            Err(format!("{what} was renewed as {}{}", found.id, at(Some(found.wait.since))))
        }
        QuestionState::Open => Ok(()),
    }
}
