//! Grants of environments: branches, cluster, connection and limits.

use pleach_formats::file::{self, Approval};
use pleach_formats::sync::Minimum;
use pleach_formats::window::Windows;
use pleach_model::finding::Finding;
use pleach_model::object::Located;
use pleach_planner::allow::Allow;

use super::{
    Branches, ConnectionGrant, Decryption, EnvironmentGrant, KUBECONFIG_KEY, is_subdomain,
};

/// Returns the branches that a grant declares.
pub(super) fn branches_of(
    declared: &Located<file::EnvironmentGrant>,
    findings: &mut Vec<Finding>,
) -> Option<Branches> {
    let Located { value, places } = declared;
    match (&value.matches, &value.name, &value.branch) {
        (Some(pattern), None, None) => {
            let branches = Branches::pattern(pattern);
            if branches.is_none() {
                let message = format!(
                    "`match`: `{pattern}` must contain exactly one `*`, which stands for the environment name"
                );
                findings.push(places.error_at("match", "invalid-value", message));
            }
            branches
        }
        (None, Some(environment), Some(branch)) => Some(Branches::One {
            environment: environment.clone(),
            branch: branch.clone(),
        }),
        _ => {
            let message = "either `match`, or `name` and `branch`, is required";
            findings.push(places.error("missing-field", message));
            None
        }
    }
}

/// Resolves a grant of environments on these branches.
pub(super) fn grant(
    declared: Located<file::EnvironmentGrant>,
    branches: Option<Branches>,
    findings: &mut Vec<Finding>,
) -> Option<EnvironmentGrant> {
    let Located { value, places } = declared;
    let cluster_id = value.cluster.id.clone();
    let connection = connection(value.cluster, findings);
    let user = value.service_account.map(|account| {
        let parts: Vec<&str> = account.split('/').collect();
        let is_one = parts.len() == 2 && parts.iter().all(|part| part.bytes().all(is_subdomain));
        if !is_one {
            let message = format!("`serviceAccount`: `{account}` is not `NAMESPACE/NAME`");
            findings.push(places.error_at("serviceAccount", "invalid-value", message));
        }
        format!("system:serviceaccount:{}", parts.join(":"))
    });
    let decryption = decryption(value.decryption, findings);
    let minimum = value.minimum.unwrap_or_default();
    let minimum = Minimum {
        interval: minimum.interval.map(|interval| interval.0),
        needs_approval: minimum.approval == Some(Approval::Digest),
        windows: Windows::resolve("minimum", minimum.windows, findings),
        protect: minimum.protect.unwrap_or_default(),
    };
    Some(EnvironmentGrant {
        branches: branches?,
        cluster_id,
        connection: connection?,
        user,
        allow: match value.allow {
            file::Allow::All(_) => None,
            file::Allow::Only(list) => Some(Allow::new(&list)),
        },
        minimum,
        decryption: decryption?,
    })
}

/// Returns the keys for encrypted files. `None` if they are not valid.
fn decryption(
    declared: Option<Located<file::Decryption>>,
    findings: &mut Vec<Finding>,
) -> Option<Decryption> {
    let Some(Located { value, places }) = declared else {
        return Some(Decryption::default());
    };
    let mut problems = Vec::new();
    if value.age_keys_file.is_none() && value.sops_program.is_none() {
        let message = "`decryption`: `ageKeysFile`, `sopsProgram` or both are required";
        problems.push(places.error("missing-field", message));
    }
    let program = value.sops_program.as_deref();
    if program.is_some_and(|path| !path.starts_with('/')) {
        let message = "`sopsProgram`: expected an absolute path";
        problems.push(places.error_at("sopsProgram", "invalid-value", message));
    }
    if program.is_none() && value.sops_variables.is_some() {
        let message = "`sopsVariables` needs `sopsProgram`";
        problems.push(places.error_at("sopsVariables", "missing-field", message));
    }
    let variables = value.sops_variables.unwrap_or_default();
    for name in variables.iter().filter(|name| !is_variable(name)) {
        let message = format!("`sopsVariables`: `{name}` is not the name of a variable");
        problems.push(places.error_at("sopsVariables", "invalid-value", message));
    }
    let is_valid = problems.is_empty();
    findings.extend(problems);
    is_valid.then_some(Decryption {
        age_keys: value.age_keys_file,
        sops_program: value.sops_program,
        sops_variables: variables,
    })
}

fn is_variable(name: &str) -> bool {
    let is_letter = |byte: u8| byte == b'_' || byte.is_ascii_alphabetic();
    let is_part = |byte: u8| is_letter(byte) || byte.is_ascii_digit();
    name.bytes().next().is_some_and(is_letter) && name.bytes().all(is_part)
}

fn connection(
    declared: Located<file::ClusterGrant>,
    findings: &mut Vec<Finding>,
) -> Option<ConnectionGrant> {
    let Located { value, places } = declared;
    if value.id.is_empty() {
        let message = "`id`: expected the uid of the cluster's namespace kube-system";
        findings.push(places.error_at("id", "invalid-value", message));
    }
    let in_cluster = value.in_cluster == Some(true);
    match (in_cluster, value.kubeconfig_file, value.kubeconfig_secret) {
        (true, None, None) => Some(ConnectionGrant::InCluster),
        (false, Some(file), None) => Some(ConnectionGrant::Kubeconfig(file)),
        (false, None, Some(secret)) => kubeconfig_of(secret, findings),
        _ => {
            let message = "`cluster`: exactly one of `inCluster: true`, `kubeconfigFile` and `kubeconfigSecret` is required";
            findings.push(places.error("missing-field", message));
            None
        }
    }
}

fn kubeconfig_of(
    declared: Located<file::KubeconfigSecret>,
    findings: &mut Vec<Finding>,
) -> Option<ConnectionGrant> {
    let Located { value, places } = declared;
    let mut is_sound = true;
    for (key, name) in [("namespace", &value.namespace), ("name", &value.name)] {
        if name.is_empty() || !name.bytes().all(is_subdomain) {
            let message = format!("`{key}`: `{name}` is not an object name");
            findings.push(places.error_at(key, "invalid-value", message));
            is_sound = false;
        }
    }
    is_sound.then_some(ConnectionGrant::Secret {
        namespace: value.namespace,
        name: value.name,
        key: value.key.unwrap_or_else(|| KUBECONFIG_KEY.to_owned()),
    })
}
