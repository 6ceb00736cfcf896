//! Values as people read them.

/// For example `8 B`, `4 KiB`, `1.5 MiB`.
pub(super) fn bytes(value: u64) -> String {
    let (unit, shift) = match value {
        0..1024 => return format!("{value} B"),
        1024..0x10_0000 => ("KiB", 10),
        0x10_0000..0x4000_0000 => ("MiB", 20),
        _ => ("GiB", 30),
    };
    format!("{} {unit}", short(value as f64 / (1_u64 << shift) as f64))
}

/// For example `500 ns`, `1.5 us`, `10 ms`, `2 s`.
pub(super) fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 0.9995 => (us * 1e3, "ns"),
        us if us < 999.5 => (us, "us"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    format!("{} {unit}", short(value))
}

/// Of GB/s (1e9 bytes a second), for example `10 MB/s`.
pub(super) fn bandwidth(gbs: f64) -> String {
    let (value, unit) = match gbs {
        gbs if gbs < 0.9995e-3 => (gbs * 1e6, "kB/s"),
        gbs if gbs < 0.9995 => (gbs * 1e3, "MB/s"),
        gbs if gbs < 999.5 => (gbs, "GB/s"),
        gbs => (gbs / 1e3, "TB/s"),
    };
    format!("{} {unit}", short(value))
}

/// For example `1.03`, `0.87`, `12.4`, `310`.
pub(super) fn ratio(value: f64) -> String {
    match value {
        value if value < 0.01 => format!("{value:.0e}"),
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value if value < 99_999.5 => format!("{value:.0}"),
        value => format!("{value:.0e}"),
    }
}

/// Three digits, without zeros behind the point.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size < 9.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

/// At most `most` characters; what is cut off at the front is often a path, so the end stays.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_string();
    }
    let kept: String = text.chars().skip(length - (most - 1)).collect();
    format!("\u{2026}{kept}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_where_people_expect_it() {
        for (value, expected) in
            [(0, "0 B"), (8, "8 B"), (1023, "1023 B"), (4096, "4 KiB"), (3 << 19, "1.5 MiB"), (1 << 34, "16 GiB")]
        {
            assert_eq!(bytes(value), expected);
        }
        for (value, expected) in
            [(0.5, "500 ns"), (1.0, "1 us"), (12.34, "12.3 us"), (999.6, "1 ms"), (1e4, "10 ms"), (2.5e6, "2.5 s")]
        {
            assert_eq!(time(value), expected);
        }
        for (value, expected) in [(1e-5, "10 kB/s"), (0.01, "10 MB/s"), (1.0, "1 GB/s"), (1200.0, "1.2 TB/s")] {
            assert_eq!(bandwidth(value), expected);
        }
        let ratios = [1.0, 0.031, 0.0012, 12.42, 310.2, 1.5e7].map(ratio);
        assert_eq!(ratios, ["1.00", "0.03", "1e-3", "12.4", "310", "2e7"]);
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("short", 5), "short");
        assert_eq!(shortened("/a/long/path/after.jsonl", 12), "\u{2026}after.jsonl");
    }
}
