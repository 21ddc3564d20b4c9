//! User requests, policies and limits that stop the controller.

use std::time::{Duration, Instant};

use crate::desk::until_followed;
use crate::fleet::Fleet;
use crate::handover::moving;
use crate::loop_run::fleet;
use crate::samples::{BUNDLE, config_map};

#[test]
fn what_is_suspended_is_left_alone_until_it_is_resumed() {
    let fleet = fleet("loop-held", "{interval: 1s}");
    let running = fleet.runs();
    fleet.until_value("first");
    fleet.until_ready();
    fleet
        .run(&["suspend", "loop-held", "--reason", "tests"])
        .ended_with(0);
    let looks = || running.looks("loop-held", "web", "suspended");
    fleet.until("the suspension", |_| (looks() > 0.0).then_some(()));
    fleet.push_value("first", "second");
    let seen = looks();
    fleet.until("another look", |_| (looks() > seen + 1.0).then_some(()));
    assert_eq!(fleet.value().as_deref(), Some("first"));
    fleet.run(&["resume", "loop-held"]).ended_with(0);
    fleet.until_value("second");
    running.stopped();
}

#[test]
fn a_commit_of_which_nothing_can_be_carried_out_stalls_the_release() {
    let fleet = fleet("loop-blocked", "{interval: 1s, drift: report}");
    let running = fleet.runs();
    fleet.until_value("first");
    fleet.until_ready();
    fleet.edit_by_hand("ann");
    fleet.until_condition("Drifted", "ChangedByOthers");
    fleet.push_value("first", "second");
    let said = fleet.until_condition("Stalled", "Blocked");
    assert!(said.contains("ConfigMap/loop-blocked/web"), "{said}");
    assert_eq!(fleet.value().as_deref(), Some("ann"));
    // The other manager releases the field.
    fleet.edit_by_hand("second");
    fleet.until_not("Stalled");
    running.stopped();
}

#[test]
fn a_request_to_sync_is_carried_out_also_outside_of_the_windows() {
    let fleet = fleet("loop-windows", "{interval: 1h}");
    let repo = fleet.repo.path().to_str().unwrap().to_owned();
    let running = fleet.runs_with(&["--repo", &repo, "loop-windows"]);
    fleet.until_value("first");
    fleet.until_ready();
    // Drift is found because of the request.
    fleet.edit_by_hand("bob");
    fleet.run(&["sync", "loop-windows"]).ended_with(0);
    fleet.until_value("first");
    fleet.until("the request", |fleet| {
        let release = fleet.get(&["release.pleach.dev/loop-windows.web"])?;
        release["spec"]["sync"].is_null().then_some(())
    });
    // So is a push without a webhook.
    fleet.push_value("first", "pushed");
    let since = Instant::now();
    fleet.run(&["sync", "loop-windows"]).ended_with(0);
    fleet.until_value("pushed");
    assert!(since.elapsed() < Duration::from_secs(30), "{since:?}");
    fleet.push_value("pushed", "first");
    fleet.run(&["sync", "loop-windows"]).ended_with(0);
    fleet.until_value("first");
    fleet.until_ready();
    running.stopped();

    // All times are denied. Drift is corrected, but changes in git wait.
    let never = "{interval: 1s, windows: [{deny: \"00:00-24:00\"}]}";
    fleet.edit_environment("{interval: 1h}", never);
    fleet.push("windows");
    let running = fleet.runs_with(&["--repo", &repo, "loop-windows"]);
    fleet.edit_by_hand("carl");
    fleet.until_value("first");
    fleet.push_value("first", "second");
    let said = fleet.until_condition("Reconciling", "WindowClosed");
    assert_eq!(said, "the environment allows no sync at this time");
    let looks = || running.looks("loop-windows", "web", "waiting");
    let before = looks();
    fleet.until("a look", |_| (looks() > before + 2.0).then_some(()));
    assert_eq!(fleet.value().as_deref(), Some("first"));
    fleet.edit_by_hand("dora");
    fleet.until_value("first");
    running.stopped();
    // A controller that did not apply it does so too.
    fleet.edit_by_hand("eve");
    let running = fleet.runs_with(&["--repo", &repo, "loop-windows"]);
    fleet.until_value("first");
    fleet
        .run(&["sync", "loop-windows", "--override-window"])
        .ended_with(0);
    fleet.until_value("second");
    fleet.until_not("Reconciling");
    running.stopped();
}

#[test]
fn a_sync_that_is_waited_for_ends_with_the_result_of_the_push_before_it() {
    let fleet = fleet("loop-awaited", "{interval: 1h}");
    let repo = fleet.repo.path().to_str().unwrap().to_owned();
    let running = fleet.runs_with(&["--repo", &repo, "loop-awaited"]);
    fleet.until_value("first");
    fleet.until_ready();
    until_followed(&fleet);
    fleet.push_value("first", "second");
    fleet
        .run(&["sync", "loop-awaited", "--wait", "--timeout", "60s"])
        .ended_with(0)
        .says("loop-awaited/web: deployed");
    assert_eq!(fleet.value().as_deref(), Some("second"));
    running.stopped();
    // Nobody would execute the request of a suspended release.
    fleet.run(&["suspend", "loop-awaited"]).ended_with(0);
    fleet
        .run(&["sync", "loop-awaited", "--wait"])
        .ended_with(7)
        .says("no sync was requested");
}

#[test]
fn nothing_is_written_beside_what_the_configuration_allows() {
    let fleet = fleet("loop-allow", "{interval: 1s}");
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    let config = fleet.configuration(&url, "        allow: {namespaces: [loop-al*]}\n");
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_value("first");
    let elsewhere =
        config_map("web", "x").replace("{name: web}", "{name: web, namespace: default}");
    fleet.write("manifests/web/elsewhere.yaml", &elsewhere);
    fleet.push_value("first", "second");
    let said = fleet.until_condition("Stalled", "Refused");
    assert!(
        said.contains("ConfigMap/default/web: the controller is not allowed to write to it")
            && said.contains("; hint: `allow` in the controller's configuration sets these limits"),
        "{said}"
    );
    assert_eq!(fleet.value().as_deref(), Some("first"));
    assert!(!fleet.exists(&["configmap", "web", "-n", "default"]));
    fleet.remove("manifests/web/elsewhere.yaml");
    fleet.push("back");
    fleet.until_value("second");
    fleet.until_not("Stalled");
    running.stopped();
}

#[test]
fn state_is_kept_only_where_the_configuration_allows() {
    let fleet = fleet("loop-store", "{interval: 1s}");
    for namespace in ["elsewhere-store", "loop-store-keys"] {
        fleet.create_namespace(namespace);
    }
    fleet.extend_environment("state: {kind: ConfigMap, namespace: elsewhere-store}\n");
    fleet.push("state");
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    let config = fleet.configuration(&url, "        allow: {namespaces: [loop-store]}\n");
    let keys = ["--key-namespace", "loop-store-keys"];
    let mut running = fleet.runs_with(&[&["--config", &config][..], &keys].concat());
    running.running.until_says(
        "state is kept in namespace elsewhere-store (`state` in the environment file), where the controller is not allowed to write",
    );
    let refused = || running.looks("loop-store", "web", "refused") > 0.0;
    fleet.until("a refusal", |_| refused().then_some(()));
    assert_eq!(fleet.value(), None);
    let all = ["get", "configmaps,secrets,leases", "-o", "name"];
    let kept = fleet.kubectl(&[&all[..], &["-n", "elsewhere-store"]].concat());
    let kept = kept.lines().filter(|name| !name.contains("kube-root-ca"));
    assert_eq!(kept.count(), 0);

    fleet.edit_environment("namespace: elsewhere-store", "namespace: loop-store");
    fleet.push("here");
    fleet.until_value("first");
    assert!(fleet.exists(&["configmap", "loop-store.web", "-n", "loop-store"]));
    running.stopped();
}

#[test]
fn copies_come_only_from_where_the_configuration_allows() {
    let fleet = moving("loop-copy");
    fleet.extend_environment("sync: {interval: 1s}\n");
    fleet.commit();
    fleet.applied();
    let settings = ["create", "configmap", "settings", "-n", "loop-copy-a"];
    fleet.kubectl(&[&settings[..], &["--from-literal=k=theirs"]].concat());
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.push("move");
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    let config = fleet.configuration(&url, "        allow: {namespaces: [loop-copy-b]}\n");
    let mut running = fleet.runs_with(&["--config", &config]);
    running.running.until_says(
        "ConfigMap/loop-copy-a/settings: the controller is not allowed to copy from it for this environment",
    );
    running.stopped();
    assert!(!fleet.exists(&["configmap", "settings", "-n", "loop-copy-b"]));
    assert!(fleet.exists(&["deployment", "shop", "-n", "loop-copy-a"]));
}

#[test]
fn what_a_release_depends_on_is_read_only_where_the_configuration_allows() {
    let fleet = fleet("loop-peek", "{interval: 1s}");
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    let config = fleet.configuration(&url, "        allow: {namespaces: [loop-peek]}\n");
    fleet.create_namespace("loop-peek-theirs");
    let secret = [
        "create",
        "secret",
        "generic",
        "token",
        "-n",
        "loop-peek-theirs",
    ];
    fleet.kubectl(&[&secret[..], &["--from-literal=pw=hunter2"]].concat());
    let needs = "dependsOn: [{kind: Secret, name: token, namespace: loop-peek-theirs, ready: \"has(data.pw)\"}]";
    fleet.edit_environment("bundle: web,", &format!("bundle: web, {needs},"));
    fleet.push("peek");
    let mut running = fleet.runs_with(&["--config", &config]);
    running
        .running
        .until_says("Secret/loop-peek-theirs/token: the controller is not allowed to read it for this environment");
    running.stopped();
    assert_eq!(fleet.value(), None);
}

#[test]
fn an_environment_on_two_branches_is_synced_from_neither() {
    let fleet = fleet("loop-both", "{interval: 1s}");
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    fleet.applied();
    let again = {
        let (id, kubeconfig) = (fleet.cluster_id(), crate::shared().kubeconfig().display());
        format!(
            "      - {{name: loop-both, branch: main, cluster: {{id: {id}, kubeconfigFile: {kubeconfig}}}, allow: all}}\n"
        )
    };
    let config = fleet.configuration(&url, &again);
    let running = fleet.runs_with(&["--config", &config]);
    fleet.push_value("first", "second");
    let said = fleet.until_condition("Stalled", "Contested");
    assert!(
        said.contains("env/loop-both of fleet, main of fleet"),
        "{said}"
    );
    assert_eq!(fleet.value().as_deref(), Some("first"));
    running.stopped();
}

#[test]
fn the_wrong_cluster_is_not_written_to() {
    let fleet = fleet("loop-wrong", "{interval: 1s}");
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    let wrong = "00000000-0000-0000-0000-000000000000";
    let text = fleet.configuration_text(&url, "");
    let config = fleet.file("wrong.yaml", &text.replace(&fleet.cluster_id(), wrong));
    // The branch cannot select another cluster.
    let (mut running, events) = fleet.watched(|fleet| {
        let mut running = fleet.runs_with(&["--config", &config]);
        running.running.until_says("environment stalled");
        running
    });
    running.running.until_says("WrongCluster");
    assert_eq!(events.writes().to_string(), "");
    running.stopped();
}

#[test]
fn a_commit_for_another_cluster_is_held_and_hides_nothing() {
    let fleet = fleet("loop-else", "{interval: 1s}");
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    let config = fleet.configuration(&url, "");
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_value("first");
    fleet.until_ready();
    let (right, wrong) = (fleet.cluster_id(), "00000000-0000-0000-0000-000000000000");
    fleet.edit_environment(&right, wrong);
    fleet.push_value("first", "second");
    let said = fleet.until_condition("Stalled", "WrongCluster");
    assert!(said.contains(wrong), "{said}");
    // The last good commit is maintained.
    fleet.edit_by_hand("ann");
    fleet.until_value("first");
    // The next commit's problem replaces it in the condition.
    fleet.write("manifests/web/bad.yaml", "kind: [\n");
    fleet.push("broken");
    let said = fleet.until_condition("Stalled", "InvalidRepository");
    assert!(said.contains("manifests/web/bad.yaml:"), "{said}");
    fleet.remove("manifests/web/bad.yaml");
    fleet.edit_environment(wrong, &right);
    fleet.push("right");
    fleet.until_value("second");
    fleet.until_not("Stalled");
    running.stopped();
}

#[test]
fn a_kubeconfig_that_runs_programs_is_refused() {
    let fleet = fleet("loop-exec", "{interval: 1s}");
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    let kubeconfig = fleet.file(
        "exec.yaml",
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: \"https://127.0.0.1:1\"}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [/nowhere/touched]}}}]\n",
    );
    let text = fleet.configuration_text(&url, "");
    let known = crate::shared().kubeconfig().display().to_string();
    let config = fleet.file("loop-exec.yaml", &text.replace(&known, &kubeconfig));
    let mut running = fleet.runs_with(&["--config", &config]);
    running
        .running
        .until_says("user a in it runs a program for its credentials");
    running.stopped();
}

/// Adds release extra with a `ConfigMap` and pushes it. Returns the environment file without it.
fn with_extra(fleet: &Fleet) -> String {
    fleet.write("manifests/extra/bundle.yaml", BUNDLE);
    fleet.write("manifests/extra/extra.yaml", &config_map("extra", "x"));
    let namespace = fleet.environment;
    let release = format!("  - {{name: extra, bundle: extra, namespace: {namespace}}}\n");
    let file = fleet.environment_file();
    let text = fleet.read(&file);
    fleet.write(
        &file,
        &text.replace("releases:\n", &format!("releases:\n{release}")),
    );
    fleet.push("two releases");
    text
}

#[test]
fn a_release_that_left_git_goes_outside_of_the_windows_where_somebody_asks_for_that() {
    let fleet = fleet("loop-late", "{interval: 1s}");
    let text = with_extra(&fleet);
    let running = fleet.runs();
    let extra = || fleet.exists(&["configmap", "extra", "-n", "loop-late"]);
    fleet.until("extra", |_| extra().then_some(()));
    fleet.until_ready();
    running.stopped();

    let never = "{interval: 1s, windows: [{deny: \"00:00-24:00\"}]}";
    let text = text.replace("{interval: 1s}", never);
    fleet.write(&fleet.environment_file(), &text);
    fleet.push("one release");
    let running = fleet.runs();
    let sync = ["sync", "loop-late/extra", "--override-window"];
    // Without consent, the release is retained, and the request is done.
    fleet.run(&sync).ended_with(0);
    fleet.until("the request", |fleet| {
        let release = fleet.get(&["release.pleach.dev/loop-late.extra"])?;
        let is_removed = release["status"]["record"]["removed"] == true;
        (is_removed && release["spec"]["sync"].is_null()).then_some(())
    });
    fleet.extend_environment("consent: [{action: uninstall, release: extra}]\n");
    let consent = fleet.push("consent");
    fleet.until("the commit to be read", |_| {
        running.running.said().contains(&consent).then_some(())
    });
    fleet.until_reconciled_twice(&running);
    assert!(extra());
    fleet.run(&sync).ended_with(0);
    fleet.until("the end", |_| (!extra()).then_some(()));
    running.stopped();
}

#[test]
fn a_release_that_left_git_goes_with_consent_only() {
    let fleet = fleet("loop-left", "{interval: 1s}");
    let file = fleet.environment_file();
    let text = with_extra(&fleet);
    let running = fleet.runs();
    let extra = || fleet.exists(&["configmap", "extra", "-n", "loop-left"]);
    fleet.until("extra", |_| extra().then_some(()));
    fleet.until_value("first");
    fleet.write(&file, &text);
    fleet.push("one release");
    let ready = "{.status.conditions[?(@.type==\"Ready\")].reason}";
    fleet.until("the removal", |fleet| {
        let reason = fleet.field(&["release.pleach.dev/loop-left.extra"], ready);
        (reason == "Removed").then_some(())
    });
    assert!(extra());
    fleet.extend_environment("consent: [{action: uninstall, release: extra}]\n");
    fleet.push("consent");
    fleet.until("the end", |fleet| {
        let there = extra() || fleet.exists(&["release.pleach.dev/loop-left.extra"]);
        (!there).then_some(())
    });
    assert_eq!(fleet.value().as_deref(), Some("first"));
    running.stopped();
}

#[test]
fn a_release_that_comes_back_while_it_ends_is_not_ended() {
    comes_back_while_it_ends("loop-back", false);
}

#[test]
fn nothing_ends_by_an_older_commit_than_the_one_that_is_held() {
    comes_back_while_it_ends("loop-back-held", true);
}

/// Restores a release while it is being removed, by a commit that is stalled at first if `is_held`.
fn comes_back_while_it_ends(environment: &'static str, is_held: bool) {
    let fleet = fleet(environment, "{interval: 1s}");
    let record = format!("release.pleach.dev/{environment}.extra");
    let file = fleet.environment_file();
    let without = with_extra(&fleet);
    let with = fleet.read(&file);
    let running = fleet.runs();
    fleet.until("extra", |fleet| {
        let release = fleet.get(&[&record])?;
        (release["status"]["record"]["ready"] == true).then_some(())
    });
    let extra = ["configmap", "extra", "-n", environment];
    let hold = |finalizers: &str| {
        let patch = format!("--patch={{\"metadata\":{{\"finalizers\":{finalizers}}}}}");
        let merge = ["--type=merge", patch.as_str()];
        fleet.kubectl(&[&["patch"][..], &extra, &merge].concat());
    };
    hold("[\"tests.example.org/held\"]");
    fleet.write(&file, &without);
    fleet.extend_environment("consent: [{action: uninstall, release: extra}]\n");
    fleet.push("one release");
    let is_ending = |fleet: &Fleet| {
        let live = fleet.get(&extra)?;
        Some(live["metadata"]["deletionTimestamp"].is_string())
    };
    fleet.until("the deletion", |fleet| is_ending(fleet)?.then_some(()));
    // The removal waits for the object, and the restore ends the wait.
    let bad = "manifests/web/bad.yaml";
    fleet.write(&file, &with);
    if is_held {
        fleet.write(bad, "kind: [\n");
    }
    fleet.push("two releases");
    let given_up = || running.looks(environment, "extra", "superseded") > 0.0;
    fleet.until("its end is given up", |_| given_up().then_some(()));
    hold("null");
    if is_held {
        assert!(fleet.exists(&[&record]));
        fleet.remove(bad);
        fleet.push("good");
    }
    fleet.until("extra anew", |fleet| (!is_ending(fleet)?).then_some(()));
    running.stopped();
}

#[test]
fn what_is_done_is_done_as_the_service_account_that_is_named() {
    let fleet = fleet("loop-account", "{interval: 1s}");
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    let account = "        serviceAccount: loop-account/deployer\n";
    let config = fleet.configuration(&url, account);
    // The controller has no permissions, regardless of the kubeconfig.
    let mut running = fleet.runs_with(&["--config", &config]);
    running
        .running
        .until_says("system:serviceaccount:loop-account:deployer");
    assert_eq!(fleet.value(), None);
    running.stopped();
}

/// Deletes the inventory shards of release web.
fn lose_inventory(fleet: &Fleet) {
    let label = format!("pleach.dev/release={}.web", fleet.environment);
    for shard in fleet.state_maps(&label) {
        fleet.kubectl(&["-n", "pleach-system", "delete", "configmap", &shard]);
    }
}

#[test]
fn why_a_loop_that_starts_can_make_no_plan_is_told_of_records_of_its_repository() {
    let fleet = fleet("loop-torn", "{interval: 1s}");
    fleet.applied();
    lose_inventory(&fleet);
    let running = fleet.runs();
    let said = fleet.until_condition("Stalled", "Failed");
    assert!(
        said.starts_with("the inventory of release loop-torn.web is incomplete: "),
        "{said}"
    );
    running.stopped();

    // A release of another repository with this name is not reported.
    fleet.edit("pleach.yaml", "id: loop-torn", "id: another");
    fleet.push("another");
    let patch = r#"--patch={"status":{"conditions":[]}}"#;
    let release = ["release.pleach.dev", "loop-torn.web"];
    let clear = ["--subresource=status", "--type=merge", patch];
    fleet.kubectl(&[&["patch"][..], &release, &clear].concat());
    let running = fleet.runs();
    let failed = || running.looks("loop-torn", "web", "failed");
    fleet.until("failures", |_| (failed() > 2.0).then_some(()));
    running.stopped();
    for kind in ["Stalled", "Followed"] {
        assert_eq!(fleet.condition(kind), None, "{kind}");
    }
}

#[test]
fn a_broken_bundle_holds_only_its_release() {
    let fleet = fleet("loop-broken", "{interval: 1s}");
    fleet.edit_environment(
        "releases:\n",
        "releases:\n  - {name: db, bundle: db, namespace: loop-broken}\n",
    );
    fleet.write("manifests/db/bundle.yaml", BUNDLE);
    fleet.write("manifests/db/db.yaml", &config_map("db", "first"));
    fleet.push("db");
    let running = fleet.runs();
    let db = |value: &str| {
        fleet.until(value, |fleet| {
            let live = fleet.get(&["configmap", "db", "-n", "loop-broken"])?;
            (live["data"]["k"] == value).then_some(())
        });
    };
    db("first");
    fleet.until_value("first");
    fleet.until_ready();
    // One push contains an undefined value in web and a fix of db.
    let broken = config_map("more", "{{ values.nothing }}");
    fleet.write("manifests/web/more.yaml.j2", &broken);
    fleet.edit("manifests/db/db.yaml", "k: first", "k: second");
    fleet.push_value("first", "second");
    db("second");
    let said = fleet.until_condition("Stalled", "InvalidRepository");
    assert!(said.contains("manifests/web/more.yaml.j2"), "{said}");
    let table = fleet.kubectl(&["get", "plr", "loop-broken.web"]);
    let (names, row) = table.trim().split_once('\n').unwrap();
    let names: Vec<&str> = names.split_whitespace().collect();
    let expected = [
        "NAME",
        "VERSION",
        "COMMIT",
        "READY",
        "SYNCED",
        "SUSPENDED",
        "MESSAGE",
        "AGE",
    ];
    assert_eq!(names, expected);
    let row: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(row[3..6], ["False", "False", "False"], "{table}");
    assert!(table.contains("manifests/web/more.yaml.j2"), "{table}");
    let conditions = fleet.get(&["release.pleach.dev/loop-broken.db"]).unwrap();
    let conditions = conditions["status"]["conditions"].as_array().cloned();
    let is_stalled = |one: &serde_json::Value| one["type"] == "Stalled";
    assert!(!conditions.unwrap_or_default().iter().any(is_stalled));
    // The release is maintained, even by a controller that did not apply it.
    assert_eq!(fleet.value().as_deref(), Some("first"));
    fleet.edit_by_hand("ann");
    fleet.until_value("first");
    running.stopped();
    fleet.edit_by_hand("bob");
    let running = fleet.runs();
    fleet.until_value("first");
    fleet.remove("manifests/web/more.yaml.j2");
    fleet.push("fixed");
    fleet.until_value("second");
    fleet.until_not("Stalled");
    running.stopped();
}
