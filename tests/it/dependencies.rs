//! The rules of deny.toml that need no database: licenses, banned crates and sources.
//!
//! `make deny` checks the same with cargo-deny, and is slow to install.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use spdx::Expression;

/// Returns the quoted texts of the lines of a section that contain a word.
fn quoted(section: &str, word: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml");
    let rules = fs::read_to_string(path).unwrap();
    let (_, rest) = rules.split_once(&format!("\n[{section}]\n")).unwrap();
    let lines = rest.lines().take_while(|line| !line.starts_with('['));
    let lines = lines.filter(|line| line.contains(word));
    lines
        .flat_map(|line| line.split('"').skip(1).step_by(2).map(str::to_owned))
        .collect()
}

/// Returns the packages of all features, for this system: cargo has downloaded no others.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--all-features"])
        .args(["--format-version", "1", "--filter-platform"])
        .arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

#[test]
fn dependencies_meet_the_rules() {
    let allowed = quoted("licenses", "allow = ");
    let banned: Vec<String> = quoted("bans", "crate = ").into_iter().step_by(2).collect();
    assert!(allowed.contains(&"MIT".to_owned()) && banned.contains(&"openssl-sys".to_owned()));
    let packages = packages();
    assert!(packages.len() > 300, "{}", packages.len());
    let mut problems = Vec::new();
    for package in &packages {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let name = text("name");
        let is_ours = package["source"].is_null();
        if banned.iter().any(|one| one == name) {
            problems.push(format!("{name} is banned"));
        }
        if !is_ours
            && !text("source").starts_with("registry+https://github.com/rust-lang/crates.io-index")
        {
            problems.push(format!("{name} comes from {}", text("source")));
        }
        let is_allowed = Expression::parse_mode(text("license"), spdx::ParseMode::LAX)
            .is_ok_and(|license| license.evaluate(|one| allowed.contains(&one.to_string())));
        if !is_allowed {
            problems.push(format!("{name} has license {}", text("license")));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
