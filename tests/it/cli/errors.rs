//! Messages and codes of failures before rendering.

use std::process::{Command, Stdio};

use insta::assert_snapshot;
use rstest::rstest;

use super::Folder;

#[rstest]
#[case::unknown_command(&["rendr"])]
#[case::unknown_option(&["version", "--jsn"])]
#[case::no_environment(&["render"])]
#[case::file_name(&["render", "environments/dev.yaml"])]
#[case::too_many_parts(&["render", "a/b/c"])]
#[case::not_a_name(&["render", "Dev"])]
#[case::no_format(&["render", "dev", "-o", "xml"])]
#[case::quiet_and_verbose(&["version", "-q", "-v"])]
#[case::not_an_object(&["plan", "dev", "--explain", "web"])]
#[case::bad_filter(&["version", "--log", "a=b=c"])]
fn wrong_calls_are_usage_errors(#[case] arguments: &[&str]) {
    let run = Folder::new().run(arguments);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    assert_snapshot!(
        format!("usage_{}", arguments.join("_").replace('/', ".")),
        run.stderr
    );
}

#[test]
fn a_folder_without_a_repository_is_named() {
    let run = Folder::new().run(&["render", "dev"]);
    assert_snapshot!(run.shown(), @r"
    exit: 3
    --- stdout
    --- stderr
    error: no pleach.yaml in HERE or its parent folders
      hint: name the repository with --repo, or create one with `pleach init`
    ");
}

#[test]
fn a_missing_folder_is_named() {
    let run = Folder::new().run(&["render", "dev", "--repo", "nowhere"]);
    assert_snapshot!(run.shown(), @r"
    exit: 3
    --- stdout
    --- stderr
    error: failed to read nowhere
      caused by: No such file or directory (os error 2)
    ");
}

#[test]
fn revisions_need_git() {
    let folder = Folder::with(&[("pleach.yaml", "")]);
    let run = folder.run(&["render", "dev", "--revision", "main"]);
    assert_snapshot!(run.shown(), @r"
    exit: 3
    --- stdout
    --- stderr
    error: HERE is not in a git repository, so it has no revision main
    ");
}

#[test]
fn settings_come_from_the_environment_and_options_win() {
    let folder = Folder::new();
    let mut command = folder.command(&["render", "dev"]);
    let run = folder.finish(command.env("PLEACH_REPO", "from-variable"));
    assert!(
        run.stderr.contains("failed to read from-variable"),
        "{}",
        run.stderr
    );
    let mut command = folder.command(&["render", "dev", "--repo", "from-option"]);
    let run = folder.finish(command.env("PLEACH_REPO", "from-variable"));
    assert!(
        run.stderr.contains("failed to read from-option"),
        "{}",
        run.stderr
    );
}

#[test]
fn colors_are_for_terminals_unless_asked_for() {
    let folder = Folder::new();
    let colored = |arguments: &[&str], no_color: bool| {
        let mut command = folder.command(arguments);
        if !no_color {
            command.env_remove("NO_COLOR");
        }
        folder.finish(&mut command).stderr.contains('\u{1b}')
    };
    assert!(!colored(&["render", "dev"], false));
    assert!(colored(&["render", "dev", "--color", "always"], false));
    assert!(colored(&["render", "dev", "--color", "always"], true));
    assert!(!colored(&["render", "dev", "--color", "never"], false));
    assert!(colored(&["--color=always", "rendr"], false));
    assert!(!colored(&["--color=never", "rendr"], false));
}

#[test]
fn a_reader_that_goes_away_is_success() {
    let folder = Folder::new();
    // `true` closes the pipe without reading. The script is larger than the pipe's buffer.
    let mut reader = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let pipe = reader.stdin.take().unwrap();
    reader.wait().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pleach"))
        .args(["completion", "zsh"])
        .current_dir(folder.path())
        .stdout(pipe)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pleach"))
        .args(["version"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with("error: failed to write the result\n  caused by: "),
        "{stderr}"
    );
}
