//! A model whose calls hooks see.

use std::borrow::Cow;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{AttemptHooks, HookEvent, HookPoint, describe_refusal};
use crate::model::{Delta, DeltaListener, Model, ModelError, ProviderDeadline, Reply, Request};

pub(super) struct HookedModel {
    pub model: Arc<dyn Model>,
    pub hooks: AttemptHooks,
}

impl HookedModel {
    async fn reply_through_hooks(
        &self,
        request: &Request,
        listener: &dyn DeltaListener,
    ) -> Result<Reply, ModelError> {
        let mut request = Cow::Borrowed(request);
        for hook in self.hooks.at_point(HookPoint::BeforeModel) {
            let event = HookEvent::BeforeModel { model: self.model.name(), request: request.to_mut() };
            let refusal = |refusal| refuse_model_call(&describe_refusal(hook, &refusal));
            hook.call(&self.hooks.context, event).await.map_err(refusal)?;
        }
        if !self.hooks.has_point(HookPoint::AfterModel) {
            return self.model.reply(&request, listener).await;
        }
        let mut reply = self.model.reply(&request, &HiddenText(listener)).await?;
        let original = reply.clone();
        for hook in self.hooks.at_point(HookPoint::AfterModel) {
            let event = HookEvent::AfterModel { model: self.model.name(), reply: &mut reply };
            let refusal = |refusal| refuse_model_call(&describe_refusal(hook, &refusal));
            hook.call(&self.hooks.context, event).await.map_err(refusal)?;
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

impl Model for HookedModel {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn inner(&self) -> Option<&dyn Model> {
        Some(self.model.as_ref())
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        listener: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        self.reply_through_hooks(request, listener).boxed()
    }
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
