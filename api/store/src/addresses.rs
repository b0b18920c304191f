//! Addresses of workloads that have a network of their own.
//!
//! An Application has one address from the moment that somebody asks for it until it is erased, wherever it runs and
//! whoever asks. No address is leased to two, at any moment: the database sees to it, not the askers. What was given
//! back is held back for a while, since its last holder may be running still on a node that was given up.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::time::Duration;

use horchestra_core::kind::Key;
use uuid::Uuid;

/// The most Applications that one demand is about: choosing holds the ordering lock, which all writers wait for.
pub const MOST_LEASES: usize = 128;

/// Who is to have addresses, and which ones there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressDemand {
    /// Applications, by key and uid.
    pub holders: Vec<(Key, Uuid)>,
    /// The first and the last address that may be given out.
    pub range: RangeInclusive<Ipv4Addr>,
    /// Those in between that may not.
    pub skipped: Vec<RangeInclusive<Ipv4Addr>>,
    /// How long an address stays free before it is another one's, by the database clock.
    pub hold_back: Duration,
}

/// What became of a demand: nothing is answered of an Application that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leased {
    pub holder: Uuid,
    /// `None`: there are no more.
    pub address: Option<Ipv4Addr>,
}

/// A held address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressLease {
    pub address: Ipv4Addr,
    pub holder: Uuid,
}

/// An address that an Application is known to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownAddress {
    pub key: Key,
    pub uid: Uuid,
    pub address: Ipv4Addr,
}
