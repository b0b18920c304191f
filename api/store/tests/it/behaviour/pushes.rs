//! Records of pushes, and holds.

use std::collections::BTreeSet;
use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_store::backend::Identity;
use horchestra_store::pushes::reason;
use horchestra_store::{Holding, Loss, PushChange, PushRecord, Retention, SessionClaim, SessionGrant, Store};
use uuid::Uuid;

use crate::fixture::*;

const LONG: Duration = Duration::from_secs(600);

async fn session(store: &Store, gateway: Uuid, node: &str) -> SessionGrant {
    within(store.renew_gateway(gateway, "127.0.0.1:1", LONG)).await.expect("renewed");
    let claim =
        SessionClaim { node: node.into(), gateway, peer: "10.0.0.9:1".into(), certificate: "ab".into() };
    within(store.claim_session(claim, LONG)).await.expect("answered").expect("free")
}

fn holding(name: &str) -> Holding {
    Holding { key: app(name), uid: Uuid::new_v4() }
}

fn change(node: &str, grant: &SessionGrant, add: &[&Holding], remove: &[&Holding]) -> PushChange {
    let owned = |held: &[&Holding]| held.iter().map(|held| (*held).clone()).collect();
    PushChange {
        node: node.to_owned(),
        grant: grant.clone(),
        revision: 7,
        add: owned(add),
        remove: owned(remove),
    }
}

/// The record of a node: its revision, and what is on it.
async fn record(store: &Store, node: &str) -> (Option<i64>, BTreeSet<Holding>) {
    let (records, _) = within(store.push_records(&[node.to_owned()])).await.expect("answered");
    let PushRecord { revision, holdings } = records.into_iter().next().expect("one");
    (revision, holdings.into_iter().collect())
}

fn set(held: &[&Holding]) -> BTreeSet<Holding> {
    held.iter().map(|held| (*held).clone()).collect()
}

pub async fn a_record_names_what_was_added_and_not_taken_off(world: &World) {
    let store = world.store().await;
    let gateway = Uuid::new_v4();
    let (one, two) = (session(&store, gateway, "n1").await, session(&store, gateway, "n2").await);
    let (a, b, c) = (holding("a"), holding("b"), holding("c"));
    let volume = Holding { key: Key::namespaced(Kind::PersistentVolume, "shop", "a"), uid: a.uid };
    assert_eq!(record(&store, "n1").await, (None, set(&[])), "nothing was ever sent there");

    let first = [change("n1", &one, &[&a, &b, &volume], &[]), change("n2", &two, &[], &[])];
    assert_eq!(within(store.record_pushes(&first)).await.expect("written"), Vec::<String>::new());
    assert_eq!(record(&store, "n1").await, (Some(7), set(&[&a, &b, &volume])));
    assert_eq!(record(&store, "n2").await, (Some(7), set(&[])), "it was sent that it has nothing");

    let next = [change("n1", &one, &[&c, &a], &[&b]), change("n2", &two, &[&b], &[&a])];
    within(store.record_pushes(&next)).await.expect("written");
    assert_eq!(record(&store, "n1").await.1, set(&[&a, &c, &volume]));
    assert_eq!(record(&store, "n2").await.1, set(&[&b]), "of that node alone");
    let asked = ["n2", "nobody", "n1"].map(str::to_owned);
    let (records, _) = within(store.push_records(&asked)).await.expect("answered");
    let counts: Vec<usize> = records.iter().map(|record| record.holdings.len()).collect();
    assert_eq!(counts, [1, 0, 3], "in the order of the question");
}

pub async fn a_session_that_was_lost_writes_no_record(world: &World) {
    let store = world.store().await;
    let gateway = Uuid::new_v4();
    let lost = session(&store, gateway, "n1").await;
    within(store.release_session("n1", &lost)).await.expect("released");
    let held = session(&store, gateway, "n1").await;
    let (a, b) = (holding("a"), holding("b"));
    within(store.record_pushes(&[change("n1", &held, &[&a], &[])])).await.expect("written");
    let other = session(&store, gateway, "n2").await;
    let late = [change("n1", &lost, &[&b], &[&a]), change("n2", &other, &[&b], &[])];
    assert_eq!(within(store.record_pushes(&late)).await.expect("answered"), ["n1"]);
    assert_eq!(record(&store, "n1").await.1, set(&[&a]));
    assert_eq!(record(&store, "n2").await.1, set(&[&b]), "the others are written");
}

pub async fn a_hold_is_of_all_nodes_or_of_one_until_it_is_released(world: &World) {
    let store = world.store().await;
    let held = async || {
        let holds = within(store.holds()).await.expect("answered");
        ["n1", "n2"].map(|node| holds.of(node).map(|hold| hold.reason.clone()).unwrap_or_default())
    };
    let engage = async |node: Option<&str>, reason: &str| {
        within(store.engage_hold(node, reason, "why")).await.expect("engaged");
    };
    let release = async |node: Option<&str>| within(store.release_hold(node)).await.expect("answered");
    assert_eq!(held().await, ["", ""]);
    assert!(!release(None).await && !release(Some("n1")).await, "nothing was held");
    engage(None, "All").await;
    let first = within(store.holds()).await.expect("answered").cluster.expect("engaged");
    assert_eq!(first.message, "why");
    assert_eq!(held().await, ["All", "All"]);
    assert!(release(Some("n1")).await);
    assert!(!release(Some("n1")).await, "once is enough");
    assert_eq!(held().await, ["", "All"]);
    engage(Some("n1"), "Own").await;
    engage(Some("n1"), "Other").await;
    assert_eq!(held().await, ["Other", "All"]);
    assert!(release(Some("n1")).await);
    assert_eq!(held().await, ["", "All"]);
    engage(None, "Again").await;
    assert_eq!(held().await, ["Again", "Again"], "who was released is held by the next one");
    let second = within(store.holds()).await.expect("answered").cluster.expect("engaged");
    assert!(second.id != first.id && second.since >= first.since);
    engage(Some("n2"), "Own").await;
    assert!(release(None).await);
    assert_eq!(held().await, ["", ""]);
    assert_eq!(within(store.holds()).await.expect("answered"), Default::default());
}

pub async fn a_release_takes_what_nobody_can_explain_off_the_record(world: &World) {
    let store = world.store().await;
    let gateway = Uuid::new_v4();
    let stored = created(&store, &app("stored"), "1").await;
    let deleted = created(&store, &app("deleted"), "1").await;
    put(&store, delete(&deleted)).await;
    let (first, second) = (holding("stored"), holding("unknown"));
    let known = Holding { key: app("stored"), uid: stored.uid };
    let gone = Holding { key: app("deleted"), uid: deleted.uid };
    for node in ["n1", "n2"] {
        let grant = session(&store, gateway, node).await;
        let all = [change(node, &grant, &[&known, &gone, &first, &second], &[])];
        within(store.record_pushes(&all)).await.expect("written");
    }
    within(store.engage_hold(Some("n1"), reason::UNEXPLAINED, "why")).await.expect("engaged");
    within(store.release_hold(Some("n1"))).await.expect("released");
    assert_eq!(record(&store, "n1").await.1, set(&[&known, &gone]), "the name alone explains nothing");
    assert_eq!(record(&store, "n2").await.1.len(), 4);
    within(store.release_hold(None)).await.expect("released");
    assert_eq!(record(&store, "n2").await.1, set(&[&known, &gone]));

    // A record that was ahead of the database is not any more, and who was never sent anything has a record.
    let head = within(store.backend().head()).await.expect("head").revision;
    let grant = session(&store, gateway, "n3").await;
    let ahead = [PushChange { revision: head + 100, ..change("n3", &grant, &[], &[]) }];
    within(store.record_pushes(&ahead)).await.expect("written");
    for node in ["n3", "n4"] {
        within(store.release_hold(Some(node))).await.expect("released");
    }
    assert_eq!((record(&store, "n3").await.0, record(&store, "n4").await.0), (Some(head), Some(0)));
}

pub async fn each_history_that_was_known_further_engages_the_hold_once(world: &World) {
    let store = world.store().await;
    let backend = store.backend();
    put(&store, create(&app("a"), "1")).await;
    let head = within(backend.head()).await.expect("head");
    let elsewhere = Identity { epoch: Uuid::new_v4(), ..head.identity.clone() };
    let loss = |known: &Identity, begins| Loss {
        known: known.clone(),
        revision: head.revision + 100,
        found: head.identity.clone(),
        begins,
    };
    let cluster = async || within(store.holds()).await.expect("answered").cluster;
    within(backend.show_loss(&loss(&elsewhere, true))).await.expect("answered");
    // This process, too, has known another history than the one that begins now, and says so.
    within(store.fresh()).await.expect("loaded anew");
    let engaged = cluster().await.expect("engaged");
    assert_eq!(engaged.reason, reason::HISTORY_LOST);
    let after = within(backend.head()).await.expect("head");
    assert_ne!(after.identity, head.identity);
    assert!(after.revision > head.revision + 100, "a new epoch above all that was known");

    // Others who knew it say the same, also when all is released.
    for begins in [true, false] {
        within(backend.show_loss(&loss(&elsewhere, begins))).await.expect("answered");
        assert_eq!(cluster().await.as_ref(), Some(&engaged));
    }
    within(store.release_hold(None)).await.expect("released");
    within(backend.show_loss(&loss(&elsewhere, true))).await.expect("answered");
    assert_eq!(cluster().await, None);
    assert_eq!(within(backend.head()).await.expect("head").identity, after.identity);

    let other_system = Identity { system: "another".to_owned(), ..head.identity.clone() };
    within(backend.show_loss(&loss(&other_system, false))).await.expect("answered");
    assert_eq!(cluster().await.map(|hold| hold.reason), Some(reason::DATABASE_REPLACED.to_owned()));
}

pub async fn tombstones_of_what_is_on_record_are_kept(world: &World) {
    let store = world.store().await;
    let grant = session(&store, Uuid::new_v4(), "n1").await;
    put(&store, create(&node("n1"), "1")).await;
    let mut held = Vec::new();
    for name in ["on-record", "taken-off", "never-sent"] {
        let entry = created(&store, &app(name), "1").await;
        put(&store, delete(&entry)).await;
        held.push(Holding { key: app(name), uid: entry.uid });
    }
    let uids: Vec<Uuid> = held.iter().map(|held| held.uid).collect();
    let sent = [change("n1", &grant, &[&held[0], &held[1]], &[])];
    within(store.record_pushes(&sent)).await.expect("written");
    within(store.record_pushes(&[change("n1", &grant, &[], &[&held[1]])])).await.expect("written");
    let at_once = Retention { log: LONG, versions: 10, tombstones: Duration::ZERO };
    let kept = async || {
        within(store.maintain(at_once)).await.expect("maintained");
        let tombstones = within(store.tombstones(&uids)).await.expect("answered");
        tombstones.into_iter().map(|tombstone| tombstone.key.name).collect::<Vec<_>>()
    };
    assert_eq!(kept().await, ["on-record"]);
    assert_eq!(record(&store, "n1").await.1, set(&[&held[0]]));
    // Without a Node there is nobody to ask any more.
    let entry = found(&store, &node("n1")).await;
    put(&store, delete(&entry)).await;
    assert_eq!(kept().await, Vec::<String>::new());
    assert_eq!(record(&store, "n1").await, (None, set(&[])));
}
