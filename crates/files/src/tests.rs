use super::*;

fn files(files: &[(&str, &str)]) -> Files {
    files
        .iter()
        .map(|(path, content)| {
            let content = FileContent::new(content.as_bytes().to_vec());
            ((*path).to_owned(), content)
        })
        .collect()
}

fn mode(path: &Path) -> u32 {
    std::fs::File::open(path)
        .and_then(|file| file.metadata())
        .unwrap()
        .permissions()
        .mode()
        & 0o777
}

#[test]
fn a_file_is_written_in_one_step_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    write_atomic(&path, &FileContent::new("one")).unwrap();
    write_atomic(&path, &FileContent::new("two")).unwrap();
    assert_eq!(read(&path).unwrap(), b"two");
    assert_eq!(names(folder.path()).unwrap(), [PathBuf::from("a.yaml")]);
}

#[test]
fn a_new_file_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    write_new(&path, &FileContent::new("one")).unwrap();
    let error = write_new(&path, &FileContent::new("two")).unwrap_err();
    assert!(matches!(error, FileError::Exists { .. }), "{error}");
    assert_eq!(read(&path).unwrap(), b"one");
}

#[test]
fn secret_files_are_readable_only_by_their_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret.yaml");
    write_atomic(&path, &FileContent::private("x")).unwrap();
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn a_folder_is_created_atomically() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("new/repository");
    write_folder(&target, &files(&[("a.yaml", "a"), ("b/c.yaml", "c")]), &[]).unwrap();
    assert_eq!(files_below(&target).unwrap(), ["a.yaml", "b/c.yaml"]);
    assert_eq!(
        names(&folder.path().join("new")).unwrap(),
        [PathBuf::from("repository")]
    );
}

#[test]
fn a_folder_with_foreign_files_is_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), &files(&[("mine.txt", "x")]), &[]).unwrap();
    let error = write_folder(folder.path(), &files(&[("a.yaml", "a")]), &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} exists already",
            folder.path().join("mine.txt").display()
        )
    );
    assert_eq!(files_below(folder.path()).unwrap(), ["mine.txt"]);
}

#[test]
fn earlier_files_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let before = files(&[("old/deep/a.yaml", "a"), ("keep/b.yaml", "b")]);
    write_folder(folder.path(), &before, &[]).unwrap();
    let ours: Vec<String> = before.keys().cloned().collect();
    write_folder(folder.path(), &files(&[("keep/b.yaml", "new")]), &ours).unwrap();
    assert_eq!(files_below(folder.path()).unwrap(), ["keep/b.yaml"]);
    assert_eq!(read(&folder.path().join("keep/b.yaml")).unwrap(), b"new");
    assert_eq!(names(folder.path()).unwrap(), [PathBuf::from("keep")]);
}

#[test]
fn files_are_added_all_or_none() {
    let folder = tempfile::tempdir().unwrap();
    add_files(folder.path(), &files(&[("mine.txt", "x"), ("file", "x")])).unwrap();
    let error = add_files(folder.path(), &files(&[("a/b", "a"), ("mine.txt", "")]));
    assert!(matches!(error, Err(FileError::Exists { .. })));
    // A folder cannot replace a file; the write detects this.
    let error = add_files(folder.path(), &files(&[("a/b", "a"), ("file/x", "x")]));
    assert!(matches!(error, Err(FileError::Write { .. })), "{error:?}");
    assert_eq!(
        names(folder.path()).unwrap(),
        ["file", "mine.txt"].map(PathBuf::from)
    );
}

#[test]
fn a_folder_is_not_left() {
    let folder = tempfile::tempdir().unwrap();
    for path in ["../a", "/a", "a//b", "a/./b", ""] {
        let error =
            write_folder(&folder.path().join("x"), &files(&[(path, "a")]), &[]).unwrap_err();
        assert!(
            matches!(error, FileError::Outside { .. }),
            "{path}: {error}"
        );
    }
    assert!(names(folder.path()).unwrap().is_empty());
}
