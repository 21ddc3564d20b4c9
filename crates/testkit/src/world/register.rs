//! Startup of an api pod: certificates, settings, then registrations. It only continues if they
//! refer to its own namespace.

use serde_json::Value;

use super::certificates::Certificates;
use super::product::{Configuration, Product};
use super::rest::{Failure, Rest};

/// Maximum number of retries after a conflict with another replica.
const RACES: usize = 5;

/// Starts an api pod. Returns its certificates, or the reason for its exit.
pub(crate) async fn start(
    product: &Product,
    pod: &Rest,
    namespace: &str,
) -> Result<Certificates, String> {
    read(pod, &namespaced("configmaps", namespace, &product.settings)).await?;
    read(
        pod,
        &namespaced(
            "configmaps",
            "kube-system",
            "extension-apiserver-authentication",
        ),
    )
    .await?;
    let certificates = certificates(product, pod, namespace).await?;
    let ca = certificates.ca_bundle();
    ensure(
        pod,
        "/apis/apiregistration.k8s.io/v1/apiservices",
        &product.api_service_body(namespace, &ca),
        namespace,
    )
    .await?;
    for configuration in [Configuration::Validating, Configuration::Mutating] {
        ensure(
            pod,
            configuration.path(),
            &product.webhooks_body(configuration, namespace, &ca),
            namespace,
        )
        .await?;
    }
    Ok(certificates)
}

fn namespaced(plural: &str, namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{plural}/{name}")
}

async fn read(pod: &Rest, path: &str) -> Result<Option<Value>, String> {
    pod.get(path).await.map_err(|failure| failure.to_string())
}

/// Reads the certificate Secret or creates it.
async fn certificates(
    product: &Product,
    pod: &Rest,
    namespace: &str,
) -> Result<Certificates, String> {
    let collection = format!("/api/v1/namespaces/{namespace}/secrets");
    let path = format!("{collection}/{}", product.certificates);
    for _ in 0..RACES {
        if let Some(secret) = read(pod, &path).await? {
            return Certificates::from_secret(&secret).map_err(|error| error.to_string());
        }
        let made = Certificates::generate(&product.service, namespace)
            .map_err(|error| error.to_string())?;
        match pod
            .create(
                &collection,
                &made.to_secret(&product.certificates_metadata(namespace)),
            )
            .await
        {
            Ok(_) => return Ok(made),
            Err(failure) if failure.code() == Some(409) => {}
            Err(failure) => return Err(failure.to_string()),
        }
    }
    Err(format!(
        "Secret {} appears and disappears",
        product.certificates
    ))
}

/// Creates a registration, or updates it if it refers to this namespace.
async fn ensure(pod: &Rest, collection: &str, body: &Value, namespace: &str) -> Result<(), String> {
    let kind = body["kind"].as_str().unwrap_or_default();
    let name = body["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("{collection}/{name}");
    for _ in 0..RACES {
        let written = match read(pod, &path).await? {
            None => pod.create(collection, body).await,
            Some(live) => {
                if let Some(other) = namespaces(&live).into_iter().find(|ns| *ns != namespace) {
                    return Err(format!(
                        "{kind} {name} is already registered in a different namespace ({other}). \
                         The existing registration must be deleted before this one can proceed."
                    ));
                }
                if same(&live, body) {
                    return Ok(());
                }
                let mut update = body.clone();
                update["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
                pod.replace(&path, &update).await
            }
        };
        match written {
            Ok(_) => return Ok(()),
            // Another replica was faster, or the registration was deleted.
            Err(Failure::Status {
                code: 404 | 409, ..
            }) => {}
            Err(failure) => return Err(failure.to_string()),
        }
    }
    Err(format!("{kind} {name} appears and disappears"))
}

/// Returns the namespaces of the Services that a registration refers to.
fn namespaces(registration: &Value) -> Vec<&str> {
    let hooks = registration["webhooks"].as_array();
    hooks
        .into_iter()
        .flatten()
        .map(|hook| &hook["clientConfig"]["service"]["namespace"])
        .chain([&registration["spec"]["service"]["namespace"]])
        .filter_map(Value::as_str)
        .collect()
}

/// Returns the CA bundles of a registration, one per webhook.
fn bundles(registration: &Value) -> Vec<&str> {
    let hooks = registration["webhooks"].as_array();
    hooks
        .into_iter()
        .flatten()
        .map(|hook| &hook["clientConfig"]["caBundle"])
        .chain([&registration["spec"]["caBundle"]])
        .filter_map(Value::as_str)
        .collect()
}

fn same(live: &Value, body: &Value) -> bool {
    namespaces(live) == namespaces(body) && bundles(live) == bundles(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_have_namespaces_and_ca_bundles() {
        let product = Product::kubevirt();
        let service = product.api_service_body("a", "Q0E=");
        assert_eq!(namespaces(&service), ["a"]);
        assert_eq!(bundles(&service), ["Q0E="]);
        let hooks = product.webhooks_body(Configuration::Validating, "a", "Q0E=");
        assert_eq!(namespaces(&hooks), ["a"; 7]);
        assert!(same(&hooks, &hooks));
        let other = product.webhooks_body(Configuration::Validating, "a", "QkI=");
        assert!(!same(&hooks, &other));
    }
}
