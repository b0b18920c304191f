//! The balancer that nodes come to, with gateways behind it in turn.
//!
//! As balancers do, it may take notice of a gateway that does not answer: then it cuts the connections to it, so that
//! nodes dial again, and sends nobody there until told otherwise. It looks at no bytes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

struct Backend {
    address: SocketAddr,
    /// Whether it is taken for one that answers.
    well: watch::Sender<bool>,
}

/// A balancer; it ends with the value.
pub struct Front {
    backends: Arc<[Backend]>,
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Front {
    pub async fn of(gateways: &[SocketAddr]) -> io::Result<Front> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let backends: Arc<[Backend]> = gateways
            .iter()
            .map(|address| Backend { address: *address, well: watch::Sender::new(true) })
            .collect();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&backends)));
        Ok(Front { backends, address, _tasks: tasks })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes a gateway for dead, or for one that answers again.
    pub fn mark(&self, gateway: usize, well: bool) {
        if let Some(backend) = self.backends.get(gateway) {
            backend.well.send_replace(well);
        }
    }
}

async fn accept(listener: TcpListener, backends: Arc<[Backend]>) {
    let mut connections = JoinSet::new();
    let next = Arc::new(AtomicUsize::new(0));
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else {
                    // Out of file descriptors, most likely.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let (backends, next) = (Arc::clone(&backends), Arc::clone(&next));
                connections.spawn(async move {
                    // How it ends is told to nobody.
                    let _ = carry(client, &backends, &next).await;
                });
            }
        }
    }
}

async fn carry(mut client: TcpStream, backends: &[Backend], next: &AtomicUsize) -> io::Result<()> {
    let first = next.fetch_add(1, Ordering::Relaxed);
    for turn in 0..backends.len() {
        let backend = &backends[(first + turn) % backends.len()];
        let mut well = backend.well.subscribe();
        if !*well.borrow_and_update() {
            continue;
        }
        let connecting = timeout(Duration::from_secs(1), TcpStream::connect(backend.address));
        if let Ok(Ok(mut server)) = connecting.await {
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            tokio::select! {
                copied = tokio::io::copy_bidirectional(&mut client, &mut server) => {
                    copied?;
                }
                _ = well.wait_for(|well| !well) => {}
            }
            return Ok(());
        }
    }
    Err(io::ErrorKind::ConnectionRefused.into())
}
