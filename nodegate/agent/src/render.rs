//! Turns an application into a unit: its variables, its command, and the digest that
//! says whether a change calls for a restart.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path};

use sha2::{Digest, Sha256};

use crate::desired::{App, Desired, Env, SecretData, Source};
use crate::units::{DEFAULT_GRACE_SECONDS, Environment, Files, LONGEST_SECONDS, UnitError, UnitSpec};

/// Why an application was not applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    #[error("a token cannot be mounted")]
    Token,
    #[error("the path {0:?} of a file is empty or leads elsewhere")]
    Path(String),
    #[error("Secret {0} is missing")]
    Secret(String),
    #[error("Secret {0} has no key {1}")]
    Key(String, String),
    #[error("the variable {0:?} has no usable name or value, or has it twice")]
    Variable(String),
    #[error("it has its own network, but there is no address or no network for it")]
    Network,
    #[error("the unit manager cannot be reached")]
    Unreachable,
    #[error("the unit could not be changed")]
    Unit(#[from] UnitError),
    #[error("a volume could not be made")]
    Volume(#[from] std::io::Error),
}

/// The unit of an application, for the run of this number (0 for services).
pub(crate) fn unit(app: &App, digest: String, runs: i32) -> UnitSpec {
    // Without a command there is nothing to run arguments with: that would be the
    // image's business, and there is no image.
    let argv = match app.command.as_slice() {
        [] => Vec::new(),
        command => command.iter().chain(&app.args).cloned().collect(),
    };
    UnitSpec {
        uid: app.uid,
        namespace: app.namespace.clone(),
        name: app.name.clone(),
        argv,
        restart: app.restart,
        grace_seconds: app
            .grace_seconds
            .map_or(DEFAULT_GRACE_SECONDS, |seconds| seconds.min(LONGEST_SECONDS.cast_signed())),
        deadline_seconds: app.deadline_seconds.map(|seconds| seconds.min(LONGEST_SECONDS)),
        user: app.user,
        group: app.group,
        digest,
        runs,
    }
}

fn secret<'a>(
    app: &App,
    desired: &'a Desired,
    name: &str,
    optional: bool,
) -> Result<Option<&'a SecretData>, ApplyError> {
    match desired.secrets.get(&(app.namespace.clone(), name.to_owned())) {
        None if !optional => Err(ApplyError::Secret(name.to_owned())),
        found => Ok(found),
    }
}

/// The files of a workload: the keys of Secrets, and tokens with what belongs to them. Of a token that is not here
/// there is none. `trusted` are the authorities that the control plane is known by.
pub(crate) fn files(app: &App, desired: &Desired, trusted: &[u8]) -> Result<Files, ApplyError> {
    let mut files = Files::new();
    let mut add = |mount: &str, path: &str, content: &[u8]| -> Result<(), ApplyError> {
        let below = inside(mount.trim_start_matches('/'), mount)?.join(inside(path, path)?);
        files.insert(below, content.to_vec());
        Ok(())
    };
    for mount in &app.mounts {
        match &mount.source {
            Source::Token { audience } => {
                let Some(token) = desired.tokens.get(&(app.uid, audience.clone())) else { continue };
                add(&mount.path, "token", token.as_bytes())?;
                add(&mount.path, "namespace", app.namespace.as_bytes())?;
                add(&mount.path, "ca.crt", trusted)?;
            }
            Source::Secret { name, items, optional } => {
                let Some(data) = secret(app, desired, name, *optional)? else { continue };
                if items.is_empty() {
                    for (key, value) in data {
                        add(&mount.path, key, value)?;
                    }
                }
                for (key, path) in items {
                    match data.get(key) {
                        Some(value) => add(&mount.path, path, value)?,
                        None if *optional => {}
                        None => return Err(ApplyError::Key(name.clone(), key.clone())),
                    }
                }
            }
            Source::Volume { .. } | Source::Scratch => {}
        }
    }
    Ok(files)
}

/// A relative path that stays below where it starts.
fn inside<'a>(path: &'a str, said: &str) -> Result<&'a Path, ApplyError> {
    let path = Path::new(path);
    let normal = path.components().all(|part| matches!(part, Component::Normal(_)));
    if normal && path.components().next().is_some() {
        Ok(path)
    } else {
        Err(ApplyError::Path(said.to_owned()))
    }
}

/// The variables of a workload, in order, Secrets opened.
pub(crate) fn environment(app: &App, desired: &Desired) -> Result<Environment, ApplyError> {
    let mut all = Environment::new();
    for entry in &app.env {
        match entry {
            Env::Literal(name, value) => all.push((name.clone(), value.clone())),
            Env::Key { name, secret: of, key, optional } => {
                match secret(app, desired, of, *optional)?.and_then(|data| data.get(key)) {
                    Some(value) => all.push((name.clone(), text(name, value)?)),
                    None if *optional => {}
                    None => return Err(ApplyError::Key(of.clone(), key.clone())),
                }
            }
            Env::All { secret: of, prefix, optional } => {
                for (key, value) in secret(app, desired, of, *optional)?.into_iter().flatten() {
                    let name = format!("{prefix}{key}");
                    let value = text(&name, value)?;
                    all.push((name, value));
                }
            }
        }
    }
    let mut seen = HashSet::new();
    for (name, value) in &all {
        let starts = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
        let fine = starts && name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric());
        if !fine || value.contains(['\n', '\r', '\0']) || !seen.insert(name) {
            return Err(ApplyError::Variable(name.clone()));
        }
    }
    Ok(all)
}

fn text(name: &str, value: &[u8]) -> Result<String, ApplyError> {
    String::from_utf8(value.to_vec()).map_err(|_| ApplyError::Variable(name.to_owned()))
}

/// Digest of everything whose change calls for a restart: values that come from
/// Secrets do not, the names of variables do.
pub(crate) fn digest(app: &App, env: &Environment) -> String {
    let literals: HashMap<&str, &str> = app
        .env
        .iter()
        .filter_map(|entry| match entry {
            Env::Literal(name, value) => Some((name.as_str(), value.as_str())),
            _ => None,
        })
        .collect();
    let variables: Vec<(&str, Option<&&str>)> =
        env.iter().map(|(name, _)| (name.as_str(), literals.get(name.as_str()))).collect();
    let rendered = format!(
        "{:?}",
        (
            (&app.image, &app.command, &app.args, variables, &app.mounts, app.isolated),
            (app.restart, app.grace_seconds, app.deadline_seconds, app.user, app.group),
            (app.limits.cpu.to_string(), app.limits.memory.to_string()),
        )
    );
    Sha256::digest(rendered).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use horchestra_proto::node::v1::DesiredState;
    use serde_json::{Value, json};

    use super::*;

    fn push(spec: Value, secrets: &[(&str, &str, Value)]) -> (Arc<App>, Desired) {
        let mut spec = spec;
        spec["placement"] = json!({"nodeName": "n1"});
        let app = json!({
            "metadata": {"uid": "6f1c0c2e-9a3b-4f6e-8a55-0d6f4f1f2a01", "name": "web", "namespace": "shop"},
            "spec": spec,
        });
        let secret = |(namespace, name, data): &(&str, &str, Value)| {
            json!({"metadata": {"namespace": namespace, "name": name}, "data": data}).to_string().into()
        };
        let state = DesiredState {
            applications: vec![app.to_string().into()],
            secrets: secrets.iter().map(secret).collect(),
            ..DesiredState::default()
        };
        let desired = Desired::read(&state, "n1");
        (desired.apps[0].clone(), desired)
    }

    #[test]
    fn variables_in_order_with_those_of_secrets() {
        let env = json!([
            {"name": "B", "value": "1"},
            {"secretRef": {"name": "s", "key": "*", "prefix": "S_"}},
            {"name": "A", "secretRef": {"name": "s", "key": "y"}},
            {"name": "GONE", "secretRef": {"name": "s", "key": "z", "optional": true}},
            {"name": "GONE", "secretRef": {"name": "t", "key": "z", "optional": true}},
        ]);
        let (app, desired) = push(json!({"env": env}), &[("shop", "s", json!({"y": "dHdv", "x": "b25l"}))]);
        let expected = [("B", "1"), ("S_x", "one"), ("S_y", "two"), ("A", "two")];
        let expected: Vec<_> = expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(environment(&app, &desired).expect("variables"), expected);
    }

    #[test]
    fn what_cannot_be_a_variable_holds_the_application() {
        let secret = [("shop", "s", json!({"k": "dg==", "lines": "YQpi", "binary": "/w==", "x-y": "dg=="}))];
        let elsewhere = [("other", "s", json!({"k": "dg=="}))];
        let key = |key: &str| json!({"name": "A", "secretRef": {"name": "s", "key": key}});
        for (what, env, secrets) in [
            ("no Secret", json!([key("k")]), &[][..]),
            ("a Secret of another namespace", json!([key("k")]), &elsewhere[..]),
            ("no key", json!([key("nope")]), &secret[..]),
            ("a line break", json!([key("lines")]), &secret[..]),
            ("no text", json!([key("binary")]), &secret[..]),
            ("a key that is no name", json!([{"secretRef": {"name": "s", "key": "*"}}]), &secret[..]),
            ("twice", json!([key("k"), {"name": "A", "value": ""}]), &secret[..]),
            ("no name", json!([{"value": "x"}]), &secret[..]),
        ] {
            let (app, desired) = push(json!({"env": env}), secrets);
            assert!(environment(&app, &desired).is_err(), "{what}");
        }
    }

    /// The files of a workload with one volume, as `path=content`.
    fn shown(volume: Value, secrets: &[(&str, &str, Value)]) -> Result<Vec<String>, ApplyError> {
        let spec = json!({"volumes": [{"mountPath": "/etc/m", "volume": volume}]});
        let (app, mut desired) = push(spec, secrets);
        desired.tokens.insert((app.uid, "horchestra".to_owned()), "t1".to_owned());
        desired.tokens.insert((app.uid, "other".to_owned()), "t2".to_owned());
        let files = files(&app, &desired, b"trusted")?;
        let text = |(path, content): (&std::path::PathBuf, &Vec<u8>)| {
            format!("{}={}", path.display(), String::from_utf8_lossy(content))
        };
        Ok(files.iter().map(text).collect())
    }

    #[test]
    fn what_is_mounted_becomes_files() {
        let secret = [("shop", "s", json!({"k": "dg==", "l": "dw=="}))];
        let token = |token: &str| {
            vec![
                "etc/m/ca.crt=trusted".to_owned(),
                "etc/m/namespace=shop".to_owned(),
                format!("etc/m/token={token}"),
            ]
        };
        let text = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        for (what, volume, expected) in [
            ("scratch", json!({"type": "tmpfs"}), vec![]),
            ("a Secret", json!({"type": "secret", "name": "s"}), text(&["etc/m/k=v", "etc/m/l=w"])),
            (
                "keys of it, one of them twice",
                json!({"type": "secret", "name": "s", "items": [
                    {"key": "k", "path": "a"}, {"key": "k", "path": "b/c"},
                ]}),
                text(&["etc/m/a=v", "etc/m/b/c=v"]),
            ),
            (
                "an optional key that is missing",
                json!({"type": "secret", "name": "s", "optional": true, "items": [
                    {"key": "k", "path": "a"}, {"key": "z", "path": "b"},
                ]}),
                text(&["etc/m/a=v"]),
            ),
            ("no such Secret, optional", json!({"type": "secret", "name": "t", "optional": true}), vec![]),
            ("a token", json!({"type": "token"}), token("t1")),
            ("a token for somebody", json!({"type": "token", "audience": "other"}), token("t2")),
            ("a token that is not here", json!({"type": "token", "audience": "third"}), vec![]),
        ] {
            assert_eq!(shown(volume, &secret).expect(what), expected, "{what}");
        }
    }

    #[test]
    fn mounts_must_be_complete_and_stay_where_they_belong() {
        let secret = [("shop", "s", json!({"k": "dg=="}))];
        let items = |key: &str, path: &str| json!({"type": "secret", "name": "s", "items": [{"key": key, "path": path}]});
        for (what, volume, secrets) in [
            ("no such key", items("z", "p"), &secret[..]),
            ("no such Secret", json!({"type": "secret", "name": "t"}), &secret[..]),
            ("one of another namespace", items("k", "p"), &[("other", "s", json!({"k": "dg=="}))][..]),
            ("a path that leads up", items("k", "../p"), &secret[..]),
            ("a path from the root", items("k", "/p"), &secret[..]),
            ("no path", items("k", ""), &secret[..]),
            (
                "a key that is a path",
                json!({"type": "secret", "name": "s"}),
                &[("shop", "s", json!({"../k": "dg=="}))][..],
            ),
        ] {
            assert!(shown(volume, secrets).is_err(), "{what}");
        }
        let (app, desired) = push(
            json!({"volumes": [{"mountPath": "/../m", "volume": {"type": "secret", "name": "s"}}]}),
            &secret,
        );
        assert!(files(&app, &desired, b"").is_err());
    }

    #[test]
    fn secrets_are_opened_for_applications_of_this_node_alone() {
        let mount = json!([{"mountPath": "/m", "volume": {"type": "secret", "name": "s"}}]);
        let env = json!([{"name": "A", "secretRef": {"name": "s", "key": "k"}}]);
        let secret = json!({"metadata": {"namespace": "shop", "name": "s"}, "data": {"k": "dg=="}});
        for (what, placement, count) in [
            ("this node", json!({"nodeName": "n1"}), 1),
            ("another node", json!({"nodeName": "n2"}), 0),
            ("no node", json!({"nodeName": ""}), 0),
            ("unbound", json!(null), 0),
        ] {
            for spec in [json!({"volumes": mount}), json!({"env": env})] {
                let mut spec = spec;
                spec["placement"] = placement.clone();
                let app = json!({
                    "metadata": {"uid": "6f1c0c2e-9a3b-4f6e-8a55-0d6f4f1f2a01", "name": "web", "namespace": "shop"},
                    "spec": spec,
                });
                let state = DesiredState {
                    applications: vec![app.to_string().into()],
                    secrets: vec![secret.to_string().into()],
                    ..DesiredState::default()
                };
                let desired = Desired::read(&state, "n1");
                assert_eq!(desired.apps.len(), count, "{what}");
                for app in &desired.apps {
                    let given =
                        files(app, &desired, b"").unwrap().len() + environment(app, &desired).unwrap().len();
                    assert_eq!(given, 1, "{what}");
                }
            }
        }
    }

    #[test]
    fn no_time_of_a_unit_is_longer_than_a_clock_can_count() {
        let of = |lifecycle: Value| {
            let (app, _) = push(json!({"lifecycle": lifecycle}), &[]);
            let unit = unit(&app, String::new(), 0);
            (unit.grace_seconds, unit.deadline_seconds)
        };
        let both = |seconds: i64| json!({"terminationGracePeriodSeconds": seconds, "activeDeadlineSeconds": seconds});
        assert_eq!(of(json!({})), (DEFAULT_GRACE_SECONDS, None));
        assert_eq!(of(both(7)), (7, Some(7)));
        assert_eq!(of(both(i64::MAX)), (LONGEST_SECONDS.cast_signed(), Some(LONGEST_SECONDS)));
        assert_eq!(of(both(i64::MIN)), (i64::MIN, None), "what is below zero counts as none later");
    }

    #[test]
    fn what_calls_for_a_restart() {
        let of = |spec: Value, value: &str, more: bool| {
            let mut data = json!({"k": value});
            if more {
                data["more"] = json!("");
            }
            let (app, desired) = push(spec, &[("shop", "s", data)]);
            digest(&app, &environment(&app, &desired).expect("variables"))
        };
        let base = json!({
            "image": "i", "command": ["c"], "env": [
                {"name": "A", "value": "1"}, {"secretRef": {"name": "s", "key": "*", "prefix": "S_"}},
            ],
        });
        let with = |path: &str, value: Value| {
            let mut spec = base.clone();
            *spec.pointer_mut(path).unwrap_or(&mut Value::Null) = value.clone();
            if let Some(member) = path.strip_prefix('/').filter(|member| !member.contains('/')) {
                spec[member] = value;
            }
            spec
        };
        let first = of(base.clone(), "", false);
        for (what, spec, value, more, same) in [
            ("nothing", base.clone(), "", false, true),
            ("a value from a Secret", base.clone(), "djI=", false, true),
            ("another name from a Secret", base.clone(), "", true, false),
            ("a literal value", with("/env/0/value", json!("2")), "", false, false),
            ("the image", with("/image", json!("j")), "", false, false),
            ("the command", with("/command", json!(["d"])), "", false, false),
            ("arguments", with("/args", json!(["x"])), "", false, false),
            ("limits", with("/resources", json!({"limits": {"memory": "1Gi"}})), "", false, false),
            ("requests", with("/resources", json!({"requests": {"memory": "1Gi"}})), "", false, true),
            ("the user", with("/securityContext", json!({"runAsUser": 7})), "", false, false),
            ("the grace", with("/lifecycle", json!({"terminationGracePeriodSeconds": 7})), "", false, false),
            ("values", with("/values", json!({"x": 1})), "", false, true),
            ("ports", with("/ports", json!([{"port": 80}])), "", false, true),
            ("frozen", with("/frozen", json!(true)), "", false, true),
        ] {
            assert_eq!(of(spec, value, more) == first, same, "{what}");
        }
    }
}
