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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::Path;

    use axum::Router;
    use axum::routing::get;
    use pleach_files::FileContent;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::task::JoinSet;
    use tokio_rustls::TlsConnector;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::server::listen;

    type Issued = rcgen::CertifiedKey<rcgen::KeyPair>;

    fn issue() -> Issued {
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap()
    }

    fn write(files: &CertificateFiles, certificate: &str, key: &str) {
        let put = |path: &Path, text: &str| {
            pleach_files::write_atomic(path, &FileContent::private(text.as_bytes().to_vec()))
        };
        put(&files.certificate, certificate).unwrap();
        put(&files.key, key).unwrap();
    }

    /// Sends a request over TLS, trusting one certificate.
    async fn request(address: SocketAddr, trusted: &Issued) -> std::io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.cert.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(name, stream).await?;
        let head = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(head).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    #[tokio::test]
    async fn a_listener_serves_its_present_certificate_over_tls_only() {
        let folder = tempfile::tempdir().unwrap();
        let files = CertificateFiles {
            certificate: folder.path().join("tls.crt"),
            key: folder.path().join("tls.key"),
        };
        let (first, second) = (issue(), issue());
        write(
            &files,
            &first.cert.pem(),
            &first.signing_key.serialize_pem(),
        );
        let mut listening = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        listening.certificate = Some(Certificate::read(files.clone()).unwrap());
        let address = listening.address;
        let router = Router::new().route("/", get(|| async { "over TLS" }));
        let mut serving = JoinSet::new();
        let stop = CancellationToken::new();
        serving.spawn(listening.serve(router, stop.clone()));

        let answer = request(address, &first).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(answer.ends_with("over TLS"), "{answer}");
        assert!(request(address, &second).await.is_err());
        let mut plain = TcpStream::connect(address).await.unwrap();
        plain
            .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await
            .unwrap();
        let mut answer = Vec::new();
        // The connection can be reset.
        drop(plain.read_to_end(&mut answer).await);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            !answer.contains("over TLS") && !answer.contains("HTTP/1.1"),
            "{answer}"
        );

        let later = || async {
            tokio::time::pause();
            tokio::time::advance(INTERVAL).await;
            tokio::time::resume();
        };
        // Files that cannot be used, for example while they are written, change nothing.
        write(&files, &second.cert.pem(), "no key");
        later().await;
        assert!(request(address, &first).await.is_ok());
        write(
            &files,
            &second.cert.pem(),
            &second.signing_key.serialize_pem(),
        );
        later().await;
        assert!(request(address, &second).await.is_ok());
        assert!(request(address, &first).await.is_err());
        stop.cancel();
        assert!(serving.join_next().await.unwrap().unwrap().is_ok());
    }

    #[test]
    fn unusable_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let files = CertificateFiles {
            certificate: folder.path().join("tls.crt"),
            key: folder.path().join("tls.key"),
        };
        let issued = issue();
        let (certificate, key) = (issued.cert.pem(), issued.signing_key.serialize_pem());
        let other = issue().signing_key.serialize_pem();
        for (certificate, key, expected) in [
            ("", key.as_str(), "tls.crt has no certificate"),
            (&certificate, "", "tls.key has no private key"),
            (&key, &certificate, "tls.crt has no certificate"),
            (&certificate, &other, "failed to use the certificate"),
        ] {
            write(&files, certificate, key);
            let error = Certificate::read(files.clone()).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
            assert!(!error.contains("PRIVATE"), "{error}");
        }
        let missing = CertificateFiles {
            certificate: folder.path().join("missing"),
            key: files.key,
        };
        assert!(matches!(
            Certificate::read(missing),
            Err(CertificateError::Read(_))
        ));
    }
}
