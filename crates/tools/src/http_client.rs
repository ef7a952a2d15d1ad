//! The only place that creates builders of HTTP clients, because building one without a TLS crypto provider panics.

use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns a builder of HTTP clients that follow no redirects, use no proxy and keep no state except connections.
pub(crate) fn client() -> reqwest::ClientBuilder {
    // An error means that another part of the process has installed a provider, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("millrace/", env!("CARGO_PKG_VERSION")))
}
