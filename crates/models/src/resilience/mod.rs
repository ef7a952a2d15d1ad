//! A call of a model, in fixed stages: structured output, retries, the circuit breaker, reservations in the cluster's rate limits, the
//! request timeout, the cost of each request, and calls to the request observer. It is the only place where requests to models are
//! retried, and knows no provider. A caller sets its own deadline by dropping the future.

pub mod breaker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use crate::limits::estimate_sent_tokens;
use crate::limits::{RateLimiter, RequestObserver};

use crate::model::{
    Delta, DeltaListener, Model, ModelAbility, ModelError, ProviderDeadline, Remedy, Reply, ReplyFuture,
    ReplyResult, Request, format_seconds,
};
use crate::negotiation::{Negotiation, RESPONSE_FORMAT, TOOLS};

use crate::selection::StructuredMode;
use crate::structured::{choose_mode, convert_reply_for_mode, is_hidden, rewrite_request_for_mode};

use crate::table::ModelTariff;
use crate::wire::OutputSupport;
use breaker::{Admission, CircuitBreaker, RequestPermit};

/// The first delay of an attempt that waits for its provider: the quick retries before it took a few seconds.
const FIRST_OUTAGE_DELAY: Duration = Duration::from_secs(2);
/// The longest of these delays. 1,000 waiting attempts send 15 requests a second, and work continues within two minutes of
/// the end of an outage.
const MAX_OUTAGE_DELAY: Duration = Duration::from_secs(120);

pub struct ResilientModel {
    pub inner: Arc<dyn Model>,
    /// The way to request structured output, and what the model supports; `None` sends requests as they are.
    pub structured: Option<(StructuredMode, OutputSupport)>,
    /// The refused parameters of this model and address.
    pub negotiation: Arc<Negotiation>,
    /// The form that the settings demand.
    pub fixed_form: StructuredMode,
    pub breaker: Arc<CircuitBreaker>,
    pub rate_limiter: Arc<dyn RateLimiter>,
    pub observer: Arc<dyn RequestObserver>,
    pub tariff: ModelTariff,
    /// `true` if the cost of a reply is known: by the price, from the provider, or because it costs nothing.
    pub counts_cost: bool,
    pub policy: RetryPolicy,
    pub timeout: Duration,
    pub has_provider: bool,
    pub ability: ModelAbility,
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

    fn adaptations(&self) -> Vec<String> {
        self.inner.adaptations()
    }

    fn uncounted_cost(&self) -> Option<&str> {
        (!self.counts_cost).then(|| self.name())
    }

    fn reply<'a>(&'a self, request: &'a Request, listener: &'a dyn DeltaListener) -> ReplyFuture<'a> {
        self.reply_in_accepted_form(request, listener).boxed()
    }
}

/// A call in progress. It listens to the deltas of its requests.
struct Call<'a> {
    model: &'a ResilientModel,
    request: &'a Request,
    mode: Option<StructuredMode>,
    /// The support of the server, as far as known now.
    support: Option<OutputSupport>,
    is_least: bool,
    listener: &'a dyn DeltaListener,
    /// `true` if something was streamed that a retry makes void.
    has_output: AtomicBool,
}

impl DeltaListener for Call<'_> {
    fn on_delta(&self, delta: Delta<'_>) {
        let delta = if self.mode.is_some_and(|mode| is_hidden(mode, delta)) { Delta::Hidden } else { delta };
        if matches!(delta, Delta::Text(_) | Delta::Reasoning(_) | Delta::Call(_)) {
            self.has_output.store(true, Ordering::Relaxed);
        }
        self.listener.on_delta(delta);
    }

    fn provider_deadline(&self) -> Option<&ProviderDeadline> {
        self.listener.provider_deadline()
    }
}

impl Call<'_> {
    async fn reply_with_retries(&self) -> ReplyResult {
        let Self { model, request, .. } = *self;
        let reserved = estimate_sent_tokens(request) + u64::from(request.max_output_tokens);
        let mut attempts = 0;
        let mut last_error = None;
        let deadline = self.provider_deadline().filter(|_| model.has_provider);
        if deadline.is_some_and(ProviderDeadline::take_try_at_once) {
            model.breaker.end_pause(Instant::now());
            model.rate_limiter.end_pause(model.name()).await;
        }
        loop {
            attempts += 1;
            let permit = self.wait("circuit breaker open", model.wait_for_breaker(self.listener)).await;
            // An error of the provider tells more than that requests are paused because of it.
            let permit = permit.map_err(|paused| last_error.take().unwrap_or(paused))?;
            let admitted =
                model.rate_limiter.acquire(model.name(), reserved, model.policy.max_rate_limit_wait);
            let admitted = self.wait("cluster rate limit", admitted).await;
            admitted.map_err(|wait| model.rate_limit_error(wait))?;
            let error = match self.send_request_once(permit, reserved).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let Some(wait) = model.policy.retry_delay(&error, attempts) else { return Err(error) };
            // No retry is later than the caller waits for the provider.
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now + wait > deadline.start(now)) {
                return Err(error);
            }
            warn!(model = model.name(), attempts, wait = ?wait, %error, "model request failed; retrying");
            if self.has_output.swap(false, Ordering::Relaxed) {
                self.listener.on_delta(Delta::Restart);
            }
            self.wait(&error.to_string(), sleep(wait)).await;
            last_error = Some(error);
        }
    }

    /// Awaits `wait`. If it is not ready at once, tells the listener that the request waits, and when it proceeds.
    async fn wait<T>(&self, reason: &str, wait: impl Future<Output = T>) -> T {
        tokio::pin!(wait);
        if let Poll::Ready(at_once) = futures::poll!(&mut wait) {
            return at_once;
        }
        self.listener.on_delta(Delta::Waiting(reason));
        let over = wait.await;
        self.listener.on_delta(Delta::Sending);
        over
    }

    async fn send_request_once(&self, permit: RequestPermit, reserved: u64) -> ReplyResult {
        let Self { model, request, .. } = *self;
        let began = Instant::now();
        self.on_delta(Delta::Sent(estimate_sent_tokens(request)));
        let answered = timeout(model.timeout, self.convert_reply()).await;
        let took = began.elapsed();
        let mut answered = answered.unwrap_or(Err(ModelError::Timeout { after: model.timeout }));
        if let Ok(Reply { usage, .. }) = &mut answered
            && usage.cost_micros == 0
        {
            usage.cost_micros = model.tariff.cost_micros(usage);
        }
        let outcome = answered.as_ref();
        model.observer.request_finished(model.name(), outcome.map(|reply| &reply.usage), took);
        match outcome {
            Err(error) if error.is_transient() => permit.record_failure(error),
            Ok(_) | Err(_) => permit.record_success(),
        }
        // An overload without a requested wait is left to the retries.
        if let Err(
            error @ (ModelError::RateLimited { .. } | ModelError::Overloaded { retry_after: Some(_), .. }),
        ) = outcome
        {
            let pause =
                error.retry_after().unwrap_or(model.policy.initial_delay).min(breaker::MAX_REQUESTED_PAUSE);
            model.rate_limiter.back_off(model.name(), pause).await;
        }
        model.rate_limiter.settle(model.name(), reserved, used_tokens(outcome, reserved)).await;
        answered
    }

    /// Sends the request in the form that the model supports, and converts its reply back.
    async fn convert_reply(&self) -> ReplyResult {
        let Self { model, request, .. } = *self;
        let Some(mode) = self.mode else { return model.inner.reply(request, self).await };
        let mut rewritten = rewrite_request_for_mode(mode, request);
        let omits_schema =
            mode == StructuredMode::Envelope && self.support.is_some_and(|support| !support.structured);
        if omits_schema || self.is_least {
            let sent = rewritten.to_mut();
            sent.is_least = self.is_least;
            // The prompt has the schema as well.
            sent.answer = sent.answer.take().filter(|_| !omits_schema);
        }
        let reply = model.inner.reply(&rewritten, self).await?;
        let reply = convert_reply_for_mode(mode, request, reply);
        if mode == StructuredMode::Envelope {
            reply.calls.iter().for_each(|call| self.on_delta(Delta::Call(&call.name)));
        }
        Ok(reply)
    }
}

impl ResilientModel {
    /// Sends a request in the form that the server takes as far as known. A refusal that teaches more is followed by a request in the
    /// form that is chosen then, and one that names nothing by the least request, once.
    async fn reply_in_accepted_form(&self, request: &Request, listener: &dyn DeltaListener) -> ReplyResult {
        let mut refused: Option<(ModelError, bool)> = None;
        loop {
            let support = self.support(refused.is_some());
            let wanted = self.structured.map_or(StructuredMode::Auto, |(wanted, _)| wanted);
            let call = Call {
                model: self,
                request,
                mode: support.map(|support| choose_mode(request, wanted, support)),
                support,
                is_least: refused.is_some(),
                listener,
                has_output: AtomicBool::new(false),
            };
            let outcome = call.reply_with_retries().await;
            match (outcome, refused.take()) {
                (Ok(reply), None) => {
                    self.negotiation.count_accepted(None);
                    return Ok(reply);
                }
                (Ok(reply), Some((refusal, is_lasting))) => {
                    if is_lasting {
                        self.negotiation.count_accepted(Some(&refusal.to_string()));
                    }
                    return Ok(reply);
                }
                (Err(error), Some((refusal, _))) => {
                    return Err(if error.is_transient() { error } else { refusal });
                }
                (Err(error), None) => {
                    let remedy = error.remedy().filter(|_| self.structured.is_some()).unwrap_or_default();
                    match remedy {
                        Remedy::OtherForm if self.support(false) != support => {}
                        Remedy::LeastRequest { is_lasting } => {
                            info!(model = self.name(), %error, "request refused; sending the least request");
                            refused = Some((error, is_lasting));
                        }
                        Remedy::OtherForm | Remedy::None => return Err(error),
                    }
                }
            }
        }
    }

    /// Returns the support of the server, as far as known. A form that the settings demand counts as supported.
    fn support(&self, is_least: bool) -> Option<OutputSupport> {
        let omits =
            |parameter, fixed| self.fixed_form != fixed && (is_least || self.negotiation.omits(parameter));
        self.structured.map(|(_, support)| OutputSupport {
            tools: support.tools && !omits(TOOLS, StructuredMode::Tool),
            structured: support.structured && !omits(RESPONSE_FORMAT, StructuredMode::Native),
            ..support
        })
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

/// Returns the tokens that a request used, for the rate limit: of a failed one none if it was rejected, all reserved ones if it was
/// processed or the usage is not known.
fn used_tokens(outcome: Result<&Reply, &ModelError>, reserved: u64) -> u64 {
    use ModelError::{ContentFilter, Protocol, Timeout, Truncated};
    match outcome {
        Ok(Reply { usage, .. }) => match usage.input_tokens.saturating_add(usage.output_tokens) {
            0 => reserved,
            used => used,
        },
        Err(ContentFilter { .. } | Truncated { .. } | Protocol { .. } | Timeout { .. }) => reserved,
        Err(_) => 0,
    }
}

/// The number of retries of a request, and the delays between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    pub max_attempts: u32,
    pub initial_delay: Duration,
    pub max_delay: Duration,
    /// The longest wait a provider may request; if it requests more, the request is not retried.
    pub max_retry_after: Duration,
    pub max_rate_limit_wait: Duration,
    /// `true` to wait while the circuit breaker is open; `false` to fail at once because a fallback is available.
    pub waits_for_breaker: bool,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            initial_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(60),
            max_retry_after: Duration::from_secs(600),
            max_rate_limit_wait: Duration::from_secs(600),
            waits_for_breaker: true,
        }
    }
}

impl RetryPolicy {
    /// Returns the policy for a model with a fallback: no long waits.
    pub fn for_model_with_fallback() -> Self {
        let short = Duration::from_secs(30);
        Self {
            max_retry_after: short,
            max_rate_limit_wait: short,
            waits_for_breaker: false,
            ..Self::default()
        }
    }

    /// Returns the policy for a model whose attempts wait for their provider themselves: a few quick retries, so that the
    /// wait is reported soon.
    pub fn before_wait() -> Self {
        Self {
            max_attempts: 3,
            max_rate_limit_wait: Self::default().max_rate_limit_wait,
            ..Self::for_model_with_fallback()
        }
    }

    /// Returns the delay before the next attempt after `attempts` failed ones; `None` if there is no next attempt.
    pub fn retry_delay(&self, error: &ModelError, attempts: u32) -> Option<Duration> {
        if !error.is_transient() || attempts >= self.max_attempts {
            return None;
        }
        match error.retry_after() {
            Some(after) if after > self.max_retry_after => None,
            // Never earlier than requested, and not all clients at once.
            Some(after) => Some(after + random_delay_up_to(Duration::from_millis(500).max(after / 10))),
            None => {
                let retry_delay =
                    self.initial_delay.saturating_mul(1 << (attempts - 1).min(20)).min(self.max_delay);
                Some(retry_delay / 2 + random_delay_up_to(retry_delay / 2))
            }
        }
    }
}

/// Returns the delay before the next try of an attempt that waits for its provider, after `tries` requests that failed with
/// all their retries. It is never shorter than the provider requested.
pub fn outage_delay(tries: u32, error: &ModelError) -> Duration {
    let delay = FIRST_OUTAGE_DELAY.saturating_mul(1 << tries.saturating_sub(1).min(20)).min(MAX_OUTAGE_DELAY);
    let delay = delay / 2 + random_delay_up_to(delay / 2);
    match error.retry_after() {
        Some(after) => delay.max(after + random_delay_up_to(Duration::from_millis(500).max(after / 10))),
        None => delay,
    }
}

fn random_delay_up_to(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate_limited_error(after: Option<u64>) -> ModelError {
        ModelError::RateLimited { retry_after: after.map(Duration::from_secs), message: String::new() }
    }

    #[test]
    fn delays_double_up_to_the_maximum_and_attempts_are_limited() {
        let policy = RetryPolicy { max_attempts: 9, ..RetryPolicy::default() };
        let overloaded = ModelError::Overloaded { retry_after: None, message: String::new() };
        for (attempts, whole) in [(1, 1), (2, 2), (3, 4), (4, 8), (7, 60), (8, 60)] {
            let retry_delay = policy.retry_delay(&overloaded, attempts).unwrap();
            let whole = Duration::from_secs(whole);
            assert!(retry_delay >= whole / 2 && retry_delay <= whole, "attempt {attempts}: {retry_delay:?}");
        }
        assert_eq!(policy.retry_delay(&overloaded, 9), None);
    }

    #[test]
    fn retry_after_is_honoured_unless_it_is_too_long() {
        let policy = RetryPolicy::default();
        let retry_delay = policy.retry_delay(&rate_limited_error(Some(120)), 1).unwrap();
        assert!(
            retry_delay >= Duration::from_secs(120) && retry_delay <= Duration::from_secs(132),
            "{retry_delay:?}"
        );
        assert!(policy.retry_delay(&rate_limited_error(Some(600)), 1).is_some());
        assert_eq!(policy.retry_delay(&rate_limited_error(Some(601)), 1), None);
        assert_eq!(
            RetryPolicy::for_model_with_fallback().retry_delay(&rate_limited_error(Some(31)), 1),
            None
        );
        assert!(policy.retry_delay(&rate_limited_error(None), 1).unwrap() <= Duration::from_secs(1));
    }

    #[test]
    fn outage_delays_double_up_to_two_minutes_and_honour_requests() {
        let away = ModelError::Connection { message: String::new() };
        for (tries, whole) in [(1, 2), (2, 4), (5, 32), (7, 120), (u32::MAX, 120)] {
            let (delay, whole) = (outage_delay(tries, &away), Duration::from_secs(whole));
            assert!(delay >= whole / 2 && delay <= whole, "try {tries}: {delay:?}");
        }
        let delay = outage_delay(1, &rate_limited_error(Some(900)));
        assert!(delay >= Duration::from_secs(900) && delay <= Duration::from_secs(990), "{delay:?}");
        let paused = ModelError::Paused { retry_after: Some(Duration::ZERO), message: String::new() };
        assert!(outage_delay(7, &paused) >= Duration::from_secs(60));
    }

    #[test]
    fn permanent_errors_are_not_retried() {
        let message = String::new;
        let lasting = [
            ModelError::ContextOverflow { message: message() },
            ModelError::Authentication { message: message() },
            ModelError::ContentFilter { message: message() },
            ModelError::bad_request(message()),
            ModelError::Protocol { message: message() },
        ];
        for error in lasting {
            assert_eq!(RetryPolicy::default().retry_delay(&error, 1), None, "{error}");
        }
    }
}
