//! Logs of two pods of a controller.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::json;

use super::status::run;
use crate::cluster::scripted::{Answer, Scripted, Seen};

const A: &str = concat!(
    r#"{"time":"2026-11-28T17:17:06.100Z","level":"info","environment":"dev","release":"web","commit":"9683080","action":"applying","message":"applying 9683080: 2 to update"}"#,
    "\n",
    r#"{"time":"2026-11-28T17:17:14.200Z","level":"warn","environment":"dev","release":"api","action":"drift corrected","object":"Service/web/api","message":"drift corrected: Service/web/api"}"#,
    "\n",
);
const B: &str = concat!(
    r#"{"time":"2026-11-28T17:17:08.300Z","level":"error","environment":"dev","action":"environment stalled","message":"environment stalled: no file"}"#,
    "\n",
    "panicked\n",
    r#"{"time":"2026-11-28T17:17:09.300Z","level":"info","environment":"prod","release":"web","action":"applying","message":"applying"}"#,
    "\n",
    "the end of a killed process",
);

fn script(seen: &Seen) -> Answer {
    let pod = |name: &str| json!({"metadata": {"namespace": "pleach", "name": name}});
    match seen.path.as_str() {
        "/version" => Answer::ok(json!({"gitVersion": "v1.36.3"})),
        "/api/v1/pods" => Answer::ok(json!({"kind": "PodList", "metadata": {},
            "items": [pod("a"), pod("b")]})),
        "/api/v1/namespaces/pleach/pods/a/log" if seen.query.contains("follow=true") => {
            Answer::Open(vec![A.to_owned()])
        }
        "/api/v1/namespaces/pleach/pods/a/log" => Answer::Text(200, A),
        "/api/v1/namespaces/pleach/pods/b/log" => Answer::Text(200, B),
        _ => Answer::status(404, "NotFound", "not found"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_all_pods_are_shown_by_time() {
    let (all, _) = run(&[], script, &["logs"]).await;
    assert_eq!((all.code, all.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(all.stdout, @r"
    2026-11-28T17:17:06Z INFO  dev/web  applying 9683080: 2 to update
    2026-11-28T17:17:08Z ERROR dev  environment stalled: no file
    panicked
    2026-11-28T17:17:09Z INFO  prod/web  applying
    the end of a killed process
    2026-11-28T17:17:14Z WARN  dev/api  drift corrected: Service/web/api
    ");
    let (one, _) = run(&[], script, &["logs", "dev/web", "-o", "json"]).await;
    let lines: Vec<&str> = one.stdout.lines().collect();
    let expected = [A.lines().next(), B.lines().next()].map(Option::unwrap);
    assert_eq!(lines, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_log_is_shown_as_it_is_written() {
    let server = Scripted::start(script).await;
    let kubeconfig = server.connection().kubeconfig.unwrap();
    let first = tokio::task::spawn_blocking(move || {
        let mut program = Command::new(env!("CARGO_BIN_EXE_pleach"))
            .args(["logs", "dev/api", "-f", "--kubeconfig"])
            .arg(kubeconfig)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = program.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        program.kill().unwrap();
        program.wait().unwrap();
        line
    })
    .await
    .unwrap();
    // Of both logs, the line about the environment comes first or second.
    let is_one = ["drift corrected", "environment stalled"];
    assert!(is_one.iter().any(|one| first.contains(one)), "{first}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_a_controller_is_an_error() {
    let none = |seen: &Seen| match seen.path.as_str() {
        "/version" => Answer::ok(json!({"gitVersion": "v1.36.3"})),
        "/api/v1/namespaces/x/pods" => {
            Answer::ok(json!({"kind": "PodList", "metadata": {}, "items": []}))
        }
        _ => Answer::status(403, "Forbidden", "pods is forbidden: no"),
    };
    let (missing, _) = run(&[], none, &["logs", "-n", "x"]).await;
    assert_eq!((missing.code, missing.stdout.as_str()), (1, ""));
    let start =
        "error: no started pods with label app.kubernetes.io/name=pleach in namespace x of http://";
    assert!(missing.stderr.starts_with(start), "{}", missing.stderr);
    let (closed, _) = run(&[], none, &["logs"]).await;
    assert_eq!(closed.code, 4, "{}", closed.stderr);
    assert!(closed.stderr.contains("--namespace"), "{}", closed.stderr);
}
