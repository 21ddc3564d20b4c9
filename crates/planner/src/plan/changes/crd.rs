//! Guards a CRD change against the loss of objects, and against objects that no
//! client could apply afterwards.

use super::emit::change;
use crate::crd::{
    Instances, ends_conversion, has_version, is_crd, retained, rewritten_before, storage, stored,
    unconverted, versions,
};
use crate::plan::{
    consent::bound_to,
    draft::{Ctx, Draft},
    model::Action,
    ownership,
    protection::installed_version,
};
use pleach_model::finding::{Finding, Kind, overridable::FIELD_IN_USE};
use pleach_model::object::{FieldPath, Manifest, PathSegment};
use serde_json::Value;

/// Decision about a CRD change.
pub(super) enum Guarded {
    /// No objection.
    Free,
    /// Refused; the findings state the reasons.
    Refused,
    /// Recreated, because git consents to the loss of its objects. The fields
    /// are the immutable ones.
    Recreate(Vec<FieldPath>),
}

/// Checks the effect of a CRD change on existing objects.
pub(super) fn guard(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest) -> Guarded {
    let id = manifest.id();
    let Some(live) = ctx.observed.full.get(id).filter(|_| is_crd(id)) else {
        return Guarded::Free;
    };
    let desired = ctx.desired.ignored.lean(manifest).value();
    let guard = Guard {
        ctx,
        manifest,
        desired: &desired,
        live: live.value(),
        instances: ctx.observed.instances.get(id),
    };
    let (release, from) = (&ctx.desired.name.release, installed_version(ctx));
    let to = &ctx.desired.version;
    let mut consents = ctx.policy.consent.iter();
    if consents.any(|consent| consent.allows_recreate(id, release, from, to)) {
        // Other immutable fields lead to a recreation through the dry run
        // anyway.
        return if guard.drops_versions() {
            Guarded::Recreate(vec![FieldPath(vec![
                PathSegment::Key("spec".to_owned()),
                PathSegment::Key("versions".to_owned()),
            ])])
        } else {
            Guarded::Free
        };
    }
    let findings = guard.findings();
    let Some(first) = findings.first() else {
        return Guarded::Free;
    };
    change(ctx, draft, manifest, Action::Blocked, &first.message);
    for finding in findings {
        let finding = finding.at(manifest.origin().clone()).on(id.clone());
        draft.findings.push(finding);
    }
    Guarded::Refused
}

struct Guard<'a> {
    ctx: &'a Ctx<'a>,
    manifest: &'a Manifest,
    desired: &'a Value,
    live: &'a Value,
    instances: Option<&'a Instances>,
}

impl Guard<'_> {
    fn findings(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = self.identity().into_iter().collect();
        findings.extend(self.dropped().into_iter().map(|name| self.stored(name)));
        findings.extend(self.unconverted());
        match self.instances {
            None => {}
            Some(Instances::Unknown(why)) => findings.push(unread(why)),
            Some(Instances::Known {
                recorded, misfits, ..
            }) => {
                let dropped = self.dropped();
                for (version, objects) in recorded {
                    // The version already has a finding as a stored version.
                    if !dropped.contains(&version.as_str()) {
                        findings.push(self.recorded(version, &objects.to_string()));
                    }
                }
                if !self.overridden() {
                    findings.extend(misfits.iter().map(|(misfit, objects)| {
                        self.misfit(&misfit.to_string(), &objects.to_string())
                    }));
                }
            }
        }
        findings
    }

    /// Returns stored versions that git dropped and that no migration retains.
    fn dropped(&self) -> Vec<&str> {
        let retained = retained(
            self.desired,
            self.live,
            &self.ctx.desired.sequence.migrations,
        );
        stored(self.live)
            .into_iter()
            .filter(|name| !has_version(self.desired, name))
            .filter(|name| !retained.iter().any(|rule| rule.from == *name))
            .collect()
    }

    /// Reports objects that may be stored in versions that only the webhook can
    /// convert, if the webhook is removed.
    fn unconverted(&self) -> Option<Finding> {
        let is_empty =
            matches!(self.instances, Some(Instances::Known { all, .. }) if all.count == 0);
        if is_empty || !self.ends_conversion() {
            return None;
        }
        let rules = &self.ctx.desired.sequence.migrations;
        let before = rewritten_before(self.desired, self.live, rules);
        let dropped = self.dropped();
        let mut left = unconverted(self.desired, self.live);
        // Versions dropped without a migration already have a finding.
        left.retain(|name| {
            !dropped.contains(name) && !before.iter().any(|rule| rule.from == *name)
        });
        let from = left.first()?;
        let to = storage(self.desired).unwrap_or("…");
        let finding = Finding::error(
            Kind::Policy,
            "conversion-removed",
            format!(
                "objects may be stored as {} (status.storedVersions), and their conversion webhook is removed: the server would read them as {to} without conversion, and they would lose fields that {to} does not have",
                left.join(", ")
            ),
        );
        Some(finding.hint(if self.is_between_needed() {
            self.by_a_version_between(from)
        } else {
            format!(
                "to rewrite them while the webhook still converts, {}",
                self.by_migrating(from)
            )
        }))
    }

    /// Returns whether the change removes the conversion webhook.
    fn ends_conversion(&self) -> bool {
        let ours = |manager: &str| ownership::may_take_over(self.ctx, manager);
        ends_conversion(self.desired, self.live, &ours)
    }

    /// Returns whether no `migrate` of this version can rewrite stored objects,
    /// because the conversion webhook is removed together with the storage
    /// version.
    fn is_between_needed(&self) -> bool {
        self.ends_conversion() && storage(self.live) != storage(self.desired)
    }

    fn by_a_version_between(&self, from: &str) -> String {
        let to = storage(self.desired).unwrap_or("…");
        format!(
            "go through a version that stores {to}, keeps the webhook, and declares `{}`",
            self.migration(from)
        )
    }

    fn by_migrating(&self, from: &str) -> String {
        format!(
            "add to version.yaml of {}: `{}`",
            self.ctx.desired.version,
            self.migration(from)
        )
    }

    fn migration(&self, from: &str) -> String {
        let name = &self.manifest.id().name;
        let to = storage(self.desired).unwrap_or("…");
        format!("migrate: [{{crd: {name}, from: {from}, to: {to}}}]")
    }

    fn drops_versions(&self) -> bool {
        let recorded = match self.instances {
            Some(Instances::Known { recorded, .. }) => !recorded.is_empty(),
            _ => false,
        };
        recorded || !self.dropped().is_empty()
    }

    /// Describes the existing objects of the kind.
    fn objects(&self) -> String {
        match self.instances {
            Some(Instances::Known { all, .. }) if all.count == 0 => "it has no objects".to_owned(),
            Some(Instances::Known { all, .. }) => {
                let is_one = all.count == 1;
                let (noun, verb) = if is_one {
                    ("object", "is")
                } else {
                    ("objects", "are")
                };
                format!("{} {noun} {verb} lost with it: {all}", all.count)
            }
            Some(Instances::Unknown(_)) | None => "its objects are lost with it".to_owned(),
        }
    }

    fn identity(&self) -> Option<Finding> {
        let differs = |pointer: &str| {
            let at = |crd: &Value| {
                let value = crd.pointer(pointer).and_then(Value::as_str);
                value.unwrap_or_default().to_owned()
            };
            let (live, desired) = (at(self.live), at(self.desired));
            (live != desired).then_some((live, desired))
        };
        let (what, (live, desired)) = [("scope", "/spec/scope"), ("kind", "/spec/names/kind")]
            .into_iter()
            .find_map(|(what, pointer)| Some((what, differs(pointer)?)))?;
        Some(
            Finding::error(
                Kind::Policy,
                "definition-identity",
                format!(
                    "its {what} is {live} and cannot change to {desired} while the CRD exists; {}",
                    self.objects()
                ),
            )
            .hint(format!(
                "give the new kind another name, or {}",
                self.by_recreating()
            )),
        )
    }

    fn stored(&self, version: &str) -> Finding {
        let way = if self.is_between_needed() {
            self.by_a_version_between(version)
        } else {
            format!(
                "to rewrite them before the version is removed, {}",
                self.by_migrating(version)
            )
        };
        Finding::error(
            Kind::Policy,
            "version-stored",
            format!(
                "version {version} is removed, but objects may be stored in it (status.storedVersions); {}",
                self.objects()
            ),
        )
        .hint(format!("{way}; or {}", self.by_recreating()))
    }

    fn recorded(&self, version: &str, objects: &str) -> Finding {
        let to = storage(self.desired).unwrap_or("…");
        let verb = if versions(self.desired).any(|name| name == version) {
            "is no longer served"
        } else {
            "is removed"
        };
        Finding::error(
            Kind::Policy,
            "version-recorded",
            format!(
                "version {version} {verb}, but managedFields of objects still refer to it, so no client could apply them: {objects}"
            ),
        )
        .hint(format!(
            "to rewrite their managedFields to {to} first, {}",
            self.by_migrating(version)
        ))
    }

    fn misfit(&self, misfit: &str, objects: &str) -> Finding {
        Finding::error(
            Kind::Policy,
            FIELD_IN_USE,
            format!("objects do not fit the new schema: {misfit}: {objects}"),
        )
        .hint(format!(
            "change the objects or the schema; or, to accept the loss, add to `consent` in {}: {{action: override, check: {FIELD_IN_USE}, kind: CustomResourceDefinition, name: {}, {}, reason: …}}",
            self.ctx.environment_file(),
            self.manifest.id().name,
            bound_to(self.ctx),
        ))
    }

    fn overridden(&self) -> bool {
        let (release, from) = (&self.ctx.desired.name.release, installed_version(self.ctx));
        let to = &self.ctx.desired.version;
        let id = self.manifest.id();
        let mut consents = self.ctx.policy.consent.iter();
        consents.any(|consent| consent.allows_override_for((FIELD_IN_USE, id), release, from, to))
    }

    fn by_recreating(&self) -> String {
        format!(
            "to recreate the CRD and lose its objects, add to `consent` in {}: {{action: recreate, kind: CustomResourceDefinition, name: {}, {}}}",
            self.ctx.environment_file(),
            self.manifest.id().name,
            bound_to(self.ctx),
        )
    }
}

fn unread(why: &str) -> Finding {
    Finding::error(
        Kind::Policy,
        "objects-unread",
        format!(
            "the effect on its objects is unknown, because they cannot all be read: {why}"
        ),
    )
    .hint("make sure that its objects can be listed; a CRD does not change while its objects are unknown")
}
