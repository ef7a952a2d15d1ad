//! Explains failed TLS handshakes with the NATS server: the client library reports them as connection errors like any
//! other.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the TLS library has many errors, and few of them need a text of their own"
)]

use std::error::Error;
use std::io;

use async_nats::ConnectError;
use rustls::{AlertDescription, CertificateError};

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
