//! Lines from standard input, answers to standard output, everything else to standard error.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::builder::styling::Style;
use tokio::sync::mpsc;

const DIM: Style = Style::new().dimmed();
const PROMPT: &str = "> ";

/// Where the user sits, or what is piped.
#[derive(Debug)]
pub struct Terminal {
    lines: Option<mpsc::Receiver<io::Result<String>>>,
    /// A person types: there is a prompt.
    interactive: bool,
    /// Answers are seen by a person: they must not steer the terminal.
    visible: bool,
    /// The answer's last character ended its line.
    at_line_start: bool,
}

impl Terminal {
    /// Reads lines; the thread that does so waits for each to be taken.
    pub fn new() -> Self {
        let (sender, lines) = mpsc::channel(1);
        // A read of standard input cannot be taken back: the thread stays in it until the process ends.
        std::thread::spawn(move || {
            io::stdin().lock().lines().try_for_each(|line| sender.blocking_send(line))
        });
        let interactive = io::stdin().is_terminal() && io::stderr().is_terminal();
        Self { lines: Some(lines), interactive, ..Self::without_input() }
    }

    /// Reads nothing.
    pub fn without_input() -> Self {
        Self { lines: None, interactive: false, visible: io::stdout().is_terminal(), at_line_start: true }
    }

    /// The next line; none at the end of the input.
    ///
    /// # Errors
    /// If the input cannot be read.
    pub async fn next_line(&mut self) -> io::Result<Option<String>> {
        if self.interactive {
            write_flush(io::stderr(), PROMPT);
        }
        match &mut self.lines {
            Some(lines) => lines.recv().await.transpose(),
            None => Ok(None),
        }
    }

    pub fn is_interactive(&self) -> bool {
        self.interactive
    }

    /// A piece of an answer.
    pub fn answer(&mut self, text: &str) {
        self.at_line_start = text.ends_with('\n');
        match self.visible {
            true => write_flush(io::stdout(), &harmless(text)),
            false => write_flush(io::stdout(), text),
        }
    }

    /// Ends the answer's last line.
    pub fn end_answer(&mut self) {
        if !self.at_line_start {
            write_flush(io::stdout(), "\n");
            self.at_line_start = true;
        }
    }

    /// A line about the answer, not of it.
    pub fn note(&self, text: &str) {
        let text = harmless(text);
        match io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
            true => write_flush(io::stderr(), &format!("{DIM}{text}{DIM:#}\n")),
            false => write_flush(io::stderr(), &format!("{text}\n")),
        }
    }
}

/// Text without the control characters by which it could move the cursor or change the terminal's settings.
fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

fn write_flush(mut to: impl Write, text: &str) {
    // A reader that is gone, as `head`, needs no more.
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_cannot_steer_the_terminal() {
        assert_eq!(harmless("a\u{1b}[2J\tb\r\nç🙂\u{9b}31m\u{7}"), "a[2J\tb\nç🙂31m");
    }
}
