use std::collections::BTreeMap;

use pleach_report::status::{Drift, LiveStatus, MemberStatus};
use pleach_state::inventory::SyncRequest;

use super::*;

fn release(name: &str, status: &Value) -> ReleaseSummary {
    ReleaseSummary::read(&json!({"metadata": {"name": name}, "status": status})).unwrap()
}

fn attempt(version: &str) -> Value {
    let revision = "0123456789012345678901234567890123456789";
    json!({"version": version, "revision": revision, "digest": format!("sha256:{}", "0".repeat(64)),
        "at": "2026-07-01T10:00:00Z"})
}

fn releases() -> Vec<ReleaseSummary> {
    let ready = |status: &str, reason: &str, message: &str| json!([{"type": "Ready", "status": status, "reason": reason, "message": message}]);
    vec![
        release(
            "prod.api",
            &json!({"conditions": ready("True", "Deployed", ""), "record": {
            "format": 1, "repository": "fleet", "installed": attempt("v1"), "stage": "verify", "entries": 12,
            "history": [{"version": "v1", "revision": "none", "result": "deployed", "at": "2026-07-01T10:00:00Z"}]}}),
        ),
        release(
            "prod.old",
            &json!({"conditions": ready("False", "Failed", "1 step failed:\nno"), "record": {
            "format": 1, "repository": "fleet", "installed": attempt("v1"), "applying": attempt("v2"), "stage": "workloads"}}),
        ),
        release("prod.odd", &json!({"record": {"format": 99}})),
        release(
            "prod.theirs",
            &json!({"conditions": ready("True", "", ""), "record": {
            "format": 1, "repository": "other", "applying": attempt("v3")}}),
        ),
        release("prod.web", &json!({})),
    ]
}

fn declared() -> DeclaredVersions {
    let release = |name: &str, version: &str| (name.to_owned(), Some(version.to_owned()));
    DeclaredVersions {
        environment: "prod".to_owned(),
        repository: "fleet".to_owned(),
        releases: vec![
            release("api", "v2"),
            release("cache", "v3"),
            release("odd", "v1"),
            ("web".to_owned(), None),
        ],
        only: None,
    }
}

fn now() -> Timestamp {
    "2026-07-01T10:05:00Z".parse().unwrap()
}

fn check(releases: &[ReleaseSummary], declared: Option<&DeclaredVersions>) -> String {
    let shown = text(releases, None, declared, None, now());
    anstream::adapter::strip_str(&shown).to_string()
}

#[test]
fn releases_are_a_table_with_problems_below() {
    insta::assert_snapshot!(check(&releases(), Some(&declared())), @r"
    RELEASE      VERSION   REVISION  READY    STAGE      ENTRIES  AS OF
    prod/api     v1        0123456   True     verify     12       5m ago
    prod/old     v1 -> v2  0123456   False    workloads  0
    prod/odd     ?         ?         Unknown  ?          ?        ?
    prod/theirs  -> v3     0123456   True                0
    prod/web                         Unknown             0
    prod/old: Failed: 1 step failed: no
    prod/odd: the record of release prod.odd has format 99, written by a newer pleach; this version writes format 6
    prod/web: its readiness is not known yet
    git: prod/cache (v3) is not installed
    git: prod/api is pinned to v2, and v1 is installed
    git: prod/old is installed, and environment prod no longer has it
    git: prod/theirs belongs to repository other, not to fleet
    ");
}

#[test]
fn without_git_no_version_is_compared() {
    assert_eq!(check(&[], None), "no releases are installed");
    let typo: Target = "pord/web".parse().unwrap();
    assert_eq!(
        text(&[], Some(&typo), None, None, now()),
        "nothing of pord/web is installed"
    );
    let value = json(&releases(), None, None, now());
    assert_eq!(value.get("notInstalled"), None);
    assert_eq!(value["releases"][0].get("git"), None);
}

#[test]
fn json_has_the_same_content() {
    let value = json(&releases(), Some(&declared()), None, now());
    assert_eq!(
        value["notInstalled"],
        json!([{"release": "cache", "version": "v3"}])
    );
    assert_eq!(
        value["releases"][0]["git"],
        json!({"desired": true, "version": "v2"})
    );
    assert_eq!(
        value["releases"][1]["git"],
        json!({"desired": false, "version": null})
    );
    assert_eq!(value["releases"][1]["applying"]["version"], "v2");
    assert!(
        value["releases"][2]["unreadable"]
            .as_str()
            .unwrap()
            .contains("newer pleach")
    );
}

#[test]
fn one_release_is_compared_alone() {
    let only = DeclaredVersions {
        only: Some("web".to_owned()),
        ..declared()
    };
    let shown = check(&releases()[4..], Some(&only));
    assert!(!shown.contains("cache"), "{shown}");
}

#[test]
fn user_requests_are_shown_below_the_table() {
    let spec = json!({
        "suspend": {"until": "2026-07-01T12:00:00Z", "by": "ann@host", "reason": "the database\nmoves"},
        "sync": {"at": "2026-07-01T10:00:00Z", "by": "bob@host"},
    });
    let release = |spec: &Value| {
        let metadata = json!({"name": "prod.api"});
        ReleaseSummary::read(&json!({"metadata": metadata, "spec": spec})).unwrap()
    };
    let shown = check(&[release(&spec)], None);
    assert!(
        shown.ends_with(
            "prod/api: suspended by ann@host until 2026-07-01T12:00:00Z: the database moves\n\
             prod/api: sync requested by bob@host 5m ago; no controller has executed it yet"
        ),
        "{shown}"
    );
    let value = json(&[release(&spec)], None, None, now());
    let orders = &value["releases"][0]["orders"];
    assert_eq!(orders["suspended"], true);
    assert_eq!(orders["suspend"]["by"], "ann@host");
    assert_eq!(orders["sync"]["by"], "bob@host");

    // An expired suspension is not shown.
    let over = json!({"suspend": {"until": "2026-07-01T10:04:59Z"}});
    assert!(!check(&[release(&over)], None).contains("suspended"));
    let value = json(&[release(&over)], None, None, now());
    assert_eq!(value["releases"][0]["orders"]["suspended"], false);
}

#[test]
fn the_header_names_the_commit_and_the_last_result() {
    let commit = "0123456789012345678901234567890123456789";
    let run = json!({"by": "ann@desk (pid 7)", "seconds": 12});
    let named = |version: &str, revision: &str| {
        let history = json!([{"version": version, "revision": revision, "result": "deployed", "run": run,
            "at": "2026-07-01T10:03:32Z"}]);
        let mut installed = attempt(version);
        installed["revision"] = json!(revision);
        release(
            "dev.shop",
            &json!({"record": {"format": 1, "installed": installed, "history": history}}),
        )
    };
    let subject = "cart: keep\nitems".to_owned();
    let live = Live {
        subjects: [
            (commit.to_owned(), subject.clone()),
            ("0123456".to_owned(), subject),
        ]
        .into(),
        ..live(&[])
    };
    let header = |release: &ReleaseSummary| {
        anstream::adapter::strip_str(&live.header(release, now())).to_string()
    };
    let last = "on kind-dev  deployed 88s ago by ann@desk";
    assert_eq!(
        header(&named(commit, commit)),
        format!("dev/shop  0123456 \"cart: keep items\"  {last}")
    );
    assert_eq!(
        header(&named("v1", "0123456-dirty")),
        format!("dev/shop  v1 at 0123456-dirty \"cart: keep items\"  {last}")
    );
    assert_eq!(
        header(&named("v1", "none")),
        format!("dev/shop  v1  {last}")
    );
    assert_eq!(
        header(&release("dev.new", &json!({}))),
        "dev/new  on kind-dev"
    );
}

/// Returns the first release with live objects.
fn live(unread: &[&str]) -> Live {
    let member = |object: &str, message: &str, drift: Option<Drift>| MemberStatus {
        object: object.parse().unwrap(),
        is_ready: message.is_empty(),
        is_missing: message == "missing",
        message: message.to_owned(),
        drift,
    };
    let drift = |manager: &str, fields: &[&str], is_recreated| {
        Some(Drift {
            manager: manager.to_owned(),
            at: "2026-07-01T10:04:20Z".parse().ok(),
            fields: fields.iter().map(|&field| field.to_owned()).collect(),
            more: 2,
            is_recreated,
        })
    };
    let status = LiveStatus {
        members: vec![
            member("ConfigMap/shop/api", "", drift("ann", &[".data.a"], false)),
            member("Deployment.apps/shop/api", "missing", None),
            member(
                "Deployment.apps/shop/search",
                "0 of 3 replicas ready",
                drift("kubectl", &[], true),
            ),
            member("Service/shop/api", "", None),
        ],
        unread: unread.iter().map(|&why| why.to_owned()).collect(),
    };
    let release = &releases()[0];
    Live {
        at: now(),
        releases: [((release.name.clone(), release.store.clone()), status)].into(),
        lists_all: false,
        cluster: "kind-dev".to_owned(),
        subjects: BTreeMap::new(),
    }
}

#[test]
fn changed_objects_are_shown_with_reason_and_field_manager() {
    let mut live = live(&["failed to list Gear.example.org: no"]);
    let shown = |live: &Live| {
        let shown = text(&releases()[..1], None, None, Some(live), now());
        anstream::adapter::strip_str(&shown).to_string()
    };
    insta::assert_snapshot!(shown(&live), @r"
    prod/api  v1 at 0123456  on kind-dev  deployed 5m ago
      ~ ConfigMap/shop/api           changed by ann 40s ago: .data.a and 2 more
      ✗ Deployment.apps/shop/api     missing
      ✗ Deployment.apps/shop/search  0 of 3 replicas ready; recreated by kubectl 40s ago
      ? failed to list Gear.example.org: no
      ✓ 1 object ready
    NOT READY, 3 objects drifted (seen just now)
    ");
    live.at = "2026-07-01T10:04:30Z".parse().unwrap();
    assert!(shown(&live).ends_with("drifted (seen 30s ago)"));
    live.lists_all = true;
    assert!(shown(&live).contains("  ✓ Service/shop/api\n"));
}

#[test]
fn json_has_live_objects_or_null() {
    let live = live(&[]);
    let value = json(&releases(), None, Some(&live), now());
    let (first, second) = (&value["releases"][0], &value["releases"][1]);
    assert_eq!(
        (&first["ready"], &first["live"]["ready"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(first["live"]["at"], "2026-07-01T10:05:00Z");
    assert_eq!(
        first["live"]["objects"][0],
        json!({"object": "ConfigMap/shop/api", "ready": true, "message": "", "drift": {
            "manager": "ann", "at": "2026-07-01T10:04:20Z", "fields": [".data.a"], "recreated": false}})
    );
    assert_eq!(second["live"], Value::Null);
}

#[test]
fn objects_that_could_not_be_read_leave_readiness_unknown() {
    let mut live = live(&["no"]);
    for status in live.releases.values_mut() {
        status.members.retain(|member| member.is_ready);
    }
    let value = json(&releases(), None, Some(&live), now());
    assert_eq!(value["releases"][0]["ready"], Value::Null);
}

#[test]
fn a_request_that_no_controller_accepts_is_shown_as_stale() {
    let request = |at: &str| {
        let mut release = release("prod.web", &json!({}));
        release.user_requests.sync = Some(SyncRequest {
            at: at.parse().unwrap(),
            by: "ann".to_owned(),
            override_window: false,
            after_fetch: false,
            nodes: false,
        });
        check(&[release], None)
    };
    let fresh = request("2026-07-01T10:00:00Z");
    let line = "sync requested by ann 5m ago; no controller has executed it yet";
    assert!(fresh.contains(line) && !fresh.contains("stale"), "{fresh}");
    let stale = request("2026-07-01T09:05:00Z");
    assert!(
        stale.contains("the sync request of ann is stale"),
        "{stale}"
    );
    assert!(
        stale.contains("`pleach sync prod/web --withdraw` withdraws it"),
        "{stale}"
    );
    assert!(!stale.contains("has executed it yet"), "{stale}");
}

#[test]
fn nodes_in_work_and_failed_ones_are_named() {
    let node = |name: &str, phase: &str, message: &str| json!({"name": name, "phase": phase, "since": "2026-07-01T10:04:00Z", "message": message});
    let nodes = json!([
        node("node-3", "Evacuating", "VM db\nhas not left"),
        node("node-2", "Failed", "its Job failed"),
        node("node-4", "Pending", ""),
        node("node-1", "Done", ""),
    ]);
    let counts = json!({"Evacuating": 1, "Failed": 1, "Pending": 1, "Done": 1, "Draining": 0});
    let changed = release("prod.web", &json!({"nodes": nodes, "nodeCounts": counts}));
    let lines: Vec<String> = super::nodes(&changed, now())
        .iter()
        .map(|line| anstream::adapter::strip_str(line).to_string())
        .collect();
    assert_eq!(
        lines,
        [
            "prod/web: 1 of 4 nodes changed",
            "prod/web node node-3: Evacuating for 60s: VM db has not left",
            "prod/web node node-2: Failed for 60s: its Job failed",
        ]
    );
    let value = one(&changed, None, None, now());
    assert_eq!(value["nodes"].as_array().map(Vec::len), Some(4));
    assert_eq!(value["nodeCounts"]["Done"], 1);
    assert_eq!(
        one(&release("prod.web", &json!({})), None, None, now())["nodes"],
        Value::Null
    );
}
