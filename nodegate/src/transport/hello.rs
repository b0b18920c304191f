//! Looking at a connection before anything is decided about it.
//!
//! What a client means to speak stands in its first message, in clear: the protocols it offers. It is read
//! here without being consumed, so that the connection can be served by this process or handed on, still
//! encrypted, to another. Nothing is believed because of it; who the client is comes out of the handshake.
//!
//! The message may come in any number of packets and in several records. It is put together first and
//! understood once, so a client that sends it byte by byte costs no more than its bytes. Everything is
//! bounded: bytes and records here, time by the caller. What cannot be the beginning of TLS is known by its
//! first byte.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Longest first message. Those of today have two kilobytes, a third of it for a key that quantum computers
/// do not break.
const MESSAGE_LIMIT: usize = 32 << 10;
/// Most records that it may be cut into.
const RECORDS_LIMIT: usize = 64;
const RECORD_HEADER: usize = 5;
const RECORD_LIMIT: usize = 16 << 10;
const HANDSHAKE: u8 = 22;
const MESSAGE_HEADER: usize = 4;
const CLIENT_HELLO: u8 = 1;
/// Room for a usual message.
const READ_AHEAD: usize = 2 << 10;

/// What the methods of HTTP begin with: somebody has taken this port for one without TLS.
const METHODS: &[u8] = b"GHPDOC";

/// Where a connection belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// A node agent offers `h2` and nothing else.
    Session,
    /// Everything else: browsers, kubectl, the agent's certificate client.
    Elsewhere,
}

/// The first message of a client, and all that was read with it.
#[derive(Debug)]
pub struct Hello {
    pub route: Route,
    pub bytes: Bytes,
}

/// Why there is no first message.
#[derive(Debug, thiserror::Error)]
pub enum NoHello {
    #[error("the connection ended before its first message did")]
    Ended,
    #[error("reading the first message failed: {0}")]
    Broken(#[from] io::Error),
    /// Somebody speaks HTTP without TLS.
    #[error("HTTP without TLS")]
    PlainHttp,
    #[error("this is not TLS")]
    NotTls,
    #[error("the first message is too long, or in too many pieces")]
    TooLong,
    /// With what TLS answers to it.
    #[error("the first message does not make sense: {error}")]
    Senseless { error: rustls::Error, alert: Vec<u8> },
}

/// Reads the first message of a TLS client; `seen` was read from it already.
pub async fn read_hello(stream: &mut (impl AsyncRead + Unpin), seen: Vec<u8>) -> Result<Hello, NoHello> {
    let mut bytes = BytesMut::from(seen.as_slice());
    let mut pieces = Pieces::default();
    loop {
        if let Some(end) = pieces.take(&bytes)? {
            let route = route(&bytes[..end])?;
            return Ok(Hello { route, bytes: bytes.freeze() });
        }
        bytes.reserve(READ_AHEAD);
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(NoHello::Ended);
        }
    }
}

/// The first message as far as it has come.
#[derive(Default)]
struct Pieces {
    /// The whole records looked at end here.
    at: usize,
    records: usize,
    /// Of the message, in the records so far.
    length: usize,
    /// As the message says at its beginning, and the bytes of that.
    announced: Option<usize>,
    head: Vec<u8>,
}

impl Pieces {
    /// Where the record ends with which the message is complete; `None`: more is needed.
    fn take(&mut self, bytes: &[u8]) -> Result<Option<usize>, NoHello> {
        loop {
            let rest = &bytes[self.at..];
            let [kind, major, _, high, low, content @ ..] = rest else {
                return judge_beginning(rest, self.at == 0).map(|()| None);
            };
            judge_beginning(&[*kind, *major], self.at == 0)?;
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            if *major != 3 || length == 0 || length > RECORD_LIMIT {
                return Err(NoHello::NotTls);
            }
            let arrived = &content[..content.len().min(length)];
            self.announce(arrived)?;
            if arrived.len() < length {
                return Ok(None);
            }
            self.at += RECORD_HEADER + length;
            self.records += 1;
            self.length += length;
            self.head.extend(arrived.iter().take(MESSAGE_HEADER - self.head.len()));
            if self.announced.is_some_and(|announced| self.length >= announced) {
                return Ok(Some(self.at));
            }
            if self.records >= RECORDS_LIMIT {
                return Err(NoHello::TooLong);
            }
        }
    }

    /// Looks at what the message says of itself, as soon as that is there.
    fn announce(&mut self, arrived: &[u8]) -> Result<(), NoHello> {
        if self.announced.is_some() {
            return Ok(());
        }
        let mut head = self.head.iter().chain(arrived).copied();
        let Some(kind) = head.next() else { return Ok(()) };
        if kind != CLIENT_HELLO {
            return Err(NoHello::NotTls);
        }
        if let (Some(high), Some(middle), Some(low)) = (head.next(), head.next(), head.next()) {
            let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            if length > MESSAGE_LIMIT {
                return Err(NoHello::TooLong);
            }
            self.announced = Some(MESSAGE_HEADER + length);
        }
        Ok(())
    }
}

/// Whether a record may begin like this.
fn judge_beginning(bytes: &[u8], of_the_connection: bool) -> Result<(), NoHello> {
    match bytes.first() {
        None | Some(&HANDSHAKE) => Ok(()),
        Some(first) if of_the_connection && METHODS.contains(first) => Err(NoHello::PlainHttp),
        Some(_) => Err(NoHello::NotTls),
    }
}

/// Where the client of this complete message belongs.
fn route(bytes: &[u8]) -> Result<Route, NoHello> {
    let mut acceptor = Acceptor::default();
    let mut unread = bytes;
    while !unread.is_empty() && acceptor.read_tls(&mut unread)? > 0 {}
    match acceptor.accept() {
        Ok(Some(accepted)) => {
            let hello = accepted.client_hello();
            let mut offers = hello.alpn().into_iter().flatten();
            let only_h2 = offers.next() == Some(b"h2") && offers.next().is_none();
            Ok(if only_h2 { Route::Session } else { Route::Elsewhere })
        }
        Ok(None) => Err(NoHello::NotTls),
        Err((error, mut accepted)) => {
            let mut alert = Vec::new();
            accepted.write_all(&mut alert)?;
            Err(NoHello::Senseless { error, alert })
        }
    }
}

/// A stream of which the beginning is read again.
pub struct Replay<S> {
    again: Bytes,
    stream: S,
}

impl<S> Replay<S> {
    pub fn new(again: Bytes, stream: S) -> Replay<S> {
        Replay { again, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Replay<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.again.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, out);
        }
        let count = self.again.len().min(out.remaining());
        out.put_slice(&self.again[..count]);
        self.again.advance(count);
        if self.again.is_empty() {
            // The memory goes with it.
            self.again = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Replay<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn first_message(offers: &[&[u8]]) -> Vec<u8> {
        let mut config =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth();
        config.alpn_protocols = offers.iter().map(|offer| offer.to_vec()).collect();
        let mut client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// The same message, cut into records of this many bytes of it.
    fn in_records(message: &[u8], size: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in message[RECORD_HEADER..].chunks(size) {
            bytes.extend([HANDSHAKE, 3, 1]);
            bytes.extend(u16::try_from(piece.len()).unwrap().to_be_bytes());
            bytes.extend(piece);
        }
        bytes
    }

    async fn read_all(bytes: &[u8]) -> Result<Hello, NoHello> {
        read_hello(&mut &*bytes, Vec::new()).await
    }

    #[tokio::test]
    async fn only_clients_that_offer_h2_alone_are_nodes() {
        for (offers, route) in [
            (vec![b"h2".as_slice()], Route::Session),
            (vec![b"h2", b"http/1.1"], Route::Elsewhere),
            (vec![b"h2", b"h2"], Route::Elsewhere),
            (vec![b"h2c"], Route::Elsewhere),
            (vec![b"http/1.1"], Route::Elsewhere),
            (vec![], Route::Elsewhere),
        ] {
            let message = first_message(&offers);
            let (mut client, mut server) = tokio::io::duplex(1 << 16);
            let pieces = message.clone();
            let writer = tokio::spawn(async move {
                // One byte at a time: the message may come in pieces.
                for byte in &pieces {
                    client.write_all(&[*byte]).await.unwrap();
                    tokio::task::yield_now().await;
                }
                client.write_all(b"more").await.unwrap();
            });
            let hello = read_hello(&mut server, Vec::new()).await.unwrap();
            assert_eq!(hello.route, route, "{offers:?}");
            let mut again = Vec::new();
            Replay::new(hello.bytes, server).read_to_end(&mut again).await.unwrap();
            writer.await.unwrap();
            assert_eq!(again, [message.as_slice(), b"more"].concat(), "nothing is lost");
        }
    }

    #[tokio::test]
    async fn a_message_in_several_records_is_one_message() {
        let message = first_message(&[b"h2"]);
        for size in [3, 4, 5, 100, 1000] {
            let bytes = in_records(&message, size.max(message.len() / (RECORDS_LIMIT - 2)));
            let hello = read_all(&bytes).await.unwrap();
            assert_eq!((hello.route, &hello.bytes[..]), (Route::Session, bytes.as_slice()), "by {size}");
        }
        // The head of the message itself may be cut.
        let mut cut = in_records(&message[..RECORD_HEADER + 2], 1);
        cut.extend(in_records(&[&message[..RECORD_HEADER], &message[RECORD_HEADER + 2..]].concat(), 500));
        assert_eq!(read_all(&cut).await.unwrap().route, Route::Session);
        assert!(matches!(read_all(&in_records(&message, 1)).await, Err(NoHello::TooLong)), "in too many");
    }

    #[tokio::test]
    async fn what_was_read_before_counts() {
        let message = first_message(&[b"h2"]);
        for split in [1, 5, 9, message.len()] {
            let (before, after) = message.split_at(split);
            let hello = read_hello(&mut &*after, before.to_vec()).await.unwrap();
            assert_eq!((hello.route, &hello.bytes[..]), (Route::Session, message.as_slice()));
        }
    }

    #[tokio::test]
    async fn what_is_no_first_message_is_told_apart() {
        let good = first_message(&[b"h2"]);
        let mut garbled = good.clone();
        garbled[RECORD_HEADER + MESSAGE_HEADER..].fill(0xff);
        let cases: [(&[u8], &str); 13] = [
            (b"GET / HTTP/1.1\r\n\r\n", "PlainHttp"),
            (b"PRI * HTTP/2.0\r\n", "PlainHttp"),
            (b"D", "PlainHttp"),
            (b"SSH-2.0-x\r\n", "NotTls"),
            // An alert instead of a message; version 2 of SSL; another message; a version of nothing.
            (&[21, 3, 1, 0, 2, 1, 0], "NotTls"),
            (&[0x80, 0x2e, 1, 3, 1], "NotTls"),
            (&[22, 3, 1, 0, 4, 2, 0, 0, 0], "NotTls"),
            (&[22, 9, 1, 0, 4, 1, 0, 0, 0], "NotTls"),
            // An empty record; one that is too long; a message that is.
            (&[22, 3, 1, 0, 0, 1], "NotTls"),
            (&[22, 3, 1, 0xff, 0xff, 1], "NotTls"),
            (&[22, 3, 1, 0x10, 0, 1, 0xff, 0xff, 0xff], "TooLong"),
            (&garbled, "Senseless"),
            (&good[..good.len() - 1], "Ended"),
        ];
        for (bytes, expected) in cases {
            let problem = read_all(bytes).await.expect_err("no message");
            assert!(format!("{problem:?}").starts_with(expected), "{bytes:?}: {problem:?}");
        }
        assert!(matches!(read_all(b"").await, Err(NoHello::Ended)));
        let Err(NoHello::Senseless { alert, .. }) = read_all(&garbled).await else { panic!("made sense") };
        assert_eq!(alert.first(), Some(&21), "answered with an alert");
    }

    proptest! {
        #[test]
        fn nothing_that_arrives_reads_without_end_or_fails_otherwise(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..2000),
            like_tls in any::<bool>(),
        ) {
            if like_tls && bytes.len() > 9 {
                bytes[..6].copy_from_slice(&[22, 3, 1, 0, 200, 1]);
                bytes[6] = 0;
                bytes[7] = 0;
            }
            let mut pieces = Pieces::default();
            for end in 0..=bytes.len() {
                match pieces.take(&bytes[..end]) {
                    Ok(None) => {}
                    Ok(Some(end)) => { let _ = route(&bytes[..end]); break }
                    Err(_) => break,
                }
            }
            prop_assert!(pieces.at <= bytes.len() && pieces.records <= RECORDS_LIMIT);
        }
    }
}
