use std::fs;

use rstest::rstest;

use super::Folder;

const REPOSITORY: &[(&str, &str)] = &[
    (
        "pleach.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n",
    ),
    (
        "environments/dev.yaml",
        "\
apiVersion: pleach.dev/v1alpha1
kind: Environment
releases:
  - {name: web, bundle: none}
  - {name: worker, bundle: none}
",
    ),
    ("environments/broken.yaml", "releases: ["),
];

#[rstest]
#[case("bash", "-F _clap_complete_pleach pleach")]
#[case("zsh", "#compdef pleach")]
#[case("fish", "complete --keep-order --exclusive --command pleach")]
#[case("elvish", "set edit:completion:arg-completer[pleach]")]
#[case("powershell", "Register-ArgumentCompleter")]
fn every_shell_has_a_script(#[case] shell: &str, #[case] expected: &str) {
    let run = Folder::new().run(&["completion", shell]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert!(run.stdout.contains(expected), "{}", run.stdout);
    assert!(run.stdout.contains("PLEACH_COMPLETE"), "{}", run.stdout);
}

/// Returns what the script of a shell gets for a command line.
fn candidates(folder: &Folder, words: &[&str]) -> Vec<String> {
    let mut command = folder.command(&["--", "pleach"]);
    command.args(words).env("PLEACH_COMPLETE", "fish");
    let run = folder.finish(&mut command);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{words:?}");
    let lines = run.stdout.lines();
    lines
        .map(|line| line.split('\t').next().unwrap().to_owned())
        .filter(|word| !word.starts_with('-'))
        .collect()
}

#[test]
fn environments_releases_and_kinds_are_completed() {
    let folder = Folder::with(REPOSITORY);
    for (words, expected) in [
        (&["app"][..], &["apply"][..]),
        (&["apply", "d"], &["dev"]),
        (&["apply", "--yes", ""], &["broken", "dev"]),
        (&["apply", "dev/"], &["dev/web", "dev/worker"]),
        (&["history", "d"], &["dev/"]),
        (&["history", "dev/wo"], &["dev/worker"]),
        (&["lint", "dev", "b"], &["broken"]),
        (&["add", "blog", "--env", "d"], &["dev"]),
        (&["promote", "dev", "br"], &["broken"]),
        (
            &["plan", "dev", "--explain", "Statef"],
            &["StatefulSet.apps/"],
        ),
        // Files that cannot be read have no candidates.
        (&["apply", "broken/"], &[]),
        (&["--repo", "nowhere", "apply", "d"], &[]),
    ] {
        assert_eq!(candidates(&folder, words), expected, "{words:?}");
    }
    assert_eq!(candidates(&Folder::new(), &["apply", "d"]), [""; 0]);
}

#[test]
fn the_script_for_bash_completes() {
    let folder = Folder::with(REPOSITORY);
    let script = folder.run(&["completion", "bash"]).stdout;
    folder.write("pleach.bash", &script);
    let program = env!("CARGO_BIN_EXE_pleach");
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(program, bin.join("pleach")).unwrap();
    let path = std::env::var("PATH").unwrap();
    let press_tab = "source pleach.bash
COMP_WORDS=(pleach apply dev/wo) COMP_CWORD=2 COMP_TYPE=9
_clap_complete_pleach pleach dev/wo apply
echo \"${COMPREPLY[@]}\"";
    let bash = assert_cmd::Command::new("bash")
        .args(["--norc", "-c", press_tab])
        .env("PATH", format!("{}:{path}", bin.display()))
        .current_dir(folder.path())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&bash.stdout);
    assert_eq!(shown.trim(), "dev/worker", "{bash:?}");
}
