//! Certificates of the control plane.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};

use crate::ThrowawayError;

/// Object identifier of an organization. A name can contain each type only once. This one is
/// encoded like [`DnType::OrganizationName`] but counts as another type.
const ORGANIZATION: [u64; 4] = [2, 5, 4, 10];

/// Certificate with its key, both as PEM.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// Certificate authority of one control plane.
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    pub(super) fn new(name: &str) -> Result<Self, ThrowawayError> {
        Self::with_key(name, KeyPair::generate)
    }

    /// Creates an authority with a key in PEM form.
    pub(super) fn from_key(name: &str, key: &str) -> Result<Self, ThrowawayError> {
        Self::with_key(name, || KeyPair::from_pem(key))
    }

    fn with_key(
        name: &str,
        key: impl FnOnce() -> Result<KeyPair, rcgen::Error>,
    ) -> Result<Self, ThrowawayError> {
        let make = || {
            let mut params = CertificateParams::default();
            params.distinguished_name = named(name, &[]);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            CertifiedIssuer::self_signed(params, key()?)
        };
        match make() {
            Ok(issuer) => Ok(Self { issuer }),
            Err(source) => Err(ThrowawayError::MakeCertificate {
                subject: name.to_owned(),
                source,
            }),
        }
    }

    pub(super) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Signs a server certificate for host names and addresses.
    pub(super) fn server(&self, name: &str, hosts: &[&str]) -> Result<Identity, ThrowawayError> {
        self.sign(name, &[], hosts, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Signs a client certificate with a user and its groups.
    pub(super) fn client(&self, name: &str, groups: &[&str]) -> Result<Identity, ThrowawayError> {
        if groups.len() > 2 {
            return Err(ThrowawayError::TooManyGroups {
                name: name.to_owned(),
                count: groups.len(),
            });
        }
        self.sign(name, groups, &[], ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        name: &str,
        groups: &[&str],
        hosts: &[&str],
        purpose: ExtendedKeyUsagePurpose,
    ) -> Result<Identity, ThrowawayError> {
        let make = || {
            let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
            let mut params = CertificateParams::new(hosts)?;
            params.distinguished_name = named(name, groups);
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![purpose];
            let key = KeyPair::generate()?;
            let certificate = params.signed_by(&key, &self.issuer)?;
            Ok(Identity {
                certificate: certificate.pem(),
                key: key.serialize_pem(),
            })
        };
        make().map_err(|source| ThrowawayError::MakeCertificate {
            subject: name.to_owned(),
            source,
        })
    }
}

/// Key pair for service account tokens, both keys as PEM.
pub(super) struct SigningKey {
    pub(super) private: String,
    pub(super) public: String,
}

impl SigningKey {
    pub(super) fn new() -> Result<Self, ThrowawayError> {
        let key = KeyPair::generate().map_err(|source| ThrowawayError::MakeCertificate {
            subject: "service accounts".to_owned(),
            source,
        })?;
        Ok(Self {
            private: key.serialize_pem(),
            public: key.public_key_pem(),
        })
    }
}

fn named(name: &str, groups: &[&str]) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    let types = [
        DnType::OrganizationName,
        DnType::CustomDnType(ORGANIZATION.to_vec()),
    ];
    for (kind, &group) in types.into_iter().zip(groups) {
        subject.push(kind, group);
    }
    subject.push(DnType::CommonName, name);
    subject
}
