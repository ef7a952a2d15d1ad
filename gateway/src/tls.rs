//! TLS by certificate files, which are read again when they change. A certificate that can't be used replaces none.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The interval at which the files are looked at.
const INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub struct CertificateFiles {
    /// The certificate and those of its issuers, in PEM.
    pub certificate: PathBuf,
    /// The private key, in PEM.
    pub key: PathBuf,
}

/// The files of a certificate can't be used.
#[derive(Debug, thiserror::Error)]
#[error("can't use the TLS certificate in {file}: {reason}", file = file.display())]
pub struct CertificateError {
    file: PathBuf,
    reason: String,
}

type FileTimes = (Option<SystemTime>, Option<SystemTime>);

/// A certificate that is replaced when its files change.
pub struct ReloadedCertificate {
    files: CertificateFiles,
    provider: Arc<CryptoProvider>,
    current: RwLock<Arc<CertifiedKey>>,
    /// The times of the files when they were read.
    read: RwLock<FileTimes>,
}

impl fmt::Debug for ReloadedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReloadedCertificate").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for ReloadedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl ReloadedCertificate {
    pub fn open(files: CertificateFiles) -> Result<Arc<Self>, CertificateError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let times = file_times(&files);
        let current = RwLock::new(Arc::new(read_certificate(&files, &provider)?));
        Ok(Arc::new(Self { files, provider, current, read: RwLock::new(times) }))
    }

    pub fn acceptor(self: &Arc<Self>) -> Result<TlsAcceptor, rustls::Error> {
        let mut config = rustls::ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Reads the files again whenever they change, until the token is cancelled.
    pub async fn follow_files(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
            self.reload_if_changed();
        }
    }

    fn reload_if_changed(&self) {
        let times = file_times(&self.files);
        if times == *self.read.read().unwrap_or_else(PoisonError::into_inner) {
            return;
        }
        match read_certificate(&self.files, &self.provider) {
            Ok(certificate) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(certificate);
                info!(file = %self.files.certificate.display(), "TLS certificate replaced");
            }
            // One of the two files may be replaced later than the other.
            Err(error) => warn!(%error, "keeping the TLS certificate before"),
        }
        *self.read.write().unwrap_or_else(PoisonError::into_inner) = times;
    }
}

fn file_times(files: &CertificateFiles) -> FileTimes {
    let modified = |file: &Path| file.metadata().and_then(|metadata| metadata.modified()).ok();
    (modified(&files.certificate), modified(&files.key))
}

fn read_certificate(
    files: &CertificateFiles,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, CertificateError> {
    let wrong = |file: &Path, reason: &dyn fmt::Display| CertificateError {
        file: file.to_owned(),
        reason: reason.to_string(),
    };
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_file_iter(&files.certificate).and_then(Iterator::collect);
    let chain = chain.map_err(|error| wrong(&files.certificate, &error))?;
    if chain.is_empty() {
        return Err(wrong(&files.certificate, &"it has no certificate in PEM form"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, &error))?;
    CertifiedKey::from_der(chain, key, provider).map_err(|error| wrong(&files.certificate, &error))
}
