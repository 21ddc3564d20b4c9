//! Lease identity of this process, and the wait for other holders.

use jiff::SignedDuration;

use pleach_engine::lease::Peers;
use pleach_engine::sync::Claim;

/// Options of commands that write to a release.
#[derive(Debug, clap::Args)]
pub(crate) struct LockArgs {
    /// Maximum wait for another client that applies the same release, such as 30s or 10m
    ///
    /// 0s does not wait. The Lease of a killed client expires after at most 15 s.
    #[arg(long, value_name = "TIME", default_value = "1m")]
    lock_timeout: SignedDuration,
}

impl LockArgs {
    /// Returns the lease identity of this process.
    pub(super) fn claim(&self) -> Claim {
        Claim {
            who: format!("{} (pid {})", person(), std::process::id()),
            // Treat a negative time-out as zero.
            patience: self.lock_timeout.try_into().unwrap_or_default(),
            peers: Peers::default(),
            local: None,
            approved_by: None,
        }
    }
}

/// Returns the lease identity of a run that nobody competes with.
#[cfg(feature = "rehearsal")]
pub(super) fn alone() -> Claim {
    Claim {
        who: "rehearsal".to_owned(),
        patience: std::time::Duration::from_secs(30),
        peers: Peers::default(),
        local: None,
        approved_by: None,
    }
}

/// Returns user and host, as far as they are known.
pub(super) fn person() -> String {
    #[expect(
        clippy::disallowed_methods,
        reason = "the command line reads the environment"
    )]
    let user = ["USER", "LOGNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .filter(|user| !user.is_empty())
        .map(|user| format!("{user}@"))
        .unwrap_or_default();
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{user}{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_names_process_and_host() {
        let claim = LockArgs {
            lock_timeout: "-1s".parse().unwrap(),
        }
        .claim();
        let end = format!(" (pid {})", std::process::id());
        let host = claim.who.strip_suffix(&end).unwrap();
        assert!(!host.is_empty() && !host.ends_with('@'), "{host}");
        assert_eq!(claim.patience, std::time::Duration::ZERO);
    }
}
