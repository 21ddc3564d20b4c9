//! Charts and overlays that the real `pleach-engines` renders. `make test-engines` builds the program
//! and runs the ignored tests.

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Response;
use axum::http::request::Parts;
use pleach_testkit::cosign::{CosignKey, Form};
use pleach_testkit::registry::Registry;
use pleach_testkit::tls_front::TlsFront;
use serde_json::json;

use super::{Folder, Run};

const HEADER: &str = "apiVersion: pleach.dev/v1alpha1\nkind";
const CONFIG_MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-settings\n  labels: {app.kubernetes.io/managed-by: {{ .Release.Service }}}\ndata:\n  size: {{ .Values.size | quote }}\n  color: {{ .Values.color }}\n  kubernetes: {{ .Capabilities.KubeVersion.Version }}\n  gears: {{ .Capabilities.APIVersions.Has \"example.org/v1/Gear\" | quote }}\n";
const JOB: &str = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: migrate, annotations: {helm.sh/hook: pre-upgrade}}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}\n";
const CRD: &str = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: gears.example.org}\nspec:\n  group: example.org\n  names: {kind: Gear, plural: gears}\n  scope: Cluster\n  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]\n";

/// Creates a repository with a bundle `web` and these files below it.
fn folder(bundle: &str, files: &[(&str, &str)]) -> Folder {
    let folder = Folder::with(&[
        ("pleach.yaml", &format!("{HEADER}: Repository\nid: fleet\n")),
        (
            "environments/dev.yaml",
            &format!(
                "{HEADER}: Environment\ncluster: {{kubernetes: \"1.36\"}}\nvalues: {{unknown: 1}}\n\
                 releases: [{{bundle: web, namespace: shop, values: {{size: 3}}}}]\n"
            ),
        ),
        (
            "manifests/web/bundle.yaml",
            &format!("{HEADER}: Bundle\n{bundle}"),
        ),
    ]);
    for (path, content) in files {
        folder.write(&format!("manifests/web/{path}"), content);
    }
    folder
}

fn with_program(folder: &Folder, arguments: &[&str]) -> Run {
    let program =
        std::env::var_os("PLEACH_ENGINES").expect("make test-engines sets PLEACH_ENGINES");
    folder.finish(folder.command(arguments).env("PLEACH_ENGINES", program))
}

fn chart() -> Folder {
    let schema = r#"{"additionalProperties": false, "properties": {"size": {"type": "integer"}, "color": {"type": "string"}}}"#;
    folder(
        "charts: [{path: chart}]\n",
        &[
            (
                "chart/Chart.yaml",
                "apiVersion: v2\nname: web\nversion: 1.0.0\n",
            ),
            ("chart/values.yaml", "size: 1\ncolor: red\n"),
            ("chart/values.schema.json", schema),
            ("chart/templates/settings.yaml", CONFIG_MAP),
            ("chart/templates/job.yaml", JOB),
            ("gears.yaml", CRD),
        ],
    )
}

#[test]
#[ignore = "make test-engines"]
fn a_chart_renders_with_values_capabilities_and_hooks() {
    let folder = chart();
    let run = with_program(&folder, &["render", "dev"]);
    assert_eq!(run.code, 0, "{}", run.shown());
    for expected in [
        "name: web-settings",
        "namespace: shop",
        "size: \"3\"",
        "color: red",
        "kubernetes: v1.36.0",
        "gears: \"true\"",
        "app.kubernetes.io/managed-by: pleach",
        "pleach.dev/run: once",
        "pleach.dev/stage: services",
    ] {
        assert!(run.stdout.contains(expected), "{expected}: {}", run.shown());
    }
    let lint = with_program(&folder, &["lint"]);
    assert_eq!(lint.code, 0, "{}", lint.shown());
    assert!(
        !lint.stdout.contains("size") && lint.stdout.contains("`unknown`"),
        "{}",
        lint.shown()
    );
    let again = with_program(&folder, &["render", "dev"]);
    assert_eq!(run.stdout, again.stdout);
}

#[test]
#[ignore = "make test-engines"]
fn charts_that_are_not_pure_are_refused_with_their_lines() {
    let folder = chart();
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  password: {{ randAlphaNum 12 }}\n";
    let asking = "{{ $a := lookup \"v1\" \"Secret\" \"one\" \"two\" }}\n";
    let failing = "\n{{ fail \"no luck\" }}\n";
    for (name, text, expected) in [
        (
            "secret",
            secret,
            "manifests/web/chart/templates/file.yaml:5",
        ),
        (
            "lookup",
            asking,
            "manifests/web/chart/templates/file.yaml:1",
        ),
        ("fail", failing, "manifests/web/chart/templates/file.yaml:2"),
    ] {
        folder.write("manifests/web/chart/templates/file.yaml", text);
        let run = with_program(&folder, &["render", "dev"]);
        assert_eq!(run.code, 3, "{name}: {}", run.shown());
        assert!(run.stderr.contains(expected), "{name}: {}", run.shown());
    }
}

#[test]
#[ignore = "make test-engines"]
fn an_overlay_renders_and_reads_nothing_else() {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n";
    let folder = folder(
        "kustomize: {path: overlays/one}\npatches: [{target: {kind: ConfigMap}, merge: {data: {p: q}}}]\n",
        &[
            (
                "overlays/one/kustomization.yaml",
                "namePrefix: x-\nresources: [../../base]\n",
            ),
            ("base/kustomization.yaml", "resources: [a.yaml]\n"),
            ("base/a.yaml", map),
        ],
    );
    let run = with_program(&folder, &["render", "dev"]);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(
        run.stdout.contains("name: x-a") && run.stdout.contains("p: q"),
        "{}",
        run.shown()
    );
    folder.write("manifests/other/a.yaml", map);
    for resource in ["../../../other/a.yaml", "https://example.org/a.yaml"] {
        let text = format!("resources: [../../base, {resource}]\n");
        folder.write("manifests/web/overlays/one/kustomization.yaml", &text);
        let run = with_program(&folder, &["render", "dev"]);
        assert_eq!(run.code, 3, "{resource}: {}", run.shown());
    }
}

/// Fails if a render of the chart `web` with this template does not end with exit code 3 and a finding
/// that starts with `expected`.
fn assert_refused(folder: &Folder, name: &str, template: &str, expected: &str) {
    folder.write("manifests/web/chart/templates/settings.yaml", template);
    let started = Instant::now();
    let run = with_program(folder, &["render", "dev"]);
    let took = started.elapsed();
    assert_eq!(run.code, 3, "{name}: {}", run.shown());
    assert!(run.stderr.starts_with(expected), "{name}: {}", run.shown());
    // The message can quote a template, but not without end.
    assert!(run.stderr.len() < 20 << 10, "{name}: {}", run.stderr.len());
    assert!(took < Duration::from_mins(1), "{name}: {took:?}");
}

#[test]
#[ignore = "make test-engines"]
fn charts_without_end_fail_at_a_place() {
    let folder = chart();
    let values = "size: 1\ncolor: red\nagain: '{{ tpl .Values.again . }}'\n";
    folder.write("manifests/web/chart/values.yaml", values);
    fs::remove_file(folder.path().join("manifests/web/chart/values.schema.json")).unwrap();
    let template = "manifests/web/chart/templates/settings.yaml";
    let (first, second) = (
        format!("{template}:1: error: "),
        format!("{template}:2: error: "),
    );
    // Memory ends these, and with it the program. The place is that of the chart.
    let program = "manifests/web/bundle.yaml:3: error: `pleach-engines` failed: (exit status: 2): ";
    for (name, text, expected) in [
        (
            "include",
            "{{ define \"a\" }}{{ include \"a\" . }}{{ end }}\n{{ include \"a\" . }}",
            &*second,
        ),
        (
            "template",
            "{{ define \"a\" }}{{ template \"a\" . }}{{ end }}\n{{ template \"a\" . }}",
            &first,
        ),
        ("tpl", "\n{{ tpl .Values.again . }}", program),
        (
            "output of loops",
            "a: {{ range until 100000 }}{{ range until 10000 }}xxxxxxxxxx{{ end }}{{ end }}",
            program,
        ),
        (
            "output of a function",
            "a: {{ repeat 80000000 \"x\" }}",
            program,
        ),
        (
            "doubled text",
            "{{ $a := \"xx\" }}{{ range until 60 }}{{ $a = print $a $a }}{{ end }}{{ $a }}",
            program,
        ),
        ("list", "{{ range until 2000000000 }}{{ end }}", program),
        (
            "documents",
            "{{ range until 2000000 }}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a-{{ . }}}\n{{ end }}",
            program,
        ),
    ] {
        assert_refused(&folder, name, text, expected);
    }
}

#[test]
#[ignore = "make test-engines"]
fn a_chart_that_computes_without_end_is_stopped() {
    let text = "{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}";
    let expected =
        "manifests/web/bundle.yaml:3: error: `pleach-engines` failed: it took longer than 30s";
    assert_refused(&chart(), "loops", text, expected);
}

#[test]
#[ignore = "make test-engines"]
fn of_several_charts_the_failing_one_has_the_place() {
    let folder = chart();
    folder.write(
        "manifests/web/bundle.yaml",
        &format!(
            "{HEADER}: Bundle\ncharts:\n- {{path: good, name: good, values: empty.yaml}}\n- {{path: chart, values: empty.yaml}}\n"
        ),
    );
    folder.write("manifests/web/empty.yaml", "{}\n");
    let good = "apiVersion: v2\nname: good\nversion: 1.0.0\n";
    folder.write("manifests/web/good/Chart.yaml", good);
    let text = "a: {{ repeat 80000000 \"x\" }}";
    let expected =
        "manifests/web/bundle.yaml:5: error: `pleach-engines` failed: (exit status: 2): ";
    assert_refused(&folder, "second", text, expected);
}

#[test]
#[ignore = "make test-engines"]
fn charts_and_overlays_reach_no_other_files_and_no_network() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let folder = chart();
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n";
    folder.write(
        "manifests/web/chart/templates/settings.yaml",
        &format!(
            "{map}  a: {{{{ .Files.Get \"/etc/passwd\" | quote }}}}\n  b: {{{{ .Files.Get \"../../../pleach.yaml\" | quote }}}}\n  c: {{{{ len (.Files.Glob \"/etc/*\") | quote }}}}\n"
        ),
    );
    let run = with_program(&folder, &["render", "dev"]);
    assert_eq!(run.code, 0, "{}", run.shown());
    let data = "  a: \"\"\n  b: \"\"\n  c: \"0\"\n";
    assert!(run.stdout.contains(data), "{}", run.shown());

    // A link within a chart or overlay is refused, wherever it leads.
    for (link, target) in [
        ("chart/templates/link.yaml", "/etc/passwd"),
        ("chart/folder", ".."),
    ] {
        let path = folder.path().join("manifests/web").join(link);
        symlink(target, &path).unwrap();
        let run = with_program(&folder, &["render", "dev"]);
        assert_eq!(run.code, 3, "{link}: {}", run.shown());
        let expected =
            format!("manifests/web/{link}: error: links and submodules are not followed");
        assert!(run.stderr.starts_with(&expected), "{link}: {}", run.shown());
        fs::remove_file(path).unwrap();
    }

    folder.write(
        "manifests/web/bundle.yaml",
        &format!("{HEADER}: Bundle\nkustomize: {{path: overlay}}\n"),
    );
    fs::remove_dir_all(folder.path().join("manifests/web/chart")).unwrap();
    let function = "apiVersion: example.org/v1\nkind: Run\nmetadata:\n  name: a\n  annotations: {config.kubernetes.io/function: 'exec: {path: /bin/true}'}\n";
    folder.write("manifests/web/overlay/function.yaml", function);
    let file = "manifests/web/overlay/kustomization.yaml";
    for (text, line, code) in [
        (
            format!("resources:\n- http://{address}/a.yaml\n"),
            2,
            "is not in the repository",
        ),
        (
            format!("resources:\n- https://{address}/org/repo?ref=main\n"),
            2,
            "is not in the repository",
        ),
        (
            format!("bases: [git::http://{address}/repo]\n"),
            1,
            "is not in the repository",
        ),
        ("resources: [/etc/passwd]\n".to_owned(), 1, "`resources[0]`"),
        (
            "generators: [function.yaml]\n".to_owned(),
            1,
            "`generators[0]`",
        ),
        (
            format!("helmCharts: [{{name: a, repo: 'http://{address}/'}}]\n"),
            1,
            "`helmCharts`",
        ),
    ] {
        folder.write(file, &text);
        let run = with_program(&folder, &["render", "dev"]);
        assert_eq!(run.code, 3, "{text}: {}", run.shown());
        let place = format!("{file}:{line}: error: ");
        assert!(run.stderr.starts_with(&place), "{text}: {}", run.shown());
        assert!(run.stderr.contains(code), "{text}: {}", run.shown());
    }
    let connection = listener.accept().map_err(|error| error.kind());
    assert_eq!(connection.unwrap_err(), ErrorKind::WouldBlock);
}

#[test]
#[ignore = "make test-engines"]
fn restricted_processes_render_charts() {
    let folder = chart();
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        let names = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        let command = command
            .current_dir(folder.path())
            .args(names)
            .args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    git(&["init", "-b", "main"]);
    git(&["add", "."]);
    git(&["commit", "-m", "one"]);
    git(&["checkout", "-b", "change"]);
    folder.write("manifests/web/chart/values.yaml", "size: 1\ncolor: blue\n");
    git(&["commit", "-am", "two"]);
    git(&["clone", "--bare", ".", "bare"]);
    let bare = folder.path().join("bare").display().to_string();
    let arguments = [
        "--repo",
        &bare,
        "preview",
        "--untrusted",
        "-o",
        "comment",
        "--base=main",
        "--head=change",
    ];
    let run = with_program(&folder, &arguments);
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(
        run.stdout.contains("blue") && run.stdout.contains("red"),
        "{}",
        run.shown()
    );
    let commit = git(&["rev-parse", "HEAD"]);
    let place = json!({"folder": bare, "prefix": ""});
    let request = json!({"place": place, "commit": commit.trim(), "name": "dev"});
    let program = std::env::var_os("PLEACH_ENGINES").unwrap();
    let mut command = folder.command(&["worker", "render"]);
    let command = command.env("PLEACH_ENGINES", program);
    let run = folder.finish(command.write_stdin(request.to_string()));
    assert_eq!(run.code, 0, "{}", run.shown());
    assert!(run.stdout.contains("web-settings"), "{}", run.shown());
}

#[test]
fn without_the_program_the_next_step_is_shown() {
    let folder = chart();
    let run = folder.finish(
        folder
            .command(&["render", "dev"])
            .env("PATH", folder.path()),
    );
    assert_eq!(run.code, 3, "{}", run.shown());
    assert!(
        run.stderr
            .contains("there is no `pleach-engines`: searched ")
            && run.stderr.contains("manifests/web/bundle.yaml:3")
            && run.stderr.contains("make engines"),
        "{}",
        run.shown()
    );
}

#[test]
fn a_changed_chart_differs_from_its_digest() {
    let folder = chart();
    let file = "manifests/web/bundle.yaml";
    let zeros = "0".repeat(64);
    let text = folder.read(file);
    let text = text.replace(
        "path: chart",
        &format!("path: chart, digest: \"sha256:{zeros}\""),
    );
    folder.write(file, &text);
    let run = folder.run(&["vendor", "web", "--check"]);
    assert_eq!(run.code, 1, "{}", run.shown());
    let found = run
        .stdout
        .split_whitespace()
        .find(|word| word.starts_with("sha256:"));
    let found = found.unwrap().trim_end_matches(',').to_owned();
    folder.write(file, &text.replace(&format!("sha256:{zeros}"), &found));
    let run = folder.run(&["vendor", "web", "--check"]);
    assert_eq!((run.code, &*run.stdout), (0, ""), "{}", run.shown());
    fs::remove_file(folder.path().join("manifests/web/chart/values.yaml")).unwrap();
    assert_eq!(folder.run(&["vendor", "web", "--check"]).code, 1);
}

#[test]
fn only_charts_with_a_source_are_downloaded() {
    for (bundle, expected) in [
        ("charts: [{path: chart}]\n", "no chart of web has `from`"),
        (
            "charts: [{path: a.tgz, from: \"oci://example.org/a:1.0.0\"}]\n",
            "the repository of the address is invalid: `a:1.0.0`",
        ),
        (
            "charts: [{path: a, from: \"https://example.org/a\"}]\n",
            "chart a is a folder",
        ),
    ] {
        let chart = ("chart/Chart.yaml", "name: a\n");
        let files = bundle.contains("path: chart").then_some(chart);
        let folder = folder(bundle, files.as_slice());
        let run = folder.run(&["vendor", "web"]);
        assert_eq!(run.code, 3, "{}", run.shown());
        assert!(run.stderr.contains(expected), "{expected}: {}", run.shown());
    }
}

/// Serves files on a port of loopback, by their path. Ends with the process.
fn serve(files: Vec<(&'static str, Vec<u8>)>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut request = String::new();
            while !request.ends_with("\r\n\r\n") && stream.read_line(&mut request).unwrap() > 0 {}
            let found = files
                .iter()
                .find(|(path, _)| request.starts_with(&format!("GET {path} ")));
            let (status, content) = found.map_or((404, &[][..]), |(_, content)| (200, content));
            let head = format!(
                "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                content.len()
            );
            let mut stream = stream.into_inner();
            let _sent = stream.write_all(&[head.as_bytes(), content].concat());
        }
    });
    port
}

/// Returns a package of a chart `web`.
fn packed(folder: &Folder, version: &str) -> Vec<u8> {
    folder.write(
        "source/web/Chart.yaml",
        &format!("apiVersion: v2\nname: web\nversion: {version}\n"),
    );
    let mut tar = std::process::Command::new("tar");
    let tar = tar
        .current_dir(folder.path().join("source"))
        .args(["-czf", "-", "web"]);
    tar.output().unwrap().stdout
}

#[test]
fn a_chart_is_downloaded_with_its_digest() {
    let folder = chart();
    let (old, new) = (packed(&folder, "1.0.0"), packed(&folder, "1.2.0"));
    let index = format!(
        "entries:\n  web:\n  - {{version: 1.0.0, urls: [web-1.0.0.tgz], digest: {}}}\n  - {{version: 1.2.0, urls: [web-1.2.0.tgz]}}\n  \
         - {{version: 1.3.0, urls: [web-1.2.0.tgz], digest: {}}}\n",
        pleach_render::package::package_digest(&old).trim_start_matches("sha256:"),
        "f".repeat(64)
    );
    let files = vec![
        ("/stable/index.yaml", index.into_bytes()),
        ("/stable/web-1.0.0.tgz", old),
        ("/stable/web-1.2.0.tgz", new),
    ];
    let front = TlsFront::start(serve(files)).unwrap();
    folder.write("ca.pem", front.certificate());
    fs::remove_dir_all(folder.path().join("manifests/web/chart")).unwrap();
    let file = "manifests/web/bundle.yaml";
    folder.write(
        file,
        &format!(
            "{HEADER}: Bundle\ncharts:\n  - path: charts/web.tgz # ours\n    from: {}\n",
            front.url("stable")
        ),
    );
    let vendor = |arguments: &[&str]| {
        let arguments = [&["vendor", "web"], arguments].concat();
        folder.finish(folder.command(&arguments).env("SSL_CERT_FILE", "ca.pem"))
    };
    for (arguments, expected) in [
        (
            &["--to", "1.0.0"][..],
            "manifests/web/charts/web.tgz  1.0.0  sha256:",
        ),
        (&[], "manifests/web/charts/web.tgz  1.0.0  sha256:"),
        (
            &["--to", "v1.2.0"],
            "manifests/web/charts/web.tgz  1.0.0 -> 1.2.0  sha256:",
        ),
        (&["--check"], ""),
    ] {
        let run = vendor(arguments);
        assert_eq!(run.code, 0, "{arguments:?}: {}", run.shown());
        assert!(
            run.stdout.starts_with(expected),
            "{arguments:?}: {}",
            run.shown()
        );
    }
    let text = folder.read(file);
    assert!(
        text.contains("path: charts/web.tgz # ours\n") && text.contains("digest: sha256:"),
        "{text}"
    );
    for (version, expected) in [
        ("1.3.0", "has another digest than its index states"),
        ("2.0.0", "there is no version 2.0.0; the newest is 1.3.0"),
    ] {
        let run = vendor(&["--to", version]);
        assert_eq!(run.code, 1, "{}", run.shown());
        assert!(run.stderr.contains(expected), "{}", run.shown());
        assert_eq!(folder.read(file), text);
    }
}

/// Publishes a chart, and returns the digest of its manifest.
fn publish(registry: &Registry, tag: &str, layers: &[(&str, &[u8])]) -> String {
    let layer = |(media_type, content): &(&str, &[u8])| registry.add(media_type, content.to_vec());
    let manifest = json!({
        "schemaVersion": 2,
        "config": registry.add("application/vnd.cncf.helm.config.v1+json", b"{}".to_vec()),
        "layers": layers.iter().map(layer).collect::<Vec<_>>(),
    });
    registry.publish_manifest(tag, &manifest).unwrap()
}

const PACKAGE: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";
const VENDORED: &str = "manifests/web/bundle.yaml";

/// Returns a repository whose chart is in a registry that asks for credentials, with the oldest and
/// the newest package and the digest of the manifest of the newest.
fn with_registry() -> (Folder, Registry, [Vec<u8>; 2], String) {
    let folder = chart();
    let registry = Registry::start(0).unwrap();
    let (old, new) = (packed(&folder, "1.0.0"), packed(&folder, "v1.10.0+build"));
    let provenance = (
        "application/vnd.cncf.helm.chart.provenance.v1.prov",
        &b"p"[..],
    );
    for tag in ["1.0.0", "2.0.0-rc.1", "latest", "1.9.0"] {
        publish(&registry, &format!("charts/web:{tag}"), &[(PACKAGE, &old)]);
    }
    let newest = [(PACKAGE, &*new), provenance];
    let by_digest = publish(&registry, "charts/web:v1.10.0_build", &newest);
    let image = ("application/vnd.oci.image.layer.v1.tar+gzip", &*old);
    publish(&registry, "charts/web:3.0.0-image", &[image]);
    registry.answer_with(|request: &Parts| {
        let authorization = request.headers.get("authorization");
        let is_known = authorization.is_some_and(|value| value == "Basic YW5uOnMzY3JldA==");
        (!is_known).then(|| {
            let refused = Response::builder().status(401);
            let refused = refused.header("www-authenticate", "Basic realm=\"a\"");
            refused.body(Body::empty()).unwrap()
        })
    });
    let auths = json!({registry.host(): {"username": "ann", "password": "s3cret"}});
    folder.write("config.json", &json!({"auths": auths}).to_string());
    fs::remove_dir_all(folder.path().join("manifests/web/chart")).unwrap();
    declare(&folder, &registry);
    (folder, registry, [old, new], by_digest)
}

/// Declares the chart without a digest.
fn declare(folder: &Folder, registry: &Registry) {
    let host = registry.host();
    folder.write(
        VENDORED,
        &format!(
            "{HEADER}: Bundle\ncharts:\n  - path: charts/app.tgz # ours\n    from: oci://{host}/charts/web\n"
        ),
    );
}

fn vendor(folder: &Folder, arguments: &[&str]) -> Run {
    let access = ["--docker-config", "config.json"];
    folder.run(&[&["vendor", "web"], arguments, &access].concat())
}

#[test]
fn a_chart_of_a_registry_is_downloaded_with_its_digest() {
    let (folder, _registry, [_, new], by_digest) = with_registry();
    let path = "manifests/web/charts/app.tgz";
    let digest = pleach_render::package::package_digest(&new);
    for (arguments, expected) in [
        (&[][..], format!("{path}  v1.10.0+build  {digest}\n")),
        (
            &["--to", "v1.0.0"],
            format!("{path}  v1.10.0+build -> 1.0.0  sha256:"),
        ),
        (&[], format!("{path}  1.0.0  sha256:")),
        (
            &["--to", &by_digest],
            format!("{path}  1.0.0 -> v1.10.0+build  {digest}\n"),
        ),
        (&["--check"], String::new()),
    ] {
        let run = vendor(&folder, arguments);
        assert_eq!(run.code, 0, "{arguments:?}: {}", run.shown());
        assert!(
            run.stdout.starts_with(&expected),
            "{arguments:?}: {}",
            run.shown()
        );
    }
    let text = folder.read(VENDORED);
    assert!(text.contains(&format!("digest: {digest}")), "{text}");

    // Without credentials.
    let run = folder.run(&["vendor", "web"]);
    assert_eq!(run.code, 4, "{}", run.shown());
    assert!(run.stderr.contains("docker login"), "{}", run.shown());
    assert!(!run.shown().contains("s3cret"), "{}", run.shown());
}

#[test]
fn a_declared_digest_is_replaced_with_another_version_only() {
    let (folder, registry, [old, _], _) = with_registry();
    let first = vendor(&folder, &[]);
    assert_eq!(first.code, 0, "{}", first.shown());
    let text = folder.read(VENDORED);
    // The tag moves to another package.
    publish(&registry, "charts/web:v1.10.0_build", &[(PACKAGE, &old)]);
    for (arguments, code, expected) in [
        (
            &[][..],
            1,
            "has another digest than chart app declares: sha256:",
        ),
        (
            &["--to", "1.10.0+build"],
            1,
            "has another digest than chart app declares: sha256:",
        ),
        (
            &["--to", "4.0.0"],
            1,
            "there is no version 4.0.0; the newest is 3.0.0-image",
        ),
        (&["--to", "3.0.0-image"], 1, "has no layer of files"),
        (
            &["--to", &format!("sha256:{}", "0".repeat(64))],
            4,
            "not-found",
        ),
    ] {
        let run = vendor(&folder, arguments);
        assert_eq!(run.code, code, "{arguments:?}: {}", run.shown());
        assert!(
            run.stderr.contains(expected),
            "{arguments:?}: {}",
            run.shown()
        );
        assert_eq!(folder.read(VENDORED), text);
    }
    declare(&folder, &registry);
    let other = vendor(&folder, &["--to", "1.10.0+build"]);
    assert_eq!(other.code, 1, "{}", other.shown());
    let expected = "is version 1.0.0, not 1.10.0+build; nothing is written";
    assert!(other.stderr.contains(expected), "{}", other.shown());
    // Another package of the same version.
    folder.write("source/web/templates/more.yaml", "# more\n");
    let other = packed(&folder, "1.10.0+build");
    publish(&registry, "charts/web:v1.10.0_build", &[(PACKAGE, &other)]);
    let accepted = vendor(&folder, &["--to", "1.10.0+build"]);
    assert_eq!(accepted.code, 0, "{}", accepted.shown());
}

#[test]
fn a_chart_with_keys_needs_a_signature() {
    let (folder, registry, [_, new], newest) = with_registry();
    let path = "manifests/web/charts/app.tgz";
    let [key, other] = [(), ()].map(|()| CosignKey::generate().unwrap());
    folder.write("keys/charts.pub", &key.public_pem());
    let verify = "    verify: {cosignKeysFile: keys/charts.pub}\n";
    let text = format!("{}{verify}", folder.read(VENDORED));
    folder.write(VENDORED, &text);
    let refused = |code: i32, expected: &[&str]| {
        let run = vendor(&folder, &[]);
        assert_eq!(run.code, code, "{}", run.shown());
        for expected in expected {
            assert!(run.stderr.contains(expected), "{expected}: {}", run.shown());
        }
        assert!(!folder.path().join(path).exists());
    };
    let place = format!("oci://{}/charts/web@{newest}", registry.host());
    let trusted = "trusted: ECDSA P-256 sha256:";
    refused(1, &[&place, "there is no signature", trusted]);
    let sign = |key: &CosignKey| key.sign(&registry, "charts/web", &newest, Form::FallbackTag);
    sign(&other).unwrap();
    refused(1, &[&place, "a signature is by another key", trusted]);
    assert_eq!(folder.read(VENDORED), text);
    sign(&key).unwrap();
    let run = vendor(&folder, &[]);
    let digest = pleach_render::package::package_digest(&new);
    let expected =
        format!("{path}  v1.10.0+build  {digest}  signature ok (cosign, keys/charts.pub)\n");
    assert_eq!((run.code, &*run.stdout), (0, &*expected), "{}", run.shown());
    assert!(folder.read(VENDORED).contains(&digest));
    // The signature of one version is not one of another.
    let run = vendor(&folder, &["--to", "1.9.0"]);
    assert_eq!(run.code, 1, "{}", run.shown());
    assert!(
        run.stderr.contains("there is no signature"),
        "{}",
        run.shown()
    );

    fs::remove_file(folder.path().join(path)).unwrap();
    for (verify, expected) in [
        (
            "../charts.pub",
            "../charts.pub is outside of the repository",
        ),
        ("keys/none.pub", "the keys of chart app cannot be read: "),
        ("pleach.yaml", "pleach.yaml: there is no public key in PEM"),
    ] {
        folder.write(VENDORED, &text.replace("keys/charts.pub", verify));
        refused(3, &[expected]);
    }
    let from = format!("oci://{}/charts/web", registry.host());
    folder.write(VENDORED, &text.replace(&from, "https://127.0.0.1:1/charts"));
    refused(3, &["chart app: `verify` needs a chart in a registry"]);
}
