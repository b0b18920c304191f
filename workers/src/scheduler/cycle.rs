//! One pass over the queue: a place for each Application, or the reason why there is none.

use super::cluster::{Cluster, Pending};
use super::framework::{BindDecision, Candidates, CycleState, Rejection, Score};
use super::profile::Profile;
use super::{queue, report};

/// What was decided for one Application.
#[derive(Clone, Debug)]
pub struct Decision {
    pub app: Pending,
    pub outcome: Outcome,
    /// Of one that waits: the plugins that turned it, or a node for it, down.
    pub turned_down_by: Vec<&'static str>,
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
            let mut turned_down_by = Vec::new();
            let outcome = match place(profile, cluster, &app, &mut turned_down_by) {
                Ok(node) => {
                    turned_down_by = Vec::new();
                    Outcome::Bind(node)
                }
                Err(message) => Outcome::Wait(message),
            };
            Decision { app, outcome, turned_down_by }
        })
        .collect()
}

/// The cycle of one Application: the node it is reserved on, or the message that says why there is none.
fn place(
    profile: &Profile,
    cluster: &mut Cluster,
    app: &Pending,
    turned_down_by: &mut Vec<&'static str>,
) -> Result<String, String> {
    let mut state = CycleState::default();
    for plugin in profile.plugins() {
        let Some(point) = plugin.pre_filter() else { continue };
        point.pre_filter(&mut state, app, cluster).map_err(|why| {
            turned_down_by.push(plugin.name());
            report::not_schedulable(why.text())
        })?;
    }
    let mut nodes = Candidates::of(cluster);
    for plugin in profile.plugins() {
        let Some(point) = plugin.filter() else { continue };
        let before = nodes.open().len();
        point.filter(&state, app, cluster, &mut nodes);
        if nodes.open().len() < before {
            turned_down_by.push(plugin.name());
        }
    }
    let chosen = if nodes.open().is_empty() {
        post_filter(profile, cluster, app, &mut state, &nodes)
            .ok_or_else(|| report::no_feasible_node(cluster.len(), nodes.reasons()))?
    } else {
        choose(profile, cluster, app, &mut state, nodes.open())
            .map_err(|why| report::not_schedulable(why.text()))?
    };
    let node = cluster.at(chosen).name.clone();
    commit(profile, cluster, app, &mut state, &node).map_err(|why| report::not_placed(&node, why.text()))?;
    Ok(node)
}

/// The first node that a PostFilter plugin nominates.
fn post_filter(
    profile: &Profile,
    cluster: &Cluster,
    app: &Pending,
    state: &mut CycleState,
    nodes: &Candidates,
) -> Option<usize> {
    profile
        .plugins()
        .filter_map(|plugin| plugin.post_filter())
        .find_map(|point| point.post_filter(state, app, cluster, nodes).ok())
}

/// The node with the highest weighted score; of equals the one with the lowest name.
fn choose(
    profile: &Profile,
    cluster: &Cluster,
    app: &Pending,
    state: &mut CycleState,
    nodes: &[usize],
) -> Result<usize, Rejection> {
    for point in profile.plugins().filter_map(|plugin| plugin.pre_score()) {
        point.pre_score(state, app, cluster, nodes)?;
    }
    let mut totals: Vec<Score> = vec![0; nodes.len()];
    let mut scores: Vec<Score> = vec![0; nodes.len()];
    for (plugin, weight) in profile.weighted() {
        if let Some(point) = plugin.score() {
            scores.fill(0);
            point.score(state, app, cluster, nodes, &mut scores)?;
            for (total, score) in totals.iter_mut().zip(&scores) {
                *total += weight * score;
            }
        }
    }
    // In the order of the names, so that of equals the first is the lowest.
    let best = nodes.iter().zip(totals).reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map(|(node, _)| *node).ok_or_else(|| Rejection::error("no node was scored"))
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
        Err(Rejection::error("no plugin binds it"))
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
