//! PROXY protocol, version 2: the address of the real peer in front of a connection that somebody passes on.
//!
//! A header is read only from peers that were named at start, and even there only when it is present: the
//! same address may also connect directly. From anybody else the bytes go to the TLS handshake, which ends
//! the connection. The header says where a connection comes from, never who it is.
//!
//! A header that contradicts itself (an address that does not fit into it, an unknown version or command)
//! ends the connection. What is only unknown is passed over: extensions, and families of addresses that are
//! neither IPv4 nor IPv6, for which the proxy's own address stands.

mod block;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

pub use block::{BadBlock, Block};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Longest header that is read; real ones are below 600 bytes even with every extension.
const LONGEST: usize = 4096;

/// Version 2, and what the proxy says: about a connection of its own, or about somebody else's.
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
/// Streams over IPv4 and IPv6.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
/// Two addresses and two ports.
const TCP4_LENGTH: usize = 12;
const TCP6_LENGTH: usize = 36;

/// What stood at the front of a connection.
#[derive(Debug)]
pub enum Front {
    /// No header: these bytes are the beginning of the connection itself.
    Direct(Vec<u8>),
    /// A header; `None` when it names no peer (a health check of the proxy, or an unknown kind of address).
    Proxied(Option<SocketAddr>),
}

/// Reads the header if there is one, and nothing after it. The first byte tells: TLS never begins with a
/// carriage return.
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
        (LOCAL, _) => Ok(Front::Proxied(None)),
        (PROXY, TCP4) if length >= TCP4_LENGTH => {
            let source = Ipv4Addr::new(rest[0], rest[1], rest[2], rest[3]);
            let port = u16::from_be_bytes([rest[8], rest[9]]);
            Ok(Front::Proxied(Some(SocketAddr::from((source, port)))))
        }
        (PROXY, TCP6) if length >= TCP6_LENGTH => {
            let mut octets = [0u8; 16];
            octets.copy_from_slice(&rest[..16]);
            let port = u16::from_be_bytes([rest[32], rest[33]]);
            let source = Ipv6Addr::from(octets).to_canonical();
            Ok(Front::Proxied(Some(SocketAddr::from((source, port)))))
        }
        (PROXY, TCP4 | TCP6) => Err(bad("a PROXY header without room for its addresses")),
        (PROXY, _) => Ok(Front::Proxied(None)),
        _ => Err(bad("a PROXY header with an unknown version or command")),
    }
}

/// A header that tells of a connection from `source` to `destination`.
pub fn header(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    header.push(PROXY);
    match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            header.extend([TCP4, 0, TCP4_LENGTH as u8]);
            header.extend(from.octets());
            header.extend(to.octets());
        }
        (from, to) => {
            header.extend([TCP6, 0, TCP6_LENGTH as u8]);
            header.extend(mapped(from).octets());
            header.extend(mapped(to).octets());
        }
    }
    header.extend(source.port().to_be_bytes());
    header.extend(destination.port().to_be_bytes());
    header
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn bad(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with this command, family and content.
    fn raw(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
        let mut header = SIGNATURE.to_vec();
        header.extend([command, family]);
        header.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
        header.extend(content);
        header
    }

    #[tokio::test]
    async fn what_is_written_is_read() {
        for (from, to, read_as) in [
            ("192.0.2.7:8080", "10.0.0.1:8443", "192.0.2.7:8080"),
            ("[2001:db8::7]:1", "[2001:db8::1]:65535", "[2001:db8::7]:1"),
            ("192.0.2.7:8080", "[2001:db8::1]:8443", "192.0.2.7:8080"),
            ("[::ffff:192.0.2.7]:8080", "10.0.0.1:8443", "192.0.2.7:8080"),
        ] {
            let mut bytes = header(from.parse().unwrap(), to.parse().unwrap());
            bytes.extend(b"hello");
            let mut rest = bytes.as_slice();
            let Front::Proxied(Some(peer)) = read(&mut rest).await.unwrap() else { panic!("no peer") };
            assert_eq!(peer, read_as.parse().unwrap());
            assert_eq!(rest, b"hello", "nothing after the header is taken");
        }
    }

    #[tokio::test]
    async fn headers_are_told_from_tls_and_from_each_other() {
        let four = [192, 0, 2, 7, 10, 0, 0, 1, 0x1f, 0x90, 0x20, 0xfb];
        let with_extension = [four.as_slice(), &[0x04, 0, 1, 0]].concat();
        for (bytes, peer) in [
            (raw(PROXY, TCP4, &four), Some("192.0.2.7:8080")),
            (raw(PROXY, TCP4, &with_extension), Some("192.0.2.7:8080")),
            (raw(LOCAL, 0, &[]), None),
            (raw(LOCAL, TCP4, &four), None),
            (raw(PROXY, 0, &[]), None),
            (raw(PROXY, 0x31, &[0; 216]), None),
        ] {
            let Front::Proxied(found) = read(&mut bytes.as_slice()).await.unwrap() else {
                panic!("no header: {bytes:?}")
            };
            assert_eq!(found, peer.map(|peer| peer.parse().unwrap()), "{bytes:?}");
        }

        let Front::Direct(bytes) = read(&mut [0x16u8, 3, 1].as_slice()).await.unwrap() else {
            panic!("taken for a header")
        };
        assert_eq!(bytes, [0x16]);

        for junk in [
            b"\r\n\r\n".to_vec(),
            b"\r\n\r\n\0\r\nQUIT\r!\x11\0\x0c".to_vec(),
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff".to_vec(),
            raw(PROXY, TCP4, &four[..11]),
            raw(PROXY, TCP6, &four),
            raw(0x22, TCP4, &four),
            raw(0x11, TCP4, &four),
            raw(PROXY, TCP4, &four)[..20].to_vec(),
        ] {
            assert!(read(&mut junk.as_slice()).await.is_err(), "{junk:?}");
        }
    }
}
