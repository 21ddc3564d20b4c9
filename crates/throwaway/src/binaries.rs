//! Locations of the control plane's programs.

use std::path::{Path, PathBuf};

use std::process::Stdio;
use std::time::Duration;

use crate::fetch::{self, FetchError, Progress};
use crate::{ThrowawayError, pins};

/// Go module that pins the versions of the programs; `make controlplane` builds it.
const GO_MOD: &str = include_str!("../../../controlplane/go.mod");

/// Longest time until a program prints its version.
const PRINTING: Duration = Duration::from_secs(10);

/// Returns the Kubernetes version that `make controlplane` builds, without a leading `v`.
pub fn kubernetes_version() -> &'static str {
    GO_MOD
        .lines()
        .filter_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v"))
        .find_map(|rest| rest.split_whitespace().next())
        .unwrap_or_default()
}

/// Returns the minor version that `make controlplane` builds, such as `1.36`.
pub fn kubernetes_minor() -> &'static str {
    let version = kubernetes_version();
    version.rsplit_once('.').map_or(version, |(minor, _)| minor)
}

/// Folders with the programs. The first match wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Binaries {
    folders: Vec<PathBuf>,
    /// Folder of downloaded programs, also the last one of the search.
    downloads: Option<PathBuf>,
}

impl Binaries {
    /// Creates the search path from the values of environment variables.
    ///
    /// `KUBEBUILDER_ASSETS` names a folder that is searched first. The cache of `make controlplane`
    /// and of downloads is below `XDG_CACHE_HOME`, or below `HOME`. The caller reads the variables;
    /// empty values count as unset.
    ///
    /// ```
    /// use pleach_throwaway::Binaries;
    ///
    /// let binaries = Binaries::new(None, None, Some("/home/me".into()));
    /// assert!(format!("{binaries:?}").contains("/home/me/.cache/pleach/controlplane/1."));
    /// ```
    pub fn new(
        kubebuilder_assets: Option<PathBuf>,
        xdg_cache_home: Option<PathBuf>,
        home: Option<PathBuf>,
    ) -> Self {
        let set = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
        let cache = set(xdg_cache_home).or_else(|| set(home).map(|home| home.join(".cache")));
        let cache = cache.map(|cache| cache.join("pleach").join("controlplane"));
        let built = cache.as_ref().map(|it| it.join(kubernetes_version()));
        let downloads = cache.map(|cache| cache.join(pins::folder()));
        let folders = set(kubebuilder_assets).into_iter().chain(built);
        Self {
            folders: folders.chain(downloads.clone()).collect(),
            downloads,
        }
    }

    /// Searches another folder before all others.
    #[must_use]
    pub fn first(mut self, folder: PathBuf) -> Self {
        self.folders.insert(0, folder);
        self
    }

    /// Downloads the official programs, as far as they are not there. A mirror replaces scheme and
    /// host of all addresses; the checksums stay.
    pub async fn fetch(
        &self,
        mirror: Option<&str>,
        progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<(), FetchError> {
        let pins = pins::pins(std::env::consts::ARCH);
        if pins.is_empty() {
            return Err(FetchError::Architecture(std::env::consts::ARCH));
        }
        let folder = self.downloads.as_deref().ok_or(FetchError::NoCache)?;
        fetch::fetch(&pins, folder, mirror, progress).await
    }

    /// Returns the version of Kubernetes of the API server's program, without a leading `v`.
    pub async fn kubernetes(&self) -> Result<String, ThrowawayError> {
        let path = self.find("kube-apiserver")?;
        let name = "kube-apiserver --version";
        let mut command = tokio::process::Command::new(path);
        command
            .arg("--version")
            .env_clear()
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(PRINTING, command.output()).await;
        let output = output.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut));
        let output = output.and_then(|it| it).map_err(|source| {
            let name = name.to_owned();
            ThrowawayError::StartProcess { name, source }
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.trim().strip_prefix("Kubernetes v").map(str::to_owned);
        version.ok_or_else(|| ThrowawayError::Version(text.chars().take(100).collect()))
    }

    /// Finds a program or file by name.
    pub fn find(&self, name: &'static str) -> Result<PathBuf, ThrowawayError> {
        self.folders
            .iter()
            .map(|folder| folder.join(name))
            .find(|path| Path::is_file(path))
            .ok_or_else(|| ThrowawayError::FindBinary {
                name,
                folders: self.folders.clone(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_equals_that_of_the_go_module() {
        let parts: Vec<_> = kubernetes_version()
            .split('.')
            .map(str::parse::<u32>)
            .collect();
        assert_eq!(parts.len(), 3, "{}", kubernetes_version());
        assert!(parts.iter().all(Result::is_ok), "{}", kubernetes_version());
    }

    #[test]
    fn assets_come_before_the_cache_and_are_completed_from_it() {
        let root = tempfile::tempdir().unwrap();
        let assets = root.path().join("assets");
        let cache = root
            .path()
            .join("pleach/controlplane")
            .join(kubernetes_version());
        for (folder, name) in [(&assets, "etcd"), (&cache, "etcd"), (&cache, "kwok")] {
            #[expect(clippy::disallowed_methods, reason = "sets the scene")]
            std::fs::create_dir_all(folder).unwrap();
            std::fs::File::create(folder.join(name)).unwrap();
        }

        let binaries = Binaries::new(Some(assets.clone()), Some(root.path().into()), None);

        assert_eq!(binaries.find("etcd").unwrap(), assets.join("etcd"));
        assert_eq!(binaries.find("kwok").unwrap(), cache.join("kwok"));
    }

    #[test]
    fn missing_program_names_the_target_that_builds_it() {
        let binaries = Binaries::new(
            Some("/nowhere/assets".into()),
            None,
            Some("/nowhere".into()),
        );
        let text = binaries.find("kubectl").unwrap_err().to_string();
        assert!(
            text.starts_with("`kubectl` was not found in /nowhere/assets, /nowhere/.cache/pleach"),
            "{text}"
        );
        assert!(text.ends_with("`make controlplane` builds it"), "{text}");
    }

    #[test]
    fn empty_variables_count_as_unset() {
        let binaries = Binaries::new(Some("".into()), Some("".into()), Some("/h".into()));
        assert_eq!(binaries.folders.len(), 2);
        assert!(
            binaries
                .folders
                .iter()
                .all(|it| it.starts_with("/h/.cache"))
        );
    }
}
