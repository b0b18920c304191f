//! Claims.

use horchestra_store::{ClaimRow, CommitError, Guard, Item, Op, OwnedClaim, Refusal, Store};
use uuid::Uuid;

use crate::fixture::*;

fn claim(space: &str, value: &str, owner: Uuid, shared: bool) -> Op {
    Op::Claim { space: space.into(), value: value.into(), owner, shared }
}

async fn takes(store: &Store, op: Op) -> bool {
    match within(store.commit(item(vec![op]))).await {
        Ok(done) => {
            assert_eq!(done.revisions, [0]);
            true
        }
        Err(CommitError::Refused(Refusal::ClaimTaken { .. })) => false,
        Err(other) => panic!("{other:?}"),
    }
}

async fn held(store: &Store, space: &str) -> Vec<(String, Uuid, bool)> {
    let rows = within(store.claims(space)).await.expect("claims");
    rows.into_iter().map(|row| (row.value, row.owner, row.shared)).collect()
}

pub async fn a_value_has_one_owner(world: &World) {
    let store = world.store().await;
    let base = store.snapshot().revision();
    let space = space("ip");
    let (a, b) = (Uuid::new_v4(), Uuid::new_v4());
    assert!(takes(&store, claim(&space, "1", a, false)).await);
    assert!(takes(&store, claim(&space, "1", a, false)).await, "again by its owner");
    assert!(!takes(&store, claim(&space, "1", b, false)).await);
    assert!(!takes(&store, claim(&space, "1", b, true)).await, "not even shared");
    assert!(takes(&store, claim(&space, "2", b, false)).await);
    assert!(takes(&store, claim(&format!("{space}-other"), "1", b, false)).await, "another space");
    assert_eq!(held(&store, &space).await, [("1".into(), a, false), ("2".into(), b, false)]);
    assert_eq!(within(store.fresh()).await.expect("fresh").revision(), base, "claims take no revision");
}

pub async fn shared_claims_go_together(world: &World) {
    let store = world.store().await;
    let space = space("uid");
    let (a, b) = (Uuid::new_v4(), Uuid::new_v4());
    assert!(takes(&store, claim(&space, "1", a, true)).await);
    assert!(takes(&store, claim(&space, "1", b, true)).await);
    assert!(!takes(&store, claim(&space, "1", Uuid::new_v4(), false)).await);
    assert!(!takes(&store, claim(&space, "1", a, false)).await, "exclusive for one of two holders");
    assert!(takes(&store, Op::Release { space: space.clone(), owner: b }).await);
    assert!(takes(&store, claim(&space, "1", a, false)).await, "exclusive for the last");
    assert!(!takes(&store, claim(&space, "1", b, true)).await);
    assert!(takes(&store, claim(&space, "1", a, true)).await, "and shared again");
    assert!(takes(&store, claim(&space, "1", b, true)).await);
}

pub async fn deletion_and_release_give_back(world: &World) {
    let store = world.store().await;
    let (ips, ports) = (space("ip"), space("port"));
    let made = created(&store, &app("web"), "1").await;
    let other = Uuid::new_v4();
    for (space, value) in [(&ips, "1"), (&ips, "2"), (&ports, "80")] {
        assert!(takes(&store, claim(space, value, made.uid, true)).await);
        assert!(takes(&store, claim(space, value, other, true)).await);
    }
    assert!(takes(&store, Op::Release { space: ips.clone(), owner: made.uid }).await);
    assert!(takes(&store, Op::Release { space: ips.clone(), owner: made.uid }).await, "nothing held is fine");
    assert_eq!(held(&store, &ips).await, [("1".into(), other, true), ("2".into(), other, true)]);
    assert_eq!(held(&store, &ports).await.len(), 2, "another space is not touched");
    put(&store, delete(&made)).await;
    assert_eq!(held(&store, &ports).await, [("80".into(), other, true)]);
}

pub async fn claims_of_one_batch_see_each_other(world: &World) {
    let backend = world.backend().await;
    let store = world.store().await;
    let space = space("ip");
    let [a, b, c] = [Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4()];
    let old = created(&store, &app("old"), "1").await;
    assert!(takes(&store, claim(&space, "9", old.uid, false)).await);
    let with = |name: &str, ops: Vec<Op>| {
        let mut all = vec![create(&app(name), "1")];
        all.extend(ops);
        item(all)
    };
    let release = |owner| Op::Release { space: space.clone(), owner };
    let batch: [(&str, Item, bool); 9] = [
        ("free", with("a", vec![claim(&space, "1", a, false)]), true),
        ("taken just now", with("b", vec![claim(&space, "1", b, false)]), false),
        ("another value", with("c", vec![claim(&space, "2", b, false)]), true),
        ("given back", item(vec![release(a)]), true),
        ("taken after that", with("d", vec![claim(&space, "1", c, false)]), true),
        ("still held by what lives", with("e", vec![claim(&space, "9", a, false)]), false),
        ("its owner goes", item(vec![delete(&old)]), true),
        ("free with its owner gone", with("f", vec![claim(&space, "9", a, false)]), true),
        (
            "all or nothing",
            with("g", vec![claim(&space, "3", b, false), claim(&space, "1", b, false)]),
            false,
        ),
    ];
    let items: Vec<Item> = batch.iter().map(|(_, item, _)| item.clone()).collect();
    let done = within(backend.commit(&items, Uuid::new_v4())).await.expect("answered");
    for ((what, _, expected), result) in batch.iter().zip(&done.items) {
        assert_eq!(result.is_ok(), *expected, "{what}: {result:?}");
    }
    let expected = [("1".into(), c, false), ("2".into(), b, false), ("9".into(), a, false)];
    assert_eq!(held(&store, &space).await, expected);
}

pub async fn an_object_comes_with_its_claims_or_not_at_all(world: &World) {
    let backend = world.backend().await;
    let store = world.store().await;
    let (ips, ports) = (space("ip"), space("port"));
    let (own, other) = (Uuid::new_v4(), Uuid::new_v4());
    assert!(takes(&store, claim(&ips, "1", other, false)).await);
    let web = |further: Vec<Op>| {
        let mut ops = vec![create(&app("web"), "1")];
        ops.extend(further);
        item(ops)
    };
    let taken = web(vec![claim(&ports, "80", own, false), claim(&ips, "1", own, false)]);
    let found = refusal(&store, taken).await;
    assert_eq!(found, Refusal::ClaimTaken { space: ips.clone(), value: "1".into() });
    assert_eq!(within(store.fresh()).await.expect("fresh").get(&app("web")), None);
    assert_eq!(held(&store, &ports).await, []);

    let nonce = Uuid::new_v4();
    let free = web(vec![claim(&ports, "80", own, false), claim(&ips, "2", own, false)]);
    let done = within(backend.commit(&[free], nonce)).await.expect("answered");
    let committed = done.items[0].as_ref().expect("committed");
    assert_eq!(committed.revisions[1..], [0, 0]);
    let settled = within(backend.settle(nonce)).await.expect("answered").expect("it happened");
    assert_eq!(settled, [Some(committed.clone())], "who asks again hears the same");

    let existing = refusal(&store, web(vec![claim(&ips, "3", own, false)])).await;
    assert_eq!(existing, Refusal::AlreadyExists(app("web")));
    let before = self::found(&store, &app("web")).await;
    let release = Op::Release { space: ips.clone(), owner: own };
    let moved = item(vec![update(&before, "2"), release, claim(&ips, "4", own, false)]);
    within(store.commit(moved)).await.expect("committed");
    let rows = [("1".into(), other, false), ("4".into(), own, false)];
    assert_eq!(held(&store, &ips).await, rows);
}

pub async fn numbers_are_unclaimed_by_others(world: &World) {
    let backend = world.backend().await;
    let store = world.store().await;
    let space = space("ids");
    let [a, b, c] = [Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4()];
    for (value, owner) in [("100/50", a), ("7", a), ("7", b), ("300", b), ("200/1", b), ("10.0.0.1", a)] {
        assert!(takes(&store, claim(&space, value, owner, true)).await);
    }
    let free = |value: &str, owner| Guard::Unclaimed { space: space.clone(), value: value.into(), owner };
    for (value, owner, expected) in [
        ("6", c, true),
        ("7", c, false),
        ("7", a, false),
        ("8/92", c, true),
        ("8/93", c, false),
        ("8/93", a, true),
        ("100", c, false),
        ("149", c, false),
        ("149/2", c, false),
        ("150/50", c, true),
        ("150/51", c, false),
        ("0/999999999", c, false),
        ("120/1", c, false),
        ("120/1", a, true),
        ("301/99", c, true),
        ("999999999999999", c, true),
    ] {
        let probe = app(&format!("probe-{}", Uuid::new_v4()));
        let probed = within(store.commit(guarded(vec![create(&probe, "1")], vec![free(value, owner)]))).await;
        assert_eq!(probed.is_ok(), expected, "{value}: {probed:?}");
    }
    let nonsense = within(store.commit(guarded(vec![create(&app("x"), "1")], vec![free("7/", c)]))).await;
    assert!(matches!(nonsense, Err(CommitError::Rejected(_))), "{nonsense:?}");

    // Within one batch, each sees what those before it took and gave back.
    let take = |name: &str, value: &str, owner| {
        let ops = vec![create(&app(name), "1"), claim(&space, value, owner, true)];
        guarded(ops, vec![free(value, owner)])
    };
    let batch: [(&str, Item, bool); 6] = [
        ("free", take("a", "400", a), true),
        ("taken just now", take("b", "400", b), false),
        ("another", take("c", "401", b), true),
        ("a range around it", take("d", "390/20", c), false),
        ("given back", item(vec![Op::Release { space: space.clone(), owner: a }]), true),
        ("taken after that", take("e", "400", c), true),
    ];
    let items: Vec<Item> = batch.iter().map(|(_, item, _)| item.clone()).collect();
    let done = within(backend.commit(&items, Uuid::new_v4())).await.expect("answered");
    for ((what, _, expected), result) in batch.iter().zip(&done.items) {
        assert_eq!(result.is_ok(), *expected, "{what}: {result:?}");
    }
}

pub async fn all_claims_are_read_in_stretches_with_the_fate_of_their_owners(world: &World) {
    let store = world.store().await;
    let (ips, ports) = (space("ip"), space("port"));
    let (alive, dead) = (created(&store, &app("alive"), "1").await, created(&store, &app("dead"), "1").await);
    let stranger = Uuid::new_v4();
    put(&store, delete(&dead)).await;
    let mut expected = Vec::new();
    for (space, value, owner, shared) in [
        (&ips, "1", alive.uid, true),
        (&ips, "1", dead.uid, true),
        (&ips, "2", stranger, false),
        (&ports, "1", dead.uid, false),
    ] {
        assert!(takes(&store, claim(space, value, owner, shared)).await);
        let claim = ClaimRow { space: space.clone(), value: value.into(), owner, shared };
        expected.push(OwnedClaim { claim, owner_deleted: owner == dead.uid });
    }
    expected.sort_by(|a, b| a.claim.cmp(&b.claim));
    for limit in 1..=5 {
        let mut seen: Vec<OwnedClaim> = Vec::new();
        loop {
            let after = seen.last().map(|last| last.claim.clone());
            let page = within(store.all_claims(after.as_ref(), limit)).await.expect("read");
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            seen.extend(page);
        }
        assert_eq!(seen, expected, "{limit} at a time");
    }
    let tombstones = within(store.tombstones(&[alive.uid, dead.uid, stranger])).await.expect("read");
    let found: Vec<(Uuid, &str)> = tombstones.iter().map(|row| (row.uid, row.who.verb.as_str())).collect();
    assert_eq!(found, [(dead.uid, "test")]);
    assert!(tombstones[0].deleted && tombstones[0].body == dead.body);
    assert!(within(store.tombstones(&[])).await.expect("read").is_empty());
}
