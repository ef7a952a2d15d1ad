//! `/docs`, the description of the API as a page, and Markdown as a page. Everything that they need is in the program, so that they
//! work without a network. Markdown comes from models and documents, so nothing in it may run or load anything.

use axum::http::header;
use axum::response::{IntoResponse, Redirect, Response};
use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, html};

/// The policy of the page of the API: its own script and style, and the description from this server.
const DOCS_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Leads from the root to the page of the API.
pub async fn redirect_to_docs() -> Redirect {
    Redirect::temporary("/docs")
}

pub async fn serve_page() -> Response {
    serve("text/html; charset=utf-8", include_str!("../assets/docs.html"))
}

pub async fn serve_script() -> Response {
    serve("text/javascript; charset=utf-8", include_str!("../assets/docs.js"))
}

pub async fn serve_style() -> Response {
    serve("text/css; charset=utf-8", include_str!("../assets/docs.css"))
}

fn serve(media_type: &'static str, text: &'static str) -> Response {
    let headers = [(header::CONTENT_TYPE, media_type), (header::CONTENT_SECURITY_POLICY, DOCS_POLICY)];
    (headers, text).into_response()
}

/// The policy of pages with text of models: no scripts, nothing from other servers.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const STYLE: &str = "body{max-width:48rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif}\
                     pre{overflow-x:auto;padding:.75rem;background:#8881}table{border-collapse:collapse}\
                     td,th{border:1px solid #8886;padding:.25rem .5rem}\
                     .footnote-definition{display:flex;gap:.5rem;font-size:.9rem}.footnote-definition p{margin:.1rem 0}\
                     @media(prefers-color-scheme:dark){body{background:#111;color:#ddd}a{color:#8bf}}";

/// Returns a page with the rendered text.
pub fn html_page_of_markdown(text: &str) -> Response {
    let body = html_of_markdown(text);
    let page = format!(
        "<!doctype html><html><head><meta charset=\"utf-8\"><title>Report</title><style>{STYLE}</style></head><body>\n{body}</body></html>\n"
    );
    let headers =
        [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, POLICY)];
    (headers, page).into_response()
}

/// Renders Markdown. HTML in it is shown as text, and links lead to web pages or into the page only.
fn html_of_markdown(text: &str) -> String {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_FOOTNOTES;
    let events = Parser::new_ext(text, options).map(|event| {
        if let Event::Html(html) | Event::InlineHtml(html) = event {
            Event::Text(html)
        } else if let Event::Start(Tag::Link { link_type, dest_url, title, id }) = event {
            Event::Start(Tag::Link { link_type, dest_url: safe_link(dest_url), title, id })
        } else if let Event::Start(Tag::Image { link_type, dest_url: _, title, id }) = event {
            // An image would be loaded from its address.
            Event::Start(Tag::Image { link_type, dest_url: "".into(), title, id })
        } else {
            event
        }
    });
    let mut page = String::new();
    html::push_html(&mut page, events);
    page
}

fn safe_link(link: CowStr<'_>) -> CowStr<'_> {
    let is_safe = ["https://", "http://", "#"].iter().any(|start| link.starts_with(start));
    if is_safe { link } else { "#".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_report_runs_or_loads() {
        let page = html_of_markdown(
            "# A\n\n<script>alert(1)</script> <img src=x onerror=y>\n\n[a](javascript:alert(1)) [b](https://b.example) ![i](https://track.example/x.png)\n",
        );
        assert!(page.contains("<h1>A</h1>") && page.contains("href=\"https://b.example\""), "{page}");
        for banned in ["<script", "<img src=x", "javascript:", "track.example"] {
            assert!(!page.contains(banned), "{banned} in {page}");
        }
    }

    #[test]
    fn verdicts_are_footnotes_in_sentences_and_in_tables() {
        let page = html_of_markdown(
            "It is old [1].[^v1]\n\n| day |\n|---|\n| Monday [1][^v2] |\n\n[^v1]: not supported: No line.\n[^v2]: not verified: None.\n",
        );
        assert!(!page.contains("[^"), "{page}");
        assert_eq!(page.matches("class=\"footnote-reference\"").count(), 2, "{page}");
        for note in ["<p>not supported: No line.</p>", "<p>not verified: None.</p>"] {
            assert!(page.contains(note), "{page}");
        }
    }
}
