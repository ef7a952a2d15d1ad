//! The only place where requests to models are retried. It owns the retry policy, the circuit breaker, reservations in
//! the cluster's rate limits, the request timeout, the cost of each request, and calls to the request observer. It knows
//! no provider. A caller sets its own deadline by dropping the future.

mod backoff;
pub mod breaker;
mod provider_deadline;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::result::Usage;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::warn;

use crate::image::image_tokens;
use crate::model::{
    Delta, DeltaListener, Message, Model, ModelAbility, ModelError, Reply, Request, ToolCall,
};
use crate::observer::RequestObserver;
use crate::rate_limit::RateLimiter;
use crate::table::ModelTariff;
use breaker::{Admission, CircuitBreaker, RequestPermit};

pub use backoff::{RetryPolicy, outage_delay};
pub use provider_deadline::ProviderDeadline;

/// A model whose transient failures are retried.
pub struct ResilientModel {
    /// The wrapped model.
    pub inner: Arc<dyn Model>,
    /// The model's circuit breaker, shared by the whole process.
    pub breaker: Arc<CircuitBreaker>,
    /// The cluster's rate limits.
    pub rate_limiter: Arc<dyn RateLimiter>,
    /// Counts the requests.
    pub observer: Arc<dyn RequestObserver>,
    /// The price of its tokens.
    pub tariff: ModelTariff,
    /// `true` if the cost of a reply is known: by the price, from the provider, or because it costs nothing.
    pub counts_cost: bool,
    pub policy: RetryPolicy,
    /// Timeout of one request.
    pub timeout: Duration,
    /// `true` if the wrapped model is that of a provider.
    pub has_provider: bool,
    pub ability: ModelAbility,
    /// Its context window in tokens; `None` if it is not known.
    pub context_window: Option<u64>,
}

impl Model for ResilientModel {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn has_provider(&self) -> bool {
        self.has_provider
    }

    fn ability(&self) -> ModelAbility {
        self.ability
    }

    fn context_window(&self) -> Option<u64> {
        self.context_window
    }

    fn uncounted_cost(&self) -> Option<&str> {
        (!self.counts_cost).then(|| self.name())
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        listener: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        self.reply_with_retries(request, listener).boxed()
    }
}

impl ResilientModel {
    async fn reply_with_retries(
        &self,
        request: &Request,
        listener: &dyn DeltaListener,
    ) -> Result<Reply, ModelError> {
        let listener_filter = RetryDeltaListener { listener, any: AtomicBool::new(false) };
        let reserved = estimate_request_tokens(request);
        let mut attempts = 0;
        let mut last_error = None;
        let deadline = listener.provider_deadline().filter(|_| self.has_provider);
        if deadline.is_some_and(ProviderDeadline::take_try_at_once) {
            self.breaker.end_pause(Instant::now());
            self.rate_limiter.end_pause(self.name()).await;
        }
        loop {
            attempts += 1;
            let permit =
                wait_with_notice(&listener_filter, "circuit breaker open", self.wait_for_breaker(listener))
                    .await;
            // An error of the provider tells more than that requests are paused because of it.
            let permit = permit.map_err(|paused| last_error.take().unwrap_or(paused))?;
            let admitted = self.rate_limiter.acquire(self.name(), reserved, self.policy.max_rate_limit_wait);
            let admitted = wait_with_notice(&listener_filter, "cluster rate limit", admitted).await;
            admitted.map_err(|wait| self.rate_limit_error(wait))?;
            let error = match self.send_request_once(permit, request, &listener_filter, reserved).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let Some(wait) = self.policy.retry_delay(&error, attempts) else {
                return Err(error);
            };
            if !self.may_retry_after(wait, listener) {
                return Err(error);
            }
            warn!(model = self.name(), attempts, wait = ?wait, %error, "model request failed; retrying");
            listener_filter.discard_partial_output();
            wait_with_notice(&listener_filter, &error.to_string(), sleep(wait)).await;
            last_error = Some(error);
        }
    }

    async fn send_request_once(
        &self,
        permit: RequestPermit,
        request: &Request,
        listener: &dyn DeltaListener,
        reserved: u64,
    ) -> Result<Reply, ModelError> {
        let began = Instant::now();
        listener.on_delta(Delta::Sent(estimate_sent_tokens(request)));
        let answered = timeout(self.timeout, self.inner.reply(request, listener)).await;
        let took = began.elapsed();
        match answered.unwrap_or(Err(ModelError::Timeout { after: self.timeout })) {
            Ok(mut reply) => {
                if reply.usage.cost_micros == 0 {
                    reply.usage.cost_micros = self.tariff.cost_micros(&reply.usage);
                }
                self.observer.request_finished(self.name(), Ok(&reply.usage), took);
                permit.record_success();
                self.rate_limiter
                    .settle(
                        self.name(),
                        reserved,
                        tokens_counted_for_rate_limit(&reply.usage).unwrap_or(reserved),
                    )
                    .await;
                Ok(reply)
            }
            Err(error) => {
                self.observer.request_finished(self.name(), Err(&error), took);
                self.record_failure(&error, permit, reserved).await;
                Err(error)
            }
        }
    }

    async fn record_failure(&self, error: &ModelError, permit: RequestPermit, reserved: u64) {
        if error.is_transient() {
            permit.record_failure(error);
        } else {
            permit.record_success();
        }
        if let ModelError::RateLimited { retry_after, .. } = error {
            let pause = retry_after.unwrap_or(self.policy.initial_delay).min(breaker::MAX_REQUESTED_PAUSE);
            self.rate_limiter.back_off(self.name(), pause).await;
        }
        self.rate_limiter.settle(self.name(), reserved, tokens_used_by_failed_request(error, reserved)).await;
    }

    /// Returns `true` if a retry after `wait` is not later than the caller waits for the provider.
    fn may_retry_after(&self, wait: Duration, listener: &dyn DeltaListener) -> bool {
        let now = Instant::now();
        let deadline = listener.provider_deadline().filter(|_| self.has_provider);
        deadline.is_none_or(|deadline| now + wait <= deadline.start(now))
    }

    /// Waits until the circuit breaker allows a request, unless the policy forbids waiting that long. The last request of a
    /// caller, at its deadline, is sent during a pause too, because nothing else tells if the provider is still away; but
    /// if a probe request is in flight then, its outcome counts.
    async fn wait_for_breaker(&self, listener: &dyn DeltaListener) -> Result<RequestPermit, ModelError> {
        let deadline = listener.provider_deadline();
        let is_last_request = deadline.is_some_and(|deadline| deadline.has_passed(Instant::now()));
        let mut has_waited_for_probe = false;
        loop {
            let changed = self.breaker.wait_for_change();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match CircuitBreaker::admit_request(&self.breaker, Instant::now()) {
                Admission::Allowed(permit) => return Ok(permit),
                Admission::Open { .. } if is_last_request && !has_waited_for_probe => {
                    self.breaker.end_pause(Instant::now());
                }
                Admission::HalfOpen { .. } if is_last_request => {
                    changed.await;
                    has_waited_for_probe = true;
                }
                Admission::Open { until, reason } => {
                    let wait = until.saturating_duration_since(Instant::now());
                    if is_last_request || !self.policy.waits_for_breaker || wait > self.policy.max_retry_after
                    {
                        return Err(self.breaker_open_error(&reason, Some(wait)));
                    }
                    sleep_until(until).await;
                }
                Admission::HalfOpen { reason } => {
                    if !self.policy.waits_for_breaker {
                        return Err(self.breaker_open_error(&reason, None));
                    }
                    changed.await;
                }
            }
        }
    }

    fn breaker_open_error(&self, reason: &str, wait: Option<Duration>) -> ModelError {
        let until = wait.map_or("until its probe request succeeds".to_owned(), |wait| {
            format!("for another {}", format_seconds(wait))
        });
        let message = format!("circuit breaker of {} open {until}: {reason}", self.name());
        ModelError::Paused { retry_after: wait, message }
    }

    fn rate_limit_error(&self, wait: Duration) -> ModelError {
        let message = format!("the cluster's rate limit for {} is used up until then", self.name());
        ModelError::RateLimited { retry_after: Some(wait), message }
    }
}

/// Awaits `wait`. If it is not ready at once, tells the listener that the request waits, and when it proceeds.
async fn wait_with_notice<T>(listener: &dyn DeltaListener, reason: &str, wait: impl Future<Output = T>) -> T {
    tokio::pin!(wait);
    if let Poll::Ready(at_once) = futures::poll!(&mut wait) {
        return at_once;
    }
    listener.on_delta(Delta::Waiting(reason));
    let over = wait.await;
    listener.on_delta(Delta::Sending);
    over
}

/// Formats a duration in whole seconds.
fn format_seconds(wait: Duration) -> String {
    format!("{:.0} s", wait.as_secs_f64().ceil())
}

/// Estimates the tokens of a request, including its longest possible reply.
fn estimate_request_tokens(request: &Request) -> u64 {
    estimate_sent_tokens(request) + u64::from(request.max_output_tokens)
}

/// Estimates the usage of a request whose reply has this text and these calls: four bytes are a token.
pub fn estimate_usage(request: &Request, text: &str, calls: &[ToolCall]) -> Usage {
    let written = text.len() + calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>();
    Usage {
        input_tokens: estimate_sent_tokens(request),
        output_tokens: (written as u64 / 4).max(1),
        ..Usage::default()
    }
}

/// Estimates the tokens that a request sends, at four bytes per token and [`crate::image::IMAGE_TOKENS`] per image.
#[must_use]
pub fn estimate_sent_tokens(request: &Request) -> u64 {
    let messages = request.messages.iter().map(|message| match message {
        Message::User { text } => text.len(),
        Message::Assistant { text, calls, .. } => {
            text.len() + calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>()
        }
        Message::Tool(result) => result.text.len(),
    });
    let tools = request.tools.iter().map(|tool| tool.description.len() + tool.schema.to_string().len());
    let answer = request.answer.as_ref().map_or(0, |answer| answer.schema.to_string().len());
    let bytes = request.system.len() + messages.sum::<usize>() + tools.sum::<usize>() + answer;
    bytes as u64 / 4 + image_tokens(request) as u64
}

fn tokens_counted_for_rate_limit(usage: &Usage) -> Option<u64> {
    let rate_limited_tokens = usage.input_tokens.saturating_add(usage.output_tokens);
    (rate_limited_tokens > 0).then_some(rate_limited_tokens)
}

/// Returns the tokens that a failed request used: none if it was rejected, all reserved ones if it was processed.
fn tokens_used_by_failed_request(error: &ModelError, reserved: u64) -> u64 {
    match error {
        ModelError::RateLimited { .. }
        | ModelError::Overloaded { .. }
        | ModelError::ContextOverflow { .. }
        | ModelError::Authentication { .. }
        | ModelError::Quota { .. }
        | ModelError::Paused { .. }
        | ModelError::BadRequest { .. }
        | ModelError::Connection { .. } => 0,
        ModelError::ContentFilter { .. }
        | ModelError::Truncated { .. }
        | ModelError::Protocol { .. }
        | ModelError::Timeout { .. } => reserved,
    }
}

/// A listener that forwards `Restart` only if something was streamed before.
struct RetryDeltaListener<'a> {
    listener: &'a dyn DeltaListener,
    any: AtomicBool,
}

impl RetryDeltaListener<'_> {
    fn discard_partial_output(&self) {
        if self.any.swap(false, Ordering::Relaxed) {
            self.listener.on_delta(Delta::Restart);
        }
    }
}

impl DeltaListener for RetryDeltaListener<'_> {
    fn on_delta(&self, delta: Delta<'_>) {
        match delta {
            Delta::Text(_) | Delta::Reasoning(_) | Delta::Call(_) => self.any.store(true, Ordering::Relaxed),
            Delta::Restart | Delta::Waiting(_) | Delta::Sending | Delta::Sent(_) | Delta::Hidden => {}
        }
        self.listener.on_delta(delta);
    }

    fn provider_deadline(&self) -> Option<&ProviderDeadline> {
        self.listener.provider_deadline()
    }
}
