//! Stable names of repository findings.

/// Code of a finding about files, values, templates or manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// Name in findings.
    pub name: &'static str,
    /// One or two sentences, as in docs/reference/lint-codes.md.
    pub meaning: &'static str,
}

const fn code(name: &'static str, meaning: &'static str) -> Code {
    Code { name, meaning }
}

/// All codes, sorted by name. A test compares them with docs/reference/lint-codes.md.
pub const CODES: [Code; 103] = [
    code(
        "annotation",
        "An annotation of pleach that is unknown, or that has an invalid value.",
    ),
    code(
        "api-not-served",
        "The declared Kubernetes, or the CRD, does not serve that version of a kind. The message names the release that removed or added the version, and the served versions.",
    ),
    code(
        "autoscaled-field",
        "`spec.replicas` of an object that a HorizontalPodAutoscaler of the environment scales. pleach applies the field once and then leaves it to the autoscaler.",
    ),
    code(
        "chart-asks-cluster",
        "A chart calls `lookup`, whose answer depends on the cluster. `lookups: accept` answers that there is nothing.",
    ),
    code(
        "chart-dependency-missing",
        "Chart.yaml of a chart names a dependency that is not in its folder `charts`.",
    ),
    code(
        "chart-digest",
        "The digest of a chart is not the declared one.",
    ),
    code(
        "chart-file",
        "A chart that cannot be read: a package with links, with paths to the outside, with too many or too large files, or without Chart.yaml.",
    ),
    code(
        "chart-not-reproducible",
        "Two renderings of a chart differ, for example because it generates a password. The message names the functions and their lines.",
    ),
    code(
        "chart-reads-release",
        "A note: a template of a chart reads `.Release.IsUpgrade` or `.Release.Revision`. pleach renders each chart as a first installation.",
    ),
    code(
        "chart-schema",
        "The values of a chart violate its values.schema.json, or that schema refers to another file.",
    ),
    code(
        "chart-template",
        "A template of a chart fails. A message with a secret value is not shown.",
    ),
    code(
        "check-needs-node",
        "A check uses the variable `node`, and no stage names it in `before` or `after` of `nodes`, or a stage names it in `verify`.",
    ),
    code(
        "claimed-twice",
        "Two environments with the same `cluster.id` contain the same object.",
    ),
    code(
        "duplicate-item",
        "Two items of a list have the same keys, such as a port and its protocol, or the name of a variable. Server-side apply refuses such a list.",
    ),
    code(
        "duplicate-object",
        "The same object twice in an environment. A note if both are equal and in the same release: the object counts once.",
    ),
    code("duplicate-release", "Two releases with one name."),
    code(
        "engines-failed",
        "The program `pleach-engines`, which renders charts and overlays, crashed or exceeded a limit.",
    ),
    code(
        "engines-missing",
        "The program `pleach-engines`, which renders charts and overlays, is neither beside pleach nor in PATH or PLEACH_ENGINES.",
    ),
    code(
        "engines-version",
        "The program `pleach-engines` has another version than `requires` of the repository allows.",
    ),
    code("extends-cycle", "Environments that extend each other."),
    code(
        "file-unreadable",
        "A manifest that cannot be read, or is not UTF-8.",
    ),
    code(
        "generate-name",
        "`generateName` on another object than a Job that runs once: each apply would create another object. Or on a Job that contains a secret value, which the name would reveal.",
    ),
    code(
        "helm-chart",
        "A Helm chart that no `charts` of a bundle or version names.",
    ),
    code(
        "hook-dropped",
        "A note: an object of a chart is a hook for deletions, rollbacks or tests, and is not applied.",
    ),
    code(
        "ignore-matches-nothing",
        "An ignore rule of a release matches no object, or names a field that none of its objects has.",
    ),
    code(
        "invalid-expression",
        "A check, a readiness rule or an item of `blockUninstall` or `rehearsal` is not a valid CEL expression, or uses an unknown name.",
    ),
    code(
        "invalid-extends",
        "`extends` does not name a file in environments/.",
    ),
    code(
        "invalid-name",
        "A name that is not a DNS label, or is too long.",
    ),
    code(
        "invalid-value",
        "A value that a field of a pleach file or of a kind does not allow. Also a number outside the range of its field, such as a port.",
    ),
    code("invalid-yaml", "A pleach file is not YAML."),
    code(
        "kind-unknown",
        "A kind that neither Kubernetes nor a CRD of the environment defines. pleach assumes that it is namespaced, and does not check its fields.",
    ),
    code(
        "kubernetes-range",
        "The bundle does not support the declared Kubernetes.",
    ),
    code(
        "kubernetes-unknown",
        "pleach has no schemas for the declared Kubernetes, and uses the nearest version.",
    ),
    code(
        "kustomization",
        "A kustomization that no `kustomize` of a bundle or version names.",
    ),
    code("kustomize", "A kustomize overlay that cannot be built."),
    code(
        "kustomize-outside",
        "A kustomization refers to a path outside of the bundle and of `kustomize.bases`.",
    ),
    code(
        "kustomize-plugin",
        "A kustomization uses a plugin or a chart, which would start a program.",
    ),
    code(
        "kustomize-remote",
        "A kustomization refers to an address on the network.",
    ),
    code("lfs-pointer", "A Git LFS pointer instead of the file."),
    code(
        "missing-field",
        "A required field is missing: of a pleach file, of a kind, or a key that identifies the items of a list.",
    ),
    code("missing-file", "A file or folder that does not exist."),
    code(
        "more-errors",
        "A pleach file with so many errors that the rest is not reported.",
    ),
    code("name", "A name that the server refuses."),
    code(
        "namespace-ignored",
        "A cluster-scoped object with a namespace, which is ignored.",
    ),
    code(
        "namespace-missing",
        "A namespaced object without a namespace, in a release without a default.",
    ),
    code(
        "namespace-not-made",
        "An object in a namespace that no manifest and no release creates. The namespace must already exist.",
    ),
    code(
        "never-ready",
        "A Job that runs once (`pleach.dev/run: once`) with `suspend: true`. An apply waits for it until the timeout, unless another client resumes it.",
    ),
    code(
        "node-job",
        "The file of the Job of a change of nodes, or of a stage that preloads, contains no Job with containers, or other objects too.",
    ),
    code(
        "not-a-file",
        "A symbolic link or a submodule, which pleach does not follow.",
    ),
    code("not-a-manifest", "A pleach file among the manifests."),
    code(
        "not-a-string",
        "A label or annotation that is not a string: `on` and `1` need quotes.",
    ),
    code(
        "not-editable",
        "An environment file that `pleach rollback` cannot safely edit, because of anchors or of flow maps with comments. `pleach lint` does not report it.",
    ),
    code(
        "not-rendered",
        "A file that is not rendered, or not read, because of its location or name.",
    ),
    code("not-text", "A file that is not UTF-8."),
    code(
        "nothing-to-render",
        "A version or bundle without manifests.",
    ),
    code(
        "object",
        "A document that is not an object, or lacks apiVersion, kind or name.",
    ),
    code("patch-failed", "An operation of a patch that fails."),
    code(
        "patch-without-target",
        "A patch that matches no object of the release.",
    ),
    code(
        "reference-not-made",
        "Pods need a ConfigMap, Secret, PersistentVolumeClaim, class or ServiceAccount that is in no manifest, or a binding refers to a role or ServiceAccount that is in none.",
    ),
    code(
        "registration-without-service",
        "An APIService, webhook configuration or conversion points at a Service that is in no manifest. `plan` and `apply` also warn if the cluster does not have it either.",
    ),
    code(
        "release-cycle",
        "Releases that wait for each other (`dependsOn`).",
    ),
    code(
        "requires",
        "The repository requires another version of pleach.",
    ),
    code(
        "reserved-annotation",
        "An annotation that is reserved for pleach.",
    ),
    code("reserved-label", "A label that is reserved for pleach."),
    code(
        "secret",
        "A Secret whose data is not a map of strings, or not base64.",
    ),
    code(
        "secret-field-unused",
        "An item of `secretFields` that matches no object, or names a field that no matched object has.",
    ),
    code(
        "secret-in-name",
        "A value that values.schema.json marks `writeOnly` is part of a name, where it cannot be masked.",
    ),
    code(
        "selector-mismatch",
        "The selector of a workload is empty, or does not match the labels of its own template. The server refuses it.",
    ),
    code(
        "server-fields",
        "Fields that only the server writes. pleach removes them.",
    ),
    code(
        "service-without-pods",
        "The selector of a Service matches no pods of the environment in its namespace, and no known object there creates others.",
    ),
    code(
        "service-without-port",
        "`targetPort` of a Service names a port that the selected pods do not have.",
    ),
    code(
        "sops-format",
        "An encrypted file that sops did not write, or that uses key groups, anchors or tags.",
    ),
    code(
        "sops-key",
        "No age key fits an encrypted file. The message names its recipients and every place that was searched.",
    ),
    code(
        "sops-leaf",
        "A value of an encrypted file does not open: it was changed, or comes from another file or field. Or it is not encrypted although the rules of the file demand it.",
    ),
    code(
        "sops-mac",
        "The authentication code of an encrypted file differs: the file was edited without sops, or a value was moved.",
    ),
    code(
        "sops-program",
        "The program that decrypts files failed, refused a file, or gave something else than the file with plain values. Its own messages are not shown, because they can contain values.",
    ),
    code(
        "sops-recipient",
        "An encrypted file has no recipient that pleach reads, only keys of a cloud, PGP, ssh or post-quantum keys.",
    ),
    code(
        "sops-stand-in",
        "A warning: no age key fits, so encrypted values are shown as stand-ins. Equal ciphertexts have equal stand-ins.",
    ),
    code(
        "state-object",
        "An object with the name of a state object of pleach: the Secret `pleach-digest-key`, or a ConfigMap or Lease named `ENVIRONMENT.…` in a namespace with state.",
    ),
    code(
        "template-failed",
        "An expression that fails with these values.",
    ),
    code(
        "template-limit",
        "A template that exceeds the limit of its steps or of its output.",
    ),
    code(
        "template-missing",
        "An import of a template that does not exist.",
    ),
    code("template-syntax", "A template that cannot be parsed."),
    code("template-undefined", "A value that is not defined."),
    code("too-deep", "Folders are nested more than 100 levels deep."),
    code(
        "too-many-files",
        "More than 10,000 files and folders in a version of a bundle, or 256 MiB of files.",
    ),
    code("unknown-bundle", "A bundle that does not exist."),
    code(
        "unknown-environment",
        "An environment that does not exist, or a repository without environments.",
    ),
    code(
        "unknown-field",
        "A field that the format or the kind does not have. The hint suggests a similar name, or the correct location of the field.",
    ),
    code(
        "unknown-release",
        "A release that the environment does not have.",
    ),
    code(
        "unknown-stage",
        "A stage that is neither a standard stage nor declared by the bundle.",
    ),
    code(
        "unknown-version",
        "A version that the bundle does not have.",
    ),
    code("unreadable-file", "A file that cannot be read."),
    code(
        "unused-adopt",
        "An item of `adopt` that another item covers, that names a field manager of pleach, or that is probably a misspelled family.",
    ),
    code(
        "unused-consent",
        "A consent without effect. It names an unknown release, another version than that of the release, an object to delete that is still in the manifests (only with `to`, because without it the consent can be for an uninstall), an object to recreate that is in no manifest, or an unknown check.",
    ),
    code(
        "unused-rollback",
        "A `rollback` to another version than that of the release, or of a bundle without versions.",
    ),
    code(
        "unused-value",
        "A value of the environment that the bundle does not declare and none of its templates reads. A map that the bundle declares as `{}` accepts any key.",
    ),
    code(
        "values-refused",
        "A value that values.schema.json does not allow, or a missing value that it requires. The templates of that release are not rendered, but everything else is checked.",
    ),
    code(
        "values-schema",
        "values.schema.json is not JSON, is not a JSON Schema, or refers to another file.",
    ),
    code(
        "verify-without-job",
        "A file that verifies a stage and contains other objects than Jobs.",
    ),
    code(
        "wrong-kind",
        "A pleach file without the apiVersion and kind that its location requires.",
    ),
    code(
        "wrong-type",
        "A value of the wrong type, in a pleach file or in an object.",
    ),
    code(
        "yaml",
        "A manifest, or the output of a template, is not YAML.",
    ),
];

/// Returns the meaning of a code. `None` for an unknown code.
pub fn meaning(name: &str) -> Option<&'static str> {
    let found = CODES.binary_search_by_key(&name, |code| code.name).ok()?;
    Some(CODES[found].meaning)
}

/// Codes for missing objects. These findings are unreliable while a file is unreadable.
pub(super) const NEED_ALL_OBJECTS: [&str; 6] = [
    "namespace-not-made",
    "reference-not-made",
    "registration-without-service",
    "service-without-pods",
    "service-without-port",
    "unused-consent",
];
