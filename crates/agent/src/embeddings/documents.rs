//! The vectors of a run's documents: a step of the journal, with its usage, before the first request of an attempt. The vectors of each
//! document are cached on disk by its content, the model and the number of dimensions, so that a machine embeds a document once; the
//! vectors of all documents are a value of the journal, so that another machine that takes over the attempt embeds none.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use millrace_protocol::plan::ResourceAmounts;
use millrace_protocol::result::{ErrorKind, TaskError};
use millrace_protocol::wire::InlineOrStoredBytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep, timeout};

use super::{AttemptEmbeddings, Embedder, describe_dimensions, describe_word_search};
use crate::corpus::{Corpus, PassageVectors, encode_hex, lock_cache_entry, write_atomically};
use crate::model::Request;
use crate::turn::{Host, UsageTotals, describe_uncounted_cost, encode_step, select_affordable, to_millis};

/// The step that holds the vectors of the documents.
const STEP: &str = "embeddings";
/// The folder for vectors, in the cache.
const FOLDER: &str = "vectors";
/// Incremented with each change of the stored vectors or of the passages of a document.
const FORMAT: u32 = 1;
/// The number of passages that a request embeds: of the 2,048 that OpenAI takes, few enough for a server on one core.
const BATCH: usize = 32;
/// The number of requests at the same time.
const SIDE_BY_SIDE: usize = 4;
/// The most passages that are embedded: 24 MB of text. Their vectors are held in memory, and in a value of the journal.
const MAX_PASSAGES: usize = 20_000;
/// The most characters of a text that are embedded; models cut texts off at a few hundred tokens.
const MAX_CHARACTERS: usize = 2_000;
/// The time limit of a request.
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit of the vectors of all documents. Those that were received by then are cached.
const DOCUMENTS_TIMEOUT: Duration = Duration::from_secs(300);

/// The record of the vectors of an attempt's documents.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct EmbeddingsStep {
    /// The full name of the model.
    model: String,
    /// `None` if the documents are searched by words alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vectors: Option<StoredVectors>,
    /// The reason for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    notice: Option<String>,
    #[serde(default)]
    spent: UsageTotals,
    took_ms: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct StoredVectors {
    /// The vector of the objective; those of the passages have as many dimensions.
    objective: Vec<f32>,
    passages: InlineOrStoredBytes,
}

/// The documents of an attempt with their vectors.
pub(crate) struct EmbeddedDocuments {
    pub search: AttemptEmbeddings,
    /// `None` if the documents are searched by words alone.
    pub vectors: Option<EmbeddedObjective>,
    pub spent: UsageTotals,
    pub took: Duration,
}

/// The vector of the objective, and the documents that it can be searched for in.
pub(crate) struct EmbeddedObjective {
    pub objective: Vec<f32>,
    pub corpus: Corpus,
}

/// The embedding of an attempt's documents.
pub(crate) struct DocumentEmbedding<'a> {
    /// `None` if no model for embeddings is configured.
    pub embedder: Option<Embedder>,
    pub corpus: &'a Corpus,
    pub objective: &'a str,
    pub cache: Option<PathBuf>,
    /// The reservation of the attempt. Half of it is for its conversation.
    pub allowance: ResourceAmounts,
}

/// Embeds the documents as the first step of the journal, or replays that step. Returns `None` if no model for embeddings is configured,
/// or if the attempt began without one.
pub(crate) async fn begin(
    embedding: DocumentEmbedding<'_>,
    host: &mut dyn Host,
) -> Result<Option<EmbeddedDocuments>, TaskError> {
    let name = [STEP.to_owned()];
    let step = match host.peek().await? {
        Some((next, _)) if next == STEP => host.replay(&name).await?.map(|(_, value)| value),
        Some(_) => return Ok(None),
        None => None,
    };
    let corpus = embedding.corpus;
    let (step, embedder) = match (step, embedding.embedder.clone()) {
        (Some(value), embedder) => {
            let step: EmbeddingsStep = serde_json::from_value(value).map_err(|mistake| {
                TaskError::new(
                    ErrorKind::Other,
                    format!("the recorded step {STEP:?} can't be read: {mistake}"),
                )
            })?;
            (step, embedder)
        }
        (None, None) => return Ok(None),
        (None, Some(embedder)) => {
            let step = embedding.embed_all(&embedder, host).await?;
            host.record(STEP, &encode_step(&step)).await?;
            (step, Some(embedder))
        }
    };
    let EmbeddingsStep { model, vectors, mut notice, spent, took_ms } = step;
    let vectors = match vectors {
        None => None,
        Some(StoredVectors { objective, passages }) => {
            let bytes = host.load_value(&passages).await?;
            let mut all = PassageVectors::new(objective.len());
            let count = bytes.len() / objective.len().max(1);
            let restored = all.extend_from_bytes(&bytes, count).then(|| corpus.with_vectors(all)).flatten();
            if restored.is_none() {
                let reason =
                    "the attempt began with another version of Millrace, which split them differently";
                notice = Some(describe_word_search(reason));
            }
            restored.map(|corpus| EmbeddedObjective { objective, corpus })
        }
    };
    let search = AttemptEmbeddings::new(embedder, model, notice);
    Ok(Some(EmbeddedDocuments { search, vectors, spent, took: Duration::from_millis(took_ms) }))
}

impl DocumentEmbedding<'_> {
    /// Embeds the documents and the objective, and stores the vectors. Meanwhile the journal gets a keepalive per interval.
    async fn embed_all(&self, embedder: &Embedder, host: &mut dyn Host) -> Result<EmbeddingsStep, TaskError> {
        let began = Instant::now();
        let spent = Mutex::new(UsageTotals::default());
        let vectors = {
            let work = timeout(DOCUMENTS_TIMEOUT, self.request_all(embedder, &spent));
            tokio::pin!(work);
            loop {
                tokio::select! {
                    biased;
                    done = &mut work => break done,
                    () = sleep(host.keepalive_interval()) => host.note("embedding the documents").await?,
                }
            }
        };
        let model = embedder.model.name().to_owned();
        let too_slow = |_| {
            let limit = DOCUMENTS_TIMEOUT.as_secs() / 60;
            Err(format!(
                "{model} did not embed the documents within {limit} minutes; the vectors so far are cached for the next task"
            ))
        };
        let spent = spent.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (vectors, notice) = match vectors.unwrap_or_else(too_slow) {
            Ok((objective, passages)) => {
                let passages = host.store_value(passages.to_bytes()).await?;
                (Some(StoredVectors { objective, passages }), None)
            }
            Err(reason) => {
                tracing::warn!(reason, "searching documents by words alone");
                let notice = describe_word_search(&reason);
                host.note(&notice).await?;
                (None, Some(notice))
            }
        };
        Ok(EmbeddingsStep { model, vectors, notice, spent, took_ms: to_millis(began.elapsed()) })
    }

    /// Returns the vectors of the objective and of the passages. The error is for the user.
    async fn request_all(
        &self,
        embedder: &Embedder,
        spent: &Mutex<UsageTotals>,
    ) -> Result<(Vec<f32>, PassageVectors), String> {
        let model = embedder.model.name();
        if let Some(model) = embedder.model.uncounted_cost().filter(|_| self.allowance.cost_micros.is_some())
        {
            return Err(describe_uncounted_cost(model));
        }
        let texts: Vec<(String, Vec<&str>)> =
            self.corpus.passage_texts().map(|(document, texts)| (document.sha256.clone(), texts)).collect();
        let count: usize = texts.iter().map(|(_, texts)| texts.len()).sum();
        if count > MAX_PASSAGES {
            return Err(format!("they have {count} passages, and at most {MAX_PASSAGES} are embedded"));
        }
        let count_usage = |usage: UsageTotals| {
            spent.lock().unwrap_or_else(PoisonError::into_inner).add_totals(&usage);
        };
        let objective = Request::for_embeddings([shorten(self.objective)]);
        self.check_reservation(&[&objective], &UsageTotals::default())?;
        let reply = embedder.request_vectors(&objective, BATCH_TIMEOUT).await?;
        count_usage(embedder.usage_of(&reply));
        let objective = reply.vectors.into_iter().next().unwrap_or_default();
        let dimensions = objective.len();

        let cache = VectorCache::new(self.cache.clone(), model, dimensions);
        // Held until the vectors are cached, so that only one of several attempts on a machine pays for them.
        let _lock = cache.lock().await;
        let names = texts.iter().map(|(sha256, texts)| (cache.name_of(sha256), texts.len())).collect();
        let mut known = cache.load(names).await;
        let missing = texts.iter().zip(&known).enumerate().filter(|(_, (_, known))| known.is_none());
        let missing: Vec<(usize, &str)> = missing
            .flat_map(|(number, ((_, texts), _))| texts.iter().map(move |text| (number, *text)))
            .collect();
        let requests: Vec<Request> = missing
            .chunks(BATCH)
            .map(|batch| Request::for_embeddings(batch.iter().map(|(_, text)| shorten(text))))
            .collect();
        let so_far = spent.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.check_reservation(&requests.iter().collect::<Vec<_>>(), &so_far)?;
        // Boxed one by one: the compiler can't prove that a stream of closures over borrowed requests is `Send`.
        let replies: Vec<_> =
            requests.iter().map(|request| embedder.request_vectors(request, BATCH_TIMEOUT).boxed()).collect();
        let mut replies = futures::stream::iter(replies).buffered(SIDE_BY_SIDE);
        let mut places = missing.iter().map(|(number, _)| *number);
        while let Some(reply) = replies.next().await {
            let reply = reply?;
            count_usage(embedder.usage_of(&reply));
            for vector in &reply.vectors {
                let Some(number) = places.next() else { break };
                let of_document = known[number].get_or_insert_with(|| PassageVectors::new(dimensions));
                if !of_document.push(vector) {
                    return Err(describe_dimensions(model, dimensions, vector.len()));
                }
                if of_document.len() == texts[number].1.len() {
                    cache.store(cache.name_of(&texts[number].0), of_document.to_bytes()).await;
                }
            }
        }
        let mut all = PassageVectors::new(dimensions);
        for ((_, texts), vectors) in texts.iter().zip(known) {
            let bytes = vectors.map(|vectors| vectors.to_bytes()).unwrap_or_default();
            if !all.extend_from_bytes(&bytes, texts.len()) {
                return Err(format!("{model} gave fewer vectors than passages"));
            }
        }
        Ok((objective, all))
    }

    /// Refuses requests that need more than half of the reservation: the conversation needs the rest.
    fn check_reservation(&self, requests: &[&Request], spent: &UsageTotals) -> Result<(), String> {
        let mut left = ResourceAmounts::default();
        for (kind, amount) in self.allowance.iter() {
            left.set(kind, Some((amount / 2).saturating_sub(kind.amount_used(&spent.usage))));
        }
        let numbered = requests.iter().map(|request| (0, *request)).collect();
        match select_affordable(numbered, left) {
            (_, true) => Ok(()),
            (_, false) => Err("the budget of the task does not pay for embedding them".to_owned()),
        }
    }
}

fn shorten(text: &str) -> &str {
    text.char_indices().nth(MAX_CHARACTERS).map_or(text, |(end, _)| &text[..end])
}

/// The vectors on disk of one model, in one number of dimensions. It can be deleted at any time.
struct VectorCache {
    folder: Option<PathBuf>,
    dimensions: usize,
    /// The model and the number of dimensions.
    key: String,
}

impl VectorCache {
    fn new(folder: Option<PathBuf>, model: &str, dimensions: usize) -> Self {
        Self {
            folder,
            dimensions,
            key: format!("millrace vectors {FORMAT}\n{}:{model}{dimensions}", model.len()),
        }
    }

    /// Waits until no other attempt on this machine embeds with this model. `None` if that can't be found out.
    async fn lock(&self) -> Option<fs::File> {
        let (folder, name) = (self.folder.clone()?, hash(&self.key));
        tokio::task::spawn_blocking(move || lock_cache_entry(&folder, &name).ok()).await.ok()?
    }

    /// Returns the file of a document's vectors; `None` without a cache.
    fn name_of(&self, sha256: &str) -> Option<PathBuf> {
        let name = hash(&format!("{}\n{sha256}", self.key));
        Some(self.folder.as_ref()?.join(FOLDER).join(&name[..2]).join(name))
    }

    /// Loads the vectors of documents, each with the number of its passages. A damaged file counts as missing.
    async fn load(&self, files: Vec<(Option<PathBuf>, usize)>) -> Vec<Option<PassageVectors>> {
        let (count, dimensions) = (files.len(), self.dimensions);
        let read = move || {
            let one = |(path, passages): &(Option<PathBuf>, usize)| {
                read_vectors(path.as_deref()?, *passages, dimensions)
            };
            files.iter().map(one).collect()
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| vec![None; count])
    }

    /// Stores the vectors of a document. Not fatal: they are requested again next time.
    async fn store(&self, path: Option<PathBuf>, numbers: Vec<u8>) {
        let Some(path) = path else { return };
        let write = move || {
            let bytes = [Sha256::digest(&numbers).as_slice(), &numbers].concat();
            if let Err(error) = write_atomically(&path, &bytes) {
                tracing::debug!(path = %path.display(), %error, "could not cache vectors");
            }
        };
        drop(tokio::task::spawn_blocking(write).await);
    }
}

/// Reads the file of a document's vectors: their hash, and the numbers.
fn read_vectors(path: &Path, passages: usize, dimensions: usize) -> Option<PassageVectors> {
    let bytes = fs::read(path).ok()?;
    let (digest, numbers) = bytes.split_at_checked(32)?;
    let mut vectors = PassageVectors::new(dimensions);
    let is_whole =
        Sha256::digest(numbers).as_slice() == digest && vectors.extend_from_bytes(numbers, passages);
    is_whole.then_some(vectors)
}

fn hash(text: &str) -> String {
    encode_hex(&Sha256::digest(text))
}
