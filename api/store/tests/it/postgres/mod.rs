//! What only PostgreSQL has to show: schema, plans, partitions, and that it does as the oracle does.

pub mod database;
mod examine;
mod inspect;
mod leaving;
pub mod listening;
mod oracle;
mod pooled;
mod races;
mod refusing;
pub mod released;
mod roles;
mod samples;
mod schema;
mod survey;
mod terms;
mod upgrade;
mod upkeep;

crate::behaviour::suite!(crate::postgres::database::world);
