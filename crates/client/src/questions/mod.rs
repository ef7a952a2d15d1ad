//! Questions of runs to persons: the names by which users refer to them (a full id, or a run or a task that has one open question),
//! and, in `answering`, sending answers and their outcomes.

mod answering;

use std::str::FromStr;

use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::{Plan, RunQuestion};
use millrace_protocol::question::QuestionId;

pub use answering::{
    AnswerOutcome, AnswerRequest, OutcomeKind, PlanCache, SendAnswerError, answer_question, json_text,
    send_answer,
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

#[cfg(test)]
mod tests {
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
}
