//! Live state of the members of releases, for status commands. Writes nothing.
//!
//! Lists each kind once for many releases: whole objects if readiness depends on the status,
//! otherwise metadata. Members that are missing in the lists are read by name. So are objects that
//! workloads create, because they have no label of pleach. Pods and events are read only for objects
//! that are not ready.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use pleach_formats::policy::RuntimeObject;
use pleach_formats::readiness::{Rules, symptoms::beside};
use pleach_model::discovery::Discovery;
use pleach_model::object::{ApiVersion, GroupKind, Gvk, ObjectId, labels};
use pleach_report::status::{LiveStatus, Member, MemberStatus, is_covered};
use pleach_state::inventory::{Entry, EntryState, Inventory, Memory, ReleaseSummary};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::observe::ends_observation;
use super::rbac_scope::RbacScope;
use super::state;
use super::symptoms::{self, Unready};
use crate::words;
use pleach_cluster::{Class, Cluster, ClusterError, Depth, ResourcePath, Retry, Selector};

/// Number of concurrent requests.
const CONCURRENCY: usize = 32;
/// Time limit for retries of a request, because a user waits for the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of objects whose pods and events are read. Most causes are shared.
const EXPLAINED: usize = 20;
/// Number of releases per list, because the server limits the length of a URL.
const SETS: usize = 50;

/// A member of one of the releases.
struct Known<'a> {
    /// Index of its release.
    release: usize,
    id: &'a ObjectId,
    entry: &'a Entry,
    rules: &'a Rules,
    manager: &'a str,
}

/// State of a member, and the object to read symptoms of if it is not ready.
struct Verdict {
    status: MemberStatus,
    unready: Option<Unready>,
}

impl Known<'_> {
    fn judge(&self, live: Option<&Value>) -> Verdict {
        let member = Member {
            id: self.id,
            entry: self.entry,
            rules: self.rules,
            manager: self.manager,
        };
        let status = member.judge(live);
        let unready = live.filter(|_| !status.is_ready);
        let unready = unready.map(|live| Unready::of(self.id, live));
        Verdict { status, unready }
    }

    /// Returns the path at the applied version, or else at the version that the server prefers.
    fn path(&self, discovery: &Discovery) -> Option<ResourcePath> {
        let recorded = (!self.entry.api_version.is_empty()).then(|| Gvk {
            api_version: ApiVersion::parse(&self.entry.api_version),
            kind: self.id.kind.clone(),
        });
        let recorded = recorded.and_then(|gvk| ResourcePath::of(discovery, &gvk));
        recorded
            .or_else(|| ResourcePath::preferred(discovery, &self.id.group_kind()))
            .filter(|path| path.may_hold(self.id))
    }
}

/// A kind to list.
struct KindQuery {
    path: ResourcePath,
    /// Namespaces of applied members.
    namespaces: BTreeSet<String>,
    /// Whether a run applied one of the members, so that a list by label contains it.
    is_labeled: bool,
    /// Whether readiness needs the whole object.
    depth: Depth,
}

/// Reads the live members of releases, in the given order. Fails if the cluster does not answer.
/// Other read errors are reported per release.
pub async fn live(
    cluster: &Cluster,
    releases: &[ReleaseSummary],
) -> Result<Vec<LiveStatus>, ClusterError> {
    let cluster = &cluster.clone().with_retry(Retry::within(PATIENCE));
    let (inventories, discovery) =
        futures::try_join!(state::inventories_of(cluster, releases), cluster.discover())?;
    let mut found: Vec<LiveStatus> = releases.iter().map(|_| LiveStatus::default()).collect();
    let rules: Vec<Rules> = releases.iter().map(rules_of).collect();
    let managers: Vec<String> = releases
        .iter()
        .map(|release| release.name.field_manager())
        .collect();
    let mut members: HashMap<&ObjectId, Known<'_>> = HashMap::new();
    for (release, inventory) in inventories.iter().enumerate() {
        match inventory {
            Ok(inventory) => {
                let declared = declared(&releases[release]);
                for (id, entry) in covered(inventory, declared) {
                    let known = Known {
                        release,
                        id,
                        entry,
                        rules: &rules[release],
                        manager: &managers[release],
                    };
                    // An applied object counts for the release that applied it.
                    if entry.state == EntryState::Applied {
                        members.insert(id, known);
                    } else {
                        members.entry(id).or_insert(known);
                    }
                }
            }
            Err(why) => found[release].unread.push(why.clone()),
        }
    }
    let reader = Reader {
        cluster,
        members: &members,
        selectors: selectors(releases.iter().map(ReleaseSummary::apply_set).collect()),
    };
    let (kinds, unserved) = reader.kinds(&discovery);
    let mut judged = reader.list(&kinds).await?;
    reader.read_missing(&kinds, &mut judged).await?;
    reader.explain(&mut judged).await;
    for known in unserved {
        let group = &known.id.group;
        let answer = if discovery.is_stale(group) {
            Err(format!(
                "the server behind the group {group} does not answer"
            ))
        } else {
            Ok(known.judge(None))
        };
        judged.insert(known.id.clone(), answer);
    }
    for (id, answer) in judged {
        let Some(known) = members.get(&id) else {
            continue;
        };
        let status = &mut found[known.release];
        match answer {
            Ok(member) => status.members.push(member.status),
            Err(why) if status.unread.contains(&why) => {}
            Err(why) => status.unread.push(why),
        }
    }
    Ok(found)
}

/// Returns the objects of an inventory that a status covers.
fn covered<'a>(
    inventory: &'a Inventory,
    declared: &'a [RuntimeObject],
) -> impl Iterator<Item = (&'a ObjectId, &'a Entry)> {
    let entries = inventory.entries.iter();
    entries.filter(move |(id, entry)| is_covered(id, entry, declared))
}

/// Returns the uninstall data of the last run.
fn memory_of(release: &ReleaseSummary) -> Option<&Memory> {
    release.record.as_ref().ok()?.memory.as_ref()
}

/// Returns the runtime objects that were declared at the last run.
fn declared(release: &ReleaseSummary) -> &[RuntimeObject] {
    memory_of(release).map_or(&[], |memory| memory.runtime_objects.as_slice())
}

/// Returns the readiness rules of the last run.
fn rules_of(release: &ReleaseSummary) -> Rules {
    memory_of(release)
        .and_then(|memory| Rules::read(&memory.readiness).ok())
        .unwrap_or_default()
}

/// Returns label selectors for the members of these sets, in the order of the sets.
fn selectors(sets: BTreeSet<String>) -> Vec<String> {
    let sets: Vec<String> = sets.into_iter().collect();
    sets.chunks(SETS)
        .map(|sets| format!("{} in ({})", labels::PART_OF, sets.join(",")))
        .collect()
}

/// State of each member, or the error of its read.
type Judged = BTreeMap<ObjectId, Result<Verdict, String>>;

struct Reader<'a> {
    cluster: &'a Cluster,
    members: &'a HashMap<&'a ObjectId, Known<'a>>,
    selectors: Vec<String>,
}

impl<'a> Reader<'a> {
    /// Returns the kinds of the members with their namespaces, and the members of unserved kinds.
    fn kinds(&self, discovery: &Discovery) -> (BTreeMap<GroupKind, KindQuery>, Vec<&'a Known<'a>>) {
        let mut kinds: BTreeMap<GroupKind, KindQuery> = BTreeMap::new();
        let mut unserved = Vec::new();
        for known in self.members.values() {
            let Some(path) = known.path(discovery) else {
                unserved.push(known);
                continue;
            };
            let kind = known.id.group_kind();
            // The Services of a registration are not in its metadata.
            let is_judged = known.rules.waits_for(&kind) || known.entry.service.is_some();
            let query = kinds.entry(kind).or_insert_with(|| KindQuery {
                path,
                namespaces: BTreeSet::new(),
                is_labeled: false,
                depth: Depth::Metadata,
            });
            if known.entry.state == EntryState::Applied {
                query.namespaces.extend(known.id.namespace.clone());
                query.is_labeled = true;
            }
            if is_judged {
                query.depth = Depth::Full;
            }
        }
        (kinds, unserved)
    }

    /// Lists the kinds cluster-wide, or by namespace if that is forbidden.
    async fn list(&self, kinds: &BTreeMap<GroupKind, KindQuery>) -> Result<Judged, ClusterError> {
        let rbac_scope = RbacScope::default();
        // A namespace is read by name, because permission to list namespaces is rare.
        let is_listed = |query: &&KindQuery| query.is_labeled && !is_by_name(&query.path);
        let listed = kinds.values().filter(is_listed);
        let questions: Vec<(&KindQuery, Option<String>)> = listed
            .flat_map(|query| {
                let scopes = rbac_scope.scopes(&query.path, &query.namespaces);
                scopes.into_iter().map(move |scope| (query, scope))
            })
            .collect();
        let mut judged = Judged::new();
        let closed = self.list_all(questions, &mut judged).await?;
        let questions: Vec<(&KindQuery, Option<String>)> = closed
            .into_iter()
            .flat_map(|query| {
                let namespaces = query.namespaces.iter();
                namespaces.map(move |namespace| (query, Some(namespace.clone())))
            })
            .collect();
        self.list_all(questions, &mut judged).await?;
        Ok(judged)
    }

    /// Executes lists. Returns the namespaced kinds whose cluster-wide list is forbidden.
    async fn list_all<'w>(
        &self,
        questions: Vec<(&'w KindQuery, Option<String>)>,
        judged: &mut Judged,
    ) -> Result<Vec<&'w KindQuery>, ClusterError> {
        let lists: Vec<_> = stream::iter(questions)
            .map(|(query, namespace)| async move {
                let listed = self.list_kind(query, namespace.as_deref()).await;
                (query, namespace, listed)
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        let mut closed = Vec::new();
        for (query, namespace, listed) in lists {
            let error = match listed {
                Ok(members) => {
                    let members = members.into_iter();
                    judged.extend(members.map(|one| (one.status.object.clone(), Ok(one))));
                    continue;
                }
                Err(error) if ends_observation(&error) => return Err(error),
                Err(error) => error,
            };
            let is_closed = error.class() == Some(&Class::Forbidden) && namespace.is_none();
            if is_closed && query.path.namespaced {
                closed.push(query);
                continue;
            }
            let why = words(&error);
            for id in self.of_kind(&query.path.group_kind()) {
                if namespace.is_none() || id.namespace == namespace {
                    judged.insert(id.clone(), Err(why.clone()));
                }
            }
        }
        Ok(closed)
    }

    async fn list_kind(
        &self,
        query: &KindQuery,
        namespace: Option<&str>,
    ) -> Result<Vec<Verdict>, ClusterError> {
        let path = &query.path;
        let judge = |live: Value| {
            let metadata = &live["metadata"];
            let name = metadata["name"].as_str().unwrap_or_default();
            let id = path.id(metadata["namespace"].as_str(), name);
            Some(self.members.get(&id)?.judge(Some(&live)))
        };
        let typed = |mut live: Value| {
            live["apiVersion"] = json!(path.api_version.to_string());
            live["kind"] = json!(path.kind);
            judge(live)
        };
        let mut found = Vec::new();
        for labels in &self.selectors {
            let selector = Selector {
                namespace,
                labels: Some(labels),
                ..Selector::default()
            };
            let listed = match query.depth {
                Depth::Full => self.cluster.list_of(path, &selector, judge).await?,
                Depth::Metadata => {
                    let depth = Depth::Metadata;
                    self.cluster.pick(path, &selector, depth, typed).await?
                }
            };
            found.extend(listed);
        }
        Ok(found)
    }

    /// Reads the members missing in the lists by name, because they can have lost their label.
    async fn read_missing(
        &self,
        kinds: &BTreeMap<GroupKind, KindQuery>,
        judged: &mut Judged,
    ) -> Result<(), ClusterError> {
        let missing: Vec<(&Known<'_>, &ResourcePath)> = self
            .members
            .values()
            .filter(|known| !judged.contains_key(known.id))
            .filter_map(|known| Some((known, &kinds.get(&known.id.group_kind())?.path)))
            .collect();
        let read: Vec<_> = stream::iter(missing)
            .map(|(known, path)| async move { (known, self.cluster.get_id(path, known.id).await) })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        for (known, read) in read {
            let answer = match read {
                Ok(live) => Ok(known.judge(live.as_ref())),
                Err(error) if ends_observation(&error) => return Err(error),
                Err(error) => Err(words(&error)),
            };
            judged.insert(known.id.clone(), answer);
        }
        Ok(())
    }

    /// Adds the symptoms in pods and events to the messages of objects that are not ready. A failed
    /// read leaves the message as it is.
    async fn explain(&self, judged: &mut Judged) {
        let unready = judged.values_mut().filter_map(|answer| {
            let Verdict { status, unready } = answer.as_mut().ok()?;
            Some((status, unready.take()?))
        });
        stream::iter(unready.take(EXPLAINED))
            .for_each_concurrent(CONCURRENCY, |(status, unready)| async move {
                let read = timeout(symptoms::PATIENCE, unready.read(self.cluster)).await;
                if let Ok(Ok(found)) = read {
                    let message = std::mem::take(&mut status.message);
                    status.message = beside(message, found.message.as_deref());
                }
            })
            .await;
    }

    fn of_kind(&self, kind: &GroupKind) -> impl Iterator<Item = &'a ObjectId> {
        let ids = self.members.keys().copied();
        ids.filter(move |id| id.group_kind() == *kind)
    }
}

fn is_by_name(path: &ResourcePath) -> bool {
    path.group_kind().is("", "Namespace")
}

#[cfg(test)]
mod tests {
    use pleach_state::inventory::apply_set_id;

    use super::*;

    #[test]
    fn selectors_of_many_releases_fit_into_a_url() {
        let set =
            |number: usize| apply_set_id(&format!("prod.r{number}"), "", "Release", "pleach.dev");
        let sets: BTreeSet<String> = (0..500).map(set).collect();
        let selectors = selectors(sets.clone());
        assert!(selectors.iter().all(|selector| selector.len() < 4096));
        for set in sets {
            let having = selectors.iter().filter(|selector| selector.contains(&set));
            assert_eq!(having.count(), 1, "{set}");
        }
    }
}
