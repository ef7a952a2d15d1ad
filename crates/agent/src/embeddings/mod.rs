//! Search by meaning: the model that embeds documents and queries, and its state in one attempt. The vectors of the documents are a
//! step of the journal before the first request ([`begin`]); each query is embedded by the tool call that searches.
//!
//! Without vectors a search compares words alone, which is never an error of the attempt: the user sees the reason once, as a
//! notice. Vectors of different models or dimensions are never compared.
//!
//! # Invariants
//!
//! - I320: An attempt that is taken over repeats no recorded embedding, and searches the same vectors on any machine.
//!   (`crates/agent/tests/embeddings.rs::takeover_pays_for_no_embedding_again`)
//! - I321: Search goes on by words alone, with a notice, if embeddings are away, slow or of another model or dimension.
//!   (`crates/agent/tests/embeddings.rs::search_goes_on_by_words_if_embeddings_are_away`,
//!   `crates/agent/tests/embeddings.rs::vectors_of_another_dimension_are_refused`)

mod documents;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use millrace_protocol::result::Usage;
use tokio::time::{Instant, timeout};

use crate::corpus::Corpus;
use crate::hooks::AttemptHooks;
use crate::model::{Model, Reply, Request};
use crate::tool::ModelCallBudget;
use crate::turn::{UsageTotals, describe_uncounted_cost};

pub(crate) use documents::{DocumentEmbedding, begin};

/// The time limit of the vector of a query. A model needs milliseconds for it.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a failure, in which searches request no vectors, so that they don't all wait for an unavailable server.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(60);

/// The model that embeds texts, as the hooks of an attempt see it.
#[derive(Clone)]
pub(crate) struct Embedder {
    model: Arc<dyn Model>,
    hooks: AttemptHooks,
}

impl Embedder {
    pub fn new(model: Arc<dyn Model>, hooks: AttemptHooks) -> Self {
        Self { model, hooks }
    }

    /// Returns the reply with the vectors of texts. The error is for the user.
    async fn request_vectors(&self, request: &Request, patience: Duration) -> Result<Reply, String> {
        let name = self.model.name();
        let replied = timeout(patience, self.hooks.reply(self.model.as_ref(), request, &())).await;
        let reply = match replied {
            Err(_) => return Err(format!("{name} gave no vectors within {} s", patience.as_secs())),
            Ok(Err(error)) => return Err(format!("{name} gave no vectors: {error}")),
            Ok(Ok(reply)) => reply,
        };
        match reply.vectors.len() == request.messages.len() {
            true => Ok(reply),
            false => Err(format!("{name} gave no vectors: it is no model for embeddings")),
        }
    }

    fn usage_of(&self, reply: &Reply) -> UsageTotals {
        let model = reply.model.as_deref().unwrap_or(self.model.name());
        UsageTotals::from_model_usage(model, Usage { model_calls: 1, ..reply.usage })
    }
}

/// The search by meaning in one attempt.
pub struct AttemptEmbeddings {
    /// `None` if this worker has no model for embeddings, and the attempt began where there was one.
    embedder: Option<Embedder>,
    /// The full name of the model that embedded the documents.
    embedded_by: String,
    /// The reason that something was searched by words alone.
    notice: OnceLock<String>,
    paused_until: Mutex<Option<Instant>>,
}

/// A query with its vector, if it has one.
#[derive(Default)]
pub(crate) struct EmbeddedQuery {
    pub vector: Option<Vec<f32>>,
    pub spent: UsageTotals,
    /// The reason that it has no vector, the first time in an attempt.
    pub notice: Option<String>,
}

impl AttemptEmbeddings {
    fn new(embedder: Option<Embedder>, embedded_by: String, notice: Option<String>) -> Self {
        let notice = notice.map(OnceLock::from).unwrap_or_default();
        Self { embedder, embedded_by, notice, paused_until: Mutex::default() }
    }

    /// The reason that something was searched by words alone, if something was.
    pub(crate) fn notice(&self) -> Option<&str> {
        self.notice.get().map(String::as_str)
    }

    /// Returns the vector of a query, if the documents have vectors that it can be compared with.
    pub(crate) async fn embed_query(
        &self,
        corpus: &Corpus,
        text: &str,
        budget: &ModelCallBudget,
    ) -> EmbeddedQuery {
        let Some(dimensions) = corpus.searched_dimensions() else { return EmbeddedQuery::default() };
        if self.is_paused() {
            return EmbeddedQuery::default();
        }
        let mut spent = UsageTotals::default();
        match self.request_query_vector(dimensions, text, budget, &mut spent).await {
            Ok(vector) => EmbeddedQuery { vector: Some(vector), spent, notice: None },
            Err(reason) => {
                self.pause();
                let notice = describe_word_search(&reason);
                tracing::warn!(reason, "searching by words alone");
                let is_first = self.notice.set(notice.clone()).is_ok();
                EmbeddedQuery { vector: None, spent, notice: is_first.then_some(notice) }
            }
        }
    }

    async fn request_query_vector(
        &self,
        dimensions: usize,
        text: &str,
        budget: &ModelCallBudget,
        spent: &mut UsageTotals,
    ) -> Result<Vec<f32>, String> {
        let of_documents = &self.embedded_by;
        let Some(embedder) = &self.embedder else {
            return Err(format!(
                "the documents were embedded with {of_documents}, which is not configured for this worker"
            ));
        };
        let name = embedder.model.name();
        if name != of_documents {
            return Err(format!(
                "the documents were embedded with {of_documents}, but this worker embeds queries with {name}"
            ));
        }
        let mut budget = budget.lock().await;
        if budget.is_used_up() {
            return Err("the model budget of the task is used up".to_owned());
        }
        if let Some(model) = embedder.model.uncounted_cost().filter(|_| budget.limits_cost()) {
            return Err(describe_uncounted_cost(model));
        }
        let reply = embedder.request_vectors(&Request::for_embeddings([text]), QUERY_TIMEOUT).await?;
        *spent = embedder.usage_of(&reply);
        budget.charge_usage(&spent.usage);
        let vector = reply.vectors.into_iter().next().unwrap_or_default();
        match vector.len() {
            same if same == dimensions => Ok(vector),
            other => Err(describe_dimensions(name, dimensions, other)),
        }
    }

    fn is_paused(&self) -> bool {
        let until = *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    fn pause(&self) {
        let until = Instant::now() + PAUSE_AFTER_FAILURE;
        *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }
}

fn describe_word_search(reason: &str) -> String {
    format!("The documents were searched by words alone, not by meaning: {reason}.")
}

fn describe_dimensions(model: &str, before: usize, now: usize) -> String {
    format!(
        "{model} gave vectors of {before} dimensions and now gives {now}: its server runs another model, and the two can't be \
         compared"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;
    use millrace_models::model::{DeltaListener, ReplyFuture};
    use millrace_protocol::ids::Capability;

    use super::*;
    use crate::corpus::{InputFile, PassageVectors};
    use crate::hooks::HookContext;
    use crate::turn::AttemptName;

    /// A model that never replies, with a count of requests.
    #[derive(Default)]
    struct SilentModel(AtomicUsize);

    impl Model for SilentModel {
        fn name(&self) -> &str {
            "ollama:silent"
        }

        fn reply<'a>(&'a self, _: &'a Request, _: &'a dyn DeltaListener) -> ReplyFuture<'a> {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::future::pending().boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_server_delays_one_search_a_minute() {
        let file = InputFile { path: "a.txt".into(), bytes: b"A lease ends.".to_vec() };
        let mut vectors = PassageVectors::new(1);
        assert!(vectors.push(&[1.0]));
        let corpus = Corpus::build_or_load(vec![file], None).unwrap().with_vectors(vectors).unwrap();
        let context =
            HookContext { attempt: AttemptName::default(), capability: Capability::new("research").unwrap() };
        let model = Arc::new(SilentModel::default());
        let embedder = Embedder::new(model.clone(), AttemptHooks::new(context, Vec::new()));
        let search = AttemptEmbeddings::new(Some(embedder), "ollama:silent".into(), None);
        let began = Instant::now();
        let mut notices = Vec::new();
        for _ in 0..5 {
            let query = search.embed_query(&corpus, "lease", &ModelCallBudget::default()).await;
            assert_eq!(query.vector, None);
            notices.extend(query.notice);
        }
        assert_eq!((began.elapsed(), model.0.load(Ordering::Relaxed)), (QUERY_TIMEOUT, 1));
        let expected = "The documents were searched by words alone, not by meaning: ollama:silent gave no vectors within 10 s.";
        assert_eq!(notices, [expected], "one notice for the user");
        tokio::time::advance(PAUSE_AFTER_FAILURE).await;
        search.embed_query(&corpus, "lease", &ModelCallBudget::default()).await;
        assert_eq!(model.0.load(Ordering::Relaxed), 2, "after the pause, another request is sent");
    }
}
