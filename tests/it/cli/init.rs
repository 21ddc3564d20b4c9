use insta::assert_snapshot;
use rstest::rstest;
use serde_json::Value;

use super::Folder;

const APP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: app}
data: {braces: '{{ untouched }}'}
---
apiVersion: v1
kind: Namespace
metadata: {name: other}
";

/// Verifies that the created repository renders without findings.
fn check_sound(folder: &Folder, repository: &str) -> String {
    let run = folder.run(&["render", "dev", "--repo", repository, "--verbose"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{}", run.stdout);
    run.stdout
}

#[test]
fn a_new_repository_renders_without_findings() {
    let folder = Folder::new();
    let run = folder.run(&["init", "My Fleet"]);
    assert_snapshot!(run.shown());
    let rendered = check_sound(&folder, "My Fleet");
    assert_snapshot!("init_rendered", rendered);
    assert!(
        folder
            .read("My Fleet/pleach.yaml")
            .contains("\nid: my-fleet\n")
    );
}

#[test]
fn a_folder_with_other_files_may_become_a_repository() {
    let folder = Folder::with(&[("README.md", "mine")]);
    let run = folder.run(&["init"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(folder.read("README.md"), "mine");
    // From a subfolder, the repository is found without naming it.
    std::fs::create_dir(folder.path().join("docs")).unwrap();
    let mut command = folder.command(&["render", "dev"]);
    let run = folder.finish(command.current_dir(folder.path().join("docs")));
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
}

#[test]
fn nothing_is_overwritten() {
    let folder = Folder::with(&[("fleet/environments/dev.yaml", "mine")]);
    let run = folder.run(&["init", "fleet"]);
    assert_snapshot!(run.shown(), @r"
    exit: 1
    --- stdout
    --- stderr
    error: fleet/environments/dev.yaml exists already
      hint: init overwrites no files; name another folder
    ");
    assert_eq!(folder.files("fleet"), ["environments/dev.yaml"]);
    assert_eq!(folder.read("fleet/environments/dev.yaml"), "mine");
}

#[test]
fn a_file_is_wrapped_as_it_is() {
    let folder = Folder::with(&[("in/My App.yaml", APP)]);
    let run = folder.run(&["init", "fleet", "--from", "in/My App.yaml"]);
    assert_snapshot!(run.shown(), @r"
    exit: 0
    --- stdout
    fleet/environments/dev.yaml
    fleet/manifests/my-app/My App.yaml
    fleet/manifests/my-app/bundle.yaml
    fleet/pleach.yaml
    --- stderr
    next: `pleach --repo fleet render dev` shows the rendered objects, `pleach --repo fleet diff dev` shows what apply would change
    ");
    assert_eq!(folder.read("fleet/manifests/my-app/My App.yaml"), APP);
    let rendered = check_sound(&folder, "fleet");
    assert!(
        rendered.contains("braces: \"{{ untouched }}\""),
        "{rendered}"
    );
    assert!(rendered.contains("namespace: default"), "{rendered}");
}

#[test]
fn a_folder_is_wrapped_with_its_subfolders() {
    let folder = Folder::with(&[
        ("deploy/a.yaml", APP),
        (
            "deploy/sub/b.yml",
            &APP.replace("name: app", "name: b").replace("other", "more"),
        ),
        ("deploy/README.md", "not YAML"),
        ("deploy/.hidden.yaml", "not read"),
    ]);
    let run = folder.run(&["init", "fleet", "--from", "deploy"]);
    assert_snapshot!(run.shown(), @r"
    exit: 0
    --- stdout
    fleet/environments/dev.yaml
    fleet/manifests/deploy/a.yaml
    fleet/manifests/deploy/bundle.yaml
    fleet/manifests/deploy/sub/b.yml
    fleet/pleach.yaml
    --- stderr
    README.md is not copied: it is not YAML
    next: `pleach --repo fleet render dev` shows the rendered objects, `pleach --repo fleet diff dev` shows what apply would change
    ");
    assert_eq!(
        check_sound(&folder, "fleet")
            .matches("kind: ConfigMap")
            .count(),
        2
    );
}

#[rstest]
#[case("on")]
#[case("1")]
#[case("null")]
fn names_that_yaml_reads_as_something_else_are_quoted(#[case] name: &str) {
    let app = format!("{name}.yaml");
    let folder = Folder::with(&[(app.as_str(), APP)]);
    for arguments in [
        &["init", name][..],
        &["init", "wrapped", "--from", app.as_str()],
    ] {
        let run = folder.run(arguments);
        assert_eq!(run.code, 0, "{}", run.shown());
    }
    let id = format!("\nid: \"{name}\"\n");
    assert!(folder.read(&format!("{name}/pleach.yaml")).contains(&id));
    check_sound(&folder, name);
    check_sound(&folder, "wrapped");
}

#[test]
fn what_does_not_render_is_not_written() {
    let folder = Folder::with(&[("app.yaml", "kind: ConfigMap\nmetadata: {name: a\n")]);
    let run = folder.run(&["init", "fleet", "--from", "app.yaml"]);
    assert_eq!((run.code, run.stdout.as_str()), (3, ""), "{}", run.stderr);
    assert!(
        run.stderr.contains("manifests/app/app.yaml:"),
        "{}",
        run.stderr
    );
    assert!(!folder.path().join("fleet").exists());
}

/// Published files contain some objects twice, which kubectl accepts.
#[test]
fn an_object_that_is_there_twice_is_wrapped_and_counts_once() {
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n";
    let folder = Folder::with(&[("app.yaml", &format!("{config}---\n{config}"))]);
    let run = folder.run(&["init", "fleet", "--from", "app.yaml"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let run = folder.run(&["--repo", "fleet", "render", "dev"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(run.stdout.matches("name: a\n").count(), 1, "{}", run.stdout);

    let folder = Folder::with(&[(
        "app.yaml",
        &format!("{config}---\n{}", config.replace("k: v", "k: w")),
    )]);
    let run = folder.run(&["init", "fleet", "--from", "app.yaml"]);
    assert_eq!(run.code, 3, "{}", run.stderr);
    assert!(run.stderr.contains("with other content"), "{}", run.stderr);
    assert!(run.stderr.contains("`patches`"), "{}", run.stderr);
}

#[test]
fn what_other_tools_render_is_refused_with_a_way_out() {
    let folder = Folder::with(&[
        ("chart/Chart.yaml", "name: x"),
        ("chart/templates/a.yaml", APP),
    ]);
    let run = folder.run(&["init", "fleet", "--from", "chart"]);
    assert_snapshot!(run.shown(), @r"
    exit: 3
    --- stdout
    --- stderr
    error: Chart.yaml: Chart.yaml is not supported
      hint: render it first, and wrap the result: helm template NAME DIR > app.yaml
    ");
    assert!(!folder.path().join("fleet").exists());
}

#[test]
fn files_beside_versions_are_refused_with_a_way_out() {
    let folder = Folder::with(&[("deploy/1.0.0/a.yaml", APP), ("deploy/b.yaml", APP)]);
    let run = folder.run(&["init", "fleet", "--from", "deploy"]);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    for words in [
        "error: HERE/deploy has version folders such as 1.0.0, but b.yaml is in none of them\n",
        "hint: move it into a version folder, or wrap only one version: --from HERE/deploy/1.0.0\n",
    ] {
        assert!(run.stderr.contains(words), "{words}: {}", run.shown());
    }
    assert!(!folder.path().join("fleet").exists());
    let run = folder.run(&["init", "fleet", "--from", "deploy/1.0.0"]);
    assert_eq!(run.code, 0, "{}", run.shown());
}

#[test]
fn there_must_be_something_to_wrap() {
    let folder = Folder::with(&[("empty/README.md", "")]);
    for (from, expected) in [
        ("empty", "error: HERE/empty has no YAML files\n"),
        ("nothing", "error: failed to read nothing\n"),
    ] {
        let run = folder.run(&["init", "fleet", "--from", from]);
        assert!(run.code == 2 || run.code == 1, "{}", run.stderr);
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
}

#[test]
fn the_bundle_can_be_named_and_get_a_version() {
    let folder = Folder::with(&[("in.yaml", APP)]);
    let run = folder.run(&[
        "init",
        "fleet",
        "--from",
        "in.yaml",
        "--name",
        "shop",
        "--version",
        "v1.2.0",
    ]);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert_eq!(folder.read("fleet/manifests/shop/v1.2.0/in.yaml"), APP);
    let environment = folder.read("fleet/environments/dev.yaml");
    assert!(
        environment.contains("  - name: shop\n    bundle: shop\n    version: v1.2.0\n"),
        "{environment}"
    );
    check_sound(&folder, "fleet");
    for (option, value, words) in [
        ("--name", "Shop", "Shop is not a valid bundle name"),
        ("--version", "spring", "spring is not a version"),
    ] {
        let run = folder.run(&["init", "other", "--from", "in.yaml", option, value]);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.shown());
        assert!(run.stderr.contains(words), "{words}: {}", run.shown());
    }
}

#[test]
fn version_folders_become_versions() {
    let folder = Folder::with(&[("app/v1.2.0/a.yaml", APP), ("app/v1.10.0/a.yaml", APP)]);
    let run = folder.run(&["init", "one", "--from", "app/v1.2.0"]);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(run.stdout.contains("one/manifests/app/v1.2.0/a.yaml\n"));
    check_sound(&folder, "one");

    let run = folder.run(&["init", "all", "--from", "app"]);
    assert_snapshot!(run.shown(), @r"
    exit: 0
    --- stdout
    all/environments/dev.yaml
    all/manifests/app/bundle.yaml
    all/manifests/app/v1.10.0/a.yaml
    all/manifests/app/v1.2.0/a.yaml
    all/pleach.yaml
    --- stderr
    next: `pleach --repo all render dev` shows the rendered objects, `pleach --repo all diff dev` shows what apply would change
    ");
    assert!(
        folder
            .read("all/environments/dev.yaml")
            .contains("    version: v1.10.0\n")
    );
    check_sound(&folder, "all");
    let run = folder.run(&["init", "more", "--from", "app", "--version", "v2.0.0"]);
    assert_eq!(run.code, 2, "{}", run.shown());
    assert!(
        run.stderr.contains("its own version folders"),
        "{}",
        run.shown()
    );
}

#[test]
fn standard_input_is_wrapped() {
    let folder = Folder::new();
    let init = |arguments: &[&str], input: &'static str| {
        let mut command = folder.command(&[&["init", "--from", "-"], arguments].concat());
        folder.finish(command.write_stdin(input))
    };
    let run = init(&["fleet"], APP);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert_eq!(folder.read("fleet/manifests/app/app.yaml"), APP);
    let run = init(&["other", "--name", "shop"], APP);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert_eq!(folder.read("other/manifests/shop/shop.yaml"), APP);
    let run = init(&["empty"], " \n");
    assert_eq!(run.code, 2, "{}", run.shown());
    assert!(run.stderr.contains("standard input is empty"));
}

#[test]
fn a_workflow_that_reviews_pull_requests_can_be_added() {
    let folder = Folder::new();
    let run = folder.run(&["init", "fleet", "--ci", "github"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(
        run.stdout
            .starts_with("fleet/.github/workflows/pleach.yaml\n"),
        "{}",
        run.stdout
    );
    assert!(
        run.stderr.contains("action.yml of a release"),
        "{}",
        run.stderr
    );
    check_sound(&folder, "fleet");

    // The workflow only uses inputs that the action has.
    let action = yaml(&include_str!("../../../dist/action.yml.in").replace("@VERSION@", "v1.0.0"));
    let workflow = yaml(&folder.read("fleet/.github/workflows/pleach.yaml"));
    let steps = workflow["jobs"]["review"]["steps"].as_array().unwrap();
    let ours: Vec<&Value> = steps
        .iter()
        .filter(|step| step["uses"] == "./.github/actions/pleach")
        .collect();
    let commands: Vec<&Value> = ours.iter().map(|step| &step["with"]["command"]).collect();
    assert_eq!(commands, ["lint", "preview"]);
    for input in ours
        .iter()
        .flat_map(|step| step["with"].as_object().unwrap().keys())
    {
        assert!(action["inputs"].get(input).is_some(), "{input}");
    }
}

fn yaml(text: &str) -> Value {
    let mut documents = pleach_model::object::yaml::parse_documents(text).unwrap();
    documents.remove(0).value
}
