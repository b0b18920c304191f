//! A message on its way down, and how it becomes bytes.
//!
//! A desired state consists of what its node alone is sent and of what many are: the names of volumes, routes, rules.
//! The latter are encoded once and shared; since fields of a message may come in any order and repeated ones in any
//! number of pieces, a whole is its parts one after the other. Each session copies them once, into the buffer of its
//! stream, when the transport has room for them; until then it holds references.

use bytes::{Buf, BufMut, Bytes};
use horchestra_proto::node::v1::{ControllerMessage, DesiredState, NodeMessage};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Number of the field of a desired state in the message.
const DESIRED: u32 = 1;

/// Bytes of a buffer to begin with.
const BUFFER: usize = 512;
/// What may gather in one before it is handed to the transport.
const YIELD_AT: usize = 32 << 10;

/// What goes down to a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Outgoing {
    Control(ControllerMessage),
    Desired(Whole),
}

/// A desired state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Whole {
    /// What the node alone is sent.
    pub own: DesiredState,
    /// What others are sent as well, encoded: any number of complete fields.
    pub shared: Vec<Bytes>,
}

impl From<ControllerMessage> for Outgoing {
    fn from(message: ControllerMessage) -> Outgoing {
        Outgoing::Control(message)
    }
}

impl Whole {
    fn inner_len(&self) -> usize {
        self.own.encoded_len() + self.shared.iter().map(Bytes::len).sum::<usize>()
    }

    /// Length of the whole message.
    pub fn encoded_len(&self) -> usize {
        let inner = self.inner_len();
        key_len(DESIRED) + encoded_len_varint(inner as u64) + inner
    }

    fn encode(&self, buf: &mut impl BufMut) -> Result<(), prost::EncodeError> {
        encode_key(DESIRED, WireType::LengthDelimited, buf);
        encode_varint(self.inner_len() as u64, buf);
        self.own.encode(buf)?;
        self.shared.iter().for_each(|piece| buf.put_slice(piece));
        Ok(())
    }
}

/// Both directions of the stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wire;

impl Codec for Wire {
    type Encode = Outgoing;
    type Decode = NodeMessage;
    type Encoder = Wire;
    type Decoder = Wire;

    fn encoder(&mut self) -> Wire {
        Wire
    }

    fn decoder(&mut self) -> Wire {
        Wire
    }
}

impl Encoder for Wire {
    type Item = Outgoing;
    type Error = Status;

    fn encode(&mut self, item: Outgoing, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let encoded = match &item {
            Outgoing::Control(message) => message.encode(buf),
            Outgoing::Desired(whole) => {
                buf.reserve(whole.encoded_len());
                whole.encode(buf)
            }
        };
        encoded.map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

impl Decoder for Wire {
    type Item = NodeMessage;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<NodeMessage>, Status> {
        let length = buf.remaining();
        let message = NodeMessage::decode(buf.copy_to_bytes(length));
        message.map(Some).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

/// Buffers of a stream stay as large as they were made for as long as it lasts, which for most is idle. For
/// larger messages they grow.
fn buffers() -> BufferSettings {
    BufferSettings::new(BUFFER, YIELD_AT)
}

#[cfg(test)]
mod tests {
    use horchestra_proto::netd::v1::Route;
    use horchestra_proto::node::v1::controller_message::Body;

    use super::*;

    fn routes(count: usize) -> DesiredState {
        let route = |n| Route { cidr: format!("10.0.0.{n}/32"), node_ip: "10.1.0.1".to_owned() };
        DesiredState { routes: (0..count).map(route).collect(), ..DesiredState::default() }
    }

    #[test]
    fn a_whole_decodes_as_if_it_had_been_encoded_in_one() {
        for (apps, pieces) in
            [(0, vec![]), (0, vec![3]), (2, vec![]), (1, vec![1, 0, 7]), (9, vec![200, 200])]
        {
            let own = DesiredState {
                applications: vec![Bytes::from_static(b"{}"); apps],
                ..DesiredState::default()
            };
            let shared = pieces.iter().map(|count| Bytes::from(routes(*count).encode_to_vec())).collect();
            let whole = Whole { own: own.clone(), shared };
            let mut bytes = Vec::new();
            whole.encode(&mut bytes).unwrap();
            assert_eq!(bytes.len(), whole.encoded_len());
            let all = pieces.iter().flat_map(|count| routes(*count).routes).collect();
            let expected: ControllerMessage = Body::Desired(DesiredState { routes: all, ..own }).into();
            assert_eq!(ControllerMessage::decode(bytes.as_slice()).unwrap(), expected);
        }
    }
}
