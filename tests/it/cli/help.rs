use insta::assert_snapshot;
use rstest::rstest;

use super::Folder;

#[rstest]
#[case("pleach", &[])]
#[case("init", &["init"])]
#[case("render", &["render"])]
#[case("lint", &["lint"])]
#[case("diff", &["diff"])]
#[case("plan", &["plan"])]
#[case("apply", &["apply"])]
#[case("preview", &["preview"])]
#[case("status", &["status"])]
#[case("history", &["history"])]
#[case("doctor", &["doctor"])]
#[case("suspend", &["suspend"])]
#[case("resume", &["resume"])]
#[case("sync", &["sync"])]
#[case("uninstall", &["uninstall"])]
#[case("recover", &["recover"])]
#[case("run", &["run"])]
#[case("rollback", &["rollback"])]
#[case("promote", &["promote"])]
#[case("completion", &["completion"])]
#[case("version", &["version"])]
fn help_of(#[case] name: &str, #[case] command: &[&str]) {
    let folder = Folder::new();
    let run = folder.run(&[command, &["--help"]].concat());
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert_snapshot!(format!("help_{name}"), run.stdout);
    // What is built later is not promised.
    assert!(!run.stdout.contains("rehearse"));
}

#[test]
fn without_a_command_help_goes_to_stderr() {
    let run = Folder::new().run(&[]);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    assert!(run.stderr.contains("Usage: pleach"), "{}", run.stderr);
}
