//! Questions of runs to persons: the names by which users refer to them (a full id, or a run or a task that has one open question),
//! and sending answers: selecting the question, checking the answer, publishing it, waiting for the decision, and telling the outcome.
//!
//! # Invariants
//!
//! - I110: The answer of a person names the digest of the question that was shown; the first answer that fits counts, and every
//!   later one is refused with its author. (`cli/tests/questions.rs::questions_of_two_runs_are_answered_in_any_order`,
//!   `cli/tests/questions.rs::batch_has_an_outcome_for_each_question`)

use std::collections::HashMap;
use std::str::FromStr;

use jiff::Timestamp;
use millrace_protocol::foreign_json::{mend_json_text, parse_json_or_text};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Plan, QuestionState, Refusal, RunQuestion};
use millrace_protocol::question::{Answer, AnswerScope, Question, QuestionId, QuestionSubject, RunAnswer};
use millrace_protocol::safe_text::single_line;
use millrace_protocol::subject::Topic;
use millrace_runtime::{Bus, Fault};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    FindError, MessageDecision, Patience, append_and_await_decision, find_run, format_clock, read_plan,
};

/// Returns the open questions of a run, the oldest first.
pub fn open_questions_of_plan(plan: &Plan) -> Vec<RunQuestion<'_>> {
    let mut open: Vec<RunQuestion<'_>> = plan.open_questions().collect();
    open.sort_by_key(|question| question.wait.since);
    open
}

/// Returns the id of a question as users copy it: `<run>/<task>/<attempt>/<number>`, or
/// `<run>/plan/<number>`.
pub fn full_id(run: &RunId, id: &QuestionId) -> String {
    format!("{run}/{id}")
}

/// A name of a question. Its run is a full id, a unique prefix of one, or `latest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuestionReference {
    /// The run, as the user typed it.
    pub run: String,
    part: ReferencedPart,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ReferencedPart {
    /// The only open question of the run.
    Run,
    /// The only open question of the task.
    Task(TaskId),
    Question(QuestionId),
}

/// The question that a name selects in a run.
#[derive(Debug)]
pub enum Selection<'a> {
    One(Box<RunQuestion<'a>>),
    /// None; the text names the part of the run without a question.
    None(String),
    /// Several open ones: their full ids.
    Several(Vec<String>),
}

impl FromStr for QuestionReference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (run, rest) = text.split_once('/').map_or((text, None), |(run, rest)| (run, Some(rest)));
        if run.is_empty() {
            return Err(
                "the run is missing; an id has the form RUN/TASK/ATTEMPT/NUMBER, and RUN or RUN/TASK is \
                        enough if it has one open question"
                    .into(),
            );
        }
        let part = match rest {
            None => ReferencedPart::Run,
            Some(task) if !task.contains('/') => {
                ReferencedPart::Task(TaskId::new(task).map_err(|error| error.to_string())?)
            }
            Some(question) => ReferencedPart::Question(question.parse().map_err(|_| {
                format!(
                    "{text:?} is no id of a question; it has the form RUN/TASK/ATTEMPT/NUMBER or RUN/plan/NUMBER"
                )
            })?),
        };
        Ok(Self { run: run.to_owned(), part })
    }
}

impl QuestionReference {
    /// Returns the question that the name selects in its run. A full id also selects closed questions and earlier rounds; the
    /// record has the round that the user named.
    pub fn select<'a>(&self, run: &RunId, plan: &'a Plan) -> Selection<'a> {
        let only = |what: String, task: Option<&TaskId>| {
            let mut open = open_questions_of_plan(plan);
            open.retain(|record| task.is_none() || record.id.task() == task);
            match (open.pop(), open.is_empty()) {
                (None, _) => Selection::None(format!("{what} has no open question")),
                (Some(one), true) => Selection::One(Box::new(one)),
                (Some(last), false) => {
                    Selection::Several(open.iter().chain([&last]).map(|one| full_id(run, &one.id)).collect())
                }
            }
        };
        match &self.part {
            ReferencedPart::Run => only(format!("run {run}"), None),
            ReferencedPart::Task(task) if plan.task(task).is_none() => {
                Selection::None(format!("run {run} has no task {task}"))
            }
            ReferencedPart::Task(task) => only(format!("task {task} of run {run}"), Some(task)),
            ReferencedPart::Question(id) => match plan.question(id) {
                Some(record) => Selection::One(Box::new(RunQuestion { id: id.clone(), ..record })),
                None => Selection::None(format!("run {run} has no question {id}")),
            },
        }
    }
}

/// The decision of a person, as given on the command line or at the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerRequest {
    /// An answer that fits any question of its kind.
    Given(Answer),
    /// A value: JSON, or a text.
    Value(String),
}

impl AnswerRequest {
    /// Reads a value: JSON, or a text.
    pub fn from_value(text: &str) -> Result<Self, String> {
        parse_json_or_text(text.as_bytes())?;
        Ok(Self::Value(mend_json_text(text.to_owned())))
    }

    /// Returns the answer to a question. A value is a text if it is one of the options or no JSON.
    pub fn answer_to(&self, question: &Question) -> Answer {
        match self {
            Self::Given(answer) => answer.clone(),
            Self::Value(text) => {
                let is_option = match &question.subject {
                    QuestionSubject::Input { options, .. } => options.contains(text),
                    QuestionSubject::Approval { .. }
                    | QuestionSubject::Review { .. }
                    | QuestionSubject::Plan { .. } => false,
                };
                let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
                let value = if is_json && !is_option { text.clone() } else { json_text(text) };
                Answer::Answer { value }
            }
        }
    }
}

pub fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The outcome of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// The answer counts.
    Answered,
    /// Another answer was decided on before.
    Already,
    /// The question expired before.
    Expired,
    /// The question is not needed any more: its task or run has ended, or was retried.
    Withdrawn,
    /// There is no such run or question.
    Unknown,
    /// The name fits several open questions.
    Ambiguous,
    /// The answer does not fit the question.
    Refused,
    /// The answer is in the log; no supervisor has decided on it yet.
    Sent,
}

/// The outcome of an answer, with its details for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerOutcome {
    /// The question, as the user named it; its full id if there is such a question.
    pub id: String,
    pub kind: OutcomeKind,
    pub by: Option<String>,
    /// When that answer was decided on.
    pub at: Option<Timestamp>,
    pub answer: Option<Answer>,
    pub message: String,
    /// The questions that the name fits, if several.
    pub candidates: Vec<String>,
}

impl AnswerOutcome {
    #[must_use]
    pub fn new(id: String, kind: OutcomeKind, message: String) -> Self {
        Self { id, kind, by: None, at: None, answer: None, message, candidates: Vec::new() }
    }

    /// The outcome for a question that is closed; `None` if it is open.
    fn of_closed(run: &RunId, record: &RunQuestion<'_>) -> Option<Self> {
        let new = |kind, message| Some(Self::new(full_id(run, &record.id), kind, message));
        let at = record.wait.ended_at;
        let when = at.map(|at| format!(" at {}", format_clock(at))).unwrap_or_default();
        match &record.state {
            QuestionState::Answered { by, answer } => {
                let message = format!("{}{when}", single_line(&format!("{by} {answer}")));
                let (by, answer) = (Some((*by).to_owned()), Some((*answer).clone()));
                Some(Self { by, at, answer, ..new(OutcomeKind::Already, message)? })
            }
            QuestionState::Expired => {
                Some(Self { at, ..new(OutcomeKind::Expired, format!("it expired without an answer{when}"))? })
            }
            QuestionState::Withdrawn(reason) => new(OutcomeKind::Withdrawn, single_line(reason)),
            QuestionState::Open if record.id.round < record.wait.round => {
                let now = QuestionId { round: record.wait.round, ..record.id.clone() };
                let now = full_id(run, &now);
                let why = if record.task.is_some() {
                    "it expired without an answer"
                } else {
                    "the plan has changed"
                };
                new(OutcomeKind::Expired, format!("{why}; it was renewed as {now}"))
            }
            QuestionState::Open => None,
        }
    }

    /// The outcome as one line for a person.
    pub fn line(&self) -> String {
        let Self { id, kind, message, .. } = self;
        match kind {
            OutcomeKind::Answered => format!("{id} is answered: {message}"),
            OutcomeKind::Already => format!("{id} has been answered already: {message}"),
            OutcomeKind::Expired => format!("{id} has expired: {message}"),
            OutcomeKind::Withdrawn => format!("{id} was withdrawn: {message}"),
            OutcomeKind::Unknown | OutcomeKind::Ambiguous => message.clone(),
            OutcomeKind::Refused => format!("{id}: the answer was refused: {message}"),
            OutcomeKind::Sent => format!("{id}: {message}"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SendAnswerError {
    /// The run is neither in its lane nor in the archive.
    #[error("lost track of run {0}: the cluster no longer reports it")]
    LostRun(RunId),
    /// The cluster does not answer, or refuses answers of this identity.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// The plans of runs that were read for earlier answers of the same command.
pub type PlanCache = HashMap<RunId, Plan>;

/// Answers the question that a name selects. Only the outcome of this one is affected by its mistakes.
pub async fn answer_question(
    bus: &Bus,
    plans: &mut PlanCache,
    name: &str,
    (request, scope, by): (&AnswerRequest, AnswerScope, &str),
    patience: Patience<'_>,
) -> Result<AnswerOutcome, SendAnswerError> {
    let unknown = |message: String| Ok(AnswerOutcome::new(name.to_owned(), OutcomeKind::Unknown, message));
    let reference = match name.parse::<QuestionReference>() {
        Ok(reference) => reference,
        Err(mistake) => return unknown(mistake),
    };
    let run = match find_run(bus, &reference.run).await {
        Ok(run) => run,
        Err(FindError::Fault(fault)) => return Err(fault.into()),
        Err(
            error @ (FindError::NoRuns
            | FindError::Empty
            | FindError::NotFound(_)
            | FindError::Ambiguous { .. }),
        ) => return unknown(error.to_string()),
    };
    if !plans.contains_key(&run) {
        plans.insert(run.clone(), read_plan(bus, &run).await?);
    }
    let plan = &plans[&run];
    let record = match reference.select(&run, plan) {
        Selection::One(record) => record,
        Selection::None(message) => return unknown(message),
        Selection::Several(candidates) => {
            let message =
                format!("{name} has {} open questions: {}", candidates.len(), candidates.join(", "));
            let ambiguous = AnswerOutcome::new(name.to_owned(), OutcomeKind::Ambiguous, message);
            return Ok(AnswerOutcome { candidates, ..ambiguous });
        }
    };
    if let Some(closed) = AnswerOutcome::of_closed(&run, &record) {
        return Ok(closed);
    }
    let answer = request.answer_to(record.question);
    let (id, question) = (record.id.clone(), record.question.clone());
    let outcome = send_answer(bus, &run, (&id, &question), (answer, scope, by), patience).await?;
    // An answer for further calls may have closed other questions.
    plans.remove(&run);
    Ok(outcome)
}

/// Checks the answer to a question that a person has seen, publishes it, and waits for the decision on it. The answer names the
/// digest of that question.
pub async fn send_answer(
    bus: &Bus,
    run: &RunId,
    (id, question): (&QuestionId, &Question),
    (answer, scope, by): (Answer, AnswerScope, &str),
    patience: Patience<'_>,
) -> Result<AnswerOutcome, SendAnswerError> {
    let name = full_id(run, id);
    if let Err(mistake) = question.check_answer(&answer, scope) {
        return Ok(AnswerOutcome::new(name, OutcomeKind::Refused, mistake));
    }
    let key = uuid::Uuid::now_v7().simple().to_string();
    let message = RunAnswer {
        id: key.clone(),
        by: by.to_owned(),
        question: id.clone(),
        digest: question.digest.clone(),
        answer: answer.clone(),
        scope,
    };
    let decision = append_and_await_decision(bus, run, &Topic::Answer, (&message, &key), patience).await?;
    Ok(match decision {
        MessageDecision::Applied(_) => AnswerOutcome {
            by: Some(by.to_owned()),
            at: Some(Timestamp::now()),
            message: single_line(&answer.to_string()),
            answer: Some(answer),
            ..AnswerOutcome::new(name, OutcomeKind::Answered, String::new())
        },
        MessageDecision::Refused(refusal) => outcome_of_refusal(bus, run, id, &refusal).await?,
        MessageDecision::Archived => {
            let plan = read_plan(bus, run).await?;
            closed_outcome(run, &plan, id).ok_or_else(|| SendAnswerError::LostRun(run.clone()))?
        }
        MessageDecision::Interrupted => AnswerOutcome::new(
            name,
            OutcomeKind::Sent,
            "the answer is in the log; it counts when a supervisor decides on it".into(),
        ),
    })
}

/// Returns the outcome of an answer that the supervisor refused: the state of the question says why, if it is closed.
async fn outcome_of_refusal(
    bus: &Bus,
    run: &RunId,
    question: &QuestionId,
    refusal: &Refusal,
) -> Result<AnswerOutcome, SendAnswerError> {
    let plan = read_plan(bus, run).await?;
    let refused = || {
        let message =
            if let Refusal::Question { why, .. } = refusal { why.clone() } else { refusal.to_string() };
        AnswerOutcome::new(full_id(run, question), OutcomeKind::Refused, message)
    };
    Ok(closed_outcome(run, &plan, question).unwrap_or_else(refused))
}

fn closed_outcome(run: &RunId, plan: &Plan, question: &QuestionId) -> Option<AnswerOutcome> {
    let reference: QuestionReference = full_id(run, question).parse().ok()?;
    match reference.select(run, plan) {
        Selection::One(record) => AnswerOutcome::of_closed(run, &record),
        Selection::None(_) | Selection::Several(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::question::AnswerKind;

    use super::*;

    #[test]
    fn ids_and_short_forms_are_parsed() {
        let part =
            |text: &str| text.parse::<QuestionReference>().map(|reference| (reference.run, reference.part));
        let question = |text: &str| ReferencedPart::Question(text.parse().unwrap());
        assert_eq!(part("latest").unwrap(), ("latest".into(), ReferencedPart::Run));
        assert_eq!(part("r-1/t").unwrap(), ("r-1".into(), ReferencedPart::Task(TaskId::new("t").unwrap())));
        assert_eq!(part("r-1/t/1/2").unwrap(), ("r-1".into(), question("t/1/2")));
        assert_eq!(part("r-1/plan/1").unwrap(), ("r-1".into(), question("plan/1")));
        assert_eq!(part(" r-1/t/1/2.3 ").unwrap(), ("r-1".into(), question("t/1/2.3")));
        for (text, mistake) in [
            ("", "the run is missing"),
            ("/t/1/1", "the run is missing"),
            ("r/t/1", "\"r/t/1\" is no id of a question; it has the form RUN/TASK/ATTEMPT/NUMBER"),
            ("r/t/0/1", "is no id of a question"),
            ("r/t/1/1/1", "is no id of a question"),
        ] {
            let error = part(text).unwrap_err();
            assert!(error.contains(mistake), "{text}: {error}");
        }
    }

    #[test]
    fn value_that_is_an_option_or_no_json_is_a_text() {
        let question = |options: &[&str]| Question {
            subject: QuestionSubject::Input {
                options: options.iter().map(|&option| option.to_owned()).collect(),
                schema: String::new(),
            },
            text: "Which version?".into(),
            digest: "d".into(),
            decisions: vec![AnswerKind::Answer, AnswerKind::Decline],
            to: String::new(),
            expiry: None,
        };
        for (text, options, value) in [
            ("3", &["3", "4"][..], "\"3\""),
            ("3", &[], "3"),
            ("north", &[], "\"north\""),
            ("\"north\"", &[], "\"north\""),
            ("{\"a\": 1}", &[], "{\"a\": 1}"),
        ] {
            let answer = AnswerRequest::Value(text.into()).answer_to(&question(options));
            assert_eq!(answer, Answer::Answer { value: value.into() }, "{text}");
        }
    }
}
