//! Releases and objects that claim membership.

use rstest::rstest;

use super::*;

#[rstest]
#[case::of_the_release("ConfigMap/web/a", true, true, Some(Code::Orphan))]
#[case::label_only("ConfigMap/web/a", true, false, Some(Code::Orphan))]
#[case::annotation_only("ConfigMap/web/a", false, true, Some(Code::Orphan))]
#[case::member("ConfigMap/web/member", true, true, None)]
#[case::endpoints("EndpointSlice.discovery.k8s.io/web/a", true, false, None)]
fn orphans_are_in_no_inventory(
    #[case] id: &str,
    #[case] label: bool,
    #[case] annotation: bool,
    #[case] expected: Option<Code>,
) {
    let release = release("prod.web", &[("ConfigMap/web/member", EntryState::Applied)]);
    let mut metadata = json!({});
    if label {
        metadata["labels"] = json!({"applyset.kubernetes.io/part-of": release.summary.apply_set()});
    }
    if annotation {
        metadata["annotations"] = json!({"pleach.dev/desired": "sha256:0"});
    }
    let mut observations = Observations {
        objects: vec![object(id, &metadata)],
        releases: vec![release],
        ..cluster()
    };
    let found = diagnose(&observations);
    assert_eq!(codes(&found).first().copied(), expected);
    if let Some(orphan) = found.first() {
        assert_eq!(
            orphan.command.as_deref(),
            Some("kubectl delete configmap a -n web")
        );
    }
    // No object is an orphan of an unreadable release.
    observations.releases[0].inventory = Err("a shard is missing".to_owned());
    let found = diagnose(&observations);
    assert_eq!(codes(&found), [Code::ReleaseUnreadable]);
    assert_eq!(found[0].command.as_deref(), Some("pleach recover prod/web"));
    // An invalid record must be removed first.
    observations.releases[0].summary.record = Err("it is broken".to_owned());
    let found = diagnose(&observations);
    let hint = found[0].hint.as_deref().unwrap();
    assert!(
        hint.contains(r#"--subresource=status -p '{"status":null}'`"#),
        "{hint}"
    );
    assert!(hint.contains("`pleach recover prod/web`"), "{hint}");
}

#[test]
fn deletion_of_a_namespace_is_never_advised() {
    let release = release("prod.web", &[]);
    let set = release.summary.apply_set();
    let metadata = json!({"labels": {"applyset.kubernetes.io/part-of": set}});
    let found = diagnose(&Observations {
        objects: vec![object("Namespace/web", &metadata)],
        releases: vec![release],
        ..cluster()
    });
    assert_eq!(codes(&found), [Code::Orphan]);
    assert_eq!(
        found[0].command.as_deref(),
        Some("kubectl describe namespace web")
    );
    let hint = found[0].hint.as_deref().unwrap();
    assert!(hint.contains("`pleach recover prod/web`"), "{hint}");
}

#[test]
fn members_of_a_deleted_release_are_reported_together() {
    let metadata = json!({"labels": {"applyset.kubernetes.io/part-of": "applyset-gone-v1"},
        "annotations": {"pleach.dev/desired": "sha256:0"}});
    let foreign = json!({"labels": {"applyset.kubernetes.io/part-of": "applyset-kubectl-v1"}});
    let mut observations = Observations {
        objects: vec![
            object("ConfigMap/web/a", &metadata),
            object("ConfigMap/web/b", &metadata),
            object("ConfigMap/web/c", &foreign),
        ],
        ..cluster()
    };
    let found = diagnose(&observations);
    assert_eq!(codes(&found), [Code::ReleaseLost]);
    assert_eq!(
        found[0].message,
        "2 objects of ApplySet applyset-gone-v1, whose Release does not exist"
    );
    assert_eq!(found[0].related.len(), 2);
    observations.releases_are_complete = false;
    assert_eq!(diagnose(&observations), []);
}

#[test]
fn unready_releases_name_the_reason() {
    let value = json!({"metadata": {"name": "prod.web"}, "status": {"conditions": [
        {"type": "Ready", "status": "False", "reason": "Failed", "message": "1 step failed",
         "lastTransitionTime": "2026-07-01T10:00:00Z"}]}});
    let found = diagnose(&Observations {
        releases: vec![KnownRelease {
            summary: ReleaseSummary::read(&value).unwrap(),
            inventory: Ok(Inventory::default()),
        }],
        ..cluster()
    });
    assert_eq!(codes(&found), [Code::ReleaseNotReady]);
    assert_eq!(
        found[0].message,
        "release prod/web has not been ready for 10m: Failed: 1 step failed"
    );
    assert_eq!(found[0].command.as_deref(), Some("pleach apply prod/web"));
}

#[rstest]
#[case::it_left_git("Removed", true)]
#[case::uninstall_started("Uninstalling", false)]
fn a_release_removed_from_git_is_uninstalled_and_not_applied(
    #[case] reason: &str,
    #[case] left_git: bool,
) {
    let mut release = release("prod.web", &[]);
    release.summary.ready = Some(false);
    release.summary.reason = reason.to_owned();
    release.summary.record = Ok(pleach_state::inventory::Installed {
        removed: true,
        ..pleach_state::inventory::Installed::default()
    });
    let found = diagnose(&Observations {
        releases: vec![release],
        ..cluster()
    });
    assert_eq!(codes(&found), [Code::ReleaseNotReady]);
    assert_eq!(
        found[0].command.as_deref(),
        Some("pleach uninstall prod/web")
    );
    let hint = found[0].hint.as_deref().unwrap_or_default();
    assert_eq!(hint.contains("git no longer had it"), left_git, "{hint}");
}
