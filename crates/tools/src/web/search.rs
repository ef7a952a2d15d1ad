//! The tool `web_search`. It chooses the engine (Tavily if there is a key, else SearXNG if there is a URL, else DuckDuckGo's
//! HTML version), sends the query, and formats the results. Engines are configured by the operator of the worker, so
//! their addresses are not checked. API keys are never shown.
//!
//! Parses the responses of three search engines. No I/O here.

use std::time::{Duration, Instant};

use dom_query::{Document, Selection};
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::tool::{Call, Output, Tool, ToolError, ToolSpec, read_arguments, schema_of};
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::secrets::{SecretRedactor, remember_secrets};
use reqwest::{Client, RequestBuilder, StatusCode};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use super::fetch::error_chain;
use crate::http_client;
use crate::untrusted::{mark_untrusted, one_line};

/// Maximum number of results per search.
pub const MAX_RESULTS: usize = 20;
const DEFAULT_RESULTS: usize = 8;
const MAX_QUERY: usize = 400;
const MAX_SNIPPET: usize = 500;
const MAX_RESPONSE: usize = 2_000_000;
const TIMEOUT: Duration = Duration::from_secs(20);

const TAVILY: &str = "https://api.tavily.com/search";
const DUCKDUCKGO: &str = "https://html.duckduckgo.com/html/";

/// The settings of `web_search`. By default the worker's environment determines the engine: TAVILY_API_KEY, else
/// SEARXNG_URL, else DuckDuckGo.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SearchSettings {
    /// The environment variable with Tavily's key; default TAVILY_API_KEY.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tavily_key_env: Option<String>,
    /// The URL of Tavily's search, if not the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tavily_url: Option<Endpoint>,
    /// The URL of a SearXNG instance whose JSON format is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub searxng_url: Option<Endpoint>,
    /// The URL of DuckDuckGo's HTML version, if not the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duckduckgo_url: Option<Endpoint>,
}

pub struct SearchTool {
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
    /// The search query, a few words.
    query: String,
    /// Maximum number of results; default 8, at most 20.
    max_results: Option<u32>,
}

#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error("cannot create an HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    #[error("SEARXNG_URL is {0:?}, which is not an http or https URL")]
    SearxngUrl(String),
}

/// The http or https URL of a service, also used for MCP servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint(pub(crate) Url);

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match Url::parse(&text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(Self(url)),
            Ok(_) | Err(_) => Err(format!("{text:?} is not an http or https URL")),
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

#[derive(Debug, thiserror::Error)]
enum SearchCallError {
    #[error("the query must have 1 to {MAX_QUERY} characters")]
    InvalidQuery,
    #[error("max_results must be 1 to {MAX_RESULTS}")]
    InvalidCount,
    #[error("{0} rejected its API key")]
    KeyRejected(&'static str),
    #[error("{0} allows no more searches at the moment; retry later, or continue without")]
    RateLimited(&'static str),
    #[error("{0} does not return JSON; add \"json\" to search.formats in its settings.yml")]
    JsonDisabled(&'static str),
    #[error("{0} answered {1}")]
    Status(&'static str, StatusCode),
    #[error("{0}")]
    ResponseError(#[from] ResponseError),
    #[error("the response of {0} is larger than {MAX_RESPONSE} bytes")]
    TooLarge(&'static str),
    #[error("{0} timed out after {limit} s", limit = .1.as_secs_f32())]
    Timeout(&'static str, Duration),
    #[error("{0} cannot be reached")]
    Connection(&'static str, #[source] reqwest::Error),
}

impl Engine {
    fn choose_engine(
        settings: SearchSettings,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SearchError> {
        let or = |url: Option<Endpoint>, known: &'static str| {
            url.map_or_else(|| Url::parse(known).expect("a literal URL parses"), |url| url.0)
        };
        let variable = settings.tavily_key_env.as_deref().unwrap_or("TAVILY_API_KEY");
        if let Some(key) = env(variable).filter(|key| !key.trim().is_empty()) {
            let mut secrets = SecretRedactor::default();
            secrets.add(&key);
            remember_secrets(&secrets);
            let key = key.trim().to_owned().into();
            return Ok(Self::Tavily { url: or(settings.tavily_url, TAVILY), key });
        }
        if let Some(url) = settings.searxng_url {
            return Ok(Self::Searxng { url: url.0 });
        }
        match env("SEARXNG_URL").filter(|url| !url.is_empty()) {
            Some(text) => match Endpoint::try_from(text) {
                Ok(url) => Ok(Self::Searxng { url: url.0 }),
                Err(_) => Err(SearchError::SearxngUrl(env("SEARXNG_URL").unwrap_or_default())),
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

    fn build_search_request(&self, client: &Client, query: &str, max_results: usize) -> RequestBuilder {
        match self {
            Self::Tavily { url, key } => client
                .post(url.clone())
                .bearer_auth(key.expose_secret())
                .json(&json!({"query": query, "max_results": max_results})),
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

    /// Returns the error that a status means for this engine. DuckDuckGo sends bots status 202 and a page with a bot check.
    fn status_error(&self, status: StatusCode) -> Option<SearchCallError> {
        match (self, status.as_u16()) {
            (Self::Tavily { .. }, 401 | 403) => Some(SearchCallError::KeyRejected(self.name())),
            (Self::Searxng { .. }, 403) => Some(SearchCallError::JsonDisabled(self.name())),
            (_, 429 | 432 | 433) => Some(SearchCallError::RateLimited(self.name())),
            _ if status.is_success() => None,
            _ => Some(SearchCallError::Status(self.name(), status)),
        }
    }

    fn parse_response(&self, body: &str) -> Result<Vec<SearchResult>, ResponseError> {
        match self {
            Self::Tavily { .. } | Self::Searxng { .. } => parse_json(body),
            Self::DuckDuckGo { .. } => parse_duckduckgo(body),
        }
    }
}

impl SearchTool {
    /// Creates the tool with the engine chosen by the settings and the environment.
    pub fn new(settings: SearchSettings) -> Result<Self, SearchError> {
        Self::with_environment(settings, |name| std::env::var(name).ok())
    }

    pub fn with_environment(
        settings: SearchSettings,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SearchError> {
        Ok(Self {
            engine: Engine::choose_engine(settings, env)?,
            client: http_client::client().build()?,
            limit: TIMEOUT,
        })
    }

    /// Sets a timeout shorter than 20 s.
    pub fn with_timeout(mut self, limit: Duration) -> Self {
        self.limit = limit.min(TIMEOUT);
        self
    }

    /// Returns the name of the engine: "Tavily", "SearXNG" or "DuckDuckGo".
    pub fn engine_name(&self) -> &'static str {
        self.engine.name()
    }

    async fn run_search(&self, arguments: Arguments, call: &Call) -> Result<String, SearchCallError> {
        let query = one_line(&arguments.query, MAX_QUERY + 1);
        if query.is_empty() || query.chars().count() > MAX_QUERY {
            return Err(SearchCallError::InvalidQuery);
        }
        let max_results = arguments.max_results.map_or(DEFAULT_RESULTS, |max_results| max_results as usize);
        if !(1..=MAX_RESULTS).contains(&max_results) {
            return Err(SearchCallError::InvalidCount);
        }
        let remaining = call.deadline.map_or(self.limit, |at| at.saturating_duration_since(Instant::now()));
        let limit = self.limit.min(remaining);
        let body = tokio::time::timeout(limit, self.send_query(&query, max_results))
            .await
            .map_err(|_| SearchCallError::Timeout(self.engine_name(), limit))??;
        Ok(self.format_results(&query, self.engine.parse_response(&body)?, max_results))
    }

    async fn send_query(&self, query: &str, max_results: usize) -> Result<String, SearchCallError> {
        let unreachable =
            |e: reqwest::Error| SearchCallError::Connection(self.engine_name(), e.without_url());
        let request = self.engine.build_search_request(&self.client, query, max_results);
        let mut response = request.send().await.map_err(unreachable)?;
        if let Some(failure) = self.engine.status_error(response.status()) {
            return Err(failure);
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_RESPONSE {
                return Err(SearchCallError::TooLarge(self.engine_name()));
            }
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    fn format_results(&self, query: &str, results: Vec<SearchResult>, max_results: usize) -> String {
        if results.is_empty() {
            return format!("{} has no results for {query:?}; try other or fewer words", self.engine_name());
        }
        let entries = results.iter().take(max_results).enumerate().map(|(at, results)| {
            let title = one_line(&results.title, 200);
            let snippet = one_line(&results.snippet, MAX_SNIPPET);
            format!("{}. {title}\n   {}\n   {snippet}", at + 1, results.url)
        });
        let origin = format!("{}, results for {query:?}", self.engine_name());
        mark_untrusted(&origin, &entries.collect::<Vec<_>>().join("\n"))
    }
}

impl From<SearchCallError> for ToolError {
    fn from(failure: SearchCallError) -> Self {
        match &failure {
            SearchCallError::InvalidQuery | SearchCallError::InvalidCount => {
                Self::Refused(failure.to_string())
            }
            SearchCallError::Connection(_, source) => {
                Self::Failed { message: failure.to_string(), detail: error_chain(source) }
            }
            SearchCallError::KeyRejected(_)
            | SearchCallError::RateLimited(_)
            | SearchCallError::JsonDisabled(_)
            | SearchCallError::Status(..)
            | SearchCallError::ResponseError(_)
            | SearchCallError::TooLarge(_)
            | SearchCallError::Timeout(..) => {
                Self::Failed { message: failure.to_string(), detail: "web_search".into() }
            }
        }
    }
}

impl Tool for SearchTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "web_search".into(),
            description: "Searches the web and returns titles, URLs and snippets. Read a page with \
                          fetch_url before you rely on it."
                .into(),
            schema: schema_of::<Arguments>().into(),
        }
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move { Ok(self.run_search(read_arguments("web_search", arguments)?, call).await?.into()) }
            .boxed()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SearchResult {
    pub(crate) title: String,
    pub(crate) url: String,
    pub(crate) snippet: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResponseError {
    #[error(
        "DuckDuckGo shows a bot check (too many searches from this address); wait some minutes, or \
         set TAVILY_API_KEY or SEARXNG_URL"
    )]
    BotDetected,
    #[error("unexpected response of the search engine: {0}")]
    UnexpectedFormat(String),
}

/// The relevant part of a response of Tavily or SearXNG. Both call the snippet `content`.
#[derive(Deserialize)]
struct JsonResponse {
    results: Vec<JsonResult>,
}

#[derive(Deserialize)]
struct JsonResult {
    url: String,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    content: Option<String>,
}

pub(crate) fn parse_json(body: &str) -> Result<Vec<SearchResult>, ResponseError> {
    let answer: JsonResponse =
        parse_foreign_json(body).map_err(|e| ResponseError::UnexpectedFormat(e.to_string()))?;
    let results =
        answer.results.into_iter().filter(|entry| is_web_url(&entry.url)).map(|entry| SearchResult {
            title: entry.title.unwrap_or_default(),
            url: entry.url,
            snippet: entry.content.unwrap_or_default(),
        });
    Ok(results.collect())
}

pub(crate) fn parse_duckduckgo(body: &str) -> Result<Vec<SearchResult>, ResponseError> {
    let page = Document::from(body);
    if page.select("#challenge-form, .anomaly-modal__title, .anomaly-modal__modal").exists() {
        return Err(ResponseError::BotDetected);
    }
    let results = page.select(".result");
    let results: Vec<SearchResult> = results.iter().filter_map(parse_result).collect();
    let nothing = page.select(".no-results, .result--no-result").exists();
    if results.is_empty() && !nothing && !page.select("#links, .results, .serp__results").exists() {
        return Err(ResponseError::UnexpectedFormat("no list of results in DuckDuckGo's page".into()));
    }
    Ok(results)
}

fn parse_result(entry: Selection<'_>) -> Option<SearchResult> {
    if entry.has_class("result--ad") {
        return None;
    }
    let link = entry.select_single("a.result__a");
    let url = decode_link_target(&link.attr("href")?)?;
    let snippet = entry.select_single(".result__snippet").text().to_string();
    Some(SearchResult { title: link.text().to_string(), url, snippet })
}

/// Returns the target of a result link: DuckDuckGo's redirects have it in `uddg`. Other links to DuckDuckGo are no results.
fn decode_link_target(href: &str) -> Option<String> {
    let base = Url::parse("https://duckduckgo.com/").ok()?;
    let url = base.join(href).ok()?;
    let own =
        url.host_str().is_some_and(|host| host == "duckduckgo.com" || host.ends_with(".duckduckgo.com"));
    let target = match url.query_pairs().find(|(name, _)| name == "uddg") {
        Some((_, target)) if own => target.into_owned(),
        Some(_) | None if own => return None,
        Some(_) | None => url.to_string(),
    };
    is_web_url(&target).then_some(target)
}

fn is_web_url(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| {
        let advertisement = url.host_str() == Some("duckduckgo.com") && url.path() == "/y.js";
        matches!(url.scheme(), "http" | "https") && !advertisement
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(settings: &str, env: &[(&str, &str)]) -> String {
        let get = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        SearchTool::with_environment(serde_json::from_str(settings).unwrap(), get)
            .map_or_else(|e| e.to_string(), |search| search.engine_name().to_owned())
    }

    #[test]
    fn settings_and_environment_determine_the_engine() {
        assert_eq!(engine("{}", &[]), "DuckDuckGo");
        assert_eq!(engine("{}", &[("SEARXNG_URL", "http://search.lan/")]), "SearXNG");
        assert_eq!(engine(r#"{"searxng_url":"http://search.lan"}"#, &[]), "SearXNG");
        assert_eq!(engine("{}", &[("TAVILY_API_KEY", " ")]), "DuckDuckGo");
        assert_eq!(engine("{}", &[("TAVILY_API_KEY", "k"), ("SEARXNG_URL", "http://s/")]), "Tavily");
        assert_eq!(engine(r#"{"tavily_key_env":"MY_KEY"}"#, &[("TAVILY_API_KEY", "k")]), "DuckDuckGo");
        assert!(engine("{}", &[("SEARXNG_URL", "search.lan")]).contains("not an http or https URL"));
    }

    #[test]
    fn searxng_urls_work_with_and_without_the_search_path() {
        for (base, expected) in [
            ("http://s.example", "http://s.example/search?q=a+b&format=json"),
            ("http://s.example/searx/", "http://s.example/searx/search?q=a+b&format=json"),
            ("http://s.example/search", "http://s.example/search?q=a+b&format=json"),
        ] {
            let engine = Engine::Searxng { url: Url::parse(base).unwrap() };
            let client = http_client::client().build().unwrap();
            assert_eq!(
                engine.build_search_request(&client, "a b", 3).build().unwrap().url().as_str(),
                expected
            );
        }
    }

    fn entry(class: &str, href: &str) -> String {
        format!(
            "<div class='result results_links {class}'><h2><a rel=nofollow class='result__a' href='{href}'>A \
             <b>title</b></a></h2><a class='result__snippet' href='{href}'>Some <b>words</b> &amp; more</a></div>"
        )
    }

    fn urls(entries: &[String]) -> Vec<String> {
        let page = format!("<div id='links' class='results'>{}</div>", entries.concat());
        parse_duckduckgo(&page).unwrap().into_iter().map(|results| results.url).collect()
    }

    #[test]
    fn duckduckgo_redirects_are_decoded_and_ads_are_skipped() {
        let results = urls(&[
            entry(
                "web-result",
                "//duckduckgo.com/l/?uddg=https%3A%2F%2Fa.example%2Fx%3Fy%3D1%26z&amp;rut=0f",
            ),
            entry("web-result", "https://b.example/plain"),
            entry("result--ad", "https://ads.example/"),
            entry("", "https://duckduckgo.com/y.js?ad_domain=ads.example"),
            entry("", "//duckduckgo.com/l/?uddg=https%3A%2F%2Fduckduckgo.com%2Fy.js%3Fad_domain%3Dx"),
            entry("", "//duckduckgo.com/l/?uddg=javascript%3Aalert(1)"),
            entry("", "/settings"),
        ]);
        assert_eq!(results, ["https://a.example/x?y=1&z", "https://b.example/plain"]);
    }

    #[test]
    fn markup_is_removed_from_titles_and_snippets() {
        let page = format!("<div id=links>{}</div>", entry("", "https://b.example/"));
        let results = parse_duckduckgo(&page).unwrap();
        assert_eq!(
            (results[0].title.as_str(), results[0].snippet.as_str()),
            ("A title", "Some words & more")
        );
    }

    #[test]
    fn bot_checks_other_pages_and_empty_results_are_distinguished() {
        let anomaly = "<form id='challenge-form' action='//duckduckgo.com/anomaly.js?sv=html'></form>";
        assert_eq!(parse_duckduckgo(anomaly), Err(ResponseError::BotDetected));
        assert!(matches!(
            parse_duckduckgo("<h1>502 Bad Gateway</h1>"),
            Err(ResponseError::UnexpectedFormat(_))
        ));
        assert_eq!(
            parse_duckduckgo("<div id=links><div class='no-results'>No results.</div></div>"),
            Ok(Vec::new())
        );
    }

    #[test]
    fn json_fields_are_optional_except_the_url() {
        let body = r#"{"query":"q","results":[{"url":"https://a.example/","title":"A","content":"words","score":0.9},
            {"url":"https://b.example/","title":null},{"url":"ftp://c.example/","title":"C"}]}"#;
        let results = parse_json(body).unwrap();
        assert_eq!(results.len(), 2);
        assert_eq!(results[0].snippet, "words");
        assert!(matches!(parse_json("<html>"), Err(ResponseError::UnexpectedFormat(_))));
        assert!(matches!(parse_json("{}"), Err(ResponseError::UnexpectedFormat(_))));
    }
}
