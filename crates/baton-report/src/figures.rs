//! Numbers as people read them.

/// A count or a rate: three significant digits, and thousands set apart.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = value.abs();
    let digits = match size {
        0.0 => 0,
        s if s < 0.01 => 4,
        s if s < 10.0 => 2,
        s if s < 100.0 => 1,
        _ => 0,
    };
    if size >= 1e15 { format!("{value:.2e}") } else { thousands(&format!("{value:.digits$}")) }
}

/// A rate or a size that a user chose: whole where it is whole.
pub fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    if value.abs() >= 1e15 {
        return format!("{value:.2e}");
    }
    thousands(text.trim_end_matches('0').trim_end_matches('.'))
}

pub fn count(value: u64) -> String {
    thousands(&value.to_string())
}

/// A share from 0 to 1.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A share from 0 to 1 in whole percent, without the sign.
pub fn percent_whole(share: f64) -> String {
    short((share * 100.0).round())
}

pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut size, mut unit) = (value as f64, 0);
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value} B") } else { format!("{size:.1} {}", UNITS[unit]) }
}

pub fn seconds(value: f64) -> String {
    match value {
        v if v < 120.0 => format!("{} s", number(v)),
        v if v < 7200.0 => format!("{} min", number(v / 60.0)),
        v => format!("{} h", number(v / 3600.0)),
    }
}

/// A narrow space between each three digits before the point.
fn thousands(text: &str) -> String {
    let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (whole, fraction) = rest.split_once('.').map_or((rest, None), |(w, f)| (w, Some(f)));
    let mut out = sign.to_owned();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_follow_the_size() {
        for (value, text) in [
            (0.0, "0"),
            (0.00123, "0.0012"),
            (1.234, "1.23"),
            (45.67, "45.7"),
            (678.9, "679"),
            (12345.6, "12\u{202f}346"),
            (-1234567.0, "-1\u{202f}234\u{202f}567"),
            (1e300, "1.00e300"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(
            (short(4.0), short(0.25), short(1500.0)),
            ("4".into(), "0.25".into(), "1\u{202f}500".into())
        );
        assert_eq!((bytes(25_000_000_000), bytes(12)), ("23.3 GiB".into(), "12 B".into()));
        assert_eq!((seconds(131.5), seconds(5.0)), ("2.19 min".into(), "5.00 s".into()));
    }
}
