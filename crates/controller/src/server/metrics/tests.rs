//! Metrics in the text format of Prometheus.

use super::*;

fn text(text: &str) -> String {
    text.to_owned()
}

fn loaded(revision: &str, releases: usize) -> Event {
    Event::EnvironmentLoaded {
        repository: text("fleet"),
        environment: text("prod"),
        cluster: None,
        revision: text(revision),
        releases: (0..releases).map(|number| number.to_string()).collect(),
        stalled: BTreeMap::new(),
        took: Duration::ZERO,
    }
}

fn finished(release: &str, revision: &str, outcome: ReconcileOutcome) -> Event {
    Event::ReconcileFinished {
        release: ReleaseName {
            environment: text("prod"),
            release: text(release),
        },
        cluster: None,
        revision: text(revision),
        outcome,
        message: String::new(),
        is_correction: false,
        public_message: String::new(),
        retained: None,
        took: Duration::ZERO,
    }
}

fn since(metrics: &Metrics) -> f64 {
    let labels = EnvironmentLabels {
        environment: text("prod"),
    };
    metrics.pending_since.get_or_create(&labels).get()
}

#[test]
fn only_the_leader_reports_the_state_of_an_environment() {
    let count_lines = |metrics: &Metrics| {
        let text = metrics.text();
        let lines = text.lines().filter(|line| {
            let is = |name: &str| line.starts_with(name);
            (is("pleach_release_") || is("pleach_environment_stalled")) && line.contains("prod")
        });
        lines.count()
    };
    let metrics = Metrics::default();
    let led = |leads| Event::LeadershipChanged {
        environment: text("prod"),
        leads,
    };
    metrics.count(&led(true));
    metrics.count(&loaded("a", 1));
    metrics.count(&finished("web", "a", ReconcileOutcome::Deployed));
    assert_eq!(count_lines(&metrics), 4);
    metrics.count(&led(false));
    // A running reconcile still finishes.
    metrics.count(&finished("web", "a", ReconcileOutcome::Unchanged));
    assert_eq!(count_lines(&metrics), 0);
    // The metrics reappear with the first reconcile.
    metrics.count(&led(true));
    metrics.count(&loaded("a", 1));
    metrics.count(&finished("web", "a", ReconcileOutcome::Unchanged));
    assert_eq!(count_lines(&metrics), 4);
}

#[test]
fn a_silent_cluster_is_reported_for_its_environments() {
    let metrics = Metrics::default();
    let up = |metrics: &Metrics| {
        let text = metrics.text();
        let line = text
            .lines()
            .find(|line| line.starts_with("pleach_cluster_up{"));
        line.map(|line| line.rsplit(' ').next().unwrap_or_default().to_owned())
    };
    let planned = |answered| Event::Planned {
        release: ReleaseName {
            environment: text("prod"),
            release: text("web"),
        },
        answered,
        facts: None,
        took: Duration::ZERO,
    };
    let led = |leads| Event::LeadershipChanged {
        environment: text("prod"),
        leads,
    };
    metrics.count(&led(true));
    assert_eq!(up(&metrics), None);
    metrics.count(&planned(true));
    assert_eq!(up(&metrics).as_deref(), Some("1"));
    metrics.count(&planned(false));
    assert_eq!(up(&metrics).as_deref(), Some("0"));
    metrics.count(&planned(true));
    metrics.count(&Event::ClusterUnreachable {
        environment: text("prod"),
        message: String::new(),
    });
    assert_eq!(up(&metrics).as_deref(), Some("0"));
    metrics.count(&led(false));
    metrics.count(&planned(true));
    assert_eq!(up(&metrics), None);
}

#[test]
fn the_oldest_commit_counts_until_all_releases_are_at_the_newest() {
    let metrics = Metrics::default();
    metrics.count(&loaded("a", 2));
    let first = since(&metrics);
    assert!(first > 0.0);
    metrics.count(&finished("web", "a", ReconcileOutcome::Deployed));
    metrics.count(&finished("web", "a", ReconcileOutcome::Unchanged));
    metrics.count(&finished("api", "a", ReconcileOutcome::Failed));
    assert_eq!(since(&metrics).to_bits(), first.to_bits());
    // A newer commit arrives before the first one is reconciled.
    metrics.count(&loaded("b", 2));
    metrics.count(&finished("api", "a", ReconcileOutcome::Deployed));
    metrics.count(&finished("web", "b", ReconcileOutcome::Unchanged));
    assert_eq!(since(&metrics).to_bits(), first.to_bits());
    // A release with reported drift is not at an older commit.
    metrics.count(&finished("api", "b", ReconcileOutcome::Drifted));
    assert_eq!(since(&metrics).to_bits(), 0.0_f64.to_bits());
    // Reconciling the last good commit does not reconcile an unreadable one.
    metrics.count(&Event::EnvironmentStalled {
        repository: text("fleet"),
        revision: Some(text("c")),
        environment: text("prod"),
        cluster: None,
        reason: text("InvalidRepository"),
        message: String::new(),
    });
    let stalled = since(&metrics);
    assert!(stalled > 0.0);
    metrics.count(&finished("web", "b", ReconcileOutcome::Unchanged));
    metrics.count(&finished("api", "b", ReconcileOutcome::Unchanged));
    assert_eq!(since(&metrics).to_bits(), stalled.to_bits());
    metrics.count(&loaded("c", 0));
    assert_eq!(since(&metrics).to_bits(), 0.0_f64.to_bits());
}
