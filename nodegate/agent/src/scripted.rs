//! A node that does only what a test tells it to.
//!
//! Nothing is sent and nothing is answered on its own, so that a test of a gateway
//! can play every order of events, also those that a well-behaved agent never
//! shows. What arrives is kept until it is asked for; the stream is always read, so
//! a script that does not ask never stalls the gateway by accident.

use std::time::Duration;

use horchestra_proto::node::v1::controller_message::Body as Down;
use horchestra_proto::node::v1::node_message::Body as Up;
use horchestra_proto::node::v1::{
    AppStatus, ControllerMessage, DesiredState, LogChunk, LogRequest, NodeMessage, NodeStatus,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::controller::Controller;
use crate::dial::{Connection, DialError, dial};
use crate::identity::Identity;

/// Why a script did not get what it waited for.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The deadline passed.
    #[error("nothing of that kind arrived within {0:?}")]
    Deadline(Duration),
    /// The stream is over. `None`: it ended without an error.
    #[error("the stream is over: {0:?}")]
    Ended(Option<Status>),
}

/// How a stream ended: `None` while it is open, then the status, if it had one.
type Ending = Option<Option<Status>>;

/// One open stream, driven step by step.
pub struct ScriptedNode {
    name: String,
    up: Option<mpsc::Sender<NodeMessage>>,
    down: mpsc::UnboundedReceiver<ControllerMessage>,
    ending: watch::Receiver<Ending>,
    reader: JoinHandle<()>,
    connection: Connection,
}

impl ScriptedNode {
    /// Connects and opens the stream. A refusal by the gateway shows as the end of
    /// the stream, not here; here fail TCP and TLS.
    pub async fn connect(controller: &Controller, identity: &Identity) -> Result<Self, DialError> {
        let connection = dial(controller, identity).await?;
        let (up, outgoing) = mpsc::channel(64);
        let (arrived, down) = mpsc::unbounded_channel();
        let (ended, ending) = watch::channel(None);
        let mut client = connection.client.clone();
        let reader = tokio::spawn(async move {
            let status = async {
                let mut incoming = client.session(ReceiverStream::new(outgoing)).await?.into_inner();
                while let Some(message) = incoming.message().await? {
                    // A script that is gone wants no more messages.
                    if arrived.send(message).is_err() {
                        break;
                    }
                }
                Ok(())
            };
            let status: Result<(), Status> = status.await;
            ended.send_replace(Some(status.err()));
        });
        let name = identity.common_name().to_owned();
        Ok(Self { name, up: Some(up), down, ending, reader, connection })
    }

    /// The name in the certificate.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a message. An error means that the stream is over.
    pub async fn send(&self, message: impl Into<NodeMessage>) -> Result<(), ScriptError> {
        match &self.up {
            Some(up) if up.send(message.into()).await.is_ok() => Ok(()),
            _ => Err(self.over()),
        }
    }

    /// Sends a heartbeat of a node with 4 CPUs and 8 GiB under this name.
    pub async fn heartbeat(&self) -> Result<(), ScriptError> {
        self.node_status(&serde_json::json!({
            "kind": "Node",
            "apiVersion": "horchestra.io/v1",
            "metadata": {"name": self.name},
            "spec": {},
            "status": {
                "capacity": {"cpu": "4", "memory": "8388608Ki"},
                "allocated": {},
                "os": "scripted",
                "ip": "127.0.0.1",
                "ready": true,
                "runtimes": ["userns"],
                "platform": {"os": "linux", "arch": "amd64"},
            },
        }))
        .await
    }

    /// Sends this JSON as the heartbeat.
    pub async fn node_status(&self, node: &serde_json::Value) -> Result<(), ScriptError> {
        self.send(Up::Status(NodeStatus { node: node.to_string().into() })).await
    }

    /// Reports an application.
    pub async fn app_status(&self, status: AppStatus) -> Result<(), ScriptError> {
        self.send(Up::AppStatus(status)).await
    }

    /// Sends a piece of a log.
    pub async fn log_chunk(&self, chunk: LogChunk) -> Result<(), ScriptError> {
        self.send(Up::LogChunk(chunk)).await
    }

    /// The next message, whatever it is.
    pub async fn recv(&mut self, within: Duration) -> Result<ControllerMessage, ScriptError> {
        self.pick(within, Some).await
    }

    /// The next desired state; other messages before it are dropped.
    pub async fn desired(&mut self, within: Duration) -> Result<DesiredState, ScriptError> {
        self.pick(within, |message| match message.body {
            Some(Down::Desired(state)) => Some(state),
            _ => None,
        })
        .await
    }

    /// The first desired state that the test likes; others before it are dropped.
    pub async fn desired_where(
        &mut self,
        within: Duration,
        likes: impl Fn(&DesiredState) -> bool,
    ) -> Result<DesiredState, ScriptError> {
        self.pick(within, |message| match message.body {
            Some(Down::Desired(state)) if likes(&state) => Some(state),
            _ => None,
        })
        .await
    }

    /// The next request for a log; other messages before it are dropped.
    pub async fn log_request(&mut self, within: Duration) -> Result<LogRequest, ScriptError> {
        self.pick(within, |message| match message.body {
            Some(Down::LogRequest(request)) => Some(request),
            _ => None,
        })
        .await
    }

    /// What has arrived already, without waiting.
    pub fn arrived(&mut self) -> Vec<ControllerMessage> {
        std::iter::from_fn(|| self.down.try_recv().ok()).collect()
    }

    /// Waits for the end of the stream and tells how it ended: `None` = cleanly.
    pub async fn ended(&mut self, within: Duration) -> Result<Option<Status>, ScriptError> {
        match tokio::time::timeout(within, self.ending.wait_for(Option::is_some)).await {
            Err(_) => Err(ScriptError::Deadline(within)),
            Ok(ending) => Ok(ending.ok().and_then(|ending| ending.clone().flatten())),
        }
    }

    /// True while the stream has not ended.
    pub fn is_open(&self) -> bool {
        self.ending.borrow().is_none()
    }

    /// Ends our half, as an agent that is asked to stop does. The gateway's answer
    /// can still be awaited with [`ScriptedNode::ended`].
    pub fn finish(&mut self) {
        self.up = None;
    }

    /// Drops the connection, as the kernel does for an agent that was killed.
    pub async fn kill(self) {
        self.reader.abort();
        self.connection.close().await;
    }

    async fn pick<T>(
        &mut self,
        within: Duration,
        choose: impl Fn(ControllerMessage) -> Option<T>,
    ) -> Result<T, ScriptError> {
        let deadline = Instant::now() + within;
        loop {
            match timeout_at(deadline, self.down.recv()).await {
                Err(_) => return Err(ScriptError::Deadline(within)),
                Ok(None) => {
                    // The messages end a moment before the ending is noted.
                    let _ = timeout_at(deadline, self.ending.wait_for(Option::is_some)).await;
                    return Err(self.over());
                }
                Ok(Some(message)) => {
                    if let Some(chosen) = choose(message) {
                        return Ok(chosen);
                    }
                }
            }
        }
    }

    fn over(&self) -> ScriptError {
        ScriptError::Ended(self.ending.borrow().clone().flatten())
    }
}
