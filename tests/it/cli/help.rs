use std::fs::{File, OpenOptions};
use std::process::{Command, Stdio};

use insta::assert_snapshot;
use rstest::rstest;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::Folder;

#[rstest]
#[case("pleach", &[])]
#[case("init", &["init"])]
#[case("add", &["add"])]
#[case("bootstrap", &["bootstrap"])]
#[case("render", &["render"])]
#[case("lint", &["lint"])]
#[case("vendor", &["vendor"])]
#[case("push", &["push"])]
#[case("diff", &["diff"])]
#[case("plan", &["plan"])]
#[case("apply", &["apply"])]
#[case("preview", &["preview"])]
#[case("status", &["status"])]
#[case("history", &["history"])]
#[case("logs", &["logs"])]
#[case("doctor", &["doctor"])]
#[case("suspend", &["suspend"])]
#[case("resume", &["resume"])]
#[case("sync", &["sync"])]
#[case("uninstall", &["uninstall"])]
#[case("recover", &["recover"])]
#[case("run", &["run"])]
#[case("sandbox", &["sandbox"])]
#[case("dump", &["dump"])]
#[case("rehearse", &["rehearse"])]
#[case("rollback", &["rollback"])]
#[case("promote", &["promote"])]
#[case("completion", &["completion"])]
#[case("version", &["version"])]
fn help_of(#[case] name: &str, #[case] command: &[&str]) {
    let folder = Folder::new();
    let run = folder.run(&[command, &["--help"]].concat());
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert_snapshot!(format!("help_{name}"), run.stdout);
    // Unfinished commands and those of the controller are hidden.
    assert!(!run.stdout.contains("worker"));
}

#[test]
fn the_short_help_lists_the_commands_by_group() {
    let run = Folder::new().run(&["-h"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert_snapshot!("short_help_pleach", run.stdout);
}

#[test]
fn global_options_work_before_and_after_the_command() {
    let folder = Folder::new();
    for arguments in [["--repo", "none", "lint"], ["lint", "--repo", "none"]] {
        let run = folder.run(&arguments);
        assert_eq!(run.code, 3, "{}", run.stderr);
        assert!(run.stderr.contains("none"), "{}", run.stderr);
    }
}

#[rstest]
#[case::render("render")]
#[case::fetch("fetch")]
fn a_worker_refuses_a_terminal(#[case] work: &str) {
    let (_controller, terminal) = terminal();
    let worker = Command::new(env!("CARGO_BIN_EXE_pleach"))
        .args(["worker", work])
        .stdin(Stdio::from(terminal))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&worker.stderr);
    assert_eq!(worker.status.code(), Some(2), "{said}");
    assert!(
        said.contains("standard input, which is a terminal"),
        "{said}"
    );
    assert!(worker.stdout.is_empty());
}

/// Returns a terminal without input: the controlling end and the end for programs.
fn terminal() -> (impl Drop, File) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let path = ptsname(&controller, Vec::new()).unwrap();
    let path = path.into_string().unwrap();
    let terminal = OpenOptions::new().read(true).write(true).open(path);
    (controller, terminal.unwrap())
}

#[test]
fn without_a_command_help_goes_to_stderr() {
    let run = Folder::new().run(&[]);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""));
    assert!(run.stderr.contains("Usage: pleach"), "{}", run.stderr);
}
