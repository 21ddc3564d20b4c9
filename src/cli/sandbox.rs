//! `pleach sandbox`: a throwaway control plane for experiments.

use std::time::{Duration, Instant};

use pleach_throwaway::{ControlPlane, Network, Options};

use super::error::CliError;
use super::programs::ProgramArgs;
use super::{Context, Exit, Ui};

/// Interval at which the programs are checked.
const CHECK: Duration = Duration::from_secs(1);

/// Run a throwaway control plane for experiments
///
/// Starts etcd and the API server, and where they are installed the controller
/// manager, the scheduler and kwok, which simulates nodes and pods. Prints the
/// path of a kubeconfig, and runs until Ctrl-C, which ends all programs and
/// removes their files. It needs no cluster, no containers and no root.
/// `--fetch` downloads the programs, once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach sandbox --fetch                      two simulated nodes; downloads missing programs
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

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: SandboxArgs) -> Result<Exit, CliError> {
    let binaries = args.programs.binaries(ui, ctx).await?;
    binaries.find("etcd")?;
    let version = binaries.kubernetes().await?;
    let has = |name| binaries.find(name).is_ok();
    let options = Options {
        controllers: has("kube-controller-manager"),
        scheduler: has("kube-scheduler"),
        nodes: if has("kwok") { args.nodes.into() } else { 0 },
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
        "Kubernetes {version} with {nodes} simulated nodes, ready after {:.1} s",
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
            "kwok was not found: there are no nodes",
        ),
    ];
    let missing = effects.into_iter().filter(|(is_there, _)| !is_there);
    missing.map(|(_, line)| line).collect()
}
