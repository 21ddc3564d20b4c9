//! Charts and kustomize overlays of bundles.

use super::*;
use crate::ChartValues;

const FILE: &str = "manifests/app/bundle.yaml";
const CHART: &str = "manifests/app/chart/Chart.yaml";
const RELEASE: (&str, &str) = (
    PROD,
    "values: {shared: 1}\nreleases: [{bundle: app, name: shop, namespace: one, values: {size: 3}}]\n",
);

#[test]
fn a_chart_gets_the_values_of_bundle_version_and_release() {
    let environment = resolved(&[
        RELEASE,
        (
            FILE,
            "values: {size: 1, color: red}\ncharts: [{path: chart}]\n",
        ),
        (CHART, "name: web\n"),
        ("manifests/app/chart/templates/a.yaml", "{{ .Values.a }}\n"),
    ]);
    let release = &environment.releases[0];
    assert_eq!(release.files, ["manifests/app/app.yaml.j2"]);
    let [chart] = release.charts.as_slice() else {
        panic!("{:?}", release.charts);
    };
    assert_eq!(
        (&*chart.name, &*chart.path),
        ("shop", "manifests/app/chart")
    );
    let ChartValues::Merged(values) = &chart.values else {
        panic!("{chart:?}");
    };
    assert_eq!(values.merged, json!({"size": 3, "color": "red"}));
    assert_eq!(release.values.merged["shared"], 1);
}

#[test]
fn charts_of_a_version_have_names_values_and_stages() {
    let environment = resolved(&[
        (PROD, "releases: [{bundle: web, version: v1.0.0}]\n"),
        (
            "manifests/web/v1.0.0/version.yaml",
            "charts:\n- {name: a, path: charts/a.tgz, values: a.yaml.j2, namespace: other, lookups: accept}\n\
             - {name: b, path: charts/b, values: values/b.yaml}\n\
             stages: [{name: second, select: [{chart: b}]}]\n",
        ),
        ("manifests/web/v1.0.0/charts/a.tgz", "package"),
        ("manifests/web/v1.0.0/charts/b/Chart.yaml", "name: b\n"),
        ("manifests/web/v1.0.0/a.yaml.j2", "a: 1\n"),
        ("manifests/web/v1.0.0/values/b.yaml", "b: 1\n"),
    ]);
    let release = &environment.releases[0];
    assert_eq!(release.files, ["manifests/web/v1.0.0/web.yaml"]);
    let [a, b] = release.charts.as_slice() else {
        panic!("{:?}", release.charts);
    };
    assert_eq!(
        (&a.namespace, a.lookups, &a.stage),
        (&Some("other".to_owned()), true, &None)
    );
    assert_eq!((b.lookups, b.stage.as_deref()), (false, Some("second")));
    let file = ChartValues::File("manifests/web/v1.0.0/values/b.yaml".to_owned());
    assert_eq!(b.values, file);
    assert!(
        environment.findings.is_empty(),
        "{:?}",
        environment.findings
    );
}

#[test]
fn an_overlay_is_the_only_reader_of_its_files() {
    let environment = resolved(&[
        RELEASE,
        (
            FILE,
            "kustomize: {path: overlays/one, bases: [manifests/web]}\n",
        ),
        (
            "manifests/app/overlays/one/kustomization.yaml",
            "resources: [../../app.yaml.j2]\n",
        ),
    ]);
    let release = &environment.releases[0];
    assert!(release.files.is_empty(), "{:?}", release.files);
    let overlay = release.kustomize.as_ref().unwrap();
    assert_eq!(overlay.path, "manifests/app/overlays/one");
    assert_eq!(overlay.bases, ["manifests/web"]);
    assert_eq!(overlay.excluded, [FILE]);
}

#[test]
fn mistakes_in_charts_are_reported_at_their_place() {
    for (name, text, expected) in [
        (
            "a path that leaves the folder",
            "charts: [{path: ../chart}]\n",
            "manifests/app/bundle.yaml:3: `path: ../chart` is not a path within its folder (write it without `.`, `..` and a leading `/`)",
        ),
        (
            "a package that does not exist",
            "charts: [{path: a.tgz}]\n",
            "manifests/app/bundle.yaml:3: `path`: manifests/app/a.tgz does not exist (`pleach vendor BUNDLE` downloads a chart with `from`)",
        ),
        (
            "two charts without values",
            "charts:\n- {name: a, path: chart, values: app.yaml.j2}\n- {name: b, path: chart}\n",
            "manifests/app/bundle.yaml:5: chart `b` needs `values` (with several charts, each has a file with its values)",
        ),
        (
            "two charts with one name",
            "charts:\n- {path: chart, values: app.yaml.j2}\n- {path: chart, values: app.yaml.j2}\n",
            "manifests/app/bundle.yaml:5: a second chart `shop` (give one of them another `name`)",
        ),
        (
            "no digest",
            "charts: [{path: chart, from: 'https://charts.example.org'}]\n",
            "manifests/app/bundle.yaml:3: `from` needs `digest` (`pleach vendor` writes it)",
        ),
        (
            "keys of a chart outside of a registry",
            "charts: [{path: chart, verify: {cosignKeysFile: a.pub}}]\n",
            "manifests/app/bundle.yaml:3: `verify`: only charts in a registry have signatures of cosign (remove `verify`, or set `from: oci://…`)",
        ),
        (
            "another digest",
            "charts: [{path: chart, digest: 'sha256:12'}]\n",
            "manifests/app/bundle.yaml:3: `digest: sha256:12` is not a digest (write `sha256:` and 64 hexadecimal digits; `pleach vendor` prints it)",
        ),
        (
            "a stage of an unknown chart",
            "charts: [{name: a, path: chart}]\nstages: [{name: one, select: [{chart: b}]}]\n",
            "manifests/app/bundle.yaml:4: stage `one`: there is no chart `b` (set `name` of the chart in `charts`)",
        ),
        (
            "a selector with a chart and a kind",
            "charts: [{name: a, path: chart}]\nstages: [{name: one, select: [{chart: a, kind: Job}]}]\n",
            "manifests/app/bundle.yaml:4: stage `one`: `chart` cannot be combined with other fields of a selector",
        ),
        (
            "a selector without a kind",
            "stages: [{name: one, select: [{name: a}]}]\n",
            "manifests/app/bundle.yaml:3: stage `one`: `select` needs `kind` or `chart`",
        ),
        (
            "an overlay that is a file",
            "kustomize: {path: app.yaml.j2}\n",
            "manifests/app/bundle.yaml:3: `path`: manifests/app/app.yaml.j2 is not a folder",
        ),
        (
            "a chart that is not named",
            "values: {}\n",
            "manifests/app/chart/Chart.yaml: no bundle.yaml or version.yaml names this chart: the files beside it use another template language (write `charts: [{path: FOLDER}]` with its folder, relative to that of the version)",
        ),
    ] {
        let mut files = vec![RELEASE, (FILE, text)];
        let is_there = text.starts_with("values") || text.contains("path: chart");
        files.extend(is_there.then_some((CHART, "name: web\n")));
        let found = errors(&files);
        assert!(found.contains(&expected.to_owned()), "{name}: {found:#?}");
    }
}
