//! Sources of the controller: rewritten branches, required signatures, unreachable repositories,
//! and kubeconfigs in Secrets.

#![expect(clippy::disallowed_methods, reason = "tests read what they wrote")]

use std::path::Path;

use pleach_testkit::git_server::GitServer;
use pleach_testkit::ssh_server::{SshServer, make_key};
use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::loop_run::{SECRET, fleet};
use crate::shared;

/// Signs the newest commit and moves the branch of the environment there.
fn sign(fleet: &Fleet, key: &Path) -> String {
    let key = format!("user.signingkey={}", key.display());
    let commit = ["commit", "--quiet", "--amend", "--no-edit", "-S"];
    let settings = ["-c", "gpg.format=ssh", "-c", &key];
    fleet.repo.git(&[&settings[..], &commit].concat()).unwrap();
    let branch = format!("env/{}", fleet.environment);
    fleet.repo.git(&["branch", "--force", &branch]).unwrap();
    fleet.repo.git(&["rev-parse", "HEAD"]).unwrap()
}

#[test]
fn only_signed_commits_are_synced_where_they_have_to_be() {
    let fleet = fleet("loop-signed", "{interval: 1s}");
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("ann");
    make_key(&key).unwrap();
    let public = std::fs::read_to_string(folder.path().join("ann.pub")).unwrap();
    let keys = fleet.file("keys", &format!("ann@example.org {public}"));
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    let text = fleet.configuration_text(&url, "");
    // The interval is in a commit that is not trusted yet, so use webhooks.
    let secret = fleet.file("webhook-secret", SECRET);
    let verify = format!(
        "    verify: {{keysFile: {keys}}}\n    forge: {{kind: github, webhookSecretFile: {secret}}}\n    environments:"
    );
    let config = fleet.file("signed.yaml", &text.replace("    environments:", &verify));

    let started = ["--config", config.as_str()];
    // An unsigned commit is not installed.
    let mut running = fleet.runs_with(&started);
    running.running.until_says("UntrustedCommit");
    assert_eq!(fleet.value(), None);
    sign(&fleet, &key);
    running.pushed();
    fleet.until_value("first");
    fleet.until_ready();

    let commit = fleet.push_value("first", "second");
    let said = fleet.until_condition("Stalled", "UntrustedCommit");
    let start = format!(
        "commit {} of branch env/loop-signed is not trusted",
        &commit[..7]
    );
    assert!(said.starts_with(&start), "{said}");
    assert!(
        said.contains("tester@example.com committed it without a signature"),
        "{said}"
    );
    fleet
        .run(&["status", "loop-signed"])
        .says("loop-signed/web: Stalled: UntrustedCommit: commit ");
    // The last good commit is maintained.
    fleet.edit_by_hand("ann");
    fleet.until_value("first");
    running.stopped();

    // A restart does not trust the commit either.
    let running = fleet.runs_with(&started);
    let looks = "pleach_environment_stalled{environment=\"loop-signed\"}";
    fleet.until("the hold", |_| (running.number(looks) > 0.0).then_some(()));
    assert_eq!(fleet.value().as_deref(), Some("first"));
    fleet.until_condition("Stalled", "UntrustedCommit");
    // The last good commit is in the record and has a signature.
    fleet.edit_by_hand("bob");
    fleet.until_value("first");
    sign(&fleet, &key);
    running.pushed();
    fleet.until_value("second");
    fleet.until_not("Stalled");
    running.stopped();
}

#[test]
fn a_repository_over_ssh_is_followed() {
    let fleet = fleet("loop-ssh", "{interval: 1s}");
    let server = SshServer::start().unwrap();
    let hosts = fleet.file("known_hosts", &server.known_hosts().unwrap());
    let text = fleet.configuration_text(&server.url(&fleet.repo.path().join(".git")), "");
    let key = server.key();
    let auth = format!(
        "    auth: {{sshKeyFile: {}, knownHostsFile: {hosts}}}\n    environments:",
        key.display()
    );
    let config = fleet.file("ssh.yaml", &text.replace("    environments:", &auth));
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_value("first");
    fleet.until_ready();
    fleet.push_value("first", "second");
    fleet.until_value("second");
    // A host with another key is refused.
    fleet.file("known_hosts", "");
    let said = fleet.until_condition("SourceUnavailable", "Unreachable");
    assert!(said.contains(&server.fingerprint().unwrap()), "{said}");
    running.stopped();
}

#[test]
fn environments_of_a_pattern_are_known_while_git_is_away() {
    let fleet = fleet("loop-pattern", "{interval: 1s}");
    let mut server = GitServer::start(fleet.repo.path()).unwrap();
    let one = "      - name: loop-pattern\n        branch: env/loop-pattern\n";
    let text = fleet.configuration_text(&server.url(".git"), "");
    assert!(text.contains(one), "{text}");
    let config = fleet.file("pattern.yaml", &text.replace(one, "      - match: env/*\n"));
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_value("first");
    fleet.until_ready();
    let release = fleet.get(&["release.pleach.dev/loop-pattern.web"]).unwrap();
    let source = &release["status"]["record"]["source"];
    assert_eq!(source["url"], server.url(".git").as_str());
    assert_eq!(source["branch"], "env/loop-pattern");
    running.stopped();

    server.close();
    let running = fleet.runs_with(&["--config", &config]);
    let said = fleet.until_condition("SourceUnavailable", "Unreachable");
    assert!(said.contains("failed to fetch http://127.0.0.1:"), "{said}");
    // Nothing is deleted or stalled; the state is only unknown.
    assert_eq!(fleet.value().as_deref(), Some("first"));
    assert_eq!(fleet.condition("Stalled"), None);
    fleet.push_value("first", "second");
    server.open().unwrap();
    fleet.until_value("second");
    fleet.until_not("SourceUnavailable");
    running.stopped();

    // A branch deleted meanwhile is reported once this is known.
    server.close();
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_condition("SourceUnavailable", "Unreachable");
    fleet
        .repo
        .git(&["branch", "-D", "env/loop-pattern"])
        .unwrap();
    server.open().unwrap();
    fleet.until_condition("Stalled", "BranchMissing");
    assert_eq!(fleet.value().as_deref(), Some("second"));
    running.stopped();
}

#[test]
fn a_branch_that_is_written_anew_is_followed_and_an_empty_one_deletes_nothing() {
    let fleet = fleet("loop-anew", "{interval: 1s}");
    let branch = "env/loop-anew";
    let running = fleet.runs();
    fleet.until_value("first");
    fleet.until_ready();
    // A history without a common commit.
    fleet
        .repo
        .git(&["checkout", "--quiet", "--orphan", "other"])
        .unwrap();
    fleet.push_value("first", "second");
    fleet.until_value("second");
    // Forced back to the previous commit.
    fleet
        .repo
        .git(&["branch", "--force", branch, "main"])
        .unwrap();
    fleet.until_value("first");
    // A commit without files.
    let tree = fleet
        .repo
        .git(&["hash-object", "-t", "tree", "-w", "/dev/null"])
        .unwrap();
    let empty = fleet
        .repo
        .git(&["commit-tree", &tree, "-m", "empty"])
        .unwrap();
    fleet
        .repo
        .git(&["branch", "--force", branch, &empty])
        .unwrap();
    let reason = fleet.until("a hold", |fleet| fleet.condition("Stalled"));
    assert!(
        ["EnvironmentMissing", "InvalidRepository"].contains(&reason.0.as_str()),
        "{reason:?}"
    );
    assert_eq!(fleet.value().as_deref(), Some("first"));
    fleet
        .repo
        .git(&["branch", "--force", branch, "other"])
        .unwrap();
    // Without an interval, the environment is reconciled once a minute.
    running.pushed();
    fleet.until_value("second");
    fleet.until_not("Stalled");
    running.stopped();
}

#[test]
fn a_kubeconfig_in_a_secret_is_used_and_followed() {
    let fleet = fleet("loop-secret", "{interval: 1s}");
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    let file = shared().kubeconfig();
    let text = fleet.configuration_text(&url, "");
    let from_file = format!("kubeconfigFile: {}", file.display());
    assert!(text.contains(&from_file), "{text}");
    let from_secret = "kubeconfigSecret: {namespace: loop-secret, name: way, key: value}";
    let config = fleet.file("secret.yaml", &text.replace(&from_file, from_secret));
    let good = std::fs::read_to_string(file).unwrap();
    let put = |kubeconfig: &str| {
        let path = fleet.file("way", kubeconfig);
        let from = format!("--from-file=value={path}");
        fleet.kubectl(&[
            "delete",
            "secret",
            "way",
            "-n",
            "loop-secret",
            "--ignore-not-found",
        ]);
        fleet.kubectl(&[
            "create",
            "secret",
            "generic",
            "way",
            "-n",
            "loop-secret",
            &from,
        ]);
    };

    let mut running = fleet.runs_with(&["--config", &config]);
    running.running.until_says("the Secret does not exist");
    let plugin = "exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [/nowhere/touched]}";
    for (user, refused) in [
        (plugin, "user a in it runs a program"),
        (
            "tokenFile: /var/run/secrets/token",
            "it refers to a file of the controller (tokenFile)",
        ),
    ] {
        put(&format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{{name: a, cluster: {{server: \"https://127.0.0.1:1\"}}}}]\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\nusers: [{{name: a, user: {{{user}}}}}]\n"
        ));
        running.running.until_says(refused);
    }
    assert_eq!(fleet.value(), None);
    put(&good);
    fleet.until_value("first");
    fleet.until_ready();

    // Another kubeconfig with an unreachable server is used without a push.
    let mut other: Value = serde_json::from_str(&good).unwrap();
    other["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
    put(&other.to_string());
    running.running.until_says("https://127.0.0.1:1");
    put(&good);
    fleet.push_value("first", "second");
    fleet.until_value("second");
    running.stopped();
}
