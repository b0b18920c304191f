//! A controller with a finalizer, run by the library from the first look at an object until it is gone.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{self, Event};
use kube::runtime::watcher;
use parking_lot::Mutex;
use serde_json::json;

use super::{Application, applications};
use crate::client::DEADLINE;

const FINALIZER: &str = "tester.example.com/cleanup";

struct Reconciler {
    api: Api<Application>,
    /// What was done, in order.
    done: Mutex<Vec<String>>,
}

type Failure = finalizer::Error<Infallible>;

async fn reconcile(app: Arc<Application>, reconciler: Arc<Reconciler>) -> Result<Action, Failure> {
    let api = reconciler.api.clone();
    finalizer::finalizer(&api, FINALIZER, app, async |event| {
        let line = match event {
            Event::Apply(app) => format!("apply {} {}", app.name(), app.spec.image),
            Event::Cleanup(app) => format!("cleanup {} {}", app.name(), app.spec.image),
        };
        let mut done = reconciler.done.lock();
        if done.last() != Some(&line) {
            done.push(line);
        }
        Ok(Action::await_change())
    })
    .await
}

#[tokio::test]
async fn a_controller_sees_every_state_and_has_the_last_word() {
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let (_stack, api) = applications().await;
        api.create(&PostParams::default(), &Application::new("web", "nginx:1")).await.unwrap();
        let reconciler = Arc::new(Reconciler { api: api.clone(), done: Mutex::default() });
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let run = Controller::new(api.clone(), config)
            .graceful_shutdown_on(async { drop(stopped.await) })
            .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(50)), Arc::clone(&reconciler))
            .for_each(|_| async {});
        let running = tokio::spawn(run);
        let done = async |line: &str| {
            horchestra_testkit::eventually(DEADLINE, async || {
                reconciler.done.lock().last().is_some_and(|last| last == line)
            })
            .await;
        };
        done("apply web nginx:1").await;
        let held = api.get("web").await.unwrap();
        assert_eq!(held.metadata.finalizers, Some(vec![FINALIZER.to_owned()]));
        let edit = Patch::Merge(json!({"spec": {"image": "nginx:2"}}));
        api.patch("web", &PatchParams::default(), &edit).await.unwrap();
        done("apply web nginx:2").await;
        api.delete("web", &DeleteParams::default()).await.unwrap();
        done("cleanup web nginx:2").await;
        horchestra_testkit::eventually(DEADLINE, async || api.get_opt("web").await.unwrap().is_none()).await;
        assert_eq!(
            *reconciler.done.lock(),
            ["apply web nginx:1", "apply web nginx:2", "cleanup web nginx:2"]
        );
        stop.send(()).unwrap();
        tokio::time::timeout(DEADLINE, running).await.expect("the controller ends").unwrap();
    }
}
