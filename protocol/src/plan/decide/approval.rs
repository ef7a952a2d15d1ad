//! The approval of the plan by a person, before the first task starts. The question names the digest of the tasks; a plan that
//! changes before the answer starts the next round.
//!
//! # Invariants
//!
//! - I119: No task of a plan that needs an approval starts before a person has approved the plan as it is then.
//!   (`protocol/tests/rules/judgement.rs::plan_starts_when_a_person_approves_it`,
//!   `protocol/tests/rules/judgement.rs::changed_plan_is_asked_about_again`,
//!   `tests/tests/questions.rs::kills_lose_no_question_and_no_answer`)

use sha2::{Digest, Sha256};

use super::super::edit::MAX_TEXT;
use super::super::spec::TaskSpec;
use super::super::state::{AttemptWait, Plan, PlannerTrigger};
use super::super::{Event, PlanningEvent, RunEvent, UserEvent};
use super::run_end::cancel_run;
use super::turn::can_call_planner;
use crate::question::{Answer, AnswerKind, MAX_QUESTION_TEXT, Question, QuestionSubject, hex_digest};
use crate::wait::{Wait, WaitCondition, WaitEnd};

/// The maximum length of the objective, the parameters and the dependencies of a task in the question, in characters.
const MAX_PART: usize = 200;

/// Asks for the approval of the plan if that is missing: once there is a plan, and again when it has changed.
pub(super) fn ask_about_plan(plan: &Plan) -> Vec<Event> {
    let is_needed = plan.needs_approval() && plan.open_task_count() > 0 && plan.run.winding_down.is_none();
    if !is_needed || is_planner_at_work(plan) {
        return Vec::new();
    }
    let open = plan.run.plan_questions.last().filter(|question| question.end.is_none());
    let question = question_about_plan(plan);
    let is_asked = |open: &AttemptWait| {
        open.wait.condition.question().is_some_and(|asked| asked.digest == question.digest)
    };
    if open.is_some_and(is_asked) {
        return Vec::new();
    }
    let condition = WaitCondition::Answer(Box::new(question));
    let number = plan.run.plan_questions.len() + usize::from(open.is_none());
    let wait = Wait::new(format!("plan.{number}"), condition);
    vec![Event::Run(RunEvent::PlanQuestionAsked { wait, again: open.is_some() })]
}

/// `true` if the planner is about to change the plan: its turn is open, or begins when the run is resumed.
fn is_planner_at_work(plan: &Plan) -> bool {
    plan.planning.turn.is_some() || (!plan.planning.triggers.is_empty() && can_call_planner(plan))
}

fn question_about_plan(plan: &Plan) -> Question {
    let mut digest = Sha256::new();
    let (mut text, mut left_out) = (String::new(), 0_usize);
    let open = plan.tasks().iter().filter(|task| !task.state().is_terminal());
    for spec in open.map(|task| &task.spec) {
        digest.update(serde_json::to_vec(spec).unwrap_or_default());
        let line = describe_task(spec);
        if left_out > 0 || text.len() + line.len() > MAX_QUESTION_TEXT {
            left_out += 1;
        } else {
            text.push_str(&line);
            text.push('\n');
        }
    }
    if left_out > 0 {
        text.push_str(&format!("and {left_out} more tasks"));
    }
    Question {
        subject: QuestionSubject::Plan { tasks: plan.open_task_count() },
        text: text.trim_end().to_owned(),
        digest: hex_digest(digest),
        decisions: vec![AnswerKind::Approve, AnswerKind::Reject],
        to: String::new(),
        expiry: None,
    }
}

/// Describes a task on one line: everything that a person must know to approve it, each part cut at [`MAX_PART`].
fn describe_task(spec: &TaskSpec) -> String {
    let cut = |text: &str| -> String {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.char_indices().nth(MAX_PART) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line,
        }
    };
    let mut line = format!("{} ({}", spec.id, spec.capability);
    if !spec.depends_on.is_empty() {
        let after: Vec<&str> = spec.depends_on.iter().map(|id| id.as_str()).collect();
        line.push_str(&format!(", after {}", cut(&after.join(", "))));
    }
    line.push_str(&format!("): {}", cut(&spec.objective)));
    if !spec.parameters.is_empty() {
        let parameters = serde_json::to_string(&spec.parameters).unwrap_or_default();
        line.push_str(&format!("; parameters {}", cut(&parameters)));
    }
    line
}

/// Applies the answer of a person to the question about the plan. The planner gets the reason of a rejection and makes another
/// plan; without a planner the run is cancelled.
///
/// # Errors
/// The planner is about to change the plan, so that it can't be approved.
pub(super) fn answer_plan_question(
    plan: &Plan,
    mut events: Vec<Event>,
    by: &str,
    answer: &Answer,
) -> Result<Vec<Event>, String> {
    if *answer == Answer::Approve && is_planner_at_work(plan) {
        return Err("the planner is changing the plan; approve it when its turn has ended".into());
    }
    let end = WaitEnd::Answered { by: by.to_owned(), answer: answer.clone() };
    events.push(Event::Run(RunEvent::PlanQuestionEnded { end }));
    let Answer::Reject { message } = answer else { return Ok(events) };
    if can_call_planner(plan) && plan.run.winding_down.is_none() {
        let text: String = format!("I reject the plan. {message}").chars().take(MAX_TEXT).collect();
        let by = by.to_owned();
        let trigger = PlannerTrigger::Message { by: by.clone(), text: text.clone() };
        events.push(Event::User(UserEvent::MessageReceived { by, text }));
        events.push(Event::Planning(PlanningEvent::TriggerRaised { trigger }));
    } else {
        let why = if message.is_empty() { String::new() } else { format!(": {message}") };
        events.extend(cancel_run(plan, &format!("{by} rejected the plan{why}")));
    }
    Ok(events)
}
