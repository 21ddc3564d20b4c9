//! A move is killed after the registrations of the previous pods were deleted. It continues as a
//! move from its journal, without declarations in the bundle.

use http::Method;
use pleach_testkit::faults::{Fault, FaultProxy, Kind, Moment, Rule, Seen};
use rstest::rstest;

use crate::fleet::{Fleet, object_writes};
use crate::kill;
use crate::samples::{BUNDLE, deployment};
use crate::stages::nodes;
use crate::succession::places;

/// Returns a controller that must not run twice, and its Service.
fn product(namespace: &str) -> String {
    let name = format!("{{name: controller, namespace: {namespace}}}");
    let controller = deployment("controller")
        .replacen("{name: controller}", &name, 1)
        .replace("replicas: 0", "replicas: 1");
    format!(
        "{controller}---\napiVersion: v1\nkind: Service\nmetadata: {name}\nspec: {{selector: {{app: controller}}, ports: [{{port: 443}}]}}\n"
    )
}

/// Returns a fleet whose first version runs with registrations of its pods. Git has the second one
/// in another namespace.
fn fleet(environment: &'static str, group: &str) -> Fleet {
    let [a, b] = places(environment);
    let release = "  - {name: shop, bundle: shop, version: v1.0.0, timeout: 40s}\n";
    let files = [
        ("manifests/shop/bundle.yaml", BUNDLE.to_owned()),
        ("manifests/shop/v1.0.0/app.yaml", product(&a)),
        ("manifests/shop/v1.1.0/app.yaml", product(&b)),
    ];
    let fleet = Fleet::on(nodes(), environment, release, &files);
    for place in [&a, &b] {
        fleet.create_namespace(place);
    }
    fleet.applied();
    let hook = hook(&fleet, group);
    fleet.kubectl(&["apply", "-f", &hook]);
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
    fleet
}

/// Returns the file with the registration of the first version's pods.
fn hook(fleet: &Fleet, group: &str) -> String {
    let environment = fleet.environment;
    let [a, _] = places(environment);
    let hook = format!(
        "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {{name: {environment}}}\nwebhooks:\n\
         - name: {environment}.example.org\n  admissionReviewVersions: [v1]\n  sideEffects: None\n  failurePolicy: Ignore\n\
         \x20 clientConfig: {{service: {{name: controller, namespace: {a}}}}}\n\
         \x20 rules: [{{apiGroups: [\"{group}\"], apiVersions: [\"*\"], resources: [podtemplates], operations: [CREATE]}}]\n"
    );
    fleet.file("hook.yaml", &hook)
}

/// Point after which the first run is killed.
#[derive(Debug, Clone, Copy)]
enum After {
    Unregistered,
    Emptied,
}

impl After {
    fn is_it(self, environment: &str, seen: &Seen) -> bool {
        let [a, _] = places(environment);
        seen.kind == Kind::Write
            && match self {
                Self::Unregistered => {
                    let hook = format!("/validatingwebhookconfigurations/{environment}");
                    seen.method == Method::DELETE && seen.path.ends_with(&hook)
                }
                Self::Emptied => {
                    let old = format!("/namespaces/{a}/deployments/controller");
                    seen.path.ends_with(&old)
                }
            }
    }
}

#[rstest]
#[case::unregistered("resume-hook", "resume-hook.example.org", After::Unregistered)]
#[case::without_a_gate("resume-open", "", After::Unregistered)]
#[case::emptied("resume-empty", "resume-empty.example.org", After::Emptied)]
fn a_move_that_is_killed_goes_on_as_a_move(
    #[case] environment: &'static str,
    #[case] group: &str,
    #[case] after: After,
) {
    let mut fleet = fleet(environment, group);
    let [a, b] = places(environment);
    let args = ["apply", environment, "--yes"];
    let killed = kill::at(&mut fleet, &args, Moment::AfterForwarding, move |seen| {
        after.is_it(environment, seen)
    });
    assert!(killed, "{after:?}");
    fleet.forget_killed_runs();
    assert!(!fleet.exists(&["validatingwebhookconfiguration", environment]));
    assert!(!fleet.exists(&["deployment", "controller", "-n", &b]));

    let (_, events) = fleet.watched(Fleet::applied);
    let writes = object_writes(&events);
    let at = |start: &str| writes.iter().position(|line| line.starts_with(start));
    let started = at(&format!("patch apps deployments {b}/controller"));
    let emptied = at(&format!("patch apps deployments {a}/controller"));
    match after {
        // Before its successor runs, it is not emptied.
        After::Unregistered => assert!(emptied.is_some() && emptied < started, "{writes:#?}"),
        // The scaled-down workload is not started again.
        After::Emptied => assert_eq!(emptied, None, "{writes:#?}"),
    }
    let deleted = at(&format!("delete apps deployments {a}/controller"));
    assert!(started.is_some() && started < deleted, "{writes:#?}");
    let gate = format!("{environment}.shop.handover");
    assert!(!fleet.exists(&["validatingadmissionpolicy", &gate]));
    let journal = format!("{environment}.shop.journal");
    assert!(!fleet.exists(&["configmap", &journal, "-n", "pleach-system"]));
    fleet.applied();
    fleet.writes_nothing(Fleet::applied);
}

/// Pods that register again until they are deleted.
#[test]
fn what_the_former_pods_register_anew_goes_once_they_are_gone() {
    let environment = "resume-again";
    let group = "resume-again.example.org";
    let mut fleet = fleet(environment, group);
    let [a, b] = places(environment);
    let file = hook(&fleet, group);
    let kubectl = nodes().kubectl().to_owned();
    let kubeconfig = nodes().kubeconfig().to_owned();
    let register = Fault::hook(Moment::BeforeAnswer, move || {
        let mut command = std::process::Command::new(&kubectl);
        command.arg("--kubeconfig").arg(&kubeconfig);
        let done = command.args(["apply", "-f", &file]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    });
    let proxy = FaultProxy::start(nodes().kubeconfig()).unwrap();
    let is_it = move |seen: &Seen| After::Unregistered.is_it(environment, seen);
    proxy.add(Rule::on(is_it, register).nth(1));
    fleet.through(proxy.kubeconfig());
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(proxy.log().faults().count(), 1);
    let writes = object_writes(&events);
    let at = |start: &str| {
        let is_it = |line: &String| line.starts_with(start);
        writes.iter().position(is_it)
    };
    let gone = format!(
        "delete admissionregistration.k8s.io validatingwebhookconfigurations {environment}"
    );
    let again = writes.iter().rposition(|line| line.starts_with(&gone));
    let emptied = at(&format!("patch apps deployments {a}/controller"));
    let started = at(&format!("patch apps deployments {b}/controller"));
    assert!(at(&gone) < emptied, "{writes:#?}");
    assert!(emptied < again && again < started, "{writes:#?}");
    assert!(!fleet.exists(&["validatingwebhookconfiguration", environment]));
}

/// Git reverts after the kill: nothing is lost, and objects of the second version are removed.
#[test]
fn a_move_that_is_killed_goes_back() {
    let environment = "resume-back";
    let mut fleet = fleet(environment, "resume-back.example.org");
    let [a, b] = places(environment);
    let args = ["apply", environment, "--yes"];
    let killed = kill::at(&mut fleet, &args, Moment::AfterForwarding, move |seen| {
        After::Emptied.is_it(environment, seen)
    });
    assert!(killed);
    fleet.forget_killed_runs();
    let meant = "v1.0.0, rollback: {from: v1.1.0, to: v1.0.0}";
    fleet.edit_environment("v1.1.0", meant);
    fleet.commit();
    fleet.applied();
    let old = ["deployment", "controller", "-n", &a];
    assert_eq!(fleet.field(&old, "{.spec.replicas}"), "1");
    assert!(!fleet.exists(&["deployment", "controller", "-n", &b]));
    assert!(!fleet.exists(&["service", "controller", "-n", &b]));
    let gate = format!("{environment}.shop.handover");
    assert!(!fleet.exists(&["validatingadmissionpolicy", &gate]));
}
