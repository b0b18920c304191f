use std::net::{Ipv4Addr, SocketAddr};

use horchestra_runtime::{Checks, Metrics, health};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::DEADLINE;

async fn ask(address: SocketAddr, method: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn the_listener_answers_probes_and_metrics_until_it_is_closed() {
    let checks = Checks::new();
    let database = checks.state("database");
    let metrics = Metrics::new("horchestra-test", "0", Some("abc"));
    let listener = health::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    assert!(health::bind(address).await.is_err(), "a busy port is an error at once");
    let closing = CancellationToken::new();
    let serving = tokio::spawn(health::serve(listener, checks, metrics, closing.clone()));

    for (method, path, status, end) in [
        ("GET", "/livez", 200, "ok"),
        ("POST", "/healthz", 200, "ok"),
        ("HEAD", "/livez", 200, "\r\n\r\n"),
        ("GET", "/livez?verbose", 200, "livez check passed\n"),
        ("GET", "/readyz", 503, "[-]database failed: starting\nreadyz check failed\n"),
        ("GET", "/readyz/database", 503, "starting\n"),
        ("GET", "/readyz?exclude=database", 200, "ok"),
        ("GET", "/readyz/other", 404, "no such check\n"),
        ("GET", "/metrics", 200, "\n"),
        ("POST", "/metrics", 405, ""),
        ("GET", "/", 404, ""),
    ] {
        let answer = ask(address, method, path).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
        assert!(answer.ends_with(end), "{method} {path}: {answer}");
    }
    let page = ask(address, "GET", "/metrics").await;
    assert!(page.contains("content-type: text/plain; version=0.0.4"), "{page}");
    assert!(page.contains("horchestra_ready{check=\"database\"} 0"), "{page}");
    database.pass();
    let answer = ask(address, "GET", "/readyz?verbose").await;
    assert!(answer.ends_with("[+]database ok\nreadyz check passed\n"), "{answer}");
    assert!(ask(address, "GET", "/metrics").await.contains("horchestra_ready{check=\"database\"} 1"));

    closing.cancel();
    tokio::time::timeout(DEADLINE, serving).await.unwrap().unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
