//! Repositories that are OCI artifacts.

use std::collections::BTreeMap;

use pleach_formats::file;
use pleach_formats::file::EnvironmentGrant as DeclaredGrant;
use pleach_model::finding::Finding;
use pleach_model::object::{Located, Places};
use pleach_model::oci::{OciRepository, check_tag};

use super::grant::grant;
use super::{Auth, Branches, WatchedRepository, check_environments, check_name};

/// An artifact to follow. Files are paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactSource {
    /// Repository in the registry.
    pub repository: OciRepository,
    /// The followed tag. It takes the place of a branch.
    pub tag: String,
    /// File with the trusted public keys. `None`: signatures are not required.
    pub keys: Option<String>,
    /// Configuration file of docker. `None`: anonymous access.
    pub docker_config: Option<String>,
    /// File with CA certificates.
    pub authorities: Option<String>,
}

/// Registries by host.
pub(super) type Registries = BTreeMap<String, file::RegistryAccess>;

/// Resolves the registries. Each host is allowed once.
pub(super) fn registries(
    declared: Vec<Located<file::RegistryAccess>>,
    findings: &mut Vec<Finding>,
) -> Registries {
    let mut registries = Registries::new();
    for Located { value, places } in declared {
        if value.docker_config_file.is_none() && value.ca_file.is_none() {
            let message = "`dockerConfigFile` or `caFile` is required";
            findings.push(places.error("missing-field", message));
        }
        if let Some(first) = registries.insert(value.host.clone(), value) {
            let message = format!("`host`: a second entry of {}", first.host);
            findings.push(places.error_at("host", "invalid-value", message));
        }
    }
    registries
}

/// Resolves a repository that is an artifact.
pub(super) fn repository(
    declared: Located<file::WatchedRepository>,
    registries: &Registries,
    findings: &mut Vec<Finding>,
) -> Option<WatchedRepository> {
    let Located { value, places } = declared;
    check_name(&value.name, &places, findings);
    refuse_git_fields(&value, &places, findings);
    check_environments(&value.environments, &places, findings);
    let address = value.oci.unwrap_or_default();
    let repository = match OciRepository::parse(&address) {
        Ok(repository) => Some(repository),
        Err(error) => {
            findings.push(places.error_at("oci", "invalid-value", format!("`oci`: {error}")));
            None
        }
    };
    let tag = value.tag.and_then(|tag| match check_tag(&tag) {
        Ok(()) => Some(tag),
        Err(error) => {
            findings.push(places.error_at("tag", "invalid-value", format!("`tag`: {error}")));
            None
        }
    });
    if tag.is_none() && !places.has("tag") {
        findings.push(places.error("missing-field", "`tag` is required with `oci`"));
    }
    let keys = value.verify.and_then(|verify| {
        let keys = verify.value.cosign_keys_file;
        if keys.is_none() || verify.value.keys_file.is_some() {
            let message = "`verify`: artifacts need `cosignKeysFile`";
            findings.push(verify.places.error("missing-field", message));
        }
        keys
    });
    let environments = value.environments.into_iter();
    let environments: Vec<_> = environments
        .filter_map(|declared| {
            let branches = environment(&declared, tag.as_deref(), findings);
            grant(declared, branches, findings)
        })
        .collect();
    let repository = repository?;
    let access = registries.get(&repository.host);
    Some(WatchedRepository {
        name: value.name,
        url: repository.to_string(),
        artifact: Some(ArtifactSource {
            tag: tag?,
            keys,
            docker_config: access.and_then(|access| access.docker_config_file.clone()),
            authorities: access.and_then(|access| access.ca_file.clone()),
            repository,
        }),
        auth: Auth::Anonymous,
        keys: None,
        webhook: None,
        forge: None,
        environments,
    })
}

/// Reports fields that only git repositories have.
fn refuse_git_fields(
    value: &file::WatchedRepository,
    places: &Places,
    findings: &mut Vec<Finding>,
) {
    for (key, is_set, hint) in [
        (
            "url",
            value.url.is_some(),
            "either `url` or `oci` is allowed",
        ),
        (
            "auth",
            value.auth.is_some(),
            "credentials of registries are in `registries`",
        ),
        (
            "insecure",
            value.insecure.is_some(),
            "registries on other machines need https",
        ),
        ("forge", value.forge.is_some(), "an artifact has no forge"),
    ] {
        if is_set {
            let message = format!("`{key}`: {hint}");
            findings.push(places.error_at(key, "invalid-value", message));
        }
    }
}

/// Returns the environment that a grant names. All environments of an artifact are in its tag.
fn environment(
    declared: &Located<DeclaredGrant>,
    tag: Option<&str>,
    findings: &mut Vec<Finding>,
) -> Option<Branches> {
    let Located { value, places } = declared;
    if let (None, Some(name), None) = (&value.matches, &value.name, &value.branch) {
        return Some(Branches::One {
            environment: name.clone(),
            branch: tag?.to_owned(),
        });
    }
    let message = "only `name` is allowed: the tag of the artifact has all its environments";
    findings.push(places.error("missing-field", message));
    None
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    const ENVIRONMENT: &str = "{name: production, cluster: {id: c, inCluster: true}, allow: all}";

    fn check(text: &str) -> Result<WatchedRepository, Vec<String>> {
        let head = "apiVersion: pleach.dev/v1alpha1\nkind: Controller\n";
        let read = read("loop.yaml", format!("{head}{text}").into_bytes());
        read.map(|controller| controller.repositories[0].clone())
            .map_err(|findings| findings.into_iter().map(|one| one.message).collect())
    }

    #[test]
    fn an_artifact_is_followed_by_its_tag() {
        let text = format!(
            "registries: [{{host: 'r.example.org:5000', dockerConfigFile: /s/config.json, caFile: /s/ca.crt}}]\n\
             repositories:\n  - name: fleet\n    oci: oci://r.example.org:5000/fleet\n    tag: production\n    \
             verify: {{cosignKeysFile: /s/fleet.pub}}\n    environments: [{ENVIRONMENT}]\n"
        );
        let fleet = check(&text).unwrap();
        assert_eq!(fleet.url, "oci://r.example.org:5000/fleet");
        assert_eq!(
            fleet.artifact,
            Some(ArtifactSource {
                repository: OciRepository::parse(&fleet.url).unwrap(),
                tag: "production".to_owned(),
                keys: Some("/s/fleet.pub".to_owned()),
                docker_config: Some("/s/config.json".to_owned()),
                authorities: Some("/s/ca.crt".to_owned()),
            })
        );
        let branches = &fleet.environments[0].branches;
        assert_eq!(branches.environment("production"), Some("production"));
        // Another host, and no signature.
        let other = text
            .replace("oci://r.example.org:5000/", "oci://r.example.org/")
            .replace("    verify: {cosignKeysFile: /s/fleet.pub}\n", "");
        let artifact = check(&other).unwrap().artifact.unwrap();
        assert_eq!((artifact.keys, artifact.docker_config), (None, None));
    }

    #[test]
    fn fields_of_git_and_of_artifacts_are_not_mixed() {
        let oci = "oci: oci://r.example.org/fleet";
        for (lines, environment, expected) in [
            (
                format!("{oci}\n    tag: a\n    url: /srv/fleet"),
                "",
                "either `url` or `oci` is allowed",
            ),
            (
                format!("{oci}\n    tag: a\n    insecure: true"),
                "",
                "`insecure`: registries on other machines need https",
            ),
            (
                format!("{oci}\n    tag: a\n    forge: {{kind: gitea}}"),
                "",
                "`forge`: an artifact has no forge",
            ),
            (
                format!("{oci}\n    tag: a\n    auth: {{tokenFile: /t}}"),
                "",
                "`auth`: credentials of registries",
            ),
            (
                format!("{oci}\n    tag: a\n    verify: {{keysFile: /k}}"),
                "",
                "`verify`: artifacts need `cosignKeysFile`",
            ),
            (oci.to_owned(), "", "`tag` is required with `oci`"),
            (
                format!("{oci}\n    tag: a/b"),
                "",
                "`tag`: the tag of the address is invalid: `a/b`",
            ),
            (
                "oci: r.example.org/fleet\n    tag: a".to_owned(),
                "",
                "`oci`: expected an address such as oci://",
            ),
            (
                format!("{oci}\n    tag: a"),
                "branch: main, ",
                "only `name` is allowed",
            ),
            (
                "url: /srv/fleet\n    tag: a".to_owned(),
                "branch: main, ",
                "`tag`: it has no effect without `oci`",
            ),
            (
                "url: /srv/fleet\n    verify: {cosignKeysFile: /k}".to_owned(),
                "branch: main, ",
                "`verify`: commits need `keysFile`",
            ),
            (
                "tag: a".to_owned(),
                "branch: main, ",
                "`url` is required, or `oci` for an artifact",
            ),
        ] {
            let environment = ENVIRONMENT.replacen('{', &format!("{{{environment}"), 1);
            let text = format!(
                "repositories:\n  - name: fleet\n    {lines}\n    environments: [{environment}]\n"
            );
            let errors = check(&text).unwrap_err();
            assert!(errors[0].contains(expected), "{lines}: {errors:?}");
        }
        let repositories = format!(
            "repositories: [{{name: fleet, {oci}, tag: a, environments: [{ENVIRONMENT}]}}]\n"
        );
        for (registries, expected) in [
            ("[{host: a}]", "`dockerConfigFile` or `caFile` is required"),
            (
                "[{host: a, caFile: b}, {host: a, caFile: c}]",
                "`host`: a second entry of a",
            ),
        ] {
            let errors = check(&format!("registries: {registries}\n{repositories}")).unwrap_err();
            assert!(errors[0].contains(expected), "{errors:?}");
        }
    }
}
