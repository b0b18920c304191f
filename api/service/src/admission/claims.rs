//! What an object holds for itself alone, read off the object: the claims that admission makes when an object comes,
//! in one place for whoever stores objects that were admitted elsewhere.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::namespace::UID_RANGE_ANNOTATION;
use horchestra_core::object::Object;
use horchestra_core::ranges::IdBlock;

use super::allocation::{BLOCK_SPACE, id_space};
use super::services::{ADDRESSES, address_of};

/// A value of a space that an object holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub space: String,
    pub value: String,
    /// Others may hold the same value.
    pub shared: bool,
    /// The value is a range, and no other range of the space may overlap it.
    pub apart: bool,
}

/// What an object holds. A value that cannot be read is nobody's.
pub(crate) fn claims_of(key: &Key, object: &Object) -> Option<Claimed> {
    match key.kind {
        Kind::Namespace => {
            let text = object.str_at(&["metadata", "annotations", UID_RANGE_ANNOTATION]);
            let block: IdBlock = text.parse().ok()?;
            let (space, value) = (BLOCK_SPACE.to_owned(), block.to_string());
            Some(Claimed { space, value, shared: true, apart: true })
        }
        Kind::Application => {
            let id = object.at(&["spec", "securityContext", "runAsUser"])?.as_i64()?;
            let (space, value) = (id_space(&key.namespace), id.to_string());
            Some(Claimed { space, value, shared: true, apart: false })
        }
        Kind::Service => {
            let (space, value) = (ADDRESSES.to_owned(), address_of(object)?.to_string());
            Some(Claimed { space, value, shared: false, apart: false })
        }
        _ => None,
    }
}
