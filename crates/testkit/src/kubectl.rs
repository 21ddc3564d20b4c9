//! Real kubectl, the reference of tests and of the demo.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::Value;

/// kubectl with a kubeconfig.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// Creates the runner from the program and the kubeconfig.
    pub fn new(program: impl Into<PathBuf>, kubeconfig: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            kubeconfig: kubeconfig.into(),
        }
    }

    /// Runs a command and returns its stdout. An error includes stderr.
    pub fn run(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(&self.program)
            // kubectl caches by address, and the next cluster can have the same address.
            .arg("--cache-dir")
            .arg(self.kubeconfig.with_file_name("kubectl-cache"))
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(args)
            .output()
            .with_context(|| format!("failed to start {}", self.program.display()))?;
        if !output.status.success() {
            bail!(
                "kubectl {} failed: {}",
                args.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs a command with `-o json` and parses its output.
    pub fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let mut args = args.to_vec();
        args.extend(["-o", "json"]);
        let text = self.run(&args)?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Returns the items of a list.
    pub fn list(&self, args: &[&str]) -> anyhow::Result<Vec<Value>> {
        match self.json(args)?["items"].take() {
            Value::Array(items) => Ok(items),
            other => bail!("kubectl {} gave no list: {other}", args.join(" ")),
        }
    }

    /// Reads an object. `None` if it is absent.
    pub fn get(&self, args: &[&str]) -> anyhow::Result<Option<Value>> {
        let mut all = vec!["get", "--ignore-not-found", "-o", "json"];
        all.extend(args);
        let text = self.run(&all)?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&text)?))
    }

    /// Applies files, server-side.
    pub fn apply(&self, files: &[&Path]) -> anyhow::Result<String> {
        let files: Vec<String> = files
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let mut args = vec!["apply", "--server-side"];
        for file in &files {
            args.extend(["-f", file]);
        }
        self.run(&args)
    }
}
