//! Certificate of a server, with an authority of its own.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// Certificate, key and authority, in PEM.
#[derive(Clone)]
pub struct Issued {
    /// Certificate of the authority.
    pub authority: String,
    /// Certificate of the server.
    pub certificate: String,
    /// Private key of the server.
    pub key: String,
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").finish_non_exhaustive()
    }
}

impl Issued {
    /// Issues a certificate for a host name or address, by a new authority.
    pub fn to(host: &str) -> anyhow::Result<Self> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority
            .distinguished_name
            .push(DnType::CommonName, "authority of a test");
        let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new([host.to_owned()])?.signed_by(&key, &issuer)?;
        Ok(Self {
            authority: issuer.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}
