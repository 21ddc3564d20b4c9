//! Nodes below the progress bar.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use pleach_engine::sync::node_progress::NodeChange;
use pleach_model::object::ObjectId;
use pleach_state::inventory::{NodePhase, NodeProgress};

use super::block::{FRAMES, SHOWN, cut};
use crate::cli::format::style::{ADDED, ERROR, WARNING};
use crate::cli::format::table::one_line;

/// Nodes that a run changes, in the order of the plan.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    name: String,
    phase: NodePhase,
    message: String,
    /// Begin of the phase.
    since: Instant,
    /// Begin of the first phase in work.
    begun: Option<Instant>,
    /// Duration of its change.
    took: Duration,
}

impl Nodes {
    pub(super) fn of(nodes: &[NodeProgress], now: Instant) -> Self {
        let nodes = nodes.iter().map(|node| Node {
            name: node.name.clone(),
            phase: node.phase,
            message: String::new(),
            since: now,
            begun: None,
            took: Duration::ZERO,
        });
        Self {
            nodes: nodes.collect(),
        }
    }

    /// Applies a change. Returns its line for a log.
    pub(super) fn change(&mut self, change: &NodeChange, now: Instant) -> Option<String> {
        let mut nodes = self.nodes.iter_mut();
        let node = nodes.find(|node| node.name == change.node.name)?;
        node.phase = change.node.phase;
        node.message = one_line(&change.node.message);
        node.since = now;
        if node.phase.is_in_work() {
            node.begun.get_or_insert(now);
        }
        if let Some(begun) = node.begun {
            node.took = now.duration_since(begun);
        }
        let name = one_line(&node.name);
        match node.phase {
            // The step has lines of its own.
            NodePhase::Pending | NodePhase::Done | NodePhase::Failed => None,
            phase => Some(format!("{name}: {}", verb(phase))),
        }
    }

    /// Returns whether an object is one of the nodes.
    pub(super) fn has(&self, object: &ObjectId) -> bool {
        object.is("", "Node") && self.nodes.iter().any(|node| node.name == object.name)
    }

    /// Returns the numbers of changed nodes and of all. `None` without nodes.
    pub(super) fn totals(&self) -> Option<(usize, usize)> {
        let done = self
            .nodes
            .iter()
            .filter(|node| node.phase == NodePhase::Done);
        (!self.nodes.is_empty()).then(|| (done.count(), self.nodes.len()))
    }

    /// Draws one line for the changed nodes, one for each failed node and each in work, and one for
    /// the others. A line has at most `width` columns with its indentation.
    ///
    /// `waits` has the reasons of waits by node.
    pub(super) fn lines(
        &self,
        waits: &BTreeMap<&str, &str>,
        now: Instant,
        width: usize,
    ) -> Vec<String> {
        let with = |phase: NodePhase| self.nodes.iter().filter(move |node| node.phase == phase);
        let space = width.saturating_sub(4);
        let mut lines = Vec::new();
        let done: Vec<String> = with(NodePhase::Done)
            .map(|node| format!("{} {}", one_line(&node.name), short(node.took)))
            .collect();
        if !done.is_empty() {
            // The newest ones are at the end of the plan.
            let newest: Vec<&str> = done.iter().rev().take(SHOWN).map(String::as_str).collect();
            let text = cut(&newest.join("   "), space);
            lines.push(format!("{ADDED}✓{ADDED:#} {text}"));
        }
        let mut bound = |texts: Vec<String>| {
            let more = texts.len().saturating_sub(SHOWN);
            lines.extend(texts.into_iter().take(SHOWN));
            if more > 0 {
                lines.push(format!("… and {more} more nodes"));
            }
        };
        let failed = with(NodePhase::Failed).map(|node| {
            let text = format!("{}  {}", one_line(&node.name), node.message);
            format!("{ERROR}✗{ERROR:#} {}", cut(&text, space))
        });
        bound(failed.collect());
        let in_work = self.nodes.iter().filter(|node| node.phase.is_in_work());
        let in_work = in_work.map(|node| {
            let age = now.duration_since(node.since);
            let reason = waits.get(node.name.as_str()).copied().unwrap_or_default();
            let reason = match reason {
                "" => String::new(),
                reason => format!(": {}", one_line(reason)),
            };
            let age = format!(" ({})", short(age));
            let text = format!("{}  {}{reason}", one_line(&node.name), verb(node.phase));
            let text = cut(&text, space.saturating_sub(age.chars().count()));
            let frame = now.duration_since(node.since).as_secs() % FRAMES.len() as u64;
            let frame = FRAMES[usize::try_from(frame).unwrap_or_default()];
            format!("{WARNING}{frame}{WARNING:#} {text}{age}")
        });
        bound(in_work.collect());
        let pending: Vec<String> = with(NodePhase::Pending)
            .map(|node| one_line(&node.name))
            .collect();
        if !pending.is_empty() {
            // They wait for a driver. The reason of one is enough.
            let mut reasons =
                with(NodePhase::Pending).filter_map(|node| waits.get(node.name.as_str()));
            let names = pending.join(" ");
            let text = match reasons.next() {
                Some(reason) => format!("{}  {}", cut(&names, space / 3), one_line(reason)),
                None => names,
            };
            lines.push(format!("· {}", cut(&text, space)));
        }
        lines
    }
}

/// Returns the phase of a node in work as a verb.
fn verb(phase: NodePhase) -> &'static str {
    match phase {
        NodePhase::Pending => "pending",
        NodePhase::Preloading => "preloading",
        NodePhase::Evacuating => "evacuating",
        NodePhase::Draining => "draining",
        NodePhase::Upgrading => "upgrading",
        NodePhase::Verifying => "verifying",
        NodePhase::Done => "done",
        NodePhase::Failed => "failed",
    }
}

/// Formats a duration, such as `62 s` or `18m`.
fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 120 {
        return format!("{seconds} s");
    }
    let minutes = i64::try_from(seconds / 60).unwrap_or(i64::MAX / 60);
    format!("{:#}", SignedDuration::from_mins(minutes)).replace(' ', "")
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use jiff::Timestamp;

    use super::*;

    fn node(name: &str, phase: NodePhase) -> NodeProgress {
        NodeProgress {
            name: name.to_owned(),
            phase,
            since: Timestamp::UNIX_EPOCH,
            message: String::new(),
        }
    }

    fn change(nodes: &mut Nodes, name: &str, phase: NodePhase, now: Instant) -> Option<String> {
        let change = NodeChange {
            node: NodeProgress {
                message: "its Job failed".to_owned(),
                ..node(name, phase)
            },
            before: NodePhase::Pending,
            took: Duration::ZERO,
        };
        nodes.change(&change, now)
    }

    #[test]
    fn nodes_are_shown_by_phase() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let names = ["node-1", "node-2", "node-3", "node-4", "node-5", "node-6"];
        let all: Vec<NodeProgress> = names
            .iter()
            .map(|name| node(name, NodePhase::Pending))
            .collect();
        let mut nodes = Nodes::of(&all, start);
        assert_eq!(nodes.totals(), Some((0, 6)));
        let line = change(&mut nodes, "node-1", NodePhase::Evacuating, at(0));
        assert_eq!(line.as_deref(), Some("node-1: evacuating"));
        assert_eq!(
            change(&mut nodes, "node-1", NodePhase::Done, at(1080)),
            None
        );
        change(&mut nodes, "node-2", NodePhase::Draining, at(1080));
        change(&mut nodes, "node-2", NodePhase::Done, at(1150));
        change(&mut nodes, "node-3", NodePhase::Evacuating, at(1150));
        change(&mut nodes, "node-4", NodePhase::Failed, at(1150));
        let waits = BTreeMap::from([("node-3", "VM db has not left")]);
        let drawn = nodes.lines(&waits, at(1212), 79).join("\n");
        let drawn = anstream::adapter::strip_str(&drawn).to_string();
        assert_eq!(nodes.totals(), Some((2, 6)));
        assert_snapshot!(drawn, @r"
        ✓ node-2 70 s   node-1 18m
        ✗ node-4  its Job failed
        ⠸ node-3  evacuating: VM db has not left (62 s)
        · node-5 node-6
        ");
        for width in [4, 20, 40] {
            let lines = nodes.lines(&waits, at(1212), width);
            for line in lines {
                let line = anstream::adapter::strip_str(&line).to_string();
                assert!(line.chars().count() <= width.max(12), "{width}: {line}");
            }
        }
    }

    #[test]
    fn nodes_that_wait_for_their_driver_have_the_reason() {
        let start = Instant::now();
        let all = ["node-1", "node-2"].map(|name| node(name, NodePhase::Pending));
        let nodes = Nodes::of(&all, start);
        let waits = BTreeMap::from([("node-2", "waiting for the driver")]);
        let drawn = nodes.lines(&waits, start, 79);
        assert_eq!(drawn, ["· node-1 node-2  waiting for the driver"]);
    }

    #[test]
    fn many_nodes_take_few_lines() {
        let start = Instant::now();
        let all: Vec<NodeProgress> = (0..1000)
            .map(|number| node(&format!("node-{number}"), NodePhase::Pending))
            .collect();
        let mut nodes = Nodes::of(&all, start);
        for number in 0..500 {
            change(
                &mut nodes,
                &format!("node-{number}"),
                NodePhase::Draining,
                start,
            );
        }
        let lines = nodes.lines(&BTreeMap::new(), start, 79);
        assert_eq!(lines.len(), SHOWN + 2);
        assert_eq!(lines[SHOWN], "… and 492 more nodes");
    }
}
