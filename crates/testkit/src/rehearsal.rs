//! Rehearsals, with the requests to the copy, and comparison with the real upgrade.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::audit::{AuditLog, Event, Events};
use crate::control_plane::{binaries, client};

/// Start of the line that `pleach rehearse --keep` prints at the end.
const KEPT: &str = "export KUBECONFIG=";

/// Finished rehearsal.
#[derive(Debug)]
pub struct Rehearsal {
    /// Report in JSON.
    pub report: Value,
    /// Requests of pleach to the copy, in order of their answers.
    pub events: Events,
    /// Duration from the start of the program to the report.
    pub took: Duration,
}

/// Returns the arguments of a rehearsal whose pods are ready at once, for [`run`].
pub fn arguments(target: &str) -> anyhow::Result<Vec<String>> {
    let program = binaries().find("kube-apiserver")?;
    let programs = program.parent().context("a program without a folder")?;
    let programs = programs.to_str().context("a folder without a name")?;
    let args = ["rehearse", target, "-o", "json", "--pod-delay", "0s"];
    let keep = ["--keep", "--control-plane", programs];
    Ok([&args[..], &keep]
        .concat()
        .iter()
        .map(|it| (*it).to_owned())
        .collect())
}

/// Runs a rehearsal with `--keep` and `-o json`, reads the audit log of the copy, and ends it.
pub async fn run(mut command: Command) -> anyhow::Result<Rehearsal> {
    let started = Instant::now();
    let folder = tempfile::tempdir()?;
    let mut output = tempfile::tempfile()?;
    let mut child = command
        .env("TMPDIR", folder.path())
        .stdout(output.try_clone()?)
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start {command:?}"))?;
    let stderr = child.stderr.take().context("no stderr")?;
    let mut printed = String::new();
    let mut kubeconfig = None;
    for line in BufReader::new(stderr).lines() {
        let line = line?;
        if let Some((_, path)) = line.split_once(KEPT) {
            kubeconfig = Some(path.to_owned());
            break;
        }
        printed.push_str(&line);
        printed.push('\n');
    }
    let took = started.elapsed();
    let mut events = Events::default();
    if let Some(kubeconfig) = &kubeconfig {
        let kubeconfig = Path::new(kubeconfig);
        let log = AuditLog::new(kubeconfig.with_file_name("audit.log"));
        events = log.complete(&client(kubeconfig).await?).await?;
        let id = child.id().to_string();
        let status = Command::new("kill").args(["-INT", &id]).status()?;
        ensure!(status.success(), "failed to stop the rehearsal");
    }
    let status = child.wait()?;
    let mut report = String::new();
    output.rewind()?;
    output.read_to_string(&mut report)?;
    if kubeconfig.is_none() {
        bail!("the rehearsal ended with {status}:\n{report}{printed}");
    }
    Ok(Rehearsal {
        report: serde_json::from_str(&report).with_context(|| report.clone())?,
        events: events.by_agent("pleach/"),
        took,
    })
}

impl Rehearsal {
    /// Returns the number of planned and of executed writes.
    pub fn writes(&self) -> [u64; 2] {
        let stages = stages(&self.report);
        ["planned", "writes"].map(|field| {
            let numbers = stages.iter().filter_map(|stage| stage[field].as_u64());
            numbers.sum()
        })
    }

    /// Verifies that the plan on the copy was that for the cluster and that nothing was refused.
    pub fn is_clean(&self) -> anyhow::Result<()> {
        let report = &self.report;
        ensure!(
            report["verdict"] == "passed" && report["plan"]["agreement"] == "same",
            "{report:#}"
        );
        let [planned, made] = self.writes();
        ensure!(planned == made, "{made} of {planned} writes: {report:#}");
        Ok(())
    }
}

/// Returns all stages of a report.
fn stages(report: &Value) -> Vec<&Value> {
    let releases = report["releases"].as_array().into_iter().flatten();
    let stages = releases.filter_map(|release| release["stages"].as_array());
    stages.flatten().collect()
}

/// Compares the object writes of a rehearsal with those of the real upgrade: each object gets the
/// same writes in the same order, and both follow the dependencies of the plan.
///
/// `plan` is the output of `pleach plan -o json` before the upgrade. Writes of records, leases and
/// events are left out, because their number depends on time.
pub fn compare(plan: &Value, rehearsed: &Events, real: &Events) -> anyhow::Result<usize> {
    let (rehearsed, real) = (object_writes(rehearsed), object_writes(real));
    let sorted = |writes: &[Write]| {
        let mut lines: Vec<String> = writes.iter().map(|it| it.line.clone()).collect();
        lines.sort();
        lines
    };
    let difference = similar(&sorted(&rehearsed), &sorted(&real));
    ensure!(difference.is_empty(), "other writes:\n{difference}");
    ensure!(!real.is_empty(), "no writes");
    for (name, writes) in [("rehearsal", &rehearsed), ("upgrade", &real)] {
        follows(plan, writes).with_context(|| format!("order of the {name}"))?;
    }
    // Writes of one object are in the same order.
    ensure!(
        by_object(&rehearsed) == by_object(&real),
        "other order of an object:\n{rehearsed:#?}\n{real:#?}"
    );
    Ok(real.len())
}

/// Write of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Write {
    /// Verb, object and status, as in [`Event`].
    line: String,
    /// Resource, namespace and name.
    object: [String; 4],
}

fn object_writes(events: &Events) -> Vec<Write> {
    let writes = events
        .0
        .iter()
        .filter(|event| event.is_write() && event.code() < 400 && !is_record(event));
    let writes = writes.filter_map(|event| {
        let object = event.object_ref.as_ref()?;
        Some(Write {
            line: event.to_string(),
            object: [
                object.api_group.clone(),
                object.resource.clone(),
                object.namespace.clone(),
                object.name.clone(),
            ],
        })
    });
    writes.collect()
}

/// Returns whether a write concerns records of pleach, Leases or events.
fn is_record(event: &Event) -> bool {
    event.object_ref.as_ref().is_none_or(|object| {
        object.namespace == "pleach-system"
            || object.name == "pleach-system"
            || object.api_group == "pleach.dev"
            || object.name == "releases.pleach.dev"
            || ["leases", "events"].contains(&object.resource.as_str())
    })
}

fn by_object(writes: &[Write]) -> BTreeMap<&[String; 4], Vec<&str>> {
    let mut objects: BTreeMap<&[String; 4], Vec<&str>> = BTreeMap::new();
    for write in writes {
        objects.entry(&write.object).or_default().push(&write.line);
    }
    objects
}

/// Returns the lines that only one of two sorted lists has.
fn similar(rehearsed: &[String], real: &[String]) -> String {
    let count = |lines: &[String]| {
        let mut counts: BTreeMap<String, i64> = BTreeMap::new();
        for line in lines {
            *counts.entry(line.clone()).or_default() += 1;
        }
        counts
    };
    let (left, right) = (count(rehearsed), count(real));
    let mut text = String::new();
    for line in left
        .keys()
        .chain(right.keys().filter(|it| !left.contains_key(*it)))
    {
        let number = |counts: &BTreeMap<String, i64>| counts.get(line).copied().unwrap_or_default();
        let (left, right) = (number(&left), number(&right));
        if left != right {
            let _ = writeln!(text, "{line}: {left} rehearsed, {right} real");
        }
    }
    text
}

/// Verifies that writes follow the dependencies of a plan. The n-th write of an object belongs to
/// the n-th writing step of it, so objects with other numbers of writes and steps are skipped.
fn follows(plan: &Value, writes: &[Write]) -> anyhow::Result<()> {
    let mut placed = 0;
    for plan in plan["plans"].as_array().into_iter().flatten() {
        let steps = plan["steps"].as_array().context("a plan without steps")?;
        let mut of_object: BTreeMap<[String; 4], Vec<usize>> = BTreeMap::new();
        for (index, step) in steps.iter().enumerate() {
            if step["op"] != "wait" {
                let object = step["object"].as_str().and_then(resource);
                of_object
                    .entry(object.context("a step without an object")?)
                    .or_default()
                    .push(index);
            }
        }
        let mut places: BTreeMap<usize, usize> = BTreeMap::new();
        for (object, indexes) in of_object {
            let mut found = Vec::new();
            for (place, write) in writes.iter().enumerate() {
                if write.object == object {
                    found.push(place);
                }
            }
            if found.len() == indexes.len() {
                places.extend(indexes.into_iter().zip(found));
            }
        }
        placed += places.len();
        for (index, place) in &places {
            for edge in steps[*index]["needs"].as_array().into_iter().flatten() {
                let from = edge["from"]
                    .as_u64()
                    .and_then(|it| usize::try_from(it).ok());
                let from = from.context("an edge without a step")?;
                let Some(before) = places.get(&from) else {
                    continue;
                };
                ensure!(
                    before < place,
                    "{} is before {}",
                    writes[*place].line,
                    writes[*before].line
                );
            }
        }
    }
    ensure!(placed > 0, "no write has a place in the plan");
    Ok(())
}

/// Returns group, resource, namespace and name of an object such as `Deployment.apps/web/server`.
fn resource(object: &str) -> Option<[String; 4]> {
    let (kind, rest) = object.split_once('/')?;
    let (kind, group) = kind.split_once('.').unwrap_or((kind, ""));
    let (namespace, name) = rest.split_once('/').unwrap_or(("", rest));
    let kind = kind.to_lowercase();
    let plural = match kind.as_str() {
        "endpoints" => kind,
        _ if kind.ends_with('s') || kind.ends_with('x') || kind.ends_with("ch") => {
            format!("{kind}es")
        }
        _ => match kind.strip_suffix('y').filter(|stem| !stem.ends_with('a')) {
            Some(stem) => format!("{stem}ies"),
            None => format!("{kind}s"),
        },
    };
    // The name of the object of a namespace is its namespace in the audit log.
    let namespace = if plural == "namespaces" {
        name
    } else {
        namespace
    };
    Some([group, &plural, namespace, name].map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn writes(lines: &[&str]) -> Vec<Write> {
        let write = |line: &&str| Write {
            line: (*line).to_owned(),
            object: resource(&format!("ConfigMap/web/{line}")).unwrap(),
        };
        lines.iter().map(write).collect()
    }

    #[test]
    fn resources_of_objects() {
        for (object, expected) in [
            ("Namespace/web", ["", "namespaces", "web", "web"]),
            (
                "Ingress.networking.k8s.io/web/a",
                ["networking.k8s.io", "ingresses", "web", "a"],
            ),
            (
                "NetworkPolicy.networking.k8s.io/web/a",
                ["networking.k8s.io", "networkpolicies", "web", "a"],
            ),
            (
                "Gateway.example.org/web/a",
                ["example.org", "gateways", "web", "a"],
            ),
            ("Endpoints/web/a", ["", "endpoints", "web", "a"]),
        ] {
            assert_eq!(resource(object).unwrap(), expected, "{object}");
        }
    }

    #[test]
    fn writes_have_to_follow_the_edges_of_the_plan() {
        let step = |name: &str, needs: Value| json!({"object": format!("ConfigMap/web/{name}"), "op": {"apply": {}}, "needs": needs});
        let plan = json!({"plans": [{"steps": [
            step("a", json!([])),
            step("b", json!([])),
            step("c", json!([{"from": 0}])),
        ]}]});
        for (order, is_followed) in [
            (["a", "b", "c"], true),
            (["b", "a", "c"], true),
            (["c", "b", "a"], false),
        ] {
            assert_eq!(
                follows(&plan, &writes(&order)).is_ok(),
                is_followed,
                "{order:?}"
            );
        }
        let none = follows(&plan, &writes(&["x"])).unwrap_err();
        assert_eq!(none.to_string(), "no write has a place in the plan");
    }
}
