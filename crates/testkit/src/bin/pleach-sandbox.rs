//! Throwaway control plane for experiments: `make sandbox`.
//!
//! Prints the path of a kubeconfig and runs until it is interrupted. Takes no arguments.

#![expect(clippy::print_stdout, reason = "its output is for people")]

use std::process::ExitCode;

use pleach_testkit::control_plane::binaries;
use pleach_testkit::throwaway::{ControlPlane, Network, Options};

fn main() -> ExitCode {
    if std::env::args_os().len() > 1 {
        println!("usage: pleach-sandbox: starts a control plane, and removes it at Ctrl-C");
        return ExitCode::from(2);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            println!("failed to start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        let options = Options {
            binaries: binaries(),
            controllers: true,
            scheduler: true,
            nodes: 2,
            network: Network::Host,
        };
        match ControlPlane::start(options).await {
            Ok(control_plane) => {
                println!("export KUBECONFIG={}", control_plane.kubeconfig().display());
                println!("# audit log: {}", control_plane.audit_log().display());
                println!("# Ctrl-C removes all of it");
                drop(tokio::signal::ctrl_c().await);
                ExitCode::SUCCESS
            }
            Err(error) => {
                println!("failed to start the control plane: {error}");
                ExitCode::FAILURE
            }
        }
    })
}
