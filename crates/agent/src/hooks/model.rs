//! The model calls that hooks see.

use std::borrow::Cow;

use super::{AttemptHooks, HookEvent, HookPoint, describe_refusal};
use crate::model::{Delta, DeltaListener, Model, ModelError, ProviderDeadline, Reply, Request};

impl AttemptHooks {
    /// Returns the reply of a model to a request as these hooks leave both.
    pub async fn reply(
        &self,
        model: &dyn Model,
        request: &Request,
        listener: &dyn DeltaListener,
    ) -> Result<Reply, ModelError> {
        let mut request = Cow::Borrowed(request);
        for hook in self.at_point(HookPoint::BeforeModel) {
            let event = HookEvent::BeforeModel { model: model.name(), request: request.to_mut() };
            let refusal = |refusal| refuse_model_call(&describe_refusal(hook, &refusal));
            hook.call(&self.context, event).await.map_err(refusal)?;
        }
        if !self.has_point(HookPoint::AfterModel) {
            return model.reply(&request, listener).await;
        }
        let mut reply = model.reply(&request, &HiddenText(listener)).await?;
        let original = reply.clone();
        for hook in self.at_point(HookPoint::AfterModel) {
            let event = HookEvent::AfterModel { model: model.name(), reply: &mut reply };
            let refusal = |refusal| refuse_model_call(&describe_refusal(hook, &refusal));
            hook.call(&self.context, event).await.map_err(refusal)?;
        }
        if reply.text != original.text || reply.calls != original.calls {
            // It holds the original reply.
            reply.provider_state = None;
        }
        Ok(reply)
    }
}

fn refuse_model_call(message: &str) -> ModelError {
    ModelError::ContentFilter { message: message.to_owned() }
}

/// Forwards the progress of a reply without its text, which hooks have not seen yet.
struct HiddenText<'a>(&'a dyn DeltaListener);

impl DeltaListener for HiddenText<'_> {
    fn on_delta(&self, delta: Delta<'_>) {
        self.0.on_delta(match delta {
            Delta::Text(_) | Delta::Reasoning(_) | Delta::Call(_) | Delta::Hidden => Delta::Hidden,
            shown @ (Delta::Restart | Delta::Waiting(_) | Delta::Sending | Delta::Sent(_)) => shown,
        });
    }

    fn provider_deadline(&self) -> Option<&ProviderDeadline> {
        self.0.provider_deadline()
    }
}
