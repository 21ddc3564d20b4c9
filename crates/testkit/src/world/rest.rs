//! Client of the API server for one user, with a time-out.

use std::time::Duration;

use http::{HeaderValue, Method, Request, header};
use kube::{Client, Config};
use serde_json::Value;

/// Time-out of a request. Longer than the ten seconds of a webhook.
const DEADLINE: Duration = Duration::from_secs(15);

/// Failed request.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    /// The API server answered with an error.
    #[error("{message} ({code})")]
    Status {
        /// HTTP status.
        code: u16,
        /// Message of the server.
        message: String,
    },
    /// There was no answer.
    #[error("no answer: {0}")]
    Transport(String),
}

impl Failure {
    /// Returns the HTTP status, if there was an answer.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            Self::Transport(_) => None,
        }
    }

    /// Returns the message.
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Status { message, .. } | Self::Transport(message) => message,
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Status {
                code: status.code,
                message: status.message,
            },
            other => Self::Transport(other.to_string()),
        }
    }
}

/// Client for one user.
#[derive(Clone)]
pub(crate) struct Rest {
    client: Client,
    manager: String,
}

impl Rest {
    /// Connects with the credentials of the configuration.
    pub(crate) fn new(config: &Config, agent: &str) -> anyhow::Result<Self> {
        let mut config = config.clone();
        config.default_retry = false;
        config
            .headers
            .push((header::USER_AGENT, HeaderValue::from_str(agent)?));
        Ok(Self {
            client: Client::try_from(config)?,
            manager: agent.to_owned(),
        })
    }

    /// Connects as an impersonated user.
    pub(crate) fn impersonate(
        config: &Config,
        agent: &str,
        user: &str,
        groups: &[&str],
    ) -> anyhow::Result<Self> {
        let mut config = config.clone();
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups =
            Some(groups.iter().map(ToString::to_string).collect());
        Self::new(&config, agent)
    }

    /// Connects as a service account.
    pub(crate) fn service_account(
        config: &Config,
        agent: &str,
        namespace: &str,
        name: &str,
    ) -> anyhow::Result<Self> {
        Self::impersonate(
            config,
            agent,
            &format!("system:serviceaccount:{namespace}:{name}"),
            &[
                "system:serviceaccounts",
                &format!("system:serviceaccounts:{namespace}"),
                "system:authenticated",
            ],
        )
    }

    /// Returns the client, for watches.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Reads an object. `None` if it is absent.
    pub(crate) async fn get(&self, path: &str) -> Result<Option<Value>, Failure> {
        match self.send(Method::GET, path, None).await {
            Ok(object) => Ok(Some(object)),
            Err(failure) if failure.code() == Some(404) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Creates an object in a collection.
    pub(crate) async fn create(&self, path: &str, object: &Value) -> Result<Value, Failure> {
        let path = self.managed(path);
        self.send(Method::POST, &path, Some(("application/json", object)))
            .await
    }

    /// Replaces an object.
    pub(crate) async fn replace(&self, path: &str, object: &Value) -> Result<Value, Failure> {
        let path = self.managed(path);
        self.send(Method::PUT, &path, Some(("application/json", object)))
            .await
    }

    /// Applies a merge patch to an object.
    pub(crate) async fn merge(&self, path: &str, change: &Value) -> Result<Value, Failure> {
        let path = self.managed(path);
        self.send(
            Method::PATCH,
            &path,
            Some(("application/merge-patch+json", change)),
        )
        .await
    }

    /// Deletes an object.
    pub(crate) async fn delete(&self, path: &str) -> Result<(), Failure> {
        self.send(Method::DELETE, path, None).await.map(drop)
    }

    fn managed(&self, path: &str) -> String {
        let separator = if path.contains('?') { '&' } else { '?' };
        format!("{path}{separator}fieldManager={}", self.manager)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, &Value)>,
    ) -> Result<Value, Failure> {
        let mut request = Request::builder().method(method).uri(path);
        let body = match body {
            Some((kind, body)) => {
                request = request.header(header::CONTENT_TYPE, HeaderValue::from_static(kind));
                body.to_string().into_bytes()
            }
            None => Vec::new(),
        };
        let request = request
            .body(body)
            .map_err(|error| Failure::Transport(error.to_string()))?;
        match tokio::time::timeout(DEADLINE, self.client.request(request)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Failure::Transport(format!(
                "nothing within {} s",
                DEADLINE.as_secs()
            ))),
        }
    }
}
