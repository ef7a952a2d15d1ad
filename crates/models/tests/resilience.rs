//! Retries, the circuit breaker, the rate limits and the fallbacks, with a paused clock.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use millrace_models::factory::with_fallbacks;
use millrace_models::model::{Delta, DeltaListener, Model, ModelError, ProviderDeadline, Reply};
use millrace_models::provider::ProviderRow;
use millrace_models::resilience::breaker::CircuitBreaker;
use millrace_models::resilience::{ResilientModel, RetryPolicy};
use millrace_models::selection::StructuredMode;
use millrace_models::table::ModelTable;
use millrace_models::{ModelAbility, RateLimiter, RequestObserver};
use millrace_protocol::result::Usage;
use tokio::time::Instant;

use crate::support::{FakeModel, Outcome, bad_request, limited, overloaded, reply, request};

pub fn resilient(inner: Arc<FakeModel>, change: impl FnOnce(&mut ResilientModel)) -> ResilientModel {
    let mut resilient = ResilientModel {
        context_window: None,
        structured: None,
        negotiation: Arc::default(),
        fixed_form: StructuredMode::Auto,
        inner,
        breaker: Arc::new(CircuitBreaker::default()),
        rate_limiter: Arc::new(()),
        observer: Arc::new(()),
        counts_cost: true,
        tariff: ModelTable::load_built_in()
            .tariff_for_model(ProviderRow::from_name("openai").unwrap(), "gpt-4o"),
        policy: RetryPolicy::default(),
        ability: ModelAbility::Strong,
        has_provider: true,
        timeout: Duration::from_secs(600),
    };
    change(&mut resilient);
    resilient
}

async fn ask(model: &dyn Model) -> Result<Reply, ModelError> {
    model.reply(&request(), &()).await
}

/// Records all deltas.
#[derive(Default)]
struct DeltaNotes(Mutex<Vec<String>>);

impl DeltaListener for DeltaNotes {
    fn on_delta(&self, delta: Delta<'_>) {
        self.0.lock().unwrap().push(format!("{delta:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn transient_errors_are_retried_with_growing_delays() {
    let fake = FakeModel::new((0..5).map(|_| overloaded()));
    let model = resilient(fake.clone(), |_| ());
    let begun = Instant::now();
    assert_eq!(ask(&model).await, Err(overloaded().unwrap_err()));
    assert_eq!(fake.call_count(), 5);
    // Between 50% and 100% of 1 + 2 + 4 + 8 seconds.
    let waited = begun.elapsed().as_secs_f64();
    assert!((7.5..=15.0).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_are_not_retried() {
    let fake = FakeModel::new([bad_request("no")]);
    let model = resilient(fake.clone(), |_| ());
    assert!(matches!(ask(&model).await, Err(ModelError::BadRequest { .. })));
    assert_eq!(fake.call_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn requested_waits_are_honoured_unless_too_long() {
    let fake = FakeModel::new([limited(Some(200)), reply("late"), limited(Some(601))]);
    let model = resilient(fake.clone(), |_| ());
    let begun = Instant::now();
    assert_eq!(ask(&model).await.unwrap().text, "late");
    assert!((200..=220).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    let begun = Instant::now();
    assert!(matches!(ask(&model).await, Err(ModelError::RateLimited { .. })));
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(fake.call_count(), 3);
}

#[tokio::test(start_paused = true)]
async fn restart_is_sent_only_after_other_deltas() {
    let broken = || Outcome::TextThen("half", Err(ModelError::Truncated { message: "cut".into() }));
    let fake = FakeModel::new([
        Outcome::from(overloaded()),
        broken(),
        Outcome::TextThen("whole", Ok(Reply::default())),
    ]);
    let model = resilient(fake, |_| ());
    let notes = DeltaNotes::default();
    model.reply(&request(), &notes).await.unwrap();
    let notes = notes.0.into_inner().unwrap();
    let words: Vec<&str> = notes
        .iter()
        .filter(|note| !note.contains("ing") && !note.starts_with("Sent("))
        .map(String::as_str)
        .collect();
    assert_eq!(words, ["Text(\"half\")", "Restart", "Text(\"whole\")"]);
    let waits: Vec<&str> = notes.iter().filter(|note| note.contains("ing")).map(String::as_str).collect();
    let [first, "Sending", second, "Sending"] = waits.as_slice() else { panic!("{notes:?}") };
    assert!(first.starts_with("Waiting(") && first.contains("busy"), "{first}");
    assert!(second.starts_with("Waiting(") && second.contains("cut"), "{second}");
}

#[tokio::test(start_paused = true)]
async fn requests_that_time_out_are_retried() {
    let fake = FakeModel::new([Outcome::Never, reply("second").into()]);
    let model = resilient(fake, |resilient| resilient.timeout = Duration::from_secs(30));
    let begun = Instant::now();
    assert_eq!(ask(&model).await.unwrap().text, "second");
    assert!((30..=32).contains(&begun.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn the_caller_s_deadline_ends_all_waits() {
    let fake = FakeModel::new([limited(Some(100))]);
    let model = resilient(fake.clone(), |_| ());
    let begun = Instant::now();
    tokio::time::timeout(Duration::from_secs(3), ask(&model)).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 3);
    assert_eq!(fake.call_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_pause_other_requests_wait_for_the_probe() {
    let slow = Outcome::After(Duration::from_secs(20), reply("tried"));
    let fake = FakeModel::new([Outcome::from(limited(Some(60))), slow]).then(|| reply("then"));
    let model = Arc::new(resilient(fake.clone(), |_| ()));
    let begun = Instant::now();
    let all: Vec<f64> = futures::stream::iter(0..8)
        .map(|at| {
            let model = model.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(at)).await;
                ask(&*model).await.unwrap();
                begun.elapsed().as_secs_f64()
            }
        })
        .buffered(8)
        .collect()
        .await;
    assert_eq!(fake.call_count(), 9, "one failed request and one reply each");
    assert!(all.iter().all(|at| *at >= 80.0), "no reply before the probe's: {all:?}");
}

#[tokio::test(start_paused = true)]
async fn a_model_with_a_fallback_does_not_wait_for_its_breaker() {
    let fake = FakeModel::new((0..10).map(|_| overloaded())).then(|| reply("back"));
    let breaker = Arc::new(CircuitBreaker::default());
    let first = || -> Arc<dyn Model> {
        Arc::new(resilient(fake.clone(), |resilient| {
            resilient.breaker = breaker.clone();
            resilient.policy = RetryPolicy::for_model_with_fallback();
        }))
    };
    let other = FakeModel::named::<Outcome>("b:other", []).then(|| reply("fallback"));
    let both = with_fallbacks(first(), vec![other.clone()]);
    for _ in 0..2 {
        let reply = ask(&*both).await.unwrap();
        assert_eq!((reply.text.as_str(), reply.model.as_deref()), ("fallback", Some("b:other")));
    }
    assert_eq!(fake.call_count(), 10);
    let begun = Instant::now();
    let open = ask(&*first()).await.unwrap_err().to_string();
    assert!(
        open.contains("circuit breaker of a:fake open for another 15 s: 10 consecutive requests failed"),
        "{open}"
    );
    assert_eq!(ask(&*both).await.unwrap().text, "fallback");
    assert_eq!((fake.call_count(), begun.elapsed().as_secs() < 60), (10, true));
    tokio::time::advance(Duration::from_secs(60)).await;
    let reply = ask(&*both).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.model), ("back", None));
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_request_itself_do_not_lead_to_a_fallback() {
    let overflow = || Err(ModelError::ContextOverflow { message: "long".into() });
    let first = FakeModel::new([overflow(), bad_request("The model `x` does not exist")]);
    let other = FakeModel::named("b:other", [reply("here")]);
    let both = with_fallbacks(first, vec![other.clone()]);
    assert!(matches!(ask(&*both).await, Err(ModelError::ContextOverflow { .. })));
    assert_eq!(other.call_count(), 0);
    assert_eq!(ask(&*both).await.unwrap().model.as_deref(), Some("b:other"));
}

#[tokio::test(start_paused = true)]
async fn if_all_models_are_unavailable_the_error_names_them() {
    let key = || Err(ModelError::Authentication { message: "bad key".into() });
    let none = with_fallbacks(
        FakeModel::new([key(), key()]),
        vec![FakeModel::named("b:other", [overloaded(), key()])],
    );
    let error = ask(&*none).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    for part in ["all 2 models", "a:fake: ", "bad key", "b:other: "] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = ask(&*none).await.unwrap_err();
    assert!(!error.is_transient() && matches!(error, ModelError::Authentication { .. }), "{error}");
}

/// A rate limiter that records its calls.
#[derive(Default)]
struct FakeRateLimiter {
    seen: Mutex<Vec<String>>,
    full: Option<Duration>,
}

impl FakeRateLimiter {
    fn note<'a, T: Send + 'a>(&'a self, line: String, then: T) -> BoxFuture<'a, T> {
        self.seen.lock().unwrap().push(line);
        futures::future::ready(then).boxed()
    }
}

impl RateLimiter for FakeRateLimiter {
    fn acquire<'a>(
        &'a self,
        model: &'a str,
        tokens: u64,
        patience: Duration,
    ) -> BoxFuture<'a, Result<(), Duration>> {
        let line = format!("admit {model} {tokens} {}", patience.as_secs());
        self.note(line, self.full.map_or(Ok(()), Err))
    }

    fn settle<'a>(&'a self, model: &'a str, booked: u64, used: u64) -> BoxFuture<'a, ()> {
        self.note(format!("settle {model} {booked} {used}"), ())
    }

    fn back_off<'a>(&'a self, model: &'a str, pause: Duration) -> BoxFuture<'a, ()> {
        self.note(format!("limited {model} {}", pause.as_secs()), ())
    }

    fn end_pause<'a>(&'a self, model: &'a str) -> BoxFuture<'a, ()> {
        self.note(format!("resumed {model}"), ())
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_reserves_and_settles_tokens_and_has_a_cost() {
    let usage = Usage { input_tokens: 4_000, output_tokens: 100, ..Usage::default() };
    let paid = Ok(Reply { usage, ..Reply::default() });
    let own = Ok(Reply { usage: Usage { cost_micros: 7, ..usage }, ..Reply::default() });
    let fake =
        FakeModel::new([limited(Some(9)), Err(ModelError::Truncated { message: "cut".into() }), paid, own]);
    let limiter = Arc::new(FakeRateLimiter::default());
    let model = resilient(fake, |resilient| resilient.rate_limiter = limiter.clone());
    assert_eq!(ask(&model).await.unwrap().usage.cost_micros, 4_000 * 5 / 2 + 100 * 10);
    assert_eq!(ask(&model).await.unwrap().usage.cost_micros, 7, "the provider's own cost takes precedence");
    let admit = "admit a:fake 1005 600";
    let expected = [
        admit,
        "limited a:fake 9",
        "settle a:fake 1005 0",
        admit,
        "settle a:fake 1005 1005",
        admit,
        "settle a:fake 1005 4100",
        admit,
        "settle a:fake 1005 4100",
    ];
    assert_eq!(*limiter.seen.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn no_request_is_sent_beyond_the_cluster_s_rate_limit() {
    let fake = FakeModel::new::<Outcome>([]);
    let limiter = FakeRateLimiter { full: Some(Duration::from_secs(400)), ..FakeRateLimiter::default() };
    let model = resilient(fake.clone(), |resilient| resilient.rate_limiter = Arc::new(limiter));
    let error = ask(&model).await.unwrap_err();
    assert!(
        error.to_string().contains("(try again in 400 s): the cluster's rate limit for a:fake"),
        "{error}"
    );
    assert_eq!(fake.call_count(), 0);
}

/// Records each finished request as a line.
#[derive(Default)]
struct RequestLog(Mutex<Vec<String>>);

impl RequestObserver for RequestLog {
    fn request_finished(&self, model: &str, outcome: Result<&Usage, &ModelError>, took: Duration) {
        let outcome = match outcome {
            Ok(usage) => format!(
                "{} in, {} out, {} micros",
                usage.input_tokens, usage.output_tokens, usage.cost_micros
            ),
            Err(error) => error.error_kind_name().to_owned(),
        };
        self.0.lock().unwrap().push(format!("{model}: {outcome}, {took:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_observer_is_called_for_every_request_with_its_cost() {
    let usage = Usage { input_tokens: 1_000, output_tokens: 100, ..Usage::default() };
    let replied = reply("done").map(|reply| Reply { usage, ..reply });
    let fake = FakeModel::new([overloaded(), replied]);
    let log = Arc::new(RequestLog::default());
    let model = resilient(fake.clone(), |resilient| resilient.observer = log.clone());
    let micros = ask(&model).await.unwrap().usage.cost_micros;
    assert!(micros > 0);
    let lines = log.0.lock().unwrap().join("\n");
    let name = fake.name();
    assert_eq!(lines, format!("{name}: overloaded, 0ns\n{name}: 1000 in, 100 out, {micros} micros, 0ns"));
}

/// A caller whose run was paused for its provider and resumed since.
struct ResumedListener(ProviderDeadline);

impl DeltaListener for ResumedListener {
    fn on_delta(&self, _: Delta<'_>) {}

    fn provider_deadline(&self) -> Option<&ProviderDeadline> {
        Some(&self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn resumed_caller_asks_the_provider_once_at_once_and_requested_pauses_are_capped() {
    let fake = FakeModel::new([limited(Some(9_000)), limited(Some(9_000)), Ok(Reply::default())]);
    let limiter = Arc::new(FakeRateLimiter::default());
    let model = resilient(fake, |resilient| {
        resilient.rate_limiter = limiter.clone();
        resilient.has_provider = true;
        resilient.policy = RetryPolicy::before_wait();
    });
    let request = request();
    let pauses = |lines: &[String]| {
        lines
            .iter()
            .filter(|line| !line.starts_with("admit") && !line.starts_with("settle"))
            .cloned()
            .collect::<Vec<_>>()
    };
    let caller = || ResumedListener(ProviderDeadline::new(Duration::from_secs(1_800)));
    let first = caller();
    assert!(matches!(model.reply(&request, &first).await, Err(ModelError::RateLimited { .. })));
    assert_eq!(pauses(&limiter.seen.lock().unwrap()), ["limited a:fake 300"]);
    // Another caller honours the pause of the circuit breaker and sends nothing.
    assert!(matches!(model.reply(&request, &caller()).await, Err(ModelError::Paused { .. })));
    let resumed = || ResumedListener(ProviderDeadline::new(Duration::from_secs(1_800)).trying_at_once());
    let again = resumed();
    assert!(matches!(model.reply(&request, &again).await, Err(ModelError::RateLimited { .. })));
    let expected = ["limited a:fake 300", "resumed a:fake", "limited a:fake 300"];
    assert_eq!(pauses(&limiter.seen.lock().unwrap()), expected);
    // Only once: the same caller waits again then.
    assert!(matches!(model.reply(&request, &again).await, Err(ModelError::Paused { .. })));
    assert!(model.reply(&request, &resumed()).await.is_ok());
}
