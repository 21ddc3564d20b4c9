//! The end of a pod's log.

use super::{About, Call, Verb};
use crate::path::with_query;
use crate::{Cluster, ClusterError, ResourcePath};

/// Maximum number of bytes that are read.
const LIMIT: usize = 64 * 1024;

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
}
