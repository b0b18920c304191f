//! The ways by which a value of a Secret can reach the control plane.

use bytes::Bytes;
use horchestra_testkit::eventually;
use hyper::Method;
use serde_json::{Value, json};

use super::{SECRETS, World};
use crate::client::Client;
use crate::stack::RECOVERY;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const YAML: &str = "application/yaml";

/// A request that is refused: what it is, how it is made, and the code of the answer.
struct Refused<'a> {
    what: &'static str,
    by: &'a Client,
    method: Method,
    path: String,
    media: &'static str,
    body: Bytes,
    code: u16,
}

/// All Secrets by name, as those see them who may.
pub async fn contents(client: &Client) -> Value {
    let (code, list) = client.call(Method::GET, SECRETS, None).await.unwrap();
    assert_eq!(code, 200, "{list}");
    let named = |item: &Value| (item["metadata"]["name"].as_str().unwrap().to_owned(), item.clone());
    Value::Object(list["items"].as_array().unwrap().iter().map(named).collect())
}

/// Writes that are accepted, to Secrets whose names end like this.
pub async fn accepted(world: &World, which: &str) {
    let name = |way: &str| format!("{way}-{which}");
    let token = &world.token;
    let kubectl = |args: &[&str], document: Option<&Value>| {
        let Some((content, said)) = world.kubectl(args, document) else { return };
        assert!(content, "{args:?}: {said}");
    };
    // By kubectl: applied (which keeps a copy in an annotation) twice, the server's way, replaced, patched.
    let mut applied = world.secret(&name("applied"));
    kubectl(&["apply"], Some(&applied));
    applied["stringData"]["six"] = json!(format!("6{token}"));
    kubectl(&["apply"], Some(&applied));
    kubectl(&["apply", "--dry-run=server"], Some(&world.secret(&name("dry"))));
    let mut unknown = world.secret(&name("unknown"));
    unknown["value"] = json!(token);
    kubectl(&["apply", "--validate=false"], Some(&unknown));
    let mut merged = world.secret(&name("server"));
    kubectl(&["apply", "--server-side"], Some(&merged));
    merged["stringData"]["one"] = json!(format!("forced {token}"));
    let forced = ["apply", "--server-side", "--field-manager=other", "--force-conflicts"];
    kubectl(&forced, Some(&merged));
    kubectl(&["create"], Some(&world.secret(&name("replaced"))));
    kubectl(&["replace"], Some(&world.secret(&name("replaced"))));
    let resource = format!("secrets.horchestra.io/{}", name("replaced"));
    let patch = json!({"stringData": {"merged": format!("7{token}")}}).to_string();
    kubectl(&["patch", &resource, "--type=merge", "-p", &patch], None);
    let patch = json!([{"op": "add", "path": "/stringData", "value": {"patched": format!("8{token}")}}]);
    kubectl(&["patch", &resource, "--type=json", "-p", &patch.to_string()], None);
    kubectl(&["create"], Some(&world.secret(&name("gone"))));
    kubectl(&["delete"], Some(&world.secret(&name("gone"))));

    // The same beside it, so that a machine without kubectl sees most of it.
    let client = &world.master;
    let own = name("own");
    let path = format!("{SECRETS}/{own}");
    let call = async |method, path: &str, body: Option<Value>, expected| {
        let (code, answer) = client.call(method, path, body.as_ref()).await.unwrap();
        assert_eq!(code, expected, "{path}: {answer}");
    };
    call(Method::POST, SECRETS, Some(world.secret(&own)), 201).await;
    call(Method::PATCH, &path, Some(json!({"stringData": {"five": format!("new {token}")}})), 200).await;
    call(Method::PUT, &path, Some(world.secret(&own)), 200).await;
    call(Method::PUT, &format!("{path}?dryRun=All"), Some(world.secret(&own)), 200).await;
    call(Method::POST, SECRETS, Some(world.secret(&name("brief"))), 201).await;
    call(Method::DELETE, &format!("{SECRETS}/{}", name("brief")), None, 200).await;
    let mut fixed = world.secret(&name("fixed"));
    fixed["immutable"] = json!(true);
    call(Method::POST, SECRETS, Some(fixed), 201).await;
    // Somebody uses one: what starts a workload gets to handle it, the gateway opens it and sends it to the node. There
    // is no command, so the node writes nothing of it down.
    let reads = json!({
        "metadata": {"name": name("reader")},
        "spec": {
            "image": "registry.example/demo:1",
            "env": [{"name": "A", "secretRef": {"name": own, "key": "one"}}],
            "volumes": [
                {"mountPath": "/etc/own", "volume": {"type": "secret", "name": own}},
                {"mountPath": "/run/identity", "volume": {"type": "token"}},
            ],
        },
    });
    call(Method::POST, super::APPLICATIONS, Some(reads), 201).await;
    let reader = format!("{}/{}", super::APPLICATIONS, name("reader"));
    eventually(RECOVERY, async || {
        let (_, found) = client.call_patiently(Method::GET, &reader, None).await;
        found["status"]["phase"] == "Running"
    })
    .await;
}

/// Writes that are refused, each with the token in its body. What the answer says must not hold it.
pub async fn refused(world: &World) {
    let token = super::Search::of(&world.token);
    let mut wrong = Vec::new();
    for (what, args, document) in by_kubectl(world) {
        let Some((content, said)) = world.kubectl(&args, Some(&document)) else { break };
        if content || token.find(said.as_bytes()).is_some() {
            wrong.push(format!("kubectl, {what}: {said}"));
        }
    }
    for Refused { what, by, method, path, media, body, code } in beside_it(world) {
        let (answered, answer) = by.call_raw(method, &path, media, body).await.unwrap();
        let shown = token.find(&answer).is_some();
        if answered != code || shown {
            let text = String::from_utf8_lossy(&answer);
            let values = if shown { ", with a value" } else { "" };
            wrong.push(format!("{what}: {answered}, not {code}{values}: {text}"));
        }
    }
    // All of them at once: each is a way by itself.
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn by_kubectl(world: &World) -> Vec<(&'static str, Vec<&'static str>, Value)> {
    let named = |name: &str| world.secret(name);
    let mut key = named("key");
    key["stringData"]["no/file name"] = json!(world.token);
    let mut unknown = named("unknown");
    unknown["value"] = json!(world.token);
    let mut elsewhere = named("elsewhere");
    elsewhere["metadata"]["namespace"] = json!("nowhere");
    let mut conflicting = named("server-first");
    conflicting["stringData"]["one"] = json!(format!("conflicting {}", world.token));
    let mut stale = named("own-first");
    stale["metadata"]["resourceVersion"] = json!("1");
    let mut fixed = named("fixed-first");
    fixed["stringData"]["one"] = json!(format!("changed {}", world.token));
    vec![
        ("a key that is no name of a file", vec!["apply"], key),
        ("an unknown member", vec!["apply"], unknown),
        ("a namespace that is not there", vec!["apply"], elsewhere),
        ("a role that needs a gate", vec!["apply"], gated(world)),
        ("another manager's field", vec!["apply", "--server-side", "--field-manager=third"], conflicting),
        ("a name that is taken", vec!["create"], named("own-first")),
        ("an old revision", vec!["replace"], stale),
        ("an immutable one", vec!["replace"], fixed),
    ]
}

/// One that admission refuses for what the cluster does not have switched on.
fn gated(world: &World) -> Value {
    json!({
        "apiVersion": "horchestra.io/v1", "kind": "Secret", "type": "horchestra.io/vault",
        "metadata": {"name": "gated", "namespace": "default", "annotations": {
            "secrets.horchestra.io/store": "bao",
            "secrets.horchestra.io/static-role": "database/app",
            "example.org/note": world.token,
        }},
    })
}

fn beside_it(world: &World) -> Vec<Refused<'_>> {
    let (master, token) = (&world.master, world.token.as_str());
    let own = format!("{SECRETS}/own-first");
    let request = |what, method, path: &str, media, body: Bytes, code| Refused {
        what,
        by: master,
        method,
        path: path.to_owned(),
        media,
        body,
        code,
    };
    let post = |what, body: String, code| request(what, Method::POST, SECRETS, JSON, body.into(), code);
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut secret = world.secret("refused");
        change(&mut secret);
        secret.to_string()
    };
    let whole = world.secret("refused").to_string();
    let mut stale = world.secret("own-first");
    stale["metadata"]["resourceVersion"] = json!("1");
    let mut fixed = world.secret("fixed-first");
    fixed["stringData"]["one"] = json!(format!("changed {token}"));
    let test = |value: &str| json!([{"op": "test", "path": "/data/three", "value": value}]).to_string();
    let mut all = vec![
        post("no base64", changed(&|secret| secret["data"]["odd"] = json!(format!("%{token}"))), 422),
        post("a number for a text", changed(&|secret| secret["stringData"]["n"] = json!([token])), 422),
        post("a text for a map", changed(&|secret| secret["data"] = json!(token)), 422),
        post("a text for a truth", changed(&|secret| secret["immutable"] = json!(token)), 422),
        post("a map for a type", changed(&|secret| secret["type"] = json!({"a": token})), 422),
        post(
            "a key that is no name of a file",
            changed(&|secret| secret["stringData"]["a/b"] = json!(token)),
            422,
        ),
        post("an unknown member", changed(&|secret| secret["value"] = json!(token)), 400),
        post(
            "a zero character",
            changed(&|secret| secret["stringData"]["z"] = json!(format!("\0{token}"))),
            422,
        ),
        post(
            "too much data",
            changed(&|secret| secret["stringData"]["l"] = json!(token.repeat(40_000))),
            422,
        ),
        post(
            "too large an object",
            changed(&|secret| {
                secret["metadata"]["annotations"]["example.org/l"] = json!(token.repeat(60_000));
            }),
            413,
        ),
        post(
            "too large a body",
            changed(&|secret| secret["stringData"]["l"] = json!(token.repeat(110_000))),
            413,
        ),
        post("a role that needs a gate", gated(world).to_string(), 403),
        post("values and a store", changed(&|secret| secret["type"] = json!("horchestra.io/vault")), 422),
        post("half a document", whole[..whole.find(token).unwrap() + token.len()].to_owned(), 400),
        post("something behind the document", format!("{whole} {token}"), 400),
        post(
            "a key twice",
            format!(
                "{{\"metadata\": {{\"name\": \"refused\"}}, \"stringData\": {{\"a\": \"{token}\", \"a\": \"{token}\"}}}}"
            ),
            400,
        ),
        post("another kind", changed(&|secret| secret["kind"] = json!("Service")), 400),
        post("a list", json!([world.secret("refused")]).to_string(), 400),
        post("no object", json!(token).to_string(), 400),
        post("a name that is taken", world.secret("own-first").to_string(), 409),
        request(
            "bytes that are no text",
            Method::POST,
            SECRETS,
            JSON,
            [b"\"\xff", token.as_bytes()].concat().into(),
            400,
        ),
        request(
            "broken YAML",
            Method::POST,
            SECRETS,
            YAML,
            format!("stringData: {{a: [{token}\n b").into(),
            400,
        ),
        request(
            "a YAML tag",
            Method::POST,
            SECRETS,
            YAML,
            format!("stringData: !!map {token}\n").into(),
            400,
        ),
        request("a YAML alias", Method::POST, SECRETS, YAML, format!("stringData: *{token}\n").into(), 400),
        request("an unknown media type", Method::POST, SECRETS, "text/plain", whole.clone().into(), 415),
        request("no such route", Method::POST, &format!("{SECRETS}/a/b/c"), JSON, whole.clone().into(), 404),
        request("no such method", Method::PUT, SECRETS, JSON, whole.clone().into(), 405),
        request("an old revision", Method::PUT, &own, JSON, stale.to_string().into(), 409),
        request("another name", Method::PUT, &own, JSON, whole.clone().into(), 400),
        request("nothing there", Method::PUT, &format!("{SECRETS}/refused"), JSON, whole.clone().into(), 404),
        request(
            "an immutable one",
            Method::PUT,
            &format!("{SECRETS}/fixed-first"),
            JSON,
            fixed.to_string().into(),
            422,
        ),
        request("a test that fails", Method::PATCH, &own, PATCH, test(token).into(), 422),
        request(
            "an operation that is none",
            Method::PATCH,
            &own,
            PATCH,
            json!([{"op": token}]).to_string().into(),
            400,
        ),
        request(
            "a text for an operation",
            Method::PATCH,
            &own,
            PATCH,
            json!([token]).to_string().into(),
            400,
        ),
        request(
            "a patch of nothing",
            Method::PATCH,
            &own,
            PATCH,
            json!([{"op": "replace", "path": "/data/none/none", "value": token}]).to_string().into(),
            422,
        ),
        request(
            "a merge that is no object",
            Method::PATCH,
            &own,
            MERGE,
            json!(token).to_string().into(),
            400,
        ),
        request(
            "a merge that is cut",
            Method::PATCH,
            &own,
            MERGE,
            format!("{{\"stringData\": {{\"a\": \"{token}").into(),
            400,
        ),
        request(
            "a merge of the wrong type",
            Method::PATCH,
            &own,
            MERGE,
            json!({"data": {"a": [token]}}).to_string().into(),
            422,
        ),
        request(
            "a strategic merge",
            Method::PATCH,
            &own,
            "application/strategic-merge-patch+json",
            whole.clone().into(),
            415,
        ),
        request("an apply without a manager", Method::PATCH, &own, APPLY, whole.clone().into(), 400),
        request(
            "an apply that is broken",
            Method::PATCH,
            &format!("{own}?fieldManager=m"),
            APPLY,
            format!("stringData: [{token}").into(),
            400,
        ),
        request(
            "an apply of others' fields",
            Method::PATCH,
            &format!("{own}?fieldManager=m"),
            APPLY,
            changed(&|secret| {
                secret["metadata"]["name"] = json!("own-first");
                secret["stringData"]["one"] = json!(format!("conflicting {token}"));
            })
            .into(),
            409,
        ),
        request(
            "a deletion with a Secret for options",
            Method::DELETE,
            &format!("{SECRETS}/refused"),
            JSON,
            whole.clone().into(),
            400,
        ),
    ];
    for (by, code) in [(&world.nobody, 403), (&world.anonymous, 401)] {
        for (method, path) in [(Method::POST, SECRETS), (Method::PUT, own.as_str())] {
            all.push(Refused { by, ..request("no right", method, path, JSON, whole.clone().into(), code) });
        }
    }
    all
}
