//! Applications that come and go, and now and then more of them than there is room for.

use std::collections::VecDeque;

use anyhow::Result;
use horchestra_core::kind::Kind;
use rand::Rng;
use serde_json::{Value, json};

use super::{Author, MODES, Made, Share, turned};

/// How many of an author's are there at a time.
const ALIVE: usize = 8;
/// Together they ask for more than small fleets have.
const CROWD: usize = 30;
const CROWD_SHARES: i64 = 3;

fn application(name: &str, turn: u64, share: &Share, shares: i64) -> Value {
    json!({
        "apiVersion": "horchestra.io/v1", "kind": "Application",
        "metadata": {"name": name, "annotations": turned(turn)},
        "spec": {"image": "registry.example/demo:1", "resources": share.times(shares)},
    })
}

/// Makes one after the other, changes some, and deletes the oldest in every way there is.
pub async fn come_and_go(mut author: Author, name: &'static str, share: Share) -> Result<()> {
    let mut alive: VecDeque<Made> = VecDeque::new();
    for number in 1.. {
        if author.is_told_to_stop() {
            break;
        }
        let object = application(&format!("{name}-{number}"), number, &share, 1);
        alive.push_back(author.create(Kind::Application, &object).await?);
        if number % 3 == 0 {
            let at = rand::rng().random_range(0..alive.len());
            // Their turns begin with their numbers, so this is a later one.
            let patch =
                json!({"metadata": {"annotations": turned(number), "labels": {"turn": number.to_string()}}});
            author.merge(&alive[at].key, &patch).await?;
        }
        if alive.len() > ALIVE
            && let Some(oldest) = alive.pop_front()
        {
            author.delete(&oldest, mode(number)).await?;
        }
        author.pause(200).await;
    }
    Ok(())
}

/// Fills every node to the brim and beyond, and goes again.
pub async fn crowd(mut author: Author, share: Share) -> Result<()> {
    for wave in 1_u64.. {
        if author.is_told_to_stop() {
            break;
        }
        let mut made = Vec::new();
        for number in 0..CROWD {
            let mut object = application(&format!("crowd-{wave}-{number}"), wave, &share, CROWD_SHARES);
            object["spec"]["placement"] = json!({"nodeSelector": share.room()});
            made.push(author.create(Kind::Application, &object).await?);
        }
        author.pause(3_000).await;
        for one in &made {
            author.delete(one, "Background").await?;
        }
        for one in &made {
            author.is_gone(one).await?;
        }
        author.pause(3_000).await;
    }
    Ok(())
}

/// One way to delete after the other.
pub fn mode(number: u64) -> &'static str {
    MODES[usize::try_from(number).unwrap_or_default() % MODES.len()]
}
