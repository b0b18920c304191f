//! Commits, refusals and guards.

use crate::fixture::*;

pub async fn a_create_is_seen_by_its_maker_and_by_others(world: &World) {
    let (one, other) = (world.store().await, world.store().await);
    let mut watcher = other.watch(horchestra_core::kind::Kind::Application, 0).expect("a watch");
    let made = created(&one, &app("web"), "1").await;
    assert_eq!(made.revision, 1);
    let seen = found(&other, &app("web")).await;
    assert_eq!((seen.revision, seen.body.clone()), (made.revision, made.body.clone()));
    let changes = changes_up_to(&mut watcher, made.revision).await;
    assert_eq!(changes.len(), 1);
    assert!(changes[0].previous.is_none());
    one.shutdown().await;
    other.shutdown().await;
    assert_eq!(watcher.next().await.unwrap_err(), horchestra_store::WatchEnd::Closed);
}
