//! The dashboard: web pages of the program. All files are in the program, so that it works without a
//! network and without an installation.
//!
//! Files are served below `/assets/BUILD/`, where `BUILD` is a digest of all files: browsers may keep them for ever. Every
//! address of a screen is answered with the same page, which reads the address itself.
//!
//! # Invariants
//!
//! - I168: The dashboard uses the public API only; its files are small, name no other server, and are kept by browsers under the
//!   digest of the release only. (`gateway/src/dashboard.rs::all_files_together_are_small`,
//!   `gateway/src/dashboard.rs::page_names_files_that_exist`)
//! - I200: The dashboard shows text of models, tools, documents and users as text on every screen: nothing of it runs, becomes an
//!   element or changes the writing direction; no screen has an error on the console or a violation of its content security
//!   policy. (`tests/tests/dashboard.rs::every_screen_opens_by_its_address_and_shows_hostile_text_as_text`)
//! - I201: An open page says when the gateway or NATS does not respond, and has every event of the log afterwards.
//!   (`tests/tests/dashboard.rs::open_page_catches_up_after_gateway_and_server_were_killed`)
//! - I202: Every open page shows who answered a question, and an approval can be edited and given with the keyboard alone.
//!   (`tests/tests/dashboard.rs::approval_is_edited_by_keyboard_and_second_browser_sees_who_answered`)
//! - I250: A page keeps the newest events of its run only, and its log reads the earlier ones from the gateway.
//!   (`tests/tests/dashboard.rs::run_is_started_with_dropped_documents_and_followed_to_its_report`)

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use millrace_runtime::store::blobs::sha256_hex;

use crate::problem::{Problem, ProblemKind};

/// The policy of the pages: scripts, styles and data of this server only, and no page may show them in a frame.
const POLICY: &str = "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
/// The first parts of the addresses of screens; `app/main.mjs` has the same.
const SCREENS: [&str; 7] = ["runs", "new", "inbox", "spend", "cluster", "compare", "login"];
/// The digits of the digest in addresses.
const BUILD_DIGITS: usize = 16;
/// The page, in which `@BUILD@` stands for the digest, and `@PRELOAD@` for links to all modules: without them the browser learns
/// of a module only when it has read the one that imports it.
const PAGE: &str = "index.html";

const FILES: &[(&str, &[u8])] = &include!(concat!(env!("OUT_DIR"), "/dashboard.rs"));

/// A file as it is sent.
struct Asset {
    media_type: &'static str,
    bytes: Vec<u8>,
    compressed: Vec<u8>,
    etag: String,
}

/// All files, by their path.
struct Assets {
    build: String,
    files: BTreeMap<String, Asset>,
}

static ASSETS: LazyLock<Assets> = LazyLock::new(Assets::load);

pub fn routes() -> Router {
    let mut router = Router::new()
        .route("/", get(async || Redirect::temporary("/runs")))
        .route("/assets/{build}/{*path}", get(serve_asset));
    for screen in SCREENS {
        router = router
            .route(&format!("/{screen}"), get(serve_page))
            .route(&format!("/{screen}/"), get(async move || Redirect::permanent(&format!("/{screen}"))))
            .route(&format!("/{screen}/{{*rest}}"), get(serve_page));
    }
    router
}

impl Assets {
    fn load() -> Self {
        let digests: Vec<String> =
            FILES.iter().map(|(path, bytes)| format!("{path} {}", sha256_hex(bytes))).collect();
        let build = sha256_hex(digests.join("\n").as_bytes())[..BUILD_DIGITS].to_owned();
        let mut modules: Vec<&str> =
            FILES.iter().map(|(path, _)| *path).filter(|path| path.ends_with(".mjs")).collect();
        // The libraries first: they are the largest module.
        modules.sort_by_key(|path| !path.starts_with("vendor/"));
        let links: Vec<String> = modules
            .iter()
            .map(|path| format!(r#"<link rel="modulepreload" href="/assets/{build}/{path}">"#))
            .collect();
        let files = FILES.iter().map(|&(path, bytes)| {
            let bytes = match path {
                PAGE => {
                    let page = String::from_utf8_lossy(bytes).replace("@BUILD@", &build);
                    page.replace("@PRELOAD@", &links.join("\n")).into_bytes()
                }
                _ => bytes.to_vec(),
            };
            (path.to_owned(), Asset::new(path, bytes))
        });
        Self { files: files.collect(), build }
    }
}

impl Asset {
    fn new(path: &str, bytes: Vec<u8>) -> Self {
        let media_type = match path.rsplit('.').next() {
            Some("html") => "text/html; charset=utf-8",
            Some("js" | "mjs") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/plain; charset=utf-8",
        };
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let compressed = encoder.write_all(&bytes).and_then(|()| encoder.finish()).unwrap_or_default();
        let etag = format!("\"{}\"", &sha256_hex(&bytes)[..BUILD_DIGITS]);
        Self { media_type, bytes, compressed, etag }
    }

    fn respond(&'static self, headers: &HeaderMap, caching: &'static str) -> Response {
        let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|etag| etag == self.etag.as_str());
        let accepts = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
        let is_compressed = !self.compressed.is_empty() && accepts.is_some_and(accepts_gzip);
        let mut response = match (is_known, is_compressed) {
            (true, _) => StatusCode::NOT_MODIFIED.into_response(),
            (false, true) => self.compressed.as_slice().into_response(),
            (false, false) => self.bytes.as_slice().into_response(),
        };
        let out = response.headers_mut();
        if is_compressed && !is_known {
            out.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        out.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        out.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
        out.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        out.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            out.insert(header::ETAG, etag);
        }
        response
    }
}

/// `true` if a client accepts gzip: it names it, and not with the weight 0.
fn accepts_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("gzip") && parts.all(|part| part != "q=0" && part != "q=0.0")
    })
}

async fn serve_page(headers: HeaderMap) -> Response {
    match ASSETS.files.get(PAGE) {
        Some(page) => page.respond(&headers, "no-cache"),
        None => unknown_file(PAGE),
    }
}

async fn serve_asset(Path((build, path)): Path<(String, String)>, headers: HeaderMap) -> Response {
    // A page of an earlier release that is still open must not mix its files with those of this one.
    match ASSETS.files.get(&path).filter(|_| build == ASSETS.build) {
        Some(asset) => asset.respond(&headers, "public, max-age=31536000, immutable"),
        None => unknown_file(&path),
    }
}

fn unknown_file(path: &str) -> Response {
    let detail = format!("the dashboard of this release has no file {path:?}; load the page again");
    Problem::new(ProblemKind::UnknownPath, detail).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maximum size of all files together, compressed.
    const MAX_COMPRESSED: usize = 200_000;

    #[test]
    fn all_files_together_are_small() {
        let sizes = ASSETS.files.iter().map(|(path, asset)| (path, asset.compressed.len()));
        let sizes: BTreeMap<_, _> = sizes.filter(|(path, _)| !path.ends_with("LICENSES.txt")).collect();
        let total: usize = sizes.values().sum();
        println!("dashboard: {} files, {total} bytes compressed", sizes.len());
        assert!(total < MAX_COMPRESSED, "{total} bytes: {sizes:#?}");
    }

    #[test]
    fn page_names_files_that_exist() {
        let page = String::from_utf8_lossy(&ASSETS.files[PAGE].bytes);
        let prefix = format!("/assets/{}/", ASSETS.build);
        let paths: Vec<&str> =
            page.split(&prefix).skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(paths.len() >= 5, "{paths:?}");
        for path in paths {
            assert!(ASSETS.files.contains_key(path), "{path}");
        }
        assert!(!page.contains("@BUILD@") && !page.contains("@PRELOAD@"));
        let preloaded = page.matches("modulepreload").count();
        assert_eq!(preloaded, ASSETS.files.keys().filter(|path| path.ends_with(".mjs")).count());
        assert!(!ASSETS.files.keys().any(|path| path.contains("node_modules")));
    }

    #[test]
    fn screens_are_those_of_the_page() {
        let main = String::from_utf8_lossy(&ASSETS.files["app/main.mjs"].bytes);
        for screen in SCREENS {
            assert!(main.contains(&format!("\n  {screen}: (")), "{screen}");
        }
    }

    #[test]
    fn gzip_is_sent_to_clients_that_accept_it() {
        assert!(accepts_gzip("gzip, deflate, br"));
        assert!(accepts_gzip("br;q=1.0, gzip;q=0.5"));
        assert!(!accepts_gzip("br, gzip;q=0"));
        assert!(!accepts_gzip("identity"));
    }
}
