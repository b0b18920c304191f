use std::pin::Pin;
use std::time::Duration;

use horchestra_agent::controller::Controller;
use horchestra_proto::node::v1::controller_message::Body as Down;
use horchestra_proto::node::v1::node_message::Body as Up;
use horchestra_proto::node::v1::node_service_server::{NodeService, NodeServiceServer};
use horchestra_proto::node::v1::{AppStatus, ControllerMessage, DesiredState, LogRequest, NodeMessage};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::pki::Pki;

/// Long enough for a busy machine; a passing test never waits for it.
pub const SOON: Duration = Duration::from_secs(20);

/// A gateway without a mind: it hands every stream to the test.
pub struct FakeGateway {
    pub controller: Controller,
    sessions: mpsc::UnboundedReceiver<FakeSession>,
    server: JoinHandle<()>,
}

/// The gateway's end of one stream.
pub struct FakeSession {
    pub node: String,
    pub peer_certificates: usize,
    pub metadata: tonic::metadata::MetadataMap,
    up: Streaming<NodeMessage>,
    down: mpsc::Sender<Result<ControllerMessage, Status>>,
}

struct Service {
    sessions: mpsc::UnboundedSender<FakeSession>,
}

#[tonic::async_trait]
impl NodeService for Service {
    type SessionStream = Pin<Box<ReceiverStream<Result<ControllerMessage, Status>>>>;

    async fn session(
        &self,
        request: Request<Streaming<NodeMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let certificates =
            request.peer_certs().ok_or_else(|| Status::unauthenticated("no client certificate"))?;
        let (_, leaf) = X509Certificate::from_der(&certificates[0]).expect("a certificate");
        let node =
            leaf.subject().iter_common_name().last().expect("a name").as_str().expect("text").to_owned();
        let (down, outgoing) = mpsc::channel(16);
        let session = FakeSession {
            node,
            peer_certificates: certificates.len(),
            metadata: request.metadata().clone(),
            up: request.into_inner(),
            down,
        };
        self.sessions.send(session).map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing))))
    }
}

impl FakeGateway {
    pub async fn start(pki: &Pki) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (found, sessions) = mpsc::unbounded_channel();
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(&pki.server, &pki.server_key))
            .client_ca_root(Certificate::from_pem(&pki.ca))
            .client_auth_optional(true);
        let serving = Server::builder()
            .tls_config(tls)
            .expect("TLS")
            // Little, so that what is not read is noticed.
            .initial_stream_window_size(16 << 10)
            .add_service(NodeServiceServer::new(Service { sessions: found }))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move { serving.await.expect("serves") });
        let controller = Controller { host: "127.0.0.1".into(), port };
        Self { controller, sessions, server }
    }

    /// The next stream that opens.
    pub async fn session(&mut self) -> FakeSession {
        timeout(SOON, self.sessions.recv()).await.expect("a session in time").expect("a server")
    }
}

impl Drop for FakeGateway {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl FakeSession {
    pub async fn send(&self, body: Down) {
        self.down.send(Ok(body.into())).await.expect("an open stream");
    }

    pub async fn push(&self, apps: impl IntoIterator<Item = serde_json::Value>) {
        let applications = apps.into_iter().map(|app| app.to_string().into()).collect();
        self.send(Down::Desired(DesiredState { applications, ..DesiredState::default() })).await;
    }

    /// The next message from the node; `None` when its half has ended.
    pub async fn recv(&mut self) -> Option<Up> {
        let message = timeout(SOON, self.up.message()).await.expect("a message in time");
        message.ok().flatten().map(|message| message.body.expect("a body"))
    }

    /// Reads to the end of the node's half; true when that end was in order.
    pub async fn ends_well(&mut self) -> bool {
        let end = async {
            loop {
                match self.up.message().await {
                    Ok(Some(_)) => {}
                    end => return end.is_ok(),
                }
            }
        };
        timeout(SOON, end).await.expect("an end in time")
    }

    /// The first message for which the test has a use; others are dropped.
    pub async fn until<T>(&mut self, mut choose: impl FnMut(Up) -> Option<T>) -> T {
        let chosen = async {
            loop {
                let message = self.up.message().await.expect("an open stream").expect("an open half");
                if let Some(chosen) = choose(message.body.expect("a body")) {
                    return chosen;
                }
            }
        };
        timeout(SOON, chosen).await.expect("the message in time")
    }

    /// The first report on this application that shows this phase.
    pub async fn phase(&mut self, name: &str, phase: &str) -> AppStatus {
        self.until(|up| match up {
            Up::AppStatus(status) if status.name == name && status.phase == phase => Some(status),
            _ => None,
        })
        .await
    }

    /// Waits for a pass that found no application.
    pub async fn idle(&mut self) {
        let mut reported = true;
        self.until(|up| match up {
            Up::AppStatus(_) => {
                reported = true;
                None
            }
            Up::NodeUsage(_) => (!std::mem::replace(&mut reported, false)).then_some(()),
            _ => None,
        })
        .await;
    }

    /// The first report on this application that says that it is over.
    pub async fn finished(&mut self, name: &str) -> AppStatus {
        self.until(|up| match up {
            Up::AppStatus(status) if status.name == name && status.finished_at_unix_nano > 0 => Some(status),
            _ => None,
        })
        .await
    }

    /// Reads a log to its end, or until the test has seen enough of it.
    pub async fn log(&mut self, request: LogRequest, enough: impl Fn(&str) -> bool) -> String {
        let id = request.id.clone();
        self.send(Down::LogRequest(request)).await;
        let mut text = String::new();
        self.until(|up| match up {
            Up::LogChunk(chunk) if chunk.id == id => {
                text.push_str(&String::from_utf8_lossy(&chunk.data));
                (chunk.eof || enough(&text)).then_some(())
            }
            _ => None,
        })
        .await;
        text
    }

    /// Ends the stream with this status; `None` ends it cleanly.
    pub async fn end(self, status: Option<Status>) {
        if let Some(status) = status {
            let _ = self.down.send(Err(status)).await;
        }
    }
}
