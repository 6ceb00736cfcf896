//! Sizes on the command line: `8`, `4K`, `64KiB`, `1M`, and ranges `8:64M:x4` or `0:64:+16`.

/// Bytes of one size.
fn bytes(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is not a size; write bytes with an optional K, M, G or T, for example 8, 4K or 1M");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let limit = 1 << 46;
    number.checked_mul(unit).filter(|bytes| *bytes <= limit).ok_or_else(|| format!("{text:?} is more than 64 TiB"))
}

/// All sizes of a list, in the order given, without repetitions.
pub(crate) fn list(texts: &[String]) -> Result<Vec<u64>, String> {
    let mut sizes = Vec::new();
    for text in texts {
        match text.split(':').collect::<Vec<_>>()[..] {
            [one] => sizes.push(bytes(one)?),
            [first, last] => range(bytes(first)?, bytes(last)?, "x2", &mut sizes)?,
            [first, last, step] => range(bytes(first)?, bytes(last)?, step, &mut sizes)?,
            _ => return Err(format!("{text:?} is not a range; write FIRST:LAST:xFACTOR, for example 8:64M:x4")),
        }
    }
    let mut seen = std::collections::HashSet::new();
    sizes.retain(|size| seen.insert(*size));
    Ok(sizes)
}

fn range(first: u64, last: u64, step: &str, sizes: &mut Vec<u64>) -> Result<(), String> {
    if first > last {
        return Err(format!("the range {first}:{last} is empty; the first size comes first"));
    }
    let next: Box<dyn Fn(u64) -> Option<u64>> = match (step.strip_prefix('x'), step.strip_prefix('+')) {
        (Some(factor), _) => match factor.parse::<u64>() {
            Ok(factor) if factor > 1 && first > 0 => Box::new(move |size| size.checked_mul(factor)),
            Ok(_) if first == 0 => {
                return Err("a range that multiplies cannot start at 0; start at 1 or use +STEP".into());
            }
            _ => return Err(format!("{step:?} is not a factor of at least 2, for example x4")),
        },
        (_, Some(step)) => match bytes(step)? {
            0 => return Err("the step of a range is at least 1".into()),
            step => Box::new(move |size| size.checked_add(step)),
        },
        _ => return Err(format!("{step:?} is no step of a range; write x4 to multiply or +64 to add")),
    };
    let mut size = Some(first);
    while let Some(now) = size.filter(|size| *size <= last) {
        sizes.push(now);
        if sizes.len() > 10_000 {
            return Err("more than 10000 sizes; use a larger step".into());
        }
        size = next(now);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<u64>, String> {
        list(&text.split(',').map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn sizes_and_ranges() {
        assert_eq!(of("8,4K,1M,2GiB,0"), Ok(vec![8, 4096, 1 << 20, 2 << 30, 0]));
        assert_eq!(of("8:128:x4"), Ok(vec![8, 32, 128]));
        assert_eq!(of("8:100"), Ok(vec![8, 16, 32, 64]));
        assert_eq!(of("0:40:+16,16"), Ok(vec![0, 16, 32]));
    }

    #[test]
    fn what_is_no_size_is_named() {
        for wrong in [
            "",
            "x",
            "4Q",
            "-1",
            "1.5K",
            "8:4",
            "8:64:x1",
            "8:64:y",
            "0:64:x2",
            "1:2:3:4",
            "0:9:+0",
            "99999999999G",
            "1:1M:+1",
        ] {
            let error = of(wrong).unwrap_err();
            assert!(!error.is_empty(), "{wrong}");
        }
        assert!(of("12 monkeys").unwrap_err().contains("12 monkeys"));
    }
}
