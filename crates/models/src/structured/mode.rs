//! The choice of the output mode for a request.

use crate::model::Request;
use crate::selection::StructuredMode;
use crate::wire::NativeOutputSupport;
use crate::wire::schema::to_strict_schema;

/// The way in which tool calls and the answer are requested; see the table of the parent module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StructuredOutputMode {
    /// The request is sent as it is: the answer is plain text.
    Plain,
    /// The request is sent as it is: the wire passes the schema to the provider.
    Native,
    /// An additional tool takes the answer.
    Submit,
    /// One JSON value holds either tool calls or the answer.
    Envelope,
    /// The schema is part of the prompt.
    Prompt,
}

/// The support of a model for tools and schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputSupport {
    /// The native support of its wire.
    pub native: NativeOutputSupport,
    /// `true` if the server enforces any schema by a grammar and runs small models, whose native tool calls are
    /// unreliable (llama.cpp, Ollama, LM Studio, vLLM).
    pub grammar: bool,
}

impl StructuredOutputMode {
    /// Returns the requested mode if the model supports it, or the best supported one.
    #[must_use]
    pub fn choose_mode(request: &Request, requested: StructuredMode, support: OutputSupport) -> Self {
        match (requested, &request.answer) {
            (_, None) if request.tools.is_empty() || support.native.tools => Self::Plain,
            (_, None) => Self::Envelope,
            (StructuredMode::Auto, Some(answer)) => {
                let is_enforceable = support.native.structured
                    && (support.grammar || to_strict_schema(&answer.schema).is_some());
                Self::choose_enforced_mode(!request.tools.is_empty(), is_enforceable, support)
            }
            (StructuredMode::Native, Some(_)) if support.native.structured => Self::Native,
            (StructuredMode::Native | StructuredMode::Tool, Some(_)) if support.native.tools => Self::Submit,
            (StructuredMode::Envelope, Some(_)) => Self::Envelope,
            (StructuredMode::Native | StructuredMode::Tool | StructuredMode::Prompt, Some(_)) => {
                Self::choose_mode_without_schema(!request.tools.is_empty(), support)
            }
        }
    }

    /// Returns the best mode. `is_enforceable`: the wire can enforce the answer's schema.
    fn choose_enforced_mode(with_tools: bool, is_enforceable: bool, support: OutputSupport) -> Self {
        let native = is_enforceable && (!with_tools || support.native.tools_with_structured);
        match (native, with_tools) {
            (true, _) => Self::Native,
            (false, true) if support.grammar && support.native.structured => Self::Envelope,
            (false, _) if support.native.tools => Self::Submit,
            (false, _) => Self::choose_mode_without_schema(with_tools, support),
        }
    }

    /// Without native tools, tool calls must be requested by the prompt as well.
    fn choose_mode_without_schema(with_tools: bool, support: OutputSupport) -> Self {
        if with_tools && !support.native.tools { Self::Envelope } else { Self::Prompt }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{AnswerSchema, ToolSpec};

    fn build_request(tools: bool, answer: Option<serde_json::Value>) -> Request {
        let tool = || ToolSpec {
            name: "t".into(),
            description: "".into(),
            schema: json!({"type": "object"}).into(),
        };
        Request {
            system: String::new(),
            messages: Vec::new(),
            tools: tools.then(tool).into_iter().collect(),
            answer: answer.map(|schema| AnswerSchema { name: "a".into(), schema }),
            max_output_tokens: 1,
        }
    }

    fn output_support(structured: bool, tools: bool, both: bool, grammar: bool) -> OutputSupport {
        OutputSupport {
            native: NativeOutputSupport { structured, tools, tools_with_structured: both },
            grammar,
        }
    }

    #[test]
    fn the_best_supported_mode_is_chosen() {
        let closed = || Some(json!({"type": "object", "properties": {"x": {"type": "string"}}}));
        let open = || Some(json!({"type": "object", "additionalProperties": {"type": "string"}}));
        let (hosted, both, local) = (
            output_support(true, true, false, false),
            output_support(true, true, true, false),
            output_support(true, true, false, true),
        );
        let (schema_only, nothing) =
            (output_support(true, false, false, true), output_support(false, false, false, false));
        let auto = StructuredMode::Auto;
        let cases = [
            ("text", build_request(false, None), auto, hosted, StructuredOutputMode::Plain),
            ("text with tools", build_request(true, None), auto, local, StructuredOutputMode::Plain),
            (
                "text with tools, no native tools",
                build_request(true, None),
                auto,
                schema_only,
                StructuredOutputMode::Envelope,
            ),
            ("answer", build_request(false, closed()), auto, hosted, StructuredOutputMode::Native),
            (
                "answer that can't be strict",
                build_request(false, open()),
                auto,
                hosted,
                StructuredOutputMode::Submit,
            ),
            ("the same, by grammar", build_request(false, open()), auto, local, StructuredOutputMode::Native),
            ("both, in one request", build_request(true, closed()), auto, both, StructuredOutputMode::Native),
            (
                "both, not in one request",
                build_request(true, closed()),
                auto,
                hosted,
                StructuredOutputMode::Submit,
            ),
            ("both, not strict", build_request(true, open()), auto, both, StructuredOutputMode::Submit),
            ("both, small model", build_request(true, closed()), auto, local, StructuredOutputMode::Envelope),
            (
                "both, no tools",
                build_request(true, closed()),
                auto,
                schema_only,
                StructuredOutputMode::Envelope,
            ),
            (
                "answer, nothing native",
                build_request(false, closed()),
                auto,
                nothing,
                StructuredOutputMode::Prompt,
            ),
            (
                "both, nothing native",
                build_request(true, closed()),
                auto,
                nothing,
                StructuredOutputMode::Envelope,
            ),
            (
                "requested native",
                build_request(true, closed()),
                StructuredMode::Native,
                local,
                StructuredOutputMode::Native,
            ),
            (
                "wanted native, has none",
                build_request(false, closed()),
                StructuredMode::Native,
                nothing,
                StructuredOutputMode::Prompt,
            ),
            (
                "requested tool",
                build_request(false, closed()),
                StructuredMode::Tool,
                local,
                StructuredOutputMode::Submit,
            ),
            (
                "wanted tool, has none",
                build_request(true, closed()),
                StructuredMode::Tool,
                schema_only,
                StructuredOutputMode::Envelope,
            ),
            (
                "wanted envelope",
                build_request(false, closed()),
                StructuredMode::Envelope,
                both,
                StructuredOutputMode::Envelope,
            ),
            (
                "requested prompt",
                build_request(true, closed()),
                StructuredMode::Prompt,
                both,
                StructuredOutputMode::Prompt,
            ),
            (
                "requested prompt, no answer",
                build_request(true, None),
                StructuredMode::Prompt,
                both,
                StructuredOutputMode::Plain,
            ),
        ];
        for (case, request, requested, support, mode) in cases {
            assert_eq!(StructuredOutputMode::choose_mode(&request, requested, support), mode, "{case}");
        }
    }
}
