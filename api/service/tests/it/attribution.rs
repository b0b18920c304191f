//! Every change tells who made it, by which verb and in which request, long after the object is gone.

use horchestra_core::doors::Door;
use horchestra_core::kind::Kind;
use horchestra_service::{
    Binding, Body, DeleteOptions, Order, Part, Patch, PatchType, RequestContext, WriteOptions,
};
use horchestra_store::{HistoryOf, Trace};
use serde_json::json;
use uuid::Uuid;

use crate::support::*;

/// The same caller, in a request of which everything is known.
fn traced(context: RequestContext, number: u8) -> RequestContext {
    RequestContext {
        audit_id: Uuid::from_bytes([number; 16]),
        trace: Some(Trace::unrecorded([number; 16])),
        ..context
    }
}

#[tokio::test]
async fn rows_and_tombstones_name_the_request_that_made_them() {
    let world = World::new().await;
    let session = world.node("node-1", "4", "8Gi").await;
    let scheduler = world.lease("scheduler").await;
    let (service, options, key) = (&world.service, WriteOptions::default(), app("web"));
    let person = |number| traced(identity("alice", &["system:masters"]), number);

    let body = Body::Json(application("web").to_string().into());
    let created =
        service.create(&person(1), Kind::Application, "default", body, &options).await.unwrap().entry;
    let binding = Binding {
        key: key.clone(),
        uid: created.uid,
        revision: created.revision,
        node: "node-1".into(),
        node_revision: None,
    };
    service.bind(&traced(scheduler, 2), vec![binding]).await.remove(0).unwrap();
    service.act(&person(3), &key, Door::Freeze, &Order::default(), &options).await.unwrap();
    let document = json!({"metadata": {"labels": {"a": "b"}}}).to_string().into();
    let patch = Patch { kind: PatchType::Merge, document };
    service.patch(&person(4), &key, Part::Main, patch, &options).await.unwrap();
    let status = json!({"metadata": {"name": "web"}, "status": {"phase": "Running"}});
    let body = Body::Json(status.to_string().into());
    service.update_status(&person(5), &key, body, &options).await.unwrap();
    service.delete(&person(6), &key, &DeleteOptions::default()).await.unwrap();
    let released = service.release_teardown(&traced(session, 7), &key, created.uid).await.unwrap();
    assert!(released.erased);

    let expected = [
        ("alice", "create", 1),
        ("system:loop:scheduler", "bind", 2),
        ("alice", "freeze", 3),
        ("alice", "patch", 4),
        ("alice", "status", 5),
        ("alice", "delete", 6),
        ("system:node:node-1", "release", 7),
    ];
    let changes = service.store().backend().changes(created.revision - 1, 100).await.unwrap();
    let logged: Vec<_> = changes.rows.iter().map(|row| row.who.clone()).collect();
    assert_eq!(logged.len(), expected.len());
    for (who, (user, verb, number)) in logged.iter().zip(expected) {
        assert_eq!((who.user.as_str(), who.verb.as_str()), (user, verb));
        assert_eq!(
            (who.audit_id, who.trace),
            (Uuid::from_bytes([number; 16]), Some(Trace::unrecorded([number; 16]))),
            "{verb}"
        );
    }
    // What is left of the object: that it was, and who let it go.
    let left = service.store().history(HistoryOf::Uid(created.uid)).await.unwrap();
    let tombstone = left.iter().find(|row| row.deleted).expect("a tombstone");
    assert_eq!((&tombstone.who, tombstone.revision), (&logged[6], released.entry.revision));
}
