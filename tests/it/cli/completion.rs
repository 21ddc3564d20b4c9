use rstest::rstest;

use super::Folder;

#[rstest]
#[case("bash", "complete -F _pleach")]
#[case("zsh", "#compdef pleach")]
#[case("fish", "complete -c pleach")]
#[case("elvish", "set edit:completion:arg-completer[pleach]")]
#[case("powershell", "Register-ArgumentCompleter")]
fn every_shell_has_a_script(#[case] shell: &str, #[case] expected: &str) {
    let run = Folder::new().run(&["completion", shell]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert!(run.stdout.contains(expected), "{}", run.stdout);
    assert!(run.stdout.contains("render"), "{}", run.stdout);
}

#[test]
fn the_script_for_bash_is_sound() {
    let folder = Folder::new();
    let script = folder.run(&["completion", "bash"]).stdout;
    folder.write("pleach.bash", &script);
    let checked = assert_cmd::Command::new("bash")
        .arg("-n")
        .arg(folder.path().join("pleach.bash"))
        .output()
        .unwrap();
    assert!(checked.status.success(), "{checked:?}");
}
