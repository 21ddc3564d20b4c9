//! Commands that the controller runs in worker processes. They limit themselves first; users do not
//! call them.

use std::env::{split_paths, temp_dir, var_os};
use std::io::{IsTerminal as _, Read as _, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::error::{CliError, Kind};
use super::{Exit, Ui};
use pleach_engine::engines::{self, EngineRunner, EngineSearch};
use pleach_engine::pulling::Pull;
use pleach_engine::{bounded_render, decryption, fetching};
use pleach_files::bounds::{bound, bound_files, defer};
use pleach_files::sandbox::{Work as Restricted, confine};
use pleach_git::fetch::Fetch;
use pleach_git::unpack::Unpack;

/// CPU time for a fetch.
const FETCHING: Duration = Duration::from_mins(5);
/// File that a kubelet reads when a container ends.
const TERMINATION_MESSAGE: &str = "/dev/termination-log";
/// Maximum size of a request, in bytes.
const LONGEST: u64 = 1 << 20;

/// Execute a request of the controller from standard input, with limited resources
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct WorkerArgs {
    #[command(subcommand)]
    work: Work,
}

/// The kinds of work.
#[derive(Debug, clap::Subcommand)]
enum Work {
    /// Fetch from a remote repository. Another process unpacks the objects
    Fetch,
    /// Pull an artifact, and write it as a commit
    Pull,
    /// Unpack the objects of a fetch
    Unpack,
    /// Render an environment, and print its objects
    Render {
        /// The request names a program that decrypts files
        #[arg(long)]
        sops: bool,
    },
    /// Start the program that renders charts, for processes that cannot
    Engines,
    /// Start the program that decrypts files, for processes that cannot
    Sops,
    /// Write the free space for images to the termination message of this pod
    FreeSpace,
}

/// Runs `pleach worker`.
pub(crate) fn run(ui: &mut Ui, args: &WorkerArgs) -> Result<Exit, CliError> {
    if stdin().is_terminal() {
        let words = "`pleach worker` reads a request of the controller from standard input, which is a terminal";
        return Err(CliError::usage(words));
    }
    match args.work {
        Work::Fetch => ui.print(&fetch()?),
        Work::Pull => ui.print(&pull()?),
        Work::Unpack => unpack()?,
        Work::Render { sops } => {
            // Before the limits of this process, which the program would inherit.
            let relay = sops.then(decryption::start_relay).transpose();
            let relay = relay.map_err(failed)?;
            let request = request(bounded_render::COMPUTING)?;
            // The colorless output would remove this control character, which JSON does not escape.
            let mut print = |lines: &str| ui.print(lines.replace('\u{7f}', "\\u007f"));
            let engines = EngineRunner::relayed(EngineSearch::of_process()).map_err(failed)?;
            let engines = Arc::new(engines);
            bounded_render::execute(&request, &engines, relay, &mut print).map_err(failed)?;
        }
        Work::Engines => {
            bound(bounded_render::COMPUTING).map_err(failed)?;
            engines::serve(stdin(), stdout()).map_err(failed)?;
        }
        Work::FreeSpace => free_space()?,
        Work::Sops => decryption::serve(stdin(), stdout()).map_err(failed)?,
    }
    Ok(Exit::DONE)
}

/// Writes the number of free bytes below `/` to the termination message. The root of a container is
/// in the file system of the images.
#[expect(clippy::disallowed_methods, reason = "the file belongs to the kubelet")]
fn free_space() -> Result<(), CliError> {
    let found = rustix::fs::statvfs("/").map_err(failed)?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    std::fs::write(TERMINATION_MESSAGE, free.to_string()).map_err(failed)
}

/// Executes a fetch. This process has the credentials, and another one parses the data of the
/// server.
fn fetch() -> Result<String, CliError> {
    let request: Fetch = serde_json::from_str(&request(FETCHING)?).map_err(failed)?;
    if request.is_background() {
        defer();
    }
    let unpacker = fetching::start_unpacker().map_err(failed)?;
    let (certificates, scratch) = (certificates(), temp_dir());
    let certificates: Vec<&Path> = certificates.iter().map(PathBuf::as_path).collect();
    let work = Restricted::Connect {
        read: &certificates,
        write: &[&scratch],
    };
    confine(work).map_err(failed)?;
    fetching::execute(&request, unpacker).map_err(failed)
}

/// Pulls an artifact. This process has the credentials of its registry, and writes only the bare
/// repository.
fn pull() -> Result<String, CliError> {
    let request: Pull = serde_json::from_str(&request(FETCHING)?).map_err(failed)?;
    let (certificates, scratch) = (certificates(), temp_dir());
    let read = [certificates, git_settings()].concat();
    let read: Vec<&Path> = read.iter().map(PathBuf::as_path).collect();
    let work = Restricted::Connect {
        read: &read,
        write: &[&scratch, &request.folder],
    };
    confine(work).map_err(failed)?;
    serde_json::to_string(&request.execute()).map_err(failed)
}

/// Unpacks a fetch. Its standard input and output lead to the process with the connection.
fn unpack() -> Result<(), CliError> {
    bound(FETCHING).map_err(failed)?;
    let request = Unpack::receive(&mut stdin()).map_err(failed)?;
    bound_files(request.largest_file()).map_err(failed)?;
    request.confine(&git_settings()).map_err(failed)?;
    let result = request.execute_over(stdin(), stdout());
    Unpack::answer(&result, &mut stdout()).map_err(failed)
}

/// Limits this process, then reads the request.
fn request(time: Duration) -> Result<String, CliError> {
    bound(time).map_err(failed)?;
    let mut request = String::new();
    let read = stdin().take(LONGEST).read_to_string(&mut request);
    read.map_err(failed)?;
    Ok(request)
}

/// Returns files that variables pass to clients as certificates.
#[expect(clippy::disallowed_methods, reason = "settings are read here")]
fn certificates() -> Vec<PathBuf> {
    let certificates = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter();
    let certificates = certificates.filter_map(var_os);
    let certificates = certificates.flat_map(|paths| split_paths(&paths).collect::<Vec<_>>());
    certificates.collect()
}

/// Returns files with git settings. libgit2 fails if they exist and are not readable.
#[expect(clippy::disallowed_methods, reason = "settings are read here")]
fn git_settings() -> Vec<PathBuf> {
    let home = var_os("HOME").map(PathBuf::from).into_iter();
    let settings = home.flat_map(|home| [".gitconfig", ".config/git"].map(|name| home.join(name)));
    settings.collect()
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CliError {
    CliError::new(Kind::Failed, error)
}
