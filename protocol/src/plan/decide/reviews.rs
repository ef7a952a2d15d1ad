//! Verdicts of critics, and reviews by persons: the questions that they get, their votes, and the verdict. A result waits for them in state
//! `waiting`, as a parked attempt does; the waits of its attempt are the questions.
//!
//! # Invariants
//!
//! - I118: A result that persons judge is decided by the vote that decides it, of the persons and the critic, and no person has
//!   two votes on it. (`protocol/tests/rules/judgement.rs::quorum_counts_persons_and_the_critic`,
//!   `protocol/tests/rules/judgement.rs::person_votes_once_on_a_result`,
//!   `tests/tests/questions.rs::person_approves_the_plan_and_judges_results`)

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::super::spec::{PersonReview, ReviewPolicy};
use super::super::start::PLAN_WAIT_PREFIX;
use super::super::state::{Attempt, Plan, Task, TaskState};
use super::super::{AttemptClock, AttemptEvent, Event, Refusal, ReviewEvent, TaskEvent};
use super::wave::append_consequences_of_task_ends;
use super::{
    MAX_REVIEWS, STALE_JOURNAL, find_task, find_task_with_attempt, timeout_error, timestamp_after,
    truncate_for_plan, usage_of_work_in_flight, wrong_state_refusal,
};
use crate::ids::{TaskId, WorkerId};
use crate::question::{Answer, AnswerKind, MAX_QUESTION_TEXT, Question, QuestionSubject, hex_digest};
use crate::result::{CriterionOutcome, ErrorKind, JudgeOpinion, TaskError, Usage, Verdict};
use crate::wait::{EndedWait, Wait, WaitCondition, WaitEnd};

pub(super) fn find_task_under_review<'a>(
    plan: &'a Plan,
    id: &TaskId,
    attempt: u32,
) -> Result<&'a Task, Refusal> {
    let task = find_task_with_attempt(plan, id, attempt)?;
    if task.state() == TaskState::NeedsReview {
        Ok(task)
    } else {
        Err(wrong_state_refusal(task, "review ignored"))
    }
}

/// Returns the number of the current try at the review; during a backoff that of the last one.
fn started_review_number(task: &Task) -> u32 {
    task.review_number().saturating_sub(u32::from(task.review_retry_at().is_some()))
}

pub(super) fn check_review_number(task: &Task, review: u32) -> Result<(), Refusal> {
    if review > started_review_number(task) {
        return Err(wrong_state_refusal(task, "this review has not started"));
    }
    if task.review_number() == review {
        Ok(())
    } else {
        Err(wrong_state_refusal(task, "this review has ended"))
    }
}

/// Handles the end of a review. A verdict of an earlier try counts too: an order that no critic claimed in time stays in
/// its queue under that number. An error counts only for the current try.
pub(super) fn handle_review_end(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    review: u32,
    critic: &WorkerId,
    outcome: &Result<Verdict, TaskError>,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task_under_review(plan, id, attempt)?;
    let refused = |why: String, verdict: &Verdict| TaskError {
        usage: verdict.usage,
        models: verdict.models.clone(),
        ..TaskError::new(ErrorKind::Other, why)
    };
    let is_author = task.current_attempt().and_then(|current| current.worker.as_ref()) == Some(critic);
    let verdict = match outcome {
        Ok(verdict) if is_author => {
            let error = refused(Refusal::AuthorIsCritic(id.clone()).to_string(), verdict);
            return fail_review(plan, task, review, &error, now);
        }
        Ok(verdict) => verdict,
        Err(error) => return fail_review(plan, task, review, error, now),
    };
    if let Some(inconsistency) = verdict.find_inconsistency() {
        let error = refused(format!("invalid verdict: {inconsistency}"), verdict);
        return fail_review(plan, task, review, &error, now);
    }
    if review > started_review_number(task) {
        return Err(wrong_state_refusal(task, "this review has not started"));
    }
    let verdict_given = Event::Review(ReviewEvent::VerdictGiven {
        task: id.clone(),
        attempt,
        critic: critic.clone(),
        verdict: Box::new(verdict.clone()),
    });
    if let ReviewPolicy::Persons(review) = task.review_policy()
        && needs_persons(review, verdict)
    {
        let summary = task.current_attempt().and_then(Attempt::result_summary).unwrap_or_default();
        return Ok(ask_persons(plan, task, vec![verdict_given], (review, summary, Some(verdict))));
    }
    let next = consequence_of_verdict(plan, task, verdict);
    Ok(append_consequences_of_task_ends(plan, vec![verdict_given, next]))
}

/// `true` if persons must judge a result after this verdict of a critic. Checks have no vote: a result that fails them is
/// rejected.
fn needs_persons(review: &PersonReview, verdict: &Verdict) -> bool {
    match review.first {
        ReviewPolicy::Critic { .. } => {
            let mut votes = Votes::default();
            votes.count(verdict.passed);
            votes.outcome(review).is_none()
        }
        ReviewPolicy::None | ReviewPolicy::Checks { .. } | ReviewPolicy::Persons(_) => verdict.passed,
    }
}

pub(super) fn time_out_review(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    review: u32,
    clock: AttemptClock,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task_under_review(plan, id, attempt)?;
    let error = TaskError { usage: usage_of_work_in_flight(plan, task), ..timeout_error(clock, "") };
    fail_review(plan, task, review, &error, now)
}

/// Fails a dispatched try at a review whose journal has entries from before its dispatch.
pub(super) fn replace_review_with_stale_journal(
    plan: &Plan,
    id: &TaskId,
    attempt: u32,
    review: u32,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    let task = find_task_under_review(plan, id, attempt)?;
    check_review_number(task, review)?;
    fail_review(plan, task, review, &TaskError::new(ErrorKind::Other, STALE_JOURNAL), now)
}

/// Ends the backoff of a review.
pub(super) fn retry_review(plan: &Plan, id: &TaskId, now: Timestamp) -> Result<Vec<Event>, Refusal> {
    let task = find_task(plan, id)?;
    match task.review_retry_at() {
        Some(at) if at <= now => Ok(vec![Event::Review(ReviewEvent::Ready { task: id.clone() })]),
        Some(at) => Err(Refusal::NotDue(at)),
        None => Err(wrong_state_refusal(task, "review retry ignored")),
    }
}

fn fail_review(
    plan: &Plan,
    task: &Task,
    review: u32,
    error: &TaskError,
    now: Timestamp,
) -> Result<Vec<Event>, Refusal> {
    check_review_number(task, review)?;
    let (id, attempt) = (task.spec.id.clone(), task.attempt);
    let again = review < MAX_REVIEWS && error.kind.is_retryable();
    let message = truncate_for_plan(&error.message);
    let failed = (!again).then(|| {
        Event::Task(TaskEvent::Failed {
            task: id.clone(),
            reason: format!("its result could not be reviewed: {message}"),
        })
    });
    let event = Event::Review(ReviewEvent::Errored {
        task: id,
        attempt,
        review,
        error: message,
        again,
        retry_at: again.then(|| timestamp_after(now, task.spec.limits.backoff_before_attempt(review + 1))),
        usage: error.usage,
        models: error.models.clone(),
    });
    Ok(append_consequences_of_task_ends(plan, std::iter::once(event).chain(failed).collect()))
}

/// The author of a verdict of persons, in place of the id of a critic.
const PERSONS: &str = "persons";

/// The votes on a result.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Votes {
    accepting: u32,
    rejecting: u32,
}

impl Votes {
    pub(super) fn count(&mut self, accepts: bool) {
        let votes = if accepts { &mut self.accepting } else { &mut self.rejecting };
        *votes = votes.saturating_add(1);
    }

    /// The outcome, if the votes that are missing cannot change it: `true` if the result is accepted.
    pub(super) fn outcome(self, review: &PersonReview) -> Option<bool> {
        let required = review.required_votes();
        if self.accepting >= required {
            return Some(true);
        }
        (self.rejecting > review.vote_count().saturating_sub(required)).then_some(false)
    }
}

/// Asks persons to judge a result. `critic` is the verdict of the critic that reviewed it before, if one did. While the run
/// winds down the task is cancelled instead: a person may need longer than the run has.
pub(super) fn ask_persons(
    plan: &Plan,
    task: &Task,
    mut events: Vec<Event>,
    (review, summary, critic): (&PersonReview, &str, Option<&Verdict>),
) -> Vec<Event> {
    if plan.run.winding_down.is_some() {
        events.push(Event::Task(TaskEvent::Cancelled {
            task: task.spec.id.clone(),
            reason: "the run is winding down, and persons would have to judge its result".into(),
            with: None,
            usage: Usage::default(),
        }));
        return append_consequences_of_task_ends(plan, events);
    }
    let question = question_about_result(task, review, summary, critic);
    let waits = review.ask.iter().enumerate().map(|(at, to)| {
        let question = Question { to: to.clone(), ..question.clone() };
        Wait::new(format!("{PLAN_WAIT_PREFIX}review.{}", at + 1), WaitCondition::Answer(Box::new(question)))
    });
    let (id, attempt) = (task.spec.id.clone(), task.attempt);
    events.push(Event::Attempt(AttemptEvent::Parked { task: id, attempt, waits: waits.collect() }));
    events
}

fn question_about_result(
    task: &Task,
    review: &PersonReview,
    summary: &str,
    critic: Option<&Verdict>,
) -> Question {
    let mut criteria = review.criteria.clone();
    if let ReviewPolicy::Critic { criteria: of_critic, .. } = &review.first {
        criteria.extend(of_critic.iter().cloned());
    }
    let subject = QuestionSubject::Review {
        summary: summary.to_owned(),
        criteria,
        critic: critic.map(|verdict| truncate_for_plan(&describe_verdict(verdict))).unwrap_or_default(),
    };
    let mut digest = Sha256::new();
    for part in [task.spec.id.as_str(), &task.attempt.to_string(), summary] {
        digest.update(part);
        digest.update([0]);
    }
    Question {
        subject,
        text: task.spec.objective.chars().take(MAX_QUESTION_TEXT / 4).collect(),
        digest: hex_digest(digest),
        decisions: vec![AnswerKind::Pass, AnswerKind::Fail],
        to: String::new(),
        expiry: review.expiry.clone(),
    }
}

fn describe_verdict(verdict: &Verdict) -> String {
    format!("{}: {}", if verdict.passed { "accepted" } else { "rejected" }, verdict.reasoning)
}

/// The review by persons on which the current result of a task waits; `None` if there is none.
pub(super) fn open_person_review<'a>(task: &'a Task, attempt: &Attempt) -> Option<&'a PersonReview> {
    match task.review_policy() {
        ReviewPolicy::Persons(review) if attempt.end.is_some() => Some(review),
        ReviewPolicy::None
        | ReviewPolicy::Checks { .. }
        | ReviewPolicy::Critic { .. }
        | ReviewPolicy::Persons(_) => None,
    }
}

/// Counts the votes in the ends of questions about a result, and gives the verdict if they decide it.
pub(super) fn count_votes(
    plan: &Plan,
    task: &Task,
    (attempt, review): (&Attempt, &PersonReview),
    mut events: Vec<Event>,
    ended: Vec<EndedWait>,
) -> Vec<Event> {
    let opinions = collect_opinions(attempt, &ended);
    let critic = critic_verdict(attempt, review);
    let mut votes = Votes::default();
    opinions.iter().map(|opinion| opinion.passed).for_each(|accepts| votes.count(accepts));
    critic.into_iter().for_each(|verdict| votes.count(verdict.passed));
    let (id, number) = (&task.spec.id, attempt.number);
    let end = |ended| Event::Attempt(AttemptEvent::WaitEnded { task: id.clone(), attempt: number, ended });
    events.extend(ended.into_iter().map(end));
    let Some(passed) = votes.outcome(review) else { return events };
    let verdict = combined_verdict(passed, review, critic, opinions);
    let next = consequence_of_verdict(plan, task, &verdict);
    events.extend([verdict_given(id.clone(), number, verdict), next]);
    append_consequences_of_task_ends(plan, events)
}

fn verdict_given(task: TaskId, attempt: u32, verdict: Verdict) -> Event {
    let critic = WorkerId::new(PERSONS).expect("it is letters");
    Event::Review(ReviewEvent::VerdictGiven { task, attempt, critic, verdict: Box::new(verdict) })
}

/// The verdict of the critic, if its vote counts.
fn critic_verdict<'a>(attempt: &'a Attempt, review: &PersonReview) -> Option<&'a Verdict> {
    let is_critic = matches!(review.first, ReviewPolicy::Critic { .. });
    attempt.verdict().filter(|_| is_critic).map(|(_, verdict)| verdict)
}

/// The opinions of persons about the result of an attempt, those of these ends included.
fn collect_opinions(attempt: &Attempt, ended: &[EndedWait]) -> Vec<JudgeOpinion> {
    let earlier = attempt.judgements().filter_map(|wait| wait.end.as_ref());
    earlier.chain(ended.iter().map(|ended| &ended.end)).filter_map(opinion_of_end).collect()
}

fn opinion_of_end(end: &WaitEnd) -> Option<JudgeOpinion> {
    let WaitEnd::Answered { by, answer } = end else { return None };
    let (passed, reasoning) = match answer {
        Answer::Pass => (true, String::new()),
        Answer::Fail { feedback } => (false, feedback.clone()),
        Answer::Approve
        | Answer::Edit { .. }
        | Answer::Reject { .. }
        | Answer::Respond { .. }
        | Answer::Answer { .. }
        | Answer::Decline => return None,
    };
    let model = if by.is_empty() { "a person".to_owned() } else { by.clone() };
    Some(JudgeOpinion { model, passed, reasoning, confidence: None })
}

fn combined_verdict(
    passed: bool,
    review: &PersonReview,
    critic: Option<&Verdict>,
    persons: Vec<JudgeOpinion>,
) -> Verdict {
    let mut opinions: Vec<JudgeOpinion> = Vec::with_capacity(persons.len() + 1);
    opinions.extend(critic.map(|verdict| JudgeOpinion {
        model: "the critic".into(),
        passed: verdict.passed,
        reasoning: verdict.feedback.as_ref().unwrap_or(&verdict.reasoning).clone(),
        confidence: verdict.confidence,
    }));
    opinions.extend(persons);
    let describe = |opinion: &JudgeOpinion| match (opinion.passed, opinion.reasoning.as_str()) {
        (true, "") => format!("{} accepted it", opinion.model),
        (false, "") => format!("{} rejected it", opinion.model),
        (true, why) => format!("{} accepted it: {why}", opinion.model),
        (false, why) => format!("{} rejected it: {why}", opinion.model),
    };
    let (required, all) = (review.required_votes(), review.vote_count());
    let accepting = opinions.iter().filter(|opinion| opinion.passed).count();
    let lines =
        |all: &mut dyn Iterator<Item = &JudgeOpinion>| all.map(describe).collect::<Vec<_>>().join("; ");
    Verdict {
        passed,
        criteria: vec![CriterionOutcome {
            criterion: match all {
                1 => "the person accepts it".into(),
                _ => format!("{required} of {all} votes accept it"),
            },
            met: passed,
            gap: (!passed).then(|| format!("{accepting} accepted it")),
        }],
        reasoning: lines(&mut opinions.iter()),
        feedback: (!passed).then(|| lines(&mut opinions.iter().filter(|opinion| !opinion.passed))),
        confidence: None,
        opinions,
        ..Verdict::default()
    }
}

/// The consequence of a verdict on the current result of a task: it is accepted, or another attempt starts, or the task
/// fails.
pub(super) fn consequence_of_verdict(plan: &Plan, task: &Task, verdict: &Verdict) -> Event {
    let (id, attempt) = (task.spec.id.clone(), task.attempt);
    let may_rerun = plan.run.winding_down.is_none() || task.spec.is_final;
    if verdict.passed {
        return Event::Task(TaskEvent::Accepted { task: id, attempt });
    }
    if attempt < task.granted && may_rerun {
        return Event::Task(TaskEvent::Rerun { task: id, attempt: attempt + 1 });
    }
    let why = verdict.feedback.as_ref().unwrap_or(&verdict.reasoning);
    let reason = format!("its result was rejected at attempt {attempt} of {attempt}: {why}");
    Event::Task(TaskEvent::Failed { task: id, reason: truncate_for_plan(&reason) })
}
