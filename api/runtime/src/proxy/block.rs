//! Blocks of addresses.

use std::net::IpAddr;
use std::str::FromStr;

/// A block of addresses such as `10.0.0.0/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    address: IpAddr,
    prefix: u8,
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not an address or a block of addresses")]
pub struct BadBlock(String);

impl FromStr for Block {
    type Err = BadBlock;

    fn from_str(text: &str) -> Result<Block, BadBlock> {
        let bad = || BadBlock(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| bad())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(bits);
        if prefix > bits { Err(bad()) } else { Ok(Block { address, prefix }) }
    }
}

impl Block {
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(block), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                u32::from(block) & mask == u32::from(address) & mask
            }
            (IpAddr::V6(block), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                u128::from(block) & mask == u128::from(address) & mask
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_contain_their_addresses() {
        for (block, address, inside) in [
            ("10.0.0.0/8", "10.9.8.7", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "::ffff:127.0.0.1", true),
            ("127.0.0.1", "127.0.0.2", false),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fd12::1", true),
            ("::/0", "fd12::1", true),
        ] {
            let block: Block = block.parse().unwrap();
            assert_eq!(block.contains(address.parse().unwrap()), inside, "{block:?} {address}");
        }
        for text in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "a/b", "10.0.0.0/-1"] {
            assert!(text.parse::<Block>().is_err(), "{text:?}");
        }
    }
}
