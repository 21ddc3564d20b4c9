//! Link options of release builds.

#[expect(
    clippy::disallowed_methods,
    reason = "Cargo passes the target in the environment"
)]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, expected: &str| std::env::var(name).is_ok_and(|value| value == expected);
    // Merge identical functions: instances of generic functions for similar types. Rust links with
    // lld on this target only.
    if is("PROFILE", "release") && is("TARGET", "x86_64-unknown-linux-gnu") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
