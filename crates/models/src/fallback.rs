//! A model with fallbacks: if one is unavailable, the next one is tried. It decides which errors mean "unavailable"; an
//! error caused by the request itself is returned without trying another model.

use std::sync::Arc;

use futures::FutureExt;
use tracing::warn;

use crate::model::{
    Delta, DeltaListener, Model, ModelAbility, ModelError, ReplyFuture, ReplyResult, Request,
};

struct FallbackChain(Vec<Arc<dyn Model>>);

pub fn with_fallbacks(first: Arc<dyn Model>, others: Vec<Arc<dyn Model>>) -> Arc<dyn Model> {
    if others.is_empty() { first } else { Arc::new(FallbackChain([vec![first], others].concat())) }
}

impl Model for FallbackChain {
    fn name(&self) -> &str {
        self.0[0].name()
    }

    fn has_provider(&self) -> bool {
        self.0.iter().any(|model| model.has_provider())
    }

    fn ability(&self) -> ModelAbility {
        self.0[0].ability()
    }

    /// The smallest one: the conversation must fit whichever model replies.
    fn context_window(&self) -> Option<u64> {
        self.0.iter().filter_map(|model| model.context_window()).min()
    }

    fn uncounted_cost(&self) -> Option<&str> {
        self.0.iter().find_map(|model| model.uncounted_cost())
    }

    fn reply<'a>(&'a self, request: &'a Request, listener: &'a dyn DeltaListener) -> ReplyFuture<'a> {
        self.try_in_order(request, listener).boxed()
    }
}

impl FallbackChain {
    async fn try_in_order(&self, request: &Request, listener: &dyn DeltaListener) -> ReplyResult {
        let mut errors: Vec<(&str, ModelError)> = Vec::new();
        for model in &self.0 {
            if let Some((failed, error)) = errors.last() {
                warn!(model = failed, fallback = model.name(), %error, "model unavailable; trying the next fallback");
                listener.on_delta(Delta::Restart);
            }
            match model.reply(request, listener).await {
                Err(error) if is_unavailable(&error) => errors.push((model.name(), error)),
                Ok(mut reply) if !errors.is_empty() => {
                    reply.model.get_or_insert_with(|| model.name().to_owned());
                    return Ok(reply);
                }
                outcome => return outcome,
            }
        }
        Err(all_models_failed_error(&errors))
    }
}

/// Returns `true` if an error means that the model is unavailable rather than that it rejected the request.
fn is_unavailable(error: &ModelError) -> bool {
    error.is_transient() || error.is_refusal()
}

/// Combines the errors of all models. The result is transient if one of the errors is.
fn all_models_failed_error(errors: &[(&str, ModelError)]) -> ModelError {
    let messages: Vec<String> = errors.iter().map(|(model, error)| format!("{model}: {error}")).collect();
    let message = format!("all {} models are unavailable; {}", errors.len(), messages.join("; "));
    let transient = || errors.iter().map(|(_, error)| error).filter(|error| error.is_transient());
    let is_quota = |(_, error): &(&str, ModelError)| matches!(error, ModelError::Quota { .. });
    if transient().all(|error| error.retry_after().is_some())
        && let Some(retry_after) = transient().filter_map(ModelError::retry_after).min()
    {
        ModelError::Paused { retry_after: Some(retry_after), message }
    } else if transient().next().is_some() {
        ModelError::Overloaded { retry_after: None, message }
    } else if errors.iter().all(is_quota) {
        ModelError::Quota { message }
    } else {
        ModelError::Authentication { message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_availability_lead_to_a_fallback() {
        let refused = |message: &str| ModelError::BadRequest { message: message.into() };
        let message = String::new;
        let cases = [
            (ModelError::RateLimited { retry_after: None, message: message() }, true),
            (ModelError::Overloaded { retry_after: None, message: message() }, true),
            (ModelError::Truncated { message: message() }, true),
            (ModelError::Timeout { after: std::time::Duration::ZERO }, true),
            (ModelError::Connection { message: message() }, true),
            (ModelError::Authentication { message: message() }, true),
            (ModelError::Quota { message: message() }, true),
            (ModelError::Paused { retry_after: None, message: message() }, true),
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
            assert_eq!(is_unavailable(&error), absence, "{error}");
        }
    }
}
