//! CRDs: added and removed versions, and lists that change their type.

use super::*;

fn definition(group: &str, versions: &[(&str, bool, Value)], storage: &str) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|(name, served, spec)| {
            json!({"name": name, "served": served, "storage": *name == storage,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": spec,
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}})
        })
        .collect();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "versions": versions,
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"}}})
}

fn any() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "string"}})
}

fn thing(group: &str, version: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("{group}/{version}"), "kind": "Thing",
        "metadata": {"name": "a"}, "spec": spec})
}

impl Server {
    /// Applies a CRD and waits until its kind is served at a version.
    async fn define(&self, group: &str, definition: &Value, version: &str) -> Value {
        let path =
            format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.{group}");
        let answer = self.apply(&path, definition).await.ok();
        let all = self.path(&format!("/apis/{group}/{version}"), "things");
        until("the kind is served", async || {
            self.get(&all).await.code == 200
        })
        .await;
        answer
    }
}

#[tokio::test]
async fn a_new_definition_answers_with_null_conditions() {
    let server = Server::with("facts-defined").await;
    let group = "defined.facts.example.org";
    let answer = server
        .define(
            group,
            &definition(group, &[("v1", true, any())], "v1"),
            "v1",
        )
        .await;
    let status = &answer["status"];
    assert_eq!(status["conditions"], Value::Null, "{status}");
    assert_eq!(status["acceptedNames"], json!({"plural": "", "kind": ""}));
    assert_eq!(status["storedVersions"], json!(["v1"]));
    assert!(answer["metadata"]["generation"].is_i64());
    let path = server.path(&format!("/apis/{group}/v1"), "things/a");
    let live = server
        .apply(&path, &thing(group, "v1", json!({"k": "v"})))
        .await
        .ok();
    assert!(live["metadata"]["generation"].is_i64());
}

#[tokio::test]
async fn a_version_that_managed_fields_record_must_be_left_before_it_goes() {
    let server = Server::with("facts-gone").await;
    let group = "gone.facts.example.org";
    let (old, new) = (("v1beta1", true, any()), ("v1", true, any()));
    let both = definition(group, &[old.clone(), new.clone()], "v1");
    server.define(group, &both, "v1beta1").await;
    server.define(group, &both, "v1").await;
    let at = |version: &str| server.path(&format!("/apis/{group}/{version}"), "things/a");
    let before = server
        .apply(
            &at("v1beta1"),
            &thing(group, "v1beta1", json!({"k": "v", "l": "v"})),
        )
        .await
        .ok();
    assert_eq!(our_entry(&before).0, format!("\"{group}/v1beta1\""));

    // A version that is no longer served is harmless.
    let unserved = definition(group, &[("v1beta1", false, any()), new.clone()], "v1");
    server.define(group, &unserved, "v1").await;
    let old_list = server.path(&format!("/apis/{group}/v1beta1"), "things");
    until("the version is gone", async || {
        server.get(&old_list).await.code == 404
    })
    .await;
    let wanted = thing(group, "v1", json!({"k": "w", "l": "v"}));
    server.dry_run(&at("v1"), &wanted).await.ok();

    // After its removal from the CRD, every apply fails, even with force.
    server
        .define(group, &definition(group, &[new], "v1"), "v1")
        .await;
    let expected = format!("request to convert CR to an invalid group/version: {group}/v1beta1");
    until("the conversion fails", async || {
        server.dry_run(&at("v1"), &wanted).await.code == 500
    })
    .await;
    for answer in [
        server.dry_run(&at("v1"), &wanted).await,
        server.apply(&at("v1"), &wanted).await,
        server.force(&at("v1"), &wanted).await,
    ] {
        assert!(answer.body["reason"].is_null(), "{answer:?}");
        assert_eq!(answer.refused(), (500, expected.clone()));
    }

    // Our entry at the new version is sufficient.
    let live = server.get(&at("v1")).await.ok();
    let all = entries(&live["metadata"]);
    let position = all
        .iter()
        .position(|entry| entry["manager"] == OURS)
        .unwrap();
    let version = format!("/metadata/managedFields/{position}/apiVersion");
    let repair = json!([{"op": "replace", "path": version, "value": format!("{group}/v1")}]);
    server.json_patch(&at("v1"), repair).await.ok();
    let less = server
        .apply(&at("v1"), &thing(group, "v1", json!({"k": "w"})))
        .await
        .ok();
    assert_eq!(less["spec"], json!({"k": "w"}));
    assert_eq!(owners(&less), [format!("{OURS} Apply")]);
}

#[tokio::test]
async fn a_write_of_others_after_the_version_went_drops_every_entry() {
    let server = Server::with("facts-dropped").await;
    let group = "dropped.facts.example.org";
    let (old, new) = (("v1beta1", true, any()), ("v1", true, any()));
    let both = definition(group, &[old, new.clone()], "v1");
    server.define(group, &both, "v1beta1").await;
    let at = |version: &str| server.path(&format!("/apis/{group}/{version}"), "things/a");
    server
        .apply(&at("v1beta1"), &thing(group, "v1beta1", json!({"k": "v"})))
        .await
        .ok();
    server
        .define(group, &definition(group, &[new], "v1"), "v1")
        .await;
    let wanted = thing(group, "v1", json!({"k": "v"}));
    until("the conversion fails", async || {
        server.dry_run(&at("v1"), &wanted).await.code == 500
    })
    .await;
    let written = server
        .merge(&at("v1"), json!({"spec": {"m": "v"}}))
        .await
        .ok();
    assert!(
        apply_entry(&written["metadata"], OURS).is_none(),
        "{written}"
    );
}

#[tokio::test]
async fn a_move_to_another_version_keeps_one_entry_and_prunes() {
    let server = Server::with("facts-moved").await;
    let group = "moved.facts.example.org";
    let both = definition(
        group,
        &[("v1beta1", true, any()), ("v1", true, any())],
        "v1",
    );
    server.define(group, &both, "v1beta1").await;
    server.define(group, &both, "v1").await;
    let at = |version: &str| server.path(&format!("/apis/{group}/{version}"), "things/a");
    server
        .apply(
            &at("v1beta1"),
            &thing(group, "v1beta1", json!({"k": "v", "l": "v"})),
        )
        .await
        .ok();
    let moved = server
        .apply(&at("v1"), &thing(group, "v1", json!({"k": "v"})))
        .await
        .ok();
    assert_eq!(moved["spec"], json!({"k": "v"}));
    assert_eq!(owners(&moved), [format!("{OURS} Apply")]);
    assert_eq!(our_entry(&moved).0, format!("\"{group}/v1\""));
}

#[tokio::test]
async fn a_list_that_becomes_a_map_shows_in_the_dry_run_only() {
    let server = Server::with("facts-list").await;
    let group = "list.facts.example.org";
    let list = |kind: &str| {
        let mut list = json!({"type": "array", "x-kubernetes-list-type": kind, "items": {
            "type": "object", "required": ["name"], "properties": {
                "name": {"type": "string"}, "v": {"type": "string"}}}});
        if kind == "map" {
            list["x-kubernetes-list-map-keys"] = json!(["name"]);
        }
        json!({"type": "object", "properties": {"items": list}})
    };
    let crd = |kind: &str| definition(group, &[("v1", true, list(kind))], "v1");
    server.define(group, &crd("atomic"), "v1").await;
    let path = server.path(&format!("/apis/{group}/v1"), "things/a");
    let wanted = thing(group, "v1", json!({"items": [{"name": "a", "v": "1"}]}));
    let before = server.apply(&path, &wanted).await.ok();
    server.define(group, &crd("map"), "v1").await;
    until("the schema is in force", async || {
        let predicted = server.dry_run(&path, &wanted).await.ok();
        our_entry(&predicted) != our_entry(&before)
    })
    .await;
    let status = format!("{path}/status");
    server
        .merge(&status, json!({"status": {"seen": "yes"}}))
        .await
        .ok();
    let live = server.get(&path).await.ok();
    assert_eq!(our_entry(&live), our_entry(&before));
}
