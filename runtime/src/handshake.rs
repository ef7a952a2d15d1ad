//! Says in words why a TLS handshake with the NATS server came to nothing. The client library reports it as any other
//! error of a connection.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the TLS library has many errors, and few of them are worth words of their own"
)]

use std::error::Error;
use std::io;

use async_nats::ConnectError;
use rustls::{AlertDescription, CertificateError};

/// Why the handshake came to nothing, as the rest of a sentence about the server; `None` where it was something else
/// that did.
#[must_use]
pub fn why_not(error: &ConnectError) -> Option<String> {
    let mut next: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return Some(in_words(error));
        }
        next = match error.downcast_ref::<io::Error>() {
            Some(error) => error.get_ref().map(|error| error as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

fn in_words(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(why) => of_the_server(why),
        rustls::Error::AlertReceived(alert) => said_by_the_server(*alert),
        error => format!("and this process can't agree on TLS ({error})"),
    }
}

fn of_the_server(why: &CertificateError) -> String {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "shows a certificate of an authority that this process does not know; MILLRACE_NATS_CA names those that it \
             knows"
                .into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "shows a certificate that has expired".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "shows a certificate that is not valid yet; is the clock of this machine right?".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("shows a certificate for another host ({why})")
        }
        why => format!("shows a certificate that can't be used ({why})"),
    }
}

fn said_by_the_server(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => {
            "lets nobody in without a certificate; MILLRACE_NATS_CERT and MILLRACE_NATS_KEY name one and its key".into()
        }
        AlertDescription::UnknownCA => {
            "does not know the authority that signed the certificate in MILLRACE_NATS_CERT".into()
        }
        AlertDescription::CertificateExpired => {
            "says that the certificate in MILLRACE_NATS_CERT has expired".into()
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown => {
            format!("does not take the certificate in MILLRACE_NATS_CERT ({alert:?})")
        }
        alert => format!("and this process can't agree on TLS (it says {alert:?})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_s_complaint_names_whose_certificate_it_is_about() {
        for (error, said) in [
            (
                rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer),
                "MILLRACE_NATS_CA names those",
            ),
            (
                rustls::Error::InvalidCertificate(CertificateError::Expired),
                "shows a certificate that has expired",
            ),
            (
                rustls::Error::InvalidCertificate(CertificateError::NotValidYet),
                "is the clock of this machine right?",
            ),
            (rustls::Error::InvalidCertificate(CertificateError::NotValidForName), "for another host"),
            (rustls::Error::InvalidCertificate(CertificateError::Revoked), "can't be used"),
            (
                rustls::Error::AlertReceived(AlertDescription::CertificateRequired),
                "MILLRACE_NATS_KEY name one",
            ),
            (
                rustls::Error::AlertReceived(AlertDescription::UnknownCA),
                "signed the certificate in MILLRACE_NATS_CERT",
            ),
            (
                rustls::Error::AlertReceived(AlertDescription::CertificateExpired),
                "MILLRACE_NATS_CERT has expired",
            ),
            (rustls::Error::AlertReceived(AlertDescription::BadCertificate), "does not take the certificate"),
            (rustls::Error::AlertReceived(AlertDescription::ProtocolVersion), "can't agree on TLS"),
            (rustls::Error::General("so".into()), "can't agree on TLS (unexpected error: so)"),
        ] {
            let words = in_words(&error);
            assert!(words.contains(said), "{error}: {words}");
        }
    }
}
