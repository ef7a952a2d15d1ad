//! Reads and validates certificates: for `millrace nats-config`, which renews them, and for `millrace doctor`, which
//! reports problems. Also creates the certificates of a cluster: an authority valid for ten years, and a server and a client certificate signed
//! by it, valid for one year. Valid ones are kept; a certificate that expires soon or lacks a host is renewed by the same
//! authority. Certificates only allow connecting: a process is identified by its nkey.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use millrace_runtime::nats::tls::expiry_of_first;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, RootCertStore};
use sha2::{Digest, Sha256};

use crate::ConfigError;
use crate::folder::{ConfigFolder, FileAccess};

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

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(3652 * DAY.as_secs());
const LEAF_VALIDITY: Duration = Duration::from_secs(365 * DAY.as_secs());
/// Remaining validity below which a certificate is renewed.
const RENEWED_BEFORE: SignedDuration = SignedDuration::from_hours(60 * 24);
/// Certificates are valid from an hour ago, because clocks differ.
const CLOCK_SKEW: Duration = Duration::from_secs(60 * 60);

/// Host names of the servers in compose, in `deploy/kubernetes`, and on one machine.
pub const HOSTS: [&str; 21] = [
    "localhost",
    "127.0.0.1",
    "::1",
    "nats",
    "nats-0",
    "nats-1",
    "nats-2",
    "nats-3",
    "nats-0.nats",
    "nats-1.nats",
    "nats-2.nats",
    "nats-3.nats",
    "nats-0.nats-headless",
    "nats-1.nats-headless",
    "nats-2.nats-headless",
    "nats.millrace",
    "nats.millrace.svc",
    "nats.millrace.svc.cluster.local",
    "*.nats.millrace.svc.cluster.local",
    "*.nats-headless.millrace.svc",
    "*.nats-headless.millrace.svc.cluster.local",
];

/// Additional host names between servers of larger clusters; Millrace accepts no `*` before a single label.
const HOSTS_AMONG_SERVERS: [&str; 2] = ["*.nats", "*.nats-headless"];

const AUTHORITY: (&str, &str) = ("tls/ca.crt", "tls/ca.key");

/// A certificate that the authority signs.
struct LeafCertificate {
    certificate: &'static str,
    key: &'static str,
    name: &'static str,
    hosts: BTreeSet<String>,
}

impl LeafCertificate {
    fn for_server(more: &BTreeSet<String>) -> Self {
        let hosts = HOSTS.iter().map(|host| (*host).to_owned()).chain(more.iter().cloned()).collect();
        Self { certificate: "tls/server.crt", key: "tls/server.key", name: "millrace nats", hosts }
    }

    fn for_client() -> Self {
        let hosts = BTreeSet::new();
        Self { certificate: "tls/client.crt", key: "tls/client.key", name: "millrace client", hosts }
    }

    /// Servers are also clients of each other, so their certificate serves both purposes.
    fn purposes(&self) -> impl Iterator<Item = CertificatePurpose<'_>> {
        let hosts = self.hosts.iter().map(|host| CertificatePurpose::Server(host));
        std::iter::once(CertificatePurpose::Client).chain(hosts)
    }
}

/// Creates missing certificates, renews invalid and expiring ones, and keeps the rest.
/// Errors: a file can't be read or written or has invalid content, or the authority's key is needed but missing.
pub fn write_certificates(
    folder: &mut ConfigFolder,
    hosts: &BTreeSet<String>,
    now: Timestamp,
) -> Result<(), ConfigError> {
    create_missing_authority(folder, now)?;
    for leaf in [LeafCertificate::for_server(hosts), LeafCertificate::for_client()] {
        if let Some(why) = renewal_reason(folder, &leaf, now)? {
            issue_leaf_certificate(folder, &leaf, &why, now)?;
        }
    }
    Ok(())
}

/// Creates the authority if there is none; an existing one is kept, wherever it comes from.
fn create_missing_authority(folder: &mut ConfigFolder, now: Timestamp) -> Result<(), ConfigError> {
    let (certificate, key) = AUTHORITY;
    if folder.read_file(certificate)?.is_some() {
        Certificates::read_file(&folder.file_path(certificate)).map_err(ConfigError::Certificate)?;
        return Ok(());
    }
    if folder.read_file(key)?.is_none() {
        let pair = KeyPair::generate().map_err(|error| creation_error(certificate, &error))?;
        folder.write_file(key, FileAccess::Secret, &pair.serialize_pem(), "")?;
    }
    let pair = read_authority_key(folder)?;
    let mut parameters = authority_parameters(&pair);
    set_validity(&mut parameters, now, AUTHORITY_VALIDITY);
    let signed = parameters.self_signed(&pair).map_err(|error| creation_error(certificate, &error))?;
    folder.write_file(certificate, FileAccess::Shared, &signed.pem(), "")
}

fn read_authority_key(folder: &ConfigFolder) -> Result<KeyPair, ConfigError> {
    let (certificate, key) = AUTHORITY;
    let text = folder.read_file(key)?.ok_or_else(|| ConfigError::NoAuthorityKey {
        key: folder.file_path(key),
        certificate: folder.file_path(certificate),
    })?;
    KeyPair::from_pem(&text).map_err(|_| {
        ConfigError::Certificate(CertificateProblem::WrongContent {
            path: folder.file_path(key),
            what: "private key",
        })
    })
}

/// Returns the parameters of an authority with this key, except its validity. Its name contains a hash of the key, so that
/// a certificate of another authority is not mistaken for a broken one.
fn authority_parameters(pair: &KeyPair) -> CertificateParams {
    let digest = Sha256::digest(pair.public_key_raw());
    let fingerprint: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = Default::default();
    parameters.distinguished_name.push(DnType::CommonName, format!("millrace nats authority {fingerprint}"));
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

/// Returns why a certificate must be created; `None` if it is valid.
fn renewal_reason(
    folder: &ConfigFolder,
    leaf: &LeafCertificate,
    now: Timestamp,
) -> Result<Option<String>, ConfigError> {
    if folder.read_file(leaf.certificate)?.is_none() || folder.read_file(leaf.key)?.is_none() {
        return Ok(Some("its certificate or key was missing".into()));
    }
    let authorities =
        Certificates::read_file(&folder.file_path(AUTHORITY.0)).map_err(ConfigError::Certificate)?;
    let current =
        Certificates::read_file(&folder.file_path(leaf.certificate)).map_err(ConfigError::Certificate)?;
    if let Some(until) = current.valid_until().filter(|until| until.duration_since(now) < RENEWED_BEFORE) {
        return Ok(Some(format!("the previous one expires on {}", until.strftime("%Y-%m-%d"))));
    }
    if let Err(fault) = current.check_key(&folder.file_path(leaf.key)) {
        return Ok(Some(format!("the previous one: {fault}")));
    }
    let mut checks = leaf.purposes().map(|purpose| current.check_validity(&authorities, purpose, now));
    Ok(checks.find_map(Result::err).map(|fault| format!("the previous one: {fault}")))
}

fn issue_leaf_certificate(
    folder: &mut ConfigFolder,
    leaf: &LeafCertificate,
    why: &str,
    now: Timestamp,
) -> Result<(), ConfigError> {
    let failed = |error| creation_error(leaf.certificate, &error);
    let authority_key = read_authority_key(folder)?;
    let issuer = Issuer::new(authority_parameters(&authority_key), authority_key);
    let is_server = !leaf.hosts.is_empty();
    let server_hosts = HOSTS_AMONG_SERVERS.iter().filter(|_| is_server).map(|host| (*host).to_owned());
    let hosts: Vec<String> = leaf.hosts.iter().cloned().chain(server_hosts).collect();
    let mut parameters = CertificateParams::new(hosts).map_err(failed)?;
    parameters.distinguished_name = Default::default();
    parameters.distinguished_name.push(DnType::CommonName, leaf.name);
    set_validity(&mut parameters, now, LEAF_VALIDITY);
    parameters.use_authority_key_identifier_extension = true;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if is_server {
        parameters.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    let pair = KeyPair::generate().map_err(failed)?;
    let signed = parameters.signed_by(&pair, &issuer).map_err(failed)?;
    folder.write_file(leaf.key, FileAccess::Secret, &pair.serialize_pem(), why)?;
    folder.write_file(leaf.certificate, FileAccess::Shared, &signed.pem(), why)
}

fn creation_error(file: &str, error: &rcgen::Error) -> ConfigError {
    ConfigError::NotCreated { what: file.into(), why: error.to_string() }
}

/// Sets the validity: from an hour ago until `length` from now.
fn set_validity(parameters: &mut CertificateParams, now: Timestamp, length: Duration) {
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(now.as_second().unsigned_abs());
    (parameters.not_before, parameters.not_after) = (now - CLOCK_SKEW, now + length);
}
