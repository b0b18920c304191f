//! Leases, gateways, sessions and heartbeats.

use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use horchestra_store::{
    DeniedCertificates, Heartbeat, Pruned, Samples, SeenSession, SessionClaim, SessionGrant, SessionRow,
};
use tokio::time::timeout;
use uuid::Uuid;

use crate::fixture::*;

const LONG: Duration = Duration::from_secs(600);

pub async fn a_lease_has_one_holder_and_its_epoch_counts_holders(world: &World) {
    let store = world.store().await;
    let (a, b) = (Uuid::new_v4(), Uuid::new_v4());
    let name = format!("lease-{}", Uuid::new_v4());
    let acquire =
        async |holder, ttl| within(store.acquire_lease(&name, holder, ttl)).await.expect("answered");
    let first = acquire(a, LONG).await.expect("free");
    assert_eq!((first.holder, first.name.as_str()), (a, name.as_str()));
    assert_eq!(acquire(b, LONG).await, None);
    let left = async || within(store.lease_left(&name)).await.expect("answered");
    let seen = left().await.expect("held");
    assert!(seen <= LONG && seen > LONG - Duration::from_secs(60), "{seen:?} of {LONG:?}");
    assert_eq!(acquire(a, LONG).await.as_ref(), Some(&first), "its holder keeps the epoch");
    assert!(within(store.renew_lease(&first, LONG)).await.expect("answered"));

    // A term of no length has ended at once.
    assert!(within(store.renew_lease(&first, Duration::ZERO)).await.expect("answered"));
    assert_eq!(left().await, Some(Duration::ZERO));
    let second = acquire(b, LONG).await.expect("the term has ended");
    assert!(second.epoch > first.epoch);
    assert!(!within(store.renew_lease(&first, LONG)).await.expect("answered"), "lost");
    within(store.release_lease(&first)).await.expect("answered");
    assert_eq!(acquire(a, LONG).await, None, "who lost it cannot release it");
    within(store.release_lease(&second)).await.expect("answered");
    assert_eq!(left().await, None, "nobody holds it");
    assert!(!within(store.renew_lease(&second, LONG)).await.expect("answered"), "released");
    let third = acquire(b, LONG).await.expect("free");
    assert!(third.epoch > second.epoch);
}

pub async fn one_of_two_processes_gets_the_lease(world: &World) {
    let stores = [world.store().await, world.store().await];
    for round in 0..20 {
        let name = format!("lease-{round}-{}", Uuid::new_v4());
        let attempts = (0..8).map(|n| {
            let (store, name) = (&stores[n % 2], &name);
            async move { store.acquire_lease(name, Uuid::new_v4(), LONG).await.expect("answered") }
        });
        let leases: Vec<_> = within(join_all(attempts)).await.into_iter().flatten().collect();
        assert_eq!(leases.len(), 1);
    }
}

fn claim(gateway: Uuid, node: &str) -> SessionClaim {
    SessionClaim { node: node.into(), gateway, peer: "10.0.0.9:4711".into(), certificate: "ab".into() }
}

fn seen(sessions: &[(String, SessionGrant)]) -> Vec<SeenSession> {
    let seen = |(node, grant): &(String, SessionGrant)| SeenSession {
        node: node.clone(),
        grant: grant.clone(),
        certificate_ends: Some(1_900_000_000_000_000),
    };
    sessions.iter().map(seen).collect()
}

pub async fn how_a_node_is_sent_tokens_is_chosen_once(world: &World) {
    let stores = [world.store().await, world.store().await];
    let node = format!("node-{}", Uuid::new_v4());
    assert_eq!(within(stores[0].token_form(&node)).await.expect("answered"), None);
    let mut salts = Vec::new();
    for (what, as_secrets, overrule, expected) in [
        ("the first choice", true, false, true),
        ("another one", false, false, true),
        ("the same, overruled", true, true, true),
        ("overruled", false, true, false),
        ("another one again", true, false, false),
    ] {
        let chosen =
            within(stores[0].choose_token_form(&node, as_secrets, overrule)).await.expect("answered");
        assert_eq!(chosen.as_secrets, expected, "{what}");
        assert_eq!(within(stores[1].token_form(&node)).await.expect("answered"), Some(chosen), "{what}");
        salts.push(chosen.salt);
    }
    salts.dedup();
    let other = format!("node-{}", Uuid::new_v4());
    let choices = (0..8).map(|n| stores[n % 2].choose_token_form(&other, n % 2 == 0, false));
    let mut chosen: Vec<_> =
        within(join_all(choices)).await.into_iter().map(|form| form.expect("answered")).collect();
    chosen.dedup();
    assert_eq!((salts.len(), chosen.len()), (1, 1), "one for each node, whoever asks");
    assert_ne!(chosen[0].salt, salts[0]);
    assert!(!format!("{:?}", chosen[0]).contains(&chosen[0].salt.to_string()));
}

pub async fn a_node_has_one_live_session(world: &World) {
    let stores = [world.store().await, world.store().await];
    let gateways = [Uuid::new_v4(), Uuid::new_v4()];
    for (gateway, address) in gateways.iter().zip(["127.0.0.1:1", "127.0.0.1:2"]) {
        assert!(within(stores[0].renew_gateway(*gateway, address, LONG)).await.expect("renewed"));
    }
    let attempts = (0..20).map(|n| {
        let (store, gateway) = (&stores[n % 2], gateways[n % 2]);
        async move {
            let grant = store.claim_session(claim(gateway, "n"), LONG).await.expect("answered");
            grant.map(|grant| (n % 2, grant))
        }
    });
    let granted: Vec<(usize, SessionGrant)> =
        within(join_all(attempts)).await.into_iter().flatten().collect();
    let [(by, grant)] = &granted[..] else { panic!("one of twenty: {granted:?}") };
    let (store, gateway) = (&stores[0], gateways[*by]);
    // Many at once are judged one after the other, each by its place.
    let many = ["m", "n", "o", "m"].map(|node| claim(gateway, node)).to_vec();
    let answered = within(store.claim_sessions(many, LONG)).await.expect("answered");
    let granted: Vec<bool> = answered.iter().map(Option::is_some).collect();
    assert_eq!(granted, [true, false, true, false]);
    let theirs = [("m", 0), ("o", 2)]
        .map(|(node, at): (&str, usize)| (node.to_owned(), answered[at].clone().expect("granted")));
    within(store.release_sessions(&theirs)).await.expect("answered");
    assert_eq!(within(store.claim_sessions(Vec::new(), LONG)).await.expect("answered"), []);
    let row = within(store.session_of("n")).await.expect("answered").expect("live");
    assert_eq!((row.gateway, &row.grant, row.node.as_str()), (gateway, grant, "n"));
    assert_eq!(row.internal_address, ["127.0.0.1:1", "127.0.0.1:2"][*by]);
    assert_eq!((row.peer.as_str(), row.certificate.as_str()), ("10.0.0.9:4711", "ab"));
    assert_eq!(within(store.sessions()).await.expect("answered"), [row]);

    // Stale sessions can be taken over; the old holder learns of it.
    let other = gateways[1 - by];
    let mine = seen(&[("n".to_owned(), grant.clone())]);
    assert_eq!(within(store.touch_sessions(gateway, &mine)).await.expect("answered"), [""; 0]);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let taken = within(store.claim_session(claim(other, "n"), Duration::ZERO)).await;
    let taken = taken.expect("answered").expect("stale");
    assert!(taken.epoch > grant.epoch);
    assert_eq!(within(store.touch_sessions(gateway, &mine)).await.expect("answered"), ["n"]);
    within(store.release_session("n", grant)).await.expect("answered");
    let row = within(store.session_of("n")).await.expect("answered").expect("not the old one's to end");
    assert_eq!(row.grant, taken);
    within(store.release_session("n", &taken)).await.expect("answered");
    assert_eq!(within(store.session_of("n")).await.expect("answered"), None);
}

pub async fn a_retired_gateway_gives_its_sessions_free(world: &World) {
    let store = world.store().await;
    let (old, new, dead) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());
    for (gateway, ttl) in [(old, LONG), (new, LONG), (dead, Duration::ZERO)] {
        within(store.renew_gateway(gateway, "127.0.0.1:1", ttl)).await.expect("renewed");
    }
    let takes = async |gateway, node: &str| {
        within(store.claim_session(claim(gateway, node), LONG)).await.expect("answered").is_some()
    };
    assert!(takes(old, "a").await);
    assert!(takes(dead, "b").await);
    assert!(!takes(new, "a").await);
    assert!(takes(new, "b").await, "its gateway's term has ended");
    assert!(!within(store.renew_gateway(dead, "127.0.0.1:1", LONG)).await.expect("renewed"), "it had ended");
    assert!(within(store.renew_gateway(dead, "127.0.0.1:1", LONG)).await.expect("renewed"));
    within(store.retire_gateway(old)).await.expect("retired");
    assert_eq!(within(store.session_of("a")).await.expect("answered"), None);
    assert!(takes(new, "a").await, "its gateway has retired");
}

pub async fn a_name_is_borne_by_one_gateway_at_a_time(world: &World) {
    let store = world.store().await;
    let (old, new, dead) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());
    for (gateway, ttl) in [(old, LONG), (new, LONG), (dead, Duration::ZERO)] {
        within(store.renew_gateway(gateway, "127.0.0.1:1", ttl)).await.expect("renewed");
    }
    let named =
        async |gateway, name: &str| within(store.name_gateway(gateway, name)).await.expect("answered");
    assert!(named(old, "a").await && named(old, "a").await, "once is enough");
    assert!(!named(new, "a").await, "it is taken");
    assert!(!named(Uuid::new_v4(), "c").await, "there has to be a term");
    assert!(named(dead, "b").await);
    assert!(named(new, "b").await, "whose term is over bears no name");
    within(store.retire_gateway(old)).await.expect("retired");
    assert!(named(new, "a").await, "nor does who has retired");
    assert!(within(store.renew_gateway(new, "127.0.0.1:1", LONG)).await.expect("renewed"));
    assert!(!named(dead, "a").await, "a renewal keeps the name");
}

pub async fn certificates_are_denied_until_they_are_allowed_again(world: &World) {
    let store = world.store().await;
    let of_name = |name: &str, begun_until| DeniedCertificates::Name { name: name.into(), begun_until };
    let of_print = |print: &str| DeniedCertificates::Fingerprint(print.into());
    let now = 1_800_000_000_123_456;
    for denied in [of_name("n2", 5), of_name("n1", now), of_print("ff"), of_name("n1", 7), of_print("ff")] {
        within(store.deny_certificates(&denied, "stolen")).await.expect("denied");
    }
    let denied = async || within(store.denied_certificates()).await.expect("answered");
    assert_eq!(denied().await, [of_print("ff"), of_name("n1", now), of_name("n2", 5)], "the later moment");
    for (of, was) in [("n1", true), ("n1", false), ("ff", true), ("", false), ("n3", false)] {
        assert_eq!(within(store.allow_certificates(of)).await.expect("answered"), was, "{of:?}");
    }
    assert_eq!(denied().await, [of_name("n2", 5)]);
}

pub async fn heartbeats_are_kept_with_their_age(world: &World) {
    let store = world.store().await;
    let base = store.snapshot().revision();
    let beat = |node: &str, cpu| Heartbeat { node: node.into(), allocated_cpu: cpu, allocated_memory: 2 };
    within(store.record_heartbeats(&[beat("a", 1), beat("b", 1)])).await.expect("recorded");
    within(store.record_heartbeats(&[beat("b", 5)])).await.expect("recorded");
    within(store.record_heartbeats(&[])).await.expect("recorded");
    let mut rows = within(store.heartbeats()).await.expect("read");
    rows.sort_by(|a, b| a.heartbeat.node.cmp(&b.heartbeat.node));
    let beats: Vec<Heartbeat> = rows.iter().map(|row| row.heartbeat.clone()).collect();
    assert_eq!(beats, [beat("a", 1), beat("b", 5)]);
    assert!(rows.iter().all(|row| row.age < PATIENCE && row.at > 0));
    assert!(rows[0].at <= rows[1].at);
    assert!(rows.iter().all(|row| row.at <= row.now));
    assert_eq!(within(store.fresh()).await.expect("fresh").revision(), base, "no object changed");
}

pub async fn heartbeats_come_with_the_time_since_which_gateways_could_hear_them(world: &World) {
    let store = world.store().await;
    let beat = Heartbeat { node: "a".into(), allocated_cpu: 0, allocated_memory: 0 };
    within(store.record_heartbeats(&[beat])).await.expect("recorded");
    let seen = async || {
        let rows = within(store.heartbeats()).await.expect("read");
        assert_eq!(rows.len(), 1);
        (rows[0].served_since, rows[0].now)
    };
    let renew = async |gateway, ttl| {
        within(store.renew_gateway(gateway, "127.0.0.1:1", ttl)).await.expect("renewed");
    };
    let (first, second) = (Uuid::new_v4(), Uuid::new_v4());
    let (nobody, begun) = seen().await;
    assert_eq!(nobody, None, "no gateway is there");

    renew(first, LONG).await;
    let (since, now) = seen().await;
    let since = since.expect("a gateway is there");
    assert!(begun <= since && since <= now, "{begun} {since} {now}");
    tokio::time::sleep(Duration::from_millis(2)).await;
    renew(first, LONG).await;
    renew(second, LONG).await;
    assert_eq!(seen().await.0, Some(since), "the first one is there all the time");

    within(store.retire_gateway(first)).await.expect("retired");
    let later = seen().await.0.expect("the second one is there");
    assert!(later > since);
    renew(second, Duration::ZERO).await;
    let (nobody, lapsed) = seen().await;
    assert_eq!(nobody, None, "its term is over");
    renew(second, LONG).await;
    let back = seen().await.0.expect("it is back");
    assert!(back >= lapsed, "what was before its absence does not count: {back} {lapsed}");

    tokio::time::sleep(Duration::from_millis(2)).await;
    renew(second, LONG / 2).await;
    let set_back = seen().await.0.expect("it is there");
    assert!(set_back > back, "a term that comes to end earlier: the clock was set back");
    renew(second, LONG).await;
    assert_eq!(seen().await.0, Some(set_back));
    renew(second, LONG * 2).await;
    assert_eq!(seen().await.0, None, "no term is that long");
}

pub async fn heartbeats_of_a_session_that_was_lost_are_not_kept(world: &World) {
    let store = world.store().await;
    let (first, second) = (Uuid::new_v4(), Uuid::new_v4());
    within(store.renew_gateway(first, "127.0.0.1:1", Duration::ZERO)).await.expect("renewed");
    within(store.renew_gateway(second, "127.0.0.1:2", LONG)).await.expect("renewed");
    let claim_of = async |gateway, node| {
        within(store.claim_session(claim(gateway, node), LONG)).await.expect("answered").expect("free")
    };
    let beat = |grant: &SessionGrant, node: &str, cpu| {
        (grant.clone(), Heartbeat { node: node.into(), allocated_cpu: cpu, allocated_memory: 0 })
    };
    let (old, kept) = (claim_of(first, "a").await, claim_of(second, "b").await);
    let beats = [beat(&old, "a", 1), beat(&kept, "b", 1)];
    assert!(within(store.record_beats(&beats)).await.expect("recorded").is_empty());
    let last_seen = async |node| within(store.session_of(node)).await.expect("read").expect("held").last_seen;
    let seen = last_seen("b").await;
    let new = claim_of(second, "a").await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let beats = [beat(&old, "a", 2), beat(&kept, "b", 2)];
    assert_eq!(within(store.record_beats(&beats)).await.expect("answered"), ["a"]);
    assert!(last_seen("b").await > seen, "a heartbeat is a sign of life");
    let recorded = async || {
        let mut rows = within(store.heartbeats()).await.expect("read");
        rows.sort_by(|a, b| a.heartbeat.node.cmp(&b.heartbeat.node));
        rows.iter().map(|row| row.heartbeat.allocated_cpu).collect::<Vec<_>>()
    };
    assert_eq!(recorded().await, [1, 2], "that of the lost session is as it was");
    assert!(within(store.record_beats(&[beat(&new, "a", 3)])).await.expect("recorded").is_empty());
    assert!(within(store.record_beats(&[])).await.expect("recorded").is_empty());
    assert_eq!(recorded().await, [3, 2]);
}

pub async fn samples_are_kept_for_the_session_that_brought_them(world: &World) {
    let (store, other) = (world.store().await, world.store().await);
    let gateway = Uuid::new_v4();
    within(store.renew_gateway(gateway, "127.0.0.1:1", LONG)).await.expect("renewed");
    let mut grants = Vec::new();
    for name in ["a", "b"] {
        let grant = within(store.claim_session(claim(gateway, name), LONG)).await.expect("answered");
        grants.push(grant.expect("free"));
    }
    let samples = |node: &str, grant: &SessionGrant, body: &'static str| Samples {
        node: node.into(),
        grant: grant.clone(),
        body: Bytes::from_static(body.as_bytes()),
    };
    let kept = async |names: &[&str], age| {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut rows = within(other.samples(&names, age)).await.expect("read");
        assert!(rows.iter().all(|row| row.age < PATIENCE));
        rows.sort_by(|a, b| a.node.cmp(&b.node));
        rows.into_iter()
            .map(|row| format!("{}={}", row.node, String::from_utf8_lossy(&row.body)))
            .collect::<Vec<_>>()
    };
    within(store.record_samples(&[])).await.expect("kept");
    assert!(kept(&["a"], LONG).await.is_empty());
    let first = [samples("a", &grants[0], "one"), samples("b", &grants[1], "two")];
    within(store.record_samples(&first)).await.expect("kept");
    assert_eq!(kept(&["a", "b", "c"], LONG).await, ["a=one", "b=two"]);
    assert_eq!(kept(&["b"], LONG).await, ["b=two"], "those that are asked for");

    // Twice in one statement: the last counts. Of another session: nothing is kept.
    let again = [
        samples("a", &grants[0], "three"),
        samples("a", &grants[0], "four"),
        samples("b", &grants[0], "false"),
        samples("c", &grants[0], "false"),
    ];
    within(store.record_samples(&again)).await.expect("kept");
    assert_eq!(kept(&["a", "b", "c"], LONG).await, ["a=four", "b=two"]);
    within(store.release_session("a", &grants[0])).await.expect("released");
    within(store.record_samples(&[samples("a", &grants[0], "late")])).await.expect("answered");
    assert_eq!(kept(&["a"], LONG).await, ["a=four"], "the session was over");

    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(kept(&["a", "b"], Duration::from_millis(1)).await.is_empty(), "too old");
    let prune =
        async |limit| within(store.prune_presence(Duration::from_millis(1), limit)).await.expect("answered");
    assert_eq!(within(store.prune_presence(LONG, 10)).await.expect("answered").samples, 0);
    assert_eq!((prune(1).await.samples, prune(10).await.samples), (1, 1));
    assert!(kept(&["a", "b"], LONG).await.is_empty());
}

pub async fn presence_that_stands_for_nothing_is_pruned(world: &World) {
    let store = world.store().await;
    let (alive, dead) = (Uuid::new_v4(), Uuid::new_v4());
    for (gateway, ttl) in [(alive, LONG), (dead, Duration::ZERO)] {
        within(store.renew_gateway(gateway, "127.0.0.1:1", ttl)).await.expect("renewed");
    }
    let mut grants = Vec::new();
    for (gateway, name) in [(alive, "a"), (dead, "b"), (dead, "c"), (Uuid::new_v4(), "d")] {
        let grant = within(store.claim_session(claim(gateway, name), LONG)).await.expect("answered");
        grants.push((name.to_owned(), grant.expect("free")));
    }
    within(store.touch_sessions(dead, &seen(&grants[1..3]))).await.expect("seen");
    put(&store, create(&node("a"), "1")).await;
    let beats =
        ["a", "b", "c"].map(|node| Heartbeat { node: node.into(), allocated_cpu: 0, allocated_memory: 0 });
    within(store.record_heartbeats(&beats)).await.expect("recorded");
    let none = Pruned::default();
    let prune = async |age, limit| within(store.prune_presence(age, limit)).await.expect("answered");
    assert_eq!(prune(LONG, 10).await, none, "too fresh, all of it");
    tokio::time::sleep(Duration::from_millis(5)).await;
    let one_of_each = Pruned { sessions: 1, gateways: 1, heartbeats: 1, samples: 0 };
    assert_eq!(prune(Duration::from_millis(1), 1).await, one_of_each, "not more at a time than asked for");
    assert_eq!(
        prune(Duration::from_millis(1), 10).await,
        Pruned { gateways: 0, heartbeats: 1, sessions: 2, samples: 0 }
    );
    assert_eq!(prune(Duration::from_millis(1), 10).await, none);
    let nodes = |rows: Vec<SessionRow>| rows.into_iter().map(|row| row.node).collect::<Vec<_>>();
    assert_eq!(nodes(within(store.sessions()).await.expect("read")), ["a"]);
    assert!(within(store.session_of("a")).await.expect("read").is_some());
    let left: Vec<String> =
        within(store.heartbeats()).await.expect("read").into_iter().map(|row| row.heartbeat.node).collect();
    assert_eq!(left, ["a"], "that of a node that is there");
    // A gateway that was away for that long learns that its sessions are lost.
    let lost = within(store.touch_sessions(dead, &seen(&grants[1..3]))).await.expect("answered");
    assert_eq!(lost, ["b", "c"]);
    assert!(within(store.renew_gateway(dead, "127.0.0.1:1", LONG)).await.expect("renewed"), "as a new one");
}

pub async fn a_released_lease_is_told_of(world: &World) {
    let (one, other) = (world.store().await, world.store().await);
    let name = format!("lease-{}", Uuid::new_v4());
    let mut hints = other.lease_hints();
    // A hint may be missed while the connection that hears is being made.
    loop {
        let lease = within(one.acquire_lease(&name, Uuid::new_v4(), LONG)).await.expect("answered");
        hints.mark_unchanged();
        within(one.release_lease(&lease.expect("free"))).await.expect("answered");
        if timeout(Duration::from_millis(200), hints.changed()).await.is_ok() {
            break;
        }
    }
}
