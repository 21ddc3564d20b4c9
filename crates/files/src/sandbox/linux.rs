//! Sandbox of Linux: Landlock for files, seccomp for system calls.

use std::panic::resume_unwind;
use std::path::Path;
use std::thread::scope;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, Scope, path_beneath_rules,
};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::Work;

mod calls;

/// Landlock version that is requested. Older kernels enforce fewer restrictions.
const VERSION: ABI = ABI::V6;
/// Folders of programs, libraries and installed CA certificates.
const PROGRAMS: [&str; 7] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
];
/// Files that programs need to find their libraries and their user, and a client to find and verify
/// a server.
const CLIENTS: [&str; 16] = [
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/nsswitch.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/passwd",
    "/etc/group",
    "/etc/ld.so.cache",
    "/dev/urandom",
];
/// System-wide git settings. libgit2 fails if they exist and are not readable.
const GIT: [&str; 1] = ["/etc/gitconfig"];
const NULL: [&str; 1] = ["/dev/null"];

/// Permissions of a kind of work besides files.
#[derive(Debug, Clone, Copy)]
struct Needs {
    /// Sockets.
    connections: bool,
    /// Child processes, and the files of their libraries.
    programs: bool,
}

impl Work<'_> {
    fn needs(self) -> Needs {
        let (connections, programs) = match self {
            Self::Render { .. } | Self::Unpack { .. } => (false, false),
            Self::Verify { .. } | Self::Engines { .. } => (false, true),
            Self::Connect { .. } | Self::Cluster => (true, true),
        };
        Needs {
            connections,
            programs,
        }
    }

    /// Restricts the files of this thread, and of the threads and processes that it starts.
    fn restrict_files(self) -> Result<(), RulesetError> {
        match self {
            Self::Render { folder } => restrict_files(&[folder], &[], self.needs()),
            Self::Unpack { read, write }
            | Self::Connect { read, write }
            | Self::Verify { read, write } => restrict_files(read, write, self.needs()),
            Self::Engines { program } => restrict_to(&[program], &[], &[], &[], self.needs()),
            Self::Cluster => Ok(()),
        }
    }
}

/// Error of the sandbox. The process must not start its work.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Other processes of the user can still read its memory.
    #[error("failed to protect the memory of the process from other processes")]
    Memory(#[source] Errno),
    /// Files could not be restricted.
    #[error("failed to restrict the files of the process")]
    Files(#[from] RulesetError),
    /// System calls could not be restricted.
    #[error("failed to restrict the system calls of the process")]
    Calls(#[from] seccompiler::Error),
}

/// Permanently restricts this process and its children. Must be called before other threads exist.
///
/// A kernel without Landlock does not restrict files; see [`restricts_files`].
pub fn confine(work: Work<'_>) -> Result<(), SandboxError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(SandboxError::Memory)?;
    work.restrict_files()?;
    // This also sets `no_new_privs`, which prevents privilege escalation.
    calls::restrict(work.needs())?;
    Ok(())
}

/// Runs a function in a thread that is restricted, with the programs that it starts. Other threads
/// are not. The function should only run programs, because it shares the memory of the process.
pub fn confine_thread<T: Send>(
    work: Work<'_>,
    run: impl FnOnce() -> T + Send,
) -> Result<T, SandboxError> {
    let confined = || {
        work.restrict_files()?;
        calls::restrict_thread(work.needs())?;
        Ok(run())
    };
    scope(|scope| {
        let thread = scope.spawn(confined);
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Returns whether the kernel can restrict the files of a process.
pub fn restricts_files() -> bool {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1));
    ruleset.and_then(Ruleset::create).is_ok()
}

/// Denies all files except these, signals to outside processes, and TCP unless the work needs it.
fn restrict_files(read: &[&Path], write: &[&Path], needs: Needs) -> Result<(), RulesetError> {
    let (programs, clients): (&[&str], &[&str]) = if needs.programs {
        (&PROGRAMS, &CLIENTS)
    } else {
        (&[], &[])
    };
    let paths = |names: &'static [&str]| names.iter().map(Path::new).collect::<Vec<_>>();
    restrict_to(&paths(programs), &paths(clients), read, write, needs)
}

/// Denies all files except these: programs to execute, and files to read or write.
fn restrict_to(
    programs: &[&Path],
    clients: &[&Path],
    read: &[&Path],
    write: &[&Path],
    needs: Needs,
) -> Result<(), RulesetError> {
    let all = AccessFs::from_all(VERSION);
    let execute = AccessFs::from_read(VERSION);
    let reading = execute & !AccessFs::Execute;
    let writing = all & !AccessFs::Execute;
    let mut tcp = AccessNet::from_all(VERSION);
    if needs.connections {
        tcp.remove(AccessNet::ConnectTcp);
    }
    Ruleset::default()
        .handle_access(all)?
        .handle_access(tcp)?
        .scope(Scope::from_all(VERSION))?
        .create()?
        .add_rules(path_beneath_rules(programs, execute))?
        .add_rules(path_beneath_rules(clients, reading))?
        .add_rules(path_beneath_rules(GIT, reading))?
        .add_rules(path_beneath_rules(
            NULL,
            AccessFs::ReadFile | AccessFs::WriteFile,
        ))?
        .add_rules(path_beneath_rules(read, reading))?
        .add_rules(path_beneath_rules(write, writing))?
        .restrict_self()?;
    Ok(())
}
