//! Addresses of workloads. Choosing one is a function of the database, which holds the ordering lock: no two askers
//! choose at the same time, and none for an Application that is being erased.

use std::net::Ipv4Addr;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{PostgresBackend, errors, statements};
use crate::addresses::{AddressDemand, AddressLease, KnownAddress, Leased};
use crate::backend::BackendError;

fn address(text: &str) -> Result<Ipv4Addr, sqlx::Error> {
    text.parse().map_err(|error| sqlx::Error::Decode(format!("address {text:?}: {error}").into()))
}

fn leased(row: &PgRow) -> Result<Leased, sqlx::Error> {
    let text: Option<&str> = row.try_get("leased")?;
    Ok(Leased { holder: row.try_get("holder")?, address: text.map(address).transpose()? })
}

fn lease(row: &PgRow) -> Result<AddressLease, sqlx::Error> {
    Ok(AddressLease { address: address(row.try_get("address")?)?, holder: row.try_get("owner")? })
}

impl PostgresBackend {
    pub(super) async fn give_addresses(&self, demand: &AddressDemand) -> Result<Vec<Leased>, BackendError> {
        let namespaces: Vec<&str> = demand.holders.iter().map(|(key, _)| key.namespace.as_str()).collect();
        let names: Vec<&str> = demand.holders.iter().map(|(key, _)| key.name.as_str()).collect();
        let uids: Vec<Uuid> = demand.holders.iter().map(|(_, uid)| *uid).collect();
        let firsts: Vec<String> = demand.skipped.iter().map(|skipped| skipped.start().to_string()).collect();
        let lasts: Vec<String> = demand.skipped.iter().map(|skipped| skipped.end().to_string()).collect();
        let query = sqlx::query(statements::LEASE_ADDRESSES.sql)
            .bind(namespaces)
            .bind(names)
            .bind(uids)
            .bind(demand.range.start().to_string())
            .bind(demand.range.end().to_string())
            .bind(firsts)
            .bind(lasts)
            .bind(i64::try_from(demand.hold_back.as_micros()).unwrap_or(i64::MAX));
        let rows = self.change_some(statements::LEASE_ADDRESSES, query).await?;
        rows.iter().map(leased).collect::<Result<_, _>>().map_err(errors::of_read)
    }

    pub(super) async fn take_over_addresses(
        &self,
        known: &[KnownAddress],
    ) -> Result<Vec<Uuid>, BackendError> {
        let namespaces: Vec<&str> = known.iter().map(|it| it.key.namespace.as_str()).collect();
        let names: Vec<&str> = known.iter().map(|it| it.key.name.as_str()).collect();
        let uids: Vec<Uuid> = known.iter().map(|it| it.uid).collect();
        let addresses: Vec<String> = known.iter().map(|it| it.address.to_string()).collect();
        let query = sqlx::query(statements::ADOPT_ADDRESSES.sql)
            .bind(namespaces)
            .bind(names)
            .bind(uids)
            .bind(addresses);
        let rows = self.change_some(statements::ADOPT_ADDRESSES, query).await?;
        rows.iter().map(|row| row.try_get("refused")).collect::<Result<_, _>>().map_err(errors::of_read)
    }

    pub(super) async fn read_address_leases(&self) -> Result<Vec<AddressLease>, BackendError> {
        let query = sqlx::query(statements::ADDRESS_LEASES.sql);
        let rows = self.read(statements::ADDRESS_LEASES, query).await?;
        rows.iter().map(lease).collect::<Result<_, _>>().map_err(errors::of_read)
    }

    pub(super) async fn read_released(
        &self,
        space: &str,
        within: Duration,
    ) -> Result<Vec<String>, BackendError> {
        let query = sqlx::query(statements::RELEASED_CLAIMS.sql)
            .bind(space)
            .bind(i64::try_from(within.as_micros()).unwrap_or(i64::MAX));
        let rows = self.read(statements::RELEASED_CLAIMS, query).await?;
        rows.iter().map(|row| row.try_get("value")).collect::<Result<_, _>>().map_err(errors::of_read)
    }
}
