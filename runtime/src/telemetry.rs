//! Logging: short lines on standard error, filtered by `MILLRACE_LOG` (the syntax of `RUST_LOG`), as JSON where
//! `MILLRACE_LOG_FORMAT=json` says so.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// What the libraries say of every message and connection: their spans and notices help nobody here. What genai says of
/// an error holds what a provider answered as it came, and that may quote a key: we tell it ourselves.
const QUIET: &str = "ractor=warn,async_nats=warn,tantivy=warn,genai=off";

/// Starts logging. `default` is the filter where `MILLRACE_LOG` is not set, such as "info".
pub fn init(default: &str) {
    let filter = std::env::var("MILLRACE_LOG").unwrap_or_else(|_| default.to_owned());
    let filter = format!("{QUIET},{filter}");
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|error| {
        eprintln!("millrace: MILLRACE_LOG={filter:?} is no filter ({error}); using {default:?}");
        EnvFilter::new(default)
    });
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // A second call, as in tests that share a process, changes nothing.
    let _ = if std::env::var("MILLRACE_LOG_FORMAT").is_ok_and(|format| format == "json") {
        builder.json().try_init()
    } else {
        builder.with_target(false).try_init()
    };
}
