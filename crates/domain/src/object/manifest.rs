//! Rendered objects as bytes.

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
    /// `true` on the journal of a release.
    pub const JOURNAL: &str = "pleach.dev/journal";
    /// `true` on the writes of the last plan of a release.
    pub const PLAN: &str = "pleach.dev/plan";
}

/// Annotations that pleach reads and writes.
pub mod annotations {
    /// Digest of the body that was sent, without this annotation.
    pub const DESIRED: &str = "pleach.dev/desired";
    /// The release that ended and left the object in place:
    /// `<environment>.<release>`. Nothing else is known of its members then.
    pub const RELEASED: &str = "pleach.dev/released";
    /// `disabled`: never deleted by pleach.
    pub const PRUNE: &str = "pleach.dev/prune";
    /// The stage this object belongs to.
    pub const STAGE: &str = "pleach.dev/stage";
    /// `Kind/name` of an object of the release that must be ready before.
    pub const AFTER: &str = "pleach.dev/after";
    /// `once`: a Job that runs once per content and inputs.
    pub const RUN: &str = "pleach.dev/run";
    /// What a Job that runs once ran for.
    pub const RUN_KEY: &str = "pleach.dev/run-key";
    /// `none`, `warn` or `require`: how readiness of this object counts.
    pub const READY: &str = "pleach.dev/ready";
    /// On an admission policy that closes something during an upgrade, and on
    /// its binding: whose gate it is, `<environment>.<release>`.
    pub const GATE: &str = "pleach.dev/gate";
    /// On a pod template: digest of the `ConfigMaps` and Secrets that the pods
    /// read, where they are to be replaced when these change.
    pub const CONFIGURATION: &str = "pleach.dev/configuration";
    /// On a gate: when it was closed.
    pub const GATE_SINCE: &str = "pleach.dev/gate-since";
    /// On a gate: the command that lifts it, should nobody carry out the change.
    pub const GATE_LIFT: &str = "pleach.dev/gate-lift";
    /// On a pod template: the change for which a stage replaced the pods.
    pub fn restarted(stage: &str) -> String {
        format!("restarted.pleach.dev/{stage}")
    }

    /// On the record of a release: digest of the effects that a plan of the loop
    /// may have.
    pub const APPROVED: &str = "pleach.dev/approved";

    /// What client-side `kubectl apply` leaves behind.
    pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
}

/// The field managers that pleach writes as.
pub mod managers {
    /// Before the name of a release, whose only field manager that is.
    pub const RELEASE: &str = "pleach/";
    /// Writes temporary changes; what it holds is taken over by the next apply.
    pub const OVERLAY: &str = "pleach-overlay";
    /// Creates copies of what users keep.
    pub const COPY: &str = "pleach-copy";
    /// Writes records, journals and Leases.
    pub const STATE: &str = "pleach-state";
    /// Writes the marks for which pods are replaced. What it holds is not taken
    /// over: a restart that is taken back would be another one.
    pub const RESTART: &str = "pleach-restart";

    /// Whether pleach writes by this name, in this version or another one.
    pub fn is_of_pleach(manager: &str) -> bool {
        manager.starts_with(RELEASE) || manager.starts_with("pleach-")
    }

    /// Whether it is one of those beside the releases' own whose fields are
    /// taken over without asking.
    pub fn is_other(manager: &str) -> bool {
        [OVERLAY, COPY, STATE].contains(&manager)
    }
}

/// Where something was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Path within the repository, with `/`.
    pub file: String,
    /// Line, from 1; 0 when only the file is known.
    pub line: usize,
}

impl Origin {
    /// Names a line of a file.
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
/// Bytes and not a tree: the tree of a 0.5 KB object takes 6 KB.
#[derive(Clone, PartialEq, Eq)]
pub struct Manifest {
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
    /// Freezes an object. `secret` says that it holds values that may not be
    /// shown or digested without a key, beside kind Secret, which always does.
    pub fn new(
        id: ObjectId,
        api_version: ApiVersion,
        origin: Origin,
        value: &Value,
        secret: bool,
    ) -> Self {
        let json = canonical_json(value);
        let secret = secret || id.is("", "Secret");
        Self {
            facts: Facts::shared(&id, value),
            digest: Digest::of(&json),
            json: Bytes::from(json),
            id,
            api_version,
            origin,
            secret,
            secret_fields: Vec::new(),
        }
    }

    /// The same object with another content.
    #[must_use]
    pub fn with_content(&self, value: &Value) -> Self {
        Self::new(
            self.id.clone(),
            self.api_version.clone(),
            self.origin.clone(),
            value,
            self.secret,
        )
        .with_secret_fields(self.secret_fields.clone())
    }

    /// Says which of its values are secret, beside those of kind Secret.
    #[must_use]
    pub fn with_secret_fields(mut self, fields: Vec<SecretField>) -> Self {
        self.secret |= !fields.is_empty();
        self.secret_fields = fields;
        self
    }

    /// What the object is called.
    pub fn id(&self) -> &ObjectId {
        &self.id
    }

    /// The version of the API it is written for.
    pub fn api_version(&self) -> &ApiVersion {
        &self.api_version
    }

    /// Kind and version.
    pub fn gvk(&self) -> Gvk {
        Gvk {
            api_version: self.api_version.clone(),
            kind: self.id.kind.clone(),
        }
    }

    /// Where it was written.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Plain digest of the bytes. For a secret object it must stay in memory:
    /// what is stored or shown is [`Digest::keyed`].
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Whether the object holds secret values.
    pub fn is_secret(&self) -> bool {
        self.secret
    }

    /// The fields that hold them, beside those of kind Secret.
    pub fn secret_fields(&self) -> &[SecretField] {
        &self.secret_fields
    }

    /// Which of its values may not be shown.
    pub fn secrecy(&self) -> Secrecy {
        let secrecy = Secrecy::of(&self.id, &self.secret_fields);
        if self.secret && !secrecy.hides_anything() {
            return Secrecy::everything();
        }
        secrecy
    }

    /// What the object says about others.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The canonical bytes.
    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// Parses the object; one at a time, they are large.
    #[expect(
        clippy::missing_panics_doc,
        clippy::expect_used,
        reason = "the bytes were written from a Value by new()"
    )]
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).expect("canonical bytes are JSON")
    }
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the body: it may be a Secret.
        f.debug_struct("Manifest")
            .field("id", &self.id)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}
