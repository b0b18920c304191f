//! Handshakes, identities, probes, limits on connections, and the end of a replica.

use std::time::Duration;

use bytes::Bytes;
use horchestra_api::http::limits::{Limit, Limits};
use horchestra_api::server;
use horchestra_auth::pki::{Authority, Lifetime};
use horchestra_runtime::tls::{KeyPairFiles, ReloadingClient};
use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{BOTH, Client, DEADLINE, Next, Protocol};
use crate::stack::{Setup, Stack, Who, pair};

const NODES: &str = "/apis/horchestra.io/v1/nodes";

#[tokio::test]
async fn both_protocols_answer_and_strangers_are_401_everywhere() {
    let stack = Stack::start().await;
    for protocol in BOTH {
        let reply = stack.client(Who::Master, protocol).get("/version").await;
        assert_eq!(reply.status, 200, "{protocol:?}");
        assert!(!reply.header("audit-id").is_empty() && !reply.header("date").is_empty());

        let stranger = stack.client(Who::Anonymous, protocol);
        for path in ["/version", "/api", "/apis", "/openapi/v2", NODES, "/nonsense", "/metrics", "/"] {
            let reply = stranger.get(path).await;
            assert_eq!((reply.status, reply.reason().as_str()), (401, "Unauthorized"), "{path}");
        }
        let headers = [("authorization", "Bearer whatever")];
        let reply = stranger.send(Method::GET, "/version", &headers, Bytes::new()).await;
        assert_eq!(reply.status, 401, "a token that nobody issued is no identity");
        let reply = stack.client(Who::Master, protocol).send(Method::GET, "/version", &headers, "").await;
        assert_eq!(reply.status, 200, "a certificate decides, a bad token beside it does no harm");
    }
}

#[tokio::test]
async fn a_client_without_protocol_negotiation_speaks_http_1() {
    let stack = Stack::start().await;
    let pair = pair(&stack.pki.admin());
    let tls = ReloadingClient::load(Some(pair), stack.pki.authority(), &[]).unwrap();
    let client = Client::new(stack.address, tls.config(), Protocol::Http1);
    assert_eq!(client.get("/version").await.status, 200);
}

#[tokio::test]
async fn a_connection_does_not_outlive_its_certificate() {
    let stack =
        Stack::with(Setup { lifetime: Lifetime::of(Duration::from_secs(3)).unwrap(), ..Setup::default() })
            .await;
    stack.make_namespaces().await;
    let client = stack.client(Who::Master, Protocol::Http2);
    let mut watch = client.lines(&format!("{NODES}?watch=1&resourceVersion=1"), &[]).await;
    assert_eq!(watch.next().await, Next::End, "the watch ends with the credential");
    let late = client.request(Method::GET, "/version", &[], Bytes::new());
    // A new handshake may be refused already.
    if let Ok(answer) = client.open(late).await {
        assert_eq!(answer.status(), 401);
    }
}

#[tokio::test]
async fn a_removed_authority_cuts_what_it_let_in_and_a_new_one_is_let_in_at_once() {
    for protocol in BOTH {
        let stack = Stack::with_namespaces().await;
        let next = Authority::generate().unwrap();
        let issued = next.client("admin", "system:masters", Lifetime::CLIENT).unwrap();
        let files =
            KeyPairFiles { certificate: stack.folder().join("new.crt"), key: stack.folder().join("new.key") };
        std::fs::write(&files.certificate, issued.certificate).unwrap();
        std::fs::write(&files.key, issued.key).unwrap();
        let alpn: &[&[u8]] = if protocol == Protocol::Http1 { &[b"http/1.1"] } else { &[b"h2"] };
        let tls = ReloadingClient::load(Some(files), stack.pki.authority(), alpn).unwrap();
        let new = Client::new(stack.address, tls.config(), protocol);
        let old = stack.client(Who::Master, protocol);
        assert!(new.open(new.request(Method::GET, "/version", &[], Bytes::new())).await.is_err());
        let path = format!("{NODES}?watch=1&allowWatchBookmarks=true");
        let mut old_watch = old.lines(&path, &[]).await;

        stack.believe(&[stack.pki.signer(), &next]);
        let mut new_watch = new.lines(&path, &[]).await;
        let created = old.post(NODES, &json!({"metadata": {"name": "n1"}, "spec": {}})).await;
        assert_eq!(created.status, 201, "{created:?}");
        for watch in [&mut old_watch, &mut new_watch] {
            assert_eq!(watch.event().await, ("ADDED".into(), "n1".into()));
        }

        stack.believe(&[&next]);
        assert_eq!(old_watch.next().await, Next::Torn, "{protocol:?}");
        assert!(old.open(old.request(Method::GET, "/version", &[], Bytes::new())).await.is_err());
        let created = new.post(NODES, &json!({"metadata": {"name": "n2"}, "spec": {}})).await;
        assert_eq!(created.status, 201, "{created:?}");
        assert_eq!(new_watch.event().await, ("ADDED".into(), "n2".into()));
    }
}

#[tokio::test]
async fn probes_need_no_credentials_and_readiness_lists_its_checks() {
    let mut stack = Stack::start().await;
    let stranger = stack.client(Who::Anonymous, Protocol::Http1);
    for (path, code, part) in [
        ("/livez", 200, "ok"),
        ("/healthz", 200, "ok"),
        ("/readyz", 200, "ok"),
        ("/livez?verbose", 200, "[+]ping ok"),
        ("/readyz?verbose", 200, "[+]store-connected ok"),
        ("/readyz?verbose&exclude=store-loaded", 200, "[+]store-loaded excluded: ok"),
        ("/readyz/store-loaded", 200, "ok"),
        ("/readyz/nonsense", 404, "no such check"),
        ("/livez/nonsense", 404, "no such check"),
    ] {
        let reply = stranger.get(path).await;
        assert_eq!(reply.status, code, "{path}");
        assert!(reply.text().contains(part), "{path}: {}", reply.text());
        assert_eq!(reply.header("content-type"), "text/plain; charset=utf-8");
    }
    let reply = stranger.send(Method::HEAD, "/healthz", &[], Bytes::new()).await;
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    let reply = stranger.send(Method::POST, "/healthz", &[], Bytes::new()).await;
    assert_eq!(reply.status, 200, "a prober may use any method");

    stack.app.checks().add("broken", || Err("a secret detail".to_owned()));
    let reply = stranger.get("/readyz").await;
    assert_eq!(reply.status, 503);
    assert!(reply.text().contains("[-]broken failed") && !reply.text().contains("secret"));
    assert_eq!(stranger.get("/livez").await.status, 200, "unready is not dead");
    stack.stop().await;
}

#[tokio::test]
async fn silent_and_idle_connections_are_closed() {
    let limits = server::Limits {
        handshake: Duration::from_millis(300),
        idle: Duration::from_millis(400),
        ..server::Limits::default()
    };
    let stack = Stack::with(Setup { connections: limits, ..Setup::default() }).await;

    let mut silent = TcpStream::connect(stack.address).await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(DEADLINE, silent.read_to_end(&mut rest)).await.expect("closed").unwrap();

    for protocol in BOTH {
        let mut idle = stack.client(Who::Master, protocol).connect().await.unwrap();
        let preface: &[u8] = match protocol {
            Protocol::Http1 => b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
            // The preface and an empty SETTINGS frame.
            Protocol::Http2 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        };
        idle.write_all(preface).await.unwrap();
        let mut rest = Vec::new();
        // Closed by the server; a missing close_notify is no concern of this test.
        let _ = tokio::time::timeout(DEADLINE, idle.read_to_end(&mut rest)).await.expect("closed");
        if protocol == Protocol::Http1 {
            assert!(String::from_utf8_lossy(&rest).starts_with("HTTP/1.1 200"));
        }
    }
}

#[tokio::test]
async fn proxy_headers_are_taken_from_named_peers_only() {
    let header = |stack: &Stack| {
        let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
        header.extend([192, 0, 2, 9, 127, 0, 0, 1, 0x1f, 0x90]);
        header.extend(stack.address.port().to_be_bytes());
        header
    };
    let trusting =
        Stack::with(Setup { proxies: vec!["127.0.0.0/8".parse().unwrap()], ..Setup::default() }).await;
    let client = trusting.client(Who::Master, Protocol::Http1);
    assert_eq!(client.get("/version").await.status, 200, "the header is optional");
    let extended = {
        let mut header = header(&trusting);
        header[15] += 4;
        [header.as_slice(), &[0x04, 0, 1, 0]].concat()
    };
    let of_the_proxy_itself = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".to_vec();
    let without_room = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x04\x7f\0\0\x01".to_vec();
    for (front, good) in [
        (header(&trusting), true),
        (extended, true),
        (of_the_proxy_itself, true),
        (without_room, false),
        ([header(&trusting), header(&trusting)].concat(), false),
    ] {
        let mut proxied = TcpStream::connect(trusting.address).await.unwrap();
        proxied.write_all(&front).await.unwrap();
        assert_eq!(client.handshake(proxied).await.is_ok(), good, "{front:?}");
    }

    let plain = Stack::start().await;
    let client = plain.client(Who::Master, Protocol::Http1);
    let mut proxied = TcpStream::connect(plain.address).await.unwrap();
    proxied.write_all(&header(&plain)).await.unwrap();
    assert!(client.handshake(proxied).await.is_err(), "nobody else may speak for others");
}

#[tokio::test]
async fn what_is_in_flight_is_limited_by_caller_and_class() {
    let limit = Limit { server: 10, caller: 1 };
    let limits = Limits { watches: limit, ..Limits::default() };
    let stack = Stack::with(Setup { limits, ..Setup::default() }).await;
    stack.make_namespaces().await;
    let client = stack.master();
    let path = format!("{NODES}?watch=1");
    let watch = client.lines(&path, &[]).await;
    let refused = client.get(&path).await;
    assert_eq!((refused.status, refused.reason().as_str()), (429, "TooManyRequests"));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(client.get(NODES).await.status, 200, "reads are counted apart");
    drop(watch);
    horchestra_testkit::eventually(DEADLINE, async || {
        let request = client.request(Method::GET, &path, &[], Bytes::new());
        client.open(request).await.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
}

#[tokio::test]
async fn a_stopping_replica_finishes_what_runs_and_takes_nothing_new() {
    for protocol in BOTH {
        let mut stack = Stack::with_namespaces().await;
        let client = stack.client(Who::Master, protocol);
        let path = format!("{NODES}?watch=1&allowWatchBookmarks=true");
        let mut watch = client.lines(&path, &[]).await;
        let created = client.post(NODES, &json!({"metadata": {"name": "n1"}, "spec": {}})).await;
        assert_eq!(created.status, 201, "{created:?}");
        assert_eq!(watch.event().await, ("ADDED".into(), "n1".into()));
        stack.begin_stop();
        let bookmark = watch.frame().await;
        assert_eq!(bookmark["type"], "BOOKMARK", "{bookmark}");
        let at: i64 = bookmark["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        let written: i64 = created.json()["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        assert!(at >= written);
        assert_eq!(watch.next().await, Next::End, "{protocol:?}");
        stack.stop().await;
        assert!(client.connect().await.is_err());
    }
}
