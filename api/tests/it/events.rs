//! Events over HTTP: one stored object in two groups.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::client::Protocol;
use crate::stack::{Stack, Who};

const CORE: &str = "/api/v1/namespaces/default/events";
const NEWER: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

fn event(name: &str, about: &str, kind: &str) -> Value {
    json!({
        "metadata": {"name": name}, "reason": "Odd", "message": "something", "type": kind, "count": 2,
        "involvedObject": {"kind": "Application", "namespace": "default", "name": about, "uid": format!("u-{about}")},
        "source": {"component": "tester"}, "lastTimestamp": "2026-01-01T00:00:00Z",
    })
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn one_event_is_served_in_both_groups() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let created = client.post(CORE, &event("e", "web", "Warning")).await;
    assert_eq!(created.status, 201, "{created:?}");
    let core = client.get(&format!("{CORE}/e")).await.json();
    assert_eq!((&core["apiVersion"], &core["kind"]), (&json!("v1"), &json!("Event")));
    let newer = client.get(&format!("{NEWER}/e")).await.json();
    assert_eq!((&newer["apiVersion"], &newer["kind"]), (&json!("events.k8s.io/v1"), &json!("Event")));
    // The paths that managers own are those of the stored shape, so only that one shows them.
    let mut metadata = core["metadata"].clone();
    assert!(metadata.as_object_mut().unwrap().remove("managedFields").is_some(), "{core}");
    assert_eq!(newer["metadata"], metadata);
    for (member, other) in [
        ("involvedObject", "regarding"),
        ("message", "note"),
        ("count", "deprecatedCount"),
        ("source", "deprecatedSource"),
        ("lastTimestamp", "deprecatedLastTimestamp"),
    ] {
        assert_eq!(newer[other], core[member], "{other}");
        assert!(newer.get(member).is_none() && core.get(other).is_none(), "{member}");
    }

    let document = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "n"}, "note": "seen",
        "regarding": {"kind": "Application", "namespace": "default", "name": "web"}, "reason": "Odd",
        "eventTime": "2026-01-01T00:00:00Z", "action": "Look", "reportingController": "tester",
        "reportingInstance": "t-1", "type": "Normal",
    });
    assert_eq!(client.post(NEWER, &document).await.status, 201);
    assert_eq!(client.post(CORE, &document).await.status, 400, "the body is of the other group");
    let patched = client.merge(&format!("{NEWER}/n"), &json!({"note": "seen again"})).await;
    assert_eq!((patched.status, &patched.json()["note"]), (200, &json!("seen again")));
    assert_eq!(client.get(&format!("{CORE}/n")).await.json()["message"], "seen again");
    let applied = [("content-type", "application/apply-patch+yaml")];
    let query = "?fieldManager=m&force=true";
    let whole =
        client.send(Method::PATCH, &format!("{NEWER}/n{query}"), &applied, document.to_string()).await;
    assert_eq!(
        (whole.status, whole.reason().as_str()),
        (415, "UnsupportedMediaType"),
        "managers speak of the other shape"
    );
    let operations = json!([{"op": "replace", "path": "/note", "value": "and again"}]);
    assert_eq!(client.json_patch(&format!("{NEWER}/n"), &operations).await.json()["note"], "and again");
    let mut whole = client.get(&format!("{NEWER}/n")).await.json();
    whole["series"] = json!({"count": 2, "lastObservedTime": "2026-01-01T00:00:01.25Z"});
    let replaced = client.put(&format!("{NEWER}/n"), &whole).await.json();
    assert_eq!(replaced["series"]["lastObservedTime"], "2026-01-01T00:00:01.250000Z");
    let bad = client.merge(&format!("{NEWER}/n"), &json!({"reportingController": "no good"})).await;
    assert_eq!((bad.status, bad.reason().as_str()), (422, "Invalid"));
    assert_eq!(bad.json()["details"]["causes"][0]["field"], "reportingController");

    let list = client.get("/apis/events.k8s.io/v1/events").await.json();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("events.k8s.io/v1")));
    assert_eq!(names(&list), ["e", "n"]);
    let deleted = client.delete(&format!("{NEWER}/n")).await;
    assert_eq!((deleted.status, &deleted.json()["details"]["group"]), (200, &json!("events.k8s.io")));
    let warnings = format!("{NEWER}?fieldSelector=type%3DWarning");
    assert_eq!(client.send(Method::DELETE, &warnings, &[], Bytes::new()).await.status, 200);
    assert_eq!(names(&client.get("/api/v1/events").await.json()), [""; 0]);
}

#[tokio::test]
async fn events_are_selected_by_what_they_are_about() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    for (name, about, kind) in [("a", "web", "Normal"), ("b", "web", "Warning"), ("c", "db", "Warning")] {
        assert_eq!(client.post(CORE, &event(name, about, kind)).await.status, 201);
    }
    for (selector, expected) in [
        ("involvedObject.name=web", vec!["a", "b"]),
        ("involvedObject.name=web,type=Warning", vec!["b"]),
        (
            "involvedObject.uid=u-db,involvedObject.namespace=default,involvedObject.kind=Application",
            vec!["c"],
        ),
        ("involvedObject.kind=Node", vec![]),
        ("involvedObject.apiVersion=,involvedObject.fieldPath=", vec!["a", "b", "c"]),
        ("type!=Normal,reason=Odd,source=tester", vec!["b", "c"]),
    ] {
        let core = client.get(&format!("{CORE}?fieldSelector={}", selector.replace('=', "%3D"))).await;
        assert_eq!(names(&core.json()), expected, "{selector}");
        let other = selector.replace("involvedObject", "regarding").replace(",source=tester", "");
        let newer = client.get(&format!("{NEWER}?fieldSelector={}", other.replace('=', "%3D"))).await;
        assert_eq!(names(&newer.json()), expected, "{other}");
    }
    for (path, selector) in
        [(CORE, "regarding.name%3Dx"), (NEWER, "involvedObject.name%3Dx"), (CORE, "note%3Dx")]
    {
        let refused = client.get(&format!("{path}?fieldSelector={selector}")).await;
        assert_eq!(refused.status, 400, "{path} {selector}");
    }
}

#[tokio::test]
async fn tables_and_watches_are_the_same_in_both_groups() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let mut core = client.lines(&format!("{CORE}?watch=1&fieldSelector=type%3DWarning"), &[]).await;
    let mut newer = client.lines(&format!("{NEWER}?watch=1"), &[("accept", TABLE)]).await;
    client.post(CORE, &event("quiet", "web", "Normal")).await;
    client.post(CORE, &event("loud", "web", "Warning")).await;
    let frame = core.frame().await;
    assert_eq!((&frame["type"], &frame["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("loud")));
    assert_eq!(frame["object"]["apiVersion"], "v1");
    let frame = newer.frame().await;
    assert_eq!(frame["object"]["kind"], "Table");
    assert_eq!(frame["object"]["rows"][0]["cells"][9], "quiet");

    for path in [CORE, NEWER] {
        let table = client.get_as(&format!("{path}?includeObject=Object"), TABLE).await.json();
        let columns: Vec<&str> = table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["name"].as_str().unwrap())
            .collect();
        assert_eq!(columns[..4], ["Last Seen", "Type", "Reason", "Object"]);
        let row = &table["rows"][0];
        assert_eq!(
            (&row["cells"][3], &row["cells"][6], &row["cells"][8]),
            (&json!("application/web"), &json!("something"), &json!(2))
        );
        let member = if path == CORE { "message" } else { "note" };
        assert_eq!(row["object"][member], "something");
    }
}

#[tokio::test]
async fn both_groups_are_discovered_and_permissions_are_asked_for_each() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    for (path, group) in [("/api/v1", "v1"), ("/apis/events.k8s.io/v1", "events.k8s.io/v1")] {
        let document = client.get(path).await.json();
        assert_eq!(document["groupVersion"], group);
        let events =
            document["resources"].as_array().unwrap().iter().find(|it| it["name"] == "events").unwrap();
        assert_eq!((&events["namespaced"], &events["shortNames"]), (&json!(true), &json!(["ev"])));
        assert_eq!(events["verbs"].as_array().unwrap().len(), 8);
        let openapi = client.get(&format!("/openapi/v3{path}")).await;
        assert_eq!(openapi.status, 200, "{path}");
    }
    let groups = client.get("/apis").await.json();
    assert!(groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == "events.k8s.io"));

    for who in [Who::Nobody, Who::Node("n1")] {
        let stranger = stack.client(who, Protocol::Http2);
        for path in [CORE, NEWER, "/api/v1/events", "/apis/events.k8s.io/v1/events"] {
            let refused = stranger.get(path).await;
            assert_eq!(refused.status, 403, "{who:?} {path}");
        }
        assert_eq!(stranger.post(NEWER, &json!({})).await.status, 403);
    }
    let methods = client.post("/apis/events.k8s.io/v1/events", &json!({})).await;
    assert_eq!(methods.status, 405);
}

#[tokio::test]
async fn events_do_not_hold_a_namespace_and_go_with_it() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let path = "/api/v1/namespaces/team-a/events";
    let mut about = event("e", "web", "Normal");
    about["involvedObject"]["namespace"] = json!("team-a");
    assert_eq!(client.post(path, &about).await.status, 201);
    let mut nowhere = about.clone();
    nowhere["involvedObject"]["namespace"] = json!("ghost");
    assert_eq!(client.post("/api/v1/namespaces/ghost/events", &nowhere).await.status, 404);
    assert_eq!(client.delete("/apis/horchestra.io/v1/namespaces/team-a").await.status, 200);
    let again = json!({"metadata": {"name": "team-a"}});
    assert_eq!(client.post("/apis/horchestra.io/v1/namespaces", &again).await.status, 201);
    assert_eq!(names(&client.get(path).await.json()), [""; 0]);
}
