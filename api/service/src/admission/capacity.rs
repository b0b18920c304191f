//! A placement that an author writes must fit its node.
//!
//! Judged only when a write takes more of a node than the stored object does (a finished job takes nothing
//! until it is edited), and never while the object is being deleted: a label edit on a node that has shrunk
//! is nobody's fault. A resource of which the node reports nothing
//! is taken as unbounded here, so that one may pin to a node that has yet to report; the scheduler takes
//! the opposite view.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_store::{Columns, Guard};

use super::{Attributes, Denial, Verdict};

pub(super) fn check(
    attributes: &Attributes<'_>,
    object: &Object,
    columns: &Columns,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let node = object.str_at(&["spec", "placement", "nodeName"]);
    if attributes.key.kind != Kind::Application
        || node.is_empty()
        || attributes.is_deleting()
        || (columns.cpu == 0 && columns.memory == 0)
        || !takes_more(attributes.old_columns, columns)
    {
        return Ok(());
    }
    let (mut cpu, mut memory) = (columns.cpu, columns.memory);
    for entry in attributes.view.list(Kind::Application, None) {
        if entry.columns.node.as_deref() == Some(node) && entry.key != *attributes.key {
            cpu = cpu.saturating_add(entry.columns.cpu);
            memory = memory.saturating_add(entry.columns.memory);
        }
    }
    let refusal =
        |over: &str| format!("application \"{}\" does not fit node \"{node}\": {over}", attributes.key.name);
    if let Some(entry) = attributes.view.get(&Key::cluster(Kind::Node, node)) {
        let mut over = Vec::new();
        if entry.columns.cpu > 0 && cpu > entry.columns.cpu {
            over.push(format!("cpu {} of {}", cores(cpu), cores(entry.columns.cpu)));
        }
        if entry.columns.memory > 0 && memory > entry.columns.memory {
            over.push(format!("memory {memory} of {} bytes", entry.columns.memory));
        }
        if !over.is_empty() {
            return Err(Denial::Forbidden(refusal(&over.join(", "))));
        }
    }
    let status =
        Status::forbidden(attributes.key.kind, &attributes.key.name, refusal("cpu or memory is used up"));
    verdict.demand(Guard::Capacity { node: node.to_owned(), zero_is_unbounded: true }, status);
    Ok(())
}

fn takes_more(old: Option<&Columns>, new: &Columns) -> bool {
    old.is_none_or(|old| old.node != new.node || new.cpu > old.cpu || new.memory > old.memory)
}

/// Nano-cores as people write them.
fn cores(nano: i64) -> String {
    let milli = nano.saturating_add(999_999) / 1_000_000;
    if milli % 1000 == 0 { (milli / 1000).to_string() } else { format!("{milli}m") }
}
