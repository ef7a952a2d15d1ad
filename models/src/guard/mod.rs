//! The one place where requests to models are repeated. It owns how often and how long is waited, the circuit breaker,
//! the booking of the cluster's limits, the time limit of a request, the price of what was used, and telling whoever counts. It knows no
//! provider. Whoever asks sets the deadline by dropping the call.

mod backoff;
pub mod breaker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::result::Usage;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::warn;

use crate::gate::Gate;
use crate::model::{Delta, Message, Model, ModelError, Reply, Request, Watch};
use crate::observer::Observer;
use crate::price::Tariff;
use breaker::{Admission, Breaker, Pass};

pub use backoff::Policy;

/// A model that is asked again when that can help.
pub struct Guarded {
    /// The model.
    pub inner: Arc<dyn Model>,
    /// The breaker of its provider and name, which all of the process share.
    pub breaker: Arc<Breaker>,
    /// The cluster's limits.
    pub gate: Arc<dyn Gate>,
    /// Who counts what is asked.
    pub observer: Arc<dyn Observer>,
    /// What it costs.
    pub tariff: Tariff,
    /// How often it is asked, and how long is waited between.
    pub policy: Policy,
    /// How long one request may take.
    pub timeout: Duration,
}

impl Model for Guarded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        watch: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        self.ask(request, watch).boxed()
    }
}

impl Guarded {
    async fn ask(&self, request: &Request, watch: &dyn Watch) -> Result<Reply, ModelError> {
        let seen = Seen { watch, any: AtomicBool::new(false) };
        let booked = estimate(request);
        let mut tries = 0;
        loop {
            tries += 1;
            let pass = waited(&seen, "its breaker is open", self.pass()).await?;
            let admitted = self.gate.admit(self.name(), booked, self.policy.longest);
            let admitted = waited(&seen, "the rate that the cluster keeps to", admitted).await;
            admitted.map_err(|wait| self.no_room(wait))?;
            let error = match self.ask_once(pass, request, &seen, booked).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let Some(wait) = self.policy.wait(&error, tries) else {
                return Err(error);
            };
            warn!(model = self.name(), tries, wait = ?wait, %error, "the model will be asked again");
            seen.restart();
            waited(&seen, &error.to_string(), sleep(wait)).await;
        }
    }

    async fn ask_once(
        &self,
        pass: Pass,
        request: &Request,
        watch: &dyn Watch,
        booked: u64,
    ) -> Result<Reply, ModelError> {
        let began = Instant::now();
        let answered = timeout(self.timeout, self.inner.reply(request, watch)).await;
        let took = began.elapsed();
        match answered.unwrap_or(Err(ModelError::Timeout { after: self.timeout })) {
            Ok(mut reply) => {
                if reply.usage.cost_micros == 0 {
                    reply.usage.cost_micros = self.tariff.cost_micros(&reply.usage);
                }
                self.observer.asked(self.name(), Ok(&reply.usage), took);
                pass.answered();
                self.gate.settle(self.name(), booked, used(&reply.usage).unwrap_or(booked)).await;
                Ok(reply)
            }
            Err(error) => {
                self.observer.asked(self.name(), Err(&error), took);
                self.failed(&error, pass, booked).await;
                Err(error)
            }
        }
    }

    async fn failed(&self, error: &ModelError, pass: Pass, booked: u64) {
        if error.is_transient() {
            pass.failed(error);
        } else {
            pass.answered();
        }
        if let ModelError::RateLimited { retry_after, .. } = error {
            self.gate.limited(self.name(), retry_after.unwrap_or(self.policy.first)).await;
        }
        self.gate.settle(self.name(), booked, spent(error, booked)).await;
    }

    /// Waits until the breaker lets a request through, where that is worth the wait.
    async fn pass(&self) -> Result<Pass, ModelError> {
        loop {
            let changed = self.breaker.changed();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match Breaker::admit(&self.breaker, Instant::now()) {
                Admission::Go(pass) => return Ok(pass),
                Admission::Open { until, why } => {
                    let wait = until.saturating_duration_since(Instant::now());
                    if !self.policy.waits_for_the_breaker || wait > self.policy.longest {
                        return Err(self.open(&why, Some(wait)));
                    }
                    sleep_until(until).await;
                }
                Admission::Probed { why } => {
                    if !self.policy.waits_for_the_breaker {
                        return Err(self.open(&why, None));
                    }
                    changed.await;
                }
            }
        }
    }

    fn open(&self, why: &str, wait: Option<Duration>) -> ModelError {
        let until = wait.map_or("until the one that tries it is answered".to_owned(), |wait| {
            format!("for another {}", seconds(wait))
        });
        ModelError::Overloaded { message: format!("{} is not asked {until}: {why}", self.name()) }
    }

    fn no_room(&self, wait: Duration) -> ModelError {
        let message = format!("the cluster's own limit for {} has no room before then", self.name());
        ModelError::RateLimited { retry_after: Some(wait), message }
    }
}

/// Tells an onlooker that the request has to wait, where it has to.
async fn waited<T>(watch: &dyn Watch, why: &str, wait: impl Future<Output = T>) -> T {
    tokio::pin!(wait);
    if let Poll::Ready(at_once) = futures::poll!(&mut wait) {
        return at_once;
    }
    watch.delta(Delta::Waiting(why));
    let over = wait.await;
    watch.delta(Delta::Asking);
    over
}

/// A duration as people read it.
fn seconds(wait: Duration) -> String {
    format!("{:.0} s", wait.as_secs_f64().ceil())
}

/// About how many tokens a request takes with all that it may be answered with.
fn estimate(request: &Request) -> u64 {
    size(request) + u64::from(request.max_output_tokens)
}

/// About how many tokens a request sends: four bytes a token.
pub(crate) fn size(request: &Request) -> u64 {
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
    bytes as u64 / 4
}

fn used(usage: &Usage) -> Option<u64> {
    let used = usage.input_tokens.saturating_add(usage.output_tokens);
    (used > 0).then_some(used)
}

/// What a request took that failed: nothing, if it was turned away; all that was booked, if it was worked on.
fn spent(error: &ModelError, booked: u64) -> u64 {
    match error {
        ModelError::RateLimited { .. }
        | ModelError::Overloaded { .. }
        | ModelError::ContextOverflow { .. }
        | ModelError::Authentication { .. }
        | ModelError::BadRequest { .. }
        | ModelError::Connection { .. } => 0,
        ModelError::ContentFilter { .. }
        | ModelError::Truncated { .. }
        | ModelError::Protocol { .. }
        | ModelError::Timeout { .. } => booked,
    }
}

/// An onlooker who is told to forget only what was told.
struct Seen<'a> {
    watch: &'a dyn Watch,
    any: AtomicBool,
}

impl Seen<'_> {
    fn restart(&self) {
        if self.any.swap(false, Ordering::Relaxed) {
            self.watch.delta(Delta::Restart);
        }
    }
}

impl Watch for Seen<'_> {
    fn delta(&self, delta: Delta<'_>) {
        match delta {
            Delta::Text(_) | Delta::Reasoning(_) | Delta::Call(_) => self.any.store(true, Ordering::Relaxed),
            Delta::Restart | Delta::Waiting(_) | Delta::Asking => {}
        }
        self.watch.delta(delta);
    }
}
