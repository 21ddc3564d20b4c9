//! A network of its own for a whole program, in which pods have local addresses.
//!
//! kwok gives pods addresses but runs nothing behind them. Where those
//! addresses are local, any server of the same network can answer for any pod,
//! so that aggregated APIs and admission webhooks really work. Such a network
//! is a namespace that an unprivileged user may create; the whole program has
//! to live in it, since nobody outside reaches the API server inside.

use std::{
    ffi::OsStr,
    net::{Ipv4Addr, UdpSocket},
    process::{Command, ExitStatus},
};

use super::{ThrowawayError, folder::Folder, processes};

/// Addresses of pods; kwok hands them out.
pub const POD_RANGE: &str = "10.250.128.0/20";

/// Addresses of Services. Nothing routes them: the API server asks the pods.
pub const SERVICE_RANGE: &str = "10.0.0.0/16";

/// The address of every node, in the range of pods.
pub(super) const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 250, 143, 254);

/// The address that the API server advertises, in the range of pods.
pub(super) const API_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 250, 143, 253);

/// Runs as the first process of the new namespaces. It stays alive beside the
/// program: signals with default actions do not reach a first process.
const SETUP: &str = r#"
set -e
(
  PATH="$PATH:/usr/sbin:/sbin"
  ip link set lo up
  ip route add local "$1" dev lo
  ip route add local "$2" dev lo
)
shift 2
set +e
"$@"
exit $?
"#;

/// Tells whether addresses of pods are local here.
pub fn pods_can_answer() -> bool {
    UdpSocket::bind((NODE_ADDRESS, 0)).is_ok()
}

/// Makes a command that runs a program inside new user, network, process and
/// mount namespaces, where addresses of pods and Services are local.
///
/// The program keeps its arguments, environment, working directory and files;
/// its user becomes root of the namespaces. Everything inside dies with the
/// command's process.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["-Urnpf", "--kill-child", "--mount-proc", "--"])
        .args(["/bin/sh", "-c", SETUP, "pleach-isolate"])
        .args([POD_RANGE, SERVICE_RANGE])
        .arg(program);
    command
}

/// Runs this program again in a network of its own and waits for its end.
///
/// The caller goes on by itself when [`pods_can_answer`] says yes, and exits
/// with the returned status otherwise. `TMPDIR` inside is a folder that is
/// removed at the end, even when everything is killed.
pub fn reexec<A: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = A>,
) -> Result<ExitStatus, ThrowawayError> {
    let program =
        std::env::current_exe().map_err(|source| isolate_error("this program", source))?;
    let mut command = command(&program);
    command.args(arguments);
    run(command)
}

/// Runs a command made by [`command`] to its end; it dies with the caller.
pub fn run(mut command: Command) -> Result<ExitStatus, ThrowawayError> {
    let folder = Folder::create("pleach-isolated-")?;
    command.env("TMPDIR", folder.path());
    processes::die_with_parent(&mut command);
    command
        .status()
        .map_err(|source| isolate_error(command.get_program(), source))
}

fn isolate_error(program: impl AsRef<OsStr>, source: std::io::Error) -> ThrowawayError {
    ThrowawayError::Isolate {
        program: program.as_ref().to_string_lossy().into_owned(),
        source,
    }
}
