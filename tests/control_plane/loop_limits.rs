//! Limits, so that one environment does not block another and field fights end.

use crate::fleet::object_writes;
use crate::loop_run::fleet;
use crate::samples::{BUNDLE, config_map};

/// Template that doubles its text repeatedly.
const WITHOUT_END: &str = "{% set n = namespace(x='ab') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}";

#[test]
fn a_commit_that_exceeds_the_limits_of_rendering_is_held_and_ends_nothing() {
    let fleet = fleet("loop-bomb", "{interval: 1s}");
    let repo = fleet.repo.path().to_str().unwrap().to_owned();
    // Another environment of the same controller.
    let other = fleet.read(&fleet.environment_file());
    let other = other.replace("namespace: loop-bomb", "namespace: loop-bomb-calm");
    fleet.write("environments/loop-bomb-calm.yaml", &other);
    fleet.create_namespace("loop-bomb-calm");
    fleet.push("two environments");
    let branch = ["branch", "--force", "env/loop-bomb-calm"];
    fleet.repo.git(&branch).unwrap();
    let running = fleet.runs_with(&["--repo", &repo, "loop-bomb", "loop-bomb-calm"]);
    let calm = |value: &str| {
        fleet.until(value, |fleet| {
            let live = fleet.get(&["configmap", "web", "-n", "loop-bomb-calm"])?;
            (live["data"]["k"] == value).then_some(())
        });
    };
    fleet.until_value("first");
    fleet.until_ready();
    calm("first");

    fleet.write("manifests/web/more.yaml.j2", WITHOUT_END);
    fleet.push("without end");
    let said = fleet.until_condition("Stalled", "InvalidRepository");
    assert!(said.contains("exceed the memory or time limit"), "{said}");
    // The last good commit is maintained, and other environments continue.
    fleet.edit_by_hand("ann");
    fleet.until_value("first");
    fleet.remove("manifests/web/more.yaml.j2");
    fleet.edit("manifests/web/web.yaml", "k: first", "k: second");
    fleet.commit();
    fleet.repo.git(&branch).unwrap();
    calm("second");
    assert_eq!(fleet.value().as_deref(), Some("first"));
    // The same process continues with the next commit.
    fleet.push("with an end");
    fleet.until_value("second");
    fleet.until_not("Stalled");
    running.stopped();
}

#[test]
fn who_takes_over_what_left_git_is_not_rendered_without_bounds_either() {
    let fleet = fleet("loop-heirs", "{interval: 1s}");
    let file = fleet.environment_file();
    let text = fleet.read(&file);
    fleet.write("manifests/extra/bundle.yaml", BUNDLE);
    fleet.write("manifests/extra/extra.yaml", &config_map("extra", "here"));
    let release = "releases:\n  - {name: extra, bundle: extra, namespace: loop-heirs}\n";
    fleet.write(&file, &text.replace("releases:\n", release));
    fleet.push("two releases");
    let running = fleet.runs();
    let extra = || fleet.exists(&["configmap", "extra", "-n", "loop-heirs"]);
    fleet.until("extra", |_| extra().then_some(()));
    fleet.until_ready();

    // The release is removed from git, and another release could still take its objects.
    let consent = "consent: [{action: uninstall, release: extra}]\n";
    fleet.write(&file, &format!("{text}{consent}"));
    fleet.write("manifests/bomb/bundle.yaml", BUNDLE);
    fleet.write("manifests/bomb/bomb.yaml.j2", WITHOUT_END);
    let successor = "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nreleases:\n  - {name: bomb, bundle: bomb, namespace: loop-heirs, movedFrom: {environment: loop-heirs, release: extra}}\n";
    fleet.write("environments/loop-heirs-evil.yaml", successor);
    fleet.push("an heir");
    let reason = |status: &str| {
        let path = "{.status.conditions[?(@.type==\"Ready\")].reason}";
        fleet.until(status, |fleet| {
            let name = ["release.pleach.dev/loop-heirs.extra"];
            (fleet.field(&name, path) == status).then_some(())
        });
    };
    reason("Removed");
    assert!(extra());
    // The controller continues, and removes the release once it is known that no successor exists.
    fleet.edit_by_hand("ann");
    fleet.until_value("first");
    fleet.remove("environments/loop-heirs-evil.yaml");
    fleet.push("no heir");
    fleet.until("the end of extra", |_| (!extra()).then_some(()));
    running.stopped();
}

#[test]
fn a_field_that_somebody_keeps_writing_to_is_left_alone_by_the_loop() {
    let fleet = fleet("loop-fought", "{interval: 1s}");
    let running = fleet.runs();
    fleet.until_value("first");
    fleet.until_ready();
    for _ in 0..3 {
        fleet.edit_by_hand("ann");
        fleet.until_value("first");
    }
    fleet.edit_by_hand("ann");
    let said = fleet.until_condition("Contended", "FieldsFoughtOver");
    assert_eq!(
        said,
        "ann keeps changing .data.k of ConfigMap/loop-fought/web"
    );
    let metric = "pleach_release_contended_fields{environment=\"loop-fought\",release=\"web\"}";
    fleet.until(metric, |_| (running.number(metric) > 0.0).then_some(()));
    let events = ["events", "-A", "--field-selector=reason=Contended"];
    fleet.until("the Event", |fleet| {
        let said = fleet.field(&events, "{.items[*].message}");
        said.contains("ConfigMap/loop-fought/web").then_some(())
    });
    let looks = || running.looks("loop-fought", "web", "unchanged");
    let ((), events) = fleet.watched(|fleet| {
        let seen = looks();
        fleet.until("some looks", |_| (looks() > seen + 2.0).then_some(()));
    });
    let written = object_writes(&events);
    assert_eq!(written, [""; 0], "{events}");
    assert_eq!(fleet.value().as_deref(), Some("ann"));
    // Other changes in git are still applied.
    fleet.write("manifests/web/other.yaml", &config_map("other", "here"));
    fleet.push("one more");
    fleet.until("the other one", |fleet| {
        let there = fleet.exists(&["configmap", "other", "-n", "loop-fought"]);
        there.then_some(())
    });
    assert_eq!(fleet.value().as_deref(), Some("ann"));
    running.stopped();
}

#[test]
fn an_environment_that_two_repositories_claim_is_synced_from_neither() {
    let fleet = fleet("loop-claimed", "{interval: 1s}");
    let url = fleet.repo.path().to_str().unwrap().to_owned();
    fleet.applied();
    let text = fleet.configuration_text(&url, "");
    let (_, own) = text.split_once("repositories:\n").unwrap();
    let other = own.replace("name: fleet", "name: other");
    let config = fleet.file("two.yaml", &format!("{text}{other}"));
    // The first fetch brings the commit: nothing but the second claim stops its sync.
    fleet.push_value("first", "second");
    let running = fleet.runs_with(&["--config", &config]);
    let said = fleet.until_condition("Stalled", "Contested");
    assert!(
        said.contains("env/loop-claimed of fleet, env/loop-claimed of other"),
        "{said}"
    );
    running.stopped();
    assert_eq!(fleet.value().as_deref(), Some("first"));
}
