//! Link options of release builds.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let is_linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    if is_release && is_linux {
        // Merge identical functions: instances of generic functions for similar types.
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
