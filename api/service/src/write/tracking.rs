//! Putting a change down to whoever made it.
//!
//! Every write of an object, through whatever door, ends here before it is stored: what differs between the
//! stored object and the new one is compared once, and each field that was set goes to one manager. Three
//! sorts of fields are told apart. What the server fills in or decides itself (ids, holds, what a placement
//! makes of the status) is the server's, whoever caused it. `status` is owned through its subresource. All
//! the rest is the writer's. So a client that applies its manifest again neither conflicts with what was
//! filled in nor takes it away.
//!
//! A write that changes nothing puts nothing down: the managers, their times included, are as they were.

use bytes::Bytes;
use horchestra_core::apply::{FieldSet, Managed, Manager, Operation, compare, every_field};
use horchestra_core::object::Object;
use horchestra_core::registry::KindSpec;
use horchestra_core::time::Time;
use horchestra_store::Entry;
use jiff::Timestamp;

use crate::caller::{API_MANAGER, RequestContext};
use crate::request::Part;

pub(crate) const STATUS: &str = "status";

/// Who made a change.
pub(crate) enum Author<'a> {
    /// A client that wrote a part of the object. `asked` is the object as it wanted it, `managed` the managers
    /// that it starts from.
    Client { name: &'a str, part: Part, asked: &'a Object, managed: Managed },
    /// A manager that applied a part of the object; `managed` has its fields already.
    Applier { manager: &'a Manager, asked: &'a Object, managed: Managed },
    /// A part of the system, which writes what it decides.
    Component { name: &'a str, managed: Managed },
}

/// The stored managers of an object.
pub(crate) fn stored(entry: &Entry) -> Managed {
    Managed::from_stored(entry.managed.as_deref())
}

/// The managers after a change that a part of the system made, in their stored form.
pub(crate) fn of_component(
    spec: &KindSpec,
    context: &RequestContext,
    old: Option<(&Entry, &Object)>,
    new: &Object,
) -> Option<Bytes> {
    let managed = old.map_or_else(Managed::new, |(entry, _)| stored(entry));
    let name = &context.caller.component();
    managers(spec, old, new, Author::Component { name, managed })
}

/// The managers after a change, in their stored form.
pub(crate) fn managers(
    spec: &KindSpec,
    old: Option<(&Entry, &Object)>,
    new: &Object,
    author: Author<'_>,
) -> Option<Bytes> {
    let change = compare(spec.schema(), old.map(|(_, object)| object), new);
    let mut main = change.touched();
    let status = if spec.has_status() { main.split_off("f:status") } else { FieldSet::default() };
    let server = |asked: &Object| {
        if asked == new { FieldSet::default() } else { compare(spec.schema(), Some(asked), new).touched() }
    };
    let owners = Owners { version: spec.kind.api_version(), now: Time::new(Timestamp::now()) };
    let managed = match author {
        Author::Client { name, part, asked, mut managed } => {
            managed.forget(&change.removed);
            let server = server(asked);
            let (by_server, by_client) = match part {
                Part::Main => (main.intersection(&server), without(main, &server)),
                Part::Status => (main, FieldSet::default()),
            };
            owners.update(&mut managed, API_MANAGER, "", &by_server);
            owners.update(&mut managed, name, "", &by_client);
            let (by_server, by_client) = match part {
                Part::Main => (status, FieldSet::default()),
                Part::Status => (status.intersection(&server), without(status, &server)),
            };
            owners.update(&mut managed, API_MANAGER, STATUS, &by_server);
            owners.update(&mut managed, name, STATUS, &by_client);
            managed
        }
        Author::Applier { manager, asked, mut managed } => {
            managed.forget(&change.removed);
            // Defaults that were filled into what was applied belong to nobody.
            let server = server(asked);
            let through_status = manager.subresource == STATUS;
            let status = if through_status { status.intersection(&server) } else { status };
            owners.update(&mut managed, API_MANAGER, "", &main.intersection(&server));
            owners.update(&mut managed, API_MANAGER, STATUS, &status);
            managed.keep(manager, &every_field(spec.schema(), new));
            managed
        }
        Author::Component { name, mut managed } => {
            managed.forget(&change.removed);
            owners.update(&mut managed, name, "", &main);
            owners.update(&mut managed, name, STATUS, &status);
            managed
        }
    };
    let written = managed.to_stored().map(Bytes::from);
    match old {
        // A time alone is no change, nor is that parts of what is stored cannot be read.
        Some((entry, _))
            if change.is_empty() && written != entry.managed && stored(entry).owns_the_same(&managed) =>
        {
            entry.managed.clone()
        }
        _ => written,
    }
}

struct Owners {
    version: &'static str,
    now: Time,
}

impl Owners {
    fn update(&self, managed: &mut Managed, name: &str, subresource: &str, fields: &FieldSet) {
        if !fields.is_empty() {
            let manager = Manager::new(name, Operation::Update, self.version, subresource);
            managed.update(&manager, fields, self.now);
        }
    }
}

fn without(mut set: FieldSet, other: &FieldSet) -> FieldSet {
    set.remove(other);
    set
}
