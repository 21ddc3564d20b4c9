//! Command lines of the control plane's programs.
//!
//! All of them run in the control plane's folder, without the caller's environment. They listen only
//! on loopback, or in a network of their own.

use std::{net::SocketAddrV4, path::Path, process::Command};

use super::CopyOptions;
use super::isolate::{API_ADDRESS, NODE_ADDRESS, POD_RANGE, SERVICE_RANGE};

/// Socket of etcd, relative to the folder. It needs no free port and avoids the length limit of
/// socket paths. etcd requires a suffix that looks like a port.
const ETCD: &str = "unix://etcd.sock:1";

/// File of the socket.
pub(super) const ETCD_SOCKET: &str = "etcd.sock:1";

/// Audit policy that logs every request once, when it is answered.
pub(super) const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
";

/// Audit log, relative to the folder.
pub(super) const AUDIT_LOG: &str = "audit.log";

/// File with the tokens of users, relative to the folder.
pub(super) const TOKENS: &str = "tokens.csv";

/// File with the proxy to pods, relative to the folder.
pub(super) const EGRESS: &str = "egress.json";

/// File with the certificate of the authority that servers in place of pods have, relative to the
/// folder.
pub(super) const ANSWERS_CA: &str = "answers.crt";

/// File with kwok's stages, relative to the folder.
pub(super) const STAGES: &str = "stages.yaml";

/// Returns the configuration of the proxy to pods, and to webhooks outside of the cluster.
pub(super) fn egress(socket: &Path) -> String {
    let selection = |name: &str| {
        serde_json::json!({
            "name": name,
            "connection": {
                "proxyProtocol": "HTTPConnect",
                "transport": {"uds": {"udsName": socket}},
            },
        })
    };
    serde_json::json!({
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [selection("cluster"), selection("controlplane")],
    })
    .to_string()
}

/// Returns the content of the file with the tokens.
pub(super) fn tokens(copy: &CopyOptions) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let (name, groups) = &copy.user;
    let fields = [&copy.token, name, name, &groups.join(",")];
    let mut line = fields.map(|field| quoted(field)).join(",");
    line.push('\n');
    line
}

/// Creates the command of a program that runs in the folder.
pub(super) fn program(path: &Path, folder: &Path) -> Command {
    let mut command = Command::new(path);
    command
        .current_dir(folder)
        .env_clear()
        .env("HOME", folder)
        // Fewer garbage collections, because the tests wait for the processor most of the time.
        .envs([("GOGC", "400"), ("GOMEMLIMIT", "1GiB")])
        .env("PATH", "/usr/bin:/bin");
    command
}

pub(super) fn etcd(path: &Path, folder: &Path) -> Command {
    let mut command = program(path, folder);
    let peer = "http://127.0.0.1:0"; // never used: there is one member
    command
        .args(["--name=throwaway", "--data-dir=etcd", "--log-level=warn"])
        .arg("--unsafe-no-fsync")
        .arg("--max-request-bytes=16777216")
        .arg(format!("--listen-client-urls={ETCD}"))
        .arg(format!("--advertise-client-urls={ETCD}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=throwaway={peer}"));
    command
}

pub(super) fn kube_apiserver(
    path: &Path,
    folder: &Path,
    listen: SocketAddrV4,
    copy: Option<&CopyOptions>,
) -> Command {
    let ranges = copy.map_or(SERVICE_RANGE, |copy| &copy.service_ranges);
    let mut command = program(path, folder);
    command
        .arg(format!("--etcd-servers={ETCD}"))
        .arg(format!("--bind-address={}", listen.ip()))
        .arg(format!("--secure-port={}", listen.port()))
        .arg("--permit-port-sharing=true") // we keep the port reserved
        .arg(format!("--advertise-address={API_ADDRESS}"))
        .arg(format!("--service-cluster-ip-range={ranges}"))
        .args(["--cert-dir=apiserver", "--client-ca-file=ca.crt"])
        .args([
            "--tls-cert-file=server.crt",
            "--tls-private-key-file=server.key",
        ])
        .args(["--authorization-mode=RBAC", "--allow-privileged=true"])
        .arg("--kubelet-preferred-address-types=InternalIP") // names of nodes do not resolve
        .args([
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=service-account.pub",
            "--service-account-signing-key-file=service-account.key",
        ])
        .args([
            "--enable-aggregator-routing=true", // kube-proxy does not run
            "--requestheader-client-ca-file=front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--proxy-client-cert-file=front-proxy-client.crt",
            "--proxy-client-key-file=front-proxy-client.key",
        ])
        // The plugin taints new nodes until the node lifecycle controller removes the taint. The
        // node lifecycle controller must not run, because kwok's nodes have no kubelet.
        .arg(format!(
            "--disable-admission-plugins=TaintNodesByCondition{}",
            if copy.is_some_and(|copy| !copy.webhooks) {
                NO_WEBHOOKS
            } else {
                ""
            }
        ))
        .arg("--audit-policy-file=audit-policy.yaml")
        .arg(format!("--audit-log-path={AUDIT_LOG}"))
        .arg("--audit-log-maxsize=100000"); // one file, whatever happens
    if copy.is_some() {
        // A copy is on the machine of a user. With 5,000 objects this halves the memory.
        command
            .env("GOGC", "100")
            // Registrations without a CA bundle trust the certificates of the system.
            .env("SSL_CERT_FILE", ANSWERS_CA)
            .arg(format!("--token-auth-file={TOKENS}"))
            .arg(format!("--egress-selector-config-file={EGRESS}"));
    }
    command
}

/// Admission plugins that call webhooks.
const NO_WEBHOOKS: &str = ",MutatingAdmissionWebhook,ValidatingAdmissionWebhook";

/// Controllers that act on time or on measured load.
const TIMED: &str = ",-cronjob-controller,-horizontal-pod-autoscaler-controller,-ttl-controller,-ttl-after-finished-controller";

pub(super) fn kube_controller_manager(path: &Path, folder: &Path, is_copy: bool) -> Command {
    let mut command = program(path, folder);
    command
        .args([
            "--kubeconfig=admin.kubeconfig",
            "--leader-elect=false",
            "--secure-port=0",
        ])
        .arg(format!(
            "--controllers=*,-nodeipam,-nodelifecycle,-cloud-node-lifecycle{}",
            if is_copy { TIMED } else { "" }
        ))
        .args(["--kube-api-qps=1000", "--kube-api-burst=1000"])
        .args([
            "--root-ca-file=ca.crt",
            "--service-account-private-key-file=service-account.key",
        ]);
    command
}

pub(super) fn kube_scheduler(path: &Path, folder: &Path) -> Command {
    let mut command = program(path, folder);
    command.args([
        "--kubeconfig=admin.kubeconfig",
        "--leader-elect=false",
        "--secure-port=0",
    ]);
    command
}

pub(super) fn kwok(path: &Path, folder: &Path) -> Command {
    let mut command = program(path, folder);
    command
        .args(["--kubeconfig=admin.kubeconfig", "--manage-all-nodes"])
        .arg(format!("--config={STAGES}"))
        .arg(format!("--cidr={POD_RANGE}"))
        .arg(format!("--node-ip={NODE_ADDRESS}"));
    command
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use super::*;
    use crate::TrustedAuthority;

    #[test]
    fn webhooks_are_called_unless_they_are_left_out() {
        let listen = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
        for (webhooks, expected) in [(true, false), (false, true)] {
            let copy = CopyOptions {
                service_ranges: "10.0.0.0/16".to_owned(),
                user: ("ann".to_owned(), Vec::new()),
                token: "token".to_owned(),
                pod_delay: Duration::ZERO,
                authority: TrustedAuthority {
                    name: "a".to_owned(),
                    key: "secret".to_owned(),
                },
                webhooks,
            };
            assert!(!format!("{copy:?} {:?}", copy.authority).contains("secret"));
            let command = kube_apiserver(Path::new("a"), Path::new("/"), listen, Some(&copy));
            let mut arguments = command.get_args().filter_map(|it| it.to_str());
            let is_off = arguments.any(|it| it.ends_with(NO_WEBHOOKS));
            assert_eq!(is_off, expected);
        }
    }
}
