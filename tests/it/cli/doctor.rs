use std::net::TcpListener;

use insta::assert_snapshot;
use rstest::rstest;

use super::Folder;

#[rstest]
#[case::without_fix(&["doctor", "--yes"])]
#[case::other_kinds(&["doctor", "--fix", "Deployment.apps/web/web"])]
#[case::no_id(&["doctor", "--fix", "web"])]
#[case::history_of_an_environment(&["history", "dev"])]
fn wrong_calls_are_usage_errors(#[case] arguments: &[&str]) {
    let run = Folder::new().run(arguments);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    assert_snapshot!(
        format!("usage_{}", arguments.join("_").replace('/', ".")),
        run.stderr
    );
}

#[rstest]
#[case(&["doctor"])]
#[case(&["doctor", "--fix", "APIService.apiregistration.k8s.io/v1.x.io"])]
#[case(&["status"])]
#[case(&["history", "dev/web"])]
fn a_cluster_that_cannot_be_reached_is_told(#[case] arguments: &[&str]) {
    let folder = Folder::new();
    // The port was just closed, so no process listens there.
    let address = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap();
    let url = format!("http://{address}");
    folder.write("config", &crate::cluster::scripted::kubeconfig(&url, "{}"));
    let run = folder.run(&[arguments, &["--kubeconfig", "config"]].concat());
    assert_eq!((run.code, run.stdout.as_str()), (4, ""), "{}", run.stderr);
    assert!(run.stderr.contains(&url), "{}", run.stderr);
}
