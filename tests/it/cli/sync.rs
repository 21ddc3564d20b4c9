//! `pleach sync --wait` with a server that plays the controller.

use serde_json::{Value, json};

use super::status::run;
use crate::cluster::scripted::{Answer, Seen};

const RELEASES: &str = "/apis/pleach.dev/v1alpha1/releases";

/// Returns a release with a condition of the controller.
fn release(conditions: &[Value], spec: &Value) -> Value {
    let attempt = json!({"version": "v2", "revision": "none", "at": "2026-07-01T10:00:00Z",
        "digest": format!("sha256:{}", "0".repeat(64))});
    let ready = json!({"type": "Ready", "status": "True", "reason": "Deployed"});
    let conditions = [&[ready], conditions].concat();
    json!({"kind": "Release", "metadata": {"name": "dev.web", "uid": "u", "resourceVersion": "1"},
        "spec": spec, "status": {"conditions": conditions,
        "record": {"format": 1, "repository": "fleet", "installed": attempt}}})
}

fn followed() -> Value {
    json!({"type": "Followed", "status": "True", "reason": "Following", "message": "main of fleet"})
}

/// Answers for one release. A watch never reports a change, so the request is gone at once.
fn answer(seen: &Seen, release: &Value) -> Answer {
    let is_watch = seen.query.contains("watch=true");
    match (seen.method.as_str(), seen.path.strip_prefix(RELEASES)) {
        (_, Some("")) if is_watch => Answer::Open(Vec::new()),
        (_, Some("")) => Answer::ok(json!({"kind": "ReleaseList",
            "metadata": {"resourceVersion": "1"}, "items": [release]})),
        (_, Some("/dev.web")) => Answer::ok(release.clone()),
        _ if seen.path == "/version" => Answer::ok(json!({"gitVersion": "v1.36.3"})),
        _ => Answer::status(403, "Forbidden", "forbidden"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_result_of_the_controller_is_waited_for() {
    let deployed = |seen: &Seen| answer(seen, &release(&[followed()], &Value::Null));
    let (run_deployed, _) = run(&[], deployed, &["sync", "dev/web", "--wait"]).await;
    assert_eq!(run_deployed.code, 0, "{}", run_deployed.stderr);
    assert_eq!(
        run_deployed.stdout,
        "dev/web: sync requested\ndev/web: deployed v2\n"
    );

    let refused = |seen: &Seen| {
        let stalled = json!({"type": "Stalled", "status": "True", "reason": "Refused",
            "message": "no consent"});
        answer(seen, &release(&[followed(), stalled], &Value::Null))
    };
    let (run_refused, _) = run(&[], refused, &["sync", "dev", "--wait"]).await;
    assert_eq!(run_refused.code, 7, "{}", run_refused.stderr);
    assert!(
        run_refused
            .stdout
            .ends_with("dev/web: Stalled: Refused: no consent\n"),
        "{}",
        run_refused.stdout
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wait_ends_after_its_time_out() {
    let open = |seen: &Seen| {
        let request = json!({"sync": {"at": "2026-07-01T10:00:00Z"}});
        answer(seen, &release(&[followed()], &request))
    };
    let arguments = &["sync", "dev/web", "--wait", "--timeout", "100ms"];
    let (late, _) = run(&[], open, arguments).await;
    assert_eq!(late.code, 6, "{}", late.stderr);
    assert!(
        late.stderr
            .contains("error: no result after 100ms: dev/web (Deployed)"),
        "{}",
        late.stderr
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_requested_that_nobody_executes() {
    let lonely = |seen: &Seen| answer(seen, &release(&[], &Value::Null));
    let (refused, _) = run(&[], lonely, &["sync", "dev/web", "--wait"]).await;
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""));
    assert!(
        refused.stderr.contains("no controller follows dev/web"),
        "{}",
        refused.stderr
    );
}
