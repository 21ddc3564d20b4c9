//! Upgrade of charts and nodes with virtual machines, the worked example of
//! docs/guides/change-nodes.md. `make demo-platform` shows the same. It renders charts with the real
//! `pleach-engines`, so `make test-engines` runs it.

mod charts {
    use std::path::{Path, PathBuf};

    use pleach_testkit::control_plane::binaries;
    use pleach_testkit::demo::Platform;

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "make test-engines"]
    #[expect(clippy::disallowed_methods, reason = "make names the program")]
    async fn machines_do_not_notice_the_upgrade_of_their_nodes() {
        let engines = std::env::var("PLEACH_ENGINES");
        let engines = engines.expect("make test-engines sets PLEACH_ENGINES");
        let demo = Platform {
            repository: Path::new(env!("CARGO_MANIFEST_DIR")).to_owned(),
            pleach: PathBuf::from(env!("CARGO_BIN_EXE_pleach")),
            engines: Some(PathBuf::from(engines)),
            binaries: binaries(),
        };
        let mut printed = Vec::new();
        let passed = demo.run(&mut printed).await;
        let printed = String::from_utf8_lossy(&printed);
        assert!(
            passed.as_ref().is_ok_and(|passed| *passed),
            "{passed:?}\n{printed}"
        );
    }
}
