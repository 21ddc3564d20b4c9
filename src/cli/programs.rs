//! Programs of a throwaway control plane: their location, and their download.

use std::path::PathBuf;

use pleach_throwaway::{Binaries, FetchError, Progress, ThrowawayError, kubernetes_minor};

use super::error::{CliError, Kind};
use super::{Context, Ui};

/// All programs of a control plane with simulated nodes.
pub(super) const PROGRAMS: [&str; 6] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kwok",
];

/// Value of `--fetch` without a mirror.
const OFFICIAL: &str = "";

/// Location of the programs of a control plane.
#[derive(Debug, clap::Args)]
pub(crate) struct ProgramArgs {
    /// Folder with the programs; missing ones are searched in the cache of `make controlplane`
    #[arg(
        long,
        value_name = "DIR",
        env = "KUBEBUILDER_ASSETS",
        hide_env_values = true
    )]
    control_plane: Option<PathBuf>,

    /// Download missing programs with pinned checksums, from their projects or from a mirror
    #[arg(long, value_name = "MIRROR", num_args = 0..=1, require_equals = true, default_missing_value = OFFICIAL)]
    fetch: Option<String>,
}

impl ProgramArgs {
    /// Returns the folders of the programs, in the order of the search. Downloads the programs
    /// first, if the user wants that and one is missing.
    pub(crate) async fn binaries(&self, ui: &mut Ui, ctx: &Context) -> Result<Binaries, CliError> {
        #[expect(clippy::disallowed_methods, reason = "settings are read here")]
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        let binaries = Binaries::new(
            self.control_plane.clone(),
            path("XDG_CACHE_HOME"),
            path("HOME"),
        );
        let has_all = || PROGRAMS.iter().all(|name| binaries.find(name).is_ok());
        if let Some(mirror) = &self.fetch
            && !has_all()
        {
            let mirror = Some(mirror.as_str()).filter(|it| *it != OFFICIAL);
            download(ui, ctx, &binaries, mirror).await?;
        }
        Ok(binaries)
    }
}

/// Downloads the programs, with a line and a progress bar per file.
async fn download(
    ui: &mut Ui,
    ctx: &Context,
    binaries: &Binaries,
    mirror: Option<&str>,
) -> Result<(), CliError> {
    let mut current = String::new();
    let mut draw = |now: Progress<'_>| {
        let mebibytes = |bytes: u64| usize::try_from(bytes >> 20).unwrap_or(usize::MAX);
        if current != now.url {
            now.url.clone_into(&mut current);
            let size = now.total.map(|it| format!(" ({} MiB)", mebibytes(it)));
            let size = size.unwrap_or_default();
            ui.end_progress();
            ui.notice(format_args!("downloading {}{size}", now.url));
            ui.start_progress(now.total.map_or(0, mebibytes), "MiB");
        }
        ui.progress(mebibytes(now.done), "MiB", "");
    };
    let result = tokio::select! {
        result = binaries.fetch(mirror, &mut draw) => result,
        () = ctx.cancel.cancelled() => return Err(CliError::interrupted()),
    };
    ui.end_progress();
    Ok(result?)
}

impl From<FetchError> for CliError {
    fn from(error: FetchError) -> Self {
        let hint = match &error {
            FetchError::Unreachable { .. }
            | FetchError::Refused { .. }
            | FetchError::Cut { .. } => {
                "run the command again to continue the download; --fetch=MIRROR replaces https:// and the host of all addresses, and --control-plane names a folder with the programs"
            }
            _ => {
                "name a folder with the programs with --control-plane, or run `make controlplane` in the sources of pleach"
            }
        };
        Self::new(Kind::Cluster, error).hint(hint)
    }
}

impl From<ThrowawayError> for CliError {
    fn from(error: ThrowawayError) -> Self {
        match error {
            ThrowawayError::FindBinary { name, folders } => {
                let folders: Vec<String> = folders
                    .iter()
                    .map(|folder| folder.display().to_string())
                    .collect();
                let message = format!(
                    "no control plane for Kubernetes {}: {name} was not found in {}",
                    kubernetes_minor(),
                    folders.join(", ")
                );
                Self::new(Kind::Cluster, message).hint(
                    "--fetch downloads the programs; `make controlplane` in the sources of pleach builds them; --control-plane names a folder",
                )
            }
            error => Self::new(Kind::Failed, error),
        }
    }
}
