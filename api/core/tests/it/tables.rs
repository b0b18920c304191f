use horchestra_core::kind::Kind;
use horchestra_core::registry;
use horchestra_core::table::{self, Include, MetaVersion};
use serde_json::{Value, json};

use crate::{now, object, pretty};

fn cells(kind: Kind, value: Value) -> Vec<Value> {
    table::cells(registry::spec(kind).unwrap().columns, &object(value), now())
}

/// The cell of one column.
fn cell(kind: Kind, column: &str, value: Value) -> Value {
    let columns = registry::spec(kind).unwrap().columns;
    let at = columns.iter().position(|c| c.name == column).unwrap();
    cells(kind, value)[at].clone()
}

fn headings(kind: Kind) -> Vec<(&'static str, u8)> {
    registry::spec(kind).unwrap().columns.iter().map(|column| (column.name, column.priority)).collect()
}

#[test]
fn columns_of_every_kind() {
    assert_eq!(
        headings(Kind::Application),
        [("Name", 0), ("IMAGE", 0), ("Status", 0), ("NODE", 1), ("IP", 1), ("Age", 0)]
    );
    assert_eq!(
        headings(Kind::Node),
        [("Name", 0), ("Status", 0), ("CPU", 0), ("MEM", 0), ("IP", 1), ("OS", 1), ("Age", 0)]
    );
    assert_eq!(
        headings(Kind::ApplicationSet),
        [("Name", 0), ("DESIRED", 0), ("CURRENT", 0), ("RUNNING", 0), ("Status", 0), ("Age", 0)]
    );
    assert_eq!(
        headings(Kind::Service),
        [("Name", 0), ("Cluster-IP", 0), ("Ports", 0), ("Targets", 1), ("Catalog", 1), ("Age", 0)]
    );
    assert_eq!(headings(Kind::PersistentVolume), [("Name", 0), ("SIZE", 0), ("NODE", 0), ("Age", 0)]);
    assert_eq!(headings(Kind::RoleBinding), [("Name", 0), ("Role", 0), ("Age", 0)]);
    assert_eq!(
        headings(Kind::CertificateSigningRequest),
        [("Name", 0), ("Requestor", 0), ("Condition", 0), ("Node", 1), ("Reason", 1), ("Age", 0)]
    );
    for plain in [
        Kind::Namespace,
        Kind::Secret,
        Kind::SecretStore,
        Kind::Role,
        Kind::ClusterRole,
        Kind::ClusterRoleBinding,
    ] {
        assert_eq!(headings(plain), [("Name", 0), ("Age", 0)], "{plain}");
    }
    // Events have the columns that kubectl knows of them, and no age.
    for spec in registry::served().iter().filter(|spec| spec.kind != Kind::Event) {
        assert_eq!(spec.columns[0].format, "name", "{}", spec.kind);
        assert_eq!(spec.columns.iter().filter(|column| column.name == "Age").count(), 1);
    }
}

#[test]
fn cells_of_volumes_services_sets_and_bindings() {
    let unknown = "<unknown>";
    let cases = [
        (
            Kind::PersistentVolume,
            json!({"metadata": {"name": "data"}, "spec": {"size": "10Gi", "node": "sav-01"}}),
            &["data", "10Gi", "sav-01", unknown][..],
        ),
        (
            Kind::Service,
            json!({"metadata": {"name": "db"}, "spec": {"clusterIP": "10.96.0.7", "ports": [
                {"name": "pg", "port": 5432, "targetName": "postgres", "protocol": "TCP"},
                {"name": "metrics", "port": 9187, "targetPort": 9100, "protocol": "TCP"}]}}),
            &["db", "10.96.0.7", "5432/TCP,9187/TCP", "postgres,9100", "db-pg,db-metrics", unknown],
        ),
        (
            Kind::Service,
            json!({"metadata": {"name": "cache"}, "spec": {"ports": [{"port": 6379, "protocol": "TCP"}]}}),
            &["cache", "<none>", "6379/TCP", "6379", "cache", unknown],
        ),
        (
            Kind::Service,
            json!({"metadata": {"name": "odd"}, "spec": {"ports": 3}}),
            &["odd", "<none>", "", "", "", unknown],
        ),
        (
            Kind::ApplicationSet,
            json!({"metadata": {"name": "api"}, "status": {"phase": "RolloutHeld", "desired": 3, "current": 3, "running": 2}}),
            &["api", "3", "3", "2", "RolloutHeld", unknown],
        ),
        (
            Kind::ApplicationSet,
            json!({"metadata": {"name": "api"}}),
            &["api", "0", "0", "0", "Progressing", unknown],
        ),
        (
            Kind::RoleBinding,
            json!({"metadata": {"name": "b"}, "spec": {"subjects": [], "roleRef": {"kind": "Role", "name": "deployer"}}}),
            &["b", "deployer", unknown],
        ),
    ];
    for (kind, value, expected) in cases {
        assert_eq!(
            cells(kind, value.clone()),
            expected.iter().map(|it| Value::from(*it)).collect::<Vec<_>>(),
            "{value}"
        );
    }
}

#[test]
fn a_fresh_application() {
    let fresh = json!({"metadata": {"name": "web"}, "spec": {"image": "reg/web:v1"}});
    assert_eq!(
        cells(Kind::Application, fresh),
        ["web", "reg/web:v1", "Pending", "-", "", "<unknown>"].map(Value::from)
    );
}

#[test]
fn an_application_is_updating_while_its_node_runs_an_older_generation() {
    let status = |phase: &str, generation: i64, observed: Value| {
        cell(
            Kind::Application,
            "Status",
            json!({"metadata": {"generation": generation}, "status": {"phase": phase, "observedGeneration": observed}}),
        )
    };
    assert_eq!(status("Running", 7, json!(7)), "Running");
    assert_eq!(status("Running", 7, json!(6)), "Updating");
    assert_eq!(status("Running", 7, Value::Null), "Running");
    assert_eq!(status("Failed", 7, json!(6)), "Failed");
    assert_eq!(status("", 1, Value::Null), "Pending");
}

#[test]
fn an_application_that_is_being_deleted_is_terminating_whatever_its_node_says() {
    for phase in ["Running", "Failed", "Succeeded", "Pending", ""] {
        let value = json!({
            "metadata": {"generation": 2, "deletionTimestamp": "2026-03-01T11:59:50Z"},
            "status": {"phase": phase, "observedGeneration": 1},
        });
        assert_eq!(cell(Kind::Application, "Status", value), "Terminating", "{phase}");
    }
}

#[test]
fn a_request_for_a_certificate_shows_who_asks_and_what_was_decided() {
    let request = |status: Value| {
        let shown = cells(
            Kind::CertificateSigningRequest,
            json!({"metadata": {"name": "r", "annotations": {"certificates.horchestra.io/requester": "node-1"}},
                "spec": {"request": "", "nodeName": "node-1"}, "status": status}),
        );
        shown.iter().map(|cell| cell.as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    let holds = |types: &[&str]| -> Value {
        types.iter().map(|type_| json!({"type": type_, "status": "True"})).collect()
    };
    assert_eq!(
        request(json!({"phase": "Pending", "reason": "for people"})),
        "r node-1 Pending node-1 for people <unknown>"
    );
    for (status, expected) in [
        (Value::Null, "Pending"),
        (json!({"conditions": holds(&["Approved", "Issued"]), "certificate": "QQ=="}), "Approved,Issued"),
        (json!({"conditions": holds(&["Approved"])}), "Approved"),
        (json!({"conditions": holds(&["Denied"])}), "Denied"),
        (json!({"conditions": [{"type": "Approved", "status": "False"}]}), "Pending"),
        (json!({"conditions": "odd"}), "Pending"),
    ] {
        assert_eq!(request(status.clone()).split(' ').nth(2), Some(expected), "{status}");
    }
    let nobody = cells(Kind::CertificateSigningRequest, json!({"metadata": {"name": "r"}}));
    assert_eq!(nobody[1], "<none>");
}

#[test]
fn an_address_is_shown_without_its_prefix_length() {
    let ip = |address: Value| cell(Kind::Application, "IP", json!({"status": {"address": address}}));
    assert_eq!(ip(json!("10.244.0.2/32")), "10.244.0.2");
    assert_eq!(ip(json!("10.244.0.2")), "10.244.0.2");
    assert_eq!(ip(Value::Null), "");
}

fn node(status: Value) -> Value {
    json!({"metadata": {"name": "n", "creationTimestamp": "2026-03-01T11:58:00Z"}, "spec": {}, "status": status})
}

#[test]
fn a_node_in_good_health() {
    let cells = cells(
        Kind::Node,
        node(json!({"ready": true, "heartbeat": "2026-03-01T11:59:50Z", "ip": "10.0.0.7", "os": "Debian",
        "capacity": {"cpu": "8", "memory": "16Gi"}, "allocated": {"cpu": "2", "memory": "8Gi"}})),
    );
    assert_eq!(cells, ["n", "Ready", "2/8", "8/16Gi", "10.0.0.7", "Debian", "2m"].map(Value::from));
}

#[test]
fn memory_is_shown_in_gibibytes() {
    let mem = |capacity: Value, allocated: Value| {
        cell(Kind::Node, "MEM", node(json!({"capacity": capacity, "allocated": allocated})))
    };
    assert_eq!(mem(json!({"memory": "8130904Ki"}), json!({"memory": "512Mi"})), "0.5/7.8Gi");
    assert_eq!(mem(json!({"memory": "8361344Ki"}), json!({})), "0/8.0Gi");
    assert_eq!(mem(json!({}), json!({})), "0/0Gi");
    assert_eq!(mem(json!({"memory": "nonsense"}), json!(3)), "0/0Gi");
    assert_eq!(
        cell(Kind::Node, "CPU", node(json!({"capacity": {"cpu": "4000m"}, "allocated": {"cpu": "0.5"}}))),
        "500m/4"
    );
}

#[test]
fn readiness_is_the_verdict_and_only_without_one_the_report() {
    let status = |status: Value| cell(Kind::Node, "Status", node(status));
    let fresh = "2026-03-01T11:59:30Z";
    let stale = "2026-03-01T11:58:00Z";
    let verdict = |verdict: &str, heartbeat: &str| json!({"ready": true, "heartbeat": heartbeat, "conditions": [{"type": "Ready", "status": verdict}]});
    assert_eq!(status(verdict("True", stale)), "Ready");
    assert_eq!(status(verdict("False", fresh)), "NotReady");
    assert_eq!(status(verdict("Unknown", fresh)), "NotReady");
    assert_eq!(status(json!({"ready": true, "heartbeat": fresh})), "Ready");
    assert_eq!(status(json!({"ready": false, "heartbeat": fresh})), "NotReady");
    assert_eq!(status(json!({"ready": true, "heartbeat": stale})), "NotReady");
    assert_eq!(status(json!({"ready": true})), "NotReady");
    assert_eq!(
        cells(Kind::Node, json!({"metadata": {"name": "n"}})),
        ["n", "NotReady", "0/0", "0/0Gi", "", "", "<unknown>"].map(Value::from)
    );
}

#[test]
fn a_whole_table() {
    let spec = registry::spec(Kind::Application).unwrap();
    let web = object(json!({"apiVersion": "horchestra.io/v1", "kind": "Application",
        "metadata": {"name": "web", "namespace": "d", "labels": {"a": "b"}, "creationTimestamp": "2026-03-01T09:30:00Z"}, "spec": {"image": "x"}}));
    let rows =
        |include| vec![table::row(MetaVersion::V1, include, table::cells(spec.columns, &web, now()), &web)];
    let whole =
        table::table(MetaVersion::V1, json!({"resourceVersion": "7"}), spec.columns, rows(Include::Metadata));
    insta::assert_snapshot!("application_table", pretty(&whole));
    assert_eq!(rows(Include::None)[0]["object"], Value::Null);
    assert_eq!(rows(Include::Object)[0]["object"], web.clone().into_value());
    let empty = table::table(MetaVersion::V1Beta1, json!({}), spec.columns, vec![]);
    assert_eq!(empty["apiVersion"], "meta.k8s.io/v1beta1");
    assert_eq!(empty["rows"], json!([]));
    assert_eq!(empty["columnDefinitions"].as_array().unwrap().len(), 6);
    let list = table::partial_metadata_list(
        MetaVersion::V1,
        json!({"resourceVersion": "7"}),
        vec![table::partial_metadata(MetaVersion::V1, &web)],
    );
    assert_eq!(list["items"][0]["metadata"]["name"], "web");
}
