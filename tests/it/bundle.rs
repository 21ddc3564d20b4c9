//! Rendered objects of manifests/pleach, which installs pleach.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use pleach_model::object::yaml;
use pleach_testkit::repository::TestRepo;
use serde_json::Value;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Accounts of environment pleach, which tests of single values remove.
const IMPERSONATES: &str = "      impersonates: [{namespace: deployers, names: [fleet]}]\n";

/// Returns the objects of environment pleach with other values.
fn rendered(values: &str) -> Vec<Value> {
    rendered_with(|text| {
        let text = text.replace(IMPERSONATES, "");
        text.replace("    values:\n", &format!("    values:\n{values}"))
    })
}

/// Returns the objects of environment pleach with an edited file.
fn rendered_with(edit: impl FnOnce(&str) -> String) -> Vec<Value> {
    let repo = TestRepo::new([] as [(&str, &str); 0]).unwrap();
    let root = root();
    pleach_testkit::demo::copy_example(&root, repo.path()).unwrap();
    let path = "environments/pleach.yaml";
    let text = fs::read_to_string(repo.path().join(path)).unwrap();
    repo.write(path, edit(&text)).unwrap();
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

/// Permission of an account: namespace (empty for the whole cluster), group, resource, name and
/// verb.
type Grant = [String; 5];

fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items.map(|one| one.as_str().unwrap().to_owned()).collect()
}

/// Returns the permissions of a role's rules.
fn allowed(role: &Value, place: &str) -> BTreeSet<Grant> {
    assert!(role.get("aggregationRule").is_none(), "{role}");
    let mut allowed = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        assert!(rule.get("nonResourceURLs").is_none(), "{rule}");
        let names = match texts(&rule["resourceNames"]) {
            none if none.is_empty() => vec!["any".to_owned()],
            names => names,
        };
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for name in &names {
                    for verb in texts(&rule["verbs"]) {
                        let [place, name] = [place, name].map(str::to_owned);
                        allowed.insert([place, group.clone(), resource.clone(), name, verb]);
                    }
                }
            }
        }
    }
    allowed
}

/// Returns the namespace of an object. Empty for cluster-scoped objects.
fn place(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str();
    namespace.unwrap_or_default().to_owned()
}

/// Returns the permissions that the bindings grant to their single account. Fails if a role has no
/// binding.
fn granted(objects: &[Value]) -> BTreeSet<Grant> {
    let is_binding = |one: &&Value| one["kind"].as_str().unwrap().ends_with("RoleBinding");
    let is_role = |one: &&Value| ["Role", "ClusterRole"].contains(&one["kind"].as_str().unwrap());
    let mut bound = 0;
    let mut subjects = BTreeSet::new();
    let mut granted = BTreeSet::new();
    for binding in objects.iter().filter(is_binding) {
        let of = binding["subjects"].as_array().unwrap();
        assert_eq!(of.len(), 1, "{binding}");
        subjects.insert(of[0].to_string());
        let place = place(binding);
        let is_of = |one: &&Value| {
            one["kind"] == binding["roleRef"]["kind"]
                && one["metadata"]["name"] == binding["roleRef"]["name"]
                && self::place(one) == place
        };
        let role = objects.iter().filter(is_role).find(is_of);
        assert!(role.is_some(), "{binding}");
        granted.extend(allowed(role.unwrap(), &place));
        bound += 1;
    }
    assert!(subjects.len() <= 1, "{subjects:?}");
    assert_eq!(objects.iter().filter(is_role).count(), bound);
    granted
}

/// Returns the permissions that a page of docs/permissions grants in a namespace.
fn documented(page: &str) -> BTreeSet<Grant> {
    let text = fs::read_to_string(root().join("docs/permissions").join(page)).unwrap();
    granted(&parsed(&text.replace("team-a", "shop")))
}

/// Removes the permissions for replica Leases and the state key, which are not in any page. They
/// are limited to the controller's namespace.
fn beside_replicas(grants: BTreeSet<Grant>) -> BTreeSet<Grant> {
    let own = |grant: &Grant| grant[0] == "pleach" && ["leases", "secrets"].contains(&&*grant[2]);
    let (own, others): (BTreeSet<Grant>, BTreeSet<Grant>) = grants.into_iter().partition(own);
    let secrets = own.iter().filter(|grant| grant[2] == "secrets").cloned();
    assert_eq!(
        lines(&secrets.collect()),
        [
            "pleach  secrets any create",
            "pleach  secrets pleach-state-key get"
        ]
    );
    assert_eq!(own.len(), 8);
    others
}

/// Kinds that the pages deploy.
const DEPLOYS: &str = "      deploys:
        - {apiGroups: [\"\"], resources: [configmaps, secrets, services, serviceaccounts]}
        - {apiGroups: [apps], resources: [deployments, statefulsets, daemonsets]}
        - {apiGroups: [policy], resources: [poddisruptionbudgets]}
        - {apiGroups: [networking.k8s.io], resources: [ingresses, networkpolicies]}
";
/// Permissions as documented, without further ones.
const CLUSTER: &str = "      itself: false\n      gates: true\n      registrations: true\n";
const NAMESPACED: &str =
    "      rights: namespaced\n      namespaces: [shop]\n      itself: false\n";
const PREVIEW: &str = "      rights: preview\n      namespaces: [shop]\n";

/// Exactly the documented permissions.
#[test]
fn what_is_granted_is_what_the_pages_say() {
    let of = |values: &str| granted(&rendered(&format!("{values}{DEPLOYS}")));
    assert_eq!(beside_replicas(of(CLUSTER)), documented("cluster.yaml"));
    // The controller reads no key in a tenant namespace, unlike a user without a key namespace.
    let mut namespaced = documented("namespaced.yaml");
    let key = ["shop", "", "secrets", "pleach-digest-key", "get"].map(str::to_owned);
    assert!(namespaced.remove(&key));
    assert_eq!(beside_replicas(of(NAMESPACED)), namespaced);
    // Tenant state is sealed with a key in the controller's namespace.
    let mut preview = documented("preview.yaml");
    preview.insert(["pleach", "", "secrets", "pleach-state-key", "get"].map(str::to_owned));
    assert_eq!(of(PREVIEW), preview);
}

/// Returns the permissions that a value adds.
fn adds(before: &str, value: &str) -> BTreeSet<Grant> {
    let without = granted(&rendered(before));
    let with = granted(&rendered(&format!("{before}{value}")));
    assert!(without.is_subset(&with), "{value}");
    with.difference(&without).cloned().collect()
}

fn lines(grants: &BTreeSet<Grant>) -> Vec<String> {
    grants.iter().map(|grant| grant.join(" ")).collect()
}

#[test]
fn each_value_grants_what_it_says() {
    let least = "      itself: false\n      deploys: []\n";
    let fixed = granted(&rendered(least));
    for [place, group, resource, name, verb] in &fixed {
        let grant = [place, group, resource, name, verb];
        assert!(!grant.iter().any(|part| *part == "*"), "{grant:?}");
        assert_ne!((resource.as_str(), verb.as_str()), ("namespaces", "delete"));
        assert_ne!(group, "rbac.authorization.k8s.io", "{grant:?}");
        // Secrets, state and Leases are never granted cluster-wide.
        let is_private = ["secrets", "configmaps", "leases"].contains(&resource.as_str());
        assert!(!(place.is_empty() && is_private), "{grant:?}");
    }
    let all = ["create", "delete", "get", "list", "patch", "watch"];
    let some = "      deploys: [{apiGroups: [\"\"], resources: [secrets], namespaces: [app]}]\n";
    let nothing = "      itself: false\n";
    let before = format!("{nothing}      deploys: []\n");
    let found: BTreeSet<Grant> = granted(&rendered(&format!("{nothing}{some}")))
        .difference(&granted(&rendered(&before)))
        .cloned()
        .collect();
    assert_eq!(
        lines(&found),
        all.map(|verb| format!("app  secrets any {verb}"))
    );

    let found = adds(
        least,
        "      rules: [{apiGroups: [\"\"], resources: [pods/log], verbs: [get]}]\n",
    );
    assert_eq!(lines(&found), ["  pods/log any get"]);

    let found = adds(
        least,
        "      impersonates: [{namespace: deployers, names: [a, b]}]\n",
    );
    let acts = |name: &str| format!("deployers  serviceaccounts {name} impersonate");
    assert_eq!(lines(&found), [acts("a"), acts("b")]);

    let found = adds(least, "      states: [team]\n");
    for [place, group, resource, name, verb] in &found {
        assert_eq!(place, "team");
        assert_ne!(resource, "secrets", "{name} {verb}");
        assert!(["", "coordination.k8s.io"].contains(&group.as_str()));
    }
    assert!(lines(&found).contains(&"team  configmaps any watch".to_owned()));

    let page = |auth: &str| format!("      ui: {{listen: '127.0.0.1:8081', auth: {auth}}}\n");
    assert!(adds(least, &page("none")).is_empty());
    let reviews = " authorization.k8s.io subjectaccessreviews any create".to_owned();
    let tokens = " authentication.k8s.io tokenreviews any create".to_owned();
    assert_eq!(
        lines(&adds(least, &page("kubernetes"))),
        [tokens, reviews.clone()]
    );
    assert_eq!(lines(&adds(least, &page("oidc"))), [reviews]);

    assert_eq!(
        lines(&adds(least, "      nodes: true\n")),
        [
            "  nodes any get",
            "  nodes any patch",
            "  pods/eviction any create"
        ]
    );
    for (value, group) in [
        ("      gates: true\n", "admissionregistration.k8s.io"),
        ("      registrations: true\n", "registration.k8s.io"),
    ] {
        let found = adds(least, value);
        assert!(!found.is_empty());
        assert!(
            found
                .iter()
                .all(|[place, of, ..]| place.is_empty() && of.ends_with(group))
        );
    }
}

/// It can only change roles with these names, which are its own.
#[test]
fn it_may_change_its_own_roles_and_no_others() {
    let most = "      ui: {auth: kubernetes}\n      gates: true\n      registrations: true\n      states: [team]\n      impersonates: [{namespace: deployers, names: [a]}]\n      deploys: [{apiGroups: [\"\"], resources: [secrets], namespaces: [app]}]\n";
    for rights in ["", "      rights: namespaced\n      namespaces: [shop]\n"] {
        let values = format!("{rights}{most}");
        let objects = rendered(&values);
        let own: BTreeSet<String> = objects
            .iter()
            .filter(|one| one["apiVersion"] == "rbac.authorization.k8s.io/v1")
            .map(|one| one["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        let grants = granted(&objects);
        let of_roles = |[_, group, ..]: &&Grant| group == "rbac.authorization.k8s.io";
        let mut named = BTreeSet::new();
        for [_, _, resource, name, verb] in grants.iter().filter(of_roles) {
            if name == "any" {
                assert!(
                    ["list", "watch"].contains(&verb.as_str()),
                    "{resource} {verb}"
                );
            } else {
                named.insert(name.clone());
            }
        }
        // The role to read kubeconfigs only exists if one is in a Secret.
        named.remove("pleach-kubeconfigs");
        assert_eq!(named, own, "{rights}");
        let without = granted(&rendered(&format!("      itself: false\n{values}")));
        assert!(!without.iter().any(|grant| of_roles(&grant)));
    }
}

/// Only the Secrets named in the configuration, each by name.
#[test]
fn kubeconfigs_in_secrets_are_read_one_by_one() {
    let repo = |secret: &str| {
        format!(
            "      controller:\n        repositories:\n          - name: fleet\n            url: https://git.example.org/fleet.git\n            environments:\n              - match: env/*\n                cluster: {{{secret}id: 6f0c2d5e-4a51-4c1c-9d3b-1f0a1c5f7b11}}\n                allow: all\n"
        )
    };
    let example = fs::read_to_string(root().join("environments/pleach.yaml")).unwrap();
    let (_, own) = example.split_once("      controller:\n").unwrap();
    let (own, _) = own.split_once("      secrets:").unwrap();
    let of = |secret: &str| {
        let objects =
            rendered_with(|text| text.replace(&format!("      controller:\n{own}"), &repo(secret)));
        granted(&objects)
    };
    let without = of("inCluster: true, ");
    let with = of("kubeconfigSecret: {namespace: clusters, name: target, key: kubeconfig}, ");
    let found: BTreeSet<Grant> = with.difference(&without).cloned().collect();
    assert_eq!(lines(&found), ["clusters  secrets target get"]);
}

/// All environments but that of the controller are limited by `allow` and by the permissions of an
/// account.
#[test]
fn branches_of_the_example_write_what_they_may_as_an_account() {
    let objects = rendered_with(str::to_owned);
    let map = of_kind(&objects, "ConfigMap")[0];
    let text = map["data"]["controller.yaml"].as_str().unwrap();
    let read = pleach_reconciler::config::read("controller.yaml", text.as_bytes().to_vec());
    let read = read.unwrap();
    let grants = &read.repositories[0].environments;
    assert_eq!(grants.len(), 2);
    let [own, others] = [&grants[0], &grants[1]];
    assert!(own.allow.is_none() && own.user.is_none());
    assert!(others.allow.is_some());
    let account = "system:serviceaccount:deployers:fleet";
    assert_eq!(others.user.as_deref(), Some(account));
    let acts = "deployers  serviceaccounts fleet impersonate".to_owned();
    assert!(lines(&granted(&objects)).contains(&acts));
}

#[test]
fn an_environment_says_who_may_reach_the_listeners() {
    for (value, port) in [("hooksFrom", "hooks"), ("metricsFrom", "metrics")] {
        let repo = TestRepo::new([] as [(&str, &str); 0]).unwrap();
        pleach_testkit::demo::copy_example(&root(), repo.path()).unwrap();
        let path = "environments/pleach.yaml";
        let text = fs::read_to_string(repo.path().join(path)).unwrap();
        let is_other = |line: &&str| !line.trim_start().starts_with(value);
        let without: Vec<&str> = text.lines().filter(is_other).collect();
        repo.write(path, without.join("\n")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
        let output = command
            .env_clear()
            .current_dir(repo.path())
            .args(["render", "pleach"])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{value}");
        assert!(
            said.contains(&format!("`{value}`: who may reach")),
            "{said}"
        );

        let objects = rendered("");
        let policy = &of_kind(&objects, "NetworkPolicy")[0]["spec"];
        let rules = policy["ingress"].as_array().unwrap();
        let rule = rules.iter().find(|rule| rule["ports"][0]["port"] == port);
        assert_eq!(
            rule.unwrap()["from"].as_array().unwrap().len(),
            1,
            "{policy}"
        );
    }
}

#[test]
fn the_web_page_is_reachable_as_far_as_it_listens() {
    for (ui, expected) in [
        ("", (false, false, false)),
        (
            "      ui: {listen: '127.0.0.1:8081'}\n",
            (true, false, false),
        ),
        (
            "      ui: {listen: '0.0.0.0:8081', auth: kubernetes, behindProxy: true, cookieKeyFile: secrets/ui/key}\n      uiFrom: [{podSelector: {}}]\n",
            (true, true, true),
        ),
    ] {
        let objects = rendered(ui);
        let names = |list: &Value| {
            let mut items = list.as_array().unwrap().iter();
            items.any(|one| one["name"] == "ui")
        };
        let pod = &of_kind(&objects, "Deployment")[0]["spec"]["template"]["spec"];
        let rules = &of_kind(&objects, "NetworkPolicy")[0]["spec"]["ingress"];
        let mut rules = rules.as_array().unwrap().iter();
        let found = (
            names(&pod["containers"][0]["ports"]),
            names(&of_kind(&objects, "Service")[0]["spec"]["ports"]),
            rules.any(|rule| rule["ports"][0]["port"] == "ui"),
        );
        assert_eq!(found, expected, "{ui}");
        let map = of_kind(&objects, "ConfigMap")[0];
        let text = map["data"]["controller.yaml"].as_str().unwrap();
        let read = pleach_reconciler::config::read("controller.yaml", text.as_bytes().to_vec());
        assert_eq!(read.unwrap().page.is_some(), expected.0, "{ui}");
    }
}

/// Returns the names of metrics in a `PromQL` expression.
fn metrics_in(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("pleach_")).collect()
}

#[test]
fn alerts_and_dashboard_use_only_metrics_that_exist() {
    let has_rules = |objects: &[Value]| {
        let is_rule = objects.iter().any(|one| one["kind"] == "PrometheusRule");
        let maps = of_kind(objects, "ConfigMap");
        let is_dashboard = |one: &&&Value| one["data"].get("pleach.json").is_some();
        (is_rule, maps.iter().any(|one| is_dashboard(&one)))
    };
    assert_eq!(has_rules(&rendered("")), (false, false));
    let values =
        "      alerts: true\n      alertLabels: {release: prometheus}\n      dashboard: true\n";
    let objects = rendered(values);
    assert_eq!(has_rules(&objects), (true, true));

    let rule = of_kind(&objects, "PrometheusRule")[0];
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
    let rules = rule["spec"]["groups"][0]["rules"].as_array().unwrap();
    let mut expressions: Vec<String> = Vec::new();
    let mut names = BTreeSet::new();
    for alert in rules {
        expressions.push(alert["expr"].as_str().unwrap().to_owned());
        assert!(names.insert(alert["alert"].as_str().unwrap()), "{alert}");
        assert!(alert["annotations"]["summary"].is_string(), "{alert}");
    }
    let maps = of_kind(&objects, "ConfigMap");
    let is_dashboard = |one: &&&Value| one["metadata"]["name"] == "pleach-dashboard";
    let map = maps.iter().find(is_dashboard).unwrap();
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    let text = map["data"]["pleach.json"].as_str().unwrap();
    let dashboard: Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    expressions.extend(targets.map(|one| one["expr"].as_str().unwrap().to_owned()));

    let page = fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
    assert!(expressions.len() > 20, "{expressions:#?}");
    for expression in &expressions {
        let metrics = metrics_in(expression);
        assert!(!metrics.is_empty(), "{expression}");
        for metric in metrics {
            // Histograms have series of several names.
            let metric = metric.strip_suffix("_bucket").unwrap_or(metric);
            assert!(page.contains(&format!("| `{metric}` |")), "{metric}");
        }
    }
    // The controller can upgrade both.
    let grants = lines(&granted(&objects));
    for grant in [
        "pleach  configmaps pleach-dashboard patch",
        "pleach monitoring.coreos.com prometheusrules pleach patch",
    ] {
        assert!(grants.contains(&grant.to_owned()), "{grant}");
    }
}

#[test]
fn pleach_installs_nothing_that_it_makes_by_itself() {
    let objects = rendered("");
    for object in &objects {
        let kind = object["kind"].as_str().unwrap();
        assert!(!["CustomResourceDefinition", "Namespace"].contains(&kind));
        let is_of_state = object["metadata"]["namespace"] == "pleach-system";
        assert!(
            !is_of_state || ["Role", "RoleBinding"].contains(&kind),
            "{kind}"
        );
    }
    let kinds = |values: &str| -> Vec<String> {
        let objects = rendered(values);
        let kinds = objects.iter().map(|one| one["kind"].as_str().unwrap());
        kinds.map(str::to_owned).collect()
    };
    let acts = "      impersonates: [{namespace: shop, names: [a]}]\n";
    let found = kinds(&format!("{PREVIEW}{acts}"));
    assert_eq!(
        found,
        [
            "ServiceAccount",
            "Role",
            "Role",
            "RoleBinding",
            "RoleBinding"
        ]
    );
}

#[test]
fn its_pods_have_no_rights_on_their_node() {
    let objects = rendered("");
    let deployment = of_kind(&objects, "Deployment")[0];
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    // Restricted pod security standard.
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
    // The probes match the configured address.
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
    let read = pleach_reconciler::config::read("controller.yaml", text.as_bytes().to_vec());
    assert_eq!(read.unwrap().repositories.len(), 1);
    // The folder has the current version.
    let folder = format!("manifests/pleach/v{}", env!("CARGO_PKG_VERSION"));
    assert!(Path::new(&root().join(folder)).is_dir());
}
