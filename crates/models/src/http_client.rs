//! The only place that builds HTTP clients. It configures connections: TLS by rustls with the machine's certificate
//! authorities, the proxies of the environment, no redirects, no cookies. It knows no provider.

use std::sync::{Once, OnceLock};
use std::time::Duration;

use millrace_protocol::secrets::{SecretRedactor, remember_secrets};
use reqwest::redirect::Policy;
use reqwest::{ClientBuilder, NoProxy, Proxy};
use tracing::warn;

pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Hosts that are never reached through a proxy: a proxy elsewhere cannot reach services on this machine.
const LOOPBACK: &str = "localhost,127.0.0.0/8,::1";

/// Returns the process's HTTP client, which shares one connection pool. Loading the machine's certificate authorities
/// takes longer than a request to a nearby server, so it is done once. Without any, `http` URLs still work and `https`
/// ones fail with [`missing_authorities_hint`].
pub fn shared_client() -> reqwest::Client {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    CLIENT
        .get_or_init(|| client_builder().build().unwrap_or_else(|error| build_client_without_tls(&error)))
        .clone()
}

fn build_client_without_tls(error: &reqwest::Error) -> reqwest::Client {
    warn!(%error, "no certificate authorities found; https requests will fail");
    AUTHORITIES_MISSING.get_or_init(|| ());
    let none = std::iter::empty::<reqwest::Certificate>();
    client_builder()
        .tls_certs_only(none)
        .build()
        .expect("a client without certificate authorities can be built")
}

pub fn client_builder() -> ClientBuilder {
    install_crypto_provider();
    let builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(Duration::from_secs(90))
        .tcp_keepalive(Duration::from_secs(30))
        .redirect(Policy::none())
        .user_agent(concat!("millrace/", env!("CARGO_PKG_VERSION")))
        .no_proxy();
    environment_proxies(&|name| std::env::var(name).ok()).into_iter().fold(builder, ClientBuilder::proxy)
}

pub fn missing_authorities_hint() -> Option<&'static str> {
    AUTHORITIES_MISSING.get().map(|()| {
        "no certificate authorities found on this machine: install its ca-certificates package, or set SSL_CERT_FILE to \
         a bundle"
    })
}

static AUTHORITIES_MISSING: OnceLock<()> = OnceLock::new();

/// Installs ring as the process's crypto provider, unless another one is installed already. A client cannot be built
/// without one.
fn install_crypto_provider() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let already = rustls::crypto::ring::default_provider().install_default().is_err();
        tracing::debug!(already, "TLS crypto provider installed");
    });
}

/// Reads the proxies from the environment, as most programs do. For plain `http` only the lower-case variable counts,
/// because a CGI server lets its clients set the upper-case one.
fn environment_proxies(env: &dyn Fn(&str) -> Option<String>) -> Vec<Proxy> {
    let first = |names: [&str; 2]| names.into_iter().find_map(env).filter(|text| !text.trim().is_empty());
    let except =
        first(["NO_PROXY", "no_proxy"]).map_or_else(|| LOOPBACK.into(), |own| format!("{LOOPBACK},{own}"));
    let all = first(["ALL_PROXY", "all_proxy"]);
    let http = env("http_proxy").filter(|text| !text.trim().is_empty()).or_else(|| all.clone());
    let https = first(["HTTPS_PROXY", "https_proxy"]).or(all);
    // A proxy may send its request back, with the credentials.
    let mut secrets = SecretRedactor::default();
    http.iter().chain(&https).for_each(|url| secrets.add_url(url));
    remember_secrets(&secrets);
    let proxies_found = [
        http.and_then(|url| log_invalid_proxy(Proxy::http(url))),
        https.and_then(|url| log_invalid_proxy(Proxy::https(url))),
    ];
    proxies_found.into_iter().flatten().map(|proxy| proxy.no_proxy(NoProxy::from_string(&except))).collect()
}

/// Drops a proxy whose URL is invalid. The URL is not logged because it may contain a password.
fn log_invalid_proxy(proxy: reqwest::Result<Proxy>) -> Option<Proxy> {
    proxy.inspect_err(|_| warn!("ignoring a proxy in the environment: its URL is invalid")).ok()
}

#[cfg(test)]
mod tests {
    use millrace_protocol::secrets::redact_text;

    use super::*;

    fn environment_from(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn a_client_can_be_built_twice() {
        client_builder().build().unwrap();
        client_builder().build().unwrap();
        assert_eq!(missing_authorities_hint(), None, "test machines have certificate authorities");
    }

    #[test]
    fn credentials_of_proxies_are_secret() {
        environment_proxies(&environment_from(&[
            ("https_proxy", "http://ann:proxy-word-1@proxy.example:3128"),
            ("http_proxy", "http://ann:proxy%40word-2@proxy.example"),
        ]));
        for secret in ["proxy-word-1", "proxy@word-2", "proxy%40word-2"] {
            assert_eq!(redact_text(&format!("407 for {secret}.")), "407 for [hidden].");
        }
    }

    #[test]
    fn proxies_come_from_the_environment_and_exclude_loopback() {
        assert!(environment_proxies(&environment_from(&[])).is_empty());
        let one = environment_proxies(&environment_from(&[
            ("HTTPS_PROXY", "http://proxy.example:3128"),
            ("HTTP_PROXY", "http://x.example"),
        ]));
        let shown = format!("{one:?}");
        assert_eq!(one.len(), 1, "{shown}");
        assert!(shown.contains("127.0.0.0/8"), "{shown}");
        let both = environment_proxies(&environment_from(&[
            ("all_proxy", "http://proxy.example:3128"),
            ("no_proxy", "a.example"),
        ]));
        assert_eq!(both.len(), 2);
        assert!(format!("{both:?}").contains("::1,a.example"));
        assert!(environment_proxies(&environment_from(&[("ALL_PROXY", "not a url")])).is_empty());
    }
}
