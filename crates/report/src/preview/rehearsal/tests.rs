use serde_json::{Value, json};

use super::*;
use crate::preview::ClusterPreview;
use crate::preview::comment::tests::{preview, release};

const HEAD: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

fn report() -> Value {
    json!({
        "format": 1,
        "environment": "dev",
        "revision": HEAD,
        "plan": {"agreement": "same", "effects": []},
        "releases": [{
            "name": "dev.web",
            "effects": Digest::of(b"a"),
            "stages": [
                {"stage": "access", "planned": 9, "writes": 9, "waited": 0.1, "refused": []},
                {"stage": "workloads", "planned": 49, "writes": 49, "waited": 1.5, "refused": []},
            ],
            "notStarted": null,
        }],
        "verdict": "passed",
    })
}

/// Returns a preview of the release `dev.web`, with effects on the cluster.
fn on_cluster(effects: Option<&[u8]>) -> Preview {
    let mut live = release("dev.web", Vec::new());
    live.effects = effects.map(Digest::of);
    let mut preview = preview(vec![release("dev.web", Vec::new())]);
    preview.environments[0].cluster = effects.map(|_| ClusterPreview {
        releases: vec![live],
        ..ClusterPreview::default()
    });
    preview
}

fn lines(report: &Value, preview: &Preview) -> Vec<String> {
    let rehearsal = Rehearsal::parse(report.to_string().as_bytes()).unwrap();
    rehearsal.lines(preview)
}

#[test]
fn a_result_belongs_to_equal_effects_or_to_the_revision() {
    let yes = "yes, 58 writes, 0 refused (dev)";
    let without_effects = |revision: &str| {
        let mut report = report();
        report["revision"] = revision.into();
        report["releases"][0]["effects"] = Value::Null;
        report
    };
    let other = "c".repeat(40);
    let of_other = |effects: &[u8]| {
        let mut report = report();
        report["revision"] = other.as_str().into();
        report["releases"][0]["effects"] = json!(Digest::of(effects));
        report
    };
    let out_of_date = |why: &str| format!("out of date (dev): {why}");
    let mut elsewhere = report();
    elsewhere["environment"] = "prod".into();
    for (report, preview, expected) in [
        (report(), on_cluster(Some(b"a")), yes.to_owned()),
        // The effects decide, also for another revision.
        (of_other(b"a"), on_cluster(Some(b"a")), yes.to_owned()),
        (
            report(),
            on_cluster(Some(b"b")),
            out_of_date("the effects of dev.web differ"),
        ),
        // Without effects, the revision decides.
        (report(), on_cluster(None), yes.to_owned()),
        (
            without_effects(HEAD),
            on_cluster(Some(b"a")),
            yes.to_owned(),
        ),
        (
            without_effects(&other),
            on_cluster(Some(b"a")),
            out_of_date(&format!("it is of revision {other}")),
        ),
        (
            without_effects("bbbbbbb-dirty"),
            on_cluster(None),
            out_of_date("it is of a working tree without a commit"),
        ),
        (
            elsewhere,
            on_cluster(None),
            "out of date (prod): its environment is not part of this preview".to_owned(),
        ),
    ] {
        assert_eq!(lines(&report, &preview), [expected], "{report}");
    }
}

#[test]
fn findings_are_listed_up_to_a_limit() {
    let mut report = report();
    report["verdict"] = "wouldFail".into();
    let refusal = json!({"object": "Deployment.apps/web/a", "message": "no memory limit"});
    report["releases"][0]["stages"][1]["refused"] = json!(vec![refusal; 12]);
    report["releases"][0]["stages"][1]["writes"] = 14.into();
    report["releases"][0]["trouble"] = "the Lease was lost".into();
    let mut preview = on_cluster(None);
    preview.environments[0]
        .releases
        .push(release("dev.db", Vec::new()));

    let lines = lines(&report, &preview);

    assert_eq!(
        lines[0],
        "would fail, 23 of 58 writes, 12 refused (dev); not rehearsed: dev.db"
    );
    assert_eq!(
        lines[1],
        "workloads: Deployment.apps/web/a: no memory limit"
    );
    assert_eq!(lines.len(), 12, "{lines:?}");
    assert_eq!(lines[11], "and 3 more");
}

#[test]
fn markdown_of_hostile_texts_is_escaped_and_short() {
    let mut report = report();
    report["verdict"] = "wouldFail".into();
    report["releases"][0]["stages"][0]["refused"] = json!([{
        "object": "<img src=x>\n# head",
        "message": format!("@all [x](https://example.org) `{}", "y".repeat(100_000)),
    }]);
    let rehearsal = Rehearsal::parse(report.to_string().as_bytes()).unwrap();

    let text = rehearsal.markdown(&on_cluster(None), 4_000);

    assert!(
        text.starts_with("\n**rehearsed:** would fail, 58 of 58 writes"),
        "{text}"
    );
    assert!(!text.contains("<img") && !text.contains("\n#"), "{text}");
    assert!(!text.contains("[x](") && !text.contains(" @all"), "{text}");
    assert!(text.len() < 1_000, "{}", text.len());
    let short = rehearsal.markdown(&on_cluster(None), 100);
    let lines: Vec<&str> = short.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 2, "{short}");
    assert!(text.contains(lines[0]), "{short}");
    assert_eq!(lines[1], "The report of the rehearsal shows the rest.");
}

#[test]
fn other_files_are_refused() {
    let mut newer = report();
    newer["format"] = 2.into();
    newer["releases"] = "of another shape".into();
    let mut unknown = report();
    unknown["verdict"] = "perhaps".into();
    let mut negative = report();
    negative["releases"][0]["stages"][0]["writes"] = (-1).into();
    let large = vec![b' '; 1 + usize::try_from(REPORT_BYTES).unwrap()];
    let deep = "[".repeat(100_000);
    let invalid = "not a report of `pleach rehearse -o json`";
    for (bytes, expected) in [
        (
            newer.to_string().into_bytes(),
            "the report has format 2, and format 1 is supported",
        ),
        (unknown.to_string().into_bytes(), invalid),
        (negative.to_string().into_bytes(), invalid),
        (deep.into_bytes(), invalid),
        (b"rehearsed: yes".to_vec(), invalid),
        (large, "the report of a rehearsal has at most 8388608 bytes"),
    ] {
        let error = Rehearsal::parse(&bytes).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn the_result_of_a_release_belongs_to_a_plan_with_the_same_effects() {
    let other = "c".repeat(40);
    let of = |revision: &str, effects: Value| {
        let mut report = report();
        report["revision"] = revision.into();
        report["releases"][0]["effects"] = effects;
        report
    };
    let (same, differs) = (json!(Digest::of(b"a")), json!(Digest::of(b"b")));
    for (case, report, expected) in [
        ("same effects", of(HEAD, same.clone()), None),
        ("same effects at another revision", of(&other, same), None),
        (
            "other effects",
            of(HEAD, differs),
            Some("the plan has other effects".to_owned()),
        ),
        ("no effects, the same revision", of(HEAD, Value::Null), None),
        (
            "no effects, another revision",
            of(&other, Value::Null),
            Some(format!("it is of revision {other}")),
        ),
        (
            "a working tree",
            of("bbbbbbb-dirty", Value::Null),
            Some("it is of a working tree without a commit".to_owned()),
        ),
    ] {
        let rehearsal = Rehearsal::parse(report.to_string().as_bytes()).unwrap();
        let plan = (&Digest::of(b"a"), HEAD);
        let result = rehearsal.of_release("dev.web", plan).unwrap();
        assert_eq!(result.out_of_date, expected, "{case}");
        assert_eq!(result.summary, "yes, 58 writes, 0 refused", "{case}");
        assert!(result.passed && result.findings.is_empty(), "{case}");
        assert_eq!(rehearsal.of_release("dev.db", plan), None, "{case}");
    }
}

#[test]
fn the_result_of_a_release_has_its_first_findings() {
    let mut report = report();
    report["verdict"] = "wouldFail".into();
    report["kubernetes"] = "1.36.3".into();
    report["releases"][0]["trouble"] = "the Lease was lost".into();
    let refusal = json!({
        "object": "Deployment.apps/web/a\n\u{1b}[31m",
        "message": "y".repeat(100_000),
        "hint": "set limits",
    });
    for (refused, shown, left_out) in [(1, 2, 0), (9, 10, 0), (10, 10, 1), (12, 10, 3)] {
        report["releases"][0]["stages"][1]["refused"] = json!(vec![&refusal; refused]);
        let rehearsal = Rehearsal::parse(report.to_string().as_bytes()).unwrap();
        let plan = (&Digest::of(b"a"), HEAD);
        let result = rehearsal.of_release("dev.web", plan).unwrap();
        assert_eq!(
            (result.findings.len(), result.findings_left_out),
            (shown, left_out),
            "{refused}"
        );
        assert!(!result.passed);
        let first = &result.findings[0];
        assert_eq!(
            (first.stage.as_str(), first.hint.as_str()),
            ("workloads", "set limits")
        );
        assert!(
            first.object.starts_with("Deployment.apps/web/a"),
            "{first:?}"
        );
        assert!(!first.object.contains(['\n', '\u{1b}']), "{first:?}");
        assert!(first.message.chars().count() <= TEXT + 40, "{first:?}");
    }
    // A report that contradicts itself has not passed.
    report["verdict"] = "passed".into();
    let rehearsal = Rehearsal::parse(report.to_string().as_bytes()).unwrap();
    let result = rehearsal.of_release("dev.web", (&Digest::of(b"a"), HEAD));
    assert!(!result.unwrap().passed);
}
