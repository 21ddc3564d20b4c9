//! Arguments of bootstrap, and their checks.

use std::path::PathBuf;

use clap::ValueEnum;
use pleach_reconciler::config::{SshAddress, Transport, check_url};

use super::bundle::RELEASED_IMAGE;
use super::credentials::Credentials;
use super::files::{Allowed, ClusterFacts, NAME, Wish};
use crate::cli::error::{CliError, Kind};
use crate::cli::lease::LockArgs;
use crate::cli::target::is_dns_label;

/// Install the controller in a cluster
///
/// Adds the bundle of the controller and its environment to a branch of a
/// repository, writes the Secret with the credentials for git, applies the
/// release, and waits until the controller itself follows the branch. Asks
/// before it writes anything.
///
/// The command can be interrupted and repeated: it continues where it ended, and
/// replaces the Secret. A newer pleach upgrades the controller: it adds a
/// version folder and changes the version and the image in the environment file.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach bootstrap --url https://git.example.org/fleet.git --token-file token \\
      --allow-namespaces 'team-*' --image registry.example.org/pleach@sha256:...
  pleach bootstrap --url git@git.example.org:fleet.git --ssh-key-file key \\
      --known-hosts-file known_hosts --allow-all --image REF
  pleach bootstrap ... --dry-run        show everything, change nothing
  pleach bootstrap ... --yes --cluster-id 6f0c2d5e-4a51-4c1c-9d3b-1f0a1c5f7b11
                                        from a pipeline")]
pub(crate) struct BootstrapArgs {
    /// URL of the repository: https or ssh, without credentials
    #[arg(long, value_name = "URL")]
    pub(super) url: String,

    /// Branch of the environment with the controller
    #[arg(long, value_name = "NAME", default_value = "main")]
    pub(super) branch: String,

    /// Push the commit to this new branch instead, for a pull request, and end
    ///
    /// Run the command again without this option after the merge.
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub(super) push_to: Option<String>,

    /// File with a token that can read and push the repository, or `-` for the standard input
    #[arg(long, value_name = "FILE", conflicts_with = "ssh_key_file")]
    pub(super) token_file: Option<PathBuf>,

    /// User name for the token; most servers accept any
    #[arg(
        long,
        value_name = "NAME",
        default_value = "git",
        hide_short_help = true
    )]
    pub(super) username: String,

    /// File with a private ssh key that can read and push the repository
    #[arg(long, value_name = "FILE", requires = "known_hosts_file")]
    pub(super) ssh_key_file: Option<PathBuf>,

    /// File with the host keys of the ssh server
    #[arg(
        long,
        value_name = "FILE",
        requires = "ssh_key_file",
        hide_short_help = true
    )]
    pub(super) known_hosts_file: Option<PathBuf>,

    /// File with the CA certificates of the git server; the controller trusts only these
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(super) ca_file: Option<PathBuf>,

    /// Namespaces that branches env/NAME are allowed to write: names or patterns
    #[arg(long, value_name = "PATTERN", num_args = 1.., conflicts_with = "allow_all")]
    pub(super) allow_namespaces: Vec<String>,

    /// Allow branches env/NAME everything that the permissions of the controller admit
    #[arg(long)]
    pub(super) allow_all: bool,

    /// Scope of the permissions of the controller
    #[arg(
        long,
        value_name = "SCOPE",
        default_value = "cluster",
        hide_short_help = true
    )]
    pub(super) rights: Scope,

    /// Image of the controller with its digest [default: that of this release, if it is known]
    #[arg(long, value_name = "REF@sha256:DIGEST")]
    pub(super) image: Option<String>,

    /// Namespace of the controller
    #[arg(long, value_name = "NAME", default_value = NAME, hide_short_help = true)]
    pub(super) namespace: String,

    /// Show the commit, the Secret without its values and the plan; change nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Format of the output; `yaml` prints the objects and changes nothing
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_short_help = true
    )]
    pub(super) output: Output,

    /// Do not ask for confirmation; requires --cluster-id
    #[arg(short, long)]
    pub(super) yes: bool,

    /// Id of the intended cluster: uid of its namespace kube-system
    #[arg(long, value_name = "ID")]
    pub(super) cluster_id: Option<String>,

    #[command(flatten)]
    pub(super) lock: LockArgs,
}

/// Scope of permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scope {
    /// Releases in the whole cluster, of the kinds that the bundle lists.
    Cluster,
    /// Not supported yet: releases in some namespaces.
    Namespaced,
}

/// Formats of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// Objects as YAML, and the commit as comments.
    Yaml,
}

/// Checked arguments.
pub(super) struct Requested<'a> {
    allowed: Allowed<'a>,
    image: &'a str,
    port: u16,
}

impl BootstrapArgs {
    /// Checks everything that needs no file and no connection.
    pub(super) fn requested(&self) -> Result<Requested<'_>, CliError> {
        let allowed = match (self.allow_namespaces.as_slice(), self.allow_all) {
            ([], false) => {
                return Err(CliError::usage(
                    "name the namespaces that other branches are allowed to write with --allow-namespaces PATTERN, or allow everything with --allow-all",
                ));
            }
            ([], true) => Allowed::All,
            (namespaces, _) => Allowed::Namespaces(namespaces),
        };
        if let Some(wrong) = self.allow_namespaces.iter().find(|one| !is_pattern(one)) {
            return Err(CliError::usage(format!(
                "--allow-namespaces: `{wrong}` is not a name or pattern of namespaces, such as team-*"
            )));
        }
        if self.rights == Scope::Namespaced {
            return Err(CliError::usage("--rights namespaced is not supported yet").hint(
                "install the bundle with your own environment file: docs/guides/run-the-controller.md",
            ));
        }
        if !is_dns_label(&self.namespace) {
            let namespace = &self.namespace;
            return Err(CliError::usage(format!(
                "--namespace: `{namespace}` is not a name of a namespace"
            )));
        }
        let branches = [
            ("--branch", Some(&self.branch)),
            ("--push-to", self.push_to.as_ref()),
        ];
        for (option, branch) in branches {
            if let Some(branch) = branch.filter(|branch| !pleach_git::is_branch_name(branch)) {
                let message = format!("{option}: `{branch}` is not a name of a branch");
                return Err(CliError::usage(message));
            }
        }
        Ok(Requested {
            allowed,
            port: self.port()?,
            image: self.image()?,
        })
    }

    /// Checks the URL and returns the port of the git server.
    fn port(&self) -> Result<u16, CliError> {
        let transport = Transport::of(&self.url);
        let unfit = |message: &str| CliError::usage(format!("--url: {message}"));
        check_url(&self.url, transport, true).map_err(|message| unfit(&message))?;
        let (default, is_ssh) = match transport {
            Some(Transport::Https) => (443, false),
            Some(Transport::Http) => (80, false),
            Some(Transport::Ssh) => (22, true),
            Some(Transport::Local) | None => {
                return Err(unfit("a controller in a cluster needs an https or ssh URL"));
            }
        };
        match (
            is_ssh,
            self.ssh_key_file.is_some(),
            self.token_file.is_some(),
        ) {
            (true, false, _) => {
                return Err(unfit("ssh needs --ssh-key-file and --known-hosts-file"));
            }
            (false, _, false) => return Err(unfit("https needs --token-file")),
            _ => {}
        }
        if is_ssh {
            let address = SshAddress::parse(&self.url).map_err(|message| unfit(&message))?;
            return Ok(address.port.unwrap_or(default));
        }
        let (_, rest) = self.url.split_once("://").unwrap_or_default();
        let authority = rest.split('/').next().unwrap_or_default();
        match authority.rsplit_once(':') {
            // The address itself has colons.
            Some((_, port)) if !port.ends_with(']') => {
                port.parse().map_err(|_| unfit("the port is not a number"))
            }
            _ => Ok(default),
        }
    }

    /// Returns the image, which must have a digest.
    fn image(&self) -> Result<&str, CliError> {
        let Some(image) = self.image.as_deref().or(RELEASED_IMAGE) else {
            return Err(CliError::usage(
                "this build of pleach belongs to no published image: name one with --image REF@sha256:DIGEST",
            )
            .hint("push the image of the Containerfile to your registry; the registry shows its digest"));
        };
        if is_pinned(image) {
            return Ok(image);
        }
        Err(CliError::usage(format!(
            "--image: `{image}` has no digest; expected REF@sha256: and 64 hexadecimal digits"
        ))
        .hint("a tag can be moved to another image; a digest cannot"))
    }

    /// Checks that the cluster is the intended one (I11).
    pub(super) fn ensure_intended_cluster(&self, server: &str, id: &str) -> Result<(), CliError> {
        match &self.cluster_id {
            Some(named) if named != id => Err(CliError::new(
                Kind::Policy,
                format!("--cluster-id is {named}, but {server} is cluster {id}"),
            )
            .hint("choose the --context of the intended cluster")),
            None if self.yes && !self.is_dry() => Err(CliError::usage(
                "--yes needs --cluster-id, because no user confirms the cluster",
            )
            .hint(format!(
                "{server} is cluster {id}; if this is the intended cluster, add `--cluster-id {id}`"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns whether nothing is written.
    pub(super) fn is_dry(&self) -> bool {
        self.dry_run || self.output == Output::Yaml
    }

    /// Returns the question before the first write.
    pub(super) fn question(&self, has_commit: bool, server: &str) -> String {
        let (branch, url) = (&self.branch, &self.url);
        match &self.push_to {
            Some(to) => format!("Push this commit to the new branch {to} of {url}?"),
            None if has_commit => {
                format!("Push this commit to {branch} of {url}, and install it in {server}?")
            }
            None => format!("Install the controller from {branch} of {url} in {server}?"),
        }
    }
}

impl<'a> Requested<'a> {
    /// Combines the arguments with the facts about the cluster.
    pub(super) fn wish(
        &self,
        args: &'a BootstrapArgs,
        credentials: &Credentials,
        cluster: &'a ClusterFacts,
    ) -> Wish<'a> {
        Wish {
            url: &args.url,
            port: self.port,
            branch: &args.branch,
            namespace: &args.namespace,
            image: self.image,
            access: credentials.access,
            has_ca: args.ca_file.is_some(),
            allowed: self.allowed,
            cluster,
        }
    }
}

fn is_pattern(text: &str) -> bool {
    let is_part =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-*".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

/// Returns whether an image has a digest.
fn is_pinned(image: &str) -> bool {
    let Some((name, digest)) = image.split_once("@sha256:") else {
        return false;
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_/:".contains(&byte);
    !name.is_empty()
        && name.bytes().all(is_name)
        && digest.len() == 64
        && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
}
