//! Keys of a controller that decrypt files of SOPS.

use crate::loop_run::fleet;

const KEYS: &str = include_str!("../fixtures/sops/keys.txt");
const SECRET: &str = include_str!("../fixtures/sops/secret.yaml");
const VALUES: &str = include_str!("../fixtures/sops/values.yaml");
/// The encrypted values.
const PLANTED: [&str; 3] = [
    "correct-horse-battery",
    "planted-second-value",
    "planted-value-of-a-file",
];

#[test]
fn a_release_is_applied_once_its_key_appears_and_no_output_has_a_value() {
    let fleet = fleet("loop-keys", "{interval: 1s}");
    let name = fleet.environment;
    let url = fleet.repo.path().to_str().unwrap();
    let keys = fleet.file("keys.txt", "# no key yet\n");
    let decryption = format!("        decryption: {{ageKeysFile: {keys}}}\n");
    let config = fleet.configuration(url, &decryption);
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_value("first");
    let file = format!("environments/{name}.yaml");
    let environment = fleet.read(&file);
    fleet.write(
        &file,
        &format!("{environment}valuesFrom: [secrets/values.yaml]\n"),
    );
    fleet.write("secrets/values.yaml", VALUES);
    // The encrypted file has a ConfigMap of the same name.
    fleet.remove("manifests/web/web.yaml");
    fleet.write("manifests/web/secret.yaml", SECRET);
    fleet.write(
        "manifests/web/config.yaml.j2",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config}\ndata: {url: 'db://{{ values.database.password }}'}\n",
    );
    fleet.push("encrypted");
    let message = fleet.until_condition("Stalled", "InvalidRepository");
    assert!(message.contains("no key fits"), "{message}");
    assert!(message.contains("keys.txt has 0 keys"), "{message}");
    assert!(!message.contains("undefined"), "{message}");

    fleet.file("keys.txt", KEYS);
    fleet.until("the Secret", |fleet| {
        let there = fleet.exists(&["secret", "web", "-n", name]);
        there.then_some(())
    });
    let config_map = fleet.until("the ConfigMap", |fleet| {
        let url = fleet.field(&["configmap", "config", "-n", name], "{.data.url}");
        (!url.is_empty()).then_some(url)
    });
    assert_eq!(config_map, "db://planted-value-of-a-file");
    fleet.until_ready();

    let records = fleet.kubectl(&["get", "releases.pleach.dev", "-A", "-o", "yaml"]);
    let events = fleet.kubectl(&["get", "events", "-A", "-o", "yaml"]);
    let status = fleet.run(&["status", name]).stdout;
    for (place, text) in [
        ("records", records),
        ("Events", events),
        ("status", status),
        ("metrics", running.get("/metrics").1),
        ("log", running.stopped().stderr),
    ] {
        for value in PLANTED {
            assert!(!text.contains(value), "{value} in {place}");
        }
    }
}
