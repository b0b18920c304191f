use bytes::Bytes;
use horchestra_proto::netd::v1::{Backend, Route, ServiceRule};
use horchestra_proto::node::v1::{
    AppMetrics, AppStatus, ControllerMessage, DesiredState, LogCancel, LogChunk, LogRequest, NodeMessage,
    NodeStatus, NodeUsage, WorkloadNetwork, WorkloadToken, controller_message, node_message,
};
use horchestra_proto::relay::v1 as relay;
use prost::Message;

/// A length-delimited field.
fn len(field: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    assert!(field < 16 && content.len() < 16384, "one-byte tag, two-byte length at most");
    let mut out = vec![field << 3 | 2];
    if content.len() < 128 {
        out.push(content.len() as u8);
    } else {
        out.extend([content.len() as u8 | 0x80, (content.len() >> 7) as u8]);
    }
    out.extend(content);
    out
}

/// A varint field.
fn int(field: u8, value: i64) -> Vec<u8> {
    assert!(field < 16, "one-byte tag");
    let mut out = vec![field << 3];
    let mut rest = value as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
    out
}

fn up(body: node_message::Body) -> NodeMessage {
    NodeMessage { body: Some(body) }
}

fn down(body: controller_message::Body) -> ControllerMessage {
    ControllerMessage { body: Some(body) }
}

/// Decodes to the message, and the message encodes to the same bytes.
#[track_caller]
fn same<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: Vec<u8>, message: M) {
    assert!(M::decode(bytes.as_slice()).expect("decodes") == message, "{message:?} from {bytes:02x?}");
    assert_eq!(message.encode_to_vec(), bytes, "{message:?}");
}

#[test]
fn upstream_messages() {
    same(
        len(1, len(1, br#"{"kind":"Node"}"#)),
        up(node_message::Body::Status(NodeStatus { node: Bytes::from_static(br#"{"kind":"Node"}"#) })),
    );
    same(
        len(2, [len(1, "7"), len(2, "line\n"), int(3, 1), len(4, "gone")].concat()),
        up(node_message::Body::LogChunk(LogChunk {
            id: "7".into(),
            data: Bytes::from_static(b"line\n"),
            eof: true,
            error: "gone".into(),
        })),
    );
    same(
        len(
            3,
            [
                len(1, "shop"),
                len(2, "web"),
                len(3, "Running"),
                len(4, "note"),
                int(6, 12),
                int(7, -1),
                int(8, 1_700_000_000_123_456_000),
                int(9, 3),
                len(10, "10.244.3.9/32"),
            ]
            .concat(),
        ),
        up(node_message::Body::AppStatus(AppStatus {
            namespace: "shop".into(),
            name: "web".into(),
            phase: "Running".into(),
            message: "note".into(),
            observed_generation: 12,
            exit_code: -1,
            finished_at_unix_nano: 1_700_000_000_123_456_000,
            attempts: 3,
            address: "10.244.3.9/32".into(),
        })),
    );
    same(
        len(
            4,
            [
                len(1, "shop"),
                len(2, "web"),
                int(3, 30),
                int(4, 40),
                int(5, 50),
                int(6, 60),
                int(7, 70),
                int(8, 80),
                int(9, 90),
            ]
            .concat(),
        ),
        up(node_message::Body::AppMetrics(AppMetrics {
            namespace: "shop".into(),
            name: "web".into(),
            cpu_usec: 30,
            cpu_throttled_usec: 40,
            memory_bytes: 50,
            memory_peak_bytes: 60,
            pids: 70,
            oom_kills: 80,
            timestamp_unix_nano: 90,
        })),
    );
    same(
        len(5, [int(1, 10_000), int(2, 2 << 30), int(3, 8 << 30), int(4, 5)].concat()),
        up(node_message::Body::NodeUsage(NodeUsage {
            cpu_usec: 10_000,
            memory_used_bytes: 2 << 30,
            memory_total_bytes: 8 << 30,
            timestamp_unix_nano: 5,
        })),
    );
}

#[test]
fn downstream_messages() {
    let state = [
        len(1, "app1"),
        len(1, "app2"),
        len(2, "pv"),
        len(3, "secret"),
        len(4, "store"),
        len(5, [len(1, "uid"), len(2, "a.b.c"), len(3, "vault")].concat()),
        len(6, [len(1, "uid"), len(2, "10.244.0.1/32"), len(3, "169.254.1.1"), int(4, 1400)].concat()),
        len(7, [len(1, "10.244.0.7/32"), len(2, "10.0.0.2")].concat()),
        len(
            8,
            [
                len(1, "10.96.0.10"),
                int(2, 80),
                len(3, "TCP"),
                len(4, [len(1, "10.244.0.3"), int(2, 8080)].concat()),
                len(4, [len(1, "10.0.0.2"), int(2, 9000)].concat()),
            ]
            .concat(),
        ),
    ]
    .concat();
    same(
        len(1, state),
        down(controller_message::Body::Desired(DesiredState {
            applications: vec![Bytes::from_static(b"app1"), Bytes::from_static(b"app2")],
            persistent_volumes: vec![Bytes::from_static(b"pv")],
            secrets: vec![Bytes::from_static(b"secret")],
            secret_stores: vec![Bytes::from_static(b"store")],
            workload_tokens: vec![WorkloadToken {
                workload: "uid".into(),
                token: "a.b.c".into(),
                audience: "vault".into(),
            }],
            workload_networks: vec![WorkloadNetwork {
                workload: "uid".into(),
                address: "10.244.0.1/32".into(),
                gateway: "169.254.1.1".into(),
                mtu: 1400,
            }],
            routes: vec![Route { cidr: "10.244.0.7/32".into(), node_ip: "10.0.0.2".into() }],
            services: vec![ServiceRule {
                cluster_ip: "10.96.0.10".into(),
                port: 80,
                protocol: "TCP".into(),
                backends: vec![
                    Backend { address: "10.244.0.3".into(), port: 8080 },
                    Backend { address: "10.0.0.2".into(), port: 9000 },
                ],
            }],
        })),
    );
    same(
        len(2, [len(1, "9"), len(2, "uid"), int(3, 1), int(4, 100), int(5, 1)].concat()),
        down(controller_message::Body::LogRequest(LogRequest {
            id: "9".into(),
            app: "uid".into(),
            follow: true,
            tail_lines: 100,
            node_unit: true,
        })),
    );
    same(len(3, len(1, "9")), down(controller_message::Body::LogCancel(LogCancel { id: "9".into() })));
}

#[test]
fn relay_messages() {
    let request = |source| relay::LogRequest {
        node: "n1".into(),
        session_epoch: 4,
        session_id: "s".into(),
        source: Some(source),
        follow: true,
        tail_lines: -1,
        caller: "ann".into(),
        audit_id: "a".into(),
    };
    let common = [len(1, "n1"), int(2, 4), len(3, "s")].concat();
    let rest = [int(6, 1), int(7, -1), len(8, "ann"), len(9, "a")].concat();
    same(
        [common.clone(), len(4, "uid"), rest.clone()].concat(),
        request(relay::log_request::Source::AppUid("uid".into())),
    );
    same([common, int(5, 1), rest].concat(), request(relay::log_request::Source::NodeUnit(true)));
    same(
        [len(1, "x"), len(2, "gone"), int(3, 2)].concat(),
        relay::LogResponse { data: Bytes::from_static(b"x"), error: "gone".into(), dropped_chunks: 2 },
    );
}

#[test]
fn an_unknown_body_and_unknown_fields_are_no_error() {
    let later = NodeMessage::decode(len(15, "something new").as_slice()).expect("decodes");
    assert!(later.body.is_none());

    // Number 5 of an AppStatus has no meaning; peers must not trip over it.
    let status = AppStatus::decode([len(1, "shop"), int(5, 9), len(2, "web")].concat().as_slice());
    let status = status.expect("decodes");
    assert_eq!((status.namespace.as_str(), status.name.as_str()), ("shop", "web"));
    assert_eq!(status.encode_to_vec(), [len(1, "shop"), len(2, "web")].concat());
}

#[test]
fn debug_shows_no_payload() {
    let state = DesiredState {
        applications: vec![Bytes::from_static(b"app-body")],
        secrets: vec![Bytes::from_static(b"s3cret")],
        workload_tokens: vec![WorkloadToken {
            workload: "u".into(),
            token: "t0ken".into(),
            audience: "v".into(),
        }],
        ..DesiredState::default()
    };
    let shown =
        format!("{:?} {:?}", down(controller_message::Body::Desired(state.clone())), state.workload_tokens);
    assert!(shown.contains("secrets: 1") && shown.contains("audience: \"v\""), "{shown}");
    for payload in ["s3cret", "t0ken", "app-body"] {
        assert!(!shown.contains(payload), "{shown}");
    }
}
