//! The parameters of a connection: address, credentials and TLS, as the environment names them, and as the client
//! library needs them. This module opens no connection.
//!
//! Metrics of the connection to the server.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use async_nats::ConnectOptions;
use millrace_protocol::secrets::{SecretRedactor, remember_secrets};
use secrecy::{ExposeSecret, SecretString};

use crate::Fault;
use crate::ops::metrics::names::{NATS_CONNECTED, NATS_RECONNECTS, NATS_REFUSED};
use crate::ops::metrics::{Counter, Gauge};

/// The parameters of a connection to a cluster.
#[derive(Clone)]
pub struct ConnectionSettings {
    /// One or more server URLs, separated by commas.
    pub url: String,
    /// The credentials of this process.
    pub credentials: Credentials,
    /// The certificates of an encrypted connection.
    pub tls: TlsFiles,
}

/// The credentials that a process presents to the NATS server.
#[derive(Clone)]
pub enum Credentials {
    /// None.
    None,
    /// User and password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A credentials file (JWT and nkey).
    File(PathBuf),
    /// An nkey, whose seed is in a file.
    NkeyFile(PathBuf),
    /// An nkey with this seed.
    Nkey(SecretString),
}

/// The certificates of a connection, as PEM files. Without any, a connection is encrypted if the server or a `tls://`
/// address requires it, and the server's certificate must be signed by an authority that the machine trusts.
#[derive(Debug, Clone, Default)]
pub struct TlsFiles {
    /// The authorities that sign the server's certificate. If set, unencrypted connections are refused.
    pub authorities: Option<PathBuf>,
    /// The client certificate and its key, for mutual TLS. An empty path means that one of the two is not configured;
    /// then connecting fails.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl std::fmt::Debug for ConnectionSettings {
    /// Shows the address, never the credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("url", &without_passwords(&self.url)).finish_non_exhaustive()
    }
}

impl ConnectionSettings {
    /// Creates an unencrypted connection without credentials.
    #[must_use]
    pub fn unauthenticated(url: impl Into<String>) -> Self {
        Self { url: url.into(), credentials: Credentials::None, tls: TlsFiles::default() }
    }

    /// Creates a connection to `url` with the credentials and certificates that the environment names:
    ///
    /// | variable | content |
    /// |---|---|
    /// | `MILLRACE_NATS_CREDS` | a credentials file (JWT and nkey) |
    /// | `MILLRACE_NATS_NKEY` | a file with the seed of an nkey |
    /// | `MILLRACE_NATS_NKEY_SEED` | the seed of an nkey |
    /// | `MILLRACE_NATS_USER`, `MILLRACE_NATS_PASSWORD` | a user and its password |
    /// | `MILLRACE_NATS_CA` | a file with the authorities that sign the server's certificate |
    /// | `MILLRACE_NATS_CERT`, `MILLRACE_NATS_KEY` | files with a certificate and its key, for mutual TLS |
    ///
    /// The first variable with credentials wins. Files are read when the connection is opened.
    #[must_use]
    pub fn from_environment(url: impl Into<String>) -> Self {
        Self::from_variables(url.into(), |name| std::env::var(name).ok())
    }

    fn from_variables(url: String, variable: impl Fn(&str) -> Option<String>) -> Self {
        let var = |name| variable(name).filter(|value| !value.is_empty());
        let credentials = if let Some(file) = var("MILLRACE_NATS_CREDS") {
            Credentials::File(file.into())
        } else if let Some(file) = var("MILLRACE_NATS_NKEY") {
            Credentials::NkeyFile(file.into())
        } else if let Some(seed) = var("MILLRACE_NATS_NKEY_SEED") {
            Credentials::Nkey(seed.into())
        } else if let Some(user) = var("MILLRACE_NATS_USER") {
            Credentials::Password { user, password: var("MILLRACE_NATS_PASSWORD").unwrap_or_default() }
        } else {
            Credentials::None
        };
        let mut secrets = SecretRedactor::default();
        url.split(',').for_each(|url| secrets.add_url(url));
        ["MILLRACE_NATS_NKEY_SEED", "MILLRACE_NATS_PASSWORD"]
            .into_iter()
            .filter_map(var)
            .for_each(|it| secrets.add(&it));
        remember_secrets(&secrets);
        let path = |name| var(name).map(PathBuf::from);
        let (certificate, key) = (path("MILLRACE_NATS_CERT"), path("MILLRACE_NATS_KEY"));
        let has_any = certificate.is_some() || key.is_some();
        let identity = has_any.then(|| (certificate.unwrap_or_default(), key.unwrap_or_default()));
        let tls = TlsFiles { authorities: path("MILLRACE_NATS_CA"), identity };
        Self { url, credentials, tls }
    }

    /// Returns the server URLs.
    pub fn server_urls(&self) -> Vec<String> {
        self.url.split(',').map(|url| url.trim().to_owned()).collect()
    }

    /// Returns the options of the client library for this connection.
    /// Errors: a file can't be read or contains no credentials, or a certificate is configured without its key or the other way
    /// round.
    pub async fn build_connect_options(&self) -> Result<ConnectOptions, Fault> {
        let mut options = ConnectOptions::new();
        if let Some(file) = &self.tls.authorities {
            self.read_file(file, "the certificate authorities in").await?;
            options = options.add_root_certificates(file.clone()).require_tls(true);
        }
        if let Some((certificate, key)) = &self.tls.identity {
            self.check_certificate_and_key(certificate, key)?;
            self.read_file(certificate, "the certificate").await?;
            self.read_file(key, "the key of the certificate").await?;
            options = options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        match &self.credentials {
            Credentials::None => Ok(options),
            Credentials::Password { user, password } => {
                Ok(options.user_and_password(user.clone(), password.clone()))
            }
            Credentials::File(file) => {
                let text = self.read_file(file, "the credentials file").await?;
                let inbox = inbox_prefix_of_seed(find_seed(&text).unwrap_or_default());
                let inbox =
                    inbox.map_err(|why| self.unusable_file_fault(file, "the credentials file", &why))?;
                let options = options
                    .credentials(&text)
                    .map_err(|error| self.unusable_file_fault(file, "the credentials file", &error))?;
                Ok(options.custom_inbox_prefix(inbox))
            }
            Credentials::NkeyFile(file) => {
                let text = self.read_file(file, "the seed").await?;
                let seed = find_seed(&text).unwrap_or(text.trim());
                let inbox = inbox_prefix_of_seed(seed)
                    .map_err(|why| self.unusable_file_fault(file, "the seed", &why))?;
                Ok(options.nkey(seed.to_owned()).custom_inbox_prefix(inbox))
            }
            Credentials::Nkey(seed) => {
                let seed = seed.expose_secret().trim();
                let inbox = inbox_prefix_of_seed(seed).map_err(|why| Fault::Unsuitable {
                    url: without_passwords(&self.url),
                    why: format!("needs an nkey seed, and MILLRACE_NATS_NKEY_SEED contains none: {why}"),
                })?;
                Ok(options.nkey(seed.to_owned()).custom_inbox_prefix(inbox))
            }
        }
    }

    /// Rejects a certificate without its key, and a key without its certificate: the server's error would not say why.
    fn check_certificate_and_key(&self, certificate: &Path, key: &Path) -> Result<(), Fault> {
        let (certificate, key) = ((certificate, "MILLRACE_NATS_CERT"), (key, "MILLRACE_NATS_KEY"));
        for ((path, missing), (_, present)) in [(certificate, key), (key, certificate)] {
            if path.as_os_str().is_empty() {
                let url = without_passwords(&self.url);
                let why =
                    format!("was not contacted: {present} is set and {missing} is not; set both or neither");
                return Err(Fault::Unsuitable { url, why });
            }
        }
        Ok(())
    }

    async fn read_file(&self, file: &Path, what: &str) -> Result<String, Fault> {
        tokio::fs::read_to_string(file).await.map_err(|error| self.unusable_file_fault(file, what, &error))
    }

    fn unusable_file_fault(&self, file: &Path, what: &str, why: &dyn std::fmt::Display) -> Fault {
        let url = without_passwords(&self.url);
        Fault::Unsuitable { url, why: format!("needs {what} {}, which can't be used: {why}", file.display()) }
    }
}

/// Returns the nkey seed of a user in a credentials file or a seed file.
fn find_seed(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| line.starts_with("SU"))
}

/// Returns the inbox prefix of a process with this seed: see [`super::access::inbox_prefix_of_key`].
fn inbox_prefix_of_seed(seed: &str) -> Result<String, String> {
    let pair = nkeys::KeyPair::from_seed(seed).map_err(|error| error.to_string())?;
    Ok(super::access::inbox_prefix_of_key(&pair.public_key()))
}

/// Validates the URLs of NATS servers, separated by commas; for use as a parser of arguments.
/// Errors: a URL is empty, malformed, or has another scheme than `nats`, `tls`, `ws` or `wss`.
pub fn parse_server_urls(text: &str) -> Result<String, String> {
    for url in text.split(',').map(str::trim) {
        if url.is_empty() {
            return Err("a URL is empty; write, for example, nats://127.0.0.1:4222".to_owned());
        }
        url.parse::<async_nats::ServerAddr>().map_err(|error| {
            format!("{}: {error}; write, for example, nats://127.0.0.1:4222", without_passwords(url))
        })?;
    }
    Ok(text.to_owned())
}

/// Removes users and passwords from server URLs, so that they can be shown.
#[must_use]
pub fn without_passwords(urls: &str) -> String {
    let shown = |url: &str| match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (None, Some((_, host))) => host.to_owned(),
        (_, None) => url.to_owned(),
    };
    urls.split(',').map(|url| shown(url.trim())).collect::<Vec<_>>().join(",")
}

/// The metrics of one connection, for as long as it lives.
pub(crate) struct ConnectionMetrics {
    is_connected: Gauge,
    reconnects: Counter,
    denials: Counter,
    was_connected: AtomicBool,
}

impl ConnectionMetrics {
    pub fn new() -> Self {
        Self {
            is_connected: NATS_CONNECTED.with_labels(&[]),
            reconnects: NATS_RECONNECTS.with_labels(&[]),
            denials: NATS_REFUSED.with_labels(&[]),
            was_connected: AtomicBool::new(false),
        }
    }

    /// Records that the connection was established, for the first time or again.
    pub fn record_connected(&self) {
        self.is_connected.set(1.0);
        if self.was_connected.swap(true, Ordering::Relaxed) {
            self.reconnects.increment();
        }
    }

    /// Records that the connection was lost or closed.
    pub fn record_disconnected(&self) {
        self.is_connected.set(0.0);
    }

    /// Records that the server denied a permission.
    pub fn count_denial(&self) {
        self.denials.increment();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn certificate_and_key_must_be_set_together() {
        let temporary = tempfile::NamedTempFile::new().unwrap();
        let file = temporary.path().display().to_string();
        for set in [&["MILLRACE_NATS_CERT"][..], &["MILLRACE_NATS_KEY"]] {
            let variable = |name: &str| set.contains(&name).then(|| file.clone());
            let connection =
                ConnectionSettings::from_variables("nats://user:secret@a.example".into(), variable);
            let error = connection.build_connect_options().await.map(|_| ()).unwrap_err().to_string();
            for word in ["MILLRACE_NATS_CERT", "MILLRACE_NATS_KEY", "nats://a.example", "set both"] {
                assert!(error.contains(word), "{set:?}: {error}");
            }
            assert!(!error.contains("secret"), "{error}");
        }
        let neither = ConnectionSettings::from_variables("nats://a.example".into(), |_| None);
        assert!(neither.tls.identity.is_none() && neither.build_connect_options().await.is_ok());
    }

    #[test]
    fn urls_of_servers_are_validated() {
        for valid in
            ["nats://127.0.0.1:4222", "host", "tls://a:1, tls://b:2", "nats://user:word@host", "wss://h"]
        {
            assert_eq!(parse_server_urls(valid).as_deref(), Ok(valid));
        }
        for (invalid, part) in [
            ("", "is empty"),
            ("nats://a,", "is empty"),
            ("http://a:1", "invalid scheme"),
            ("nats://user:secret@a b", "write, for example"),
        ] {
            let error = parse_server_urls(invalid).unwrap_err();
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn urls_are_shown_without_passwords() {
        for (url, shown) in [
            ("nats://a.example:4222", "nats://a.example:4222"),
            ("nats://user:p@ss@a.example:4222, tls://token@b", "nats://a.example:4222,tls://b"),
            ("user:secret@a.example", "a.example"),
        ] {
            assert_eq!(without_passwords(url), shown);
        }
    }
}
