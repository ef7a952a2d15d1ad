//! How long an attempt waits for a provider that is away, with a paused clock and the retries, the circuit breaker and the
//! fallbacks of real models.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use millrace_agent::model::{DeltaListener, Model, ModelAbility, ModelError, Reply, Request};
use millrace_agent::turn::{DriveError, MemoryHost, PlainText};
use millrace_models::resilience::breaker::CircuitBreaker;
use millrace_models::resilience::{ResilientModel, RetryPolicy};
use millrace_models::table::ModelTariff;
use millrace_protocol::wait::{ProviderStatus, ProviderWait};
use tokio::time::{Instant, sleep};

use super::support::{conversation, drive, says, toolbox};

const TIMEOUT: Duration = Duration::from_secs(8);

/// A provider that fails until some time, or for good.
struct AwayModel {
    error: ModelError,
    until: Option<Instant>,
    /// The duration of a failing call.
    takes: Duration,
}

impl Model for AwayModel {
    fn name(&self) -> &str {
        "test:away"
    }

    fn reply<'a>(
        &'a self,
        _: &'a Request,
        _: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        async move {
            if self.until.is_some_and(|until| Instant::now() >= until) {
                return Ok(says("back"));
            }
            sleep(self.takes).await;
            Err(self.error.clone())
        }
        .boxed()
    }
}

fn unreachable() -> ModelError {
    ModelError::Connection { message: "refused".into() }
}

fn resilient(model: AwayModel, breaker: &Arc<CircuitBreaker>) -> Arc<ResilientModel> {
    Arc::new(ResilientModel {
        context_window: None,
        structured: None,
        negotiation: Arc::default(),
        fixed_form: Default::default(),
        inner: Arc::new(model),
        breaker: breaker.clone(),
        rate_limiter: Arc::new(()),
        observer: Arc::new(()),
        counts_cost: true,
        tariff: ModelTariff::default(),
        policy: RetryPolicy::before_wait(),
        timeout: Duration::from_secs(600),
        has_provider: true,
        ability: ModelAbility::Strong,
    })
}

/// Drives an attempt and returns how it ended, and after how long.
async fn attempt(model: Arc<ResilientModel>) -> (Result<(), DriveError>, Duration) {
    attempt_with(model, MemoryHost::default()).await
}

async fn attempt_with(
    model: Arc<ResilientModel>,
    mut journal: MemoryHost,
) -> (Result<(), DriveError>, Duration) {
    let (tools, _) = toolbox();
    let begun = Instant::now();
    let mut conversation = conversation(&model, &tools);
    conversation.provider_timeout = TIMEOUT;
    let ended = drive::<PlainText>(conversation, &mut journal).await;
    (ended.map(drop).map_err(|failure| *failure.error), begun.elapsed())
}

/// Asserts that an attempt gave up at the timeout, or when the call in flight then had ended.
fn assert_gave_up(ended: &(Result<(), DriveError>, Duration), call: Duration, words: &str) {
    let (Err(DriveError::ProviderAway(wait)), took) = ended else { panic!("{ended:?}") };
    assert!(wait.error.contains(words), "{wait:?}");
    let most = TIMEOUT + call + Duration::from_millis(100);
    assert!(*took <= most, "it gave up after {took:?} and {} tries: {wait:?}", wait.tries);
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_does_not_prolong_the_wait_for_a_provider() {
    let breaker = Arc::default();
    let away = || resilient(AwayModel { error: unreachable(), until: None, takes: Duration::ZERO }, &breaker);
    // Enough attempts to open the breaker at once; the later ones find it open for longer and longer.
    for _ in 0..4 {
        let all = futures::future::join_all((0..6).map(|_| attempt(away()))).await;
        all.iter().for_each(|ended| assert_gave_up(ended, Duration::ZERO, ""));
        assert!(
            all.iter().any(|(ended, _)| format!("{ended:?}").contains("refused")),
            "the last try is sent in spite of the breaker: {all:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_is_back_at_the_deadline_is_used_in_spite_of_its_breaker() {
    let breaker = Arc::default();
    let away = AwayModel { error: unreachable(), until: None, takes: Duration::ZERO };
    let first = resilient(away, &breaker);
    futures::future::join_all((0..6).map(|_| attempt(first.clone()))).await;
    let back = AwayModel { error: unreachable(), until: Some(Instant::now()), takes: Duration::ZERO };
    let second = resilient(back, &breaker);
    for (ended, took) in futures::future::join_all((0..6).map(|_| attempt(second.clone()))).await {
        assert!(ended.is_ok() && took <= TIMEOUT, "{ended:?} after {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_begins_with_the_first_failure_and_ends_with_at_most_one_call() {
    let slow = Duration::from_secs(20);
    let model = AwayModel { error: unreachable(), until: None, takes: slow };
    let ended = attempt(resilient(model, &Arc::default())).await;
    // The first call fails after 20 s, its retry 1 s later is in flight at the deadline.
    let (Err(DriveError::ProviderAway(_)), took) = &ended else { panic!("{ended:?}") };
    assert!(*took <= slow + TIMEOUT + slow, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_requested_pause_beyond_the_timeout_ends_the_wait_at_once() {
    let error =
        ModelError::RateLimited { retry_after: Some(Duration::from_secs(20)), message: "slow down".into() };
    let limited = |until| AwayModel { error: error.clone(), until, takes: Duration::ZERO };
    let breaker = Arc::default();
    let ended = attempt(resilient(limited(None), &breaker)).await;
    assert_gave_up(&ended, Duration::ZERO, "slow down");
    let (Err(DriveError::ProviderAway(wait)), _) = ended else { unreachable!("asserted above") };
    assert_eq!(asked_for(&wait).as_secs().div_ceil(10), 2, "it asked for 20 s: {wait:?}");

    // Its run was resumed: it asks once and at once, though the breaker is still open for others.
    let resumed = |status| MemoryHost::default().with_provider_status(status);
    let given_up = || resumed(ProviderStatus::GivenUp(wait.clone()));
    let (ended, took) = attempt_with(resilient(limited(None), &breaker), given_up()).await;
    assert_gave_up(&(ended, took), Duration::ZERO, "slow down");
    let back = || resilient(limited(Some(Instant::now())), &breaker);
    let (ended, took) = attempt_with(back(), resumed(ProviderStatus::Recovered)).await;
    assert!(ended.is_ok() && took > Duration::ZERO, "the breaker delays it: {ended:?} after {took:?}");
    attempt(resilient(limited(None), &breaker)).await.0.unwrap_err();
    let (ended, took) = attempt_with(back(), given_up()).await;
    assert!(ended.is_ok() && took == Duration::ZERO, "{ended:?} after {took:?}");

    // One that can't be reached asked for nothing.
    let model = AwayModel { error: unreachable(), until: None, takes: Duration::ZERO };
    let ended = attempt(resilient(model, &Arc::default())).await;
    let (Err(DriveError::ProviderAway(wait)), _) = ended else { panic!("{ended:?}") };
    assert_eq!(asked_for(&wait), Duration::ZERO, "{wait:?}");
}

/// The time until which the provider asked to wait, from now.
fn asked_for(wait: &ProviderWait) -> Duration {
    wait.next_try.duration_since(Timestamp::now()).try_into().unwrap_or_default()
}
