//! What an agent asks the API for at the address of its stream: its next certificate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use horchestra_runtime::PeerChain;
use horchestra_runtime::proxy::{self, Front};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::client::tls;
use super::pki::Credentials;
use super::stage::Stage;

const REQUEST: &str = r#"{"apiVersion":"certificates.horchestra.io/v1","kind":"CertificateSigningRequest","metadata":{"name":"n1-0011aabb"},"spec":{"request":"LS0t","nodeName":"n1","groups":["system:nodes"]}}"#;
const COLLECTION: &str = "/apis/certificates.horchestra.io/v1/certificatesigningrequests";

/// A replica of the API that answers in its own time, and says what it was asked, by whom and from where.
async fn replica(stage_tls: Arc<rustls::ServerConfig>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let acceptor = TlsAcceptor::from(Arc::clone(&stage_tls));
            tokio::spawn(async move {
                let Ok(Front::Proxied(Some(from))) = proxy::read(&mut stream).await else { return };
                let Ok(mut tls) = acceptor.accept(stream).await else { return };
                let leaf =
                    PeerChain::of(tls.get_ref().1).map(|chain| chain.leaf().to_vec()).unwrap_or_default();
                let names_the_node = leaf.windows(2).any(|text| text == b"n1");
                let protocol = tls.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
                let mut asked = [0; 4096];
                // One answer for each message; a message comes in one piece here.
                while let Ok(count @ 1..) = tls.read(&mut asked).await {
                    let asked = String::from_utf8_lossy(&asked[..count]).into_owned();
                    let line = asked.lines().next().unwrap_or_default();
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    let body = format!("{line} from {from} as n1: {names_the_node} over {protocol:?}");
                    let zipped = asked.contains("gzip");
                    let encoding = if zipped { "content-encoding: gzip\r\n" } else { "" };
                    let length = body.len();
                    let answer =
                        format!("HTTP/1.1 201 Created\r\ncontent-length: {length}\r\n{encoding}\r\n{body}");
                    if tls.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn a_node_asks_for_its_certificate_at_the_same_address_as_itself() {
    let mut replicas = Vec::new();
    let world = crate::world::World::new().await;
    for _ in 0..2 {
        replicas.push(replica(world.api_tls().config()).await);
    }
    let gateway = world
        .gateway_with(|settings| {
            settings.api_backends = replicas.iter().map(|it| it.to_string().parse().unwrap()).collect();
        })
        .await;
    let stage = Stage { world, gateway };
    let shown = Credentials::node(&stage.world.authority, "n1");
    // Its stream is open meanwhile, and is another connection.
    let mut stream = stage.dial("n1").await;
    // No protocol offered and no server name: HTTP/1.1, kept alive from the first message to the last.
    let authority = stage.world.authority.certificate();
    let mut tls = tls(stage.gateway.address, authority, Some(&shown), &[]).await.unwrap();
    let here = tls.get_ref().0.local_addr().unwrap();
    let post = format!(
        "POST {COLLECTION} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{REQUEST}",
        REQUEST.len()
    );
    let poll =
        format!("GET {COLLECTION}/n1-0011aabb HTTP/1.1\r\nhost: localhost\r\naccept-encoding: gzip\r\n\r\n");
    for (message, line, zipped) in [(&post, "POST", false), (&poll, "GET", true), (&poll, "GET", true)] {
        tls.write_all(message.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The text ends with the protocol that was agreed on: none.
        while !answer.ends_with(b"None") {
            answer.push(tls.read_u8().await.unwrap());
        }
        let answer = String::from_utf8(answer).unwrap();
        let expected = format!("{line} {COLLECTION}");
        assert!(
            answer.contains(&expected) && answer.contains(&format!("from {here} as n1: true")),
            "{answer}"
        );
        assert_eq!(answer.contains("content-encoding: gzip"), zipped, "{answer}");
    }
    assert!(stream.is_open().await);
}
