use std::os::unix::fs::symlink;

use pleach_model::engines::FORMAT;

use super::*;

#[test]
fn the_program_is_searched_in_the_setting_or_in_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(PROGRAM);
    symlink("/bin/true", &program).unwrap();
    let text = |path: &Path| Some(path.as_os_str().to_owned());
    let missing = folder.path().join("missing");
    for (name, setting, path, expected) in [
        ("setting", text(&program), None, Ok(&program)),
        ("path", None, text(folder.path()), Ok(&program)),
        (
            "wrong setting",
            text(&missing),
            text(folder.path()),
            Err("PLEACH_ENGINES ("),
        ),
        (
            "relative setting",
            Some("pleach-engines".into()),
            None,
            Err("PLEACH_ENGINES (pleach-engines)"),
        ),
        (
            "nothing",
            None,
            text(&missing),
            Err("PATH, and PLEACH_ENGINES is not set"),
        ),
    ] {
        let search = EngineSearch { setting, path };
        match (search.find(), expected) {
            (Ok(found), expected) => assert_eq!(Ok(&found), expected, "{name}"),
            (Err(error), Err(expected)) => {
                assert!(error.to_string().contains(expected), "{name}: {error}");
            }
            (found, _) => panic!("{name}: {found:?}"),
        }
    }
}

#[test]
fn a_missing_program_is_no_passing_failure() {
    let search = EngineSearch {
        setting: Some("/nowhere/pleach-engines".into()),
        path: None,
    };
    let runner = EngineRunner::new(search);
    let request = EngineRequest {
        format: FORMAT,
        charts: Vec::new(),
        kustomizations: Vec::new(),
    };
    let error = runner.run(&request).unwrap_err();
    assert!(matches!(error, EnginesError::Missing(_)), "{error}");
    assert!(!runner.has_failed());
}

#[test]
fn a_program_that_cannot_be_run_is_described() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(PROGRAM);
    let error = try_execute(&program, b"{}").unwrap_err();
    assert!(error.starts_with("failed to start: "), "{error}");
}
