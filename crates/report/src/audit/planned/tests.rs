use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::audit::{Difference, Reader, Report};
use pleach_state::inventory::Store;

fn write(verb: Verb, id: &str, resource: &str, open: bool) -> PlannedWrite {
    PlannedWrite {
        resource: resource.to_owned(),
        ..PlannedWrite::new([verb], &id.parse().unwrap(), open)
    }
}

fn plan() -> LastPlan {
    LastPlan {
        format: FORMAT,
        release: ReleaseName {
            environment: "dev".to_owned(),
            release: "web".to_owned(),
        },
        at: Timestamp::UNIX_EPOCH,
        revision: "abc".to_owned(),
        from: None,
        to: "v1".to_owned(),
        effects: Digest::of(b"effects"),
        writes: Some(BTreeSet::from([
            write(Verb::Patch, "Deployment.apps/web/web", "deployments", false),
            write(Verb::Patch, "Namespace/web", "namespaces", false),
            write(Verb::Delete, "Service/web/old", "services", false),
            write(Verb::Create, "ConfigMap/web/copy", "configmaps", true),
        ])),
    }
}

/// Builds an audit event from "verb group resource namespace/name", a status code and a second.
fn line(agent: &str, what: &str, code: u16, second: u8) -> String {
    let mut words = what.split(' ');
    let mut next = || words.next().unwrap();
    let (verb, group, resource, place) = (next(), next(), next(), next());
    let (namespace, name) = place.split_once('/').unwrap();
    json!({
        "stage": "ResponseComplete", "verb": verb, "userAgent": agent,
        "requestURI": format!("/x?fieldManager=y{}", words.next().unwrap_or_default()),
        "objectRef": {"apiGroup": group.trim_start_matches('-'), "resource": resource, "namespace": namespace, "name": name},
        "responseStatus": {"code": code},
        "requestReceivedTimestamp": format!("2026-01-02T03:04:{second:02}.000000Z"),
    })
    .to_string()
}

const OURS: &str = "pleach/0.1.0 dev.web";
const PLAN: &str = "patch - configmaps pleach-system/dev.web.plan";

fn read(lines: &[String]) -> Report {
    let plan = plan();
    let mut reader = Reader::new(&plan, &Store::Release);
    for line in lines {
        reader.line(line);
    }
    reader.report()
}

fn ours(whats: &[(&str, u16)]) -> Vec<String> {
    let begun = std::iter::once(&(PLAN, 200));
    begun
        .chain(whats)
        .zip(1..)
        .map(|((what, code), second)| line(OURS, what, *code, second))
        .collect()
}

const ALL: [(&str, u16); 3] = [
    ("patch apps deployments web/web", 200),
    ("patch - namespaces web/web", 201),
    ("delete - services web/old", 200),
];

#[test]
fn the_same_writes_are_the_same() {
    let report = read(&ours(&ALL));
    assert!(report.is_same(), "{report:?}");
    assert_eq!(report.written, 3);
}

#[rstest]
#[case::the_record(&[("patch pleach.dev releases /dev.web", 200), ("patch - configmaps pleach-system/dev.web.inventory.0-ab", 201), ("delete coordination.k8s.io leases pleach-system/dev.web", 200), ("create - configmaps pleach-system/dev.web.journal", 201), ("delete - configmaps pleach-system/dev.web.rehearsal", 200)])]
#[case::controller_events(&[("create - events default/dev.web.ab12", 201), ("patch - events default/dev.web.ab12", 200)])]
#[case::refused(&[("patch apps deployments web/other", 409)])]
#[case::dry_run(&[("patch apps deployments web/other &dryRun=All", 200)])]
#[case::reads(&[("get apps deployments web/other", 200)])]
#[case::reviews(&[("create authorization.k8s.io selfsubjectaccessreviews /", 201)])]
#[case::left_open(&[("create - configmaps web/copy", 201)])]
#[case::again(&[("patch apps deployments web/web", 200)])]
fn writes_of_every_run_are_no_difference(#[case] more: &[(&str, u16)]) {
    let report = read(&ours(&[&ALL[..], more].concat()));
    assert!(report.is_same(), "{report:?}");
}

#[test]
fn an_absent_object_need_not_be_deleted() {
    let mut all = ALL;
    all[2].1 = 404;
    assert!(read(&ours(&all)).is_same());
}

#[test]
fn differences_are_reported_by_object_and_verb() {
    let report = read(&ours(&[
        ALL[0],
        ("patch - namespaces web/web", 403),
        ("delete apps deployments web/web", 200),
        ("patch batch jobs web/x", 200),
        ("create - events default/other.ab12", 201),
    ]));
    let difference = |verb, object: &str| Difference {
        verb,
        object: object.to_owned(),
    };
    assert_eq!(
        report.missing,
        [
            difference(Verb::Patch, "Namespace/web"),
            difference(Verb::Delete, "Service/web/old")
        ]
    );
    assert_eq!(
        report.unplanned,
        [
            difference(Verb::Create, "events/default/other.ab12"),
            difference(Verb::Patch, "jobs.batch/web/x"),
            difference(Verb::Delete, "Deployment.apps/web/web")
        ]
    );
}

#[test]
fn only_the_last_run_of_this_release_counts_whatever_the_order_of_lines() {
    let mut lines = ours(&ALL);
    lines.push(line(OURS, "patch batch jobs web/other", 200, 0));
    lines.push(line(
        "pleach/0.1.0 dev.webs",
        "patch batch jobs web/x",
        200,
        9,
    ));
    lines.push(line("kubectl/1 dev.web", "patch batch jobs web/x", 200, 9));
    lines.reverse();
    assert!(read(&lines).is_same());
}

#[test]
fn a_log_without_the_run_is_inconclusive() {
    let report = read(&ours(&ALL)[1..]);
    assert!(!report.found && !report.is_same());
    assert_eq!((report.missing.len(), report.unplanned.len()), (0, 0));
    let mut broken = ours(&ALL);
    broken.push("{\"userAgent\": \"pleach/0.1.0 dev.web\"".to_owned());
    assert_eq!(read(&broken).unreadable, 1);
}

#[test]
fn a_plan_round_trips() {
    let object = plan().to_object("pleach-system");
    assert_eq!(object["metadata"]["name"], "dev.web.plan");
    assert_eq!(LastPlan::from_object(&object).unwrap(), plan());
    assert!(LastPlan::from_object(&json!({})).is_err());
    let newer = LastPlan {
        format: FORMAT + 1,
        ..plan()
    };
    let error = LastPlan::from_object(&newer.to_object("x")).unwrap_err();
    assert!(matches!(error, LastPlanError::Newer(_)));
}
