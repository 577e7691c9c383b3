//! Reading a stream that arrives in pieces of any size.

use bytes::{Bytes, BytesMut};

use super::SseEvent;

/// Why a stream of events cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    #[error("an event is longer than {limit} bytes")]
    TooLong { limit: usize },
}

/// An incremental parser: the same bytes give the same events however they are split.
///
/// Lines end with LF, CR or CR LF. An event is given at the blank line behind it and not before; an event that the stream's
/// end cuts off is never given, as the WHATWG asks. Memory is bounded by the limit on one event.
#[derive(Debug)]
pub struct SseParser {
    max_event_bytes: usize,
    /// The line that is not complete yet.
    line: BytesMut,
    /// The fields of the event that is not complete yet.
    name: Option<Bytes>,
    id: Option<Bytes>,
    data: BytesMut,
    data_lines: usize,
    /// Bytes of lines of the current event, dropped ones included.
    event_bytes: usize,
    /// The last byte was a CR: an LF now belongs to it.
    after_cr: bool,
    /// A byte order mark may only be at the very beginning.
    at_start: bool,
    failed: Option<SseError>,
}

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

impl SseParser {
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            max_event_bytes,
            line: BytesMut::new(),
            name: None,
            id: None,
            data: BytesMut::new(),
            data_lines: 0,
            event_bytes: 0,
            after_cr: false,
            at_start: true,
            failed: None,
        }
    }

    /// Takes the next bytes and appends the events that they complete.
    ///
    /// # Errors
    /// If an event is longer than the limit; events before it are appended, and every later call fails as well.
    pub fn feed(&mut self, mut input: &[u8], events: &mut Vec<SseEvent>) -> Result<(), SseError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        while !input.is_empty() {
            if std::mem::take(&mut self.after_cr) && input[0] == b'\n' {
                input = &input[1..];
                continue;
            }
            let end = input.iter().position(|b| matches!(b, b'\n' | b'\r'));
            let taken = &input[..end.unwrap_or(input.len())];
            self.event_bytes += taken.len();
            if self.event_bytes > self.max_event_bytes {
                let error = SseError::TooLong { limit: self.max_event_bytes };
                self.failed = Some(error);
                return Err(error);
            }
            self.line.extend_from_slice(taken);
            let Some(end) = end else { break };
            self.after_cr = input[end] == b'\r';
            input = &input[end + 1..];
            events.extend(self.end_line());
        }
        Ok(())
    }

    /// Whether an event has begun that is not complete: the stream must not end here.
    pub fn is_inside_event(&self) -> bool {
        !self.line.is_empty() || self.data_lines > 0
    }

    fn end_line(&mut self) -> Option<SseEvent> {
        let mut line = self.line.split().freeze();
        if std::mem::take(&mut self.at_start) && line.starts_with(BYTE_ORDER_MARK) {
            line = line.slice(BYTE_ORDER_MARK.len()..);
        }
        if line.is_empty() {
            return self.dispatch();
        }
        let colon = line.iter().position(|b| *b == b':');
        let field = &line[..colon.unwrap_or(line.len())];
        let value = match colon {
            None => Bytes::new(),
            Some(at) if line.get(at + 1) == Some(&b' ') => line.slice(at + 2..),
            Some(at) => line.slice(at + 1..),
        };
        match field {
            b"data" => {
                if self.data_lines > 0 {
                    self.data.extend_from_slice(b"\n");
                }
                self.data_lines += 1;
                self.data.extend_from_slice(&value);
            }
            b"event" => self.name = Some(value).filter(|name| !name.is_empty()),
            b"id" if !value.contains(&0) => self.id = Some(value),
            // A comment (the field's name is empty), `retry`, or a field that the standard does not know.
            _ => {}
        }
        None
    }

    fn dispatch(&mut self) -> Option<SseEvent> {
        self.event_bytes = 0;
        let (name, id) = (self.name.take(), self.id.take());
        if std::mem::take(&mut self.data_lines) == 0 {
            return None;
        }
        Some(SseEvent { name, data: self.data.split().freeze(), id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 4096;

    fn parse(pieces: &[&[u8]]) -> Vec<SseEvent> {
        let mut parser = SseParser::new(LIMIT);
        let mut events = Vec::new();
        for piece in pieces {
            parser.feed(piece, &mut events).unwrap();
        }
        events
    }

    fn data(text: &str) -> Vec<String> {
        let events = parse(&[text.as_bytes()]);
        events.iter().map(|event| String::from_utf8(event.data.to_vec()).unwrap()).collect()
    }

    #[test]
    fn the_standards_cases() {
        assert_eq!(data("data: a\n\ndata:b\r\n\r\ndata: c\r\r"), ["a", "b", "c"]);
        assert_eq!(data("data: a\ndata\ndata:  b\n\n"), ["a\n\n b"]);
        assert_eq!(data("data\n\n"), [""]);
        assert_eq!(data(": comment\n\nevent: x\n\nretry: 10\n\nother: y\n\n"), [""; 0]);
        assert_eq!(data("\u{feff}data: a\n\n\u{feff}data: b\n\n"), ["a"]);
        assert_eq!(data("data: never ended\n"), [""; 0]);
        assert_eq!(data("data: a:b\n\n\n\n\ndata: c\n\n"), ["a:b", "c"]);
    }

    #[test]
    fn names_and_ids_belong_to_their_event() {
        let events = parse(&[b"event: e\nid: 1\ndata: a\n\ndata: b\n\nid: \0\ndata: c\n\n"]);
        assert_eq!(events[0].name.as_deref(), Some(&b"e"[..]));
        assert_eq!(events[0].id.as_deref(), Some(&b"1"[..]));
        assert_eq!(events[1], SseEvent::message("b"));
        assert_eq!(events[2], SseEvent::message("c"));
    }

    #[test]
    fn a_cr_dispatches_at_once_and_its_lf_is_no_second_line() {
        let mut parser = SseParser::new(LIMIT);
        let mut events = Vec::new();
        parser.feed(b"data: a\r\n\r", &mut events).unwrap();
        assert_eq!(events.len(), 1);
        assert!(!parser.is_inside_event());
        parser.feed(b"\ndata: b\r\n", &mut events).unwrap();
        assert_eq!(events.len(), 1);
        assert!(parser.is_inside_event());
        parser.feed(b"\r\n", &mut events).unwrap();
        assert_eq!(events[1], SseEvent::message("b"));
    }

    #[test]
    fn a_long_event_is_an_error_for_ever_and_those_before_it_are_given() {
        for line in ["data: ", ": ", "data:\ndata:\n"] {
            let mut parser = SseParser::new(64);
            let mut events = Vec::new();
            let text = format!("data: ok\n\n{}", line.repeat(60));
            assert_eq!(parser.feed(text.as_bytes(), &mut events), Err(SseError::TooLong { limit: 64 }));
            assert_eq!(events.len(), 1);
            assert!(parser.feed(b"\n\n", &mut events).is_err());
        }
        let mut parser = SseParser::new(64);
        for _ in 0..1000 {
            parser.feed(b"data: short\n\n", &mut Vec::new()).unwrap();
        }
    }

    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            Just("data: "),
            Just("data:"),
            Just("data"),
            Just("event: x"),
            Just("id: 1"),
            Just(":"),
            Just("\u{feff}"),
            Just("{\"a\": \"é🙂\"}"),
            Just(" "),
            Just("\n"),
            Just("\r"),
            Just("\r\n"),
            Just("\n\n"),
            Just("\r\n\r\n"),
        ];
        prop::collection::vec(word, 0..40).prop_map(|words| words.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(text in stream(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let whole = parse(&[&text]);
            prop_assert_eq!(&parse(&pieces), &whole);
            let bytes: Vec<&[u8]> = text.chunks(1).collect();
            prop_assert_eq!(&parse(&bytes), &whole);
        }

        #[test]
        fn what_is_encoded_is_read_back(datas in prop::collection::vec("[a-z{}: \n🙂]{0,20}", 0..6)) {
            let mut out = BytesMut::new();
            let events: Vec<SseEvent> = datas.into_iter().map(SseEvent::message).collect();
            for event in &events {
                event.encode_into(&mut out);
            }
            prop_assert_eq!(parse(&[&out]), events);
        }
    }
}
