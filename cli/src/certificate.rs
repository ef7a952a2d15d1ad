//! Reads certificates and says whether they are worth something, and until when: for `millrace nats-config`, which
//! renews them, and for `millrace doctor`, which says what is wrong with them. It makes none.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, RootCertStore};

/// A time at which no certificate is valid any more: asked about then, the verifier says until when one was.
const FAR: Duration = Duration::from_secs(250_000_000_000);

/// Why a certificate is worth nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The file isn't there, or can't be read.
    #[error("{path} can't be read: {why}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// The file holds something else.
    #[error("{path} holds no {what} in PEM")]
    Other {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// Its time is over.
    #[error("it was valid until {0}")]
    Expired(Timestamp),
    /// Its time has not come.
    #[error("it is not valid yet; is the clock right?")]
    NotYet,
    /// Somebody else signed it.
    #[error("it is signed by another authority")]
    OtherAuthority,
    /// It is for other hosts.
    #[error("it is not for the host {0}")]
    OtherHost(String),
    /// The key beside it is another's.
    #[error("its key belongs to another certificate")]
    OtherKey,
    /// Anything else.
    #[error("it can't be used: {0}")]
    Useless(String),
}

/// The certificates of a file: a leaf with what leads to its authority, or authorities.
#[derive(Debug, Clone)]
pub struct Certificates(Vec<CertificateDer<'static>>);

/// What a certificate is to be good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// To ask.
    Client,
    /// To answer under the name of this host; a `*` stands for any label.
    Server(&'a str),
}

impl Certificates {
    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read, or holds no certificate.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        match found {
            Ok(found) if !found.is_empty() => Ok(Self(found)),
            Err(pem::Error::Io(error)) => {
                Err(Fault::Unreadable { path: path.to_owned(), why: error.to_string() })
            }
            Ok(_) | Err(_) => Err(Fault::Other { path: path.to_owned(), what: "certificate" }),
        }
    }

    /// Says whether the first of these certificates, with the others as links, is good for `purpose` at `now` to
    /// those who trust `authorities`.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self, authorities: &Self, purpose: Purpose<'_>, now: Timestamp) -> Result<(), Fault> {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().unsigned_abs()));
        self.verify(authorities, purpose, time).map_err(|error| fault(error, purpose))
    }

    /// Until when the first of these certificates is valid; `None` where it can't be told.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        // The time is looked at before anything else is, so it does not matter that the leaf signed nothing.
        match self.verify(self, Purpose::Client, UnixTime::since_unix_epoch(FAR)) {
            Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after, ..
            })) => timestamp(not_after),
            _ => None,
        }
    }

    /// Says whether the key in a file is the one of the first of these certificates.
    ///
    /// # Errors
    /// It is not, can't be read, or is no key.
    pub fn check_key(&self, path: &Path) -> Result<(), Fault> {
        let key = PrivateKeyDer::from_pem_file(path).map_err(|error| {
            if let pem::Error::Io(error) = error {
                Fault::Unreadable { path: path.to_owned(), why: error.to_string() }
            } else {
                Fault::Other { path: path.to_owned(), what: "private key" }
            }
        })?;
        match CertifiedKey::from_der(self.0.clone(), key, &ring::default_provider()) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InconsistentKeys(_)) => Err(Fault::OtherKey),
            Err(error) => Err(Fault::Useless(error.to_string())),
        }
    }

    fn verify(&self, authorities: &Self, purpose: Purpose<'_>, time: UnixTime) -> Result<(), rustls::Error> {
        let Some((leaf, links)) = self.0.split_first() else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        let mut roots = RootCertStore::empty();
        for authority in &authorities.0 {
            roots.add(authority.clone())?;
        }
        let roots = Arc::new(roots);
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let other = |error: rustls::server::VerifierBuilderError| rustls::Error::General(error.to_string());
        match purpose {
            Purpose::Client => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots, provider).build().map_err(other)?;
                verifier.verify_client_cert(leaf, links, time).map(drop)
            }
            Purpose::Server(host) => {
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(roots, provider).build().map_err(other)?;
                let name = ServerName::try_from(host.replace('*', "any"))
                    .map_err(|error| rustls::Error::General(error.to_string()))?;
                verifier.verify_server_cert(leaf, links, &name, &[], time).map(drop)
            }
        }
    }
}

fn timestamp(time: UnixTime) -> Option<Timestamp> {
    i64::try_from(time.as_secs()).ok().and_then(|seconds| Timestamp::from_second(seconds).ok())
}

fn fault(error: rustls::Error, purpose: Purpose<'_>) -> Fault {
    let rustls::Error::InvalidCertificate(why) = error else {
        return Fault::Useless(error.to_string());
    };
    match (why, purpose) {
        (CertificateError::ExpiredContext { not_after, .. }, _) => {
            Fault::Expired(timestamp(not_after).unwrap_or(Timestamp::UNIX_EPOCH))
        }
        (CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }, _) => Fault::NotYet,
        (CertificateError::UnknownIssuer | CertificateError::BadSignature, _) => Fault::OtherAuthority,
        (
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            Purpose::Server(host),
        ) => Fault::OtherHost(host.to_owned()),
        (why, _) => Fault::Useless(format!("{why:?}")),
    }
}
