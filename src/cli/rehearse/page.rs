//! Report of a rehearsal as a self-contained HTML page without scripts.

use minijinja::value::Serde;
use minijinja::{Value, context};
use pleach_page::pages::RenderError;
use pleach_page::standalone;
use pleach_rehearsal::report::{Report, Verdict};

use pleach_model::sanitize::plain;

/// Renders the page.
pub(super) fn page(report: &Report) -> Result<String, RenderError> {
    let mut whole = serde_json::json!(report);
    clean(&mut whole);
    let values = context! {
        report => Value::from(Serde(whole)),
        passed => report.verdict == Verdict::Passed,
        conclusion => plain(&report.conclusion()),
        copied => plain(&report.copied_line()),
        plan => plain(&report.plan_line()),
    };
    let title = format!("Rehearsal of {}", report.environment);
    standalone::rehearsal(&title, values)
}

/// Removes control characters from all texts.
fn clean(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) => *text = plain(text),
        serde_json::Value::Array(items) => items.iter_mut().for_each(clean),
        serde_json::Value::Object(map) => map.values_mut().for_each(clean),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use pleach_rehearsal::dump::LeftOut;
    use pleach_rehearsal::report::{
        Agreement, Copied, FORMAT, GateClosure, NotComparable, Refusal, Release, Stage,
    };

    use super::*;

    fn stage(name: &str, planned: usize, writes: usize) -> Stage {
        Stage {
            stage: name.to_owned(),
            planned,
            writes,
            waited: 0.3,
            refused: Vec::new(),
        }
    }

    fn report() -> Report {
        let mut workloads = stage("workloads", 16, 14);
        workloads.refused.push(Refusal {
            object: "Deployment.apps/shop/web".to_owned(),
            message: "denied: <script>alert(1)</script>\u{1b}[31m".to_owned(),
            hint: Some("set resources.limits".to_owned()),
        });
        Report {
            format: FORMAT,
            environment: "production".to_owned(),
            revision: "c0ffee".to_owned(),
            copied: Copied {
                objects: 1204,
                kinds: 46,
                cluster: "6f0c2d5e".to_owned(),
                kubernetes: "v1.36.2".to_owned(),
                seconds: Some(1.9),
                left_out: vec![LeftOut {
                    what: "Secret".to_owned(),
                    why: "forbidden".to_owned(),
                }],
            },
            kubernetes: "1.36.3".to_owned(),
            plan: Agreement::Same {
                effects: vec!["sha256:5b1e9c".to_owned()],
            },
            releases: vec![
                Release {
                    name: "production.shop".to_owned(),
                    from: "v1.0.0".to_owned(),
                    to: "v2.0.0".to_owned(),
                    effects: None,
                    stages: vec![stage("access", 9, 9), workloads, stage("prune", 15, 0)],
                    gates: vec![GateClosure {
                        gate: "hold".to_owned(),
                        seconds: 3.12,
                        lifted: false,
                    }],
                    not_started: None,
                    trouble: None,
                },
                Release {
                    name: "production.other".to_owned(),
                    from: String::new(),
                    to: "v1.0.0".to_owned(),
                    effects: None,
                    stages: Vec::new(),
                    gates: Vec::new(),
                    not_started: Some("an earlier release would fail".to_owned()),
                    trouble: None,
                },
            ],
            not_comparable: vec![NotComparable {
                kind: "webhook".to_owned(),
                what: "ValidatingWebhookConfiguration/policy: asked 14 times, answered \"allow\""
                    .to_owned(),
            }],
            verdict: Verdict::WouldFail,
        }
    }

    #[test]
    fn the_page_shows_the_report_escaped() {
        let page = page(&report()).unwrap();
        for expected in [
            "<title>Rehearsal of production</title>",
            "would fail in stage workloads; 23 of 40 writes made",
            "denied: &lt;script&gt;alert(1)&lt;",
            "not reached (15)",
            "<td>9 of 9</td><td>0</td><td>0.3 s</td>",
            "for 3.1 s",
            "and is not lifted",
            "v1.0.0 → v2.0.0",
            "not started: an earlier release would fail",
            "asked 14 times",
            "forbidden",
        ] {
            assert!(page.contains(expected), "{expected}: {page}");
        }
        for absent in ["<script", "\u{1b}", "http-equiv=\"refresh", "src="] {
            assert!(!page.contains(absent), "{absent}");
        }
    }
}
