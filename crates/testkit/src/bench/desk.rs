//! What costs nothing but the program itself: its start, and render.

use std::path::Path;
use std::process::Command;

use super::measure::{self, Usage};
use super::workload::{Content, File, TEMPLATE_VALUES, Workload};
use crate::repository::TestRepo;

/// Runs of each; the middle one counts.
const RUNS: usize = 7;

/// A command without a cluster, and what its runs cost.
#[derive(Debug, Clone)]
pub struct AtDesk {
    /// What was run.
    pub what: String,
    /// What each run cost.
    pub runs: Vec<Usage>,
    /// Milliseconds that it may take.
    pub limit: u64,
}

/// Measures the start of the program, and render from its start to its end.
pub(super) fn measure(pleach: &Path, objects: usize) -> anyhow::Result<Vec<AtDesk>> {
    let workload = Workload::new(Content::Mixed, objects);
    let empty = repository(Vec::new())?;
    let templates = repository(workload.templates())?;
    let looped = repository(vec![workload.looped()])?;
    [
        ("version".to_owned(), &empty, &["version"][..], 10),
        (
            format!("render of {objects} objects, a template per application"),
            &templates,
            &["render", "bench"],
            500,
        ),
        (
            format!("render of {objects} objects, one template with a loop"),
            &looped,
            &["render", "bench"],
            500,
        ),
    ]
    .into_iter()
    .map(|(what, repository, args, limit)| {
        let output = tempfile::NamedTempFile::new()?;
        let runs = (0..RUNS).map(|_| {
            let mut command = Command::new(pleach);
            command
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .env("NO_COLOR", "1")
                .current_dir(repository.path())
                .args(args);
            measure::run(&mut command, output.path(), &[0])
        });
        Ok(AtDesk {
            what,
            runs: runs.collect::<anyhow::Result<_>>()?,
            limit,
        })
    })
    .collect()
}

fn repository(files: Vec<File>) -> anyhow::Result<TestRepo> {
    let header = "apiVersion: pleach.dev/v1alpha1\nkind";
    let own = [
        ("pleach.yaml", format!("{header}: Repository\nid: bench\n")),
        (
            "environments/bench.yaml",
            format!(
                "{header}: Environment\nreleases: [{{bundle: app, version: v1.0.0, values: {TEMPLATE_VALUES}}}]\n"
            ),
        ),
        ("manifests/app/bundle.yaml", format!("{header}: Bundle\n")),
        ("manifests/app/v1.0.0/version.yaml", format!("{header}: BundleVersion\n")),
    ]
    .map(|(path, text)| (path.to_owned(), text));
    let objects = files
        .into_iter()
        .map(|file| (format!("manifests/app/v1.0.0/{}", file.name), file.text));
    let repository = TestRepo::new(own.into_iter().chain(objects))?;
    repository.commit("start")?;
    Ok(repository)
}
