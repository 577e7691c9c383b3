//! What happened, a line an event. The digest covers every line, also those that are not kept (I10).

use std::collections::VecDeque;
use std::fmt::{self, Write};

use baton_types::Time;

#[derive(Debug)]
pub(crate) struct Log {
    tail: VecDeque<String>,
    keep: usize,
    echo: bool,
    silent: bool,
    digest: u64,
    lines: u64,
    spare: String,
}

impl Log {
    /// Keeps the last `keep` lines; `echo` prints all of them.
    pub fn new(keep: usize, echo: bool) -> Self {
        Self {
            tail: VecDeque::new(),
            keep,
            echo,
            silent: false,
            digest: 0xcbf2_9ce4_8422_2325,
            lines: 0,
            spare: String::new(),
        }
    }

    /// Where lines would take more time than what happens.
    pub fn silent() -> Self {
        Self { silent: true, ..Self::new(0, false) }
    }

    pub fn line(&mut self, now: Time, who: &str, what: fmt::Arguments<'_>) {
        if self.silent {
            return;
        }
        let mut line = std::mem::take(&mut self.spare);
        line.clear();
        write!(line, "{}.{:06}ms {who:<7} {what}", now.0 / 1_000_000, now.0 % 1_000_000)
            .expect("a String takes all text");
        self.hash(line.as_bytes());
        self.lines += 1;
        if self.echo {
            println!("{line}");
        }
        self.tail.push_back(line);
        if self.tail.len() > self.keep {
            self.spare = self.tail.pop_front().unwrap_or_default();
        }
    }

    pub fn digest(&self) -> u64 {
        self.digest
    }

    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// The last lines, as many as are kept.
    pub fn tail(&self) -> String {
        self.tail.iter().fold(String::new(), |text, line| text + line + "\n")
    }

    /// FNV-1a over words, and over the line's length, so that lines cannot run into one another.
    fn hash(&mut self, bytes: &[u8]) {
        let mut digest = self.digest ^ bytes.len() as u64;
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            digest = (digest ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
        self.digest = digest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_covers_lines_that_are_no_longer_kept() {
        let run = |first: &str| {
            let mut log = Log::new(2, false);
            for what in [first, "b", "c", "d"] {
                log.line(Time::ZERO, "x", format_args!("{what}"));
            }
            log
        };
        assert_eq!(run("a").tail(), run("A").tail());
        assert_eq!(run("a").digest(), run("a").digest());
        assert_ne!(run("a").digest(), run("A").digest());
        assert_eq!(run("a").tail().lines().count(), 2);
    }
}
