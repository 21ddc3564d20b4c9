//! Empty repository behind https, with a token, as a git server of an organization.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tempfile::TempDir;

use crate::git_server::GitServer;
use crate::tls_front::TlsFront;

/// Bare repository `fleet.git` whose server accepts pushes.
#[derive(Debug)]
pub struct Hosted {
    folder: TempDir,
    front: TlsFront,
    token: String,
    _server: GitServer,
}

impl Hosted {
    /// Serves the repository on an address. Its users are named `git` and have this token.
    pub fn start(address: Ipv4Addr, token: &str) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = GitServer::start(folder.path())?;
        server.demand(&format!(
            "Basic {}",
            STANDARD.encode(format!("git:{token}"))
        ));
        let hosted = Self {
            front: TlsFront::start_at(address, server.port())?,
            token: token.to_owned(),
            folder,
            _server: server,
        };
        run(
            hosted.folder.path(),
            &[
                "init",
                "--quiet",
                "--bare",
                "--initial-branch=main",
                "fleet.git",
            ],
        )?;
        hosted.git(&["config", "http.receivepack", "true"])?;
        Ok(hosted)
    }

    /// Returns the URL.
    pub fn url(&self) -> String {
        self.front.url("fleet.git")
    }

    /// Returns the certificate of the server in PEM, which is its own authority.
    pub fn certificate(&self) -> &str {
        self.front.certificate()
    }

    /// Returns the token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Returns the folder of the repository, for pushes without the server.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("fleet.git")
    }

    /// Runs git in the repository and returns its trimmed stdout.
    pub fn git(&self, args: &[&str]) -> anyhow::Result<String> {
        run(&self.path(), args)
    }
}

fn run(folder: &Path, args: &[&str]) -> anyhow::Result<String> {
    let output = std::process::Command::new("git")
        .args(args)
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .output()
        .context("failed to start git")?;
    ensure!(output.status.success(), "git {args:?}: {output:?}");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
