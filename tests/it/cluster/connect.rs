//! Discovery of the cluster, and its error messages.

use std::error::Error as _;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_cluster::{Class, Cluster, ClusterError, Connection, KubeconfigSecret, OwnCluster};
use pleach_model::finding::Kind;
use rstest::rstest;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::scripted::{Answer, Scripted, kubeconfig, write};

fn version() -> Answer {
    Answer::ok(json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3"}))
}

fn with(dir: &TempDir, text: &str) -> Connection {
    Connection {
        kubeconfig: Some(write(dir, "config", text)),
        connect_timeout: Duration::from_millis(300),
        patience: Duration::ZERO,
        ..Connection::new("pleach/0.0.0")
    }
}

/// Formats the whole chain of an error, as the CLI prints it.
fn text(error: &ClusterError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn the_first_request_brings_the_version() {
    let server = Scripted::start(|_| version()).await;
    let cluster = Cluster::connect(&server.connection()).await.unwrap();
    assert_eq!(cluster.server_version().await.unwrap(), "v1.36.3");
    assert_eq!(server.seen().len(), 1);
    assert_eq!(server.seen()[0].path, "/version");
    assert_eq!(cluster.server_version().await.unwrap(), "v1.36.3");
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn the_context_is_the_named_or_the_current_one() {
    let server = Scripted::start(|_| version()).await;
    let current = server.connection();
    let named = Connection {
        context: Some("other".to_owned()),
        ..server.connection()
    };
    for (connection, expected) in [(current, "test"), (named, "other")] {
        let cluster = Cluster::connect(&connection).await.unwrap();
        assert_eq!(cluster.context(), Some(expected));
    }
}

#[tokio::test]
async fn every_request_says_for_which_release_it_is() {
    let server = Scripted::start(|_| version()).await;
    let cluster = Cluster::connect(&server.connection()).await.unwrap();
    cluster.server_version().await.unwrap();
    let other = cluster.with_user_agent("pleach/0.0.0 prod.web\u{e9}");
    other.server_version().await.unwrap();
    let agents: Vec<String> = server
        .seen()
        .iter()
        .map(|seen| seen.headers["user-agent"].clone())
        .collect();
    assert_eq!(agents, ["pleach/0.0.0 test.a", "pleach/0.0.0 prod.web_"]);
}

#[tokio::test]
async fn a_server_without_the_right_to_ask_its_version_is_a_server() {
    let server = Scripted::start(|_| Answer::status(403, "Forbidden", "no")).await;
    assert!(Cluster::connect(&server.connection()).await.is_ok());
}

#[tokio::test]
async fn a_context_is_chosen_by_name() {
    let server = Scripted::start(|_| version()).await;
    let mut connection = server.connection();
    connection.context = Some("other".to_owned());
    assert!(Cluster::connect(&connection).await.is_ok());
    connection.context = Some("prod".to_owned());
    let error = Cluster::connect(&connection).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the kubeconfig has no context `prod`; it has test, other"
    );
    assert_eq!(
        error.hint().as_deref(),
        Some("name one of them with --context")
    );
}

#[tokio::test]
async fn a_missing_kubeconfig_is_named() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("none");
    let connection = Connection {
        kubeconfig: Some(path.clone()),
        ..Connection::new("pleach/0.0.0")
    };
    let error = Cluster::connect(&connection).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Cluster);
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    assert!(text.contains("No such file"), "{text}");
    assert!(error.hint().unwrap().contains("--kubeconfig"));
}

#[rstest]
#[case("users:\n- {token: hunter2\n\tx: [", "invalid YAML")]
#[case(
    "current-context: gone\ntoken: hunter2\n",
    "has no context `gone`; it has none"
)]
#[case(
    "contexts: []\nusers: [{name: u, user: {token: hunter2}}]\n",
    "no current-context"
)]
#[tokio::test]
async fn a_broken_kubeconfig_is_not_quoted(#[case] config: &str, #[case] expected: &str) {
    let dir = TempDir::new().unwrap();
    let error = Cluster::connect(&with(&dir, config)).await.unwrap_err();
    let text = format!("{} {error:?}", text(&error));
    assert!(text.contains(expected), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn an_unprotected_kubeconfig_in_a_secret_is_refused() {
    // Nothing listens on port 1.
    let cluster = "server: \"https://127.0.0.1:1\"";
    let text_of_secret = kubeconfig("https://127.0.0.1:1", "{}");
    assert!(text_of_secret.contains(cluster));
    let skips = format!("insecure-skip-tls-verify: true, {cluster}");
    let data = STANDARD.encode(text_of_secret.replace(cluster, &skips));
    let server = Scripted::start(move |seen| match &*seen.path {
        "/version" => version(),
        _ => Answer::ok(json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "away", "namespace": "pleach"}, "data": {"config": data}})),
    })
    .await;
    let connection = Connection {
        secret: Some(KubeconfigSecret {
            own: OwnCluster::new(server.connection()),
            namespace: "pleach".to_owned(),
            name: "away".to_owned(),
            key: "config".to_owned(),
        }),
        patience: Duration::ZERO,
        ..Connection::new("pleach/0.0.0")
    };
    let error = Cluster::connect(&connection).await.unwrap_err();
    let text = text(&error);
    assert!(text.contains("`insecure-skip-tls-verify`"), "{text}");
    assert!(
        matches!(error, ClusterError::KubeconfigSecret { .. }),
        "{text}"
    );
}

#[tokio::test]
async fn an_unreachable_server_is_named() {
    // The port was just closed, so no process listens there.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let dir = TempDir::new().unwrap();
    let error = Cluster::connect(&with(&dir, &kubeconfig(&url, "{}")))
        .await
        .unwrap_err();
    assert_eq!(error.class(), Some(&Class::Unreachable));
    let text = text(&error);
    assert!(
        text.starts_with(&format!("failed to connect to {url}")),
        "{text}"
    );
    assert!(text.contains("Connection refused"), "{text}");
    assert!(error.hint().unwrap().contains("address"));
}

#[tokio::test]
async fn a_silent_server_ends_in_time() {
    let server = Scripted::start(|_| Answer::Silence).await;
    let connection = Connection {
        connect_timeout: Duration::from_millis(200),
        ..server.connection()
    };
    let start = Instant::now();
    let error = Cluster::connect(&connection).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(4));
    assert_eq!(error.class(), Some(&Class::Timeout));
    let text = text(&error);
    assert!(text.contains("no answer from http://127.0.0.1:"), "{text}");
    assert!(text.ends_with("within 200ms"), "{text}");
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_ends_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let dir = TempDir::new().unwrap();
    let start = Instant::now();
    let error = Cluster::connect(&with(&dir, &kubeconfig(&url, "{}")))
        .await
        .unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(4));
    assert!(
        matches!(error.class(), Some(Class::Timeout | Class::Unreachable)),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_server_without_tls_is_told_apart() {
    let server = Scripted::start(|_| version()).await;
    let dir = TempDir::new().unwrap();
    let url = server.url.replace("http://", "https://");
    let mut connection = with(&dir, &kubeconfig(&url, "{}"));
    connection.connect_timeout = Duration::from_secs(5);
    let error = Cluster::connect(&connection).await.unwrap_err();
    assert_eq!(error.class(), Some(&Class::Tls), "{error:?}");
    assert!(!error.is_retryable());
    assert!(error.hint().unwrap().contains("certificate"));
}

#[tokio::test]
async fn credentials_that_are_not_accepted_are_told() {
    let server = Scripted::start(|_| Answer::status(401, "Unauthorized", "Unauthorized")).await;
    let error = Cluster::connect(&server.connection()).await.unwrap_err();
    assert_eq!(error.class(), Some(&Class::Unauthorized));
    assert_eq!(error.kind(), Kind::Cluster);
    assert!(error.hint().unwrap().contains("log in again"));
}

#[tokio::test]
async fn a_login_page_is_no_api_server() {
    let server = Scripted::start(|_| Answer::Text(200, "<html>hunter2</html>")).await;
    let error = Cluster::connect(&server.connection()).await.unwrap_err();
    assert_eq!(error.class(), Some(&Class::NotKubernetes));
    assert!(!text(&error).contains("hunter2"));
}

const PLUGIN: &str = r#"{exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never,
    command: sh, args: ["-c", 'SCRIPT']}}"#;

fn plugin(server: &Scripted, dir: &TempDir, script: &str) -> Connection {
    let user = PLUGIN.replace("SCRIPT", script).replace("\n   ", "");
    Connection {
        connect_timeout: Duration::from_secs(5),
        ..with(dir, &kubeconfig(&server.url, &user))
    }
}

#[tokio::test]
async fn a_credential_plugin_is_run() {
    let server = Scripted::start(|_| version()).await;
    let dir = TempDir::new().unwrap();
    let script = r#"echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"abc\"}}""#;
    Cluster::connect(&plugin(&server, &dir, script))
        .await
        .unwrap();
    assert_eq!(server.seen()[0].headers["authorization"], "Bearer abc");
}

#[rstest]
#[case(
    "echo hunter2; echo please log in >&2; exit 3",
    "exit status: 3: please log in"
)]
#[case("echo hunter2", "is not an ExecCredential")]
#[tokio::test]
async fn a_failing_plugin_is_told_without_its_output(#[case] script: &str, #[case] expected: &str) {
    let server = Scripted::start(|_| version()).await;
    let dir = TempDir::new().unwrap();
    let error = Cluster::connect(&plugin(&server, &dir, script))
        .await
        .unwrap_err();
    let text = format!("{} {error:?}", text(&error));
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("`sh`"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn the_cluster_is_known_by_the_uid_of_its_first_namespace() {
    let server = Scripted::start(|seen| {
        assert_eq!(seen.path, "/api/v1/namespaces/kube-system");
        Answer::ok(json!({"metadata": {"name": "kube-system", "uid": "0-1"}}))
    })
    .await;
    let id = server.cluster().await.cluster_id().await.unwrap();
    assert_eq!(id.to_string(), "0-1");
}

#[tokio::test]
async fn a_cluster_without_identity_is_refused() {
    let server = Scripted::start(|_| Answer::ok(json!({"metadata": {}}))).await;
    let error = server.cluster().await.cluster_id().await.unwrap_err();
    assert_eq!(error.class(), Some(&Class::NotKubernetes));
}

/// Client certificate from plain `openssl x509 -req`, and its key.
const VERSION_1: (&str, &str) = (
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJHRENCdmdJVU1YbGlHK1hTaWFSRU0rb2ZvZkQ1Wnpnd3ZXTXdDZ1lJS29aSXpqMEVBd0l3RFRFTE1Ba0cKQTFVRUF3d0NZMkV3SUJjTk1qWXhNVEl6TVRrek5UUTRXaGdQTWpFeU5qRXdNekF4T1RNMU5EaGFNQTR4RERBSwpCZ05WQkFNTUEyRnViakJaTUJNR0J5cUdTTTQ5QWdFR0NDcUdTTTQ5QXdFSEEwSUFCSjFORGVJQStoUzk4RnZhCm5tdGYydFp6VEd1eWY1VlpLZlg3VHNTMUhtMGdJdkpmeTZvdVlCTStQYXg2MUlvQVpzd253czRnc3RXTk1KVjEKQ1BucHFVa3dDZ1lJS29aSXpqMEVBd0lEU1FBd1JnSWhBS1ZXQWZYNlAvU0FtcnUyNG5sbjk1bFM1Y3prOW9VVQpOdU5BMnFQRnh3UXpBaUVBemRaOGwvRVg3dGRna0VjM2Rscy9xcjk5TVpCNkZHcW9iYUt0SWdQdTY4cz0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=",
    "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1JR0hBZ0VBTUJNR0J5cUdTTTQ5QWdFR0NDcUdTTTQ5QXdFSEJHMHdhd0lCQVFRZ3BObk91T3NGR0ZjL2pldUwKdW1tdjlkbnk4Zll2YWY2SzByTzRtQzd4aXltaFJBTkNBQVNkVFEzaUFQb1V2ZkJiMnA1clg5cldjMHhyc24rVgpXU24xKzA3RXRSNXRJQ0x5WDh1cUxtQVRQajJzZXRTS0FHYk1KOExPSUxMVmpUQ1ZkUWo1NmFsSgotLS0tLUVORCBQUklWQVRFIEtFWS0tLS0tCg==",
);

#[tokio::test]
async fn a_version_1_certificate_is_explained() {
    let (certificate, key) = VERSION_1;
    let user =
        format!(r#"{{"client-certificate-data": "{certificate}", "client-key-data": "{key}"}}"#);
    let dir = TempDir::new().unwrap();
    let connection = with(&dir, &kubeconfig("https://127.0.0.1:1", &user));
    let error = Cluster::connect(&connection).await.unwrap_err();
    assert!(text(&error).contains("X.509 version 1"), "{error:?}");
    assert!(error.hint().unwrap().contains("version 3"), "{error:?}");
}
