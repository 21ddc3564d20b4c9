use super::*;
use crate::repo::format::NotificationCause;

const START: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Controller\n";

fn check(body: &str) -> Result<Controller, Vec<String>> {
    read("loop.yaml", format!("{START}{body}").into_bytes()).map_err(|findings| {
        findings
            .iter()
            .map(|finding| format!("{finding}{}", hint(finding)))
            .collect()
    })
}

fn hint(finding: &Finding) -> String {
    finding
        .hint
        .as_ref()
        .map(|hint| format!(" ({hint})"))
        .unwrap_or_default()
}

/// One repository; lines of it and of its environment are added.
fn repository(url: &str, lines: &str, environment: &str) -> String {
    format!(
        "repositories:\n  - name: fleet\n    url: {url}\n{lines}    environments:\n      - match: env/*\n        cluster: {{inCluster: true, id: c1}}\n{environment}"
    )
}

#[test]
fn what_is_said_is_read() {
    let controller = check(&format!(
        "listen: 0.0.0.0:8080\nmetrics: {{listen: \"127.0.0.1:9090\"}}\n{}",
        repository(
            "https://git.example.org/fleet.git",
            "    auth: {usernameFile: /s/user, passwordFile: /s/password}\n    forge: {kind: gitlab, webhookSecretFile: /s/hook}\n",
            "        serviceAccount: pleach-system/deployer\n        allow: {namespaces: [team-a-*], clusterScoped: [Namespace]}\n      - {name: production, branch: main, cluster: {id: c2, kubeconfigFile: /s/kubeconfig}}\n",
        )
    ))
    .unwrap();
    assert_eq!(controller.listen.unwrap().port(), 8080);
    assert_eq!(controller.metrics.unwrap().to_string(), "127.0.0.1:9090");
    let fleet = &controller.repositories[0];
    assert_eq!(
        fleet.webhook,
        Some((ForgeKind::Gitlab, "/s/hook".to_owned()))
    );
    assert_eq!(
        fleet.auth,
        Auth::Basic {
            username: "/s/user".to_owned(),
            password: "/s/password".to_owned()
        }
    );
    let [pattern, one] = &fleet.environments[..] else {
        panic!("two grants")
    };
    assert_eq!(
        pattern.user.as_deref(),
        Some("system:serviceaccount:pleach-system:deployer")
    );
    assert_eq!(pattern.connection, ConnectionGrant::InCluster);
    assert_eq!(one.branches.environment("main"), Some("production"));
    assert_eq!(
        one.connection,
        ConnectionGrant::Kubeconfig("/s/kubeconfig".to_owned())
    );
}

#[test]
fn every_mistake_is_told_with_its_line() {
    let errors = check(&repository(
        "ftp://git.example.org/fleet",
        "    forge: {kind: github, webhookSecretfile: /s/hook}\n",
        "        allow: {namespace: [x]}\n",
    ))
    .unwrap_err();
    assert_eq!(
        errors,
        [
            "loop.yaml:6: `repositories[0].forge`: unknown field `webhookSecretfile` (did you mean `webhookSecretFile`?)",
            "loop.yaml:10: `repositories[0].environments[0].allow`: unknown field `namespace` (did you mean `namespaces`?)",
        ]
    );
    let errors = check(&repository(
        "ftp://git.example.org/fleet",
        "",
        "      - {name: a, cluster: {id: c1}}\n      - {match: main, cluster: {id: \"\", inCluster: true}, serviceAccount: deployer}\n",
    ))
    .unwrap_err();
    assert_eq!(
        errors,
        [
            "loop.yaml:5: `url`: expected https, ssh or the path of a folder",
            "loop.yaml:9: `cluster`: either `inCluster: true` or `kubeconfigFile`",
            "loop.yaml:9: either `match`, or `name` and `branch`",
            "loop.yaml:10: `id`: the uid of the cluster's namespace kube-system",
            "loop.yaml:10: `match`: `main` has to hold one `*`, which stands for the name of the environment",
            "loop.yaml:10: `serviceAccount`: `deployer` is not `NAMESPACE/NAME`",
        ]
    );
}

#[test]
fn the_cluster_has_to_be_named() {
    let errors = check(
        "repositories:\n  - name: fleet\n    url: /srv/fleet\n    environments: [{match: env/*, cluster: {inCluster: true}}]\n",
    )
    .unwrap_err();
    assert_eq!(
        errors,
        ["loop.yaml:6: `repositories[0].environments[0].cluster`: `id` is required"]
    );
}

#[test]
fn credentials_are_files_and_are_not_sent_in_the_clear() {
    let basic = "    auth: {usernameFile: /s/user, passwordFile: /s/password}\n";
    let url = |url: &str, lines: &str| check(&repository(url, lines, "")).err();
    assert_eq!(url("http://127.0.0.1:3000/fleet.git", basic), None);
    assert_eq!(url("http://localhost:3000/fleet.git", basic), None);
    let told = |errors: Option<Vec<String>>, text: &str| {
        let errors = errors.unwrap();
        assert!(errors[0].contains(text), "{errors:?}");
        assert!(!errors[0].contains("hunter2"), "{errors:?}");
    };
    told(
        url("http://git.example.org/fleet.git", basic),
        "credentials are sent over https only",
    );
    told(
        url("https://me:hunter2@git.example.org/fleet.git", ""),
        "not into the URL",
    );
    told(url("/srv/fleet", basic), "takes no credentials");
    told(
        url("https://x/y", "    auth: {usernameFile: /s/user}\n"),
        "either `usernameFile` and `passwordFile`, or `tokenFile`",
    );
}

#[test]
fn a_forge_is_found_by_the_repository_and_asked_with_a_token() {
    let forge = |url: &str, forge: &str| {
        let lines = format!("    forge: {{{forge}}}\n");
        check(&repository(url, &lines, ""))
    };
    let url = "https://git.example.org/example/fleet.git";
    let found = forge(url, "kind: gitea, tokenFile: /s/token, previews: true").unwrap();
    assert_eq!(
        found.repositories[0].forge,
        Some(ForgeGrant {
            address: ForgeAddress {
                kind: ForgeKind::Gitea,
                api: "https://git.example.org/api/v1".to_owned(),
                project: "example/fleet".to_owned(),
            },
            token: "/s/token".to_owned(),
            previews: true,
        })
    );
    let none = forge(url, "kind: gitea, webhookSecretFile: /s/hook").unwrap();
    assert_eq!(none.repositories[0].forge, None);
    let told = |result: Result<Controller, Vec<String>>, words: &str| {
        let errors = result.unwrap_err();
        assert!(errors[0].contains(words), "{errors:?}");
    };
    told(
        forge(url, "kind: gitea, previews: true"),
        "loop.yaml:6: `previews`: nothing can be asked of the forge without `tokenFile`",
    );
    told(
        forge("/srv/fleet", "kind: gitea, tokenFile: /s/token"),
        "`forge`: a forge is found by the URL",
    );
    told(
        forge(
            url,
            "kind: gitea, url: \"http://git.example.org/api/v1\", tokenFile: /s/token",
        ),
        "`forge`: tokens are sent over https only",
    );
}

#[test]
fn what_is_not_built_yet_is_refused_in_words() {
    let errors = check(&format!(
        "{}",
        repository(
            "ssh://git@git.example.org/fleet.git",
            "    auth: {sshKeyFile: /s/key, knownHostsFile: /s/hosts}\n    verify: {keysFile: /s/keys}\n",
            "      - match: x/*\n        cluster: {id: c, kubeconfigSecret: {namespace: a, name: b}}\n",
        )
    ))
    .unwrap_err();
    let what: Vec<&str> = errors
        .iter()
        .map(|error| error.split('`').nth(1).unwrap())
        .collect();
    assert!(
        errors
            .iter()
            .all(|error| error.ends_with("is not supported yet")),
        "{errors:?}"
    );
    assert_eq!(
        what,
        [
            "url: ssh",
            "repositories[0].auth.knownHostsFile",
            "repositories[0].auth.sshKeyFile",
            "repositories[0].verify",
            "repositories[0].environments[1].cluster.kubeconfigSecret",
        ]
    );
}

#[test]
fn only_what_is_allowed_may_be_written() {
    let controller = check(&repository(
        "/srv/fleet",
        "",
        "        allow: {namespaces: [team-a-*], clusterScoped: [Namespace, Widget.example.org]}\n",
    ))
    .unwrap();
    let allow = controller.repositories[0].environments[0].allow.clone();
    let allow = allow.unwrap();
    let permits = |group: &str, kind: &str, namespace: Option<&str>, name: &str| {
        allow.permits(&crate::object::ObjectId::new(group, kind, namespace, name))
    };
    assert!(permits("", "ConfigMap", Some("team-a-web"), "x"));
    assert!(!permits("", "ConfigMap", Some("team-b"), "x"));
    assert!(permits("example.org", "Widget", None, "x"));
    assert!(!permits("example.com", "Widget", None, "x"));
    assert!(!permits(
        "rbac.authorization.k8s.io",
        "ClusterRole",
        None,
        "x"
    ));
    // A namespace of others is theirs also as an object.
    assert!(permits("", "Namespace", None, "team-a-web"));
    assert!(!permits("", "Namespace", None, "kube-system"));
}

fn told(notifications: &str) -> Result<Controller, Vec<String>> {
    let rest = repository("/srv/fleet", "", "");
    check(&format!("notifications: {notifications}\n{rest}"))
}

#[test]
fn who_is_told_of_what_is_read() {
    let said = "[{webhook: {urlFile: url, template: \"{{ release }}: {{ message }}\"}, on: [failed]}, {webhook: {urlFile: other}}]";
    let controller = told(said).unwrap();
    let news = |cause| News {
        cause,
        environment: "prod".to_owned(),
        release: "web".to_owned(),
        version: "v1".to_owned(),
        revision: "abc".to_owned(),
        message: "no".to_owned(),
        at: "now".to_owned(),
    };
    let bodies = |cause| -> Vec<Option<String>> {
        let told = controller.notifications.iter();
        told.map(|one| one.body(&news(cause)).map(Result::unwrap))
            .collect()
    };
    let failed = bodies(NotificationCause::Failed);
    assert_eq!(failed[0].as_deref(), Some("web: no"));
    assert_eq!(
        failed[1].as_deref(),
        Some(
            r#"{"format":1,"cause":"failed","environment":"prod","release":"web","version":"v1","revision":"abc","message":"no","at":"now"}"#
        )
    );
    assert_eq!(bodies(NotificationCause::Deployed)[0], None);
}

#[test]
fn a_template_that_cannot_be_written_is_refused_beforehand() {
    let errors = told("[{webhook: {urlFile: url, template: \"{{ secret }}\"}}]").unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].starts_with("loop.yaml:3: `template`: "),
        "{errors:?}"
    );
    let errors = told("[{webhook: {urlFile: \"\"}, on: []}]").unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:?}");
}
