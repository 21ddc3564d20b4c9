//! Copies of a cluster for a rehearsal: reads, redaction, and the desired state that fits the copy.

mod collect;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use pleach_model::object::{DesiredDigest, DigestKey, GroupKind, Manifest, ObjectId, Secrecy};
use pleach_planner::plan::Desired;
use pleach_rehearsal::certificates::{Authority, Seed};
use pleach_rehearsal::dump::{Copy, FORMAT, Header};
use pleach_rehearsal::redact::{Collector, RedactError, Redactor};
use pleach_rehearsal::rekey::{Renewal, renew};
use pleach_rehearsal::scope::Touched;
use pleach_state::inventory::StateKey;
use rustls::crypto::ring;
use serde_json::Value;

use crate::load::Loaded;
use crate::planning::{Planned, desired};
use pleach_cluster::{Cluster, ClusterError};

pub use collect::{Collected, LIMIT, collect};

/// Error of making a copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A request that every copy needs failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The secret values cannot be searched for.
    #[error(transparent)]
    Redact(#[from] RedactError),
    /// The objects do not fit into a copy.
    #[error("the objects to copy have more than {} MiB", limit >> 20)]
    TooLarge {
        /// Maximum length of all objects as JSON, in bytes.
        limit: u64,
    },
    /// The system has no random numbers.
    #[error("failed to generate random numbers")]
    Random,
    /// The dump has no authority for registrations.
    #[error("the dump is of an earlier version; write it again")]
    Authority,
}

/// Copy with the desired state that fits it.
#[derive(Debug)]
pub struct Redacted {
    /// The redacted objects.
    pub copy: Copy,
    /// The environment with redacted manifests.
    pub loaded: Loaded,
    /// Objects whose desired content differs from git because of the redaction.
    pub redacted: BTreeSet<ObjectId>,
}

/// Returns 32 random bytes.
pub fn random_key() -> Result<Vec<u8>, CopyError> {
    let mut bytes = vec![0; 32];
    let random = ring::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| CopyError::Random)?;
    Ok(bytes)
}

/// Returns the part of the cluster that plans are about.
pub fn touched<'a>(planned: impl Iterator<Item = &'a Planned>) -> Touched {
    let mut touched = Touched::default().with_state();
    for one in planned {
        let desired = &one.desired;
        touched.namespaces.extend(desired.namespace.clone());
        touched
            .namespaces
            .insert(desired.store.namespace().to_owned());
        for id in ids(one) {
            touched.namespaces.extend(id.namespace.clone());
            if id.is("", "Namespace") {
                touched.namespaces.insert(id.name.clone());
            }
            touched.kinds.insert(id.group_kind());
        }
        let crds = desired.manifests.iter().filter(|it| {
            it.id()
                .is("apiextensions.k8s.io", "CustomResourceDefinition")
        });
        touched
            .kinds
            .extend(crds.filter_map(|crd| kind_of_crd(&crd.value())));
    }
    touched
}

/// Returns the kind that a CRD defines.
fn kind_of_crd(crd: &Value) -> Option<GroupKind> {
    let spec = &crd["spec"];
    let (group, kind) = (spec["group"].as_str()?, spec["names"]["kind"].as_str()?);
    Some(GroupKind::new(group, kind))
}

/// Returns all objects of a plan.
fn ids(planned: &Planned) -> impl Iterator<Item = &ObjectId> {
    let changes = planned.plan.changes.iter().map(|change| &change.object);
    let steps = planned.plan.steps.iter().map(|step| &step.object);
    let members = planned.observation.observed.inventory.entries.keys();
    let manifests = planned.desired.manifests.iter().map(Manifest::id);
    changes.chain(steps).chain(members).chain(manifests)
}

/// Redacts collected objects and the environment with one random key, and renews the records of the
/// copy.
pub async fn redact(
    cluster: &Cluster,
    collected: Collected,
    loaded: &Loaded,
    planned: &[&Planned],
) -> Result<Redacted, CopyError> {
    let secrecy = secrecy_of(loaded);
    let seed = Seed::new(&random_key()?);
    let authority = seed.authority().ok_or(CopyError::Authority)?;
    let mut collector = Collector::new(DigestKey::new(random_key()?));
    for object in &collected.raw {
        collector.learn(object, &secrecy_for(&secrecy, object));
        collector.learn_certificates(object, &authority);
    }
    for (_, rendered) in loaded.rendered.iter().chain(&loaded.others) {
        for manifest in &rendered.manifests {
            let value = manifest.value();
            collector.learn(&value, &secrecy_for(&secrecy, &value));
            collector.learn_certificates(&value, &authority);
        }
        rendered
            .secret_values
            .texts()
            .for_each(|text| collector.add(text));
    }
    let redactor = collector.finish()?;
    let mut objects: Vec<Value> = collected
        .raw
        .iter()
        .map(|object| {
            let mut copy = object.clone();
            authority.trust(&mut copy);
            redactor.object(copy, &secrecy_for(&secrecy, object))
        })
        .collect();
    let redacted_loaded = redacted_environment(loaded, &redactor, &authority, &secrecy);
    let key = random_key()?;
    let (digests, redacted) = renewed_digests(&redacted_loaded, planned, &key);
    let first = planned.first();
    let id = first.map(|one| one.observation.observed.cluster.0.as_str());
    let renewal = Renewal {
        cluster: id.unwrap_or_default(),
        old: first.and_then(|one| one.observation.state.state_key()),
        key: &key,
        digests: &digests,
    };
    let mut left_out = collected.left_out;
    left_out.extend(renew(&collected.raw, &mut objects, &renewal));
    let user = cluster.whoami().await?;
    let release = match loaded.rendered.as_slice() {
        [(release, _)] if !loaded.others.is_empty() => Some(release.name.release.clone()),
        _ => None,
    };
    let header = Header {
        format: FORMAT,
        cluster: id.unwrap_or_default().to_owned(),
        kubernetes: cluster.server_version().await?,
        at: Timestamp::now().to_string(),
        environment: loaded.environment.name.clone(),
        release,
        revision: loaded.revision.to_string(),
        objects: 0,
        user: user.username,
        groups: user.groups,
        authority: seed,
        left_out,
    };
    Ok(Redacted {
        copy: Copy::new(header, objects),
        loaded: redacted_loaded,
        redacted,
    })
}

type SecrecyByObject = BTreeMap<[String; 4], Secrecy>;

/// Returns the declared secret fields of all objects of an environment.
///
/// Objects that contain a declared value somewhere are not blanked as a whole: the server could not
/// judge them. Their values are searched for instead.
fn secrecy_of(loaded: &Loaded) -> SecrecyByObject {
    let releases = loaded.rendered.iter().chain(&loaded.others);
    let manifests = releases.flat_map(|(_, rendered)| &rendered.manifests);
    manifests
        .filter(|manifest| !manifest.secret_fields().is_empty())
        .map(|manifest| {
            let position = pleach_rehearsal::dump::position(&manifest.value());
            let secrecy = Secrecy::of(manifest.id(), manifest.secret_fields());
            (position, secrecy)
        })
        .collect()
}

fn secrecy_for(known: &SecrecyByObject, object: &Value) -> Secrecy {
    let position = pleach_rehearsal::dump::position(object);
    if let Some(secrecy) = known.get(&position) {
        return secrecy.clone();
    }
    let [group, kind, namespace, name] = &position;
    let namespace = Some(namespace.as_str()).filter(|it| !it.is_empty());
    Secrecy::of(&ObjectId::new(group, kind, namespace, name), &[])
}

/// Returns an environment with redacted manifests, whose registrations trust the authority.
fn redacted_environment(
    loaded: &Loaded,
    redactor: &Redactor,
    authority: &Authority,
    secrecy: &SecrecyByObject,
) -> Loaded {
    let mut loaded = loaded.clone();
    for (_, rendered) in loaded.rendered.iter_mut().chain(&mut loaded.others) {
        for manifest in &mut rendered.manifests {
            let value = manifest.value();
            let mut trusting = value.clone();
            authority.trust(&mut trusting);
            let redacted = redactor.object(trusting, &secrecy_for(secrecy, &value));
            if redacted != value {
                *manifest = manifest.with_content(&redacted);
            }
        }
    }
    loaded
}

/// Returns the digests of git as text with those of the redacted environment, and the objects that
/// differ.
fn renewed_digests(
    redacted: &Loaded,
    planned: &[&Planned],
    key: &[u8],
) -> (BTreeMap<String, String>, BTreeSet<ObjectId>) {
    let mut digests = BTreeMap::new();
    let mut objects = BTreeSet::new();
    let key = StateKey::beside(key.to_vec(), String::new());
    for (release, rendered) in &redacted.rendered {
        let before = planned.iter().find(|one| one.desired.name == release.name);
        let Some(before) = before.map(|one| &one.desired) else {
            continue;
        };
        let mut after = desired(redacted, release, rendered);
        after.digest_with(Some(key.digests()));
        for (old, new) in pairs(before, &after) {
            digests.insert(old, new);
        }
        let by_id: BTreeMap<&ObjectId, &Manifest> =
            after.manifests.iter().map(|it| (it.id(), it)).collect();
        for manifest in &before.manifests {
            let is_same = by_id
                .get(manifest.id())
                .is_some_and(|other| other.json() == manifest.json());
            if !is_same || manifest.is_secret() {
                objects.insert(manifest.id().clone());
            }
        }
    }
    (digests, objects)
}

/// Returns the digests of equal objects in two desired states, as text, where they differ: those of
/// whole objects, and those of configuration in pod templates.
fn pairs(before: &Desired, after: &Desired) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for (id, digest) in before.digests.iter() {
        if let (DesiredDigest::Known(old), Some(DesiredDigest::Known(new))) =
            (digest, after.digests.get(id))
            && old != new
        {
            pairs.push((old.to_string(), new.to_string()));
        }
    }
    let by_id: BTreeMap<&ObjectId, &Manifest> =
        after.manifests.iter().map(|it| (it.id(), it)).collect();
    for manifest in &before.manifests {
        let Some(other) = by_id.get(manifest.id()) else {
            continue;
        };
        if other.json() != manifest.json() {
            let annotations = |manifest: &Manifest| {
                manifest.value()["spec"]["template"]["metadata"]["annotations"].clone()
            };
            let (old, new) = (annotations(manifest), annotations(other));
            for (key, old) in old.as_object().into_iter().flatten() {
                if let (Some(old), Some(new)) = (old.as_str(), new[key].as_str())
                    && old != new
                {
                    pairs.push((old.to_owned(), new.to_owned()));
                }
            }
        }
    }
    pairs
}

/// Returns the environment with the values that a dump has in the Secrets of the environment.
///
/// The key of the dump's placeholders is not known, so a Secret of git is compared by its keys: each
/// value that both have is the value of the dump.
pub fn fitting(loaded: &Loaded, copy: &Copy) -> Result<Loaded, CopyError> {
    let secrecy = secrecy_of(loaded);
    let live: BTreeMap<[String; 4], &Value> = copy
        .objects
        .iter()
        .filter(|object| object["kind"] == "Secret")
        .map(|object| (pleach_rehearsal::dump::position(object), object))
        .collect();
    let authority = copy.header.authority.authority();
    let authority = authority.ok_or(CopyError::Authority)?;
    let mut collector = Collector::new(DigestKey::new(random_key()?));
    for (_, rendered) in loaded.rendered.iter().chain(&loaded.others) {
        for manifest in &rendered.manifests {
            let value = manifest.value();
            collector.learn(&value, &secrecy_for(&secrecy, &value));
            collector.learn_certificates(&value, &authority);
            if let Some(live) = live.get(&pleach_rehearsal::dump::position(&value)) {
                for (old, placeholder) in common_values(&value, live) {
                    collector.give(&old, &placeholder);
                }
            }
        }
        rendered
            .secret_values
            .texts()
            .for_each(|text| collector.add(text));
    }
    let redactor = collector.finish()?;
    Ok(redacted_environment(
        loaded, &redactor, &authority, &secrecy,
    ))
}

/// Returns the values of the keys that two Secrets share, decoded.
fn common_values(desired: &Value, live: &Value) -> Vec<(String, String)> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let decode = |text: &str| {
        let bytes = STANDARD.decode(text).ok()?;
        String::from_utf8(bytes).ok()
    };
    let mut values = Vec::new();
    for (field, is_encoded) in [("data", true), ("stringData", false)] {
        for (key, value) in desired[field].as_object().into_iter().flatten() {
            let Some(text) = value.as_str() else { continue };
            let text = if is_encoded {
                decode(text)
            } else {
                Some(text.to_owned())
            };
            let placeholder = live["data"][key].as_str().and_then(decode);
            if let (Some(text), Some(placeholder)) = (text, placeholder) {
                values.push((text, placeholder));
            }
        }
    }
    values
}
