//! pleach installed by pleach: the controller runs with exactly the permissions of its account in
//! manifests/pleach.

use std::path::Path;

use pleach_testkit::audit::Events;
use pleach_testkit::demo::copy_example;

use crate::fleet::{Fleet, Requests};
use crate::loop_run::Loop;
use crate::rights::{APP, BUNDLE, CLOSED, forbidden, second};
use crate::stages::nodes;

/// Returns the project's example with its own environment, and an application with two versions.
fn fleet(environment: &'static str) -> Fleet {
    let none: [(&str, &str); 0] = [];
    let fleet = Fleet::on(nodes(), environment, "", &none);
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    copy_example(project, fleet.repo.path()).unwrap();
    fleet.write(BUNDLE.0, BUNDLE.1);
    fleet.write("manifests/shop/v1.0.0/app.yaml", APP);
    fleet.write("manifests/shop/v1.1.0/app.yaml", &second());
    fleet
}

/// Kinds of the application, with Secrets limited to one namespace.
const DEPLOYS: &str = "      deploys:
        - {apiGroups: [\"\"], resources: [configmaps, services, serviceaccounts]}
        - {apiGroups: [\"\"], resources: [secrets], namespaces: [NAMESPACE]}
        - {apiGroups: [apps], resources: [deployments]}
        - {apiGroups: [policy], resources: [poddisruptionbudgets]}
        - {apiGroups: [networking.k8s.io], resources: [ingresses, networkpolicies]}
";

/// Returns `environments/pleach.yaml` with the changes for this test.
fn adapt(fleet: &Fleet, id: &str) -> String {
    let path = "environments/pleach.yaml";
    let repo = fleet.repo.path().to_str().unwrap();
    fleet.edit(path, "https://git.example.org/fleet.git", repo);
    fleet.edit(
        path,
        "            auth: {usernameFile: secrets/git/username, passwordFile: secrets/git/password}\n",
        "",
    );
    fleet.edit(path, "      secrets: [git]\n", "");
    fleet.edit(
        path,
        "                serviceAccount: deployers/fleet    # impersonated for what is read and written; `impersonates` names it\n",
        "",
    );
    fleet.edit(
        path,
        "      impersonates: [{namespace: deployers, names: [fleet]}]\n",
        "",
    );
    fleet.edit(path, "6f0c2d5e-4a51-4c1c-9d3b-1f0a1c5f7b11", id);
    fleet.edit(path, r#"namespaces: ["team-*"]"#, r#"namespaces: ["*"]"#);
    fleet.edit(path, "releases:\n", "sync: {interval: 1s}\nreleases:\n");
    fleet.read(path)
}

impl Fleet {
    fn push_to(&self, environment: &str) -> String {
        let commit = self.repo.commit("change").unwrap();
        let branch = format!("env/{environment}");
        self.repo.git(&["branch", "--force", &branch]).unwrap();
        commit
    }

    /// Runs the controller like its pod: with the arguments and the configuration in the cluster,
    /// as its account.
    #[track_caller]
    fn runs_as_installed(&mut self, namespace: &str) -> (Loop, String) {
        let user = format!("system:serviceaccount:{namespace}:pleach");
        let groups = [
            "system:serviceaccounts",
            &format!("system:serviceaccounts:{namespace}"),
        ];
        let kubeconfig = nodes().kubeconfig_for_user(&user, &groups).unwrap();
        let map = self.field(
            &["configmap", "pleach", "-n", namespace],
            "{.data.controller\\.yaml}",
        );
        let way = format!("kubeconfigFile: {}", kubeconfig.display());
        assert!(map.contains("inCluster: true"), "{map}");
        let config = self.file("installed.yaml", &map.replace("inCluster: true", &way));
        self.through(kubeconfig);
        let said = self
            .get(&["deployment", "pleach", "-n", namespace])
            .unwrap();
        let said = &said["spec"]["template"]["spec"]["containers"][0]["args"];
        let args: Vec<String> = said
            .as_array()
            .unwrap()
            .iter()
            .map(|arg| arg.as_str().unwrap().to_owned())
            .filter(|arg| arg != "run" && arg != "--log-format=json")
            .map(|arg| match arg.strip_prefix("--config=") {
                Some(path) => {
                    assert_eq!(path, "/etc/pleach/controller.yaml");
                    format!("--config={config}")
                }
                None => arg,
            })
            .collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        (self.runs_with(&args), user)
    }

    /// Returns the revision of a release once it is ready.
    fn ready_at(&self, release: &str) -> Option<String> {
        let live = self.get(&[&format!("release.pleach.dev/{release}")])?;
        let record = &live["status"]["record"];
        let revision = record["installed"]["revision"].as_str()?;
        (record["ready"] == true).then(|| revision.to_owned())
    }

    #[track_caller]
    fn until_ready_at(&self, release: &str, commit: &str) {
        self.until(release, |fleet| {
            (fleet.ready_at(release).as_deref() == Some(commit)).then_some(())
        });
    }
}

fn asked_by(user: &str, since: &Requests) -> Events {
    since.events().filter(|event| event.user.username == user)
}

#[test]
fn pleach_that_pleach_installed_has_the_rights_it_needs_and_survives_its_own_upgrade() {
    let since = Requests::from_now(nodes());
    let mut fleet = fleet("pleach");
    let id = fleet.cluster_id();
    let text = adapt(&fleet, &id);
    let values = format!("    values:\n{}", DEPLOYS.replace("NAMESPACE", "app"));
    let path = "environments/pleach.yaml";
    fleet.write(path, &text.replace("    values:\n", &values));
    fleet.create_namespace("app");
    let installed = fleet.push_to("pleach");
    let apply = ["apply", "pleach", "--yes", "--cluster-id", &id];
    fleet.run(&apply).ended_with(0).says("deployed");
    let account = ["serviceaccount", "pleach", "-n", "pleach"];
    assert!(fleet.exists(&account));
    let (running, user) = fleet.runs_as_installed("pleach");

    // An application is installed, corrected, changed, loses an object, and is removed.
    let environment = |version: &str, more: &str| {
        let shop = format!(
            "releases:\n  - {{name: shop, bundle: shop, version: {version}, namespace: app}}\n"
        );
        let releases = if version.is_empty() {
            "releases: []\n"
        } else {
            &shop
        };
        let text = format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nsync: {{interval: 1s}}\n{releases}{more}"
        );
        fleet.write("environments/app.yaml", &text);
        fleet.push_to("app")
    };
    let first = environment("v1.0.0", "");
    fleet.until_ready_at("app.shop", &first);
    fleet.kubectl(&["-n", "app", "scale", "deployment/shop", "--replicas=3"]);
    fleet.until("the correction", |fleet| {
        let replicas = fleet.field(&["-n", "app", "deployment/shop"], "{.spec.replicas}");
        (replicas == "0").then_some(())
    });
    let second = environment("v1.1.0", "");
    fleet.until_ready_at("app.shop", &second);
    assert!(!fleet.exists(&["-n", "app", "networkpolicy/shop"]));
    environment("", "consent: [{action: uninstall, release: shop}]\n");
    fleet.until("the end of the application", |fleet| {
        let there = fleet.exists(&["-n", "app", "deployment/shop"]);
        (!there).then_some(())
    });

    // The controller changes its own release. Its pod is replaced meanwhile.
    let own = fleet.ready_at("pleach.pleach");
    assert_eq!(own.as_deref(), Some(installed.as_str()));
    // The controller can drop some of its own permissions.
    fleet.edit(
        path,
        "resources: [ingresses, networkpolicies]",
        "resources: [networkpolicies]",
    );
    fleet.edit(
        path,
        "      image: registry.example.org/pleach\n",
        "      image: mirror.example.org/pleach\n      egressPorts: [53, 443, 6443, 22]\n",
    );
    let upgraded = fleet.push_to("pleach");
    let image = "{.spec.template.spec.containers[0].image}";
    fleet.until("the new pods", |fleet| {
        let image = fleet.field(&["deployment", "pleach", "-n", "pleach"], image);
        image.starts_with("mirror.").then_some(())
    });
    running.stopped();
    let (running, _) = fleet.runs_as_installed("pleach");
    fleet.until_ready_at("pleach.pleach", &upgraded);
    running.stopped();

    let events = asked_by(&user, &since);
    assert!(events.writes().0.len() > 20, "{}", events.writes());
    // Listing of Secrets can only be probed by trying.
    let mut forbidden = forbidden(&events);
    forbidden.dedup();
    assert_eq!(forbidden, ["list secrets  403"]);
    let role = fleet.get(&["clusterrole", "pleach"]).unwrap();
    assert!(!role.to_string().contains("ingresses"), "{role}");
    // It has no permissions on roles of others.
    let may = |what: &[&str]| {
        let user = format!("--as={user}");
        let asked = [&["auth", "can-i", &user], what].concat();
        fleet.try_kubectl(&asked).status.success()
    };
    assert!(may(&["patch", "clusterroles/pleach"]));
    for what in [
        &["patch", "clusterroles/cluster-admin"][..],
        &["delete", "clusterrolebindings/cluster-admin"],
        &["get", "secrets/other", "-n", "pleach-system"],
        &["create", "secrets", "-n", "kube-system"],
        &["delete", "leases/kube-scheduler", "-n", "kube-system"],
        &["delete", "namespaces/app"],
        &["patch", "customresourcedefinitions/others.example.org"],
    ] {
        assert!(!may(what), "{what:?}");
    }

    // It is removed like any followed release.
    fleet.through(nodes().kubeconfig().to_owned());
    let uninstall = ["uninstall", "pleach/pleach", "--yes"];
    fleet.run(&uninstall).ended_with(7).says("--local --reason");
    let meant = [&uninstall[..], &["--local", "--reason", "the end"]].concat();
    fleet.run(&meant).ended_with(0).says("uninstalled");
    assert!(!fleet.exists(&account));
}

#[test]
fn an_account_for_some_namespaces_stays_in_them() {
    let since = Requests::from_now(nodes());
    let mut fleet = fleet("pleach-some");
    for namespace in ["some-loop", "some-app"] {
        fleet.create_namespace(namespace);
    }
    let cluster = fleet.cluster_id();
    // A user with access to one namespace identifies the cluster by that namespace.
    let id = fleet.field(&["namespace", "some-app"], "{.metadata.uid}");
    let text = adapt(&fleet, &id)
        .replace("namespace: pleach\n", "namespace: some-loop\n")
        .replace(
            "    values:\n",
            &format!(
                "    values:\n      rights: namespaced\n      namespaces: [some-app]\n{}",
                DEPLOYS.replace("NAMESPACE", "some-app")
            ),
        )
        .replace(
            "match: env/*",
            "name: some\n                branch: env/some",
        )
        .replace("releases:\n", "prune: {max: 100%}\nreleases:\n");
    fleet.write("environments/pleach-some.yaml", &text);
    fleet.write(
        "environments/some.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nsync: {interval: 1s}\nstate: {kind: ConfigMap, namespace: some-app}\nreleases:\n  - {name: shop, bundle: shop, version: v1.0.0, namespace: some-app}\n",
    );
    fleet.push_to("some");
    let apply = ["apply", "pleach-some", "--yes", "--cluster-id", &cluster];
    fleet.run(&apply).ended_with(0).says("deployed");
    let (running, user) = fleet.runs_as_installed("some-loop");
    let ready = |fleet: &Fleet| {
        let record = fleet.get(&["configmap", "some.shop", "-n", "some-app"])?;
        (record["data"]["ready"] == "True").then_some(())
    };
    fleet.until("the application", ready);
    fleet.edit("environments/some.yaml", "v1.0.0", "v1.1.0");
    fleet.push_to("some");
    fleet.until("the upgrade", |fleet| {
        let there = fleet.exists(&["-n", "some-app", "networkpolicy/shop"]);
        (!there).then_some(())
    });
    running.stopped();
    let events = asked_by(&user, &since);
    for event in &events.writes().0 {
        let object = event.object_ref.as_ref().unwrap();
        assert!(
            ["some-app", "some-loop"].contains(&object.namespace.as_str()),
            "{event}"
        );
    }
    // Requests of every run that can be forbidden, and the first run's search for a record
    // elsewhere.
    let elsewhere = [
        "get pleach.dev releases some.shop 403",
        "list configmaps  403",
    ];
    let beyond: Vec<String> = forbidden(&events)
        .into_iter()
        .filter(|line| !CLOSED.contains(&line.as_str()) && !elsewhere.contains(&line.as_str()))
        // Drift watches first try the whole cluster.
        .filter(|line| !(line.starts_with("list ") && line.ends_with("  403")))
        .collect();
    assert_eq!(beyond, [""; 0]);

    // The same account in CI, which only reads, without a controller.
    let text = text.replace("rights: namespaced", "rights: preview");
    fleet.through(nodes().kubeconfig().to_owned());
    fleet.write("environments/pleach-some.yaml", &text);
    fleet.commit();
    fleet.run(&apply).ended_with(0);
    assert!(!fleet.exists(&["deployment", "pleach", "-n", "some-loop"]));
    let ci = nodes().kubeconfig_for_user(&user, &["system:serviceaccounts"]);
    fleet.through(ci.unwrap());
    fleet.edit("manifests/shop/v1.1.0/app.yaml", "welcome", "good evening");
    // State in a tenant namespace is sealed with the controller's key.
    fleet
        .run(&["diff", "some", "--exit-code"])
        .ended_with(4)
        .says("--key-namespace some-loop");
    let looked = fleet.run(&[
        "diff",
        "some",
        "--exit-code",
        "--key-namespace",
        "some-loop",
    ]);
    looked.ended_with(10).says("1 to update");
}

#[test]
fn what_an_environment_deploys_as_another_account_needs_no_more_than_to_act_as_it() {
    let mut fleet = fleet("pleach-acts");
    for namespace in ["acts", "acts-loop", "acts-app"] {
        fleet.create_namespace(namespace);
    }
    fleet.kubectl(&["create", "serviceaccount", "deployer", "-n", "acts"]);
    let bind = ["create", "clusterrolebinding", "acts-deployer"];
    let bound = [
        "--clusterrole=cluster-admin",
        "--serviceaccount=acts:deployer",
    ];
    fleet.kubectl(&[&bind[..], &bound].concat());
    let id = fleet.cluster_id();
    let values = "      rights: namespaced\n      namespaces: [acts-loop]\n      impersonates: [{namespace: acts, names: [deployer]}]\n";
    let text = adapt(&fleet, &id)
        .replace("namespace: pleach\n", "namespace: acts-loop\n")
        .replace("    values:\n", &format!("    values:\n{values}"))
        .replace(
            "match: env/*",
            "name: acts\n                branch: env/acts\n                serviceAccount: acts/deployer",
        );
    fleet.write("environments/pleach-acts.yaml", &text);
    fleet.write(
        "environments/acts.yaml",
        "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nsync: {interval: 1s}\nreleases:\n  - {name: shop, bundle: shop, version: v1.0.0, namespace: acts-app}\n",
    );
    let commit = fleet.push_to("acts");
    let apply = ["apply", "pleach-acts", "--yes", "--cluster-id", &id];
    fleet.run(&apply).ended_with(0).says("deployed");
    // Its own permissions are limited to its namespace.
    let (running, _) = fleet.runs_as_installed("acts-loop");
    fleet.until_ready_at("acts.shop", &commit);
    running.stopped();
}
