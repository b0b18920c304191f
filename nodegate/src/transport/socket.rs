//! Settings of sockets.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// A quiet peer is asked for a sign of life after this long, and then as often.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long what was sent may stay unacknowledged before the peer counts as gone. TCP by itself gives it a
/// quarter of an hour.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// Small messages go at once, and a peer that vanished without a word is noticed.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}
