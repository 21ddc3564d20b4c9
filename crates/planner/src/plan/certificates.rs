//! Certificates of the release that expire soon. Only their dates are read, and
//! no content is shown.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use x509_parser::pem::Pem;

use super::draft::Ctx;
use super::phases::Bracketed;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, from_base64};

/// Remaining lifetime below which a certificate causes a warning.
const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Warns about certificates that expire within a week or have expired, if the
/// plan changes anything.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    if !draft.has_effects() {
        return;
    }
    let now = ctx.observed.at;
    for (id, manifest) in &ctx.manifests {
        let Some(places) = Places::of(id) else {
            continue;
        };
        // Ignored fields are only sent with a new object; another client renews
        // them.
        let sent = match ctx.observed.live_meta(id) {
            Some(_) => ctx.desired.ignored.lean(manifest),
            None => *manifest,
        };
        for (field, expiry) in places.expiry(&sent.value()) {
            let message = if expiry <= now {
                format!("the certificate in {field} expired at {expiry}")
            } else if expiry.duration_since(now) < SOON {
                format!("the certificate in {field} expires at {expiry}")
            } else {
                continue;
            };
            draft.findings.push(
                Finding::warning(Kind::Repository, "certificate-ends", message)
                    .at(manifest.origin().clone())
                    .on((*id).clone())
                    .hint("renew the certificate; clients reject it after that time"),
            );
        }
    }
}

/// Fields of a kind that contain certificates.
enum Places {
    /// A TLS Secret.
    Secret,
    /// Client configurations, by JSON pointer.
    Pointers(&'static [&'static str]),
    /// One client configuration per webhook.
    Webhooks,
}

impl Places {
    fn of(id: &ObjectId) -> Option<Self> {
        Some(match (id.group.as_str(), id.kind.as_str()) {
            ("", "Secret") => Self::Secret,
            ("apiregistration.k8s.io", "APIService") => Self::Pointers(&["/spec/caBundle"]),
            ("apiextensions.k8s.io", "CustomResourceDefinition") => {
                Self::Pointers(&["/spec/conversion/webhook/clientConfig/caBundle"])
            }
            (
                "admissionregistration.k8s.io",
                "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration",
            ) => Self::Webhooks,
            _ => return None,
        })
    }

    /// Returns the fields with certificates and their expiry.
    fn expiry(&self, value: &Value) -> Vec<(String, Timestamp)> {
        match self {
            Self::Secret if value["type"] == "kubernetes.io/tls" => {
                // A chain expires with its first certificate.
                let expiry = dates(&value["data"]["tls.crt"]).into_iter().min();
                expiry
                    .map(|expiry| ("data[tls.crt]".to_owned(), expiry))
                    .into_iter()
                    .collect()
            }
            Self::Secret => Vec::new(),
            Self::Pointers(pointers) => pointers
                .iter()
                .filter_map(|pointer| {
                    let expiry = ca_expiry(value.pointer(pointer)?)?;
                    Some((pointer[1..].replace('/', "."), expiry))
                })
                .collect(),
            Self::Webhooks => value["webhooks"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|webhook| {
                    let name = webhook["name"].as_str().unwrap_or_default();
                    let expiry = ca_expiry(&webhook["clientConfig"]["caBundle"])?;
                    Some((format!("webhooks[{name}].clientConfig.caBundle"), expiry))
                })
                .collect(),
        }
    }
}

/// Returns the expiry of a CA bundle, which is valid while one certificate is.
fn ca_expiry(bundle: &Value) -> Option<Timestamp> {
    dates(bundle).into_iter().max()
}

/// Returns the expiry of each certificate in a base64-encoded text; empty if
/// there is none.
fn dates(text: &Value) -> Vec<Timestamp> {
    let text = text.as_str().unwrap_or_default();
    let Some(bytes) = from_base64(text) else {
        return Vec::new();
    };
    Pem::iter_from_buffer(&bytes)
        .filter_map(Result::ok)
        .filter_map(|pem| {
            let certificate = pem.parse_x509().ok()?;
            let expiry = certificate.validity().not_after.timestamp();
            Timestamp::from_second(expiry).ok()
        })
        .collect()
}
