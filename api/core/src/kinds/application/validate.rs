//! Rules of one Application that the schema cannot say.
//!
//! Two sets, because they are answered differently. [`violations`] (422) is what the author got wrong.
//! [`exec_faults`] (403) is what would let a text escape into the files from which the node starts the
//! process; it is judged on its own, and the first set leaves those texts to it.

use std::collections::HashSet;

use serde_json::Value;

use super::{ApplicationSpec, EnvVar, SecretEnvSource, VolumeMount, VolumeType};
use crate::object::Object;
use crate::quantity::Quantity;
use crate::status::Cause;
use crate::values::{base_name_fault, breaks_line, env_name_fault, mount_path_fault, relative_path_fault};

/// Most environment entries of one Application (the schema says so).
pub const MAX_ENV: usize = 256;
/// Most volumes of one Application (the schema says so).
pub const MAX_VOLUMES: usize = 64;

/// Every violation of an Application, in the order of its fields.
pub(super) fn application_violations(object: &Object) -> Vec<Cause> {
    let spec = object.get("spec").cloned().unwrap_or(Value::Null);
    match serde_json::from_value::<ApplicationSpec>(spec) {
        Ok(spec) => violations(&spec, "spec"),
        // The schema lets nothing through that does not read.
        Err(error) => vec![Cause::invalid("spec", "null", error)],
    }
}

/// Every violation of an Application's spec. `path` says where the spec lies.
pub fn violations(spec: &ApplicationSpec, path: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    env(&spec.env, path, &mut causes);
    lifecycle(spec, path, &mut causes);
    resources(spec, path, &mut causes);
    for (index, mount) in spec.volumes.iter().enumerate() {
        volume(mount, &format!("{path}.volumes[{index}]"), &mut causes);
    }
    causes
}

fn forbidden(field: String, why: &str) -> Cause {
    Cause::new("FieldValueForbidden", field, format!("Forbidden: {why}"))
}

fn faulty(field: String, value: &str, fault: Option<&str>) -> Option<Cause> {
    fault.map(|fault| Cause::invalid(field, &format!("{value:?}"), fault))
}

fn env(list: &[EnvVar], path: &str, causes: &mut Vec<Cause>) {
    for (index, entry) in list.iter().enumerate() {
        let at = format!("{path}.env[{index}]");
        match &entry.secret_ref {
            Some(secret) => secret_env(entry, secret, &at, causes),
            None => env_name(&entry.name, &at, causes),
        }
    }
}

fn env_name(name: &str, at: &str, causes: &mut Vec<Cause>) {
    if name.is_empty() {
        causes.push(Cause::required(format!("{at}.name")));
    } else if !breaks_line(name) {
        causes.extend(faulty(format!("{at}.name"), name, env_name_fault(name)));
    }
}

fn secret_env(entry: &EnvVar, secret: &SecretEnvSource, at: &str, causes: &mut Vec<Cause>) {
    if !entry.value.is_empty() {
        causes.push(forbidden(format!("{at}.value"), "may not be set together with secretRef"));
    }
    if secret.key == "*" {
        if !entry.name.is_empty() {
            causes.push(forbidden(format!("{at}.name"), "may not be set when secretRef.key is \"*\""));
        }
        if !secret.prefix.is_empty() {
            let fault = env_name_fault(&secret.prefix);
            causes.extend(faulty(format!("{at}.secretRef.prefix"), &secret.prefix, fault));
        }
        return;
    }
    env_name(&entry.name, at, causes);
    causes.extend(faulty(format!("{at}.secretRef.key"), &secret.key, base_name_fault(&secret.key)));
    if !secret.prefix.is_empty() {
        causes
            .push(forbidden(format!("{at}.secretRef.prefix"), "may only be set when secretRef.key is \"*\""));
    }
}

fn lifecycle(spec: &ApplicationSpec, path: &str, causes: &mut Vec<Cause>) {
    let Some(lifecycle) = spec.lifecycle.as_ref().filter(|_| !spec.is_job()) else { return };
    let set = [
        ("activeDeadlineSeconds", lifecycle.active_deadline_seconds.is_some()),
        ("backoffLimit", lifecycle.backoff_limit.is_some()),
    ];
    for (member, _) in set.into_iter().filter(|(_, set)| *set) {
        let why = "may only be set on a job (restartPolicy: Never)";
        causes.push(forbidden(format!("{path}.lifecycle.{member}"), why));
    }
}

fn resources(spec: &ApplicationSpec, path: &str, causes: &mut Vec<Cause>) {
    let Some(resources) = &spec.resources else { return };
    let requests = resources.requests.clone().unwrap_or_default();
    let limits = resources.limits.clone().unwrap_or_default();
    for (which, list) in [("limits", &limits), ("requests", &requests)] {
        for (name, amount) in [("cpu", list.cpu()), ("memory", list.memory())] {
            if amount.is_negative() {
                let field = format!("{path}.resources.{which}.{name}");
                causes.push(Cause::invalid(field, &format!("\"{amount}\""), "must not be negative"));
            }
        }
    }
    let pairs: [(&str, Quantity, Quantity); 2] =
        [("cpu", requests.cpu(), limits.cpu()), ("memory", requests.memory(), limits.memory())];
    for (name, request, limit) in pairs {
        if !limit.is_zero() && !limit.is_negative() && request > limit {
            causes.push(Cause::invalid(
                format!("{path}.resources.requests.{name}"),
                &format!("\"{request}\""),
                format!("{name} request must be less than or equal to the {name} limit of {limit}"),
            ));
        }
    }
}

fn volume(mount: &VolumeMount, at: &str, causes: &mut Vec<Cause>) {
    causes.extend(faulty(format!("{at}.mountPath"), &mount.mount_path, mount_path_fault(&mount.mount_path)));
    let volume = &mount.volume;
    let at = format!("{at}.volume");
    let sized = volume.size.is_some_and(|size| !size.is_zero());
    let of_type = match volume.type_ {
        VolumeType::Token => "token",
        VolumeType::Secret => "secret",
        VolumeType::Pv | VolumeType::Tmpfs => return,
    };
    if volume.type_ == VolumeType::Token {
        if !volume.audience.is_empty() {
            let fault = base_name_fault(&volume.audience);
            causes.extend(faulty(format!("{at}.audience"), &volume.audience, fault));
        }
        if !volume.items.is_empty() {
            causes.push(forbidden(format!("{at}.items"), "may not be set on a token volume"));
        }
        if !volume.name.is_empty() {
            causes.push(forbidden(format!("{at}.name"), "may not be set on a token volume"));
        }
    } else {
        for (index, item) in volume.items.iter().enumerate() {
            let fault = relative_path_fault(&item.path);
            causes.extend(faulty(format!("{at}.items[{index}].path"), &item.path, fault));
        }
        if volume.name.is_empty() {
            let message = "Required value: a secret volume needs the name of the Secret";
            causes.push(Cause::new("FieldValueRequired", format!("{at}.name"), message));
        }
    }
    if sized {
        causes.push(forbidden(format!("{at}.size"), &format!("may not be set on a {of_type} volume")));
    }
}

/// What the node could not pass on to a process safely, one text each, with the path: refused as forbidden,
/// before anything else is judged.
pub fn exec_faults(spec: &ApplicationSpec, path: &str) -> Vec<String> {
    let mut faults = process_faults(spec, path);
    faults.extend(env_faults(&spec.env, path).into_iter().map(|(field, why)| format!("{field} {why}")));
    faults
}

/// The part of [`exec_faults`] that is about program and arguments.
pub fn process_faults(spec: &ApplicationSpec, path: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(first) = spec.command.first().filter(|first| first.starts_with(['@', '-', ':', '+', '!'])) {
        let prefix = first.chars().next().unwrap_or_default();
        faults.push(format!("{path}.command[0] must not start with {prefix:?}"));
    }
    for (member, list) in [("command", &spec.command), ("args", &spec.args)] {
        for (index, _) in list.iter().enumerate().filter(|(_, text)| breaks_line(text)) {
            faults.push(format!("{path}.{member}[{index}] must not contain a line break or NUL"));
        }
    }
    faults
}

/// The part of [`exec_faults`] that is about the environment, as field and what is wrong with it.
pub fn env_faults(env: &[EnvVar], path: &str) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    let mut seen = HashSet::new();
    for (index, entry) in env.iter().enumerate() {
        let field = format!("{path}.env[{index}]");
        if breaks_line(&entry.name) || breaks_line(&entry.value) {
            faults.push((field.clone(), "must not contain a line break or NUL".to_owned()));
        }
        if let Some(identity) = entry.identity()
            && !seen.insert(identity)
        {
            faults.push(if entry.name.is_empty() {
                (field, "repeats an earlier entry without a name".to_owned())
            } else {
                (field, format!("repeats the name {:?}", entry.name))
            });
        }
    }
    faults
}

impl EnvVar {
    /// What no two entries of a list may have in common: the name, or of an entry that stands for all keys of
    /// a Secret, the Secret and the prefix.
    pub fn identity(&self) -> Option<(&str, Option<(&str, &str)>)> {
        let source = self.secret_ref.as_ref().filter(|_| self.name.is_empty());
        let source = source.map(|secret| (secret.name.as_str(), secret.prefix.as_str()));
        (!self.name.is_empty() || source.is_some()).then_some((self.name.as_str(), source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(mut members: Value) -> ApplicationSpec {
        members["image"] = json!("nginx");
        serde_json::from_value(members).unwrap()
    }

    fn fields(members: Value) -> Vec<String> {
        violations(&spec(members), "spec").into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn requests_stay_within_limits() {
        let amounts =
            |requests: Value, limits: Value| json!({"resources": {"requests": requests, "limits": limits}});
        assert!(
            fields(amounts(
                json!({"cpu": "500m", "memory": "256Mi"}),
                json!({"cpu": "1", "memory": "512Mi"})
            ))
            .is_empty()
        );
        assert!(fields(amounts(json!({"cpu": "1"}), json!({"cpu": "1000m"}))).is_empty());
        assert!(fields(amounts(json!({"cpu": "1"}), json!({"cpu": "0"}))).is_empty());
        assert_eq!(
            fields(amounts(json!({"cpu": "2"}), json!({"cpu": "1"}))),
            ["spec.resources.requests.cpu"]
        );
        assert_eq!(
            fields(amounts(json!({"memory": "2Gi"}), json!({"memory": "1Gi"}))),
            ["spec.resources.requests.memory"]
        );
        assert_eq!(
            fields(amounts(json!({"cpu": "-1"}), json!({"memory": "-1"}))),
            ["spec.resources.limits.memory", "spec.resources.requests.cpu"]
        );
    }

    #[test]
    fn volumes_by_type() {
        let one = |mount: Value| fields(json!({"volumes": [mount]}));
        let at = |path: &str| one(json!({"mountPath": path, "volume": {"type": "tmpfs"}}));
        assert!(at("/creds").is_empty());
        for bad in ["/a b", "/a:b", "/a/../b", "a"] {
            assert_eq!(at(bad), ["spec.volumes[0].mountPath"], "{bad}");
        }
        let secret = |mut volume: Value| {
            volume["type"] = json!("secret");
            one(json!({"mountPath": "/s", "volume": volume}))
        };
        assert!(secret(json!({"name": "s", "items": [{"key": "k", "path": "sub/key"}]})).is_empty());
        assert_eq!(
            secret(json!({"name": "s", "items": [{"key": "k", "path": "../../etc/shadow"}]})),
            ["spec.volumes[0].volume.items[0].path"]
        );
        assert_eq!(
            secret(json!({"name": "s", "items": [{"key": "k", "path": "/etc/shadow"}]})),
            ["spec.volumes[0].volume.items[0].path"]
        );
        assert_eq!(
            secret(json!({"size": "1Mi"})),
            ["spec.volumes[0].volume.name", "spec.volumes[0].volume.size"]
        );
        let token = |mut volume: Value| {
            volume["type"] = json!("token");
            one(json!({"mountPath": "/t", "volume": volume}))
        };
        assert!(token(json!({"audience": "vault"})).is_empty());
        assert!(token(json!({"size": "0"})).is_empty());
        assert_eq!(token(json!({"audience": "a/b"})), ["spec.volumes[0].volume.audience"]);
        assert_eq!(
            token(json!({"name": "n", "size": "1", "items": [{"key": "k", "path": "p"}]})),
            ["spec.volumes[0].volume.items", "spec.volumes[0].volume.name", "spec.volumes[0].volume.size"]
        );
    }

    #[test]
    fn job_fields_need_a_job() {
        let with = |policy: &str| {
            fields(
                json!({"lifecycle": {"restartPolicy": policy, "activeDeadlineSeconds": 5, "backoffLimit": 1}}),
            )
        };
        assert!(with("Never").is_empty());
        for service in ["Always", "OnFailure"] {
            assert_eq!(
                with(service),
                ["spec.lifecycle.activeDeadlineSeconds", "spec.lifecycle.backoffLimit"]
            );
        }
    }

    #[test]
    fn environment_entries() {
        let env = |entry: Value| fields(json!({"env": [entry]}));
        for good in [
            json!({"name": "A", "value": ""}),
            json!({"name": "A", "secretRef": {"name": "s", "key": "k"}}),
            json!({"secretRef": {"name": "s", "key": "*", "prefix": "PG_"}}),
            json!({"secretRef": {"name": "s", "key": "*"}}),
        ] {
            assert!(env(good.clone()).is_empty(), "{good}");
        }
        for (bad, field) in [
            (json!({"name": "A", "value": "x", "secretRef": {"name": "s", "key": "k"}}), "spec.env[0].value"),
            (json!({"name": "A", "secretRef": {"name": "s", "key": "*"}}), "spec.env[0].name"),
            (
                json!({"name": "A", "secretRef": {"name": "s", "key": "k", "prefix": "P"}}),
                "spec.env[0].secretRef.prefix",
            ),
            (
                json!({"secretRef": {"name": "s", "key": "*", "prefix": "pg-"}}),
                "spec.env[0].secretRef.prefix",
            ),
            (
                json!({"name": "A", "secretRef": {"name": "s", "key": "../etc/shadow"}}),
                "spec.env[0].secretRef.key",
            ),
            (json!({"name": "pg.password"}), "spec.env[0].name"),
            (json!({"name": "1PASSWORD"}), "spec.env[0].name"),
            (json!({"value": "x"}), "spec.env[0].name"),
        ] {
            assert_eq!(env(bad.clone()), [field], "{bad}");
        }
    }

    #[test]
    fn texts_that_would_escape_are_another_matter() {
        let faults = |members: Value| exec_faults(&spec(members), "spec");
        assert!(faults(json!({"command": ["/bin/sh"], "args": ["-c", "echo hi"], "env": [{"name": "A", "value": "x"}, {"name": "B", "value": "x"}]})).is_empty());
        for prefix in ["+", "!", "@", ":", "-"] {
            assert!(faults(json!({"command": [format!("{prefix}x")]}))[0].contains("command[0]"));
        }
        assert!(faults(json!({"args": ["a", "b\nc"]}))[0].contains("args[1]"));
        assert!(faults(json!({"command": ["a\r"]}))[0].contains("command[0]"));
        assert!(faults(json!({"env": [{"name": "A", "value": "x\ny"}]}))[0].contains("env[0]"));
        assert!(faults(json!({"env": [{"name": "A\n"}]}))[0].contains("env[0]"));
        assert!(fields(json!({"env": [{"name": "A\n"}]})).is_empty());
        let twice = json!({"env": [{"name": "A", "value": "x"}, {"name": "A", "secretRef": {"name": "s", "key": "k"}}]});
        assert!(faults(twice)[0].contains("repeats the name \"A\""));
        let all =
            |secret: &str, prefix: &str| json!({"secretRef": {"name": secret, "key": "*", "prefix": prefix}});
        assert!(faults(json!({"env": [all("a", ""), all("b", ""), all("a", "P_")]})).is_empty());
        assert_eq!(faults(json!({"env": [all("a", "P_"), all("a", "P_")]})).len(), 1);
    }
}
