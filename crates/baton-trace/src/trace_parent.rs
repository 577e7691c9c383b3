//! The W3C's `traceparent`: which trace a request belongs to, and which span it comes from.

use std::fmt;

/// One request through all processes. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(pub u128);

/// One span of a trace. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub u64);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What comes in the header of a request, and goes out in those that follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    pub trace: TraceId,
    pub span: SpanId,
    /// False if whoever began the trace wants it recorded nowhere. A file is written all the same.
    pub sampled: bool,
}

impl TraceParent {
    /// The header's name.
    pub const HEADER: &str = "traceparent";

    /// None if it is not what the recommendation says; then whoever got it begins a trace of its own. Later versions may have more
    /// parts than this one knows.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version = hex(parts.next()?, 2)?;
        let trace = hex(parts.next()?, 32)?;
        let span = hex(parts.next()?, 16)?;
        let flags = hex(parts.next()?, 2)?;
        let wrong = version == 0xff || (version == 0 && parts.next().is_some()) || trace == 0 || span == 0;
        (!wrong).then_some(Self {
            trace: TraceId(trace),
            span: SpanId(u64::try_from(span).ok()?),
            sampled: flags & 1 == 1,
        })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

/// So many digits, in lower case as the recommendation wants them.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let legal = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (text.len() == digits && text.bytes().all(legal)).then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_read_back_as_written() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = TraceParent::parse(text).unwrap();
        assert_eq!(parent.trace, TraceId(0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c));
        assert_eq!((parent.span, parent.sampled), (SpanId(0xb7ad_6b71_6920_3331), true));
        assert_eq!(parent.to_string(), text);
        let unsampled = TraceParent::parse(&text.replace("-01", "-02")).unwrap();
        assert!(!unsampled.sampled);
        assert!(unsampled.to_string().ends_with("-00"), "flags that are not known are not passed on");
        assert!(
            TraceParent::parse(&text.replacen("00", "cc", 1).replace("-01", "-01-what-is-new")).is_some()
        );
    }

    #[test]
    fn what_is_none_is_ignored() {
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-äf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceParent::parse(bad), None, "{bad}");
        }
    }
}
