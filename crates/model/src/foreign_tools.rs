//! Marks of other deployment tools on objects, and the commands that suspend these tools.
//!
//! The planner uses this table to take ownership of objects, the doctor to find the owner of an
//! object. Annotations can contain arbitrary text, and users paste the suggested commands.
//! Therefore only valid names are inserted into commands.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::object::{FieldPath, GroupKind};

/// A deployment tool, as named by `adopt` of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    /// Flux. It reconciles continuously.
    Flux,
    /// Argo CD. It reconciles continuously if automated sync is enabled.
    ArgoCd,
    /// Helm. It acts only when a user or another tool calls it.
    Helm,
}

impl Tool {
    /// Returns the name of the tool in `adopt`.
    pub fn family(self) -> &'static str {
        match self {
            Self::Flux => "flux",
            Self::ArgoCd => "argocd",
            Self::Helm => "helm",
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flux => "Flux",
            Self::ArgoCd => "Argo CD",
            Self::Helm => "Helm",
        })
    }
}

/// The owner of an object from the point of view of a deployment tool.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// Its kind.
    pub kind: OwnerKind,
    /// Its namespace, if the mark contains one.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

/// Kinds of owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OwnerKind {
    /// A Kustomization of Flux.
    Kustomization,
    /// A `HelmRelease` of Flux.
    HelmRelease,
    /// An Application of Argo CD.
    Application,
    /// A Helm release, which is recorded in Secrets or ConfigMaps.
    HelmInstallation,
}

impl OwnerKind {
    /// Returns the kind of the owner's object. `None` for a Helm release, which has no object.
    pub fn group_kind(self) -> Option<GroupKind> {
        Some(match self {
            Self::Kustomization => GroupKind::new("kustomize.toolkit.fluxcd.io", "Kustomization"),
            Self::HelmRelease => GroupKind::new("helm.toolkit.fluxcd.io", "HelmRelease"),
            Self::Application => GroupKind::new("argoproj.io", "Application"),
            Self::HelmInstallation => return None,
        })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            OwnerKind::Kustomization => "Kustomization ",
            OwnerKind::HelmRelease => "HelmRelease ",
            OwnerKind::Application => "application ",
            OwnerKind::HelmInstallation => "release ",
        })?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

/// State of an owner in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OwnerState {
    /// It exists and reconciles continuously.
    Active {
        /// The namespace in which it was found.
        namespace: String,
    },
    /// It exists, but is suspended or never acts without a request.
    Suspended,
    /// It does not exist.
    Absent,
    /// Helm has records of it in these Secrets or ConfigMaps.
    Recorded {
        /// Their namespace.
        namespace: String,
        /// Names in kubectl notation, such as `secret/sh.helm.release.v1.web.v1`.
        records: Vec<String>,
    },
    /// It could not be read. Contains the reason.
    Unknown(String),
}

/// An owner and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownOwner {
    /// The owner.
    pub owner: Owner,
    /// Its state.
    pub state: OwnerState,
}

/// Mark of a deployment tool on an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignTool {
    /// The tool.
    pub tool: Tool,
    /// Owner of the object. `None` if only a field manager identifies the tool.
    pub owner: Option<Owner>,
    /// Key of the label or annotation, or `field manager`.
    pub key: String,
    /// Value of the label or annotation, or the name of the field manager.
    pub value: String,
}

impl ForeignTool {
    /// Formats the tool and, if known, the owner.
    pub fn name(&self) -> String {
        match &self.owner {
            Some(owner) => format!("{} ({owner})", self.tool),
            None => self.tool.to_string(),
        }
    }
}

/// Access to the labels and annotations in an object's metadata.
pub trait Marked {
    /// Returns the value of a label.
    fn label(&self, key: &str) -> Option<&str>;
    /// Returns the value of an annotation.
    fn annotation(&self, key: &str) -> Option<&str>;
}

impl Marked for Value {
    fn label(&self, key: &str) -> Option<&str> {
        self["labels"][key].as_str()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self["annotations"][key].as_str()
    }
}

const FLUX_KUSTOMIZE: &str = "kustomize.toolkit.fluxcd.io/";
const FLUX_HELM: &str = "helm.toolkit.fluxcd.io/";
const ARGO_TRACKING: &str = "argocd.argoproj.io/tracking-id";
const ARGO_INSTALLATION: &str = "argocd.argoproj.io/installation-id";
const ARGO_INSTANCE: &str = "argocd.argoproj.io/instance";
const HELM_NAME: &str = "meta.helm.sh/release-name";
const HELM_NAMESPACE: &str = "meta.helm.sh/release-namespace";

/// Finds the mark of a deployment tool. Tools that reconcile continuously take precedence.
pub fn marked(metadata: &impl Marked) -> Option<ForeignTool> {
    flux(metadata)
        .or_else(|| argo(metadata))
        .or_else(|| helm(metadata))
}

fn flux(metadata: &impl Marked) -> Option<ForeignTool> {
    [
        (FLUX_KUSTOMIZE, OwnerKind::Kustomization),
        (FLUX_HELM, OwnerKind::HelmRelease),
    ]
    .into_iter()
    .find_map(|(prefix, kind)| {
        let key = format!("{prefix}name");
        let name = metadata.label(&key)?.to_owned();
        let namespace = metadata.label(&format!("{prefix}namespace"));
        Some(ForeignTool {
            tool: Tool::Flux,
            owner: Some(Owner {
                kind,
                namespace: namespace.map(str::to_owned),
                name: name.clone(),
            }),
            key,
            value: name,
        })
    })
}

fn argo(metadata: &impl Marked) -> Option<ForeignTool> {
    let (key, value, application) = if let Some(id) = metadata.annotation(ARGO_TRACKING) {
        (ARGO_TRACKING, id, id.split(':').next().unwrap_or(id))
    } else {
        let name = metadata.label(ARGO_INSTANCE)?;
        (ARGO_INSTANCE, name, name)
    };
    // Applications outside of Argo CD's own namespace are written as `namespace_name`.
    let (namespace, name) = match application.split_once('_') {
        Some((namespace, name)) => (Some(namespace.to_owned()), name),
        None => (None, application),
    };
    Some(ForeignTool {
        tool: Tool::ArgoCd,
        owner: Some(Owner {
            kind: OwnerKind::Application,
            namespace,
            name: name.to_owned(),
        }),
        key: key.to_owned(),
        value: value.to_owned(),
    })
}

fn helm(metadata: &impl Marked) -> Option<ForeignTool> {
    let name = metadata.annotation(HELM_NAME)?.to_owned();
    Some(ForeignTool {
        tool: Tool::Helm,
        owner: Some(helm_owner(metadata)?),
        key: HELM_NAME.to_owned(),
        value: name,
    })
}

/// Returns the Helm release that the annotations of an object name.
///
/// Objects that Flux installs with Helm have one, too.
pub fn helm_owner(metadata: &impl Marked) -> Option<Owner> {
    Some(Owner {
        kind: OwnerKind::HelmInstallation,
        namespace: metadata.annotation(HELM_NAMESPACE).map(str::to_owned),
        name: metadata.annotation(HELM_NAME)?.to_owned(),
    })
}

/// Finds the deployment tool behind a list of field managers.
///
/// The order matters: Flux takes precedence because it runs Helm under its own manager name.
pub fn of_managers(managers: &[String]) -> Option<ForeignTool> {
    [
        (Tool::Flux, "kustomize-controller"),
        (Tool::Flux, "helm-controller"),
        (Tool::ArgoCd, "argocd-"),
        (Tool::Helm, "helm"),
    ]
    .into_iter()
    .find_map(|(tool, start)| {
        let manager = managers.iter().find(|manager| manager.starts_with(start))?;
        Some(ForeignTool {
            tool,
            owner: None,
            key: "field manager".to_owned(),
            value: manager.clone(),
        })
    })
}

/// Field manager that the server assigns to fields without a recorded manager.
pub const MADE_UP_MANAGER: &str = "before-first-apply";

/// Families that `adopt` can name, with prefixes of their field managers.
const FAMILIES: &[(&str, &[&str])] = &[
    ("kubectl", &["kubectl", MADE_UP_MANAGER]),
    ("flux", &["kustomize-controller", "helm-controller", "flux"]),
    ("helm", &["helm", "Helm"]),
    ("argocd", &["argocd"]),
];

/// Returns the first family whose prefix matches a field manager.
pub fn family(manager: &str) -> Option<&'static str> {
    FAMILIES
        .iter()
        .find(|(_, managers)| managers.iter().any(|known| manager.starts_with(known)))
        .map(|(name, _)| *name)
}

/// Returns the names of all families.
pub fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, _)| *name)
}

/// Returns the paths of labels and annotations that are marks of a deployment tool.
pub fn marks(metadata: &Value) -> Vec<FieldPath> {
    let is_flux = |key: &str| key.starts_with(FLUX_KUSTOMIZE) || key.starts_with(FLUX_HELM);
    let found = |field: &str, is_mark: &dyn Fn(&str) -> bool| -> Vec<FieldPath> {
        metadata[field]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| is_mark(key))
            .map(|(key, _)| FieldPath::default().key("metadata").key(field).key(key))
            .collect()
    };
    let mut marks = found("labels", &|key| is_flux(key) || key == ARGO_INSTANCE);
    marks.extend(found("annotations", &|key| {
        is_flux(key) || [ARGO_TRACKING, ARGO_INSTALLATION, HELM_NAME, HELM_NAMESPACE].contains(&key)
    }));
    marks
}

impl Owner {
    /// Returns alternative commands that suspend the owner. Running one of them is sufficient.
    ///
    /// Returns an empty list if a name is not safe to paste. `found` is the namespace in which the
    /// owner was found.
    pub fn suspend(&self, found: Option<&str>) -> Vec<String> {
        let namespace = self.namespace.as_deref().or(found);
        if !is_name(&self.name) || namespace.is_some_and(|namespace| !is_name(namespace)) {
            return Vec::new();
        }
        let name = &self.name;
        let option = namespace.map_or(String::new(), |namespace| format!(" -n {namespace}"));
        let (own, resource, change) = match self.kind {
            OwnerKind::Kustomization => (
                format!("flux suspend kustomization {name}{option}"),
                "kustomizations.kustomize.toolkit.fluxcd.io",
                r#"{"spec":{"suspend":true}}"#,
            ),
            OwnerKind::HelmRelease => (
                format!("flux suspend helmrelease {name}{option}"),
                "helmreleases.helm.toolkit.fluxcd.io",
                r#"{"spec":{"suspend":true}}"#,
            ),
            OwnerKind::Application => (
                match &self.namespace {
                    Some(namespace) => {
                        format!("argocd app set {namespace}/{name} --sync-policy none")
                    }
                    None => format!("argocd app set {name} --sync-policy none"),
                },
                "applications.argoproj.io",
                r#"{"spec":{"syncPolicy":{"automated":null}}}"#,
            ),
            OwnerKind::HelmInstallation => return Vec::new(),
        };
        let mut commands = vec![own];
        if namespace.is_some() {
            commands.push(format!(
                "kubectl{option} patch {resource} {name} --type=merge -p '{change}'"
            ));
        }
        commands
    }

    /// Derives the state of the owner from its object.
    pub fn judge(&self, object: &Value) -> OwnerState {
        let acts = match self.kind {
            OwnerKind::Kustomization | OwnerKind::HelmRelease => object["spec"]["suspend"] != true,
            OwnerKind::Application => {
                let automated = &object["spec"]["syncPolicy"]["automated"];
                automated.is_object()
                    && automated["enabled"] != false
                    && object["metadata"].annotation("argocd.argoproj.io/skip-reconcile")
                        != Some("true")
            }
            OwnerKind::HelmInstallation => false,
        };
        if !acts {
            return OwnerState::Suspended;
        }
        OwnerState::Active {
            namespace: object["metadata"]["namespace"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

/// Returns the command that removes Helm's records of a release.
///
/// Returns `None` if a name is not safe to paste.
pub fn forget_helm(namespace: &str, records: &[String]) -> Option<String> {
    let mut names = records.iter().flat_map(|record| record.split('/'));
    (is_name(namespace) && names.all(is_name))
        .then(|| format!("kubectl -n {namespace} delete {}", records.join(" ")))
}

/// Returns whether a text is safe in a shell command without quoting.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && text
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || "-_.".contains(character))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}}),
        "Flux (Kustomization flux-system/apps)", &["flux suspend kustomization apps -n flux-system",
            "kubectl -n flux-system patch kustomizations.kustomize.toolkit.fluxcd.io apps --type=merge -p '{\"spec\":{\"suspend\":true}}'"])]
    #[case(json!({"labels": {"helm.toolkit.fluxcd.io/name": "db"}, "annotations": {"meta.helm.sh/release-name": "db"}}),
        "Flux (HelmRelease db)", &["flux suspend helmrelease db"])]
    #[case(json!({"annotations": {"argocd.argoproj.io/tracking-id": "guestbook:apps/Deployment:a/b"}}),
        "Argo CD (application guestbook)", &["argocd app set guestbook --sync-policy none"])]
    #[case(json!({"annotations": {"argocd.argoproj.io/tracking-id": "team_guestbook:apps/Deployment:a/b"}}),
        "Argo CD (application team/guestbook)", &["argocd app set team/guestbook --sync-policy none",
            "kubectl -n team patch applications.argoproj.io guestbook --type=merge -p '{\"spec\":{\"syncPolicy\":{\"automated\":null}}}'"])]
    #[case(json!({"labels": {"argocd.argoproj.io/instance": "guestbook"}}),
        "Argo CD (application guestbook)", &["argocd app set guestbook --sync-policy none"])]
    #[case(json!({"annotations": {"argocd.argoproj.io/tracking-id": "a;b:x"}}), "Argo CD (application a;b)", &[])]
    #[case(json!({"annotations": {"meta.helm.sh/release-name": "db", "meta.helm.sh/release-namespace": "prod"}}),
        "Helm (release prod/db)", &[])]
    fn foreign_tools_are_known_by_their_marks(
        #[case] metadata: Value,
        #[case] name: &str,
        #[case] suspend: &[&str],
    ) {
        let foreign_tool = marked(&metadata).unwrap();
        assert_eq!(foreign_tool.name(), name);
        assert_eq!(foreign_tool.owner.unwrap().suspend(None), suspend);
        assert!(!marks(&metadata).is_empty());
    }

    #[rstest]
    #[case(OwnerKind::Kustomization, json!({"spec": {}}), true)]
    #[case(OwnerKind::Kustomization, json!({"spec": {"suspend": true}}), false)]
    #[case(OwnerKind::HelmRelease, json!({"spec": {"suspend": false}}), true)]
    #[case(OwnerKind::Application, json!({"spec": {}}), false)]
    #[case(OwnerKind::Application, json!({"spec": {"syncPolicy": {"automated": {}}}}), true)]
    #[case(OwnerKind::Application, json!({"spec": {"syncPolicy": {"automated": null}}}), false)]
    #[case(OwnerKind::Application, json!({"spec": {"syncPolicy": {"automated": {"enabled": false}}}}), false)]
    #[case(OwnerKind::Application, json!({"metadata": {"annotations": {"argocd.argoproj.io/skip-reconcile": "true"}},
        "spec": {"syncPolicy": {"automated": {}}}}), false)]
    fn an_owner_is_active_unless_suspended(
        #[case] kind: OwnerKind,
        #[case] object: Value,
        #[case] active: bool,
    ) {
        let owner = Owner {
            kind,
            namespace: None,
            name: "a".to_owned(),
        };
        let state = owner.judge(&object);
        assert_eq!(matches!(state, OwnerState::Active { .. }), active);
    }

    #[test]
    fn other_labels_and_annotations_are_no_marks() {
        let metadata = json!({
            "labels": {"app": "x", "kustomize.toolkit.fluxcd.io/name": "a", "app.kubernetes.io/managed-by": "Helm"},
            "annotations": {"meta.helm.sh/release-name": "x", "helm.sh/chart": "x", "argocd.argoproj.io/sync-wave": "1"}});
        let texts: Vec<String> = marks(&metadata).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                r#".metadata.labels["kustomize.toolkit.fluxcd.io/name"]"#,
                r#".metadata.annotations["meta.helm.sh/release-name"]"#,
            ]
        );
        assert_eq!(marked(&json!({"labels": {"app": "x"}})), None);
    }

    #[test]
    fn commands_contain_only_valid_names() {
        let one = |name: &str| [name.to_owned()];
        assert_eq!(
            forget_helm("web", &one("secret/sh.helm.release.v1.web.v3")).as_deref(),
            Some("kubectl -n web delete secret/sh.helm.release.v1.web.v3")
        );
        assert_eq!(forget_helm("web; rm", &one("a")), None);
        assert_eq!(forget_helm("web", &one("$(rm)")), None);
    }
}
