//! manifests/pleach, which installs pleach: what it renders to.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use pleach_domain::object::yaml;
use pleach_testkit::repository::TestRepo;
use serde_json::Value;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The objects of environment pleach, with other values.
fn rendered(values: &str) -> Vec<Value> {
    let repo = TestRepo::new([] as [(&str, &str); 0]).unwrap();
    let root = root();
    pleach_testkit::demo::copy_example(&root, repo.path()).unwrap();
    let values = format!("    values:\n{values}");
    repo.edit("environments/pleach.yaml", "    values:\n", &values)
        .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
    let output = command
        .env_clear()
        .current_dir(repo.path())
        .args(["render", "pleach"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    parsed(&text)
}

fn parsed(text: &str) -> Vec<Value> {
    let documents = yaml::parse_documents(text).unwrap();
    documents.into_iter().map(|one| one.value).collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|one| one["kind"] == kind).collect()
}

/// Everything that rules allow, one by one: group, resource, name, verb.
fn allowed(role: &Value) -> Vec<[String; 4]> {
    let list = |value: &Value, default: &str| -> Vec<String> {
        let items = value.as_array().into_iter().flatten();
        let items: Vec<String> = items.map(|one| one.as_str().unwrap().to_owned()).collect();
        if items.is_empty() {
            vec![default.to_owned()]
        } else {
            items
        }
    };
    let mut allowed = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in list(&rule["apiGroups"], "") {
            for resource in list(&rule["resources"], "") {
                for name in list(&rule["resourceNames"], "*") {
                    for verb in list(&rule["verbs"], "") {
                        allowed.push([&group, &resource, &name, &verb].map(Clone::clone));
                    }
                }
            }
        }
    }
    allowed
}

/// What a page of docs/permissions grants.
fn documented(page: &str, kind: &str) -> Vec<[String; 4]> {
    let text = fs::read_to_string(root().join("docs/permissions").join(page)).unwrap();
    let text = text.replace("team-a", "shop");
    let objects = parsed(&text);
    allowed(of_kind(&objects, kind)[0])
}

fn missing(wanted: &[[String; 4]], granted: &[[String; 4]]) -> Vec<[String; 4]> {
    let has = |one: &&[String; 4]| !granted.contains(one);
    wanted.iter().filter(has).cloned().collect()
}

#[test]
fn pleach_installs_itself_with_what_its_pages_say_it_needs() {
    let objects = rendered("");
    let role = allowed(of_kind(&objects, "ClusterRole")[0]);
    assert_eq!(
        missing(&documented("cluster.yaml", "ClusterRole"), &role),
        [[""; 4]; 0]
    );
    assert_eq!(
        of_kind(&objects, "Role").len(),
        1,
        "the Leases of the replicas"
    );
    // Nothing that pleach makes by itself, and nothing for everybody.
    for object in &objects {
        let kind = object["kind"].as_str().unwrap();
        assert!(!["CustomResourceDefinition", "Namespace"].contains(&kind));
        assert_ne!(object["metadata"]["namespace"], "pleach-system");
    }
    let wildcards: Vec<_> = role
        .iter()
        .filter(|[group, resource, _, verb]| [group, resource, verb].iter().any(|one| *one == "*"))
        .collect();
    assert!(wildcards.is_empty(), "{wildcards:?}");

    let some = "      rights: namespaced\n      namespaces: [shop]\n      itself: false\n";
    let objects = rendered(some);
    assert_eq!(of_kind(&objects, "ClusterRole").len(), 0);
    let roles = of_kind(&objects, "Role");
    let role = roles
        .iter()
        .find(|role| role["metadata"]["namespace"] == "shop");
    let role = allowed(role.unwrap());
    assert_eq!(
        missing(&documented("namespaced.yaml", "Role"), &role),
        [[""; 4]; 0]
    );
    assert!(
        !role
            .iter()
            .any(|[group, ..]| group == "rbac.authorization.k8s.io")
    );

    // Accounts that it acts as are named one by one.
    let acts = "      impersonates: [{namespace: deployers, names: [a, b]}]\n";
    let objects = rendered(acts);
    let role = |object: &&&Value| object["metadata"]["namespace"] == "deployers";
    let roles = of_kind(&objects, "Role");
    let role = allowed(roles.iter().find(role).unwrap());
    let each = |name: &str| ["", "serviceaccounts", name, "impersonate"].map(str::to_owned);
    assert_eq!(role, [each("a"), each("b")]);

    let looks = "      rights: preview\n      namespaces: [shop]\n      impersonates: [{namespace: shop, names: [a]}]\n";
    let objects = rendered(looks);
    let kinds: Vec<_> = objects
        .iter()
        .map(|one| one["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["ServiceAccount", "Role", "RoleBinding"]);
    let role = allowed(of_kind(&objects, "Role")[0]);
    assert_eq!(
        missing(&documented("preview.yaml", "Role"), &role),
        [[""; 4]; 0]
    );
    assert!(
        !role
            .iter()
            .any(|[.., verb]| ["delete", "watch"].contains(&verb.as_str()))
    );
}

#[test]
fn its_pods_have_no_rights_on_their_node() {
    let objects = rendered("");
    let deployment = of_kind(&objects, "Deployment")[0];
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    // The restricted pod security standard.
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(
        pod["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    let security = &container["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["capabilities"]["drop"][0], "ALL");
    assert_eq!(security["readOnlyRootFilesystem"], true);
    for volume in pod["volumes"].as_array().unwrap() {
        let kinds: Vec<&String> = volume.as_object().unwrap().keys().collect();
        let is_good =
            |kind: &&String| ["name", "configMap", "secret", "emptyDir"].contains(&kind.as_str());
        assert!(kinds.iter().all(is_good), "{kinds:?}");
    }
    // What probes ask is where the configuration puts it.
    let map = of_kind(&objects, "ConfigMap")[0];
    let text = map["data"]["controller.yaml"].as_str().unwrap();
    let said = parsed(text).remove(0);
    let port = |name: &str| {
        let ports = container["ports"].as_array().unwrap();
        ports.iter().find(|port| port["name"] == name).unwrap()["containerPort"].to_string()
    };
    assert_eq!(said["listen"], format!("0.0.0.0:{}", port("hooks")));
    assert_eq!(
        said["metrics"]["listen"],
        format!("0.0.0.0:{}", port("metrics"))
    );
    let read = pleach_domain::repo::controller::read("controller.yaml", text.as_bytes().to_vec());
    assert_eq!(read.unwrap().repositories.len(), 1);
    // The folder of the version is this version.
    let folder = format!("manifests/pleach/v{}", env!("CARGO_PKG_VERSION"));
    assert!(Path::new(&root().join(folder)).is_dir());
}
