//! What can go wrong while a throw-away control plane is made.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// Errors from starting a throw-away control plane.
#[derive(Debug, thiserror::Error)]
pub enum ThrowawayError {
    /// A program of the control plane is in none of the folders.
    #[error("`{name}` is in none of {}; `make controlplane` builds it", list(.folders))]
    FindBinary {
        /// File that was looked for.
        name: &'static str,
        /// Folders that were looked into, in this order.
        folders: Vec<PathBuf>,
    },
    /// The folder of the control plane could not be made.
    #[error("failed to create a temporary folder")]
    CreateFolder(#[source] io::Error),
    /// A file of the control plane could not be written.
    #[error("failed to write {}", path.display())]
    WriteFile {
        /// File that was to be written.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A certificate could not be made.
    #[error("failed to make the certificate of {subject}")]
    MakeCertificate {
        /// Common name of the certificate.
        subject: String,
        /// What the certificate library said.
        #[source]
        source: rcgen::Error,
    },
    /// A client certificate cannot carry that many groups.
    #[error("a client certificate carries at most two groups, {name} has {count}")]
    TooManyGroups {
        /// User the certificate was for.
        name: String,
        /// Number of groups asked for.
        count: usize,
    },
    /// No free port was found.
    #[error("failed to reserve a port on the loopback interface")]
    ReservePort(#[source] io::Error),
    /// A program could not be started.
    #[error("failed to start {name}")]
    StartProcess {
        /// Name of the program.
        name: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A program ended although the control plane was still wanted.
    #[error("{name} ended with {status}; the end of its log:\n{log}")]
    ProcessEnded {
        /// Name of the program.
        name: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// Last lines of its log.
        log: String,
    },
    /// Something was not ready in time.
    #[error("{what} was not ready after {} s; the end of the API server's log:\n{log}", after.as_secs())]
    NotReady {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
        /// Last lines of the log.
        log: String,
    },
    /// The control plane's own kubeconfig was refused by the client library.
    #[error("failed to read the kubeconfig of the control plane")]
    ReadKubeconfig(#[source] Box<kube::config::KubeconfigError>),
    /// A request to the new control plane failed.
    #[error("failed to {action}")]
    Request {
        /// What the request was for, as an infinitive.
        action: String,
        /// What the client library said.
        #[source]
        source: Box<kube::Error>,
    },
    /// Pods were asked to answer, but their addresses are not local.
    #[error(
        "addresses of pods are not local to this network; run the program through isolate::reexec"
    )]
    NotIsolated,
    /// The program could not be run in a network of its own.
    #[error(
        "failed to run {program} in an own user and network namespace; \
         it needs `unshare` (util-linux), `ip` (iproute2) and a kernel that lets users create namespaces"
    )]
    Isolate {
        /// Program that was to be run.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

fn list(folders: &[PathBuf]) -> String {
    let folders: Vec<_> = folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    folders.join(", ")
}
