//! Questions of runs to persons: their texts, and the prompt below the live view. `millrace_client` sends the answers.
//!
//! | module | contents |
//! |---|---|
//! | `text` | questions as lines for a person, and the commands that answer them |
//! | `changes` | the questions of a run that were opened and closed since the last look |
//! | `prompt` | the prompt below the live view, as a state machine |
//! | `terminal` | reads the keys of the prompt, opens the editor, sends the answers |

mod changes;
mod prompt;
mod terminal;
mod text;

pub use changes::QuestionTracker;
pub use millrace_client::questions::{
    AnswerOutcome, AnswerRequest, OutcomeKind, PlanCache, answer_question, full_id, json_text,
    open_questions_of_plan, send_answer,
};
pub use terminal::InPlaceAnswers;
pub use text::{
    describe_end, format_board_lines, format_closed_question, format_question, format_question_line,
};
