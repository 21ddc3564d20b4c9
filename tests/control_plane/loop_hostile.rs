//! Environments are reconciled in time beside a branch, a cluster and a fork that exhaust all of
//! their limits.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pleach_testkit::faults::{Fault, FaultProxy, Kind, Rule};

use crate::fleet::Fleet;
use crate::loop_live::{Hosted, fork};
use crate::loop_run::Loop;
use crate::samples::BUNDLE;
use crate::{kubectl, shared};

/// First honest environment, and the namespace of all of them.
const FIRST: &str = "hostile-0";
/// Number of honest environments.
const HONEST: u8 = 10;
/// Number of releases on the slow cluster: more than are observed concurrently.
const LATE: u8 = 12;
/// Number of pushes without hostile neighbors.
const CALM: u8 = 3;
/// Number of pushes with hostile neighbors. At least one must be in time, because the machine can
/// be busy.
const BESIDE: u8 = 6;
/// A push in this time is never late: the hostile cluster answers six times as late.
const IN_TIME: Duration = Duration::from_secs(10);

/// Manifests with more than a million dependencies for the planner: each registration needs each
/// workload of its Service.
const GREEDY: &str = "\
apiVersion: v1
kind: Service
metadata: {name: greedy}
spec: {selector: {app: greedy}, ports: [{port: 443}]}
{% for number in range(1001) %}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: greedy-{{ number }}}
webhooks:
  - name: greedy.example.org
    clientConfig: {service: {namespace: {{ release.namespace }}, name: greedy}}
    sideEffects: None
    admissionReviewVersions: [v1]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: greedy-{{ number }}}
spec:
  replicas: 0
  selector: {matchLabels: {app: greedy}}
  template:
    metadata: {labels: {app: greedy}}
    spec: {containers: [{name: greedy, image: greedy}]}
{% endfor %}
";

/// Returns a template that doubles its text until the process runs out of memory.
fn doubled(number: u8) -> String {
    format!(
        "{{% set n = namespace(x='{number}') %}}{{% for i in range(64) %}}{{% set n.x = n.x ~ n.x %}}{{% endfor %}}{{{{ n.x }}}}"
    )
}

fn grant(name: &str, id: &str, kubeconfig: &str) -> String {
    format!(
        "      - name: {name}\n        branch: env/{name}\n        cluster: {{id: {id}, kubeconfigFile: {kubeconfig}}}\n        allow: all\n"
    )
}

/// Writes an environment without periodic reconciles, unless an interval is given.
fn environment(fleet: &Fleet, name: &str, interval: &str, releases: &str) {
    let id = fleet.cluster_id();
    fleet.write(
        &format!("environments/{name}.yaml"),
        &format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {id}}}\nsync: {{interval: {interval}}}\nreleases:\n{releases}"
        ),
    );
}

/// Pushes a value to all honest environments and returns the time until the last one is reconciled.
fn pushed(hosted: &Hosted, running: &Loop, value: &str) -> Duration {
    let fleet = &hosted.fleet;
    fleet.write(
        "manifests/web/web.yaml.j2",
        &format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {{{{ release.name }}}}}}\ndata: {{k: {value}}}\n"
        ),
    );
    fleet.commit();
    for number in 0..HONEST {
        let branch = format!("env/hostile-{number}");
        fleet.repo.git(&["branch", "--force", &branch]).unwrap();
    }
    let before = deployed(running);
    let since = Instant::now();
    running.pushed();
    fleet.until(value, |_| {
        (deployed(running) >= before + usize::from(HONEST)).then_some(())
    });
    since.elapsed()
}

/// Returns how often honest environments were reconciled with a new commit.
fn deployed(running: &Loop) -> usize {
    let (_, text) = running.get("/metrics");
    let honest = |line: &&str| {
        line.starts_with("pleach_reconcile_total{environment=\"hostile-")
            && line.contains("release=\"web")
            && line.contains("result=\"deployed\"")
    };
    let counts = text.lines().filter(honest);
    let counts = counts.filter_map(|line| line.rsplit(' ').next());
    counts.map(|count| count.parse::<usize>().unwrap()).sum()
}

/// Sets the flag when it is dropped.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn honest_environments_are_reconciled_within_their_time_beside_hostile_ones() {
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let uid = "-o=jsonpath={.metadata.uid}";
    let id = kubectl::admin(&["get", "namespace", "kube-system", uid]);
    let known = shared().kubeconfig().display().to_string();
    let late = proxy.kubeconfig().display().to_string();
    let mut grants = String::new();
    for number in 1..HONEST {
        grants += &grant(&format!("hostile-{number}"), &id, &known);
    }
    grants += &grant("hostile-greedy", &id, &known);
    grants += &grant("hostile-late", &id, &late);
    let hosted = Hosted::new(FIRST, "{interval: 1h}", &grants);
    let fleet = &hosted.fleet;
    fleet.remove("manifests/web/web.yaml");
    for number in 1..HONEST {
        let release = format!("  - {{name: web-{number}, bundle: web, namespace: {FIRST}}}\n");
        environment(fleet, &format!("hostile-{number}"), "1h", &release);
    }
    fleet.write("manifests/greedy/bundle.yaml", BUNDLE);
    fleet.write("manifests/greedy/greedy.yaml.j2", GREEDY);
    let greedy = format!("  - {{name: greedy, bundle: greedy, namespace: {FIRST}}}\n");
    environment(fleet, "hostile-greedy", "1s", &greedy);
    let mut releases = String::new();
    for number in 0..LATE {
        writeln!(
            releases,
            "  - {{name: late-{number}, bundle: web, namespace: {FIRST}}}"
        )
        .unwrap();
    }
    environment(fleet, "hostile-late", "1s", &releases);
    // Lists are answered at once, so the cluster does not count as unresponsive.
    let minute = Fault::Delay(Duration::from_mins(1));
    proxy.add(Rule::on(|seen| seen.kind != Kind::Read, minute));

    let running = hosted.runs();
    let calm = (0..CALM).map(|number| pushed(&hosted, &running, &format!("calm-{number}")));
    let calm = calm.max().unwrap();
    let limit = IN_TIME.max(2 * calm);

    let over = AtomicBool::new(false);
    let (beside, slowest) = std::thread::scope(|scope| {
        // Also after a panic, because the scope waits for its threads.
        let ending = Ending(&over);
        let probing = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let since = Instant::now();
                assert_eq!(running.get("/livez").0, 200);
                slowest = slowest.max(since.elapsed());
                std::thread::sleep(Duration::from_millis(100));
            }
            slowest
        });
        for name in ["hostile-greedy", "hostile-late"] {
            let branch = format!("env/{name}");
            fleet.repo.git(&["branch", &branch]).unwrap();
        }
        let fork_pushes = |number: u8| {
            let path = "manifests/web/more.yaml.j2";
            hosted.proposes(7, path, &doubled(number), fork(&[]));
            running.happened("pull_request");
        };
        running.pushed();
        fork_pushes(0);
        let refused = || running.looks("hostile-greedy", "greedy", "refused");
        let asked = || proxy.log().of_kind(Kind::DryRun).count();
        fleet.until("the greedy one", |_| (refused() > 0.0).then_some(()));
        fleet.until("the late one", |_| (asked() >= 10).then_some(()));
        fleet.until("the fork", |_| {
            (!hosted.forge.notes(7).is_empty()).then_some(())
        });
        let mut beside = Vec::new();
        for number in 1..=BESIDE {
            fork_pushes(number);
            beside.push(pushed(&hosted, &running, &format!("beside-{number}")));
            if beside.last() <= Some(&limit) {
                break;
            }
        }
        drop(ending);
        (beside, probing.join().unwrap())
    });
    println!("calm: {calm:?}, beside hostile neighbors: {beside:?}, slowest probe: {slowest:?}");
    let quickest = beside.iter().min().unwrap();
    assert!(*quickest <= limit, "{calm:?}: {beside:?}");
    // Time-out of a kubelet probe.
    assert!(slowest < Duration::from_secs(10), "{slowest:?}");
    // The neighbors' changes were not applied.
    let deployments = ["deployments", "-n", FIRST];
    assert_eq!(fleet.field(&deployments, "{.items[*].metadata.name}"), "");
    let maps = fleet.field(&["configmaps", "-n", FIRST], "{.items[*].metadata.name}");
    assert!(!maps.contains("late-"), "{maps}");
    running.stopped();
}
