//! A world in which a product lives that registers itself: pods that answer,
//! or crash, and a user who writes all the time.
//!
//! The API server, controllers and the scheduler are real; kubelets are
//! simulated. The world acts as what would run in the pods of a [`Product`]:
//! - A pod of the api component makes its certificates and its registrations
//!   (an `APIService` and two webhook configurations) with the rights of its
//!   service account, and crash-loops if it cannot, for instance because one of
//!   them points at another namespace. Then it is ready and answers.
//! - A pod of the controller component keeps the leader's lock, or crash-loops.
//! - The user creates, updates and deletes objects and records what happens.
//!
//! Audit logs tell them apart by User-Agent: `testkit-world`, `testkit-user`, and
//! the name of the component, or of the operator, for its pods.
//!
//! An [`Operator`] is a world of its own: what runs in the pods of the bundle
//! `manifests/depot`.
//!
//! The addresses of pods must be local: run in a network namespace of the
//! throw-away control plane. Everything stops when the world is dropped.

mod admission;
mod certificates;
mod hold;
mod leader;
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

/// A pod that exited at its start or while it ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// What it said.
    pub reason: String,
}

/// A running world, which ends when it is dropped.
pub struct World {
    shared: Arc<Shared>,
    log: ValidationLog,
    diary: Diary,
    /// Of who shares the administrator's kubeconfig.
    shared_diary: Diary,
    tasks: JoinSet<anyhow::Result<()>>,
}

/// What the parts of the world have in common.
struct Shared {
    config: Config,
    admin: Rest,
    product: Arc<Product>,
    /// With the namespace that each of them is in.
    alive: Alive<String>,
    controllers: Controllers,
    served: Mutex<HashMap<String, Arc<rustls::ServerConfig>>>,
    crashes: Mutex<Vec<Crash>>,
}

/// The administrator's connection, past all proxies.
async fn connection(kubeconfig: &Path) -> anyhow::Result<Config> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(config)
}

impl Shared {
    /// What the api pods of a namespace serve with, once one of them started.
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
    /// Begins to play a product on a control plane, as its administrator.
    pub async fn start(kubeconfig: &Path, product: Product) -> anyhow::Result<Self> {
        let config = connection(kubeconfig).await?;
        let admin = Rest::new(&config, "testkit-world")?;
        hold::install(&admin, &product).await?;
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
        let told = (Arc::clone(&shared.product), log.clone());
        let answer = move |request: Request<Incoming>, namespace: String| {
            let (product, log) = told.clone();
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

    /// Lets the user begin to write. The product must be installed.
    pub async fn start_user(&mut self) -> anyhow::Result<()> {
        let admin = &self.shared.admin;
        let bindings =
            format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{USERS}/rolebindings");
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": USERS},
        });
        // The product adds its resources to this role.
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

    /// Lets somebody write who shares the administrator's kubeconfig, beside the user.
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

    /// What who shares the administrator's kubeconfig saw so far.
    pub fn administrators_report(&self) -> Report {
        self.shared_diary.report()
    }

    /// What the user saw so far.
    pub fn report(&self) -> Report {
        self.diary.report()
    }

    /// Waits until the user made so many more writes.
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

    /// All crashes so far, in their order.
    pub fn crashes(&self) -> Vec<Crash> {
        let crashes = self.shared.crashes.lock();
        crashes.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Pairs of namespaces in which controllers ran at the same time: the one
    /// where they ran already, and the one where they came.
    pub fn controllers_together(&self) -> Vec<(String, String)> {
        self.shared.controllers.together()
    }

    /// Stops everything, and says what went wrong in the world itself.
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
