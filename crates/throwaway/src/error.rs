//! Errors of a throwaway control plane.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// Errors from starting a throwaway control plane.
#[derive(Debug, thiserror::Error)]
pub enum ThrowawayError {
    /// No folder contains a program of the control plane.
    #[error("`{name}` was not found in {}; `make controlplane` builds it", list(.folders))]
    FindBinary {
        /// Requested file.
        name: &'static str,
        /// Searched folders, in order.
        folders: Vec<PathBuf>,
    },
    /// The API server's program printed something else than its version.
    #[error("`kube-apiserver --version` printed no version: {0}")]
    Version(String),
    /// The folder of the control plane could not be made.
    #[error("failed to create a temporary folder")]
    CreateFolder(#[source] io::Error),
    /// A file of the control plane could not be written.
    #[error("failed to write {}", path.display())]
    WriteFile {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// A certificate could not be made.
    #[error("failed to make the certificate of {subject}")]
    MakeCertificate {
        /// Common name of the certificate.
        subject: String,
        /// Cause.
        #[source]
        source: rcgen::Error,
    },
    /// A client certificate cannot contain this many groups.
    #[error("a client certificate carries at most two groups, {name} has {count}")]
    TooManyGroups {
        /// User of the certificate.
        name: String,
        /// Requested number of groups.
        count: usize,
    },
    /// Real nodes need memory and processors of this machine.
    #[error("a control plane can have at most {0} real nodes")]
    TooManyNodes(usize),
    /// The node does not exist, or kwok simulates it.
    #[error("there is no real node {0}")]
    NoNode(u8),
    /// The control groups of a node could not be made.
    #[error("failed to make the control group {}", path.display())]
    MakeControlGroup {
        /// Folder of the group.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// No free port was found.
    #[error("failed to reserve a port on the loopback interface")]
    ReservePort(#[source] io::Error),
    /// A program could not be started.
    #[error("failed to start {name}")]
    StartProcess {
        /// Name of the program.
        name: String,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// A program of the running control plane ended.
    #[error("{name} ended with {status}; the end of its log:\n{log}")]
    ProcessEnded {
        /// Name of the program.
        name: &'static str,
        /// Exit status.
        status: ExitStatus,
        /// Last lines of its log.
        log: String,
    },
    /// A component was not ready in time.
    #[error("{what} was not ready after {} s; the end of the API server's log:\n{log}", after.as_secs())]
    NotReady {
        /// Component.
        what: String,
        /// Time-out.
        after: Duration,
        /// Last lines of the log.
        log: String,
    },
    /// The client library rejected the kubeconfig of the control plane.
    #[error("failed to read the kubeconfig of the control plane")]
    ReadKubeconfig(#[source] Box<kube::config::KubeconfigError>),
    /// A request to the new control plane failed.
    #[error("failed to {action}")]
    Request {
        /// Purpose of the request, as an infinitive.
        action: String,
        /// Cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// A request to etcd failed.
    #[error("failed to write the copy into etcd: {message}")]
    Etcd {
        /// Cause, without values.
        message: String,
    },
    /// The network mode requires other namespaces.
    #[error(
        "this network lacks the addresses of the control plane; run the program through isolate::reexec or isolate::run_nodes"
    )]
    NotIsolated,
    /// The program could not be run in its own network.
    #[error(
        "failed to run {program} in its own user and network namespace; \
         it needs `unshare` (util-linux), `ip` (iproute2) and a kernel that lets users create namespaces"
    )]
    Isolate {
        /// Program to run.
        program: String,
        /// Cause.
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
