//! Control planes start, answer, and leave nothing behind.

use std::process::Command;

use crate::shared;

#[test]
fn kubectl_of_the_same_version_is_answered() {
    let control_plane = shared();
    let output = Command::new(control_plane.kubectl())
        .arg("--kubeconfig")
        .arg(control_plane.kubeconfig())
        .args(["version", "-o", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let versions: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = format!("v{}", pleach::io::throwaway::kubernetes_version());
    for side in ["clientVersion", "serverVersion"] {
        assert_eq!(versions[side]["gitVersion"], expected, "{side}");
    }
}
