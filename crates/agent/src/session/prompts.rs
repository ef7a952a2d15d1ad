//! The built-in prompts of working agents, for capability files without instructions. Each is a file in `prompts/`, with a
//! variant for small models and one for strong ones; the planner and the critic choose theirs themselves.

use crate::model::ModelAbility;
use crate::spec::{AnswerForm, Template};

/// Returns the built-in instructions for an agent with this form of answer; `None` if there are none.
pub(super) fn built_in_instructions(answer: AnswerForm, ability: ModelAbility) -> Option<Template> {
    let text = match (answer, ability) {
        (AnswerForm::Findings, ModelAbility::Small) => include_str!("../../prompts/research.small.md"),
        (AnswerForm::Findings, ModelAbility::Strong) => include_str!("../../prompts/research.strong.md"),
        (AnswerForm::Report, ModelAbility::Small) => include_str!("../../prompts/producer.small.md"),
        (AnswerForm::Report, ModelAbility::Strong) => include_str!("../../prompts/producer.strong.md"),
        (AnswerForm::Text | AnswerForm::Data | AnswerForm::Plan, _) => return None,
    };
    Some(Template::new(text).expect("the built-in instructions have no mistakes"))
}
