//! Restrictions of a process that parses files of people whom nobody trusts: the files that
//! it reaches, its system calls, and the processes that it can touch.
//!
//! A defect in a parser could run any code. Such code then finds one folder, and neither
//! credentials, nor a network that its work does not need, nor the memory of the controller.

use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

mod calls;

/// The newest version of Landlock whose restrictions are asked for. Older kernels have fewer.
const VERSION: ABI = ABI::V6;
/// Programs with their libraries, and certificates of authorities that are installed there.
const PROGRAMS: [&str; 7] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
];
/// Files by which a client finds and verifies a server, and ssh its user.
const CLIENTS: [&str; 17] = [
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/openssl.cnf",
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
/// Settings of git for the whole machine: libgit2 fails where they exist and cannot be read.
const GIT: [&str; 1] = ["/etc/gitconfig"];
const NULL: [&str; 1] = ["/dev/null"];

/// The work of a process, which says how far it is restricted.
#[derive(Debug, Clone, Copy)]
pub enum Work<'a> {
    /// Reads commits and renders them: no file is written, no program started, no server
    /// asked.
    Render {
        /// The bare repository.
        folder: &'a Path,
    },
    /// Fetches from a server, also by `ssh`.
    Fetch {
        /// Files and folders that it reads, such as keys; they need not exist.
        read: &'a [&'a Path],
        /// Folders that it writes.
        write: &'a [&'a Path],
    },
    /// Asks clusters. Credentials for them lie anywhere, so files are not restricted.
    Cluster,
}

impl Work<'_> {
    /// Whether it needs sockets, and may start programs.
    fn asks_servers(self) -> bool {
        match self {
            Self::Render { .. } => false,
            Self::Fetch { .. } | Self::Cluster => true,
        }
    }
}

/// Why a process is not restricted, which then must not begin its work.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Its memory stays open to other processes of its user.
    #[error("failed to close the memory of the process to other processes")]
    Memory(#[source] Errno),
    /// It reaches all files.
    #[error("failed to restrict the files of the process")]
    Files(#[from] RulesetError),
    /// It may make any system call.
    #[error("failed to restrict the system calls of the process")]
    Calls(#[from] seccompiler::Error),
}

/// Restricts this process and all that it starts, for good. Called before other threads exist.
///
/// A kernel without Landlock leaves files unrestricted: [`restricts_files`] tells.
pub fn confine(work: Work<'_>) -> Result<(), SandboxError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(SandboxError::Memory)?;
    match work {
        Work::Render { folder } => {
            restrict_files(&[folder], &[], false)?;
        }
        Work::Fetch { read, write } => {
            restrict_files(read, write, true)?;
        }
        Work::Cluster => {}
    }
    // This also takes away the way to more privileges (`no_new_privs`).
    calls::restrict(work.asks_servers())?;
    Ok(())
}

/// Whether the kernel restricts the files of a process.
pub fn restricts_files() -> bool {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1));
    ruleset.and_then(Ruleset::create).is_ok()
}

/// Refuses all files but these, signals to processes outside, and TCP as far as the work
/// does not need it.
fn restrict_files(
    read: &[&Path],
    write: &[&Path],
    is_client: bool,
) -> Result<RulesetStatus, RulesetError> {
    let all = AccessFs::from_all(VERSION);
    let execute = AccessFs::from_read(VERSION);
    let reading = execute & !AccessFs::Execute;
    let writing = all & !AccessFs::Execute;
    let (programs, clients): (&[&str], &[&str]) = if is_client {
        (&PROGRAMS, &CLIENTS)
    } else {
        (&[], &[])
    };
    let mut tcp = AccessNet::from_all(VERSION);
    if is_client {
        tcp.remove(AccessNet::ConnectTcp);
    }
    let status = Ruleset::default()
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
    Ok(status.ruleset)
}
