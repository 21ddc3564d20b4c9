//! `pleach sandbox`: a throwaway control plane for experiments.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use pleach_throwaway::{
    Binaries, ControlPlane, Network, Options, ThrowawayError, kubernetes_minor, kubernetes_version,
};

use super::error::{CliError, Kind};
use super::{Context, Exit, Ui};

/// Interval at which the programs are checked.
const CHECK: Duration = Duration::from_secs(1);

/// Run a throwaway control plane for experiments
///
/// Starts etcd and the API server, and where they are installed the controller
/// manager, the scheduler and kwok, which simulates nodes and pods. Prints the
/// path of a kubeconfig, and runs until Ctrl-C, which ends all programs and
/// removes their files. It needs no cluster, no containers and no root.
/// `make controlplane` installs the programs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach sandbox                              two simulated nodes
  pleach sandbox --nodes 0                    objects only: no pod starts
  pleach sandbox --control-plane ~/programs   etcd, kube-apiserver and kubectl of this folder
  pleach apply dev --kubeconfig FILE          in a second terminal, with the path that was printed")]
pub(crate) struct SandboxArgs {
    /// Number of simulated nodes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(..=100))]
    nodes: u16,

    #[command(flatten)]
    programs: ProgramArgs,
}

/// Location of the programs of a control plane.
#[derive(Debug, clap::Args)]
pub(crate) struct ProgramArgs {
    /// Folder with the programs; missing ones are searched in the cache of `make controlplane`
    #[arg(
        long,
        value_name = "DIR",
        env = "KUBEBUILDER_ASSETS",
        hide_env_values = true
    )]
    control_plane: Option<PathBuf>,
}

impl ProgramArgs {
    /// Returns the folders of the programs, in the order of the search.
    pub(crate) fn binaries(&self) -> Binaries {
        #[expect(clippy::disallowed_methods, reason = "settings are read here")]
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        Binaries::new(
            self.control_plane.clone(),
            path("XDG_CACHE_HOME"),
            path("HOME"),
        )
    }
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: SandboxArgs) -> Result<Exit, CliError> {
    let binaries = args.programs.binaries();
    let has = |name| binaries.find(name).is_ok();
    let has_kwok = has("kwok") && has("kwok-stages.yaml");
    let options = Options {
        controllers: has("kube-controller-manager"),
        scheduler: has("kube-scheduler"),
        nodes: if has_kwok { args.nodes.into() } else { 0 },
        network: Network::Host,
        binaries,
    };
    let missing = missing(&options, args.nodes);
    let nodes = options.nodes;
    let started = Instant::now();
    let starting = ControlPlane::start(options);
    let plane = tokio::select! {
        plane = starting => plane?,
        () = ctx.cancel.cancelled() => return Ok(Exit::INTERRUPTED),
    };
    for line in missing {
        ui.notice(line);
    }
    ui.notice(format_args!(
        "Kubernetes {} with {nodes} simulated nodes, ready after {:.1} s",
        kubernetes_version(),
        started.elapsed().as_secs_f64(),
    ));
    ui.print(format_args!(
        "export KUBECONFIG={}",
        plane.kubeconfig().display()
    ));
    ui.print(format_args!("# kubectl:   {}", plane.kubectl().display()));
    ui.print(format_args!("# audit log: {}", plane.audit_log().display()));
    ui.print("# next:      `pleach apply ENV` in another terminal; Ctrl-C here removes all of it");
    ui.flush();
    loop {
        tokio::select! {
            () = ctx.cancel.cancelled() => return Ok(Exit::DONE),
            () = tokio::time::sleep(CHECK) => {}
        }
        if let Some(error) = plane.find_ended() {
            return Err(error.into());
        }
    }
}

/// Returns a line for each missing optional program, with the effect.
fn missing(options: &Options, nodes: u16) -> Vec<&'static str> {
    let effects = [
        (
            options.controllers,
            "kube-controller-manager was not found: no controller acts on objects, and no pod is created",
        ),
        (
            options.scheduler,
            "kube-scheduler was not found: no pod is scheduled",
        ),
        (
            options.nodes >= usize::from(nodes),
            "kwok or kwok-stages.yaml was not found: there are no nodes",
        ),
    ];
    let missing = effects.into_iter().filter(|(is_there, _)| !is_there);
    missing.map(|(_, line)| line).collect()
}

impl From<ThrowawayError> for CliError {
    fn from(error: ThrowawayError) -> Self {
        match error {
            ThrowawayError::FindBinary { name, folders } => {
                let folders: Vec<String> = folders
                    .iter()
                    .map(|folder| folder.display().to_string())
                    .collect();
                let message = format!(
                    "no control plane for Kubernetes {}: {name} was not found in {}",
                    kubernetes_minor(),
                    folders.join(", ")
                );
                Self::new(Kind::Cluster, message).hint(
                    "run `make controlplane` in the sources of pleach, or name a folder with --control-plane",
                )
            }
            error => Self::new(Kind::Failed, error),
        }
    }
}
