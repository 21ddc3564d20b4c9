//! The `pleach` program: prepares the process, and maps the result of a
//! command to an exit code.

use std::panic;
use std::process::ExitCode;

use mimalloc::MiMalloc;
use pleach::cli::{self, Cli, Exit};

/// Objects are trees of small strings: much of what render and diff do is to
/// allocate them.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    panic::set_hook(Box::new(cli::report_panic));
    let exit = panic::catch_unwind(start).unwrap_or(Exit::FAILED);
    ExitCode::from(exit.code())
}

fn start() -> Exit {
    let cli = match Cli::from_args(std::env::args_os()) {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    let mut ui = cli.ui();
    if cli.needs_network() {
        // The HTTP client looks for the provider of the process. An error
        // means that there is one already, which is as good.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
    cli::run(cli, &mut ui)
}
