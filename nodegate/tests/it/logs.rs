//! Reading logs through the gateway that holds the session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use horchestra_agent::scripted::ScriptedNode;
use horchestra_auth::pki::{HostName, Issued, Lifetime};
use horchestra_proto::node::v1::{LogChunk, controller_message::Body as Down};
use horchestra_proto::relay::v1::log_request::Source;
use horchestra_proto::relay::v1::relay_client::RelayClient;
use horchestra_proto::relay::v1::{LogRequest, LogResponse};
use horchestra_testkit::eventually;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::body::Body;
use tonic::{Code, Streaming};
use uuid::Uuid;

use crate::world::{SOON, TestGateway, World};

/// An HTTP/2 connection as a service.
#[derive(Clone)]
pub struct Line(SendRequest<Body>);

impl Line {
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    pub async fn send(mut self, request: Request<Body>) -> Response<Incoming> {
        self.0.send_request(request).await.unwrap()
    }
}

impl tower::Service<Request<Body>> for Line {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Response<Incoming>, hyper::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Connects to a listener of a gateway, with this certificate or none.
pub async fn try_h2(world: &World, address: SocketAddr, client: Option<&Issued>) -> std::io::Result<Line> {
    let mut roots = RootCertStore::empty();
    let authority = &world.authority.pem().certificate;
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(issued) => {
            let chain = CertificateDer::pem_slice_iter(issued.certificate.as_bytes())
                .collect::<Result<_, _>>()
                .unwrap();
            let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    let (send, driver) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tls))
        .await
        .map_err(std::io::Error::other)?;
    tokio::spawn(driver);
    Ok(Line(send))
}

pub async fn h2(world: &World, address: SocketAddr, client: Option<&Issued>) -> Line {
    try_h2(world, address, client).await.unwrap()
}

type Relay = RelayClient<Line>;

fn relay_over(line: Line) -> Relay {
    RelayClient::with_origin(line, Uri::from_static("https://localhost/"))
}

/// A client as an API replica has one.
async fn relay(world: &World, gateway: &TestGateway) -> Relay {
    let hosts = [HostName::parse("localhost").unwrap()];
    let issued = world.authority.controller("horchestra-api", &hosts, Lifetime::CONTROLLER).unwrap();
    relay_over(h2(world, gateway.internal, Some(&issued)).await)
}

fn request(gateway: &TestGateway, node: &str) -> LogRequest {
    let grant = gateway.gateway.gate.sessions.get(node).map(|session| session.grant.clone());
    LogRequest {
        node: node.to_owned(),
        session_epoch: grant.as_ref().map_or(0, |grant| grant.epoch),
        session_id: grant.map_or(Uuid::nil(), |grant| grant.session).to_string(),
        follow: true,
        tail_lines: 0,
        caller: "operator".to_owned(),
        audit_id: Uuid::nil().to_string(),
        source: Some(Source::AppUid(Uuid::from_u128(7).to_string())),
    }
}

/// Opens a log and returns it with the id that the node was given.
async fn open(
    relay: &mut Relay,
    gateway: &TestGateway,
    node: &mut ScriptedNode,
) -> (Streaming<LogResponse>, String) {
    let asked = request(gateway, node.name());
    let (stream, seen) = tokio::join!(relay.log(asked), node.log_request(SOON));
    (stream.unwrap().into_inner(), seen.unwrap().id)
}

fn chunk(id: &str, data: &[u8]) -> LogChunk {
    LogChunk { id: id.to_owned(), data: data.to_vec().into(), ..LogChunk::default() }
}

fn end(id: &str, error: &str) -> LogChunk {
    LogChunk { id: id.to_owned(), eof: true, error: error.to_owned(), ..LogChunk::default() }
}

#[tokio::test]
async fn a_log_comes_in_order_and_ends() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = world.join(&gateway, "n1").await;
    let mut relay = relay(&world, &gateway).await;
    let asked = LogRequest { tail_lines: 12, ..request(&gateway, "n1") };
    let (stream, seen) = tokio::join!(relay.log(asked), node.log_request(SOON));
    let (mut stream, seen) = (stream.unwrap().into_inner(), seen.unwrap());
    assert_eq!(seen.app, Uuid::from_u128(7).to_string());
    assert_eq!((seen.follow, seen.tail_lines, seen.node_unit), (true, 12, false));
    node.log_chunk(chunk("somebody else's", b"x")).await.unwrap();
    for data in [b"one".as_slice(), b"two"] {
        node.log_chunk(chunk(&seen.id, data)).await.unwrap();
    }
    // Data on the last chunk counts.
    node.log_chunk(LogChunk { eof: true, ..chunk(&seen.id, b"three") }).await.unwrap();
    let mut read = Vec::new();
    while let Some(piece) = stream.message().await.unwrap() {
        assert_eq!((piece.error.as_str(), piece.dropped_chunks), ("", 0));
        read.extend_from_slice(&piece.data);
    }
    assert_eq!(read, b"onetwothree");
    eventually(SOON, async || gateway.gateway.gate.logs.open() == 0).await;
    assert!(node.arrived().iter().all(|message| !matches!(message.body, Some(Down::LogCancel(_)))));
}

#[tokio::test]
async fn what_a_node_sends_too_large_is_cut() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = world.join(&gateway, "n1").await;
    let mut relay = relay(&world, &gateway).await;
    let (mut stream, id) = open(&mut relay, &gateway, &mut node).await;
    let sent: Vec<u8> = (0..20_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    node.log_chunk(chunk(&id, &sent)).await.unwrap();
    node.log_chunk(end(&id, &"x".repeat(100_000))).await.unwrap();
    let (mut sizes, mut read, mut error) = (Vec::new(), Vec::new(), String::new());
    while let Some(piece) = stream.message().await.unwrap() {
        if !piece.data.is_empty() {
            sizes.push(piece.data.len());
            read.extend_from_slice(&piece.data);
        }
        error.push_str(&piece.error);
    }
    assert_eq!((sizes, read == sent), (vec![8192, 8192, 3616], true));
    assert_eq!(error, "x".repeat(1024));
}

#[tokio::test]
async fn the_nodes_error_is_surfaced() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = world.join(&gateway, "n1").await;
    let mut relay = relay(&world, &gateway).await;
    let (mut stream, id) = open(&mut relay, &gateway, &mut node).await;
    node.log_chunk(end(&id, "no journal here")).await.unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap().error, "no journal here");
    assert!(stream.message().await.unwrap().is_none());
}

#[tokio::test]
async fn the_agents_own_log_is_asked_for_without_a_uid() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = world.join(&gateway, "n1").await;
    let mut relay = relay(&world, &gateway).await;
    let asked = LogRequest { source: Some(Source::NodeUnit(true)), ..request(&gateway, "n1") };
    let (stream, seen) = tokio::join!(relay.log(asked), node.log_request(SOON));
    stream.unwrap();
    let seen = seen.unwrap();
    assert_eq!((seen.app.as_str(), seen.node_unit), ("", true));
}

#[tokio::test]
async fn only_the_control_plane_may_ask() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let _node = world.join(&gateway, "n1").await;
    for (name, group, code) in [
        ("n1", "system:nodes", Code::PermissionDenied),
        ("admin", "system:masters", Code::PermissionDenied),
        ("operator", "dev", Code::PermissionDenied),
    ] {
        let issued = world.authority.client(name, group, Lifetime::CLIENT).unwrap();
        let mut relay = relay_over(h2(&world, gateway.internal, Some(&issued)).await);
        let refused = relay.log(request(&gateway, "n1")).await.unwrap_err();
        assert_eq!(refused.code(), code, "{name} of {group}");
    }
    // Without a certificate there is not even a connection, however late the client learns of it.
    if let Ok(line) = try_h2(&world, gateway.internal, None).await {
        assert!(relay_over(line).log(request(&gateway, "n1")).await.is_err());
    }
}

#[tokio::test]
async fn a_gateway_answers_for_the_sessions_it_holds() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let _node = world.join(&gateway, "n1").await;
    let mut relay = relay(&world, &gateway).await;
    let good = request(&gateway, "n1");
    for (asked, code) in [
        (LogRequest { node: "n2".to_owned(), ..good.clone() }, Code::NotFound),
        (LogRequest { session_epoch: good.session_epoch + 1, ..good.clone() }, Code::Aborted),
        (LogRequest { session_id: Uuid::from_u128(1).to_string(), ..good.clone() }, Code::Aborted),
        (LogRequest { session_id: String::new(), ..good.clone() }, Code::Aborted),
        (
            LogRequest { source: Some(Source::AppUid("web".to_owned())), ..good.clone() },
            Code::InvalidArgument,
        ),
        (
            LogRequest {
                source: Some(Source::AppUid(Uuid::from_u128(7).simple().to_string())),
                ..good.clone()
            },
            Code::InvalidArgument,
        ),
        (LogRequest { source: None, ..good.clone() }, Code::InvalidArgument),
        (LogRequest { source: Some(Source::NodeUnit(false)), ..good.clone() }, Code::InvalidArgument),
    ] {
        assert_eq!(relay.log(asked.clone()).await.unwrap_err().code(), code, "{asked:?}");
    }
    assert_eq!(gateway.gateway.gate.logs.open(), 0);
}

#[tokio::test]
async fn a_caller_that_leaves_cancels_the_log_and_frees_its_place() {
    let world = World::new().await;
    let gateway = world.gateway_with(|settings| settings.log_streams = 2).await;
    let mut node = world.join(&gateway, "n1").await;
    let mut relay = relay(&world, &gateway).await;
    let (first, id) = open(&mut relay, &gateway, &mut node).await;
    let (_second, other) = open(&mut relay, &gateway, &mut node).await;
    assert_ne!(id, other);
    let refused = relay.log(request(&gateway, "n1")).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    drop(first);
    let cancelled = eventually(SOON, async || {
        node.arrived().into_iter().find_map(|message| match message.body {
            Some(Down::LogCancel(cancel)) => Some(cancel.id),
            _ => None,
        })
    })
    .await;
    assert_eq!(cancelled, id);
    eventually(SOON, async || gateway.gateway.gate.logs.open() == 1).await;
    // The agent's goodbye to a cancelled log frees nothing twice.
    node.log_chunk(end(&id, "")).await.unwrap();
    let (_third, _) = open(&mut relay, &gateway, &mut node).await;
    assert_eq!(gateway.gateway.gate.logs.open(), 2);
}

#[tokio::test]
async fn the_end_of_the_session_ends_its_logs_with_an_error() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = world.join(&gateway, "n1").await;
    let mut relay = relay(&world, &gateway).await;
    let (mut stream, id) = open(&mut relay, &gateway, &mut node).await;
    node.log_chunk(chunk(&id, b"last words")).await.unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap().data, "last words");
    node.kill().await;
    assert_eq!(stream.message().await.unwrap_err().code(), Code::Unavailable);
    eventually(SOON, async || gateway.gateway.gate.logs.open() == 0).await;
}

#[tokio::test]
async fn a_node_that_takes_no_requests_is_reported_as_such() {
    let world = World::new().await;
    let gateway = world.gateway_with(|settings| settings.log_open_timeout = Duration::from_millis(1)).await;
    let node = world.join(&gateway, "n1").await;
    let session = gateway.gateway.gate.sessions.get("n1").unwrap();
    let mut relay = relay(&world, &gateway).await;
    let asked = request(&gateway, "n1");
    session.end(Ok(()));
    let refused = relay.log(asked).await.unwrap_err();
    assert!(matches!(refused.code(), Code::Unavailable | Code::NotFound), "{refused}");
    drop(node);
}

#[tokio::test]
async fn readers_that_do_not_read_cost_their_own_lines_and_nobodys_heartbeat() {
    const READERS: usize = 256;
    let world = World::new().await;
    let gateway = world.gateway().await;
    let mut node = world.join(&gateway, "n1").await;
    let bystander = world.join(&gateway, "n2").await;
    let mut relays = Vec::new();
    let mut streams = Vec::new();
    let mut ids = Vec::new();
    for number in 0..READERS {
        // The first has a connection of its own: an unread stream takes window from its neighbours.
        if number == 1 || number % 32 == 0 {
            relays.push(relay(&world, &gateway).await);
        }
        let (stream, id) = open(relays.last_mut().unwrap(), &gateway, &mut node).await;
        streams.push(stream);
        ids.push(id);
    }
    let asked = request(&gateway, "n1");
    let refused = relays.last_mut().unwrap().log(asked).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "the budget is spent");

    let metrics = &gateway.gateway.gate.metrics;
    let line = vec![b'x'; 8192];
    let mut rounds = 0;
    while metrics.log_chunks_dropped.get() < 10 * READERS as u64 {
        for id in &ids {
            node.log_chunk(chunk(id, &line)).await.unwrap();
        }
        rounds += 1;
        assert!(rounds < 500, "buffers have to fill some time");
    }
    let before = metrics.heartbeats.get();
    for scripted in [&node, &bystander] {
        scripted.heartbeat().await.unwrap();
    }
    eventually(SOON, async || metrics.heartbeats.get() >= before + 2).await;
    eventually(SOON, async || !world.node("n1").await.is_null() && !world.node("n2").await.is_null()).await;

    // Who reads after all is told what is missing. The first has a window of its own, so it takes longer.
    let before = metrics.log_chunks_dropped.get();
    eventually(SOON, async || {
        for _ in 0..20 {
            node.log_chunk(chunk(&ids[0], &line)).await.unwrap();
            rounds += 1;
        }
        metrics.log_chunks_dropped.get() > before + 10
    })
    .await;
    node.log_chunk(end(&ids[0], "")).await.unwrap();
    let mut read = 0_u64;
    let mut missing = 0_u64;
    while let Some(piece) = streams[0].message().await.unwrap() {
        read += u64::from(!piece.data.is_empty());
        missing += piece.dropped_chunks;
    }
    assert!(missing > 0);
    assert_eq!(read + missing, rounds);
}

#[tokio::test]
async fn a_reader_that_stands_still_for_too_long_is_cut_off() {
    let world = World::new().await;
    let gateway = world.gateway_with(|settings| settings.log_stall = Duration::from_millis(100)).await;
    let mut node = world.join(&gateway, "n1").await;
    let mut relay = relay(&world, &gateway).await;
    let (mut stream, id) = open(&mut relay, &gateway, &mut node).await;
    let line = vec![b'x'; 8192];
    let cancelled = eventually(SOON, async || {
        for _ in 0..50 {
            node.log_chunk(chunk(&id, &line)).await.unwrap();
        }
        node.arrived().into_iter().find_map(|message| match message.body {
            Some(Down::LogCancel(cancel)) => Some(cancel.id),
            _ => None,
        })
    })
    .await;
    assert_eq!(cancelled, id);
    let end = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a cut log does not look complete"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::Unavailable);
}
