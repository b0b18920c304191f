//! Rules of one set alone that the schema cannot say.
//!
//! Components are judged as the Applications that they are to become, with their own place in the set as the
//! path. What depends on the nodes that there are (names that clash, too many children) is judged at the door
//! of writes, which knows them.

use std::collections::HashSet;

use super::super::application::{ApplicationSpec, MAX_ENV, MAX_VOLUMES, env_faults, violations as of_spec};
use super::super::service::{ServicePort, port_violations};
use super::expand::rendered_spec;
use super::{ApplicationSet, Common, Component, Rollout};
use crate::object::Object;
use crate::status::Cause;
use crate::values::component_name_fault;

/// Longest name of a port of a Service.
const MAX_PORT_NAME: usize = 63;

/// Every violation of a set.
pub(super) fn violations(object: &Object) -> Vec<Cause> {
    let set: ApplicationSet = match object.read() {
        Ok(set) => set,
        // The schema lets nothing through that does not read.
        Err(error) => return vec![Cause::invalid("spec", "null", error)],
    };
    let mut causes = Vec::new();
    let components = &set.spec.applications;
    if components.is_empty() {
        let why = "Required value: a set has at least one component";
        causes.push(Cause::new("FieldValueRequired", "spec.applications", why));
    }
    let mut names = HashSet::new();
    for (at, component) in components.iter().enumerate() {
        let path = format!("spec.applications[{at}]");
        name(component, &path, &mut names, &mut causes);
        scale(component, &path, set.spec.same_node(), &mut causes);
        application(&component.spec, &format!("{path}.spec"), &mut causes);
        service_ports(component, &path, &mut causes);
        merged(object, component, at, &path, &mut causes);
    }
    deadline(&set.spec.rollout(), &mut causes);
    if let Some(Common { env, volumes, .. }) = set.spec.common {
        application(
            &ApplicationSpec { env, volumes, ..ApplicationSpec::default() },
            "spec.common",
            &mut causes,
        );
    }
    causes
}

/// A child that is up at once must be able to become available in time.
fn deadline(rollout: &Rollout, causes: &mut Vec<Cause>) {
    if let Some(deadline) = rollout.progress_deadline_seconds
        && deadline <= rollout.min_ready_seconds
    {
        let why = "must be greater than minReadySeconds";
        let field = "spec.rollout.progressDeadlineSeconds";
        causes.push(Cause::invalid(field, &deadline.to_string(), why));
    }
}

fn forbidden(field: String, why: &str) -> Cause {
    Cause::new("FieldValueForbidden", field, format!("Forbidden: {why}"))
}

fn name<'a>(component: &'a Component, path: &str, names: &mut HashSet<&'a str>, causes: &mut Vec<Cause>) {
    let (field, name) = (format!("{path}.name"), component.name.as_str());
    if let Some(fault) = component_name_fault(name) {
        causes.push(Cause::invalid(field, &format!("{name:?}"), fault));
    } else if !names.insert(name) {
        causes.push(Cause::new("FieldValueDuplicate", field, format!("Duplicate value: {name:?}")));
    }
}

fn scale(component: &Component, path: &str, same_node: bool, causes: &mut Vec<Cause>) {
    if component.node_spread().is_none() {
        return;
    }
    let field = format!("{path}.scale.nodeSpread");
    if component.replicas().is_some() {
        causes.push(forbidden(field.clone(), "may not be set together with replicas"));
    }
    if same_node {
        causes.push(forbidden(field, "may not be set when all children go to the same node"));
    }
    if component.spec.placement.as_ref().is_some_and(|placement| !placement.node_name.is_empty()) {
        let field = format!("{path}.spec.placement.nodeName");
        causes.push(forbidden(field, "may not be set on a component that is spread over nodes"));
    }
}

/// What is wrong with a spec as that of an Application, the environment included: in a set all of it is the
/// author's mistake.
fn application(spec: &ApplicationSpec, path: &str, causes: &mut Vec<Cause>) {
    causes.extend(of_spec(spec, path));
    causes.extend(
        env_faults(&spec.env, path).into_iter().map(|(field, why)| Cause::invalid(field, "null", why)),
    );
}

/// What is wrong with the ports of a component as those of the Service that is made for it.
fn service_ports(component: &Component, path: &str, causes: &mut Vec<Cause>) {
    if !component.has_rendered_service() {
        return;
    }
    let ports: Vec<ServicePort> = component
        .spec
        .ports
        .iter()
        .map(|port| ServicePort {
            name: port.name.clone(),
            port: i32::try_from(port.port).unwrap_or(0),
            ..ServicePort::default()
        })
        .collect();
    causes.extend(port_violations(&ports, &format!("{path}.spec.ports")));
    for (at, port) in ports.iter().enumerate() {
        let length = port.name.chars().count();
        if length > MAX_PORT_NAME {
            let why = format!("maxLength: got {length}, want {MAX_PORT_NAME}");
            causes.push(Cause::invalid(format!("{path}.spec.ports[{at}].name"), "null", why));
        }
    }
}

/// What is too much once the common part is put in.
fn merged(set: &Object, component: &Component, at: usize, path: &str, causes: &mut Vec<Cause>) {
    let spec = rendered_spec(set, component, at);
    let lists =
        [("env", component.spec.env.len(), MAX_ENV), ("volumes", component.spec.volumes.len(), MAX_VOLUMES)];
    for (member, own, most) in lists {
        let count = spec.get(member).and_then(serde_json::Value::as_array).map_or(0, Vec::len);
        if count > most {
            let why = format!("with {} of spec.common", count - own);
            let mut cause = Cause::too_many(format!("{path}.spec.{member}"), count, most);
            cause.message = format!("{} ({why})", cause.message);
            causes.push(cause);
        }
    }
}
