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
pub const CODES: [Code; 78] = [
    code(
        "annotation",
        "An annotation of pleach with a value that it cannot have, or that it does not know.",
    ),
    code(
        "api-not-served",
        "The declared Kubernetes, or the definition, does not serve that version of a kind. Says when it was removed, since when it is there, and what is served instead.",
    ),
    code(
        "autoscaled-field",
        "`spec.replicas` of an object that a HorizontalPodAutoscaler of the environment scales: it is sent once and then left to it.",
    ),
    code(
        "claimed-twice",
        "Two environments with the same `cluster.id` have the same object.",
    ),
    code(
        "duplicate-item",
        "Two items of a list have the same keys, such as a port and its protocol, or the name of a variable. Server-side apply refuses that.",
    ),
    code(
        "duplicate-object",
        "The same object twice in an environment. A note where both places of a release say the same: it counts once.",
    ),
    code("duplicate-release", "Two releases with one name."),
    code("extends-cycle", "Environments that extend each other."),
    code(
        "file-unreadable",
        "A manifest that cannot be read, or is not UTF-8.",
    ),
    code(
        "generate-name",
        "`generateName` outside of a Job that runs once: each apply would make another object. Or on one with a secret value in it, which the name would tell of.",
    ),
    code("helm-chart", "A Chart.yaml. Render the chart beforehand."),
    code(
        "ignore-matches-nothing",
        "An ignore rule of a release names no object, or a field that none of its objects has.",
    ),
    code(
        "invalid-expression",
        "A check, a readiness rule or what forbids an uninstall is no expression in CEL, or names what there is not.",
    ),
    code(
        "invalid-extends",
        "`extends` names something else than a file of environments/.",
    ),
    code(
        "invalid-name",
        "A name that is no DNS label, or is too long.",
    ),
    code(
        "invalid-value",
        "A value that a field cannot have: of our own files, or of a kind whose schema lists what is allowed. Also a number outside of the range of its field, such as a port.",
    ),
    code("invalid-yaml", "A file of our own is not YAML."),
    code(
        "kind-unknown",
        "A kind that neither Kubernetes nor a definition of the environment has. It is taken for namespaced and not checked.",
    ),
    code(
        "kubernetes-range",
        "The bundle is not for the declared Kubernetes.",
    ),
    code(
        "kubernetes-unknown",
        "The declared Kubernetes is not built in; the nearest is used.",
    ),
    code("kustomization", "A kustomization. Render it beforehand."),
    code("lfs-pointer", "A pointer of git LFS instead of the file."),
    code(
        "missing-field",
        "A field that is required: of our own files, of a kind, or to tell the items of a list apart.",
    ),
    code("missing-file", "A file or folder that is not there."),
    code(
        "more-errors",
        "A file of our own with so many errors that no more of them are looked for.",
    ),
    code("name", "A name that the server does not take."),
    code(
        "namespace-ignored",
        "A cluster-scoped object with a namespace; it is left out.",
    ),
    code(
        "namespace-missing",
        "A namespaced object without a namespace, in a release without a default.",
    ),
    code(
        "namespace-not-made",
        "An object lies in a namespace that no manifest has and that is no release's: it has to exist.",
    ),
    code(
        "never-ready",
        "A Job that runs once (`pleach.dev/run: once`) with `suspend: true`: an apply waits for it until its timeout, unless something in the cluster lets it go on.",
    ),
    code("not-a-file", "A link or a submodule; neither is followed."),
    code(
        "not-a-manifest",
        "A file of pleach's own among the manifests.",
    ),
    code(
        "not-a-string",
        "A label or annotation that is no text: `on` and `1` need quotes.",
    ),
    code(
        "not-editable",
        "An environment file that `pleach rollback` cannot change without changing more than it should: anchors, maps in brackets with comments in them. Not said by lint.",
    ),
    code(
        "not-rendered",
        "A file that is not rendered, or not read, where it lies.",
    ),
    code("not-text", "A file that is not UTF-8."),
    code("nothing-to-render", "A version without manifests."),
    code(
        "object",
        "A document that is no object, or lacks apiVersion, kind or name.",
    ),
    code(
        "patch-failed",
        "An operation of a patch that cannot be carried out.",
    ),
    code(
        "patch-without-target",
        "A patch that is for no object of the release.",
    ),
    code(
        "reference-not-made",
        "Pods need a ConfigMap, Secret, claim, class or ServiceAccount that no manifest has, or a binding names a role or ServiceAccount that none has.",
    ),
    code(
        "registration-without-service",
        "An APIService, webhook configuration or conversion points at a Service that no manifest has. `plan` and `apply` warn too, where the cluster does not have it either.",
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
        "An annotation that is pleach's own to set.",
    ),
    code("reserved-label", "A label that is pleach's own to set."),
    code(
        "secret",
        "A Secret whose data is no map of texts, or not base64.",
    ),
    code(
        "secret-field-unused",
        "An entry of `secretFields` that is for no object, or whose object does not have the field.",
    ),
    code(
        "secret-in-name",
        "A value that values.schema.json marks `writeOnly` is part of a name, where it cannot be hidden.",
    ),
    code(
        "selector-mismatch",
        "The selector of a workload is empty, or does not match the labels of its own template. The server refuses it.",
    ),
    code(
        "server-fields",
        "Fields that only the server writes; they are left out.",
    ),
    code(
        "service-without-pods",
        "The selector of a Service matches no pods of the environment in its namespace, and nothing there can be expected to make others.",
    ),
    code(
        "service-without-port",
        "`targetPort` of a Service is a name that no port of the selected pods has.",
    ),
    code(
        "state-object",
        "An object whose name is one of the state of pleach: the Secret `pleach-digest-key`, or a ConfigMap or Lease in a namespace that holds state, named `ENVIRONMENT.…`.",
    ),
    code(
        "template-failed",
        "An expression that fails with these values.",
    ),
    code("template-limit", "A template that runs or writes too long."),
    code(
        "template-missing",
        "An import of a template that is not there.",
    ),
    code("template-syntax", "A template that cannot be parsed."),
    code("template-undefined", "A value that is not defined."),
    code(
        "too-deep",
        "More than 100 levels of folders within each other.",
    ),
    code(
        "too-many-files",
        "More than 10,000 files and folders in a version of a bundle, or 256 MiB of files.",
    ),
    code("unknown-bundle", "A bundle that is not there."),
    code(
        "unknown-environment",
        "An environment that is not there, or none at all.",
    ),
    code(
        "unknown-field",
        "A field that the format or the kind does not have. Suggests the name that was meant, or the place where the field belongs.",
    ),
    code(
        "unknown-release",
        "A release that the environment does not have.",
    ),
    code(
        "unknown-stage",
        "A stage that is neither a standard one nor one of the bundle.",
    ),
    code(
        "unknown-version",
        "A version that the bundle does not have.",
    ),
    code("unreadable-file", "A file that cannot be read."),
    code(
        "unused-adopt",
        "An item of `adopt` that says nothing more than another one, that is pleach's own anyway, or that nearly is the name of a family.",
    ),
    code(
        "unused-consent",
        "A consent for a release that is not there, for another version than the release is at, to delete what is still in the manifests (with `to`; a line without it may wait for the end of the release), to recreate what is in none, or to override a check that its bundle does not have.",
    ),
    code(
        "unused-rollback",
        "A `rollback` to another version than the release is at, or of a bundle without versions.",
    ),
    code(
        "unused-value",
        "A value of the environment that the bundle does not declare and none of its templates reads. A map that the bundle declares as `{}` takes anything.",
    ),
    code(
        "values-refused",
        "A value that values.schema.json does not allow, or that it requires. The templates of that release are not rendered; all else is looked at.",
    ),
    code(
        "values-schema",
        "values.schema.json is not JSON, is no JSON Schema, or refers to something outside of itself.",
    ),
    code(
        "verify-without-job",
        "A file that verifies a stage and holds something else than Jobs.",
    ),
    code(
        "wrong-kind",
        "A file that does not begin with the apiVersion and kind of its place.",
    ),
    code(
        "wrong-type",
        "A value of another type: of our own files, or of a kind.",
    ),
    code("yaml", "A manifest, or what a template wrote, is not YAML."),
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
