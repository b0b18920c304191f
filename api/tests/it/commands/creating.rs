//! `create`, `apply`, `diff` and `replace`.

use super::{Look, Row, row};

const LIST: Look = Look::All("/metadata/name");
const IMAGE: Look = Look::Of("api", &["/spec/image"]);
const NO_API: (Look, &str) = (Look::Of("api", &["/metadata/name"]), "");

pub fn rows() -> Vec<Row> {
    let mut rows = create();
    rows.extend(validation());
    rows.extend(apply());
    rows.extend(server_side());
    rows.extend(diff());
    rows.extend(replace());
    rows
}

fn create() -> Vec<Row> {
    vec![
        row("create from yaml", "create -f {f}/api.yaml")
            .exactly("application.horchestra.io/api created\n")
            // YAML 1.1, as kubectl reads it.
            .then(Look::Of("api", &["/spec/args/1", "/spec/env/0/value"]), "0400yes"),
        row("create from json", "create -f {f}/api.json").exactly("application.horchestra.io/api created\n"),
        row("create what is there", "create -f {f}/web.yaml").fails("AlreadyExists").complains("\"web\" already exists"),
        row("create from a pipe", "create -f -")
            .stdin(r#"{"apiVersion":"horchestra.io/v1","kind":"Application","metadata":{"name":"api"},"spec":{"image":"p:1"}}"#)
            .then(IMAGE, "p:1"),
        row("create two documents", "create -f {f}/two.yaml").in_an_empty_namespace().then(LIST, "a b"),
        row("create a list", "create -f {f}/list.yaml").in_an_empty_namespace().then(LIST, "a b"),
        row("create a folder", "create -f {f}/dir").in_an_empty_namespace().then(LIST, "a"),
        row("create a tree", "create -R -f {f}/dir").in_an_empty_namespace().then(LIST, "a b"),
        row("create a kustomization", "create -k {f}/kustom").in_an_empty_namespace().then(LIST, "my-app"),
        row("create with a made-up name", "create -f {f}/generated.yaml").prints("application.horchestra.io/gen-"),
        row("create on trial at the server", "create -f {f}/api.yaml --dry-run=server")
            .exactly("application.horchestra.io/api created (server dry run)\n")
            .then(NO_API.0, NO_API.1),
        row("a trial shows what would be", "create -f {f}/api.yaml --dry-run=server -o jsonpath={.spec.lifecycle.restartPolicy}")
            .exactly("Always"),
        row("create on trial at the client", "create -f {f}/api.yaml --dry-run=client -o yaml")
            .prints("image: nginx:1").then(NO_API.0, NO_API.1),
        row("a trial of what is there", "create -f {f}/web.yaml --dry-run=server").fails("AlreadyExists"),
        row("create and keep what was sent", "create -f {f}/api.yaml --save-config")
            .then(Look::Printed("apply view-last-applied app/api -o json --request-timeout=9s"), LAST_APPLIED),
        row("create and show the name", "create -f {f}/api.yaml -o name").exactly("application.horchestra.io/api\n"),
        row("create in a namespace that is missing", "create -f {f}/api.yaml -n nowhere")
            .fails("namespaces \"nowhere\" not found"),
        row("create a namespace", "create -f -").stdin("apiVersion: horchestra.io/v1\nkind: Namespace\nmetadata: {name: '{ns}-more'}\n")
            .prints("namespace.horchestra.io/"),
        row("create a node", "create -f -").stdin("apiVersion: horchestra.io/v1\nkind: Node\nmetadata: {name: '{ns}-node'}\nspec: {}\n")
            .prints("node.horchestra.io/"),
        row("create raw", "create --raw /apis/horchestra.io/v1/namespaces/{ns}/applications -f {f}/api.json").then(IMAGE, "nginx:1"),
        row("create what nobody knows", "create -f {f}/unknown.yaml").fails("no matches for kind \"Gadget\""),
        row("create what we do not serve", "create -f {f}/foreign.yaml").fails("no matches for kind \"Deployment\""),
    ]
}

const LAST_APPLIED: &str = r#"{
  "apiVersion": "horchestra.io/v1",
  "kind": "Application",
  "metadata": {
    "annotations": {},
    "labels": {
      "app": "api",
      "tier": "middle"
    },
    "name": "api",
    "namespace": "{ns}"
  },
  "spec": {
    "args": [
      "--mode",
      "0400"
    ],
    "env": [
      {
        "name": "LOG",
        "value": "yes"
      }
    ],
    "image": "nginx:1"
  }
}
"#;

fn validation() -> Vec<Row> {
    vec![
        row("an unknown member", "create -f {f}/extra.yaml")
            .fails("unknown field \"spec.imgae\"")
            .then(NO_API.0, NO_API.1),
        row("an unknown member, strictly", "create -f {f}/extra.yaml --validate=strict").fails("spec.imgae"),
        row("an unknown member, with a warning", "create -f {f}/extra.yaml --validate=warn")
            .complains("unknown field \"spec.imgae\"")
            .then(Look::Of("api", &["/spec/imgae", "/spec/image"]), "nginx:1"),
        row("an unknown member, ignored", "create -f {f}/extra.yaml --validate=ignore")
            .then(Look::Of("api", &["/spec/imgae", "/spec/image"]), "nginx:1"),
        row("an unknown member, not validated", "create -f {f}/extra.yaml --validate=false")
            .then(IMAGE, "nginx:1"),
        row("an unknown member in apply", "apply -f {f}/extra.yaml")
            .fails("spec.imgae")
            .then(NO_API.0, NO_API.1),
        row("a value out of range", "apply -f {f}/invalid.yaml")
            .fails("spec.ports[0]")
            .then(Look::Of("web", &["/spec/ports"]), ""),
    ]
}

fn apply() -> Vec<Row> {
    vec![
        row("apply what is new", "apply -f {f}/api.yaml")
            .exactly("application.horchestra.io/api created\n")
            .then(IMAGE, "nginx:1"),
        row("apply the same", "apply -f {f}/api.yaml")
            .after("apply -f {f}/api.yaml")
            .exactly("application.horchestra.io/api unchanged\n"),
        row("apply a service again", "apply -f {f}/service.yaml")
            .after("apply -f {f}/service.yaml")
            .prints("unchanged"),
        // A merge patch replaces a list as a whole, so kubectl sends one that differs from what is shown by a
        // default, as it does for any custom resource. The server finds that nothing changes.
        row("apply a service without its defaults again", "apply -f {f}/short-service.yaml")
            .after("apply -f {f}/short-service.yaml")
            .prints("configured")
            .then(
                Look::Printed(
                    "get services.horchestra.io cart -o jsonpath={.metadata.generation}{.spec.ports}",
                ),
                r#"1[{"port":80,"protocol":"TCP"}]"#,
            ),
        row("apply a change", "apply -f {f}/api2.yaml")
            .after("apply -f {f}/api.yaml")
            .exactly("application.horchestra.io/api configured\n")
            .then(
                Look::Of("api", &["/spec/image", "/spec/env/0/value", "/spec/args", "/metadata/labels/tier"]),
                "nginx:2no",
            ),
        row("apply leaves what others wrote", "apply -f {f}/api2.yaml")
            .after("apply -f {f}/api.yaml")
            .after("label app api other=yes")
            .then(Look::Of("api", &["/metadata/labels/other", "/spec/image"]), "yesnginx:2"),
        row("apply to what was created", "apply -f {f}/web2.yaml")
            .complains("last-applied-configuration")
            .then(Look::Of("web", &["/spec/image"]), "nginx:2"),
        row("apply two documents", "apply -f {f}/two.yaml")
            .in_an_empty_namespace()
            .prints("/a created")
            .prints("/b created"),
        row("apply a list twice", "apply -f {f}/list.yaml")
            .after("apply -f {f}/list.yaml")
            .prints("/a unchanged")
            .prints("/b unchanged"),
        row("apply a tree", "apply -R -f {f}/dir").in_an_empty_namespace().then(LIST, "a b"),
        row("apply a kustomization", "apply -k {f}/kustom")
            .in_an_empty_namespace()
            .then(Look::Of("my-app", &["/metadata/labels/by"]), "kustomize"),
        row("apply a kustomization twice", "apply -k {f}/kustom")
            .after("apply -k {f}/kustom")
            .prints("unchanged"),
        row("apply nulls twice", "apply -f {f}/nulls.yaml")
            .after("apply -f {f}/nulls.yaml")
            .prints("unchanged"),
        row("apply on trial", "apply -f {f}/web2.yaml --dry-run=server")
            .prints("configured (server dry run)")
            .then(Look::Of("web", &["/spec/image"]), "nginx:1"),
        row("apply on trial what is new", "apply -f {f}/api.yaml --dry-run=server")
            .prints("created (server dry run)")
            .then(NO_API.0, NO_API.1),
        row(
            "apply and prune",
            "apply -f {f}/keep.yaml --prune -l set=mine --prune-allowlist=horchestra.io/v1/Application",
        )
        .after("apply -f {f}/keep.yaml")
        .after("apply -f {f}/drop.yaml")
        .prints("application.horchestra.io/keep unchanged")
        .prints("application.horchestra.io/drop pruned")
        .then(LIST, "keep web"),
        row("apply without a name", "apply -f {f}/generated.yaml")
            .fails("cannot use generate name with apply"),
        row("see what was applied", "apply view-last-applied app/api")
            .after("apply -f {f}/api.yaml")
            .prints("image: nginx:1"),
        row("set what was applied", "apply set-last-applied -f {f}/web.yaml --create-annotation")
            .prints("configured")
            .then(Look::Printed("apply view-last-applied app/web -o json"), SET_LAST_APPLIED),
        row("edit what was applied", "apply edit-last-applied app/api")
            .after("apply -f {f}/api.yaml")
            .editor("sed -i s/nginx:1/nginx:8/")
            .prints("edited"),
    ]
}

const SET_LAST_APPLIED: &str = r#"{
  "apiVersion": "horchestra.io/v1",
  "kind": "Application",
  "metadata": {
    "labels": {
      "tier": "front"
    },
    "name": "web",
    "namespace": "{ns}"
  },
  "spec": {
    "image": "nginx:1"
  }
}
"#;

fn server_side() -> Vec<Row> {
    vec![
        row("apply at the server", "apply --server-side -f {f}/api.yaml")
            .exactly("application.horchestra.io/api serverside-applied\n")
            .then(IMAGE, "nginx:1"),
        row("apply at the server again", "apply --server-side -f {f}/api.yaml")
            .after("apply --server-side -f {f}/api.yaml")
            .exactly("application.horchestra.io/api serverside-applied\n"),
        row("apply at the server what another wrote", "apply --server-side -f {f}/api2.yaml")
            .after("apply --server-side --field-manager=other -f {f}/api.yaml")
            .fails("conflict")
            .then(IMAGE, "nginx:1"),
        row("take over what another wrote", "apply --server-side --force-conflicts -f {f}/api2.yaml")
            .after("apply --server-side --field-manager=other -f {f}/api.yaml")
            .then(IMAGE, "nginx:2"),
        row("apply at the server without a field", "apply --server-side -f {f}/api2.yaml")
            .after("apply --server-side -f {f}/api.yaml")
            .then(Look::Of("api", &["/spec/image", "/spec/args", "/metadata/labels/tier"]), "nginx:2"),
        row("from the client to the server", "apply --server-side -f {f}/api2.yaml")
            .after("apply -f {f}/api.yaml")
            .then(Look::Of("api", &["/spec/image", "/spec/args"]), "nginx:2"),
        row("apply at the server on trial", "apply --server-side --dry-run=server -f {f}/api.yaml")
            .prints("serverside-applied (server dry run)")
            .then(NO_API.0, NO_API.1),
        row("diff at the server", "diff --server-side -f {f}/api2.yaml")
            .after("apply --server-side -f {f}/api.yaml")
            .code(1)
            .prints("+  image: nginx:2\n"),
        row("who wrote what", "get app api --show-managed-fields -o yaml")
            .after("apply --server-side -f {f}/api.yaml")
            .prints("operation: Apply"),
        row("an event", "create -f -")
            .stdin(
                r#"{"apiVersion":"v1","kind":"Event","metadata":{"name":"e"},"type":"Normal","reason":"Tested",
                "message":"seen","involvedObject":{"apiVersion":"horchestra.io/v1","kind":"Application",
                "namespace":"{ns}","name":"web"},"firstTimestamp":"2024-01-01T00:00:00Z",
                "lastTimestamp":"2024-01-01T00:00:00Z","count":1,"source":{"component":"test"}}"#,
            )
            .then(Look::Printed("get events -o jsonpath={.items[*].reason}"), "Tested"),
    ]
}

fn diff() -> Vec<Row> {
    vec![
        row("diff of the same", "diff -f {f}/api.yaml").after("apply -f {f}/api.yaml").code(0).exactly(""),
        row("diff of nulls", "diff -f {f}/nulls.yaml").after("apply -f {f}/nulls.yaml").code(0).exactly(""),
        row("diff of a change", "diff -f {f}/web2.yaml")
            .code(1)
            .prints("-  image: nginx:1\n")
            .prints("+  image: nginx:2\n")
            .then(Look::Of("web", &["/spec/image"]), "nginx:1"),
        row("diff of what is new", "diff -f {f}/api.yaml")
            .code(1)
            .prints("+kind: Application\n")
            .then(NO_API.0, NO_API.1),
        row("diff of what is wrong", "diff -f {f}/extra.yaml").fails("spec.imgae"),
    ]
}

fn replace() -> Vec<Row> {
    vec![
        row("replace", "replace -f {f}/web2.yaml").exactly("application.horchestra.io/web replaced\n")
            .then(Look::Of("web", &["/spec/image"]), "nginx:2"),
        row("replace what is missing", "replace -f {f}/api.yaml").fails("NotFound"),
        row("replace an old version", "replace -f -").stdin(
            r#"{"apiVersion":"horchestra.io/v1","kind":"Application","metadata":{"name":"web","resourceVersion":"1"},"spec":{"image":"p:1"}}"#)
            .fails("Conflict").then(Look::Of("web", &["/spec/image"]), "nginx:1"),
        row("replace by force", "replace --force -f {f}/web2.yaml").prints("deleted").prints("replaced")
            .then(Look::Of("web", &["/spec/image"]), "nginx:2"),
        row("replace by force what is missing", "replace --force -f {f}/api.yaml").prints("application.horchestra.io/api replaced"),
        row("replace on trial", "replace -f {f}/web2.yaml --dry-run=server").prints("replaced (server dry run)")
            .then(Look::Of("web", &["/spec/image"]), "nginx:1"),
        row("replace with an unknown member", "replace -f -").stdin(
            r#"{"apiVersion":"horchestra.io/v1","kind":"Application","metadata":{"name":"web"},"spec":{"image":"p:1","imgae":"x"}}"#)
            .fails("spec.imgae"),
        row("replace raw", "replace --raw /apis/horchestra.io/v1/namespaces/{ns}/applications/web -f -").stdin(
            r#"{"apiVersion":"horchestra.io/v1","kind":"Application","metadata":{"name":"web"},"spec":{"image":"p:1"}}"#)
            .then(Look::Of("web", &["/spec/image"]), "p:1"),
    ]
}
