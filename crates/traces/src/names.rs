//! The names of spans and attributes. Those of the GenAI semantic conventions are still in development; this file is the only
//! place that knows their versions.

/// The version of the GenAI semantic conventions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Convention {
    /// The names of semantic conventions 1.41, which viewers know.
    #[default]
    Established,
    /// The names of the GenAI conventions in their own repository.
    Latest,
}

/// The value of `OTEL_SEMCONV_STABILITY_OPT_IN` that selects [`Convention::Latest`].
pub const LATEST_OPT_IN: &str = "gen_ai_latest_experimental";

impl Convention {
    /// Returns the convention that a value of `OTEL_SEMCONV_STABILITY_OPT_IN` selects: a list of names with commas.
    #[must_use]
    pub fn from_opt_in(value: Option<&str>) -> Self {
        let names = value.unwrap_or_default().split(',').map(str::trim);
        if names.into_iter().any(|name| name == LATEST_OPT_IN) { Self::Latest } else { Self::Established }
    }

    /// Input tokens that were written to the provider's cache.
    #[must_use]
    pub fn cache_write_tokens(self) -> &'static str {
        match self {
            Self::Established => "gen_ai.usage.cache_creation.input_tokens",
            Self::Latest => "gen_ai.usage.cache_write.input_tokens",
        }
    }
}

/// Operations: values of [`OPERATION`], and the first words of the names of spans.
pub mod operation {
    pub const INVOKE_WORKFLOW: &str = "invoke_workflow";
    pub const PLAN: &str = "plan";
    /// An attempt at a task, or a review.
    pub const INVOKE_AGENT: &str = "invoke_agent";
    pub const CHAT: &str = "chat";
    pub const EXECUTE_TOOL: &str = "execute_tool";
}

pub const OPERATION: &str = "gen_ai.operation.name";
pub const PROVIDER: &str = "gen_ai.provider.name";
pub const REQUEST_MODEL: &str = "gen_ai.request.model";
pub const RESPONSE_MODEL: &str = "gen_ai.response.model";
pub const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
/// Input tokens, those of the cache included.
pub const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
/// Input tokens that were read from the provider's cache.
pub const CACHE_READ_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
pub const REASONING_TOKENS: &str = "gen_ai.usage.reasoning.output_tokens";
/// The conversation: the run.
pub const CONVERSATION: &str = "gen_ai.conversation.id";
/// The agent: the capability.
pub const AGENT_NAME: &str = "gen_ai.agent.name";
/// The version of the agent: that of its capability file.
pub const AGENT_VERSION: &str = "gen_ai.agent.version";
pub const TOOL_NAME: &str = "gen_ai.tool.name";
pub const TOOL_TYPE: &str = "gen_ai.tool.type";
/// The model's id for a call.
pub const TOOL_CALL_ID: &str = "gen_ai.tool.call.id";
/// The arguments of a call. Content.
pub const TOOL_CALL_ARGUMENTS: &str = "gen_ai.tool.call.arguments";
/// The result of a call. Content.
pub const TOOL_CALL_RESULT: &str = "gen_ai.tool.call.result";
/// The messages that a request added to the conversation, as JSON. Content.
pub const INPUT_MESSAGES: &str = "gen_ai.input.messages";
/// The reply, as JSON. Content.
pub const OUTPUT_MESSAGES: &str = "gen_ai.output.messages";
pub const ERROR_TYPE: &str = "error.type";

/// Our own names.
pub mod own {
    pub const RUN: &str = "millrace.run";
    /// The number of the run's trace, from 1.
    pub const TRACE_NUMBER: &str = "millrace.trace";
    pub const TASK: &str = "millrace.task";
    /// The attempt, from 1.
    pub const ATTEMPT: &str = "millrace.attempt";
    /// The turn of the planner, from 1.
    pub const PLANNER_TURN: &str = "millrace.planner.turn";
    /// The turn of the agent's conversation, from 0.
    pub const TURN: &str = "millrace.turn";
    /// The judge of a panel, from 0.
    pub const JUDGE: &str = "millrace.judge";
    pub const CAPABILITY: &str = "millrace.capability";
    /// The worker, critic or planner.
    pub const WORKER: &str = "millrace.worker";
    /// The program of the worker, with its version.
    pub const PROGRAM: &str = "millrace.program";
    /// The sequence, in the lane of the run, of the message that completed the span.
    pub const SEQUENCE: &str = "millrace.sequence";
    pub const MODE: &str = "millrace.mode";
    /// The labels of the run, `NAME=VALUE`.
    pub const LABELS: &str = "millrace.labels";
    /// The objective of the run or the task. Content.
    pub const OBJECTIVE: &str = "millrace.objective";
    /// How a leg, a review, a wait or a run ended.
    pub const OUTCOME: &str = "millrace.outcome";
    /// The result in a sentence, the reasoning of a verdict, or the text of an answer. Content.
    pub const SUMMARY: &str = "millrace.summary";
    /// The name of a step of a program.
    pub const STEP: &str = "millrace.step";
    pub const WAIT: &str = "millrace.wait";
    pub const QUESTION: &str = "millrace.question";
    /// The text of a question. Content.
    pub const QUESTION_TEXT: &str = "millrace.question.text";
    /// The name of an event. Content, since programs choose it.
    pub const EVENT: &str = "millrace.event";
    pub const ROUND: &str = "millrace.question.round";
    pub const ANSWERED_BY: &str = "millrace.answered_by";
    pub const MODEL_CALLS: &str = "millrace.usage.model_calls";
    pub const TOOL_CALLS: &str = "millrace.usage.tool_calls";
    /// Input tokens of a leg or a run. Not in the GenAI name, so that viewers do not count tokens twice.
    pub const INPUT_TOKENS: &str = "millrace.usage.input_tokens";
    pub const OUTPUT_TOKENS: &str = "millrace.usage.output_tokens";
    /// The cost in US dollars, as far as prices are known.
    pub const COST: &str = "millrace.cost_usd";
    /// The tasks of the run, by state: `STATE=COUNT`.
    pub const TASKS: &str = "millrace.tasks";
    /// The duration of the run, in seconds.
    pub const DURATION: &str = "millrace.duration_s";
    /// The relation of a linked span to the span with the link.
    pub const LINK: &str = "millrace.link";
}

/// Returns the provider and the model of a full model name, with the provider's name in the conventions.
#[must_use]
pub fn split_model(full: &str) -> (&str, &str) {
    let (provider, model) = full.split_once(':').unwrap_or(("", full));
    let provider = match provider {
        "gemini" => "gcp.gemini",
        "vertex" => "gcp.vertex_ai",
        "bedrock" => "aws.bedrock",
        "azure" => "azure.ai.openai",
        "mistral" => "mistral_ai",
        "xai" => "x_ai",
        other => other,
    };
    (provider, model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opt_in_selects_the_convention() {
        for (value, expected) in [
            (None, Convention::Established),
            (Some(""), Convention::Established),
            (Some("http"), Convention::Established),
            (Some("http, gen_ai_latest_experimental"), Convention::Latest),
        ] {
            assert_eq!(Convention::from_opt_in(value), expected, "{value:?}");
        }
        assert_ne!(Convention::Latest.cache_write_tokens(), Convention::Established.cache_write_tokens());
    }

    #[test]
    fn providers_have_the_names_of_the_conventions() {
        assert_eq!(split_model("openai:gpt-5.2"), ("openai", "gpt-5.2"));
        assert_eq!(split_model("gemini:flash:latest"), ("gcp.gemini", "flash:latest"));
        assert_eq!(split_model("echo"), ("", "echo"));
    }
}
