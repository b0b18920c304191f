//! Server-side apply, as controllers use it for what they own.

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Application, applications};

fn web(spec: Value) -> Patch<Value> {
    Patch::Apply(json!({
        "apiVersion": "horchestra.io/v1", "kind": "Application", "metadata": {"name": "web"}, "spec": spec,
    }))
}

async fn apply(api: &Api<Application>, manager: &str, spec: Value) -> kube::Result<Application> {
    api.patch("web", &PatchParams::apply(manager), &web(spec)).await
}

#[tokio::test]
async fn an_apply_makes_what_is_missing_and_nothing_the_second_time() {
    let (_stack, api) = applications().await;
    let spec = json!({"image": "nginx:1", "args": ["-v"]});
    let first = apply(&api, "deployer", spec.clone()).await.unwrap();
    assert_eq!(first.metadata.generation, Some(1));
    let again = apply(&api, "deployer", spec).await.unwrap();
    assert_eq!(again.revision(), first.revision());
    assert_eq!(again.metadata.managed_fields, first.metadata.managed_fields);
    let less = apply(&api, "deployer", json!({"image": "nginx:1"})).await.unwrap();
    assert_eq!(less.spec.args, None, "what nobody else wants goes");
    assert_ne!(less.revision(), first.revision());
}

#[tokio::test]
async fn managers_conflict_until_one_of_them_insists() {
    let (_stack, api) = applications().await;
    apply(&api, "deployer", json!({"image": "nginx:1", "args": ["-v"]})).await.unwrap();
    apply(&api, "other", json!({"image": "nginx:1"})).await.expect("the same value is no conflict");
    let conflict = match apply(&api, "other", json!({"image": "nginx:2"})).await {
        Err(kube::Error::Api(status)) => status,
        other => panic!("no conflict but {other:?}"),
    };
    assert_eq!((conflict.code, conflict.reason.as_str()), (409, "Conflict"));
    let causes = &conflict.details.as_ref().unwrap().causes;
    assert_eq!((causes.len(), causes[0].field.as_str()), (1, ".spec.image"));
    assert!(causes[0].message.contains("deployer"), "{causes:?}");
    assert_eq!(api.get("web").await.unwrap().spec.image, "nginx:1");

    let force = PatchParams::apply("other").force();
    let taken = api.patch("web", &force, &web(json!({"image": "nginx:2"}))).await.unwrap();
    assert_eq!((taken.spec.image.as_str(), taken.spec.args), ("nginx:2", Some(vec!["-v".to_owned()])));
    let lost = apply(&api, "deployer", json!({"image": "nginx:1", "args": ["-v"]})).await;
    assert!(matches!(lost, Err(kube::Error::Api(status)) if status.code == 409));
    let given_up = apply(&api, "deployer", json!({"args": ["-w"]})).await.unwrap();
    assert_eq!((given_up.spec.image.as_str(), given_up.spec.args), ("nginx:2", Some(vec!["-w".to_owned()])));
}

#[tokio::test]
async fn a_status_is_applied_apart_from_the_spec() {
    let (_stack, api) = applications().await;
    let made = apply(&api, "deployer", json!({"image": "nginx:1"})).await.unwrap();
    let status = Patch::Apply(json!({
        "apiVersion": "horchestra.io/v1", "kind": "Application", "metadata": {"name": "web"},
        "status": {"phase": "Running"},
    }));
    let params = PatchParams::apply("reporter");
    let reported = api.patch_status("web", &params, &status).await.unwrap();
    assert_eq!(reported.status.unwrap().phase.as_deref(), Some("Running"));
    assert_eq!(reported.metadata.generation, made.metadata.generation);
    let entries = reported.metadata.managed_fields.unwrap();
    let reporter = entries.iter().find(|entry| entry.manager.as_deref() == Some("reporter")).unwrap();
    assert_eq!(reporter.subresource.as_deref(), Some("status"));
    let again = apply(&api, "deployer", json!({"image": "nginx:2"})).await.unwrap();
    assert_eq!(again.status.unwrap().phase.as_deref(), Some("Running"));
}
