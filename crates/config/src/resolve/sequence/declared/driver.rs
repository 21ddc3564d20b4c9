//! Resolution of a controller that drains nodes.

use pleach_formats::{
    file::{DriverHook, DriverHooks, DriverNode, NodeDriver, Nodes},
    nodes::{
        DriverRule,
        driver::{HOOK, HookAnnotations, ITEM, NodeObject, is_key, is_label_value, is_name},
        is_reserved,
    },
};
use pleach_model::cel::Expression;
use pleach_model::object::known_kind;

/// Label value that stands for any.
const ANY: &str = "*";

/// An error with the next step.
pub(super) type Refusal = (String, &'static str);

/// Checks the fields of a driver, and those that it replaces.
pub(super) fn check(nodes: &Nodes, driver: &NodeDriver) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let replaced = [
        ("first", nodes.first.is_some()),
        ("parallel", nodes.parallel.is_some()),
        ("drain", nodes.drain.is_some()),
        ("pauseAfter", nodes.pause_after.is_some()),
    ];
    for (field, _) in replaced.iter().filter(|(_, is_set)| *is_set) {
        let message = format!(
            "`nodes.{field}` and `nodes.driver` exclude each other: the driver chooses and drains the nodes"
        );
        refusals.push((message, "remove one of the two"));
    }
    let NodeDriver {
        hooks,
        node,
        before,
        after,
    } = driver;
    let DriverHooks {
        kind,
        group,
        namespace,
        labels,
    } = hooks;
    refusals.extend(object("hooks", (kind, group), namespace.as_ref()));
    if labels.is_empty() {
        let message = "`nodes.driver.hooks.labels` is empty".to_owned();
        refusals.push((message, "name a label that only hook objects have"));
    }
    for (key, value) in labels {
        if !is_key(key) || !(value == ANY || is_label_value(value)) {
            let message = format!("`nodes.driver.hooks.labels`: `{key}: {value}` is no label");
            refusals.push((message, "only the whole value can be `*`"));
        }
    }
    let DriverNode {
        kind,
        group,
        namespace,
        name,
        is,
    } = node;
    refusals.extend(object("node", (kind, group), namespace.as_ref()));
    if kind == "Secret" {
        let message = "`nodes.driver.node` is a Secret, whose content is not read".to_owned();
        refusals.push((message, "name the object that has the name of the node"));
    }
    for (field, text, variable, hint) in [
        (
            "name",
            name,
            HOOK,
            "for instance `hook.metadata.labels['example.org/machine']`",
        ),
        ("is", is, ITEM, "for instance `item.status.nodeRef.name`"),
    ] {
        if let Err(error) = Expression::compile(text, &[variable]) {
            refusals.push((format!("`nodes.driver.node.{field}`: {error}"), hint));
        }
    }
    let annotations = [
        ("before.request", &before.request),
        ("before.acknowledge", &before.acknowledge),
        ("after.request", &after.request),
        ("after.acknowledge", &after.acknowledge),
    ];
    for (index, (field, key)) in annotations.iter().enumerate() {
        if !is_key(key) {
            let message = format!("`nodes.driver.{field}`: `{key}` is no annotation");
            refusals.push((message, "for instance `example.org/pre-drain`"));
        }
        if annotations[..index].iter().any(|(_, other)| other == key) {
            let message = format!("`nodes.driver.{field}`: `{key}` is used twice");
            refusals.push((message, "each of the four needs its own annotation"));
        }
        if field.ends_with("acknowledge") && is_reserved(key) {
            let message =
                format!("`nodes.driver.{field}`: `{key}` belongs to Kubernetes or pleach");
            refusals.push((message, "name the annotation that the driver reads"));
        }
    }
    refusals
}

/// Checks kind and namespace of objects.
fn object(
    field: &str,
    (kind, group): (&str, &Option<String>),
    namespace: Option<&String>,
) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    if known_kind(group.as_deref(), kind).is_none() {
        let message = format!("`nodes.driver.{field}`: the API group of {kind} is not known");
        refusals.push((message, "set `group`"));
    }
    if let Some(namespace) = namespace.filter(|namespace| !is_name(namespace)) {
        let message = format!("`nodes.driver.{field}`: `{namespace}` is no namespace");
        refusals.push((message, "name one namespace"));
    }
    refusals
}

/// Returns the rule of a driver. `None` for one with errors.
pub(super) fn rule(driver: &NodeDriver) -> Option<DriverRule> {
    let NodeDriver {
        hooks,
        node,
        before,
        after,
    } = driver;
    let annotations = |hook: &DriverHook| HookAnnotations {
        request: hook.request.clone(),
        acknowledge: hook.acknowledge.clone(),
    };
    let labels = hooks.labels.iter().map(|(key, value)| {
        let value = (value != ANY).then(|| value.clone());
        (key.clone(), value)
    });
    Some(DriverRule {
        hooks: known_kind(hooks.group.as_deref(), &hooks.kind)?,
        namespace: hooks.namespace.clone(),
        labels: labels.collect(),
        node: NodeObject {
            kind: known_kind(node.group.as_deref(), &node.kind)?,
            namespace: node.namespace.clone(),
            name: Expression::compile(&node.name, &[HOOK]).ok()?,
            is: Expression::compile(&node.is, &[ITEM]).ok()?,
        },
        before: annotations(before),
        after: annotations(after),
    })
}
