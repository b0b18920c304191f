//! The API as programs in Rust see it: kube's typed and untyped objects, watchers, caches, finalizers and a
//! controller, over real connections that a kubeconfig of ours describes.
//!
//! What a controller relies on is more than the single calls that other tests judge: that lists, watches and
//! writes fit each other. So these tests leave the driving to the library and look at what comes out.

mod applying;
mod objects;
mod reconciling;
mod watching;

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::stack::Stack;

/// An Application as a controller's author would write it down: what the program needs, and no more.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Application {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    spec: ApplicationSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<ApplicationStatus>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ApplicationSpec {
    image: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    args: Option<Vec<String>>,
    /// Whatever else there is has to survive a replace.
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ApplicationStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phase: Option<String>,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

impl Resource for Application {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        "Application".into()
    }

    fn group(_: &()) -> Cow<'_, str> {
        "horchestra.io".into()
    }

    fn version(_: &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural(_: &()) -> Cow<'_, str> {
        "applications".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Application {
    fn new(name: &str, image: &str) -> Application {
        Application {
            api_version: "horchestra.io/v1".to_owned(),
            kind: "Application".to_owned(),
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            spec: ApplicationSpec { image: image.to_owned(), ..ApplicationSpec::default() },
            status: None,
        }
    }

    fn labelled(mut self, labels: &[(&str, &str)]) -> Application {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        self.metadata.labels = Some(labels.collect());
        self
    }

    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn revision(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

/// The operator's client, as a program makes it that was handed the kubeconfig.
async fn connect(stack: &Stack) -> Client {
    let kubeconfig = Kubeconfig::read_from(stack.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Applications of the namespace `default`, on a stack of their own.
async fn applications() -> (Stack, Api<Application>) {
    let stack = Stack::with_namespaces().await;
    let api = Api::namespaced(connect(&stack).await, "default");
    (stack, api)
}

/// The code and the reason that the server answered.
fn refusal<T: std::fmt::Debug>(result: kube::Result<T>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.reason.clone()),
        other => panic!("no refusal but {other:?}"),
    }
}
