//! Sizes and durations as people write them: `512MiB`, `30s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes. Prints in the largest unit that loses nothing, so that what is printed is read back the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const SIZE_UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("a size reads 512MiB, 2GiB or 64MB, not {text:?}");
        let (number, unit) = split_unit(text).ok_or_else(wrong)?;
        let bytes_each = match unit {
            "" => 1,
            unit => SIZE_UNITS
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(unit))
                .map(|u| u.1)
                .ok_or_else(wrong)?,
        };
        scale(number, bytes_each).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |(_, each): &&(&str, u64)| self.0 >= *each && self.0.is_multiple_of(*each);
        let (unit, each) = SIZE_UNITS.iter().find(exact).unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / each)
    }
}

/// A length of time. Prints as [`ByteSize`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// In milliseconds; nothing finer is a setting.
const SPAN_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl Span {
    pub fn ms(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("a duration reads 500ms, 30s, 5m or 1h, not {text:?}");
        let (number, unit) = split_unit(text).ok_or_else(wrong)?;
        let (_, ms_each) = SPAN_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        scale(number, *ms_each).map(|ms| Self(Duration::from_millis(ms))).ok_or_else(wrong)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.ms();
        let exact = |(_, each): &&(&str, u64)| ms >= *each && ms.is_multiple_of(*each);
        let (unit, each) = SPAN_UNITS.iter().find(exact).unwrap_or(&("ms", 1));
        write!(f, "{}{unit}", ms / each)
    }
}

/// The number, digits and at most one point, and what follows it.
fn split_unit(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (!number.is_empty()).then_some((number, unit.trim_start()))
}

/// `number * each`, if that is a whole number that fits.
fn scale(number: &str, each: u64) -> Option<u64> {
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(each);
    }
    let product = number.parse::<f64>().ok()? * each as f64;
    // Above 2^53 a float no longer holds every whole number.
    (product.fract() == 0.0 && product < 9e15).then_some(product as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_print_as_they_are_read() {
        for (text, bytes, printed) in [
            ("512MiB", 512 << 20, "512MiB"),
            ("2GiB", 2 << 30, "2GiB"),
            ("1.5 gib", 3 << 29, "1536MiB"),
            ("64MB", 64_000_000, "62500KiB"),
            ("1000", 1000, "1kB"),
            ("0", 0, "0B"),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, printed), "{text}");
            assert_eq!(printed.parse(), Ok(size));
        }
        for bad in ["", "MiB", "-1MiB", "1XiB", "0.3B", "1..5GiB", "99999999999TiB", "1e5"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_are_read_and_print_as_they_are_read() {
        for (text, ms, printed) in [
            ("500ms", 500, "500ms"),
            ("30s", 30_000, "30s"),
            ("90s", 90_000, "90s"),
            ("1.5h", 5_400_000, "90m"),
            ("0s", 0, "0ms"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.0.as_millis(), span.to_string().as_str()), (ms, printed), "{text}");
            assert_eq!(printed.parse(), Ok(span));
        }
        for bad in ["", "30", "s", "-1s", "1d", "0.5ms"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }
}
