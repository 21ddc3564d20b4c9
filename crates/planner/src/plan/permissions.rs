//! Permissions that the execution of a plan needs.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::Ctx;
use super::model::{Body, DriverObjects, Op, Plan, Precondition, Step, Until};
use pleach_formats::gate::binding;
use pleach_model::object::{GroupKind, ObjectId, canonical_json};
use pleach_model::order::StageName;
use pleach_state::inventory::Store;
use pleach_state::overlay::OverlayKind;

/// Requests that the execution of a plan needs to be allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permissions {
    /// The permissions, each with the objects that it is needed for.
    pub needed: BTreeMap<Permission, Objects>,
    /// Temporary roles and bindings. The server rejects them as privilege
    /// escalation if they grant more than pleach has. Permanent ones are
    /// checked during the observation.
    pub temporary: Vec<TemporaryGrant>,
    /// True if a gate exempts the user that pleach runs as, so that the plan
    /// must name it.
    pub exempts_us: bool,
}

/// A permission.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// API verb, such as `patch`.
    pub verb: &'static str,
    /// The kind.
    pub kind: GroupKind,
    /// Plural name of the resource.
    pub resource: String,
    /// The subresource, such as `status`.
    pub subresource: Option<&'static str>,
    /// Namespace. `None` for cluster-wide.
    pub namespace: Option<String>,
}

/// Objects that a permission is needed for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Objects {
    /// All objects of the kind, for requests without a name.
    All,
    /// Objects with these names.
    Named(BTreeSet<String>),
}

/// A temporary role or binding of a plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TemporaryGrant {
    /// The object.
    pub object: ObjectId,
    /// Its desired state, as canonical JSON.
    pub body: Vec<u8>,
}

impl Permissions {
    /// Adds a permission for all objects of a kind.
    pub fn add(&mut self, permission: Permission) {
        self.needed.insert(permission, Objects::All);
    }

    /// Adds a permission for one object.
    pub fn add_for(&mut self, permission: Permission, name: &str) {
        let objects = self.needed.entry(permission);
        let objects = objects.or_insert_with(|| Objects::Named(BTreeSet::new()));
        if let Objects::Named(names) = objects {
            names.insert(name.to_owned());
        }
    }

    fn add_all(&mut self, permissions: impl IntoIterator<Item = Permission>) {
        permissions.into_iter().for_each(|one| self.add(one));
    }

    /// Collects the permissions for the steps of a plan and for its record.
    pub(super) fn of(ctx: &Ctx<'_>, plan: &Plan) -> Self {
        let exempts_us = |step: &Step| matches!(&step.op, Op::Close { gate } if gate.exempts_us);
        let temporary = plan.steps.iter().filter_map(|step| temporary(plan, step));
        let mut permissions = Self {
            temporary: temporary.collect(),
            exempts_us: plan.steps.iter().any(exempts_us),
            ..Self::default()
        };
        for step in &plan.steps {
            permissions.add_step(ctx, plan, step);
        }
        permissions.add_all(of_the_record(ctx, plan));
        permissions
    }

    fn add_step(&mut self, ctx: &Ctx<'_>, plan: &Plan, step: &Step) {
        if plan.is_of_gate(step) {
            return self.add_all(of_a_gate(ctx, step));
        }
        let verbs: &[&'static str] = match &step.op {
            Op::Apply { .. } if step.require.contains(&Precondition::Absent) => {
                &["create", "patch"]
            }
            Op::Set { .. } | Op::Lift if is_made(plan, step) => &["get", "create", "delete"],
            Op::Own(_) | Op::Set { .. } | Op::Lift => &["get", "patch"],
            Op::Replace { .. } => &["get"],
            Op::Apply { .. } | Op::Patch { .. } | Op::Restart { .. } => &["patch"],
            Op::Create { .. } => &["create", "patch"],
            Op::Delete(_) => &["delete"],
            Op::Copy { from, to } => return self.add_all(of_a_copy(ctx, from, to)),
            Op::Migrate { crd, .. } => return self.add_all(of_a_migration(ctx, crd)),
            Op::UpgradeNode { jobs, driver, .. } => {
                let hooks = driver.iter().flat_map(|driver| of_a_driver(ctx, driver));
                self.add_all(hooks);
                return self.add_all(of_a_node(jobs));
            }
            Op::Preload { namespace, job, .. } => {
                return self.add_all(of_a_preloading(namespace.as_ref(), job.as_ref()));
            }
            Op::RememberImages { .. } => return self.add_all(of_a_list(&step.object)),
            Op::CleanNode { job, .. } => return self.add_all(of_a_cleanup(job)),
            // The permissions to close a gate are collected separately.
            Op::Close { .. } | Op::Pause | Op::Wait => return,
        };
        let watches = matches!(step.until, Some(Until::Ready { .. })).then_some("watch");
        let namespace = step.object.namespace.as_ref();
        self.add_all(
            beside(step)
                .into_iter()
                .map(|(verb, kind, resource)| Permission {
                    verb,
                    kind,
                    resource: resource.to_owned(),
                    subresource: None,
                    namespace: namespace.cloned(),
                }),
        );
        let kind = step.object.group_kind();
        for verb in verbs.iter().copied().chain(watches) {
            let Some(permission) = on_kind(ctx, verb, &kind, namespace) else {
                return;
            };
            // Creation by POST and watches have no name in the request.
            if verb == "watch" || verb == "create" && is_made(plan, step) {
                self.add(permission);
            } else {
                self.add_for(permission, &step.object.name);
            }
        }
    }
}

/// Returns a permission on a kind. `None` if its resource is unknown. Kinds
/// that the release defines are included.
fn on_kind(
    ctx: &Ctx<'_>,
    verb: &'static str,
    kind: &GroupKind,
    namespace: Option<&String>,
) -> Option<Permission> {
    let discovered = || ctx.observed.discovery.preferred(kind);
    let resource = match ctx.crd(kind) {
        Some((_, defined_kind)) => defined_kind.plural.clone(),
        None => discovered()?.1.plural.clone(),
    };
    Some(Permission {
        verb,
        kind: kind.clone(),
        resource,
        subresource: None,
        namespace: namespace.cloned(),
    })
}

/// Returns the temporary role or binding that a step writes.
fn temporary(plan: &Plan, step: &Step) -> Option<TemporaryGrant> {
    let body = match &step.op {
        Op::Apply {
            body: Body::Inline(body),
            ..
        } if step.stage == StageName::Access => body,
        Op::Set { patch } if is_made(plan, step) => patch,
        _ => return None,
    };
    Some(TemporaryGrant {
        object: step.object.clone(),
        body: canonical_json(&body.0),
    })
}

/// Returns the permissions that a step needs beside its object: those on its pods.
fn beside(step: &Step) -> Vec<(&'static str, GroupKind, &'static str)> {
    let pods = |verb| (verb, GroupKind::new("", "Pod"), "pods");
    let mut permissions = Vec::new();
    if matches!(
        step.until,
        Some(Until::Emptied { .. } | Until::RolledOut { .. })
    ) {
        permissions.push(pods("list"));
    }
    if matches!(step.until, Some(Until::RolledOut { .. })) {
        let revision = GroupKind::new("apps", "ControllerRevision");
        permissions.push(("list", revision, "controllerrevisions"));
    }
    if matches!(step.op, Op::Replace { .. }) {
        permissions.push(pods("delete"));
    }
    permissions
}

/// Returns whether a step creates or deletes a temporary object.
fn is_made(plan: &Plan, step: &Step) -> bool {
    let overlay = plan.overlay_of(step);
    overlay.is_some_and(|overlay| overlay.content.kind() == OverlayKind::Binding)
}

/// Returns the permissions to rewrite the objects of a CRD. The CRD name consists of their plural
/// and group.
fn of_a_migration(ctx: &Ctx<'_>, crd: &ObjectId) -> Vec<Permission> {
    let right = |verb, kind: &GroupKind, resource: &str, subresource| Permission {
        verb,
        kind: kind.clone(),
        resource: resource.to_owned(),
        subresource,
        namespace: None,
    };
    let crds = "customresourcedefinitions";
    let mut permissions = vec![
        right("get", &crd.group_kind(), crds, None),
        right("patch", &crd.group_kind(), crds, Some("status")),
    ];
    if let Some((plural, group)) = crd.name.split_once('.') {
        // The kind can be unknown here, and the review does not need it.
        let discovery = &ctx.observed.discovery;
        let kind = discovery
            .kind_of(group, plural)
            .unwrap_or_else(|| GroupKind::new(group, plural));
        permissions.extend(["get", "list", "patch"].map(|verb| right(verb, &kind, plural, None)));
    }
    permissions
}

/// Returns the permissions to change nodes.
fn of_a_node(jobs: &[ObjectId]) -> Vec<Permission> {
    let right = |verb, kind: &str, group: &str, resource: &str, subresource| Permission {
        verb,
        kind: GroupKind::new(group, kind),
        resource: resource.to_owned(),
        subresource,
        namespace: None,
    };
    let mut permissions = vec![
        right("get", "Node", "", "nodes", None),
        right("patch", "Node", "", "nodes", None),
        right("list", "Pod", "", "pods", None),
        right("create", "Pod", "", "pods", Some("eviction")),
    ];
    let namespaces: BTreeSet<&String> = jobs
        .iter()
        .filter_map(|job| job.namespace.as_ref())
        .collect();
    permissions.extend(namespaces.into_iter().flat_map(|namespace| {
        ["get", "list", "create", "delete"].map(|verb| Permission {
            namespace: Some(namespace.clone()),
            ..right(verb, "Job", "batch", "jobs", None)
        })
    }));
    permissions
}

/// Returns the permissions to read and acknowledge hooks.
fn of_a_driver(ctx: &Ctx<'_>, driver: &DriverObjects) -> Vec<Permission> {
    let DriverObjects { hooks, nodes } = driver;
    let on = |verb, objects: &ObjectId| {
        on_kind(ctx, verb, &objects.group_kind(), objects.namespace.as_ref())
    };
    let permissions = [on("list", hooks), on("patch", hooks), on("get", nodes)];
    permissions.into_iter().flatten().collect()
}

/// Returns the permissions to preload images on a node: on the node, the pods and the Job.
fn of_a_preloading(pods: Option<&String>, job: Option<&ObjectId>) -> Vec<Permission> {
    let right =
        |verb, kind: &str, group: &str, resource: &str, namespace: Option<&String>| Permission {
            verb,
            kind: GroupKind::new(group, kind),
            resource: resource.to_owned(),
            subresource: None,
            namespace: namespace.cloned(),
        };
    let mut permissions: Vec<Permission> = ["get", "patch"]
        .map(|verb| right(verb, "Node", "", "nodes", None))
        .into();
    let verbs = ["get", "create", "delete"];
    if pods.is_some() {
        permissions.extend(verbs.map(|verb| right(verb, "Pod", "", "pods", pods)));
    }
    if let Some(namespace) = job.and_then(|job| job.namespace.as_ref()) {
        let namespace = Some(namespace);
        permissions.extend(verbs.map(|verb| right(verb, "Job", "batch", "jobs", namespace)));
    }
    permissions
}

/// Returns the permissions to remember images in a `ConfigMap`, and to forget them.
fn of_a_list(config_map: &ObjectId) -> Vec<Permission> {
    ["get", "create", "patch", "delete"]
        .map(|verb| Permission {
            verb,
            kind: config_map.group_kind(),
            resource: "configmaps".to_owned(),
            subresource: None,
            namespace: config_map.namespace.clone(),
        })
        .into()
}

/// Returns the permissions to remove images from a node: on the node and the Job.
fn of_a_cleanup(job: &ObjectId) -> Vec<Permission> {
    let mut permissions = of_a_preloading(None, Some(job));
    permissions.retain(|one| (one.verb, one.resource.as_str()) != ("patch", "nodes"));
    permissions
}

/// Returns the permissions for a copy: reading the source and creating the target.
fn of_a_copy(ctx: &Ctx<'_>, from: &ObjectId, to: &ObjectId) -> Vec<Permission> {
    let kind = to.group_kind();
    let permissions = [("get", from), ("create", to)];
    let permissions =
        permissions.map(|(verb, id)| on_kind(ctx, verb, &kind, id.namespace.as_ref()));
    permissions.into_iter().flatten().collect()
}

/// Returns the permissions to close or lift a gate: on its policy, its binding and its probe. The
/// probe is in the namespace of the record.
fn of_a_gate(ctx: &Ctx<'_>, step: &Step) -> Vec<Permission> {
    let verbs: &[&'static str] = match &step.op {
        Op::Close { .. } => &["create", "get", "patch"],
        _ => &["get", "delete"],
    };
    [step.object.group_kind(), binding(&step.object).group_kind()]
        .iter()
        .flat_map(|kind| verbs.iter().map(move |verb| on_kind(ctx, verb, kind, None)))
        .flatten()
        .collect()
}

/// Returns the permissions to write the record.
fn of_the_record(ctx: &Ctx<'_>, plan: &Plan) -> Vec<Permission> {
    let store = &ctx.desired.store;
    let is_new = ctx.observed.installed.is_none();
    let right = |verb, kind: &str, group: &str, resource: &str, subresource| Permission {
        verb,
        kind: GroupKind::new(group, kind),
        resource: resource.to_owned(),
        subresource,
        namespace: (kind != "Release").then(|| store.namespace().to_owned()),
    };
    let mut permissions: Vec<Permission> = ["create", "patch", "delete"]
        .into_iter()
        .map(|verb| right(verb, "ConfigMap", "", "configmaps", None))
        .collect();
    let lease = |verb| right(verb, "Lease", "coordination.k8s.io", "leases", None);
    permissions.extend(["get", "create", "patch", "delete"].map(lease));
    if is_new {
        permissions.push(right("create", "Secret", "", "secrets", None));
    }
    if *store == Store::Release {
        let release =
            |verb, subresource| right(verb, "Release", "pleach.dev", "releases", subresource);
        permissions.extend(is_new.then(|| release("create", None)));
        permissions.push(release("patch", None));
        permissions.push(release("patch", Some("status")));
        let is_removed = plan.removal.as_ref().is_some_and(|outgoing| outgoing.ends);
        permissions.extend(is_removed.then(|| release("delete", None)));
    }
    permissions
}
