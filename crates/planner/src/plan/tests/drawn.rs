//! Output of `diff` for a plan.

use serde_json::json;

use super::scene::{MANAGER, Scene};
use super::server::entry;
use crate::observe::{ApiRefusal, Prediction};
use crate::text_diff::View;
use crate::view::Drawing;
use pleach_fields::diff::{fields::Scope, masking::Masker};
use pleach_model::kinds::{Catalog, Crds, KindTable};
use pleach_model::object::{DigestKey, labels};
use pleach_state::live::Live;

/// Returns the fields shown as changed.
fn shown(scene: &Scene) -> Vec<String> {
    let (table, _) = KindTable::nearest(None);
    let observed = scene.observed();
    let drawing = Drawing {
        desired: &scene.desired,
        observed: &observed,
        policy: &scene.policy,
        kinds: Catalog {
            table: &table,
            crds: &Crds::default(),
        },
        view: View {
            scope: Scope::Owned,
            status: false,
            full_deletes: false,
        },
    };
    let mut masker = Masker::new(DigestKey::new(b"of this run".to_vec()));
    let drawn = drawing.release(&scene.plan(), &mut masker);
    let fields = drawn.objects.iter().flat_map(|diff| &diff.fields);
    fields.map(|field| field.path.to_string()).collect()
}

/// The server refuses our item next to the foreign one, so it cannot predict
/// the result.
#[test]
fn a_restored_item_is_shown_with_its_replacement() {
    const SERVICE: &str = "Service/web/s: {spec: {ports: [{name: http, port: 80}]}}";
    let refused = Prediction::Refused(ApiRefusal {
        code: 422,
        reason: "Invalid".to_owned(),
        message: r#"Service "s" is invalid: spec.ports[1].name: Duplicate value: "http""#
            .to_owned(),
    });
    let scene = Scene::new()
        .installed(SERVICE)
        .with_live("Service/web/s", |live| {
            live["spec"]["ports"] = json!([{"name": "http", "port": 81, "protocol": "TCP"}]);
            live["spec"]["clusterIP"] = json!("10.0.0.1");
            let labels =
                json!({"f:metadata": {"f:labels": {"f:applyset.kubernetes.io/part-of": {}}}});
            let item = json!({"f:spec": {"f:ports": {
                r#"k:{"port":81,"protocol":"TCP"}"#: {".": {}, "f:name": {}, "f:port": {}}}}});
            live["metadata"]["resourceVersion"] = json!("2");
            live["metadata"]["managedFields"] = json!([
                entry(MANAGER, "Apply", &labels),
                entry("hand", "Update", &item),
            ]);
        })
        .git(SERVICE)
        .predict("Service/web/s", refused);
    assert_eq!(
        shown(&scene),
        [
            r#".spec.ports[port=81,protocol="TCP"]"#,
            r#".spec.ports[port=80,protocol="TCP"]"#,
        ]
    );
}

/// The dry run of an adoption uses another field manager, whose answer does not
/// show our fields.
#[test]
fn an_adoption_shows_changes_of_git() {
    const KEY: &str = "ConfigMap/web/c";
    let live = "ConfigMap/web/c: {metadata: {labels: {old: l}}, data: {a: '1'}, managers: [kustomize-controller]}";
    let scene = Scene::new()
        .live(live)
        // The server defaulted this field, so it has no owner.
        .with_live(KEY, |live| live["data"]["b"] = json!("default"))
        .git("ConfigMap/web/c: {data: {a: '1', b: '2'}}")
        .adopt("flux");
    let set = scene.desired.apply_set();
    let scene = scene.cluster(|observed| {
        let theirs = json!({"f:data": {"f:a": {}}});
        let left = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": "web", "labels": {(labels::PART_OF): set},
                "managedFields": [entry("kustomize-controller", "Update", &theirs)]},
            "data": {"a": "1", "b": "2"}});
        let left = Live::new(left, MANAGER);
        observed.adopted.insert(left.id(), left);
    });
    assert_eq!(
        shown(&scene),
        [
            ".data.b",
            r#".metadata.labels["applyset.kubernetes.io/part-of"]"#,
            ".metadata.labels.old",
        ]
    );
}
