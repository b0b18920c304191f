//! Settings that all processes of a cluster must agree on.
//!
//! They live in one row of the database. The first process to start on a new database writes its own values
//! (what its flags say, else the defaults); from then on a process whose flags contradict the row refuses to
//! start and names both values. A flag that is not given follows the row.

use std::time::Duration;

use bytes::Bytes;
use horchestra_core::gates::{Gate, Gates};
use horchestra_core::ranges::Network;
use horchestra_store::postgres::MIXED_UP;
use horchestra_store::{ReadError, SchemaFault, Store};
use serde::{Deserialize, Serialize};

/// The settings, as stored. A member that an older process does not know is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSettings {
    /// After how long without a heartbeat a node is judged silent, in milliseconds.
    pub node_ready_timeout_ms: u64,
    /// Features that are switched on.
    #[serde(default)]
    pub feature_gates: Gates,
    /// The name of the issuer of workload tokens, once a process has said one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_issuer: Option<String>,
    /// Where Services get their addresses from, once a process has said so; without, they get none.
    #[serde(default, rename = "serviceCIDR", skip_serializing_if = "Option::is_none")]
    pub service_range: Option<Network>,
    /// There are workers that sign certificates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub certificate_signer: bool,
    /// Where workloads with a network of their own get their addresses from; without, there are none.
    #[serde(default, rename = "routedCIDR", skip_serializing_if = "Option::is_none")]
    pub routed_range: Option<Network>,
    /// For how much longer a silent node has to be silent to count as lost, in milliseconds, once a process has said
    /// so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_lost_after_ms: Option<u64>,
    /// The namespace that the catalog speaks of when it is asked about none, once a process has said one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog_namespace: Option<String>,
    #[serde(flatten)]
    pub others: serde_json::Map<String, serde_json::Value>,
}

/// What this process's flags say; `None` follows the cluster.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub node_ready_timeout: Option<Duration>,
    pub feature_gates: Option<Gates>,
    pub jwt_issuer: Option<String>,
    pub service_range: Option<Network>,
    pub routed_range: Option<Network>,
    pub node_lost_after: Option<Duration>,
    pub catalog_namespace: Option<String>,
}

/// Without a flag, and without a row.
pub const DEFAULT_READY_TIMEOUT: Duration = Duration::from_secs(45);
/// Likewise.
pub const DEFAULT_LOST_AFTER: Duration = Duration::from_secs(300);
/// Likewise.
pub const DEFAULT_CATALOG_NAMESPACE: &str = "default";

/// Why this process must not start.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("the cluster's settings could not be read")]
    Read(#[source] ReadError),
    #[error(transparent)]
    Schema(#[from] SchemaFault),
    #[error("{}", MIXED_UP)]
    MixedUp,
    #[error("the cluster's settings are not readable by this version")]
    Unreadable(#[source] serde_json::Error),
    #[error(
        "--{flag} says {ours}, but this cluster runs with {theirs}: start every process with the same value, \
         or leave the flag out"
    )]
    Mismatch { flag: &'static str, ours: String, theirs: String },
    #[error(
        "--service-cidr {services} and --routed-cidr {workloads} overlap: an address could be a Service's and a \
         workload's; choose ranges that have no address in common"
    )]
    Overlap { services: Network, workloads: Network },
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl ClusterSettings {
    pub fn node_ready_timeout(&self) -> Duration {
        Duration::from_millis(self.node_ready_timeout_ms)
    }

    pub fn node_lost_after(&self) -> Duration {
        self.node_lost_after_ms.map_or(DEFAULT_LOST_AFTER, Duration::from_millis)
    }

    pub fn catalog_namespace(&self) -> &str {
        self.catalog_namespace.as_deref().unwrap_or(DEFAULT_CATALOG_NAMESPACE)
    }

    fn of(wanted: &Wanted) -> ClusterSettings {
        let timeout = wanted.node_ready_timeout.unwrap_or(DEFAULT_READY_TIMEOUT);
        ClusterSettings {
            node_ready_timeout_ms: millis(timeout),
            feature_gates: wanted.feature_gates.unwrap_or_default(),
            jwt_issuer: wanted.jwt_issuer.clone(),
            service_range: wanted.service_range,
            certificate_signer: false,
            routed_range: wanted.routed_range,
            node_lost_after_ms: wanted.node_lost_after.map(millis),
            catalog_namespace: wanted.catalog_namespace.clone(),
            others: serde_json::Map::new(),
        }
    }

    fn check(&self, wanted: &Wanted) -> Result<(), SettingsError> {
        let differ = |flag: &'static str, ours: String, theirs: String| {
            Err(SettingsError::Mismatch { flag, ours, theirs })
        };
        if let Some(ours) = wanted.node_ready_timeout
            && ours != self.node_ready_timeout()
        {
            let theirs = self.node_ready_timeout();
            return differ("node-ready-timeout", format!("{ours:?}"), format!("{theirs:?}"));
        }
        let theirs = &self.feature_gates;
        if let Some(ours) = wanted.feature_gates
            && Gate::ALL.into_iter().any(|gate| ours.enabled(gate) != theirs.enabled(gate))
        {
            return differ(
                "feature-gates",
                format!("{:?}", ours.to_string()),
                format!("{:?}", theirs.to_string()),
            );
        }
        if let (Some(ours), Some(theirs)) = (wanted.node_lost_after, self.node_lost_after_ms)
            && millis(ours) != theirs
        {
            let theirs = Duration::from_millis(theirs);
            return differ("node-lost-after", format!("{ours:?}"), format!("{theirs:?}"));
        }
        for (flag, ours, theirs) in [
            ("jwt-issuer", &wanted.jwt_issuer, &self.jwt_issuer),
            ("catalog-namespace", &wanted.catalog_namespace, &self.catalog_namespace),
        ] {
            if let (Some(ours), Some(theirs)) = (ours, theirs)
                && ours != theirs
            {
                return differ(flag, format!("{ours:?}"), format!("{theirs:?}"));
            }
        }
        for (flag, ours, theirs) in [
            ("service-cidr", wanted.service_range, self.service_range),
            ("routed-cidr", wanted.routed_range, self.routed_range),
        ] {
            if let (Some(ours), Some(theirs)) = (ours, theirs)
                && ours != theirs
            {
                return differ(flag, ours.to_string(), theirs.to_string());
            }
        }
        Ok(())
    }

    /// Takes over what the cluster has no use for until it is given one.
    fn adopt(&mut self, wanted: &Wanted) {
        self.jwt_issuer = self.jwt_issuer.take().or_else(|| wanted.jwt_issuer.clone());
        self.service_range = self.service_range.or(wanted.service_range);
        self.routed_range = self.routed_range.or(wanted.routed_range);
        self.node_lost_after_ms = self.node_lost_after_ms.or(wanted.node_lost_after.map(millis));
        self.catalog_namespace = self.catalog_namespace.take().or_else(|| wanted.catalog_namespace.clone());
    }

    /// Ranges that are only now decided on share no address. Those of a running cluster are what they are.
    fn check_new_ranges(&self) -> Result<(), SettingsError> {
        match (self.service_range, self.routed_range) {
            (Some(services), Some(workloads)) if services.overlaps(workloads) => {
                Err(SettingsError::Overlap { services, workloads })
            }
            _ => Ok(()),
        }
    }

    /// Says that there is a worker that signs certificates.
    pub async fn announce_signer(store: &Store) -> Result<(), SettingsError> {
        ClusterSettings::set_signer(store, true).await
    }

    /// Says whether there is a worker that signs certificates. The one that leads the loop says it when its term
    /// begins; until then, and where none signs, nobody can approve a request.
    pub async fn set_signer(store: &Store, signs: bool) -> Result<(), SettingsError> {
        loop {
            let row = store.settings().await.map_err(SettingsError::Read)?;
            let (mut settings, version) = match row {
                Some(row) => {
                    (serde_json::from_slice(&row.body).map_err(SettingsError::Unreadable)?, row.version)
                }
                None => (ClusterSettings::of(&Wanted::default()), 0),
            };
            if settings.certificate_signer == signs {
                return Ok(());
            }
            settings.certificate_signer = signs;
            let body = Bytes::from(serde_json::to_vec(&settings).map_err(SettingsError::Unreadable)?);
            if store.write_settings(body, version).await.map_err(SettingsError::Read)? {
                return Ok(());
            }
        }
    }

    /// How a process begins: looks whether it can work on the schema of its database, and does as
    /// [`ClusterSettings::agree`]. Waits for a database that cannot be reached yet.
    pub async fn agree_patiently(store: &Store, wanted: Wanted) -> Result<ClusterSettings, SettingsError> {
        let mut said = false;
        loop {
            match ClusterSettings::begin(store, &wanted).await {
                Err(SettingsError::Read(error)) => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!(%error, "waiting for the cluster's settings");
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                decided => return decided,
            }
        }
    }

    async fn begin(store: &Store, wanted: &Wanted) -> Result<ClusterSettings, SettingsError> {
        if store.mixes_statements().await.map_err(SettingsError::Read)? {
            return Err(SettingsError::MixedUp);
        }
        let schema = store.schema().await.map_err(SettingsError::Read)?;
        if let Some(fault) = schema.fault() {
            return Err(fault.into());
        }
        if schema.is_ahead() {
            let (newest, known) = (schema.newest, schema.known);
            tracing::info!(newest, known, "the schema is of a newer version, and this one can work on it");
        }
        ClusterSettings::agree(store, wanted).await
    }

    /// Reads the cluster's settings, writing ours when there are none, and holds our flags against them.
    pub async fn agree(store: &Store, wanted: &Wanted) -> Result<ClusterSettings, SettingsError> {
        loop {
            let (ours, version) = match store.settings().await.map_err(SettingsError::Read)? {
                Some(row) => {
                    let mut settings: ClusterSettings =
                        serde_json::from_slice(&row.body).map_err(SettingsError::Unreadable)?;
                    settings.check(wanted)?;
                    let before = settings.clone();
                    settings.adopt(wanted);
                    if settings == before {
                        return Ok(settings);
                    }
                    if (settings.service_range, settings.routed_range)
                        != (before.service_range, before.routed_range)
                    {
                        settings.check_new_ranges()?;
                    }
                    (settings, row.version)
                }
                None => {
                    let settings = ClusterSettings::of(wanted);
                    settings.check_new_ranges()?;
                    (settings, 0)
                }
            };
            let body = Bytes::from(serde_json::to_vec(&ours).map_err(SettingsError::Unreadable)?);
            if store.write_settings(body, version).await.map_err(SettingsError::Read)? {
                return Ok(ours);
            }
            // Another process was first: what it wrote is there now.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(seconds: u64) -> Wanted {
        Wanted { node_ready_timeout: Some(Duration::from_secs(seconds)), ..Wanted::default() }
    }

    #[tokio::test]
    async fn the_first_process_decides_and_the_others_must_agree() {
        let store = Store::memory();
        let first = ClusterSettings::agree(&store, &wanted(60)).await.unwrap();
        assert_eq!(first.node_ready_timeout(), Duration::from_secs(60));
        assert_eq!(ClusterSettings::agree(&store, &Wanted::default()).await.unwrap(), first);
        assert_eq!(ClusterSettings::agree(&store, &wanted(60)).await.unwrap(), first);
        let refused = ClusterSettings::agree(&store, &wanted(45)).await.unwrap_err().to_string();
        assert!(refused.contains("45s") && refused.contains("60s"), "{refused}");
    }

    #[tokio::test]
    async fn all_processes_have_the_same_gates() {
        let gates = |text: &str| Wanted { feature_gates: Some(text.parse().unwrap()), ..Wanted::default() };
        let store = Store::memory();
        let first = ClusterSettings::agree(&store, &gates("VaultStaticRoles=true")).await.unwrap();
        assert!(first.feature_gates.enabled(Gate::VaultStaticRoles));
        assert_eq!(ClusterSettings::agree(&store, &Wanted::default()).await.unwrap(), first);
        for same in ["VaultStaticRoles=true", "VaultStaticRoles=1,NodeLogs=false"] {
            assert_eq!(ClusterSettings::agree(&store, &gates(same)).await.unwrap(), first, "{same}");
        }
        for other in ["", "VaultStaticRoles=true,NodeLogs=true"] {
            let refused = ClusterSettings::agree(&store, &gates(other)).await.unwrap_err().to_string();
            assert!(
                refused.contains("feature-gates") && refused.contains("VaultStaticRoles=true"),
                "{refused}"
            );
        }
    }

    #[tokio::test]
    async fn an_issuer_is_named_once_by_whoever_says_it_first() {
        let named = |name: &str| Wanted { jwt_issuer: Some(name.to_owned()), ..Wanted::default() };
        let store = Store::memory();
        let before = ClusterSettings::agree(&store, &wanted(60)).await.unwrap();
        assert_eq!(before.jwt_issuer, None);
        let after = ClusterSettings::agree(&store, &named("https://a")).await.unwrap();
        assert_eq!(after.jwt_issuer.as_deref(), Some("https://a"));
        assert_eq!(after.node_ready_timeout(), before.node_ready_timeout());
        for agreeing in [Wanted::default(), named("https://a")] {
            assert_eq!(ClusterSettings::agree(&store, &agreeing).await.unwrap(), after);
        }
        let refused = ClusterSettings::agree(&store, &named("https://b")).await.unwrap_err().to_string();
        assert!(refused.contains("https://a") && refused.contains("https://b"), "{refused}");
    }

    #[tokio::test]
    async fn what_the_catalog_goes_by_is_said_once() {
        let says = |namespace: Option<&str>, seconds: Option<u64>| Wanted {
            catalog_namespace: namespace.map(str::to_owned),
            node_lost_after: seconds.map(Duration::from_secs),
            ..Wanted::default()
        };
        let store = Store::memory();
        let before = ClusterSettings::agree(&store, &Wanted::default()).await.unwrap();
        assert_eq!((before.catalog_namespace(), before.node_lost_after().as_secs()), ("default", 300));
        let after = ClusterSettings::agree(&store, &says(Some("platform"), Some(60))).await.unwrap();
        assert_eq!((after.catalog_namespace(), after.node_lost_after().as_secs()), ("platform", 60));
        for agreeing in [says(None, None), says(Some("platform"), None), says(None, Some(60))] {
            assert_eq!(ClusterSettings::agree(&store, &agreeing).await.unwrap(), after);
        }
        for (other, words) in [
            (says(Some("default"), None), ["--catalog-namespace", "platform"]),
            (says(None, Some(300)), ["--node-lost-after", "60s"]),
        ] {
            let refused = ClusterSettings::agree(&store, &other).await.unwrap_err().to_string();
            assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
        }
    }

    #[tokio::test]
    async fn all_processes_have_the_same_range_of_addresses() {
        let range = |text: &str| Wanted { service_range: Some(text.parse().unwrap()), ..Wanted::default() };
        let store = Store::memory();
        let without = ClusterSettings::agree(&store, &Wanted::default()).await.unwrap();
        assert_eq!(without.service_range, None);
        let first = ClusterSettings::agree(&store, &range("10.243.0.0/16")).await.unwrap();
        assert_eq!(
            first.service_range.unwrap().to_string(),
            "10.243.0.0/16",
            "said later, it counts from then on"
        );
        for same in [Wanted::default(), range("10.243.0.0/16"), range("10.243.9.9/16")] {
            assert_eq!(ClusterSettings::agree(&store, &same).await.unwrap(), first);
        }
        let refused = ClusterSettings::agree(&store, &range("10.96.0.0/12")).await.unwrap_err().to_string();
        assert!(refused.contains("10.96.0.0/12") && refused.contains("10.243.0.0/16"), "{refused}");
    }

    #[tokio::test]
    async fn no_address_is_a_services_and_a_workloads() {
        let ranges = |services: Option<&str>, workloads: Option<&str>| {
            let range = |text: Option<&str>| text.map(|text| text.parse().unwrap());
            Wanted { service_range: range(services), routed_range: range(workloads), ..Wanted::default() }
        };
        let (services, inside, beside) = ("10.243.0.0/16", "10.243.7.0/24", "10.244.0.0/16");
        let store = Store::memory();
        let refused =
            ClusterSettings::agree(&store, &ranges(Some(services), Some(inside))).await.unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains(services) && refused.contains(inside), "{refused}");
        ClusterSettings::agree(&store, &ranges(Some(services), None)).await.unwrap();
        let later = ClusterSettings::agree(&store, &ranges(None, Some(inside))).await;
        assert!(matches!(later, Err(SettingsError::Overlap { .. })), "also when it is said later");
        let agreed = ClusterSettings::agree(&store, &ranges(Some(services), Some(beside))).await.unwrap();
        assert_eq!(agreed.routed_range.unwrap().to_string(), beside);

        let store = Store::memory();
        let old = r#"{"nodeReadyTimeoutMs":1000,"serviceCIDR":"10.243.0.0/16","routedCIDR":"10.243.7.0/24"}"#;
        assert!(store.write_settings(Bytes::from_static(old.as_bytes()), 0).await.unwrap());
        ClusterSettings::agree(&store, &Wanted::default()).await.expect("what runs goes on");
    }

    #[tokio::test]
    async fn whoever_leads_the_signing_says_whether_it_signs() {
        let store = Store::memory();
        let signs =
            async || ClusterSettings::agree(&store, &Wanted::default()).await.unwrap().certificate_signer;
        ClusterSettings::agree(&store, &wanted(60)).await.unwrap();
        assert!(!signs().await);
        for said in [false, true, true, false, true] {
            ClusterSettings::set_signer(&store, said).await.unwrap();
            assert_eq!(signs().await, said);
        }
        let kept = ClusterSettings::agree(&store, &wanted(60)).await.unwrap();
        assert_eq!(kept.node_ready_timeout(), Duration::from_secs(60), "nothing else has changed");
    }

    #[tokio::test]
    async fn settings_of_an_older_version_have_no_gates() {
        let store = Store::memory();
        assert!(
            store.write_settings(Bytes::from_static(br#"{"nodeReadyTimeoutMs":1000}"#), 0).await.unwrap()
        );
        let read = ClusterSettings::agree(&store, &Wanted::default()).await.unwrap();
        assert_eq!((read.feature_gates, read.service_range), (Gates::default(), None));
    }

    #[tokio::test]
    async fn settings_of_a_newer_version_are_kept() {
        let store = Store::memory();
        let newer = Bytes::from_static(br#"{"nodeReadyTimeoutMs":1000,"somethingNew":true}"#);
        assert!(store.write_settings(newer, 0).await.unwrap());
        let read = ClusterSettings::agree(&store, &Wanted::default()).await.unwrap();
        assert_eq!(read.others["somethingNew"], true);
    }
}
