//! The check of the model that embeds documents and queries: it embeds a text.

use std::time::{Duration, Instant};

use millrace_agent::model::{ModelFactory, Request, open_model};
use millrace_agent::session::ModelPreferences;
use millrace_protocol::ids::Capability;
use millrace_protocol::subject::EMBEDDINGS;
use millrace_views::CheckResult;

const NAME: &str = "embeddings";
const ADVICE: &str =
    "check its server, its name and its key: until it answers, documents are searched by words alone";
/// A search waits no longer for the vector of its query.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Embeds a text with the model that `--model embeddings=…` names. `None` if it names none, or one that can't be opened, which the check
/// of all models reports.
pub(super) async fn check_embeddings(texts: &[String]) -> Option<CheckResult> {
    let preferences = ModelPreferences::parse(texts.iter().map(String::as_str)).ok()?;
    let selection = preferences.by_capability.get(&Capability::new(EMBEDDINGS).expect("a valid name"))?;
    if !preferences.selections().any(|named| named == selection) {
        return Some(CheckResult::new_ok(NAME, "none: documents are searched by words alone"));
    }
    let model = open_model(selection, &ModelFactory::default()).ok()?;
    let (name, began) = (model.name(), Instant::now());
    let request = Request::for_embeddings(["How do these licences treat patents?"]);
    let replied = tokio::time::timeout(TIMEOUT, model.reply(&request, &())).await;
    let problem = match replied {
        Ok(Ok(reply)) => match reply.vectors.first() {
            Some(vector) => {
                let (dimensions, took) = (vector.len(), began.elapsed().as_millis());
                return Some(CheckResult::new_ok(
                    NAME,
                    format!("{name} gives vectors of {dimensions} dimensions ({took} ms for a question)"),
                ));
            }
            None => format!("{name} gave no vectors: it is no model for embeddings"),
        },
        Ok(Err(error)) => format!("{name} gave no vectors: {error}"),
        Err(_) => format!("{name} gave no vectors within {} s", TIMEOUT.as_secs()),
    };
    Some(CheckResult::new_warning(NAME, problem, ADVICE))
}
