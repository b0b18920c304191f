//! Decisions by rules: 10,000 lines in all, callers with 16 or with 200 of them, beside a scan of the same
//! lines. Nothing here touches the database.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use horchestra_auth::identity::AUTHENTICATED;
use horchestra_auth::rbac::{FixedPolicy, PolicyBuilder};
use horchestra_auth::{Attributes, Authorizer, Credential, Identity};
use horchestra_core::kinds::rbac::{
    BindingSpec, ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, RoleSpec, Subject,
};

use super::BenchArgs;
use super::report::{Section, percentile};

/// Lines of all callers together.
const LINES: usize = 10_000;
/// Decisions that an arm times, one by one.
const DECISIONS: usize = 20_000;
const GROUP: &str = "horchestra.io";

/// Sizes of a caller's set of lines, and the microseconds that a decision may take at the 99th percentile.
const SIZES: [(usize, f64); 2] = [(16, 50.0), (200, 250.0)];
/// The same of a decision that was made before.
const KEPT: f64 = 2.0;

pub fn measure(args: &BenchArgs) -> Result<Vec<Section>> {
    let mut sections = Vec::new();
    for (size, limit) in SIZES {
        let world = World::new(size);
        let mut ours = (Vec::new(), Vec::new());
        let mut theirs = Vec::new();
        let mut medians = (Vec::new(), Vec::new());
        for round in 0..=args.pairs() {
            let (fresh, kept) = world.decide(round)?;
            let scanned = world.scan(round);
            // The first round makes the enforcers.
            if round > 0 {
                ours.0.push(percentile(&fresh, 0.99));
                ours.1.push(percentile(&kept, 0.99));
                medians.0.push(percentile(&fresh, 0.5));
                medians.1.push(percentile(&kept, 0.5));
                theirs.push(percentile(&scanned, 0.99));
            }
        }
        let aim = |limit: f64| format!("ours at most {limit} µs");
        let median =
            |values: &[f64]| format!("median of a decision: {:.2} µs", super::report::median(values));
        sections.push(Section {
            name: format!("rbac: a new question to {size} of {LINES} lines, p99"),
            unit: "µs",
            comparison: "a scan of the lines".into(),
            ours: ours.0,
            theirs: theirs.clone(),
            aim: aim(limit),
            notes: vec![median(&medians.0), world.built.clone()],
        });
        sections.push(Section {
            name: format!("rbac: a question asked before, {size} lines, p99"),
            unit: "µs",
            comparison: "a scan of the lines".into(),
            ours: ours.1,
            theirs,
            aim: aim(KEPT),
            notes: vec![median(&medians.1)],
        });
    }
    Ok(sections)
}

struct World {
    authorizer: Authorizer,
    callers: Vec<Identity>,
    lines: Vec<Vec<String>>,
    built: String,
}

impl World {
    /// As many callers as make up all lines, each with its own ones.
    fn new(size: usize) -> World {
        let mut policy = PolicyBuilder::default();
        let (mut callers, mut lines) = (Vec::new(), Vec::new());
        for caller in 0..LINES / size {
            let name = format!("caller-{caller}");
            let resources: Vec<String> = (0..size).map(|line| format!("resource-{caller}-{line}")).collect();
            let rule = PolicyRule {
                verbs: vec!["get".to_owned(), "list".to_owned()],
                api_groups: vec![GROUP.to_owned()],
                resources: resources.clone(),
                ..PolicyRule::default()
            };
            let spec = RoleSpec { rules: vec![rule] };
            policy.cluster_role(&name, Arc::new(ClusterRole { spec, ..ClusterRole::default() }));
            let subjects = vec![Subject { kind: "User".to_owned(), name: name.clone() }];
            let role_ref = RoleRef { kind: "ClusterRole".to_owned(), name: name.clone() };
            let spec = BindingSpec { subjects, role_ref };
            policy
                .cluster_role_binding(Arc::new(ClusterRoleBinding { spec, ..ClusterRoleBinding::default() }));
            let credential =
                Credential::Certificate { fingerprint: String::new(), not_after: jiff::Timestamp::MAX };
            callers.push(Identity { name, groups: vec![AUTHENTICATED.to_owned()], credential });
            lines.push(resources);
        }
        let began = Instant::now();
        let policy = policy.build();
        let built = format!("the policy was built in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
        World { authorizer: Authorizer::new(FixedPolicy::new(policy)), callers, lines, built }
    }

    /// The microseconds of each decision, sorted: of new questions, and of the same ones asked again. Every
    /// other one is refused, which takes all lines; the others are granted by the last one.
    fn decide(&self, round: usize) -> Result<(Vec<f64>, Vec<f64>)> {
        let (mut fresh, mut kept) = (Vec::with_capacity(DECISIONS), Vec::with_capacity(DECISIONS));
        for number in 0..DECISIONS {
            let at = number % self.callers.len();
            let granted = number % 2 == 1;
            let other = format!("other-{round}-{number}");
            // Only what is refused can be new time and again.
            let resource = if granted { self.lines[at].last().map_or("", String::as_str) } else { &other };
            let asked = Attributes::resource("get", GROUP, resource, "team-a", "web");
            let began = Instant::now();
            let first = self.authorizer.authorize(&self.callers[at], &asked)?;
            let first_took = micros(began);
            let began = Instant::now();
            let second = self.authorizer.authorize(&self.callers[at], &asked)?;
            kept.push(micros(began));
            if !granted {
                fresh.push(first_took);
            }
            ensure!(first.allowed == granted && second.allowed == granted, "a decision is wrong");
        }
        fresh.sort_by(f64::total_cmp);
        kept.sort_by(f64::total_cmp);
        Ok((fresh, kept))
    }

    /// The same new questions, answered by comparing with every line.
    fn scan(&self, round: usize) -> Vec<f64> {
        let mut took: Vec<f64> = (0..DECISIONS / 2)
            .map(|number| {
                let lines = &self.lines[number % self.lines.len()];
                let other = format!("other-{round}-{number}");
                let began = Instant::now();
                black_box(lines.iter().any(|line| *line == *black_box(&other)));
                micros(began)
            })
            .collect();
        took.sort_by(f64::total_cmp);
        took
    }
}

fn micros(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e6
}
