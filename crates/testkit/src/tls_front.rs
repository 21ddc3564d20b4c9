//! TLS in front of a server on loopback, with a certificate of its own.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// Server that decrypts connections and passes them on. It ends with the process.
#[derive(Debug)]
pub struct TlsFront {
    host: String,
    port: u16,
    certificate: String,
}

impl TlsFront {
    /// Passes connections on to a port of loopback.
    pub fn start(to: u16) -> anyhow::Result<Self> {
        Self::listen(Ipv4Addr::LOCALHOST, "localhost".to_owned(), to)
    }

    /// Passes connections to an address on to a port of loopback.
    pub fn start_at(address: Ipv4Addr, to: u16) -> anyhow::Result<Self> {
        Self::listen(address, address.to_string(), to)
    }

    fn listen(address: Ipv4Addr, host: String, to: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((address, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let issued = rcgen::generate_simple_self_signed(vec![host.clone()])?;
        let key = PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.der().clone()], PrivateKeyDer::from(key))?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::spawn(move || runtime.block_on(accept(listener, acceptor, to)));
        Ok(Self {
            host,
            port,
            certificate: issued.cert.pem(),
        })
    }

    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}:{}/{path}", self.host, self.port)
    }

    /// Returns the certificate in PEM. It is its own authority.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, to: u16) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        connections.spawn(async move {
            // Errors are the client's concern.
            if let Ok(mut front) = acceptor.accept(stream).await
                && let Ok(mut back) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await
            {
                drop(tokio::io::copy_bidirectional(&mut front, &mut back).await);
            }
        });
    }
}
