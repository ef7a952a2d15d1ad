//! The relation of a deliverable to the question of its run.

use millrace_protocol::result::TaskResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The relation of a deliverable to its question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerState {
    /// It answers the question, as far as it says so.
    Answered,
    /// A model says, after a second search with other words, that the sources do not answer.
    NotInSources,
    /// No passage was found, or there are no sources; no model has read any.
    NothingFound,
    /// None of its statements could be verified, or all were taken out.
    NotVerified,
}

impl AnswerState {
    /// The state of a deliverable. One whose statements were not compared with sources counts as answered.
    pub fn of(result: &TaskResult) -> Self {
        let all = &result.statements;
        let is_removed = !all.is_empty() && all.iter().all(|one| one.removed);
        let is_open = !all.is_empty() && all.iter().all(|one| one.removed || one.is_open());
        match (result.is_answered(), result.usage.model_calls) {
            _ if is_removed => Self::NotVerified,
            (false, 0) => Self::NothingFound,
            (false, _) => Self::NotInSources,
            (true, _) if is_open => Self::NotVerified,
            (true, _) => Self::Answered,
        }
    }

    /// A sentence for people; `None` if the question is answered.
    pub fn describe(self) -> Option<&'static str> {
        match self {
            Self::Answered => None,
            Self::NotInSources => Some(
                "not answered: the model says, after a second search, that the sources do not answer the question",
            ),
            Self::NothingFound => Some("not answered: nothing was found in the sources"),
            Self::NotVerified => Some("not verified: none of the statements of the answer could be verified"),
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::result::{StatementVerdict, Usage, VerifiedStatement};

    use super::*;

    fn result(answered: Option<bool>, model_calls: u64, verdicts: &[(StatementVerdict, bool)]) -> TaskResult {
        let statement = |(verdict, removed): &(StatementVerdict, bool)| VerifiedStatement {
            text: "It is so.".into(),
            start: 0,
            end: 9,
            verdict: *verdict,
            lines: Vec::new(),
            found_by: None,
            reason: "r".into(),
            probability: None,
            removed: *removed,
        };
        let usage = Usage { model_calls, ..Usage::default() };
        let statements = verdicts.iter().map(statement).collect();
        TaskResult { answered, usage, statements, ..TaskResult::default() }
    }

    #[test]
    fn ends_without_an_answer_are_told_apart() {
        use StatementVerdict::{Contradicted, Supported, Unverified};
        let state = |answered, calls, verdicts: &[_]| AnswerState::of(&result(answered, calls, verdicts));
        assert_eq!(state(None, 3, &[]), AnswerState::Answered);
        assert_eq!(state(None, 3, &[(Unverified, false), (Supported, false)]), AnswerState::Answered);
        assert_eq!(state(None, 3, &[(Unverified, false)]), AnswerState::NotVerified);
        assert_eq!(state(Some(false), 3, &[]), AnswerState::NotInSources);
        assert_eq!(state(Some(false), 0, &[]), AnswerState::NothingFound);
        assert_eq!(state(Some(false), 3, &[(Contradicted, true)]), AnswerState::NotVerified);
    }
}
