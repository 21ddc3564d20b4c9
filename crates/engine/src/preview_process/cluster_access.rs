//! Cluster access as passed to a preview process: locations of credentials and their purpose, but
//! never the credentials.

use std::path::PathBuf;

use pleach_formats::file::AllowList;
use serde::{Deserialize, Serialize};

use crate::planning::agent;
use pleach_cluster::{Connection, Keys, KubeconfigSecret, OwnCluster};

/// Access to the cluster of an environment, with its restrictions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Way {
    /// Expected cluster id.
    pub cluster: String,
    /// Whether to use the cluster that this process runs in.
    pub in_cluster: bool,
    /// Path of a kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// Secret with a kubeconfig.
    pub secret: Option<SecretLocation>,
    /// User to impersonate.
    pub user: Option<String>,
    /// Whether to read state in tenant namespaces without verifying it, because only the controller
    /// has the key.
    pub is_keyless: bool,
    /// Restrictions of queries. `None`: unrestricted.
    pub allow: Option<AllowList>,
    /// Whether the preview, which is public, quotes errors of the cluster.
    pub quotes: bool,
}

/// A Secret with a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretLocation {
    /// Kubeconfig of the cluster with the Secret; `None` for the default of kubectl.
    pub own: Option<PathBuf>,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The key in its data.
    pub key: String,
}

impl Way {
    /// Describes a connection to a cluster. The preview quotes no error of it.
    pub fn of(connection: &Connection, cluster: &str, allow: Option<AllowList>) -> Self {
        let secret = connection.secret.as_ref().map(|secret| SecretLocation {
            own: secret.own.connection().kubeconfig.clone(),
            namespace: secret.namespace.clone(),
            name: secret.name.clone(),
            key: secret.key.clone(),
        });
        Self {
            cluster: cluster.to_owned(),
            in_cluster: connection.in_cluster,
            kubeconfig: connection.kubeconfig.clone(),
            secret,
            user: connection.user.clone(),
            is_keyless: matches!(connection.keys, Keys::In(_)),
            allow,
            quotes: false,
        }
    }

    /// Returns the described connection.
    pub fn connection(&self) -> Connection {
        let mut connection = Connection::new(agent(None));
        connection.programs = false;
        if self.is_keyless {
            connection.keys = Keys::Unread;
        }
        connection.in_cluster = self.in_cluster;
        connection.kubeconfig.clone_from(&self.kubeconfig);
        connection.user.clone_from(&self.user);
        connection.secret = self.secret.as_ref().map(|secret| {
            let mut own = Connection::new(agent(None));
            own.kubeconfig.clone_from(&secret.own);
            KubeconfigSecret {
                own: OwnCluster::new(own),
                namespace: secret.namespace.clone(),
                name: secret.name.clone(),
                key: secret.key.clone(),
            }
        });
        connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_cluster::KeyHome;

    #[test]
    fn a_way_has_the_cluster_of_its_connection() {
        let mut own = Connection::new(agent(None));
        own.kubeconfig = Some("/etc/own".into());
        let mut connection = Connection::new(agent(None));
        connection.programs = false;
        connection.user = Some("system:serviceaccount:a:b".to_owned());
        let plain = {
            let mut plain = connection.clone();
            plain.kubeconfig = Some("/etc/cluster".into());
            plain
        };
        let way = Way::of(&plain, "c", None);
        assert_eq!(way.connection(), plain);
        connection.keys = Keys::In(KeyHome::new(OwnCluster::new(own.clone()), "a".to_owned()));
        connection.secret = Some(KubeconfigSecret {
            own: OwnCluster::new(own.clone()),
            namespace: "a".to_owned(),
            name: "b".to_owned(),
            key: "c".to_owned(),
        });
        let way = Way::of(&connection, "c", None);
        let text = serde_json::to_string(&way).unwrap();
        let read: Way = serde_json::from_str(&text).unwrap();
        assert_eq!(read, way);
        let led = read.connection();
        assert_eq!(led.user, connection.user);
        assert_eq!(led.keys, Keys::Unread);
        assert!(!led.programs && led.kubeconfig.is_none());
        assert_eq!(*led.secret.unwrap().own.connection(), own);
    }
}
