//! `pleach bootstrap` with a git server over https: the controller runs with the configuration, the
//! credentials and the permissions that it installed.

#![expect(clippy::disallowed_methods, reason = "the repository of a server")]

use std::fs::Permissions;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_testkit::control_plane::binaries;
use pleach_testkit::hosted::Hosted;
use pleach_testkit::throwaway::{ControlPlane, Network, Options};

use crate::fleet::{Fleet, PLANTED};
use crate::loop_run::Loop;

const RELEASE: [&str; 1] = ["release.pleach.dev/pleach.pleach"];

/// Returns an image with a digest.
fn image(digit: &str) -> String {
    format!("registry.example.org/pleach@sha256:{}", digit.repeat(64))
}

/// Returns a control plane of its own, because the release has a fixed name.
fn plane() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    PLANE.get_or_init(|| {
        pleach_testkit::control_plane::start(Options {
            binaries: binaries(),
            controllers: true,
            scheduler: true,
            nodes: 1,
            network: Network::Host,
        })
        .expect("the control plane starts")
    })
}

impl Fleet {
    /// Runs the controller as its pod does: with the configuration and the Secret in the cluster,
    /// as its account.
    fn runs_as_bootstrapped(&mut self) -> Loop {
        let user = "system:serviceaccount:pleach:pleach";
        let groups = ["system:serviceaccounts", "system:serviceaccounts:pleach"];
        let kubeconfig = plane().kubeconfig_for_user(user, &groups).unwrap();
        let key = |key: &str| {
            let path = format!("{{.data.{key}}}");
            let encoded = self.field(&["secret", "git", "-n", "pleach"], &path);
            String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap()
        };
        let username = self.file("username", &key("username"));
        let password = self.file("password", &key("password"));
        let map = self.field(
            &["configmap", "pleach", "-n", "pleach"],
            "{.data.controller\\.yaml}",
        );
        assert!(map.contains("inCluster: true"), "{map}");
        let map = map
            .replace(
                "inCluster: true",
                &format!("kubeconfigFile: {}", kubeconfig.display()),
            )
            .replace("secrets/git/username", &username)
            .replace("secrets/git/password", &password);
        let config = self.file("controller.yaml", &map);
        let before = self.server();
        self.through(kubeconfig);
        let running = self.runs_with(&[
            "--config",
            &config,
            "--share-in=pleach",
            "--own-release=pleach/pleach",
        ]);
        self.through(before);
        running
    }
}

#[test]
fn one_command_installs_and_upgrades_a_controller_that_follows_its_branch() {
    let hosted = Hosted::start(Ipv4Addr::LOCALHOST, PLANTED).unwrap();
    let git = |args: &[&str]| hosted.git(args).unwrap();
    let commits = || git(&["rev-list", "--count", "main"]);
    let hook = hosted.path().join("hooks/pre-receive");
    let none: [(&str, &str); 0] = [];
    let mut fleet = Fleet::on(plane(), "boot", "", &none);
    let certificates = fleet.file("ca.pem", hosted.certificate());
    fleet.set_variable("SSL_CERT_FILE", &certificates);
    let token = fleet.file("token", PLANTED);
    let (id, url) = (fleet.cluster_id(), hosted.url());
    let (first, second) = (image("1"), image("2"));
    let base = [
        "bootstrap",
        "--url",
        &url,
        "--token-file",
        &token,
        "--allow-namespaces",
        "team-*",
    ];
    let of = |image: &'static str, more: &[&'static str]| -> Vec<String> {
        let args = base
            .iter()
            .copied()
            .chain(["--image", image])
            .chain(more.iter().copied());
        args.map(str::to_owned).collect()
    };
    let run = |fleet: &Fleet, args: &[String]| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        fleet.run(&args)
    };
    let (first, second): (&'static str, &'static str) = (first.leak(), second.leak());
    let meant = |image: &'static str| {
        let mut args = of(image, &["--yes", "--cluster-id"]);
        args.push(id.clone());
        args
    };

    // Nothing is written without consent, to the wrong cluster, or without a push.
    run(&fleet, &of(first, &["--dry-run"]))
        .ended_with(0)
        .says("+  - name: pleach");
    let yaml = run(&fleet, &of(first, &["-o", "yaml"])).ended_with(0);
    assert!(
        yaml.stdout.contains("password: '***'")
            || yaml.stdout.contains("password: \"***\"")
            || yaml.stdout.contains("password: ***"),
        "{}",
        yaml.stdout
    );
    assert!(
        yaml.stdout.contains(&format!("image: {first}")),
        "{}",
        yaml.stdout
    );
    run(&fleet, &of(first, &["--yes"])).ended_with(2).says(&id);
    run(&fleet, &of(first, &["--yes", "--cluster-id", "other"])).ended_with(7);
    run(&fleet, &of(first, &[]))
        .ended_with(2)
        .says("cannot ask without a terminal");
    std::fs::write(&hook, "#!/bin/sh\necho main is protected >&2\nexit 1\n").unwrap();
    std::fs::set_permissions(&hook, Permissions::from_mode(0o700)).unwrap();
    run(&fleet, &meant(first))
        .ended_with(5)
        .says("main is protected");
    assert_eq!(git(&["for-each-ref"]), "");
    assert!(!fleet.exists(&["namespace", "pleach"]));
    std::fs::remove_file(&hook).unwrap();

    // A run that was killed is continued.
    let args = meant(first);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    for step in ["pushed ", "secret "] {
        let mut running = fleet.start(&args);
        running.until_prints(step);
        running.signal("KILL");
        running.ended().ended_with(-1);
    }
    // It waits for the controller itself.
    let mut running = fleet.start(&args);
    running.until_prints("release pleach.pleach");
    let controller = fleet.runs_as_bootstrapped();
    let done = running.ended().ended_with(0);
    let commit = git(&["rev-parse", "main"]);
    let end = format!("follows pleach/pleach is at main {}", &commit[..7]);
    done.says("secret pleach/git (2 keys)").says(&end);
    assert_eq!(commits(), "1");

    // Repeated, it finds everything done.
    run(&fleet, &meant(first))
        .ended_with(0)
        .says("has the bundle")
        .says(&end);
    assert_eq!(commits(), "1");

    // With another image, the controller applies the commit.
    run(&fleet, &meant(second))
        .ended_with(0)
        .says("~ environments/pleach.yaml");
    assert_eq!(commits(), "2");
    let image = "{.spec.template.spec.containers[0].image}";
    let live = fleet.field(&["deployment", "pleach", "-n", "pleach"], image);
    assert_eq!(live, second);
    let record = fleet.get(&RELEASE).unwrap();
    let revision = &record["status"]["record"]["installed"]["revision"];
    assert_eq!(*revision, git(&["rev-parse", "main"]));
    controller.stopped();
}
