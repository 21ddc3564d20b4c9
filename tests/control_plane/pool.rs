//! Simulated nodes for one test: only pods that tolerate the pool run there.

use std::io::Write as _;
use std::process::Stdio;

use crate::kubectl;
use crate::stages::nodes as plane;

/// Runs kubectl as administrator and returns its output.
#[track_caller]
pub(crate) fn admin(args: &[&str]) -> String {
    let output = kubectl::run(plane().kubeconfig(), args);
    assert!(output.status.success(), "kubectl {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Creates a node of a pool; `labels` are further ones.
pub(crate) fn join(pool: &str, number: usize, labels: &str) {
    let node = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: {pool}-{number}, labels: {{pool: {pool}{labels}}}}}\nspec: {{taints: [{{key: pool, value: {pool}, effect: NoSchedule}}]}}\n"
    );
    let mut create = kubectl::command(plane().kubeconfig(), &["create", "-f", "-"]);
    let mut create = create.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = create.stdin.take().unwrap();
    input.write_all(node.as_bytes()).unwrap();
    drop(input);
    assert!(create.wait().unwrap().success());
}

/// Waits until all nodes of a pool are ready.
pub(crate) fn await_ready(pool: &str) {
    let selector = format!("pool={pool}");
    let ready = ["wait", "--for=condition=Ready", "node", "--timeout=30s"];
    admin(&[&ready[..], &["-l", &selector]].concat());
}
