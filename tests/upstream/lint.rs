//! Published manifests: lint finds only their real mistakes.

use std::collections::BTreeMap;

use pleach_render::lint;

use crate::{files, load, read, repository};

/// Known mistakes: removed API versions, and duplicate ports.
const KNOWN: [&str; 2] = ["api-not-served", "duplicate-item"];

#[test]
fn only_real_mistakes_are_found() {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let mut objects = 0;
    for file in files(".yaml") {
        // Use a separate folder for each, because versions repeat objects. One file with tabs has
        // its own test.
        if file == "cdi/v1.4.1/cdi.yaml" {
            continue;
        }
        let text = read(&file);
        let (tree, environment, kinds) = load(repository(&[("app.yaml", text.clone())], "{}"));
        let linted = lint::environment(&tree, &environment, &kinds);
        objects += linted.objects.len();
        for finding in linted.findings.iter().filter(|finding| finding.is_error()) {
            assert!(KNOWN.contains(&&*finding.code), "{file}: {finding:#?}");
            *found.entry(finding.code.clone()).or_default() += 1;
            // The location is the line of the mistake.
            let place = finding.place.as_ref().unwrap();
            let line = text.lines().nth(place.line - 1).unwrap();
            let expected = match finding.code.as_str() {
                "duplicate-item" => "- containerPort: 8443",
                _ => "apiVersion: ",
            };
            assert!(line.trim_start().starts_with(expected), "{file}: {finding}");
        }
    }
    println!("{objects} objects: {found:?}");
    assert!(objects > 100 && found.len() == KNOWN.len(), "{found:?}");
}
