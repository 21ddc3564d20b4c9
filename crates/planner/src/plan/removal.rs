//! Uninstall of a release, because git no longer has it or a user requested it.
//!
//! Nothing is deleted without a [`Consented`]. Objects handed over to another
//! release stay and change their owner. Retained objects (protected kinds,
//! namespaces with other objects) lose our label, so that they are members of
//! no release.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::draft::{Ctx, Draft, Pruned};
use super::leftover;
use super::model::{Action, EdgeReason, Need, Op, Outgoing, Precondition, StepId};
use super::phases::{Bracketed, Decided};
use super::prune::{
    self, Judge, Verdict, check_backends, is_gone, is_running, keep_occupied, lost_services,
    service_ref, unseen_registrations,
};
use pleach_formats::policy::{Consent, ConsentAction};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{NonSecret, ObjectId, ReleaseName, ServiceRef, annotations, labels};
use pleach_model::order::StageName;
use pleach_state::inventory::{Entry, EntryState};
use pleach_state::live::LiveMeta;

/// Reason why an object that was about to be created stays.
const UNCONFIRMED: &str = "its creation was never confirmed, so an existing object is not changed";

/// Conditions of an uninstall.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removal {
    /// Consent to the uninstall; without it nothing is deleted.
    pub consented: Option<Consented>,
    /// Releases that take over objects.
    pub successors: Vec<Successor>,
    /// True if the environment still has a file in which a user could consent.
    pub has_file: bool,
    /// True if the objects stay, and only the record is removed.
    pub keeps_objects: bool,
}

/// Proof of consent to an uninstall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consented(Where);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Where {
    Git,
    Command,
}

/// A release that takes over objects of an uninstalled one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Successor {
    /// Name of the release.
    pub name: ReleaseName,
    /// Part-of label value of its members.
    pub apply_set: String,
    /// Desired objects of the release.
    pub desires: BTreeSet<ObjectId>,
}

impl Consented {
    /// Returns the consent in git, if there is one.
    pub fn in_git(consents: &[Consent], release: &str) -> Option<Self> {
        consents
            .iter()
            .any(|consent| consent.action == ConsentAction::Uninstall && consent.release == release)
            .then_some(Self(Where::Git))
    }

    /// Creates the consent of a user who runs the uninstall command, which asks
    /// for confirmation.
    pub fn by_command() -> Self {
        Self(Where::Command)
    }

    /// Returns whether the uninstall may run before its successors, as a
    /// command can.
    pub(super) fn is_out_of_order(&self) -> bool {
        self.0 == Where::Command
    }
}

/// Progress of the handover of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handed {
    /// The object carries the label of the other release.
    Taken,
    /// The other release desires the object.
    Waiting,
}

/// Returns the release that takes or took over an object, with the progress.
pub(super) fn successor<'h>(
    successors: &'h [Successor],
    id: &ObjectId,
    live: Option<&LiveMeta>,
) -> Option<(Handed, &'h Successor)> {
    let live = live?;
    let has = |successor: &&Successor| live.part_of() == Some(successor.apply_set.as_str());
    let taken = successors
        .iter()
        .find(has)
        .map(|successor| (Handed::Taken, successor));
    let waiting = || {
        successors
            .iter()
            .find(|successor| successor.desires.contains(id))
    };
    taken.or_else(|| waiting().map(|successor| (Handed::Waiting, successor)))
}

impl Removal {
    /// Returns the objects that other releases take over.
    pub(super) fn handed_over(&self) -> impl Iterator<Item = &ObjectId> {
        self.successors
            .iter()
            .flat_map(|successor| &successor.desires)
    }
}

/// Decides every member and adds the steps.
pub(super) fn run(ctx: &Ctx<'_>, mut draft: Decided) -> (Bracketed, Outgoing) {
    let Some(removal) = ctx.removal else {
        return (draft.order().bracket(), Outgoing::default());
    };
    let mut outgoing = Outgoing {
        ends: removal.consented.is_some() || !removal.successors.is_empty(),
        released: Vec::new(),
    };
    let members = hand_over(ctx, &mut draft, removal, &mut outgoing);
    let mut retained = Vec::new();
    if removal.consented.is_some() && removal.keeps_objects {
        keep_all(ctx, &mut draft, &members, &mut retained);
    } else if removal.consented.is_some() {
        decide(ctx, &mut draft, &members, &mut retained);
    } else {
        wait_for_consent(ctx, &mut draft, &members);
    }
    let mut draft = draft.order().bracket();
    prune::steps(ctx, &mut draft);
    retained.retain(|id| draft.action(id) != Some(Action::Delete));
    release(ctx, &mut draft, &retained);
    outgoing.released.extend(retained);
    (draft, outgoing)
}

/// Decides every member, with consent. Adds retained members to `retained`, unless
/// nothing is deleted.
fn decide(
    ctx: &Ctx<'_>,
    draft: &mut Decided,
    members: &[(&ObjectId, &Entry)],
    retained: &mut Vec<ObjectId>,
) {
    let mut pruned = Vec::new();
    judge(ctx, draft, members, &mut pruned, retained);
    if let Some(why) = removal_blocker(ctx, draft, &pruned) {
        for id in pruned.iter().map(|one| &one.id).chain(retained.iter()) {
            skip(draft, id, &format!("stays because {why}"));
        }
        retained.clear();
        return;
    }
    for (id, finding) in keep_occupied(ctx, &mut pruned) {
        skip(draft, &id, &finding.message);
        if finding.code == "kept-contents" {
            retained.push(id.clone());
        }
        draft.findings.push(finding.on(id));
    }
    check_backends(ctx, draft, &pruned);
    report_running(ctx, draft, &pruned);
    draft.pruned = pruned;
}

/// Decides every member, with consent to an uninstall that keeps the objects.
/// Adds the members that are released to `retained`.
fn keep_all(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    members: &[(&ObjectId, &Entry)],
    retained: &mut Vec<ObjectId>,
) {
    for &(id, entry) in members {
        let live = ctx.observed.live_meta(id);
        let is_other = live.is_some_and(|live| entry.uid.as_deref() != Some(&live.uid));
        if entry.state == EntryState::Observed {
            skip(draft, id, "stays because its creator stays");
            retained.push(id.clone());
        } else if entry.state == EntryState::Intended && live.is_some() {
            skip(draft, id, UNCONFIRMED);
        } else if is_other {
            unchanged(draft, id, "its name now belongs to another object");
            retained.push(id.clone());
        } else if !ctx.observed.is_complete(id) {
            // It stays a member, as in any uninstall.
            let why = "its kind could not be listed completely";
            let finding = prune::retained(ctx, "incomplete-view", why);
            skip(draft, id, &finding.message);
            draft.findings.push(finding.on(id.clone()));
        } else if live.is_none() {
            unchanged(draft, id, "gone already");
        } else {
            skip(draft, id, "stays because the uninstall keeps all objects");
            retained.push(id.clone());
        }
    }
}

/// Excludes members that other releases took over or will take over. Returns
/// the remaining ones.
fn hand_over<'a>(
    ctx: &Ctx<'a>,
    draft: &mut Draft,
    removal: &Removal,
    outgoing: &mut Outgoing,
) -> Vec<(&'a ObjectId, &'a Entry)> {
    let mut left = Vec::new();
    for (id, entry) in &ctx.observed.inventory.entries {
        let live = ctx.observed.live_meta(id);
        match successor(&removal.successors, id, live) {
            Some((Handed::Taken, successor)) => {
                let reason = format!("it was handed over to release {}", successor.name);
                draft.change(id, Action::Unchanged, StageName::Prune, reason, Vec::new());
                outgoing.released.push(id.clone());
            }
            Some((Handed::Waiting, successor)) => {
                let reason = format!("it is handed over to release {}", successor.name);
                skip(draft, id, &reason);
            }
            None => left.push((id, entry)),
        }
    }
    left
}

/// Reports the objects that stay until a consent.
fn wait_for_consent(ctx: &Ctx<'_>, draft: &mut Draft, members: &[(&ObjectId, &Entry)]) {
    let mut staying = 0;
    for (id, _) in members {
        if is_gone(ctx, id) {
            unchanged(draft, id, "no longer in git, and gone already");
        } else {
            staying += 1;
            let reason = "no longer in git; stays until a consent to uninstall its release";
            skip(draft, id, reason);
        }
    }
    if staying == 0
        && ctx
            .removal
            .is_some_and(|removal| !removal.successors.is_empty())
    {
        return;
    }
    let name = &ctx.desired.name;
    let objects = match staying {
        1 => "its object stays".to_owned(),
        many => format!("its {many} objects stay"),
    };
    let how = if ctx.removal.is_some_and(|removal| removal.has_file) {
        format!(
            "add to `consent` in {}: {{action: uninstall, release: {}}}",
            ctx.environment_file(),
            name.release
        )
    } else {
        format!(
            "run `pleach uninstall {}/{}`: its environment no longer has a file for the consent",
            name.environment, name.release
        )
    };
    draft.findings.push(
        Finding::warning(
            Kind::Policy,
            "removal-waits",
            format!(
                "release {name} is no longer in git; {objects} until a consent to uninstall it"
            ),
        )
        .hint(format!("to uninstall it, {how}")),
    );
}

/// Judges every member, with consent.
fn judge(
    ctx: &Ctx<'_>,
    draft: &mut Decided,
    members: &[(&ObjectId, &Entry)],
    pruned: &mut Vec<Pruned>,
    retained: &mut Vec<ObjectId>,
) {
    let judge = Judge::new(ctx);
    draft.leaving.extend(remembered_services(ctx));
    draft.leaving.extend(lost_services(ctx));
    for &(id, entry) in members {
        match entry.state {
            EntryState::Intended if is_gone(ctx, id) => unchanged(draft, id, "it does not exist"),
            EntryState::Intended => skip(draft, id, UNCONFIRMED),
            EntryState::Kept => {
                skip(
                    draft,
                    id,
                    "stays because other field managers own fields of it",
                );
                retained.push(id.clone());
            }
            EntryState::Applied => {
                let verdict = judge.member(id, entry);
                if matches!(verdict, Verdict::Absent | Verdict::Delete(_)) {
                    draft.leaving.extend(service_ref(id));
                }
                apply_verdict(draft, id, verdict, pruned, retained);
            }
            EntryState::Observed => {}
        }
    }
    for &(id, entry) in members {
        if entry.state == EntryState::Observed {
            let verdict = judge.run_time_object(id, entry, &draft.leaving);
            apply_verdict(draft, id, verdict, pruned, retained);
        }
    }
    for (id, entry) in &ctx.observed.found {
        match judge.found(id, entry, &draft.leaving) {
            Verdict::Delete(one) => pruned.push(*one),
            Verdict::Keep(finding) => draft.findings.push(finding.on(id.clone())),
            Verdict::Absent | Verdict::Replaced | Verdict::InUse => {}
        }
    }
    for found in leftover::of_removal(ctx, draft) {
        retained.retain(|id| *id != found.id);
        pruned.retain(|one| one.id != found.id);
        pruned.push(found);
    }
}

fn apply_verdict(
    draft: &mut Draft,
    id: &ObjectId,
    verdict: Verdict,
    pruned: &mut Vec<Pruned>,
    retained: &mut Vec<ObjectId>,
) {
    match verdict {
        Verdict::Absent => unchanged(draft, id, "gone already"),
        Verdict::Replaced => {
            unchanged(draft, id, "its name now belongs to another object");
            retained.push(id.clone());
        }
        Verdict::InUse => {
            skip(draft, id, "stays because its creator stays");
            retained.push(id.clone());
        }
        Verdict::Keep(finding) => {
            skip(draft, id, &finding.message);
            // An object that could not be listed stays a member.
            if finding.code != "incomplete-view" {
                retained.push(id.clone());
            }
            draft.findings.push(finding.on(id.clone()));
        }
        Verdict::Delete(one) => pruned.push(*one),
    }
}

/// Returns declared Services that no longer exist. Pods may have registered
/// again before they ended.
fn remembered_services(ctx: &Ctx<'_>) -> Vec<ServiceRef> {
    let Some(namespace) = &ctx.desired.namespace else {
        return Vec::new();
    };
    let declared = ctx.desired.runtime_objects.iter();
    declared
        .filter_map(|object| object.service.clone())
        .map(|name| ServiceRef {
            namespace: namespace.clone(),
            name,
        })
        .filter(|service| {
            let backend = ctx.observed.backends.get(service);
            backend.is_some_and(|backend| !backend.exists)
        })
        .collect()
}

/// Returns the reason why nothing is deleted; `None` if deletions are possible.
fn removal_blocker(ctx: &Ctx<'_>, draft: &mut Decided, pruned: &[Pruned]) -> Option<String> {
    if !ctx.policy.prune.enabled {
        return Some("pruning is disabled in the environment file".to_owned());
    }
    if pruned.is_empty() && draft.leaving.is_empty() {
        return None;
    }
    let (kind, why) = unseen_registrations(ctx, draft)?;
    draft.findings.push(Finding::warning(
        Kind::Cluster,
        "incomplete-view",
        format!("nothing is deleted: objects of kind {kind} may need a deleted object, and could not be listed: {why}"),
    ));
    Some(format!("objects of kind {kind} could not be listed"))
}

/// Warns about running run-once Jobs. An uninstall ends them, because a Job
/// whose pods never start would block it forever.
fn report_running(ctx: &Ctx<'_>, draft: &mut Draft, pruned: &[Pruned]) {
    for Pruned { id, .. } in pruned {
        let Some(live) = ctx.observed.live_meta(id) else {
            continue;
        };
        if live.deleting || !is_running(ctx, id, live) {
            continue;
        }
        let message = "still runs and is stopped: its remaining work is not done";
        let namespace = id.namespace.as_deref().unwrap_or_default();
        let hint = format!(
            "`kubectl -n {namespace} get job {}` shows its progress; to let it finish, uninstall the release afterwards",
            id.name
        );
        let finding = Finding::warning(Kind::Policy, "ends-running", message);
        draft.findings.push(finding.on(id.clone()).hint(hint));
    }
}

/// Removes our marks from objects that stay.
fn release(ctx: &Ctx<'_>, draft: &mut Draft, retained: &[ObjectId]) {
    let deletions: Vec<(StepId, Need)> = draft
        .steps
        .iter()
        .filter(|step| matches!(step.op, Op::Delete(_)))
        .map(|step| (step.id, Need::Absent))
        .collect();
    let mut releases = Vec::new();
    for id in retained {
        let entry = ctx.observed.inventory.entries.get(id);
        let live = ctx.observed.live_meta(id);
        let (Some(entry), Some(live)) = (entry, live) else {
            continue;
        };
        if entry.uid.as_deref() != Some(&live.uid) || live.deleting {
            continue;
        }
        let Some(patch) = without_marks(ctx, live) else {
            continue;
        };
        let op = Op::Patch {
            patch: NonSecret(patch),
            subresource: None,
        };
        let reason = "it stays, and is no longer part of the release";
        let step = draft.step(ctx, StageName::Shrink, id.clone(), op, reason);
        draft.at(step).require = vec![Precondition::Uid(live.uid.clone())];
        releases.push(step);
    }
    let reason = "remaining objects are released last";
    let why = EdgeReason::Reverse;
    draft.all_before(ctx, StageName::Shrink, &deletions, &releases, &why, reason);
}

/// Builds the patch that removes our marks and records the releasing release,
/// which may adopt the object again. `None` without marks, or with the label of
/// another ApplySet. The patch tests UID and marks instead of the
/// resourceVersion, because controllers keep writing the object.
fn without_marks(ctx: &Ctx<'_>, live: &LiveMeta) -> Option<Value> {
    if live.part_of().is_some_and(|set| set != ctx.apply_set) {
        return None;
    }
    let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": live.uid})];
    let path = |map: &str, key: &str| {
        let key = key.replace('~', "~0").replace('/', "~1");
        format!("/metadata/{map}/{key}")
    };
    let mut take_off = |map: &str, key: &str, value: &str| {
        let path = path(map, key);
        operations.push(json!({"op": "test", "path": path, "value": value}));
        operations.push(json!({"op": "remove", "path": path}));
    };
    if live.part_of().is_some() {
        take_off("labels", labels::PART_OF, &ctx.apply_set);
    }
    let managed_by = live.labels.get(labels::MANAGED_BY);
    if managed_by.is_some_and(|by| by == "pleach") {
        take_off("labels", labels::MANAGED_BY, "pleach");
    }
    if let Some(digest) = live.annotations.get(annotations::DESIRED) {
        take_off("annotations", annotations::DESIRED, digest);
    }
    if operations.len() == 1 {
        return None;
    }
    let name = ctx.desired.name.to_string();
    operations.push(if live.annotations.is_empty() {
        json!({"op": "add", "path": "/metadata/annotations", "value": {annotations::RELEASED: name}})
    } else {
        json!({"op": "add", "path": path("annotations", annotations::RELEASED), "value": name})
    });
    Some(Value::Array(operations))
}

fn unchanged(draft: &mut Draft, id: &ObjectId, reason: &str) {
    draft.change(id, Action::Unchanged, StageName::Prune, reason, Vec::new());
}

fn skip(draft: &mut Draft, id: &ObjectId, reason: &str) {
    draft.change(id, Action::Skip, StageName::Prune, reason, Vec::new());
}
