//! One pass over the queue: a place for each Application, or the reason why there is none.

use super::cluster::{Cluster, NodeInfo, Pending};
use super::framework::{BindDecision, CycleState, Rejection};
use super::profile::Profile;
use super::{queue, report};

/// What was decided for one Application.
#[derive(Clone, Debug)]
pub struct Decision {
    pub app: Pending,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// To be bound to this node.
    Bind(String),
    /// Keeps waiting; the message for its status.
    Wait(String),
}

/// Decides for every pending Application, in queue order, each seeing what was decided before it. An
/// Application that finds no place holds nobody up.
pub fn plan(profile: &Profile, cluster: &mut Cluster, mut pending: Vec<Pending>) -> Vec<Decision> {
    queue::sort(profile, &mut pending);
    pending
        .into_iter()
        .map(|app| {
            let outcome = match place(profile, cluster, &app) {
                Ok(node) => Outcome::Bind(node),
                Err(message) => Outcome::Wait(message),
            };
            Decision { app, outcome }
        })
        .collect()
}

/// The cycle of one Application: the node it is reserved on, or the message that says why there is none.
fn place(profile: &Profile, cluster: &mut Cluster, app: &Pending) -> Result<String, String> {
    let mut state = CycleState::default();
    for point in profile.plugins().filter_map(|plugin| plugin.pre_filter()) {
        point.pre_filter(&mut state, app, cluster).map_err(|why| report::not_schedulable(why.text()))?;
    }
    let (feasible, reasons) = filter(profile, cluster, app, &state);
    let node = if feasible.is_empty() {
        post_filter(profile, cluster, app, &mut state, &reasons).ok_or_else(|| {
            report::no_feasible_node(cluster.len(), reasons.into_iter().map(|(_, reason)| reason))
        })?
    } else {
        choose(profile, cluster, app, &mut state, &feasible)
            .map_err(|why| report::not_schedulable(why.text()))?
    };
    commit(profile, cluster, app, &mut state, &node).map_err(|why| report::not_placed(&node, why.text()))?;
    Ok(node)
}

/// Names of the nodes that every filter passes, and for each other node the first reason against it.
fn filter(
    profile: &Profile,
    cluster: &Cluster,
    app: &Pending,
    state: &CycleState,
) -> (Vec<String>, Vec<(String, String)>) {
    let mut feasible = Vec::new();
    let mut reasons = Vec::new();
    for node in cluster.nodes() {
        let rejection = profile
            .plugins()
            .filter_map(|plugin| plugin.filter())
            .find_map(|point| point.filter(state, app, node, cluster).err());
        match rejection {
            None => feasible.push(node.name.clone()),
            Some(why) => reasons.push((node.name.clone(), why.text().to_owned())),
        }
    }
    (feasible, reasons)
}

/// The first node that a PostFilter plugin nominates.
fn post_filter(
    profile: &Profile,
    cluster: &Cluster,
    app: &Pending,
    state: &mut CycleState,
    reasons: &[(String, String)],
) -> Option<String> {
    profile
        .plugins()
        .filter_map(|plugin| plugin.post_filter())
        .find_map(|point| point.post_filter(state, app, cluster, reasons).ok())
}

/// The node with the highest weighted score; of equals the one with the lowest name.
fn choose(
    profile: &Profile,
    cluster: &Cluster,
    app: &Pending,
    state: &mut CycleState,
    feasible: &[String],
) -> Result<String, Rejection> {
    let nodes: Vec<&NodeInfo> = feasible.iter().filter_map(|name| cluster.node(name)).collect();
    for point in profile.plugins().filter_map(|plugin| plugin.pre_score()) {
        point.pre_score(state, app, &nodes, cluster)?;
    }
    let mut best: Option<(i64, &str)> = None;
    for node in &nodes {
        let mut total = 0;
        for (plugin, weight) in profile.weighted() {
            if let Some(point) = plugin.score() {
                total += weight * point.score(state, app, node)?;
            }
        }
        if best.is_none_or(|(score, name)| total > score || (total == score && node.name.as_str() < name)) {
            best = Some((total, &node.name));
        }
    }
    best.map(|(_, name)| name.to_owned()).ok_or_else(|| Rejection::Error("no node was scored".to_owned()))
}

/// Reserve, Permit, PreBind and Bind; a failure at any point takes the reservation back.
fn commit(
    profile: &Profile,
    cluster: &mut Cluster,
    app: &Pending,
    state: &mut CycleState,
    node: &str,
) -> Result<(), Rejection> {
    let mut reserved = 0;
    let outcome = (|| {
        for point in profile.plugins().filter_map(|plugin| plugin.reserve()) {
            point.reserve(state, app, node, cluster)?;
            reserved += 1;
        }
        for point in profile.plugins().filter_map(|plugin| plugin.permit()) {
            point.permit(state, app, node)?;
        }
        for point in profile.plugins().filter_map(|plugin| plugin.pre_bind()) {
            point.pre_bind(state, app, node)?;
        }
        for point in profile.plugins().filter_map(|plugin| plugin.bind()) {
            if point.bind(state, app, node)? == BindDecision::Bind {
                return Ok(());
            }
        }
        Err(Rejection::Error("no plugin binds it".to_owned()))
    })();
    if outcome.is_ok() {
        for point in profile.plugins().filter_map(|plugin| plugin.post_bind()) {
            point.post_bind(state, app, node);
        }
    } else {
        let points: Vec<_> = profile.plugins().filter_map(|plugin| plugin.reserve()).take(reserved).collect();
        for point in points.into_iter().rev() {
            point.unreserve(state, app, node, cluster);
        }
    }
    outcome
}
