//! Disk limits for clones.

use pleach_formats::file;
use pleach_model::finding::Finding;
use pleach_model::object::Located;

/// Minimum value of a limit, in bytes.
const LEAST: u64 = 1 << 20;

/// Disk limits for clones, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Limit for all clones together.
    pub budget: u64,
    /// Maximum download for a commit of a fork.
    pub fork_head: u64,
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            budget: 3 << 30,
            fork_head: 100 << 20,
        }
    }
}

pub(super) fn resolve(declared: Option<Located<file::Disk>>, findings: &mut Vec<Finding>) -> Disk {
    let usual = Disk::default();
    let Some(Located { value, places }) = declared else {
        return usual;
    };
    let mut read = |key: &str, declared: Option<String>, usual: u64| {
        let Some(declared) = declared else {
            return usual;
        };
        let bytes = pleach_formats::bytes::parse(&declared).filter(|bytes| *bytes >= LEAST);
        if bytes.is_none() {
            let message =
                format!("`{key}`: `{declared}` is not a quantity such as `3Gi`, of at least `1Mi`");
            findings.push(places.error_at(key, "invalid-value", message));
        }
        bytes.unwrap_or(usual)
    };
    Disk {
        budget: read("budget", value.budget, usual.budget),
        fork_head: read("forkHead", value.fork_head, usual.fork_head),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read;

    fn disk(lines: &str) -> Result<Disk, Vec<String>> {
        let text = format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Controller\n{lines}repositories:\n  - name: fleet\n    url: /srv/fleet\n    environments: [{{match: env/*, cluster: {{inCluster: true, id: c}}, allow: all}}]\n"
        );
        read("loop.yaml", text.into_bytes())
            .map(|controller| controller.disk)
            .map_err(|findings| findings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn limits_have_defaults_and_invalid_ones_are_refused() {
        assert_eq!(disk(""), Ok(Disk::default()));
        let expected = Disk {
            fork_head: 5 << 20,
            ..Disk::default()
        };
        assert_eq!(disk("disk: {forkHead: 5Mi}\n"), Ok(expected));
        let errors = disk("disk: {budget: 3GB, forkHead: 512Ki}\n").unwrap_err();
        let amount = "is not a quantity such as `3Gi`, of at least `1Mi`";
        for (error, field) in errors
            .iter()
            .zip(["`budget`: `3GB`", "`forkHead`: `512Ki`"])
        {
            assert!(error.contains(&format!("{field} {amount}")), "{errors:?}");
        }
        assert_eq!(errors.len(), 2, "{errors:?}");
    }
}
