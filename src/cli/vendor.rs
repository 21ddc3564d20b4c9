//! `pleach vendor`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use pleach_config::BundleCharts;
use pleach_formats::file::{Chart, UnpackedArtifact};
use pleach_model::object::{Located, yaml};
use pleach_model::oci::{OciRepository, SCHEME, is_digest};
use pleach_model::tree::{FileTree as _, TreeKind};
use pleach_oci::chart;
use pleach_oci::registry::Registry;
use pleach_oci::verify::PublicKeys;
use pleach_render::package;
use semver::Version;
use serde_json::Value;

use super::error::{CliError, Kind};
use super::registry::RegistryArgs;
use super::{Context, Exit, Ui};
use pleach_files::{FileContent, WorkingTree};
use pleach_forge::download::{address, download};

/// Maximum size of the index of a chart repository, in bytes.
const LARGEST_INDEX: usize = 64 << 20;
/// Time-out of all requests to a registry together.
const DOWNLOADING: Duration = Duration::from_mins(5);
/// File of a version that is not part of an artifact.
pub(super) const VERSION_FILE: &str = "version.yaml";
/// Maximum size of a package, in bytes.
const LARGEST_PACKAGE: usize = 16 << 20;

/// Download the charts of a bundle
///
/// Downloads each chart with a `from` into the folder of the bundle or version,
/// and sets its digest. For an https repository, the file name of `path` is the
/// name of the chart; an oci:// address names the chart itself. No other command
/// downloads charts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach vendor platform                                    the present version of each chart
  pleach vendor platform --chart cert-manager --to 1.18.2   another version of one chart
  pleach vendor platform --check                            compare the files with their digests")]
pub(crate) struct VendorArgs {
    /// Bundle, and its version [default: the newest version]
    #[arg(value_name = "BUNDLE[/VERSION]")]
    bundle: String,

    /// Chart to download [default: all]
    #[arg(long, value_name = "NAME")]
    chart: Option<String>,

    /// Version of the chart, or digest of its manifest in a registry [default: the present one, else the newest one]
    #[arg(long, value_name = "VERSION", conflicts_with = "check")]
    to: Option<String>,

    /// Compare the files with their digests, and download nothing; exit code 1 if one differs
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    access: RegistryArgs,
}

/// A package of a chart repository.
#[derive(Debug, PartialEq, Eq)]
struct Offer {
    version: Version,
    /// Address, possibly relative to the repository. In a registry, the tag.
    url: String,
    /// SHA-256 in hexadecimal, if the repository states it.
    digest: Option<String>,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: VendorArgs) -> Result<Exit, CliError> {
    if ctx.settings.revision.is_some() {
        let message = "vendor writes to the working tree: omit --revision";
        return Err(CliError::usage(message));
    }
    let folder = pleach_files::canonical(&ctx.folder()?)?;
    let tree = WorkingTree::new(&folder);
    let (bundle, version) = match args.bundle.split_once('/') {
        Some((bundle, version)) => (bundle, Some(version)),
        None => (&*args.bundle, None),
    };
    let all = pleach_config::charts_of(&tree, bundle, version).map_err(|findings| {
        CliError::from_findings(
            format!("cannot read the charts of {}", args.bundle),
            findings,
        )
    })?;
    let selected = selected(&all, &args)?;
    let mut differs = false;
    if let Some(artifact) = of_artifact(&all, &args) {
        differs |= !check_artifact(ui, &folder, &tree, &all, artifact)?;
    }
    for (index, chart) in selected {
        if args.check {
            differs |= !check(ui, &folder, &tree, &all, chart)?;
        } else {
            let vendoring = Vendoring {
                folder: &folder,
                tree: &tree,
                path: format!("{}/{}", all.folder, chart.path),
                index,
                chart,
            };
            vendoring.run(ui, &args).await?;
        }
    }
    Ok(if differs { Exit::FAILED } else { Exit::DONE })
}

/// Returns the artifact to compare.
fn of_artifact<'a>(all: &'a BundleCharts, args: &VendorArgs) -> Option<&'a UnpackedArtifact> {
    let is_meant = args.check && args.chart.is_none();
    all.artifact.as_deref().filter(|_| is_meant)
}

/// Compares the files of a version with the artifact that they come from. Returns whether they are
/// the same.
fn check_artifact(
    ui: &mut Ui,
    repository: &Path,
    tree: &WorkingTree,
    all: &BundleCharts,
    artifact: &UnpackedArtifact,
) -> Result<bool, CliError> {
    let UnpackedArtifact {
        from,
        digest,
        files: expected,
    } = artifact;
    let mut files = folder_files(repository, tree, &all.folder)?;
    files.remove(VERSION_FILE);
    let found = package::folder_digest(&files);
    if found == *expected {
        return Ok(true);
    }
    let folder = &all.folder;
    ui.print(format!("{folder}  {found}, expected {expected}"));
    ui.status(format_args!(
        "the files of {folder} come from {from}@{digest}"
    ));
    Ok(false)
}

/// Returns the requested charts with their position in the file.
fn selected<'a>(
    all: &'a BundleCharts,
    args: &VendorArgs,
) -> Result<Vec<(usize, &'a Located<Chart>)>, CliError> {
    let charts = || all.charts.iter().enumerate();
    let is_selected = |chart: &Chart| match &args.chart {
        Some(name) => name_of(chart) == name,
        None if args.check => chart.digest.is_some(),
        None => chart.from.is_some(),
    };
    let found: Vec<_> = charts().filter(|(_, chart)| is_selected(chart)).collect();
    if found.is_empty() && of_artifact(all, args).is_none() {
        let known: Vec<&str> = charts().map(|(_, chart)| name_of(chart)).collect();
        let message = match &args.chart {
            Some(name) => format!("{} has no chart {name}", args.bundle),
            None if args.check => format!("no chart of {} has a digest", args.bundle),
            None => format!("no chart of {} has `from`", args.bundle),
        };
        let hint = match known.as_slice() {
            [] => "declare it with `charts` in bundle.yaml or version.yaml".to_owned(),
            known => format!("charts: {}", known.join(", ")),
        };
        return Err(CliError::new(Kind::Repository, message).hint(hint));
    }
    if found.len() > 1 && args.to.is_some() {
        return Err(CliError::usage(
            "--to needs --chart: there are several charts",
        ));
    }
    Ok(found)
}

/// Returns the name of a chart: its own, or that of its file.
fn name_of(chart: &Chart) -> &str {
    chart.name.as_deref().unwrap_or_else(|| file_name(chart))
}

/// Returns the name of a chart in its repository: the name of its file.
fn file_name(chart: &Chart) -> &str {
    let name = chart.path.rsplit('/').next().unwrap_or_default();
    name.strip_suffix(".tgz").unwrap_or(name)
}

/// Compares a chart with its digest. Returns whether it is the same.
fn check(
    ui: &mut Ui,
    repository: &Path,
    tree: &WorkingTree,
    all: &BundleCharts,
    chart: &Chart,
) -> Result<bool, CliError> {
    let path = format!("{}/{}", all.folder, chart.path);
    let Some(expected) = &chart.digest else {
        return Ok(true);
    };
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
    let found = match tree.kind(parent, name) {
        Some(TreeKind::Folder) => {
            let files = folder_files(repository, tree, &path)?;
            Some(package::folder_digest(&files))
        }
        Some(TreeKind::File) => {
            let content = tree
                .read(&path)
                .map_err(|error| CliError::new(Kind::Repository, error))?;
            Some(package::package_digest(&content))
        }
        _ => None,
    };
    let line = match &found {
        Some(found) if found == expected => return Ok(true),
        Some(found) => format!("{path}  {found}, expected {expected}"),
        None => format!("{path}  does not exist"),
    };
    ui.print(line);
    Ok(false)
}

/// Reads the files below a folder, by their path in it. Links are an error.
fn folder_files(
    repository: &Path,
    tree: &WorkingTree,
    folder: &str,
) -> Result<BTreeMap<String, Bytes>, CliError> {
    let names = pleach_files::files_below(&repository.join(folder))?;
    let read = |name: String| {
        let content = tree.read(&format!("{folder}/{name}"));
        let content = content.map_err(|error| CliError::new(Kind::Repository, error))?;
        Ok((name, content))
    };
    names.into_iter().map(read).collect()
}

/// Place from which a chart comes.
enum Source<'a> {
    /// Address of a chart repository, which has an index.
    Index(&'a str),
    /// Chart in a registry.
    Registry(OciRepository),
}

/// Downloaded package.
struct Package {
    /// Version by its repository, without `v`. `None`: the digest was requested.
    version: Option<String>,
    /// Address, for messages.
    place: String,
    content: Vec<u8>,
}

/// Keys of which one must have signed a chart.
struct Trusted {
    /// Path of their file in the repository.
    file: String,
    keys: PublicKeys,
}

/// Downloads a package from a registry.
async fn of_registry(
    repository: &OciRepository,
    desired: Option<&str>,
    trusted: Option<&Trusted>,
    args: &VendorArgs,
) -> Result<Package, CliError> {
    let registry = Registry::connect(repository, &args.access.access(repository)?, DOWNLOADING)?;
    let (version, digest) = match desired {
        Some(digest) if is_digest(digest) => (None, digest.to_owned()),
        desired => {
            let (version, tag) = version_of(&registry, desired).await?;
            (Some(version), registry.resolve(&tag).await?)
        }
    };
    let keys = trusted.map(|trusted| &trusted.keys);
    Ok(Package {
        version,
        content: chart::package(&registry, &digest, keys, LARGEST_PACKAGE as u64).await?,
        place: format!("{repository}@{digest}"),
    })
}

/// Returns a version of a chart in a registry, with its tag.
async fn version_of(
    registry: &Registry,
    desired: Option<&str>,
) -> Result<(String, String), CliError> {
    // A tag cannot contain `+`.
    let offer = |tag: String| {
        let version = tag.trim_start_matches('v').replace('_', "+");
        Some(Offer {
            version: version.parse().ok()?,
            url: tag,
            digest: None,
        })
    };
    let offers = registry.tags().await?.into_iter().filter_map(offer);
    let chosen = choose(offers.collect(), desired).map_err(|message| {
        CliError::new(
            Kind::Failed,
            format!("{}: {message}", registry.repository()),
        )
    })?;
    Ok((chosen.version.to_string(), chosen.url))
}

/// Returns a text of the `Chart.yaml` of a package.
fn in_chart(files: &BTreeMap<String, Bytes>, key: &str) -> Option<String> {
    let chart = String::from_utf8_lossy(files.get("Chart.yaml")?).into_owned();
    let chart = yaml::parse_documents(&chart).ok()?.pop()?.value;
    Some(chart[key].as_str()?.to_owned())
}

/// Refuses a package that is another chart or version than its place says. A signature covers the
/// package, not its tag, so a registry could answer with an older signed one.
fn ensure_requested(
    files: &BTreeMap<String, Bytes>,
    (name, version): (Option<&str>, Option<&str>),
    place: &str,
) -> Result<(), CliError> {
    let plain = |version: &str| version.trim_start_matches('v').to_owned();
    let found = in_chart(files, "version").map(|found| plain(&found));
    let of_name = name.zip(in_chart(files, "name"));
    let difference = if let Some(version) = version.filter(|it| found != Some(plain(it))) {
        let found = found.unwrap_or_default();
        format!("version {found}, not {version}")
    } else if let Some((name, found)) = of_name.filter(|(name, found)| name != found) {
        format!("chart {found}, not {name}")
    } else {
        return Ok(());
    };
    let message = format!("{place} is {difference}; nothing is written");
    Err(CliError::new(Kind::Failed, message))
}

/// Download of one chart.
struct Vendoring<'a> {
    folder: &'a Path,
    tree: &'a WorkingTree,
    /// Path of the package, within the repository.
    path: String,
    /// Position in the list of charts.
    index: usize,
    chart: &'a Located<Chart>,
}

impl Vendoring<'_> {
    async fn run(&self, ui: &mut Ui, args: &VendorArgs) -> Result<(), CliError> {
        let present = self.present();
        let desired = args.to.as_deref().or(present.as_deref());
        let trusted = self.trusted()?;
        let Package {
            version,
            place,
            content,
        } = match self.source()? {
            Source::Index(from) => self.of_index(from, desired).await?,
            Source::Registry(repository) => {
                of_registry(&repository, desired, trusted.as_ref(), args).await?
            }
        };
        let digest = package::package_digest(&content);
        self.check_pin(args, (&version, present.as_deref()), &digest, &place)?;
        let files = package::unpack(&content).map_err(|error| {
            let message = format!("{place} cannot be unpacked: {error}");
            CliError::new(Kind::Failed, message)
        })?;
        // The last part of the repository is the name of the chart, as `helm push` writes it.
        let from = self.chart.from.as_deref().filter(|_| trusted.is_some());
        let name = from.and_then(|from| from.rsplit('/').next());
        ensure_requested(&files, (name, version.as_deref()), &place)?;
        self.write(content, &digest)?;
        let version = in_chart(&files, "version").or(version).unwrap_or_default();
        let change = match present {
            Some(present) if present != version => format!("{present} -> {version}"),
            _ => version,
        };
        let path = &self.path;
        let (all, definitions) = counts(files.keys());
        let signature = trusted.map(|trusted| format!("  signature ok (cosign, {})", trusted.file));
        let signature = signature.unwrap_or_default();
        ui.print(format!("{path}  {change}  {digest}{signature}"));
        ui.status(format_args!("{all} templates, {definitions} files in crds"));
        Ok(())
    }

    /// Downloads a package from a chart repository.
    async fn of_index(&self, from: &str, desired: Option<&str>) -> Result<Package, CliError> {
        let index = address(from, "index.yaml").map_err(failed)?;
        let index = download(&index, LARGEST_INDEX).await.map_err(failed)?;
        let offers = offers(&String::from_utf8_lossy(&index), file_name(self.chart));
        let offer = choose(offers, desired)
            .map_err(|message| CliError::new(Kind::Failed, format!("{from}: {message}")))?;
        let url = address(from, &offer.url).map_err(failed)?;
        let content = download(&url, LARGEST_PACKAGE).await.map_err(failed)?;
        let digest = package::package_digest(&content);
        let stated = offer.digest.map(|stated| format!("sha256:{stated}"));
        if stated.is_some_and(|stated| stated != digest) {
            let message = format!("{url} has another digest than its index states: {digest}");
            return Err(CliError::new(Kind::Failed, message));
        }
        Ok(Package {
            version: Some(offer.version.to_string()),
            place: url.clone(),
            content,
        })
    }

    /// Refuses another package in place of the declared one, if the user does not ask for another
    /// version. A repository can replace the package of a version.
    fn check_pin(
        &self,
        args: &VendorArgs,
        (version, present): (&Option<String>, Option<&str>),
        digest: &str,
        place: &str,
    ) -> Result<(), CliError> {
        let is_same = match (&args.to, version) {
            (None, _) => true,
            (Some(_), Some(version)) => {
                present.map(|present| present.trim_start_matches('v')) == Some(version)
            }
            (Some(_), None) => false,
        };
        match &self.chart.digest {
            Some(pinned) if is_same && pinned != digest => {
                let name = name_of(self.chart);
                let message =
                    format!("{place} has another digest than chart {name} declares: {digest}");
                let hint = "the repository replaced the package; to accept it, remove `digest` of the chart";
                Err(CliError::new(Kind::Failed, message).hint(hint))
            }
            _ => Ok(()),
        }
    }

    /// Returns the place from which the chart comes.
    fn source(&self) -> Result<Source<'_>, CliError> {
        let refuse =
            |message: String, hint: &str| Err(CliError::new(Kind::Repository, message).hint(hint));
        let name = name_of(self.chart);
        if self.chart.path.strip_suffix(".tgz").is_none() {
            let message = format!("chart {name} is a folder");
            return refuse(message, "set `path` to a file that ends in .tgz");
        }
        let Some(from) = self.chart.from.as_deref() else {
            let message = format!("chart {name} has no `from`");
            return refuse(message, "set `from: https://…` or `from: oci://…`");
        };
        if !from.starts_with(SCHEME) {
            if self.chart.verify.is_some() {
                let message = format!("chart {name}: `verify` needs a chart in a registry");
                let hint = "chart repositories have no signatures of cosign: remove `verify`, or set `from: oci://…`";
                return refuse(message, hint);
            }
            return Ok(Source::Index(from));
        }
        match OciRepository::parse(from) {
            Ok(repository) => Ok(Source::Registry(repository)),
            Err(error) => refuse(
                format!("chart {name}: {error}"),
                "write `oci://HOST/REPOSITORY/CHART`, without a tag and without a digest",
            ),
        }
    }

    /// Reads the keys of which one must have signed the chart.
    fn trusted(&self) -> Result<Option<Trusted>, CliError> {
        let Some(verify) = &self.chart.verify else {
            return Ok(None);
        };
        let file = verify.cosign_keys_file.clone();
        let refuse = |message: String| {
            let name = name_of(self.chart);
            let message = format!("the keys of chart {name} cannot be read: {message}");
            CliError::new(Kind::Repository, message)
                .hint("`cosignKeysFile` is a path within the repository")
        };
        if !pleach_files::is_inside(&file) {
            return Err(refuse(format!("{file} is outside of the repository")));
        }
        let content = self
            .tree
            .read(&file)
            .map_err(|error| refuse(error.to_string()))?;
        let keys = PublicKeys::read(&content);
        let keys = keys.map_err(|error| refuse(format!("{file}: {error}")))?;
        Ok(Some(Trusted { file, keys }))
    }

    /// Returns the version of the present package.
    fn present(&self) -> Option<String> {
        in_chart(
            &package::unpack(&self.tree.read(&self.path).ok()?).ok()?,
            "version",
        )
    }

    /// Writes the package, and its digest into the file that declares it.
    fn write(&self, content: Vec<u8>, digest: &str) -> Result<(), CliError> {
        let file = &self.chart.places.origin.file;
        let text = self
            .tree
            .read(file)
            .map_err(|error| CliError::new(Kind::Repository, error))?;
        let text = String::from_utf8_lossy(&text);
        let edited = pleach_config::with_digest(file, &text, self.index, digest);
        let edited = edited.map_err(|error| {
            let hint = format!("set `digest: {digest}` of the chart yourself");
            CliError::new(Kind::Repository, error).hint(hint)
        })?;
        let package = self.folder.join(&self.path);
        pleach_files::create_folders(package.parent().unwrap_or(self.folder))?;
        pleach_files::write_atomic(&package, &FileContent::new(content))?;
        pleach_files::write_atomic(&self.folder.join(file), &FileContent::new(edited))?;
        Ok(())
    }
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CliError {
    CliError::new(Kind::Failed, error)
}

/// Counts templates and files of `crds`, without those of subcharts.
fn counts<'a>(files: impl Iterator<Item = &'a String>) -> (usize, usize) {
    let (mut templates, mut definitions) = (0, 0);
    for file in files {
        let endings = [".yaml", ".yml"];
        let is_yaml = endings.iter().any(|ending| file.ends_with(ending));
        templates += usize::from(is_yaml && file.starts_with("templates/"));
        definitions += usize::from(is_yaml && file.starts_with("crds/"));
    }
    (templates, definitions)
}

/// Returns the versions of a chart in an index. Ignores entries without a semantic version.
fn offers(index: &str, chart: &str) -> Vec<Offer> {
    let index = yaml::parse_documents(index).unwrap_or_default().pop();
    let index = index.map(|document| document.value).unwrap_or_default();
    let entries = index["entries"][chart].as_array().cloned();
    let offer = |entry: &Value| {
        let version = entry["version"].as_str()?;
        Some(Offer {
            version: version.trim_start_matches('v').parse().ok()?,
            url: entry["urls"][0].as_str()?.to_owned(),
            digest: entry["digest"].as_str().map(str::to_owned),
        })
    };
    entries.iter().flatten().filter_map(offer).collect()
}

/// Chooses a version, or the newest one that is no pre-release.
fn choose(mut offers: Vec<Offer>, desired: Option<&str>) -> Result<Offer, String> {
    offers.sort_by(|a, b| a.version.cmp(&b.version));
    let found = match desired {
        Some(desired) => {
            let desired = desired.trim_start_matches('v');
            let is_it = |offer: &Offer| offer.version.to_string() == desired;
            offers.iter().position(is_it)
        }
        None => offers
            .iter()
            .rposition(|offer| offer.version.pre.is_empty()),
    };
    match (found, offers.last()) {
        (Some(found), _) => Ok(offers.swap_remove(found)),
        (None, None) => Err("the repository has no such chart".to_owned()),
        (None, Some(newest)) => Err(format!(
            "there is no version {}; the newest is {}",
            desired.unwrap_or("without a pre-release"),
            newest.version
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = "apiVersion: v1\nentries:\n  web:\n  - {version: v1.2.0, urls: [web-1.2.0.tgz], digest: ab}\n  \
                         - {version: 1.10.0, urls: ['https://example.org/web.tgz']}\n  - {version: 2.0.0-rc.1, urls: [a]}\n  \
                         - {version: latest, urls: [b]}\n";

    #[test]
    fn a_package_is_the_requested_chart_and_version() {
        let chart = |text: &'static str| {
            BTreeMap::from([("Chart.yaml".to_owned(), Bytes::from_static(text.as_bytes()))])
        };
        let web = chart("name: web\nversion: 1.2.0\n");
        for (name, version, expected) in [
            (Some("web"), Some("1.2.0"), None),
            (Some("web"), Some("v1.2.0"), None),
            // A digest was requested, and the name does not count.
            (None, None, None),
            (
                Some("web"),
                Some("1.3.0"),
                Some("P is version 1.2.0, not 1.3.0"),
            ),
            (Some("api"), Some("1.2.0"), Some("P is chart web, not api")),
        ] {
            let result = ensure_requested(&web, (name, version), "P");
            let found = result.err().map(|error| error.to_string());
            let expected = expected.map(|text| format!("{text}; nothing is written"));
            assert_eq!(found, expected);
        }
        assert!(ensure_requested(&chart("a: b\n"), (None, Some("1.0.0")), "P").is_err());
    }

    #[test]
    fn a_version_of_the_index_is_chosen() {
        for (desired, expected) in [
            (None, Ok(("1.10.0", "https://example.org/web.tgz"))),
            (Some("1.2.0"), Ok(("1.2.0", "web-1.2.0.tgz"))),
            (Some("v2.0.0-rc.1"), Ok(("2.0.0-rc.1", "a"))),
            (
                Some("3.0.0"),
                Err("there is no version 3.0.0; the newest is 2.0.0-rc.1"),
            ),
        ] {
            let found = choose(offers(INDEX, "web"), desired);
            let found = found.map(|offer| (offer.version.to_string(), offer.url));
            let expected = expected
                .map(|(version, url)| (version.to_owned(), url.to_owned()))
                .map_err(str::to_owned);
            assert_eq!(found, expected, "{desired:?}");
        }
        let none = choose(offers(INDEX, "api"), None);
        assert_eq!(none, Err("the repository has no such chart".to_owned()));
        assert!(offers("no: [yaml", "web").is_empty());
    }
}
