//! `get`, `describe`, `explain` and what tells what there is.

use super::{Row, read};

pub fn rows() -> Vec<Row> {
    let mut rows = get();
    rows.extend(outputs());
    rows.extend(selections());
    rows.extend(others());
    rows.extend(describe());
    rows.extend(explain());
    rows.extend(discovery());
    rows
}

fn get() -> Vec<Row> {
    vec![
        read("our columns", "get app")
            .prints("NAME")
            .prints("IMAGE")
            .prints("STATUS")
            .prints("AGE")
            .prints("nginx:1")
            .prints("Running")
            .hides("NODE"),
        read("plural", "get applications -o name").prints("application.horchestra.io/web"),
        read("singular", "get application -o name").prints("application.horchestra.io/web"),
        read("with group", "get app.horchestra.io -o name").prints("application.horchestra.io/web"),
        read("with group and version", "get applications.v1.horchestra.io -o name")
            .prints("application.horchestra.io/web"),
        read("one", "get app web").prints("web").hides("db"),
        read("type and name", "get app/web -o name").exactly("application.horchestra.io/web\n"),
        read("several names", "get app web db -o name")
            .exactly("application.horchestra.io/web\napplication.horchestra.io/db\n"),
        read("several types", "get app,ns")
            .prints("application.horchestra.io/web")
            .prints("namespace.horchestra.io/shop"),
        read("the category all", "get all").prints("application.horchestra.io/web"),
        read("by file", "get -f {f}/web.yaml -o name").exactly("application.horchestra.io/web\n"),
        read("in all namespaces", "get app -A").prints("NAMESPACE").prints("shop"),
        read("in another namespace", "get app -n default")
            .exactly("")
            .complains("No resources found in default namespace"),
        read("in no namespace", "get app -n nowhere").exactly("").complains("No resources found"),
        read("of a missing object", "get app ghost")
            .fails("(NotFound): applications.horchestra.io \"ghost\" not found"),
        read("a missing object, if it is there", "get app ghost --ignore-not-found").exactly(""),
        read("one of two is missing", "get app web ghost").fails("\"ghost\" not found").prints("nginx:1"),
        read("of an unknown type", "get gadgets")
            .fails("the server doesn't have a resource type \"gadgets\""),
        read("page by page", "get app --chunk-size=1 -o name").exactly(
            "application.horchestra.io/db\napplication.horchestra.io/job\napplication.horchestra.io/web\n",
        ),
        read("tables page by page", "get app --chunk-size=2").prints("db").prints("job").prints("web"),
        read("status alone", "get app web --subresource=status -o jsonpath={.status.phase}")
            .exactly("Running"),
    ]
}

fn outputs() -> Vec<Row> {
    vec![
        read("wide", "get app -o wide").prints("NODE").prints("IP").prints("n1"),
        read("yaml", "get app web -o yaml")
            .prints("apiVersion: horchestra.io/v1\nkind: Application")
            .prints("  image: nginx:1"),
        read("a list as yaml", "get app -o yaml").prints("kind: List").prints("name: job"),
        read("json", "get app web -o json").prints("\"image\": \"nginx:1\""),
        read("a list as json", "get app -o json").prints("\"kind\": \"List\""),
        read("jsonpath", "get app -o jsonpath={.items[*].metadata.name}").exactly("db job web"),
        read(
            "jsonpath with a filter",
            r#"get app -o 'jsonpath={.items[?(@.metadata.labels.tier=="front")].metadata.name}'"#,
        )
        .exactly("web"),
        read("jsonpath as json", "get app web -o jsonpath-as-json={.spec.image}").prints("\"nginx:1\""),
        read("columns of one's own", "get app web -o custom-columns=N:.metadata.name,I:.spec.image")
            .exactly("N     I\nweb   nginx:1\n"),
        read("a template", "get app -o 'go-template={{range .items}}{{.metadata.name}} {{end}}'")
            .exactly("db job web "),
        read("labels", "get app --show-labels")
            .prints("LABELS")
            .prints("env=prod,tier=front")
            .prints("<none>"),
        read("a label as column", "get app -L tier").prints("TIER").prints("front").prints("back"),
        read("kinds", "get app --show-kind").prints("application.horchestra.io/web"),
        read("no headers", "get app --no-headers").hides("NAME").prints("web"),
        read("sorted", "get app --sort-by=.spec.image --no-headers -o custom-columns=N:.metadata.name")
            .exactly("job\nweb\ndb\n"),
        read("a sorted table", "get app --sort-by=.metadata.creationTimestamp").prints("IMAGE").prints("web"),
        read("printed by the client", "get app --server-print=false").prints("NAME").prints("web"),
        read("with managed fields", "get app web -o yaml --show-managed-fields").prints("image: nginx:1"),
    ]
}

fn selections() -> Vec<Row> {
    vec![
        read("label equals", "get app -l tier=front -o name").exactly("application.horchestra.io/web\n"),
        read("label differs", "get app -l tier!=front -o name")
            .exactly("application.horchestra.io/db\napplication.horchestra.io/job\n"),
        read("label is one of", "get app -l 'tier in (front,back)' -o name")
            .exactly("application.horchestra.io/db\napplication.horchestra.io/web\n"),
        read("label is none of", "get app -l 'tier notin (front,back)' -o name")
            .exactly("application.horchestra.io/job\n"),
        read("label exists", "get app -l env -o name").exactly("application.horchestra.io/web\n"),
        read("label is missing", "get app -l '!tier' -o name").exactly("application.horchestra.io/job\n"),
        read("two labels", "get app -l tier=front,env=prod -o name")
            .exactly("application.horchestra.io/web\n"),
        read("no object has the label", "get app -l tier=none").exactly("").complains("No resources found"),
        read("a selector that is none", "get app -l 'a in'").fails(""),
        read("field name", "get app --field-selector metadata.name=web -o name")
            .exactly("application.horchestra.io/web\n"),
        read("field differs", "get app --field-selector metadata.name!=web -o name")
            .exactly("application.horchestra.io/db\napplication.horchestra.io/job\n"),
        read("field of the kind", "get app --field-selector spec.placement.nodeName=n1 -o name")
            .exactly("application.horchestra.io/web\n"),
        read("field of the status", "get app -A --field-selector status.phase=Running -o name")
            .prints("application.horchestra.io/web"),
        read("a field that none has", "get app --field-selector spec.image=x").fails("spec.image"),
        read("labels and fields", "get app -l tier --field-selector metadata.name=db -o name")
            .exactly("application.horchestra.io/db\n"),
    ]
}

fn others() -> Vec<Row> {
    vec![
        read("nodes", "get nodes").prints("n1").prints("STATUS"),
        read("nodes by their short name", "get no n1 -o wide").prints("n1"),
        read("a node is of our group", "get node n1 -o jsonpath={.apiVersion}").exactly("horchestra.io/v1"),
        read("namespaces", "get ns shop -o name").exactly("namespace.horchestra.io/shop\n"),
        read("pods", "get pods").prints("READY").prints("RESTARTS").prints("web").prints("db"),
        read("pods wide", "get po web -o wide").prints("n1"),
        read("pods of a node", "get pods --field-selector spec.nodeName=n1 -o name").exactly("pod/web\n"),
        read("pods by label", "get pods -l tier=back -o name").exactly("pod/db\n"),
        read("pods everywhere", "get pods -A --no-headers").prints("shop"),
        read("raw discovery", "get --raw /apis/horchestra.io/v1").prints("\"applications\""),
        read("a raw page", "get --raw /apis/horchestra.io/v1/namespaces/shop/applications?limit=1")
            .prints("\"continue\":"),
        read("raw readiness", "get --raw /readyz").exactly("ok"),
        read("raw liveness", "get --raw /livez?verbose").prints("ok"),
        read("raw version", "get --raw /version").prints("\"gitVersion\""),
        read("raw OpenAPI", "get --raw /openapi/v3").prints("apis/horchestra.io/v1"),
        read("raw of nothing", "get --raw /apis/nosuch").fails("NotFound"),
        read("no configmaps", "get configmaps").fails("the server doesn't have a resource type"),
    ]
}

fn describe() -> Vec<Row> {
    vec![
        read("describe one", "describe app web")
            .prints("Name:         web")
            .prints("Namespace:    shop")
            .prints("tier=front")
            .prints("API Version:  horchestra.io/v1")
            .prints("Kind:         Application")
            .prints("Image:")
            .prints("Phase:"),
        read("describe all", "describe app").prints("Name:         web").prints("Name:         db"),
        read("describe by label", "describe app -l tier=back")
            .prints("Name:         db")
            .hides("Name:         web"),
        read("describe a prefix", "describe app w").prints("Name:         web"),
        read("describe a node", "describe node n1").prints("Name:         n1").prints("Kind:         Node"),
        read("describe a namespace", "describe ns shop").prints("shop"),
        read("describe a pod", "describe pod web").prints("Containers:").prints("nginx:1").prints("Node:"),
        read("describe nothing", "describe app ghost").fails("NotFound"),
    ]
}

fn explain() -> Vec<Row> {
    vec![
        read("explain a kind", "explain app")
            .prints("KIND:")
            .prints("Application")
            .prints("DESCRIPTION:")
            .prints("FIELDS:")
            .prints("spec"),
        read("explain a member", "explain app.spec").prints("image").prints("required").prints("lifecycle"),
        read("explain a leaf", "explain app.spec.image").prints("FIELD").prints("image").prints("<string>"),
        read("explain a list", "explain app.spec.ports").prints("port"),
        read("explain everything", "explain app --recursive").prints("restartPolicy").prints("nodeName"),
        read("explain a version", "explain app --api-version=horchestra.io/v1").prints("FIELDS:"),
        read("explain from the old document", "explain app.spec.image --output=plaintext-openapiv2")
            .prints("image"),
        read(
            "explain everything from the old document",
            "explain app --recursive --output=plaintext-openapiv2",
        )
        .prints("restartPolicy"),
        read("explain a node", "explain node.spec.unschedulable").prints("<boolean>"),
        read("explain a namespace", "explain ns.metadata").prints("FIELDS:"),
        read("explain a member that is none", "explain app.spec.nosuch").fails("does not exist"),
        read("explain a kind that is none", "explain gadgets").fails(""),
    ]
}

fn discovery() -> Vec<Row> {
    vec![
        read("resources", "api-resources")
            .prints("applications")
            .prints("app,apps")
            .prints("horchestra.io/v1")
            .prints("Application")
            .prints("pods"),
        read("resources of a group", "api-resources --api-group=horchestra.io -o name")
            .prints("applications.horchestra.io")
            .prints("nodes.horchestra.io")
            .hides("pods"),
        read("resources without a namespace", "api-resources --namespaced=false -o name")
            .prints("namespaces.horchestra.io")
            .prints("nodes.horchestra.io")
            .hides("applications"),
        read("verbs of resources", "api-resources -o wide")
            .prints("create,delete,deletecollection,get,list,patch,update,watch"),
        read("resources by verb", "api-resources --verbs=deletecollection -o name")
            .prints("applications")
            .hides("pods"),
        read("resources by a verb that none has", "api-resources --verbs=nosuch -o name").exactly(""),
        read("resources by category", "api-resources --categories=all -o name")
            .prints("applications.horchestra.io")
            .hides("nodes"),
        read("resources by name", "api-resources --sort-by=name").prints("applications"),
        read("groups", "api-versions").prints("horchestra.io/v1\n").prints("v1\n"),
        read("version", "version").prints("Server Version: ").prints("v1.32.0+horchestra-"),
        read("version as json", "version -o json").prints("\"serverVersion\"").prints("\"major\": \"1\""),
    ]
}
