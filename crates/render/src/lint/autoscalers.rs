//! Fields that a manifest sets and an autoscaler writes. pleach sends them when it creates the
//! object and leaves them to the autoscaler afterwards.

use std::collections::BTreeMap;

use super::{Object, Scene};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ApiVersion, ObjectId};

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let mut targets: BTreeMap<ObjectId, &Object<'_>> = BTreeMap::new();
    for object in &scene.objects {
        if object.id().is("autoscaling", "HorizontalPodAutoscaler") {
            let value = object.manifest.value();
            let target = &value["spec"]["scaleTargetRef"];
            let text = |key: &str| target[key].as_str().unwrap_or_default();
            let group = ApiVersion::parse(text("apiVersion")).group;
            let namespace = object.id().namespace.as_deref();
            let id = ObjectId::new(&group, text("kind"), namespace, text("name"));
            targets.insert(id, object);
        }
    }
    for object in &scene.objects {
        let Some(scaler) = targets.get(object.id()) else {
            continue;
        };
        if object.manifest.value()["spec"]["replicas"].is_null() {
            continue;
        }
        let finding = Finding::warning(
            Kind::Repository,
            "autoscaled-field",
            format!(
                "{} at {} controls `spec.replicas`",
                scaler.id(),
                scaler.manifest.origin()
            ),
        )
        .hint("omit `replicas` in the manifest");
        findings.push(object.at(finding, "/spec/replicas"));
    }
}
