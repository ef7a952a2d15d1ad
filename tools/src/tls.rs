//! The one place that starts building HTTP clients, since building one without a TLS provider panics.

use std::time::Duration;

/// How long a connection may take to stand.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A builder of HTTP clients that follow no redirect, use no proxy and keep nothing between calls but connections.
pub(crate) fn client() -> reqwest::ClientBuilder {
    // An error means that another part of the process has installed one: that one serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_LIMIT)
        .user_agent(concat!("millrace/", env!("CARGO_PKG_VERSION")))
}
