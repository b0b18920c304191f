//! Sets, garbage collection and people, about the same objects at the same moment.

use std::sync::Arc;
use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application_set::expand;
use horchestra_core::object::Object;
use horchestra_service::{At, DoorError, Outcome, Propagation, RequestContext};
use horchestra_store::{Entry, Guard};
use serde_json::{Value, json};

use super::loops::{Field, all_seen, leads};
use super::placements::at_once;
use super::{Ask, create, delete, merge, rounds};

/// The contests of this module, as the table calls them.
pub const CONTESTS: [&str; 5] = [
    "child-and-deleted-set",
    "child-and-edited-set",
    "collected-and-adopted",
    "namesake",
    "released-and-deleted",
];

const APPLICATIONS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
const SETS: &str = "/apis/horchestra.io/v1/namespaces/default/applicationsets";
const VOLUMES: &str = "/apis/horchestra.io/v1/namespaces/default/persistentvolumes";
const TERM: Duration = Duration::from_secs(600);

fn some_rounds() -> u64 {
    rounds().div_ceil(2)
}

async fn entry(field: &Field, kind: Kind, name: &str) -> Option<Arc<Entry>> {
    let key = Key::namespaced(kind, "default", name);
    let entry = field.service(0).get(&key, At::Fresh).await.ok()?;
    // The other replica knows of it as well.
    field.store(1).not_older_than(entry.revision).await.unwrap();
    Some(entry)
}

/// A set of one component, and the child that it asks for.
async fn set(field: &Field, name: &str) -> (Arc<Entry>, Object) {
    let component = json!({"name": "a", "spec": {"image": "x"}});
    let object = json!({"metadata": {"name": name}, "spec": {"applications": [component]}});
    field.make(create(SETS.to_owned(), object)).await;
    let set = entry(field, Kind::ApplicationSet, name).await.unwrap();
    let child = expand(&set.object().unwrap(), &[]).unwrap().children.remove(0).object;
    (set, child)
}

fn as_it_was(set: &Entry) -> [Guard; 1] {
    [Guard::Unchanged(set.key.clone(), set.revision)]
}

/// A loop's write against a person's request, through one replica each.
async fn against(
    field: &mut Field,
    round: u64,
    request: Ask,
    write: impl AsyncFnOnce(&Field, usize) -> Result<Outcome, DoorError>,
) -> (u16, Result<Outcome, DoorError>) {
    let which = usize::from(round % 2 == 1);
    let (reply, written) = at_once(
        field,
        async |field: &Field| request.of(&field.callers[which]).await,
        async |field: &Field| write(field, 1 - which).await,
    )
    .await;
    (reply.status, written)
}

async fn loops(field: &Field, name: &str) -> RequestContext {
    leads(field.store(0), name, TERM).await.expect("nobody else leads")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_child_is_made_for_a_set_that_is_another_one_by_then() {
    let mut field = Field::new("child-and-set").await;
    let keeper = loops(&field, "applicationset").await;
    let mut seen = [[0; 2]; 2];
    for round in 0..2 * some_rounds() {
        let edits = usize::from(round % 2 == 1);
        let name = format!("s-{round}");
        let (set, child) = set(&field, &name).await;
        let path = format!("{SETS}/{name}");
        let request = match edits {
            0 => delete(path),
            _ => merge(path, json!({"spec": {"common": {"labels": {"a": "b"}}}})),
        };
        let (told, made) = against(&mut field, round / 2, request, async |field, which| {
            let service = field.service(which);
            service.create_owned(&keeper, Kind::Application, child, &as_it_was(&set)).await
        })
        .await;
        assert_eq!(told, 200, "round {round}");
        let stored = entry(&field, Kind::Application, &format!("{name}-a")).await;
        match made {
            Ok(_) => {
                assert!(stored.is_some(), "round {round}");
                // Whoever looks after that finds the child, and sees to it.
                seen[edits][0] += 1;
            }
            Err(DoorError::Changed | DoorError::Gone) => {
                assert!(stored.is_none(), "round {round}");
                seen[edits][1] += 1;
            }
            other => panic!("round {round}: {other:?}"),
        }
    }
    seen.iter().for_each(|seen| all_seen(seen));
    field.end(some_rounds()).await;
}

/// As the loop lets go of a child whose set leaves it behind.
fn released(child: &Entry) -> Object {
    let mut object = child.object().unwrap();
    object.metadata_mut().remove("ownerReferences");
    object.metadata_mut().remove("labels");
    object.metadata_mut().remove("annotations");
    object
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_that_is_deleted_meanwhile_is_not_brought_back_by_its_release() {
    let mut field = Field::new("released-and-deleted").await;
    let keeper = loops(&field, "applicationset").await;
    let mut seen = [0; 2];
    for round in 0..some_rounds() {
        let name = format!("s-{round}");
        let (set, child) = set(&field, &name).await;
        let made = field.service(0).create_owned(&keeper, Kind::Application, child, &as_it_was(&set)).await;
        assert!(made.is_ok(), "{made:?}");
        let child = entry(&field, Kind::Application, &format!("{name}-a")).await.unwrap();
        let request = delete(format!("{APPLICATIONS}/{name}-a"));
        let (told, freed) = against(&mut field, round, request, async |field, which| {
            field.service(which).update_owned(&keeper, &child, released(&child), &[]).await
        })
        .await;
        assert_eq!(told, 200, "round {round}");
        match freed {
            Ok(_) => seen[0] += 1,
            Err(DoorError::Gone | DoorError::Changed) => seen[1] += 1,
            other => panic!("round {round}: {other:?}"),
        }
        assert!(entry(&field, Kind::Application, &format!("{name}-a")).await.is_none(), "round {round}");
    }
    all_seen(&seen);
    field.end(some_rounds()).await;
}

fn reference(owner: &Value) -> Value {
    json!({
        "apiVersion": "horchestra.io/v1", "kind": "PersistentVolume",
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
    })
}

async fn volume(field: &Field, name: &str, owners: Value) -> Value {
    let object = json!({"metadata": {"name": name, "ownerReferences": owners}, "spec": {}});
    field.make(create(VOLUMES.to_owned(), object)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_adopts_meanwhile_is_not_collected() {
    let mut field = Field::new("collected-and-adopted").await;
    let collector = loops(&field, "garbage-collection").await;
    let keeper = volume(&field, "keeper", json!([])).await;
    let mut seen = [0; 2];
    for round in 0..some_rounds() {
        let (gone, name) = (format!("gone-{round}"), format!("v-{round}"));
        let owner = volume(&field, &gone, json!([])).await;
        volume(&field, &name, json!([reference(&owner)])).await;
        field.make(delete(format!("{VOLUMES}/{gone}"))).await;
        let judged = entry(&field, Kind::PersistentVolume, &name).await.unwrap();
        let adoption = json!({"metadata": {"ownerReferences": [reference(&owner), reference(&keeper)]}});
        let request = merge(format!("{VOLUMES}/{name}"), adoption);
        let (told, collected) = against(&mut field, round, request, async |field, which| {
            field.service(which).collect(&collector, &judged, Propagation::Background).await
        })
        .await;
        let stays = entry(&field, Kind::PersistentVolume, &name).await.is_some();
        match (told, &collected) {
            (200, Err(DoorError::Changed | DoorError::Refused(_))) => {
                assert!(stays, "round {round}");
                seen[0] += 1;
            }
            (404, Ok(_)) => {
                assert!(!stays, "round {round}");
                seen[1] += 1;
            }
            _ => panic!("round {round}: {told} {collected:?}"),
        }
    }
    all_seen(&seen);
    field.end(some_rounds()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_somebody_takes_meanwhile_is_left_to_them() {
    let mut field = Field::new("namesake").await;
    let keeper = loops(&field, "applicationset").await;
    let mut seen = [0; 2];
    for round in 0..some_rounds() {
        let name = format!("s-{round}");
        let (set, child) = set(&field, &name).await;
        let theirs = json!({"metadata": {"name": format!("{name}-a")}, "spec": {"image": "theirs"}});
        let request = create(APPLICATIONS.to_owned(), theirs);
        let (told, made) = against(&mut field, round, request, async |field, which| {
            let service = field.service(which);
            service.create_owned(&keeper, Kind::Application, child, &as_it_was(&set)).await
        })
        .await;
        let stored = entry(&field, Kind::Application, &format!("{name}-a")).await.unwrap();
        let image = stored.object().unwrap().str_at(&["spec", "image"]).to_owned();
        match (told, &made) {
            (201, Err(DoorError::Refused(_))) => {
                assert_eq!(image, "theirs", "round {round}");
                seen[0] += 1;
            }
            (409, Ok(_)) => {
                assert_eq!(image, "x", "round {round}");
                seen[1] += 1;
            }
            _ => panic!("round {round}: {told} {made:?}"),
        }
    }
    all_seen(&seen);
    field.end(some_rounds()).await;
}
