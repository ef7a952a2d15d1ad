//! `web_search`: pages for some words. It chooses the engine (Tavily with a key, else SearXNG with a URL, else
//! DuckDuckGo's HTML edition), asks it, and shows what was found in one form. Engines are named by whoever runs the
//! worker, so their addresses are not checked. Keys are never shown.

use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::tool::{Call, Output, Tool, ToolError, ToolSpec, read_arguments, schema_of};
use reqwest::{Client, RequestBuilder, StatusCode};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use super::engines::{self, Found, Misread};
use super::fetch::chain;
use crate::material::{material, one_line};
use crate::tls;

/// The most results of one search.
pub const MAX_RESULTS: usize = 20;
const DEFAULT_RESULTS: usize = 8;
const MAX_QUERY: usize = 400;
const MAX_SNIPPET: usize = 500;
const MAX_ANSWER: usize = 2_000_000;
/// How long a search may take.
const LIMIT: Duration = Duration::from_secs(20);

const TAVILY: &str = "https://api.tavily.com/search";
const DUCKDUCKGO: &str = "https://html.duckduckgo.com/html/";

/// Which engine `web_search` asks. Without settings it goes by the worker's environment: TAVILY_API_KEY, else
/// SEARXNG_URL, else DuckDuckGo.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SearchSettings {
    /// The environment variable that holds Tavily's key, if not TAVILY_API_KEY.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tavily_key_env: Option<String>,
    /// Another address for Tavily's search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tavily_url: Option<Endpoint>,
    /// A SearXNG instance whose JSON format is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub searxng_url: Option<Endpoint>,
    /// Another address for DuckDuckGo's HTML edition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duckduckgo_url: Option<Endpoint>,
}

/// The tool `web_search`.
pub struct Search {
    engine: Engine,
    client: Client,
    limit: Duration,
}

enum Engine {
    Tavily { url: Url, key: SecretString },
    Searxng { url: Url },
    DuckDuckGo { url: Url },
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// What to look for, in a few words.
    query: String,
    /// How many results are wanted: 8 unless given, 20 at most.
    max_results: Option<u32>,
}

/// Why nothing can be searched with.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The TLS of this machine can't be used.
    #[error("no HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    /// An environment variable holds something else than it should.
    #[error("SEARXNG_URL is {0:?}, which is no http or https URL")]
    SearxngUrl(String),
}

/// Where a service answers: an http or https URL. MCP servers are named by it too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint(pub(crate) Url);

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match Url::parse(&text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(Self(url)),
            Ok(_) | Err(_) => Err(format!("{text:?} is no http or https URL")),
        }
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.0.into()
    }
}

impl JsonSchema for Endpoint {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Endpoint".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "description": "an http or https URL"})
    }
}

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("the query must have 1 to {MAX_QUERY} characters")]
    Query,
    #[error("max_results must be 1 to {MAX_RESULTS}")]
    Count,
    #[error("{0} refuses the key it was given")]
    Key(&'static str),
    #[error("{0} allows no more searches for now; try again later, or go on without")]
    Limited(&'static str),
    #[error("{0} does not give JSON; add \"json\" to search.formats in its settings.yml")]
    NoJson(&'static str),
    #[error("{0} answered {1}")]
    Status(&'static str, StatusCode),
    #[error("{0}")]
    Misread(#[from] Misread),
    #[error("{0}'s answer is larger than {MAX_ANSWER} bytes")]
    Large(&'static str),
    #[error("{0} did not answer within {limit} s", limit = .1.as_secs_f32())]
    Slow(&'static str, Duration),
    #[error("{0} can't be reached")]
    Connection(&'static str, #[source] reqwest::Error),
}

impl Engine {
    fn choose(settings: SearchSettings, env: impl Fn(&str) -> Option<String>) -> Result<Self, OpenError> {
        let or = |url: Option<Endpoint>, known: &'static str| {
            url.map_or_else(|| Url::parse(known).expect("a literal URL parses"), |url| url.0)
        };
        let variable = settings.tavily_key_env.as_deref().unwrap_or("TAVILY_API_KEY");
        if let Some(key) = env(variable).filter(|key| !key.trim().is_empty()) {
            let key = key.trim().to_owned().into();
            return Ok(Self::Tavily { url: or(settings.tavily_url, TAVILY), key });
        }
        if let Some(url) = settings.searxng_url {
            return Ok(Self::Searxng { url: url.0 });
        }
        match env("SEARXNG_URL").filter(|url| !url.is_empty()) {
            Some(text) => match Endpoint::try_from(text) {
                Ok(url) => Ok(Self::Searxng { url: url.0 }),
                Err(_) => Err(OpenError::SearxngUrl(env("SEARXNG_URL").unwrap_or_default())),
            },
            None => Ok(Self::DuckDuckGo { url: or(settings.duckduckgo_url, DUCKDUCKGO) }),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Tavily { .. } => "Tavily",
            Self::Searxng { .. } => "SearXNG",
            Self::DuckDuckGo { .. } => "DuckDuckGo",
        }
    }

    fn request(&self, client: &Client, query: &str, most: usize) -> RequestBuilder {
        match self {
            Self::Tavily { url, key } => client
                .post(url.clone())
                .bearer_auth(key.expose_secret())
                .json(&json!({"query": query, "max_results": most})),
            Self::Searxng { url } => {
                let mut url = url.clone();
                if !url.path().ends_with("/search") {
                    url.set_path(&format!("{}/search", url.path().trim_end_matches('/')));
                }
                url.query_pairs_mut().append_pair("q", query).append_pair("format", "json");
                client.get(url)
            }
            Self::DuckDuckGo { url } => {
                let form: String = url::form_urlencoded::Serializer::new(String::new())
                    .append_pair("q", query)
                    .append_pair("kl", "wt-wt")
                    .finish();
                let kind = "application/x-www-form-urlencoded";
                client.post(url.clone()).header(reqwest::header::CONTENT_TYPE, kind).body(form)
            }
        }
    }

    /// What a status other than success means of this engine. DuckDuckGo answers robots with 202 and a page that says
    /// so.
    fn fault(&self, status: StatusCode) -> Option<Fault> {
        match (self, status.as_u16()) {
            (Self::Tavily { .. }, 401 | 403) => Some(Fault::Key(self.name())),
            (Self::Searxng { .. }, 403) => Some(Fault::NoJson(self.name())),
            (_, 429 | 432 | 433) => Some(Fault::Limited(self.name())),
            _ if status.is_success() => None,
            _ => Some(Fault::Status(self.name(), status)),
        }
    }

    fn read(&self, body: &str) -> Result<Vec<Found>, Misread> {
        match self {
            Self::Tavily { .. } | Self::Searxng { .. } => engines::json(body),
            Self::DuckDuckGo { .. } => engines::duckduckgo(body),
        }
    }
}

impl Search {
    /// The tool, with the engine that the settings and this process's environment call for.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn new(settings: SearchSettings) -> Result<Self, OpenError> {
        Self::with_environment(settings, |name| std::env::var(name).ok())
    }

    /// The tool, with another environment.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn with_environment(
        settings: SearchSettings,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, OpenError> {
        Ok(Self { engine: Engine::choose(settings, env)?, client: tls::client().build()?, limit: LIMIT })
    }

    /// With less time for a search than 20 s.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit.min(LIMIT);
        self
    }

    /// The engine's name: "Tavily", "SearXNG" or "DuckDuckGo".
    #[must_use]
    pub fn engine(&self) -> &'static str {
        self.engine.name()
    }

    async fn run(&self, arguments: Arguments, call: &Call) -> Result<String, Fault> {
        let query = one_line(&arguments.query, MAX_QUERY + 1);
        if query.is_empty() || query.chars().count() > MAX_QUERY {
            return Err(Fault::Query);
        }
        let most = arguments.max_results.map_or(DEFAULT_RESULTS, |most| most as usize);
        if !(1..=MAX_RESULTS).contains(&most) {
            return Err(Fault::Count);
        }
        let left = call.deadline.map_or(self.limit, |at| at.saturating_duration_since(Instant::now()));
        let limit = self.limit.min(left);
        let body = tokio::time::timeout(limit, self.ask(&query, most))
            .await
            .map_err(|_| Fault::Slow(self.engine(), limit))??;
        Ok(self.show(&query, self.engine.read(&body)?, most))
    }

    async fn ask(&self, query: &str, most: usize) -> Result<String, Fault> {
        let unreachable = |e: reqwest::Error| Fault::Connection(self.engine(), e.without_url());
        let request = self.engine.request(&self.client, query, most);
        let mut response = request.send().await.map_err(unreachable)?;
        if let Some(fault) = self.engine.fault(response.status()) {
            return Err(fault);
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_ANSWER {
                return Err(Fault::Large(self.engine()));
            }
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    fn show(&self, query: &str, found: Vec<Found>, most: usize) -> String {
        if found.is_empty() {
            return format!("{} found nothing for {query:?}; try other or fewer words", self.engine());
        }
        let entries = found.iter().take(most).enumerate().map(|(at, found)| {
            let title = one_line(&found.title, 200);
            let snippet = one_line(&found.snippet, MAX_SNIPPET);
            format!("{}. {title}\n   {}\n   {snippet}", at + 1, found.url)
        });
        let origin = format!("{}, found for {query:?}", self.engine());
        material(&origin, &entries.collect::<Vec<_>>().join("\n"))
    }
}

impl From<Fault> for ToolError {
    fn from(fault: Fault) -> Self {
        match &fault {
            Fault::Query | Fault::Count => Self::Refused(fault.to_string()),
            Fault::Connection(_, error) => Self::Failed { told: fault.to_string(), detail: chain(error) },
            Fault::Key(_)
            | Fault::Limited(_)
            | Fault::NoJson(_)
            | Fault::Status(..)
            | Fault::Misread(_)
            | Fault::Large(_)
            | Fault::Slow(..) => Self::Failed { told: fault.to_string(), detail: "web_search".into() },
        }
    }
}

impl Tool for Search {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "web_search".into(),
            description:
                "Searches the web: titles, URLs and a few words of each page found. Read a page with \
                          fetch_url before you rely on it."
                    .into(),
            schema: schema_of::<Arguments>(),
        }
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move { Ok(self.run(read_arguments("web_search", arguments)?, call).await?.into()) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(settings: &str, env: &[(&str, &str)]) -> String {
        let get = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Search::with_environment(serde_json::from_str(settings).unwrap(), get)
            .map_or_else(|e| e.to_string(), |search| search.engine().to_owned())
    }

    #[test]
    fn the_engine_is_the_first_that_settings_and_environment_call_for() {
        assert_eq!(engine("{}", &[]), "DuckDuckGo");
        assert_eq!(engine("{}", &[("SEARXNG_URL", "http://search.lan/")]), "SearXNG");
        assert_eq!(engine(r#"{"searxng_url":"http://search.lan"}"#, &[]), "SearXNG");
        assert_eq!(engine("{}", &[("TAVILY_API_KEY", " ")]), "DuckDuckGo");
        assert_eq!(engine("{}", &[("TAVILY_API_KEY", "k"), ("SEARXNG_URL", "http://s/")]), "Tavily");
        assert_eq!(engine(r#"{"tavily_key_env":"MY_KEY"}"#, &[("TAVILY_API_KEY", "k")]), "DuckDuckGo");
        assert!(engine("{}", &[("SEARXNG_URL", "search.lan")]).contains("no http or https URL"));
    }

    #[test]
    fn a_searxng_instance_may_be_named_with_or_without_its_path() {
        for (base, expected) in [
            ("http://s.example", "http://s.example/search?q=a+b&format=json"),
            ("http://s.example/searx/", "http://s.example/searx/search?q=a+b&format=json"),
            ("http://s.example/search", "http://s.example/search?q=a+b&format=json"),
        ] {
            let engine = Engine::Searxng { url: Url::parse(base).unwrap() };
            let client = tls::client().build().unwrap();
            assert_eq!(engine.request(&client, "a b", 3).build().unwrap().url().as_str(), expected);
        }
    }
}
