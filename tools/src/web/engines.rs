//! The wires of three search engines: how each is asked, and how its answer is read. No I/O here.

use dom_query::{Document, Selection};
use serde::Deserialize;
use url::Url;

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) title: String,
    pub(crate) url: String,
    pub(crate) snippet: String,
}

/// An answer that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misread {
    /// The engine takes us for a robot.
    #[error(
        "DuckDuckGo asks whether a person is searching (too many searches from this address); wait some minutes, or \
         set TAVILY_API_KEY or SEARXNG_URL"
    )]
    Anomaly,
    /// It is no answer of this engine.
    #[error("the search engine's answer is not what it should be: {0}")]
    Shape(String),
}

/// What Tavily and SearXNG answer, as far as it matters. Both call the snippet `content`.
#[derive(Deserialize)]
struct Answer {
    results: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    url: String,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    content: Option<String>,
}

/// Reads an answer of Tavily or SearXNG.
pub(crate) fn json(body: &str) -> Result<Vec<Found>, Misread> {
    let answer: Answer = serde_json::from_str(body).map_err(|e| Misread::Shape(e.to_string()))?;
    let found = answer.results.into_iter().filter(|entry| is_web(&entry.url)).map(|entry| Found {
        title: entry.title.unwrap_or_default(),
        url: entry.url,
        snippet: entry.content.unwrap_or_default(),
    });
    Ok(found.collect())
}

/// Reads a page of DuckDuckGo's HTML edition.
pub(crate) fn duckduckgo(body: &str) -> Result<Vec<Found>, Misread> {
    let page = Document::from(body);
    if page.select("#challenge-form, .anomaly-modal__title, .anomaly-modal__modal").exists() {
        return Err(Misread::Anomaly);
    }
    let results = page.select(".result");
    let found: Vec<Found> = results.iter().filter_map(result).collect();
    let nothing = page.select(".no-results, .result--no-result").exists();
    if found.is_empty() && !nothing && !page.select("#links, .results, .serp__results").exists() {
        return Err(Misread::Shape("no list of results in DuckDuckGo's page".into()));
    }
    Ok(found)
}

fn result(entry: Selection<'_>) -> Option<Found> {
    if entry.has_class("result--ad") {
        return None;
    }
    let link = entry.select_single("a.result__a");
    let url = target(&link.attr("href")?)?;
    let snippet = entry.select_single(".result__snippet").text().to_string();
    Some(Found { title: link.text().to_string(), url, snippet })
}

/// Where a link of the results leads: DuckDuckGo's own redirects name it in `uddg`. Links of its own are no results.
fn target(href: &str) -> Option<String> {
    let base = Url::parse("https://duckduckgo.com/").ok()?;
    let url = base.join(href).ok()?;
    let own =
        url.host_str().is_some_and(|host| host == "duckduckgo.com" || host.ends_with(".duckduckgo.com"));
    let target = match url.query_pairs().find(|(name, _)| name == "uddg") {
        Some((_, target)) if own => target.into_owned(),
        Some(_) | None if own => return None,
        Some(_) | None => url.to_string(),
    };
    is_web(&target).then_some(target)
}

fn is_web(url: &str) -> bool {
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
        duckduckgo(&page).unwrap().into_iter().map(|found| found.url).collect()
    }

    #[test]
    fn duckduckgos_redirects_are_decoded_and_its_advertisements_left_out() {
        let found = urls(&[
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
        assert_eq!(found, ["https://a.example/x?y=1&z", "https://b.example/plain"]);
    }

    #[test]
    fn titles_and_snippets_lose_their_markup() {
        let page = format!("<div id=links>{}</div>", entry("", "https://b.example/"));
        let found = duckduckgo(&page).unwrap();
        assert_eq!((found[0].title.as_str(), found[0].snippet.as_str()), ("A title", "Some words & more"));
    }

    #[test]
    fn an_anomaly_a_foreign_page_and_no_results_are_told_apart() {
        let anomaly = "<form id='challenge-form' action='//duckduckgo.com/anomaly.js?sv=html'></form>";
        assert_eq!(duckduckgo(anomaly), Err(Misread::Anomaly));
        assert!(matches!(duckduckgo("<h1>502 Bad Gateway</h1>"), Err(Misread::Shape(_))));
        assert_eq!(
            duckduckgo("<div id=links><div class='no-results'>No results.</div></div>"),
            Ok(Vec::new())
        );
    }

    #[test]
    fn json_answers_are_read_with_or_without_their_optional_parts() {
        let body = r#"{"query":"q","results":[{"url":"https://a.example/","title":"A","content":"words","score":0.9},
            {"url":"https://b.example/","title":null},{"url":"ftp://c.example/","title":"C"}]}"#;
        let found = json(body).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].snippet, "words");
        assert!(matches!(json("<html>"), Err(Misread::Shape(_))));
        assert!(matches!(json("{}"), Err(Misread::Shape(_))));
    }
}
