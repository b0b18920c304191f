//! Ranges that are handed out piece by piece: blocks of user ids, and networks of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::values::RUN_AS_IDS;

/// A block of user and group ids, written `<first>/<count>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdBlock {
    first: i64,
    count: i64,
}

/// The ids that namespaces get their blocks of begin here.
const FIRST_ID: i64 = 1_000_000_000;
/// Ids in a block.
const BLOCK: i64 = 65_536;
/// Blocks that there are.
pub const BLOCKS: usize = 50_277;

impl IdBlock {
    /// The block with this number, below [`BLOCKS`].
    pub fn numbered(number: usize) -> IdBlock {
        let number = i64::try_from(number.min(BLOCKS - 1)).unwrap_or(0);
        IdBlock { first: FIRST_ID + number * BLOCK, count: BLOCK }
    }

    pub fn first(self) -> i64 {
        self.first
    }

    pub fn last(self) -> i64 {
        self.first + self.count - 1
    }

    pub fn contains(self, id: i64) -> bool {
        (self.first..=self.last()).contains(&id)
    }

    pub fn overlaps(self, other: IdBlock) -> bool {
        self.first <= other.last() && other.first <= self.last()
    }

    /// Numbers of the blocks that this one has ids of.
    pub fn numbers(self) -> std::ops::Range<usize> {
        let number = |id: i64| usize::try_from((id - FIRST_ID).max(0) / BLOCK).unwrap_or(BLOCKS).min(BLOCKS);
        if self.last() < FIRST_ID { 0..0 } else { number(self.first)..(number(self.last()) + 1).min(BLOCKS) }
    }
}

impl FromStr for IdBlock {
    /// What is wrong with the text.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<IdBlock, &'static str> {
        let (first, count) = text.split_once('/').ok_or("must be <first>/<count>")?;
        let number =
            |text: &str| text.parse::<i64>().map_err(|_| "must be two whole numbers, <first>/<count>");
        let (first, count) = (number(first)?, number(count)?);
        let last = first.checked_add(count).map(|end| end.saturating_sub(1));
        match last {
            _ if count < 1 => Err("must hold at least one id"),
            Some(last) if RUN_AS_IDS.contains(&first) && RUN_AS_IDS.contains(&last) => {
                Ok(IdBlock { first, count })
            }
            _ => Err("must lie between 1 and 4294967294"),
        }
    }
}

impl fmt::Display for IdBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.count)
    }
}

/// A network of addresses, written `10.243.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// The first and the last address that may be given out, as numbers. The address of the network itself may
    /// not, nor may the broadcast address of an IPv4 one.
    fn span(self) -> (u128, u128) {
        let (base, free, broadcast) = match self.address {
            IpAddr::V4(address) => (u128::from(address.to_bits()), 32 - self.prefix, 1),
            IpAddr::V6(address) => (address.to_bits(), 128 - self.prefix, 0),
        };
        let last = 1u128.checked_shl(u32::from(free)).map_or(u128::MAX, |size| base + (size - 1));
        (base.saturating_add(1), last.saturating_sub(broadcast))
    }

    /// Whether an address lies in both.
    pub fn overlaps(self, other: Network) -> bool {
        let shorter = self.prefix.min(other.prefix);
        let cut = |network: Network| match network.address {
            IpAddr::V4(address) => address.to_bits().checked_shr(32 - u32::from(shorter)).unwrap_or(0).into(),
            IpAddr::V6(address) => address.to_bits().checked_shr(128 - u32::from(shorter)).unwrap_or(0),
        };
        self.address.is_ipv4() == other.address.is_ipv4() && cut(self) == cut(other)
    }

    /// The number of an address; `None` for one of the other family.
    pub fn number(self, address: IpAddr) -> Option<u128> {
        match (self.address, address) {
            (IpAddr::V4(_), IpAddr::V4(address)) => Some(u128::from(address.to_bits())),
            (IpAddr::V6(_), IpAddr::V6(address)) => Some(address.to_bits()),
            _ => None,
        }
    }

    /// The address with this number.
    pub fn address(self, number: u128) -> IpAddr {
        match self.address {
            IpAddr::V4(_) => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(number).into(),
        }
    }

    /// The numbers of the addresses that may be given out, lowest first.
    pub fn hosts(self) -> std::ops::RangeInclusive<u128> {
        let (first, last) = self.span();
        first..=last
    }

    /// How many addresses may be given out.
    pub fn size(self) -> u128 {
        let (first, last) = self.span();
        if first > last { 0 } else { (last - first).saturating_add(1) }
    }
}

impl FromStr for Network {
    /// What is wrong with the text.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Network, &'static str> {
        let (address, prefix) =
            text.split_once('/').ok_or("must be <address>/<bits>, such as 10.243.0.0/16")?;
        let address: IpAddr = address.parse().map_err(|_| "does not begin with an IP address")?;
        let prefix: u8 = prefix.parse().map_err(|_| "does not end with a number of bits")?;
        let (bits, address) = match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32u32.saturating_sub(prefix.into())).unwrap_or(0);
                (32, Ipv4Addr::from_bits(v4.to_bits() & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128u32.saturating_sub(prefix.into())).unwrap_or(0);
                (128, Ipv6Addr::from_bits(v6.to_bits() & mask).into())
            }
        };
        if prefix > bits { Err("has more bits than the address") } else { Ok(Network { address, prefix }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl TryFrom<String> for Network {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Network, &'static str> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> String {
        network.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_within_the_ids_that_there_are() {
        for (text, good) in [
            ("1000000000/65536", true),
            ("2000000000/1000", true),
            ("1/1", true),
            ("4294967294/1", true),
            ("4294967294/2", false),
            ("4294967295/1", false),
            ("0/5", false),
            ("-1/5", false),
            ("5/0", false),
            ("5/-1", false),
            ("1000000000/9223372036854775807", false),
            ("9223372036854775807/9223372036854775807", false),
            ("1000000000", false),
            ("a/b", false),
            ("1/2/3", false),
            (" 1/2", false),
            ("", false),
        ] {
            assert_eq!(text.parse::<IdBlock>().is_ok(), good, "{text:?}");
        }
        assert_eq!(IdBlock::numbered(1).to_string(), "1000065536/65536");
        assert_eq!(IdBlock::numbered(BLOCKS - 1).first(), 4_294_887_936);
        assert!(IdBlock::numbered(BLOCKS - 1).to_string().parse::<IdBlock>().is_ok());
    }

    #[test]
    fn a_block_knows_which_others_it_touches() {
        let block = |text: &str| text.parse::<IdBlock>().unwrap();
        for (text, numbers) in [
            ("1000000000/65536", 0..1),
            ("1000065536/65536", 1..2),
            ("1000065535/2", 0..2),
            ("2000000000/1000", 15258..15259),
            ("1/999999999", 0..0),
            ("1/1000000000", 0..1),
            ("1/4294967294", 0..BLOCKS),
            ("4294953472/100", BLOCKS..BLOCKS),
        ] {
            assert_eq!(block(text).numbers(), numbers, "{text}");
        }
        for number in [0, 1, 15_258, BLOCKS - 1] {
            assert_eq!(IdBlock::numbered(number).numbers(), number..number + 1);
        }
        assert!(block("5/5").overlaps(block("9/1")) && !block("5/5").overlaps(block("10/1")));
    }

    #[test]
    fn networks_that_share_addresses_overlap() {
        for (one, other, overlap) in [
            ("10.243.0.0/16", "10.243.0.0/16", true),
            ("10.243.0.0/16", "10.243.7.0/24", true),
            ("10.243.7.0/24", "10.0.0.0/8", true),
            ("10.243.0.0/16", "10.244.0.0/16", false),
            ("10.243.0.0/17", "10.243.128.0/17", false),
            ("0.0.0.0/0", "255.255.255.255/32", true),
            ("10.0.0.1/32", "10.0.0.2/32", false),
            ("fd00::/8", "fd12::/16", true),
            ("fd00::/64", "fd00:0:0:1::/64", false),
            ("::/0", "fd00::1/128", true),
            ("::/0", "0.0.0.0/0", false),
        ] {
            let (one, other): (Network, Network) = (one.parse().unwrap(), other.parse().unwrap());
            assert_eq!((one.overlaps(other), other.overlaps(one)), (overlap, overlap), "{one} {other}");
        }
    }

    #[test]
    fn networks_give_out_what_is_no_address_of_their_own() {
        let listed = |text: &str| -> Vec<String> {
            let network: Network = text.parse().unwrap();
            network.hosts().take(4).map(|number| network.address(number).to_string()).collect()
        };
        for (text, first, size) in [
            ("10.243.0.0/16", "10.243.0.1", 65_534),
            ("10.243.7.9/16", "10.243.0.1", 65_534),
            ("10.0.0.0/30", "10.0.0.1", 2),
            ("10.0.0.0/31", "", 0),
            ("10.0.0.0/32", "", 0),
            ("fd00::/126", "fd00::1", 3),
            ("fd00::/128", "", 0),
            ("0.0.0.0/32", "", 0),
            ("::/0", "::1", u128::MAX),
            ("0.0.0.0/0", "0.0.0.1", 4_294_967_294),
        ] {
            assert_eq!(listed(text).first().map_or("", String::as_str), first, "{text}");
            assert_eq!(text.parse::<Network>().unwrap().size(), size, "{text}");
        }
        assert_eq!(listed("10.0.0.0/30"), ["10.0.0.1", "10.0.0.2"]);
        for bad in
            ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "x/8", "10.0.0.0/-1", "10.0.0.0/", "fd00::/129", ""]
        {
            assert!(bad.parse::<Network>().is_err(), "{bad:?}");
        }
    }
}
