//! Which form a request is best asked in. It owns the order of preference and nothing else.

use crate::choice::Structured;
use crate::model::Request;
use crate::wire::Native;
use crate::wire::schema::strict;

/// How a model is asked for calls and an answer; see the table of the module above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As the request stands: there is no form to the answer.
    Plain,
    /// As the request stands: the wire asks for the form.
    Native,
    /// A tool takes the answer.
    Submit,
    /// One JSON value is either calls or the answer.
    Envelope,
    /// The form is asked for in words.
    Prompt,
}

/// What a model can be relied on for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// What its wire can do.
    pub native: Native,
    /// Whether the server holds a small model to a schema with a grammar, whatever the schema says, and whether such a
    /// model had better not be trusted with the provider's tool calls (llama.cpp, Ollama, LM Studio, vLLM).
    pub grammar: bool,
}

impl Form {
    /// The best form for a request, where none is wanted; else the one that is wanted, as far as the model has it.
    #[must_use]
    pub fn of(request: &Request, wanted: Structured, can: Abilities) -> Self {
        match (wanted, &request.answer) {
            (_, None) if request.tools.is_empty() || can.native.tools => Self::Plain,
            (_, None) => Self::Envelope,
            (Structured::Auto, Some(answer)) => {
                let fits = can.native.structured && (can.grammar || strict(&answer.schema).is_some());
                Self::best(!request.tools.is_empty(), fits, can)
            }
            (Structured::Native, Some(_)) if can.native.structured => Self::Native,
            (Structured::Native | Structured::Tool, Some(_)) if can.native.tools => Self::Submit,
            (Structured::Envelope, Some(_)) => Self::Envelope,
            (Structured::Native | Structured::Tool | Structured::Prompt, Some(_)) => {
                Self::in_words(!request.tools.is_empty(), can)
            }
        }
    }

    /// `fits`: whether the wire can hold the model to the answer's schema.
    fn best(with_tools: bool, fits: bool, can: Abilities) -> Self {
        let native = fits && (!with_tools || can.native.tools_with_structured);
        match (native, with_tools) {
            (true, _) => Self::Native,
            (false, true) if can.grammar && can.native.structured => Self::Envelope,
            (false, _) if can.native.tools => Self::Submit,
            (false, _) => Self::in_words(with_tools, can),
        }
    }

    /// Without the provider's tools calls have to be asked for in words as well.
    fn in_words(with_tools: bool, can: Abilities) -> Self {
        if with_tools && !can.native.tools { Self::Envelope } else { Self::Prompt }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::{AnswerSchema, ToolSpec};

    fn request(tools: bool, answer: Option<serde_json::Value>) -> Request {
        let tool =
            || ToolSpec { name: "t".into(), description: String::new(), schema: json!({"type": "object"}) };
        Request {
            system: String::new(),
            messages: Vec::new(),
            tools: tools.then(tool).into_iter().collect(),
            answer: answer.map(|schema| AnswerSchema { name: "a".into(), schema }),
            max_output_tokens: 1,
        }
    }

    fn can(structured: bool, tools: bool, both: bool, grammar: bool) -> Abilities {
        Abilities { native: Native { structured, tools, tools_with_structured: both }, grammar }
    }

    #[test]
    fn every_model_is_asked_in_the_best_form_that_it_has() {
        let closed = || Some(json!({"type": "object", "properties": {"x": {"type": "string"}}}));
        let open = || Some(json!({"type": "object", "additionalProperties": {"type": "string"}}));
        let (hosted, both, local) =
            (can(true, true, false, false), can(true, true, true, false), can(true, true, false, true));
        let (bare, dumb) = (can(true, false, false, true), can(false, false, false, false));
        let auto = Structured::Auto;
        let cases = [
            ("text", request(false, None), auto, hosted, Form::Plain),
            ("text with tools", request(true, None), auto, local, Form::Plain),
            ("text with tools, none native", request(true, None), auto, bare, Form::Envelope),
            ("answer", request(false, closed()), auto, hosted, Form::Native),
            ("answer that can't be strict", request(false, open()), auto, hosted, Form::Submit),
            ("the same, by grammar", request(false, open()), auto, local, Form::Native),
            ("both, together", request(true, closed()), auto, both, Form::Native),
            ("both, apart", request(true, closed()), auto, hosted, Form::Submit),
            ("both, not strict", request(true, open()), auto, both, Form::Submit),
            ("both, small model", request(true, closed()), auto, local, Form::Envelope),
            ("both, no tools", request(true, closed()), auto, bare, Form::Envelope),
            ("answer, nothing native", request(false, closed()), auto, dumb, Form::Prompt),
            ("both, nothing native", request(true, closed()), auto, dumb, Form::Envelope),
            ("wanted native", request(true, closed()), Structured::Native, local, Form::Native),
            ("wanted native, has none", request(false, closed()), Structured::Native, dumb, Form::Prompt),
            ("wanted tool", request(false, closed()), Structured::Tool, local, Form::Submit),
            ("wanted tool, has none", request(true, closed()), Structured::Tool, bare, Form::Envelope),
            ("wanted envelope", request(false, closed()), Structured::Envelope, both, Form::Envelope),
            ("wanted words", request(true, closed()), Structured::Prompt, both, Form::Prompt),
            ("wanted words, no answer", request(true, None), Structured::Prompt, both, Form::Plain),
        ];
        for (case, request, wanted, can, form) in cases {
            assert_eq!(Form::of(&request, wanted, can), form, "{case}");
        }
    }
}
