//! Retries, the breaker, the limits and the fallback, on a clock that is turned by hand.

#![allow(clippy::unwrap_used, reason = "a test and its helpers may panic")]

mod support;

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use millrace_models::chain::chain;
use millrace_models::guard::breaker::Breaker;
use millrace_models::guard::{Guarded, Policy};
use millrace_models::model::{Delta, Model, ModelError, Reply, Watch};
use millrace_models::price::Prices;
use millrace_models::provider::Provider;
use millrace_models::{Gate, Observer};
use millrace_protocol::result::Usage;
use tokio::time::Instant;

use support::{Outcome, Puppet, bad_request, limited, overloaded, reply, request};

fn guarded(inner: Arc<Puppet>, change: impl FnOnce(&mut Guarded)) -> Guarded {
    let mut guarded = Guarded {
        inner,
        breaker: Arc::new(Breaker::default()),
        gate: Arc::new(()),
        observer: Arc::new(()),
        tariff: Prices::built_in().tariff(Provider::OpenAi, "gpt-4o"),
        policy: Policy::default(),
        timeout: Duration::from_secs(600),
    };
    change(&mut guarded);
    guarded
}

async fn ask(model: &dyn Model) -> Result<Reply, ModelError> {
    model.reply(&request(), &()).await
}

/// Notes what it is told.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Watch for Notes {
    fn delta(&self, delta: Delta<'_>) {
        self.0.lock().unwrap().push(format!("{delta:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn what_passes_by_itself_is_asked_again_up_to_five_times_with_growing_waits() {
    let puppet = Puppet::new((0..5).map(|_| overloaded()));
    let model = guarded(puppet.clone(), |_| ());
    let begun = Instant::now();
    assert_eq!(ask(&model).await, Err(overloaded().unwrap_err()));
    assert_eq!(puppet.asked(), 5);
    // Between half and the whole of 1 + 2 + 4 + 8 seconds.
    let waited = begun.elapsed().as_secs_f64();
    assert!((7.5..=15.0).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_pass_is_asked_once() {
    let puppet = Puppet::new([bad_request("no")]);
    let model = guarded(puppet.clone(), |_| ());
    assert!(matches!(ask(&model).await, Err(ModelError::BadRequest { .. })));
    assert_eq!(puppet.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_asked_for_is_honoured_and_one_that_is_too_long_is_not_waited_for() {
    let puppet = Puppet::new([limited(Some(200)), reply("late"), limited(Some(601))]);
    let model = guarded(puppet.clone(), |_| ());
    let begun = Instant::now();
    assert_eq!(ask(&model).await.unwrap().text, "late");
    assert!((200..=220).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    let begun = Instant::now();
    assert!(matches!(ask(&model).await, Err(ModelError::RateLimited { .. })));
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(puppet.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn whoever_looks_on_is_told_to_forget_only_what_was_told() {
    let broken = || Outcome::Said("half", Err(ModelError::Truncated { message: "cut".into() }));
    let puppet =
        Puppet::new([Outcome::from(overloaded()), broken(), Outcome::Said("whole", Ok(Reply::default()))]);
    let model = guarded(puppet, |_| ());
    let notes = Notes::default();
    model.reply(&request(), &notes).await.unwrap();
    let notes = notes.0.into_inner().unwrap();
    let words: Vec<&str> = notes.iter().filter(|note| !note.contains("ing")).map(String::as_str).collect();
    assert_eq!(words, ["Text(\"half\")", "Restart", "Text(\"whole\")"]);
    let waits: Vec<&str> = notes.iter().filter(|note| note.contains("ing")).map(String::as_str).collect();
    let [first, "Asking", second, "Asking"] = waits.as_slice() else { panic!("{notes:?}") };
    assert!(first.starts_with("Waiting(") && first.contains("busy"), "{first}");
    assert!(second.starts_with("Waiting(") && second.contains("cut"), "{second}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_takes_too_long_is_given_up_and_made_again() {
    let puppet = Puppet::new([Outcome::Never, reply("second").into()]);
    let model = guarded(puppet, |guarded| guarded.timeout = Duration::from_secs(30));
    let begun = Instant::now();
    assert_eq!(ask(&model).await.unwrap().text, "second");
    assert!((30..=32).contains(&begun.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn a_caller_s_deadline_ends_all_waiting() {
    let puppet = Puppet::new([limited(Some(100))]);
    let model = guarded(puppet.clone(), |_| ());
    let begun = Instant::now();
    tokio::time::timeout(Duration::from_secs(3), ask(&model)).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 3);
    assert_eq!(puppet.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_pause_one_request_tries_and_the_others_wait_for_its_outcome() {
    let slow = Outcome::After(Duration::from_secs(20), reply("tried"));
    let puppet = Puppet::new([Outcome::from(limited(Some(60))), slow]).then(|| reply("then"));
    let model = Arc::new(guarded(puppet.clone(), |_| ()));
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
    assert_eq!(puppet.asked(), 9, "one was turned away, and each was answered once");
    assert!(all.iter().all(|at| *at >= 80.0), "nobody is answered before the one that tried: {all:?}");
}

#[tokio::test(start_paused = true)]
async fn a_model_with_a_stand_in_does_not_wait_for_its_breaker() {
    let puppet = Puppet::new((0..10).map(|_| overloaded())).then(|| reply("back"));
    let breaker = Arc::new(Breaker::default());
    let first = || -> Arc<dyn Model> {
        Arc::new(guarded(puppet.clone(), |guarded| {
            guarded.breaker = breaker.clone();
            guarded.policy = Policy::with_stand_in();
        }))
    };
    let other = Puppet::named::<Outcome>("b:other", []).then(|| reply("stand-in"));
    let both = chain(first(), vec![other.clone()]);
    for _ in 0..2 {
        let reply = ask(&*both).await.unwrap();
        assert_eq!((reply.text.as_str(), reply.model.as_deref()), ("stand-in", Some("b:other")));
    }
    assert_eq!(puppet.asked(), 10);
    let begun = Instant::now();
    let open = ask(&*first()).await.unwrap_err().to_string();
    assert!(open.contains("a:puppet is not asked for another 15 s: 10 requests in a row failed"), "{open}");
    assert_eq!(ask(&*both).await.unwrap().text, "stand-in");
    assert_eq!((puppet.asked(), begun.elapsed().as_secs() < 60), (10, true));
    tokio::time::advance(Duration::from_secs(60)).await;
    let reply = ask(&*both).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.model), ("back", None));
}

#[tokio::test(start_paused = true)]
async fn what_a_model_refuses_for_the_request_s_own_sake_is_not_carried_to_another() {
    let overflow = || Err(ModelError::ContextOverflow { message: "long".into() });
    let first = Puppet::new([overflow(), bad_request("The model `x` does not exist")]);
    let other = Puppet::named("b:other", [reply("here")]);
    let both = chain(first, vec![other.clone()]);
    assert!(matches!(ask(&*both).await, Err(ModelError::ContextOverflow { .. })));
    assert_eq!(other.asked(), 0);
    assert_eq!(ask(&*both).await.unwrap().model.as_deref(), Some("b:other"));
}

#[tokio::test(start_paused = true)]
async fn where_no_model_is_to_be_had_all_are_told() {
    let key = || Err(ModelError::Authentication { message: "bad key".into() });
    let none = chain(Puppet::new([key(), key()]), vec![Puppet::named("b:other", [overloaded(), key()])]);
    let error = ask(&*none).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    for told in ["none of 2 models", "a:puppet: ", "bad key", "b:other: "] {
        assert!(error.to_string().contains(told), "{error}");
    }
    let error = ask(&*none).await.unwrap_err();
    assert!(!error.is_transient() && matches!(error, ModelError::Authentication { .. }), "{error}");
}

/// A gate that notes what it is asked, and lets through what it is told to.
#[derive(Default)]
struct Porter {
    seen: Mutex<Vec<String>>,
    full: Option<Duration>,
}

impl Porter {
    fn note<'a, T: Send + 'a>(&'a self, line: String, then: T) -> BoxFuture<'a, T> {
        self.seen.lock().unwrap().push(line);
        futures::future::ready(then).boxed()
    }
}

impl Gate for Porter {
    fn admit<'a>(
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

    fn limited<'a>(&'a self, model: &'a str, pause: Duration) -> BoxFuture<'a, ()> {
        self.note(format!("limited {model} {}", pause.as_secs()), ())
    }
}

#[tokio::test(start_paused = true)]
async fn every_try_is_booked_and_settled_by_what_it_took_and_costs_what_it_costs() {
    let usage = Usage { input_tokens: 4_000, output_tokens: 100, ..Usage::default() };
    let paid = Ok(Reply { usage, ..Reply::default() });
    let own = Ok(Reply { usage: Usage { cost_micros: 7, ..usage }, ..Reply::default() });
    let puppet =
        Puppet::new([limited(Some(9)), Err(ModelError::Truncated { message: "cut".into() }), paid, own]);
    let porter = Arc::new(Porter::default());
    let model = guarded(puppet, |guarded| guarded.gate = porter.clone());
    assert_eq!(ask(&model).await.unwrap().usage.cost_micros, 4_000 * 5 / 2 + 100 * 10);
    assert_eq!(
        ask(&model).await.unwrap().usage.cost_micros,
        7,
        "a provider that tells the price knows it best"
    );
    let admit = "admit a:puppet 1005 600";
    let expected = [
        admit,
        "limited a:puppet 9",
        "settle a:puppet 1005 0",
        admit,
        "settle a:puppet 1005 1005",
        admit,
        "settle a:puppet 1005 4100",
        admit,
        "settle a:puppet 1005 4100",
    ];
    assert_eq!(*porter.seen.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn where_the_cluster_has_no_room_nobody_is_asked() {
    let puppet = Puppet::new::<Outcome>([]);
    let porter = Porter { full: Some(Duration::from_secs(400)), ..Porter::default() };
    let model = guarded(puppet.clone(), |guarded| guarded.gate = Arc::new(porter));
    let error = ask(&model).await.unwrap_err();
    assert!(
        error.to_string().contains("(try again in 400s): the cluster's own limit for a:puppet"),
        "{error}"
    );
    assert_eq!(puppet.asked(), 0);
}

/// Notes what was asked, as a line each.
#[derive(Default)]
struct Ledger(Mutex<Vec<String>>);

impl Observer for Ledger {
    fn asked(&self, model: &str, outcome: Result<&Usage, &ModelError>, took: Duration) {
        let outcome = match outcome {
            Ok(usage) => format!(
                "{} in, {} out, {} micros",
                usage.input_tokens, usage.output_tokens, usage.cost_micros
            ),
            Err(error) => error.kind().to_owned(),
        };
        self.0.lock().unwrap().push(format!("{model}: {outcome}, {took:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_counts_is_told_of_every_request_with_its_price() {
    let usage = Usage { input_tokens: 1_000, output_tokens: 100, ..Usage::default() };
    let replied = reply("done").map(|reply| Reply { usage, ..reply });
    let puppet = Puppet::new([overloaded(), replied]);
    let ledger = Arc::new(Ledger::default());
    let model = guarded(puppet.clone(), |guarded| guarded.observer = ledger.clone());
    let micros = ask(&model).await.unwrap().usage.cost_micros;
    assert!(micros > 0);
    let told = ledger.0.lock().unwrap().join("\n");
    let name = puppet.name();
    assert_eq!(told, format!("{name}: overloaded, 0ns\n{name}: 1000 in, 100 out, {micros} micros, 0ns"));
}
