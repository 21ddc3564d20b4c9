//! Certificates that an api pod creates for its namespace and stores in a Secret: a CA and a server
//! certificate for the Service.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

/// Certificates as PEM.
#[derive(Clone)]
pub(crate) struct Certificates {
    ca: String,
    certificate: String,
    key: String,
}

impl Certificates {
    /// Creates a CA and a server certificate for a Service.
    pub(crate) fn generate(service: &str, namespace: &str) -> anyhow::Result<Self> {
        let mut ca = CertificateParams::new(Vec::new())?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec![
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.pod.cluster.local"),
        ])?
        .signed_by(&key, &ca)?;
        Ok(Self {
            ca: ca.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Returns the Secret with this metadata.
    pub(crate) fn to_secret(&self, metadata: &Value) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "type": "Opaque",
            "data": {
                "signing-cert-bytes": STANDARD.encode(&self.ca),
                "cert-bytes": STANDARD.encode(&self.certificate),
                "key-bytes": STANDARD.encode(&self.key),
            },
        })
    }

    /// Reads the Secret.
    pub(crate) fn from_secret(secret: &Value) -> anyhow::Result<Self> {
        let field = |key: &str| {
            let text = secret["data"][key]
                .as_str()
                .with_context(|| format!("the certificate Secret has no {key}"))?;
            Ok::<_, anyhow::Error>(String::from_utf8(STANDARD.decode(text)?)?)
        };
        Ok(Self {
            ca: field("signing-cert-bytes")?,
            certificate: field("cert-bytes")?,
            key: field("key-bytes")?,
        })
    }

    /// Returns the CA as in registrations.
    pub(crate) fn ca_bundle(&self) -> String {
        STANDARD.encode(&self.ca)
    }

    /// Returns the TLS settings of the server.
    pub(crate) fn server_config(&self) -> anyhow::Result<rustls::ServerConfig> {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        Ok(rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_round_trips() {
        let made = Certificates::generate("virt-api", "a").unwrap();
        let secret = made.to_secret(&json!({"name": "certs"}));
        let read = Certificates::from_secret(&secret).unwrap();
        assert_eq!(made.ca_bundle(), read.ca_bundle());
        read.server_config().unwrap();
    }

    #[test]
    fn a_foreign_secret_is_an_error() {
        let error = Certificates::from_secret(&json!({"data": {}})).err();
        assert_eq!(
            error.unwrap().to_string(),
            "the certificate Secret has no signing-cert-bytes"
        );
    }
}
