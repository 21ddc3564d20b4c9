//! Writes of a plan, in the form in which an audit log reports them.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use pleach_formats::gate::binding;
use pleach_model::object::{Digest, GroupKind, ObjectId, ReleaseName, labels};
use pleach_planner::plan::{Op, Plan, Precondition, REGISTRATIONS, Step, leaving_service};
use pleach_state::overlay::OverlayKind;

/// Version of the stored format.
const FORMAT: u32 = 1;

/// Largest compressed plan in bytes. The plan must fit into one ConfigMap.
const LIMIT: usize = 512 * 1024;

/// Largest size in bytes of a decompressed plan.
const UNPACKED_LIMIT: u64 = 64 * 1024 * 1024;

/// Verb of a write request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// POST.
    Create,
    /// PATCH, also a server-side apply that creates.
    Patch,
    /// PUT.
    Update,
    /// DELETE of one object.
    Delete,
    /// DELETE of many.
    DeleteCollection,
}

impl Verb {
    /// Parses the verb of an audit event. Returns `None` for verbs that only read.
    pub(super) fn of(text: &str) -> Option<Self> {
        Some(match text {
            "create" => Self::Create,
            "patch" => Self::Patch,
            "update" => Self::Update,
            "delete" => Self::Delete,
            "deletecollection" => Self::DeleteCollection,
            _ => return None,
        })
    }

    /// Returns the verb as it appears in audit logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// A write that a plan intends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedWrite {
    /// Verbs that count as this write. Any one of them is sufficient.
    pub verbs: BTreeSet<Verb>,
    /// API group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Plural name of the kind. Empty if it is not known yet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// Kind. Empty if only the plural name is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Namespace. Matches any namespace if both this field and `name` are empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name. Empty matches any name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Whether the write is optional. Examples are the revert of a change that may already be
    /// reverted, and a copy of an object that may not exist.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
}

impl PlannedWrite {
    fn new(verbs: impl IntoIterator<Item = Verb>, id: &ObjectId, open: bool) -> Self {
        Self {
            verbs: verbs.into_iter().collect(),
            group: id.group.clone(),
            resource: String::new(),
            kind: id.kind.clone(),
            namespace: id.namespace.clone().unwrap_or_default(),
            name: id.name.clone(),
            open,
        }
    }

    /// Formats the object, with `*` for an unknown name.
    pub fn object(&self) -> String {
        let kind = match (self.kind.as_str(), self.group.as_str()) {
            ("", "") => self.resource.clone(),
            ("", group) => format!("{}.{group}", self.resource),
            (kind, "") => kind.to_owned(),
            (kind, group) => format!("{kind}.{group}"),
        };
        let name = if self.name.is_empty() {
            "*"
        } else {
            &self.name
        };
        match self.namespace.as_str() {
            "" => format!("{kind}/{name}"),
            namespace => format!("{kind}/{namespace}/{name}"),
        }
    }
}

/// Returns the writes of one step.
fn of_step(step: &Step) -> Vec<PlannedWrite> {
    let id = &step.object;
    let one = |verb, open| vec![PlannedWrite::new([verb], id, open)];
    match &step.op {
        Op::Apply { .. } | Op::Own(_) | Op::Patch { .. } | Op::Restart { .. } => {
            one(Verb::Patch, false)
        }
        // A required UID means that a previous run created the object. This step only waits for it.
        Op::Create { .. } if step.require.iter().any(is_incarnation) => Vec::new(),
        Op::Create { .. } => one(Verb::Patch, false),
        Op::Delete(_) if leaving_service(step).is_some() => {
            // Pods may have registered again before they terminated.
            let registrations = REGISTRATIONS.iter().map(|(group, kind)| {
                let any = ObjectId::new(group, kind, None, "");
                PlannedWrite::new([Verb::Delete], &any, true)
            });
            registrations.chain(one(Verb::Delete, false)).collect()
        }
        Op::Delete(_) => one(Verb::Delete, false),
        Op::Copy { to, .. } => vec![PlannedWrite::new([Verb::Create], to, true)],
        Op::Replace { .. } => {
            let pods = ObjectId::new("", "Pod", id.namespace.as_deref(), "");
            vec![PlannedWrite {
                resource: "pods".to_owned(),
                ..PlannedWrite::new([Verb::Delete], &pods, true)
            }]
        }
        Op::Migrate { crd, .. } => {
            let (plural, group) = crd.name.split_once('.').unwrap_or((crd.name.as_str(), ""));
            let objects = PlannedWrite {
                resource: plural.to_owned(),
                ..PlannedWrite::new([Verb::Patch], &ObjectId::new(group, "", None, ""), true)
            };
            vec![objects, PlannedWrite::new([Verb::Patch], crd, false)]
        }
        Op::UpgradeNode { jobs, driver, .. } => {
            let pods = ObjectId::new("", "Pod", None, "");
            let evictions = PlannedWrite {
                resource: "pods".to_owned(),
                ..PlannedWrite::new([Verb::Create], &pods, true)
            };
            let jobs = jobs.iter().map(|job| {
                let any = ObjectId::new("batch", "Job", job.namespace.as_deref(), "");
                PlannedWrite::new([Verb::Create, Verb::Delete], &any, true)
            });
            let node = PlannedWrite::new([Verb::Patch], id, true);
            let hooks = driver.iter().map(|driver| {
                let GroupKind { group, kind } = driver.hooks.group_kind();
                let any = ObjectId::new(&group, &kind, driver.hooks.namespace.as_deref(), "");
                PlannedWrite::new([Verb::Patch], &any, true)
            });
            let all = [node, evictions].into_iter().chain(jobs);
            all.chain(hooks).collect()
        }
        Op::Preload { namespace, job, .. } => {
            let both = || [Verb::Create, Verb::Delete];
            let pods = namespace.iter().map(|namespace| {
                let any = ObjectId::new("", "Pod", Some(namespace), "");
                PlannedWrite::new(both(), &any, true)
            });
            let jobs = job.iter().map(|job| {
                let any = ObjectId::new("batch", "Job", job.namespace.as_deref(), "");
                PlannedWrite::new(both(), &any, true)
            });
            let node = PlannedWrite::new([Verb::Patch], id, true);
            [node].into_iter().chain(pods).chain(jobs).collect()
        }
        Op::RememberImages { .. } => {
            let verbs = [Verb::Create, Verb::Patch, Verb::Delete];
            vec![PlannedWrite::new(verbs, id, true)]
        }
        Op::CleanNode { job, .. } => {
            let any = ObjectId::new("batch", "Job", job.namespace.as_deref(), "");
            vec![PlannedWrite::new([Verb::Create, Verb::Delete], &any, true)]
        }
        // The writes of overlays come from `for_a_while`.
        Op::Set { .. } | Op::Close { .. } | Op::Lift | Op::Wait | Op::Pause => Vec::new(),
    }
}

fn is_incarnation(precondition: &Precondition) -> bool {
    matches!(precondition, Precondition::Uid(_))
}

/// Returns the writes of the plan's overlays, all of them optional.
///
/// The number of these writes depends on concurrent changes and on the outcome of the run.
fn for_a_while(plan: &Plan) -> Vec<PlannedWrite> {
    let overlays = plan.overlays.iter();
    overlays
        .flat_map(|overlay| {
            let verbs = match overlay.content.kind() {
                OverlayKind::Gate | OverlayKind::Binding => {
                    vec![Verb::Create, Verb::Patch, Verb::Delete]
                }
                OverlayKind::Patch => vec![Verb::Patch],
            };
            let id = &overlay.object;
            let halves = overlay.is_gate().then(|| binding(id));
            let all = std::iter::once(id.clone()).chain(halves);
            all.map(move |id| PlannedWrite::new(verbs.clone(), &id, true))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The writes of a plan that is about to be executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastPlan {
    /// Version of this format.
    pub format: u32,
    /// Environment and release.
    pub release: ReleaseName,
    /// Time at which the run started.
    pub at: Timestamp,
    /// The git revision.
    pub revision: String,
    /// Version that was installed before. `None` on the first installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Target version.
    pub to: String,
    /// Digest of the plan's effects, to which an approval is bound.
    pub effects: Digest,
    /// The writes. `None` if they are too large to store.
    pub writes: Option<BTreeSet<PlannedWrite>>,
}

/// Error from reading a stored plan.
#[derive(Debug, thiserror::Error)]
pub enum LastPlanError {
    /// Decompression failed.
    #[error("failed to unpack the last plan")]
    Unpack(#[source] std::io::Error),
    /// The content is not a plan in the expected format.
    #[error("failed to parse the last plan")]
    Parse(#[source] serde_json::Error),
    /// A newer version of pleach wrote the plan.
    #[error("the last plan has format {0}; this pleach reads up to {FORMAT}")]
    Newer(u32),
}

impl LastPlan {
    /// Extracts the writes of a plan. `resource` returns the plural name of an object's kind.
    pub fn of(
        plan: &Plan,
        (at, revision): (Timestamp, &str),
        resource: impl Fn(&ObjectId) -> Option<String>,
    ) -> Self {
        let writes = plan.steps.iter().flat_map(of_step);
        let writes = writes.chain(for_a_while(plan)).map(|mut write| {
            if write.resource.is_empty() {
                let id = ObjectId::new(&write.group, &write.kind, None, &write.name);
                write.resource = resource(&id).unwrap_or_default();
            }
            write
        });
        Self {
            format: FORMAT,
            release: plan.release.clone(),
            at,
            revision: revision.to_owned(),
            from: plan.from.clone(),
            to: plan.to.clone(),
            effects: plan.effects(),
            writes: Some(writes.collect()),
        }
    }

    /// Returns the name of the ConfigMap that stores the plan.
    pub fn name(release: &ReleaseName) -> String {
        format!("{release}.plan")
    }

    /// Builds the ConfigMap in the namespace of the release's state.
    ///
    /// If the writes exceed the size limit, they are left out.
    pub fn to_object(&self, namespace: &str) -> Value {
        let mut bytes = pack(self);
        if bytes.len() > LIMIT {
            bytes = pack(&Self {
                writes: None,
                ..self.clone()
            });
        }
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": Self::name(&self.release), "namespace": namespace,
                "labels": { labels::PLAN: "true", labels::MANAGED_BY: "pleach" },
            },
            "binaryData": { "plan": STANDARD.encode(bytes) },
        })
    }

    /// Parses the ConfigMap.
    pub fn from_object(object: &Value) -> Result<Self, LastPlanError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let text = object["binaryData"]["plan"].as_str().unwrap_or_default();
        let bytes = STANDARD.decode(text).unwrap_or_default();
        let mut json = Vec::new();
        GzDecoder::new(bytes.as_slice())
            .take(UNPACKED_LIMIT)
            .read_to_end(&mut json)
            .map_err(LastPlanError::Unpack)?;
        let head: Head = serde_json::from_slice(&json).map_err(LastPlanError::Parse)?;
        if head.format > FORMAT {
            return Err(LastPlanError::Newer(head.format));
        }
        serde_json::from_slice(&json).map_err(LastPlanError::Parse)
    }
}

fn pack(plan: &LastPlan) -> Vec<u8> {
    let json = json!(plan).to_string();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    drop(encoder.write_all(json.as_bytes()));
    encoder.finish().unwrap_or_default()
}

#[cfg(test)]
mod tests;
