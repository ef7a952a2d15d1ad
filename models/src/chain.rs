//! The models of a choice, one after the other: where one is not to be had, the next is asked. It owns which errors
//! that is; what a model refuses for the request's own sake is not carried to another.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tracing::warn;

use crate::model::{Delta, Model, ModelError, Reply, Request, Watch};

/// A model and those that stand in for it.
struct Chain {
    first: Arc<dyn Model>,
    others: Vec<Arc<dyn Model>>,
}

/// One model out of a model and those that stand in for it.
#[must_use]
pub fn chain(first: Arc<dyn Model>, others: Vec<Arc<dyn Model>>) -> Arc<dyn Model> {
    if others.is_empty() { first } else { Arc::new(Chain { first, others }) }
}

impl Model for Chain {
    fn name(&self) -> &str {
        self.first.name()
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        watch: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        self.ask(request, watch).boxed()
    }
}

impl Chain {
    async fn ask(&self, request: &Request, watch: &dyn Watch) -> Result<Reply, ModelError> {
        let mut errors = match self.first.reply(request, watch).await {
            Err(error) if is_absence(&error) => vec![(self.first.name(), error)],
            reply => return reply,
        };
        for model in &self.others {
            if let Some((absent, error)) = errors.last() {
                warn!(model = absent, instead = model.name(), %error, "another model is asked instead");
            }
            watch.delta(Delta::Restart);
            match model.reply(request, watch).await {
                Ok(mut reply) => {
                    reply.model.get_or_insert_with(|| model.name().to_owned());
                    return Ok(reply);
                }
                Err(error) if is_absence(&error) => errors.push((model.name(), error)),
                Err(error) => return Err(error),
            }
        }
        Err(none_answered(&errors))
    }
}

/// Whether an error says that the model is not to be had, rather than that it does not want the request.
fn is_absence(error: &ModelError) -> bool {
    match error {
        ModelError::Authentication { .. } => true,
        ModelError::BadRequest { message } => is_no_such_model(message),
        ModelError::RateLimited { .. }
        | ModelError::Overloaded { .. }
        | ModelError::Truncated { .. }
        | ModelError::Timeout { .. }
        | ModelError::Connection { .. }
        | ModelError::ContextOverflow { .. }
        | ModelError::ContentFilter { .. }
        | ModelError::Protocol { .. } => error.is_transient(),
    }
}

/// The words in which the providers say that there is no such model.
fn is_no_such_model(message: &str) -> bool {
    let message = message.to_lowercase();
    let code = ["model_not_found", "not a valid model id", "no models loaded", "failed to load model"];
    let absent = ["does not exist", "not found", "not_found", "no such", "is not available", "not supported"];
    code.iter().any(|words| message.contains(words))
        || (message.contains("model") && absent.iter().any(|words| message.contains(words)))
}

/// All errors in one: it may pass if one of them may.
fn none_answered(errors: &[(&str, ModelError)]) -> ModelError {
    let told: Vec<String> = errors.iter().map(|(model, error)| format!("{model}: {error}")).collect();
    let message = format!("none of {} models is to be had; {}", errors.len(), told.join("; "));
    if errors.iter().any(|(_, error)| error.is_transient()) {
        ModelError::Overloaded { message }
    } else {
        ModelError::Authentication { message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_reason_to_ask_another_model_is_told_from_what_is() {
        let refused = |message: &str| ModelError::BadRequest { message: message.into() };
        let message = String::new;
        let cases = [
            (ModelError::RateLimited { retry_after: None, message: message() }, true),
            (ModelError::Overloaded { message: message() }, true),
            (ModelError::Truncated { message: message() }, true),
            (ModelError::Timeout { after: std::time::Duration::ZERO }, true),
            (ModelError::Connection { message: message() }, true),
            (ModelError::Authentication { message: message() }, true),
            (refused("The model `gpt-9` does not exist or you do not have access to it."), true),
            (refused("not_found_error: model: claude-nine"), true),
            (refused("model 'x' not found, try pulling it first"), true),
            (refused("foo/bar is not a valid model ID"), true),
            (refused("Invalid schema for response_format 'plan'"), false),
            (refused("messages: at least one message is required"), false),
            (ModelError::ContextOverflow { message: message() }, false),
            (ModelError::ContentFilter { message: message() }, false),
            (ModelError::Protocol { message: message() }, false),
        ];
        for (error, absence) in cases {
            assert_eq!(is_absence(&error), absence, "{error}");
        }
    }
}
