//! The `pleach` program: prepares the process and maps the result of a command to an exit code.

use std::panic;
use std::process::ExitCode;

use mimalloc::MiMalloc;
use pleach::cli::{self, Cli, Exit};

/// Allocator. Objects are trees of small strings, so render and diff allocate a lot.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// `mi_option_purge_delay` of mimalloc.h, which the binding does not define.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

fn main() -> ExitCode {
    // Return unused memory to the system at once. This lowers the peak of a no-op run by 6 MiB at
    // the same speed.
    #[expect(unsafe_code, reason = "options can be set in no other way than from C")]
    // SAFETY: no other thread exists yet.
    unsafe {
        libmimalloc_sys::mi_option_set(PURGE_DELAY, 0);
    }
    panic::set_hook(Box::new(cli::report_panic));
    let exit = panic::catch_unwind(start).unwrap_or(Exit::FAILED);
    ExitCode::from(exit.code())
}

fn start() -> Exit {
    if let Some(exit) = cli::complete(std::env::args_os()) {
        return exit;
    }
    let cli = match Cli::from_args(std::env::args_os()) {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };
    let mut ui = cli.ui();
    if cli.needs_network() {
        // The HTTP client uses the crypto provider of the process. An error means that one is
        // already installed.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
    cli::run(cli, &mut ui)
}
