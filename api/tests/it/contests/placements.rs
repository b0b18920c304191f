//! Placements against people: pins, edits and volumes, each at the very moment at which something is placed.

use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_service::{At, DoorError, Outcome, RequestContext};
use http::Method;
use serde_json::{Value, json};

use super::loops::{Field, all_seen, bind, leads};
use super::{Ask, ask, create, delete, merge, rounds};
use crate::client::Reply;

/// The contests of this module, as the table calls them.
pub const CONTESTS: [&str; 7] = [
    "child-update-and-placement",
    "edit-and-placement",
    "pin-and-placement",
    "placed-twice",
    "volume-deleted-and-placement",
    "volume-made-and-placement",
    "volume-moved-and-placement",
];

const APPLICATIONS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
const VOLUMES: &str = "/apis/horchestra.io/v1/namespaces/default/persistentvolumes";

/// Half as many as others: there are seven of them.
fn some_rounds() -> u64 {
    rounds().div_ceil(2)
}

pub async fn at_once<A, B>(
    field: &mut Field,
    first: impl AsyncFnOnce(&Field) -> A,
    second: impl AsyncFnOnce(&Field) -> B,
) -> (A, B) {
    let (before, after) = (field.late(), field.late());
    let field = &*field;
    tokio::join!(
        async {
            tokio::time::sleep(before).await;
            first(field).await
        },
        async {
            tokio::time::sleep(after).await;
            second(field).await
        },
    )
}

/// A request against a placement, the one through one replica and the other through the other.
async fn against(
    field: &mut Field,
    round: u64,
    scheduler: &RequestContext,
    request: Ask,
    binding: horchestra_service::Binding,
) -> (Reply, Result<Outcome, DoorError>) {
    let which = usize::from(round % 2 == 1);
    at_once(
        field,
        async |field: &Field| request.of(&field.callers[which]).await,
        async |field: &Field| bind(field.service(1 - which), scheduler, binding).await,
    )
    .await
}

fn put(path: String, body: Value) -> Ask {
    ask(Method::PUT, path, "application/json", body)
}

fn path(key: &Key) -> String {
    format!("{APPLICATIONS}/{}", key.name)
}

async fn stored(field: &Field, key: &Key) -> Value {
    field.service(0).get(key, At::Fresh).await.unwrap().object().unwrap().into_value()
}

/// The node of an Application.
async fn placed_on(field: &Field, key: &Key) -> Option<String> {
    field.service(0).get(key, At::Fresh).await.unwrap().columns.node.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_room_of_a_node_goes_to_a_pin_or_to_a_placement() {
    let mut field = Field::new("pin-and-placement").await;
    let scheduler = field.scheduler().await;
    let mut seen = [0; 2];
    for round in 0..some_rounds() {
        let node = format!("node-{round}");
        field.node(&node, "4").await;
        let (pinned, _) = field.application(&format!("a-{round}"), "3", &node).await;
        let (placed, binding) = field.application(&format!("b-{round}"), "3", &node).await;
        let pin = merge(path(&pinned), json!({"spec": {"placement": {"nodeName": node}}}));
        let (pin, bound) = against(&mut field, round, &scheduler, pin, binding).await;
        match (pin.status, &bound) {
            (200, Err(DoorError::NoCapacity)) => seen[0] += 1,
            (403, Ok(_)) => seen[1] += 1,
            _ => panic!("round {round}: {pin:?} {bound:?}"),
        }
        let on = (placed_on(&field, &pinned).await, placed_on(&field, &placed).await);
        assert!(on.0.is_some() != on.1.is_some(), "round {round}: {on:?}");
    }
    all_seen(&seen);
    field.end(some_rounds()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_edits_what_is_being_placed_takes_it_nowhere() {
    let mut field = Field::new("edit-and-placement").await;
    let scheduler = field.scheduler().await;
    for node in ["here", "there"] {
        field.node(node, "1000").await;
    }
    let children = leads(field.store(0), "applicationset", Duration::from_secs(600)).await.unwrap();
    // The whole object as it was read before, a change to whatever is stored, a pin elsewhere, a set's loop.
    let mut seen = [[0; 2]; 4];
    for round in 0..2 * some_rounds() {
        let how = usize::try_from(round % 4).unwrap();
        let (key, binding) = field.application(&format!("a-{round}"), "1m", "here").await;
        let before = field.service(0).get(&key, At::Fresh).await.unwrap();
        let mut edited = before.object().unwrap();
        edited.0["spec"]["image"] = json!("y");
        let late = round / 4;
        let (told, bound) = match how {
            0 => {
                let (reply, bound) =
                    against(&mut field, late, &scheduler, put(path(&key), edited.into_value()), binding)
                        .await;
                (reply.status, bound)
            }
            1 => {
                let change = merge(path(&key), json!({"spec": {"image": "y"}}));
                let (reply, bound) = against(&mut field, late, &scheduler, change, binding).await;
                (reply.status, bound)
            }
            2 => {
                let pin = merge(path(&key), json!({"spec": {"placement": {"nodeName": "there"}}}));
                let (reply, bound) = against(&mut field, late, &scheduler, pin, binding).await;
                (reply.status, bound)
            }
            _ => {
                let which = usize::try_from(late % 2).unwrap();
                let (written, bound) = at_once(
                    &mut field,
                    async |field: &Field| {
                        field.service(which).update_owned(&children, &before, edited, &[]).await
                    },
                    async |field: &Field| bind(field.service(1 - which), &scheduler, binding).await,
                )
                .await;
                let told = match written {
                    Ok(_) => 200,
                    Err(DoorError::Changed) => 409,
                    Err(error) => panic!("round {round}: {error}"),
                };
                (told, bound)
            }
        };
        let after = stored(&field, &key).await;
        let on = after["spec"]["placement"]["nodeName"].as_str().unwrap_or_default().to_owned();
        let edited = after["spec"]["image"] == "y";
        match (how, told, &bound) {
            // The edit came first, and the placement was of something else.
            (0 | 1 | 3, 200, Err(DoorError::Changed)) => {
                assert!(on.is_empty() && edited, "round {round}: {after}");
                seen[how][0] += 1;
            }
            (2, 200, Err(DoorError::Changed)) => {
                assert_eq!(on, "there", "round {round}");
                seen[how][0] += 1;
            }
            // The placement came first. Whoever names what they had seen is told; a change keeps the node.
            (0 | 3, 409, Ok(_)) => {
                assert!(on == "here" && !edited, "round {round}: {after}");
                seen[how][1] += 1;
            }
            (1, 200, Ok(_)) => {
                assert!(on == "here" && edited, "round {round}: {after}");
                seen[how][1] += 1;
            }
            // A pin that comes later is an author's word: it moves what was placed.
            (2, 200, Ok(_)) => {
                assert_eq!(on, "there", "round {round}");
                seen[how][1] += 1;
            }
            _ => panic!("round {round}: {told:?} {bound:?}"),
        }
    }
    seen.iter().for_each(|seen| all_seen(seen));
    field.end(some_rounds()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_decided_twice_is_placed_once() {
    let mut field = Field::new("placed-twice").await;
    let scheduler = field.scheduler().await;
    for node in ["here", "there"] {
        field.node(node, "1000").await;
    }
    let mut seen = [0; 2];
    for round in 0..some_rounds() {
        let (key, binding) = field.application(&format!("a-{round}"), "1m", "here").await;
        let other = horchestra_service::Binding { node: "there".to_owned(), ..binding.clone() };
        // Both with the same term, so that nothing but the Application itself tells them apart.
        let (here, there) = at_once(
            &mut field,
            async |field: &Field| bind(field.service(0), &scheduler, binding).await,
            async |field: &Field| bind(field.service(1), &scheduler, other).await,
        )
        .await;
        let node = placed_on(&field, &key).await;
        match (&here, &there) {
            (Ok(_), Err(DoorError::Changed)) => seen[0] += u64::from(node.as_deref() == Some("here")),
            (Err(DoorError::Changed), Ok(_)) => seen[1] += u64::from(node.as_deref() == Some("there")),
            other => panic!("round {round}: {other:?}"),
        }
        assert_eq!(stored(&field, &key).await["metadata"]["generation"], 2, "round {round}");
    }
    assert_eq!(seen[0] + seen[1], some_rounds());
    all_seen(&seen);
    field.end(some_rounds()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_placed_lies_with_its_volumes() {
    let mut field = Field::new("volumes-and-placement").await;
    let scheduler = field.scheduler().await;
    for node in ["here", "there"] {
        field.node(node, "1000").await;
    }
    // Made by somebody else, moved elsewhere, deleted.
    let mut seen = [[0; 2], [0; 2], [0; 2]];
    for round in 0..some_rounds() + some_rounds() / 2 {
        let how = usize::try_from(round % 3).unwrap();
        let name = format!("v-{round}");
        let volume = Key::namespaced(Kind::PersistentVolume, "default", name.as_str());
        let body = json!({"metadata": {"name": name}, "spec": {}});
        if how > 0 {
            field.make(create(VOLUMES.to_owned(), body.clone())).await;
        }
        let mounts = json!([{"mountPath": "/v", "volume": {"type": "pv", "name": name}}]);
        let (key, binding) = field.mounting(&format!("a-{round}"), mounts, "here").await;
        let request = match how {
            0 => create(VOLUMES.to_owned(), body),
            1 => merge(format!("{VOLUMES}/{name}"), json!({"spec": {"node": "there"}})),
            _ => delete(format!("{VOLUMES}/{name}")),
        };
        let (told, bound) = against(&mut field, round / 3, &scheduler, request, binding).await;
        let on = placed_on(&field, &key).await;
        let lies = field.service(0).get(&volume, At::Fresh).await.unwrap().object().unwrap().into_value();
        let lies = lies["spec"]["node"].as_str().unwrap_or_default().to_owned();
        match (how, told.status, &bound) {
            (0, 201, Err(DoorError::Changed)) | (1, 200, Err(DoorError::Changed)) => {
                assert_eq!((on, lies.as_str()), (None, if how == 1 { "there" } else { "" }), "round {round}");
                seen[how][0] += 1;
            }
            // It was made just in time for the placement to fix it to the node.
            (0, 201, Ok(_)) => {
                assert_eq!((on.as_deref(), lies.as_str()), (Some("here"), "here"), "round {round}");
            }
            // It was made, and fixed to the node, by the placement.
            (0, 409, Ok(_)) => {
                assert_eq!((on.as_deref(), lies.as_str()), (Some("here"), "here"), "round {round}");
                seen[how][1] += 1;
            }
            // Moved by its author's word, after it was fixed.
            (1, 200 | 403 | 409 | 422, Ok(_)) => {
                assert_eq!(on.as_deref(), Some("here"), "round {round}: {told:?}");
                seen[how][1] += 1;
            }
            // Never, while it is mounted.
            (2, 403, Ok(_)) => {
                assert_eq!((on.as_deref(), lies.as_str()), (Some("here"), "here"), "round {round}");
                seen[how] = [seen[how][0] + 1; 2];
            }
            _ => panic!("round {round}: {told:?} {bound:?}"),
        }
    }
    seen.iter().for_each(|seen| all_seen(seen));
    field.end(some_rounds()).await;
}
