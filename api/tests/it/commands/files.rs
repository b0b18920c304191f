//! The manifests of the rows.

use std::path::Path;

const FILES: &[(&str, &str)] = &[
    (
        "web.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata: {name: web, labels: {tier: front}}\nspec: {image: 'nginx:1'}\n",
    ),
    (
        "web2.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata: {name: web, labels: {tier: front}}\nspec: {image: 'nginx:2'}\n",
    ),
    (
        "api.yaml",
        "# A comment.\napiVersion: horchestra.io/v1\nkind: Application\nmetadata:\n  name: api\n  labels: {app: api, tier: middle}\nspec:\n  image: nginx:1\n  args: ['--mode', '0400']\n  env:\n  - {name: LOG, value: 'yes'}\n",
    ),
    (
        "api2.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata:\n  name: api\n  labels: {app: api}\nspec:\n  image: nginx:2\n  env:\n  - {name: LOG, value: 'no'}\n",
    ),
    (
        "api.json",
        r#"{"apiVersion":"horchestra.io/v1","kind":"Application","metadata":{"name":"api"},"spec":{"image":"nginx:1"}}"#,
    ),
    (
        "extra.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata: {name: api}\nspec: {image: 'nginx:1', imgae: x}\n",
    ),
    (
        "invalid.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata: {name: web, labels: {tier: front}}\nspec: {image: 'nginx:1', ports: [{port: 70000}]}\n",
    ),
    (
        "nulls.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata: {name: api, labels: null}\nspec: {image: 'nginx:1', command: null, env: null}\n",
    ),
    (
        "generated.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata: {generateName: gen-}\nspec: {image: 'nginx:1'}\n",
    ),
    ("unknown.yaml", "apiVersion: horchestra.io/v1\nkind: Gadget\nmetadata: {name: x}\n"),
    ("foreign.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {}\n"),
    (
        "two.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata: {name: a}\nspec: {image: 'nginx:1'}\n---\napiVersion: horchestra.io/v1\nkind: Application\nmetadata: {name: b}\nspec: {image: 'nginx:1'}\n",
    ),
    (
        "list.yaml",
        "apiVersion: v1\nkind: List\nitems:\n- apiVersion: horchestra.io/v1\n  kind: Application\n  metadata: {name: a}\n  spec: {image: 'nginx:1'}\n- apiVersion: horchestra.io/v1\n  kind: Application\n  metadata: {name: b}\n  spec: {image: 'nginx:1'}\n",
    ),
    (
        "dir/a.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata: {name: a}\nspec: {image: 'nginx:1'}\n",
    ),
    (
        "dir/below/b.json",
        r#"{"apiVersion":"horchestra.io/v1","kind":"Application","metadata":{"name":"b"},"spec":{"image":"nginx:1"}}"#,
    ),
    (
        "kustom/kustomization.yaml",
        "resources: [app.yaml]\nnamePrefix: my-\nlabels: [{pairs: {by: kustomize}}]\n",
    ),
    (
        "kustom/app.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata: {name: app}\nspec: {image: 'nginx:1'}\n",
    ),
    (
        "keep.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata: {name: keep, labels: {set: mine}}\nspec: {image: 'nginx:1'}\n",
    ),
    (
        "drop.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata: {name: drop, labels: {set: mine}}\nspec: {image: 'nginx:1'}\n",
    ),
    (
        "set.yaml",
        "apiVersion: horchestra.io/v1\nkind: ApplicationSet\nmetadata: {name: s}\nspec: {applications: [{name: a, spec: {image: 'nginx:1'}}]}\n",
    ),
    (
        "held.yaml",
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata: {name: held, finalizers: [example.com/hold]}\nspec: {image: 'nginx:1'}\n",
    ),
    (
        "service.yaml",
        "apiVersion: horchestra.io/v1\nkind: Service\nmetadata: {name: cart}\nspec: {ports: [{port: 80, protocol: TCP}]}\n",
    ),
    (
        "short-service.yaml",
        "apiVersion: horchestra.io/v1\nkind: Service\nmetadata: {name: cart}\nspec: {ports: [{port: 80}]}\n",
    ),
    ("patch.yaml", "spec:\n  image: nginx:7\n"),
];

pub fn write(folder: &Path) {
    for (name, text) in FILES {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}
