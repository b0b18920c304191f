//! Bytes in documents: base64 texts.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::values::{decode_base64, encode_base64};

/// Bytes that are written as base64. Neither debug output nor an error ever shows them: they may be secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ByteString(pub Vec<u8>);

impl ByteString {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByteString({} bytes)", self.0.len())
    }
}

impl Serialize for ByteString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode_base64(&self.0))
    }
}

impl<'de> Deserialize<'de> for ByteString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByteString, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        decode_base64(&text).map(ByteString).ok_or_else(|| de::Error::custom("must be base64"))
    }
}

impl JsonSchema for ByteString {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ByteString".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "x-check": "base64" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_and_stay_out_of_debug_output() {
        let bytes: ByteString = serde_json::from_str(r#""aHVudGVyMg==""#).unwrap();
        assert_eq!(bytes.0, b"hunter2");
        assert_eq!(format!("{bytes:?}"), "ByteString(7 bytes)");
        assert_eq!(serde_json::to_string(&bytes).unwrap(), r#""aHVudGVyMg==""#);
        let error = serde_json::from_str::<ByteString>(r#""hunter2!""#).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
