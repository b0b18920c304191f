//! `metadata.managedFields` on writes that are no apply.

use horchestra_core::kind::Kind;
use horchestra_service::{Body, Part, Patch, PatchType, RequestContext, WriteOptions};
use serde_json::{Value, json};

use crate::support::*;

fn by(program: &str) -> RequestContext {
    RequestContext { program: program.to_owned(), ..admin() }
}

#[tokio::test]
async fn the_writer_of_a_new_object_owns_it_and_the_server_what_it_adds() {
    let world = World::new().await;
    let mut body = application("web");
    body["metadata"]["managedFields"] =
        json!([{"manager": "x", "operation": "Update", "fieldsV1": {"f:spec": {}}}]);
    body["metadata"]["labels"] = json!({"a": "b"});
    let stored = tree(&world.create_as(&by("curl"), body).await.unwrap().entry);
    let mut names = managers(&stored);
    names.sort();
    assert_eq!(names, ["Update curl", "Update horchestra-api"]);
    let entry = &stored["metadata"]["managedFields"][0];
    assert_eq!(entry["apiVersion"], "horchestra.io/v1");
    assert_eq!(entry["fieldsType"], "FieldsV1");
    assert!(entry["time"].as_str().unwrap().ends_with('Z'));
    let curl = fields_of(&stored, "Update curl");
    assert_eq!(curl["f:metadata"], json!({"f:labels": {".": {}, "f:a": {}}}));
    assert!(curl["f:spec"].get("f:image").is_some());
    assert_eq!(curl["f:spec"].get("f:securityContext"), None);
    assert!(
        fields_of(&stored, "Update horchestra-api")["f:spec"]["f:securityContext"]
            .get("f:runAsUser")
            .is_some()
    );
}

#[tokio::test]
async fn the_manager_is_the_one_named_or_the_program() {
    let world = World::new().await;
    world.create_as(&by("one"), application("web")).await.unwrap();
    let patch = |context: RequestContext, manager: Option<&str>, value: &str| {
        let options = WriteOptions { field_manager: manager.map(str::to_owned), ..WriteOptions::default() };
        let patch = Patch {
            kind: PatchType::Merge,
            document: json!({"metadata": {"labels": {"a": value}}}).to_string().into(),
        };
        let service = world.service.clone();
        async move {
            let written = service.patch(&context, &app("web"), Part::Main, patch, &options).await.unwrap();
            let object = tree(&written.entry);
            let entries = object["metadata"]["managedFields"].as_array().unwrap().clone();
            entries
                .iter()
                .find(|entry| entry["fieldsV1"]["f:metadata"]["f:labels"].get("f:a").is_some())
                .map(|entry| entry["manager"].as_str().unwrap().to_owned())
                .unwrap()
        }
    };
    assert_eq!(patch(by("two"), None, "1").await, "two");
    assert_eq!(patch(by("two"), Some("three"), "2").await, "three");
    assert_eq!(patch(by(""), None, "3").await, "unknown");
}

#[tokio::test]
async fn updates_move_fields_and_leave_out_nobody_who_is_not_named() {
    let world = World::new().await;
    world
        .apply(
            &app("web"),
            "m",
            json!({"spec": {"image": "a", "args": ["x"], "env": [{"name": "A", "value": "1"}]}}),
        )
        .await
        .unwrap();
    let mut read = world.get(&app("web")).await.unwrap();
    // Most clients do not know managers and do not send them back.
    read["metadata"].as_object_mut().unwrap().remove("managedFields");
    read["spec"]["image"] = json!("b");
    let stored = tree(&world.put(&app("web"), &read).await.unwrap().entry);
    assert_eq!(
        fields_of(&stored, "Apply m"),
        json!({"f:spec": {"f:args": {}, "f:env": {"k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:value": {}}}}})
    );
    assert_eq!(fields_of(&stored, "Update unknown"), json!({"f:spec": {"f:image": {}}}));
    read["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    read["spec"].as_object_mut().unwrap().remove("args");
    read["spec"]["env"] = json!([]);
    let stored = tree(&world.put(&app("web"), &read).await.unwrap().entry);
    assert_eq!(fields_of(&stored, "Apply m"), Value::Null, "what is gone has no owner");
}

#[tokio::test]
async fn who_reported_since_a_client_has_read_stays_a_manager() {
    let world = World::new().await;
    world.create_as(&by("one"), application("web")).await.unwrap();
    let read = world.get(&app("web")).await.unwrap();
    let mut reported = read.clone();
    reported["status"]["message"] = json!("on its way");
    let body = Body::Json(reported.to_string().into());
    world.service.update_status(&by("reporter"), &app("web"), body, &WriteOptions::default()).await.unwrap();
    let reported = world.get(&app("web")).await.unwrap();
    assert_ne!(reported["metadata"]["resourceVersion"], read["metadata"]["resourceVersion"]);
    let owned = fields_of(&reported, "Update reporter (status)");
    assert_eq!(owned["f:status"]["f:message"], json!({}), "{owned}");

    // Statuses are not what an edit collides with.
    let written = world.put(&app("web"), &read).await.unwrap();
    assert_eq!(tree(&written.entry), reported, "nothing was edited");
    let mut edited = read.clone();
    edited["metadata"]["labels"] = json!({"a": "b"});
    let edited = tree(&world.put(&app("web"), &edited).await.unwrap().entry);
    assert_eq!(fields_of(&edited, "Update reporter (status)"), owned);
    // Who has read it all may take it away.
    let mut gone = edited.clone();
    let managers = gone["metadata"]["managedFields"].as_array_mut().unwrap();
    managers.retain(|entry| entry["manager"] != "reporter");
    let gone = tree(&world.put(&app("web"), &gone).await.unwrap().entry);
    assert_eq!(fields_of(&gone, "Update reporter (status)"), Value::Null);
}

#[tokio::test]
async fn a_write_that_changes_nothing_leaves_times_and_revision() {
    let world = World::new().await;
    world.create_as(&by("one"), application("web")).await.unwrap();
    let before = world.get(&app("web")).await.unwrap();
    let body = Body::Json(application("web").to_string().into());
    let written =
        world.service.update(&by("two"), &app("web"), body, &WriteOptions::default()).await.unwrap();
    assert_eq!(tree(&written.entry), before);
    let written = world.put(&app("web"), &before).await.unwrap();
    assert_eq!(tree(&written.entry), before, "managers that are sent back are the same managers");
    let written = world.merge(&app("web"), json!({"spec": {"image": "nginx"}})).await.unwrap();
    assert_eq!(tree(&written.entry), before);
    assert_eq!(world.get(&app("web")).await.unwrap(), before);
}

#[tokio::test]
async fn status_has_managers_of_its_own() {
    let world = World::new().await;
    world.create_as(&by("one"), application("web")).await.unwrap();
    let status = json!({"metadata": {"name": "web", "labels": {"no": "no"}}, "status": {"phase": "Running"}});
    let stored = tree(&world.put_status(&app("web"), &status).await.unwrap().entry);
    assert_eq!(fields_of(&stored, "Update unknown (status)"), json!({"f:status": {".": {}, "f:phase": {}}}));
    assert_eq!(fields_of(&stored, "Update unknown"), Value::Null);
}

#[tokio::test]
async fn an_empty_list_takes_managers_away_and_an_apply_begins_anew() {
    let world = World::new().await;
    let made = json!({"spec": {"image": "a"}, "metadata": {"name": "web"}});
    for (reset, way) in
        [(json!([]), "PUT"), (json!([{}]), "PUT"), (json!([]), "PATCH"), (json!([{}]), "PATCH")]
    {
        world.force(&app("web"), "m", made.clone()).await.unwrap();
        let before = world.get(&app("web")).await.unwrap();
        assert!(!managers(&before).is_empty());
        let written = if way == "PUT" {
            let mut read = before.clone();
            read["metadata"]["managedFields"] = reset;
            world.put(&app("web"), &read).await.unwrap()
        } else {
            world.merge(&app("web"), json!({"metadata": {"managedFields": reset}})).await.unwrap()
        };
        let stored = tree(&written.entry);
        assert_eq!(stored["metadata"].get("managedFields"), None, "{way}");
        assert_eq!(stored["spec"], before["spec"]);
        assert_eq!(stored["metadata"]["generation"], before["metadata"]["generation"]);
        assert_ne!(stored["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    }
    let edited = world.merge(&app("web"), json!({"metadata": {"labels": {"x": "y"}}})).await.unwrap();
    assert_eq!(tree(&edited.entry)["metadata"].get("managedFields"), None, "updates do not begin");
    let status = world.apply(&app("web"), "m", json!({"spec": {"image": "b"}})).await.unwrap_err();
    assert!(status.message.contains("before-first-apply"), "{status}");
    let stored = tree(&world.apply(&app("web"), "m", json!({"spec": {"image": "a"}})).await.unwrap().entry);
    assert_eq!(managers(&stored), ["Apply m", "Update before-first-apply"]);
}

#[tokio::test]
async fn managers_can_be_rewritten_as_kubectl_does_it() {
    let world = World::new().await;
    world.create_as(&by("kubectl-client-side-apply"), application("web")).await.unwrap();
    let before = world.get(&app("web")).await.unwrap();
    let mut entries = before["metadata"]["managedFields"].as_array().unwrap().clone();
    let own = entries.iter_mut().find(|entry| entry["manager"] == "kubectl-client-side-apply").unwrap();
    own["manager"] = json!("kubectl");
    own["operation"] = json!("Apply");
    let patch = json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": before["metadata"]["resourceVersion"]},
    ]);
    let written = world.patch(&app("web"), Part::Main, PatchType::Json, patch).await.unwrap();
    let stored = tree(&written.entry);
    assert_eq!(managers(&stored), ["Apply kubectl", "Update horchestra-api"]);
    let test = json!([{"op": "test", "path": "/metadata/managedFields/0/manager", "value": "kubectl"}]);
    world.patch(&app("web"), Part::Main, PatchType::Json, test).await.unwrap();
    for odd in [json!([{"manager": 1}]), json!("x"), json!([{"operation": "Odd"}])] {
        let patch = json!({"metadata": {"managedFields": odd}});
        let written = world.merge(&app("web"), patch).await.unwrap();
        assert_eq!(tree(&written.entry), stored, "what cannot be read says nothing");
    }
}

#[tokio::test]
async fn many_updaters_become_few() {
    let world = World::new().await;
    world.create_as(&by("maker"), application("web")).await.unwrap();
    for n in 0..20 {
        let patch = Patch {
            kind: PatchType::Merge,
            document: json!({"metadata": {"labels": {format!("l{n}"): "x"}}}).to_string().into(),
        };
        let options = managed_by(&format!("m{n}"));
        world.service.patch(&admin(), &app("web"), Part::Main, patch, &options).await.unwrap();
    }
    let stored = world.get(&app("web")).await.unwrap();
    assert_eq!(managers(&stored).len(), 10, "{:?}", managers(&stored));
    assert!(managers(&stored).contains(&"Update ancient-changes".to_owned()));
}

#[tokio::test]
async fn a_label_on_an_object_that_nobody_owned_anything_of_is_owned() {
    let world = World::new().await;
    let key = namespace("other");
    let stored = tree(&world.merge(&key, json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap().entry);
    assert_eq!(fields_of(&stored, "Update unknown")["f:metadata"]["f:labels"], json!({".": {}, "f:a": {}}));
    assert_eq!(kind_of(&stored), Kind::Namespace);
}

#[tokio::test]
async fn nodes_belong_to_their_gateway_and_to_who_cordons_them() {
    let world = World::new().await;
    world.node("n1", "4", "8Gi").await;
    let stored = world.get(&node("n1")).await.unwrap();
    assert!(
        fields_of(&stored, "Update horchestra-nodegate (status)")["f:status"].get("f:capacity").is_some()
    );
    let cordoned = world.service.cordon(&by("kubectl"), "n1", true).await.unwrap();
    let stored = tree(&cordoned.entry);
    assert!(fields_of(&stored, "Update kubectl")["f:spec"].get("f:unschedulable").is_some());
    let listed = world.list(horchestra_service::ListRequest::of(Kind::Node)).await.unwrap();
    assert!(!managers(&tree(&listed.entries[0])).is_empty(), "heartbeats do not hide managers");
}
