//! Times and speeds on the command line: `2us`, `300ns`, `12.5GB/s`, `100Gb/s`.

use std::time::Duration;

/// For example `2us`, `0.5us`, `300ns`, `1ms`, `0`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let nanoseconds = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "" if number.parse() == Ok(0.0) => 1.0,
        _ => return Err("write a number with ns, us, ms or s, for example 2us".into()),
    };
    let value = number.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    let value = value.ok_or("write a number with ns, us, ms or s, for example 2us")? * nanoseconds;
    if value > 1e9 {
        return Err("more than a second; choose a shorter time".into());
    }
    Ok(Duration::from_nanos(value.round() as u64))
}

/// In bytes a second: for example `12.5GB/s`, `100Gb/s` (bits), `200MB/s`, `inf`.
pub(super) fn speed(text: &str) -> Result<f64, String> {
    if text == "inf" {
        return Ok(f64::INFINITY);
    }
    let wrong = || "write a number with kB/s, MB/s, GB/s or TB/s, or Gb/s for bits, for example 12.5GB/s".to_string();
    let (number, unit) = split(text);
    let unit = unit.strip_suffix("/s").unwrap_or(unit);
    let bytes = match unit {
        "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "Mb" => 1e6 / 8.0,
        "Gb" => 1e9 / 8.0,
        "Tb" => 1e12 / 8.0,
        _ => return Err(wrong()),
    };
    let value = number.parse::<f64>().map_err(|_| wrong())? * bytes;
    if (1.0..1e18).contains(&value) {
        Ok(value)
    } else {
        Err("choose a speed from 1 byte to 10^18 bytes a second".into())
    }
}

/// Number and unit.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, nanoseconds) in
            [("2us", 2000), ("0.5us", 500), ("300 ns", 300), ("1ms", 1_000_000), ("0", 0), ("1s", 1_000_000_000)]
        {
            assert_eq!(time(text), Ok(Duration::from_nanos(nanoseconds)), "{text}");
        }
        for wrong in ["", "2", "us", "-2us", "2 hours", "2s", "1.2.3us", "\u{b5}s"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn speeds() {
        for (text, expected) in [("12.5GB/s", 12.5e9), ("100Gb/s", 12.5e9), ("1 MB/s", 1e6), ("3kB", 3e3)] {
            assert_eq!(speed(text), Ok(expected), "{text}");
        }
        assert_eq!(speed("inf"), Ok(f64::INFINITY));
        for wrong in ["", "12", "GB/s", "-1GB/s", "0GB/s", "1GiB/s", "9999999TB/s"] {
            assert!(speed(wrong).is_err(), "{wrong}");
        }
    }
}
