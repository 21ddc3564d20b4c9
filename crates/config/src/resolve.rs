//! Resolution of files into a [`ResolvedEnvironment`].

mod charts;
mod depends_on;
mod partly;
mod patches;
mod rules;
mod secrets;
mod sequence;
mod store;
pub(super) mod uninstall;
mod version_from;

use std::collections::BTreeMap;

use jiff::SignedDuration;
use semver::{Prerelease, Version, VersionReq};

use super::bundle::{self, Source};
use super::decode::decode;
use super::environment::{Merged, OF_RELEASE};
use super::read_file::read_own;
use super::{ClusterRef, ResolvedEnvironment, ResolvedRelease};
use crate::values::{Layer, Values, ValuesFiles};
pub use partly::{BrokenRelease, PartialEnvironment, resolve_partly};
use partly::{Findings, read};
use pleach_fields::ignore::{FieldPattern, IgnoreRule};
use pleach_formats::policy::{Consent, ConsentAction, Propagation, RuntimeObject};
use pleach_formats::sync;
use pleach_formats::versions::VersionPolicy;
use pleach_formats::{file, sync::SyncPolicy};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Located, Origin, Places, ReleaseName, Selector};
use pleach_model::suggest::did_you_mean;
use pleach_model::tree::FileTree;
use pleach_state::inventory::Store;

/// Default for how long a pod can report that it cannot start before its wait fails.
const FAIL_FAST: SignedDuration = SignedDuration::from_mins(2);
/// Default deadline of each wait.
const TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// Maximum length of a field manager. The API server allows 128 characters. The rest is reserved
/// for suffixes.
const LONGEST_MANAGER: usize = 100;

/// Kinds that point at a Service.
const REGISTRATIONS: [&str; 4] = [
    "APIService",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// Refuses `service` in a selector for kinds that do not point at a Service.
fn check_service(target: &Selector, places: &Places, findings: &mut Vec<Finding>) {
    let points = target.kind == "*" || REGISTRATIONS.contains(&target.kind.as_str());
    if target.service.is_some() && !points {
        findings.push(no_registration(places, &target.kind));
    }
}

fn no_registration(places: &Places, kind: &str) -> Finding {
    places.refuse(
        format!("kind {kind} does not point at a Service"),
        "set `name` instead",
    )
}

/// Reports a kind whose API group is neither given nor well known.
fn unknown_group(places: &Places, kind: &str) -> Finding {
    places.refuse(
        format!("the API group of {kind} is not known"),
        "set `group`",
    )
}

/// Reads an environment with everything that it refers to.
///
/// Fails with every error found, sorted by file and line, never with an empty list. The list also
/// contains notes and warnings. Values that a schema refuses are reported when their release is
/// rendered, together with its other errors.
pub fn resolve(
    tree: &dyn FileTree,
    environment: &str,
    pleach_version: &Version,
) -> Result<ResolvedEnvironment, Vec<Finding>> {
    let (resolved, findings) = read(tree, environment, pleach_version);
    let findings = findings.all();
    match resolved {
        Some(mut resolved) if !findings.iter().any(Finding::is_error) => {
            resolved.findings = findings;
            Ok(resolved)
        }
        _ => Err(findings),
    }
}

/// Reads the repository's id from `pleach.yaml`.
pub(super) fn repository(
    tree: &dyn FileTree,
    pleach_version: &Version,
    findings: &mut Vec<Finding>,
) -> Option<String> {
    let before = findings.len();
    let Some(node) = read_own(tree, "pleach.yaml", "Repository", findings) else {
        if let Some(finding) = findings.get_mut(before)
            && finding.code == "missing-file"
        {
            "this is not a pleach repository: pleach.yaml is missing"
                .clone_into(&mut finding.message);
            finding.hint = Some("`pleach init` creates one".to_owned());
        }
        return None;
    };
    let Located { value, places } = decode::<Located<file::Repository>>(&node, findings)?;
    if value.id.is_empty() || value.id.contains(char::is_whitespace) {
        let message = "`id` must be a name without spaces";
        findings.push(places.error_at("id", "invalid-value", message));
    }
    if let Some(range) = value.requires.as_ref().and_then(file::Requires::pleach) {
        // A pre-release of 0.2.0 counts as 0.2.0.
        let release = Version {
            pre: Prerelease::EMPTY,
            ..pleach_version.clone()
        };
        if !range.matches(&release) {
            let message =
                format!("this repository requires pleach {range}, but this is {pleach_version}");
            findings.push(
                places
                    .error_at("requires", "requires", message)
                    .hint("install a version of pleach within that range"),
            );
        }
    }
    Some(value.id)
}

/// Returns the versions of `pleach-engines` that the repository requires, with their place. Problems
/// of `pleach.yaml` are left to [`resolve`](super::resolve).
pub fn required_engines(tree: &dyn FileTree) -> Option<(VersionReq, Origin)> {
    let mut reported = Vec::new();
    let node = read_own(tree, "pleach.yaml", "Repository", &mut reported)?;
    let Located { value, places } = decode::<Located<file::Repository>>(&node, &mut reported)?;
    let range = value.requires?.engines()?.clone();
    Some((range, places.key("requires")))
}

/// Checks a release name. Environment and release form the field manager.
fn check_release_name(name: &ReleaseName, place: &Origin, findings: &mut Vec<Finding>) {
    check_label("release", &name.release, Some(place), findings);
    let manager = name.field_manager();
    if manager.len() > LONGEST_MANAGER {
        let message = format!(
            "field manager `{manager}` of the release is longer than {LONGEST_MANAGER} characters"
        );
        findings.push(
            Finding::error(Kind::Repository, "invalid-name", message)
                .at(place.clone())
                .hint("shorten the name of the environment or of the release"),
        );
    }
}

/// Checks the name of an environment or release, which must be a DNS label.
fn check_label(what: &str, name: &str, place: Option<&Origin>, findings: &mut Vec<Finding>) {
    let valid = (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    if !valid {
        let article = if what.starts_with(['a', 'e', 'i', 'o', 'u']) {
            "an"
        } else {
            "a"
        };
        let mut finding = Finding::error(
            Kind::Repository,
            "invalid-name",
            format!("`{name}` is not a valid name for {article} {what}"),
        )
        .hint("use a DNS label: lower-case letters, digits and -, at most 63 characters");
        finding.place = place.cloned();
        findings.push(finding);
    }
}

impl Merged {
    /// Resolves all releases. Omits those with errors.
    fn resolve(
        mut self,
        tree: &dyn FileTree,
        name: &str,
        findings: &mut Findings,
    ) -> ResolvedEnvironment {
        let mut releases = self.environment.releases.take().unwrap_or_default();
        let store = self.store(&mut findings.shared);
        let sync = self.environment.sync.take();
        let sync = sync::resolve(sync, &mut findings.shared);
        version_from::follow(&mut releases, findings);
        depends_on::check(&releases, findings);
        let mut values_files = ValuesFiles::new(tree);
        let mut resolved = Vec::new();
        let mut places: BTreeMap<String, (Origin, bool)> = BTreeMap::new();
        for release in &releases {
            let Some(release_name) = release.own_name() else {
                let message = "a release needs `bundle`";
                findings
                    .shared
                    .push(release.places.error("missing-field", message));
                continue;
            };
            if let Some((first, _)) = places.get(release_name) {
                let message = format!("a second release `{release_name}`; the first is at {first}");
                findings.shared.push(
                    release
                        .places
                        .error("duplicate-release", message)
                        .hint("give one of them another `name`"),
                );
                continue;
            }
            let place = (release.places.origin.clone(), release.version.is_some());
            places.insert(release_name.to_owned(), place);
            if let Some(previous) = uninstall::moved_from(release) {
                findings.moves.insert(release_name.to_owned(), previous);
            }
            let own = findings.of(Some(release_name));
            resolved.extend(self.release(tree, &mut values_files, name, &store, release, own));
        }
        let consent = self.environment.consent.take().unwrap_or_default();
        check_consent(&consent, &places, findings);
        let consent = Located::values(Some(consent));
        ResolvedEnvironment {
            sync,
            ..self.into_resolved(name, store, consent, resolved)
        }
    }

    /// Returns the storage location of records.
    pub(super) fn store(&mut self, findings: &mut Vec<Finding>) -> Store {
        store::resolve(self.environment.state.take(), findings)
    }

    /// Builds the resolved environment from the file and its resolved releases.
    pub(super) fn into_resolved(
        mut self,
        name: &str,
        store: Store,
        consent: Vec<Consent>,
        releases: Vec<ResolvedRelease>,
    ) -> ResolvedEnvironment {
        let cluster = self.environment.cluster.take();
        ResolvedEnvironment {
            repository: String::new(),
            name: name.to_owned(),
            origin: self.node.origin(),
            cluster: cluster.map_or_else(ClusterRef::default, |cluster| ClusterRef {
                context: cluster.context,
                id: cluster.id,
                kubernetes: cluster.kubernetes.map(String::from),
            }),
            store,
            sync: SyncPolicy::default(),
            prune: self.environment.prune.take().unwrap_or_default(),
            protect: self.environment.protect.take().unwrap_or_default(),
            consent,
            releases,
            findings: Vec::new(),
        }
    }

    fn release(
        &self,
        tree: &dyn FileTree,
        values_files: &mut ValuesFiles<'_>,
        environment: &str,
        store: &Store,
        release: &Located<file::Release>,
        findings: &mut Vec<Finding>,
    ) -> Option<ResolvedRelease> {
        let places = &release.places;
        let name = ReleaseName {
            environment: environment.to_owned(),
            release: release.own_name()?.to_owned(),
        };
        check_release_name(&name, &places.key("name"), findings);
        if let Some(namespace) = &release.namespace {
            let place = places.key("namespace");
            check_label("namespace", namespace, Some(&place), findings);
        }
        let Some(bundle) = &release.bundle else {
            let message = format!("release `{}` needs `bundle`", name.release);
            findings.push(places.error("missing-field", message));
            return None;
        };
        let found = bundle::find(tree, bundle, &places.key("bundle"), findings)?;
        let pin = if release.version_from.is_some() {
            // The reason why it is unknown was reported already.
            release.version.as_ref()?;
            "versionFrom"
        } else {
            "version"
        };
        let desired = release.version.as_deref();
        let source = found.version(tree, desired, &places.key(pin), values_files, findings)?;
        let patches = [&source.body.patches, &release.patches];
        let patches = patches::patches(patches.into_iter().flatten().flatten(), findings);
        let runtime_objects = runtime_objects(&source, findings);
        let secret_fields = secrets::secret_fields(&source, findings);
        let sequence = sequence::sequence(&source, &secret_fields, findings);
        let block_uninstall = uninstall::block_uninstall(&source, findings);
        let rehearsal = rules::rehearsal(&source, findings);
        let moved_from = uninstall::origin(release, &name, &places.key("movedFrom"), findings);
        let mut layers = source.layers.clone();
        let declared = Values::merge(&layers).merged;
        let mut refused = source.refused.clone();
        let upper = self.layers(&name.release, values_files, &mut refused);
        // Strict schemas of charts would refuse the values of the environment.
        let of_release = upper
            .iter()
            .filter(|layer| layer.name.starts_with(OF_RELEASE));
        let of_charts: Vec<Layer> = layers.iter().chain(of_release).cloned().collect();
        let charts = charts::charts(tree, &source, &name.release, &of_charts, findings);
        let kustomize = charts::kustomize(tree, &source, findings);
        layers.extend(upper);
        let values = Values::merge(&layers);
        let schema = source.schema.as_ref();
        if let Some(schema) = schema.filter(|_| refused.is_empty()) {
            refused = schema.check(&values, &places.origin);
        }
        Some(ResolvedRelease {
            store: store.clone(),
            origin: places.origin.clone(),
            bundle: bundle.clone(),
            version: release.version.clone(),
            version_from: release.version_from.clone(),
            bundle_folder: found.folder.clone(),
            folder: source.folder,
            files: source.files,
            charts,
            kustomize,
            namespace: release.namespace.clone(),
            create_namespace: release.create_namespace.unwrap_or(true),
            restart_on_config_change: release.restart_on_config_change.unwrap_or(false),
            values,
            declared,
            refused,
            patches,
            secret_fields,
            ignore: ignore_rules(release.ignore.iter().flatten(), findings),
            adopt: release.adopt.clone().unwrap_or_default(),
            timeout: release.timeout.map_or(TIMEOUT, |timeout| timeout.0),
            fail_fast: release.fail_fast.map_or(Some(FAIL_FAST), |limit| limit.0),
            runtime_objects,
            depends_on: depends_on::resolve(release, findings),
            moved_from,
            block_uninstall,
            versions: VersionPolicy {
                upgrades_from: source.body.upgrades_from.map(|range| range.0),
                kubernetes: source.body.kubernetes.map(|range| range.0),
                direction: source.body.direction,
                known: found.known(tree),
                rollback: release.rollback.clone(),
            },
            sequence,
            rehearsal,
            name,
        })
    }
}

/// Checks that each consent names its subject: object or count, and versions.
fn check_consent(
    consent: &[Located<Consent>],
    releases: &BTreeMap<String, (Origin, bool)>,
    findings: &mut Findings,
) {
    let is_uninstalled = |release: &str| {
        consent
            .iter()
            .any(|consent| consent.action == ConsentAction::Uninstall && consent.release == release)
    };
    for consent in consent {
        let known = releases.get_key_value(&consent.release);
        let findings = findings.of(known.map(|(name, _)| name.as_str()));
        let mut missing = Vec::new();
        match consent.action {
            ConsentAction::Delete => {
                missing.extend(consent.kind.is_none().then_some("kind"));
                missing.extend(consent.name.is_none().then_some("name"));
            }
            ConsentAction::Prune => missing.extend(consent.count.is_none().then_some("count")),
            ConsentAction::Recreate => {
                missing.extend(consent.kind.is_none().then_some("kind"));
                missing.extend(consent.name.is_none().then_some("name"));
                findings.extend(check_propagation(consent));
            }
            ConsentAction::Override => {
                missing.extend(consent.check.is_none().then_some("check"));
                missing.extend(consent.reason.is_none().then_some("reason"));
            }
            // A consent to uninstall is bound to the release alone, and ends with it.
            ConsentAction::Uninstall => {}
        }
        let is_uninstalled = is_uninstalled(&consent.release);
        match releases.get(&consent.release) {
            // The revision of a bundle without versions is not known in advance.
            Some((_, false)) => {}
            // A removal has no target version. A release that git no longer contains waits for
            // such a consent.
            Some((_, true)) | None if is_uninstalled => {}
            Some((_, true)) => {
                // A check can also block the first version.
                let is_check = consent.action == ConsentAction::Override;
                missing.extend((consent.from.is_none() && !is_check).then_some("from"));
                // A consent with `from` but without `to` is for the removal of the release, as
                // the hint of `uninstall` shows.
                let is_of_end = consent.from.is_some()
                    && matches!(
                        consent.action,
                        ConsentAction::Delete | ConsentAction::Override
                    );
                missing.extend((consent.to.is_none() && !is_of_end).then_some("to"));
            }
            None => {
                let names: Vec<&String> = releases.keys().collect();
                let message = format!(
                    "consent for release `{}`, which the environment does not have",
                    consent.release
                );
                let mut finding = Finding::warning(Kind::Repository, "unused-consent", message)
                    .at(consent.places.origin.clone());
                finding.hint = did_you_mean(&consent.release, &names);
                findings.push(finding);
            }
        }
        for field in missing {
            let message = format!("`{field}` is required: a consent is bound to one change");
            findings.push(consent.places.error("missing-field", message));
        }
    }
}

/// Checks the propagation of a consent. It is required for a `StatefulSet`, which stores data. No
/// other kind adopts orphaned pods.
fn check_propagation(consent: &Located<Consent>) -> Option<Finding> {
    let is_stateful = consent.kind.as_deref() == Some("StatefulSet");
    let message = match consent.propagation {
        None if is_stateful => {
            "a consent to recreate a StatefulSet needs `propagation`; `propagation: Orphan` retains its pods"
        }
        Some(Propagation::Orphan) if !is_stateful => {
            "`propagation: Orphan` is only for StatefulSets: no other kind adopts its orphaned objects"
        }
        _ => return None,
    };
    Some(consent.places.invalid(message))
}

/// Resolves the ignore rules: fields that are left to other managers.
fn ignore_rules<'a>(
    rules: impl Iterator<Item = &'a Located<file::Ignore>>,
    findings: &mut Vec<Finding>,
) -> Vec<IgnoreRule> {
    let mut resolved = Vec::new();
    for rule in rules {
        let mut fields = Vec::new();
        if rule.fields.is_empty() {
            let message = "an ignore rule needs `fields`";
            findings.push(rule.places.error("missing-field", message));
        }
        for text in &rule.fields {
            let field = text
                .parse::<FieldPattern>()
                .map_err(|error| error.to_string());
            match field.and_then(|field| match field.reserved() {
                Some(why) => Err(format!("`{}` cannot be ignored: {why}", text.value)),
                None => Ok(field),
            }) {
                Ok(field) => fields.push(field),
                Err(message) => findings.push(text.places.invalid(message)),
            }
        }
        resolved.push(IgnoreRule {
            target: rule.target(),
            fields,
            origin: rule.places.origin.clone(),
        });
    }
    resolved
}

/// Resolves the runtime objects. Each must be found by name or Service, and its group must be
/// known.
fn runtime_objects(source: &Source, findings: &mut Vec<Finding>) -> Vec<RuntimeObject> {
    for object in source.body.runtime_objects.iter().flatten() {
        let (places, kind) = (&object.places, &object.kind);
        if object.name.is_some() == object.service.is_some() {
            let message = format!("runtime object of kind {kind} needs either `name` or `service`");
            let hint = "`service` is the Service that it points at";
            findings.push(places.refuse(message, hint));
        }
        if object.service.is_some() && !REGISTRATIONS.contains(&kind.as_str()) {
            findings.push(no_registration(places, kind));
        }
        if object.group_kind().is_none() {
            findings.push(unknown_group(places, kind));
        }
    }
    Located::values(source.body.runtime_objects.clone())
}

#[cfg(test)]
mod tests;
