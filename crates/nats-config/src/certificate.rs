//! Reads and validates certificates: for `millrace nats-config`, which renews them, and for `millrace doctor`, which
//! reports problems. It creates none.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use millrace_runtime::nats::certificate_expiry::expiry_of_first;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, RootCertStore};

/// Errors in a certificate or its file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateProblem {
    /// The file is missing or can't be read.
    #[error("{path} can't be read: {why}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        why: String,
    },
    /// The file contains something else.
    #[error("{path} contains no {what} in PEM format")]
    WrongContent {
        /// The file.
        path: PathBuf,
        /// The expected kind of content.
        what: &'static str,
    },
    #[error("expired on {0}")]
    Expired(Timestamp),
    /// It is not valid yet.
    #[error("not valid yet; check the clock")]
    NotYet,
    /// Another authority signed it.
    #[error("signed by another authority")]
    OtherAuthority,
    /// It is not valid for the host.
    #[error("not valid for the host {0}")]
    OtherHost(String),
    /// The key does not match.
    #[error("its key belongs to another certificate")]
    OtherKey,
    /// Any other reason.
    #[error("can't be used: {0}")]
    Invalid(String),
}

/// The certificates in a file: a leaf with its intermediates, or authorities.
#[derive(Debug, Clone)]
pub struct Certificates(Vec<CertificateDer<'static>>);

/// The intended use of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificatePurpose<'a> {
    /// TLS client.
    Client,
    /// TLS server with this host name; `*` matches any label.
    Server(&'a str),
}

impl Certificates {
    /// Reads a file.
    pub fn read_file(path: &Path) -> Result<Self, CertificateProblem> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        match certificates {
            Ok(certificates) if !certificates.is_empty() => Ok(Self(certificates)),
            Err(pem::Error::Io(error)) => {
                Err(CertificateProblem::Unreadable { path: path.to_owned(), why: error.to_string() })
            }
            Ok(_) | Err(_) => {
                Err(CertificateProblem::WrongContent { path: path.to_owned(), what: "certificate" })
            }
        }
    }

    /// Verifies the first certificate, with the others as intermediates, for `purpose` at `now` against `authorities`.
    pub fn check_validity(
        &self,
        authorities: &Self,
        purpose: CertificatePurpose<'_>,
        now: Timestamp,
    ) -> Result<(), CertificateProblem> {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().unsigned_abs()));
        self.verify_chain(authorities, purpose, time).map_err(|error| certificate_problem(error, purpose))
    }

    /// Returns the expiry date of the first certificate; `None` if it can't be determined.
    pub fn valid_until(&self) -> Option<Timestamp> {
        to_timestamp(expiry_of_first(&self.0)?)
    }

    /// Checks that the key in a file belongs to the first certificate.
    pub fn check_key(&self, path: &Path) -> Result<(), CertificateProblem> {
        let key = PrivateKeyDer::from_pem_file(path).map_err(|error| {
            if let pem::Error::Io(error) = error {
                CertificateProblem::Unreadable { path: path.to_owned(), why: error.to_string() }
            } else {
                CertificateProblem::WrongContent { path: path.to_owned(), what: "private key" }
            }
        })?;
        match CertifiedKey::from_der(self.0.clone(), key, &ring::default_provider()) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InconsistentKeys(_)) => Err(CertificateProblem::OtherKey),
            Err(error) => Err(CertificateProblem::Invalid(error.to_string())),
        }
    }

    fn verify_chain(
        &self,
        authorities: &Self,
        purpose: CertificatePurpose<'_>,
        time: UnixTime,
    ) -> Result<(), rustls::Error> {
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
            CertificatePurpose::Client => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots, provider).build().map_err(other)?;
                verifier.verify_client_cert(leaf, links, time).map(drop)
            }
            CertificatePurpose::Server(host) => {
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(roots, provider).build().map_err(other)?;
                let name = ServerName::try_from(host.replace('*', "any"))
                    .map_err(|error| rustls::Error::General(error.to_string()))?;
                verifier.verify_server_cert(leaf, links, &name, &[], time).map(drop)
            }
        }
    }
}

fn to_timestamp(time: UnixTime) -> Option<Timestamp> {
    i64::try_from(time.as_secs()).ok().and_then(|seconds| Timestamp::from_second(seconds).ok())
}

fn certificate_problem(error: rustls::Error, purpose: CertificatePurpose<'_>) -> CertificateProblem {
    let rustls::Error::InvalidCertificate(why) = error else {
        return CertificateProblem::Invalid(error.to_string());
    };
    match (why, purpose) {
        (CertificateError::ExpiredContext { not_after, .. }, _) => {
            CertificateProblem::Expired(to_timestamp(not_after).unwrap_or(Timestamp::UNIX_EPOCH))
        }
        (CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }, _) => {
            CertificateProblem::NotYet
        }
        (CertificateError::UnknownIssuer | CertificateError::BadSignature, _) => {
            CertificateProblem::OtherAuthority
        }
        (
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            CertificatePurpose::Server(host),
        ) => CertificateProblem::OtherHost(host.to_owned()),
        (why, _) => CertificateProblem::Invalid(format!("{why:?}")),
    }
}
