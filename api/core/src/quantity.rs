//! Resource amounts in the Kubernetes notation (`250m`, `1.5Gi`, `3e2`).
//!
//! Guarantees: what parses here is what Kubernetes parses, with one rule on top: a literal longer than
//! [`MAX_LITERAL`] characters or with a decimal exponent beyond ±[`MAX_EXPONENT`] is refused by looking at
//! its characters only, so that no input can make us compute a number with millions of digits. Node agents
//! refuse the same literals. Amounts finer than a nano are rounded away from zero; binary amounts beyond
//! `i64` are cut to it, as Kubernetes does. The canonical text ([`fmt::Display`]) has no fraction and the
//! largest suffix that keeps it exact.
//!
//! Not guaranteed: sums of absurd amounts (above some 10^29) saturate instead of growing without bound.
//! Big-number arithmetic was refused for that: no sum that fits a machine comes near it.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Longest accepted literal, in characters.
pub const MAX_LITERAL: usize = 32;
/// Largest accepted decimal exponent, in either direction.
pub const MAX_EXPONENT: u32 = 30;

const NANO: i32 = -9;

/// How an amount was written, which decides how it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Format {
    #[default]
    DecimalSi,
    BinarySi,
    DecimalExponent,
}

/// Why a literal is no quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse quantity's suffix")]
    Suffix,
    #[error("quantity literal is longer than 32 characters or its exponent is beyond 30")]
    OutOfRange,
}

/// An exact amount: `mantissa × 10^exponent`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    mantissa: i128,
    exponent: i32,
    format: Format,
}

impl Quantity {
    pub const ZERO: Quantity = Quantity { mantissa: 0, exponent: 0, format: Format::DecimalSi };

    /// An amount of nano-units (nano-cores of CPU), printed with decimal suffixes.
    pub fn from_nano(nano: i64) -> Quantity {
        Quantity { mantissa: i128::from(nano), exponent: NANO, format: Format::DecimalSi }.reduced()
    }

    /// An amount of thousandths, printed with decimal suffixes.
    pub fn from_milli(milli: i64) -> Quantity {
        Quantity { mantissa: i128::from(milli), exponent: -3, format: Format::DecimalSi }.reduced()
    }

    /// An amount of bytes, printed with binary suffixes.
    pub fn from_bytes(bytes: i64) -> Quantity {
        Quantity { mantissa: i128::from(bytes), exponent: 0, format: Format::BinarySi }
    }

    pub fn is_zero(&self) -> bool {
        self.mantissa == 0
    }

    pub fn is_negative(&self) -> bool {
        self.mantissa < 0
    }

    /// Billionths, rounded up, cut to the range of `i64`.
    pub fn nano(&self) -> i64 {
        self.scaled(NANO)
    }

    /// Thousandths, rounded up, cut to the range of `i64`.
    pub fn milli(&self) -> i64 {
        self.scaled(-3)
    }

    /// Whole units (bytes of memory), rounded up, cut to the range of `i64`.
    pub fn int(&self) -> i64 {
        self.scaled(0)
    }

    /// The amount in units of `10^scale`, rounded away from zero.
    fn scaled(&self, scale: i32) -> i64 {
        let shift = self.exponent - scale;
        let value = if shift >= 0 {
            pow10(shift.unsigned_abs()).and_then(|factor| self.mantissa.checked_mul(factor))
        } else {
            Some(match pow10(shift.unsigned_abs()) {
                Some(divisor) => div_away(self.mantissa, divisor),
                None => self.mantissa.signum(),
            })
        };
        saturate(value.unwrap_or(if self.is_negative() { i128::MIN } else { i128::MAX }))
    }

    /// Without trailing zeros in the mantissa.
    fn reduced(mut self) -> Quantity {
        if self.mantissa == 0 {
            self.exponent = 0;
            return self;
        }
        while self.mantissa % 10 == 0 {
            self.mantissa /= 10;
            self.exponent += 1;
        }
        self
    }

    /// The sum, in the format of the first summand that is not zero.
    #[must_use]
    pub fn plus(&self, other: &Quantity) -> Quantity {
        if self.is_zero() {
            return *other;
        }
        if other.is_zero() {
            return *self;
        }
        let exponent = self.exponent.min(other.exponent);
        let mantissa = align(self, exponent).saturating_add(align(other, exponent));
        Quantity { mantissa, exponent, format: self.format }.reduced()
    }

    fn fits_whole(&self) -> Option<i128> {
        if self.exponent >= 0 {
            pow10(self.exponent.unsigned_abs()).and_then(|factor| self.mantissa.checked_mul(factor))
        } else {
            let divisor = pow10(self.exponent.unsigned_abs())?;
            (self.mantissa % divisor == 0).then(|| self.mantissa / divisor)
        }
    }

    fn write_decimal(&self, f: &mut fmt::Formatter<'_>, exponent_form: bool) -> fmt::Result {
        let reduced = self.reduced();
        let mut exponent = reduced.exponent.div_euclid(3) * 3;
        let mut zeros = reduced.exponent - exponent;
        if !exponent_form && exponent > 18 {
            zeros += exponent - 18;
            exponent = 18;
        }
        write!(f, "{}", reduced.mantissa)?;
        for _ in 0..zeros {
            f.write_str("0")?;
        }
        if exponent_form {
            return if exponent == 0 { Ok(()) } else { write!(f, "e{exponent}") };
        }
        f.write_str(match exponent {
            -9 => "n",
            -6 => "u",
            -3 => "m",
            0 => "",
            3 => "k",
            6 => "M",
            9 => "G",
            12 => "T",
            15 => "P",
            _ => "E",
        })
    }
}

fn pow10(exponent: u32) -> Option<i128> {
    10i128.checked_pow(exponent)
}

fn align(quantity: &Quantity, exponent: i32) -> i128 {
    let shift = (quantity.exponent - exponent).unsigned_abs();
    match pow10(shift) {
        Some(factor) => quantity.mantissa.saturating_mul(factor),
        None if quantity.is_negative() => i128::MIN,
        None => i128::MAX,
    }
}

/// Division that rounds away from zero.
fn div_away(value: i128, divisor: i128) -> i128 {
    value / divisor + if value % divisor == 0 { 0 } else { value.signum() }
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// Whether a literal is too long or has too large an exponent to be looked at. A text that does not begin
/// like a number passes: it is nobody's number (nor is the empty one). Linear in the length, whatever the
/// literal says.
pub fn literal_out_of_range(literal: &str) -> bool {
    let unsigned = literal.strip_prefix(['+', '-']).unwrap_or(literal);
    if !unsigned.starts_with(|c: char| c == '.' || c.is_ascii_digit()) {
        return false;
    }
    if literal.chars().count() > MAX_LITERAL {
        return true;
    }
    let digits_end = unsigned.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(unsigned.len());
    let Some(exponent) = unsigned[digits_end..].strip_prefix(['e', 'E']) else { return false };
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if exponent.is_empty() || !exponent.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let significant = exponent.trim_start_matches('0');
    significant.len() > 2 || significant.parse::<u32>().is_ok_and(|value| value > MAX_EXPONENT)
}

enum Suffix {
    Decimal(i32),
    Binary(u32),
    Exponent(i32),
}

fn suffix(text: &str) -> Option<Suffix> {
    Some(match text {
        "" => Suffix::Decimal(0),
        "n" => Suffix::Decimal(-9),
        "u" => Suffix::Decimal(-6),
        "m" => Suffix::Decimal(-3),
        "k" => Suffix::Decimal(3),
        "M" => Suffix::Decimal(6),
        "G" => Suffix::Decimal(9),
        "T" => Suffix::Decimal(12),
        "P" => Suffix::Decimal(15),
        "E" => Suffix::Decimal(18),
        "Ki" => Suffix::Binary(10),
        "Mi" => Suffix::Binary(20),
        "Gi" => Suffix::Binary(30),
        "Ti" => Suffix::Binary(40),
        "Pi" => Suffix::Binary(50),
        "Ei" => Suffix::Binary(60),
        _ => {
            let digits = text.strip_prefix(['e', 'E'])?;
            let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
            if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            Suffix::Exponent(digits.parse().ok()?)
        }
    })
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Quantity, QuantityError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        if text.len() > MAX_LITERAL || literal_out_of_range(text) {
            return Err(QuantityError::OutOfRange);
        }
        let negative = text.starts_with('-');
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let whole_end = unsigned.find(|c: char| !c.is_ascii_digit()).unwrap_or(unsigned.len());
        let (whole, rest) = unsigned.split_at(whole_end);
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())),
            None => ("", rest),
        };
        let letters = rest.find(|c: char| !"eEinumkKMGTP".contains(c)).unwrap_or(rest.len());
        let tail = &rest[letters..];
        let tail = tail.strip_prefix(['+', '-']).unwrap_or(tail);
        if !tail.bytes().all(|b| b.is_ascii_digit()) {
            return Err(QuantityError::Format);
        }
        let suffix = suffix(rest).ok_or(QuantityError::Suffix)?;

        // At most 32 digits: always fits.
        let mut mantissa: i128 = 0;
        for digit in whole.bytes().chain(fraction.bytes()) {
            mantissa = mantissa * 10 + i128::from(digit - b'0');
        }
        let mut exponent = -i32::try_from(fraction.len()).map_err(|_| QuantityError::OutOfRange)?;
        let mut format = Format::DecimalSi;
        match suffix {
            Suffix::Decimal(power) => exponent += power,
            Suffix::Exponent(power) => {
                exponent += power;
                format = Format::DecimalExponent;
            }
            Suffix::Binary(power) => {
                format = Format::BinarySi;
                (mantissa, exponent) = binary(mantissa, exponent, power);
            }
        }
        if exponent < NANO {
            let divisor = pow10((NANO - exponent).unsigned_abs());
            mantissa = divisor.map_or(mantissa.signum(), |divisor| div_away(mantissa, divisor));
            exponent = NANO;
        }
        let mut quantity = Quantity { mantissa, exponent, format }.reduced();
        if format == Format::BinarySi {
            let most = Quantity { mantissa: i128::from(i64::MAX), exponent: 0, format };
            if quantity > most {
                quantity = most;
            }
            if !quantity.is_zero() && quantity < (Quantity { mantissa: 1, exponent: 0, format }) {
                quantity.format = Format::DecimalSi;
            }
        }
        if negative {
            quantity.mantissa = -quantity.mantissa;
        }
        Ok(quantity)
    }
}

/// `mantissa × 10^exponent × 2^power` with `exponent ≤ 0`; what does not fit is far beyond the cap.
fn binary(mantissa: i128, exponent: i32, power: u32) -> (i128, i32) {
    match mantissa.checked_mul(1i128 << power) {
        Some(product) => (product, exponent),
        None => {
            // Drop digits below a nano first: 2^60 leaves room for the rest or the cap applies anyway.
            let spare = u32::try_from((NANO - exponent).max(0)).unwrap_or(0);
            let reduced = pow10(spare).map_or(0, |divisor| div_away(mantissa, divisor));
            let exponent = exponent + i32::try_from(spare).unwrap_or(0);
            (reduced.saturating_mul(1i128 << power), exponent)
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        match self.format {
            Format::DecimalSi => self.write_decimal(f, false),
            Format::DecimalExponent => self.write_decimal(f, true),
            Format::BinarySi => match self.fits_whole() {
                Some(whole) if whole.unsigned_abs() >= 1024 => {
                    let mut whole = whole;
                    let mut suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].iter();
                    let mut suffix = suffixes.next();
                    while whole % 1024 == 0 {
                        let Some(next) = suffixes.next() else { break };
                        whole /= 1024;
                        suffix = Some(next);
                    }
                    write!(f, "{whole}{}", suffix.copied().unwrap_or(""))
                }
                _ => self.write_decimal(f, false),
            },
        }
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    /// By amount: `1` equals `1000m`.
    fn cmp(&self, other: &Quantity) -> Ordering {
        let (a, b) = (self.reduced(), other.reduced());
        let sign = a.mantissa.signum().cmp(&b.mantissa.signum());
        if sign != Ordering::Equal || a.is_zero() {
            return sign;
        }
        // Same sign: the longer number wins, so only numbers of like length are ever aligned.
        let digits = |q: &Quantity| {
            i64::from(q.mantissa.unsigned_abs().checked_ilog10().unwrap_or(0)) + i64::from(q.exponent)
        };
        let by_length = digits(&a).cmp(&digits(&b));
        let by_amount = by_length.then_with(|| {
            let exponent = a.exponent.min(b.exponent);
            align(&a, exponent).unsigned_abs().cmp(&align(&b, exponent).unsigned_abs())
        });
        if a.is_negative() { by_amount.reverse() } else { by_amount }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// A string, or (where no schema stands before us: a node's report) a bare number.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Quantity, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
                Ok(Quantity { mantissa: i128::from(number), ..Quantity::ZERO }.reduced())
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
                Ok(Quantity { mantissa: i128::from(number), ..Quantity::ZERO }.reduced())
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
                // Scientific notation, so that a large number is not spelled out.
                format!("{number:e}").parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Quantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "x-check": "quantity" })
    }
}

#[cfg(test)]
mod tests;
