//! A fake model with predefined outcomes, and requests for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_models::model::{Delta, DeltaListener, Message, Model, ModelError, Reply, Request};

/// The outcome of a request to a fake model.
pub enum Outcome {
    /// Replies at once.
    Now(Result<Reply, ModelError>),
    /// Replies after a delay.
    After(Duration, Result<Reply, ModelError>),
    /// Streams some text before the reply.
    TextThen(&'static str, Result<Reply, ModelError>),
    /// Never replies.
    Never,
}

impl From<Result<Reply, ModelError>> for Outcome {
    fn from(outcome: Result<Reply, ModelError>) -> Self {
        Self::Now(outcome)
    }
}

type Always = Box<dyn Fn() -> Result<Reply, ModelError> + Send + Sync>;

/// A model with predefined outcomes.
pub struct FakeModel {
    name: String,
    outcomes: Mutex<VecDeque<Outcome>>,
    always: Mutex<Option<Always>>,
    call_count: AtomicUsize,
    requests: Mutex<Vec<Request>>,
}

impl FakeModel {
    pub fn new<O: Into<Outcome>>(outcomes: impl IntoIterator<Item = O>) -> Arc<Self> {
        Self::named("a:fake", outcomes)
    }

    pub fn named<O: Into<Outcome>>(name: &str, outcomes: impl IntoIterator<Item = O>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            outcomes: Mutex::new(outcomes.into_iter().map(Into::into).collect()),
            always: Mutex::new(None),
            call_count: AtomicUsize::new(0),
            requests: Mutex::default(),
        })
    }

    /// Sets the outcome once all predefined ones are used.
    pub fn then(
        self: Arc<Self>,
        always: impl Fn() -> Result<Reply, ModelError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        *self.always.lock().unwrap() = Some(Box::new(always));
        self
    }

    /// Returns the number of requests so far.
    pub fn call_count(&self) -> usize {
        self.call_count.load(Ordering::Relaxed)
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    fn next(&self) -> Outcome {
        let next = self.outcomes.lock().unwrap().pop_front();
        next.unwrap_or_else(|| {
            self.always.lock().unwrap().as_ref().expect("more requests than outcomes")().into()
        })
    }
}

impl Model for FakeModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        listener: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        self.call_count.fetch_add(1, Ordering::Relaxed);
        self.requests.lock().unwrap().push(request.clone());
        let outcome = self.next();
        async move {
            match outcome {
                Outcome::Now(outcome) => outcome,
                Outcome::After(wait, outcome) => {
                    tokio::time::sleep(wait).await;
                    outcome
                }
                Outcome::TextThen(text, outcome) => {
                    listener.on_delta(Delta::Text(text));
                    outcome
                }
                Outcome::Never => std::future::pending().await,
            }
        }
        .boxed()
    }
}

pub fn overloaded() -> Result<Reply, ModelError> {
    Err(ModelError::Overloaded { retry_after: None, message: "busy".into() })
}

pub fn limited(after: Option<u64>) -> Result<Reply, ModelError> {
    Err(ModelError::RateLimited { retry_after: after.map(Duration::from_secs), message: "slow down".into() })
}

pub fn bad_request(message: &str) -> Result<Reply, ModelError> {
    Err(ModelError::bad_request(message))
}

pub fn reply(text: &str) -> Result<Reply, ModelError> {
    Ok(Reply { text: text.into(), ..Reply::default() })
}

/// Returns a request of 20 bytes with a reply of at most 1,000 tokens.
pub fn request() -> Request {
    Request {
        system: "12345678901234567890".into(),
        messages: Vec::new(),
        tools: Vec::new(),
        answer: None,
        max_output_tokens: 1_000,
        ..Request::default()
    }
}

/// Returns the same request with a first message.
pub fn request_of(text: &str) -> Request {
    Request { messages: vec![Message::User { text: text.into() }], ..request() }
}
