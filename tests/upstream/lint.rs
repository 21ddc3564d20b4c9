//! Manifests that people really ship: lint finds their mistakes and nothing
//! else.

use std::collections::BTreeMap;

use pleach_domain::lint;

use crate::{files, load, read, repository};

/// What may be wrong with them: removed versions, and lists in which a port
/// stands twice.
const KNOWN: [&str; 2] = ["api-not-served", "duplicate-item"];

#[test]
fn only_real_mistakes_are_found() {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let mut objects = 0;
    for file in files(".yaml") {
        // A folder of its own each: versions repeat their objects. One file has
        // tabs, which is a test of its own.
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
            // The place is the line that says so.
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
