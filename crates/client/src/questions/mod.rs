//! Questions of runs to persons: the names by which users refer to them, and sending answers.
//!
//! | module | contents |
//! |---|---|
//! | `reference` | the ids and short forms that users type, and the questions that they select |
//! | `answering` | sends an answer and tells its outcome |

mod answering;
mod reference;

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Plan, RunQuestion};
use millrace_protocol::question::QuestionId;

pub use answering::{
    AnswerOutcome, AnswerRequest, OutcomeKind, PlanCache, SendAnswerError, answer_question, json_text,
    send_answer,
};
pub use reference::{QuestionReference, Selection};

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
