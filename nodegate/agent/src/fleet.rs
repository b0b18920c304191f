//! Many simulated nodes in one process.
//!
//! Each has its own certificate, its own connection and its own session, and behaves
//! like any other node down to the order of its messages. What they share is the
//! runtime. Their workloads are simulated, and nothing of them survives the process.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::controller::Controller;
use crate::identity::Identity;
use crate::node::{Node, NodeError, NodeOptions};

/// A fleet.
pub struct Fleet {
    nodes: Vec<Node>,
    ramp: Duration,
}

impl Fleet {
    /// Prepares a node for each identity. State directory and supervisor in the
    /// options are not used: many nodes cannot share them.
    pub fn new(
        controller: &Controller,
        identities: impl IntoIterator<Item = Identity>,
        options: &NodeOptions,
        ramp: Duration,
    ) -> Result<Self, NodeError> {
        let options = NodeOptions { state: None, supervisor: None, own_log: None, ..options.clone() };
        let nodes = identities
            .into_iter()
            .map(|identity| Node::new(controller.clone(), identity, options.clone()))
            .collect::<Result<_, _>>()?;
        Ok(Self { nodes, ramp })
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Runs all nodes until they are to stop. Their first dialing is spread over the
    /// ramp, since machines do not boot in the same millisecond.
    pub async fn run(self, stop: CancellationToken) {
        let count = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX).max(1);
        let step = self.ramp / count;
        let mut running = JoinSet::new();
        for (index, node) in self.nodes.into_iter().enumerate() {
            let wait = step * u32::try_from(index).unwrap_or(u32::MAX);
            let stop = stop.clone();
            running.spawn(async move {
                if stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_some() {
                    node.run(stop).await;
                }
            });
        }
        while running.join_next().await.is_some() {}
    }
}
