//! Feature gates: what can be switched on and is off otherwise.
//!
//! Written `Name=true,Other=false`. All processes of a cluster have the same ones, since a gate decides what
//! may be stored. A gate never defaults to on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A feature that can be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gate {
    AutoNodeCertRotation,
    NodeLogs,
    VaultDynamicSecrets,
    VaultStaticRoles,
}

/// How settled a feature is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// May change or go.
    Alpha,
    /// Stays, details may change.
    Beta,
}

impl Gate {
    /// In byte order of the names.
    pub const ALL: [Gate; 4] =
        [Gate::AutoNodeCertRotation, Gate::NodeLogs, Gate::VaultDynamicSecrets, Gate::VaultStaticRoles];

    pub const fn name(self) -> &'static str {
        match self {
            Gate::AutoNodeCertRotation => "AutoNodeCertRotation",
            Gate::NodeLogs => "NodeLogs",
            Gate::VaultDynamicSecrets => "VaultDynamicSecrets",
            Gate::VaultStaticRoles => "VaultStaticRoles",
        }
    }

    pub const fn stage(self) -> Stage {
        match self {
            Gate::AutoNodeCertRotation => Stage::Beta,
            Gate::NodeLogs | Gate::VaultDynamicSecrets | Gate::VaultStaticRoles => Stage::Alpha,
        }
    }

    /// What is different when the gate is on.
    pub const fn description(self) -> &'static str {
        match self {
            Gate::AutoNodeCertRotation => {
                "A request of a node to renew its own certificate is signed without asking anybody."
            }
            Gate::NodeLogs => "The journal of a node's agent can be read.",
            Gate::VaultDynamicSecrets => {
                "Secrets may ask their store for a credential of each consumer's own \
                 (secrets.horchestra.io/dynamic-role)."
            }
            Gate::VaultStaticRoles => {
                "Secrets may ask their store for a credential that the store rotates \
                 (secrets.horchestra.io/static-role)."
            }
        }
    }

    /// The gate of this name.
    pub fn named(name: &str) -> Option<Gate> {
        Gate::ALL.into_iter().find(|gate| gate.name() == name)
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which gates somebody has switched on or off. Those that nobody has are off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gates([Option<bool>; Gate::ALL.len()]);

/// Why a list of gates cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatesError {
    #[error("there is no feature gate {0:?}; known are {known}", known = known())]
    Unknown(String),
    #[error("{0:?} does not say whether it is on: write <name>=true or <name>=false; known are {known}", known = known())]
    NoValue(String),
    #[error("{value:?} of the feature gate {name} is neither true nor false")]
    NotBoolean { name: String, value: String },
}

fn known() -> String {
    Gate::ALL.map(Gate::name).join(", ")
}

impl Gates {
    pub fn enabled(&self, gate: Gate) -> bool {
        self.0[gate as usize].unwrap_or(false)
    }

    #[must_use]
    pub fn with(mut self, gate: Gate, on: bool) -> Gates {
        self.0[gate as usize] = Some(on);
        self
    }
}

impl FromStr for Gates {
    type Err = GatesError;

    fn from_str(text: &str) -> Result<Gates, GatesError> {
        let mut gates = Gates::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let Some((name, value)) = item.split_once('=') else {
                return Err(GatesError::NoValue(item.to_owned()));
            };
            let (name, value) = (name.trim(), value.trim());
            let gate = Gate::named(name).ok_or_else(|| GatesError::Unknown(name.to_owned()))?;
            let on = match value {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => {
                    return Err(GatesError::NotBoolean { name: name.to_owned(), value: value.to_owned() });
                }
            };
            gates = gates.with(gate, on);
        }
        Ok(gates)
    }
}

impl fmt::Display for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = Gate::ALL.into_iter().filter_map(|gate| Some((gate, self.0[gate as usize]?)));
        for (at, (gate, on)) in set.enumerate() {
            write!(f, "{}{gate}={on}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl Serialize for Gates {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Gates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Gates, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_gates() {
        for (text, shown) in [
            ("", ""),
            ("  ", ""),
            ("VaultStaticRoles=true", "VaultStaticRoles=true"),
            (" VaultStaticRoles = false ", "VaultStaticRoles=false"),
            ("VaultStaticRoles=1,,NodeLogs=F", "NodeLogs=false,VaultStaticRoles=true"),
        ] {
            let gates: Gates = text.parse().unwrap();
            assert_eq!(gates.to_string(), shown, "{text:?}");
            assert_eq!(shown.parse(), Ok(gates), "what is shown reads the same");
        }
        for bad in ["Nope=true", "VaultStaticRoles", "=true"] {
            let error = bad.parse::<Gates>().unwrap_err().to_string();
            assert!(Gate::ALL.iter().all(|gate| error.contains(gate.name())), "{error}");
        }
        let error = "VaultStaticRoles=yes-please".parse::<Gates>().unwrap_err().to_string();
        assert!(error.contains("yes-please"), "{error}");
    }

    #[test]
    fn gates_are_off_until_somebody_switches_them_on() {
        let none = Gates::default();
        for gate in Gate::ALL {
            assert!(!none.enabled(gate) && !gate.description().is_empty());
            assert!(none.with(gate, true).enabled(gate));
            assert!(!none.with(gate, true).with(gate, false).enabled(gate));
            assert_eq!(Gate::named(gate.name()), Some(gate));
        }
        let mut names = Gate::ALL.map(Gate::name);
        names.sort_unstable();
        assert_eq!(names, Gate::ALL.map(Gate::name));
        assert_eq!(Gate::AutoNodeCertRotation.stage(), Stage::Beta);
    }
}
