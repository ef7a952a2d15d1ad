//! The system prompts of working agents. The built-in ones, for capability files without instructions, are files in `prompts/`, with a
//! variant for small models and one for strong ones; the planner and the critic choose theirs themselves.

use jiff::Timestamp;
use millrace_protocol::ids::TaskId;
use millrace_protocol::result::TaskError;
use millrace_protocol::work::{Assignment, Order};

use super::environment::invalid_order_error;
use crate::answers::{findings, report};
use crate::model::ModelAbility;
use crate::roles::{self, DocumentList};
use crate::spec::{
    AgentSpec, AnswerForm, RunTemplateView, TaskTemplateView, Template, TemplateView, format_utc_date,
};
use crate::state::{StatePrompt, StateRules};

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

/// Renders the system prompt. A prompt that shows the state becomes a part of its rules, unless a recorded one is.
pub(super) fn render_instructions(
    spec: &AgentSpec,
    order: &Order,
    (documents, tools): (&DocumentList, &[String]),
    built_in: Option<Template>,
    state: Option<&mut StateRules>,
    sections: &str,
) -> Result<String, TaskError> {
    let instructions =
        built_in.as_ref().filter(|_| spec.instructions.is_empty()).unwrap_or(&spec.instructions);
    let planning = TaskId::new("planning").expect("a valid name");
    let id = match &order.assignment {
        Assignment::Task { task, .. } | Assignment::Review { task, .. } => task,
        Assignment::Planning { .. } => &planning,
    };
    let task = TaskTemplateView {
        id,
        objective: &order.objective,
        feedback: &order.feedback,
        is_final: order.is_final,
    };
    let view = TemplateView {
        run: RunTemplateView { id: &order.run, objective: &order.mission },
        task,
        parameters: &order.parameters,
        documents,
        tools,
        today: format_utc_date(Timestamp::now()),
        state: state.as_deref().map(StateRules::default_values).unwrap_or_default(),
        phase: state.as_deref().map_or("", StateRules::first_phase).to_owned(),
    };
    let rendered = instructions.render(&view);
    if let Some(rules) = state
        && !instructions.state_names().is_empty()
    {
        let view = serde_json::to_value(&view).expect("a view holds only texts and JSON values");
        let (template, sections) = (instructions.clone(), sections.to_owned());
        rules.prompt.get_or_insert_with(|| StatePrompt { template, view, sections });
    }
    rendered
        .map_err(|error| invalid_order_error(&format!("the instructions of {}: {error}", spec.about.name)))
}

/// Joins the sections of a prompt that follow its instructions, each after an empty line.
pub(super) fn format_sections(sections: [Option<String>; 2]) -> String {
    sections.into_iter().flatten().map(|section| format!("\n\n{section}")).collect()
}

/// The most tokens of one reply.
pub(super) fn choose_max_output_tokens(answer: AnswerForm, ability: ModelAbility) -> u32 {
    match (answer, ability) {
        (AnswerForm::Findings, ModelAbility::Small) => findings::MAX_OUTPUT_TOKENS_SMALL,
        (AnswerForm::Report, ModelAbility::Small) => report::MAX_OUTPUT_TOKENS_SMALL,
        (AnswerForm::Text | AnswerForm::Data, ModelAbility::Small) => roles::MAX_OUTPUT_TOKENS_SMALL,
        (AnswerForm::Findings, ModelAbility::Strong) => findings::MAX_OUTPUT_TOKENS,
        (AnswerForm::Report | AnswerForm::Text | AnswerForm::Data, ModelAbility::Strong)
        | (AnswerForm::Plan, _) => roles::MAX_OUTPUT_TOKENS,
    }
}
