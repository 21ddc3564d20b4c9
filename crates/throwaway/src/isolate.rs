//! Network namespace for a whole program, with local pod addresses.
//!
//! kwok assigns pod addresses but runs nothing behind them. With local addresses, any server in the
//! network can answer for a pod, so aggregated APIs and admission webhooks work. An unprivileged
//! user can create such a namespace. The whole program must run in it, because its API server is
//! not reachable from outside.

use std::{
    ffi::OsStr,
    io,
    net::{Ipv4Addr, UdpSocket},
    process::{Command, ExitStatus, Stdio},
};

use super::{ThrowawayError, folder::Folder, processes};

/// Address range of pods, from which kwok assigns addresses.
pub const POD_RANGE: &str = "10.250.128.0/20";

/// Address range of Services. It is not routed, because the API server contacts the pods directly.
pub const SERVICE_RANGE: &str = "10.0.0.0/16";

/// Address of every node, in the range of pods.
pub(super) const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 250, 143, 254);

/// Address of the Service `kubernetes`, the first of the range of Services.
const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// Address that the API server advertises, in the range of pods. Pods of real nodes reach servers of
/// the test there.
pub const API_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 250, 143, 253);

/// Script of the first process in the new namespaces. It keeps running beside the program, because
/// process 1 ignores signals without a handler.
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

/// Script of the first process in the namespaces of real nodes.
///
/// containerd, runc, the kubelet and the network plugins write into fixed folders. File systems in
/// memory hide these folders, so that nothing is left on the machine. The kubelet also sets
/// parameters of the whole kernel. Files with its values hide the parameters, so that it has
/// nothing to set.
const NODES_SETUP: &str = r#"
set -e
(
  PATH="$PATH:/usr/sbin:/sbin"
  ip link set lo up
  ip address add "$1/32" dev lo
  ip address add "$2/32" dev lo
  mount -t tmpfs tmpfs /run
  mount -t tmpfs tmpfs /var/log
  layers=$TMPDIR/var-lib
  mkdir "$layers"
  mount -t tmpfs tmpfs "$layers"
  mkdir "$layers/upper" "$layers/work"
  mount -t overlay -o "lowerdir=/var/lib,upperdir=$layers/upper,workdir=$layers/work" overlay /var/lib
  for parameter in kernel/panic=10 kernel/panic_on_oops=1 vm/overcommit_memory=1 vm/panic_on_oom=0 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    name=${parameter%=*}
    mkdir -p "/run/parameters/${name%/*}"
    echo "${parameter#*=}" >"/run/parameters/$name"
    mount --bind "/run/parameters/$name" "/proc/sys/$name"
  done
)
shift 2
set +e
"$@"
exit $?
"#;

/// Returns whether pod addresses are local here.
pub fn pods_can_answer() -> bool {
    UdpSocket::bind((NODE_ADDRESS, 0)).is_ok()
}

/// Returns whether this process runs in the namespaces of [`nodes_command`].
pub fn nodes_can_run() -> bool {
    UdpSocket::bind((API_ADDRESS, 0)).is_ok() && !pods_can_answer()
}

/// Creates a command that runs a program in new user, network, process and mount namespaces with
/// local pod and Service addresses.
///
/// The program retains its arguments, environment, working directory and files. Its user becomes
/// root of the namespaces. All processes inside end with the process of the command.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["-Urnpf", "--kill-child", "--mount-proc", "--"])
        .args(["/bin/sh", "-c", SETUP, "pleach-isolate"])
        .args([POD_RANGE, SERVICE_RANGE])
        .arg(program);
    command
}

/// Creates a command that runs a program in new network, process and mount namespaces for real nodes.
///
/// It needs root, because containers of a user namespace could not run as other users. The address
/// of the Service `kubernetes` is local, so that pods reach the API server without kube-proxy. All
/// processes, networks and mounts end with the process of the command.
pub fn nodes_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["-mnpf", "--kill-child", "--mount-proc", "--"])
        .args(["/bin/sh", "-c", NODES_SETUP, "pleach-isolate"])
        .args([API_SERVICE.to_string(), API_ADDRESS.to_string()])
        .arg(program);
    command
}

/// Runs this program again in its own network and waits until it ends.
///
/// The caller continues if [`pods_can_answer`] returns `true`, and otherwise exits with the
/// returned status. `TMPDIR` inside is a folder that is removed at the end, even after a kill.
pub fn reexec<A: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = A>,
) -> Result<ExitStatus, ThrowawayError> {
    let program =
        std::env::current_exe().map_err(|source| isolate_error("this program", source))?;
    let mut command = command(&program);
    command.args(arguments);
    run(command)
}

/// Runs a command from [`command`] until it ends. It dies with the caller.
///
/// `TMPDIR` inside is a temporary folder, as in [`reexec`]. If the kernel refuses the namespaces,
/// this returns an error instead of an exit status.
pub fn run(command: Command) -> Result<ExitStatus, ThrowawayError> {
    try_out().map_err(|source| isolate_error(command.get_program(), source))?;
    run_nodes(command)
}

/// Runs a command from [`nodes_command`] until it ends. It dies with the caller.
///
/// `TMPDIR` inside is a temporary folder, as in [`reexec`]. Control groups below one with the name
/// of the folder are removed with it.
pub fn run_nodes(mut command: Command) -> Result<ExitStatus, ThrowawayError> {
    let folder = Folder::create("pleach-isolated-")?;
    command.env("TMPDIR", folder.path());
    processes::die_with_parent(&mut command);
    command
        .status()
        .map_err(|source| isolate_error(command.get_program(), source))
}

/// Creates the namespaces once without a program, to get a precise error.
fn try_out() -> io::Result<()> {
    let output = command("true").stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(text.trim().to_owned()))
}

fn isolate_error(program: impl AsRef<OsStr>, source: io::Error) -> ThrowawayError {
    ThrowawayError::Isolate {
        program: program.as_ref().to_string_lossy().into_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(script: &str, expected: i32) {
        let mut command = command("/bin/sh");
        command.args(["-c", script, "sh", "an argument"]);
        command.env("PLEACH_TEST", "a value").stderr(Stdio::null());
        let status = run(command).unwrap();
        assert_eq!(status.code(), Some(expected), "{script}: {status}");
    }

    #[test]
    fn programs_keep_arguments_environment_folder_and_exit_code() {
        let here = std::env::current_dir().unwrap();
        let here = here.display();
        check(
            &format!(
                r#"[ "$1" = "an argument" ] && [ "$PLEACH_TEST" = "a value" ] && [ "$PWD" = "{here}" ] && exit 7"#
            ),
            7,
        );
    }

    #[test]
    fn a_killed_program_has_a_shell_s_exit_code() {
        check("kill -9 $$", 137);
    }

    #[test]
    fn addresses_of_pods_and_services_are_local() {
        for address in ["10.250.128.1", "10.250.143.254", "10.0.0.10"] {
            let script = format!(
                "PATH=$PATH:/usr/sbin:/sbin; ip route get {address} | grep -q '^local {address} '"
            );
            check(&script, 0);
        }
        check("PATH=$PATH:/usr/sbin:/sbin; ! ip route get 192.0.2.1", 0);
    }

    #[test]
    fn temporary_files_are_removed() {
        let outside = tempfile::tempdir().unwrap();
        let note = outside.path().join("note");
        let note = note.display();
        check(
            &format!(r#"touch "$TMPDIR/file" && echo "$TMPDIR" >"{note}""#),
            0,
        );
        let script = format!(r#"[ -s "{note}" ] && ! [ -e "$(cat "{note}")" ]"#);
        let status = Command::new("/bin/sh").args(["-c", &script]).status();
        assert!(status.unwrap().success());
    }
}
