//! The reason why a model stopped, as providers write it. There is one table for all APIs, since gateways pass on the words of
//! other providers. An unknown reason counts as what it most resembles, and is logged once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use tracing::warn;

use super::json::read_text_at;
use crate::model::FinishReason;

/// The maximum number of unknown reasons that are logged, so that a server can't fill the log or the memory.
const MAX_LOGGED: usize = 200;

static LOGGED: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Unfinished,
    Finished(FinishReason),
    /// The reply reached the end of the context window: the same error as a conversation that is too long.
    WindowExceeded,
    Interrupted,
}

use FinishReason::{ContentFilter, Length, Stop, ToolCalls};
use Meaning::{Finished, Interrupted, Unfinished, WindowExceeded};

/// The known reasons, in lower case and without punctuation. Gemini's and Bedrock's reasons for a call that the model wrote wrongly
/// are among those of a complete reply: the call is left out.
const KNOWN: [(Meaning, &str); 7] = [
    (Unfinished, "null none finishreasonunspecified"),
    (
        Finished(Stop),
        "stop endturn stopsequence eos eostoken complete completed done pauseturn load unload language other \
         malformedfunctioncall unexpectedtoolcall malformedmodeloutput malformedtooluse",
    ),
    (Finished(ToolCalls), "toolcalls toolcall functioncall tooluse"),
    (Finished(Length), "length maxtokens modellength maxoutputtokens maxcompletiontokens incomplete"),
    (
        Finished(ContentFilter),
        "contentfilter contentfiltered refusal safety sensitive guardrailintervened recitation blocklist \
         prohibitedcontent spii imagesafety",
    ),
    (WindowExceeded, "modelcontextwindowexceeded contextwindowexceeded contextlengthexceeded"),
    (Interrupted, "error failed abort aborted cancelled insufficientsystemresource"),
];

/// Parts of words that an unknown reason may have, in lower case. The first one found decides: a filter and an interruption
/// also say which part of the reply they concern.
const RESEMBLANCES: [(Meaning, &str); 4] = [
    (
        Finished(ContentFilter),
        "filter safety block prohibit refus guard policy moderat sensitiv violat censor harm",
    ),
    (Interrupted, "error fail abort cancel interrupt disconnect timeout overload insufficient"),
    (Finished(Length), "length token limit max trunc incomplete partial budget cutoff"),
    (Finished(ToolCalls), "tool function"),
];

/// Parses the reason in an event of a model; `None` if the model is still generating.
pub(super) fn parse_finish_reason(model: &str, reason: &str) -> Result<Option<FinishReason>, Value> {
    let word: String = reason.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    let is_known = |(_, words): &&(Meaning, &str)| words.split(' ').any(|known| known == word);
    let meaning = match KNOWN.iter().find(is_known) {
        _ if word.is_empty() => Unfinished,
        Some((meaning, _)) => *meaning,
        None => interpret_unknown_reason(model, reason, &word),
    };
    match meaning {
        Unfinished => Ok(None),
        Finished(finish) => Ok(Some(finish)),
        WindowExceeded => {
            let message = "the reply reached the end of the model's context window";
            Err(json!({"error": {"type": "context_window_exceeded", "message": message}}))
        }
        Interrupted => {
            let message = format!("the provider ended the reply early: {reason}");
            Err(json!({"error": {"type": "server_error", "message": message}}))
        }
    }
}

/// Parses the reason for which a response of the Responses API is incomplete.
pub(super) fn parse_incomplete_reason(model: &str, response: &Value) -> Result<FinishReason, Value> {
    let reason = read_text_at(response, "/incomplete_details/reason");
    Ok(match parse_finish_reason(model, reason)? {
        Some(ContentFilter) => ContentFilter,
        Some(Length | Stop | ToolCalls) | None => Length,
    })
}

fn interpret_unknown_reason(model: &str, reason: &str, word: &str) -> Meaning {
    let resembles = |(_, parts): &&(Meaning, &str)| parts.split(' ').any(|part| word.contains(part));
    let meaning = RESEMBLANCES.iter().find(resembles).map_or(Finished(Stop), |(meaning, _)| *meaning);
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    if logged.len() < MAX_LOGGED && logged.insert((model.to_owned(), reason.to_owned())) {
        warn!(model, reason, ?meaning, "unknown finish reason");
    }
    meaning
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_do_not_depend_on_case_and_punctuation() {
        for (reason, expected) in [
            ("LENGTH", Length),
            ("MAX_TOKENS", Length),
            ("maxTokens", Length),
            ("max-output-tokens", Length),
            ("End_Turn", Stop),
            ("STOP", Stop),
            ("Tool_Calls", ToolCalls),
            ("toolUse", ToolCalls),
            ("CONTENT_FILTER", ContentFilter),
            ("Refusal", ContentFilter),
        ] {
            assert_eq!(parse_finish_reason("p:m", reason), Ok(Some(expected)), "{reason}");
        }
        for unfinished in ["", "null", "FINISH_REASON_UNSPECIFIED"] {
            assert_eq!(parse_finish_reason("p:m", unfinished), Ok(None), "{unfinished}");
        }
    }

    #[test]
    fn unknown_reasons_count_as_what_they_most_resemble() {
        for (reason, expected) in [
            ("output_token_limit", Length),
            ("TRUNCATED_BY_SERVER", Length),
            ("thinking_budget_exhausted", Length),
            ("blocked_by_policy", ContentFilter),
            ("safety_max_severity", ContentFilter),
            ("parallel_tools", ToolCalls),
            ("natural", Stop),
        ] {
            assert_eq!(parse_finish_reason("p:m", reason), Ok(Some(expected)), "{reason}");
        }
        for interrupted in ["error", "abort", "network_error", "tool_timeout", "Cancelled by operator"] {
            let error = parse_finish_reason("p:m", interrupted).unwrap_err();
            assert_eq!(error["error"]["type"], "server_error", "{interrupted}");
        }
        let window = parse_finish_reason("p:m", "model_context_window_exceeded").unwrap_err();
        assert_eq!(window["error"]["type"], "context_window_exceeded");
    }

    #[test]
    fn an_unknown_reason_is_logged_once_per_model() {
        let is_logged = |model: &str| {
            let logged = LOGGED.lock().unwrap();
            logged.iter().filter(|(of, _)| of == model).count()
        };
        for _ in 0..3 {
            let _ = parse_finish_reason("once:m", "natural");
            let _ = parse_finish_reason("once:m", "stop");
        }
        assert_eq!(is_logged("once:m"), 1);
        assert_eq!(is_logged("known:m"), 0);
    }
}
