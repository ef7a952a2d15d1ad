//! The only place that builds HTTP clients. It owns how connections are made: TLS by rustls with the certificate
//! authorities of the machine, the proxies of the environment, no redirects, no cookies. It must not know a provider.

use std::sync::{Once, OnceLock};
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{ClientBuilder, NoProxy, Proxy};
use tracing::warn;

/// How long a connection may take to come about.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Names that are never asked for through a proxy: what runs on this machine is not reachable from there.
const LOOPBACK: &str = "localhost,127.0.0.0/8,::1";

/// The process's client, with one pool of connections for all. Reading the machine's certificate authorities takes
/// longer than a request to a server nearby, so that it happens once. Where there are none, `http` addresses still
/// work, and `https` ones fail with what [`without_authorities`] says.
#[must_use]
pub fn client() -> reqwest::Client {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    CLIENT.get_or_init(|| builder().build().unwrap_or_else(|error| without_tls(&error))).clone()
}

fn without_tls(error: &reqwest::Error) -> reqwest::Client {
    warn!(%error, "no certificate authorities were found: https addresses can't be reached");
    NO_AUTHORITIES.get_or_init(|| ());
    let none = std::iter::empty::<reqwest::Certificate>();
    builder().tls_certs_only(none).build().expect("a client without certificate authorities can be built")
}

/// What [`client`] is made from, for those who need more than it sets.
pub fn builder() -> ClientBuilder {
    install_tls();
    let builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(Duration::from_secs(90))
        .tcp_keepalive(Duration::from_secs(30))
        .redirect(Policy::none())
        .user_agent(concat!("millrace/", env!("CARGO_PKG_VERSION")))
        .no_proxy();
    proxies(&|name| std::env::var(name).ok()).into_iter().fold(builder, ClientBuilder::proxy)
}

/// Says what to do, where no certificate authorities were found on this machine.
#[must_use]
pub fn without_authorities() -> Option<&'static str> {
    NO_AUTHORITIES.get().map(|()| {
        "no certificate authorities were found on this machine: install its ca-certificates package, or name a \
         bundle in SSL_CERT_FILE"
    })
}

static NO_AUTHORITIES: OnceLock<()> = OnceLock::new();

/// Makes ring the process's provider of cryptography, unless another one was there first. A client can't be built
/// before.
fn install_tls() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let already = rustls::crypto::ring::default_provider().install_default().is_err();
        tracing::debug!(already, "tls provider installed");
    });
}

/// The proxies that the environment names, as most programs read them; in `http_proxy`'s case only the lower-case
/// name, since a CGI server lets its clients set the other.
fn proxies(env: &dyn Fn(&str) -> Option<String>) -> Vec<Proxy> {
    let first = |names: [&str; 2]| names.into_iter().find_map(env).filter(|text| !text.trim().is_empty());
    let except =
        first(["NO_PROXY", "no_proxy"]).map_or_else(|| LOOPBACK.into(), |own| format!("{LOOPBACK},{own}"));
    let all = first(["ALL_PROXY", "all_proxy"]);
    let http = env("http_proxy").filter(|text| !text.trim().is_empty()).or_else(|| all.clone());
    let https = first(["HTTPS_PROXY", "https_proxy"]).or(all);
    let made = [http.and_then(|url| told(Proxy::http(url))), https.and_then(|url| told(Proxy::https(url)))];
    made.into_iter().flatten().map(|proxy| proxy.no_proxy(NoProxy::from_string(&except))).collect()
}

/// A proxy whose address can't be read is left out; its text is not shown, since it may hold a password.
fn told(proxy: reqwest::Result<Proxy>) -> Option<Proxy> {
    proxy
        .inspect_err(|_| warn!("the address of a proxy in the environment can't be read: it is not used"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn a_client_can_be_built_twice() {
        builder().build().unwrap();
        builder().build().unwrap();
        assert_eq!(without_authorities(), None, "a machine that runs tests has some");
    }

    #[test]
    fn proxies_come_from_the_environment_and_never_stand_before_loopback() {
        assert!(proxies(&env(&[])).is_empty());
        let one = proxies(&env(&[
            ("HTTPS_PROXY", "http://proxy.example:3128"),
            ("HTTP_PROXY", "http://x.example"),
        ]));
        let shown = format!("{one:?}");
        assert_eq!(one.len(), 1, "{shown}");
        assert!(shown.contains("127.0.0.0/8"), "{shown}");
        let both = proxies(&env(&[("all_proxy", "http://proxy.example:3128"), ("no_proxy", "a.example")]));
        assert_eq!(both.len(), 2);
        assert!(format!("{both:?}").contains("::1,a.example"));
        assert!(proxies(&env(&[("ALL_PROXY", "not a url")])).is_empty());
    }
}
