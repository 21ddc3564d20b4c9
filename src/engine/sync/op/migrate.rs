//! Rewrites the stored objects of a definition, so that versions of it can go.
//!
//! Every object is written as it is, which makes the server store it in the
//! version of today; its record of owners names that version afterwards. Who is
//! interrupted begins again: what was rewritten is as it should be, and the
//! server leaves it as it is.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use pleach_domain::diff::ownership::moved_to;
use pleach_domain::object::{ApiVersion, ObjectId, managers};
use pleach_domain::plan::Step;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::own::is_stale;
use super::{Operator, failure, required_uid};
use crate::engine::sync::events::{EventKind, WaitState};
use crate::engine::sync::report::{Failure, FailureKind};
use crate::io::cluster::{
    Class, Cluster, ClusterError, Patch, PatchOptions, ResourcePath, Selector,
};

/// Objects that are written at a time: the cluster has other work to do.
const CONCURRENCY: usize = 8;

/// Writes of others between our read and our write after which an object is
/// given up.
const ATTEMPTS: usize = 10;

/// How often all objects are gone through: the last time finds nothing to do,
/// unless somebody keeps writing in the old version.
const PASSES: usize = 3;

impl Operator<'_> {
    /// Rewrites the objects, then takes the versions off the list of those in
    /// which objects may be stored.
    pub(super) async fn migrate(
        &self,
        step: &Step,
        (crd, from, to): (&ObjectId, &[String], &str),
        started: Instant,
    ) -> Result<(), Failure> {
        let cluster = self.cluster_for(step, started);
        let definition = self.definition(&cluster, step, crd).await?;
        let rewriting = Rewriting::new(&definition, from, to)?;
        for pass in 1.. {
            let left = self
                .pass(&cluster, step, &rewriting, pass == 1, started)
                .await?;
            if pass > 1 && left == 0 {
                break;
            }
            if pass >= PASSES {
                return Err(Failure {
                    kind: FailureKind::NotReady,
                    message: format!(
                        "somebody keeps writing objects as {}: there were {left} again",
                        from.join(", ")
                    ),
                    hint: Some("managedFields of the objects name who it is".to_owned()),
                });
            }
        }
        self.forget_versions(&cluster, step, crd, from).await
    }

    async fn definition(
        &self,
        cluster: &Cluster,
        step: &Step,
        crd: &ObjectId,
    ) -> Result<Value, Failure> {
        let path = definitions();
        let read = cluster.get_id(&path, crd).await;
        read.map_err(|error| failure(&error))?
            .filter(|live| required_uid(step).is_none_or(|uid| live["metadata"]["uid"] == uid))
            .ok_or_else(|| {
                Failure::new(
                    FailureKind::Conflict,
                    "it is not the definition any more that the plan was made for",
                )
            })
    }

    /// Goes through all objects, page by page, and writes those that need it:
    /// the first time all of them. Says how many that were.
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
                    // The server does not keep the list any longer, but goes on
                    // where we are: what is new since then is stored as it
                    // should be. Without a place to go on from it begins anew.
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
                                Some(left) if left > 0 => format!(", about {left} to come"),
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

    /// Writes one object as it is. Who wrote in between is not overwritten: the
    /// object is read again.
    async fn rewrite(
        &self,
        cluster: &Cluster,
        rewriting: &Rewriting,
        mut metadata: Value,
    ) -> Result<(), Failure> {
        if self.stop.asked().is_some() {
            return Err(Failure::new(
                FailureKind::Other,
                "stopped; what was rewritten stays so, and the next run goes on",
            ));
        }
        let id = rewriting.id(&metadata);
        let named = |failed: Failure| Failure {
            message: format!("{id}: {}", failed.message),
            ..failed
        };
        // What users keep in their objects is not known to be no secret.
        let options = PatchOptions {
            hides: Some(&Value::Null),
            ..PatchOptions::new(managers::OVERLAY)
        };
        for attempt in 1.. {
            let change = rewriting.change(&metadata);
            match cluster.patch(&rewriting.path, &id, &change, &options).await {
                Ok(_) => break,
                // It went meanwhile.
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

    /// Nothing is stored in the versions any more: the server lets them go.
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
            let live = self.definition(cluster, step, crd).await?;
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
            match cluster.patch(&definitions(), crd, &change, &options).await {
                Ok(_) => return Ok(()),
                Err(error) if is_passing(&error) && attempt < ATTEMPTS => {}
                Err(error) => return Err(failure(&error)),
            }
        }
        Ok(())
    }
}

fn definitions() -> ResourcePath {
    ResourcePath::cluster_scoped(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    )
}

/// Whether the same may succeed with the object as it is now: somebody wrote in
/// between, or nobody knows whether our write arrived, which does no harm twice.
pub(super) fn is_passing(error: &ClusterError) -> bool {
    is_stale(error) || error.class().is_some_and(Class::is_unclear)
}

/// What the objects are, and what of them has to change.
struct Rewriting {
    path: ResourcePath,
    to: ApiVersion,
    /// Versions that records of owners may not name any more.
    from: Vec<String>,
}

impl Rewriting {
    fn new(definition: &Value, from: &[String], to: &str) -> Result<Self, Failure> {
        let stored = pleach_domain::definition::storage(definition);
        if stored != Some(to) {
            return Err(Failure::new(
                FailureKind::Conflict,
                format!(
                    "objects are stored as {}, and not as {to} as the plan says",
                    stored.unwrap_or("nothing")
                ),
            ));
        }
        let spec = &definition["spec"];
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

    /// The record of owners at the new version; none where it is.
    fn record(&self, metadata: &Value) -> Option<Value> {
        moved_to(metadata, &self.from, &self.to.to_string())
    }

    /// Changes the record of owners where that has to be, else nothing: the
    /// server stores what it writes in the version of today.
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
