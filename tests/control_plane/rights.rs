//! Minimal permissions: docs/permissions/*.yaml is sufficient, and forbidden requests are not
//! repeated.

use std::path::Path;

use pleach_testkit::audit::Events;

use crate::fleet::{Fleet, Run};

pub(crate) const BUNDLE: (&str, &str) = (
    "manifests/shop/bundle.yaml",
    "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
);

/// Manifests of eight kinds in one namespace.
pub(crate) const APP: &str = "\
apiVersion: v1
kind: ServiceAccount
metadata: {name: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {greeting: hello, color: red}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {session: Xq7hush9vB2}
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {selector: {app: shop}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  replicas: 0
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      serviceAccountName: shop
      containers: [{name: shop, image: shop:1, envFrom: [{configMapRef: {name: settings}}]}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: shop}
spec: {minAvailable: 1, selector: {matchLabels: {app: shop}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: shop}
spec: {podSelector: {matchLabels: {app: shop}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: shop}
spec: {defaultBackend: {service: {name: shop, port: {number: 80}}}}
";

/// Number of kinds of the application.
const KINDS: usize = 8;

/// Returns the second version: one object removed, one changed.
pub(crate) fn second() -> String {
    let (first, last) = APP
        .split_once("---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy")
        .unwrap();
    let (_, last) = last.split_once("---\n").unwrap();
    format!("{first}---\n{last}").replace("hello", "welcome")
}

/// Team with the permissions of a documentation page in a namespace.
pub(crate) struct Team {
    pub(crate) fleet: Fleet,
    user: String,
}

impl Team {
    /// Creates the namespaces, grants the permissions in each, and commits an application with two
    /// versions whose state is in the first namespace.
    pub(crate) fn new(
        environment: &'static str,
        grants: &str,
        account: &str,
        namespaces: &[&str],
    ) -> Self {
        let second = second();
        let fleet = Fleet::new(
            environment,
            "",
            &[
                BUNDLE,
                ("manifests/shop/v1.0.0/app.yaml", APP),
                ("manifests/shop/v1.1.0/app.yaml", &second),
            ],
        );
        let user = format!("system:serviceaccount:{}:{account}", namespaces[0]);
        for namespace in namespaces {
            fleet.create_namespace(namespace);
            fleet.grant(grants, namespace, namespaces[0]);
        }
        fleet.set_environment(&format!(
            "state: {{kind: ConfigMap, namespace: {0}}}\n\
             releases:\n  - {{name: shop, bundle: shop, version: v1.0.0, namespace: {0}}}\n",
            namespaces[0]
        ));
        fleet.commit();
        let mut team = Self { fleet, user };
        team.become_user();
        team
    }

    fn become_user(&mut self) {
        let groups = ["system:serviceaccounts"];
        let file = crate::shared()
            .kubeconfig_for_user(&self.user, &groups)
            .unwrap();
        self.fleet.through(file);
    }

    /// Returns the requests of the team's account during `act`.
    fn asked<T>(&self, act: impl FnOnce(&Fleet) -> T) -> (T, Events) {
        self.fleet.asked_by(&self.user, act)
    }
}

impl Fleet {
    /// Applies a file of docs/permissions for a namespace to an account of another one.
    fn grant(&self, file: &str, namespace: &str, of: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/permissions");
        #[expect(clippy::disallowed_methods, reason = "the documentation is under test")]
        let text = std::fs::read_to_string(path.join(file)).unwrap();
        let subject = |who: &str| format!("    name: pleach{who}\n    namespace: team-a\n");
        let of = |who: &str| subject(who).replace("team-a", of);
        let text = text
            .replace(&subject(""), &of(""))
            .replace(&subject("-preview"), &of("-preview"))
            .replace("team-a", namespace);
        let file = self.file(&format!("{namespace}-{file}"), &text);
        self.kubectl(&["apply", "-f", &file]);
    }
}

/// Returns the forbidden requests.
pub(crate) fn forbidden(events: &Events) -> Vec<String> {
    let refused = events.filter(|event| event.code() == 403);
    let mut lines: Vec<String> = refused.to_string().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Requests of every run that can be forbidden. A user without cluster-scoped objects does not need
/// them.
pub(crate) const CLOSED: [&str; 3] = [
    "list admissionregistration.k8s.io mutatingwebhookconfigurations  403",
    "list admissionregistration.k8s.io validatingwebhookconfigurations  403",
    "list apiregistration.k8s.io apiservices  403",
];

/// Verifies that all writes were allowed and limited to these namespaces.
#[track_caller]
fn stays_in(events: &Events, namespaces: &[&str]) {
    for event in &events.writes().0 {
        let object = event.object_ref.as_ref().unwrap();
        assert_ne!(event.code(), 403, "{event}");
        assert!(namespaces.contains(&object.namespace.as_str()), "{event}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, told in its order")]
fn one_role_is_enough_for_the_whole_life_of_a_release() {
    let team = Team::new("solo", "namespaced.yaml", "pleach", &["solo"]);
    let fleet = &team.fleet;
    let id = fleet.field(&["namespace", "solo"], "{.metadata.uid}");
    let run = |args: &[&str], code: i32| -> (Run, Events) {
        let (run, events) = team.asked(|fleet| fleet.run(args).ended_with(code));
        stays_in(&events, &["solo"]);
        (run, events)
    };

    // Before the first apply.
    let (status, events) = run(&["status", "solo"], 0);
    status.says("git: solo/shop (v1.0.0) is not installed");
    assert_eq!(forbidden(&events), [""; 0]);
    let (_, events) = run(&["plan", "solo"], 0);
    assert_eq!(events.writes().to_string(), "");
    let (diff, _) = run(&["diff", "solo", "--exit-code"], 10);
    diff.says("8 to create");

    // The first apply identifies the cluster by a readable namespace.
    let (refused, events) = run(&["apply", "solo", "--yes"], 2);
    refused.says(&format!("add `--cluster-id {id}`"));
    assert_eq!(events.writes().to_string(), "");
    let wrong = "00000000-0000-0000-0000-000000000000";
    let (refused, events) = run(&["apply", "solo", "--yes", "--cluster-id", wrong], 7);
    refused.says(&format!("but the server is cluster {id}"));
    assert_eq!(events.writes().to_string(), "");
    let (applied, events) = run(&["apply", "solo", "--yes", "--cluster-id", &id], 0);
    applied.says("release solo.shop v1.0.0: deployed");
    // One more than later, for the search of a record elsewhere.
    let mut closed: Vec<&str> = CLOSED.to_vec();
    closed.extend([
        "get pleach.dev releases solo.shop 403",
        "list configmaps  403",
    ]);
    closed.sort_unstable();
    let first: Vec<String> = forbidden(&events)
        .into_iter()
        .filter(|line| !line.starts_with("get pleach.dev"))
        .collect();
    closed.retain(|line| !line.starts_with("get pleach.dev"));
    assert_eq!(first, closed, "{events}");

    // The parent ConfigMap conforms to the ApplySet specification.
    let parent = fleet
        .get(&["-n", "solo", "configmap", "solo.shop"])
        .unwrap();
    let set = pleach_state::inventory::apply_set_id("solo.shop", "solo", "ConfigMap", "");
    assert_eq!(
        parent["metadata"]["labels"]["applyset.kubernetes.io/id"],
        set.as_str()
    );
    let annotations = &parent["metadata"]["annotations"];
    assert_eq!(
        annotations["applyset.kubernetes.io/additional-namespaces"],
        ""
    );
    let kinds = annotations["applyset.kubernetes.io/contains-group-kinds"]
        .as_str()
        .unwrap();
    assert_eq!(kinds.split(',').count(), KINDS, "{kinds}");
    assert_eq!(parent["data"]["ready"], "True");
    assert_eq!(
        fleet.field(
            &["-n", "solo", "service/shop"],
            "{.metadata.labels.applyset\\.kubernetes\\.io/part-of}"
        ),
        set
    );

    // Without changes, the requests are within the budget of kinds times one namespace.
    let (_, events) = run(&["apply", "solo", "--yes"], 0);
    let summary = events.summary();
    assert_eq!((summary.writes, summary.dry_runs), (0, 0), "{events}");
    assert!(
        summary.reads <= KINDS + 13,
        "{} reads:\n{events}",
        summary.reads
    );
    assert_eq!(forbidden(&events), CLOSED, "{events}");

    // Another revision with the same content is one write.
    fleet.write("README.md", "words\n");
    fleet.commit();
    let (_, events) = run(&["apply", "solo", "--yes"], 0);
    assert_eq!(events.dry_runs().to_string(), "");
    assert_eq!(
        events.writes().to_string(),
        "patch configmaps solo/solo.shop 200\n"
    );

    // Drift.
    fleet.kubectl(&["-n", "solo", "scale", "deployment/shop", "--replicas=3"]);
    fleet.kubectl(&[
        "-n",
        "solo",
        "label",
        "service/shop",
        "applyset.kubernetes.io/part-of-",
    ]);
    let (diff, events) = run(&["diff", "solo", "--exit-code"], 10);
    diff.says("-  replicas: 3\n+  replicas: 0")
        .says("update Service/solo/shop  (the cluster drifted")
        .says("2 to update");
    assert_eq!(forbidden(&events), CLOSED, "{events}");
    run(&["apply", "solo", "--yes"], 0);
    assert_eq!(
        fleet.field(&["-n", "solo", "deployment/shop"], "{.spec.replicas}"),
        "0"
    );

    // An upgrade with pruning.
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
    let (applied, events) = run(&["apply", "solo", "--yes"], 0);
    applied
        .says("release solo.shop v1.1.0: deployed")
        .says("1 updated, 1 deleted, 6 unchanged");
    assert_eq!(forbidden(&events), CLOSED, "{events}");
    assert!(!fleet.exists(&["-n", "solo", "networkpolicy/shop"]));

    // The record, with and without the repository.
    let (status, events) = run(&["status", "solo"], 0);
    status.says("v1.1.0");
    assert_eq!(forbidden(&events), [""; 0]);
    let (history, events) = run(&["history", "solo/shop"], 0);
    history.says("v1.1.0").says("v1.0.0");
    assert_eq!(forbidden(&events), [""; 0]);
    let elsewhere = tempfile::tempdir().unwrap();
    let away = |args: &[&str], code: i32| fleet.run_in(elsewhere.path(), args).ended_with(code);
    away(&["status", "--state-namespace", "solo"], 0).says("solo/shop");
    away(&["history", "solo/shop", "--state-namespace", "solo"], 0).says("v1.1.0");
    away(&["status"], 4).says("name the namespace of the state with --state-namespace");

    // The doctor reports what it could not read and the missing permissions.
    let (looked, events) = team.asked(|_| {
        away(&["doctor", "--state-namespace", "solo"], 0)
            .says("the rest of the cluster could not be checked: only the namespaces solo")
    });
    // The role allows reading this one namespace.
    assert!(
        !looked.stdout.contains("not allowed to get namespaces"),
        "{}",
        looked.shown()
    );
    assert_eq!(forbidden(&events), [""; 0], "{events}");
    fleet.kubectl(&[
        "-n",
        "solo",
        "create",
        "configmap",
        "stray",
        "--from-literal=a=b",
    ]);
    fleet.kubectl(&[
        "-n",
        "solo",
        "label",
        "configmap",
        "stray",
        &format!("applyset.kubernetes.io/part-of={set}"),
    ]);
    away(&["doctor", "--state-namespace", "solo"], 1).says("ConfigMap/solo/stray");

    // Recovery and uninstall work with the same permissions.
    fleet.kubectl(&["-n", "solo", "delete", "configmap", "solo.shop"]);
    let (done, _) = run(&["recover", "solo/shop", "--yes", "--cluster-id", &id], 4);
    done.says("found: Deployment.apps/solo/shop")
        .says("not read: ");
    run(&["apply", "solo", "--yes"], 0);
    let (done, events) = run(&["uninstall", "solo/shop", "--yes"], 0);
    done.says("uninstalled");
    stays_in(&events, &["solo"]);
    assert!(!fleet.exists(&["-n", "solo", "deployment/shop"]));
    assert!(fleet.exists(&["-n", "solo", "configmap/stray"]));
}

#[test]
fn a_binding_comes_with_the_role_that_it_is_of() {
    let team = Team::new("binds", "namespaced.yaml", "pleach", &["binds"]);
    let fleet = &team.fleet;
    let roles = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: roles, namespace: binds}\nrules:\n  - {apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: [get, list, watch, create, patch, delete]}\n";
    fleet.kubectl(&["apply", "-f", &fleet.file("roles.yaml", roles)]);
    let account = "--serviceaccount=binds:pleach";
    let bind = ["create", "rolebinding", "roles", "-n", "binds"];
    fleet.kubectl(&[&bind[..], &["--role=roles", account]].concat());
    let id = fleet.field(&["namespace", "binds"], "{.metadata.uid}");
    let apply = ["apply", "binds", "--yes", "--cluster-id", &id];
    fleet.run(&apply).ended_with(0);
    // For a user who cannot grant permissions, the server checks that the role of a new binding
    // exists first.
    let binding = |role: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: reads}}\nroleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {role}}}\nsubjects: [{{kind: ServiceAccount, name: shop, namespace: binds}}]\n"
        )
    };
    let role = "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: reads}\nrules: [{apiGroups: [\"\"], resources: [configmaps], verbs: [get]}]\n";
    let file = "manifests/shop/v1.0.0/access.yaml";
    fleet.write(file, &binding("nobodys"));
    fleet.commit();
    fleet.apply().ended_with(3).says("\"nobodys\" not found");
    fleet.write(file, &format!("{}{role}", binding("reads")));
    fleet.commit();
    fleet.diff().says("role reads does not exist yet");
    fleet.applied();
    assert!(fleet.exists(&["rolebinding", "reads", "-n", "binds"]));
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn several_namespaces_are_listed_one_by_one() {
    let mut team = Team::new("duo", "namespaced.yaml", "pleach", &["duo", "duo-b"]);
    let fleet = &team.fleet;
    let other = APP.replace("metadata: {name: ", "metadata: {namespace: duo-b, name: ");
    fleet.write("manifests/shop/v1.0.0/other.yaml", &other);
    let id = fleet.field(&["namespace", "duo"], "{.metadata.uid}");
    fleet.set_environment(&format!(
        "cluster: {{id: {id}}}\n\
         state: {{kind: ConfigMap, namespace: duo}}\n\
         releases:\n  - {{name: shop, bundle: shop, version: v1.0.0, namespace: duo}}\n"
    ));
    fleet.commit();
    let (_, events) = team.asked(Fleet::applied);
    stays_in(&events, &["duo", "duo-b"]);
    let parent = fleet.get(&["-n", "duo", "configmap", "duo.shop"]).unwrap();
    assert_eq!(
        parent["metadata"]["annotations"]["applyset.kubernetes.io/additional-namespaces"],
        "duo-b"
    );
    let (_, events) = team.asked(Fleet::applied);
    let summary = events.summary();
    assert_eq!((summary.writes, summary.dry_runs), (0, 0), "{events}");
    assert!(
        // Autoscalers count as one more kind, listed per namespace.
        summary.reads <= 2 * (KINDS + 1) + 13,
        "{} reads:\n{events}",
        summary.reads
    );
    // One forbidden list is enough: no kind is listed cluster-wide.
    let mut closed = CLOSED.to_vec();
    closed.push("list autoscaling horizontalpodautoscalers  403");
    assert_eq!(forbidden(&events), closed, "{events}");

    // A removed permission is reported with the rule that grants it.
    fleet.kubectl(&["-n", "duo-b", "delete", "rolebinding", "pleach"]);
    fleet.edit("manifests/shop/v1.0.0/other.yaml", "hello", "welcome");
    fleet.commit();
    let (run, events) = team.asked(|fleet| fleet.apply().ended_with(4));
    run.says("add to a Role in namespace duo-b: {apiGroups: [\"\"], resources: [configmaps], verbs: [get]}")
        .says("nothing was written");
    assert_eq!(events.writes().to_string(), "");

    // Objects there are unknown, so none of them is deleted.
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
    let (run, events) = team.asked(Fleet::applied);
    run.says("stays because its kind could not be listed completely");
    stays_in(&events, &["duo"]);
    assert!(!fleet.exists(&["-n", "duo", "networkpolicy/shop"]));
    assert!(fleet.exists(&["-n", "duo-b", "networkpolicy/shop"]));

    // A user with cluster-wide access finds the same release.
    team.fleet.through(crate::shared().kubeconfig().to_owned());
    let fleet = &team.fleet;
    fleet.run(&["status", "duo"]).ended_with(0).says("duo/shop");
    let away = tempfile::tempdir().unwrap();
    fleet
        .run_in(away.path(), &["history", "duo/shop"])
        .ended_with(0)
        .says("v1.0.0");
    fleet.applied().says("release duo.shop v1.1.0: deployed");
    assert!(!fleet.exists(&["-n", "duo-b", "networkpolicy/shop"]));
}

#[test]
fn what_is_closed_is_asked_for_once_in_a_run() {
    let team = Team::new("many", "namespaced.yaml", "pleach", &["many"]);
    let fleet = &team.fleet;
    let maps: Vec<String> = (0..501)
        .map(|number| {
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map-{number}}}\n")
        })
        .collect();
    fleet.write("manifests/maps/bundle.yaml", BUNDLE.1);
    fleet.write("manifests/maps/maps.yaml", &maps.join("---\n"));
    fleet.edit_environment(
        "releases:\n",
        "releases:\n  - {name: maps, bundle: maps, namespace: many}\n",
    );
    let id = fleet.field(&["namespace", "many"], "{.metadata.uid}");
    fleet.extend_environment(&format!("cluster: {{id: {id}}}\n"));
    fleet.commit();
    let (_, events) = team.asked(Fleet::applied);
    let registrations = |events: &Events| {
        let mut lines = forbidden(events);
        lines.retain(|line| CLOSED.contains(&line.as_str()));
        lines
    };
    // Both releases are observed, and the second one again after the first.
    assert_eq!(registrations(&events), CLOSED, "{events}");

    // Two pages of one kind, and the other release.
    let (_, events) = team.asked(Fleet::applied);
    let summary = events.summary();
    assert_eq!((summary.writes, summary.dry_runs), (0, 0), "{events}");
    let of_maps = events
        .by_agent("pleach/")
        .filter(|event| event.user_agent.ends_with(" many.maps"));
    assert!(of_maps.0.len() <= 2 + 12, "{of_maps}");
    let of_shop = events.filter(|event| event.user_agent.ends_with(" many.shop"));
    assert!(of_shop.0.len() <= KINDS + 13, "{of_shop}");
    assert_eq!(
        events.0.len(),
        of_maps.0.len() + of_shop.0.len(),
        "{events}"
    );
    assert_eq!(forbidden(&events), CLOSED, "{events}");
}

#[test]
fn what_a_preview_needs_is_not_enough_to_apply() {
    let team = Team::new("peek", "preview.yaml", "pleach-preview", &["peek"]);
    let fleet = &team.fleet;
    let (_, events) = team.asked(|fleet| {
        fleet
            .run(&["diff", "peek", "--exit-code"])
            .ended_with(10)
            .says("8 to create")
    });
    assert_eq!(events.writes().to_string(), "");
    fleet.run(&["plan", "peek"]).ended_with(4);
    let (run, events) = team.asked(|fleet| {
        let id = fleet.field(&["namespace", "peek"], "{.metadata.uid}");
        fleet
            .run(&["apply", "peek", "--yes", "--cluster-id", &id])
            .ended_with(4)
    });
    run.says("pleach is not allowed to watch deployments.apps in namespace peek")
        .says("add to a Role in namespace peek: {apiGroups: [apps], resources: [deployments], verbs: [watch]}")
        .says("nothing was written");
    assert_eq!(events.writes().to_string(), "");
}

#[test]
fn a_cluster_role_is_enough_for_releases_anywhere() {
    let fleet = Fleet::new(
        "wide",
        "  - {name: shop, bundle: shop, version: v1.0.0, namespace: wide}\n",
        &[
            BUNDLE,
            ("manifests/shop/v1.0.0/app.yaml", APP),
            ("manifests/shop/v1.1.0/app.yaml", &second()),
        ],
    );
    fleet.grant("cluster.yaml", "wide", "wide");
    let mut team = Team {
        fleet,
        user: "system:serviceaccount:wide:pleach".to_owned(),
    };
    team.become_user();
    let fleet = &team.fleet;
    for version in ["v1.0.0", "v1.1.0"] {
        if version != "v1.0.0" {
            fleet.edit_environment("v1.0.0", version);
            fleet.commit();
        }
        let (run, events) = team.asked(Fleet::applied);
        run.says(&format!("release wide.shop {version}: deployed"));
        assert_eq!(forbidden(&events), [""; 0], "{events}");
        let (_, events) = team.asked(Fleet::applied);
        let summary = events.summary();
        assert_eq!((summary.writes, summary.dry_runs), (0, 0), "{events}");
        assert!(
            summary.reads <= KINDS + 1 + 13,
            "{} reads:\n{events}",
            summary.reads
        );
        assert_eq!(forbidden(&events), [""; 0], "{events}");
    }
    assert!(!fleet.exists(&["-n", "wide", "networkpolicy/shop"]));
    let (_, events) = team.asked(|fleet| fleet.run(&["status", "wide"]).ended_with(0));
    assert_eq!(forbidden(&events), [""; 0], "{events}");
    fleet.run(&["history", "wide/shop"]).ended_with(0);
}

#[test]
fn state_stays_where_it_is_kept() {
    let team = Team::new("stay", "namespaced.yaml", "pleach", &["stay"]);
    let mut fleet = team.fleet;
    fleet.through(crate::shared().kubeconfig().to_owned());
    let id = fleet.cluster_id();
    // The id of kube-system also identifies the cluster, for users who can read it.
    fleet
        .run(&["apply", "stay", "--yes", "--cluster-id", &id])
        .ended_with(0);
    fleet.edit_environment("state: {kind: ConfigMap, namespace: stay}\n", "");
    fleet.commit();
    let run = fleet.run(&["apply", "stay", "--yes", "--cluster-id", &id]);
    run.ended_with(7)
        .says("is installed with its record in {kind: ConfigMap, namespace: stay}, not in {kind: Release}")
        .says("restore `state: {kind: ConfigMap, namespace: stay}`");
    fleet.edit_environment(
        "releases:",
        "state: {kind: ConfigMap, namespace: stay-b}\nreleases:",
    );
    fleet
        .run(&["diff", "stay"])
        .ended_with(7)
        .says("the state namespace stay-b does not exist")
        .says("kubectl create namespace stay-b");
    fleet.create_namespace("stay-b");
    fleet
        .run(&["diff", "stay"])
        .ended_with(7)
        .says("is installed with its record in {kind: ConfigMap, namespace: stay}");

    // And in the other direction.
    fleet.edit_environment(
        "state: {kind: ConfigMap, namespace: stay-b}\nreleases:\n  - {name: shop, bundle: shop, version: v1.0.0, namespace: stay}\n",
        "releases:\n  - {name: shop, bundle: shop, version: v1.0.0, namespace: stay-b}\n  - {name: second, bundle: shop, version: v1.0.0, namespace: stay-c}\n",
    );
    fleet.commit();
    fleet
        .run(&["apply", "stay/second", "--yes", "--cluster-id", &id])
        .ended_with(0);
    fleet.edit_environment(
        "releases:",
        "state: {kind: ConfigMap, namespace: stay-b}\nreleases:",
    );
    fleet
        .run(&["diff", "stay/second"])
        .ended_with(7)
        .says("is installed with its record in {kind: Release}, not in {kind: ConfigMap, namespace: stay-b}");
}
