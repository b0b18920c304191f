//! Holds the generated types against bytes that were put together by hand, field
//! number by field number: what deployed peers send and expect.

mod call;
mod fields;
