//! Machines, volumes and settings of the user.

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::json;

use super::migrate::budget;
use super::{Call, Shared};

/// Settings of the user.
const SETTINGS: [(&str, &str); 2] = [("rebuild-delay", "300"), ("balance", "nightly")];
/// Machines for each volume.
const PER_VOLUME: usize = 4;
/// Maximum number of machines that are created at the same time.
const AT_ONCE: usize = 8;

/// Creates settings, and machines with their volumes.
pub(super) async fn all(shared: &Shared, count: usize) -> anyhow::Result<()> {
    for (name, value) in SETTINGS {
        let setting = shared.object("Setting", name, &json!({"value": value}));
        shared.create("settings", &setting).await?;
    }
    stream::iter(0..count)
        .map(|number| machine(shared, number))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await
}

/// Creates a machine and waits until it runs.
async fn machine(shared: &Shared, number: usize) -> anyhow::Result<()> {
    let name = format!("machine-{number}");
    let machine = shared.object("Machine", &name, &json!({"cpus": 2}));
    let machine = shared.create("machines", &machine).await?;
    let budgets = format!(
        "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
        shared.namespace
    );
    let budget = budget(&name, &name, 1);
    shared.send(Call::Create(&budgets, &budget)).await?;
    let node = shared.start_pod(&machine, &format!("{name}-0")).await?;
    let migratable = json!([{"type": "LiveMigratable", "status": "True"}]);
    let status = json!({"phase": "Running", "nodeName": node, "conditions": migratable});
    shared.set_status("machines", &name, &status).await?;
    if number.is_multiple_of(PER_VOLUME) {
        let name = format!("volume-{}", number / PER_VOLUME);
        let volume = shared.object("Volume", &name, &json!({"size": "10Gi"}));
        shared.create("volumes", &volume).await?;
        let status = json!({"state": "attached", "robustness": "healthy", "nodeName": node});
        shared.set_status("volumes", &name, &status).await?;
    }
    Ok(())
}
