//! What else happens in a fleet: nodes are taken out and put back, and owners go with what they own.

use anyhow::{Context, Result};
use horchestra_core::kind::{Key, Kind};
use rand::Rng;
use serde_json::{Value, json};

use super::applications::mode;
use super::{Author, Share, turned};

/// Cordons one node after the other, and leaves none so.
pub async fn cordon(mut author: Author) -> Result<()> {
    let nodes = author.list(Kind::Node).await?;
    for turn in 1.. {
        if author.is_told_to_stop() {
            break;
        }
        let node = &nodes[rand::rng().random_range(0..nodes.len())];
        let patch = |unschedulable: bool, turn: u64| json!({"metadata": {"annotations": turned(turn)}, "spec": {"unschedulable": unschedulable}});
        author.merge(node, &patch(true, 2 * turn)).await?;
        author.pause(2_000).await;
        author.merge(node, &patch(false, 2 * turn + 1)).await?;
        author.pause(1_000).await;
    }
    Ok(())
}

/// A volume that owns Applications, deleted in every way there is.
pub async fn families(mut author: Author, share: Share) -> Result<()> {
    for number in 1.. {
        if author.is_told_to_stop() {
            break;
        }
        let name = format!("family-{number}");
        let owner = json!({"metadata": {"name": name}, "spec": {}});
        let owner = author.create(Kind::PersistentVolume, &owner).await?;
        let reference = json!([{
            "apiVersion": "horchestra.io/v1", "kind": "PersistentVolume", "name": name,
            "uid": owner.uid.to_string(), "blockOwnerDeletion": true,
        }]);
        let mut members = Vec::new();
        for member in ["a", "b"] {
            let object = json!({
                "metadata": {"name": format!("{name}-{member}"), "ownerReferences": reference},
                "spec": {"image": "registry.example/demo:1", "resources": share.times(1)},
            });
            members.push(author.create(Kind::Application, &object).await?);
        }
        author.pause(1_000).await;
        let mode = mode(number);
        author.delete(&owner, mode).await?;
        author.is_gone(&owner).await?;
        for member in &members {
            if mode == "Orphan" {
                author.delete(member, "Background").await?;
            }
            author.is_gone(member).await?;
        }
        author.pause(1_000).await;
    }
    Ok(())
}

impl Author {
    async fn list(&mut self, kind: Kind) -> Result<Vec<Key>> {
        let listing = self.client.get(&super::collection(kind)).await?;
        let name = |item: &Value| Some(super::key(kind, item["metadata"]["name"].as_str()?));
        let keys: Vec<Key> = listing["items"].as_array().into_iter().flatten().filter_map(name).collect();
        keys.first().context("there is none")?;
        Ok(keys)
    }
}
