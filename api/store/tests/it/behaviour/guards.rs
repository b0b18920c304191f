//! Guards, alone and in races.

use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_store::{Class, Edge, Guard, Item, Op, Relation, SessionClaim, Store};
use uuid::Uuid;

use crate::fixture::*;

/// Whether an item with this guard alone (and a create of no consequence) is committed.
async fn holds(store: &Store, guard: Guard) -> bool {
    let probe = Key::namespaced(Kind::Secret, "probes", Uuid::new_v4().to_string());
    let result = within(store.commit(guarded(vec![create(&probe, "probe")], vec![guard]))).await;
    match result {
        Ok(_) => true,
        Err(horchestra_store::CommitError::Refused(horchestra_store::Refusal::Guard {
            index: 0, ..
        })) => false,
        Err(other) => panic!("{other:?}"),
    }
}

pub async fn exists_and_unchanged_look_at_the_head(world: &World) {
    let store = world.store().await;
    let made = created(&store, &app("web"), "1").await;
    put(&store, update(&made, "2")).await;
    let head = found(&store, &app("web")).await.revision;
    let mut dying = draft(&app("dying"), Uuid::new_v4(), "1");
    dying.deleting = true;
    put(&store, Op::Create(dying)).await;
    let cases = [
        ("a live object exists", Guard::Exists(app("web")), true),
        ("one being deleted does not", Guard::Exists(app("dying")), false),
        ("nothing does not", Guard::Exists(app("none")), false),
        ("the same name of another kind does not", Guard::Exists(secret("web")), false),
        ("the head is unchanged", Guard::Unchanged(app("web"), head), true),
        ("an old revision is not", Guard::Unchanged(app("web"), made.revision), false),
        ("what is there is not absent", Guard::Unchanged(app("web"), 0), false),
        ("what is absent is", Guard::Unchanged(app("none"), 0), true),
        ("what is absent has no revision", Guard::Unchanged(app("none"), head), false),
    ];
    for (what, guard, expected) in cases {
        assert_eq!(holds(&store, guard).await, expected, "{what}");
    }
}

pub async fn a_namespace_is_empty_but_for_events(world: &World) {
    let store = world.store().await;
    let empty = || Guard::NamespaceEmpty("shop".into());
    put(&store, create(&namespace("shop"), "1")).await;
    put(&store, create(&Key::namespaced(Kind::Event, "shop", "e"), "1")).await;
    put(&store, create(&Key::namespaced(Kind::Application, "shop2", "web"), "1")).await;
    assert!(holds(&store, empty()).await);
    for kind in Kind::ALL.into_iter().filter(|kind| kind.namespaced() && *kind != Kind::Event) {
        let key = Key::namespaced(kind, "shop", "x");
        let content = created(&store, &key, "1").await;
        assert!(!holds(&store, empty()).await, "{kind}");
        put(&store, delete(&content)).await;
        assert!(holds(&store, empty()).await, "{kind}");
    }
}

pub async fn events_of_a_namespace_are_counted(world: &World) {
    let store = world.store().await;
    let at_most = |limit| Guard::EventsAtMost { namespace: "shop".into(), limit };
    put(&store, create(&Key::namespaced(Kind::Application, "shop", "web"), "1")).await;
    put(&store, create(&Key::namespaced(Kind::Event, "shop2", "e"), "1")).await;
    assert!(holds(&store, at_most(0)).await, "other kinds and namespaces do not count");
    let one = created(&store, &Key::namespaced(Kind::Event, "shop", "e"), "1").await;
    let two = created(&store, &Key::namespaced(Kind::Event, "shop", "f"), "1").await;
    for (limit, expected) in [(0, false), (1, false), (2, true), (3, true)] {
        assert_eq!(holds(&store, at_most(limit)).await, expected, "{limit}");
    }
    // Judged before what the item itself does.
    let all = vec![delete(&one), delete(&two)];
    assert!(within(store.commit(guarded(all.clone(), vec![at_most(1)]))).await.is_err());
    within(store.commit(guarded(all, vec![at_most(2)]))).await.expect("they are all");
    assert!(holds(&store, at_most(0)).await);
}

pub async fn references_are_counted(world: &World) {
    let store = world.store().await;
    let target = || secret("password");
    let none = || Guard::NoEdge { relation: Relation::Secret, target: target() };
    let at_most = |limit| Guard::EdgesAtMost { relation: Relation::Secret, target: target(), limit };
    let to = |relation| vec![Edge { relation, target: target() }];
    let user = |name: &str, edges| Op::Create(referring(draft(&app(name), Uuid::new_v4(), "1"), edges));

    assert!(holds(&store, none()).await);
    assert!(holds(&store, at_most(0)).await);
    put(&store, user("optional", to(Relation::SecretOptional))).await;
    put(&store, user("other", vec![Edge { relation: Relation::Secret, target: secret("other") }])).await;
    assert!(holds(&store, none()).await, "other relations and targets do not count");

    put(&store, user("one", to(Relation::Secret))).await;
    assert!(!holds(&store, none()).await);
    assert!(!holds(&store, at_most(0)).await);
    assert!(holds(&store, at_most(1)).await);
    put(&store, user("two", to(Relation::Secret))).await;
    assert!(!holds(&store, at_most(1)).await);

    // An update replaces references; a deletion ends them.
    put(&store, update(&*found(&store, &app("one")).await, "2")).await;
    assert!(holds(&store, at_most(1)).await);
    put(&store, delete(&*found(&store, &app("two")).await)).await;
    assert!(holds(&store, none()).await);
}

fn bind(name: &str, on: &str, cpu: i64, zero_is_unbounded: bool) -> Item {
    let draft = placed(draft(&app(name), Uuid::new_v4(), "1"), on, cpu);
    guarded(vec![Op::Create(draft)], vec![Guard::Capacity { node: on.into(), zero_is_unbounded }])
}

pub async fn two_binds_that_do_not_fit_together_are_not_both_stored(world: &World) {
    let (one, other) = (world.store().await, world.store().await);
    let backend = world.backend().await;
    for name in ["batch", "batches", "processes"] {
        put(&one, Op::Create(capacity(draft(&node(name), Uuid::new_v4(), "1"), 4))).await;
    }
    let batch = [bind("a", "batch", 3, false), bind("b", "batch", 3, false), bind("c", "batch", 1, false)];
    let done = within(backend.commit(&batch, Uuid::new_v4())).await.expect("answered");
    assert_eq!(done.items.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);

    let first = within(backend.commit(&[bind("d", "batches", 3, false)], Uuid::new_v4())).await;
    assert!(first.expect("answered").items[0].is_ok());
    let second = within(backend.commit(&[bind("e", "batches", 3, false)], Uuid::new_v4())).await;
    assert!(second.expect("answered").items[0].is_err());

    let (left, right) = within(async {
        tokio::join!(
            one.commit(bind("f", "processes", 3, false)),
            other.commit(bind("g", "processes", 3, false))
        )
    })
    .await;
    assert_ne!(left.is_ok(), right.is_ok(), "{left:?} {right:?}");
}

pub async fn capacity_counts_what_the_item_itself_changes(world: &World) {
    let backend = world.backend().await;
    let store = world.store().await;
    put(&store, Op::Create(capacity(draft(&node("n"), Uuid::new_v4(), "1"), 4))).await;
    within(store.commit(bind("a", "n", 4, false))).await.expect("it fits exactly");
    let a = found(&store, &app("a")).await;
    let resize = |cpu| {
        let draft = placed(draft(&a.key, a.uid, "2"), "n", cpu);
        let guard = Guard::Capacity { node: "n".into(), zero_is_unbounded: false };
        guarded(vec![Op::Update { draft, expect: a.revision, class: Class::Core }], vec![guard])
    };
    assert!(within(store.commit(resize(5))).await.is_err(), "larger than the node");

    // Room made earlier in the batch, by an item without a guard, counts; and only once.
    let finished = item(vec![Op::Update {
        draft: placed(draft(&a.key, a.uid, "2"), "n", 0),
        expect: a.revision,
        class: Class::Status,
    }]);
    let batch = [finished, bind("b", "n", 3, false), bind("c", "n", 2, false), bind("d", "n", 1, false)];
    let done = within(backend.commit(&batch, Uuid::new_v4())).await.expect("answered");
    assert_eq!(done.items.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, true]);
    // So does what a deletion gives back, and what an unguarded create takes.
    let b = found(&store, &app("b")).await;
    let unguarded = item(vec![Op::Create(placed(draft(&app("e"), Uuid::new_v4(), "1"), "n", 2))]);
    let batch = [item(vec![delete(&b)]), unguarded, bind("f", "n", 2, false), bind("g", "n", 1, false)];
    let done = within(backend.commit(&batch, Uuid::new_v4())).await.expect("answered");
    assert_eq!(done.items.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, true]);
}

pub async fn a_node_without_capacity_takes_all_or_nothing(world: &World) {
    let store = world.store().await;
    put(&store, create(&node("n"), "1")).await;
    let cases = [
        ("an author may", bind("a", "n", 3, true), true),
        ("the scheduler may not", bind("b", "n", 3, false), false),
        ("nobody may on no node", bind("c", "none", 0, true), false),
    ];
    for (what, item, expected) in cases {
        assert_eq!(within(store.commit(item)).await.is_ok(), expected, "{what}");
    }
}

pub async fn a_guard_on_a_lease_fences(world: &World) {
    let store = world.store().await;
    let name = format!("lease-{}", Uuid::new_v4());
    let is = |epoch| Guard::LeaseIs { name: name.clone(), epoch };
    assert!(!holds(&store, is(1)).await, "nobody holds it");
    let (first, second) = (Uuid::new_v4(), Uuid::new_v4());
    let ttl = Duration::from_secs(600);
    let held = within(store.acquire_lease(&name, first, ttl)).await.expect("answered").expect("it is free");
    assert!(holds(&store, is(held.epoch)).await);
    within(store.release_lease(&held)).await.expect("released");
    assert!(!holds(&store, is(held.epoch)).await, "released");
    let next = within(store.acquire_lease(&name, second, ttl)).await.expect("answered").expect("free again");
    assert!(!holds(&store, is(held.epoch)).await, "the epoch before");
    assert!(holds(&store, is(next.epoch)).await);
}

pub async fn a_guard_on_a_session_fences(world: &World) {
    let store = world.store().await;
    let gateway = Uuid::new_v4();
    let minute = Duration::from_secs(60);
    within(store.renew_gateway(gateway, "127.0.0.1:1", minute)).await.expect("renewed");
    let claim =
        SessionClaim { node: "n".into(), gateway, peer: "127.0.0.1:2".into(), certificate: "00".into() };
    let grant = within(store.claim_session(claim, minute)).await.expect("answered").expect("it is free");
    let is = |epoch, session| Guard::SessionIs { node: "n".into(), epoch, session };
    assert!(holds(&store, is(grant.epoch, grant.session)).await);
    assert!(!holds(&store, is(grant.epoch, Uuid::new_v4())).await, "both parts count");
    assert!(!holds(&store, is(grant.epoch + 1, grant.session)).await);
    within(store.release_session("n", &grant)).await.expect("released");
    assert!(!holds(&store, is(grant.epoch, grant.session)).await);
}
