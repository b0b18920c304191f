//! What may be written into a Secret, given what is stored and which gates are on. Texts name keys and
//! annotations, never a value.

use horchestra_core::gates::Gate;
use horchestra_core::kind::Kind;
use horchestra_core::kinds::secret::{Secret, Source};
use horchestra_core::object::Object;
use horchestra_core::status::Status;

use super::{Attributes, Denial};

pub(super) fn check(attributes: &Attributes<'_>, object: &Object) -> Result<(), Denial> {
    if attributes.key.kind != Kind::Secret {
        return Ok(());
    }
    // What does not read has been refused by the schema, or was stored as it is and stays.
    let Ok(secret) = object.read::<Secret>() else { return Ok(()) };
    if let Some(old) = attributes.old.and_then(|old| old.read::<Secret>().ok()) {
        let causes = old.frozen_changes(&secret);
        if !causes.is_empty() {
            let key = attributes.key;
            return Err(Denial::Status(Status::invalid(key.kind, &key.name, causes)));
        }
    }
    check_gate(attributes, &secret)
}

/// A role of an engine can be asked for only where its gate is on.
fn check_gate(attributes: &Attributes<'_>, secret: &Secret) -> Result<(), Denial> {
    if !secret.is_vault() {
        return Ok(());
    }
    // A source that is none is for the rules of the kind to report.
    let Ok(source) = Source::of(&secret.metadata.annotations) else { return Ok(()) };
    let gate = match source {
        Source::Path(_) => return Ok(()),
        Source::StaticRole(_) => Gate::VaultStaticRoles,
        Source::DynamicRole(_) => Gate::VaultDynamicSecrets,
    };
    if attributes.gates.enabled(gate) {
        return Ok(());
    }
    Err(Denial::Forbidden(format!(
        "annotation {} needs the feature gate {gate}, which is off; start the control plane with \
         --feature-gates={gate}=true",
        source.annotation()
    )))
}
