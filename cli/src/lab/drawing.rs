//! A network as a picture: layers of hosts and switches, and the cables between them.

use std::fmt::Write;

use super::svg::{Svg, escaped, line, open, px, rect, text, width};

/// A network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drawing {
    pub(crate) nodes: Vec<Node>,
    pub(crate) cables: Vec<Cable>,
    /// What holds for all cables.
    pub(crate) caption: String,
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Host,
    Switch,
}

/// A host or a switch.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Row, from the top.
    pub(crate) layer: usize,
    /// What is written below its name.
    pub(crate) tag: String,
}

/// A cable.
#[derive(Clone, Debug)]
pub(crate) struct Cable {
    pub(crate) ends: [String; 2],
    /// It is what all wait for.
    pub(crate) bottleneck: bool,
    /// One of its ends was told to pause.
    pub(crate) paused: bool,
}

/// Distance between rows.
const ROW: f64 = 104.0;
const WIDTH: f64 = 780.0;
const NODE: (f64, f64) = (64.0, 34.0);

impl Drawing {
    /// A network whose cables are all alike but for what is said of them later.
    pub(crate) fn new(caption: impl Into<String>) -> Self {
        Self { caption: caption.into(), ..Self::default() }
    }

    pub(crate) fn hosts(mut self, layer: usize, names: &[&str]) -> Self {
        self.add(Kind::Host, layer, names);
        self
    }

    pub(crate) fn switches(mut self, layer: usize, names: &[&str]) -> Self {
        self.add(Kind::Switch, layer, names);
        self
    }

    fn add(&mut self, kind: Kind, layer: usize, names: &[&str]) {
        let node = |name: &&str| Node { name: (*name).into(), kind, layer, tag: String::new() };
        self.nodes.extend(names.iter().map(node));
    }

    pub(crate) fn cable(mut self, a: &str, b: &str) -> Self {
        let ends = [a.into(), b.into()];
        self.cables.push(Cable { ends, bottleneck: false, paused: false });
        self
    }

    /// The cable between two nodes, in whatever order.
    fn between(&mut self, a: &str, b: &str) -> Option<&mut Cable> {
        self.cables.iter_mut().find(|c| {
            let [x, y] = &c.ends;
            (x == a && y == b) || (x == b && y == a)
        })
    }

    pub(crate) fn bottleneck(mut self, a: &str, b: &str) -> Self {
        if let Some(cable) = self.between(a, b) {
            cable.bottleneck = true;
        }
        self
    }

    /// Notes that a pause crossed this cable.
    pub(crate) fn paused(&mut self, a: &str, b: &str) {
        if let Some(cable) = self.between(a, b) {
            cable.paused = true;
        }
    }

    pub(crate) fn tag(mut self, name: &str, tag: impl Into<String>) -> Self {
        if let Some(node) = self.nodes.iter_mut().find(|n| n.name == name) {
            node.tag = tag.into();
        }
        self
    }

    /// Middle of each node.
    #[expect(clippy::cast_precision_loss, reason = "of nodes")]
    fn places(&self) -> Vec<(f64, f64)> {
        let in_layer = |layer| self.nodes.iter().filter(|n| n.layer == layer).count() as f64;
        let mut seen = std::collections::BTreeMap::new();
        let place = |node: &Node| {
            let nth = seen.entry(node.layer).or_insert(0.0);
            let x = (*nth + 0.5) * WIDTH / in_layer(node.layer);
            *nth += 1.0;
            (x, 40.0 + node.layer as f64 * ROW)
        };
        self.nodes.iter().map(place).collect()
    }

    /// The picture.
    #[expect(clippy::cast_precision_loss, reason = "of layers")]
    pub(super) fn draw(&self, title: &str) -> Svg {
        let places = self.places();
        let layers = self.nodes.iter().map(|n| n.layer).max().unwrap_or(0);
        let bottom = 40.0 + layers as f64 * ROW + 40.0;
        let mut to = open(WIDTH, bottom + 30.0, title);
        let of = |name: &str| self.nodes.iter().position(|n| n.name == name).map(|i| places[i]);
        let cables: Vec<_> = self
            .cables
            .iter()
            .filter_map(|c| Some((c, of(&c.ends[0])?, of(&c.ends[1])?)))
            .collect();
        for (cable, a, b) in &cables {
            let (colour, wide) = match (cable.bottleneck, cable.paused) {
                (true, _) => ("--hot", 4.0),
                (_, true) => ("--pause", 2.5),
                _ => ("--axis", 1.5),
            };
            let dash = if cable.paused { " stroke-dasharray=\"8 4\"" } else { "" };
            let look =
                format!("style=\"stroke:var({colour})\" stroke-width=\"{}\"{dash}", px(wide));
            line(&mut to, *a, *b, &look);
        }
        for (node, &(x, y)) in self.nodes.iter().zip(&places) {
            draw_node(&mut to, node, x, y);
        }
        let mut x = 12.0;
        text(&mut to, x, bottom + 18.0, "soft", &self.caption);
        x += width(&self.caption) + 24.0;
        if self.cables.iter().any(|c| c.bottleneck) {
            let look = "style=\"stroke:var(--hot)\" stroke-width=\"4\"";
            x = key(&mut to, x, bottom + 14.0, look, "bottleneck");
        }
        if self.cables.iter().any(|c| c.paused) {
            let look =
                "style=\"stroke:var(--pause)\" stroke-width=\"2.5\" stroke-dasharray=\"8 4\"";
            key(&mut to, x, bottom + 14.0, look, "saw a pause");
        }
        to.push_str("</svg>");
        Svg { element: to, data: String::new() }
    }
}

/// A line of the key; where the next one goes.
fn key(to: &mut String, x: f64, y: f64, look: &str, what: &str) -> f64 {
    line(to, (x, y), (x + 26.0, y), look);
    text(to, x + 32.0, y + 4.0, "soft", what);
    x + 32.0 + width(what) + 18.0
}

fn draw_node(to: &mut String, node: &Node, x: f64, y: f64) {
    let wide = NODE.0.max(width(&node.name).max(width(&node.tag)) + 16.0);
    let corner = if node.kind == Kind::Host { 17 } else { 4 };
    let look = format!(
        "rx=\"{corner}\" style=\"fill:var(--paper);stroke:var({})\" stroke-width=\"{}\"",
        if node.kind == Kind::Host { "--c0" } else { "--ink" },
        if node.kind == Kind::Host { 1.5 } else { 2.0 },
    );
    rect(to, x - wide / 2.0, y - NODE.1 / 2.0, (wide, NODE.1), &look);
    let name = if node.tag.is_empty() { y + 4.0 } else { y - 2.0 };
    let (x_text, name) = (px(x), px(name));
    let _ = write!(
        to,
        "<text x=\"{x_text}\" y=\"{name}\" class=\"mid\" font-weight=\"600\">{}</text>",
        escaped(&node.name)
    );
    if !node.tag.is_empty() {
        text(to, x, y + 12.0, "mid soft", &node.tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_drawn() {
        let mut net = Drawing::new("40 Gbit/s, 1 us")
            .hosts(2, &["H1", "H2", "R"])
            .switches(1, &["T"])
            .switches(0, &["L"])
            .cable("H1", "T")
            .cable("H2", "T")
            .cable("T", "R")
            .cable("L", "T")
            .bottleneck("R", "T")
            .tag("R", "receiver");
        net.paused("T", "H1");
        // Nothing to be said of what is not there.
        net.paused("T", "nobody");
        let svg = net.draw("network").element;
        for text in ["H1", "receiver", "bottleneck", "saw a pause", "40 Gbit/s, 1 us"] {
            assert!(svg.contains(text), "no {text}");
        }
        // Four cables and two lines of the key.
        assert_eq!(svg.matches("<line").count(), 6);
        let places = net.places();
        assert!(places[0].0 < places[1].0 && places[1].0 < places[2].0);
        assert!(places[4].1 < places[3].1 && places[3].1 < places[0].1);
    }
}
