//! A TCP link that can be cut without either end being told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Forwards connections from a port of its own to a target. While it is cut, nothing passes and nothing is
/// refused or closed: what each end sees when the host at the other end loses power. Connections that were
/// open at a cut stay dead for good; those made after [`Link::mend`] work.
#[derive(Debug)]
pub struct Link {
    address: SocketAddr,
    cut: Arc<AtomicBool>,
    /// Counts the cuts.
    cuts: watch::Sender<u64>,
    // Ends with the value.
    _tasks: JoinSet<()>,
}

impl Link {
    pub async fn to(target: SocketAddr) -> anyhow::Result<Link> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("no free loopback port")?;
        let address = listener.local_addr()?;
        let cut = Arc::new(AtomicBool::new(false));
        let cuts = watch::Sender::new(0);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, target, Arc::clone(&cut), cuts.clone()));
        Ok(Link { address, cut, cuts, _tasks: tasks })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        self.cuts.send_modify(|count| *count += 1);
    }

    pub fn mend(&self) {
        self.cut.store(false, Ordering::SeqCst);
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, cut: Arc<AtomicBool>, cuts: watch::Sender<u64>) {
    let mut connections = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        let cuts = cuts.subscribe();
        let dead = cut.load(Ordering::SeqCst);
        connections.spawn(async move {
            if dead {
                std::future::pending::<()>().await;
            }
            forward(near, target, cuts).await;
        });
    }
}

async fn forward(mut near: TcpStream, target: SocketAddr, mut cuts: watch::Receiver<u64>) {
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    let _ = near.set_nodelay(true);
    let _ = far.set_nodelay(true);
    tokio::select! {
        biased;
        // Both sockets stay open until the link is dropped.
        _ = cuts.changed() => std::future::pending().await,
        _ = copy_bidirectional(&mut near, &mut far) => {}
    }
}
