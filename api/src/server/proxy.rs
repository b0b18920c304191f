//! PROXY protocol, version 2: the address of the real peer in front of a spliced connection.
//!
//! The header is read only from peers that were named at start, and even there only when it is present: the
//! same address may also connect directly. From anybody else the bytes go to the TLS handshake, which ends
//! the connection. The header says where a connection comes from, never who it is.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use tokio::io::{AsyncRead, AsyncReadExt};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Longest header that is read; real ones are below 600 bytes even with every extension.
const LONGEST: usize = 4096;

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

/// What stood at the front of a connection.
#[derive(Debug)]
pub enum Front {
    /// No header: these bytes are the beginning of the connection itself.
    Direct(Vec<u8>),
    /// A header; `None` when it speaks of the proxy's own connection (a health check).
    Proxied(Option<SocketAddr>),
}

/// Reads the header if there is one. The first byte tells: TLS never begins with a carriage return.
pub async fn read(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Front> {
    let mut first = [0u8; 1];
    io.read_exact(&mut first).await?;
    if first[0] != SIGNATURE[0] {
        return Ok(Front::Direct(first.to_vec()));
    }
    let mut head = [0u8; 16];
    head[0] = first[0];
    io.read_exact(&mut head[1..]).await?;
    if head[..12] != SIGNATURE {
        return Err(bad("not a PROXY header of version 2"));
    }
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    if length > LONGEST {
        return Err(bad("a PROXY header that is too long"));
    }
    let mut rest = vec![0u8; length];
    io.read_exact(&mut rest).await?;
    match (head[12], head[13]) {
        (0x20, _) => Ok(Front::Proxied(None)),
        (0x21, 0x11) if length >= 12 => {
            let source = Ipv4Addr::new(rest[0], rest[1], rest[2], rest[3]);
            let port = u16::from_be_bytes([rest[8], rest[9]]);
            Ok(Front::Proxied(Some(SocketAddr::from((source, port)))))
        }
        (0x21, 0x21) if length >= 36 => {
            let mut octets = [0u8; 16];
            octets.copy_from_slice(&rest[..16]);
            let port = u16::from_be_bytes([rest[32], rest[33]]);
            Ok(Front::Proxied(Some(SocketAddr::from((Ipv6Addr::from(octets), port)))))
        }
        (0x21, _) => Ok(Front::Proxied(None)),
        _ => Err(bad("a PROXY header with an unknown command")),
    }
}

fn bad(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
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

    #[tokio::test]
    async fn headers_are_told_from_tls() {
        let mut header = SIGNATURE.to_vec();
        header.extend([0x21, 0x11, 0, 12, 192, 0, 2, 7, 10, 0, 0, 1, 0x1f, 0x90, 0x20, 0xfb]);
        let Front::Proxied(Some(peer)) = read(&mut header.as_slice()).await.unwrap() else {
            panic!("no peer")
        };
        assert_eq!(peer, "192.0.2.7:8080".parse().unwrap());

        let mut local = SIGNATURE.to_vec();
        local.extend([0x20, 0, 0, 0]);
        assert!(matches!(read(&mut local.as_slice()).await.unwrap(), Front::Proxied(None)));

        let Front::Direct(bytes) = read(&mut [0x16u8, 3, 1].as_slice()).await.unwrap() else {
            panic!("taken for a header")
        };
        assert_eq!(bytes, [0x16]);

        for junk in
            [&b"\r\n\r\n"[..], b"\r\n\r\n\0\r\nQUIT\r!\x11\0\x0c", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff"]
        {
            assert!(read(&mut &*junk).await.is_err());
        }
    }
}
