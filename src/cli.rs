//! Command line: arguments, settings and dispatch.
//!
//! Only this layer reads environment variables. [`Ui`] prints, and the layers below decide; a
//! command combines them.

pub mod error;
pub mod exit;
pub mod load;
mod log_format;
mod log_lines;
mod logs;
pub mod target;
pub mod ui;

mod add;
mod apply;
mod bootstrap;
mod completion;
mod diff;
mod differences;
mod doctor;
#[cfg(feature = "rehearsal")]
mod dump;
mod explain;
mod forge;
mod format;
mod help;
mod history;
mod init;
mod lease;
mod lint;
mod mask;
mod override_controller;
mod plan;
mod plan_file;
mod preview;
#[cfg(feature = "rehearsal")]
mod programs;
mod promote;
mod push;
mod recover;
mod registry;
#[cfg(feature = "rehearsal")]
mod rehearse;
mod render;
mod rollback;
mod run;
mod runtime;
#[cfg(feature = "rehearsal")]
mod sandbox;
mod session;
mod status;
mod suspend;
mod uninstall;
mod vendor;
mod verdict;
mod version;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{FromArgMatches as _, Parser};

pub use completion::complete;
pub use error::CliError;
pub use exit::Exit;
pub use load::Context;
pub use target::Target;
pub use ui::{Color, Ui, Verbosity};

/// Reconcile Kubernetes clusters with git
///
/// A repository holds bundles (versioned folders of manifests and templates)
/// and environments (which version of which bundle, with which values, on which
/// cluster). pleach renders them, compares them with the live cluster through
/// server-side apply, and executes an ordered plan: apply, wait, verify, prune.
#[derive(Debug, Parser)]
#[command(
    name = "pleach",
    version,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
struct GlobalArgs {
    /// Folder of the repository [default: the nearest parent folder with a pleach.yaml]
    #[arg(long, global = true, value_name = "DIR", env = "PLEACH_REPO")]
    repo: Option<PathBuf>,

    /// Branch, tag or commit to read [default: the working tree]
    #[arg(long, global = true, value_name = "REV", env = "PLEACH_REVISION")]
    revision: Option<String>,

    /// Kubeconfig file [default: same as kubectl]
    #[arg(long, global = true, value_name = "FILE", env = "PLEACH_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: the environment's, else the current one]
    #[arg(long, global = true, value_name = "NAME", env = "PLEACH_CONTEXT")]
    context: Option<String>,

    /// Namespace of the controller, with the keys of state in tenant namespaces
    /// [default: keys are stored beside the state]
    #[arg(
        long,
        global = true,
        value_name = "NAMESPACE",
        env = "PLEACH_KEY_NAMESPACE"
    )]
    key_namespace: Option<String>,

    /// When to use colors
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        env = "PLEACH_COLOR"
    )]
    color: Color,

    /// Show notes and log lines; repeat for more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Show only the result and errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,

    /// Filter of log lines, in the syntax of the tracing crate
    #[arg(
        long,
        global = true,
        hide = true,
        value_name = "FILTER",
        env = "PLEACH_LOG"
    )]
    log: Option<String>,
}

/// Commands.
#[derive(Debug, clap::Subcommand)]
enum Command {
    Init(init::InitArgs),
    Add(add::AddArgs),
    Bootstrap(bootstrap::BootstrapArgs),
    Render(render::RenderArgs),
    Lint(lint::LintArgs),
    Vendor(vendor::VendorArgs),
    Diff(diff::DiffArgs),
    Plan(plan::PlanArgs),
    Apply(apply::ApplyArgs),
    Preview(preview::PreviewArgs),
    Worker(worker::WorkerArgs),
    Status(status::StatusArgs),
    History(history::HistoryArgs),
    Logs(logs::LogsArgs),
    Doctor(doctor::DoctorArgs),
    Rollback(rollback::RollbackArgs),
    Promote(promote::PromoteArgs),
    Push(push::PushArgs),
    Suspend(suspend::SuspendArgs),
    Resume(suspend::ResumeArgs),
    Sync(suspend::SyncArgs),
    Uninstall(uninstall::UninstallArgs),
    Recover(recover::RecoverArgs),
    Run(run::RunArgs),
    #[cfg(feature = "rehearsal")]
    Dump(dump::DumpArgs),
    #[cfg(feature = "rehearsal")]
    Rehearse(rehearse::RehearseArgs),
    #[cfg(feature = "rehearsal")]
    Sandbox(sandbox::SandboxArgs),
    Completion(completion::CompletionArgs),
    Version(version::VersionArgs),
}

impl Cli {
    /// Parses arguments. Prints parse errors and `--help`, and then returns the exit code as error.
    pub fn from_args(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, Exit> {
        let arguments: Vec<OsString> = arguments.into_iter().collect();
        help::command()
            .color(color_of_messages(&arguments))
            .try_get_matches_from(arguments)
            .and_then(|matches| Self::from_arg_matches(&matches))
            .map_err(|error| {
                // Ignore a closed pipe.
                drop(error.print());
                if error.use_stderr() {
                    Exit::USAGE
                } else {
                    Exit::DONE
                }
            })
    }

    /// Creates the [`Ui`] for the process streams and global options.
    pub fn ui(&self) -> Ui {
        let verbosity = match (self.global.quiet, self.global.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, _) => Verbosity::Verbose,
        };
        Ui::new(self.global.color, verbosity)
    }

    /// Returns whether the command can connect to a cluster or a forge.
    pub fn needs_network(&self) -> bool {
        match self.command {
            Command::Bootstrap(_)
            | Command::Vendor(_)
            | Command::Diff(_)
            | Command::Plan(_)
            | Command::Apply(_)
            | Command::Status(_)
            | Command::History(_)
            | Command::Logs(_)
            | Command::Rollback(_)
            | Command::Preview(_)
            | Command::Promote(_)
            | Command::Push(_)
            | Command::Doctor(_)
            | Command::Suspend(_)
            | Command::Resume(_)
            | Command::Sync(_)
            | Command::Uninstall(_)
            | Command::Recover(_)
            | Command::Run(_) => true,
            #[cfg(feature = "rehearsal")]
            Command::Dump(_) | Command::Rehearse(_) | Command::Sandbox(_) => true,
            Command::Init(_)
            | Command::Add(_)
            | Command::Render(_)
            | Command::Lint(_)
            | Command::Worker(_)
            | Command::Completion(_)
            | Command::Version(_) => false,
        }
    }
}

/// Runs a command and returns its exit code.
pub fn run(cli: Cli, ui: &mut Ui) -> Exit {
    let result = start_logging(&cli).and_then(|()| dispatch(cli, ui));
    let exit = match result {
        Ok(exit) => exit,
        Err(error) => {
            ui.error(&error);
            error.exit()
        }
    };
    match ui.finish() {
        Ok(()) => exit,
        Err(error) => {
            ui.error(&error);
            exit.and(error.exit())
        }
    }
}

fn dispatch(cli: Cli, ui: &mut Ui) -> Result<Exit, CliError> {
    let context = Context::new(load::Settings {
        repo: cli.global.repo,
        revision: cli.global.revision,
        kubeconfig: cli.global.kubeconfig,
        context: cli.global.context,
        key_namespace: cli.global.key_namespace,
    });
    let cancel = context.cancel.clone();
    match cli.command {
        Command::Init(args) => init::run(ui, &context, &args),
        Command::Add(args) => runtime::block_on(&cancel, add::run(ui, &context, &args)),
        Command::Bootstrap(args) => runtime::block_on(&cancel, bootstrap::run(ui, &context, args)),
        Command::Render(args) => render::run(ui, &context, &args),
        Command::Lint(args) => lint::run(ui, &context, &args),
        Command::Vendor(args) => runtime::block_on(&cancel, vendor::run(ui, &context, args)),
        Command::Diff(args) => runtime::block_on(&cancel, diff::run(ui, &context, args)),
        Command::Plan(args) => runtime::block_on(&cancel, plan::run(ui, &context, args)),
        Command::Apply(args) => runtime::block_on(&cancel, apply::run(ui, &context, args)),
        Command::Preview(args) => preview::run(ui, &context, &args),
        Command::Worker(args) => worker::run(ui, &args),
        Command::Status(args) => runtime::block_on(&cancel, status::run(ui, &context, args)),
        Command::History(args) => runtime::block_on(&cancel, history::run(ui, &context, args)),
        Command::Logs(args) => runtime::block_on(&cancel, logs::run(ui, &context, args)),
        Command::Doctor(args) => runtime::block_on(&cancel, doctor::run(ui, &context, args)),
        Command::Rollback(args) => runtime::block_on(&cancel, rollback::run(ui, &context, args)),
        Command::Promote(args) => runtime::block_on(&cancel, promote::run(ui, &context, args)),
        Command::Push(args) => runtime::block_on(&cancel, push::run(ui, &context, args)),
        Command::Suspend(args) => runtime::block_on(&cancel, suspend::suspend(ui, &context, args)),
        Command::Resume(args) => runtime::block_on(&cancel, suspend::resume(ui, &context, args)),
        Command::Sync(args) => runtime::block_on(&cancel, suspend::sync(ui, &context, args)),
        Command::Uninstall(args) => runtime::block_on(&cancel, uninstall::run(ui, &context, args)),
        Command::Recover(args) => runtime::block_on(&cancel, recover::run(ui, &context, args)),
        Command::Run(args) => {
            // The controller writes only log lines to stderr.
            let report = |line: &str| tracing::info!("{line}");
            runtime::block_on_reporting(&cancel, report, run::run(ui, &context, args))
        }
        #[cfg(feature = "rehearsal")]
        Command::Dump(args) => runtime::block_on(&cancel, dump::run(ui, &context, args)),
        #[cfg(feature = "rehearsal")]
        Command::Rehearse(args) => {
            let report = |_: &str| ui::write_notice("ending the rehearsal");
            runtime::block_on_reporting(&cancel, report, rehearse::run(ui, &context, args))
        }
        #[cfg(feature = "rehearsal")]
        Command::Sandbox(args) => {
            let report = |_: &str| ui::write_notice("ending the control plane");
            runtime::block_on_reporting(&cancel, report, sandbox::run(ui, &context, args))
        }
        Command::Completion(args) => Ok(completion::run(ui, &args)),
        Command::Version(args) => Ok(version::run(ui, &args)),
    }
}

/// Starts logging to stderr, if requested.
fn start_logging(cli: &Cli) -> Result<(), CliError> {
    let global = &cli.global;
    let format = match &cli.command {
        Command::Run(args) => Some(args.log_format(ui::stderr_is_terminal())),
        _ => None,
    };
    let filter = match (&global.log, global.verbose) {
        (Some(filter), _) => filter.as_str(),
        // The controller has no other output than its log.
        (None, 0) if format.is_some() && global.quiet => "error",
        (None, 0) if format.is_some() => "warn,pleach=info",
        (None, 0) => return Ok(()),
        (None, 1) if format.is_some() => "info,pleach=debug",
        (None, 1) => "warn,pleach=info",
        (None, 2) => "info,pleach=debug",
        (None, _) => "debug,pleach=trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| CliError::usage(format!("invalid log filter: {error}")))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| log_lines::OneLine(ui::stderr()))
        // Module paths say nothing to the operators of a controller.
        .with_target(format.is_none())
        .with_ansi(ui::colors_on_stderr(global.color));
    let started = match format {
        Some(format) => lines.event_format(log_format::LogLines(format)).try_init(),
        None => lines.try_init(),
    };
    started.map_err(|error| CliError::new(error::Kind::Failed, error))
}

/// Returns the value of `--color`, for error messages about arguments.
fn color_of_messages(arguments: &[OsString]) -> clap::ColorChoice {
    let color = option(arguments, "--color", "PLEACH_COLOR");
    match color.as_ref().and_then(|color| color.to_str()) {
        Some("always") => clap::ColorChoice::Always,
        Some("never") => clap::ColorChoice::Never,
        _ => clap::ColorChoice::Auto,
    }
}

/// Returns the value of an option of arguments that are not parsed, or of its variable.
fn option(arguments: &[OsString], name: &str, variable: &str) -> Option<OsString> {
    #[expect(clippy::disallowed_methods, reason = "settings are read here")]
    let mut value = std::env::var_os(variable);
    for pair in arguments.windows(2) {
        if pair[0] == name {
            value = Some(pair[1].clone());
        }
    }
    for argument in arguments {
        let rest = argument.to_str().and_then(|text| text.strip_prefix(name));
        if let Some(text) = rest.and_then(|rest| rest.strip_prefix('=')) {
            value = Some(text.into());
        }
    }
    value
}

/// Reports a panic to the user. Used as the panic hook of the process.
pub fn report_panic(panic: &std::panic::PanicHookInfo<'_>) {
    ui::write_panic(panic);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_valid() {
        help::command().debug_assert();
    }
}
