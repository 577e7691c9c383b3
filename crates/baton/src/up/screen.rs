//! What `baton up` says while it works: lines, and in a terminal a spinner below them.

use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Standard error. Lines and spinner do not tear each other apart.
#[derive(Debug)]
pub struct Screen {
    /// Hidden where standard error is no terminal.
    spinner: ProgressBar,
    /// What was last said to be waited for.
    waiting: Mutex<String>,
}

const SPINNER_INTERVAL: Duration = Duration::from_millis(100);

impl Screen {
    pub fn new() -> Self {
        let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner:.cyan} {msg} ({elapsed})") {
            spinner.set_style(style);
        }
        Self { spinner, waiting: Mutex::default() }
    }

    pub fn is_terminal(&self) -> bool {
        !self.spinner.is_hidden()
    }

    pub fn line(&self, text: &str) {
        // Nobody is left to be told that standard error is closed.
        self.spinner.suspend(|| drop(writeln!(std::io::stderr(), "{text}")));
    }

    /// Says what is waited for; where there is no spinner, only when it has changed.
    pub fn waiting_for(&self, text: String) {
        let mut waiting = self.waiting.lock().unwrap_or_else(|e| e.into_inner());
        if *waiting == text {
            return;
        }
        if self.is_terminal() {
            self.spinner.set_message(text.clone());
            self.spinner.enable_steady_tick(SPINNER_INTERVAL);
        } else {
            self.line(&text);
        }
        *waiting = text;
    }

    /// Takes the spinner away for good.
    pub fn settled(&self) {
        self.spinner.finish_and_clear();
    }
}
