//! Single objects and collections: every verb, typed and untyped.

use std::time::Duration;

use futures::{AsyncBufReadExt, TryStreamExt};
use horchestra_auth::pki::Process;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use kube::api::{
    DeleteParams, DynamicObject, GroupVersionKind, ListParams, LogParams, Patch, PatchParams, PostParams,
    Preconditions,
};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{Application, applications, connect, refusal};
use crate::client::DEADLINE;
use crate::logs::{Gateway, claim, data};
use crate::stack::{Setup, Stack};

#[tokio::test]
async fn typed_objects_are_made_read_changed_and_deleted() {
    let (_stack, api) = applications().await;
    let new = Application::new("web", "nginx:1").labelled(&[("tier", "front")]);
    let post = PostParams::default();
    let created = api.create(&post, &new).await.unwrap();
    assert!(created.uid().is_some() && created.creation_timestamp().is_some());
    assert_eq!(created.metadata.generation, Some(1));
    assert_eq!(refusal(api.create(&post, &new).await), (409, "AlreadyExists".to_owned()));
    let trial = PostParams { dry_run: true, ..PostParams::default() };
    api.create(&trial, &Application::new("trial", "nginx:1")).await.unwrap();
    assert!(api.get_opt("trial").await.unwrap().is_none());
    assert_eq!(refusal(api.get("ghost").await), (404, "NotFound".to_owned()));
    assert_eq!(api.get("web").await.unwrap().revision(), created.revision());

    let merge = Patch::Merge(json!({"spec": {"image": "nginx:2"}}));
    let merged = api.patch("web", &PatchParams::default(), &merge).await.unwrap();
    assert_eq!((merged.spec.image.as_str(), merged.metadata.generation), ("nginx:2", Some(2)));
    let operations = json!([
        {"op": "test", "path": "/spec/image", "value": "nginx:2"},
        {"op": "add", "path": "/spec/args", "value": ["-v"]},
    ]);
    let patch = Patch::<()>::Json(serde_json::from_value(operations).unwrap());
    let patched = api.patch("web", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.spec.args, Some(vec!["-v".to_owned()]));
    assert_eq!(
        refusal(
            api.patch(
                "web",
                &PatchParams::default(),
                &Patch::<()>::Json(
                    serde_json::from_value(json!([
                        {"op": "test", "path": "/spec/image", "value": "other"}
                    ]))
                    .unwrap()
                )
            )
            .await
        ),
        (422, "Invalid".to_owned())
    );
    let strategic = Patch::Strategic(json!({"spec": {"image": "x"}}));
    let refused = api.patch("web", &PatchParams::default(), &strategic).await;
    assert_eq!(refusal(refused), (415, "UnsupportedMediaType".to_owned()));

    let mut stale = merged;
    stale.spec.image = "nginx:3".to_owned();
    assert_eq!(refusal(api.replace("web", &post, &stale).await), (409, "Conflict".to_owned()));
    let mut current = patched;
    current.spec.image = "nginx:3".to_owned();
    let replaced = api.replace("web", &post, &current).await.unwrap();
    assert_eq!((replaced.spec.image.as_str(), replaced.metadata.generation), ("nginx:3", Some(4)));
    assert_eq!(replaced.spec.rest, current.spec.rest, "what the type does not know has survived");

    let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
    let reported = api.patch_status("web", &PatchParams::default(), &running).await.unwrap();
    assert_eq!(reported.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    assert_eq!(reported.metadata.generation, Some(4));
    let mut whole = api.get_status("web").await.unwrap();
    whole.spec.image = "not through this door".to_owned();
    whole.status.as_mut().unwrap().phase = Some("Failed".to_owned());
    let failed = api.replace_status("web", &post, &whole).await.unwrap();
    assert_eq!(failed.status.unwrap().phase.as_deref(), Some("Failed"));
    assert_eq!(failed.spec.image, "nginx:3");

    let other = Preconditions { uid: Some("nobody".to_owned()), ..Preconditions::default() };
    let refused = api.delete("web", &DeleteParams::default().preconditions(other)).await;
    assert_eq!(refusal(refused), (409, "Conflict".to_owned()));
    let status = api.delete("web", &DeleteParams::background()).await.unwrap().right().expect("it is gone");
    assert!(status.is_success());
    assert!(api.get_opt("web").await.unwrap().is_none());

    let mut held = Application::new("held", "nginx:1");
    held.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    api.create(&post, &held).await.unwrap();
    let marked = api.delete("held", &DeleteParams::default()).await.unwrap().left().expect("it is held");
    assert!(marked.metadata.deletion_timestamp.is_some());
}

#[tokio::test]
async fn collections_are_listed_in_pages_and_deleted_by_selection() {
    let (stack, api) = applications().await;
    for number in 0..5 {
        let parity = if number % 2 == 0 { "even" } else { "odd" };
        let app = Application::new(&format!("a{number}"), "nginx:1").labelled(&[("parity", parity)]);
        api.create(&PostParams::default(), &app).await.unwrap();
    }
    let mut names = Vec::new();
    let mut params = ListParams::default().limit(2);
    let mut revisions = Vec::new();
    loop {
        let page = api.list(&params).await.unwrap();
        revisions.push(page.metadata.resource_version.clone().unwrap());
        names.extend(page.items.iter().map(|app| app.name().to_owned()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    assert_eq!(names, ["a0", "a1", "a2", "a3", "a4"]);
    assert_eq!(revisions.len(), 3);
    assert!(revisions.iter().all(|revision| revision == &revisions[0]));

    let everywhere: Api<Application> = Api::all(connect(&stack).await);
    let odd = ListParams::default().labels("parity=odd").fields("metadata.name!=a1");
    let found = everywhere.list(&odd).await.unwrap();
    assert_eq!(found.items.iter().map(Application::name).collect::<Vec<_>>(), ["a3"]);

    let metadata = api.list_metadata(&ListParams::default().labels("parity=even")).await.unwrap();
    let names: Vec<String> = metadata.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["a0", "a2", "a4"]);
    assert_eq!(metadata.items[0].labels()["parity"], "even");
    let one = api.get_metadata("a1").await.unwrap();
    assert_eq!(one.types.as_ref().unwrap().kind, "PartialObjectMetadata");
    assert!(api.get_metadata_opt("ghost").await.unwrap().is_none());
    let label = Patch::Merge(json!({"metadata": {"labels": {"seen": "yes"}}}));
    let labelled = api.patch_metadata("a1", &PatchParams::default(), &label).await.unwrap();
    assert_eq!(labelled.labels()["seen"], "yes");

    let even = ListParams::default().labels("parity=even");
    api.delete_collection(&DeleteParams::default(), &even).await.unwrap();
    let left = api.list(&ListParams::default()).await.unwrap();
    assert_eq!(left.items.iter().map(Application::name).collect::<Vec<_>>(), ["a1", "a3"]);
}

#[tokio::test]
async fn objects_without_a_type_are_found_by_discovery() {
    let stack = Stack::with_namespaces().await;
    let client = connect(&stack).await;
    let version = client.apiserver_version().await.unwrap();
    assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "32"));
    let kind = GroupVersionKind::gvk("horchestra.io", "v1", "Application");
    for discovery in [
        Discovery::new(client.clone()).run().await.unwrap(),
        Discovery::new(client.clone()).run_aggregated().await.unwrap(),
    ] {
        let (resource, capabilities) = discovery.resolve_gvk(&kind).expect("the kind is listed");
        assert_eq!((resource.plural.as_str(), &capabilities.scope), ("applications", &Scope::Namespaced));
        for verb in [verbs::WATCH, verbs::PATCH, verbs::DELETE_COLLECTION] {
            assert!(capabilities.supports_operation(verb), "{verb}");
        }
        let subresources: Vec<&str> =
            capabilities.subresources.iter().map(|(resource, _)| resource.plural.as_str()).collect();
        assert!(subresources.iter().any(|name| name.ends_with("status")), "{subresources:?}");
    }
    let (resource, _) = kube::discovery::pinned_kind(&client, &kind).await.unwrap();
    let api: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
    let object = DynamicObject::new("web", &resource)
        .data(json!({"spec": {"image": "nginx:1", "values": {"deep": [1, {"a": null}]}}}));
    let created = api.create(&PostParams::default(), &object).await.unwrap();
    assert_eq!(created.data["spec"]["values"], json!({"deep": [1, {"a": null}]}));
    let mut read = api.get("web").await.unwrap();
    assert_eq!(read.types.as_ref().unwrap().kind, "Application");
    read.data["spec"]["image"] = json!("nginx:2");
    let replaced = api.replace("web", &PostParams::default(), &read).await.unwrap();
    assert_eq!(replaced.data["spec"]["image"], "nginx:2");
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);
    api.delete("web", &DeleteParams::default()).await.unwrap();
    assert!(api.get_opt("web").await.unwrap().is_none());
}

#[tokio::test]
async fn pods_nodes_namespaces_and_events_fit_the_types_of_kubernetes() {
    let stack = Stack::with(Setup { relay: true, ..Setup::default() }).await;
    stack.make_namespaces().await;
    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("first\n"), data("second\n")]));
    let master = stack.master();
    let node = json!({"metadata": {"name": "n1"}, "spec": {}});
    assert_eq!(master.post("/apis/horchestra.io/v1/nodes", &node).await.status, 201);
    let placed =
        json!({"metadata": {"name": "web"}, "spec": {"image": "nginx:1", "placement": {"nodeName": "n1"}}});
    let path = "/apis/horchestra.io/v1/namespaces/default/applications";
    let uid = master.post(path, &placed).await.json()["metadata"]["uid"].clone();

    let client = connect(&stack).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = pods.get("web").await.unwrap();
    assert_eq!(pod.uid().as_deref(), uid.as_str());
    let spec = pod.spec.unwrap();
    assert_eq!(
        (spec.node_name.as_deref(), spec.containers[0].image.as_deref()),
        (Some("n1"), Some("nginx:1"))
    );
    let found = pods.list(&ListParams::default().fields("spec.nodeName=n1")).await.unwrap();
    assert_eq!(found.items.len(), 1);
    assert_eq!(pods.logs("web", &LogParams::default()).await.unwrap(), "first\nsecond\n");
    let follow = LogParams { follow: true, ..LogParams::default() };
    let mut lines = pods.log_stream("web", &follow).await.unwrap().lines();
    for expected in ["first", "second"] {
        let line = tokio::time::timeout(DEADLINE, lines.try_next()).await.expect("a line").unwrap();
        assert_eq!(line.as_deref(), Some(expected));
    }
    let more = tokio::time::timeout(Duration::from_millis(200), lines.try_next()).await;
    assert!(more.is_err(), "the stream stays open");
    assert_eq!(refusal(pods.logs("ghost", &LogParams::default()).await).0, 404);

    let nodes: Api<Node> = Api::all(client.clone());
    assert_eq!(nodes.get("n1").await.unwrap().name_any(), "n1");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    assert!(namespaces.get_opt("team-a").await.unwrap().is_some());

    let events: Api<Event> = Api::namespaced(client, "default");
    let event: Event = serde_json::from_value(json!({
        "metadata": {"generateName": "web."},
        "involvedObject": {"apiVersion": "horchestra.io/v1", "kind": "Application", "namespace": "default",
            "name": "web", "uid": uid},
        "reason": "Tested", "message": "seen", "type": "Normal", "source": {"component": "tester"},
    }))
    .unwrap();
    let stored = events.create(&PostParams::default(), &event).await.unwrap();
    let about = ListParams::default().fields("involvedObject.name=web,reason=Tested");
    assert_eq!(events.list(&about).await.unwrap().items[0].uid(), stored.uid());
}
