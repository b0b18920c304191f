//! What a node reported and nobody has worked on yet.
//!
//! Guarantees: putting something in never waits, and memory is bounded: there is one slot for the node
//! itself and one for each Application that was pushed to the node in this session; a newer report replaces
//! the one that waits. A node that reports faster than the database takes it thus loses only reports that
//! were overtaken anyway. What is *not* guaranteed is that every report is written: only the newest state is.

use std::collections::HashMap;

use horchestra_proto::node::v1::AppStatus;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::node_status::NodeReport;

/// Namespace and name.
pub type AppName = (String, String);

#[derive(Default)]
struct Slots {
    node: Option<NodeReport>,
    apps: HashMap<AppName, AppStatus>,
}

/// The slots of one session.
#[derive(Default)]
pub struct Inbox {
    slots: Mutex<Slots>,
    filled: Notify,
}

impl Inbox {
    /// Returns whether a report that nobody had looked at was replaced.
    pub fn put_node(&self, report: NodeReport) -> bool {
        let replaced = self.slots.lock().node.replace(report).is_some();
        self.filled.notify_one();
        replaced
    }

    /// Returns whether a report that nobody had looked at was replaced.
    pub fn put_app(&self, report: AppStatus) -> bool {
        let name = (report.namespace.clone(), report.name.clone());
        let replaced = self.slots.lock().apps.insert(name, report).is_some();
        self.filled.notify_one();
        replaced
    }

    /// Puts a report back that could not be written, unless a newer one has come.
    pub fn put_back_node(&self, report: NodeReport) {
        self.slots.lock().node.get_or_insert(report);
    }

    /// As [`Inbox::put_back_node`].
    pub fn put_back_app(&self, report: AppStatus) {
        let name = (report.namespace.clone(), report.name.clone());
        self.slots.lock().apps.entry(name).or_insert(report);
    }

    /// Waits until something waits.
    pub async fn filled(&self) {
        loop {
            let filled = self.filled.notified();
            {
                let slots = self.slots.lock();
                if slots.node.is_some() || !slots.apps.is_empty() {
                    return;
                }
            }
            filled.await;
        }
    }

    /// Everything that waits.
    pub fn take(&self) -> (Option<NodeReport>, Vec<AppStatus>) {
        let mut slots = self.slots.lock();
        (slots.node.take(), slots.apps.drain().map(|(_, report)| report).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(name: &str, generation: i64) -> AppStatus {
        AppStatus {
            namespace: "team".to_owned(),
            name: name.to_owned(),
            observed_generation: generation,
            ..AppStatus::default()
        }
    }

    #[test]
    fn the_newest_report_of_each_application_waits() {
        let inbox = Inbox::default();
        assert!(!inbox.put_app(app("a", 1)));
        assert!(inbox.put_app(app("a", 2)));
        assert!(!inbox.put_app(app("b", 1)));
        let (node, mut apps) = inbox.take();
        apps.sort_by(|x, y| x.name.cmp(&y.name));
        assert!(node.is_none());
        assert_eq!(apps, [app("a", 2), app("b", 1)]);
    }

    #[test]
    fn what_is_put_back_does_not_replace_what_came_since() {
        let inbox = Inbox::default();
        inbox.put_app(app("a", 2));
        inbox.put_back_app(app("a", 1));
        inbox.put_back_app(app("b", 1));
        let (_, mut apps) = inbox.take();
        apps.sort_by(|x, y| x.name.cmp(&y.name));
        assert_eq!(apps, [app("a", 2), app("b", 1)]);
    }
}
