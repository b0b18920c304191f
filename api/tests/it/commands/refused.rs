//! Commands for things that are not here: each ends, with an error, and nothing has changed.

use super::{Look, Row, row};

pub fn rows() -> Vec<Row> {
    let refused = |name, command| {
        row(name, command).fails("").hides("created").then(Look::All("/spec/image"), "nginx:1")
    };
    vec![
        refused("a core namespace", "create namespace {ns}-core"),
        refused("a configmap", "create configmap x --from-literal=a=b"),
        refused("a core secret", "create secret generic x --from-literal=a=b"),
        refused("a role", "create role x --verb=get --resource=pods"),
        refused("a cluster role binding", "create clusterrolebinding {ns} --clusterrole=x --user=y"),
        refused("a service account", "create serviceaccount x"),
        refused("a deployment", "create deployment x --image=nginx"),
        refused("a job", "create job x --image=nginx"),
        refused("run", "run x --image=nginx"),
        refused("scale", "scale app web --replicas=2"),
        refused("autoscale", "autoscale app web --max=2"),
        refused("expose", "expose app web --port=80"),
        refused("rollout status", "rollout status app web"),
        refused("rollout restart", "rollout restart app web"),
        refused("rollout undo", "rollout undo app web"),
        refused("set image", "set image app web web=nginx:2"),
        refused("set env", "set env app web A=b"),
        refused("exec", "exec web -- ls"),
        refused("attach", "attach web"),
        refused("port-forward", "port-forward pod/web 18080:80"),
        refused("cp", "cp web:/etc/hosts {f}/hosts"),
        refused("taint", "taint nodes n1 a=b:NoSchedule"),
        refused("drain", "drain n1"),
        refused("logs of an Application", "logs app/web"),
        refused("patch a pod", r#"patch pod web --type=merge -p '{"metadata":{"labels":{"a":"b"}}}'"#),
        refused("label a pod", "label pod web a=b"),
        refused("delete a pod", "delete pod web"),
        refused("apply a pod", "apply -f -").stdin(
            "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: a, image: b}]}}",
        ),
        // Our Services are not the type that it looks for.
        refused("cluster-info", "cluster-info"),
        refused("act as somebody else", "get app --as=somebody"),
    ]
}
