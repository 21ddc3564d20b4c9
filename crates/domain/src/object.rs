//! Kubernetes objects: ids, manifests, digests, secret fields and YAML.

mod digest;
mod encoded;
mod facts;
mod fields;
mod id;
mod lookup;
mod manifest;
mod secret;
pub mod yaml;

pub use digest::{Digest, DigestKey, canonical_json};
pub use encoded::from_base64;
pub use facts::{
    Definition, Facts, Interception, Parameters, ReadinessDemand, SwitchedOn, configuration,
    interceptions, pod_template, pointed_at, registered_api, registered_services,
};
pub use fields::{FieldPath, KeyValue, PathSegment};
pub use id::{ApiVersion, GroupKind, Gvk, IdFields, ObjectId, ParseIdError, ServiceRef};
pub use lookup::SortedLookup;
pub use manifest::{Manifest, Origin, annotations, labels, managers};
pub(crate) use secret::{Coding, Hidden};
pub use secret::{ParseSecretFieldError, Secrecy, SecretField};
