//! The ceiling: the facts that the model states when it gets the documents that have the answer in one plain prompt. It
//! calls the model from this process, without a run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_agent::corpus::Corpus;
use millrace_agent::model::{Message, Model, ModelError, ModelFactory, ModelSelection, Request, open_model};
use millrace_agent::roles::RESEARCH;
use millrace_models::provider::default_model_selection;

use super::cluster::SampleEnd;
use super::input::file::{Configuration, Objective};
use super::invention::find_unmarked_numbers;
use super::store::SampleRecord;
use crate::exit::CommandError;
use crate::submission::parse_model_preferences;

/// The maximum number of tokens of an answer.
const MAX_OUTPUT_TOKENS: u32 = 1_000;

const INSTRUCTIONS: &str = "Answer the question from the documents below. Use only the documents. Answer in a few sentences. \
                            If the documents do not contain the answer, say that they do not.";

/// Opens the model that answers alone: the default model of a configuration, or else that of research. `None` if it is no
/// language model.
pub fn open_ceiling_model(
    configuration: &Configuration,
    call_timeout: Option<Duration>,
) -> Result<Option<Arc<dyn Model>>, CommandError> {
    let preferences = parse_model_preferences(&configuration.models)?;
    let of_research =
        || preferences.by_capability.iter().find(|(name, _)| name.as_str() == RESEARCH).map(|(_, one)| one);
    let chosen = preferences.default.as_ref().or_else(of_research).cloned();
    let chosen = chosen.or_else(|| default_model_selection(&|name| std::env::var(name).ok()));
    let Some(chosen) = chosen.filter(|chosen| !is_built_in(chosen)) else { return Ok(None) };
    let factory = ModelFactory { call_timeout, ..ModelFactory::default() };
    open_model(&chosen, &factory).map(Some).map_err(CommandError::unusable_environment)
}

fn is_built_in(selection: &ModelSelection) -> bool {
    selection.models.iter().any(|model| model.name.starts_with("builtin:"))
}

pub async fn measure_ceiling(
    model: &dyn Model,
    objective: &Objective,
    corpus: &Corpus,
    timeout: Duration,
) -> SampleEnd {
    let request = Request {
        system: INSTRUCTIONS.into(),
        messages: vec![Message::User { text: format_prompt(objective, corpus) }],
        tools: Vec::new(),
        answer: None,
        max_output_tokens: MAX_OUTPUT_TOKENS,
        ..Request::default()
    };
    let started = Instant::now();
    let reply = tokio::time::timeout(timeout, model.reply(&request, &())).await;
    let elapsed = started.elapsed();
    let (answer, mut usage, detail) = match reply {
        Ok(Ok(reply)) => (Some(reply.text), reply.usage, String::new()),
        Ok(Err(error)) if is_fault_of_environment(&error) => return SampleEnd::Unmeasured(error.to_string()),
        Ok(Err(error)) => (None, Default::default(), error.to_string()),
        Err(_) => (None, Default::default(), format!("no reply within {timeout:?}")),
    };
    usage.model_calls = 1;
    let invented = answer.as_deref().map(|answer| find_unmarked_numbers(answer, &[], objective, corpus));
    let record = SampleRecord::of_model(answer, detail, usage, elapsed);
    SampleEnd::Finished(SampleRecord { invented: invented.unwrap_or_default(), ..record })
}

/// `true` if an error tells nothing about the model: a limit, a wrong key, a provider that does not answer.
pub fn is_fault_of_environment(error: &ModelError) -> bool {
    error.is_refusal() || error.is_transient()
}

fn format_prompt(objective: &Objective, corpus: &Corpus) -> String {
    let named = objective.documents.iter().filter_map(|path| corpus.find_document(path));
    let documents = named.map(|document| (document.path.as_str(), document.text()));
    let passage = objective.documents.first().zip(objective.passage.as_deref());
    let texts: Vec<(&str, &str)> = match passage {
        Some((path, passage)) => vec![(path, passage)],
        None => documents.collect(),
    };
    let texts: Vec<String> = texts
        .into_iter()
        .map(|(path, text)| format!("<document name={path:?}>\n{}\n</document>", text.trim_end()))
        .collect();
    format!("{}\n\nQuestion: {}", texts.join("\n\n"), objective.text)
}
