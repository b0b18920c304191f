//! What a node is to be sent, compared with what it may hold.

use horchestra_core::kind::Kind;
use horchestra_store::Holding;

use super::{Index, Shape, State, View};
use crate::desired::decision::Fate;

/// Something that the node may hold and that is not in its view. `None`: the index does not know why.
pub type Missing = (Holding, Option<Fate>);

impl Index {
    /// The view of a node, and what of its record is not in it, of one moment.
    pub fn survey(&self, node: &str, recorded: &[Holding]) -> (View, Vec<Missing>) {
        let state = self.state.read();
        let view = state.view(node);
        let missing = match view {
            View::Complete { .. } => recorded.iter().filter_map(|held| state.missing(node, held)).collect(),
            _ => Vec::new(),
        };
        (view, missing)
    }
}

impl State {
    fn missing(&self, node: &str, held: &Holding) -> Option<Missing> {
        if held.key.kind == Kind::PersistentVolume {
            // Whatever bears the name protects the data.
            return (!self.volumes.contains(&held.key)).then(|| (held.clone(), None));
        }
        let placed = self.applications.get(&held.key).filter(|placed| placed.uid == held.uid);
        let fate = match placed.map(|placed| (&placed.shape, placed.node == node)) {
            None => None,
            Some((_, false)) => Some(Fate::Moved),
            Some((Shape::Send(_), true)) => return None,
            Some((Shape::Finished, true)) => Some(Fate::Finished),
            Some((Shape::LeftOut | Shape::Blocked(_), true)) => Some(Fate::Unsendable),
        };
        Some((held.clone(), fate))
    }
}
