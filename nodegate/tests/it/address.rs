//! The one address of a fleet: what comes to a gateway and is no node's stream.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use horchestra_agent::controller::Controller;
use horchestra_agent::scripted::ScriptedNode;
use horchestra_nodegate::settings::Settings;
use horchestra_nodegate::strict::ReverseNames;
use horchestra_nodegate::transport::metrics::TransportMetrics;
use horchestra_runtime::PeerChain;
use horchestra_runtime::proxy::{self, Front};
use horchestra_testkit::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tonic::Code;

use crate::world::{SOON, TestGateway, World, tls_client};

/// A replica that answers each connection with where it came from and who it is, then with what it said.
struct Replica {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Replica {
    async fn start(world: &World) -> Replica {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = world.api_tls().config();
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let acceptor = TlsAcceptor::from(Arc::clone(&config));
                tokio::spawn(async move {
                    let Ok(Front::Proxied(Some(from))) = proxy::read(&mut stream).await else { return };
                    let Ok(mut tls) = acceptor.accept(stream).await else { return };
                    let who = PeerChain::of(tls.get_ref().1).map_or(0, |chain| chain.leaf().len());
                    let _ = tls.write_all(format!("{from} {who}\n").as_bytes()).await;
                    let (mut read, mut write) = tokio::io::split(tls);
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                    let _ = write.shutdown().await;
                });
            }
        });
        Replica { address, task }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A gateway that passes clients on to these addresses.
async fn gateway(world: &World, replicas: &[SocketAddr], adjust: impl FnOnce(&mut Settings)) -> TestGateway {
    world
        .gateway_with(|settings| {
            settings.api_backends = replicas.iter().map(|it| it.to_string().parse().unwrap()).collect();
            settings.splice.answer = Duration::from_millis(500);
            adjust(settings);
        })
        .await
}

fn counted(gateway: &TestGateway) -> &TransportMetrics {
    &gateway.gateway.gate.metrics.transport
}

/// A TLS connection through the gateway, with the replica's first line.
async fn connect(
    world: &World,
    to: SocketAddr,
    name: Option<&str>,
    offers: &[&str],
) -> std::io::Result<(TlsStream<TcpStream>, String, SocketAddr)> {
    let tcp = TcpStream::connect(to).await?;
    let from = tcp.local_addr()?;
    let connector = TlsConnector::from(tls_client(world, name, offers));
    let mut tls = connector.connect("localhost".try_into().unwrap(), tcp).await?;
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        line.push(tls.read_u8().await?);
    }
    Ok((tls, String::from_utf8(line).unwrap().trim().to_owned(), from))
}

#[tokio::test]
async fn who_is_no_node_reaches_the_api_as_himself_and_from_where_he_is() {
    let world = World::new().await;
    let replica = Replica::start(&world).await;
    let gateway = gateway(&world, &[replica.address], |_| ()).await;
    for offers in [[].as_slice(), &["http/1.1"], &["h2", "http/1.1"]] {
        for name in [None, Some("n1")] {
            let (mut tls, line, from) = connect(&world, gateway.address, name, offers).await.unwrap();
            let (seen_from, certificate) = line.split_once(' ').unwrap();
            assert_eq!(seen_from, from.to_string(), "{offers:?}");
            assert_eq!(certificate != "0", name.is_some(), "{offers:?}: the certificate goes through");
            // Each direction ends by itself.
            let said = vec![b'x'; 300_000];
            let (mut read, mut write) = tokio::io::split(tls);
            let (sent, heard) = tokio::join!(
                async {
                    write.write_all(&said).await?;
                    write.shutdown().await
                },
                async {
                    let mut heard = Vec::new();
                    read.read_to_end(&mut heard).await.map(|_| heard)
                }
            );
            sent.unwrap();
            assert_eq!(heard.unwrap().len(), said.len());
            tls = read.unsplit(write);
            drop(tls);
        }
    }
    eventually(SOON, async || counted(&gateway).splices_open() == 0).await;
    assert_eq!(counted(&gateway).spliced.get(), 6);
    // A node's stream stays here.
    let node = world.join(&gateway, "n1").await;
    assert!(node.is_open());
}

#[tokio::test]
async fn a_first_message_may_come_slowly_and_in_pieces() {
    let world = World::new().await;
    let replica = Replica::start(&world).await;
    let gateway = gateway(&world, &[replica.address], |_| ()).await;
    // Between the client and the gateway, whatever is sent is sent byte by byte at first.
    let line = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = line.local_addr().unwrap();
    let target = gateway.address;
    let slow = tokio::spawn(async move {
        while let Ok((near, _)) = line.accept().await {
            let far = TcpStream::connect(target).await.unwrap();
            far.set_nodelay(true).unwrap();
            let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
                (near.into_split(), far.into_split());
            tokio::spawn(async move {
                for _ in 0..300 {
                    let Ok(byte) = near_read.read_u8().await else { return };
                    if far_write.write_u8(byte).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                let _ = tokio::io::copy(&mut near_read, &mut far_write).await;
            });
            tokio::spawn(async move {
                let _ = tokio::io::copy(&mut far_read, &mut near_write).await;
            });
        }
    });
    assert!(connect(&world, address, None, &[]).await.is_ok());
    let controller = Controller::parse(&address.to_string()).unwrap();
    let node = ScriptedNode::connect(&controller, &world.identity("n1")).await.unwrap();
    gateway.wait_for_session("n1").await;
    assert!(node.is_open());
    slow.abort();
}

#[tokio::test]
async fn a_replica_that_is_down_hangs_up_or_is_stopped_is_passed_over() {
    let world = World::new().await;
    let replica = Replica::start(&world).await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let down = nobody.local_addr().unwrap();
    drop(nobody);
    // As a stopped process: the kernel accepts for it, and nothing is ever read.
    let stopped = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hangs_up = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = [down, stopped.local_addr().unwrap(), hangs_up.local_addr().unwrap(), replica.address];
    let hanging_up = tokio::spawn(async move { while hangs_up.accept().await.is_ok() {} });
    let gateway = gateway(&world, &addresses, |_| ()).await;
    for _ in 0..8 {
        connect(&world, gateway.address, None, &[]).await.unwrap();
    }
    let retries = counted(&gateway).splice_retries.get();
    assert_eq!(retries, 3, "each is tried once, then only when nobody else is left");
    hanging_up.abort();

    drop(replica);
    drop(stopped);
    eventually(SOON, async || TcpStream::connect(addresses[3]).await.is_err()).await;
    assert!(connect(&world, gateway.address, None, &[]).await.is_err(), "all are down");
    eventually(SOON, async || counted(&gateway).splices_failed_for("no_replica") == 1).await;
    let node = world.join(&gateway, "n1").await;
    assert!(node.is_open(), "which is no concern of nodes");
}

/// A replica that does not know of headers in front: TLS is all that it speaks.
async fn incredulous(world: &World) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(world.api_tls().config());
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // It says what it thinks of the first message before it hangs up.
            let acceptor = acceptor.clone();
            tokio::spawn(async move { acceptor.accept(stream).await.map(drop) });
        }
    });
    (address, task)
}

#[tokio::test]
async fn a_replica_that_does_not_believe_the_gateway_is_passed_over_and_a_client_that_all_refuse_is_told() {
    let world = World::new().await;
    let replica = Replica::start(&world).await;
    let (address, task) = incredulous(&world).await;
    let gateway = gateway(&world, &[address, replica.address], |_| ()).await;
    for _ in 0..4 {
        connect(&world, gateway.address, None, &[]).await.unwrap();
    }
    assert_eq!(counted(&gateway).splice_retries.get(), 1, "then it is asked last");

    // Once nobody takes it, the client hears why, as if it had asked a replica itself.
    drop(replica);
    let error = eventually(SOON, async || match connect(&world, gateway.address, None, &[]).await {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Ok(error.to_string()),
        other => Err(format!("{:?}", other.err())),
    })
    .await;
    assert!(error.contains("alert"), "{error}");
    task.abort();
}

#[tokio::test]
async fn clients_of_the_api_do_not_take_the_places_of_nodes() {
    let world = World::new().await;
    let replica = Replica::start(&world).await;
    let gateway = gateway(&world, &[replica.address], |settings| settings.splice.connections = 2).await;
    let first = connect(&world, gateway.address, None, &[]).await.unwrap();
    let second = connect(&world, gateway.address, None, &[]).await.unwrap();
    assert!(connect(&world, gateway.address, None, &[]).await.is_err());
    eventually(SOON, async || counted(&gateway).splices_failed_for("full") == 1).await;
    let node = world.join(&gateway, "n1").await;
    assert!(node.is_open());
    drop(first);
    eventually(SOON, async || connect(&world, gateway.address, None, &[]).await).await;
    drop(second);
}

#[tokio::test]
async fn who_says_nothing_loses_his_place_to_those_who_do() {
    let world = World::new().await;
    let replica = Replica::start(&world).await;
    let gateway = gateway(&world, &[replica.address], |settings| settings.arrivals = 8).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        // Half a message is no better than none.
        stream.write_all(&[22, 3, 1, 1, 0]).await.unwrap();
        silent.push(stream);
    }
    eventually(SOON, async || counted(&gateway).dropped_for("displaced") == 32).await;
    let node = world.join(&gateway, "n1").await;
    assert!(node.is_open());
    connect(&world, gateway.address, None, &[]).await.unwrap();

    let impatient = |settings: &mut Settings| settings.hello_timeout = Duration::from_millis(300);
    let gateway = self::gateway(&world, &[replica.address], impatient).await;
    let mut late = TcpStream::connect(gateway.address).await.unwrap();
    late.write_all(&[22, 3, 1, 1, 0]).await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(SOON, late.read_to_end(&mut rest)).await.expect("closed").unwrap();
    eventually(SOON, async || counted(&gateway).dropped_for("silent") == 1).await;
}

#[tokio::test]
async fn what_is_not_tls_is_closed_and_told_why_where_it_can_understand() {
    let world = World::new().await;
    let replica = Replica::start(&world).await;
    let gateway = gateway(&world, &[replica.address], |_| ()).await;
    // A record that holds nothing but the beginning of a message, and the message says nothing.
    let senseless = [[22, 3, 1, 0, 44, 1, 0, 0, 40].as_slice(), &[0xff; 40]].concat();
    let huge = [22, 3, 1, 64, 0, 1, 1, 0, 0];
    for (sent, why, answer) in [
        (b"GET /apis HTTP/1.1\r\nhost: x\r\n\r\n".as_slice(), "plain_http", b"HTTP/1.1 400 ".as_slice()),
        (b"SSH-2.0-OpenSSH_9\r\n", "not_tls", b""),
        (&[0; 512], "not_tls", b""),
        (&huge, "too_long", b""),
        (&senseless, "senseless", &[21, 3]),
        (&[22, 3, 1], "hung_up", b""),
    ] {
        let before = counted(&gateway).dropped_for(why);
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let _ = stream.shutdown().await;
        let mut heard = Vec::new();
        let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut heard)).await.expect("closed");
        assert!(heard.starts_with(answer), "{why}: {heard:?}");
        eventually(SOON, async || counted(&gateway).dropped_for(why) > before).await;
        if why == "plain_http" {
            let text = String::from_utf8(heard).unwrap();
            let (_, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(text.contains(&format!("content-length: {}\r\n", body.len())), "{text}");
        }
    }
    assert_eq!(counted(&gateway).spliced.get(), 0, "none of it reaches the API");
}

#[tokio::test]
async fn a_client_of_the_api_that_comes_as_a_node_is_told_how_to_come() {
    let world = World::new().await;
    let replica = Replica::start(&world).await;
    let gateway = gateway(&world, &[replica.address], |_| ()).await;
    let connection = crate::logs::h2(&world, gateway.address, None).await;
    let request = http::Request::get("https://localhost/apis").body(tonic::body::Body::empty()).unwrap();
    let response = connection.clone().send(request).await;
    assert_eq!(response.status(), http::StatusCode::MISDIRECTED_REQUEST);
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("offer http/1.1"), "{body:?}");
}

/// A relay in front of `target` that says in its header that everything comes from `from`.
async fn balancer(target: SocketAddr, from: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = TcpStream::connect(target).await.unwrap();
            far.write_all(&proxy::header(from.parse().unwrap(), target)).await.unwrap();
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn behind_a_known_balancer_the_address_of_a_client_is_its_own() {
    let world = World::new().await;
    let replica = Replica::start(&world).await;
    let names = ReverseNames::by(SOON, |address| {
        Box::pin(async move {
            Ok(if address.to_string() == "192.0.2.9" { vec!["n1.rack.example.".to_owned()] } else { vec![] })
        })
    });
    let gateway = gateway(&world, &[replica.address], |settings| {
        settings.proxies = vec!["127.0.0.0/8".parse().unwrap()];
        settings.strict_registration = Some(names);
    })
    .await;
    let address = balancer(gateway.address, "192.0.2.9:4000").await;
    let controller = Controller::parse(&address.to_string()).unwrap();
    let node = ScriptedNode::connect(&controller, &world.identity("n1")).await.unwrap();
    gateway.wait_for_session("n1").await;
    let row = world.operator.store().session_of("n1").await.unwrap().unwrap();
    assert_eq!(row.peer, "192.0.2.9:4000");
    node.heartbeat().await.unwrap();
    eventually(SOON, async || !world.node("n1").await.is_null()).await;
    assert_eq!(world.node("n1").await["status"].get("ip"), None, "loopback is not where it is");
    // The API is told the same.
    let (_, line, _) = connect(&world, address, None, &[]).await.unwrap();
    assert!(line.starts_with("192.0.2.9:4000 "), "{line}");
    // The balancer is not needed.
    let direct = world.join(&gateway, "n2").await;
    direct.heartbeat().await.unwrap();
    eventually(SOON, async || gateway.gateway.gate.metrics.reports_dropped_for("refused") == 1).await;
    assert!(world.node("n2").await.is_null(), "its own address has no name");
}

#[tokio::test]
async fn nobody_else_may_say_where_a_client_is() {
    let world = World::new().await;
    let replica = Replica::start(&world).await;
    for (proxies, why) in [(vec![], "not_tls"), (vec!["10.0.0.0/8".parse().unwrap()], "not_tls")] {
        let gateway = gateway(&world, &[replica.address], |settings| settings.proxies = proxies).await;
        let address = balancer(gateway.address, "192.0.2.9:4000").await;
        assert!(connect(&world, address, None, &[]).await.is_err());
        eventually(SOON, async || counted(&gateway).dropped_for(why) == 1).await;
    }
    let trusting = gateway(&world, &[replica.address], |settings| {
        settings.proxies = vec!["127.0.0.1".parse().unwrap()];
    })
    .await;
    let mut stream = TcpStream::connect(trusting.address).await.unwrap();
    stream.write_all(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x04\x7f\0\0\x01").await.unwrap();
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut rest)).await.expect("closed");
    eventually(SOON, async || counted(&trusting).dropped_for("proxy") == 1).await;
}

#[tokio::test]
async fn a_gateway_that_leaves_cuts_what_it_passes_on_after_its_nodes_have_left() {
    let world = World::new().await;
    let replica = Replica::start(&world).await;
    let gateway = gateway(&world, &[replica.address], |_| ()).await;
    let mut node = world.join(&gateway, "n1").await;
    let (mut tls, _, _) = connect(&world, gateway.address, None, &[]).await.unwrap();
    let mut rest = Vec::new();
    let (ended, _, ()) = tokio::join!(
        node.ended(SOON),
        async { tokio::time::timeout(SOON, tls.read_to_end(&mut rest)).await.expect("cut") },
        gateway.gateway.shutdown()
    );
    assert_eq!(ended.unwrap().unwrap().code(), Code::Unavailable);
}
