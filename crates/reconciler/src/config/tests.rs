use jiff::SignedDuration;

use super::*;
use pleach_formats::file::NotificationCause;
use pleach_model::object::ObjectId;

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

/// Returns a configuration with one repository. `lines` and `environment` are added to it.
fn repository(url: &str, lines: &str, environment: &str) -> String {
    let allow = if environment.contains("        allow:") {
        ""
    } else {
        "        allow: all\n"
    };
    format!(
        "repositories:\n  - name: fleet\n    url: {url}\n{lines}    environments:\n      - match: env/*\n        cluster: {{inCluster: true, id: c1}}\n{allow}{environment}"
    )
}

#[test]
fn all_fields_are_read() {
    let controller = check(&format!(
        "listen: 0.0.0.0:8080\nmetrics: {{listen: \"127.0.0.1:9090\"}}\n{}",
        repository(
            "https://git.example.org/fleet.git",
            "    auth: {usernameFile: /s/user, passwordFile: /s/password}\n    forge: {kind: gitlab, webhookSecretFile: /s/hook}\n",
            "        serviceAccount: pleach-system/team-a\n        allow: {namespaces: [team-a-*], clusterScoped: [Namespace]}\n      - {name: production, branch: main, cluster: {id: c2, kubeconfigFile: /s/kubeconfig}, allow: all}\n",
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
        Some("system:serviceaccount:pleach-system:team-a")
    );
    assert_eq!(pattern.connection, ConnectionGrant::InCluster);
    assert_eq!(one.branches.environment("main"), Some("production"));
    assert_eq!(
        one.connection,
        ConnectionGrant::Kubeconfig("/s/kubeconfig".to_owned())
    );
}

#[test]
fn every_mistake_is_reported_with_its_line() {
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
        "      - {name: a, cluster: {id: c1}, allow: all}\n      - {match: main, cluster: {id: \"\", inCluster: true}, serviceAccount: team-a, allow: all}\n",
    ))
    .unwrap_err();
    assert_eq!(
        errors,
        [
            "loop.yaml:5: `url`: expected https, http, ssh or the path of a folder",
            "loop.yaml:10: `cluster`: exactly one of `inCluster: true`, `kubeconfigFile` and `kubeconfigSecret` is required",
            "loop.yaml:10: either `match`, or `name` and `branch`, is required",
            "loop.yaml:11: `id`: expected the uid of the cluster's namespace kube-system",
            "loop.yaml:11: `match`: `main` must contain exactly one `*`, which stands for the environment name",
            "loop.yaml:11: `serviceAccount`: `team-a` is not `NAMESPACE/NAME`",
        ]
    );
}

#[test]
fn the_cluster_id_is_required() {
    let errors = check(
        "repositories:\n  - name: fleet\n    url: /srv/fleet\n    environments: [{match: env/*, cluster: {inCluster: true}, allow: all}]\n",
    )
    .unwrap_err();
    assert_eq!(
        errors,
        ["loop.yaml:6: `repositories[0].environments[0].cluster`: `id` is required"]
    );
}

#[test]
fn credentials_are_files_and_are_sent_encrypted_only() {
    let basic = "    auth: {usernameFile: /s/user, passwordFile: /s/password}\n";
    let url = |url: &str, lines: &str| check(&repository(url, lines, "")).err();
    assert_eq!(url("http://127.0.0.1:3000/fleet.git", basic), None);
    assert_eq!(url("http://localhost:3000/fleet.git", basic), None);
    let check_error = |errors: Option<Vec<String>>, text: &str| {
        let errors = errors.unwrap();
        assert!(errors[0].contains(text), "{errors:?}");
        assert!(!errors[0].contains("hunter2"), "{errors:?}");
    };
    check_error(
        url("http://git.example.org/fleet.git", basic),
        "credentials are sent over https only",
    );
    check_error(
        url("https://me:hunter2@git.example.org/fleet.git", ""),
        "not in the URL",
    );
    check_error(url("/srv/fleet", basic), "does not use credentials");
    check_error(
        url("https://x/y", "    auth: {usernameFile: /s/user}\n"),
        "one of `usernameFile` with `passwordFile`, `tokenFile`",
    );
    check_error(
        url(
            "https://x/y",
            "    auth: {usernameFile: /s/user, passwordFile: /s/password, tokenFile: /s/token}\n",
        ),
        "one of `usernameFile` with `passwordFile`, `tokenFile`",
    );
}

#[test]
fn ssh_needs_a_key_and_known_hosts() {
    let auth = "    auth: {sshKeyFile: /s/key, knownHostsFile: /s/hosts}\n";
    let read = |url: &str, lines: &str| check(&repository(url, lines, ""));
    for url in [
        "ssh://git@git.example.org/fleet.git",
        "git@git.example.org:fleet.git",
    ] {
        let controller = read(url, auth).unwrap();
        assert_eq!(
            controller.repositories[0].auth,
            Auth::Ssh {
                key: "/s/key".to_owned(),
                known_hosts: "/s/hosts".to_owned()
            }
        );
    }
    let check_error = |url: &str, lines: &str, text: &str| {
        let errors = read(url, lines).unwrap_err();
        assert!(errors[0].contains(text), "{errors:?}");
    };
    let ssh = "git@git.example.org:fleet.git";
    check_error(ssh, "", "loop.yaml:5: `auth`: a repository over ssh needs");
    check_error(
        ssh,
        "    auth: {tokenFile: /s/token}\n",
        "loop.yaml:6: `auth`: a repository over ssh needs",
    );
    check_error(
        ssh,
        "    auth: {sshKeyFile: /s/key}\n",
        "`sshKeyFile` with `knownHostsFile`",
    );
    check_error("https://x/y", auth, "an ssh key requires an ssh URL");
    check_error("ssh://git.example.org/x", auth, "the URL has no valid user");
}

#[test]
fn a_github_app_needs_github_and_https() {
    let app =
        "    auth: {githubApp: {appId: Iv1.a2b3, installationId: '7', privateKeyFile: /s/key}}\n";
    let auth = |host: &str, lines: &str| {
        let lines = format!("{app}{lines}");
        check(&repository(
            &format!("https://{host}/example/fleet.git"),
            &lines,
            "",
        ))
        .map(|controller| controller.repositories[0].auth.clone())
    };
    let expected = |api: &str| Auth::GithubApp {
        app: "Iv1.a2b3".to_owned(),
        installation: "7".to_owned(),
        key: "/s/key".to_owned(),
        api: api.to_owned(),
    };
    assert_eq!(
        auth("github.com", "").unwrap(),
        expected("https://api.github.com")
    );
    let host = "github.example.org";
    assert_eq!(
        auth(host, "").unwrap(),
        expected("https://github.example.org/api/v3")
    );
    let own = auth(
        host,
        "    forge: {kind: github, url: https://api.example.org/}\n",
    );
    assert_eq!(own.unwrap(), expected("https://api.example.org"));
    for (forge, text) in [
        ("    forge: {kind: gitea}\n", "the forge is not GitHub"),
        (
            "    forge: {kind: github, url: http://github.example.org/api}\n",
            "`githubApp`: tokens are sent over https only",
        ),
    ] {
        let errors = auth(host, forge).unwrap_err();
        assert!(errors[0].contains(text), "{errors:?}");
    }
    let errors = check(&repository(
        "https://github.example.org/example/fleet.git",
        "    auth: {githubApp: {appId: a/b, installationId: x, privateKeyFile: /s/key}}\n",
        "",
    ));
    assert_eq!(
        errors.unwrap_err(),
        [
            "loop.yaml:6: `appId`: expected the number of the app, or its client id",
            "loop.yaml:6: `installationId`: expected the number of the installation",
        ]
    );
}

#[test]
fn a_forge_is_queried_as_the_app_that_fetches() {
    let app = |url: &str, forge: &str| {
        let id = "{appId: '4711', installationId: '7', privateKeyFile: /s/key}";
        let lines = format!("    auth: {{githubApp: {id}}}\n    forge: {{{forge}}}\n");
        check(&repository(url, &lines, ""))
    };
    let url = "https://github.com/example/fleet.git";
    let found = app(url, "kind: github, previews: true, live: true").unwrap();
    let grant = found.repositories[0].forge.clone().unwrap();
    assert_eq!(
        grant,
        ForgeGrant {
            address: ForgeAddress {
                kind: ForgeKind::Github,
                api: "https://api.github.com".to_owned(),
                project: "example/fleet".to_owned(),
            },
            token: None,
            details: false,
            previews: true,
            live: Some(LivePreviews { fork_label: None }),
        }
    );
    // Commit statuses do not need previews. A token file takes precedence.
    let found = app(url, "kind: github").unwrap();
    let grant = found.repositories[0].forge.clone().unwrap();
    assert_eq!((grant.token, grant.previews), (None, false));
    let found = app(url, "kind: github, tokenFile: /s/token").unwrap();
    let grant = found.repositories[0].forge.clone().unwrap();
    assert_eq!(grant.token.as_deref(), Some("/s/token"));
    // An app of another product is reported once.
    let errors = app(url, "kind: gitea, previews: true").unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let lines = "    forge: {kind: github, previews: true}\n";
    let errors = check(&repository(url, lines, "")).unwrap_err();
    assert_eq!(
        errors,
        [
            "loop.yaml:6: `previews`: requests to the forge need `tokenFile`, or `githubApp` in `auth`"
        ]
    );
}

#[test]
fn http_needs_signatures() {
    let errors = |url: &str, lines: &str| check(&repository(url, lines, "")).err();
    let http = "http://git.example.org/fleet.git";
    for (url, lines) in [
        (http, "    verify: {keysFile: /s/keys}\n"),
        (http, "    insecure: true\n"),
        ("https://git.example.org/fleet.git", ""),
        ("http://127.0.0.1:3000/fleet.git", ""),
        ("http://localhost/fleet.git", ""),
        ("/srv/fleet", ""),
    ] {
        assert_eq!(errors(url, lines), None, "{url} {lines}");
    }
    for lines in ["", "    insecure: false\n"] {
        let errors = errors(http, lines).unwrap();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].contains("require signatures with `verify`"),
            "{errors:?}"
        );
    }
    // Credentials are never sent unencrypted.
    let lines = "    insecure: true\n    auth: {tokenFile: /s/token}\n";
    let errors = errors(http, lines).unwrap();
    assert!(errors[0].contains("over https only"), "{errors:?}");
}

#[test]
fn signature_keys_and_kubeconfig_secrets_are_read() {
    let environment = "      - allow: all\n        match: x/*\n        cluster: {id: c, kubeconfigSecret: {namespace: a, name: b}}\n      - allow: all\n        match: y/*\n        cluster: {id: c, kubeconfigSecret: {namespace: a, name: b, key: value}}\n";
    let verify = "    verify: {keysFile: /s/keys}\n";
    let controller = check(&repository("https://x/y", verify, environment)).unwrap();
    let fleet = &controller.repositories[0];
    assert_eq!(fleet.keys.as_deref(), Some("/s/keys"));
    let secret = |key: &str| ConnectionGrant::Secret {
        namespace: "a".to_owned(),
        name: "b".to_owned(),
        key: key.to_owned(),
    };
    assert_eq!(fleet.environments[1].connection, secret("kubeconfig"));
    assert_eq!(fleet.environments[2].connection, secret("value"));
    let environment = "      - allow: all\n        match: x/*\n        cluster: {id: c, kubeconfigFile: /k, kubeconfigSecret: {namespace: a, name: b}}\n      - allow: all\n        match: y/*\n        cluster: {id: c, kubeconfigSecret: {namespace: a/b, name: c}}\n";
    let errors = check(&repository("https://x/y", "", environment)).unwrap_err();
    assert_eq!(
        errors,
        [
            "loop.yaml:12: `cluster`: exactly one of `inCluster: true`, `kubeconfigFile` and `kubeconfigSecret` is required",
            "loop.yaml:15: `namespace`: `a/b` is not an object name",
        ]
    );
}

#[test]
fn a_forge_is_derived_from_the_repository_and_queried_with_a_token() {
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
            token: Some("/s/token".to_owned()),
            details: false,
            previews: true,
            live: None,
        })
    );
    let live =
        "kind: gitea, tokenFile: /s/token, previews: true, live: true, forkLabel: safe to ask";
    let found = forge(url, live).unwrap().repositories[0].forge.clone();
    let fork_label = Some("safe to ask".to_owned());
    assert_eq!(found.unwrap().live, Some(LivePreviews { fork_label }));
    let none = forge(url, "kind: gitea, webhookSecretFile: /s/hook").unwrap();
    assert_eq!(none.repositories[0].forge, None);
    let check_error = |result: Result<Controller, Vec<String>>, words: &str| {
        let errors = result.unwrap_err();
        assert!(errors[0].contains(words), "{errors:?}");
    };
    check_error(
        forge(url, "kind: gitea, previews: true"),
        "loop.yaml:6: `previews`: requests to the forge need `tokenFile`",
    );
    check_error(
        forge(url, "kind: gitea, tokenFile: /s/token, live: true"),
        "loop.yaml:6: `live`: it has no effect without `previews: true`",
    );
    check_error(
        forge(
            url,
            "kind: gitea, tokenFile: /s/token, previews: true, forkLabel: x",
        ),
        "loop.yaml:6: `forkLabel`: it has no effect without `live: true`",
    );
    check_error(
        forge(
            url,
            "kind: gitea, tokenFile: /s/token, previews: true, live: true, forkLabel: \" \"",
        ),
        "loop.yaml:6: `forkLabel`: expected a label name",
    );
    check_error(
        forge("/srv/fleet", "kind: gitea, tokenFile: /s/token"),
        "`forge`: expected a repository URL",
    );
    check_error(
        forge(
            url,
            "kind: gitea, url: \"http://git.example.org/api/v1\", tokenFile: /s/token",
        ),
        "`forge`: tokens are sent over https only",
    );
}

#[test]
fn a_grant_without_allow_is_an_error() {
    let grant = |allow: &str| {
        check(&format!(
            "repositories:\n  - name: fleet\n    url: /srv/fleet\n    environments:\n      - match: env/*\n        cluster: {{inCluster: true, id: c1}}\n{allow}"
        ))
    };
    assert_eq!(
        grant("").unwrap_err(),
        [
            "loop.yaml:7: `repositories[0].environments[0]`: `allow` is required (list the namespaces and kinds that its branches are allowed to write; `allow: all` leaves only the permissions of the account as a limit)"
        ]
    );
    let everything = grant("        allow: all\n").unwrap();
    assert!(everything.repositories[0].environments[0].allow.is_none());
    assert!(
        grant("        allow: {}\n").unwrap().repositories[0].environments[0]
            .allow
            .is_some()
    );
    let errors = grant("        allow: everything\n").unwrap_err();
    assert!(
        errors[0].contains("`all`, or a map with namespaces and clusterScoped"),
        "{errors:?}"
    );
    let errors = grant("        allow: {clusterScoped: [{kind: ClusterRole}]}\n").unwrap_err();
    assert!(errors[0].contains("`names` is required"), "{errors:?}");
}

#[test]
fn a_grant_sets_the_minimum_policy_of_its_environments() {
    let read = |minimum: &str| {
        check(&repository(
            "/srv/fleet",
            "",
            &format!("        minimum: {minimum}\n"),
        ))
    };
    let controller = read("{approval: digest, windows: [{allow: 'Mon-Fri 08:00-16:00'}], protect: [{kind: StatefulSet}]}").unwrap();
    let minimum = &controller.repositories[0].environments[0].minimum;
    assert!(minimum.needs_approval);
    assert_eq!(minimum.protect.len(), 1);
    assert_eq!(minimum.interval, None);
    let paced = read("{interval: 1m}").unwrap();
    let minimum_pace = &paced.repositories[0].environments[0].minimum;
    assert_eq!(minimum_pace.interval, Some(SignedDuration::from_mins(1)));
    assert!(
        !minimum
            .windows
            .are_open("2026-01-10T09:00:00Z".parse().unwrap())
    );
    let errors = read("{windows: [{allow: soon}]}").unwrap_err();
    assert!(
        errors[0].contains("`minimum.windows`: `soon` is not a window"),
        "{errors:?}"
    );
    let none = check(&repository("/srv/fleet", "", "")).unwrap();
    assert_eq!(
        none.repositories[0].environments[0].minimum,
        Minimum::default()
    );
}

#[test]
fn only_allowed_objects_can_be_written() {
    let controller = check(&repository(
        "/srv/fleet",
        "",
        "        allow: {namespaces: [team-a-*], clusterScoped: [Namespace, Widget.example.org]}\n",
    ))
    .unwrap();
    let allow = controller.repositories[0].environments[0].allow.clone();
    let allow = allow.unwrap();
    let permits = |group: &str, kind: &str, namespace: Option<&str>, name: &str| {
        allow.permits(&ObjectId::new(group, kind, namespace, name))
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
    let needed = |namespace| {
        let secret = ObjectId::new("", "Secret", Some(namespace), "token");
        allow.refuse_needed(&secret).map(|finding| {
            (
                finding.code,
                finding.message,
                finding.object == Some(secret),
            )
        })
    };
    assert_eq!(needed("team-a-web"), None);
    assert_eq!(
        needed("kube-system"),
        Some((
            "not-allowed".to_owned(),
            "the controller is not allowed to read it for this environment (`dependsOn`)"
                .to_owned(),
            true
        ))
    );
    // The Namespace object of a forbidden namespace is forbidden, too.
    assert!(permits("", "Namespace", None, "team-a-web"));
    assert!(!permits("", "Namespace", None, "kube-system"));
}

fn read_notifications(notifications: &str) -> Result<Controller, Vec<String>> {
    let rest = repository("/srv/fleet", "", "");
    check(&format!("notifications: {notifications}\n{rest}"))
}

#[test]
fn notifications_are_read() {
    let text = "[{webhook: {urlFile: url, template: \"{{ release }}: {{ message }}\"}, on: [failed]}, {webhook: {urlFile: other}}]";
    let controller = read_notifications(text).unwrap();
    let change = |cause| StateChange {
        cause,
        environment: "prod".to_owned(),
        release: "web".to_owned(),
        version: "v1".to_owned(),
        revision: "abc".to_owned(),
        message: "no".to_owned(),
        at: "now".to_owned(),
    };
    let bodies = |cause| -> Vec<Option<String>> {
        let notifications = controller.notifications.iter();
        notifications
            .map(|one| one.body(&change(cause)).map(Result::unwrap))
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
fn an_invalid_template_is_refused() {
    let errors =
        read_notifications("[{webhook: {urlFile: url, template: \"{{ secret }}\"}}]").unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].starts_with("loop.yaml:3: `template`: "),
        "{errors:?}"
    );
    let errors = read_notifications("[{webhook: {urlFile: \"\"}, on: []}]").unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:?}");
    for on in ["on", "\"on\""] {
        let text = format!("[{{webhook: {{urlFile: url}}, {on}: [failed, drift]}}]");
        let errors = read_notifications(&text).unwrap_err();
        assert!(
            errors[0].contains("`notifications[0].on[1]`: `drift` is not one of "),
            "{errors:?}"
        );
    }
}

#[test]
fn keys_for_encrypted_files_are_checked() {
    let read = |decryption: &str| {
        let line = format!("        decryption: {decryption}\n");
        check(&repository("https://git.example.org/fleet.git", "", &line))
    };
    let valid = "{ageKeysFile: keys, sopsProgram: /usr/bin/sops, sopsVariables: [AWS_REGION, _A1]}";
    let controller = read(valid).unwrap();
    let decryption = &controller.repositories[0].environments[0].decryption;
    let expected = Decryption {
        age_keys: Some("keys".to_owned()),
        sops_program: Some("/usr/bin/sops".to_owned()),
        sops_variables: vec!["AWS_REGION".to_owned(), "_A1".to_owned()],
    };
    assert_eq!(*decryption, expected);
    for (decryption, expected) in [
        ("{}", "`ageKeysFile`, `sopsProgram` or both are required"),
        ("{sopsProgram: sops}", "expected an absolute path"),
        (
            "{ageKeysFile: keys, sopsVariables: [A]}",
            "`sopsVariables` needs `sopsProgram`",
        ),
        (
            "{sopsProgram: /sops, sopsVariables: [A, 'B=1']}",
            "`B=1` is not the name of a variable",
        ),
    ] {
        let findings = read(decryption).unwrap_err();
        assert_eq!(findings.len(), 1, "{decryption}: {findings:?}");
        assert!(findings[0].contains(expected), "{decryption}: {findings:?}");
    }
}
