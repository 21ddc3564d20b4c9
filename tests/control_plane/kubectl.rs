//! kubectl of the shared control plane.

use std::{
    path::Path,
    process::{Command, Output},
};

use crate::shared;

/// Creates a kubectl command with a kubeconfig.
pub(crate) fn command(kubeconfig: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(shared().kubectl());
    // kubectl caches by address, and the next control plane can have the same address.
    let cache = shared().dir().join("kubectl");
    command.arg("--cache-dir").arg(cache);
    command.arg("--kubeconfig").arg(kubeconfig).args(args);
    command
}

/// Runs kubectl with a kubeconfig.
pub(crate) fn run(kubeconfig: &Path, args: &[&str]) -> Output {
    command(kubeconfig, args).output().unwrap()
}

/// Runs kubectl as administrator without proxies and returns its output.
#[track_caller]
pub(crate) fn admin(args: &[&str]) -> String {
    let output = run(shared().kubeconfig(), args);
    assert!(output.status.success(), "kubectl {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
