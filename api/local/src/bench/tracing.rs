//! What it costs to export traces of a tenth of all requests. Client, replica, PostgreSQL and collector share the
//! machine.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::https::{APPLICATIONS, CONNECTIONS, Replica, Run, drive, said};
use super::report::{Section, percentile};
use super::server::Server;
use super::{BenchArgs, object};

/// The difference is small, so it takes many pairs to see it.
const PAIRS: usize = 30;

pub async fn measure(server: &Server, args: &BenchArgs) -> Result<Section> {
    let sink = Sink::open().await?;
    let on = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", sink.address)),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf".to_owned()),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio".to_owned()),
        ("OTEL_TRACES_SAMPLER_ARG", "0.1".to_owned()),
    ];
    let (mut ours, mut theirs, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    let pairs = if args.quick { args.pairs() } else { args.pairs().max(PAIRS) };
    for pair in 0..pairs {
        let before = sink.bytes();
        // Whoever comes second finds another machine: they take turns in that, too.
        let (with, without) = if pair % 2 == 0 {
            let with = arm(server, args, &on).await?;
            (with, arm(server, args, &[]).await?)
        } else {
            let without = arm(server, args, &[]).await?;
            (arm(server, args, &on).await?, without)
        };
        let exported = sink.bytes() - before;
        ensure!(exported > 0, "nothing was exported");
        notes.push(format!("on {}; off {}; {} kB exported", said(&with), said(&without), exported / 1000));
        ours.push(with.per_second);
        theirs.push(without.per_second);
    }
    notes.push(ratios(&ours, &theirs));
    Ok(Section {
        name: format!("create over HTTPS, {CONNECTIONS} connections, a tenth traced"),
        unit: "writes/s",
        comparison: "the same without tracing".into(),
        ours,
        theirs,
        aim: "≥ 0.95".into(),
        notes,
    })
}

/// The ratios of the pairs, closer than the report shows them.
fn ratios(ours: &[f64], theirs: &[f64]) -> String {
    let mut ratios: Vec<f64> = ours.iter().zip(theirs).map(|(with, without)| with / without).collect();
    ratios.sort_by(f64::total_cmp);
    let [low, middle, high] = [0.25, 0.5, 0.75].map(|share| percentile(&ratios, share));
    format!("{} pairs: ratio {middle:.3}, half of them between {low:.3} and {high:.3}", ratios.len())
}

async fn arm(server: &Server, args: &BenchArgs, environment: &[(&str, String)]) -> Result<Run> {
    let url = server.database().await?;
    let replica = Replica::start_in(&url, environment).await?;
    let run = drive(&replica.client, CONNECTIONS, args, |connection, turn| {
        let name = format!("app-{connection}-{turn}");
        (Method::POST, APPLICATIONS.to_owned(), object::manifest(&name))
    })
    .await?;
    replica.stop().await?;
    server.drop_database(&url).await?;
    Ok(run)
}

/// A collector that takes everything and keeps nothing.
struct Sink {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Sink {
    async fn open() -> Result<Sink> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, bytes) = (listener.local_addr()?, Arc::new(AtomicU64::new(0)));
        let taken = Arc::clone(&bytes);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let taken = Arc::clone(&taken);
                let service = service_fn(move |request| take(Arc::clone(&taken), request));
                connections.spawn(async move {
                    // How a connection ends is the replica's business.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Sink { address, bytes, _tasks: tasks })
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

async fn take(
    taken: Arc<AtomicU64>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    taken.fetch_add(body.len() as u64, Ordering::Relaxed);
    Ok(Response::new(Full::default()))
}
