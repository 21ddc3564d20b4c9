//! Kubernetes objects: ids, manifests, digests, secret fields and YAML.

mod desired_digest;
mod digest;
mod encoded;
mod facts;
mod fields;
mod id;
mod located;
mod lookup;
mod manifest;
mod non_secret;
mod release_name;
mod secret;
mod selector;
pub mod yaml;

pub use desired_digest::DesiredDigest;
pub use digest::{Digest, DigestKey, canonical_json};
pub use encoded::from_base64;
pub use facts::{
    DefinedKind, Facts, Interception, Parameters, ReadinessDemand, SwitchedOn, configuration,
    interceptions, pod_template, pointed_at, registered_api, registered_services,
};
pub use fields::{FieldPath, KeyValue, PathSegment};
pub use id::{ApiVersion, GroupKind, Gvk, IdFields, ObjectId, ParseIdError, ServiceRef};
pub use located::{LOCATED, Located, Places};
pub use lookup::SortedLookup;
pub use manifest::{Manifest, Origin, annotations, labels, managers};
pub use non_secret::NonSecret;
pub use release_name::ReleaseName;
pub use secret::{Coding, Hidden};
pub use secret::{ParseSecretFieldError, Secrecy, SecretField};
pub use selector::{Matcher, Pattern, Selector, known_kind, well_known_group};
