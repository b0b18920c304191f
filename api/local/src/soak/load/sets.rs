//! Sets that are edited faster than they roll, and sets that live for a moment.

use std::time::Duration;

use anyhow::Result;
use horchestra_core::kind::Kind;
use rand::Rng;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::applications::mode;
use super::{Author, Made, Share, key, turned};

/// A set that stays, and is edited again and again.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    name: &'static str,
    shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Two components with replicas.
    Wide,
    /// All children on one node.
    Together,
    /// A step that runs to its end, then replicas.
    Steps,
    /// A child on each node.
    Spread,
}

pub const STANDING: [Standing; 4] = [
    Standing { name: "wide", shape: Shape::Wide },
    Standing { name: "together", shape: Shape::Together },
    Standing { name: "steps", shape: Shape::Steps },
    Standing { name: "spread", shape: Shape::Spread },
];

/// What its author wants of a set at the moment.
#[derive(Clone, Copy, Debug)]
struct Wish {
    image: u64,
    replicas: u64,
    budget: u64,
}

impl Wish {
    fn change(&mut self) {
        let mut random = rand::rng();
        match random.random_range(0..10) {
            0..=5 => self.image += 1,
            6..=8 => self.replicas = random.random_range(1..=4),
            _ => self.budget = random.random_range(1..=2),
        }
    }

    fn spec(self, shape: Shape, share: &Share) -> Value {
        let image = format!("registry.example/demo:{}", self.image);
        let component =
            |name: &str| json!({"name": name, "spec": {"image": image, "resources": share.times(1)}});
        let scaled = |name: &str, scale: Value| {
            let mut component = component(name);
            component["scale"] = scale;
            component
        };
        let replicas = json!({"replicas": self.replicas});
        let components = match shape {
            Shape::Wide => vec![scaled("a", replicas), scaled("b", json!({"replicas": 2}))],
            Shape::Together => vec![component("a"), component("b"), component("c")],
            Shape::Spread => vec![scaled("a", json!({"nodeSpread": {"nodeSelector": share.room()}}))],
            Shape::Steps => {
                let mut step = component("init");
                step["spec"]["lifecycle"] = json!({"restartPolicy": "Never"});
                step["spec"]["env"] = json!([{"name": "SIM_RUN_SECONDS", "value": "1"}]);
                vec![step, scaled("a", replicas)]
            }
        };
        let mut spec = json!({"applications": components, "rollout": {"maxUnavailable": self.budget}});
        if shape == Shape::Together {
            spec["placement"] = json!({"mode": "sameNode"});
        }
        spec
    }
}

fn set(name: &str, turn: u64, spec: &Value) -> Value {
    json!({
        "apiVersion": "horchestra.io/v1", "kind": "ApplicationSet",
        "metadata": {"name": name, "annotations": turned(turn)}, "spec": spec,
    })
}

/// Edits a set that stays.
pub async fn edit(mut author: Author, standing: Standing, share: Share) -> Result<()> {
    let Standing { name, shape } = standing;
    let mut wish = Wish { image: 1, replicas: 3, budget: 1 };
    author.create(Kind::ApplicationSet, &set(name, 1, &wish.spec(shape, &share))).await?;
    for turn in 2.. {
        author.pause(3_000).await;
        if author.is_told_to_stop() {
            break;
        }
        wish.change();
        let patch = json!({"metadata": {"annotations": turned(turn)}, "spec": wish.spec(shape, &share)});
        author.merge(&key(Kind::ApplicationSet, name), &patch).await?;
    }
    Ok(())
}

/// How long a set of a moment may take to get its first child before it goes all the same.
const MOMENT: Duration = Duration::from_secs(10);

/// Makes sets and deletes them in every way there is, in the middle of what they are about.
pub async fn come_and_go(mut author: Author, share: Share) -> Result<()> {
    for number in 1.. {
        if author.is_told_to_stop() {
            break;
        }
        let name = format!("moment-{number}");
        let mut wish = Wish { image: 1, replicas: 2, budget: 1 };
        let made =
            author.create(Kind::ApplicationSet, &set(&name, 1, &wish.spec(Shape::Wide, &share))).await?;
        let first = key(Kind::Application, &format!("{name}-a-0"));
        let end = Instant::now() + MOMENT;
        while author.get(&first).await?.is_none() && Instant::now() < end {
            sleep(Duration::from_millis(100)).await;
        }
        if number % 2 == 0 {
            // More of them are wanted, and changed ones, and then none at all.
            wish.replicas = 4;
            wish.image = 2;
            let patch =
                json!({"metadata": {"annotations": turned(2)}, "spec": wish.spec(Shape::Wide, &share)});
            author.merge(&made.key, &patch).await?;
        }
        let mode = mode(number);
        author.delete(&made, mode).await?;
        author.is_gone(&made).await?;
        if mode == "Orphan" {
            bury(&mut author, &name).await?;
        }
        author.pause(500).await;
    }
    Ok(())
}

/// Deletes what a set left behind.
async fn bury(author: &mut Author, name: &str) -> Result<()> {
    let left = (0..4).map(|at| format!("{name}-a-{at}")).chain((0..2).map(|at| format!("{name}-b-{at}")));
    for child in left {
        let key = key(Kind::Application, &child);
        let Some(stored) = author.get(&key).await? else { continue };
        let uid = stored["metadata"]["uid"].as_str().unwrap_or_default().parse()?;
        let made = Made { key, uid };
        author.delete(&made, "Background").await?;
        author.is_gone(&made).await?;
    }
    Ok(())
}
