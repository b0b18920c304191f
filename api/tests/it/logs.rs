//! Logs through a gateway that is played by the test, over the real relay protocol with mutual TLS.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use horchestra_auth::pki::Process;
use horchestra_proto::relay::v1::relay_server::{Relay, RelayServer};
use horchestra_proto::relay::v1::{LogRequest, LogResponse};
use horchestra_runtime::tls::{ClientCertificates, ReloadingServer};
use horchestra_store::{SessionClaim, Store};
use http::Method;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use uuid::Uuid;

use crate::client::{Client, DEADLINE, Next, Protocol};
use crate::crud::app;
use crate::stack::{Setup, Stack, Who, pair};

const APPS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
pub const LOG: &str = "/api/v1/namespaces/default/pods/web/log";

type Script = Arc<dyn Fn(&LogRequest) -> Result<Vec<Result<LogResponse, Status>>, Status> + Send + Sync>;

/// A gateway that answers by a script. Streams of `follow` stay open after the script's messages.
#[derive(Clone)]
pub struct Gateway {
    script: Arc<Mutex<Script>>,
    requests: Arc<Mutex<Vec<LogRequest>>>,
    pub open: Arc<AtomicUsize>,
    leaving: CancellationToken,
}

struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tonic::async_trait]
impl Relay for Gateway {
    type LogStream = Pin<Box<dyn Stream<Item = Result<LogResponse, Status>> + Send>>;

    async fn log(&self, request: Request<LogRequest>) -> Result<Response<Self::LogStream>, Status> {
        let request = request.into_inner();
        self.requests.lock().push(request.clone());
        let script = self.script.lock().clone();
        let messages = script(&request)?;
        self.open.fetch_add(1, Ordering::SeqCst);
        let open = Open(self.open.clone());
        let follow = request.follow;
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let _open = open;
            for message in messages {
                if sender.send(message).await.is_err() {
                    return;
                }
            }
            if follow {
                sender.closed().await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

pub fn data(text: &str) -> Result<LogResponse, Status> {
    Ok(LogResponse { data: Bytes::copy_from_slice(text.as_bytes()), ..LogResponse::default() })
}

impl Gateway {
    pub fn plays(
        &self,
        script: impl Fn(&LogRequest) -> Result<Vec<Result<LogResponse, Status>>, Status> + Send + Sync + 'static,
    ) {
        *self.script.lock() = Arc::new(script);
    }

    /// What it was asked for so far.
    pub fn asked(&self) -> Vec<LogRequest> {
        self.requests.lock().clone()
    }

    /// Ends in order.
    pub fn leave(&self) {
        self.leaving.cancel();
    }

    /// Serves on a port of its own, with the credentials of `process`, and takes over the node's session.
    pub async fn start(stack: &Stack, process: Process) -> (Gateway, String) {
        let gateway = Gateway {
            script: Arc::new(Mutex::new(Arc::new(|_: &LogRequest| Ok(Vec::new())))),
            requests: Arc::default(),
            open: Arc::default(),
            leaving: CancellationToken::new(),
        };
        let tls = ReloadingServer::load(
            pair(&stack.pki.controller(process)),
            ClientCertificates::Required { ca: stack.pki.authority() },
            &[b"h2"],
        )
        .unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap().to_string();
        let acceptor = TlsAcceptor::from(tls.config());
        let incoming = TcpListenerStream::new(tcp).then(move |stream| {
            let acceptor = acceptor.clone();
            async move { acceptor.accept(stream?).await }
        });
        let service = RelayServer::new(gateway.clone());
        tokio::spawn(
            tonic::transport::Server::builder()
                .max_concurrent_streams(1024)
                .add_service(service)
                .serve_with_incoming_shutdown(
                    incoming.filter(Result::is_ok),
                    gateway.leaving.clone().cancelled_owned(),
                ),
        );
        (gateway, address)
    }
}

pub async fn claim(store: &Store, address: &str) {
    let gateway = Uuid::new_v4();
    assert!(store.renew_gateway(gateway, address, Duration::from_secs(600)).await.unwrap());
    let claim =
        SessionClaim { node: "n1".into(), gateway, peer: "127.0.0.1:1".into(), certificate: "00".repeat(32) };
    store.claim_session(claim, Duration::ZERO).await.unwrap().expect("the session is free");
}

pub async fn placed() -> (Stack, Client) {
    placed_with(Setup::default()).await
}

pub async fn placed_with(setup: Setup) -> (Stack, Client) {
    let stack = Stack::with(Setup { relay: true, ..setup }).await;
    stack.make_namespaces().await;
    let client = stack.client(Who::Master, Protocol::Http1);
    let node = json!({"metadata": {"name": "n1"}, "spec": {}});
    assert_eq!(client.post("/apis/horchestra.io/v1/nodes", &node).await.status, 201);
    let mut web = app("web");
    web["spec"]["placement"] = json!({"nodeName": "n1"});
    assert_eq!(client.post(APPS, &web).await.status, 201);
    (stack, client)
}

#[tokio::test]
async fn a_log_is_read_through_the_gateway_of_its_node() {
    let (stack, client) = placed().await;
    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("one\n"), data("two\n")]));
    let reply = client.get(&format!("{LOG}?container=web&tailLines=7")).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "one\ntwo\n"));
    assert_eq!(reply.header("content-type"), "text/plain; charset=utf-8");
    let requests = gateway.requests.lock().clone();
    let [asked] = requests.as_slice() else { panic!("one log is one stream: {requests:?}") };
    assert_eq!((asked.node.as_str(), asked.tail_lines, asked.follow), ("n1", 7, false));
    assert_eq!(asked.caller, "admin");
    let uid = client.get(&format!("{APPS}/web")).await.json()["metadata"]["uid"].as_str().unwrap().to_owned();
    assert!(format!("{:?}", asked.source).contains(&uid), "{asked:?}");

    let reply = client.get("/api/v1/pods/web/log").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "one\ntwo\n"), "without a namespace");
    let opened = gateway.requests.lock().len();
    for path in [LOG, "/api/v1/pods/web/log"] {
        assert_eq!(stack.client(Who::Nobody, Protocol::Http2).get(path).await.status, 404, "{path}");
    }
    assert_eq!(gateway.requests.lock().len(), opened, "no stream for who may not read it");
    let reply = client.get(&format!("{LOG}?limitBytes=5")).await;
    assert_eq!(reply.text(), "one\nt");
    let before = gateway.requests.lock().len();
    let reply = client.get(&format!("{LOG}?tailLines=0")).await;
    assert_eq!((reply.status, reply.body.len(), gateway.requests.lock().len()), (200, 0, before));

    gateway.plays(|_| Ok(vec![Ok(LogResponse { error: "no such unit".into(), ..LogResponse::default() })]));
    let reply = client.get(LOG).await;
    assert_eq!(reply.status, 503, "{reply:?}");
    assert!(reply.message().contains("no such unit"));
}

#[tokio::test]
async fn following_goes_on_in_silence_and_its_end_reaches_the_gateway() {
    let (stack, _) = placed().await;
    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("backlog\n"), data("live\n")]));
    for protocol in crate::client::BOTH {
        let client = stack.client(Who::Master, protocol);
        let mut log = client.lines(&format!("{LOG}?follow=true"), &[]).await;
        assert_eq!(log.next().await, Next::Line("backlog".into()));
        assert_eq!(log.next().await, Next::Line("live".into()));
        let mut tail = client.lines(&format!("{LOG}?follow=true&tailLines=0"), &[]).await;
        assert_eq!(gateway.requests.lock().last().unwrap().tail_lines, 1, "the wire cannot say none");
        assert_eq!(tail.next().await, Next::Line("live".into()), "the line of backlog is dropped");
        assert_eq!(gateway.open.load(Ordering::SeqCst), 2);
        drop((log, tail));
        horchestra_testkit::eventually(DEADLINE, async || gateway.open.load(Ordering::SeqCst) == 0).await;
    }
}

#[tokio::test]
async fn a_log_that_breaks_off_is_torn_with_a_word() {
    let (mut stack, _) = placed().await;
    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("one\n"), Err(Status::unavailable("the session ended"))]));
    for protocol in crate::client::BOTH {
        let client = stack.client(Who::Master, protocol);
        let mut log = client.lines(&format!("{LOG}?follow=true"), &[]).await;
        let mut seen = Vec::new();
        let end = loop {
            match log.next().await {
                Next::Line(line) => seen.push(line),
                end => break end,
            }
        };
        assert_eq!(end, Next::Torn, "{seen:?}");
        assert_eq!(seen[0], "one");
        assert!(seen.iter().any(|line| line.starts_with("error: the log was cut")), "{seen:?}");
    }

    gateway.plays(|_| Ok(vec![data("one\n")]));
    let client = stack.client(Who::Master, Protocol::Http1);
    let mut log = client.lines(&format!("{LOG}?follow=true"), &[]).await;
    assert_eq!(log.next().await, Next::Line("one".into()));
    stack.begin_stop();
    let mut end = log.next().await;
    while matches!(end, Next::Line(_)) {
        end = log.next().await;
    }
    assert_eq!(end, Next::Torn, "a replica that goes does not end the log");
    stack.stop().await;
}

#[tokio::test]
async fn a_session_that_moved_is_looked_up_once_more() {
    let (stack, client) = placed().await;
    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    gateway.plays(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => Err(Status::aborted("another session")),
        _ => Ok(vec![data("found\n")]),
    });
    assert_eq!(client.get(LOG).await.text(), "found\n");
    gateway.plays(|_| Err(Status::not_found("not here")));
    let before = gateway.requests.lock().len();
    let reply = client.get(LOG).await;
    assert_eq!((reply.status, reply.reason().as_str()), (503, "ServiceUnavailable"));
    assert!(!reply.header("retry-after").is_empty());
    assert_eq!(gateway.requests.lock().len() - before, 2, "not a third time");
    gateway.plays(|_| Err(Status::resource_exhausted("full")));
    assert_eq!(client.get(LOG).await.status, 503);
}

#[tokio::test]
async fn what_cannot_be_read_has_a_clear_answer() {
    let (stack, client) = placed().await;
    assert_eq!(client.post(APPS, &app("pending")).await.status, 201);
    for (path, code, part) in [
        ("/api/v1/namespaces/default/pods/pending/log".to_owned(), 400, "not placed"),
        ("/api/v1/namespaces/default/pods/ghost/log".to_owned(), 404, "pods \"ghost\" not found"),
        ("/api/v1/namespaces/team-a/pods/web/log".to_owned(), 404, "pods \"web\" not found"),
        (format!("{LOG}?container=other"), 400, "container"),
        (format!("{LOG}?tailLines=abc"), 400, "tailLines"),
        (format!("{LOG}?previous=true"), 400, "previous"),
        (LOG.to_owned(), 503, "n1"),
    ] {
        let reply = client.get(&path).await;
        assert_eq!(reply.status, code, "{path}: {reply:?}");
        assert!(reply.message().contains(part), "{path}: {}", reply.message());
    }
    // A server that is no controller is not believed, whoever signed its certificate.
    let serving = stack.pki.serving();
    let tls = ReloadingServer::load(
        pair(&serving),
        ClientCertificates::Required { ca: stack.pki.authority() },
        &[b"h2"],
    )
    .unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap().to_string();
    let acceptor = TlsAcceptor::from(tls.config());
    tokio::spawn(async move {
        while let Ok((stream, _)) = tcp.accept().await {
            let _ = acceptor.accept(stream).await;
        }
    });
    claim(&stack.store, &address).await;
    assert_eq!(client.get(LOG).await.status, 503);

    let nobody = stack.client(Who::Nobody, Protocol::Http2);
    for path in [LOG, "/api/v1/pods/web/log", "/api/v1/pods/web", "/api/v1/namespaces/default/pods/web"] {
        let reply = nobody.get(path).await;
        assert_eq!((reply.status, reply.message()), (404, "pods \"web\" not found".into()), "{path}");
    }
    assert_eq!(nobody.get("/api/v1/pods").await.json()["items"], json!([]));
    assert_eq!(nobody.get("/api/v1/pods?watch=1").await.status, 403);
    assert_eq!(nobody.send(Method::POST, "/api/v1/pods", &[], "{}").await.status, 405);
}

#[tokio::test]
async fn the_ninth_stream_of_a_caller_is_refused() {
    let (stack, client) = placed().await;
    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("x\n")]));
    let mut open = Vec::new();
    for _ in 0..8 {
        open.push(client.lines(&format!("{LOG}?follow=true"), &[]).await);
    }
    let refused = client.get(&format!("{LOG}?follow=true")).await;
    assert_eq!((refused.status, &refused.json()["details"]["retryAfterSeconds"]), (429, &json!(1)));
    // It is the caller's limit, on whichever connection, and no other caller's.
    let same = stack.client(Who::Master, Protocol::Http2).get(LOG).await;
    assert_eq!(same.status, 429, "{same:?}");
    let other = stack.client(Who::User("other", "system:masters"), Protocol::Http1);
    assert_eq!(other.get(LOG).await.text(), "x\n");
    open.pop();
    horchestra_testkit::eventually(DEADLINE, async || {
        let request = client.request(Method::GET, &format!("{LOG}?follow=true"), &[], Bytes::new());
        client.open(request).await.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
}
