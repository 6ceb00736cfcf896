//! Conversion of the OCP 8-bit floats, rounded once to nearest even.
//!
//! The `float8` crate carries the types; its conversions saturate or round twice in places.

#![forbid(unsafe_code)]

/// Exact.
pub(crate) fn e4m3_to_f32(bits: u8) -> f32 {
    let magnitude = bits & 0x7f;
    let value = match (magnitude >> 3, magnitude & 7) {
        (15, 7) => f32::NAN,
        (0, fraction) => f32::from(fraction) * 2_f32.powi(-9),
        (exponent, fraction) => (1.0 + f32::from(fraction) / 8.0) * 2_f32.powi(i32::from(exponent) - 7),
    };
    if bits & 0x80 != 0 { -value } else { value }
}

/// Exact.
pub(crate) fn e5m2_to_f32(bits: u8) -> f32 {
    half::f16::from_bits(u16::from(bits) << 8).to_f32()
}

/// Beyond 448 after rounding: NaN. The format has no infinities.
pub(crate) fn e4m3_from_f32(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let code = round(value, 3, -6);
    if value.is_nan() || code > 0x7e { 0x7f } else { sign | code as u8 }
}

/// Beyond 57344 after rounding: infinity.
pub(crate) fn e5m2_from_f32(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() { 0x7e } else { sign | round(value, 2, -14).min(0x7c) as u8 }
}

/// The magnitude of `value` as exponent and fraction of `fraction` bits, as if the exponent had no upper end (but at
/// most 0xff). `lowest` is the exponent of the smallest normal number.
fn round(value: f32, fraction: i32, lowest: i32) -> u32 {
    let magnitude = f64::from(value.abs());
    if !magnitude.is_finite() {
        return 0xff;
    }
    if magnitude == 0.0 {
        return 0;
    }
    // Exact: an f32 is always a normal f64.
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(lowest);
    // In units of the last place; a power of two scales exactly, and a carry moves into the exponent by itself.
    let units = (magnitude * 2_f64.powi(fraction - exponent)).round_ties_even() as u32;
    let steps = ((exponent - lowest) as u32) << fraction;
    (steps + units).min(0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nearest(value: f32, to_f32: fn(u8) -> f32, finite: u8) -> u8 {
        // Brute force over all finite codes; ties to the even code.
        let mut best = 0;
        for code in 0..=finite {
            let (old, new) = ((value - to_f32(best)).abs(), (value - to_f32(code)).abs());
            if new < old || (new == old && code % 2 == 0) {
                best = code;
            }
        }
        best
    }

    #[test]
    fn every_code_round_trips() {
        for code in 0..=255_u8 {
            let e4m3 = e4m3_to_f32(code);
            assert_eq!(e4m3_from_f32(e4m3), if e4m3.is_nan() { 0x7f } else { code });
            let e5m2 = e5m2_to_f32(code);
            assert_eq!(e5m2_from_f32(e5m2), if e5m2.is_nan() { 0x7e } else { code });
            assert_eq!(float8::F8E4M3::from_bits(code).to_f32().to_bits() & 0x7fff_ffff == 0, e4m3 == 0.0);
        }
    }

    #[test]
    fn rounds_to_nearest_even() {
        // All midpoints, and a step to either side.
        for code in 0..0x7e_u8 {
            let middle = (e4m3_to_f32(code) + e4m3_to_f32(code + 1)) / 2.0;
            for value in [middle.next_down(), middle, middle.next_up()] {
                assert_eq!(e4m3_from_f32(value), nearest(value, e4m3_to_f32, 0x7e), "{value}");
                assert_eq!(e4m3_from_f32(-value), 0x80 | nearest(value, e4m3_to_f32, 0x7e), "-{value}");
            }
        }
        for code in 0..0x7b_u8 {
            let middle = (e5m2_to_f32(code) + e5m2_to_f32(code + 1)) / 2.0;
            for value in [middle.next_down(), middle, middle.next_up()] {
                assert_eq!(e5m2_from_f32(value), nearest(value, e5m2_to_f32, 0x7b), "{value}");
            }
        }
    }

    #[test]
    fn overflow() {
        assert_eq!(e4m3_from_f32(448.0), 0x7e);
        assert_eq!(e4m3_from_f32(464.0), 0x7e);
        assert_eq!(e4m3_from_f32(464.0_f32.next_up()), 0x7f);
        assert_eq!(e4m3_from_f32(f32::INFINITY), 0x7f);
        assert_eq!(e4m3_from_f32(-1e30), 0x7f);
        assert_eq!(e5m2_from_f32(61440.0_f32.next_down()), 0x7b);
        assert_eq!(e5m2_from_f32(61440.0), 0x7c);
        assert_eq!(e5m2_from_f32(f32::NEG_INFINITY), 0xfc);
        assert_eq!(e5m2_from_f32(f32::MIN_POSITIVE / 4.0), 0);
        assert_eq!(e4m3_from_f32(-0.0), 0x80);
    }
}
