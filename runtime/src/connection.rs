//! Where a cluster is, who asks, and how the connection is encrypted: what a process is told, and what the client library
//! makes of it. It connects to nothing.

use std::path::{Path, PathBuf};

use async_nats::ConnectOptions;
use secrecy::{ExposeSecret, SecretString};

use crate::Fault;

/// Where a cluster is and who asks.
#[derive(Clone)]
pub struct Connection {
    /// One or more server URLs, separated by commas.
    pub url: String,
    /// How this process identifies itself.
    pub credentials: Credentials,
    /// How the connection is encrypted.
    pub tls: Tls,
}

/// How a process identifies itself to the NATS server.
#[derive(Clone)]
pub enum Credentials {
    /// Not at all.
    None,
    /// By user and password.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// By a credentials file (JWT and nkey).
    File(PathBuf),
    /// By an nkey whose seed stands in a file.
    NkeyFile(PathBuf),
    /// By an nkey of this seed.
    Nkey(SecretString),
}

/// The files that encrypt a connection, in PEM. With none of them a connection is encrypted where the server or a
/// `tls://` address asks for it, and the server's certificate must be signed by an authority that the machine trusts.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// The authorities that sign the server's certificate; with them a connection is never made in the clear.
    pub authorities: Option<PathBuf>,
    /// The certificate and the key by which this process shows who it is, for servers that want one. One of them that
    /// is empty was not named, and no connection is made without it.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl std::fmt::Debug for Connection {
    /// Shows where, never who.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("url", &without_passwords(&self.url)).finish_non_exhaustive()
    }
}

impl Connection {
    /// A connection in the clear to a server that asks nobody who they are.
    #[must_use]
    pub fn open(url: impl Into<String>) -> Self {
        Self { url: url.into(), credentials: Credentials::None, tls: Tls::default() }
    }

    /// A connection to `url` with what the environment names:
    ///
    /// | variable | what it holds |
    /// |---|---|
    /// | `MILLRACE_NATS_CREDS` | a credentials file (JWT and nkey) |
    /// | `MILLRACE_NATS_NKEY` | a file with the seed of an nkey |
    /// | `MILLRACE_NATS_NKEY_SEED` | the seed of an nkey |
    /// | `MILLRACE_NATS_USER`, `MILLRACE_NATS_PASSWORD` | a user and its password |
    /// | `MILLRACE_NATS_CA` | a file with the authorities that sign the server's certificate |
    /// | `MILLRACE_NATS_CERT`, `MILLRACE_NATS_KEY` | files with a certificate and its key, for mutual TLS |
    ///
    /// The first of the credentials that is set counts. Files are read when the connection is made.
    #[must_use]
    pub fn with_environment(url: impl Into<String>) -> Self {
        Self::with_variables(url.into(), |name| std::env::var(name).ok())
    }

    fn with_variables(url: String, variable: impl Fn(&str) -> Option<String>) -> Self {
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
        let path = |name| var(name).map(PathBuf::from);
        let (certificate, key) = (path("MILLRACE_NATS_CERT"), path("MILLRACE_NATS_KEY"));
        let has_any = certificate.is_some() || key.is_some();
        let identity = has_any.then(|| (certificate.unwrap_or_default(), key.unwrap_or_default()));
        let tls = Tls { authorities: path("MILLRACE_NATS_CA"), identity };
        Self { url, credentials, tls }
    }

    /// The servers of the URL.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        self.url.split(',').map(|url| url.trim().to_owned()).collect()
    }

    /// What the client library needs to know to connect so.
    ///
    /// # Errors
    /// A file can't be read, or holds no credentials; or a certificate is named without its key, or a key without its
    /// certificate.
    pub async fn options(&self) -> Result<ConnectOptions, Fault> {
        let mut options = ConnectOptions::new();
        if let Some(file) = &self.tls.authorities {
            self.read(file, "the authorities of").await?;
            options = options.add_root_certificates(file.clone()).require_tls(true);
        }
        if let Some((certificate, key)) = &self.tls.identity {
            self.check_both(certificate, key)?;
            self.read(certificate, "the certificate").await?;
            self.read(key, "the key of the certificate").await?;
            options = options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        match &self.credentials {
            Credentials::None => Ok(options),
            Credentials::Password { user, password } => {
                Ok(options.user_and_password(user.clone(), password.clone()))
            }
            Credentials::File(file) => {
                let text = self.read(file, "the credentials file").await?;
                let inbox = inbox_of(seed_in(&text).unwrap_or_default());
                let inbox = inbox.map_err(|why| self.useless(file, "the credentials file", &why))?;
                let options = options
                    .credentials(&text)
                    .map_err(|error| self.useless(file, "the credentials file", &error))?;
                Ok(options.custom_inbox_prefix(inbox))
            }
            Credentials::NkeyFile(file) => {
                let text = self.read(file, "the seed").await?;
                let seed = seed_in(&text).unwrap_or(text.trim());
                let inbox = inbox_of(seed).map_err(|why| self.useless(file, "the seed", &why))?;
                Ok(options.nkey(seed.to_owned()).custom_inbox_prefix(inbox))
            }
            Credentials::Nkey(seed) => {
                let seed = seed.expose_secret().trim();
                let inbox = inbox_of(seed).map_err(|why| Fault::Unsuitable {
                    url: without_passwords(&self.url),
                    why: format!("needs a seed, and MILLRACE_NATS_NKEY_SEED holds none: {why}"),
                })?;
                Ok(options.nkey(seed.to_owned()).custom_inbox_prefix(inbox))
            }
        }
    }

    /// Refuses one half of an identity: without it a server that asks for one would say no, and not why.
    fn check_both(&self, certificate: &Path, key: &Path) -> Result<(), Fault> {
        let (certificate, key) = ((certificate, "MILLRACE_NATS_CERT"), (key, "MILLRACE_NATS_KEY"));
        for ((half, missing), (_, named)) in [(certificate, key), (key, certificate)] {
            if half.as_os_str().is_empty() {
                let url = without_passwords(&self.url);
                let why = format!("is not asked: {named} is set and {missing} is not; set both or neither");
                return Err(Fault::Unsuitable { url, why });
            }
        }
        Ok(())
    }

    async fn read(&self, file: &Path, what: &str) -> Result<String, Fault> {
        tokio::fs::read_to_string(file).await.map_err(|error| self.useless(file, what, &error))
    }

    fn useless(&self, file: &Path, what: &str, why: &dyn std::fmt::Display) -> Fault {
        let url = without_passwords(&self.url);
        Fault::Unsuitable { url, why: format!("needs {what} {}, which can't be used: {why}", file.display()) }
    }
}

/// The seed of a user in a file of credentials or of a seed alone.
fn seed_in(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| line.starts_with("SU"))
}

/// Where a process with this seed gets its answers: see [`crate::access::inbox`].
fn inbox_of(seed: &str) -> Result<String, String> {
    let pair = nkeys::KeyPair::from_seed(seed).map_err(|error| error.to_string())?;
    Ok(crate::access::inbox(&pair.public_key()))
}

/// The addresses as they may be shown: they may hold a user and a password.
#[must_use]
pub fn without_passwords(urls: &str) -> String {
    let shown = |url: &str| match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (None, Some((_, host))) => host.to_owned(),
        (_, None) => url.to_owned(),
    };
    urls.split(',').map(|url| shown(url.trim())).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_certificate_without_its_key_and_a_key_without_its_certificate_are_refused_by_both_names() {
        let made = tempfile::NamedTempFile::new().unwrap();
        let file = made.path().display().to_string();
        for set in [&["MILLRACE_NATS_CERT"][..], &["MILLRACE_NATS_KEY"]] {
            let variable = |name: &str| set.contains(&name).then(|| file.clone());
            let connection = Connection::with_variables("nats://user:secret@a.example".into(), variable);
            let refused = connection.options().await.map(|_| ()).unwrap_err().to_string();
            for word in ["MILLRACE_NATS_CERT", "MILLRACE_NATS_KEY", "nats://a.example", "set both"] {
                assert!(refused.contains(word), "{set:?}: {refused}");
            }
            assert!(!refused.contains("secret"), "{refused}");
        }
        let neither = Connection::with_variables("nats://a.example".into(), |_| None);
        assert!(neither.tls.identity.is_none() && neither.options().await.is_ok());
    }

    #[test]
    fn addresses_are_shown_without_what_they_hold_besides() {
        for (url, shown) in [
            ("nats://a.example:4222", "nats://a.example:4222"),
            ("nats://user:p@ss@a.example:4222, tls://token@b", "nats://a.example:4222,tls://b"),
            ("user:secret@a.example", "a.example"),
        ] {
            assert_eq!(without_passwords(url), shown);
        }
    }
}
