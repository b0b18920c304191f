//! A collector of traces, as processes export them to: over gRPC, or over HTTP.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;

/// A span as it came. Ids in hexadecimal digits.
#[derive(Clone, Debug)]
pub struct Span {
    pub service: String,
    pub trace: String,
    pub id: String,
    pub parent: String,
    pub name: String,
    pub attributes: BTreeMap<String, String>,
    /// Spans that it points to.
    pub links: Vec<String>,
    /// Nanoseconds since the epoch.
    pub began: u64,
    pub ended: u64,
}

#[derive(Clone, Default)]
struct Inbox {
    spans: Arc<Mutex<Vec<Span>>>,
    connections: Arc<AtomicUsize>,
}

/// Takes spans until it is dropped.
pub struct Collector {
    inbox: Inbox,
    pub address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Collector {
    pub async fn grpc() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (inbox, address) = (Inbox::default(), listener.local_addr().unwrap());
        let service = TraceServiceServer::new(inbox.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
        Collector { inbox, address, _tasks: tasks }
    }

    /// On this address, which may have been somebody else's a moment ago.
    pub async fn http(address: SocketAddr) -> Collector {
        let listener = TcpListener::bind(address).await.unwrap();
        let (inbox, address) = (Inbox::default(), listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        let taking = inbox.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                taking.connections.fetch_add(1, Ordering::SeqCst);
                let inbox = taking.clone();
                connections.spawn(async move {
                    let service = service_fn(|request| answer(inbox.clone(), request));
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Collector { inbox, address, _tasks: tasks }
    }

    /// Connections over HTTP that anybody has made.
    pub fn connections(&self) -> usize {
        self.inbox.connections.load(Ordering::SeqCst)
    }

    pub fn spans(&self) -> Vec<Span> {
        self.inbox.spans.lock().clone()
    }

    /// The spans of a trace.
    pub fn trace(&self, id: &str) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.trace == id).collect()
    }
}

async fn answer(
    inbox: Inbox,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let as_usual =
        request.uri().path() == "/v1/traces" && request.headers()["content-type"] == "application/x-protobuf";
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut response = hyper::Response::new(Full::default());
    match ExportTraceServiceRequest::decode(body).ok().filter(|_| as_usual) {
        Some(spans) => inbox.take(spans),
        None => *response.status_mut() = hyper::StatusCode::BAD_REQUEST,
    }
    Ok(response)
}

#[tonic::async_trait]
impl TraceService for Inbox {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.take(request.into_inner());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Inbox {
    fn take(&self, request: ExportTraceServiceRequest) {
        let mut spans = self.spans.lock();
        for resource in request.resource_spans {
            let described = texts(resource.resource.map(|resource| resource.attributes).unwrap_or_default());
            let service = described.get("service.name").cloned().unwrap_or_default();
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                spans.push(Span {
                    service: service.clone(),
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    name: span.name,
                    attributes: texts(span.attributes),
                    links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
                    began: span.start_time_unix_nano,
                    ended: span.end_time_unix_nano,
                });
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |attribute: KeyValue| {
        let value = match attribute.value.and_then(|value| value.value) {
            Some(Value::StringValue(text)) => text,
            Some(Value::IntValue(number)) => number.to_string(),
            Some(Value::BoolValue(truth)) => truth.to_string(),
            other => format!("{other:?}"),
        };
        (attribute.key, value)
    };
    attributes.into_iter().map(text).collect()
}
