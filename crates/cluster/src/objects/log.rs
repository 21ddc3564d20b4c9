//! Logs of pods.

use std::time::Duration;

use futures::{Stream, stream};
use pleach_model::object::ObjectId;
use tokio::time::timeout;

use super::{About, Call, Verb};
use crate::path::with_query;
use crate::watch::Lines;
use crate::{ApiError, Class, Cluster, ClusterError, ResourcePath};

/// Maximum number of bytes that are read.
const LIMIT: usize = 64 * 1024;

/// A container of a pod.
#[derive(Debug, Clone, Copy)]
pub struct ContainerRef<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Name of the pod.
    pub pod: &'a str,
    /// Name of the container.
    pub container: &'a str,
}

/// Part of a log to read.
#[derive(Debug, Clone, Default)]
pub struct LogPart {
    /// Number of last lines. `None`: all lines.
    pub tail: Option<usize>,
    /// Time of the first line, as in RFC 3339. `None`: the start of the log.
    pub since: Option<String>,
    /// Whether to wait for further lines.
    pub follow: bool,
}

/// Open log.
struct Log {
    cluster: Cluster,
    id: ObjectId,
    lines: Lines,
    /// Maximum time without a line.
    silence: Duration,
    follow: bool,
}

impl Cluster {
    /// Reads the last lines of a container's log. Without a name, reads the only container.
    pub async fn log(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        lines: usize,
    ) -> Result<String, ClusterError> {
        let path = ResourcePath::namespaced("v1", "Pod", "pods");
        let id = path.id(Some(namespace), pod);
        let mut query = vec![
            ("tailLines", lines.to_string()),
            ("limitBytes", LIMIT.to_string()),
        ];
        query.extend(container.map(|name| ("container", name.to_owned())));
        let url = with_query(path.object(Some(namespace), pod, Some("log"))?, &query);
        let call = Call {
            accept: "*/*",
            ..Call::read(Verb::Get, url, About::object(&id, false))
        };
        match self.send(call).await {
            Ok(reply) => Ok(String::from_utf8_lossy(&reply.body).into_owned()),
            Err(source) => Err(ClusterError::Get {
                id: id.clone(),
                source,
            }),
        }
    }

    /// Reads a container's log line by line. The stream ends with the log. If it follows the log,
    /// it also ends after `silence` without a line, because the connection can be dead.
    pub async fn log_lines(
        &self,
        of: ContainerRef<'_>,
        part: &LogPart,
        silence: Duration,
    ) -> Result<impl Stream<Item = Result<String, ClusterError>> + Send + use<>, ClusterError> {
        let path = ResourcePath::namespaced("v1", "Pod", "pods");
        let id = path.id(Some(of.namespace), of.pod);
        let mut query = vec![("container", of.container.to_owned())];
        query.extend(part.tail.map(|lines| ("tailLines", lines.to_string())));
        query.extend(part.since.clone().map(|time| ("sinceTime", time)));
        if part.follow {
            query.push(("follow", "true".to_owned()));
        }
        let log = path.object(Some(of.namespace), of.pod, Some("log"))?;
        let url = with_query(log, &query);
        let call = Call {
            accept: "*/*",
            ..Call::read(Verb::Get, url, About::object(&id, false))
        };
        let opened = self.stream(&call).await;
        let response = opened.map_err(|source| ClusterError::Get {
            id: id.clone(),
            source,
        })?;
        let log = Log {
            cluster: self.clone(),
            id,
            lines: Lines::of_log(response.into_body()),
            silence,
            follow: part.follow,
        };
        Ok(stream::unfold(Some(log), |log| async {
            let mut log = log?;
            match log.next().await {
                Ok(Some(line)) => Some((Ok(line), Some(log))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        }))
    }
}

impl Log {
    /// Returns the next line. `None` at the end.
    async fn next(&mut self) -> Result<Option<String>, ClusterError> {
        let source = match timeout(self.silence, self.lines.next()).await {
            Ok(Ok(line)) => {
                return Ok(line.map(|line| String::from_utf8_lossy(&line).into_owned()));
            }
            Ok(Err(error)) => self.cluster.broken(&error, true),
            Err(_) if self.follow => return Ok(None),
            Err(_) => {
                let message = format!(
                    "{} sent nothing for {:?}",
                    self.cluster.server, self.silence
                );
                ApiError::local(Class::Timeout, message)
            }
        };
        Err(ClusterError::Get {
            id: self.id.clone(),
            source: source.into(),
        })
    }
}
