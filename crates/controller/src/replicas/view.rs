//! Live replicas, derived from their Leases.
//!
//! Clocks of different machines are never compared. By the rule of client-go, a replica counts as
//! gone if its Lease is unchanged for its duration, judged at the last received event. Our own
//! renewals are events too, so a replica without a working watch concludes nothing. Nor does a
//! replica that processes events late: pending writes arrive in order, and only time spent
//! receiving counts.

use std::collections::BTreeMap;
use std::time::Duration;

use pleach_model::object::Digest;
use serde_json::Value;
use tokio::time::Instant;

use super::{PREFIX, PUSHED, TERMS};
use pleach_cluster::Followed;

/// A longer gap between events does not count as silence of other replicas, because our own
/// renewals arrive more often.
const MAX_GAP: Duration = TERMS.renew.saturating_mul(2);

/// State of one replica.
#[derive(Debug)]
struct ReplicaState {
    /// Holder of the Lease.
    holder: String,
    renewed: String,
    /// Receiving time at the last change of the Lease.
    changed: Duration,
    duration: Duration,
    /// Number of pushes it received, by repository.
    pushed: BTreeMap<String, u64>,
}

/// State of all replicas.
#[derive(Debug)]
pub(super) struct View {
    own: String,
    replicas: BTreeMap<String, ReplicaState>,
    /// Time of the last event.
    received: Instant,
    /// Total receiving time until then.
    receiving: Duration,
}

/// Content of one event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ViewChanges {
    /// Repositories with new pushes.
    pub(super) pushed: Vec<String>,
    /// Holders that are gone for long.
    pub(super) departed: Vec<String>,
}

impl View {
    /// Creates an empty view. `own` is the name of our own Lease.
    pub(super) fn new(own: &str, now: Instant) -> Self {
        Self {
            own: own.to_owned(),
            replicas: BTreeMap::new(),
            received: now,
            receiving: Duration::ZERO,
        }
    }

    /// Processes an event.
    pub(super) fn process(&mut self, followed: Followed, now: Instant) -> ViewChanges {
        let mut changes = ViewChanges::default();
        let before = self.receiving;
        let silence = now.saturating_duration_since(self.received);
        self.receiving += silence.min(MAX_GAP);
        self.received = now;
        match followed {
            Followed::Listed(leases) => {
                let mut previous: BTreeMap<String, ReplicaState> =
                    std::mem::take(&mut self.replicas);
                for lease in &leases {
                    if let Some(name) = name(lease) {
                        if let Some(state) = previous.remove(name) {
                            self.replicas.insert(name.to_owned(), state);
                        }
                        self.read(name, lease, &mut changes);
                    }
                }
            }
            Followed::Applied(lease) => {
                if let Some(name) = name(&lease) {
                    self.read(name, &lease, &mut changes);
                }
            }
            // A draining replica deletes its Lease last. But another client could have deleted it,
            // so the work of that replica does not count as finished.
            Followed::Deleted(lease) => {
                if let Some(name) = name(&lease) {
                    self.replicas.remove(name);
                }
            }
        }
        for (name, state) in &self.replicas {
            let is_applied = state.is_live(before);
            if *name != self.own && is_applied && !state.is_live(self.receiving) {
                changes.departed.push(state.holder.clone());
            }
        }
        changes
    }

    fn read(&mut self, name: &str, lease: &Value, changes: &mut ViewChanges) {
        let spec = &lease["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (holder, renewed) = (text(&spec["holderIdentity"]), text(&spec["renewTime"]));
        let duration = Duration::from_secs(spec["leaseDurationSeconds"].as_u64().unwrap_or(0));
        let annotation = lease["metadata"]["annotations"][PUSHED].as_str();
        let pushed: BTreeMap<String, u64> = annotation
            .and_then(|annotation| serde_json::from_str(annotation).ok())
            .unwrap_or_default();
        let known = self.replicas.get(name);
        if name != self.own {
            let before = known.map(|known| &known.pushed);
            let is_new = |(repository, count): &(&String, &u64)| {
                before.and_then(|before| before.get(*repository)) != Some(*count)
            };
            let new_pushes = pushed.iter().filter(is_new);
            changes
                .pushed
                .extend(new_pushes.map(|(name, _)| name.clone()));
        }
        let changed = known
            .filter(|known| known.renewed == renewed && known.holder == holder)
            .map_or(self.receiving, |known| known.changed);
        let state = ReplicaState {
            holder,
            renewed,
            changed,
            duration,
            pushed,
        };
        self.replicas.insert(name.to_owned(), state);
    }

    /// Returns the names of the live replicas. `None` while our own Lease is missing, because then
    /// nothing is known.
    pub(super) fn live(&self) -> Option<Vec<String>> {
        let live = self
            .replicas
            .iter()
            .filter(|(_, state)| state.is_live(self.receiving));
        let live: Vec<String> = live.map(|(name, _)| name.clone()).collect();
        live.contains(&self.own).then_some(live)
    }

    /// Returns the Leases of replicas that are long gone, for deletion.
    pub(super) fn stale(&self) -> Vec<String> {
        // By then, every replica has noticed that itself.
        let is_stale = |state: &ReplicaState| {
            self.receiving.saturating_sub(state.changed) > state.duration.saturating_mul(3) / 2
        };
        let stale = self.replicas.iter().filter(|(_, state)| is_stale(state));
        stale.map(|(name, _)| name.clone()).collect()
    }
}

impl ReplicaState {
    fn is_live(&self, receiving: Duration) -> bool {
        receiving.saturating_sub(self.changed) < self.duration
    }
}

fn name(lease: &Value) -> Option<&str> {
    let name = lease["metadata"]["name"].as_str()?;
    name.starts_with(PREFIX).then_some(name)
}

/// Returns the leader of `what`. All replicas compute the same one, and few leaders change when a
/// replica joins or leaves (rendezvous hashing).
pub(super) fn leader<'a>(replicas: &'a [String], what: &str) -> Option<&'a String> {
    replicas
        .iter()
        .max_by_key(|replica| Digest::of(format!("{replica}\n{what}").as_bytes()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lease(name: &str, renewed: u64) -> Value {
        json!({
            "metadata": {"name": format!("{PREFIX}{name}")},
            "spec": {"holderIdentity": format!("{name}@pod"), "leaseDurationSeconds": 9,
                "renewTime": renewed.to_string()},
        })
    }

    fn live(view: &View) -> String {
        let live = view.live().map(|live| live.join(" "));
        live.unwrap_or_default().replace(PREFIX, "")
    }

    fn process(view: &mut View, followed: Followed) -> ViewChanges {
        view.process(followed, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_does_not_renew_its_lease_departs() {
        let mut view = View::new(&format!("{PREFIX}a"), Instant::now());
        assert_eq!(view.live(), None);
        process(
            &mut view,
            Followed::Listed(vec![lease("b", 0), json!({"metadata": {"name": "x"}})]),
        );
        assert_eq!(view.live(), None, "without our own we know nothing");
        process(&mut view, Followed::Applied(lease("a", 0)));
        assert_eq!(live(&view), "a b");
        for second in 1..9 {
            advance(SECOND).await;
            let changes = process(&mut view, Followed::Applied(lease("a", second)));
            assert_eq!(changes, ViewChanges::default());
        }
        assert_eq!(live(&view), "a b");
        advance(SECOND).await;
        let changes = process(&mut view, Followed::Applied(lease("a", 9)));
        assert_eq!(changes.departed, ["b@pod"]);
        assert_eq!(live(&view), "a");
        assert_eq!(view.stale(), [""; 0]);
        for second in [13, 17, 21] {
            advance(SECOND * 4).await;
            let changes = process(&mut view, Followed::Applied(lease("a", second)));
            assert_eq!(changes.departed, [""; 0], "it is reported once");
        }
        assert_eq!(view.stale(), [format!("{PREFIX}b")]);
        // The replica was only slow.
        process(&mut view, Followed::Applied(lease("b", 29)));
        assert_eq!(live(&view), "a b");
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_without_events_draws_no_conclusions() {
        let mut view = View::new(&format!("{PREFIX}a"), Instant::now());
        let both = || Followed::Listed(vec![lease("a", 0), lease("b", 0)]);
        process(&mut view, both());
        advance(SECOND * 60).await;
        assert_eq!(live(&view), "a b");
        let changes = process(
            &mut view,
            Followed::Listed(vec![lease("a", 1), lease("b", 1)]),
        );
        assert_eq!(changes, ViewChanges::default());
        assert_eq!(live(&view), "a b");
    }

    #[tokio::test(start_paused = true)]
    async fn late_events_do_not_make_a_live_replica_depart() {
        let mut view = View::new(&format!("{PREFIX}a"), Instant::now());
        process(
            &mut view,
            Followed::Listed(vec![lease("a", 0), lease("b", 0)]),
        );
        advance(SECOND * 2).await;
        process(&mut view, Followed::Applied(lease("a", 1)));
        // This replica was busy for longer than a Lease duration. Pending writes then arrive in
        // order, ours first.
        advance(SECOND * 20).await;
        for renewed in 2..12 {
            for name in ["a", "b"] {
                let changes = process(&mut view, Followed::Applied(lease(name, renewed)));
                assert_eq!(changes, ViewChanges::default(), "{name} {renewed}");
                assert_eq!(live(&view), "a b");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_lease_takes_effect_immediately() {
        let mut view = View::new(&format!("{PREFIX}a"), Instant::now());
        process(
            &mut view,
            Followed::Listed(vec![lease("a", 0), lease("b", 0)]),
        );
        let changes = process(&mut view, Followed::Deleted(lease("b", 0)));
        assert_eq!(
            (live(&view).as_str(), changes),
            ("a", ViewChanges::default())
        );
        // A list can be the first event without it.
        process(&mut view, Followed::Applied(lease("c", 0)));
        process(&mut view, Followed::Listed(vec![lease("a", 1)]));
        assert_eq!(live(&view), "a");
    }

    #[tokio::test(start_paused = true)]
    async fn pushes_to_other_replicas_are_received_once() {
        let mut view = View::new(&format!("{PREFIX}a"), Instant::now());
        let pushed = |name, counts: &str| {
            let mut lease = lease(name, 0);
            lease["metadata"]["annotations"][PUSHED] = json!(counts);
            Followed::Applied(lease)
        };
        let received = process(&mut view, pushed("b", r#"{"fleet":1,"other":2}"#));
        assert_eq!(received.pushed, ["fleet", "other"]);
        let received = process(&mut view, pushed("b", r#"{"fleet":2,"other":2}"#));
        assert_eq!(received.pushed, ["fleet"]);
        for (name, counts) in [
            ("b", r#"{"fleet":2,"other":2}"#),
            ("b", "[]"),
            ("a", r#"{"fleet":9}"#),
        ] {
            assert_eq!(process(&mut view, pushed(name, counts)).pushed, [""; 0]);
        }
    }

    #[test]
    fn environments_are_balanced_and_only_those_of_a_leaving_replica_move() {
        let names = |names: &str| -> Vec<String> { names.split(' ').map(str::to_owned).collect() };
        let key = |number: usize| format!("team-{number}\n");
        let (three, two) = (names("a b c"), names("a c"));
        let mut led: BTreeMap<&str, usize> = BTreeMap::new();
        for number in 0..300 {
            let before = leader(&three, &key(number)).unwrap();
            *led.entry(before).or_default() += 1;
            if before != "b" {
                assert_eq!(leader(&two, &key(number)), Some(before));
            }
        }
        assert!(
            led.values().all(|count| (70..130).contains(count)),
            "{led:?}"
        );
        assert_eq!(leader(&[], &key(0)), None);
    }
}
