//! Certificates of a throwaway authority in place of those of a cluster.
//!
//! The API server of a copy calls a server of the rehearsal in place of webhooks and aggregated
//! APIs. So the registrations of the copy, and those of git, trust a throwaway authority. Each
//! certificate of a CA bundle becomes another certificate of the same authority: equal bundles stay
//! equal, different ones stay different, and all are trusted as long as the old ones were valid.
//!
//! Everything is derived from the seed of the authority: the certificates of a dump are also those
//! of a later rehearsal.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_model::object::{Digest, from_base64};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, PKCS_ED25519, SanType, SerialNumber,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;

/// Common name of the authority.
pub const NAME: &str = "pleach-rehearsal";

/// Start of an Ed25519 key in PKCS #8, before its 32 bytes.
const PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Maximum number of certificates that are read from a text.
const CHAIN: usize = 100;

/// Seed of an authority: 32 random bytes in base64. Empty in dumps of earlier versions.
///
/// Only the programs of a rehearsal trust the authority.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seed(String);

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed")
    }
}

impl Seed {
    /// Creates a seed from random bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(STANDARD.encode(bytes))
    }

    /// Returns whether there is no seed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the authority; `None` if there is no seed.
    pub fn authority(&self) -> Option<Authority> {
        let key = key(&STANDARD.decode(&self.0).ok()?)?;
        let issuer = CertifiedIssuer::self_signed(authority_params(), key).ok()?;
        Some(Authority { issuer })
    }
}

/// Throwaway authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

/// Certificate with its key, both as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// Certificate, or chain of certificates.
    pub certificate: String,
    /// Private key.
    pub key: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pair")
    }
}

impl Authority {
    /// Returns the private key as PEM.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Makes a registration trust the authority: each CA bundle of a webhook configuration, of an
    /// `APIService` and of the conversion of a CRD. Other objects stay as they are.
    ///
    /// A bundle without certificates is one that another client replaces later, so the registration
    /// trusts the authority from the start. That of a CRD stays: the plan depends on it.
    pub fn trust(&self, object: &mut Value) {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let kind = object["kind"].as_str().unwrap_or_default();
        match (group, kind) {
            (
                "admissionregistration.k8s.io",
                "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration",
            ) => {
                let webhooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
                for webhook in webhooks.into_iter().flatten() {
                    self.replace(webhook.pointer_mut("/clientConfig/caBundle"), true);
                }
            }
            ("apiregistration.k8s.io", "APIService") => {
                self.replace(object.pointer_mut("/spec/caBundle"), true);
            }
            ("apiextensions.k8s.io", "CustomResourceDefinition") => {
                let bundle = "/spec/conversion/webhook/clientConfig/caBundle";
                self.replace(object.pointer_mut(bundle), false);
            }
            _ => {}
        }
    }

    fn replace(&self, bundle: Option<&mut Value>, even_invalid: bool) {
        let Some(bundle) = bundle else { return };
        let Some(old) = bundle.as_str().filter(|old| !old.is_empty()) else {
            return;
        };
        let certificates = from_base64(old).and_then(|bytes| self.like_authorities(&bytes));
        let new = match certificates {
            Some(certificates) => certificates,
            None if even_invalid => self.issuer.pem(),
            None => return,
        };
        *bundle = STANDARD.encode(new).into();
    }

    /// Returns a certificate of the authority for each certificate in a text, with its dates;
    /// `None` if there is none.
    pub fn like_authorities(&self, text: &[u8]) -> Option<String> {
        let certificates = read(text, |old, der| self.like_authority(old, der));
        (!certificates.is_empty()).then(|| certificates.concat())
    }

    fn like_authority(&self, old: &X509Certificate<'_>, der: &[u8]) -> Option<String> {
        let mut params = authority_params();
        set_validity(&mut params, old, der);
        let certificate = params.self_signed(self.issuer.key()).ok()?;
        Some(certificate.pem())
    }

    /// Returns a certificate with the names and dates of another one, with the rest of its chain.
    /// Its key is derived from `secret`. `None` if `chain` has no certificate.
    pub fn like_server(&self, chain: &[u8], secret: &Digest) -> Option<Pair> {
        let key = key(secret.bytes())?;
        let mut is_first = true;
        let certificates = read(chain, |old, der| {
            if !std::mem::take(&mut is_first) {
                return self.like_authority(old, der);
            }
            let mut params = CertificateParams::default();
            params.distinguished_name = subject(old);
            params.subject_alt_names = names(old);
            set_validity(&mut params, old, der);
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ];
            let certificate: Certificate = params.signed_by(&key, &self.issuer).ok()?;
            Some(certificate.pem())
        });
        (!certificates.is_empty()).then(|| Pair {
            certificate: certificates.concat(),
            key: key.serialize_pem(),
        })
    }
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, NAME);
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Returns the key of 32 bytes. Its signatures are deterministic.
fn key(bytes: &[u8]) -> Option<KeyPair> {
    let der = [&PKCS8, bytes.get(..32)?].concat();
    KeyPair::from_pkcs8_der_and_sign_algo(&der.as_slice().into(), &PKCS_ED25519).ok()
}

/// Returns the results for the certificates in a PEM text. Invalid ones are skipped.
fn read(
    text: &[u8],
    mut make: impl FnMut(&X509Certificate<'_>, &[u8]) -> Option<String>,
) -> Vec<String> {
    let blocks = Pem::iter_from_buffer(text)
        .take(CHAIN)
        .map_while(Result::ok);
    blocks
        .filter(|block| block.label == "CERTIFICATE")
        .filter_map(|block| make(&block.parse_x509().ok()?, &block.contents))
        .collect()
}

/// Returns a serial number that differs for different certificates.
fn serial(der: &[u8]) -> SerialNumber {
    let mut bytes = Digest::of(der).bytes()[..16].to_vec();
    // Positive, and without leading zeros.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    SerialNumber::from(bytes)
}

/// Sets the dates of another certificate, and a serial number of its own.
fn set_validity(params: &mut CertificateParams, old: &X509Certificate<'_>, der: &[u8]) {
    params.serial_number = Some(serial(der));
    params.not_before = old.validity().not_before.to_datetime();
    params.not_after = old.validity().not_after.to_datetime();
}

fn subject(old: &X509Certificate<'_>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for attribute in old.subject().iter_attributes() {
        if let (Some(oid), Ok(text)) = (attribute.attr_type().iter(), attribute.as_str()) {
            name.push(DnType::CustomDnType(oid.collect()), text);
        }
    }
    name
}

fn names(old: &X509Certificate<'_>) -> Vec<SanType> {
    let Ok(Some(extension)) = old.subject_alternative_name() else {
        return Vec::new();
    };
    let text = |text: &str| Ia5String::try_from(text).ok();
    let names = extension.value.general_names.iter();
    names
        .filter_map(|name| {
            Some(match name {
                GeneralName::DNSName(name) => SanType::DnsName(text(name)?),
                GeneralName::URI(name) => SanType::URI(text(name)?),
                GeneralName::RFC822Name(name) => SanType::Rfc822Name(text(name)?),
                GeneralName::IPAddress(bytes) => address(bytes)?,
                _ => return None,
            })
        })
        .collect()
}

fn address(bytes: &[u8]) -> Option<SanType> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(SanType::IpAddress(bytes.into()));
    }
    Some(SanType::IpAddress(<[u8; 16]>::try_from(bytes).ok()?.into()))
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    const POINTERS: [&str; 3] = [
        "/webhooks/0/clientConfig/caBundle",
        "/spec/caBundle",
        "/spec/conversion/webhook/clientConfig/caBundle",
    ];

    pub(crate) fn authority(byte: u8) -> Authority {
        Seed::new(&[byte; 32]).authority().unwrap()
    }

    fn parsed<T>(pem: &str, read: impl Fn(&X509Certificate<'_>) -> T) -> Vec<T> {
        let blocks = Pem::iter_from_buffer(pem.as_bytes()).map(Result::unwrap);
        blocks
            .map(|block| read(&block.parse_x509().unwrap()))
            .collect()
    }

    /// Certificates of a cluster: a server's with some names, and that of its authority.
    pub(crate) fn of_cluster() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let ca = CertifiedIssuer::self_signed(authority_params(), key).unwrap();
        let names = ["web.example.org", "10.0.0.7", "fd00::7"].map(str::to_owned);
        let mut params = CertificateParams::new(names).unwrap();
        let mut name = DistinguishedName::new();
        name.push(DnType::OrganizationName, "Example");
        name.push(DnType::CommonName, "web");
        params.distinguished_name = name;
        params.not_before = rcgen::date_time_ymd(2026, 1, 2);
        params.not_after = rcgen::date_time_ymd(2027, 3, 4);
        let server = params
            .signed_by(&KeyPair::generate().unwrap(), &ca)
            .unwrap();
        (server.pem(), ca.pem())
    }

    #[test]
    fn seeds() {
        assert!(Seed::default().authority().is_none());
        assert!(Seed::new(&[1; 31]).authority().is_none());
        assert_eq!(authority(1).key_pem(), authority(1).key_pem());
        assert_ne!(authority(1).key_pem(), authority(2).key_pem());
        assert_eq!(format!("{:?}", Seed::new(b"secret")), "Seed");
    }

    #[test]
    fn bundles_stay_different_and_keep_their_dates() {
        let authority = authority(1);
        let ((server, one), (_, two)) = (of_cluster(), of_cluster());
        let like = |text: &str| authority.like_authorities(text.as_bytes());
        assert_eq!(like(&one), like(&one));
        assert_ne!(like(&one), like(&two));
        let both = like(&format!("# note\n{one}\n{two}")).unwrap();
        assert_eq!(both, like(&one).unwrap() + &like(&two).unwrap());
        let validity = |pem: &str| parsed(pem, |it| it.validity().clone());
        assert_eq!(validity(&like(&server).unwrap()), validity(&server));
        assert_eq!(like("no certificate"), None);
        let issuers = parsed(&both, |it| (it.issuer().to_string(), it.is_ca()));
        assert_eq!(issuers, vec![(format!("CN={NAME}"), true); 2]);
    }

    #[test]
    fn registrations_trust_the_authority_and_nothing_else_changes() {
        let authority = authority(1);
        let (_, ca) = of_cluster();
        let like = STANDARD.encode(authority.like_authorities(ca.as_bytes()).unwrap());
        let own = STANDARD.encode(authority.issuer.pem());
        let bundle = STANDARD.encode(&ca);
        for (version, kind, pointer, old, new) in [
            (
                "admissionregistration.k8s.io/v1",
                "ValidatingWebhookConfiguration",
                0,
                &bundle,
                &like,
            ),
            (
                "admissionregistration.k8s.io/v1",
                "MutatingWebhookConfiguration",
                0,
                &bundle,
                &like,
            ),
            ("apiregistration.k8s.io/v1", "APIService", 1, &bundle, &like),
            (
                "apiextensions.k8s.io/v1",
                "CustomResourceDefinition",
                2,
                &bundle,
                &like,
            ),
            // Placeholders that an injector replaces.
            (
                "admissionregistration.k8s.io/v1",
                "MutatingWebhookConfiguration",
                0,
                &"Cg==".to_owned(),
                &own,
            ),
            (
                "apiextensions.k8s.io/v1",
                "CustomResourceDefinition",
                2,
                &"Cg==".to_owned(),
                &"Cg==".to_owned(),
            ),
            (
                "apiregistration.k8s.io/v1",
                "APIService",
                1,
                &String::new(),
                &String::new(),
            ),
            // Another kind with the same field.
            ("example.org/v1", "APIService", 1, &bundle, &bundle),
        ] {
            let object = |bundle: &str| {
                let mut object = json!({
                    "apiVersion": version, "kind": kind,
                    "webhooks": [{"name": "a", "clientConfig": {"caBundle": ""}}, {"name": "b"}],
                    "spec": {"caBundle": "", "conversion": {"webhook": {"clientConfig": {"caBundle": ""}}}},
                });
                *object.pointer_mut(POINTERS[pointer]).unwrap() = bundle.into();
                object
            };
            let mut changed = object(old);
            authority.trust(&mut changed);
            assert_eq!(changed, object(new), "{kind} {old}");
        }
    }

    #[test]
    fn certificates_of_servers_keep_names_and_dates() {
        let authority = authority(1);
        let (server, ca) = of_cluster();
        let secret = Digest::of(b"key");
        let chain = format!("{server}{ca}");
        let pair = authority.like_server(chain.as_bytes(), &secret).unwrap();
        let facts = |pem: &str| {
            parsed(pem, |it| {
                let names = it.subject_alternative_name().unwrap();
                let names = names.map(|it| format!("{:?}", it.value.general_names));
                (it.subject().to_string(), it.validity().clone(), names)
            })
        };
        let (old, new) = (facts(&chain), facts(&pair.certificate));
        assert_eq!(new[0], old[0]);
        assert_eq!(new[1].1, old[1].1);
        assert_eq!(new.len(), 2);
        assert_eq!(
            KeyPair::from_pem(&pair.key).unwrap().serialize_pem(),
            pair.key
        );
        assert_eq!(authority.like_server(chain.as_bytes(), &secret), Some(pair));
        assert_eq!(authority.like_server(b"none", &secret), None);
    }
}
