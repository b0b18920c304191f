//! Export of traces to a collector, over OTLP.
//!
//! Configured by the environment variables that OpenTelemetry defines and by nothing else; without them nothing is
//! recorded and no connection is made. Spans that have ended wait in a bounded queue for a thread of their own. What
//! does not fit is lost, and a collector that is slow, or not there at all, holds nobody up: it is told of once in the
//! log, and once more when it takes spans again.

use std::env;
use std::fs;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::{Key, KeyValue, global};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use opentelemetry_otlp::{ExporterBuildError, WithHttpConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider, SpanData, SpanExporter};
use tokio::runtime::Handle;

/// How long the end of the process waits for the last spans to be taken.
const LAST_SPANS: Duration = Duration::from_secs(3);
/// Longest time of one export over HTTP, where nobody says another.
const HTTP_LIMIT: Duration = Duration::from_secs(10);
/// Longest answer of a collector that is read.
const ANSWER_LIMIT: usize = 1 << 20;

/// Why spans are not exported although somebody asked for it.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("OTEL_TRACES_EXPORTER={0} is not supported; say otlp or none")]
    Exporter(String),
    #[error("OTEL_EXPORTER_OTLP_PROTOCOL={0} is not supported; say grpc or http/protobuf")]
    Protocol(String),
    #[error("{variable} names the file {file}, which cannot be read")]
    File {
        variable: &'static str,
        file: String,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "over https only grpc is supported, and OTEL_EXPORTER_OTLP_CERTIFICATE has to name the authorities"
    )]
    Https,
    #[error(transparent)]
    Build(#[from] ExporterBuildError),
}

/// The export of this process's spans.
#[derive(Debug)]
#[must_use = "the last spans are lost unless it is finished"]
pub struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Begins to export spans if the environment says so. Has to be called within a tokio runtime, once, after
    /// logging was set up. An environment that cannot be followed is logged, and nothing is exported.
    pub fn begin(service: &'static str, version: &'static str) -> Traces {
        let provider = match exporter() {
            Ok(Some(exporter)) => provider(exporter, service, version),
            Ok(None) => return Traces(None),
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::warn!(%error, source, "traces are not exported");
                return Traces(None);
            }
        };
        global::set_tracer_provider(provider.clone());
        horchestra_trace::install();
        tracing::info!("traces are exported");
        Traces(Some(provider))
    }

    /// Hands over what waits, as far as the collector takes it within a few seconds.
    pub async fn finish(self) {
        let Some(provider) = self.0 else { return };
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(LAST_SPANS)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::debug!("the last spans were not taken");
        }
    }
}

/// A variable that says something. They are OpenTelemetry's own, and its library reads the others itself.
#[allow(clippy::disallowed_methods, reason = "their names and their meaning are a standard")]
fn said(name: &str) -> Option<String> {
    env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The more special variable, or else the general one.
fn of_traces(name: &str) -> Option<String> {
    said(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}")).or_else(|| said(&format!("OTEL_EXPORTER_OTLP_{name}")))
}

fn exporter() -> Result<Option<Exporter>, Unusable> {
    if said("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let endpoint = of_traces("ENDPOINT");
    match said("OTEL_TRACES_EXPORTER").as_deref() {
        Some("none") => return Ok(None),
        Some("otlp") => {}
        Some(other) => return Err(Unusable::Exporter(other.to_owned())),
        None if endpoint.is_none() => return Ok(None),
        None => {}
    }
    let https = endpoint.is_some_and(|endpoint| endpoint.starts_with("https:"));
    match of_traces("PROTOCOL").as_deref() {
        Some("grpc") => {
            let builder = opentelemetry_otlp::SpanExporter::builder().with_tonic();
            let builder = match https {
                true => builder.with_tls_config(tls()?),
                false => builder,
            };
            Ok(Some(Exporter::new(builder.build()?)))
        }
        None | Some("http/protobuf") if https => Err(Unusable::Https),
        None | Some("http/protobuf") => {
            let limit = of_traces("TIMEOUT").and_then(|limit| limit.parse().ok());
            let client = Http {
                client: Client::builder(TokioExecutor::new()).build_http(),
                runtime: Handle::current(),
                limit: limit.map_or(HTTP_LIMIT, Duration::from_millis),
            };
            let builder = opentelemetry_otlp::SpanExporter::builder().with_http().with_http_client(client);
            Ok(Some(Exporter::new(builder.build()?)))
        }
        Some(other) => Err(Unusable::Protocol(other.to_owned())),
    }
}

/// Whom to believe, and what to show.
fn tls() -> Result<ClientTlsConfig, Unusable> {
    let file = |variable: &'static str, name: &str| match of_traces(name) {
        None => Ok(None),
        Some(file) => fs::read(&file).map(Some).map_err(|source| Unusable::File { variable, file, source }),
    };
    let authorities = file("OTEL_EXPORTER_OTLP_CERTIFICATE", "CERTIFICATE")?.ok_or(Unusable::Https)?;
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities));
    let certificate = file("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "CLIENT_CERTIFICATE")?;
    let key = file("OTEL_EXPORTER_OTLP_CLIENT_KEY", "CLIENT_KEY")?;
    Ok(match certificate.zip(key) {
        Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
        None => config,
    })
}

fn provider(exporter: Exporter, service: &'static str, version: &'static str) -> SdkTracerProvider {
    let named = Resource::builder().build();
    let name = named.get(&Key::from_static_str("service.name")).map(|name| name.to_string());
    let resource = Resource::builder().with_attributes([
        KeyValue::new("service.version", version),
        KeyValue::new("process.pid", i64::from(std::process::id())),
    ]);
    let resource = match name.filter(|name| !name.starts_with("unknown_service")) {
        Some(_) => resource,
        None => resource.with_service_name(service),
    };
    SdkTracerProvider::builder()
        .with_resource(resource.build())
        .with_span_processor(BatchSpanProcessor::builder(exporter).build())
        .build()
}

/// The exporter, which says once that it fails.
#[derive(Debug)]
struct Exporter {
    inner: opentelemetry_otlp::SpanExporter,
    failing: AtomicBool,
}

impl Exporter {
    fn new(inner: opentelemetry_otlp::SpanExporter) -> Exporter {
        Exporter { inner, failing: AtomicBool::new(false) }
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.inner.export(batch).await;
        let failed_before = self.failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Ok(()) if failed_before => tracing::info!("traces are exported again"),
            Ok(()) => {}
            Err(error) if failed_before => tracing::debug!(%error, spans, "spans were lost"),
            Err(error) => tracing::warn!(
                %error,
                spans,
                "traces cannot be exported and are lost; this is said again after it has worked"
            ),
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Requests of the exporter's thread, made by the process's runtime.
#[derive(Debug)]
struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    runtime: Handle,
    /// For one attempt.
    limit: Duration,
}

impl HttpClient for Http {
    fn send_bytes<'life, 'call>(
        &'life self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'call>>
    where
        'life: 'call,
        Self: 'call,
    {
        let client = self.client.clone();
        let call = async move {
            let (parts, body) = client.request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, ANSWER_LIMIT).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(parts, body))
        };
        let limit = self.limit;
        // The timer has to be made within the runtime as well.
        let made = self.runtime.spawn(async move { tokio::time::timeout(limit, call).await });
        Box::pin(async move { made.await?? })
    }
}
