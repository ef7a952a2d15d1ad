//! TLS of connections to the NATS server. When the certificates expire is read from the files that the next connection will use, and
//! exported as a metric, so that an alert comes before the day on which no process gets in. Failed handshakes are explained: the client
//! library reports them as connection errors like any other.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the TLS library has many errors, and few of them need a text of their own"
)]

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_nats::ConnectError;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{AlertDescription, CertificateError, RootCertStore};
use tracing::warn;

use crate::nats::connection::TlsFiles;
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

/// Returns why the handshake failed, as the rest of a sentence about the server; `None` if the connection failed for
/// another reason.
#[must_use]
pub fn explain_handshake_failure(error: &ConnectError) -> Option<String> {
    let mut next: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return Some(describe_rustls_error(error));
        }
        next = match error.downcast_ref::<io::Error>() {
            Some(error) => error.get_ref().map(|error| error as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

fn describe_rustls_error(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(why) => describe_certificate_error(why),
        rustls::Error::AlertReceived(alert) => describe_server_alert(*alert),
        error => format!("and this process can't agree on TLS ({error})"),
    }
}

fn describe_certificate_error(why: &CertificateError) -> String {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "presents a certificate of an unknown authority; set MILLRACE_NATS_CA to the certificate of that authority"
                .into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "presents a certificate that has expired".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "presents a certificate that is not valid yet; check the clock of this machine".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("presents a certificate for another host ({why})")
        }
        why => format!("presents an invalid certificate ({why})"),
    }
}

fn describe_server_alert(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => {
            "requires a client certificate; set MILLRACE_NATS_CERT and MILLRACE_NATS_KEY".into()
        }
        AlertDescription::UnknownCA => {
            "does not trust the authority that signed the certificate in MILLRACE_NATS_CERT".into()
        }
        AlertDescription::CertificateExpired => {
            "rejects the certificate in MILLRACE_NATS_CERT: it has expired".into()
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown => {
            format!("rejects the certificate in MILLRACE_NATS_CERT ({alert:?})")
        }
        alert => format!("and this process can't agree on TLS (alert {alert:?})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_errors_name_the_certificate_and_the_variable_to_set() {
        for (error, expected) in [
            (rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer), "set MILLRACE_NATS_CA"),
            (
                rustls::Error::InvalidCertificate(CertificateError::Expired),
                "presents a certificate that has expired",
            ),
            (rustls::Error::InvalidCertificate(CertificateError::NotValidYet), "check the clock"),
            (rustls::Error::InvalidCertificate(CertificateError::NotValidForName), "for another host"),
            (rustls::Error::InvalidCertificate(CertificateError::Revoked), "invalid certificate"),
            (
                rustls::Error::AlertReceived(AlertDescription::CertificateRequired),
                "requires a client certificate",
            ),
            (
                rustls::Error::AlertReceived(AlertDescription::UnknownCA),
                "signed the certificate in MILLRACE_NATS_CERT",
            ),
            (rustls::Error::AlertReceived(AlertDescription::CertificateExpired), "it has expired"),
            (rustls::Error::AlertReceived(AlertDescription::BadCertificate), "rejects the certificate"),
            (rustls::Error::AlertReceived(AlertDescription::ProtocolVersion), "can't agree on TLS"),
            (rustls::Error::General("so".into()), "can't agree on TLS (unexpected error: so)"),
        ] {
            let text = describe_rustls_error(&error);
            assert!(text.contains(expected), "{error}: {text}");
        }
    }
}
