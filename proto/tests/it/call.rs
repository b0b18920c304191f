use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use horchestra_proto::node::v1::node_service_client::NodeServiceClient;
use horchestra_proto::node::v1::{NodeMessage, node_service_server};
use horchestra_proto::relay::v1::relay_client::RelayClient;
use horchestra_proto::relay::v1::{LogRequest, relay_server};
use http::{HeaderMap, Request, Response};
use tonic::body::Body;
use tower::util::BoxCloneService;

type Seen = Arc<Mutex<Vec<(String, HeaderMap)>>>;

/// A transport that notes what is asked of it and answers with an empty body.
fn noting() -> (BoxCloneService<Request<Body>, Response<Body>, Infallible>, Seen) {
    let seen = Seen::default();
    let note = seen.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        note.lock().expect("not poisoned").push((path, request.headers().clone()));
        async { Ok(Response::new(Body::empty())) }
    });
    (BoxCloneService::new(service), seen)
}

#[tokio::test]
async fn calls_go_to_the_paths_that_peers_know() {
    let (transport, seen) = noting();
    let _ = NodeServiceClient::new(transport.clone()).session(tokio_stream::empty::<NodeMessage>()).await;
    let _ = RelayClient::new(transport).log(LogRequest::default()).await;

    let seen = seen.lock().expect("not poisoned");
    let paths: Vec<&str> = seen.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["/horchestra.node.v1.NodeService/Session", "/horchestra.relay.v1.Relay/Log"]);
    for (path, headers) in seen.iter() {
        assert_eq!(headers["content-type"], "application/grpc", "{path}");
        assert_eq!(headers["te"], "trailers", "{path}");
        assert!(!headers.contains_key("grpc-encoding"), "{path}: nothing is compressed");
        assert!(!headers.contains_key("grpc-timeout"), "{path}: no deadline");
    }
    assert_eq!(node_service_server::SERVICE_NAME, "horchestra.node.v1.NodeService");
    assert_eq!(relay_server::SERVICE_NAME, "horchestra.relay.v1.Relay");
}
