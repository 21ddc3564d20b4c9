//! Variables of CI pipelines.

use std::path::Path;

use pleach_formats::file::ForgeKind;
use serde::Deserialize;

/// CI pipeline of a forge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pipeline {
    /// Product of the forge.
    pub(super) kind: ForgeKind,
    /// Root of the API.
    pub(super) api: String,
    /// Project on the forge.
    pub(super) project: String,
    /// Pull request of the pipeline run.
    pub(super) number: Option<u64>,
    /// Newest commit of the pull request when the pipeline started.
    pub(super) head: Option<String>,
    /// Variable that can contain a token.
    pub(super) token: &'static str,
}

/// Event that triggered an action.
#[derive(Debug, Default, Deserialize)]
struct Event {
    pull_request: Option<EventPull>,
}

#[derive(Debug, Deserialize)]
struct EventPull {
    number: u64,
    head: EventHead,
}

#[derive(Debug, Deserialize)]
struct EventHead {
    sha: String,
}

impl Pipeline {
    /// Returns the pipeline of this process.
    pub(super) fn find(variable: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        if variable("GITLAB_CI").is_some() {
            return Self::gitlab(variable);
        }
        let is = |name: &str| variable(name).as_deref() == Some("true");
        // Forgejo can set either variable.
        let is_gitea = is("GITEA_ACTIONS") || is("FORGEJO_ACTIONS");
        if is_gitea || is("GITHUB_ACTIONS") {
            return Self::actions(variable, is_gitea);
        }
        None
    }

    fn actions(variable: &dyn Fn(&str) -> Option<String>, is_gitea: bool) -> Option<Self> {
        let event = variable("GITHUB_EVENT_PATH")
            .and_then(|path| pleach_files::read(Path::new(&path)).ok())
            .and_then(|bytes| serde_json::from_slice::<Event>(&bytes).ok());
        let pull = event.unwrap_or_default().pull_request;
        Some(Self {
            kind: if is_gitea {
                ForgeKind::Gitea
            } else {
                ForgeKind::Github
            },
            api: variable("GITHUB_API_URL")?,
            project: variable("GITHUB_REPOSITORY")?,
            number: pull.as_ref().map(|pull| pull.number),
            head: pull.map(|pull| pull.head.sha),
            token: "GITHUB_TOKEN",
        })
    }

    fn gitlab(variable: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let number = variable("CI_MERGE_REQUEST_IID").and_then(|text| text.parse().ok());
        // A pipeline for merged results runs on a different commit.
        let head =
            variable("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA").or_else(|| variable("CI_COMMIT_SHA"));
        Some(Self {
            kind: ForgeKind::Gitlab,
            api: variable("CI_API_V4_URL")?,
            project: variable("CI_MERGE_REQUEST_PROJECT_PATH")
                .or_else(|| variable("CI_PROJECT_PATH"))?,
            head: number.and(head),
            number,
            token: "GITLAB_TOKEN",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_files::{FileContent, temporary_folder, write_atomic};

    fn find(variables: &[(&str, &str)]) -> Option<Pipeline> {
        Pipeline::find(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn github_actions_name_their_pull_request() {
        let folder = temporary_folder().unwrap();
        let path = folder.path().join("event.json");
        let event =
            r#"{"action": "opened", "pull_request": {"number": 7, "head": {"sha": "abc"}}}"#;
        write_atomic(&path, &FileContent::new(event)).unwrap();
        let mut variables = vec![
            ("GITHUB_ACTIONS", "true"),
            ("GITHUB_API_URL", "https://api.github.com"),
            ("GITHUB_REPOSITORY", "example/fleet"),
            ("GITHUB_EVENT_PATH", path.to_str().unwrap()),
        ];
        let found = find(&variables).unwrap();
        assert_eq!(
            found,
            Pipeline {
                kind: ForgeKind::Github,
                api: "https://api.github.com".to_owned(),
                project: "example/fleet".to_owned(),
                number: Some(7),
                head: Some("abc".to_owned()),
                token: "GITHUB_TOKEN",
            }
        );
        variables.push(("GITEA_ACTIONS", "true"));
        assert_eq!(find(&variables).unwrap().kind, ForgeKind::Gitea);
        write_atomic(&path, &FileContent::new(r#"{"ref": "refs/heads/main"}"#)).unwrap();
        assert_eq!(find(&variables).unwrap().number, None);
    }

    #[test]
    fn gitlab_ci_names_its_merge_request() {
        let mut variables = vec![
            ("GITLAB_CI", "true"),
            ("CI_API_V4_URL", "https://git.example.org/api/v4"),
            ("CI_PROJECT_PATH", "a/b/fleet"),
            ("CI_COMMIT_SHA", "abc"),
        ];
        let found = find(&variables).unwrap();
        assert_eq!((found.number, found.head), (None, None));
        variables.push(("CI_MERGE_REQUEST_IID", "7"));
        let found = find(&variables).unwrap();
        assert_eq!(
            (found.number, found.head.as_deref()),
            (Some(7), Some("abc"))
        );
        variables.push(("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA", "def"));
        assert_eq!(find(&variables).unwrap().head.as_deref(), Some("def"));
    }

    #[test]
    fn no_pipeline_is_detected_elsewhere() {
        assert_eq!(find(&[("CI", "true")]), None);
    }
}
