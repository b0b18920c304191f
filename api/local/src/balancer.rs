//! A TCP balancer for the replicas behind one port.
//!
//! It passes bytes on and looks at none of them, so TLS and identities stay end to end. Connections go round
//! the replicas in turn; one that does not accept is passed over.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Serves until `stop`; connections still open then are cut.
pub async fn serve(listener: TcpListener, replicas: Vec<SocketAddr>, stop: CancellationToken) {
    let connections = TaskTracker::new();
    let replicas: Arc<[SocketAddr]> = replicas.into();
    let next = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((client, _)) = accepted else {
            // Out of file descriptors, most likely: give the open connections time to end.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (replicas, next, stop) = (Arc::clone(&replicas), Arc::clone(&next), stop.clone());
        connections.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                outcome = splice(client, &replicas, &next) => if let Err(error) = outcome {
                    tracing::debug!(%error, "a connection ended");
                }
            }
        });
    }
    connections.close();
    connections.wait().await;
}

async fn splice(mut client: TcpStream, replicas: &[SocketAddr], next: &AtomicUsize) -> io::Result<()> {
    let first = next.fetch_add(1, Ordering::Relaxed);
    for turn in 0..replicas.len() {
        let replica = replicas[(first + turn) % replicas.len()];
        let connecting = tokio::time::timeout(Duration::from_secs(2), TcpStream::connect(replica));
        if let Ok(Ok(mut server)) = connecting.await {
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await?;
            return Ok(());
        }
    }
    Err(io::Error::new(io::ErrorKind::ConnectionRefused, "no replica accepts connections"))
}
