//! When the certificates of a connection expire: read from the files that the next connection will use, and exported as
//! a metric, so that an alert comes before the day on which no process gets in.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use tracing::warn;

use super::connection::TlsFiles;
use crate::ops::metrics::Gauge;
use crate::ops::metrics::names::CERTIFICATE_EXPIRY;

/// A time after the expiry of every certificate: verifying for it makes the verifier report the expiry date.
const FAR_FUTURE: Duration = Duration::from_secs(250_000_000_000);
/// The interval at which the files are read: renewed files are noticed within it.
const READ_INTERVAL: Duration = Duration::from_secs(60);

/// Returns when the first of these certificates expires; `None` if that can't be determined.
#[must_use]
pub fn expiry_of_first(certificates: &[CertificateDer<'static>]) -> Option<UnixTime> {
    let (leaf, links) = certificates.split_first()?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone()).ok()?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()?;
    // The verifier checks the time first, so it does not matter that the leaf is no authority.
    match verifier.verify_client_cert(leaf, links, UnixTime::since_unix_epoch(FAR_FUTURE)) {
        Err(rustls::Error::InvalidCertificate(rustls::CertificateError::ExpiredContext {
            not_after,
            ..
        })) => Some(not_after),
        Ok(_) | Err(_) => None,
    }
}

/// Returns when the certificate in a file expires first: a file may hold several authorities.
fn earliest_expiry_in_file(path: &Path) -> Option<UnixTime> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates = certificates.ok()?;
    certificates
        .iter()
        .filter_map(|one| expiry_of_first(std::slice::from_ref(one)))
        .min_by_key(UnixTime::as_secs)
}

/// Starts to export when the certificates in these files expire, for as long as `connection` lives.
pub(crate) fn export_certificate_expiry<C: Send + Sync + 'static>(files: &TlsFiles, connection: &Arc<C>) {
    let certificate = files.identity.as_ref().map(|(certificate, _)| certificate);
    let named = [("certificate", certificate), ("authorities", files.authorities.as_ref())];
    let files: Vec<(&str, std::path::PathBuf)> =
        named.into_iter().filter_map(|(name, path)| Some((name, path?.clone()))).collect();
    if !files.is_empty() {
        tokio::spawn(read_files_while_connected(files, Arc::downgrade(connection)));
    }
}

async fn read_files_while_connected<C>(files: Vec<(&str, std::path::PathBuf)>, connection: Weak<C>) {
    let mut gauges: Vec<Option<Gauge>> = files.iter().map(|_| None).collect();
    while connection.strong_count() > 0 {
        for ((name, path), gauge) in files.iter().zip(&mut gauges) {
            match earliest_expiry_in_file(path) {
                Some(expiry) => gauge
                    .get_or_insert_with(|| CERTIFICATE_EXPIRY.with_labels(&[name]))
                    .set(expiry.as_secs() as f64),
                None if gauge.take().is_some() => {
                    warn!(path = %path.display(), "cannot read when this certificate expires");
                }
                None => {}
            }
        }
        tokio::time::sleep(READ_INTERVAL).await;
    }
}
