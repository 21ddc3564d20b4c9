//! Benchmark without a cluster: startup, render and preview.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::measure::{self, Usage};
use super::workload::{Content, File, TEMPLATE_VALUES, Workload};
use crate::repository::TestRepo;

/// Number of runs. The median counts.
const RUNS: usize = 7;

/// Measured command without a cluster.
#[derive(Debug, Clone)]
pub struct LocalRuns {
    /// Command.
    pub what: String,
    /// Cost of each run.
    pub runs: Vec<Usage>,
    /// Limit in milliseconds.
    pub limit: u64,
    /// Limit of memory in MiB, of this process and of those it starts.
    pub limit_mib: Option<u64>,
}

/// Number of templates of the measured chart.
const TEMPLATES: usize = 50;

/// Measures the startup of the program, and complete runs of render and preview. Charts are rendered
/// only with `engines`.
pub(super) fn measure(
    pleach: &Path,
    engines: Option<&Path>,
    objects: usize,
    releases: usize,
) -> anyhow::Result<Vec<LocalRuns>> {
    let workload = Workload::new(Content::Mixed, objects);
    let empty = repository(Vec::new())?;
    let templates = repository(workload.templates())?;
    let looped = repository(vec![workload.looped()])?;
    let fleet = fleet(releases)?;
    let chart = chart(TEMPLATES)?;
    let rendered_chart = engines.is_some().then(|| {
        (
            format!("render of a chart of {TEMPLATES} templates, twice"),
            &chart,
            &["render", "bench"][..],
            150,
            Some(64),
        )
    });
    [
        ("version".to_owned(), &empty, &["version"][..], 10, None),
        (
            format!("render of {objects} objects, a template per application"),
            &templates,
            &["render", "bench"],
            500,
            None,
        ),
        (
            format!("render of {objects} objects, one template with a loop"),
            &looped,
            &["render", "bench"],
            500,
            None,
        ),
        (
            format!("preview of {releases} releases, one of them changed"),
            &fleet,
            &["preview", "--base", "main", "--head", "change"],
            1_000,
            None,
        ),
    ]
    .into_iter()
    .chain(rendered_chart)
    .map(|(what, repository, args, limit, limit_mib)| {
        let output = tempfile::NamedTempFile::new()?;
        let runs = (0..RUNS).map(|_| {
            let mut command = Command::new(pleach);
            command
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .env("NO_COLOR", "1")
                .current_dir(repository.path())
                .envs(engines.map(|path| ("PLEACH_ENGINES", path)))
                .args(args);
            measure::run(&mut command, output.path(), &[0])
        });
        Ok(LocalRuns {
            what,
            runs: runs.collect::<anyhow::Result<_>>()?,
            limit,
            limit_mib,
        })
    })
    .collect()
}

/// Creates an environment with one chart. Each template makes a ConfigMap from its values.
fn chart(templates: usize) -> anyhow::Result<TestRepo> {
    let header = "apiVersion: pleach.dev/v1alpha1\nkind";
    let folder = "manifests/app/charts/app";
    let mut files = vec![
        (
            "pleach.yaml".to_owned(),
            format!("{header}: Repository\nid: bench\n"),
        ),
        (
            "environments/bench.yaml".to_owned(),
            format!("{header}: Environment\nreleases: [{{bundle: app, namespace: app}}]\n"),
        ),
        (
            "manifests/app/bundle.yaml".to_owned(),
            format!("{header}: Bundle\ncharts: [{{path: charts/app}}]\nvalues: {{level: info}}\n"),
        ),
        (
            format!("{folder}/Chart.yaml"),
            "apiVersion: v2\nname: app\nversion: 1.0.0\n".to_owned(),
        ),
        (
            format!("{folder}/values.yaml"),
            "level: debug\ncolors: [red, green, blue]\n".to_owned(),
        ),
    ];
    files.extend((0..templates).map(|number| {
        let text = TEMPLATE.replace("NUMBER", &number.to_string());
        (format!("{folder}/templates/app-{number}.yaml"), text)
    }));
    let repository = TestRepo::new(files)?;
    repository.commit("start")?;
    Ok(repository)
}

const TEMPLATE: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}-NUMBER
  labels: {app: {{ .Chart.Name }}, version: {{ .Chart.Version | quote }}}
data:
  level: {{ .Values.level | upper | quote }}
  {{- range $index, $color := .Values.colors }}
  color-{{ $index }}: {{ $color | quote }}
  {{- end }}
";

/// Creates an environment with many releases, each with its own bundle, and a branch that changes
/// one of them.
fn fleet(releases: usize) -> anyhow::Result<TestRepo> {
    let header = "apiVersion: pleach.dev/v1alpha1\nkind";
    let mut environment = format!("{header}: Environment\nreleases:\n");
    let mut files = vec![(
        "pleach.yaml".to_owned(),
        format!("{header}: Repository\nid: bench\n"),
    )];
    for number in 0..releases {
        let name = format!("app-{number}");
        let _never_fails = writeln!(
            environment,
            "  - {{name: {name}, bundle: {name}, namespace: team-{}, values: {{image: \"{name}:1\"}}}}",
            number % 50
        );
        let folder = format!("manifests/{name}");
        files.push((
            format!("{folder}/bundle.yaml"),
            format!("{header}: Bundle\n"),
        ));
        files.push((format!("{folder}/app.yaml.j2"), APP.replace("NAME", &name)));
    }
    files.push(("environments/bench.yaml".to_owned(), environment));
    let repository = TestRepo::new(files)?;
    repository.commit("start")?;
    repository.git(&["checkout", "--quiet", "-b", "change"])?;
    repository.edit("manifests/app-7/app.yaml.j2", "level: info", "level: debug")?;
    repository.commit("change")?;
    Ok(repository)
}

/// Manifests of each bundle.
const APP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: NAME}
data: {level: info}
---
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec: {selector: {app: NAME}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      containers:
      - name: app
        image: {{ values.image }}
        envFrom: [{configMapRef: {name: NAME}}]
";

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
