use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::sealing::{RingError, RingFile, SealError, Subject};
use horchestra_auth::{KeyRing, SecretKeys};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::sealed::Seal;
use horchestra_testkit::TempDir;
use proptest::prelude::*;

const CONTENTS: &[u8] = br#"{"data":{"password":"aHVudGVyMg=="}}"#;

fn db() -> Key {
    Key::namespaced(Kind::Secret, "shop", "db")
}

fn subject(key: &Key) -> Subject<'_> {
    Subject { key, uid: [9; 16] }
}

fn sealed(ring: &KeyRing, key: &Key, contents: &[u8]) -> Seal {
    let subject = subject(key);
    ring.seal(&subject, contents, ring.digest(&subject, contents)).unwrap()
}

#[test]
fn contents_come_back_and_never_look_the_same_twice() {
    let ring = KeyRing::ephemeral().unwrap();
    let key = db();
    let (first, second) = (sealed(&ring, &key, CONTENTS), sealed(&ring, &key, CONTENTS));
    assert_eq!(*ring.open(&subject(&key), &first).unwrap(), CONTENTS);
    assert_ne!(first.payload, second.payload, "nonces are random");
    assert_eq!(first.digest, second.digest);
    assert!(!first.payload.windows(8).any(|part| CONTENTS.windows(8).any(|plain| plain == part)));
    assert!(ring.open(&subject(&key), &sealed(&ring, &key, b"")).unwrap().is_empty());
}

#[test]
fn what_was_changed_anywhere_does_not_open() {
    let ring = KeyRing::ephemeral().unwrap();
    let key = db();
    let good = sealed(&ring, &key, CONTENTS);
    for at in 0..good.payload.len() {
        for bit in [0x01, 0x80] {
            let mut changed = good.clone();
            changed.payload[at] ^= bit;
            let expected = if at == 0 { SealError::Form } else { SealError::Broken };
            assert_eq!(ring.open(&subject(&key), &changed).unwrap_err(), expected, "byte {at}");
        }
    }
    for length in 0..good.payload.len() {
        let cut = Seal { payload: good.payload[..length].to_vec(), ..good.clone() };
        assert_eq!(ring.open(&subject(&key), &cut).unwrap_err(), SealError::Broken, "{length} bytes");
    }
    let mut longer = good.clone();
    longer.payload.push(0);
    assert_eq!(ring.open(&subject(&key), &longer).unwrap_err(), SealError::Broken);
}

#[test]
fn contents_open_only_as_those_of_their_object() {
    let ring = KeyRing::ephemeral().unwrap();
    let key = db();
    let good = sealed(&ring, &key, CONTENTS);
    let others = [
        ("another name", Key::namespaced(Kind::Secret, "shop", "dc"), [9; 16]),
        ("another namespace", Key::namespaced(Kind::Secret, "shoq", "db"), [9; 16]),
        ("parts that run together", Key::namespaced(Kind::Secret, "shopd", "b"), [9; 16]),
        ("another kind", Key::namespaced(Kind::SecretStore, "shop", "db"), [9; 16]),
        ("a later object of the name", key.clone(), [8; 16]),
    ];
    for (what, other, uid) in &others {
        let other = Subject { key: other, uid: *uid };
        assert_eq!(ring.open(&other, &good).unwrap_err(), SealError::Broken, "{what}");
        assert_ne!(ring.digest(&other, CONTENTS), good.digest, "{what}");
    }
}

#[test]
fn the_key_is_known_by_its_id_and_its_id_alone_is_not_enough() {
    let mut file = RingFile::generate().unwrap();
    let first = file.sealing().to_owned();
    let old = KeyRing::new(&file).unwrap();
    let key = db();
    let by_first = sealed(&old, &key, CONTENTS);

    let second = file.add().unwrap();
    assert_eq!(KeyRing::new(&file).unwrap().sealing_key(), first, "a key that was added does not seal yet");
    file.seal_with(&second).unwrap();
    let ring = KeyRing::new(&file).unwrap();
    assert_eq!(ring.sealing_key(), second);
    let by_second = sealed(&ring, &key, CONTENTS);
    assert_eq!((by_first.key.as_str(), by_second.key.as_str()), (first.as_str(), second.as_str()));
    for seal in [&by_first, &by_second] {
        assert_eq!(*ring.open(&subject(&key), seal).unwrap(), CONTENTS);
    }
    assert_eq!(by_first.digest, by_second.digest, "rotation leaves digests alone");

    let unknown = old.open(&subject(&key), &by_second).unwrap_err();
    assert_eq!(unknown, SealError::UnknownKey { id: second.clone() });
    let renamed = Seal { key: first.clone(), ..by_second.clone() };
    assert_eq!(ring.open(&subject(&key), &renamed).unwrap_err(), SealError::Broken, "another key's id");

    assert!(matches!(file.remove(&second), Err(RingError::Seals { .. })));
    file.remove(&first).unwrap();
    assert!(matches!(file.remove(&first), Err(RingError::NoSuchKey { .. })));
    let ring = KeyRing::new(&file).unwrap();
    assert_eq!(*ring.open(&subject(&key), &by_second).unwrap(), CONTENTS);
    assert!(matches!(ring.open(&subject(&key), &by_first), Err(SealError::UnknownKey { .. })));

    let stranger = KeyRing::ephemeral().unwrap();
    assert_ne!(stranger.digest(&subject(&key), CONTENTS), by_first.digest, "digests have a key, too");
}

#[test]
fn a_file_is_made_once_and_read_only_where_nobody_else_can() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("secret-keys");
    assert!(matches!(RingFile::load(&path), Err(RingError::File { .. })));
    let made = RingFile::ensure(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(RingFile::ensure(&path).unwrap().ids(), made.ids(), "kept");
    assert!(matches!(made.create(&path), Err(RingError::File { .. })), "never overwritten");

    for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let error = RingFile::load(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("{mode:04o}")) && error.contains("chmod 600"), "{error}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    assert_eq!(RingFile::load(&link).unwrap().ids(), made.ids(), "mounted files are often links");
    assert!(matches!(
        RingFile::load(folder.path()),
        Err(RingError::NotAFile { .. } | RingError::File { .. })
    ));

    let mut changed = RingFile::load(&path).unwrap();
    changed.add().unwrap();
    changed.replace(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(RingFile::load(&path).unwrap().ids().len(), 2);
}

#[test]
fn the_format_is_the_documented_one() {
    let secret = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let short = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHg==";
    let good = format!(
        "# comment\n\n  digest {secret}\nkey one {secret} # first\nkey two.2_b-c {secret} seals\nkey three {secret}"
    );
    let file = RingFile::parse(&good).unwrap();
    assert_eq!((file.ids(), file.sealing()), (vec!["one", "two.2_b-c", "three"], "two.2_b-c"));
    let again = RingFile::parse(&file.render()).unwrap();
    assert_eq!((again.ids(), again.sealing()), (file.ids(), file.sealing()));
    let unmarked = RingFile::parse(&good.replace(" seals", "")).unwrap();
    assert_eq!(unmarked.sealing(), "three", "the last one");

    for (what, text, says) in [
        ("nothing", String::new(), "digest"),
        ("no key", format!("digest {secret}"), "key"),
        ("no digest", format!("key a {secret}"), "digest"),
        ("two digests", format!("digest {secret}\ndigest {secret}\nkey a {secret}"), "line 2"),
        ("an id twice", format!("digest {secret}\nkey a {secret}\nkey a {secret}"), "line 3"),
        ("two that seal", format!("digest {secret}\nkey a {secret} seals\nkey b {secret} seals"), "line 3"),
        ("a short secret", format!("digest {secret}\nkey a {short}"), "line 2"),
        ("a long secret", format!("digest {secret}\nkey a AAAA{secret}"), "line 2"),
        ("no base64", format!("digest {secret}\nkey a hunter2"), "line 2"),
        ("an odd id", format!("digest {secret}\nkey a/b {secret}"), "line 2"),
        ("a long id", format!("digest {secret}\nkey {} {secret}", "a".repeat(65)), "line 2"),
        (
            "two of one moment",
            format!(
                "digest {secret}\nkey a {secret} seals 2026-11-29T12:00:00Z\nkey b {secret} seals 2026-11-29T12:00:00Z"
            ),
            "line 3",
        ),
        ("no moment", format!("digest {secret}\nkey a {secret} seals tomorrow"), "line 2"),
        ("another word", format!("digest {secret}\nkey a {secret} sealing"), "line 2"),
        ("one word more", format!("digest {secret}\nkey a {secret} seals now"), "line 2"),
        ("another line", format!("digest {secret}\nkeys a {secret}"), "line 2"),
    ] {
        let error = RingFile::parse(&text).unwrap_err().to_string();
        assert!(error.contains(says), "{what}: {error}");
        assert!(!error.contains(secret) && !error.contains("hunter2"), "{what}: {error}");
    }
}

#[test]
fn the_key_that_seals_is_the_one_whose_moment_came_last() {
    let secret = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const PAST: &str = "seals 2001-01-01T00:00:00Z";
    const LATER: &str = "seals 2002-02-02T00:00:00Z";
    const COMING: &str = "seals 2901-01-01T00:00:00Z";
    const FAR: &str = "seals 2902-02-02T00:00:00Z";
    for (marks, sealing, next) in [
        (["", "", ""], "c", None),
        (["seals", "", ""], "a", None),
        (["seals", PAST, ""], "b", None),
        ([LATER, PAST, "seals"], "a", None),
        (["seals", COMING, ""], "a", Some("b")),
        ([FAR, PAST, COMING], "b", Some("c")),
        ([COMING, "", ""], "c", Some("a")),
        ([FAR, COMING, FAR.trim_end_matches("0:00Z")], "", None),
    ] {
        let mut text = format!("digest {secret}\n");
        for (id, mark) in ["a", "b", "c"].into_iter().zip(marks) {
            text.push_str(&format!("key {id} {secret} {mark}\n"));
        }
        let Ok(file) = RingFile::parse(&text) else {
            assert_eq!(sealing, "", "{text}");
            continue;
        };
        assert_eq!((file.sealing(), file.next().map(|(id, _)| id)), (sealing, next), "{text}");
        assert_eq!(KeyRing::new(&file).unwrap().sealing_key(), sealing, "{text}");
        let again = RingFile::parse(&file.render()).unwrap();
        assert_eq!((again.sealing(), again.next()), (file.sealing(), file.next()), "{text}");
    }
}

#[test]
fn a_key_can_be_told_when_to_seal() {
    let mut file = RingFile::generate().unwrap();
    let first = file.sealing().to_owned();
    let second = file.add().unwrap();
    let hour = jiff::Timestamp::now() + Duration::from_secs(3600);
    file.seal_with_from(&second, hour).unwrap();
    assert_eq!((file.sealing(), file.next()), (first.as_str(), Some((second.as_str(), hour))));
    for id in [&first, &second] {
        assert!(matches!(file.remove(id), Err(RingError::Seals { .. })), "{id} is needed");
    }
    file.seal_with_from(&first, hour).unwrap();
    assert_eq!((file.sealing(), file.next()), (first.as_str(), None), "it stays as it is");
    file.seal_with_from(&second, hour).unwrap();
    let third = file.add().unwrap();
    assert_eq!((file.sealing(), file.next().map(|(id, _)| id)), (first.as_str(), Some(second.as_str())));
    file.seal_with_from(&third, jiff::Timestamp::now()).unwrap();
    assert_eq!((file.sealing(), file.next()), (third.as_str(), None));
    file.remove(&second).unwrap();
    file.remove(&first).unwrap();
    assert_eq!(file.ids(), [third.as_str()]);
}

/// A file, and two processes that follow it.
fn followed() -> (TempDir, PathBuf, RingFile, [SecretKeys; 2]) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("secret-keys");
    let file = RingFile::ensure(&path).unwrap();
    let processes = [SecretKeys::load(&path).unwrap(), SecretKeys::load(&path).unwrap()];
    (folder, path, file, processes)
}

#[test]
fn a_running_process_takes_up_what_its_file_says() {
    let (_folder, path, mut file, [one, other]) = followed();
    let key = db();
    let old = file.sealing().to_owned();
    let by_old = sealed(&one.ring(), &key, CONTENTS);
    assert!(!one.reload().unwrap(), "nothing has changed");

    let new = file.add().unwrap();
    file.replace(&path).unwrap();
    assert!(one.reload().unwrap() && !one.reload().unwrap());
    assert_eq!((one.ring().holds(&new), one.ring().sealing_key()), (true, old.as_str()));
    file.seal_with(&new).unwrap();
    file.replace(&path).unwrap();
    assert!(one.reload().unwrap());
    let by_new = sealed(&one.ring(), &key, CONTENTS);
    assert_eq!((&by_new.key, by_new.digest), (&new, by_old.digest));

    // The other one has seen nothing of all this, and looks when it meets the key.
    assert!(matches!(other.ring().open(&subject(&key), &by_new), Err(SealError::UnknownKey { .. })));
    let found = other.look_for(&new).expect("it is in the file");
    assert_eq!(*found.open(&subject(&key), &by_new).unwrap(), CONTENTS);
    assert_eq!(other.ring().sealing_key(), new);
    assert!(other.look_for("another").is_none());

    // What leaves the file opens on for those that had it, and seals no more.
    file.remove(&old).unwrap();
    file.replace(&path).unwrap();
    assert!(one.reload().unwrap());
    let ring = one.ring();
    assert_eq!((ring.holds(&old), ring.opens(&old), ring.sealing_key()), (false, true, new.as_str()));
    assert_eq!(*ring.open(&subject(&key), &by_old).unwrap(), CONTENTS);
    let later = SecretKeys::load(&path).unwrap();
    assert!(later.look_for(&old).is_none());
}

#[test]
fn a_file_that_cannot_be_used_changes_nothing() {
    let (_folder, path, file, [keys, _]) = followed();
    let key = db();
    let good = file.render();
    let before = sealed(&keys.ring(), &key, CONTENTS);
    let other = RingFile::generate().unwrap().render();
    let id = file.sealing();
    let reused = other.replace(RingFile::parse(&other).unwrap().sealing(), id);
    for (what, text, says) in [
        ("nothing", String::new(), "digest"),
        ("half of it", good[..good.len() - 20].to_owned(), "line"),
        ("another ring", other.to_string(), "none of the keys in use"),
        ("another secret of the same id", reused, id),
    ] {
        fs::write(&path, &text).unwrap();
        for _ in 0..2 {
            let error = keys.reload().expect_err(what).to_string();
            assert!(error.contains(says), "{what}: {error}");
            assert!(keys.failing(), "{what}");
        }
        assert_eq!(*keys.ring().open(&subject(&key), &before).unwrap(), CONTENTS, "{what}");
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(keys.reload(), Err(RingError::File { .. })));
    file.create(&path).unwrap();
    assert!(!keys.reload().unwrap() && !keys.failing(), "as it was");
}

#[test]
fn a_key_that_was_given_up_is_not_looked_for() {
    let (_folder, path, mut file, [mut keys, _]) = followed();
    let new = file.add().unwrap();
    keys.give_up([new.clone()]);
    file.replace(&path).unwrap();
    assert!(keys.has_given_up(&new) && keys.look_for(&new).is_none());
    assert!(keys.reload().unwrap());
    assert!(keys.look_for(&new).is_some(), "it came back with the file");
}

#[test]
fn nothing_that_is_shown_holds_a_secret() {
    let file = RingFile::generate().unwrap();
    let text = file.render();
    let secrets: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| line.split(' '))
        .filter(|word| word.len() == 44)
        .collect();
    assert_eq!(secrets.len(), 2);
    let ring = Arc::new(KeyRing::new(&file).unwrap());
    let shown = format!("{file:?} {ring:?} {:?}", SecretKeys::from(Arc::clone(&ring)));
    assert!(shown.contains(file.sealing()));
    assert!(secrets.iter().all(|secret| !shown.contains(secret)), "{shown}");
}

proptest! {
    #[test]
    fn any_contents_of_any_object_come_back(
        contents in proptest::collection::vec(any::<u8>(), 0..2000),
        namespace in "[a-z]{1,10}", name in "[a-z.]{1,10}", uid in any::<[u8; 16]>(),
    ) {
        let ring = KeyRing::ephemeral().unwrap();
        let key = Key::namespaced(Kind::Secret, namespace, name);
        let subject = Subject { key: &key, uid };
        let seal = ring.seal(&subject, &contents, ring.digest(&subject, &contents)).unwrap();
        prop_assert_eq!(&*ring.open(&subject, &seal).unwrap(), &contents);
        prop_assert_eq!(seal.digest, ring.digest(&subject, &contents));
    }
}
