//! Runs the demo of a whole upgrade: `pleach-demo-platform [REPOSITORY]`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use pleach_testkit::control_plane::binaries;
use pleach_testkit::demo::Platform;

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
    let program = std::env::current_exe().context("failed to find this program")?;
    let repository = std::env::args_os().nth(1);
    let demo = Platform {
        repository: repository.map_or_else(|| PathBuf::from("."), PathBuf::from),
        pleach: program.with_file_name("pleach"),
        // pleach reads PLEACH_ENGINES itself.
        engines: None,
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
