//! Rehearsals without the programs of a control plane.

use super::Folder;

#[test]
fn missing_programs_are_named_before_anything_is_read() {
    let folder = Folder::new();
    for command in [&["sandbox"][..], &["rehearse", "production"]] {
        let run = folder.run(&[command, &["--control-plane", "nowhere"]].concat());
        assert_eq!(run.code, 4, "{}", run.stderr);
        let expected = "error: no control plane for Kubernetes 1.36: etcd was not found in nowhere";
        assert!(run.stderr.starts_with(expected), "{}", run.stderr);
        assert!(
            run.stderr.contains("--fetch downloads the programs"),
            "{}",
            run.stderr
        );
    }
}

#[test]
fn a_download_that_fails_says_how_to_continue() {
    let folder = Folder::new();
    // Nothing listens at this port.
    let mirror = "--fetch=http://127.0.0.1:1";
    let command = ["sandbox", "--control-plane", "nowhere", mirror];
    let run = folder.run(&command);
    assert_eq!(run.code, 4, "{}", run.stderr);
    let expected = "error: failed to download http://127.0.0.1:1/v1.36.";
    assert!(run.stderr.contains(expected), "{}", run.stderr);
    assert!(
        run.stderr.contains("run the command again"),
        "{}",
        run.stderr
    );
    assert!(run.stderr.contains("--fetch=MIRROR"), "{}", run.stderr);
}

#[test]
fn a_dump_needs_a_repository_and_a_file() {
    let folder = Folder::new();
    assert_eq!(folder.run(&["dump", "production"]).code, 2);
    assert_eq!(folder.run(&["dump", "production", "--out", "x"]).code, 3);
}
