//! Create, read and replace single objects.

use bytes::Bytes;
use futures::StreamExt as _;
use http::Method;
use serde_json::{Value, json};

use super::{APPS, METADATA, NAMESPACES, NODES, Rows, TABLE, app, revision, send, stack};

#[tokio::test]
async fn create() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let forged = json!({
        "metadata": {
            "name": "web", "uid": "11111111-1111-1111-1111-111111111111", "resourceVersion": "7",
            "generation": 9, "creationTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/x",
            "managedFields": [{"manager": "me"}], "deletionGracePeriodSeconds": 5,
        },
        "spec": {"image": "nginx:1"},
        "status": {"phase": "Running"},
    });
    let reply = client.post(APPS, &forged).await;
    rows.same("created", reply.status, 201);
    let object = reply.json();
    let metadata = &object["metadata"];
    rows.holds(
        "apiVersion and kind are filled in",
        object["apiVersion"] == "horchestra.io/v1" && object["kind"] == "Application",
        &object,
    );
    rows.holds("the uid is the server's", uuid_like(metadata["uid"].as_str().unwrap_or("")), metadata);
    rows.holds(
        "so is the resourceVersion",
        revision(&object) > 7 || metadata["resourceVersion"] != "7",
        metadata,
    );
    rows.same("the generation", &metadata["generation"], &json!(1));
    let created = metadata["creationTimestamp"].as_str().unwrap_or("");
    rows.holds(
        "the time, in whole seconds of UTC",
        created.len() == 20 && created.ends_with('Z') && !created.starts_with("2001"),
        created,
    );
    for member in ["selfLink", "deletionGracePeriodSeconds"] {
        rows.same("what clients cannot set is dropped", &metadata[member], &Value::Null);
    }
    let mine =
        metadata["managedFields"].as_array().is_some_and(|all| all.iter().any(|it| it["manager"] == "me"));
    rows.holds("managedFields of a body are not stored", !mine, metadata);
    rows.holds("a status in the body is ignored", object["status"]["phase"] != "Running", &object["status"]);
    rows.same(
        "defaults are visible",
        &object["spec"]["lifecycle"]["terminationGracePeriodSeconds"],
        &json!(30),
    );
    rows.holds("the answer ends with a newline", reply.body.ends_with(b"}\n"), reply.body.len());
    rows.same("and is plain JSON", reply.header("content-type"), "application/json");

    let again = client.post(APPS, &app("web")).await;
    rows.code("a taken name", &again, 409, "AlreadyExists");
    let details = again.json()["details"].clone();
    rows.same(
        "which is told",
        details,
        json!({"name": "web", "group": "horchestra.io", "kind": "applications"}),
    );

    let mut foreign = app("other");
    foreign["metadata"]["namespace"] = json!("team-a");
    rows.code(
        "a namespace that is not that of the path",
        &client.post(APPS, &foreign).await,
        400,
        "BadRequest",
    );
    let nowhere = client.post("/apis/horchestra.io/v1/namespaces/nowhere/applications", &app("x")).await;
    rows.code("a namespace that is missing", &nowhere, 404, "NotFound");
    rows.same("which is named", nowhere.message().as_str(), "namespaces \"nowhere\" not found");
    for (member, value) in [("kind", "Node"), ("apiVersion", "horchestra.io/v2"), ("apiVersion", "apps/v1")] {
        let mut body = app("other");
        body[member] = json!(value);
        rows.code(
            "a body that says it is something else",
            &client.post(APPS, &body).await,
            400,
            "BadRequest",
        );
    }
    let node = json!({"metadata": {"name": "n", "namespace": "default"}, "spec": {}});
    let smuggled = client.post(NODES, &node).await;
    rows.code("a namespace on a kind that has none", &smuggled, 400, "BadRequest");
    rows.holds("which is told", smuggled.message().contains("cluster-scoped"), smuggled.message());
    rows.same("leaves nothing behind", client.get(&format!("{NODES}/n")).await.status, 404);
    rows.same("nor in lists", &client.get(NODES).await.json()["items"], &json!([]));
    rows.close();
}

fn uuid_like(text: &str) -> bool {
    text.len() == 36 && text.split('-').count() == 5 && !text.starts_with("11111111")
}

#[tokio::test]
async fn names() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    for (name, code) in [
        ("ok-1.web", 201),
        ("0", 201),
        (&"a".repeat(253), 201),
        ("", 422),
        ("Foo", 422),
        ("../../etc", 422),
        ("a/b", 422),
        ("bad:name", 422),
        ("app,lowerdir=/", 422),
        ("-a", 422),
        ("a..b", 422),
        (&"a".repeat(254), 422),
    ] {
        let reply = client.post(APPS, &app(name)).await;
        rows.same(&format!("the name {name:?}"), reply.status, code);
        if code == 422 {
            let cause = &reply.json()["details"]["causes"][0];
            rows.holds(
                "the cause names a field",
                cause["field"].is_string() && reply.reason() == "Invalid",
                &reply,
            );
        }
    }
    let long = format!("{NAMESPACES}/{}/applications", "a".repeat(64));
    let reply = client.post(&long, &app("web")).await;
    rows.holds(
        "no object lives in a namespace with more than 63 characters",
        matches!(reply.status, 404 | 422),
        &reply,
    );
    rows.close();
}

#[tokio::test]
async fn generated_names() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let generate = |base: &str| json!({"metadata": {"generateName": base}, "spec": {"image": "a"}});
    let made =
        client.post(APPS, &generate("web-")).await.json()["metadata"]["name"].as_str().unwrap().to_owned();
    rows.holds("five characters behind the base", made.len() == 9 && made.starts_with("web-"), &made);
    let long = client.post(APPS, &generate(&"x".repeat(70))).await.json()["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    rows.holds("a long base is cut to 58", long.len() == 63 && long.starts_with(&"x".repeat(58)), &long);
    let mut both = generate("web-");
    both["metadata"]["name"] = json!("mine");
    rows.same("a name wins", &client.post(APPS, &both).await.json()["metadata"]["name"], &json!("mine"));
    rows.code("a base that can be no name", &client.post(APPS, &generate("Bad_")).await, 422, "Invalid");
    let creates = (0..200).map(|_| {
        let client = client.clone();
        async move {
            client
                .post(APPS, &json!({"metadata": {"generateName": "many-"}, "spec": {"image": "a"}}))
                .await
                .status
        }
    });
    let codes: Vec<u16> = futures::stream::iter(creates).buffer_unordered(16).collect().await;
    rows.holds("a crowd is never told that a name is taken", codes.iter().all(|code| *code == 201), &codes);
    rows.close();
}

#[tokio::test]
async fn odd_metadata_is_stored_and_warned_about() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    for (row, name, member, value, warned) in [
        ("tidy labels", "a", "labels", json!({"env": "prod", "example.com/tier": "x"}), false),
        ("a label that is none", "b", "labels", json!({"not a label": "x"}), true),
        ("a value that is none", "c", "labels", json!({"env": "two words"}), true),
        ("an annotation key that is none", "d", "annotations", json!({"not/a/key": "x"}), true),
        ("annotations beyond 256 KiB", "e", "annotations", json!({"long": "x".repeat(300_000)}), true),
        ("an owner that is incomplete", "f", "ownerReferences", json!([{"kind": "Node", "name": "x"}]), true),
        (
            "two controllers",
            "g",
            "ownerReferences",
            json!([
                {"apiVersion": "v1", "kind": "A", "name": "a", "uid": "1", "controller": true},
                {"apiVersion": "v1", "kind": "B", "name": "b", "uid": "2", "controller": true},
            ]),
            true,
        ),
        ("a finalizer with a domain", "h", "finalizers", json!(["example.com/hold"]), false),
        ("a finalizer without one", "i", "finalizers", json!(["hold"]), true),
        ("the system's finalizer", "j", "finalizers", json!(["horchestra.io/node-teardown"]), true),
        ("an unknown member of metadata", "k", "surprise", json!(1), true),
    ] {
        let mut body = app(name);
        body["metadata"][member] = value;
        let reply = client.post(APPS, &body).await;
        rows.same(row, reply.status, 201);
        let warnings = reply.headers_of("warning");
        rows.holds(
            row,
            warnings.is_empty() != warned && warnings.iter().all(|it| it.starts_with("299 - \"")),
            &warnings,
        );
    }
    let held = client.get(&format!("{APPS}/j")).await.json();
    rows.same("the system's finalizers are the system's", &held["metadata"]["finalizers"], &Value::Null);
    rows.close();
}

#[tokio::test]
async fn read_and_replace() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let web = format!("{APPS}/web");
    let missing = client.get(&web).await;
    rows.code("a missing object", &missing, 404, "NotFound");
    rows.same("named in details", &missing.json()["details"]["name"], &json!("web"));
    rows.code("is not made by an update", &client.put(&web, &app("web")).await, 404, "NotFound");

    let first = client.post(APPS, &app("web")).await.json();
    let mut body = first.clone();
    body["spec"]["image"] = json!("nginx:2");
    let second = client.put(&web, &body).await.json();
    rows.same("another spec is another generation", &second["metadata"]["generation"], &json!(2));
    rows.holds("and a higher revision", revision(&second) > revision(&first), &second);
    let mut label = second.clone();
    label["metadata"]["labels"] = json!({"a": "b"});
    let third = client.put(&web, &label).await.json();
    rows.same("a label is not", &third["metadata"]["generation"], &json!(2));
    rows.holds("but a revision", revision(&third) > revision(&second), &third);
    rows.same("equal content changes nothing", &client.put(&web, &third).await.json(), &third);
    rows.code("a stale revision", &client.put(&web, &body).await, 409, "Conflict");
    let free = client.put(&web, &app("web")).await;
    rows.same("no revision is no condition", free.status, 200);
    rows.code("another object's name", &client.put(&web, &app("other")).await, 400, "BadRequest");
    let mut uid = app("web");
    uid["metadata"]["uid"] = json!("11111111-1111-1111-1111-111111111111");
    rows.code("another object's uid", &client.put(&web, &uid).await, 409, "Conflict");

    let now = client.get(&web).await.json();
    let mut forged = now.clone();
    for (member, value) in [
        ("creationTimestamp", json!("2001-01-01T00:00:00Z")),
        ("generation", json!(99)),
        ("selfLink", json!("/x")),
        ("deletionGracePeriodSeconds", json!(1)),
    ] {
        forged["metadata"][member] = value;
    }
    rows.same(
        "what the server owns is not a client's to change",
        &client.put(&web, &forged).await.json(),
        &now,
    );
    let mut marked = now.clone();
    marked["metadata"]["deletionTimestamp"] = json!("2001-01-01T00:00:00Z");
    rows.code("a deletion mark is not written", &client.put(&web, &marked).await, 403, "Forbidden");
    let large = json!({"metadata": {"name": "web"}, "spec": {"image": "x".repeat(4 << 20)}});
    rows.code("a body above 3 MiB", &client.put(&web, &large).await, 413, "RequestEntityTooLarge");
    let large = json!({"metadata": {"name": "web", "annotations": {"a": "x".repeat(2 << 20)}}, "spec": {"image": "x"}});
    rows.code("an object above 1.5 MiB", &client.put(&web, &large).await, 413, "RequestEntityTooLarge");
    let foreign = client.put("/apis/horchestra.io/v1/namespaces/team-a/applications/web", &now).await;
    rows.code("an object of another namespace", &foreign, 400, "BadRequest");
    rows.same("nothing of that was stored", &client.get(&web).await.json(), &now);
    rows.close();
}

#[tokio::test]
async fn forms_of_answers() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    client.post(APPS, &app("web")).await;
    let web = format!("{APPS}/web");
    let body = client.get(&web).await.json().to_string();
    let patch = [("content-type", "application/merge-patch+json"), ("accept", TABLE)];
    for (row, reply) in [
        ("read", client.get_as(&web, TABLE).await),
        ("replaced", client.send(Method::PUT, &web, &[("accept", TABLE)], body.clone()).await),
        ("patched", client.send(Method::PATCH, &web, &patch, r#"{"metadata":{"labels":{"a":"b"}}}"#).await),
        ("created", client.send(Method::POST, APPS, &[("accept", TABLE)], app("web2").to_string()).await),
    ] {
        let table = reply.json();
        let one = table["kind"] == "Table" && table["rows"].as_array().is_some_and(|rows| rows.len() == 1);
        rows.holds(&format!("a table of what was {row}"), one, &table);
    }
    let metadata = client.get_as(&web, METADATA).await.json();
    rows.same(
        "metadata alone",
        (&metadata["kind"], &metadata["apiVersion"]),
        (&json!("PartialObjectMetadata"), &json!("meta.k8s.io/v1")),
    );
    rows.holds(
        "and nothing else",
        metadata.get("spec").is_none() && metadata["metadata"]["name"] == "web",
        &metadata,
    );
    for accept in ["application/xml", "application/vnd.kubernetes.protobuf", "text/html"] {
        rows.code("what cannot be had", &client.get_as(&web, accept).await, 406, "NotAcceptable");
        let reply = client.send(Method::POST, APPS, &[("accept", accept)], app("never").to_string()).await;
        rows.code("is known before anything is written", &reply, 406, "NotAcceptable");
    }
    rows.same("nothing was", client.get(&format!("{APPS}/never")).await.status, 404);
    for accept in ["*/*", "application/*", "application/vnd.kubernetes.protobuf, */*", "text/html, */*;q=0.1"]
    {
        rows.same("what can be had beside it", client.get_as(&web, accept).await.status, 200);
    }
    for (content, code) in [
        ("application/json", 201),
        ("application/json; charset=utf-8", 201),
        ("application/yaml", 201),
        ("text/plain", 415),
        ("application/xml", 415),
        ("application/vnd.kubernetes.protobuf", 415),
    ] {
        let reply =
            client.send(Method::POST, APPS, &[("content-type", content)], app("typed").to_string()).await;
        rows.holds(content, reply.status == code, &reply);
        client.delete(&format!("{APPS}/typed")).await;
    }
    rows.same(
        "no type is JSON",
        send(&client, Method::POST, APPS, app("untyped").to_string()).await.status,
        201,
    );
    let yaml = client.get_as(&web, "application/yaml").await;
    rows.holds(
        "YAML",
        yaml.header("content-type") == "application/yaml" && yaml.text().contains("image: nginx:1"),
        &yaml,
    );
    let head = client.send(Method::HEAD, &web, &[], Bytes::new()).await;
    let get = client.get(&web).await;
    rows.holds(
        "HEAD has the headers of GET",
        head.status == 200
            && head.body.is_empty()
            && head.header("content-length") == get.body.len().to_string(),
        &head,
    );
    let head = client.send(Method::HEAD, &format!("{APPS}/ghost"), &[], Bytes::new()).await;
    rows.same("also of a failure", (head.status, head.body.len()), (404, 0));
    rows.close();
}
