//! Git server over ssh on loopback: the system's `sshd`, one process per connection, with its own
//! keys.
#![expect(
    clippy::disallowed_methods,
    reason = "writes only inside its own folder; contexts name the path"
)]

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context as _, ensure};

/// Usual locations of `sshd`, such as on Debian.
const PLACES: [&str; 3] = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"];
/// Folder that `sshd` requires when it runs as root.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

/// Server of the local repositories for clients with [`SshServer::key`].
///
/// ```no_run
/// use pleach_testkit::repository::TestRepo;
/// use pleach_testkit::ssh_server::SshServer;
///
/// # fn main() -> anyhow::Result<()> {
/// let repo = TestRepo::new([("pleach.yaml", "kind: Repository\n")])?;
/// let server = SshServer::start()?;
/// println!("{} {}", server.url(repo.path()), server.known_hosts()?);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SshServer {
    folder: tempfile::TempDir,
    address: SocketAddr,
    user: String,
    connections: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    children: Arc<Mutex<Vec<Child>>>,
    thread: Option<JoinHandle<()>>,
}

impl SshServer {
    /// Starts the server on a free port.
    pub fn start() -> anyhow::Result<Self> {
        let program = PLACES.iter().map(Path::new).find(|path| path.exists());
        let program = program.context("there is no sshd; `make check-tools` names its package")?;
        let user = output_of(Command::new("id").arg("-un"))?;
        if user == "root" {
            fs::create_dir_all(PRIVILEGE_SEPARATION)
                .with_context(|| format!("failed to make {PRIVILEGE_SEPARATION}"))?;
        }
        let folder = tempfile::Builder::new().prefix("pleach-sshd-").tempdir()?;
        for name in ["host", "id"] {
            make_key(&folder.path().join(name))?;
        }
        let path = |name: &str| folder.path().join(name);
        let configuration = format!(
            "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nUseDNS no\n",
            path("host").display(),
            path("id.pub").display()
        );
        fs::write(path("sshd_config"), configuration)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("failed to listen")?;
        let mut server = Self {
            address: listener.local_addr()?,
            folder,
            user,
            connections: Arc::default(),
            stop: Arc::default(),
            children: Arc::default(),
            thread: None,
        };
        server.thread = Some(server.serve(program.to_owned(), listener));
        Ok(server)
    }

    /// Starts one `sshd` per connection, like inetd. No process remains, and no port must be known
    /// before.
    fn serve(&self, program: PathBuf, listener: TcpListener) -> JoinHandle<()> {
        let (stop, children) = (Arc::clone(&self.stop), Arc::clone(&self.children));
        let connections = Arc::clone(&self.connections);
        let configuration = self.folder.path().join("sshd_config");
        let log = self.folder.path().join("log");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                connections.fetch_add(1, Ordering::Relaxed);
                let Ok(answers) = stream.try_clone() else {
                    continue;
                };
                let log = fs::File::options().create(true).append(true).open(&log);
                let child = Command::new(&program)
                    .args(["-i", "-e", "-f"])
                    .arg(&configuration)
                    .stdin(Stdio::from(OwnedFd::from(stream)))
                    .stdout(Stdio::from(OwnedFd::from(answers)))
                    .stderr(log.map_or_else(|_| Stdio::null(), Stdio::from))
                    .spawn();
                let mut children = children.lock().unwrap_or_else(PoisonError::into_inner);
                children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
                children.extend(child);
            }
        })
    }

    /// Returns the URL of a repository folder, as `ssh://user@host:port/path`.
    pub fn url(&self, repository: &Path) -> String {
        let (user, address) = (&self.user, self.address);
        format!("ssh://{user}@{address}{}", repository.display())
    }

    /// Returns the path of the accepted private key.
    pub fn key(&self) -> PathBuf {
        self.folder.path().join("id")
    }

    /// Returns the `known_hosts` line of the server.
    pub fn known_hosts(&self) -> anyhow::Result<String> {
        let key = fs::read_to_string(self.folder.path().join("host.pub"))?;
        let port = self.address.port();
        Ok(format!("[127.0.0.1]:{port} {key}"))
    }

    /// Returns the fingerprint of the server's key.
    pub fn fingerprint(&self) -> anyhow::Result<String> {
        let printed = output_of(
            Command::new("ssh-keygen")
                .arg("-lf")
                .arg(self.folder.path().join("host.pub")),
        )?;
        let fingerprint = printed
            .split(' ')
            .nth(1)
            .context("ssh-keygen printed none")?;
        Ok(fingerprint.to_owned())
    }

    /// Returns the number of connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the log of `sshd`.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wake the thread, so that it checks the stop flag.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        for child in children.iter_mut() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Creates a key pair: the private key at a path, the public one beside it.
pub fn make_key(path: &Path) -> anyhow::Result<()> {
    output_of(
        Command::new("ssh-keygen")
            .args([
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                "tester@example.com",
                "-f",
            ])
            .arg(path),
    )?;
    Ok(())
}

/// Runs a program and returns its output.
fn output_of(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("failed to run {}", command.get_program().display()))?;
    ensure!(
        output.status.success(),
        "{} failed: {}",
        command.get_program().display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
