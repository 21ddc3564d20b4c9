//! Sandbox of a process that parses untrusted files. It restricts files, system calls and access to
//! other processes.
//!
//! A vulnerability in a parser could execute arbitrary code. Such code then reaches one folder, but
//! no credentials, no unneeded network and no memory of the controller.
//!
//! Only Linux has the means. On other systems, untrusted work is refused.

use std::path::Path;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod unsupported;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use unsupported as system;

pub use system::{SandboxError, confine, confine_thread, restricts_files};

/// Whether this system can restrict processes. Otherwise untrusted work is refused.
pub const IS_SUPPORTED: bool = cfg!(target_os = "linux");
/// Error message where it cannot.
pub const UNSUPPORTED: &str =
    "untrusted files, such as those of pull requests, are processed on Linux only";

/// Work of a process, which determines its restrictions.
#[derive(Debug, Clone, Copy)]
pub enum Work<'a> {
    /// Reads and renders commits. Writes no files, starts no programs and opens no connections.
    Render {
        /// Bare repository.
        folder: &'a Path,
    },
    /// Unpacks a fetch. Starts no programs and opens no connections.
    Unpack {
        /// Files and folders to read, such as a local repository. They need not exist.
        read: &'a [&'a Path],
        /// Folders to write.
        write: &'a [&'a Path],
    },
    /// Connects to a git server, also with `ssh`.
    Connect {
        /// Files and folders to read, such as certificates. They need not exist.
        read: &'a [&'a Path],
        /// Folders to write.
        write: &'a [&'a Path],
    },
    /// Runs programs that verify a file. They open no connections.
    Verify {
        /// Files and folders to read.
        read: &'a [&'a Path],
        /// Folders to write.
        write: &'a [&'a Path],
    },
    /// Runs one program, which reads no files and opens no connections.
    Engines {
        /// Path of the program, which needs no libraries.
        program: &'a Path,
    },
    /// Connects to clusters. Their credentials can be anywhere, so files are not restricted.
    Cluster,
}
