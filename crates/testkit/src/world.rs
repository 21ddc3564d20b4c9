//! Simulation of a product that registers itself: pods that answer or crash, and a user who writes
//! continuously.
//!
//! The API server, controllers and scheduler are real; kubelets are simulated. The world acts as
//! the processes in the pods of a [`Product`]:
//! - A pod of the api component creates its certificates and registrations (an `APIService` and two
//!   webhook configurations) with the permissions of its service account. It crash-loops if it
//!   cannot, for example because a registration refers to another namespace. Then it is ready and
//!   answers.
//! - A pod of the controller component holds the leader lock, or crash-loops.
//! - The user creates, updates and deletes objects and records the results.
//!
//! In audit logs they differ by User-Agent: `testkit-world`, `testkit-user`, and for pods the name
//! of the component or of the operator.
//!
//! An [`Operator`] is a separate world: the processes in the pods of the bundle `manifests/depot`.
//! [`Machines`] is another one: the virtual machines and nodes of the bundle `manifests/machines`.
//!
//! Pod addresses must be local, so run in a network namespace of the throwaway control plane.
//! Dropping the world stops everything.

mod admission;
mod certificates;
mod hold;
mod leader;
mod machines;
mod operator;
mod pods;
mod product;
mod register;
mod report;
mod rest;
mod server;
mod user;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::Request;
use hyper::body::Incoming;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub use admission::{DENY, MUTATED, REQUEST};
pub use machines::{Ledger, Machines, Terms};
pub use operator::Operator;
pub use product::{Product, Resource, Webhook};
pub use report::Report;
pub use user::{USER, USERS};

use admission::ValidationLog;
use certificates::Certificates;
use pods::Controllers;
use rest::{Failure, Rest};
use server::Alive;
use user::Diary;

/// Exit of a pod, at its start or later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Error message of the pod.
    pub reason: String,
}

/// Running world. Dropping it ends it.
pub struct World {
    shared: Arc<Shared>,
    log: ValidationLog,
    diary: Diary,
    /// Diary of the second user, with the administrator's kubeconfig.
    shared_diary: Diary,
    tasks: JoinSet<anyhow::Result<()>>,
}

/// State shared by all parts of the world.
struct Shared {
    config: Config,
    admin: Rest,
    product: Arc<Product>,
    /// Running pods, with their namespace.
    alive: Alive<String>,
    controllers: Controllers,
    served: Mutex<HashMap<String, Arc<rustls::ServerConfig>>>,
    crashes: Mutex<Vec<Crash>>,
}

/// Returns the administrator's client settings, without proxies.
async fn connection(kubeconfig: &Path) -> anyhow::Result<Config> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(config)
}

impl Shared {
    /// Returns the TLS settings of the api pods in a namespace. `None` before the first one has
    /// started.
    fn certificates(&self, namespace: &str) -> Option<Arc<rustls::ServerConfig>> {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.get(namespace).cloned()
    }

    fn set_certificates(&self, namespace: &str, made: &Certificates) -> anyhow::Result<()> {
        let config = Arc::new(made.server_config()?);
        self.served
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(namespace.to_owned(), config);
        Ok(())
    }

    fn crashed(&self, crash: Crash) {
        self.crashes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(crash);
    }
}

impl World {
    /// Starts the simulation of a product on a control plane, as administrator.
    pub async fn start(kubeconfig: &Path, product: Product) -> anyhow::Result<Self> {
        let config = connection(kubeconfig).await?;
        let admin = Rest::new(&config, "testkit-world")?;
        let components = [product.api.as_str(), &product.controller];
        hold::install(&admin, &product.component_label, &components).await?;
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, product.port))
            .await
            .with_context(|| format!("failed to listen on port {}", product.port))?;
        let shared = Arc::new(Shared {
            config,
            admin,
            product: Arc::new(product),
            alive: Alive::default(),
            controllers: Controllers::default(),
            served: Mutex::default(),
            crashes: Mutex::default(),
        });
        let log = ValidationLog::default();
        let mut tasks = JoinSet::new();
        let parts = (Arc::clone(&shared.product), log.clone());
        let answer = move |request: Request<Incoming>, namespace: String| {
            let (product, log) = parts.clone();
            async move { server::respond(request, &product, &namespace, &log).await }
        };
        tasks.spawn(server::serve(listener, shared.alive.clone(), answer));
        tasks.spawn(pods::run(Arc::clone(&shared)));
        Ok(Self {
            shared,
            log,
            diary: Diary::default(),
            shared_diary: Diary::default(),
            tasks,
        })
    }

    /// Starts the user. The product must be installed.
    pub async fn start_user(&mut self) -> anyhow::Result<()> {
        let admin = &self.shared.admin;
        let bindings =
            format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{USERS}/rolebindings");
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": USERS},
        });
        // The product aggregates its resources into this role.
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": USER},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        });
        for (path, object) in [
            ("/api/v1/namespaces", &namespace),
            (bindings.as_str(), &binding),
        ] {
            match admin.create(path, object).await {
                Ok(_) | Err(Failure::Status { code: 409, .. }) => {}
                Err(failure) => return Err(failure).context("failed to prepare the user"),
            }
        }
        let user = Rest::impersonate(
            &self.shared.config,
            "testkit-user",
            USER,
            &["system:authenticated"],
        )?;
        self.write((user, "vm"), self.diary.clone());
        Ok(())
    }

    /// Starts a second user, with the administrator's kubeconfig.
    pub fn start_administrator(&mut self) -> anyhow::Result<()> {
        let user = Rest::new(&self.shared.config, "testkit-administrator")?;
        self.write((user, "shared"), self.shared_diary.clone());
        Ok(())
    }

    fn write(&mut self, who: (Rest, &'static str), diary: Diary) {
        let product = Arc::clone(&self.shared.product);
        let writing = user::write(who, product, self.log.clone(), diary);
        self.tasks.spawn(async move {
            writing.await;
            Ok(())
        });
    }

    /// Returns the report of the second user so far.
    pub fn administrators_report(&self) -> Report {
        self.shared_diary.report()
    }

    /// Returns the report of the user so far.
    pub fn report(&self) -> Report {
        self.diary.report()
    }

    /// Waits for `count` more writes of the user.
    pub async fn more_writes(&mut self, count: usize, deadline: Duration) -> anyhow::Result<()> {
        let mut written = self.diary.count();
        let until = *written.borrow() + count;
        tokio::select! {
            result = tokio::time::timeout(deadline, written.wait_for(|n| *n >= until)) => {
                result.with_context(|| format!("{count} writes take longer than {deadline:?}"))??;
                Ok(())
            }
            Some(ended) = self.tasks.join_next() => {
                ended??;
                bail!("a part of the world ended")
            }
        }
    }

    /// Returns all crashes so far, in order.
    pub fn crashes(&self) -> Vec<Crash> {
        let crashes = self.shared.crashes.lock();
        crashes.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns pairs of namespaces whose controllers ran at the same time: first the earlier one.
    pub fn controllers_together(&self) -> Vec<(String, String)> {
        self.shared.controllers.together()
    }

    /// Stops everything. Fails if a part of the world itself failed.
    pub async fn stop(mut self) -> anyhow::Result<Report> {
        let ended = self.tasks.try_join_next();
        self.tasks.shutdown().await;
        if let Some(ended) = ended {
            ended??;
            bail!("a part of the world ended by itself");
        }
        Ok(self.diary.report())
    }
}
