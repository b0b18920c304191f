//! Elements of the repeated fields of a desired state, encoded ahead of time.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// Numbers of the fields.
pub const VOLUMES: u32 = 2;
pub const ROUTES: u32 = 7;
pub const SERVICES: u32 = 8;

/// A message as an element of the field.
pub fn message(field: u32, message: &impl Message) -> Bytes {
    element(field, message.encoded_len(), |bytes| {
        // Only ever fails for want of room, of which there is any amount.
        let _ = message.encode(bytes);
    })
}

/// Bytes as an element of the field.
pub fn bytes(field: u32, content: &[u8]) -> Bytes {
    element(field, content.len(), |bytes| bytes.put_slice(content))
}

fn element(field: u32, length: usize, put: impl FnOnce(&mut BytesMut)) -> Bytes {
    let head = key_len(field) + encoded_len_varint(length as u64);
    let mut bytes = BytesMut::with_capacity(head + length);
    encode_key(field, WireType::LengthDelimited, &mut bytes);
    encode_varint(length as u64, &mut bytes);
    put(&mut bytes);
    bytes.freeze()
}
