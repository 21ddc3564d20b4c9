//! Rendered templates equal the output of upstream's own tools.

use pleach_render::render;

use crate::{files, load, read, repository};

/// Top-level names in upstream's templates, which are `values` in pleach. This is the only change
/// for the bundle.
const NAMES: [&str; 4] = [
    "namespace",
    "docker_prefix",
    "docker_tag",
    "image_pull_policy",
];

/// API versions that Kubernetes no longer serves and render refuses, with their replacements. They
/// are replaced in the plain files too.
const MOVED: [(&str, &str); 4] = [
    ("apiextensions.k8s.io/v1beta1", "apiextensions.k8s.io/v1"),
    ("extensions/v1beta1", "apps/v1"),
    ("apps/v1beta1", "apps/v1"),
    (
        "rbac.authorization.k8s.io/v1beta1",
        "rbac.authorization.k8s.io/v1",
    ),
];

/// Returns ids and content of the rendered objects of a file.
fn objects(name: &str, text: String, values: &str) -> Vec<(String, serde_json::Value)> {
    let text = MOVED.iter().fold(text, |text, (old, new)| {
        text.replace(
            &format!("apiVersion: {old}\n"),
            &format!("apiVersion: {new}\n"),
        )
    });
    let (tree, environment, kinds) = load(repository(&[(name, text)], values));
    let rendered = render(&tree, &environment, &environment.releases[0], &kinds);
    assert!(!rendered.failed(), "{:#?}", rendered.findings);
    assert!(!rendered.manifests.is_empty());
    rendered
        .manifests
        .iter()
        .map(|manifest| (manifest.id().to_string(), manifest.value()))
        .collect()
}

#[test]
fn templates_give_the_objects_of_the_plain_files() {
    for template in files(".yaml.j2") {
        let version = template.split('/').nth(1).unwrap();
        let namespace = if version == "v0.11.0" {
            "kube-system"
        } else {
            "kubevirt"
        };
        let values = format!(
            "{{namespace: {namespace}, docker_prefix: docker.io/kubevirt, \
             docker_tag: {version}, image_pull_policy: IfNotPresent}}"
        );
        let mut text = read(&template);
        for name in NAMES {
            text = text.replace(
                &format!("{{{{ {name} }}}}"),
                &format!("{{{{ values.{name} }}}}"),
            );
        }
        let plain = read(template.strip_suffix(".j2").unwrap());
        assert_eq!(
            objects("app.yaml.j2", text, &values),
            objects("app.yaml", plain, "{}"),
            "{template}"
        );
    }
}
