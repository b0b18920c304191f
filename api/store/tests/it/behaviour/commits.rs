//! Commits and their refusals.

use futures::future::join_all;
use horchestra_core::kind::{Key, Kind};
use horchestra_store::{ChangeKind, CommitError, Guard, Op, Refusal};
use uuid::Uuid;

use crate::fixture::*;

pub async fn a_create_is_seen_by_its_maker_and_by_others(world: &World) {
    let (one, other) = (world.store().await, world.store().await);
    let from = other.snapshot().revision();
    let mut watcher = other.watch(Kind::Application, from).expect("a watch");
    let made = created(&one, &app("web"), "1").await;
    assert_eq!(made.revision, from + 1);
    let seen = found(&other, &app("web")).await;
    assert_eq!((seen.revision, seen.body.clone()), (made.revision, made.body.clone()));
    let changes = changes_up_to(&mut watcher, made.revision).await;
    assert_eq!(changes.len(), 1);
    assert!(changes[0].previous.is_none());
    one.shutdown().await;
    other.shutdown().await;
    assert_eq!(watcher.next().await.unwrap_err(), horchestra_store::WatchEnd::Closed);
}

pub async fn of_twenty_creators_of_one_name_one_succeeds(world: &World) {
    let stores = [world.store().await, world.store().await];
    let attempts = (0..20).map(|n| {
        let store = &stores[n % 2];
        let op = create(&app("web"), &n.to_string());
        async move { store.commit(item(vec![op])).await }
    });
    let results = within(join_all(attempts)).await;
    let won: Vec<usize> = (0..20).filter(|n| results[*n].is_ok()).collect();
    assert_eq!(won.len(), 1);
    for result in results.iter().filter(|result| result.is_err()) {
        let refused = matches!(
            result,
            Err(CommitError::Refused(Refusal::AlreadyExists(key))) if *key == app("web")
        );
        assert!(refused, "{result:?}");
    }
    let stored = found(&stores[0], &app("web")).await;
    assert_eq!(value(&stored), won[0].to_string());
}

pub async fn of_twenty_updates_of_one_revision_one_succeeds(world: &World) {
    let stores = [world.store().await, world.store().await];
    let first = created(&stores[0], &app("web"), "first").await;
    let attempts = (0..20).map(|n| {
        let store = &stores[n % 2];
        let op = update(&first, &n.to_string());
        async move { store.commit(item(vec![op])).await }
    });
    let results = within(join_all(attempts)).await;
    let won: Vec<usize> = (0..20).filter(|n| results[*n].is_ok()).collect();
    assert_eq!(won.len(), 1);
    let stored = found(&stores[1], &app("web")).await;
    assert_eq!(value(&stored), won[0].to_string());
    for result in results.iter().filter(|result| result.is_err()) {
        let conflict = Refusal::Conflict { key: app("web"), head: stored.revision };
        assert!(matches!(result, Err(CommitError::Refused(refusal)) if *refusal == conflict), "{result:?}");
    }
}

pub async fn an_update_or_deletion_names_the_head_or_is_refused(world: &World) {
    let store = world.store().await;
    let first = created(&store, &app("web"), "1").await;
    put(&store, update(&first, "2")).await;
    let second = found(&store, &app("web")).await;
    let absent = placeholder(&app("absent"));
    let conflict = Refusal::Conflict { key: app("web"), head: second.revision };
    let cases = [
        ("an update of an old revision", update(&first, "3"), conflict.clone()),
        ("a status update of an old revision", update_status(&first, "3"), conflict.clone()),
        ("a deletion of an old revision", delete(&first), conflict),
        ("an update of nothing", update(&absent, "3"), Refusal::NotFound(app("absent"))),
        ("a deletion of nothing", delete(&absent), Refusal::NotFound(app("absent"))),
    ];
    for (what, op, expected) in cases {
        assert_eq!(refusal(&store, item(vec![op])).await, expected, "{what}");
    }
    let unchanged = found(&store, &app("web")).await;
    assert_eq!(unchanged.revision, second.revision);
    assert_eq!(store.snapshot().revision(), second.revision, "refusals take no revision");
}

pub async fn a_status_update_moves_the_revision_but_not_the_core_revision(world: &World) {
    let (store, other) = (world.store().await, world.store().await);
    let made = created(&store, &app("web"), "1").await;
    assert_eq!(made.core_revision, made.revision);
    put(&store, update_status(&made, "2")).await;
    put(&store, update_status(&*found(&store, &app("web")).await, "3")).await;
    for reader in [&store, &other] {
        let seen = found(reader, &app("web")).await;
        assert_eq!((seen.revision, seen.core_revision), (made.revision + 2, made.revision));
    }
    put(&store, update(&*found(&store, &app("web")).await, "4")).await;
    for reader in [&store, &other] {
        let seen = found(reader, &app("web")).await;
        assert_eq!((seen.revision, seen.core_revision), (made.revision + 3, made.revision + 3));
    }
}

pub async fn a_deletion_takes_a_revision_and_frees_the_name(world: &World) {
    let (store, other) = (world.store().await, world.store().await);
    let made = created(&store, &app("web"), "1").await;
    let deleted = put(&store, delete(&made)).await;
    assert_eq!(deleted, made.revision + 1);
    let again = created(&store, &app("web"), "2").await;
    assert_ne!(again.uid, made.uid);
    for watching in [&store, &other] {
        let mut watcher = watching.watch(Kind::Application, made.revision - 1).expect("a watch");
        let changes = changes_up_to(&mut watcher, again.revision).await;
        let web = |kind, revision, value: &str| (kind, "web".to_owned(), revision, value.to_owned());
        assert_eq!(
            changes.iter().map(brief).collect::<Vec<_>>(),
            [
                web(ChangeKind::Added, made.revision, "1"),
                web(ChangeKind::Deleted, deleted, "1"),
                web(ChangeKind::Added, again.revision, "2"),
            ]
        );
        let gone = &changes[1];
        assert_eq!((gone.entry.revision, gone.entry.core_revision), (deleted, deleted));
        assert_eq!(gone.entry.uid, made.uid);
        assert_eq!(gone.entry.body, made.body);
        assert_eq!(gone.previous.as_ref().and_then(|index| index.label("value")), Some("1"));
    }
}

pub async fn an_item_is_all_or_nothing(world: &World) {
    let store = world.store().await;
    let taken = created(&store, &app("taken"), "1").await;
    let before = taken.revision;
    let ops = [
        create(&app("one"), "1"),
        Op::Claim { space: space("ip"), value: "10.0.0.1".into(), owner: Uuid::new_v4(), shared: false },
        update(&taken, "2"),
        create(&app("taken"), "3"),
    ];
    // Two operations on one key are malformed, so the clash is made by another item.
    let clash = item(vec![ops[0].clone(), ops[1].clone(), create(&app("taken"), "3")]);
    assert_eq!(refusal(&store, clash).await, Refusal::AlreadyExists(app("taken")));
    let now = within(store.fresh()).await.expect("fresh");
    assert_eq!(now.revision(), before);
    assert!(now.get(&app("one")).is_none());
    assert_eq!(within(store.claims(&space("ip"))).await.expect("claims"), []);

    let committed = within(store.commit(item(ops[..3].to_vec()))).await.expect("committed");
    assert_eq!(committed.revisions, [before + 1, 0, before + 2]);
}

pub async fn the_first_refusal_in_a_fixed_order_is_reported(world: &World) {
    let store = world.store().await;
    let made = created(&store, &app("web"), "1").await;
    let full = Guard::Capacity { node: "nowhere".into(), zero_is_unbounded: true };
    let missing = Guard::Exists(namespace("missing"));
    let changed = Guard::Unchanged(app("web"), 0);
    let taken = || create(&app("web"), "2");
    let absent = || delete(&placeholder(&app("absent")));
    let guard = |index, guard: &Guard| Refusal::Guard { index, guard: guard.clone() };
    let cases = [
        ("guards in their order", vec![taken()], vec![&full, &changed, &missing], guard(1, &changed)),
        ("guards before operations", vec![taken()], vec![&missing], guard(0, &missing)),
        ("operations in their order", vec![absent(), taken()], vec![], Refusal::NotFound(app("absent"))),
        ("operations before capacity", vec![taken()], vec![&full], Refusal::AlreadyExists(app("web"))),
        ("capacity in the end", vec![update(&made, "2")], vec![&full], guard(0, &full)),
    ];
    for (what, ops, guards, expected) in cases {
        let guards = guards.into_iter().cloned().collect();
        assert_eq!(refusal(&store, guarded(ops, guards)).await, expected, "{what}");
    }
}

pub async fn a_refused_item_leaves_its_batch_alone(world: &World) {
    let backend = world.backend().await;
    let base = within(backend.head()).await.expect("head").revision;
    let batch = [
        item(vec![create(&app("a"), "1")]),
        guarded(vec![create(&app("b"), "1")], vec![Guard::Exists(namespace("missing"))]),
        item(vec![create(&app("c"), "1"), create(&app("d"), "1")]),
        item(vec![delete(&placeholder(&app("e")))]),
        item(vec![create(&app("f"), "1")]),
    ];
    let done = within(backend.commit(&batch, Uuid::new_v4())).await.expect("answered");
    let revisions: Vec<Option<Vec<i64>>> = done
        .items
        .iter()
        .map(|result| result.as_ref().ok().map(|done| done.revisions.iter().map(|r| r - base).collect()))
        .collect();
    assert_eq!(revisions, [Some(vec![1]), None, Some(vec![2, 3]), None, Some(vec![4])]);
    assert_eq!(within(backend.head()).await.expect("head").revision, base + 4);
}

pub async fn malformed_items_are_rejected_unseen(world: &World) {
    let store = world.store().await;
    let twice = vec![create(&app("a"), "1"), create(&app("a"), "2")];
    let many = (0..65).map(|n| create(&app(&n.to_string()), "1")).collect();
    for (what, ops) in [("no operation", vec![]), ("two on one key", twice), ("too many", many)] {
        let result = within(store.commit(item(ops))).await;
        assert!(matches!(result, Err(CommitError::Rejected(_))), "{what}: {result:?}");
    }
    assert_eq!(within(store.fresh()).await.expect("fresh").count(Kind::Application, None), 0);
}

pub async fn what_was_stored_comes_back_byte_for_byte(world: &World) {
    let store = world.store().await;
    let uid = Uuid::new_v4();
    let key = Key::namespaced(Kind::Application, "shop", "ünï-😀");
    let mut draft = draft(&key, uid, "wert 'mit' \"allem\" \\ \u{e9} 😀");
    draft.generation = 7;
    draft.deleting = true;
    draft.managed = Some(bytes::Bytes::from_static(br#"[{"manager":"kubectl"}]"#));
    draft.index.labels =
        vec![("a".into(), String::new()), ("b/c".into(), "d".into()), ("value".into(), "😀".into())];
    draft.index.fields = vec![("status.phase".into(), "Running".into())];
    draft.columns = horchestra_store::Columns {
        node: Some("node-1".into()),
        phase: Some("Running".into()),
        cpu: i64::MAX,
        memory: -1,
    };
    let before = draft.clone();
    put(&store, Op::Create(draft)).await;
    // Another process has it from the database only; a third from its load.
    let other = world.store().await;
    let backend = world.backend().await;
    let loaded = within(backend.load(&[Kind::Application])).await.expect("loaded");
    for entry in [found(&store, &key).await, found(&other, &key).await, loaded.entries[0].clone()] {
        assert_eq!(entry.key, before.key);
        assert_eq!((entry.uid, entry.generation, entry.deleting), (uid, 7, true));
        assert_eq!(entry.body, before.body);
        assert_eq!(entry.managed, before.managed);
        assert_eq!(*entry.index, before.index);
        assert_eq!(*entry.columns, before.columns);
    }
}

pub async fn commits_answer_the_row_before_them(world: &World) {
    let backend = world.backend().await;
    let first = [item(vec![create(&app("a"), "1")])];
    within(backend.commit(&first, Uuid::new_v4())).await.expect("committed");
    let head = within(backend.head()).await.expect("head").revision;
    let known = within(backend.changes(head - 1, 10)).await.expect("read").rows[0].fingerprint();
    let second = [item(vec![create(&app("b"), "1"), create(&app("c"), "1")])];
    let done = within(backend.commit(&second, Uuid::new_v4())).await.expect("committed");
    assert_eq!(done.anchor, Some(known));
}

pub async fn a_lost_answer_can_be_settled(world: &World) {
    let backend = world.backend().await;
    let happened = Uuid::new_v4();
    let batch = [
        item(vec![create(&app("a"), "1")]),
        item(vec![delete(&placeholder(&app("none")))]),
        item(vec![create(&app("b"), "1")]),
    ];
    let done = within(backend.commit(&batch, happened)).await.expect("committed");
    let settled = within(backend.settle(happened)).await.expect("settled").expect("it happened");
    let expected: Vec<_> = done.items.iter().map(|result| result.clone().ok()).collect();
    assert_eq!(settled, expected);

    let never = Uuid::new_v4();
    assert_eq!(within(backend.settle(never)).await.expect("settled"), None);
    let late = [item(vec![create(&app("late"), "1")])];
    assert!(within(backend.commit(&late, never)).await.is_err(), "a settled attempt cannot arrive late");
    assert_eq!(within(backend.settle(never)).await.expect("settled"), None);
    let loaded = within(backend.load(&[Kind::Application])).await.expect("loaded");
    assert!(loaded.entries.iter().all(|entry| entry.key != app("late")));
}
