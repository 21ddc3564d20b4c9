//! `pleach rehearse --attach`: stores the report for the web page of the controller.

use jiff::Timestamp;
use pleach_engine::sync::state;
use pleach_model::object::ReleaseName;
use pleach_rehearsal::report::Report;
use pleach_report::attached::{self, TooLarge};
use pleach_state::inventory::Store;
use serde_json::{Value, json};

use super::source::Records;
use crate::cli::Ui;
use crate::cli::error::{CliError, Kind};
use crate::cli::lease::person;
use crate::cli::session::failed;

/// Stores the part of each release beside its record. One that fails does not keep the others from
/// it; the last error is returned, and earlier ones are shown.
pub(super) async fn attach(
    ui: &mut Ui,
    records: &Records,
    report: &Report,
) -> Result<(), CliError> {
    if report.releases.is_empty() {
        ui.notice("nothing was rehearsed, so no report is attached");
    }
    let by = (Timestamp::now(), person());
    let mut result = Ok(());
    for (name, store) in &records.releases {
        let Some(part) = report.of_release(&name.to_string()) else {
            continue;
        };
        match attach_one(records, (name, store), (by.0, &by.1), part).await {
            Ok(text) => ui.notice(text),
            Err(error) => {
                if let Err(earlier) = std::mem::replace(&mut result, Err(error)) {
                    ui.error(&earlier);
                }
            }
        }
    }
    result
}

/// Stores the part of one release. Returns what to say about it.
async fn attach_one(
    records: &Records,
    (name, store): (&ReleaseName, &Store),
    by: (Timestamp, &str),
    part: Report,
) -> Result<String, CliError> {
    let (object, is_whole) = object((name, store), by, part)
        .map_err(|error| CliError::new(Kind::Failed, format!("release {name}: {error}")))?;
    let attaching = state::attach(&records.cluster, (name, store), &object);
    let attached = Box::pin(attaching).await;
    if !attached.map_err(|error| failed("attach the report to", name, error))? {
        return Ok(format!(
            "the report of {name} is not attached: the release has no record in the cluster yet"
        ));
    }
    let without = if is_whole {
        ""
    } else {
        " without the lists of facts that are left out or not comparable: they are too large"
    };
    Ok(format!("the report is attached to release {name}{without}"))
}

/// Returns the object with the report of a release, and whether it is the whole report. Too large
/// lists are left out.
fn object(
    (name, store): (&ReleaseName, &Store),
    by: (Timestamp, &str),
    report: Report,
) -> Result<(Value, bool), TooLarge> {
    let namespace = store.namespace();
    if let Ok(object) = attached::to_object(name, namespace, by, &json!(report)) {
        return Ok((object, true));
    }
    let short = report.without_lists();
    let object = attached::to_object(name, namespace, by, &json!(short))?;
    Ok((object, false))
}

#[cfg(test)]
mod tests {
    use pleach_model::object::Digest;
    use pleach_rehearsal::report::{Agreement, Copied, FORMAT, NotComparable, Release, Verdict};

    use super::*;

    fn report(facts: usize, name: &str) -> Report {
        // Digests do not compress well.
        let text = |index: usize| Digest::of(&index.to_be_bytes()).to_string();
        let facts = (0..facts).map(|index| NotComparable {
            kind: "webhook".to_owned(),
            what: text(index),
        });
        Report {
            format: FORMAT,
            environment: "dev".to_owned(),
            revision: "none".to_owned(),
            copied: Copied::default(),
            kubernetes: "1.36.3".to_owned(),
            plan: Agreement::Same {
                effects: vec![text(0)],
            },
            releases: vec![Release {
                name: name.to_owned(),
                from: String::new(),
                to: "v1".to_owned(),
                effects: Some(text(0)),
                stages: Vec::new(),
                gates: Vec::new(),
                not_started: None,
                trouble: None,
            }],
            not_comparable: facts.collect(),
            verdict: Verdict::Passed,
        }
    }

    /// The web page reads the report, with and without its lists.
    #[test]
    fn large_lists_are_left_out() {
        let name = ReleaseName {
            environment: "dev".to_owned(),
            release: "web".to_owned(),
        };
        let by = (Timestamp::UNIX_EPOCH, "ann@laptop");
        for (facts, is_whole) in [(1, true), (10_000, false)] {
            let release = (&name, &Store::Release);
            let (object, found) = object(release, by, report(facts, "dev.web")).unwrap();
            assert_eq!(found, is_whole, "{facts}");
            let attached = attached::read(&object).unwrap();
            let plan = (&Digest::of(&0_usize.to_be_bytes()), "other");
            let result = attached.rehearsal.of_release("dev.web", plan).unwrap();
            assert_eq!(result.out_of_date, None);
            assert_eq!(result.kubernetes, "1.36.3");
        }
        // Nothing else can be left out.
        let long: String = (0..10_000_usize)
            .map(|index| Digest::of(&index.to_be_bytes()).to_string())
            .collect();
        let built = object((&name, &Store::Release), by, report(0, &long));
        assert_eq!(built, Err(TooLarge));
    }
}
