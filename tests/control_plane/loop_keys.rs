//! Keys of a controller that decrypt files of SOPS.

use pleach_testkit::program::script as script_of;

use crate::loop_run::fleet;

const KEYS: &str = include_str!("../fixtures/sops/keys.txt");
const SECRET: &str = include_str!("../fixtures/sops/secret.yaml");
const PLAIN: &str = include_str!("../fixtures/sops/plain.yaml");
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

#[test]
fn a_program_decrypts_once_its_key_service_answers_and_no_output_has_a_value() {
    let fleet = fleet("loop-sops", "{interval: 1s}");
    let name = fleet.environment;
    let url = fleet.repo.path().to_str().unwrap();
    let plain = fleet.file("plain.yaml", "");
    // Its error output has a value, as that of a key service could.
    let script = format!(
        "echo {} >&2; test -s {plain} || exit 128; /bin/cat {plain}",
        PLANTED[0]
    );
    let (_folder, program) = script_of(&script).unwrap();
    let decryption = format!(
        "        decryption: {{sopsProgram: {}, sopsVariables: [HOME]}}\n",
        program.display()
    );
    let config = fleet.configuration(url, &decryption);
    let running = fleet.runs_with(&["--config", &config]);
    fleet.until_value("first");
    fleet.remove("manifests/web/web.yaml");
    fleet.write("manifests/web/secret.yaml", SECRET);
    fleet.push("encrypted");
    let message = fleet.until_condition("Stalled", "Unread");
    let expected = "`sopsProgram` failed: manifests/web/secret.yaml: no key service decrypted";
    assert!(message.contains(expected), "{message}");

    fleet.file("plain.yaml", PLAIN);
    let password = fleet.until("the Secret", |fleet| {
        let secret = fleet.get(&["secret", "web", "-n", name])?;
        Some(secret["data"]["password"].to_string())
    });
    assert_eq!(password, "\"Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5\"");
    fleet.until_ready();
    let log = running.stopped().stderr;
    for value in PLANTED {
        assert!(!log.contains(value), "{value} in the log");
    }
}
