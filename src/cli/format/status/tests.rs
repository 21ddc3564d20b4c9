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

fn wanted() -> Wanted {
    let release = |name: &str, version: &str| (name.to_owned(), Some(version.to_owned()));
    Wanted {
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

fn check(releases: &[ReleaseSummary], wanted: Option<&Wanted>) -> String {
    let shown = text(releases, None, wanted, now());
    anstream::adapter::strip_str(&shown).to_string()
}

#[test]
fn releases_are_a_table_with_their_trouble_below() {
    insta::assert_snapshot!(check(&releases(), Some(&wanted())), @r"
    RELEASE      VERSION   REVISION  READY    STAGE      ENTRIES  AGE
    prod/api     v1        0123456   True     verify     12       5m
    prod/old     v1 -> v2  0123456   False    workloads  0
    prod/odd     ?         ?         Unknown  ?          ?        ?
    prod/theirs  -> v3     0123456   True                0
    prod/web                         Unknown             0
    prod/old: Failed: 1 step failed: no
    prod/odd: release prod.odd was written in format 99 by a newer pleach; this one writes format 6
    prod/web: nothing is known of its readiness yet
    git: prod/cache (v3) is not installed
    git: prod/api is pinned to v2, and v1 is installed
    git: prod/old is installed, and environment prod no longer has it
    git: prod/theirs belongs to repository other, and this is fleet
    ");
}

#[test]
fn without_git_nothing_is_compared() {
    assert_eq!(check(&[], None), "no releases are installed");
    let typo: Target = "pord/web".parse().unwrap();
    assert_eq!(
        text(&[], Some(&typo), None, now()),
        "nothing of pord/web is installed"
    );
    let value = json(&releases(), None, now());
    assert_eq!(value.get("notInstalled"), None);
    assert_eq!(value["releases"][0].get("git"), None);
}

#[test]
fn programs_get_the_same() {
    let value = json(&releases(), Some(&wanted()), now());
    assert_eq!(
        value["notInstalled"],
        json!([{"release": "cache", "version": "v3"}])
    );
    assert_eq!(
        value["releases"][0]["git"],
        json!({"wanted": true, "version": "v2"})
    );
    assert_eq!(
        value["releases"][1]["git"],
        json!({"wanted": false, "version": null})
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
    let only = Wanted {
        only: Some("web".to_owned()),
        ..wanted()
    };
    let shown = check(&releases()[4..], Some(&only));
    assert!(!shown.contains("cache"), "{shown}");
}

#[test]
fn what_people_said_stands_below_the_table() {
    let spec = json!({
        "suspend": {"until": "2026-07-01T12:00:00Z", "by": "ann@desk", "reason": "the database\nmoves"},
        "sync": {"at": "2026-07-01T10:00:00Z", "by": "bob@desk"},
    });
    let release = |spec: &Value| {
        let metadata = json!({"name": "prod.api"});
        ReleaseSummary::read(&json!({"metadata": metadata, "spec": spec})).unwrap()
    };
    let shown = check(&[release(&spec)], None);
    assert!(
        shown.ends_with(
            "prod/api: suspended by ann@desk until 2026-07-01T12:00:00Z: the database moves\n\
             prod/api: a sync is requested by bob@desk since 5m, and no loop has carried it out"
        ),
        "{shown}"
    );
    let value = json(&[release(&spec)], None, now());
    let orders = &value["releases"][0]["orders"];
    assert_eq!(orders["suspended"], true);
    assert_eq!(orders["suspend"]["by"], "ann@desk");
    assert_eq!(orders["sync"]["by"], "bob@desk");

    // One that is over is said no more.
    let over = json!({"suspend": {"until": "2026-07-01T10:04:59Z"}});
    assert!(!check(&[release(&over)], None).contains("suspended"));
    let value = json(&[release(&over)], None, now());
    assert_eq!(value["releases"][0]["orders"]["suspended"], false);
}
