//! The capability that is a service: the task goes to it as a POST, and the result is what it answers. It owns the
//! request and its retries; a service that recognises the key of a request does the work once.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use millrace_agent::spec::About;
use millrace_agent::tool::Effect;
use millrace_forms::{Fields, Mistake, Node, Place, Value as Yaml};
use millrace_models::http::client;
use millrace_protocol::result::{CapabilityDescription, TaskError, TaskResult};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::outside::{self, Begun, Failed, Task, begin, effect, record, result, timeout};
use crate::{Attempt, Capability, Outcome, file};

const FIELDS: [&str; 4] = ["url", "headers", "timeout", "effect"];
/// How long the work may take with all tries, unless the file says another time.
const TIMEOUT: Duration = Duration::from_secs(600);
/// The wait before the second try; it doubles up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);
/// The most bytes of an answer.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// How much of a refusal is told, in characters.
const SHOWN: usize = 500;

/// A service as a capability.
pub(crate) struct Http {
    about: About,
    url: Url,
    headers: HeaderMap,
    timeout: Duration,
    effect: Effect,
}

/// A try that brought no answer.
struct Missed {
    failed: Failed,
    /// Whether another try may do better.
    passes: bool,
    /// How long the service wants to be left alone.
    wait: Option<Duration>,
}

impl Http {
    /// Reads a file. Headers are filled from this process's environment.
    pub fn read(root: &Node) -> Result<Self, Mistake> {
        let fields = Fields::of(root, "capability of the kind http", &file::fields(&FIELDS))?;
        let about = About::read(&fields)?;
        let node = fields.required("url")?;
        let url = node.text("url")?;
        let url =
            Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        Ok(Self {
            about,
            url: url.ok_or_else(|| node.not("url", "an address that begins with http:// or https://"))?,
            headers: fields.get("headers").map(headers).transpose()?.unwrap_or_default(),
            timeout: timeout(&fields, TIMEOUT)?,
            effect: effect(&fields, Effect::Idempotent)?,
        })
    }

    pub fn about(&self) -> &About {
        &self.about
    }

    async fn work(&self, attempt: &mut Attempt<'_>) -> Result<TaskResult, TaskError> {
        let task = Task::of(attempt).await?;
        if let Begun::Done(done) = begin(attempt, self.effect).await? {
            return Ok(*done);
        }
        let answer = self.ask(&task).await;
        let result = answer.and_then(|answer| result(&answer, self.about.output.as_ref()));
        let result = result.map_err(|failed| failed.error(self.effect))?;
        record(attempt, &result).await?;
        Ok(result)
    }

    /// Asks until there is an answer, or no time is left. What must not be done twice, and may be done, is not asked for
    /// again.
    async fn ask(&self, task: &Task) -> Result<Vec<u8>, Failed> {
        let began = Instant::now();
        let left = || self.timeout.saturating_sub(began.elapsed());
        let body = task.json();
        let mut pause = FIRST;
        loop {
            let missed = match self.post(&task.key, body.clone(), left()).await {
                Ok(answer) => return Ok(answer),
                Err(missed) => missed,
            };
            let wait = missed.wait.unwrap_or(pause);
            let Failed { why, may_be_done } = missed.failed;
            let may_ask = missed.passes && !(may_be_done && self.effect == Effect::Effect);
            if !may_ask || wait >= left() {
                let why = format!("the service at {} gave no result: {why}", self.address());
                return Err(Failed { why, may_be_done });
            }
            sleep(wait).await;
            pause = (pause * 2).min(LONGEST);
        }
    }

    async fn post(&self, key: &str, body: Vec<u8>, left: Duration) -> Result<Vec<u8>, Missed> {
        let request = client()
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", key)
            .headers(self.headers.clone())
            .timeout(left)
            .body(body);
        let response = request.send().await.map_err(|error| unsent(&error))?;
        if response.status().is_success() {
            return read(response).await;
        }
        Err(refused(response).await)
    }

    /// The address without what may be secret in it.
    fn address(&self) -> String {
        format!("{}{}", self.url.origin().ascii_serialization(), self.url.path())
    }
}

impl Capability for Http {
    fn describe(&self) -> CapabilityDescription {
        self.about.describe()
    }

    fn slots(&self) -> Option<u32> {
        self.about.slots
    }

    fn run<'a>(&'a self, attempt: &'a mut Attempt<'_>) -> BoxFuture<'a, Result<Outcome, TaskError>> {
        async move { self.work(attempt).await.map(Outcome::Result) }.boxed()
    }
}

fn unsent(error: &reqwest::Error) -> Missed {
    // What could not be connected was never asked; anything else may have been done.
    let failed = if error.is_connect() {
        Failed::undone("it can't be reached".into())
    } else {
        Failed { why: without_address(error), may_be_done: !error.is_builder() }
    };
    Missed { failed, passes: !error.is_builder(), wait: None }
}

async fn refused(response: Response) -> Missed {
    let status = response.status();
    let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let text = read(response).await.unwrap_or_default();
    let text: String = String::from_utf8_lossy(&text).trim().chars().take(SHOWN).collect();
    Missed {
        failed: Failed { why: format!("{status} {text}"), may_be_done: status.is_server_error() },
        passes: status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS,
        wait: wait.map(Duration::from_secs),
    }
}

async fn read(response: Response) -> Result<Vec<u8>, Missed> {
    let missed = |why, passes| Missed { failed: Failed::unclear(why), passes, wait: None };
    let mut answer = Vec::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| missed(without_address(&error), true))?;
        answer.extend_from_slice(&piece);
        if answer.len() > MAX_ANSWER {
            return Err(missed(format!("its answer is longer than {MAX_ANSWER} bytes"), false));
        }
    }
    Ok(answer)
}

/// The words of an error without the URL, which may hold a key.
fn without_address(error: &reqwest::Error) -> String {
    match (error.is_timeout(), error.is_body() || error.is_decode()) {
        (true, _) => "it did not answer in time".into(),
        (false, true) => "its answer broke off".into(),
        (false, false) => "the connection broke".into(),
    }
}

/// Headers by name; `${NAME}` in a value is that variable of the environment.
fn headers(node: &Node) -> Result<HeaderMap, Mistake> {
    let Yaml::Map(entries) = &node.value else {
        return Err(node.not("headers", "a map of header names and values"));
    };
    let mut headers = HeaderMap::new();
    for entry in entries {
        let name = HeaderName::from_bytes(entry.key.as_bytes())
            .map_err(|_| Mistake::at(entry.place, format!("{:?} is no name of a header", entry.key)))?;
        let filled = filled(entry.node.text(&entry.key)?, entry.node.place)?;
        let mut value = HeaderValue::from_str(&filled).map_err(|_| {
            Mistake::at(entry.node.place, format!("the value of {:?} is none of a header", entry.key))
        })?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn filled(text: &str, place: Place) -> Result<String, Mistake> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, behind) =
            after.split_once('}').ok_or_else(|| Mistake::at(place, "a \"${\" has no \"}\" behind it"))?;
        let value = std::env::var(name)
            .map_err(|_| Mistake::at(place, format!("the environment has no variable {name:?}; set it")))?;
        filled.push_str(before);
        filled.push_str(value.trim());
        rest = behind;
    }
    Ok(filled + rest)
}

/// The JSON Schema of such a file.
pub(crate) fn schema() -> Value {
    let own = json!({
        "url": { "description": "Where the task is posted.", "type": "string", "pattern": "^https?://" },
        "headers": {
            "description": "Headers of the request; ${NAME} is that variable of the worker's environment.",
            "type": "object",
            "additionalProperties": { "type": "string" },
        },
    });
    outside::schema("http", "url", own)
}
