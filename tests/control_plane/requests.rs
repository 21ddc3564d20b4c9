//! How many requests a few hundred objects take: each task costs what it has
//! to do, and nothing per object that is as wanted.

use std::path::Path;

use pleach_testkit::bench::report::{Sample, Task, Tool};
use pleach_testkit::bench::{self, Options};

#[tokio::test(flavor = "multi_thread")]
async fn requests_follow_what_changed() {
    let options = Options::quick(Path::new(env!("CARGO_BIN_EXE_pleach")).to_owned());
    let report = bench::run(&options, |_| {}).await.unwrap();
    let workload = options.workloads[0];
    let (objects, changes) = (workload.objects, workload.changes());
    assert_eq!((objects, changes), (300, 3));
    let of = |task, tool| -> &Sample {
        let [sample] = report.samples(workload, task, tool) else {
            panic!("{tool} was to do {task} once")
        };
        sample
    };

    let first = of(Task::FirstApply, Tool::Pleach);
    assert_eq!(first.object_writes, objects, "one write per object");
    assert_eq!(first.requests.dry_runs, objects, "one check per object");

    let none = of(Task::NoOp, Tool::Pleach);
    let budget = workload.pages() + 12;
    assert!(none.requests.reads <= budget, "{none:?}");
    assert_eq!(none.requests.dry_runs, 0, "{none:?}");
    assert_eq!(none.requests.writes, 0, "{none:?}");

    // What changed is read in full, and asked for once.
    let diff = of(Task::Diff, Tool::Pleach);
    assert_eq!(diff.requests.dry_runs, changes, "{diff:?}");
    assert_eq!(diff.requests.writes, 0, "{diff:?}");
    assert!(diff.requests.reads <= budget + changes, "{diff:?}");

    // Applying it asks for the rights too, takes the Lease, reads the record once
    // more, and records before and after.
    let one_percent = of(Task::OnePercent, Tool::Pleach);
    assert_eq!(one_percent.object_writes, changes, "{one_percent:?}");
    assert_eq!(one_percent.requests.dry_runs, changes, "{one_percent:?}");
    let recorded = one_percent.requests.writes - one_percent.object_writes;
    assert!(recorded <= 8, "{one_percent:?}");
    assert!(
        one_percent.requests.reads <= budget + changes + 3,
        "{one_percent:?}"
    );

    // The measure of all this sends everything, always.
    for task in [Task::FirstApply, Task::NoOp, Task::OnePercent] {
        assert_eq!(of(task, Tool::Kubectl).object_writes, objects);
    }
    let text = report.text();
    assert!(text.contains("300 mixed, 50 foreign\n"), "{text}");
    assert_eq!(report.json()["cases"].as_array().map(Vec::len), Some(4));
}
