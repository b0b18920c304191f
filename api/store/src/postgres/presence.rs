//! Leases, gateways, sessions, heartbeats and samples. Whatever a guard reads changes in a function that holds the
//! ordering lock; all else are plain statements on tables of their own. Every time is the database's.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::statements::{self, Statement};
use super::{PostgresBackend, errors};
use crate::announce::Announcement;
use crate::backend::{BackendError, Pruned};
use crate::presence::{
    DeniedCertificates, Heartbeat, HeartbeatRow, Lease, Samples, SamplesRow, SeenSession, SessionClaim,
    SessionGrant, SessionRow, TokenForm,
};
use crate::types::Revision;

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl PostgresBackend {
    pub(super) async fn take_lease(
        &self,
        name: &str,
        holder: Uuid,
        ttl: Duration,
    ) -> Result<Option<Lease>, BackendError> {
        let query = sqlx::query(statements::ACQUIRE_LEASE.sql).bind(name).bind(holder).bind(micros(ttl));
        let row = self.change_one(statements::ACQUIRE_LEASE, query).await?;
        let epoch: Option<i64> = row.try_get(0).map_err(errors::of_read)?;
        Ok(epoch.map(|epoch| Lease { name: name.to_owned(), holder, epoch }))
    }

    pub(super) async fn read_lease_left(&self, name: &str) -> Result<Option<Duration>, BackendError> {
        let query = sqlx::query(statements::LEASE_LEFT.sql).bind(name);
        let rows = self.read(statements::LEASE_LEFT, query).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let left: i64 = row.try_get(0).map_err(errors::of_read)?;
        Ok(Some(Duration::from_micros(u64::try_from(left).unwrap_or(0))))
    }

    pub(super) async fn prolong_lease(&self, lease: &Lease, ttl: Duration) -> Result<bool, BackendError> {
        let query = sqlx::query(statements::RENEW_LEASE.sql)
            .bind(&lease.name)
            .bind(lease.holder)
            .bind(lease.epoch)
            .bind(micros(ttl));
        Ok(!self.prolong(statements::RENEW_LEASE, query).await?.is_empty())
    }

    pub(super) async fn give_up_lease(&self, lease: &Lease) -> Result<(), BackendError> {
        let query =
            sqlx::query(statements::RELEASE_LEASE.sql).bind(&lease.name).bind(lease.holder).bind(lease.epoch);
        self.change(statements::RELEASE_LEASE, query).await.map(drop)
    }

    pub(super) async fn prolong_gateway(
        &self,
        gateway: Uuid,
        internal_address: &str,
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        let query =
            sqlx::query(statements::RENEW_GATEWAY.sql).bind(gateway).bind(internal_address).bind(micros(ttl));
        let rows = self.prolong(statements::RENEW_GATEWAY, query).await?;
        rows.first().ok_or(sqlx::Error::RowNotFound).and_then(|row| row.try_get(0)).map_err(errors::of_read)
    }

    pub(super) async fn call_gateway(&self, gateway: Uuid, name: &str) -> Result<bool, BackendError> {
        // Where connections are lent, nobody can see whether this process still has any.
        let application = (!self.between().await?.lends).then_some(self.application.as_str());
        let query = sqlx::query(statements::NAME_GATEWAY.sql).bind(gateway).bind(name).bind(application);
        self.change_one(statements::NAME_GATEWAY, query).await?.try_get(0).map_err(errors::of_read)
    }

    pub(super) async fn end_gateway(&self, gateway: Uuid) -> Result<(), BackendError> {
        let query = sqlx::query(statements::RETIRE_GATEWAY.sql).bind(gateway);
        self.change(statements::RETIRE_GATEWAY, query).await.map(drop)
    }

    pub(super) async fn open_sessions(
        &self,
        claims: Vec<SessionClaim>,
        stale_after: Duration,
    ) -> Result<Vec<Option<SessionGrant>>, BackendError> {
        let of = |part: fn(&SessionClaim) -> &str| claims.iter().map(part).collect::<Vec<&str>>();
        let gateways: Vec<Uuid> = claims.iter().map(|claim| claim.gateway).collect();
        let sessions: Vec<Uuid> = claims.iter().map(|_| Uuid::new_v4()).collect();
        let query = sqlx::query(statements::CLAIM_SESSIONS.sql)
            .bind(of(|claim| &claim.node))
            .bind(gateways)
            .bind(of(|claim| &claim.peer))
            .bind(of(|claim| &claim.certificate))
            .bind(sessions)
            .bind(micros(stale_after));
        let rows = self.change_some(statements::CLAIM_SESSIONS, query).await?;
        let mut granted = vec![None; claims.len()];
        for row in &rows {
            let (at, grant) = granted_row(row).map_err(errors::of_read)?;
            if let Some(place) = usize::try_from(at - 1).ok().and_then(|at| granted.get_mut(at)) {
                *place = Some(grant);
            }
        }
        Ok(granted)
    }

    pub(super) async fn end_sessions(&self, sessions: &[(String, SessionGrant)]) -> Result<(), BackendError> {
        let (nodes, epochs, ids) = columns(sessions);
        let query = sqlx::query(statements::RELEASE_SESSIONS.sql).bind(nodes).bind(epochs).bind(ids);
        self.change(statements::RELEASE_SESSIONS, query).await.map(drop)
    }

    pub(super) async fn see_sessions(
        &self,
        gateway: Uuid,
        sessions: &[SeenSession],
    ) -> Result<Vec<String>, BackendError> {
        let named: Vec<(String, SessionGrant)> =
            sessions.iter().map(|seen| (seen.node.clone(), seen.grant.clone())).collect();
        let (nodes, epochs, ids) = columns(&named);
        let ends: Vec<Option<i64>> = sessions.iter().map(|seen| seen.certificate_ends).collect();
        let query = sqlx::query(statements::TOUCH_SESSIONS.sql)
            .bind(nodes)
            .bind(epochs)
            .bind(ids)
            .bind(gateway)
            .bind(ends);
        let rows = self.change_some(statements::TOUCH_SESSIONS, query).await?;
        rows.iter().map(|row| row.try_get("node")).collect::<Result<_, _>>().map_err(errors::of_read)
    }

    pub(super) async fn read_session(&self, node: &str) -> Result<Option<SessionRow>, BackendError> {
        let query = sqlx::query(statements::SESSION_OF.sql).bind(node);
        let rows = self.read(statements::SESSION_OF, query).await?;
        rows.first().map(session).transpose().map_err(errors::of_read)
    }

    pub(super) async fn read_sessions(&self) -> Result<Vec<SessionRow>, BackendError> {
        let rows = self.read(statements::SESSIONS, sqlx::query(statements::SESSIONS.sql)).await?;
        rows.iter().map(session).collect::<Result<_, _>>().map_err(errors::of_read)
    }

    pub(super) async fn read_denied(&self) -> Result<Vec<DeniedCertificates>, BackendError> {
        let rows = self.read(statements::DENIED, sqlx::query(statements::DENIED.sql)).await?;
        rows.iter().map(denied).collect::<Result<_, _>>().map_err(errors::of_read)
    }

    pub(super) async fn add_denied(
        &self,
        denied: &DeniedCertificates,
        reason: &str,
    ) -> Result<(), BackendError> {
        let (name, fingerprint, until) = match denied {
            DeniedCertificates::Name { name, begun_until } => (name.as_str(), "", Some(*begun_until)),
            DeniedCertificates::Fingerprint(fingerprint) => ("", fingerprint.as_str(), None),
        };
        let query = sqlx::query(statements::DENY.sql).bind(name).bind(fingerprint).bind(until).bind(reason);
        self.change(statements::DENY, query).await.map(drop)
    }

    pub(super) async fn remove_denied(&self, of: &str) -> Result<bool, BackendError> {
        let query = sqlx::query(statements::ALLOW.sql).bind(of);
        Ok(self.change(statements::ALLOW, query).await?.rows_affected() > 0)
    }

    pub(super) async fn write_announcement(
        &self,
        announcement: &Announcement,
        revision: Revision,
    ) -> Result<(), BackendError> {
        let Announcement { id, program, place, version } = announcement;
        let query = sqlx::query(statements::ANNOUNCE.sql)
            .bind(id)
            .bind(program)
            .bind(place)
            .bind(version)
            .bind(revision);
        self.change(statements::ANNOUNCE, query).await.map(drop)
    }

    pub(super) async fn remove_announcement(&self, id: Uuid) -> Result<(), BackendError> {
        let query = sqlx::query(statements::WITHDRAW.sql).bind(id);
        self.change(statements::WITHDRAW, query).await.map(drop)
    }

    pub(super) async fn remove_presence(&self, age: Duration, limit: usize) -> Result<Pruned, BackendError> {
        let (age, limit) = (micros(age), i64::try_from(limit).unwrap_or(i64::MAX));
        let query = sqlx::query(statements::END_STALE_SESSIONS.sql).bind(age).bind(limit);
        let sessions = self.change_some(statements::END_STALE_SESSIONS, query).await?.len();
        self.prune(statements::PRUNE_SEEN, age, limit).await?;
        let gateways = self.prune(statements::PRUNE_GATEWAYS, age, limit).await?;
        let heartbeats = self.prune(statements::PRUNE_HEARTBEATS, age, limit).await?;
        let samples = self.prune(statements::PRUNE_SAMPLES, age, limit).await?;
        Ok(Pruned { sessions, gateways, heartbeats, samples })
    }

    async fn prune(&self, statement: Statement, age: i64, limit: i64) -> Result<usize, BackendError> {
        let query = sqlx::query(statement.sql).bind(age).bind(limit);
        let done = self.change(statement, query).await?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }

    pub(super) async fn write_heartbeats(&self, beats: &[Heartbeat]) -> Result<(), BackendError> {
        // One statement cannot touch a row twice: the last report of a node counts.
        let mut last: std::collections::BTreeMap<&str, &Heartbeat> = std::collections::BTreeMap::new();
        last.extend(beats.iter().map(|beat| (beat.node.as_str(), beat)));
        let nodes: Vec<&str> = last.keys().copied().collect();
        let cpu: Vec<i64> = last.values().map(|beat| beat.allocated_cpu).collect();
        let memory: Vec<i64> = last.values().map(|beat| beat.allocated_memory).collect();
        let query = sqlx::query(statements::RECORD_HEARTBEATS.sql).bind(nodes).bind(cpu).bind(memory);
        self.change(statements::RECORD_HEARTBEATS, query).await.map(drop)
    }

    pub(super) async fn write_beats(
        &self,
        beats: &[(SessionGrant, Heartbeat)],
    ) -> Result<Vec<String>, BackendError> {
        let last: std::collections::BTreeMap<&str, &(SessionGrant, Heartbeat)> =
            beats.iter().map(|beat| (beat.1.node.as_str(), beat)).collect();
        let sessions: Vec<(String, SessionGrant)> =
            last.values().map(|(grant, beat)| (beat.node.clone(), grant.clone())).collect();
        let (nodes, epochs, ids) = columns(&sessions);
        let cpu: Vec<i64> = last.values().map(|(_, beat)| beat.allocated_cpu).collect();
        let memory: Vec<i64> = last.values().map(|(_, beat)| beat.allocated_memory).collect();
        let query = sqlx::query(statements::RECORD_BEATS.sql)
            .bind(nodes)
            .bind(epochs)
            .bind(ids)
            .bind(cpu)
            .bind(memory);
        let rows = self.change_some(statements::RECORD_BEATS, query).await?;
        rows.iter().map(|row| row.try_get("node")).collect::<Result<_, _>>().map_err(errors::of_read)
    }

    pub(super) async fn read_heartbeats(&self) -> Result<Vec<HeartbeatRow>, BackendError> {
        let rows = self.read(statements::HEARTBEATS, sqlx::query(statements::HEARTBEATS.sql)).await?;
        rows.iter().map(heartbeat).collect::<Result<_, _>>().map_err(errors::of_read)
    }

    pub(super) async fn read_token_form(&self, node: &str) -> Result<Option<TokenForm>, BackendError> {
        let query = sqlx::query(statements::TOKEN_FORM.sql).bind(node);
        let rows = self.read(statements::TOKEN_FORM, query).await?;
        rows.first().map(token_form).transpose().map_err(errors::of_read)
    }

    pub(super) async fn write_token_form(
        &self,
        node: &str,
        as_secrets: bool,
        overrule: bool,
    ) -> Result<TokenForm, BackendError> {
        let statement = statements::CHOOSE_TOKEN_FORM;
        let query = sqlx::query(statement.sql).bind(node).bind(as_secrets).bind(overrule);
        token_form(&self.change_one(statement, query).await?).map_err(errors::of_read)
    }

    pub(super) async fn write_samples(&self, samples: &[Samples]) -> Result<(), BackendError> {
        // As with heartbeats.
        let mut last: std::collections::BTreeMap<&str, &Samples> = std::collections::BTreeMap::new();
        last.extend(samples.iter().map(|of_node| (of_node.node.as_str(), of_node)));
        let nodes: Vec<&str> = last.keys().copied().collect();
        let epochs: Vec<i64> = last.values().map(|of_node| of_node.grant.epoch).collect();
        let sessions: Vec<Uuid> = last.values().map(|of_node| of_node.grant.session).collect();
        let bodies: Vec<&[u8]> = last.values().map(|of_node| of_node.body.as_ref()).collect();
        let query =
            sqlx::query(statements::RECORD_SAMPLES.sql).bind(nodes).bind(epochs).bind(sessions).bind(bodies);
        self.change(statements::RECORD_SAMPLES, query).await.map(drop)
    }

    pub(super) async fn read_samples(
        &self,
        nodes: &[String],
        within: Duration,
    ) -> Result<Vec<SamplesRow>, BackendError> {
        let query = sqlx::query(statements::SAMPLES.sql).bind(nodes).bind(micros(within));
        let rows = self.read(statements::SAMPLES, query).await?;
        rows.iter().map(samples).collect::<Result<_, _>>().map_err(errors::of_read)
    }
}

fn samples(row: &PgRow) -> Result<SamplesRow, sqlx::Error> {
    Ok(SamplesRow {
        node: row.try_get("node")?,
        age: age(row)?,
        body: row.try_get::<Vec<u8>, _>("body")?.into(),
    })
}

fn age(row: &PgRow) -> Result<Duration, sqlx::Error> {
    Ok(Duration::from_micros(u64::try_from(row.try_get::<i64, _>("age")?).unwrap_or(0)))
}

fn token_form(row: &PgRow) -> Result<TokenForm, sqlx::Error> {
    Ok(TokenForm { as_secrets: row.try_get("as_secrets")?, salt: row.try_get("salt")? })
}

/// Nodes, epochs and ids, each by themselves.
fn columns(sessions: &[(String, SessionGrant)]) -> (Vec<&str>, Vec<i64>, Vec<Uuid>) {
    let nodes = sessions.iter().map(|(node, _)| node.as_str()).collect();
    let epochs = sessions.iter().map(|(_, grant)| grant.epoch).collect();
    (nodes, epochs, sessions.iter().map(|(_, grant)| grant.session).collect())
}

/// Which claim was granted, counted from one, and with what.
fn granted_row(row: &PgRow) -> Result<(i64, SessionGrant), sqlx::Error> {
    let grant = SessionGrant { epoch: row.try_get("epoch")?, session: row.try_get("session")? };
    Ok((row.try_get("at")?, grant))
}

fn session(row: &PgRow) -> Result<SessionRow, sqlx::Error> {
    Ok(SessionRow {
        node: row.try_get("node")?,
        grant: SessionGrant { epoch: row.try_get("epoch")?, session: row.try_get("session")? },
        gateway: row.try_get("gateway")?,
        internal_address: row.try_get("internal_address")?,
        peer: row.try_get("peer")?,
        certificate: row.try_get("certificate")?,
        opened_at: row.try_get("opened_at")?,
        last_seen: row.try_get("last_seen")?,
    })
}

fn denied(row: &PgRow) -> Result<DeniedCertificates, sqlx::Error> {
    Ok(match row.try_get("until")? {
        Some(begun_until) => DeniedCertificates::Name { name: row.try_get("name")?, begun_until },
        None => DeniedCertificates::Fingerprint(row.try_get("fingerprint")?),
    })
}

fn heartbeat(row: &PgRow) -> Result<HeartbeatRow, sqlx::Error> {
    Ok(HeartbeatRow {
        heartbeat: Heartbeat {
            node: row.try_get("node")?,
            allocated_cpu: row.try_get("allocated_cpu")?,
            allocated_memory: row.try_get("allocated_memory")?,
        },
        at: row.try_get("at")?,
        age: age(row)?,
        now: row.try_get("now")?,
        served_since: row.try_get("served_since")?,
    })
}
