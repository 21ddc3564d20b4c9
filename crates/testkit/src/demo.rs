//! Demo: the project's own example on a throwaway control plane. It installs a product, then
//! upgrades it to a version in another namespace, and proves that nothing of the old version
//! remains.
//!
//! Runs the real `pleach` as a child process, in a copy of the repository. [`Platform`] is another
//! demo: an upgrade of charts and nodes.

mod platform;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use crate::throwaway::{Binaries, ControlPlane, Network, Options};
use anyhow::{Context as _, bail, ensure};
use tokio::process::Command;

pub use platform::Platform;

use crate::kubectl::Kubectl;
use crate::proof::{self, Move};
use crate::world::{Product, World};

/// Parts of the repository that form the example.
const EXAMPLE: [&str; 4] = ["pleach.yaml", "environments", "templates", "manifests"];
const ENVIRONMENT: &str = "environments/demo.yaml";
const OLD: &str = "v0.11.0";
const NEW: &str = "v0.12.0";
/// Time-out of each command.
const DEADLINE: Duration = Duration::from_mins(10);

/// Inputs of the demo.
#[derive(Debug, Clone)]
pub struct Demo {
    /// Folder with the example: the project's own repository.
    pub repository: PathBuf,
    /// Path of `pleach`.
    pub pleach: PathBuf,
    /// Locations of the control plane's programs.
    pub binaries: Binaries,
}

impl Demo {
    /// Runs the demo and returns whether all checks passed. pleach prints to the standard streams.
    pub async fn run(&self, out: &mut dyn Write) -> anyhow::Result<bool> {
        ensure!(
            self.pleach.is_file(),
            "{} does not exist; `make demo` builds it",
            self.pleach.display()
        );
        let folder = tempfile::tempdir()?;
        let repository = folder.path().join("example");
        heading(out, "A repository with the example of this project")?;
        copy_example(&self.repository, &repository)?;
        let git = Git {
            folder: &repository,
        };
        git.run(out, &["init", "--quiet", "--initial-branch=main"])
            .await?;
        git.commit(out, "Install KubeVirt v0.11.0 and web v1.0.0")
            .await?;

        heading(out, "A throw-away control plane, with pods that answer")?;
        let control_plane = ControlPlane::start(Options {
            binaries: self.binaries.clone(),
            controllers: true,
            scheduler: true,
            nodes: 2,
            network: Network::Namespace,
        })
        .await?;
        let product = Product::kubevirt();
        let mut world = World::start(control_plane.kubeconfig(), product.clone()).await?;
        let kubectl = Kubectl::new(control_plane.kubectl(), control_plane.kubeconfig());
        proof::finished(&kubectl)?;
        let before = proof::contents(&kubectl, "kube-system")?;
        let cluster = proof::cluster_id(&kubectl)?;
        writeln!(out, "API server at {}", control_plane.server_url())?;
        let pleach = Pleach {
            program: &self.pleach,
            repository: &repository,
            kubeconfig: control_plane.kubeconfig(),
        };

        heading(
            out,
            &format!("Install: KubeVirt {OLD} lives in kube-system"),
        )?;
        pleach
            .run(out, &["apply", "demo", "--yes", "--cluster-id", &cluster])
            .await?;
        world.start_user().await?;
        world.more_writes(20, DEADLINE).await?;
        writeln!(
            out,
            "\nA user writes virtual machines all the time from now on."
        )?;

        heading(out, &format!("Upgrade: the pin moves to {NEW}, in git"))?;
        move_pin(&repository)?;
        git.run(out, &["diff", "--unified=0"]).await?;
        git.commit(out, "Upgrade KubeVirt to v0.12.0").await?;
        pleach.run(out, &["diff", "demo"]).await?;
        pleach.run(out, &["plan", "demo"]).await?;
        // Show the cluster even if the upgrade fails.
        let upgraded = pleach.run(out, &["apply", "demo", "--yes"]).await;

        heading(out, "What the cluster looks like now")?;
        world.more_writes(40, DEADLINE).await?;
        let mut checks = Checks { out, passed: true };
        checks.add(
            "the upgrade ended well",
            upgraded.map(|()| "exit code 0".to_owned()),
        )?;
        let moved = Move {
            kubectl: &kubectl,
            kubeconfig: control_plane.kubeconfig(),
            product: &product,
            before: &before,
            from: "kube-system",
            to: "kubevirt",
        };
        for (what, result) in moved.checks().await {
            checks.add(what, result)?;
        }
        let passed = checks.passed;

        heading(out, "Pods that crashed on the way")?;
        let crashes = world.crashes();
        for crash in &crashes {
            writeln!(out, "{}/{}: {}", crash.namespace, crash.pod, crash.reason)?;
        }
        if crashes.is_empty() {
            writeln!(out, "none")?;
        }

        heading(out, "What the user saw during the upgrade")?;
        writeln!(out, "{}", world.stop().await?)?;
        Ok(passed)
    }
}

/// Prints the results of checks.
struct Checks<'a> {
    out: &'a mut dyn Write,
    passed: bool,
}

impl Checks<'_> {
    fn add(&mut self, what: &str, result: anyhow::Result<String>) -> io::Result<()> {
        match result {
            Ok(detail) => writeln!(self.out, "✓ {what} ({detail})"),
            Err(error) => {
                self.passed = false;
                writeln!(self.out, "✗ {what}: {error:#}")
            }
        }
    }
}

fn heading(out: &mut dyn Write, text: &str) -> io::Result<()> {
    writeln!(out, "\n== {text}\n")
}

/// `pleach` as a user runs it.
struct Pleach<'a> {
    program: &'a Path,
    repository: &'a Path,
    kubeconfig: &'a Path,
}

impl Pleach<'_> {
    async fn run(&self, out: &mut dyn Write, args: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(self.program);
        command
            .args(args)
            .current_dir(self.repository)
            .env("KUBECONFIG", self.kubeconfig);
        shown(out, "pleach", args, command).await
    }
}

/// git without user settings.
struct Git<'a> {
    folder: &'a Path,
}

impl Git<'_> {
    async fn run(&self, out: &mut dyn Write, args: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new("git");
        command
            .args(args)
            .current_dir(self.folder)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_PAGER", "cat");
        for role in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{role}_NAME"), "Demo")
                .env(format!("GIT_{role}_EMAIL"), "demo@example.org");
        }
        shown(out, "git", args, command).await
    }

    async fn commit(&self, out: &mut dyn Write, message: &str) -> anyhow::Result<()> {
        self.run(out, &["add", "--all"]).await?;
        self.run(out, &["commit", "--quiet", "--message", message])
            .await
    }
}

/// Prints a command and runs it with the demo's standard streams.
async fn shown(
    out: &mut dyn Write,
    name: &str,
    args: &[&str],
    mut command: Command,
) -> anyhow::Result<()> {
    let line: Vec<String> = args
        .iter()
        .map(|arg| {
            if arg.contains(' ') {
                format!("'{arg}'")
            } else {
                (*arg).to_owned()
            }
        })
        .collect();
    let line = format!("{name} {}", line.join(" "));
    writeln!(out, "$ {line}")?;
    out.flush()?;
    let mut child = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("failed to start {name}"))?;
    let ended: Result<io::Result<ExitStatus>, _> =
        tokio::time::timeout(DEADLINE, child.wait()).await;
    match ended {
        Ok(status) => {
            let status = status?;
            ensure!(status.success(), "`{line}` failed: {status}");
            Ok(())
        }
        Err(_) => bail!("`{line}` takes longer than {} s", DEADLINE.as_secs()),
    }
}

/// Copies only the example.
#[expect(
    clippy::disallowed_methods,
    reason = "the errors here name their paths themselves"
)]
pub fn copy_example(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut open: Vec<PathBuf> = EXAMPLE.iter().map(PathBuf::from).collect();
    while let Some(path) = open.pop() {
        let source = from.join(&path);
        let target = to.join(&path);
        if source.is_dir() {
            std::fs::create_dir_all(&target)?;
            for entry in std::fs::read_dir(&source)? {
                open.push(path.join(entry?.file_name()));
            }
        } else {
            if let Some(parent) = target.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::copy(&source, &target)
                .with_context(|| format!("failed to copy {}", source.display()))?;
        }
    }
    Ok(())
}

/// Changes the version of the product in the environment.
#[expect(
    clippy::disallowed_methods,
    reason = "the errors here name their paths themselves"
)]
fn move_pin(repository: &Path) -> anyhow::Result<()> {
    let file = repository.join(ENVIRONMENT);
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("failed to read {}", file.display()))?;
    let pin = format!("version: {OLD}");
    ensure!(
        text.matches(&pin).count() == 1,
        "{ENVIRONMENT} does not contain `{pin}` once"
    );
    std::fs::write(&file, text.replace(&pin, &format!("version: {NEW}")))
        .with_context(|| format!("failed to write {}", file.display()))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests read what was written")]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_copied_and_its_pin_moves() {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = tempfile::tempdir().unwrap();
        copy_example(&project, folder.path()).unwrap();
        move_pin(folder.path()).unwrap();
        let read = |root: &Path| std::fs::read_to_string(root.join(ENVIRONMENT)).unwrap();
        let (old, new) = (read(&project), read(folder.path()));
        assert_eq!(old.replace("version: v0.11.0", "version: v0.12.0"), new);
        assert_ne!(old, new);
        assert!(
            folder
                .path()
                .join("manifests/web/v1.1.0/version.yaml")
                .is_file()
        );
        assert!(!folder.path().join("Cargo.toml").exists());
        let again = move_pin(folder.path()).unwrap_err();
        assert_eq!(
            again.to_string(),
            "environments/demo.yaml does not contain `version: v0.11.0` once"
        );
    }
}
