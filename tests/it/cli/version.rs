use super::Folder;

#[test]
fn version_is_one_line() {
    let expected = format!("pleach {}\n", env!("CARGO_PKG_VERSION"));
    for arguments in [&["version"][..], &["--version"], &["version", "--quiet"]] {
        let run = Folder::new().run(arguments);
        assert_eq!(
            (run.code, run.stdout, run.stderr),
            (0, expected.clone(), String::new())
        );
    }
}

#[test]
fn version_for_programs() {
    let run = Folder::new().run(&["version", "-o", "json"]);
    let version: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(
        version,
        serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "formats": ["pleach.dev/v1alpha1"],
        })
    );
}
