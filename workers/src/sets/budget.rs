//! How many children a rollout may take down, and what shows the database that it does not take down more.

use std::collections::{BTreeMap, BTreeSet};

use horchestra_core::kind::{Key, Kind};
use horchestra_store::Guard;

use super::situation::{Child, Situation, Standing};

/// The budget of one pass over one set.
pub struct Budget<'a> {
    situation: &'a Situation,
    /// At most so many children that are kept running may be down; `None`: any number.
    most: Option<usize>,
    /// How many there should be.
    wanted: usize,
    /// How many are down, by what was found and by what this pass does.
    down: usize,
    /// Available ones that this pass has not touched, by name.
    standing: BTreeMap<&'a str, &'a Child>,
}

impl<'a> Budget<'a> {
    /// `names`: the children that should be kept running, whether they are there or not.
    pub fn new(situation: &'a Situation, names: &BTreeSet<&str>) -> Budget<'a> {
        let available = |child: &Child| situation.standing(child) == Standing::Available;
        let standing: BTreeMap<&str, &Child> = situation
            .children
            .iter()
            .filter(|(name, child)| names.contains(name.as_str()) && available(child))
            .map(|(name, child)| (name.as_str(), child))
            .collect();
        let wanted = names.len();
        let most = situation.set.spec.max_unavailable();
        Budget { situation, most, wanted, down: wanted - standing.len(), standing }
    }

    /// What the change of a child rests on; `None` when it has to wait.
    pub fn spend(&mut self, name: &str) -> Option<Vec<Guard>> {
        let Some(most) = self.most else { return Some(Vec::new()) };
        let Some(child) = self.situation.children.get(name) else { return Some(Vec::new()) };
        if !self.standing.contains_key(name) {
            // It is down, so changing it costs nothing; if that is for its node alone, the node must still be
            // as it was.
            return Some(if child.runs() { self.node_unchanged(child.node()) } else { Vec::new() });
        }
        if self.down >= most {
            return None;
        }
        self.down += 1;
        self.standing.remove(name);
        Some(self.witnesses(self.wanted.saturating_sub(most)))
    }

    /// That so many children are still available. The last ones by name, since changes begin with the first.
    fn witnesses(&self, count: usize) -> Vec<Guard> {
        let chosen: Vec<&Child> = self.standing.values().rev().take(count).copied().collect();
        let nodes: BTreeSet<&str> = chosen.iter().map(|child| child.node()).collect();
        let mut guards: Vec<Guard> = nodes.into_iter().flat_map(|node| self.node_unchanged(node)).collect();
        guards.extend(
            chosen.iter().map(|child| Guard::Unchanged(child.entry.key.clone(), child.entry.revision)),
        );
        guards
    }

    fn node_unchanged(&self, node: &str) -> Vec<Guard> {
        let view = self.situation.nodes.by_name.get(node);
        view.map(|view| Guard::Unchanged(Key::cluster(Kind::Node, node), view.revision)).into_iter().collect()
    }
}
