//! Throwaway control plane for experiments, tests and the demo.
//!
//! Starts etcd and the API server, and optionally the controller manager, the scheduler and kwok
//! with nodes, as real processes in a private folder. Nothing outlives the owner: drop, panic,
//! Ctrl-C and SIGKILL all end the processes and remove the folder. It cannot use a running cluster
//! and reads no environment; callers provide the locations of programs.
//!
//! ```no_run
//! use pleach_throwaway::{Binaries, ControlPlane, Network, Options};
//!
//! # async fn example() -> Result<(), pleach_throwaway::ThrowawayError> {
//! let options = Options {
//!     binaries: Binaries::new(None, None, Some("/home/me".into())),
//!     controllers: true,
//!     scheduler: false,
//!     nodes: 0,
//!     network: Network::Host,
//! };
//! let control_plane = ControlPlane::start(options).await?;
//! println!("export KUBECONFIG={}", control_plane.kubeconfig().display());
//! # Ok(()) }
//! ```

mod answers;
mod binaries;
mod certificates;
mod components;
mod error;
pub mod etcd;
mod fetch;
mod folder;
pub mod isolate;
mod kubeconfig;
pub mod nodes;
mod pins;
mod processes;
mod ready;
mod stages;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;

pub use self::{
    answers::Webhook,
    binaries::{Binaries, kubernetes_minor, kubernetes_version},
    error::ThrowawayError,
    fetch::{FetchError, Progress},
};

use self::{
    certificates::{Authority, SigningKey},
    etcd::Etcd,
    folder::Folder,
    processes::Processes,
    ready::Waiter,
};

/// Prefix of the names of all folders.
const FOLDERS: &str = "pleach-throwaway-";

/// Components of a control plane.
#[derive(Debug, Clone)]
pub struct Options {
    /// Locations of the programs.
    pub binaries: Binaries,
    /// Whether to run the controller manager. Without it, nothing reconciles objects, and pods
    /// cannot be created because namespaces get no service account.
    pub controllers: bool,
    /// Whether to run the scheduler.
    pub scheduler: bool,
    /// Number of nodes: real ones with [`Network::Nodes`], otherwise simulated by kwok.
    pub nodes: usize,
    /// Network mode.
    pub network: Network,
}

/// Settings of a control plane that holds a copy of a cluster.
#[derive(Clone)]
pub struct CopyOptions {
    /// Address ranges of Services, separated by commas, as the cluster has them.
    pub service_ranges: String,
    /// User name and groups for the token.
    pub user: (String, Vec<String>),
    /// Bearer token of the user. It must be random.
    pub token: String,
    /// Time until a new pod is ready.
    pub pod_delay: Duration,
    /// Authority that the registrations of the copy trust.
    pub authority: TrustedAuthority,
    /// Whether the API server calls admission webhooks.
    pub webhooks: bool,
}

/// Authority that webhooks and aggregated APIs of a copy have their certificates from.
#[derive(Clone)]
pub struct TrustedAuthority {
    /// Common name.
    pub name: String,
    /// Private key as PEM.
    pub key: String,
}

impl std::fmt::Debug for TrustedAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrustedAuthority")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for CopyOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyOptions")
            .field("service_ranges", &self.service_ranges)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Network of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Network of the host. Pod addresses are unreachable.
    Host,
    /// Network namespace with local pod addresses, so that a server in it can answer for pods.
    /// Starting fails outside of one, see [`isolate::reexec`].
    Namespace,
    /// Namespaces for real nodes. Starting fails outside of them, see [`isolate::nodes_command`].
    Nodes,
}

/// Component that can crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// Stores the objects.
    Etcd,
    /// Serves the API.
    ApiServer,
    /// Runs the pods of a real node, by the number of the node.
    Kubelet(u8),
}

/// Running control plane. Dropping it ends it.
#[derive(Debug)]
pub struct ControlPlane {
    // Declared and dropped first. The folder can only be removed after all writers have ended.
    processes: Processes,
    folder: Folder,
    binaries: Binaries,
    programs: Programs,
    kubeconfig: PathBuf,
    copy_kubeconfig: Option<PathBuf>,
    copy: Option<CopyOptions>,
    _answers: Option<JoinSet<()>>,
    counts: answers::Counts,
    audit_log: PathBuf,
    server_url: String,
    ca: Arc<Authority>,
    ca_pem: String,
    users: AtomicUsize,
    listen: SocketAddrV4,
    _port: tokio::net::TcpSocket,
}

impl ControlPlane {
    /// Starts a control plane and waits until it is ready.
    pub async fn start(options: Options) -> Result<Self, ThrowawayError> {
        Stored::start(options).await?.serve().await
    }

    /// Returns the kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns the kubeconfig of the user of a copy.
    pub fn copy_kubeconfig(&self) -> Option<&Path> {
        self.copy_kubeconfig.as_deref()
    }

    /// Returns how often each webhook of a copy was asked, without dry runs. For conversion webhooks,
    /// returns the number of objects.
    pub fn webhooks(&self) -> BTreeMap<Webhook, u64> {
        self.counts.get()
    }

    /// Returns the address of the API server.
    pub fn server_url(&self) -> &str {
        &self.server_url
    }

    /// Returns the certificate of the authority that signed the API server's.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Returns the audit log: one JSON event per answered request, level Metadata.
    pub fn audit_log(&self) -> &Path {
        &self.audit_log
    }

    /// Returns the path of kubectl, of the same version as the API server.
    pub fn kubectl(&self) -> &Path {
        &self.programs.kubectl
    }

    /// Kills a component without a shutdown and restarts it. Does not wait until it is ready.
    pub fn restart(&self, component: Component) -> Result<(), ThrowawayError> {
        self.kill(component)?;
        self.start_again(component)
    }

    /// Kills a component without a shutdown, and waits until it has ended.
    pub fn kill(&self, component: Component) -> Result<(), ThrowawayError> {
        let (name, _) = self.program(component)?;
        self.processes.kill(name);
        Ok(())
    }

    /// Starts a component that was killed. Does not wait until it is ready.
    pub fn start_again(&self, component: Component) -> Result<(), ThrowawayError> {
        let (name, command) = self.program(component)?;
        start_process(&self.processes, &self.folder, name, command)
    }

    /// Returns the name and the command line of a component.
    fn program(&self, component: Component) -> Result<(&'static str, Command), ThrowawayError> {
        let (programs, path) = (&self.programs, self.folder.path());
        Ok(match component {
            Component::Etcd => ("etcd", components::etcd(&programs.etcd, path)),
            Component::ApiServer => (
                "kube-apiserver",
                components::kube_apiserver(
                    &programs.kube_apiserver,
                    path,
                    self.listen,
                    self.copy.as_ref(),
                ),
            ),
            Component::Kubelet(number) => {
                let programs = programs.nodes.as_ref();
                let program = programs.and_then(|programs| nodes::kubelet(programs, number, path));
                let program = program.ok_or(ThrowawayError::NoNode(number))?;
                (program.name, program.command)
            }
        })
    }

    /// Returns the client of etcd.
    pub fn etcd(&self) -> Etcd {
        Etcd::new(self.folder.path())
    }

    /// Returns a program that has ended by itself, with the end of its log, if any.
    pub fn find_ended(&self) -> Option<ThrowawayError> {
        let (name, status) = self.processes.find_ended()?;
        let log = self.folder.log_tail(name);
        Some(ThrowawayError::ProcessEnded { name, status, log })
    }

    /// Returns the folder, with one log per program.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// Finds a program by name, such as `kube-apiserver`.
    pub fn bin(&self, name: &'static str) -> Result<PathBuf, ThrowawayError> {
        self.binaries.find(name)
    }

    /// Writes the kubeconfig of a user without permissions.
    ///
    /// The client certificate of the user supports at most two groups.
    pub fn kubeconfig_for_user(
        &self,
        name: &str,
        groups: &[&str],
    ) -> Result<PathBuf, ThrowawayError> {
        let user = self.ca.client(name, groups)?;
        let number = self.users.fetch_add(1, Ordering::Relaxed);
        self.folder.write(
            &format!("user-{number}.kubeconfig"),
            &kubeconfig::kubeconfig(&self.server_url, &self.ca_pem, &user),
        )
    }

    /// Ends all processes and removes the folder, as dropping does.
    pub fn stop(self) {
        drop(self);
    }
}

/// Store of a control plane whose API server does not run yet. Dropping it ends it.
#[derive(Debug)]
pub struct Stored {
    // Declared and dropped first, as in `ControlPlane`.
    processes: Processes,
    folder: Folder,
    options: Options,
    copy: Option<CopyOptions>,
    programs: Programs,
    ca: Arc<Authority>,
    port: tokio::net::TcpSocket,
    listen: SocketAddrV4,
}

impl Stored {
    /// Finds all programs, then starts etcd.
    pub async fn start(options: Options) -> Result<Self, ThrowawayError> {
        Self::start_with(options, None).await
    }

    /// Starts etcd for a copy of a cluster. Its nodes are those of the copy, a server answers in
    /// place of pods and webhooks, and controllers that act on time do not run.
    pub async fn start_copy(binaries: Binaries, copy: CopyOptions) -> Result<Self, ThrowawayError> {
        let options = Options {
            binaries,
            controllers: true,
            scheduler: true,
            nodes: 0,
            network: Network::Host,
        };
        Self::start_with(options, Some(copy)).await
    }

    async fn start_with(
        options: Options,
        copy: Option<CopyOptions>,
    ) -> Result<Self, ThrowawayError> {
        let is_isolated = match options.network {
            Network::Host => true,
            Network::Namespace => isolate::pods_can_answer(),
            Network::Nodes => isolate::nodes_can_run(),
        };
        if !is_isolated {
            return Err(ThrowawayError::NotIsolated);
        }
        if options.network == Network::Nodes && options.nodes > nodes::MAXIMUM {
            return Err(ThrowawayError::TooManyNodes(nodes::MAXIMUM));
        }
        // Find all programs before starting any.
        let programs = Programs::find(&options, copy.is_some())?;
        let folder = Folder::create(FOLDERS)?;
        let (port, listen) = reserve_port(options.network).map_err(ThrowawayError::ReservePort)?;
        let processes = Processes::new().map_err(|source| ThrowawayError::StartProcess {
            name: "a thread for the control plane".to_owned(),
            source,
        })?;
        let stored = Self {
            processes,
            folder,
            options,
            copy,
            programs,
            ca: Arc::new(Authority::new("throwaway-ca")?),
            port,
            listen,
        };
        let path = stored.folder.path();
        stored.run("etcd", components::etcd(&stored.programs.etcd, path))?;
        let socket = path.join(components::ETCD_SOCKET);
        let exists = async || socket.exists();
        stored.waiter().until("etcd", exists).await?;
        Ok(stored)
    }

    /// Returns the client of etcd.
    pub fn etcd(&self) -> Etcd {
        Etcd::new(self.folder.path())
    }

    /// Starts the API server and the other programs, and waits until they are ready.
    pub async fn serve(self) -> Result<ControlPlane, ThrowawayError> {
        let path = self.folder.path();
        let server_url = format!("https://127.0.0.1:{}", self.listen.port());
        let ca = Arc::clone(&self.ca);
        write_files(&self.folder, &ca)?;
        let mut answers = None;
        let counts = answers::Counts::default();
        if let Some(copy) = &self.copy {
            let TrustedAuthority { name, key } = &copy.authority;
            let authority = Arc::new(Authority::from_key(name, key)?);
            self.folder
                .write(components::ANSWERS_CA, &authority.pem())?;
            answers = Some(answers::start(path, authority, counts.clone())?);
            let text = components::egress(&path.join(answers::SOCKET));
            self.folder.write(components::EGRESS, &text)?;
        }
        let admin = ca.client("throwaway-admin", &["system:masters"])?;
        let ca_pem = ca.pem();
        let kubeconfig = self.folder.write(
            "admin.kubeconfig",
            &kubeconfig::kubeconfig(&server_url, &ca_pem, &admin),
        )?;
        let copy_kubeconfig = match &self.copy {
            Some(copy) => {
                self.folder
                    .write(components::TOKENS, &components::tokens(copy))?;
                let text = kubeconfig::with_token(&server_url, &ca_pem, &copy.token);
                Some(self.folder.write("user.kubeconfig", &text)?)
            }
            None => None,
        };
        self.run("kube-apiserver", self.api_server())?;
        let client = ready::connect(&kubeconfig).await?;
        let waiter = self.waiter();
        ready::api_server(&waiter, &client).await?;
        if let Some(program) = &self.programs.kube_controller_manager {
            self.run(
                "kube-controller-manager",
                components::kube_controller_manager(program, path, self.copy.is_some()),
            )?;
        }
        if let Some(program) = &self.programs.kube_scheduler {
            self.run("kube-scheduler", components::kube_scheduler(program, path))?;
        }
        let nodes = self.options.nodes;
        if let Some(program) = &self.programs.kwok {
            let stages = stages::stages(self.copy.as_ref().map(|copy| copy.pod_delay));
            self.folder.write(components::STAGES, &stages)?;
            self.run("kwok", components::kwok(program, path))?;
            ready::create_nodes(&client, nodes).await?;
        }
        if let Some(programs) = &self.programs.nodes {
            for number in (0..).take(nodes) {
                for program in nodes::programs(programs, number, path)? {
                    self.run(program.name, program.command)?;
                }
            }
        }
        ready::nodes(&waiter, &client, nodes).await?;
        if self.options.controllers {
            ready::controllers(&waiter, &client).await?;
        }

        Ok(ControlPlane {
            audit_log: path.join(components::AUDIT_LOG),
            processes: self.processes,
            folder: self.folder,
            binaries: self.options.binaries,
            programs: self.programs,
            kubeconfig,
            copy_kubeconfig,
            copy: self.copy,
            _answers: answers,
            counts,
            server_url,
            ca,
            ca_pem,
            users: AtomicUsize::new(0),
            listen: self.listen,
            _port: self.port,
        })
    }

    fn run(&self, name: &'static str, command: Command) -> Result<(), ThrowawayError> {
        start_process(&self.processes, &self.folder, name, command)
    }

    fn api_server(&self) -> Command {
        components::kube_apiserver(
            &self.programs.kube_apiserver,
            self.folder.path(),
            self.listen,
            self.copy.as_ref(),
        )
    }

    fn waiter(&self) -> Waiter<'_> {
        Waiter {
            processes: &self.processes,
            folder: &self.folder,
        }
    }
}

/// Paths of the required programs.
#[derive(Debug)]
struct Programs {
    etcd: PathBuf,
    kube_apiserver: PathBuf,
    kubectl: PathBuf,
    kube_controller_manager: Option<PathBuf>,
    kube_scheduler: Option<PathBuf>,
    kwok: Option<PathBuf>,
    nodes: Option<nodes::Programs>,
}

impl Programs {
    fn find(options: &Options, is_copy: bool) -> Result<Self, ThrowawayError> {
        let find = |name| options.binaries.find(name);
        let find_if = |is_needed: bool, name| is_needed.then(|| find(name)).transpose();
        let has_real_nodes = options.network == Network::Nodes;
        let has_kwok = (options.nodes > 0 || is_copy) && !has_real_nodes;
        Ok(Self {
            etcd: find("etcd")?,
            kube_apiserver: find("kube-apiserver")?,
            kubectl: find("kubectl")?,
            kube_controller_manager: find_if(options.controllers, "kube-controller-manager")?,
            kube_scheduler: find_if(options.scheduler, "kube-scheduler")?,
            kwok: find_if(has_kwok, "kwok")?,
            nodes: has_real_nodes
                .then(|| nodes::Programs::find(&options.binaries))
                .transpose()?,
        })
    }
}

/// Reserves the port of the API server, on the loopback interface.
///
/// Pods of real nodes expect the port of the Service `kubernetes`, on every address.
///
/// The socket never listens, so it accepts no connections. It only prevents other processes from
/// using the port before the API server shares it.
fn reserve_port(network: Network) -> std::io::Result<(tokio::net::TcpSocket, SocketAddrV4)> {
    let (address, port) = match network {
        Network::Host | Network::Namespace => (Ipv4Addr::LOCALHOST, 0),
        Network::Nodes => (Ipv4Addr::UNSPECIFIED, 443),
    };
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.bind((address, port).into())?;
    let port = socket.local_addr()?.port();
    Ok((socket, SocketAddrV4::new(address, port)))
}

fn write_files(folder: &Folder, ca: &Authority) -> Result<(), ThrowawayError> {
    let service_accounts = SigningKey::new()?;
    let front_proxy_ca = Authority::new("throwaway-front-proxy-ca")?;
    let front_proxy = front_proxy_ca.client("front-proxy-client", &[])?;
    let server = ca.server(
        "kube-apiserver",
        &[
            "127.0.0.1",
            "10.0.0.1",
            &isolate::API_ADDRESS.to_string(),
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ],
    )?;
    for (name, contents) in [
        ("ca.crt", &ca.pem()),
        ("server.crt", &server.certificate),
        ("server.key", &server.key),
        ("front-proxy-ca.crt", &front_proxy_ca.pem()),
        ("front-proxy-client.crt", &front_proxy.certificate),
        ("front-proxy-client.key", &front_proxy.key),
        ("service-account.key", &service_accounts.private),
        ("service-account.pub", &service_accounts.public),
        ("audit-policy.yaml", &components::AUDIT_POLICY.to_owned()),
    ] {
        folder.write(name, contents)?;
    }
    Ok(())
}

fn start_process(
    processes: &Processes,
    folder: &Folder,
    name: &'static str,
    mut command: Command,
) -> Result<(), ThrowawayError> {
    let failed = |source| ThrowawayError::StartProcess {
        name: name.to_owned(),
        source,
    };
    let log = folder.log(name)?;
    command
        .stdin(std::process::Stdio::null())
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log);
    processes.start(name, command).map_err(failed)?;
    Ok(())
}
