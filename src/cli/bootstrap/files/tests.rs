use pleach_model::tree::MemoryTree;
use pleach_reconciler::config::{self, Branches};

use super::*;
use crate::cli::bootstrap::bundle::EMBEDDED;

const ID: &str = "6f0c2d5e-4a51-4c1c-9d3b-1f0a1c5f7b11";
const URL: &str = "https://git.example.org:8443/team/Fleet.git";
const IMAGE: &str = "registry.example.org/pleach@sha256:0000000000000000000000000000000000000000000000000000000000000000";

fn facts() -> ClusterFacts {
    ClusterFacts {
        id: ID.to_owned(),
        ports: BTreeSet::from([6443, 16_443]),
    }
}

fn wish<'a>(cluster: &'a ClusterFacts, allowed: Allowed<'a>) -> Wish<'a> {
    Wish {
        url: URL,
        port: 8443,
        branch: "main",
        namespace: NAME,
        image: IMAGE,
        access: Access::Token,
        has_ca: false,
        allowed,
        cluster,
    }
}

/// Returns the files of a repository after the changes.
fn after(tree: &MemoryTree, changes: &Changes) -> MemoryTree {
    let before = [
        "pleach.yaml",
        ENVIRONMENT,
        EMBEDDED.declaration.0,
        EMBEDDED.macros.0,
    ];
    let mut files: std::collections::BTreeMap<String, Bytes> = before
        .into_iter()
        .chain(EMBEDDED.files.iter().map(|(path, _)| *path))
        .filter_map(|path| Some((path.to_owned(), tree.read(path).ok()?)))
        .collect();
    for (path, content) in &changes.files {
        files.insert(path.clone(), content.clone().unwrap());
    }
    MemoryTree::new(files)
}

fn text(changes: &Changes, path: &str) -> String {
    let content = changes.files[path].as_ref().unwrap();
    String::from_utf8(content.to_vec()).unwrap()
}

/// Reads the configuration of the controller in an environment file.
fn configuration(environment: &str) -> config::Controller {
    let nodes = yaml::parse_nodes(ENVIRONMENT, environment).unwrap();
    let controller = nodes[0].get("releases").unwrap().items()[0].get("values");
    let controller = controller.unwrap().get("controller").unwrap().to_value();
    let text = format!(
        "apiVersion: pleach.dev/v1alpha1\nkind: Controller\n{}",
        yaml::emit(&controller)
    );
    config::read("controller.yaml", text.into_bytes()).unwrap()
}

#[test]
fn an_empty_repository_gets_everything_once() {
    let namespaces = ["team-*".to_owned(), "shop".to_owned()];
    let cluster = facts();
    let wish = wish(&cluster, Allowed::Namespaces(&namespaces));
    let empty = MemoryTree::new([("README.md", "fleet")]);
    let first = changes(&empty, &EMBEDDED, &wish).unwrap();
    assert_eq!(first.files.len(), EMBEDDED.files.len() + 4);
    assert!(first.findings.is_empty());
    assert!(text(&first, "pleach.yaml").contains("\nid: fleet "));
    let environment = text(&first, ENVIRONMENT);
    assert!(
        environment.contains("egressPorts: [53, 443, 6443, 8443, 16443]"),
        "{environment}"
    );
    let repository = &configuration(&environment).repositories[0];
    assert_eq!(repository.url, URL);
    let [own, others] = repository.environments.as_slice() else {
        panic!("{environment}");
    };
    assert_eq!(own.cluster_id, ID);
    assert!(own.allow.is_none());
    let one = Branches::One {
        environment: NAME.to_owned(),
        branch: "main".to_owned(),
    };
    assert_eq!(own.branches, one);
    assert_eq!(others.branches, Branches::pattern("env/*").unwrap());
    assert!(others.allow.is_some());

    // A second run finds nothing to do.
    let there = after(&empty, &first);
    let second = changes(&there, &EMBEDDED, &wish).unwrap();
    assert!(second.files.is_empty(), "{:?}", second.files.keys());
    assert!(second.findings.is_empty(), "{:?}", second.findings);
}

#[test]
fn the_result_renders() {
    let cluster = facts();
    for (access, has_ca) in [(Access::Token, true), (Access::Ssh, false)] {
        let wish = Wish {
            access,
            has_ca,
            ..wish(&cluster, Allowed::All)
        };
        let empty = MemoryTree::new(Vec::<(String, Bytes)>::new());
        let tree = after(&empty, &changes(&empty, &EMBEDDED, &wish).unwrap());
        let loaded =
            pleach_engine::load::read_all(&tree, pleach_git::Revision::None, NAME).unwrap();
        assert!(loaded.is_sound(), "{:?}", loaded.findings);
        let manifests = &loaded.rendered[0].1.manifests;
        let deployment = manifests.iter().find(|one| one.id().kind == "Deployment");
        let pod = deployment.unwrap().value()["spec"]["template"]["spec"].clone();
        assert_eq!(pod["containers"][0]["image"], IMAGE);
        let certificates = &pod["containers"][0]["env"][0]["value"];
        let expected = if has_ca {
            json!("/etc/pleach/secrets/git/ca.crt")
        } else {
            Value::Null
        };
        assert_eq!(*certificates, expected);
    }
}

#[test]
fn a_newer_program_adds_its_version_and_keeps_the_rest() {
    let cluster = facts();
    let wish = wish(&cluster, Allowed::All);
    let empty = MemoryTree::new(Vec::<(String, Bytes)>::new());
    let first = after(&empty, &changes(&empty, &EMBEDDED, &wish).unwrap());
    // The user edited the file.
    let edited = String::from_utf8(first.read(ENVIRONMENT).unwrap().to_vec()).unwrap();
    let edited = edited.replace(
        "    namespace: pleach\n",
        "    namespace: pleach   # ours\n",
    );
    let mut files = Changes::default();
    files
        .files
        .insert(ENVIRONMENT.to_owned(), Some(edited.into()));
    let first = after(&first, &files);
    let newer = Bundle {
        version: "v9.9.9",
        declaration: (EMBEDDED.declaration.0, "kind: Bundle\n"),
        macros: EMBEDDED.macros,
        files: &[("manifests/pleach/v9.9.9/loop.yaml", "kind: ConfigMap\n")],
    };
    let image = IMAGE.replace('0', "1");
    let upgrade = Wish {
        image: &image,
        ..wish
    };
    let second = changes(&first, &newer, &upgrade).unwrap();
    let paths: Vec<&String> = second.files.keys().collect();
    assert_eq!(
        paths,
        [
            ENVIRONMENT,
            EMBEDDED.declaration.0,
            "manifests/pleach/v9.9.9/loop.yaml"
        ]
    );
    let environment = text(&second, ENVIRONMENT);
    assert!(environment.contains("version: v9.9.9\n"), "{environment}");
    assert!(environment.contains(&image), "{environment}");
    assert!(
        environment.contains("namespace: pleach   # ours\n"),
        "{environment}"
    );
    // The older program refuses to go back.
    let mut files = second.files;
    files.retain(|path, _| path == ENVIRONMENT);
    let newest = after(
        &first,
        &Changes {
            files,
            ..Changes::default()
        },
    );
    let errors = changes(&newest, &EMBEDDED, &upgrade).unwrap_err();
    assert!(
        errors[0].to_string().contains("v9.9.9 is newer than"),
        "{errors:?}"
    );
}

#[test]
fn another_installation_is_refused() {
    let cluster = facts();
    let wish = wish(&cluster, Allowed::All);
    let empty = MemoryTree::new(Vec::<(String, Bytes)>::new());
    let there = after(&empty, &changes(&empty, &EMBEDDED, &wish).unwrap());
    let other = ClusterFacts {
        id: "other".to_owned(),
        ports: BTreeSet::new(),
    };
    for (what, wish, expected) in [
        (
            "cluster",
            Wish {
                cluster: &other,
                ..wish.clone()
            },
            "it is about cluster",
        ),
        (
            "url",
            Wish {
                url: "https://x.example.org/y",
                ..wish.clone()
            },
            "does not follow https://x",
        ),
        (
            "branch",
            Wish {
                branch: "trunk",
                ..wish.clone()
            },
            "does not follow branch trunk",
        ),
        (
            "namespace",
            Wish {
                namespace: "loops",
                ..wish.clone()
            },
            "installs in namespace pleach",
        ),
        (
            "certificates",
            Wish {
                has_ca: !wish.has_ca,
                ..wish.clone()
            },
            "--ca-file",
        ),
    ] {
        let errors = changes(&there, &EMBEDDED, &wish).unwrap_err();
        assert_eq!(errors.len(), 1, "{what}: {errors:?}");
        let text = errors[0].to_string();
        assert!(
            text.contains(expected) && text.contains(ENVIRONMENT),
            "{what}: {text}"
        );
    }
    // Another `allow` is left to the user.
    let namespaces = ["team-a".to_owned()];
    let narrower = Wish {
        allowed: Allowed::Namespaces(&namespaces),
        ..wish
    };
    let same = changes(&there, &EMBEDDED, &narrower).unwrap();
    assert!(same.files.is_empty());
    assert!(
        same.findings[0].to_string().contains("`allow` is all"),
        "{:?}",
        same.findings
    );
    // A file about something else is not touched.
    let foreign = MemoryTree::new([(ENVIRONMENT, "kind: Environment\nreleases: []\n")]);
    let errors = changes(&foreign, &EMBEDDED, &narrower).unwrap_err();
    assert!(
        errors[0].to_string().contains("no release pleach"),
        "{errors:?}"
    );
}

#[test]
fn ids_come_from_urls() {
    for (url, id) in [
        ("https://git.example.org/fleet.git", "fleet"),
        ("git@git.example.org:My_Fleet.git/", "my-fleet"),
        ("ssh://git@git.example.org/~ann/-.git", "pleach"),
    ] {
        assert_eq!(repository_id(url), id, "{url}");
    }
}
