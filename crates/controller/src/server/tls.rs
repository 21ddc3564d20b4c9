//! TLS of a listener. The certificate is read again while the controller runs.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pleach_files::FileError;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::Instant;

/// Interval at which the files are read.
const INTERVAL: Duration = Duration::from_secs(15);

/// Files of a certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct CertificateFiles {
    /// File with the certificate chain.
    pub certificate: PathBuf,
    /// File with the private key.
    pub key: PathBuf,
}

/// Certificate of a listener.
pub struct Certificate {
    files: CertificateFiles,
    known: Mutex<Known>,
}

/// Last read certificate.
struct Known {
    config: Arc<ServerConfig>,
    at: Instant,
}

/// Error of a certificate. It never quotes the key.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("failed to read the certificate of the listener")]
    Read(#[source] FileError),
    /// The certificates are not PEM, or there are none.
    #[error("{0} has no certificate in PEM")]
    Certificate(String),
    /// The key is not PEM.
    #[error("{0} has no private key in PEM")]
    Key(String),
    /// Certificate and key do not belong together, or are not supported.
    #[error("failed to use the certificate of the listener")]
    Unusable(#[source] rustls::Error),
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, known: _ } = self;
        f.debug_struct("Certificate")
            .field("files", files)
            .finish_non_exhaustive()
    }
}

impl Certificate {
    /// Reads a certificate.
    pub fn read(files: CertificateFiles) -> Result<Self, CertificateError> {
        let config = files.read()?;
        let known = Known {
            config,
            at: Instant::now(),
        };
        Ok(Self {
            files,
            known: Mutex::new(known),
        })
    }

    /// Returns the settings with the present certificate. If the files cannot be used, the previous
    /// certificate stays in use.
    pub(super) fn current(&self) -> Arc<ServerConfig> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.at.elapsed() >= INTERVAL {
            known.at = Instant::now();
            match self.files.read() {
                Ok(config) => known.config = config,
                Err(error) => tracing::warn!(
                    error = %pleach_engine::words(&error),
                    "the previous certificate of the listener stays in use"
                ),
            }
        }
        Arc::clone(&known.config)
    }
}

impl CertificateFiles {
    fn read(&self) -> Result<Arc<ServerConfig>, CertificateError> {
        let chain = pleach_files::read(&self.certificate).map_err(CertificateError::Read)?;
        let place = || self.certificate.display().to_string();
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&chain).collect();
        let chain = chain.map_err(|_| CertificateError::Certificate(place()))?;
        if chain.is_empty() {
            return Err(CertificateError::Certificate(place()));
        }
        let key = pleach_files::read(&self.key).map_err(CertificateError::Read)?;
        let key = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|_| CertificateError::Key(self.key.display().to_string()))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(CertificateError::Unusable)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(CertificateError::Unusable)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}
