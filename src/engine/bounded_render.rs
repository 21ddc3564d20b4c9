//! Renders environments within bounds.
//!
//! Templates make much of little: a few words that are doubled again and again fill any
//! memory. So an environment is rendered by a process of its own, `pleach worker render`,
//! which is bounded in memory and time, and whose end harms nobody else. It plans the
//! releases too, as if nothing of them was there. Its [answer](Answer) is all that the
//! controller takes from it: nothing is rendered again.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pleach_domain::kinds::KindTable;
use pleach_domain::observe::{Base, Observed};
use pleach_domain::plan::{Desired, Policy, plan};
use pleach_domain::render::Rendered;
use pleach_domain::render::answer::{self, AnswerError};
use pleach_domain::repo::{KeepingTree, Record, RecordingTree, ResolvedEnvironment};
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::load::{Loaded, each_loaded, render_all, resolve_partly};
use super::planning::{Options, Predecessors, desired, policy};
use super::worker;
use crate::io::bounds;
use crate::io::git::mirror::Place;
use crate::io::git::{GitError, Revision};
use crate::io::sandbox::{self, SandboxError, Work};

/// How many there are at once: an environment that takes long holds up few others.
const PLACES: usize = 2;
/// How long one may take: also where processors are busy.
const TIME: Duration = Duration::from_mins(2);
/// The time of processors that it has.
pub const COMPUTING: Duration = Duration::from_mins(1);
/// The longest answer, in bytes. The controller keeps as much in memory for a moment.
const LONGEST_ANSWER: u64 = 128 << 20;

/// What is to be read.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Order {
    place: Place,
    commit: String,
    environment: String,
}

/// Renders what the order says, in this process, and prints the [answer](Answer) in pieces of
/// whole lines. Where the environment itself has errors, nothing is printed: the controller
/// finds them too, as it resolves the environment. The process is [restricted](sandbox) from
/// now on.
pub fn execute(order: &str, print: &mut dyn FnMut(&str)) -> Result<(), Invalid> {
    let order: Order = serde_json::from_str(order)?;
    let folder = order.place.folder();
    sandbox::confine(Work::Render { folder })?;
    let tree = order.place.tree(&order.commit)?;
    let recording = RecordingTree::new(&tree);
    let kept = KeepingTree::new(&recording);
    let Ok(partial) = resolve_partly(&kept, &order.environment) else {
        return Ok(());
    };
    let all = render_all(&kept, &partial.environment);
    let record = recording.record();
    let revision = Revision::Commit(order.commit);
    let plannable = each_loaded(&tree, revision, partial, all.clone(), &|_| None);
    plan_all(&plannable, &|desired, observed, policy| {
        drop(plan(desired, observed, policy));
    });
    answer::write(record, all.iter(), print)?;
    Ok(())
}

/// Plans each release without errors as if none of its objects existed. A plan that
/// exceeds the bounds of this process ends it, before the controller makes that plan. A
/// panic is left to the controller, where it fails that release only.
fn plan_all(loaded: &Loaded, plan: &dyn Fn(&Desired, &Observed, &Policy)) {
    let kubernetes = loaded.environment.cluster.kubernetes.as_deref();
    let (kinds, _) = KindTable::nearest(kubernetes);
    let options = Options {
        verify: false,
        wait: true,
        prune: true,
        review: false,
        predecessors: Predecessors::AtRevision,
    };
    for (release, rendered) in &loaded.rendered {
        let desired = desired(loaded, release, rendered);
        if desired.refuse_size().is_some() {
            continue;
        }
        let nothing = Base {
            release: None,
            others: &[],
            namespaces: &BTreeMap::new(),
            kinds: &kinds,
        };
        let observed = Observed::from_rendered(nothing, &desired);
        let policy = policy(&loaded.environment, release, None, options);
        let planning = AssertUnwindSafe(|| plan(&desired, &observed, &policy));
        if catch_unwind(planning).is_err() {
            tracing::warn!(release = %release.name, "panic while planning");
        }
    }
}

/// Why nothing could be read.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The order, or the answer, is no JSON.
    #[error("failed to read the order or to write the answer")]
    Order(#[from] serde_json::Error),
    /// It would not be safe to read it.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// It is not there.
    #[error(transparent)]
    Git(#[from] GitError),
}

/// Why an environment is not to be rendered.
#[derive(Debug, thiserror::Error)]
pub enum BoundedRenderError {
    /// Because of what it is.
    #[error("rendering and planning it takes more memory or time than it may: {0}")]
    Beyond(String),
    /// Another time it may be.
    #[error("it could not be tried whether it can be rendered: {0}")]
    Passing(String),
}

/// The memory for answers from which retained environments were read. Clones share it.
#[derive(Debug, Clone)]
struct AnswerMemory {
    /// In bytes.
    limit: u64,
    used: Arc<AtomicU64>,
}

/// The memory that an answer takes, until this is dropped.
#[derive(Debug)]
pub struct Charge {
    bytes: u64,
    used: Arc<AtomicU64>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The output of the process, which nobody has checked yet.
pub struct Answer {
    bytes: Vec<u8>,
    memory: AnswerMemory,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the bytes: they hold Secrets.
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

impl Answer {
    /// Checks the answer for an environment of the same commit. Returns the files that it
    /// depends on, and what all releases render to, in the order of the environment.
    pub fn read(
        &self,
        environment: &ResolvedEnvironment,
    ) -> Result<(Record, Vec<Rendered>), AnswerError> {
        let (kinds, _) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
        answer::read(&self.bytes, environment, &kinds)
    }

    /// Charges the memory of all environments with the answer, before it is read. `None`:
    /// retained answers take the memory. `replaced` is the charge of the state that the
    /// environment has until the answer is read: it does not speak against the answer.
    pub fn charge(&self, replaced: Option<&Charge>) -> Option<Charge> {
        let AnswerMemory { limit, used } = &self.memory;
        let bytes = self.bytes.len() as u64;
        let before = used.fetch_add(bytes, Ordering::Relaxed);
        let charge = Charge {
            bytes,
            used: Arc::clone(used),
        };
        let replaced = replaced.map_or(0, |replaced| replaced.bytes);
        let others = before.saturating_sub(replaced);
        (others.saturating_add(bytes) <= *limit).then_some(charge)
    }
}

/// A turn to read an environment, until this is dropped.
#[derive(Debug)]
pub struct Turn {
    _place: Option<OwnedSemaphorePermit>,
}

/// Place for those who render. Clones share it.
#[derive(Debug, Clone)]
pub struct RenderSlots {
    /// pleach itself.
    program: PathBuf,
    places: Arc<Semaphore>,
    memory: AnswerMemory,
}

impl RenderSlots {
    /// By pleach, which lies there. Retained answers take the memory of one process.
    pub fn by(program: PathBuf) -> Self {
        Self::within(program, bounds::memory_of_one())
    }

    /// The same, with so many bytes for retained answers.
    pub(super) fn within(program: PathBuf, limit: u64) -> Self {
        Self {
            program,
            places: Arc::new(Semaphore::new(PLACES)),
            memory: AnswerMemory {
                limit,
                used: Arc::default(),
            },
        }
    }

    /// Waits for a turn: until then nothing is under way.
    pub async fn turn(&self) -> Turn {
        Turn {
            // They are never closed.
            _place: Arc::clone(&self.places).acquire_owned().await.ok(),
        }
    }

    /// Renders an environment at a commit, of whom it is the turn. Dropped, it ends that.
    pub async fn render(
        &self,
        place: Place,
        commit: &str,
        environment: &str,
    ) -> Result<Answer, BoundedRenderError> {
        let order = Order {
            place,
            commit: commit.to_owned(),
            environment: environment.to_owned(),
        };
        let passing = |why: &dyn Display| BoundedRenderError::Passing(why.to_string());
        let order = serde_json::to_vec(&order).map_err(|error| passing(&error))?;
        let mut command = Command::new(&self.program);
        command.args(["worker", "render"]).env_clear();
        // A longer one could not be retained, even alone.
        let longest = LONGEST_ANSWER.min(self.memory.limit);
        match worker::run(&mut command, &order, (TIME, longest)).await {
            Ok(ended) if ended.out.is_none() => {
                let most = longest >> 20;
                let why = format!("its objects take more than {most} MiB");
                Err(BoundedRenderError::Beyond(why))
            }
            Ok(ended) if ended.status.success() => Ok(Answer {
                bytes: ended.out.unwrap_or_default(),
                memory: self.memory.clone(),
            }),
            Ok(ended) if ended.was_ended() && !ended.was_killed() => {
                Err(BoundedRenderError::Beyond(ended.words()))
            }
            Ok(ended) => Err(passing(&ended.words())),
            Err(error) => Err(passing(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use std::cell::RefCell;

    use pleach_domain::repo::MemoryTree;

    use super::*;
    use crate::engine::load::read_each;
    use crate::engine::worker::tests::program;

    /// An environment with a release per bundle: its name and a file of manifests.
    fn environment(bundles: &[(&str, &str)]) -> Loaded {
        let header = "apiVersion: pleach.dev/v1alpha1\nkind";
        let releases = bundles.iter();
        let releases: Vec<String> = releases
            .map(|(name, _)| format!("- {{bundle: {name}, namespace: one}}\n"))
            .collect();
        let releases = releases.concat();
        let mut files = vec![
            (
                "pleach.yaml".to_owned(),
                format!("{header}: Repository\nid: worker\n"),
            ),
            (
                "environments/dev.yaml".to_owned(),
                format!("{header}: Environment\nreleases:\n{releases}"),
            ),
        ];
        for (name, data) in bundles {
            let folder = format!("manifests/{name}");
            let map =
                format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n{data}");
            files.push((
                format!("{folder}/bundle.yaml"),
                format!("{header}: Bundle\n"),
            ));
            files.push((format!("{folder}/objects.yaml.j2"), map));
        }
        let commit = Revision::Commit("c0ffee".to_owned());
        read_each(&MemoryTree::new(files), commit, "dev", &|_| None).unwrap()
    }

    #[test]
    fn releases_are_planned_beside_broken_ones() {
        let loaded = environment(&[
            ("broken", "data: {a: \"{{ values.nothing }}\"}\n"),
            ("first", ""),
            ("second", ""),
        ]);
        let planned = RefCell::new(Vec::new());
        plan_all(&loaded, &|desired, _, _| {
            planned.borrow_mut().push(desired.name.release.clone());
            assert!(desired.name.release != "first", "a defect of the planner");
        });
        assert_eq!(planned.into_inner(), ["first", "second"]);
    }

    /// Renders by a program of a few lines.
    async fn tried(script: &str) -> Result<Answer, BoundedRenderError> {
        let (_folder, program) = program(script);
        let place = json!({"folder": "/srv/fleet", "prefix": ""});
        let place = serde_json::from_value(place).unwrap();
        let slots = RenderSlots::within(program, LONGEST_ANSWER);
        slots.render(place, "c0ffee", "web").await
    }

    #[rstest]
    #[case::it_can(
        r#"test "$*" = "worker render" && grep -q '"commit":"c0ffee","environment":"web"'"#,
        ""
    )]
    #[case::ended(
        "echo out of memory >&2; kill -ABRT $$",
        "rendering and planning it takes more memory or time than it may: (signal: 6 (SIGABRT)): out of memory"
    )]
    #[case::killed_by_others(
        "kill -KILL $$",
        "it could not be tried whether it can be rendered: (signal: 9 (SIGKILL))"
    )]
    #[case::is_no_larger_where_there_are_more_processors(
        "test \"$RAYON_NUM_THREADS\" = 2 || exit 7",
        ""
    )]
    #[case::prints_without_end(
        "while :; do printf '%01000000d' 0; done",
        "rendering and planning it takes more memory or time than it may: its objects take more than 128 MiB"
    )]
    #[case::broken(
        "echo no commit >&2; exit 1",
        "it could not be tried whether it can be rendered: (exit status: 1): no commit"
    )]
    #[tokio::test]
    async fn what_ends_the_process_is_the_environment(#[case] script: &str, #[case] said: &str) {
        let error = tried(script).await.err();
        let words = error.map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(words, said);
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_too_long_is_given_up() {
        // The clock jumps as soon as nothing else is to be done.
        let error = tried("exec /bin/sleep 600").await.unwrap_err();
        // Processors may be busy: that says nothing of it.
        assert!(matches!(error, BoundedRenderError::Passing(_)), "{error}");
    }
}
