//! Notifications of the controller: Events and outgoing webhooks.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::fleet::{Fleet, leaks};
use crate::loop_run::fleet;
use crate::samples::{gear, gears};
use crate::waits::never;

/// Webhook server that fails at first.
struct Webhook {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<String>>>,
}

impl Webhook {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let bodies: Arc<Mutex<Vec<String>>> = Arc::default();
        let taken = Arc::clone(&bodies);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    let line = line.trim().to_lowercase();
                    if let Some(said) = line.strip_prefix("content-length:") {
                        length = said.trim().parse().unwrap();
                    }
                    if line.is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let status = if number == 0 { "503 Busy" } else { "200 OK" };
                let answer =
                    format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).unwrap();
                if number > 0 {
                    taken.lock().unwrap().push(String::from_utf8(body).unwrap());
                }
            }
        });
        Self { address, bodies }
    }

    fn bodies(&self) -> Vec<String> {
        self.bodies.lock().unwrap().clone()
    }

    fn until(&self, fleet: &Fleet, count: usize) -> Vec<String> {
        fleet.until(&format!("notification {count}"), |_| {
            let bodies = self.bodies();
            (bodies.len() >= count).then_some(bodies)
        })
    }
}

/// Returns the reasons of the Events about the release.
fn events(fleet: &Fleet) -> BTreeSet<String> {
    let field = format!(
        "--field-selector=involvedObject.name={}.web",
        fleet.environment
    );
    let path = "-o=jsonpath={range .items[*]}{.reason} {end}";
    let reasons = fleet.kubectl(&["get", "events", "-n", "default", &field, path]);
    reasons.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn what_is_not_ready_any_more_is_told_until_it_is_again() {
    let fleet = fleet("loop-ails", "{interval: 1h}");
    // No controller writes a status at first.
    fleet.edit_environment(
        "namespace: loop-ails}",
        "namespace: loop-ails, timeout: 5s}",
    );
    let group = "loop-ails.example.org";
    let definition = gears(group).replace("schema: ", "subresources: {status: {}}, schema: ");
    fleet.kubectl(&["apply", "-f", &fleet.file("gears.yaml", &definition)]);
    fleet.write("manifests/web/gear.yaml", &gear(group));
    fleet.push("a gear");
    let name = format!("gears.{group}/first");
    let says = |conditions: &str| {
        let patch = format!(r#"{{"status":{{"conditions":{conditions}}}}}"#);
        let namespace = ["-n", fleet.environment, "--type=merge", "-p", &patch];
        let patched = ["patch", name.as_str(), "--subresource=status"];
        fleet.kubectl(&[&patched[..], &namespace].concat());
    };
    let ready = |status: &str, reason: &str| {
        fleet.until(reason, |fleet| {
            let release = fleet.get(&["release.pleach.dev/loop-ails.web"])?;
            let conditions = release["status"]["conditions"].as_array()?.clone();
            let ready = conditions.iter().find(|one| one["type"] == "Ready")?;
            (ready["status"] == status && ready["reason"] == reason).then_some(())
        });
    };
    let running = fleet.runs();
    ready("True", "Deployed");
    let looks = || running.looks(fleet.environment, "web", "unchanged");
    let seen = looks();
    let ((), events) = fleet.watched(|fleet| {
        says(r#"[{"type":"Stalled","status":"True","message":"a tooth is broken"}]"#);
        let said = fleet.until_condition("Degraded", "NotReady");
        assert!(
            said.starts_with(&format!("Gear.{group}/loop-ails/first: ")),
            "{said}"
        );
        assert!(said.contains("a tooth is broken"), "{said}");
    });
    ready("False", "Degraded");
    let shown = fleet.run(&["status", "loop-ails"]);
    shown.says("a tooth is broken");
    // No reconcile and no write happened.
    assert_eq!(looks().to_bits(), seen.to_bits());
    let written = crate::fleet::object_writes(&events);
    assert!(
        written.iter().all(|line| line.contains("gears")),
        "{written:?}"
    );
    let metric = "pleach_release_degraded{environment=\"loop-ails\",release=\"web\"}";
    assert_eq!(running.number(metric).to_bits(), 1.0_f64.to_bits());
    running.stopped();

    // A new controller does not know whether this still applies, so it reconciles. It also
    // reconciles the release periodically.
    fleet.edit_environment("{interval: 1h}", "{interval: 1s}");
    fleet.push("more often");
    let running = fleet.runs();
    fleet.until("a look", |_| {
        (running.looks("loop-ails", "web", "unchanged") > 0.0).then_some(())
    });
    ready("False", "Degraded");
    says("[]");
    fleet.until_not("Degraded");
    ready("True", "Recovered");
    let events = fleet.kubectl(&["get", "events", "-n", "default", "-o", "json"]);
    let events: Value = serde_json::from_str(&events).unwrap();
    let of_it = |event: &&Value| event["involvedObject"]["name"] == "loop-ails.web";
    let events = events["items"].as_array().unwrap().iter().filter(of_it);
    let reasons: Vec<&str> = events
        .map(|event| event["reason"].as_str().unwrap())
        .collect();
    let count = |reason: &str| reasons.iter().filter(|one| **one == reason).count();
    assert_eq!(
        (count("Degraded"), count("Recovered")),
        (1, 1),
        "{reasons:?}"
    );
    running.stopped();
}

#[test]
fn people_are_told_once_per_change_of_state() {
    let fleet = fleet("loop-heard", "{interval: 1s}");
    let webhook = Webhook::start();
    let path = "/a-path-that-nobody-may-see";
    let url = fleet.file("url", &format!("http://{}{path}\n", webhook.address));
    let repository = fleet.repo.path().to_str().unwrap().to_owned();
    let text = fleet.configuration_text(&repository, "");
    let told = format!(
        "notifications:\n  - webhook:\n      urlFile: {url}\n      template: '{{\"text\": {{{{ (release ~ \" \" ~ cause ~ \": \" ~ message) | tojson }}}}}}'\n    on: [deployed, failed, drifted]\n"
    );
    let config = fleet.file("loop.yaml", &(text + &told));
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_ready();
    let said = |body: &str| -> String {
        let body: Value = serde_json::from_str(body).unwrap();
        body["text"].as_str().unwrap().to_owned()
    };
    // The server failed at first, and the call was retried.
    let bodies = webhook.until(&fleet, 1);
    assert!(said(&bodies[0]).contains(" created"), "{bodies:?}");

    fleet.edit_by_hand("ann");
    let bodies = webhook.until(&fleet, 2);
    let drifted = said(&bodies[1]);
    assert!(
        drifted.starts_with("web drifted: ConfigMap/loop-heard/web: "),
        "{drifted}"
    );

    // The server refuses the object repeatedly, which is reported once.
    let refused = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\ndata: {\"a b\": x}\n";
    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{k: {}}}\n---\n",
        crate::fleet::PLANTED
    );
    fleet.write("manifests/web/bad.yaml", &(secret + refused));
    fleet.push("bad");
    let bodies = webhook.until(&fleet, 3);
    assert!(said(&bodies[2]).starts_with("web failed: "), "{bodies:?}");
    let looks = || {
        let result = |result: &str| running.looks("loop-heard", "web", result);
        result("failed") + result("refused")
    };
    let before = looks();
    fleet.until("more looks", |_| (looks() > before + 2.0).then_some(()));
    assert_eq!(webhook.bodies().len(), 3, "{:?}", webhook.bodies());
    fleet.remove("manifests/web/bad.yaml");
    fleet.push_value("first", "second");
    let bodies = webhook.until(&fleet, 4);
    assert!(said(&bodies[3]).starts_with("web deployed: "), "{bodies:?}");
    assert!(said(&bodies[3]).contains("1 updated"), "{bodies:?}");

    // A commit that cannot be rendered is reported too, although the last good one is maintained.
    fleet.write("manifests/web/bad.yaml", "kind: [\n");
    fleet.push("broken");
    let bodies = webhook.until(&fleet, 5);
    assert!(
        said(&bodies[4]).starts_with("web failed: commit "),
        "{bodies:?}"
    );
    assert_eq!(leaks(&bodies.join("\n")), None);

    let seen = events(&fleet);
    for reason in ["Deployed", "DriftCorrected"] {
        assert!(seen.contains(reason), "{seen:?}");
    }
    assert!(
        seen.contains("Refused") || seen.contains("SyncFailed"),
        "{seen:?}"
    );
    // `kubectl describe` shows them.
    let described = fleet.kubectl(&["describe", "release.pleach.dev", "loop-heard.web"]);
    assert!(described.contains("DriftCorrected"), "{described}");
    // The Event contains the counts, and the log the progress of the runs.
    let field = "--field-selector=involvedObject.name=loop-heard.web,reason=Deployed";
    let messages = "-o=jsonpath={range .items[*]}{.message}{'\\n'}{end}";
    let counts = fleet.kubectl(&["get", "events", "-n", "default", field, messages]);
    assert!(counts.contains(" created"), "{counts}");
    let run = running.stopped();
    assert!(!run.stderr.contains(path), "{}", run.stderr);
    let logged = |message: &str, part: &str| {
        let lines = run.stderr.lines();
        let mut lines = lines.filter(|line| line.contains(&format!("\"{message}\"")));
        assert!(
            lines.any(|line| line.contains(part)),
            "{message}: {}",
            run.stderr
        );
    };
    logged("applying", " to create");
    logged("deployed", " created");
    logged(
        "drift corrected",
        "ConfigMap/loop-heard/web: .data.k changed by ann",
    );
}

#[test]
fn good_contents_that_are_brought_back_are_no_drift() {
    let fleet = fleet("loop-contents", "{interval: 1s}");
    let webhook = Webhook::start();
    let url = fleet.file("url", &format!("http://{}/\n", webhook.address));
    let repository = fleet.repo.path().to_str().unwrap().to_owned();
    let text = fleet.configuration_text(&repository, "");
    let told =
        format!("notifications:\n  - webhook: {{urlFile: {url}}}\n    on: [deployed, drifted]\n");
    let config = fleet.file("loop.yaml", &(text + &told));
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_ready();
    webhook.until(&fleet, 1);

    // The next commit never becomes ready and is reverted.
    fleet.edit_environment("bundle: web,", "bundle: web, timeout: 3s,");
    fleet.write("manifests/web/never.yaml", &never("never"));
    fleet.push_value("first", "second");
    fleet.until("a failure", |_| {
        (running.looks("loop-contents", "web", "failed") > 0.0).then_some(())
    });
    fleet.remove("manifests/web/never.yaml");
    fleet.push_value("second", "first");
    fleet.until_value("first");
    let bodies = webhook.until(&fleet, 2);
    let body: Value = serde_json::from_str(&bodies[1]).unwrap();
    assert_eq!(body["cause"], "deployed", "{bodies:?}");
    assert!(!events(&fleet).contains("DriftCorrected"));
    let log = running.stopped().stderr;
    let failed = log.lines().find(|line| line.contains("\"step failed\""));
    let failed: Value = serde_json::from_str(failed.unwrap()).unwrap();
    assert_eq!(
        failed["object"], "Deployment.apps/loop-contents/never",
        "{log}"
    );
}
