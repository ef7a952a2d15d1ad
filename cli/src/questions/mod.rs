//! Questions of runs to persons: their state, the names by which users refer to them, their texts, and sending answers.
//!
//! | module | contents |
//! |---|---|
//! | `reference` | the ids and short forms that users type, and the questions that they select |
//! | `text` | questions as lines for a person, and the commands that answer them |
//! | `answering` | sends an answer and tells its outcome |
//! | `changes` | the questions of a run that were opened and closed since the last look |
//! | `prompt` | the prompt below the live view, as a state machine |
//! | `terminal` | reads the keys of the prompt, opens the editor, sends the answers |

mod answering;
mod changes;
mod prompt;
mod reference;
mod terminal;
mod text;

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Plan, RunQuestion};
use millrace_protocol::question::QuestionId;

pub use answering::{AnswerOutcome, AnswerRequest, OutcomeKind, PlanCache, answer_question};
pub use changes::QuestionTracker;
pub use reference::{QuestionReference, Selection};
pub use terminal::InPlaceAnswers;
pub use text::{
    describe_end, format_board_lines, format_closed_question, format_question, format_question_line,
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
