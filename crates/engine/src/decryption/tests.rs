use std::fs;

use super::*;

/// Runs a shell script in place of sops.
fn tried(script: &str, time: Duration) -> Reply {
    let (_folder, path) = pleach_testkit::program::script(script).unwrap();
    let variables = [("PATH", "/usr/bin:/bin"), ("REGION", "north")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let program = SopsProgram {
        path,
        variables: variables.into(),
    };
    execute(&program, b"password: ENC[planted]\n", time)
}

#[test]
fn the_program_gets_the_file_and_declared_variables_only() {
    let script = r#"
        test "$*" = "decrypt --input-type yaml --output-type yaml /dev/stdin" || exit 2
        test "$REGION" = north && test -z "$CARGO_MANIFEST_DIR$HOME" || exit 3
        test "$PWD" = / || exit 4
        grep -q planted /dev/stdin && echo 'password: decrypted'"#;
    let expected = Reply::Answer(b"password: decrypted\n".to_vec());
    assert_eq!(tried(script, TIME), expected);
}

#[test]
fn a_failure_is_described_without_the_output_of_the_program() {
    let failed = |words: &str| Reply::Failure(words.to_owned());
    let refused = |words: &str| Reply::Refusal(words.to_owned());
    let say = "echo planted-value; echo planted-value >&2;";
    for (script, expected) in [
        ("exit 1", failed("exit status: 1")),
        (
            "exit 128",
            failed("no key service decrypted the data key (exit status: 128)"),
        ),
        (
            "exit 51",
            refused("it was edited without sops, or a value was moved (exit status: 51)"),
        ),
        ("kill -SEGV $$", failed("signal: 11 (SIGSEGV)")),
        (
            "while :; do printf '%01000000d' 0; done",
            refused("its output is longer than 16 MiB"),
        ),
    ] {
        assert_eq!(
            tried(&format!("{say} {script}"), TIME),
            expected,
            "{script}"
        );
    }
    let missing = SopsProgram {
        path: "/nowhere/sops".into(),
        variables: BTreeMap::new(),
    };
    let expected = "failed to start /nowhere/sops: No such file or directory (os error 2)";
    assert_eq!(execute(&missing, b"", TIME), failed(expected));
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the script writes the file, and the kernel the state"
)]
fn a_program_beyond_its_time_is_killed_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let child = folder.path().join("child");
    let start = format!("sleep 600 & echo $! > {}; wait", child.display());
    // The child holds the pipes, so that only its end closes them.
    for script in [
        start.clone(),
        format!("exec 1>&-; {start}"),
        format!("exec >/dev/null 2>&1; {start}"),
    ] {
        // On a busy machine, the shell can need longer for its start.
        let started = [300, 3_000, 30_000].into_iter().find_map(|time| {
            let time = Duration::from_millis(time);
            let expected = Reply::Failure(format!("it took longer than {time:?}"));
            assert_eq!(tried(&script, time), expected, "{script}");
            fs::read_to_string(&child).ok()
        });
        let process = started.expect("the script starts a child");
        fs::remove_file(&child).unwrap();
        let is_running = || {
            let state = fs::read_to_string(format!("/proc/{}/stat", process.trim()));
            state.is_ok_and(|state| !state.contains(") Z "))
        };
        // The signal is delivered, but the process may need a moment to end.
        let deadline = std::time::Instant::now() + TIME;
        while is_running() {
            assert!(std::time::Instant::now() < deadline, "{script}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn answers_are_retained_and_a_program_that_fails_is_not_started_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let starts = folder.path().join("starts");
    let script = format!(
        "echo >> {}; case $(/bin/cat) in good*) echo plain;; *) exit 1;; esac",
        starts.display()
    );
    let (_folder, path) = pleach_testkit::program::script(&script).unwrap();
    let program = SopsProgram {
        path,
        variables: BTreeMap::new(),
    };
    let keys = FileKeys::new(AgeKeys::default(), Some(program));
    let good = |number: u8| {
        let answer = keys
            .decrypt("good.yaml", &format!("good {number}"))
            .unwrap();
        answer.map(|text| text.to_string())
    };
    for _ in 0..3 {
        assert_eq!(good(1), Ok("plain\n".to_owned()));
    }
    assert_eq!(keys.failure(), None);
    for number in 1..=3 {
        let failure = keys.decrypt(&format!("{number}.yaml"), &format!("bad {number}"));
        let expected = DecryptionError::Failed("exit status: 1".to_owned());
        assert_eq!(failure.unwrap().unwrap_err(), expected);
    }
    let expected = "not started, because it failed 3 times".to_owned();
    assert_eq!(good(2), Err(DecryptionError::Failed(expected)));
    assert_eq!(keys.failure().as_deref(), Some("1.yaml: exit status: 1"));
    #[expect(clippy::disallowed_methods, reason = "the script wrote it")]
    let starts = fs::read_to_string(starts).unwrap();
    assert_eq!(starts.lines().count(), 4);
}

#[test]
fn values_of_variables_are_not_shown() {
    let program = SopsProgram {
        path: "/usr/bin/sops".into(),
        variables: BTreeMap::from([("AWS_SECRET_ACCESS_KEY".to_owned(), "planted".to_owned())]),
    };
    let sources = KeySources {
        age_keys: None,
        sops: Some(program),
    };
    let shown = format!("{sources:?}");
    assert!(shown.contains("AWS_SECRET_ACCESS_KEY"), "{shown}");
    assert!(!shown.contains("planted"), "{shown}");
}
