//! kubectl with the shared control plane's program.

use std::{
    path::Path,
    process::{Command, Output},
};

use crate::shared;

/// Makes a command of kubectl as the kubeconfig's user.
pub(crate) fn command(kubeconfig: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(shared().kubectl());
    // Its cache is by address; the next control plane may have the same.
    let cache = shared().dir().join("kubectl");
    command.arg("--cache-dir").arg(cache);
    command.arg("--kubeconfig").arg(kubeconfig).args(args);
    command
}

/// Runs kubectl as the kubeconfig's user.
pub(crate) fn run(kubeconfig: &Path, args: &[&str]) -> Output {
    command(kubeconfig, args).output().unwrap()
}

/// Runs kubectl as administrator, past all proxies, and returns what it printed.
#[track_caller]
pub(crate) fn admin(args: &[&str]) -> String {
    let output = run(shared().kubeconfig(), args);
    assert!(output.status.success(), "kubectl {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
