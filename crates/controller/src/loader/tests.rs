use std::path::{Path, PathBuf};
use std::process::Command;

use pleach_reconciler::config::EnvironmentKey;
use pleach_render::answer::write;
use serde_json::json;

use super::*;
use crate::crash::Crashes;
use pleach_engine::decryption::KeySources;
use pleach_engine::load::render_all;
use pleach_testkit::program::script;

const HEADER: &str = "apiVersion: pleach.dev/v1alpha1\nkind";

/// Creates a repository with environment `dev` of one object, and its commit.
fn repository() -> (tempfile::TempDir, EnvironmentAt) {
    let folder = tempfile::tempdir().unwrap();
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(folder.path()).args(args);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    git(&["init", "--quiet"]);
    let environment = "releases:\n- {name: web, bundle: web, namespace: web}";
    let object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {k: first}\n";
    for (path, text) in [
        ("pleach.yaml", format!("{HEADER}: Repository\nid: fleet\n")),
        (
            "environments/dev.yaml",
            format!("{HEADER}: Environment\n{environment}\n"),
        ),
        ("manifests/web/bundle.yaml", format!("{HEADER}: Bundle\n")),
        ("manifests/web/web.yaml.j2", object.to_owned()),
    ] {
        let files =
            pleach_files::Files::from([(path.to_owned(), pleach_files::FileContent::new(text))]);
        pleach_files::add_files(folder.path(), &files).unwrap();
    }
    git(&["add", "."]);
    let person = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"];
    let commit = ["-c", "commit.gpgsign=false", "commit", "--quiet", "-m", "x"];
    git(&[&person[..], &commit].concat());
    let place = json!({"folder": folder.path().join(".git"), "prefix": ""});
    let at = EnvironmentAt {
        place: serde_json::from_value(place).unwrap(),
        commit: git(&["rev-parse", "HEAD"]),
        name: "dev".to_owned(),
        keys: KeySources::default(),
    };
    (folder, at)
}

/// Returns the answer of an honest process.
fn answer(at: &EnvironmentAt) -> String {
    let tree = at.place.tree(&at.commit).unwrap();
    let recording = RecordingTree::new(&tree);
    let environment = resolve(&recording, &at.name).unwrap();
    let rendered = render_all(&recording, &environment);
    let mut answer = String::new();
    let mut print = |lines: &str| {
        answer.push_str(lines);
        answer.push('\n');
    };
    write(recording.record(), &rendered, &mut print).unwrap();
    answer
}

/// Creates the attempt of the environment in a folder.
fn attempt(folder: &Path) -> Attempt {
    let key = EnvironmentKey {
        environment: "dev".to_owned(),
        cluster: None,
    };
    Attempt::of(&Crashes::of(folder.to_owned()), "fleet", &key)
}

/// Loads the environment with this answer of the process. Also returns the number of renders.
async fn read(at: &EnvironmentAt, answer: &str, known: Option<Inputs>) -> (LoadResult, usize) {
    let (folder, program) = script("echo >> $0.log; cat $0.answer").unwrap();
    let beside = |name: &str| -> PathBuf { folder.path().join(name) };
    let content = pleach_files::FileContent::new(answer.to_owned());
    pleach_files::write_new(&beside("program.answer"), &content).unwrap();
    let loader = Loader {
        slots: RenderSlots::by(program, 1),
        stop: CancellationToken::new(),
    };
    let read = loader
        .load(at.clone(), known, &attempt(folder.path()))
        .await;
    let count = |path: &Path| pleach_files::read(path).map_or(0, |log| log.len());
    (read, count(&beside("program.log")))
}

#[tokio::test]
async fn a_commit_is_rendered_once_and_by_the_bounded_process() {
    let (_folder, at) = repository();
    let honest = answer(&at);
    // Only the answer contains "second".
    let other = honest.replace("first", "second");
    let (read_once, renderings) = read(&at, &other, None).await;
    assert_eq!(renderings, 1);
    let LoadResult::Loaded(inputs, Ok(loaded)) = read_once else {
        panic!("{read_once:?}");
    };
    let [(_, rendered)] = loaded.rendered.as_slice() else {
        panic!("{:?}", loaded.names());
    };
    assert_eq!(
        rendered.manifests[0].value()["data"],
        json!({"k": "second"})
    );
    // The files that the process read count as inputs.
    let tree = at.place.tree(&at.commit).unwrap();
    assert!(inputs.are_those_of(&tree));
    let template = "manifests/web/web.yaml.j2";
    assert!(honest.contains(template) && format!("{inputs:?}").contains(template));
    let (again, renderings) = read(&at, &other, Some(inputs)).await;
    assert!(matches!(again, LoadResult::Unchanged), "{again:?}");
    assert_eq!(renderings, 0);
}

#[tokio::test]
async fn an_invalid_render_answer_stalls_the_environment() {
    let (_folder, at) = repository();
    let honest = answer(&at);
    let foreign = honest.replace("part-of\":\"", "part-of\":\"x");
    for (answer, expected) in [
        ("", "the answer is incomplete"),
        (foreign.as_str(), "does not have the label of its release"),
    ] {
        let (read, _) = read(&at, answer, None).await;
        let LoadResult::Exceeded(stall) = read else {
            panic!("{read:?}");
        };
        assert_eq!(stall.reason, "Internal");
        assert!(stall.message.contains(expected), "{}", stall.message);
    }
}

#[tokio::test]
async fn an_environment_is_stalled_until_memory_is_free() {
    let (_folder, at) = repository();
    let honest = answer(&at);
    let (folder, program) = script("cat $0.answer").unwrap();
    let content = pleach_files::FileContent::new(honest.clone());
    pleach_files::write_new(&folder.path().join("program.answer"), &content).unwrap();
    // The limit fits one answer but not two.
    let limit = honest.len() as u64 * 3 / 2;
    let loader = Loader {
        slots: RenderSlots::within(program, limit),
        stop: CancellationToken::new(),
    };
    let attempt = attempt(folder.path());
    let load = async || loader.load(at.clone(), None, &attempt).await;
    let other = EnvironmentAt {
        name: "other".to_owned(),
        ..at.clone()
    };
    let render = loader.slots.render(&other);
    let other = render.await.unwrap().charge().unwrap();
    let loaded = |read: LoadResult| {
        let LoadResult::Loaded(_, Ok(loaded)) = read else {
            panic!("{read:?}");
        };
        loaded
    };
    let stalled = load().await;
    let LoadResult::Failed(stall) = stalled else {
        panic!("{stalled:?}");
    };
    assert_eq!(stall.reason, "MemoryExhausted");
    drop(other);
    let first = loaded(load().await);
    // The next commit of the same environment replaces the first.
    let next = loaded(load().await);
    drop(first);
    // A waiting release retains a part of the environment, which others count.
    let part = next.alone("web");
    drop(next);
    let other = EnvironmentAt {
        name: "other".to_owned(),
        ..at.clone()
    };
    let render = loader.slots.render(&other);
    let answer = render.await.unwrap();
    assert!(answer.charge().is_none());
    drop(part);
    assert!(answer.charge().is_some());
}
