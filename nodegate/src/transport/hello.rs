//! Looking at a connection before anything is decided about it.
//!
//! What a client means to speak stands in its first message, in clear: the protocols it offers. It is read
//! here without being consumed, so that the connection can be served by this process or handed on, still
//! encrypted, to another. Nothing is believed because of it; who the client is comes out of the handshake.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Longest first message that is read, in bytes.
const HELLO_LIMIT: usize = 64 << 10;

/// Where a connection belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// A node agent offers `h2` and nothing else.
    Session,
    /// Everything else: browsers, kubectl, the agent's certificate client.
    Elsewhere,
}

/// A connection whose first message has been looked at. Reads give that message again.
pub struct Arrival<S> {
    pub route: Route,
    pub stream: Replay<S>,
}

/// Reads the first message of a TLS client.
pub async fn read_hello<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<Arrival<S>> {
    let mut seen = BytesMut::with_capacity(1024);
    let mut acceptor = Acceptor::default();
    loop {
        let before = seen.len();
        if before >= HELLO_LIMIT {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the first message is too long"));
        }
        if stream.read_buf(&mut seen).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut unread = &seen[before..];
        while !unread.is_empty() {
            if acceptor.read_tls(&mut unread)? == 0 {
                break;
            }
        }
        let accepted =
            acceptor.accept().map_err(|(error, _)| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if let Some(accepted) = accepted {
            let hello = accepted.client_hello();
            let offers: Vec<&[u8]> = hello.alpn().into_iter().flatten().collect();
            let route = if offers == [b"h2".as_slice()] { Route::Session } else { Route::Elsewhere };
            return Ok(Arrival { route, stream: Replay { again: seen.freeze(), stream } });
        }
    }
}

/// A stream of which the beginning is read again.
pub struct Replay<S> {
    again: Bytes,
    stream: S,
}

impl<S> Replay<S> {
    pub fn get_ref(&self) -> &S {
        &self.stream
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

    #[tokio::test]
    async fn only_clients_that_offer_h2_alone_are_nodes() {
        for (offers, route) in [
            (vec![b"h2".as_slice()], Route::Session),
            (vec![b"h2", b"http/1.1"], Route::Elsewhere),
            (vec![b"http/1.1"], Route::Elsewhere),
            (vec![], Route::Elsewhere),
        ] {
            let message = first_message(&offers);
            let (mut client, server) = tokio::io::duplex(1 << 16);
            let pieces = message.clone();
            let writer = tokio::spawn(async move {
                // One byte at a time at first: the message may come in pieces.
                for byte in &pieces[..10] {
                    client.write_all(&[*byte]).await.unwrap();
                    tokio::task::yield_now().await;
                }
                client.write_all(&pieces[10..]).await.unwrap();
                client.write_all(b"more").await.unwrap();
            });
            let mut arrival = read_hello(server).await.unwrap();
            writer.await.unwrap();
            assert_eq!(arrival.route, route, "{offers:?}");
            let mut again = Vec::new();
            arrival.stream.read_to_end(&mut again).await.unwrap();
            assert_eq!(again, [message.as_slice(), b"more"].concat(), "nothing is lost");
        }
    }

    #[tokio::test]
    async fn what_is_not_tls_is_an_error() {
        for bytes in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"", &[22, 3, 1]] {
            let (mut client, server) = tokio::io::duplex(1 << 16);
            client.write_all(bytes).await.unwrap();
            drop(client);
            assert!(read_hello(server).await.is_err(), "{bytes:?}");
        }
    }
}
