//! Layout of a graph in layers, for an SVG picture.
//!
//! A node is to the right of every node that it needs. Positions depend only on the order of nodes
//! and edges, so that the same graph has the same picture.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

/// Maximum number of nodes of a picture. Of a larger graph, only the neighborhood of a node is
/// drawn.
pub const MAX_NODES: usize = 60;
/// Maximum number of characters of a label in the picture.
const LABEL: usize = 30;
/// Width and height of a node, in pixels.
const NODE: (usize, usize) = (230, 40);
/// Space between nodes, in pixels.
const SPACE: (usize, usize) = (56, 16);
/// Space around the picture, in pixels.
const MARGIN: usize = 8;
/// Number of sweeps that reorder the nodes of a layer.
const SWEEPS: usize = 4;

/// A node of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Label; the picture shows its first characters.
    pub label: String,
    /// Second line of the label.
    pub note: String,
    /// Class that selects the color.
    pub class: &'static str,
    /// Path of the page of the node.
    pub href: Option<String>,
}

/// A directed graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// Edges from a node to a node that needs it, by index.
    pub edges: BTreeSet<(usize, usize)>,
}

/// A laid out graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Picture {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// The nodes.
    pub boxes: Vec<PlacedNode>,
    /// The edges, as path data of SVG.
    pub paths: Vec<String>,
}

/// A node with its position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlacedNode {
    /// Left edge.
    pub x: usize,
    /// Upper edge.
    pub y: usize,
    /// Width.
    pub width: usize,
    /// Height.
    pub height: usize,
    /// Label, shortened.
    pub short: String,
    /// Whole label.
    pub label: String,
    /// Second line.
    pub note: String,
    /// Class that selects the color.
    pub class: &'static str,
    /// Path of its page.
    pub href: Option<String>,
}

impl Graph {
    /// Returns the part of the graph around a node: the nodes that it needs and that need it, the
    /// nearest first, up to [`MAX_NODES`].
    #[must_use]
    pub fn around(&self, node: usize) -> Self {
        let mut near = vec![node];
        let mut at = 0;
        while let Some(&one) = near.get(at) {
            let neighbors = self.edges.iter().filter_map(|&(from, to)| match one {
                one if one == from => Some(to),
                one if one == to => Some(from),
                _ => None,
            });
            for neighbor in neighbors {
                if near.len() < MAX_NODES && !near.contains(&neighbor) {
                    near.push(neighbor);
                }
            }
            at += 1;
        }
        near.sort_unstable();
        let position: BTreeMap<usize, usize> = near
            .iter()
            .enumerate()
            .map(|(new, old)| (*old, new))
            .collect();
        let edges = self
            .edges
            .iter()
            .filter_map(|(from, to)| Some((*position.get(from)?, *position.get(to)?)));
        Self {
            edges: edges.collect(),
            nodes: near.iter().map(|old| self.nodes[*old].clone()).collect(),
        }
    }

    /// Lays out the graph.
    pub fn picture(&self) -> Picture {
        let layers = self.ordered(self.layers());
        let tallest = layers.iter().map(Vec::len).max().unwrap_or_default();
        let height = |count: usize| count * (NODE.1 + SPACE.1) - SPACE.1.min(count * SPACE.1);
        let mut places = vec![(0, 0); self.nodes.len()];
        for (column, layer) in layers.iter().enumerate() {
            let top = (height(tallest) - height(layer.len())) / 2;
            for (row, node) in layer.iter().enumerate() {
                let x = MARGIN + column * (NODE.0 + SPACE.0);
                places[*node] = (x, MARGIN + top + row * (NODE.1 + SPACE.1));
            }
        }
        let columns = layers.len();
        let boxes = self.nodes.iter().zip(&places);
        let paths = self
            .edges
            .iter()
            .map(|(from, to)| curve(places[*from], places[*to]));
        Picture {
            width: 2 * MARGIN + columns * (NODE.0 + SPACE.0) - SPACE.0.min(columns * SPACE.0),
            height: 2 * MARGIN + height(tallest),
            boxes: boxes.map(|(node, place)| node.placed(*place)).collect(),
            paths: paths.collect(),
        }
    }

    /// Returns the layer of each node: one more than the highest layer of the nodes that it needs.
    /// Nodes of a circle stay in the layer that the walk around it ends with.
    fn layers(&self) -> Vec<usize> {
        let mut layers = vec![0; self.nodes.len()];
        for _ in 0..self.nodes.len() {
            let mut is_stable = true;
            for &(from, to) in &self.edges {
                let least = layers[from] + 1;
                if layers[to] < least && least < self.nodes.len() {
                    layers[to] = least;
                    is_stable = false;
                }
            }
            if is_stable {
                break;
            }
        }
        layers
    }

    /// Orders the nodes of each layer by the mean position of their neighbors, so that few edges
    /// cross.
    fn ordered(&self, of_node: Vec<usize>) -> Vec<Vec<usize>> {
        let count = of_node.iter().max().map_or(0, |last| last + 1);
        let mut layers = vec![Vec::new(); count];
        for (node, layer) in of_node.into_iter().enumerate() {
            layers[layer].push(node);
        }
        let mut position = vec![0; self.nodes.len()];
        for layer in &layers {
            for (row, node) in layer.iter().enumerate() {
                position[*node] = row;
            }
        }
        for sweep in 0..SWEEPS {
            for layer in &mut layers {
                let mean = |node: &usize| {
                    let near = self.edges.iter().filter_map(|(from, to)| match sweep % 2 {
                        0 if to == node => Some(position[*from]),
                        1 if from == node => Some(position[*to]),
                        _ => None,
                    });
                    let near: Vec<usize> = near.collect();
                    // In hundredths of a row.
                    match near.len() {
                        0 => position[*node] * 100,
                        count => near.iter().sum::<usize>() * 100 / count,
                    }
                };
                layer.sort_by_cached_key(mean);
                for (row, node) in layer.iter().enumerate() {
                    position[*node] = row;
                }
            }
        }
        layers
    }
}

impl Node {
    fn placed(&self, (x, y): (usize, usize)) -> PlacedNode {
        let mut short: String = self.label.chars().take(LABEL).collect();
        if short.len() < self.label.len() {
            short.push('…');
        }
        PlacedNode {
            x,
            y,
            width: NODE.0,
            height: NODE.1,
            short,
            label: self.label.clone(),
            note: self.note.clone(),
            class: self.class,
            href: self.href.clone(),
        }
    }
}

/// Returns a curve from the right edge of a node to the left edge of another one.
fn curve(from: (usize, usize), to: (usize, usize)) -> String {
    let (start, end) = (
        (from.0 + NODE.0, from.1 + NODE.1 / 2),
        (to.0, to.1 + NODE.1 / 2),
    );
    let bend = SPACE.0 / 2;
    format!(
        "M{},{}C{},{} {},{} {},{}",
        start.0,
        start.1,
        start.0 + bend,
        start.1,
        end.0.saturating_sub(bend),
        end.1,
        end.0,
        end.1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(nodes: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Graph {
        let node = |number: usize| Node {
            label: format!("node {number}"),
            note: String::new(),
            class: "ok",
            href: None,
        };
        Graph {
            nodes: (0..nodes).map(node).collect(),
            edges: edges.into_iter().collect(),
        }
    }

    #[test]
    fn a_node_is_to_the_right_of_the_nodes_that_it_needs() {
        let edges = [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)];
        let graph = graph(5, edges);
        let picture = graph.picture();
        for (from, to) in edges {
            assert!(
                picture.boxes[from].x + NODE.0 < picture.boxes[to].x,
                "{from} {to}"
            );
        }
        for (index, one) in picture.boxes.iter().enumerate() {
            assert!(one.x + one.width <= picture.width && one.y + one.height <= picture.height);
            for other in &picture.boxes[index + 1..] {
                assert!((one.x, one.y) != (other.x, other.y));
            }
        }
        assert_eq!(picture, graph.picture());
    }

    #[test]
    fn edges_that_need_not_cross_do_not_cross() {
        let picture = graph(4, [(0, 3), (1, 2)]).picture();
        let is_above = |one: usize, other: usize| picture.boxes[one].y < picture.boxes[other].y;
        assert_eq!(is_above(0, 1), is_above(3, 2));
    }

    #[test]
    fn an_empty_graph_and_a_circle_have_a_picture() {
        assert_eq!(graph(0, []).picture().boxes, []);
        assert_eq!(graph(3, [(0, 1), (1, 2), (2, 0)]).picture().boxes.len(), 3);
        assert_eq!(graph(1, [(0, 0)]).picture().boxes.len(), 1);
    }

    #[test]
    fn of_a_large_graph_only_the_neighborhood_is_drawn() {
        let chain = (0..499).map(|number| (number, number + 1));
        let graph = graph(500, chain);
        let near = graph.around(250);
        assert_eq!(near.nodes.len(), MAX_NODES);
        assert_eq!(near.edges.len(), MAX_NODES - 1);
        assert!(near.nodes.contains(&graph.nodes[250]));
        assert!(near.nodes.contains(&graph.nodes[251]));
    }
}
