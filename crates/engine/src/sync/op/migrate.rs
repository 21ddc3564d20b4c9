//! Storage migration of a CRD, so that its old versions can be removed.
//!
//! Every object is written unchanged, so the server stores it in the current storage version. Its
//! `managedFields` name that version afterwards. An interrupted migration restarts from the
//! beginning. Migrated objects are written without effect.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use pleach_fields::diff::ownership::moved_to;
use pleach_model::object::{ApiVersion, ObjectId, managers};
use pleach_planner::plan::Step;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::own::is_stale;
use super::{Operator, failure, required_uid};
use crate::sync::{
    events::{EventKind, WaitState},
    report::{Failure, FailureKind},
};
use pleach_cluster::{Class, Cluster, ClusterError, Patch, PatchOptions, ResourcePath, Selector};

/// Number of concurrent writes. Low, to limit the load of the cluster.
const CONCURRENCY: usize = 8;

/// Number of write races after which an object fails.
const ATTEMPTS: usize = 10;

/// Number of passes over all objects. The last one should find none to write, unless a client keeps
/// writing in the old version.
const PASSES: usize = 3;

impl Operator<'_> {
    /// Rewrites the objects, then removes the old versions from `storedVersions`.
    pub(super) async fn migrate(
        &self,
        step: &Step,
        (crd, from, to): (&ObjectId, &[String], &str),
        started: Instant,
    ) -> Result<(), Failure> {
        let cluster = self.cluster_for(step, started);
        let live_crd = self.live_crd(&cluster, step, crd).await?;
        let rewriting = Rewriting::new(&live_crd, from, to)?;
        for pass in 1.. {
            let left = self
                .pass(&cluster, step, &rewriting, pass == 1, started)
                .await?;
            if pass > 1 && left == 0 {
                break;
            }
            if pass >= PASSES {
                let message = format!(
                    "another client is still writing objects at {}: {left} appeared during the migration",
                    from.join(", ")
                );
                return Err(Failure::new(FailureKind::NotReady, message)
                    .hint("managedFields of the objects name that client"));
            }
        }
        self.forget_versions(&cluster, step, crd, from).await
    }

    async fn live_crd(
        &self,
        cluster: &Cluster,
        step: &Step,
        crd: &ObjectId,
    ) -> Result<Value, Failure> {
        let path = crd_path();
        let read = cluster.get_id(&path, crd).await;
        read.map_err(|error| failure(&error))?
            .filter(|live| required_uid(step).is_none_or(|uid| live["metadata"]["uid"] == uid))
            .ok_or_else(|| {
                Failure::new(
                    FailureKind::Conflict,
                    "the CRD was replaced since the plan was made",
                )
            })
    }

    /// Scans all objects page by page and writes those that need it; with `all`, every one. Returns
    /// the number of written objects.
    async fn pass(
        &self,
        cluster: &Cluster,
        step: &Step,
        rewriting: &Rewriting,
        all: bool,
        started: Instant,
    ) -> Result<usize, Failure> {
        let written = AtomicUsize::new(0);
        let mut token: Option<String> = None;
        let mut restarts = 0;
        loop {
            let page = cluster
                .metadata_page(&rewriting.path, &Selector::default(), token.as_deref())
                .await;
            let page = match page {
                Ok(page) => page,
                Err(error) => match error.class() {
                    // The list expired, but the server can continue at the same position. Newer
                    // objects are stored correctly anyway. Without a continue token, the list
                    // restarts.
                    Some(Class::Expired { continue_token })
                        if token.is_some() && restarts < PASSES =>
                    {
                        token.clone_from(continue_token);
                        restarts += usize::from(token.is_none());
                        continue;
                    }
                    _ => return Err(failure(&error)),
                },
            };
            let objects = page.items.into_iter();
            let due = objects.filter(|metadata| all || rewriting.is_recorded(metadata));
            stream::iter(due)
                .map(Ok)
                .try_for_each_concurrent(CONCURRENCY, |metadata| {
                    let written = &written;
                    async move {
                        self.rewrite(cluster, rewriting, metadata).await?;
                        written.fetch_add(1, Ordering::Relaxed);
                        Ok::<(), Failure>(())
                    }
                })
                .await?;
            let so_far = written.load(Ordering::Relaxed);
            if so_far > 0 {
                self.events.send(EventKind::Waiting(
                    step.id,
                    WaitState {
                        object: step.object.clone(),
                        message: format!(
                            "{so_far} objects written as {}{}",
                            rewriting.to.version,
                            match page.remaining {
                                Some(left) if left > 0 => format!(", about {left} left"),
                                _ => String::new(),
                            }
                        ),
                        since: started.elapsed(),
                    },
                ));
            }
            token = page.next;
            if token.is_none() {
                return Ok(so_far);
            }
        }
    }

    /// Writes one object unchanged. If another client wrote meanwhile, the object is read again.
    async fn rewrite(
        &self,
        cluster: &Cluster,
        rewriting: &Rewriting,
        mut metadata: Value,
    ) -> Result<(), Failure> {
        if self.stop.cause().is_some() {
            return Err(Failure::new(
                FailureKind::Other,
                "stopped; rewritten objects stay rewritten, and the next run continues",
            ));
        }
        let id = rewriting.id(&metadata);
        let named = |failed: Failure| Failure {
            message: format!("{id}: {}", failed.message),
            ..failed
        };
        // User objects can be secret.
        let options = PatchOptions {
            hides: Some(&Value::Null),
            ..PatchOptions::new(managers::OVERLAY)
        };
        for attempt in 1.. {
            let change = rewriting.change(&metadata);
            match cluster.patch(&rewriting.path, &id, &change, &options).await {
                Ok(_) => break,
                // The object was deleted meanwhile.
                Err(error) if error.class() == Some(&Class::NotFound) => break,
                Err(error) if is_passing(&error) && attempt < ATTEMPTS => {
                    let read = cluster.get_id(&rewriting.path, &id).await;
                    match read.map_err(|error| named(failure(&error)))? {
                        Some(mut live) => metadata = live["metadata"].take(),
                        None => break,
                    }
                }
                Err(error) => return Err(named(failure(&error))),
            }
        }
        Ok(())
    }

    /// Removes the versions from `storedVersions`, because no object is stored in them any more.
    async fn forget_versions(
        &self,
        cluster: &Cluster,
        step: &Step,
        crd: &ObjectId,
        from: &[String],
    ) -> Result<(), Failure> {
        let options = PatchOptions {
            subresource: Some("status"),
            ..PatchOptions::new(managers::OVERLAY)
        };
        for attempt in 1.. {
            let live = self.live_crd(cluster, step, crd).await?;
            let stored = live["status"]["storedVersions"].as_array();
            let stored: Vec<&Value> = stored.into_iter().flatten().collect();
            let is_left = |version: &&&Value| !from.iter().any(|name| **version == name.as_str());
            let left: Vec<&Value> = stored.iter().filter(is_left).copied().collect();
            if left.len() == stored.len() {
                return Ok(());
            }
            let change = Patch::Json(json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
                {"op": "replace", "path": "/status/storedVersions", "value": left},
            ]));
            match cluster.patch(&crd_path(), crd, &change, &options).await {
                Ok(_) => return Ok(()),
                Err(error) if is_passing(&error) && attempt < ATTEMPTS => {}
                Err(error) => return Err(failure(&error)),
            }
        }
        Ok(())
    }
}

fn crd_path() -> ResourcePath {
    ResourcePath::cluster_scoped(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    )
}

/// Returns whether a retry with the current object can succeed: after a write race, or if the
/// result of our write is unknown. A repeated write is harmless.
pub(super) fn is_passing(error: &ClusterError) -> bool {
    is_stale(error) || error.class().is_some_and(Class::is_unclear)
}

/// The objects of a migration, with the change that they need.
struct Rewriting {
    path: ResourcePath,
    to: ApiVersion,
    /// Versions that `managedFields` must not name any more.
    from: Vec<String>,
}

impl Rewriting {
    fn new(live_crd: &Value, from: &[String], to: &str) -> Result<Self, Failure> {
        let stored = pleach_planner::crd::storage(live_crd);
        if stored != Some(to) {
            return Err(Failure::new(
                FailureKind::Conflict,
                format!(
                    "the plan expects storage version {to}, the CRD has {}",
                    stored.unwrap_or("none")
                ),
            ));
        }
        let spec = &live_crd["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let at = |version: &str| ApiVersion {
            group: text(&spec["group"]),
            version: version.to_owned(),
        };
        Ok(Self {
            path: ResourcePath {
                api_version: at(to),
                kind: text(&spec["names"]["kind"]),
                plural: text(&spec["names"]["plural"]),
                namespaced: spec["scope"] == "Namespaced",
            },
            to: at(to),
            from: from.iter().map(|version| at(version).to_string()).collect(),
        })
    }

    fn id(&self, metadata: &Value) -> ObjectId {
        self.path.id(
            metadata["namespace"].as_str(),
            metadata["name"].as_str().unwrap_or_default(),
        )
    }

    fn is_recorded(&self, metadata: &Value) -> bool {
        self.record(metadata).is_some()
    }

    /// Returns `managedFields` at the new version; `None` if they already are.
    fn record(&self, metadata: &Value) -> Option<Value> {
        moved_to(metadata, &self.from, &self.to.to_string())
    }

    /// Returns the patch of `managedFields`, or an empty patch. Either makes the server store the
    /// object in the current version.
    fn change(&self, metadata: &Value) -> Patch {
        match self.record(metadata) {
            None => Patch::Merge(json!({})),
            Some(record) => Patch::Json(json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
                {"op": "replace", "path": "/metadata/managedFields", "value": record},
            ])),
        }
    }
}
