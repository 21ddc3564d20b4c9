//! Real nodes: a kubelet and containerd with runc for each.
//!
//! The nodes run in the namespaces of [`super::isolate::nodes_command`], whose end also ends
//! containers, networks and mounts. Each node has a bridge and a subnet for its pods, and control
//! groups below one with the name of the temporary folder.
#![expect(
    clippy::disallowed_methods,
    reason = "writes only inside its own folder and control groups; ThrowawayError names the path"
)]

use std::{
    fs, io,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;

use super::{Binaries, ThrowawayError, components};

/// Port on loopback from which nodes pull images without TLS.
pub const REGISTRY_PORT: u16 = 5000;

/// Image that nodes run beside the containers of each pod. The test publishes it.
pub const POD_IMAGE: &str = "127.0.0.1:5000/pod:1";

/// Mount point of control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Folder of the network plugins in Debian's package.
const NETWORK_PLUGINS: &str = "/usr/lib/cni";

/// Names of the programs of each node.
const NAMES: [(&str, &str); 3] = [
    ("containerd-0", "kubelet-0"),
    ("containerd-1", "kubelet-1"),
    ("containerd-2", "kubelet-2"),
];

/// Maximum number of nodes.
pub(super) const MAXIMUM: usize = NAMES.len();

/// Paths of the programs.
#[derive(Debug)]
pub(super) struct Programs {
    containerd: PathBuf,
    kubelet: PathBuf,
}

impl Programs {
    pub(super) fn find(binaries: &Binaries) -> Result<Self, ThrowawayError> {
        binaries.find("containerd-shim-runc-v2")?;
        Ok(Self {
            containerd: binaries.find("containerd")?,
            kubelet: binaries.find("kubelet")?,
        })
    }
}

/// Program with its name in the process list.
pub(super) struct Named {
    pub(super) name: &'static str,
    pub(super) command: Command,
}

/// Node whose files and control groups exist.
#[derive(Debug)]
struct Node {
    /// Third byte of the subnet of its pods.
    subnet: u8,
    name: String,
    folder: PathBuf,
    address: Ipv4Addr,
    /// Control group, from the root of every hierarchy.
    group: PathBuf,
}

/// Prepares a node and returns its programs in the order of their start. They run in the folder of
/// the control plane.
pub(super) fn programs(
    programs: &Programs,
    number: u8,
    control_plane: &Path,
) -> Result<[Named; 2], ThrowawayError> {
    let node = Node::create(number)?;
    let (containerd, kubelet) = NAMES[usize::from(number)];
    Ok([
        Named {
            name: containerd,
            command: node.containerd(&programs.containerd, control_plane),
        },
        Named {
            name: kubelet,
            command: node.kubelet(&programs.kubelet, control_plane),
        },
    ])
}

/// Returns the kubelet of a node that [`programs`] prepared. `None` if there is no such node.
pub(super) fn kubelet(programs: &Programs, number: u8, control_plane: &Path) -> Option<Named> {
    let (_, name) = *NAMES.get(usize::from(number))?;
    let node = Node::of(number);
    let command = node.kubelet(&programs.kubelet, control_plane);
    node.folder.exists().then_some(Named { name, command })
}

impl Node {
    fn of(number: u8) -> Self {
        let temporary = std::env::temp_dir();
        let name = format!("node-{number}");
        Self {
            subnet: 160 + number,
            folder: temporary.join(&name),
            address: Ipv4Addr::new(10, 250, 143, 10 + number),
            group: Path::new(temporary.file_name().unwrap_or_default()).join(&name),
            name,
        }
    }

    fn create(number: u8) -> Result<Self, ThrowawayError> {
        let node = Self::of(number);
        let networks = node.folder.join("networks");
        fs::create_dir_all(&networks).map_err(ThrowawayError::CreateFolder)?;
        node.write("containerd.toml", &node.containerd_configuration())?;
        node.write("kubelet.yaml", &node.kubelet_configuration())?;
        node.write("networks/pods.conflist", &node.network())?;
        node.make_groups()?;
        node.add_address()?;
        Ok(node)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), ThrowawayError> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(|source| ThrowawayError::WriteFile { path, source })
    }

    fn socket(&self) -> String {
        format!("/run/{}.sock", self.name)
    }

    fn containerd_configuration(&self) -> String {
        let (folder, name) = (self.folder.display(), &self.name);
        let socket = self.socket();
        format!(
            r#"version = 3
root = "{folder}/containerd"
state = "/run/{name}"
[grpc]
address = "{socket}"
[ttrpc]
address = "{socket}.ttrpc"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{POD_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{NETWORK_PLUGINS}"]
conf_dir = "{folder}/networks"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
"#
        )
    }

    fn network(&self) -> String {
        json!({
            "cniVersion": "1.0.0",
            "name": self.name,
            "plugins": [{
                "type": "bridge",
                "bridge": self.name,
                "isGateway": true,
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": format!("10.250.{}.0/24", self.subnet) }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        })
        .to_string()
    }

    fn kubelet_configuration(&self) -> String {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address.to_string(),
            "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
            "authorization": { "mode": "AlwaysAllow" },
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", self.group.display()),
            "containerRuntimeEndpoint": format!("unix://{}", self.socket()),
            "enforceNodeAllocatable": [],
            // A full disk of the machine is no reason to evict pods of a test.
            "evictionHard": { "memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%" },
            "failCgroupV1": false,
            "failSwapOn": false,
            "healthzPort": 0,
            "localStorageCapacityIsolation": false,
            "podLogsDir": self.folder.join("logs"),
            "readOnlyPort": 0,
            "resolvConf": "",
        })
        .to_string()
    }

    /// Makes the control group in every hierarchy.
    fn make_groups(&self) -> Result<(), ThrowawayError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| ThrowawayError::MakeControlGroup { path, source }
        };
        let root = Path::new(GROUPS);
        let mut hierarchies = vec![root.to_owned()];
        // Before version 2, each controller has a hierarchy of its own.
        if !root.join("cgroup.controllers").exists() {
            let folders = fs::read_dir(root).map_err(failed(root))?;
            let paths: io::Result<Vec<_>> = folders.map(|entry| Ok(entry?.path())).collect();
            hierarchies = paths.map_err(failed(root))?;
            hierarchies.retain(|path| path.is_dir() && !path.is_symlink());
        }
        for hierarchy in hierarchies {
            let group = hierarchy.join(&self.group);
            fs::create_dir_all(&group).map_err(failed(&group))?;
            for ancestor in [group.parent().unwrap_or(&group), &group] {
                fill(&hierarchy, ancestor).map_err(failed(ancestor))?;
            }
        }
        Ok(())
    }

    /// Adds the address of the node to the loopback interface.
    fn add_address(&self) -> Result<(), ThrowawayError> {
        let mut command = Command::new("ip");
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .args(["address", "add", &format!("{}/32", self.address)])
            .args(["dev", "lo"]);
        let failed = |source| ThrowawayError::StartProcess {
            name: format!("`ip address add` for {}", self.name),
            source,
        };
        let output = command.output().map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(failed(io::Error::other(text)))
    }

    fn containerd(&self, path: &Path, control_plane: &Path) -> Command {
        let mut command = components::program(path, control_plane);
        let programs = path.parent().unwrap_or(path).display();
        command
            // It starts its shims, runc and network plugins by name.
            .env("PATH", format!("{programs}:/usr/sbin:/usr/bin:/sbin:/bin"))
            .arg("--config")
            .arg(self.folder.join("containerd.toml"));
        command
    }

    fn kubelet(&self, path: &Path, control_plane: &Path) -> Command {
        let mut command = components::program(path, control_plane);
        command
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .arg("--kubeconfig=admin.kubeconfig")
            .arg("--config")
            .arg(self.folder.join("kubelet.yaml"))
            .arg("--root-dir")
            .arg(self.folder.join("kubelet"))
            .arg("--cert-dir")
            .arg(self.folder.join("certificates"))
            .arg(format!("--hostname-override={}", self.name))
            .arg(format!("--node-ip={}", self.address));
        command
    }
}

/// Gives a control group the processors and controllers of its parents, as the kernel does not.
fn fill(hierarchy: &Path, group: &Path) -> io::Result<()> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let is_separate = !hierarchy.join("cgroup.controllers").exists();
        if is_separate && group.join(name).exists() {
            fs::write(group.join(name), fs::read(hierarchy.join(name))?)?;
        }
    }
    let controllers = group.join("cgroup.controllers");
    if hierarchy == Path::new(GROUPS) && controllers.exists() {
        for controller in fs::read_to_string(controllers)?.split_whitespace() {
            fs::write(
                group.join("cgroup.subtree_control"),
                format!("+{controller}"),
            )?;
        }
    }
    Ok(())
}
