//! Leader lock of the controller component: an Endpoints object with the component's name in its
//! namespace.

use std::time::Duration;

use serde_json::{Value, json};

use super::Shared;
use super::rest::{Failure, Rest};

/// Renewal interval.
pub(crate) const RENEW: Duration = Duration::from_secs(2);
/// Annotation in which client-go stored the leader in 2019.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// Acquires or renews the lock, or detects another holder. The pod must exit on an error.
pub(crate) async fn hold(
    shared: &Shared,
    pod: &Rest,
    namespace: &str,
    name: &str,
) -> Result<(), String> {
    let collection = format!("/api/v1/namespaces/{namespace}/endpoints");
    let path = format!("{collection}/{}", shared.product.controller);
    let live = pod
        .get(&path)
        .await
        .map_err(|failure| format!("failed to read the leader lock: {failure}"))?;
    let written = match live {
        None => {
            let lock = json!({
                "apiVersion": "v1",
                "kind": "Endpoints",
                "metadata": {
                    "name": shared.product.controller,
                    "annotations": {LEADER: record(name)},
                },
            });
            pod.create(&collection, &lock).await
        }
        Some(live) => {
            let holder = holder(&live);
            if holder != name && shared.controllers.contains(namespace, &holder) {
                return Ok(());
            }
            let mut lock = live;
            lock["metadata"]["annotations"][LEADER] = record(name).into();
            pod.replace(&path, &lock).await
        }
    };
    match written {
        // Another pod was faster. Retry at the next renewal.
        Ok(_)
        | Err(Failure::Status {
            code: 404 | 409, ..
        }) => Ok(()),
        Err(failure) => Err(format!("failed to renew the leader lock: {failure}")),
    }
}

fn record(name: &str) -> String {
    json!({"holderIdentity": name, "renewTime": jiff::Timestamp::now().to_string()}).to_string()
}

fn holder(lock: &Value) -> String {
    lock["metadata"]["annotations"][LEADER]
        .as_str()
        .and_then(|record| serde_json::from_str::<Value>(record).ok())
        .and_then(|record| record["holderIdentity"].as_str().map(ToOwned::to_owned))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_names_its_holder() {
        let lock = json!({"metadata": {"annotations": {LEADER: record("a")}}});
        assert_eq!(holder(&lock), "a");
        assert_eq!(holder(&json!({"metadata": {}})), "");
    }
}
