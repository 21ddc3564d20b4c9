//! Rendered objects, stored as canonical JSON bytes.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ApiVersion, Digest, Facts, Gvk, ObjectId, Secrecy, SecretField, canonical_json};

/// Labels that pleach reads and writes.
pub mod labels {
    /// ApplySet membership (KEP-3659); the value is the id of the release's set.
    pub const PART_OF: &str = "applyset.kubernetes.io/part-of";
    /// The recommended label that names the tool; set only where absent.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Marks state objects of a release: `<environment>.<release>`.
    pub const RELEASE: &str = "pleach.dev/release";
    /// `true` on the journal object of a release.
    pub const JOURNAL: &str = "pleach.dev/journal";
    /// `true` on the object that lists the writes of the last plan of a release.
    pub const PLAN: &str = "pleach.dev/plan";
}

/// Annotations that pleach reads and writes.
pub mod annotations {
    /// Digest of the request body, computed without this annotation.
    pub const DESIRED: &str = "pleach.dev/desired";
    /// The uninstalled release that left this object in the cluster, as `<environment>.<release>`.
    /// No other state of that release remains.
    pub const RELEASED: &str = "pleach.dev/released";
    /// `disabled`: never deleted by pleach.
    pub const PRUNE: &str = "pleach.dev/prune";
    /// The stage this object belongs to.
    pub const STAGE: &str = "pleach.dev/stage";
    /// Dependency within the release: `Kind/name` of an object that must be ready first.
    pub const AFTER: &str = "pleach.dev/after";
    /// `once`: a Job that runs once per content and inputs.
    pub const RUN: &str = "pleach.dev/run";
    /// Key of the content and inputs that a run-once Job ran for.
    pub const RUN_KEY: &str = "pleach.dev/run-key";
    /// `none`, `warn` or `require`: effect of this object's readiness on the run.
    pub const READY: &str = "pleach.dev/ready";
    /// Owner of a gate, as `<environment>.<release>`. Set on the admission policy that blocks
    /// requests during an upgrade, and on its binding.
    pub const GATE: &str = "pleach.dev/gate";
    /// On a pod template: digest of the `ConfigMaps` and Secrets that the pods read. A change of
    /// their content changes the digest and so replaces the pods.
    pub const CONFIGURATION: &str = "pleach.dev/configuration";
    /// On a gate: the time when it was closed.
    pub const GATE_SINCE: &str = "pleach.dev/gate-since";
    /// On a gate: the command that lifts it if no run completes the change.
    pub const GATE_LIFT: &str = "pleach.dev/gate-lift";
    /// Returns the pod template annotation that records the change for which a stage replaced the
    /// pods.
    pub fn restarted(stage: &str) -> String {
        format!("restarted.pleach.dev/{stage}")
    }

    /// On the record of a release: digest of the plan effects that a user approved for the
    /// controller.
    pub const APPROVED: &str = "pleach.dev/approved";
    /// Beside [`APPROVED`]: the user who approved it on the web page.
    pub const APPROVED_BY: &str = "pleach.dev/approved-by";

    /// Annotation that client-side `kubectl apply` writes.
    pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
}

/// Field managers that pleach uses.
pub mod managers {
    /// Prefix of a release's own field manager. The release name follows.
    pub const RELEASE: &str = "pleach/";
    /// Writes temporary changes. The next apply takes ownership of its fields.
    pub const OVERLAY: &str = "pleach-overlay";
    /// Creates copies of resources that users keep.
    pub const COPY: &str = "pleach-copy";
    /// Writes records, journals and Leases.
    pub const STATE: &str = "pleach-state";
    /// Writes the restart annotations of pod templates. Apply does not take ownership of these
    /// fields: removing an annotation would cause another restart.
    pub const RESTART: &str = "pleach-restart";
    /// Creates the namespace of the controller and writes its credentials.
    pub const BOOTSTRAP: &str = "pleach-bootstrap";

    /// Returns whether any version of pleach writes under this manager name.
    pub fn is_of_pleach(manager: &str) -> bool {
        manager.starts_with(RELEASE) || manager.starts_with("pleach-")
    }

    /// Returns whether apply takes ownership of this manager's fields without consent. True for
    /// pleach's managers that are not bound to a release, except [`RESTART`].
    pub fn is_other(manager: &str) -> bool {
        [OVERLAY, COPY, STATE].contains(&manager)
    }
}

/// Location in a source file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Path within the repository, with `/`.
    pub file: String,
    /// Line, from 1. 0 if only the file is known.
    pub line: usize,
}

impl Origin {
    /// Creates a location.
    pub fn new(file: impl Into<String>, line: usize) -> Self {
        Self {
            file: file.into(),
            line,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            f.write_str(&self.file)
        } else {
            write!(f, "{}:{}", self.file, self.line)
        }
    }
}

/// One rendered object: canonical JSON bytes, which are the request body.
///
/// Stored as bytes because the parsed tree of a 0.5 KB object takes 6 KB. Clones share all
/// parts.
#[derive(Clone, PartialEq, Eq)]
pub struct Manifest(Arc<ManifestParts>);

#[derive(Clone, PartialEq, Eq)]
struct ManifestParts {
    id: ObjectId,
    api_version: ApiVersion,
    origin: Origin,
    digest: Digest,
    json: Bytes,
    secret: bool,
    secret_fields: Vec<SecretField>,
    facts: Arc<Facts>,
}

impl Manifest {
    /// Returns whether this is a Job that runs once.
    pub fn runs_once(&self) -> bool {
        self.id().is("batch", "Job")
            && self.has_text(annotations::RUN)
            && self.value()["metadata"]["annotations"][annotations::RUN] == "once"
    }

    /// Serializes an object. `secret` marks content that must not be shown, or digested without a
    /// key. Objects of kind Secret are always marked.
    pub fn new(
        id: ObjectId,
        api_version: ApiVersion,
        origin: Origin,
        value: &Value,
        secret: bool,
    ) -> Self {
        let json = canonical_json(value);
        let secret = secret || id.is("", "Secret");
        Self(Arc::new(ManifestParts {
            facts: Facts::shared(&id, value),
            digest: Digest::of(&json),
            json: Bytes::from(json.into_boxed_slice()),
            id,
            api_version,
            origin,
            secret,
            secret_fields: Vec::new(),
        }))
    }

    /// Returns the same object with new content.
    #[must_use]
    pub fn with_content(&self, value: &Value) -> Self {
        Self::new(
            self.0.id.clone(),
            self.0.api_version.clone(),
            self.0.origin.clone(),
            value,
            self.0.secret,
        )
        .with_secret_fields(self.0.secret_fields.clone())
    }

    /// Adds fields whose values are secret. The fields of kind Secret are implied.
    #[must_use]
    pub fn with_secret_fields(mut self, fields: Vec<SecretField>) -> Self {
        let parts = Arc::make_mut(&mut self.0);
        parts.secret |= !fields.is_empty();
        parts.secret_fields = fields;
        self
    }

    /// Returns the id of the object.
    pub fn id(&self) -> &ObjectId {
        &self.0.id
    }

    /// Returns the API version of the manifest.
    pub fn api_version(&self) -> &ApiVersion {
        &self.0.api_version
    }

    /// Returns kind and version.
    pub fn gvk(&self) -> Gvk {
        Gvk {
            api_version: self.0.api_version.clone(),
            kind: self.0.id.kind.clone(),
        }
    }

    /// Returns the location in the source file.
    pub fn origin(&self) -> &Origin {
        &self.0.origin
    }

    /// Returns the plain digest of the bytes. For a secret object, keep it in memory only: store or
    /// show [`Digest::keyed`] instead.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }

    /// Returns whether the object contains secret values.
    pub fn is_secret(&self) -> bool {
        self.0.secret
    }

    /// Returns the secret fields, without those implied by kind Secret.
    pub fn secret_fields(&self) -> &[SecretField] {
        &self.0.secret_fields
    }

    /// Returns which values must be masked. If the object is secret but no field is known, all
    /// values are masked.
    pub fn secrecy(&self) -> Secrecy {
        let secrecy = Secrecy::of(&self.0.id, &self.0.secret_fields);
        if self.0.secret && !secrecy.hides_anything() {
            return Secrecy::everything();
        }
        secrecy
    }

    /// Returns the relations to other objects.
    pub fn facts(&self) -> &Facts {
        &self.0.facts
    }

    /// Returns the canonical JSON bytes.
    pub fn json(&self) -> &Bytes {
        &self.0.json
    }

    /// Returns whether the canonical JSON bytes contain a text. The search takes much less time than
    /// [`Self::value`].
    pub fn has_text(&self, text: &str) -> bool {
        std::str::from_utf8(self.json()).is_ok_and(|json| json.contains(text))
    }

    /// Parses the object. The tree is large, so parse one object at a time.
    #[expect(
        clippy::missing_panics_doc,
        clippy::expect_used,
        reason = "the bytes were written from a Value by new()"
    )]
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.0.json).expect("canonical bytes are JSON")
    }
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omit the body: it can be a Secret.
        f.debug_struct("Manifest")
            .field("id", &self.0.id)
            .field("origin", &self.0.origin)
            .finish_non_exhaustive()
    }
}
