//! A model that does as it is told, and requests to ask it.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_models::model::{Delta, Message, Model, ModelError, Reply, Request, Watch};

/// What a model does when it is asked.
pub enum Outcome {
    /// Answers at once.
    Now(Result<Reply, ModelError>),
    /// Answers after a while.
    After(Duration, Result<Reply, ModelError>),
    /// Says a word first.
    Said(&'static str, Result<Reply, ModelError>),
    /// Does not answer.
    Never,
}

impl From<Result<Reply, ModelError>> for Outcome {
    fn from(outcome: Result<Reply, ModelError>) -> Self {
        Self::Now(outcome)
    }
}

type Always = Box<dyn Fn() -> Result<Reply, ModelError> + Send + Sync>;

/// A model that does as it is told.
pub struct Puppet {
    name: String,
    outcomes: Mutex<VecDeque<Outcome>>,
    always: Mutex<Option<Always>>,
    asked: AtomicUsize,
    requests: Mutex<Vec<Request>>,
}

impl Puppet {
    pub fn new<O: Into<Outcome>>(outcomes: impl IntoIterator<Item = O>) -> Arc<Self> {
        Self::named("a:puppet", outcomes)
    }

    pub fn named<O: Into<Outcome>>(name: &str, outcomes: impl IntoIterator<Item = O>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            outcomes: Mutex::new(outcomes.into_iter().map(Into::into).collect()),
            always: Mutex::new(None),
            asked: AtomicUsize::new(0),
            requests: Mutex::default(),
        })
    }

    /// What it does once it has done all else.
    pub fn then(
        self: Arc<Self>,
        always: impl Fn() -> Result<Reply, ModelError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        *self.always.lock().unwrap() = Some(Box::new(always));
        self
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// What it was asked.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    fn next(&self) -> Outcome {
        let next = self.outcomes.lock().unwrap().pop_front();
        next.unwrap_or_else(|| self.always.lock().unwrap().as_ref().expect("asked once too often")().into())
    }
}

impl Model for Puppet {
    fn name(&self) -> &str {
        &self.name
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        watch: &'a dyn Watch,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.requests.lock().unwrap().push(request.clone());
        let outcome = self.next();
        async move {
            match outcome {
                Outcome::Now(outcome) => outcome,
                Outcome::After(wait, outcome) => {
                    tokio::time::sleep(wait).await;
                    outcome
                }
                Outcome::Said(text, outcome) => {
                    watch.delta(Delta::Text(text));
                    outcome
                }
                Outcome::Never => std::future::pending().await,
            }
        }
        .boxed()
    }
}

pub fn overloaded() -> Result<Reply, ModelError> {
    Err(ModelError::Overloaded { message: "busy".into() })
}

pub fn limited(after: Option<u64>) -> Result<Reply, ModelError> {
    Err(ModelError::RateLimited { retry_after: after.map(Duration::from_secs), message: "slow down".into() })
}

pub fn bad_request(message: &str) -> Result<Reply, ModelError> {
    Err(ModelError::BadRequest { message: message.into() })
}

pub fn reply(text: &str) -> Result<Reply, ModelError> {
    Ok(Reply { text: text.into(), ..Reply::default() })
}

/// A request of 20 bytes with a reply of 1,000 tokens.
pub fn request() -> Request {
    Request {
        system: "12345678901234567890".into(),
        messages: Vec::new(),
        tools: Vec::new(),
        answer: None,
        max_output_tokens: 1_000,
    }
}

/// The same with a first message.
pub fn request_of(text: &str) -> Request {
    Request { messages: vec![Message::User { text: text.into() }], ..request() }
}
