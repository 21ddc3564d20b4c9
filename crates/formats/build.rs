//! Writes the rows of the readiness table without their cases, which only tests read. They are two
//! thirds of the text.
#![expect(
    clippy::disallowed_methods,
    reason = "a build script reads its sources"
)]

use std::path::Path;
use std::{env, fs, io};

const KINDS: &str = "src/readiness/kinds";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={KINDS}");
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    let target = Path::new(&out).join("kinds");
    fs::create_dir_all(&target)?;
    for entry in fs::read_dir(KINDS)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "yaml")
            && let Some(name) = path.file_name()
        {
            fs::write(
                target.join(name),
                without_cases(&fs::read_to_string(&path)?),
            )?;
        }
    }
    Ok(())
}

/// Removes each list `cases`: its line, and the lines that are indented deeper.
fn without_cases(text: &str) -> String {
    let mut is_case = false;
    let mut rows = String::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        is_case = line == "    cases:" || (is_case && (indent > 4 || line.trim().is_empty()));
        if !is_case {
            rows.push_str(line);
            rows.push('\n');
        }
    }
    rows
}
