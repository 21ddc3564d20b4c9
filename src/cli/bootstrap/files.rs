//! Files that bootstrap adds to a repository, or changes in it. Pure: no I/O beside the given tree.

use std::collections::BTreeSet;

use bytes::Bytes;
use pleach_config::FileChanges;
use pleach_config::edit::{self, Step, Written};
use pleach_formats::versions::semantic;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::Origin;
use pleach_model::object::yaml::{self, Node};
use pleach_model::tree::{FileTree, TreeError};
use serde_json::{Value, json};

use super::bundle::{Bundle, FOLDER};
use crate::cli::init::label;

/// Name of the environment, the release, the bundle and the default namespace.
pub(super) const NAME: &str = "pleach";
/// File of the environment.
pub(super) const ENVIRONMENT: &str = "environments/pleach.yaml";
/// Name of the Secret with the credentials for git.
pub(super) const SECRET: &str = "git";
/// Pattern of the branches of all other environments.
const BRANCHES: &str = "env/*";
/// Ports that the controller connects to by default: DNS, git and forges, API servers.
const PORTS: [u16; 3] = [53, 443, 6443];

/// Credentials that the controller uses for git.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// User name and token over https.
    Token,
    /// ssh key with known hosts.
    Ssh,
}

/// Objects that the environments of other branches are allowed to write.
#[derive(Debug, Clone, Copy)]
pub(super) enum Allowed<'a> {
    /// Everything that the permissions of the controller admit.
    All,
    /// These namespaces, as names or patterns.
    Namespaces(&'a [String]),
}

/// Facts about the cluster.
#[derive(Debug, Clone)]
pub(super) struct ClusterFacts {
    /// Id of the cluster.
    pub(super) id: String,
    /// Ports of the API server behind its Service.
    pub(super) ports: BTreeSet<u16>,
}

/// Installation of a controller, from arguments and facts.
#[derive(Debug, Clone)]
pub(super) struct Wish<'a> {
    /// URL of the repository.
    pub(super) url: &'a str,
    /// Port of the git server.
    pub(super) port: u16,
    /// Branch of the environment with the controller.
    pub(super) branch: &'a str,
    /// Namespace of the controller.
    pub(super) namespace: &'a str,
    /// Image with a digest.
    pub(super) image: &'a str,
    pub(super) access: Access,
    /// Whether the Secret has CA certificates.
    pub(super) has_ca: bool,
    pub(super) allowed: Allowed<'a>,
    pub(super) cluster: &'a ClusterFacts,
}

/// Changes of the repository.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// New contents by path. Empty if the repository has everything.
    pub(super) files: FileChanges,
    /// Differences that are left as they are.
    pub(super) findings: Vec<Finding>,
}

/// Returns the changes that install the bundle, or upgrade it. Existing files are the user's: of
/// them only the version and the image in the environment file change, and with a new version
/// folder the declaration of the bundle. Fails with all errors.
pub(super) fn changes(
    tree: &dyn FileTree,
    bundle: &Bundle,
    wish: &Wish<'_>,
) -> Result<Changes, Vec<Finding>> {
    let mut changes = Changes::default();
    add_project(tree, wish, &mut changes);
    add_bundle(tree, bundle, &mut changes);
    let text = match tree.read(ENVIRONMENT) {
        Err(TreeError::Missing { .. }) => Some(environment(bundle, wish)),
        Err(error) => {
            let finding = Finding::error(Kind::Policy, "other-installation", error.to_string());
            return Err(vec![finding]);
        }
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let updated = update(&text, bundle, wish, &mut changes.findings)?;
            (updated != text).then_some(updated)
        }
    };
    if let Some(text) = text {
        let text = Some(Bytes::from(text));
        changes.files.insert(ENVIRONMENT.to_owned(), text);
    }
    Ok(changes)
}

/// Adds the file that makes the tree a pleach repository.
fn add_project(tree: &dyn FileTree, wish: &Wish<'_>, changes: &mut Changes) {
    if !is_missing(tree, "pleach.yaml") {
        return;
    }
    let text = format!(
        "# The repository itself.\napiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: {}    # recorded in the cluster; another repository cannot touch the releases of this one\n",
        scalar(&repository_id(wish.url))
    );
    changes
        .files
        .insert("pleach.yaml".to_owned(), Some(text.into()));
}

/// Returns whether a file is missing. One that cannot be read, such as a symbolic link, is there.
fn is_missing(tree: &dyn FileTree, path: &str) -> bool {
    matches!(tree.read(path), Err(TreeError::Missing { .. }))
}

fn add_bundle(tree: &dyn FileTree, bundle: &Bundle, changes: &mut Changes) {
    let folder = format!("{FOLDER}/{}", bundle.version);
    let is_new = tree
        .list(&folder)
        .map_or(true, |entries| entries.is_empty());
    let is_same =
        |(path, text): &(&str, &str)| tree.read(path).is_ok_and(|bytes| bytes == text.as_bytes());
    let mut add = |(path, text): &(&str, &'static str)| {
        let content = Some(Bytes::from_static(text.as_bytes()));
        changes.files.insert((*path).to_owned(), content);
    };
    if is_new {
        bundle.files.iter().for_each(&mut add);
    }
    // Its defaults belong to the newest version.
    if is_missing(tree, bundle.declaration.0) || is_new && !is_same(&bundle.declaration) {
        add(&bundle.declaration);
    }
    if is_missing(tree, bundle.macros.0) {
        add(&bundle.macros);
    }
    if !is_new && !bundle.files.iter().all(is_same) {
        let message = format!("{folder} differs from the released bundle; it is left unchanged");
        let finding = Finding::warning(Kind::Policy, "version-differs", message);
        changes.findings.push(finding);
    }
    if !is_missing(tree, bundle.macros.0) && !is_same(&bundle.macros) {
        let message = format!(
            "{} differs from the file that the released bundle imports; it is left unchanged",
            bundle.macros.0
        );
        let finding = Finding::note(Kind::Policy, "macros-differ", message);
        changes.findings.push(finding);
    }
}

/// Returns the text of a new environment file.
fn environment(bundle: &Bundle, wish: &Wish<'_>) -> String {
    let Wish {
        url,
        port,
        branch,
        namespace,
        image,
        access,
        has_ca,
        allowed,
        cluster,
    } = wish;
    let folder = format!("secrets/{SECRET}");
    let auth = match access {
        Access::Token => {
            format!("{{usernameFile: {folder}/username, passwordFile: {folder}/password}}")
        }
        Access::Ssh => {
            format!("{{sshKeyFile: {folder}/key, knownHostsFile: {folder}/known_hosts}}")
        }
    };
    let ca = if *has_ca {
        format!("      caFile: /etc/pleach/{folder}/ca.crt\n")
    } else {
        String::new()
    };
    let mut ports = BTreeSet::from(PORTS);
    ports.insert(*port);
    ports.extend(&cluster.ports);
    let ports = json!(ports).to_string().replace(',', ", ");
    format!(
        "\
# The controller of this cluster, written by `pleach bootstrap`. The file is yours: the controller
# applies each change on branch {branch}, including changes of its own permissions. Protect the branch.
apiVersion: pleach.dev/v1alpha1
kind: Environment
cluster: {{id: {id}}}    # uid of the namespace kube-system: no other cluster is written to
releases:
  - name: {NAME}
    bundle: {NAME}
    version: {version}
    namespace: {namespace}
    values:
      image: {image}
      controller:
        repositories:
          - name: {NAME}
            url: {url}
            auth: {auth}
            environments:
              # This environment, with the controller itself and its roles.
              - name: {NAME}
                branch: {branch}
                cluster: &here {{inCluster: true, id: {id}}}
                allow: all
              # Every other environment: branch env/NAME holds environments/NAME.yaml.
              - match: {BRANCHES}
                cluster: *here
                allow: {allow}
      secrets: [{SECRET}]
{ca}      egressPorts: {ports}
      # For webhooks: the addresses of the forge, or the ingress in front of the controller.
      hooksFrom: [{{podSelector: {{}}}}]
      # Some networks count the probes of the node here. Limit it to the node and the monitoring.
      metricsFrom: [{{ipBlock: {{cidr: 0.0.0.0/0}}}}, {{ipBlock: {{cidr: \"::/0\"}}}}]
",
        id = scalar(&cluster.id),
        version = bundle.version,
        namespace = scalar(namespace),
        image = scalar(image),
        url = scalar(url),
        branch = scalar(branch),
        allow = in_one_line(&allow(*allowed)),
    )
}

/// Returns the `allow` of other environments.
fn allow(allowed: Allowed<'_>) -> Value {
    match allowed {
        Allowed::All => "all".into(),
        Allowed::Namespaces(namespaces) => {
            json!({"namespaces": namespaces, "clusterScoped": ["Namespace"]})
        }
    }
}

/// Returns the existing environment file with the version and the image of the release.
fn update(
    text: &str,
    bundle: &Bundle,
    wish: &Wish<'_>,
    findings: &mut Vec<Finding>,
) -> Result<String, Vec<Finding>> {
    let refuse = |line: usize, message: String, hint: &str| {
        vec![
            Finding::error(Kind::Policy, "other-installation", message)
                .at(Origin::new(ENVIRONMENT, line))
                .hint(hint),
        ]
    };
    let nodes = yaml::parse_nodes(ENVIRONMENT, text).map_err(|errors| {
        errors
            .iter()
            .flat_map(|error| {
                let hint = "correct the file, and run the command again";
                refuse(0, error.to_string(), hint)
            })
            .collect::<Vec<_>>()
    })?;
    let releases = nodes.first().and_then(|node| node.get("releases"));
    let releases = releases.map_or(&[][..], Node::items);
    let is_ours = |node: &Node| string(node, "name") == Some(NAME);
    let Some(at) = releases.iter().position(is_ours) else {
        let message = format!("the environment has no release {NAME} of its own");
        let hint = "rename the file if it is about something else; bootstrap then writes its own";
        return Err(refuse(0, message, hint));
    };
    let release = &releases[at];
    let errors: Vec<Finding> = differences(&nodes[0], release, wish)
        .into_iter()
        .flat_map(|(line, message)| {
            let hint = "use the options of the first run, or edit the file; another cluster needs a branch of its own";
            refuse(line, message, hint)
        })
        .collect();
    if !errors.is_empty() {
        return Err(errors);
    }
    let now = string(release, "version").unwrap_or_default();
    let line = release
        .get("version")
        .map_or(release.line, |node| node.line);
    if semantic(now) > semantic(bundle.version) {
        let message = format!(
            "version {now} is newer than {}, that of this program",
            bundle.version
        );
        return Err(refuse(line, message, "run a newer pleach"));
    }
    if let Some(difference) = other_allow(release, wish.allowed) {
        findings.push(difference);
    }
    let path = |keys: &[&str]| -> Vec<Step> {
        let release = ["releases".into(), at.into()].into_iter();
        release
            .chain(keys.iter().map(|key| Step::from(*key)))
            .collect()
    };
    let image = release
        .get("values")
        .and_then(|values| string(values, "image"));
    let mut text = text.to_owned();
    for (keys, before, after) in [
        (&["version"][..], Some(now), bundle.version),
        (&["values", "image"], image, wish.image),
    ] {
        if before == Some(after) {
            continue;
        }
        let written = Written::in_one_line(after.into());
        text = edit::set(ENVIRONMENT, &text, &path(keys), &written).map_err(|error| {
            let hint = format!(
                "set {} to {after} by hand, and run the command again",
                keys.join(".")
            );
            refuse(line, error.to_string(), &hint)
        })?;
    }
    Ok(text)
}

/// Returns the reasons why an environment file is about another installation, with their lines.
fn differences(file: &Node, release: &Node, wish: &Wish<'_>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let cluster = file.get("cluster");
    let id = cluster.and_then(|cluster| string(cluster, "id"));
    if let Some(id) = id.filter(|id| *id != wish.cluster.id) {
        let line = cluster.map_or(0, |cluster| cluster.line);
        let message = format!("it is about cluster {id}, not {}", wish.cluster.id);
        found.push((line, message));
    }
    let namespace = string(release, "namespace").unwrap_or_default();
    if namespace != wish.namespace {
        let message = format!(
            "it installs in namespace {namespace}, not {}",
            wish.namespace
        );
        found.push((release.line, message));
    }
    let ca = release
        .get("values")
        .and_then(|values| string(values, "caFile"));
    let has_ca = ca == Some("/etc/pleach/secrets/git/ca.crt");
    if has_ca != wish.has_ca {
        let message = if has_ca {
            "its controller reads the CA certificates of the Secret: --ca-file is missing"
        } else {
            "its controller does not read the certificates of --ca-file: `caFile` is not set to /etc/pleach/secrets/git/ca.crt"
        };
        found.push((release.line, message.to_owned()));
    }
    let repositories = repositories(release);
    let mut repository = repositories.iter();
    match repository.find(|node| string(node, "url") == Some(wish.url)) {
        None => {
            let message = format!("its controller does not follow {}", wish.url);
            found.push((release.line, message));
        }
        Some(repository) => {
            let environments = repository.get("environments");
            let environments = environments.map_or(&[][..], Node::items);
            let is_followed = environments.iter().any(|one| {
                string(one, "name") == Some(NAME) && string(one, "branch") == Some(wish.branch)
            });
            if !is_followed {
                let message = format!("its controller does not follow branch {}", wish.branch);
                found.push((repository.line, message));
            }
        }
    }
    found
}

/// Reports another `allow` than the wished one.
fn other_allow(release: &Node, allowed: Allowed<'_>) -> Option<Finding> {
    let expected = allow(allowed);
    let environments = repositories(release)
        .iter()
        .filter_map(|one| one.get("environments"));
    let mut patterns = environments
        .flat_map(Node::items)
        .filter(|one| string(one, "match") == Some(BRANCHES));
    let there = patterns.next()?.get("allow")?;
    (there.to_value() != expected).then(|| {
        let message = format!(
            "`allow` is {}, not {}; it is left unchanged",
            in_one_line(&there.to_value()),
            in_one_line(&expected)
        );
        Finding::warning(Kind::Policy, "allow-differs", message)
            .at(there.origin())
            .hint("edit the file on its branch; the controller applies the change")
    })
}

fn repositories(release: &Node) -> &[Node] {
    let controller = release.get("values").and_then(|one| one.get("controller"));
    let repositories = controller.and_then(|one| one.get("repositories"));
    repositories.map_or(&[], Node::items)
}

fn string<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    node.get(key)?.as_str()
}

/// Formats a text as YAML on one line.
fn scalar(text: &str) -> String {
    yaml::emit(&Value::from(text)).trim_end().to_owned()
}

fn in_one_line(value: &Value) -> String {
    Written::in_one_line(value.clone()).text.unwrap_or_default()
}

/// Returns an id for a new repository: the last part of its URL as a DNS label.
fn repository_id(url: &str) -> String {
    let name = url.trim_end_matches('/').trim_end_matches(".git");
    let name = name.rsplit(['/', ':']).next().unwrap_or_default();
    label(name).unwrap_or_else(|| NAME.to_owned())
}

#[cfg(test)]
mod tests;
