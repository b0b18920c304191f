//! What is wanted of the nodes meanwhile: Applications that come, change and go, with volumes, with networks of their
//! own, jobs; and some that stay.

use std::collections::VecDeque;

use anyhow::{Result, bail};
use horchestra_core::kind::Kind;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::checker::Acknowledged;
use super::super::load::{Author, Made, Manner, Told, key, turned};
use crate::client::Client;

/// How many of an author's are there at a time.
const ALIVE: usize = 6;
/// How many of those who stay.
const STANDING: u64 = 8;

/// Everybody at work.
pub struct Load {
    authors: JoinSet<Result<()>>,
    told: Told,
    stop: CancellationToken,
}

impl Load {
    /// With so many who come and go.
    pub fn begin(client: &Client, busy: u32) -> Load {
        let (told, stop) = (Told::default(), CancellationToken::new());
        let mut authors = JoinSet::new();
        for number in 0..busy {
            authors.spawn(come_and_go(
                Author::new(client, &told, &stop, Manner::Outright),
                format!("guest-{number}"),
            ));
        }
        authors.spawn(stay(Author::new(client, &told, &stop, Manner::Outright)));
        Load { authors, told, stop }
    }

    /// Nobody has given up.
    pub fn check(&mut self) -> Result<()> {
        match self.authors.try_join_next() {
            Some(ended) => ended?.and_then(|()| bail!("an author ended before it was told to")),
            None => Ok(()),
        }
    }

    /// Everybody comes to an end; what they were told.
    pub async fn end(mut self) -> Result<Vec<Acknowledged>> {
        self.stop.cancel();
        while let Some(ended) = self.authors.join_next().await {
            ended??;
        }
        Ok(std::mem::take(&mut self.told.lock()))
    }
}

fn application(name: &str, turn: u64, mut spec: Value) -> Value {
    spec["image"] = json!("registry.example/demo:1");
    spec["resources"] = json!({"requests": {"cpu": "100m", "memory": "64Mi"}});
    json!({
        "apiVersion": "horchestra.io/v1", "kind": "Application",
        "metadata": {"name": name, "annotations": turned(turn)}, "spec": spec,
    })
}

/// One kind of workload after the other.
fn workload(name: &str, number: u64) -> (Value, Option<String>) {
    let volume = format!("{name}-data");
    match number % 4 {
        0 => (json!({}), None),
        1 => (json!({"hostNetwork": false}), None),
        2 => (json!({"lifecycle": {"restartPolicy": "Never"}}), None),
        _ => {
            let source = json!({"type": "pv", "name": volume, "size": "1Gi"});
            (json!({"volumes": [{"mountPath": "/data", "volume": source}]}), Some(volume))
        }
    }
}

async fn come_and_go(mut author: Author, prefix: String) -> Result<()> {
    let mut alive: VecDeque<(Made, Option<String>)> = VecDeque::new();
    for number in 1.. {
        if author.is_told_to_stop() {
            break;
        }
        let name = format!("{prefix}-{number}");
        let (spec, volume) = workload(&name, number);
        let made = author.create(Kind::Application, &application(&name, 2 * number, spec)).await?;
        author.pause(1_000).await;
        // Jobs run once: a changed one would run again.
        if number % 4 < 2 {
            let change = json!({
                "metadata": {"annotations": turned(2 * number + 1)}, "spec": {"image": "registry.example/demo:2"},
            });
            author.merge(&made.key, &change).await?;
        }
        alive.push_back((made, volume));
        if alive.len() > ALIVE
            && let Some((oldest, volume)) = alive.pop_front()
        {
            author.delete(&oldest, "Background").await?;
            author.is_gone(&oldest).await?;
            if let Some(volume) = volume {
                remove(&mut author, &volume).await?;
            }
        }
        author.pause(1_000).await;
    }
    Ok(())
}

/// Deletes a volume that the scheduler made.
async fn remove(author: &mut Author, volume: &str) -> Result<()> {
    let key = key(Kind::PersistentVolume, volume);
    if let Some(stored) = author.get(&key).await? {
        let uid = stored["metadata"]["uid"].as_str().unwrap_or_default().parse()?;
        author.delete(&Made { key, uid }, "Background").await?;
    }
    Ok(())
}

/// Changes the same Applications again and again.
async fn stay(mut author: Author) -> Result<()> {
    let mut standing = Vec::new();
    for number in 0..STANDING {
        let name = format!("stays-{number}");
        let (spec, _) = workload(&name, number % 2);
        standing.push(author.create(Kind::Application, &application(&name, 1, spec)).await?);
    }
    for turn in 2.. {
        author.pause(500).await;
        if author.is_told_to_stop() {
            break;
        }
        let at = usize::try_from(turn).unwrap_or_default() % standing.len();
        let change = json!({
            "metadata": {"annotations": turned(turn)},
            "spec": {"image": format!("registry.example/demo:{turn}")},
        });
        author.merge(&standing[at].key, &change).await?;
    }
    Ok(())
}
