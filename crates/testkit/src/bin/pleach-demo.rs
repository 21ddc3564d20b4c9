//! Runs the demo in its own network: `pleach-demo [REPOSITORY]`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use pleach_testkit::control_plane::binaries;
use pleach_testkit::demo::Demo;
use pleach_testkit::throwaway::isolate;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            // Ignore errors of stderr.
            drop(writeln!(std::io::stderr(), "error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args_os();
    let program = std::env::current_exe().context("failed to find this program")?;
    let pleach = program.with_file_name("pleach");
    arguments.next();
    let repository = arguments
        .next()
        .map_or_else(|| PathBuf::from("."), PathBuf::from);
    if !isolate::pods_can_answer() {
        let status = isolate::reexec([repository])?;
        return Ok(if status.success() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    let demo = Demo {
        repository,
        pleach,
        binaries: binaries(),
    };
    let runtime = tokio::runtime::Runtime::new()?;
    let passed = runtime.block_on(demo.run(&mut std::io::stdout()))?;
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
