//! Official programs with their checksums, from `controlplane/checksums`.

use sha2::{Digest as _, Sha256};

/// Lines `CHECKSUM PROGRAM ARCHITECTURE ADDRESS`; `controlplane/pin.sh` writes them.
const CHECKSUMS: &str = include_str!("../../../controlplane/checksums");

/// File to download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pin<'a> {
    /// SHA-256 or SHA-512 of the file, as hexadecimal digits.
    pub(super) sum: &'a str,
    /// The https address.
    pub(super) url: &'a str,
    /// Programs that the file contains. A file that is no archive is one program.
    pub(super) programs: Vec<&'a str>,
}

impl Pin<'_> {
    pub(super) fn is_archive(&self) -> bool {
        self.url.ends_with(".tar.gz")
    }

    /// Returns the address at a mirror, which replaces scheme and host.
    pub(super) fn address(&self, mirror: Option<&str>) -> String {
        let path = self
            .url
            .split("://")
            .nth(1)
            .and_then(|it| it.split_once('/'));
        match (mirror, path) {
            (Some(mirror), Some((_, path))) => format!("{}/{path}", mirror.trim_end_matches('/')),
            _ => self.url.to_owned(),
        }
    }
}

/// Returns the files for an architecture of Rust, such as `x86_64`.
pub(super) fn pins(arch: &str) -> Vec<Pin<'static>> {
    parse(CHECKSUMS, arch)
}

fn parse<'a>(checksums: &'a str, arch: &str) -> Vec<Pin<'a>> {
    let arch = match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let mut pins: Vec<Pin<'a>> = Vec::new();
    for line in checksums.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [sum, program, of, url] = words[..] else {
            continue;
        };
        match pins.iter_mut().find(|pin| pin.url == url) {
            _ if of != arch => {}
            Some(pin) => pin.programs.push(program),
            None => pins.push(Pin {
                sum,
                url,
                programs: vec![program],
            }),
        }
    }
    pins
}

/// Returns the name of the folder of downloads: the version of Kubernetes, and a part of the digest
/// of all checksums, so that other pins have another folder.
pub(super) fn folder() -> String {
    let digest = Sha256::digest(CHECKSUMS);
    let start = digest.iter().take(4);
    let start = start.fold(0_u32, |start, byte| (start << 8) | u32::from(*byte));
    format!("{}-{start:08x}", version())
}

/// Returns the version of Kubernetes of the official programs, without a leading `v`.
fn version() -> &'static str {
    let lines = CHECKSUMS
        .lines()
        .filter(|line| line.contains(" kube-apiserver "));
    lines
        .flat_map(|line| line.split('/'))
        .filter_map(|part| part.strip_prefix('v'))
        .find(|version| version.starts_with(|it: char| it.is_ascii_digit()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_pinned_for_both_architectures() {
        for arch in ["x86_64", "aarch64"] {
            let pins = pins(arch);
            let mut programs: Vec<&str> =
                pins.iter().flat_map(|pin| pin.programs.clone()).collect();
            programs.sort_unstable();
            assert_eq!(
                programs,
                [
                    "etcd",
                    "kube-apiserver",
                    "kube-controller-manager",
                    "kube-scheduler",
                    "kubectl",
                    "kwok"
                ]
            );
            for pin in &pins {
                assert!(matches!(pin.sum.len(), 64 | 128), "{}", pin.url);
                assert!(pin.sum.bytes().all(|byte| byte.is_ascii_hexdigit()));
                assert!(pin.url.starts_with("https://"), "{}", pin.url);
            }
        }
        assert_eq!(pins("riscv64"), []);
        assert_eq!(version().split('.').count(), 3, "{}", version());
        assert!(folder().starts_with(&format!("{}-", version())));
    }

    #[test]
    fn programs_of_one_archive_are_one_download() {
        let text = "# comment\naa one amd64 https://a.example.org/v1/s.tar.gz\n\
                    aa two amd64 https://a.example.org/v1/s.tar.gz\n\
                    bb two arm64 https://a.example.org/v1/arm.tar.gz\n\
                    cc three amd64 https://a.example.org/three\nbad line\n";
        let pins = parse(text, "x86_64");
        assert_eq!(pins.len(), 2);
        assert_eq!(pins[0].programs, ["one", "two"]);
        assert!(pins[0].is_archive() && !pins[1].is_archive());
        assert_eq!(pins[1].address(None), "https://a.example.org/three");
        assert_eq!(
            pins[1].address(Some("http://mirror/cache/")),
            "http://mirror/cache/three"
        );
    }
}
