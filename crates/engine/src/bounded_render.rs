//! Rendering of environments in a bounded process.
//!
//! Small templates can expand without limit: a few words doubled repeatedly fill any memory. So the
//! controller renders each environment in a child process, `pleach worker render`, with limits on
//! memory and time. A crash of the child affects no other environment. The child also plans the
//! releases, as if none of their objects existed. The controller uses only its [answer](Answer) and
//! does not render again.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pleach_config::{CachingTree, Record, RecordingTree, ResolvedEnvironment};
use pleach_model::engines::Engines;
use pleach_model::kinds::KindTable;
use pleach_model::tree::KeyedTree;
use pleach_planner::observe::{Base, Observed};
use pleach_planner::plan::{Desired, Policy, plan_offline};
use pleach_render::Rendered;
use pleach_render::answer::{self, AnswerError};
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::decryption::{FileKeys, KeySources};
use super::engines::{EngineRunner, EngineSearch};
use super::load::{Loaded, each_loaded, render_all, resolve_partly};
use super::planning::{Options, Predecessors, desired, policy};
use super::relay::Relay;
use super::worker;
use pleach_files::{
    bounds,
    sandbox::{self, SandboxError, Work},
};
use pleach_git::{GitError, Revision, mirror::Place};

/// Number of concurrent render processes, so that a slow environment delays few others.
const PERMITS: usize = 2;
/// Wall-clock limit of one render. Generous, because the processors can be busy.
const TIME: Duration = Duration::from_mins(2);
/// CPU time limit of one render.
pub const COMPUTING: Duration = Duration::from_mins(1);
/// Longest answer, in bytes. The controller briefly holds an answer in memory.
const LONGEST_ANSWER: u64 = 128 << 20;

/// An environment at a commit: the request to the child process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentAt {
    /// Location of the commit.
    pub place: Place,
    /// Id of the commit.
    pub commit: String,
    /// Name of the environment.
    pub name: String,
    /// Keys for encrypted files. The process reads them before it restricts itself.
    #[serde(default)]
    pub keys: KeySources,
}

/// Renders the requested environment in this process and prints the [answer](Answer) in pieces of
/// whole lines. Prints nothing if the environment itself has errors, because the controller finds
/// them when it resolves the environment. The process stays [restricted](sandbox) from then on.
/// `relay` is that of the program that decrypts files, if the request names one.
pub fn execute(
    order: &str,
    engines: &Arc<EngineRunner>,
    relay: Option<Relay>,
    print: &mut dyn FnMut(&str),
) -> Result<(), Invalid> {
    let order: EnvironmentAt = serde_json::from_str(order)?;
    let folder = order.place.folder();
    let keys = FileKeys::relayed(order.keys, relay).map_err(Invalid::Relay)?;
    sandbox::confine(Work::Render { folder })?;
    let tree = order.place.tree(&order.commit)?;
    let tree = KeyedTree::decrypted(tree, keys);
    let tree = tree.with_engines(Arc::clone(engines) as Arc<dyn Engines>);
    let recording = RecordingTree::new(&tree);
    let cached = CachingTree::new(&recording);
    let resolved = resolve_partly(&cached, &order.name);
    let rendered = resolved.map(|partial| (render_all(&cached, &partial.environment), partial));
    if let Some(failure) = tree.keys().failure() {
        return Err(Invalid::Decryption(failure));
    }
    let Ok((all, partial)) = rendered else {
        return Ok(());
    };
    if engines.has_failed() {
        return Err(Invalid::Engines);
    }
    let record = recording.record();
    let revision = Revision::Commit(order.commit);
    let plannable = each_loaded(&tree, revision, partial, all.clone(), &|_| None);
    plan_all(&plannable, &|desired, observed, policy| {
        drop(plan_offline(desired, observed, policy));
    });
    answer::write(record, all.iter(), print)?;
    Ok(())
}

/// Plans each release without errors as if none of its objects existed. A plan that exceeds the
/// limits thus ends this process, before the controller makes the same plan. Panics are ignored
/// here: in the controller, they fail only that release.
fn plan_all(loaded: &Loaded, plan: &dyn Fn(&Desired, &Observed, &Policy)) {
    let kubernetes = loaded.environment.cluster.kubernetes.as_deref();
    let (kinds, _) = KindTable::nearest(kubernetes);
    let options = Options {
        verify: false,
        wait: true,
        prune: true,
        review: false,
        nodes_behind: false,
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

/// Reason why the request could not be answered.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The request or the answer is not valid JSON.
    #[error("failed to read the request or to write the response")]
    Order(#[from] serde_json::Error),
    /// The sandbox could not be set up.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Charts and overlays could not be rendered. A retry can succeed.
    #[error("the program that renders charts failed")]
    Engines,
    /// The relay of the program that decrypts files failed.
    #[error("failed to start the program that decrypts files")]
    Relay(#[source] io::Error),
    /// A file could not be decrypted. A retry can succeed. Contains the file and the reason.
    #[error("`sopsProgram` failed: {0}")]
    Decryption(String),
    /// The commit or its files could not be read.
    #[error(transparent)]
    Git(#[from] GitError),
}

/// Reason why an environment was not rendered.
#[derive(Debug, thiserror::Error)]
pub enum BoundedRenderError {
    /// The environment exceeds a limit. A retry gives the same result.
    #[error("rendering and planning exceed the memory or time limit: {0}")]
    Beyond(String),
    /// The render failed for a passing reason. A retry can succeed.
    #[error("failed to run the bounded render: {0}")]
    Passing(String),
}

/// Folder of a repository, and an environment of it.
type Payer = (PathBuf, String);

/// Budget of memory for answers from which retained environments were read. Clones share it.
#[derive(Debug, Clone)]
struct AnswerMemory {
    /// In bytes, for each repository: no repository takes the memory of another.
    limit: u64,
    /// Charged bytes per environment.
    used: Arc<Mutex<BTreeMap<Payer, u64>>>,
}

/// Memory charged for one answer, released on drop.
#[derive(Debug)]
pub struct Charge {
    payer: Payer,
    bytes: u64,
    used: Arc<Mutex<BTreeMap<Payer, u64>>>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = used.get_mut(&self.payer) {
            *bytes = bytes.saturating_sub(self.bytes);
            if *bytes == 0 {
                used.remove(&self.payer);
            }
        }
    }
}

/// Output of the child process, not validated yet.
pub struct Answer {
    bytes: Vec<u8>,
    payer: Payer,
    memory: AnswerMemory,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never print the bytes: they contain Secrets.
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

impl Answer {
    /// Validates the answer against an environment of the same commit. Returns the files that the
    /// environment depends on, and the rendered releases in the order of the environment.
    pub fn read(
        &self,
        environment: &ResolvedEnvironment,
    ) -> Result<(Record, Vec<Rendered>), AnswerError> {
        let (kinds, _) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
        answer::read(&self.bytes, environment, &kinds)
    }

    /// Charges the answer to the memory budget before it is parsed. Returns `None` if retained
    /// answers of other environments of the repository use up the budget. Those of the same
    /// environment do not count: the answer replaces them, at the latest when its releases
    /// are deployed.
    pub fn charge(&self) -> Option<Charge> {
        let AnswerMemory { limit, used } = &self.memory;
        let bytes = self.bytes.len() as u64;
        let mut charged = used.lock().unwrap_or_else(PoisonError::into_inner);
        let (folder, environment) = &self.payer;
        let others: u64 = charged
            .iter()
            .filter(|((other, name), _)| other == folder && name != environment)
            .map(|(_, bytes)| bytes)
            .sum();
        if others.saturating_add(bytes) > *limit {
            return None;
        }
        *charged.entry(self.payer.clone()).or_default() += bytes;
        drop(charged);
        Some(Charge {
            payer: self.payer.clone(),
            bytes,
            used: Arc::clone(used),
        })
    }
}

/// Permit to render and read an environment, released on drop.
#[derive(Debug)]
pub struct RenderPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

/// Semaphore of concurrent renders. Clones share it.
#[derive(Debug, Clone)]
pub struct RenderSlots {
    /// Path of the pleach binary.
    program: PathBuf,
    permits: Arc<Semaphore>,
    memory: AnswerMemory,
}

impl RenderSlots {
    /// Renders with the pleach binary at `program`. Retained answers get the memory limit of one
    /// process, in equal parts for each of the repositories.
    pub fn by(program: PathBuf, repositories: usize) -> Self {
        let repositories = (repositories as u64).max(1);
        Self::within(program, bounds::memory_of_one() / repositories)
    }

    /// Like [`Self::by`], with a limit in bytes for retained answers of each repository.
    pub fn within(program: PathBuf, limit: u64) -> Self {
        Self {
            program,
            permits: Arc::new(Semaphore::new(PERMITS)),
            memory: AnswerMemory {
                limit,
                used: Arc::default(),
            },
        }
    }

    /// Waits for a permit.
    pub async fn permit(&self) -> RenderPermit {
        RenderPermit {
            // The semaphore is never closed.
            _permit: Arc::clone(&self.permits).acquire_owned().await.ok(),
        }
    }

    /// Renders an environment. The caller holds a [`RenderPermit`]. If this future is
    /// dropped, the child process is killed.
    pub async fn render(&self, at: &EnvironmentAt) -> Result<Answer, BoundedRenderError> {
        let payer = (at.place.folder().to_owned(), at.name.clone());
        let passing = |why: &dyn Display| BoundedRenderError::Passing(why.to_string());
        let order = serde_json::to_vec(at).map_err(|error| passing(&error))?;
        let mut command = Command::new(&self.program);
        command.args(["worker", "render"]).env_clear();
        // The process starts a relay before it reads the request.
        command.args(at.keys.sops.is_some().then_some("--sops"));
        command.envs(EngineSearch::of_process().variable());
        // A longer answer would exceed the budget even without any retained answer.
        let longest = LONGEST_ANSWER.min(self.memory.limit);
        match worker::run(&mut command, &order, (TIME, longest)).await {
            Ok(ended) if ended.out.is_none() => {
                let most = longest >> 20;
                let why = format!("the rendered objects exceed {most} MiB");
                Err(BoundedRenderError::Beyond(why))
            }
            Ok(ended) if ended.status.success() => Ok(Answer {
                bytes: ended.out.unwrap_or_default(),
                payer,
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

    use pleach_model::tree::MemoryTree;

    use super::*;
    use crate::load::read_each;

    /// Builds an environment with one release per bundle: its name and a file of manifests.
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

    /// Renders with a shell script in place of pleach.
    async fn tried(script: &str) -> Result<Answer, BoundedRenderError> {
        let (_folder, program) = pleach_testkit::program::script(script).unwrap();
        let place = json!({"folder": "/srv/fleet", "prefix": ""});
        let place = serde_json::from_value(place).unwrap();
        let slots = RenderSlots::within(program, LONGEST_ANSWER);
        let at = EnvironmentAt {
            place,
            commit: "c0ffee".to_owned(),
            name: "web".to_owned(),
            keys: KeySources::default(),
        };
        slots.render(&at).await
    }

    #[rstest]
    #[case::it_can(
        r#"test "$*" = "worker render" && grep -q '"commit":"c0ffee","name":"web"'"#,
        ""
    )]
    #[case::ended(
        "echo out of memory >&2; kill -ABRT $$",
        "rendering and planning exceed the memory or time limit: (signal: 6 (SIGABRT)): out of memory"
    )]
    #[case::killed_by_others(
        "kill -KILL $$",
        "failed to run the bounded render: (signal: 9 (SIGKILL))"
    )]
    #[case::is_no_larger_where_there_are_more_processors(
        "test \"$RAYON_NUM_THREADS\" = 2 || exit 7",
        ""
    )]
    #[case::prints_without_end(
        "while :; do printf '%01000000d' 0; done",
        "rendering and planning exceed the memory or time limit: the rendered objects exceed 128 MiB"
    )]
    #[case::broken(
        "echo no commit >&2; exit 1",
        "failed to run the bounded render: (exit status: 1): no commit"
    )]
    #[tokio::test]
    async fn a_crash_of_the_child_is_an_error_of_the_environment(
        #[case] script: &str,
        #[case] expected: &str,
    ) {
        let error = tried(script).await.err();
        let words = error.map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(words, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_beyond_the_time_limit_is_stopped() {
        // The paused clock jumps ahead as soon as the runtime is idle.
        let error = tried("exec /bin/sleep 600").await.unwrap_err();
        // A time-out can come from busy processors, so it is a passing failure.
        assert!(matches!(error, BoundedRenderError::Passing(_)), "{error}");
    }
}
