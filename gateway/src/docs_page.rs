//! `/docs`: the description of the API as a page. Everything that it needs is in the program, so that it works without a
//! network.

use axum::http::header;
use axum::response::{IntoResponse, Redirect, Response};

/// The policy of the page: its own script and style, and the description from this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Leads from the root to the page.
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
    let headers = [
        (header::CONTENT_TYPE, media_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text).into_response()
}
