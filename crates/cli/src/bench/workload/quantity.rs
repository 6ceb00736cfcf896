//! Sizes in a workload file: a number, a name, or a product and quotient of them, such as `batch * hidden / ranks`.

use serde::{Deserialize, Deserializer, de};
use std::fmt;

/// The name whose value is the number of ranks.
pub(crate) const RANKS: &str = "ranks";

/// A product, evaluated from left to right. Divisions must leave no remainder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Quantity {
    text: String,
    /// Whether to divide by it, and the factor. The first one multiplies.
    factors: Vec<(bool, Factor)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Factor {
    Number(u64),
    Name(String),
}

impl Quantity {
    pub(crate) fn number(value: u64) -> Quantity {
        Quantity { text: value.to_string(), factors: vec![(false, Factor::Number(value))] }
    }

    pub(crate) fn name(name: &str) -> Quantity {
        Quantity { text: name.to_string(), factors: vec![(false, Factor::Name(name.to_string()))] }
    }

    fn parse(text: &str) -> Result<Quantity, String> {
        let mut factors = Vec::new();
        let mut rest = text;
        let mut divide = false;
        loop {
            let end = rest.find(['*', '/']).unwrap_or(rest.len());
            let word = rest[..end].trim();
            let factor = match word.parse::<u64>() {
                Ok(number) => Factor::Number(number),
                Err(_) if is_name(word) => Factor::Name(word.to_string()),
                Err(_) => {
                    return Err(format!(
                        "{text:?} is no size; write a whole number or names and numbers joined by * and /, for example \
                         \"batch * hidden / ranks\""
                    ));
                }
            };
            factors.push((divide, factor));
            match rest[end..].chars().next() {
                None => return Ok(Quantity { text: text.trim().to_string(), factors }),
                Some(sign) => (divide, rest) = (sign == '/', &rest[end + 1..]),
            }
        }
    }

    /// The names it uses.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.factors.iter().filter_map(|(_, factor)| match factor {
            Factor::Name(name) => Some(name.as_str()),
            Factor::Number(_) => None,
        })
    }

    /// Its value where each name has the value that `value_of` gives.
    pub(crate) fn value(&self, value_of: &dyn Fn(&str) -> Option<u64>) -> Result<u64, String> {
        let mut result = 1_u64;
        for (divide, factor) in &self.factors {
            let (value, name) = match factor {
                Factor::Number(number) => (*number, number.to_string()),
                Factor::Name(name) => {
                    let value = value_of(name).ok_or_else(|| format!("{name:?} has no value"))?;
                    (value, format!("{name} = {value}"))
                }
            };
            result = match divide {
                false => result.checked_mul(value).ok_or_else(|| format!("\"{self}\" is beyond 64 bits"))?,
                true if value == 0 => return Err(format!("\"{self}\" divides by zero")),
                true if !result.is_multiple_of(value) => {
                    return Err(format!("\"{self}\" is not whole: {name} does not divide {result}"));
                }
                true => result / value,
            };
        }
        Ok(result)
    }
}

/// Whether it can be the name of a number: letters, digits and `_`, not beginning with a digit.
pub(crate) fn is_name(word: &str) -> bool {
    let mut characters = word.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|next| next.is_ascii_alphanumeric() || next == '_')
}

impl fmt::Display for Quantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Quantity, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a whole number of at least 0 or a product such as \"batch * hidden\"")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
                let value = u64::try_from(value);
                value.map(Quantity::number).map_err(|_| E::custom("a size is at least 0"))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
                Ok(Quantity::number(value))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                Quantity::parse(text).map_err(E::custom)
            }
        }
        from.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<u64, String> {
        let value_of = |name: &str| match name {
            "batch" => Some(16),
            "kv_heads" => Some(8),
            RANKS => Some(3),
            _ => None,
        };
        Quantity::parse(text)?.value(&value_of)
    }

    #[test]
    fn products_go_from_left_to_right() {
        assert_eq!(value("7"), Ok(7));
        assert_eq!(value("batch*kv_heads * 2"), Ok(256));
        assert_eq!(value("batch / 3 * 3").unwrap_err(), "\"batch / 3 * 3\" is not whole: 3 does not divide 16");
        assert_eq!(value("batch * 3 / ranks / 2"), Ok(8));
        assert_eq!(Quantity::parse("2 * batch").unwrap().names().collect::<Vec<_>>(), ["batch"]);
    }

    #[test]
    fn what_is_no_size_says_why() {
        for text in ["", "*", "batch *", "2 batch", "batch + 1", "-1", "1.5", "batch ** 2", "/ 2"] {
            assert!(value(text).unwrap_err().contains("is no size"), "{text}");
        }
        assert!(value("kv_heads / ranks").unwrap_err().contains("ranks = 3 does not divide 8"));
        assert!(value("batch / 0").unwrap_err().contains("zero"));
        assert!(value("18446744073709551615 * 2").unwrap_err().contains("64 bits"));
        assert!(value("depth").unwrap_err().contains("depth"));
    }
}
