//! The model's files: found, or fetched while the user sees how far it is.

use std::io::Write;

use anyhow::{Context, Result};
use baton_model::fetch::{FetchProgress, ModelSource};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::EngineArgs;

/// The model that needs no files.
pub const EMULATED: &str = "emulated";

/// Downloads whatever models the settings name that are not here, and blocks meanwhile, perhaps for minutes.
///
/// # Errors
/// If there is no such model, or it cannot be had.
pub fn fetch_all(engine: &EngineArgs) -> Result<()> {
    let named = engine.emulated_tokenizer.iter().chain([&engine.model]);
    named.filter(|model| *model != EMULATED).try_for_each(|model| fetch(model))
}

fn fetch(model: &str) -> Result<()> {
    let source = ModelSource::parse(model)?;
    let mut bar = FetchBar::new(model);
    let files = source.fetch(&mut |progress| bar.show(&progress));
    bar.end();
    files.map(drop).with_context(|| format!("model {model}"))
}

/// A bar in a terminal, else a line for each thing that is done.
#[derive(Debug)]
struct FetchBar {
    model: String,
    bar: ProgressBar,
    /// What was said last.
    said: String,
}

const BAR: &str = "{msg} {wide_bar:.cyan/dim} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

impl FetchBar {
    fn new(model: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(BAR) {
            bar.set_style(style);
        }
        Self { model: model.to_owned(), bar, said: String::new() }
    }

    fn show(&mut self, progress: &FetchProgress<'_>) {
        let model = &self.model;
        match progress {
            FetchProgress::Waiting => self.say(format!("{model}: another process is fetching it")),
            FetchProgress::Downloading { file, done_bytes, total_bytes } => {
                self.bar.set_length(*total_bytes);
                self.bar.set_position(*done_bytes);
                self.say(format!("{model}: downloading {file}"));
            }
            FetchProgress::Unpacking => self.say(format!("{model}: unpacking")),
            FetchProgress::Verifying => self.say(format!("{model}: verifying")),
        }
    }

    fn say(&mut self, text: String) {
        if text == self.said {
            return;
        }
        if self.bar.is_hidden() {
            // Nobody is left to be told that standard error is closed.
            let _ = writeln!(std::io::stderr(), "{text}");
        } else {
            self.bar.set_message(text.clone());
        }
        self.said = text;
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_here_is_found_and_what_is_nowhere_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let error = format!("{:#}", fetch(path).unwrap_err());
        assert!(error.contains("config.json"), "{error}");
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        fetch(path).unwrap();
        assert!(fetch("nothing-of-the-kind").is_err());
    }
}
