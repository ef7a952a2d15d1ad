//! Parses the responses of three search engines. No I/O here.

use dom_query::{Document, Selection};
use millrace_protocol::foreign_json::parse_foreign_json;
use serde::Deserialize;
use url::Url;

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
