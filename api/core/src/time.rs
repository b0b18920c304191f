//! Points in time as the API writes them: RFC 3339, UTC, in whole seconds or (Events) in microseconds.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A point in time, in microseconds: always written with six digits, without which some clients cannot read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MicroTime(Timestamp);

impl MicroTime {
    /// Cuts off what is finer than a microsecond.
    pub fn new(timestamp: Timestamp) -> MicroTime {
        MicroTime(Timestamp::from_microsecond(timestamp.as_microsecond()).unwrap_or(timestamp))
    }

    pub fn timestamp(self) -> Timestamp {
        self.0
    }
}

impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.0)
    }
}

impl FromStr for MicroTime {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<MicroTime, jiff::Error> {
        text.parse().map(MicroTime::new)
    }
}

impl Serialize for MicroTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MicroTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MicroTime, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for MicroTime {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "MicroTime".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time", "x-check": "micro-time" })
    }
}

/// A point in time, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Timestamp);

impl Time {
    /// Cuts off the fraction of a second.
    pub fn new(timestamp: Timestamp) -> Time {
        Time(Timestamp::from_second(timestamp.as_second()).unwrap_or(timestamp))
    }

    pub fn timestamp(self) -> Timestamp {
        self.0
    }

    /// Seconds since 1970.
    pub fn seconds(self) -> i64 {
        self.0.as_second()
    }

    /// `None` when out of the range of years 0 to 9999.
    pub fn from_seconds(seconds: i64) -> Option<Time> {
        Timestamp::from_second(seconds).ok().map(Time)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}", self.0)
    }
}

impl FromStr for Time {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Time, jiff::Error> {
        text.parse().map(Time::new)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time", "x-check": "time" })
    }
}
